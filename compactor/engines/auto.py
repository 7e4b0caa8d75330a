"""Choice of the engine for each job: small jobs run in this process, large ones on Spark.

An empty Spark job takes 60 to 110 ms, twice that with Python workers, and a session takes seconds to start. A job whose
tasks read and write, or hold, less than a limit of bytes together ends sooner in this process. The code of the tasks is
the same, and `parallelism`, by which tasks and parts are sized, is Spark's in both cases. So both write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import fsum

from compactor.engines import cluster
from compactor.engines.engine import MOST_THREADS, Answer, Engine, EngineProvider, InProcessEngine, TaskFailure
from compactor.engines.kinds import AUTO, IN_PROCESS, SPARK

IN_PROCESS_BYTES = 256 << 20
"""Weight of a job below which it runs in this process, where Spark has more cores than this process has threads for
tasks (docs/decisions/0016-small-jobs-run-in-the-process.md)."""
_IN_PROCESS_BYTES_OF_FEW_CORES = 2 << 30
"""The same where Spark has no more cores: it only adds its own cost there, so memory alone is the limit."""


def default_in_process_limit(parallelism: int) -> int:
    """Return the default weight of a job, in bytes, below which it runs in this process.

    `parallelism`: the number of tasks that Spark can run concurrently.
    """
    return IN_PROCESS_BYTES if parallelism > MOST_THREADS else _IN_PROCESS_BYTES_OF_FEW_CORES


def engine_kind(engine: str, master: str, policy: str | None = None) -> str:
    """Return the engine for the settings compaction.engine and spark-master, and the policy compaction.topic-engine.

    A process with the setting in-process has no Spark. A cluster gets all jobs: its workers may have the object store
    nearer, and this process has one core for tasks. Otherwise the policy counts, if it is set.
    """
    if IN_PROCESS in (engine, master):
        return IN_PROCESS
    return policy or engine if cluster.is_local(master) else SPARK


@dataclass(eq=False)
class AutoEngine:
    """An engine that chooses by the weights of each job. `open_spark`: called once, for the first large job.

    `in_process_limit`: the weight below which a job is small; 0: `default_in_process_limit`.
    """

    open_spark: Callable[[], Engine]
    parallelism: int
    in_process_limit: int = 0
    engine_choice: str = field(init=False, default="")
    _in_process: Engine = field(init=False)
    _spark: Engine | None = field(init=False, default=None)
    _current: Engine | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._in_process = InProcessEngine(self.parallelism)

    @property
    def is_waiting(self) -> bool:
        """True if the current job runs on Spark and waits for cores."""
        return self._current is not None and self._current.is_waiting

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        """Choose the engine by the sum of the weights, and return the outcomes of the tasks. Also raises the errors of
        `open_spark`."""
        size = fsum(weights or ())
        limit = self.in_process_limit or default_in_process_limit(self.parallelism)
        is_small = weights is not None and size < limit
        self._current = self._in_process if is_small else self.open_for_large_jobs()
        name, relation = (IN_PROCESS, "below") if is_small else (SPARK, "not below")
        self.engine_choice = f"{name}: {size / (1 << 20):.1f} MiB, {relation} {limit >> 20} MiB"
        return self._current.run(count, task, on_progress, weights)

    def open_for_large_jobs(self) -> Engine:
        """Return the Spark engine, which runs large jobs. The first call opens it."""
        if self._spark is None:
            self._spark = self.open_spark()
        return self._spark

    def cancel(self) -> None:
        if self._current is not None:
            self._current.cancel()


@dataclass(eq=False)
class AutoEngineProvider(EngineProvider):
    """Provider of engines of each kind on one machine. `spark`: the provider of Spark's engines. `kind`: for callers
    that state none. `parallelism`: the number of tasks that Spark can run concurrently. `in_process_limit`: as in
    `AutoEngine`."""

    spark: EngineProvider
    parallelism: int
    kind: str = AUTO
    in_process_limit: int = 0

    def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
        """Return an engine of the kind, or of the provider's own.

        Spark is opened here for the kind spark, and for a large job of the kind auto, so that its errors come before a
        run is claimed.
        """
        kind = kind or self.kind
        if kind == SPARK:
            return self.spark.open()
        if kind == IN_PROCESS:
            return InProcessEngine(self.parallelism)
        engine = AutoEngine(self.spark.open, self.parallelism, self.in_process_limit)
        if large:
            engine.open_for_large_jobs()
        return engine

    def stop_opening(self) -> None:
        self.spark.stop_opening()

    def close(self) -> None:
        self.spark.close()
