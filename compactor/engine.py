"""What runs the tasks of a phase. The job knows no more of Spark than this.

An engine calls one function for the numbers 0 … n-1, wherever and however often it likes (tasks may be retried, or
run twice at once by speculation), and gives back one answer a number. `compactor/spark.py` is the real one;
`InProcess` is for tests, for a look with a debugger, and as the shortest description of the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Answer = TypeVar("Answer")


class Progress(Protocol):
    """Told how far a run is; the default says nothing."""

    def phase(self, name: str, tasks: int, messages: int) -> None:
        """A phase begins: its tasks, and the messages or index records that they go through."""
        ...

    def done(self, tasks: int) -> None:
        """So many tasks of the phase have ended."""
        ...

    def end(self) -> None:
        """The run is over, well or not."""
        ...


class Quiet:
    """A progress that says nothing."""

    def phase(self, name: str, tasks: int, messages: int) -> None:
        return

    def done(self, tasks: int) -> None:
        return

    def end(self) -> None:
        return


class Engine(Protocol):
    """Runs the tasks of a phase."""

    @property
    def parallelism(self) -> int:
        """Tasks that can run at once."""
        ...

    def run(self, count: int, task: Callable[[int], Answer], on_done: Callable[[int], None]) -> list[Answer]:
        """The answers of `task(0)` … `task(count - 1)`, in order; `task` must travel by pickle.

        `on_done` hears from time to time how many have ended. Raises what a task raised.
        """
        ...

    def cancel(self) -> None:
        """Stop the tasks that run now; `run` then raises Fenced. May be called from another thread."""
        ...


class InProcess:
    """Runs tasks one after the other in this process."""

    parallelism = 1

    def run(self, count: int, task: Callable[[int], Answer], on_done: Callable[[int], None]) -> list[Answer]:
        answers = []
        for number in range(count):
            answers.append(task(number))
            on_done(number + 1)
        return answers

    def cancel(self) -> None:
        return
