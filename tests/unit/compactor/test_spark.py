"""The Spark engine: whose error comes out of a phase, and that a cancel is over with its phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from compactor.engine import PARTITIONS_PER_CORE, Engine, Failed, answers
from compactor.spark import SparkEngine
from storage.errors import Fenced, ObjectMissing, Unavailable


def test_answers_come_in_order(spark_engine: Engine) -> None:
    seen: list[int] = []
    assert spark_engine.run(5, lambda number: number * number, seen.append) == [0, 1, 4, 9, 16]
    assert spark_engine.run(0, lambda number: number, seen.append) == []


# Tasks are functions inside functions: these travel whole, and a worker need not find this module.


def test_an_error_of_ours_comes_back_as_it_was_raised(spark_engine: Engine) -> None:
    def missing(number: int) -> int:
        raise ObjectMissing(f"object {number} is gone", "restore it")

    def away(number: int) -> int:
        raise Unavailable("the store is away", "wait")

    with pytest.raises(ObjectMissing, match="object 0 is gone: restore it"):
        answers(spark_engine.run(1, missing, print))
    with pytest.raises(Unavailable, match=r"^the store is away: wait$"):
        answers(spark_engine.run(1, away, print))


def test_any_other_error_keeps_its_kind_text_and_place(spark_engine: Engine) -> None:
    """W3: the original error is kept and shown, and a defect is not taken for a machine that is busy."""

    def defect(number: int) -> int:
        return {0: 1}[number + 41]

    with pytest.raises(RuntimeError, match="KeyError: 41") as raised:
        answers(spark_engine.run(1, defect, print))
    assert "in defect" in raised.value.__notes__[0]


def test_light_tasks_share_partitions_and_a_bad_one_fails_alone(spark_engine: Engine) -> None:
    def where(number: int) -> int:
        from pyspark import TaskContext

        if number == 400:
            raise ObjectMissing("object 400 is gone", "restore it")
        return int(TaskContext.get().partitionId())

    outcomes = spark_engine.run(1000, where, print, weights=[100.0] * 1000)
    assert isinstance(outcomes[400], Failed)
    assert str(outcomes[400].error) == "object 400 is gone: restore it"
    partitions = Counter(one for one in outcomes if not isinstance(one, Failed))
    assert len(partitions) == PARTITIONS_PER_CORE * spark_engine.parallelism
    assert sum(partitions.values()) == 999


class FakeSpark:
    """A session, its context, tracker and data, whose jobs fail after `meanwhile` was called."""

    master = "local[1]"

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.sparkContext = self
        self.defaultParallelism = 1

    def statusTracker(self) -> FakeSpark:  # noqa: N802 (PySpark's name)
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802 (PySpark's name)
        raise ConnectionRefusedError

    def getConf(self) -> dict[str, str]:  # noqa: N802 (PySpark's name)
        return {}

    def setJobGroup(self, *_: object, **__: object) -> None: ...  # noqa: N802 (PySpark's name)

    def cancelJobGroup(self, group: str) -> None: ...  # noqa: N802 (PySpark's name)

    def parallelize(self, *_: object) -> FakeSpark:
        return self

    def mapPartitions(self, body: object) -> FakeSpark:  # noqa: N802 (PySpark's name)
        return self

    def collect(self) -> Any:
        self.meanwhile()
        raise OSError("the job ended")


def test_a_cancel_is_over_with_its_phase() -> None:
    """One engine serves many runs: a later failure is not the cancel of an earlier run."""
    spark = FakeSpark()
    engine = SparkEngine(spark)  # type: ignore[arg-type]
    spark.meanwhile = engine.cancel
    with pytest.raises(Fenced, match="cancelled"):
        engine.run(1, str, print)
    spark.meanwhile = lambda: None
    with pytest.raises(Unavailable, match="the job ended"):
        engine.run(1, str, print)
