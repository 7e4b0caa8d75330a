"""The engine of a command, and its progress on a terminal: phase, finished tasks, time, messages a second.

The setting compaction.engine chooses, as for `compactor serve`. Spark starts when it is needed and stops with the
command; a terminal gets a message. Nothing is printed if stderr is not a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

from api.cli.kit.stderr import say
from api.cli.kit.terminal import LiveLine
from api.settings.settings import Settings
from compactor.engines.kinds import IN_PROCESS, SPARK
from storage.errors import Misconfigured

if TYPE_CHECKING:
    from compactor.engines.engine import Engine, Progress


@contextmanager
def open_engine(settings: Settings, policy: str | None = None) -> Iterator[Engine]:
    """Open the compaction engine that the settings choose, and close it at the end of the context.

    `policy`: compaction.topic-engine of the topics; the option --engine takes precedence. Raises Misconfigured,
    Unavailable; the first job that needs Spark raises them, too.
    """
    from compactor.engines.auto import AutoEngine, engine_kind
    from compactor.engines.cluster import local_parallelism
    from compactor.engines.engine import InProcessEngine

    is_chosen = settings.origin("compaction.engine") == "flag"
    if is_chosen and settings.compaction_engine != IN_PROCESS and settings.spark_master == IN_PROCESS:
        raise Misconfigured(
            f"--engine {settings.compaction_engine} may need Spark, and the setting spark-master is in-process",
            "leave out --engine, or give --spark-master, for instance local[*]",
        )
    kind = engine_kind(settings.compaction_engine, settings.spark_master, None if is_chosen else policy)
    parallelism = local_parallelism(settings.spark_master)
    if kind == IN_PROCESS:
        yield InProcessEngine(parallelism)
        return
    with ExitStack() as stack:

        def open_spark() -> Engine:
            from compactor.engines.spark import SparkEngine, SparkSettings, open_session

            if sys.stderr.isatty():
                say("starting Spark …")
            log_file = settings.make_data_directory() / "spark.log"
            engine = SparkEngine(open_session(SparkSettings(log_file, settings.spark_master), say))
            stack.callback(engine.stop_session)
            return engine

        limit = settings.compaction_in_process_bytes
        yield open_spark() if kind == SPARK else AutoEngine(open_spark, parallelism, limit)


def progress_for(stream: TextIO) -> Progress:
    """Return a live line for a terminal, or a silent progress for any other stream."""
    from compactor.engines.engine import SilentProgress

    return PhaseLine(stream) if stream.isatty() else SilentProgress()


class PhaseLine(LiveLine):
    """A progress report of the active phase, in a live line of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._name = ""
        self._tasks = self._messages = 0
        self._started = 0.0

    def begin_phase(self, name: str, tasks: int, messages: int) -> None:
        self._name, self._tasks, self._messages = name, tasks, messages
        self._started = time.perf_counter()
        self.report_tasks_done_in_phase(0)

    def report_tasks_done_in_phase(self, done: int) -> None:
        seconds = time.perf_counter() - self._started
        line = f"{self._name}: {done}/{self._tasks} tasks, {seconds:.0f} s"
        if done and seconds > 0:  # the first task to end gives the first rate
            line += f", {int(self._messages * done / self._tasks / seconds):,} messages/s"
        self.show(line)
