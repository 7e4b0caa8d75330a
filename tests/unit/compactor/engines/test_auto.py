"""The engine that chooses by the size of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from api.background.control_loop_setup import engine_provider
from api.settings.settings import Settings
from compactor.engines.auto import AutoEngine, AutoEngineProvider, default_in_process_limit, engine_kind
from compactor.engines.cluster import local_parallelism
from compactor.engines.engine import Engine, EngineProvider, InProcessEngine, InProcessEngineProvider
from compactor.engines.shared_session import SparkEngineProvider
from storage.errors import Misconfigured


class InsteadOfSpark(InProcessEngine):
    """An engine that notes the sizes of its jobs."""

    choice = "spark"

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.cancelled = 0

    def run(
        self,
        count: int,
        task: Callable[[int], Any],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Any]:
        self.jobs.append(count)
        return super().run(count, task, on_progress, weights)

    def cancel(self) -> None:
        self.cancelled += 1


def test_only_a_large_job_opens_spark_and_once() -> None:
    opened: list[InsteadOfSpark] = []

    def open_spark() -> Engine:
        opened.append(InsteadOfSpark())
        return opened[-1]

    engine = AutoEngine(open_spark, 2, in_process_limit=1 << 20)
    assert engine.run(3, str, lambda _: None, [1.0, 2.0, 3.0]) == ["0", "1", "2"]
    assert engine.engine_choice == "in-process: 0.0 MiB, below 1 MiB"
    assert not opened
    for _ in range(2):
        assert engine.run(2, str, lambda _: None, [1 << 20, 1 << 19]) == ["0", "1"]
    assert engine.engine_choice == "spark: 1.5 MiB, not below 1 MiB"
    assert [spark.jobs for spark in opened] == [[2, 2]]
    engine.cancel()
    assert opened[0].cancelled == 1
    assert engine.run(1, str, lambda _: None) == ["0"], "a job without weights is large"
    assert opened[0].jobs == [2, 2, 1]


def test_spark_gets_smaller_jobs_where_it_has_more_cores_than_the_process_has_threads() -> None:
    class Spark(InProcessEngineProvider):
        def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
            return InsteadOfSpark()

    def kind(cores: int, size: int) -> str:
        engine = AutoEngineProvider(Spark(), cores).open(large=False)
        engine.run(1, str, lambda _: None, [size])
        return engine.engine_choice.partition(":")[0]

    assert [kind(2, size << 20) for size in (300, 2047, 2048)] == ["in-process", "in-process", "spark"]
    assert [kind(4, 2047 << 20), kind(5, 2047 << 20), kind(5, 255 << 20)] == ["in-process", "spark", "in-process"]
    assert [default_in_process_limit(cores) >> 20 for cores in (1, 4, 5)] == [2048, 2048, 256]


def test_the_error_of_spark_comes_before_a_large_job_is_claimed() -> None:
    class Broken(InProcessEngineProvider):
        def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
            raise Misconfigured("no Java", "install it")

    engines = AutoEngineProvider(Broken(), 2)
    assert engines.open(large=False).run(1, str, lambda _: None, [1.0]) == ["0"]
    with pytest.raises(Misconfigured, match="no Java"):
        engines.open()


@pytest.mark.parametrize("own", ["auto", "spark"])
def test_the_policy_of_a_topic_counts_before_the_kind_of_the_provider(own: str) -> None:
    class Spark(InProcessEngineProvider):
        def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
            return InsteadOfSpark()

    engines = AutoEngineProvider(Spark(), 3, kind=own)
    opened = {kind: engines.open(large=False, kind=kind) for kind in ("auto", "spark", "in-process", None)}
    expected = {"auto": AutoEngine, "spark": InsteadOfSpark, "in-process": InProcessEngine}
    assert {kind: type(engine) for kind, engine in opened.items()} == {**expected, None: expected[own]}
    assert opened["in-process"].parallelism == opened["auto"].parallelism == 3, "parts are sized alike"


@pytest.mark.parametrize(
    ("engine", "master", "kind"),
    [
        ("auto", "local[*]", "auto"),
        ("auto", "local[4, 2]", "auto"),
        ("auto", "spark://here:7077", "spark"),
        ("auto", "local-cluster[2,1,1024]", "spark"),
        ("spark", "local[2]", "spark"),
        ("in-process", "local[2]", "in-process"),
        ("auto", "in-process", "in-process"),
        ("spark", "in-process", "in-process"),
    ],
)
def test_settings_choose_the_engine(engine: str, master: str, kind: str) -> None:
    assert engine_kind(engine, master) == kind


@pytest.mark.parametrize("policy", ["auto", "spark", "in-process"])
def test_the_policy_counts_but_for_a_process_without_spark_and_for_a_cluster(policy: str) -> None:
    for engine in ("auto", "spark"):
        assert engine_kind(engine, "local[2]", policy) == policy
        assert engine_kind(engine, "spark://here:7077", policy) == "spark"
    assert engine_kind("in-process", "local[2]", policy) == "in-process"
    assert engine_kind("auto", "in-process", policy) == "in-process"


def test_a_service_on_a_cluster_has_sparks_engines_alone(tmp_path: Path) -> None:
    def provider(master: str) -> EngineProvider:
        return engine_provider(Settings(data=str(tmp_path), spark_master=master))

    assert isinstance(provider("local[2]"), AutoEngineProvider)
    assert isinstance(provider("spark://here:7077"), SparkEngineProvider)
    assert isinstance(provider("in-process"), InProcessEngineProvider)


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4, 2]", 4)])
def test_a_local_master_states_its_parallelism(master: str, cores: int) -> None:
    assert local_parallelism(master) == cores
