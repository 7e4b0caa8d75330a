"""Output to a terminal, without characters that could control it.

Keys, values, names and errors come from users. On a terminal their control characters (also C1, U+0080 to U+009F) and
the characters that change the direction of text are escaped. A JSON line gets JSON's escapes, which keep its meaning;
other text gets Python's. Output to a pipe or a file is not changed.
"""

from __future__ import annotations

import codecs
import re
import sys
from contextlib import suppress
from typing import IO, TextIO, cast

from api.observability.redaction import redacted

_LINE_END = "\n"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal; None and a closed stream are not."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def escape_controls(text: str) -> str:
    """Return `text` with line ends, escapes and other unprintable characters escaped: they could control a terminal."""
    return (
        text if text.isprintable() else "".join(char if char.isprintable() else _python_escape(char) for char in text)
    )


def print_line(text: str, *, flush: bool = False) -> None:
    """Print a line of data on stdout; if that is a terminal, with control characters escaped."""
    print(_escape_on_terminal(sys.stdout, text), flush=flush)  # noqa: T201


def print_json(text: str) -> None:
    """Print a JSON text on stdout; if that is a terminal, with control characters as JSON's escapes."""
    print(_escape_json_controls(text) if is_terminal(sys.stdout) else text)  # noqa: T201


def safe_for_stderr(text: str) -> str:
    """Return a message for stderr, with secrets redacted and, if that is a terminal, control characters escaped."""
    return _escape_on_terminal(sys.stderr, redacted(text))


def json_lines_stdout() -> IO[bytes]:
    """Return the binary stream of stdout, for JSON lines; on a terminal it escapes control characters."""
    return cast("IO[bytes]", _JsonEscapingStream(sys.stdout.buffer)) if is_terminal(sys.stdout) else sys.stdout.buffer


class _JsonEscapingStream:
    """A stream that escapes control characters in JSON texts. A text may arrive in several writes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes) -> int:
        self._stream.write(_escape_json_controls(self._decoder.decode(data)).encode(errors="backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


class LiveLine:
    """A line on `stream` that each update overwrites. A closed terminal does not stop the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._visible = False
        self.is_live = is_terminal(stream)

    def show(self, text: str) -> None:
        """Replace the content of the line on the terminal by `text`."""
        self._visible = True
        self._write(f"\r\x1b[K{escape_controls(text)}")

    def end(self) -> None:
        """Erase the line from the terminal, if it was shown."""
        if self._visible:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def _escape_on_terminal(stream: TextIO, text: str) -> str:
    return _LINE_END.join(map(escape_controls, text.split(_LINE_END))) if is_terminal(stream) else text


_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n\u00a1-\u024f]")
"""Characters that may be unprintable; most text has none."""


def _escape_json_controls(text: str) -> str:
    return text if text.isprintable() else _UNPRINTABLE.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _python_escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
