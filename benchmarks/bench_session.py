"""Session of the benchmarks of this job alone: a warm engine, components in a temporary folder, appended data."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.components import open_environment
from api.settings.settings import Settings
from benchmarks import machine
from benchmarks.contenders import THREADS
from benchmarks.data import Shape, write_parquet
from compactor.engines.spark import SparkEngine, SparkSettings, open_session
from compactor.two_phase import TwoPhaseCompactor
from storage.environment import Environment
from storage.topic import Topic


@dataclass(frozen=True)
class Session:
    """A warm engine and an embedded database and store."""

    folder: Path
    environment: Environment
    engine: SparkEngine

    @property
    def compactor(self) -> TwoPhaseCompactor:
        return TwoPhaseCompactor(self.environment, self.engine)

    def append(self, topic: Topic, shape: Shape, ledger_bytes: int = 128 << 20) -> None:
        """Append data through the product's own import."""
        from api.formats.inputs import InputOptions
        from api.formats.parquet import read_import_parquet

        file = self.folder / "input.parquet"
        write_parquet(shape, file)
        topic.bulk_append(ledger_bytes=ledger_bytes).append(read_import_parquet(str(file), InputOptions()))
        file.unlink()

    def compact(self, topic: Topic) -> dict[str, Any]:
        """Compact the topic. Return the statistics of the run, with `seconds` of wall time."""
        self.engine.warm_up()
        os.sync()
        started = time.perf_counter()
        outcome = self.compactor.compact(topic.name)
        seconds = time.perf_counter() - started
        assert outcome.run is not None
        return {"seconds": seconds, **outcome.run.statistics}


@contextlib.contextmanager
def session(folder: str | None, keep: bool = False) -> Iterator[Session]:
    """Open a session in a temporary folder below `folder`, which is deleted at the end unless `keep`."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")])
    )
    where = Path(tempfile.mkdtemp(prefix="compaction-benchmark-", dir=folder))
    say(machine.summary(machine.describe(where)))
    try:
        with open_environment(Settings(data=str(where / "data"))) as environment:
            spark = open_session(SparkSettings(where / "spark.log", f"local[{THREADS}]"))
            try:
                engine = SparkEngine(spark)
                engine.warm_up()
                yield Session(where, environment, engine)
            finally:
                spark.stop()
    finally:
        if keep:
            say(f"kept {where}")
        else:
            shutil.rmtree(where, ignore_errors=True)


def say(text: str) -> None:
    """Print to stderr."""
    print(text, file=sys.stderr, flush=True)
