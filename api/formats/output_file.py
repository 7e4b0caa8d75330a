"""A file of a user that a command writes: whole, or not at all.

Raises InvalidInput for a file that cannot be written, StorageFull. Must not know: formats.
"""

from __future__ import annotations

import errno
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from storage.errors import InvalidInput, StorageFull

STDOUT = "-"
"""The name of standard output."""


@contextmanager
def atomic_output_file(file: str) -> Iterator[str | IO[bytes]]:
    """Yield the target of an output file that appears whole or not at all: a file name, or a stream. `file` `-`:
    standard output. Raises InvalidInput, StorageFull."""
    try:
        with _replace_file_on_success(file) as target:
            yield target
    except BrokenPipeError:
        raise  # the reader of standard output has closed it, which is no error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else (str(error).splitlines() or [type(error).__name__])[0]
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(
                f"the file {file} cannot be written ({reason})", "free some space, then try again"
            ) from error
        raise InvalidInput(
            f"the file {file} cannot be written ({reason})", "name a file in a folder of yours"
        ) from error


@contextmanager
def _replace_file_on_success(file: str) -> Iterator[str | IO[bytes]]:
    """Yield the target to write to: a temporary file, which replaces `file` after a successful body.

    Until then `file` keeps its content. A pipe, a device and standard output (`-`) are written directly; an incomplete
    output has no footer, so it is no Parquet file.
    """
    if file == STDOUT:
        yield sys.stdout.buffer
        return
    target = os.path.realpath(file)
    if os.path.exists(target) and not os.path.isfile(target):
        yield file
        return
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
    partial = f"{target}.{uuid.uuid4().hex}.partial"
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
