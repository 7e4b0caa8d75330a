"""Stamps of files, which change with their content: inode, time of modification and size."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

Stamp = tuple[int, int, int] | None
"""None: the file does not exist or cannot be read."""


def stamp_of(file: Path | None) -> Stamp:
    """Return the stamp of a file; None: there is no file, or it cannot be examined.

    Take the stamp before the file is read, so that a change during the read is noticed the next time.
    """
    with suppress(OSError):
        if file is not None:
            status = file.stat()
            return status.st_ino, status.st_mtime_ns, status.st_size
    return None
