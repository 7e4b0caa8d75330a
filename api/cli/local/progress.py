"""Progress of runs on a terminal: phase, tasks done, time, messages a second. Silent when stderr is no terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from api.cli.kit.stderr import number
from api.cli.kit.terminal import plain

if TYPE_CHECKING:
    from compactor.engines.engine import Progress


def progress_for(stream: TextIO) -> Progress:
    """A live line on a terminal, otherwise nothing."""
    from compactor.engines.engine import Quiet

    return LiveLine(stream) if stream.isatty() else Quiet()


class LiveLine:
    """One line that is written over and over; its seconds go on while no task ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name = ""
        self._tasks = self._messages = 0
        self._started = 0.0

    def phase(self, name: str, tasks: int, messages: int) -> None:
        self._name, self._tasks, self._messages = name, tasks, messages
        self._started = time.perf_counter()
        self.done(0)

    def done(self, tasks: int) -> None:
        seconds = time.perf_counter() - self._started
        line = f"{self._name}: {tasks}/{self._tasks} tasks, {seconds:.0f} s"
        if tasks and seconds > 0:  # before the first task has ended nobody knows
            line += f", {number(int(self._messages * tasks / self._tasks / seconds))} messages/s"
        self._write(f"\r\x1b[K{plain(line)}")

    def end(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone: the run goes on
            self._stream.write(text)
            self._stream.flush()
