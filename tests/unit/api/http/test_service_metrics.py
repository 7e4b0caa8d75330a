"""Metrics of a history that is known: Pulsar's meanings, bounded topics, a database that is away."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.broker.broker import Broker
from api.broker.mirroring.view import MirrorCounts, MirrorsView
from api.broker.serving.connected_clients import ConnectedClientsView
from api.http.metrics import REFRESH_MS, Metrics
from api.observability.run_totals import LATE_LOOKS
from api.settings.settings import Settings
from compactor.scheduling.due import TopicsCheckResult
from storage.errors import Unavailable
from storage.metadata.metrics_queries import RunSummary, TopicCounts
from storage.metadata.mirrors import MirrorState
from storage.metadata.records import RunState
from storage.model import TopicName
from tests.clocks import ManualClock

NOW = ManualClock().now_ms()
MIRRORED = [
    MirrorCounts(TopicName("t", "n", "mirrored"), 70, 900, 8_000, 2),
    MirrorCounts(TopicName("t", "n", "left"), None, 5, 50, 0),
]
STATISTICS = {"messages_in": 100, "messages_before": 20, "messages_out": 50, "bytes_read": 4000, "bytes_written": 1000}


def run(run_id: int, topic_id: int, state: RunState = RunState.SUCCESS, **statistics: int) -> RunSummary:
    """A run of two seconds, that ended a second ago."""
    finished = None if state is RunState.RUNNING else NOW - 1000
    counters = {**STATISTICS, "logical_bytes_out": 700, **statistics}
    return RunSummary(run_id, topic_id, state, NOW - 3000, NOW, finished, counters)


@dataclass
class History:
    """The answers of SQL."""

    rows: list[RunSummary] = field(default_factory=list)
    names: dict[int, TopicName] = field(default_factory=dict)
    away: bool = False
    looks: int = 0
    run_dead_ms: int = 30_000
    requested: list[int] = field(default_factory=list)

    def counts(self) -> TopicCounts:
        if self.away:
            raise Unavailable("the database is away", "wait")
        self.looks += 1
        return TopicCounts(len(self.names), 2, NOW - 5000, 1, 3, {"OPEN": 4}, 99, 1)

    def topic_names(self) -> dict[int, TopicName]:
        return dict(self.names)

    def runs(self, after: int, again: list[int]) -> list[RunSummary]:
        self.requested = again
        return [row for row in self.rows if row.run_id > after or row.run_id in again]


@dataclass
class Logs:
    """Counts of the open logs of a process."""

    appended_entries: int = 0
    appended_bytes: int = 0
    topics: tuple[str, ...] = ()


@dataclass
class Control:
    """State of a control loop."""

    is_leader: bool = False
    last_check: TopicsCheckResult | None = None
    engine_error: str | None = None
    unqueued_due_topics_since_start: int = 0


def metrics(
    history: History, max_topics: int = 10, control: Control | None = None, logs: Logs | None = None
) -> tuple[Metrics, ManualClock]:
    clock = ManualClock()
    broker = SimpleNamespace(
        settings=Settings(metrics_max_topics=max_topics),
        environment=SimpleNamespace(
            metadata=SimpleNamespace(metrics=history, mirrors=SimpleNamespace(counts=lambda: {MirrorState.FAILED: 2})),
            clock=clock,
            log=SimpleNamespace(space_limit=None),
        ),
        clients=ConnectedClientsView(),
        mirrors=MirrorsView(lambda: MIRRORED),
        control=control or Control(),
        logs=logs or Logs(),
    )
    return Metrics(cast(Broker, broker)), clock


def values(collected: Metrics) -> dict[str, float]:
    """Return values by name, and by name and topic or state."""
    samples = {}
    for family in text_string_to_metric_families(collected.exposition().decode()):
        for sample in family.samples:
            label = sample.labels.get("topic") or sample.labels.get("state")
            samples[f"{sample.name} {label}" if label else sample.name] = sample.value
    return samples


def topics(*locals_: str) -> dict[int, TopicName]:
    return {number: TopicName("t", "n", local) for number, local in enumerate(locals_, 1)}


def test_mirrors_are_counted() -> None:
    """The lag is that of partitions that this service mirrors now."""
    samples = values(metrics(History())[0])
    assert {name: value for name, value in samples.items() if "mirror" in name} == {
        "compactor_mirrors running": 0,
        "compactor_mirrors paused": 0,
        "compactor_mirrors failed": 2,
        "compactor_mirror_lag_records persistent://t/n/mirrored": 70,
        "compactor_mirror_records_total persistent://t/n/mirrored": 900,
        "compactor_mirror_records_total persistent://t/n/left": 5,
        "compactor_mirror_bytes_total persistent://t/n/mirrored": 8_000,
        "compactor_mirror_bytes_total persistent://t/n/left": 50,
        "compactor_mirror_errors_total persistent://t/n/mirrored": 2,
        "compactor_mirror_errors_total persistent://t/n/left": 0,
    }


def test_a_topics_runs_are_summed_as_a_broker_does() -> None:
    rows = [run(1, 1), run(2, 1, RunState.ERROR), run(3, 1, messages_out=30), run(4, 1, RunState.CANCELLED)]
    samples = values(metrics(History(rows, topics("a")))[0])
    of_topic = {name.split()[0]: value for name, value in samples.items() if name.endswith(" persistent://t/n/a")}
    assert of_topic == {
        "pulsar_compaction_removed_event_count": 70 + 90,
        "pulsar_compaction_succeed_count": 2,
        "pulsar_compaction_failed_count": 1,
        "pulsar_compaction_duration_time_in_mills": 2000,
        "pulsar_compaction_read_throughput": 2000,
        "pulsar_compaction_write_throughput": 500,
        "pulsar_compaction_compacted_entries_count": 30,
        "pulsar_compaction_compacted_entries_size": 700,
    }
    assert samples["compactor_runs SUCCESS"] == 2
    assert samples["compactor_runs ERROR"] == 1
    assert samples["compactor_runs CANCELLED"] == 1
    assert samples["compactor_recopy_ratio"] == 0.25
    assert samples["compactor_max_clean_time_seconds"] == 2
    assert samples["compactor_time_since_last_run_seconds"] == 1


def test_labels_are_a_brokers() -> None:
    text = metrics(History([run(1, 1)], topics("a")))[0].exposition().decode()
    assert 'succeed_count{cluster="standalone",namespace="t/n",topic="persistent://t/n/a"} 1.0' in text


def test_each_run_is_counted_once_and_one_under_way_when_it_has_ended() -> None:
    history = History([run(1, 1), run(2, 1, RunState.RUNNING)], topics("a"))
    created, clock = metrics(history)
    assert values(created)["compactor_runs_running"] == 1
    clock.advance(REFRESH_MS)
    assert values(created)["pulsar_compaction_succeed_count persistent://t/n/a"] == 1
    history.rows = [run(1, 1), run(2, 1), run(3, 1)]
    clock.advance(REFRESH_MS)
    samples = values(created)
    assert samples["pulsar_compaction_succeed_count persistent://t/n/a"] == 3
    assert samples["compactor_runs_running"] == 0


def test_a_run_that_is_committed_after_a_later_one_is_counted() -> None:
    """PostgreSQL gives ids before it commits; an id that no row ever gets is not queried forever."""
    history = History([run(1, 1), run(4, 1)], topics("a"))
    created, clock = metrics(history)
    count = "pulsar_compaction_succeed_count persistent://t/n/a"
    assert values(created)[count] == 2
    history.rows = [run(1, 1), run(2, 1, RunState.RUNNING), run(4, 1)]
    clock.advance(REFRESH_MS)
    assert values(created)["compactor_runs_running"] == 1
    history.rows = [run(1, 1), run(2, 1), run(4, 1)]
    for _ in range(LATE_LOOKS + 1):
        clock.advance(REFRESH_MS)
        assert values(created)[count] == 3
    assert history.requested == []


def test_a_run_whose_worker_died_is_not_running() -> None:
    created, clock = metrics(History([run(1, 1, RunState.RUNNING)], topics("a")))
    clock.advance(30_000)
    assert values(created)["compactor_runs_running"] == 0


def test_topics_with_series_are_bounded_to_those_that_ran_last_and_sums_are_of_all() -> None:
    history = History([run(1, 3), run(2, 1), run(3, 2)], topics("a", "b", "c"))
    samples = values(metrics(history, max_topics=2)[0])
    named = {name.split("/")[-1] for name in samples if name.startswith("pulsar_compaction_succeed_count ")}
    assert named == {"a", "b"}
    assert samples["compactor_runs SUCCESS"] == 3


def test_a_deleted_topic_is_forgotten() -> None:
    history = History([run(1, 1), run(2, 2)], topics("a", "b"))
    created, clock = metrics(history)
    assert values(created)["compactor_runs SUCCESS"] == 2
    del history.names[1]
    clock.advance(REFRESH_MS)
    samples = values(created)
    assert samples["compactor_runs SUCCESS"] == 1
    assert "pulsar_compaction_succeed_count persistent://t/n/a" not in samples


def test_the_database_is_asked_at_most_so_often() -> None:
    history = History()
    created, clock = metrics(history)
    for _ in range(3):
        values(created)
    assert history.looks == 1
    clock.advance(REFRESH_MS - 1)
    values(created)
    assert history.looks == 1
    clock.advance(1)
    values(created)
    assert history.looks == 2


def test_a_database_that_is_away_is_told_and_nothing_is_made_up() -> None:
    history = History([run(1, 1)], topics("a"))
    created, clock = metrics(history, logs=Logs(7, 8, ("a", "b")))
    assert values(created)["compactor_up"] == 1
    history.away = True
    clock.advance(REFRESH_MS)
    samples = values(created)
    assert samples["compactor_up"] == 0
    assert "compactor_topics" not in samples
    assert (samples["compactor_log_appended_entries_total"], samples["compactor_log_open_topics"]) == (7, 2)
    history.away = False
    assert values(created)["compactor_up"] == 1, "the next scrape tries again"


def test_what_waits_is_paused_or_fails() -> None:
    samples = values(metrics(History(names=topics("a")))[0])
    names = ("queue_topics", "queue_oldest_seconds", "paused_topics", "failing_topics", "log_segments OPEN")
    assert [samples[f"compactor_{name}"] for name in names] == [2, 5, 1, 3, 4]
    assert samples["compactor_log_segments SEALED"] == 0
    assert "compactor_time_since_last_run_seconds" not in samples, "there was none"


def test_only_the_leader_tells_what_its_last_look_saw() -> None:
    check = TopicsCheckResult(
        at=NOW - 2000,
        topics=9,
        due=3,
        dirty_bytes=10,
        max_dirty_ratio=0.75,
        max_delay_ms=1500,
        uncleanable=2,
        uncleanable_bytes=5,
    )
    leader = values(metrics(History(), control=Control(True, check))[0])
    other = values(metrics(History(), control=Control(False, check))[0])
    assert (leader["compactor_leader"], other["compactor_leader"]) == (1, 0)
    assert leader["compactor_last_check_seconds"] == 2
    assert leader["compactor_max_dirty_ratio"] == 0.75
    assert leader["compactor_max_compaction_delay_seconds"] == 1.5
    assert (leader["compactor_uncleanable_topics"], leader["compactor_uncleanable_bytes"]) == (2, 5)
    assert (leader["compactor_due_topics"], leader["compactor_dirty_bytes"]) == (3, 10)
    assert "compactor_max_dirty_ratio" not in other


@pytest.mark.parametrize(("error", "up"), [(None, None), ("", 1), ("no executors", 0)])
def test_whether_compactions_can_begin(error: str | None, up: int | None) -> None:
    samples = values(metrics(History(), control=Control(engine_error=error))[0])
    assert samples.get("compactor_engine_up") == up


def test_two_services_in_one_process_do_not_share_a_registry() -> None:
    first, other = metrics(History())[0], metrics(History())[0]
    first.http.labels("GET", "/x", "200").observe(1)
    assert "/x" in first.exposition().decode()
    assert "/x" not in other.exposition().decode()
