"""One line of a terminal that is written over and over: how far work is."""

from __future__ import annotations

from contextlib import suppress
from typing import TextIO

from api.cli.kit.terminal import is_terminal, plain


class LiveLine:
    """A line on `stream`. A terminal that is gone does not stop the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False
        self.is_live = is_terminal(stream)

    def show(self, text: str) -> None:
        """Write `text` over what is there."""
        self._shown = True
        self._write(f"\r\x1b[K{plain(text)}")

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
