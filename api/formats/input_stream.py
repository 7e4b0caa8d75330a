"""The bytes of an input file of text: plain or gzip, from a disk, a pipe or standard input, and their lines in blocks.

A reader of lines takes blocks, so that a line costs no call of its own. Memory: a block, or the longest line.

Raises InvalidInput for a file that cannot be opened; InvalidRecord, with the line, for damaged gzip data, a disk's
error, and a line of more than `MAX_LINE_BYTES`. Must not know: what lines mean.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import select
import signal
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import InvalidInput, InvalidRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_LINE_BYTES = 512 << 20
"""Maximum length of a line. It bounds the memory for a file without line ends."""
BLOCK_BYTES = 4 << 20
REMEDY = "correct it and import it again; nothing of it was kept"
STREAM_ERRORS = (EOFError, OSError, zlib.error)
"""Errors of a stream that `open_input` returned, while it is read."""
_GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 64 << 10
_POLL_MS = 500
"""Interval at which a reader that waits for a line handles signals."""


class LineBlock(NamedTuple):
    """Lines of a file, without their ends. `first`: the number of the first one, from 1."""

    first: int
    lines: list[bytes]


def read_line_blocks(file: str) -> Iterator[LineBlock]:
    """Yield the lines of a file in blocks of about `BLOCK_BYTES`, without their ends, LF or CR LF. Raises InvalidInput,
    InvalidRecord."""
    number, pieces, size = 1, list[bytes](), 0
    with open_input(file) as stream:
        while True:
            try:
                data = stream.read(BLOCK_BYTES)
            except STREAM_ERRORS as error:
                raise InvalidRecord(
                    f"{source_name(file)}, line {number}: {stream_error_reason(error)}", REMEDY
                ) from error
            if number == 1 and not pieces:
                data = without_byte_order_mark(data)
            if data and b"\n" not in data:
                pieces.append(data)
                size += len(data)
                if size > MAX_LINE_BYTES:
                    raise InvalidRecord(
                        f"{source_name(file)}, line {number}: longer than {MAX_LINE_BYTES} bytes", REMEDY
                    )
                continue
            lines = b"".join((*pieces, data)).split(b"\n")
            last = lines.pop()
            if not data and last:
                lines.append(last)
            if lines:
                yield LineBlock(number, [line.removesuffix(b"\r") for line in lines])
                number += len(lines)
            if not data:
                return
            pieces, size = [last] if last else [], len(last)


def source_name(file: str) -> str:
    """Return the name of an input file for an error message; for `-`, "standard input"."""
    return "standard input" if file == "-" else file


def stream_error_reason(error: Exception) -> str:
    """Return the reason of an error of STREAM_ERRORS, as text for a message."""
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return f"the gzip data is damaged or cut short ({error})"
    return str(error)


def without_byte_order_mark(line: bytes) -> bytes:
    """Return the first line of a file without the byte order mark that some editors write."""
    return line.removeprefix(codecs.BOM_UTF8)


def open_input(file: str) -> io.BufferedIOBase:
    """Open a file for reading its bytes, which are decompressed if they are gzip. `file` `-`: standard input.

    Raises InvalidInput for a file that cannot be opened.
    """
    if file == "-" and sys.stdin is None:
        raise InvalidInput("there is no standard input to read", "name a file, or pipe something in")
    # polars, once imported, handles Ctrl-C in a way that lets the opening of a named pipe wait on for its writer.
    signal.siginterrupt(signal.SIGINT, True)
    try:
        # Standard input stays open: it is closed only with the process.
        name, closes = (sys.stdin.fileno(), False) if file == "-" else (file, True)
        raw = io.BufferedReader(_InterruptibleFile(io.FileIO(name, closefd=closes)), _READ_BYTES)
    except OSError as error:
        raise InvalidInput(
            f"the file {file} cannot be read ({error.strerror})", "check its name and permissions"
        ) from error
    if raw.peek(2)[:2] == _GZIP_MAGIC:
        return _ClosingGzipFile(raw)
    return raw


def interrupt_read(stream: io.BufferedIOBase) -> None:
    """Interrupt another thread that waits for bytes of a stream of `open_input`: its read raises InterruptedError."""
    buffered = stream.buffered if isinstance(stream, _ClosingGzipFile) else stream
    raw = getattr(buffered, "raw", None)
    if isinstance(raw, _InterruptibleFile):
        raw.stop()


class _InterruptibleFile(io.RawIOBase):
    """A file, pipe or terminal. Ctrl-C and SIGTERM end the wait for its next bytes.

    Python handles a signal between two bytecode instructions. A read that begins just after a signal arrived would
    block until the next line arrives, so this class reads only bytes that have arrived.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._is_stopped = False
        self._waits = not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        self._poll = select.poll()
        self._poll.register(file.fileno(), select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int | None:
        while self._waits and not self._poll.poll(_POLL_MS):
            if self._is_stopped:
                raise InterruptedError("the read was stopped")
        return self._file.readinto(buffer)

    def stop(self) -> None:
        """Make a read of another thread that waits end with InterruptedError, in at most `_POLL_MS`."""
        self._is_stopped = True

    def close(self) -> None:
        super().close()
        self._file.close()


class _ClosingGzipFile(gzip.GzipFile):
    """A gzip reader that also closes the file below it."""

    def __init__(self, raw: io.BufferedReader[_InterruptibleFile]) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self.buffered = raw

    def close(self) -> None:
        super().close()
        self.buffered.close()
