"""Progress of runs on a terminal: phase, tasks done, time, messages a second. Silent when stderr is no terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from api.cli.kit.live_line import LiveLine
from api.cli.kit.stderr import number

if TYPE_CHECKING:
    from compactor.engines.engine import Progress


def progress_for(stream: TextIO) -> Progress:
    """A live line on a terminal, otherwise nothing."""
    from compactor.engines.engine import Quiet

    return PhaseLine(stream) if stream.isatty() else Quiet()


class PhaseLine:
    """The phase that is under way, in a live line."""

    def __init__(self, stream: TextIO) -> None:
        self._line = LiveLine(stream)
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
        if tasks and seconds > 0:  # before the first task has ended no rate is known
            line += f", {number(int(self._messages * tasks / self._tasks / seconds))} messages/s"
        self._line.show(line)

    def end(self) -> None:
        self._line.end()
