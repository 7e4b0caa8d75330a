"""A driver with a process of its own: `python -m tests.cluster.driver FOLDER [--stall-from PHASE] TOPIC…`.

Compacts the topics one after the other in one session, with the settings of its environment, and prints what it did
as JSON. `--stall-from`: from that phase on (each run has two, counted from 1), the first attempt at the first task of
each phase does its work, leaves a note in FOLDER and goes no further. What is defined here travels to the executors
whole: they have no tests.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.cli.local.opening import open_topic
from api.components import open_for_writing
from api.settings.settings import Settings
from compactor.engines.engine import TaskFailure
from compactor.engines.spark import SparkEngine, SparkSettings, open_session
from compactor.run.plan import Sizing
from storage.model import TopicName
from storage.objects.interface import StoreLocation
from storage.objects.s3 import S3Store
from tests.workbench import Workbench

SIZING = Sizing(parallelism=4, range_records=400, part_bytes=40_000, small_range_records=100, small_part_bytes=1_000)
"""Sizes at which some thousand messages have a handful of tasks a phase."""

RELEASED_TRIES = 1200
RELEASED_WAIT_SECONDS = 0.1


class Counting(S3Store):
    """A store that remembers what this process read of it."""

    def __init__(self, location: StoreLocation) -> None:
        super().__init__(location)
        self.reads: list[tuple[str, int]] = []

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(name, start, length)
        self.reads.append((name, len(data)))
        return data


@dataclass(frozen=True)
class Observed:
    """A task that records its process and, if `stalls`, does not return the first time."""

    task: Callable[[int], Any]
    folder: Path
    phase: int
    stalls: bool

    def __call__(self, number: int) -> Any:
        answer = self.task(number)
        self.note(f"ran-{self.phase}-{number}-{os.getpid()}")
        if self.stalls and number == 0 and self.note(f"stalled-{self.phase}"):
            self.wait()
        return answer

    def note(self, name: str) -> bool:
        """Write the identity of this process into a file that appears whole; return False if the file exists."""
        import compactor

        who = {
            "phase": self.phase,
            "pid": os.getpid(),
            "executor": os.getcwd(),  # every executor has a folder of its own
            "package": compactor.__path__[0],
        }
        own = self.folder / f".{name}-{os.getpid()}"
        own.write_text(json.dumps(who))
        try:
            os.link(own, self.folder / name)
        except FileExistsError:
            return False
        return True

    def wait(self) -> None:
        """Wait until the test does not need this attempt any more; the attempt must be killed before that."""
        import threading

        pause = threading.Event()
        for _ in range(RELEASED_TRIES):
            if (self.folder / "released").exists():
                return
            pause.wait(RELEASED_WAIT_SECONDS)
        raise AssertionError("the stalled attempt was purged")


class ObservedEngine(SparkEngine):
    """Counts phases: one, two, one, two …"""

    def __init__(self, session: Any, folder: Path, stall_from: int | None) -> None:
        super().__init__(session)
        self.folder, self.stall_from, self.phase = folder, stall_from, 0

    def run(
        self,
        count: int,
        task: Callable[[int], Any],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Any | TaskFailure]:
        self.phase += 1
        stalls = self.stall_from is not None and self.phase >= self.stall_from
        return super().run(count, Observed(task, self.folder, self.phase, stalls), on_progress, weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stall-from", type=int)
    parser.add_argument("topics", nargs="+", type=TopicName.parse)
    arguments = parser.parse_args()
    settings = Settings.load()
    with open_for_writing(settings) as environment:
        store = Counting(StoreLocation(settings.store_url, settings.s3_endpoint))
        session = open_session(SparkSettings(arguments.folder / "spark.log", settings.spark_master))
        try:
            engine = ObservedEngine(session, arguments.folder, arguments.stall_from)
            bench = Workbench(environment.metadata, store, environment.clock, environment.log, engine, SIZING)
            outcomes = [bench.compact(open_topic(environment, name)) for name in arguments.topics]
        finally:
            session.stop()
    print(json.dumps({"ledgers": [outcome.compacted_ledger_id for outcome in outcomes], "reads": store.reads}))


if __name__ == "__main__":
    main()
