"""Maintenance: what is due by the clock, what the leader does alone, and that a topic that fails does so alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from compactor.maintenance.garbage import CollectionResult, GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from compactor.maintenance.tasks import NOTED_MS, SCRUB_NOTE, SLICE_MS, Maintenance, MaintenanceTask, due_tasks
from compactor.scheduling.scan_throttle import RESTS
from storage.entries.encode import encode_message
from storage.environment import Environment
from storage.errors import TopicNotFound, Unavailable
from storage.log.log_manager import LogManager
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.policy_store import BROKER
from storage.metadata.records import GcSnapshot, TopicRecord
from storage.metadata.tables import segments
from storage.owner import Owner
from tests.entries import produce, single
from tests.workbench import Workbench, compacted_ledger, content

INTERVALS = {
    MaintenanceTask.SWEEP: 10,
    MaintenanceTask.BACKLOG: 20,
    MaintenanceTask.RETENTION: 20,
    MaintenanceTask.GARBAGE: 50,
    MaintenanceTask.SCRUB: 1000,
}
EACH_SERVICES = [MaintenanceTask.SWEEP, MaintenanceTask.BACKLOG]
MINUTE, HOUR = 60_000, 3_600_000
SCRUB = 1000 * HOUR


def starts(**began: int | None) -> dict[MaintenanceTask, int | None]:
    return {task: began.get(task.value) for task in MaintenanceTask}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (100, []),
        (109, []),
        (110, [MaintenanceTask.SWEEP]),
        (119, [MaintenanceTask.SWEEP]),
        (120, [MaintenanceTask.SWEEP, MaintenanceTask.BACKLOG, MaintenanceTask.RETENTION]),
        (150, [MaintenanceTask.SWEEP, MaintenanceTask.BACKLOG, MaintenanceTask.RETENTION, MaintenanceTask.GARBAGE]),
        (99, list(MaintenanceTask)),
    ],
)
def test_what_is_due(now: int, expected: list[MaintenanceTask]) -> None:
    began = starts(sweep=100, backlog=100, retention=100, garbage=100, scrub=100)
    assert due_tasks(began, INTERVALS, True, now) == expected
    assert due_tasks(began, INTERVALS, False, now) == [task for task in expected if task in EACH_SERVICES]


def test_at_first_all_is_due() -> None:
    assert due_tasks(starts(), INTERVALS, True, 0) == list(MaintenanceTask)
    assert due_tasks(starts(), INTERVALS, False, 0) == EACH_SERVICES


class Bench:
    """A workbench with a Maintenance, of a leader unless `leads` is False."""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.clock = self.workbench.clock
        self.leads = True
        self.stopping = False
        self.maintenance = Maintenance(
            Environment(self.workbench.metadata, self.workbench.store, self.clock, self.workbench.log),
            dict.fromkeys(MaintenanceTask, MINUTE)
            | {MaintenanceTask.GARBAGE: 10 * MINUTE, MaintenanceTask.SCRUB: SCRUB},
            GRACE_MS,
            lambda: self.leads,
            lambda: self.stopping,
        )

    def imported(self, name: str) -> TopicRecord:
        topic = self.workbench.topic(name)
        self.workbench.append(topic, [content((b"k", b"v"))])
        return topic.record

    def expire(self) -> None:
        """Let every topic exceed its retention."""
        self.workbench.metadata.policies.change([BROKER], {"cleanup.policy": "delete"})
        self.workbench.metadata.policies.change([BROKER], {"retention.ms": 1})
        self.clock.advance(HOUR)

    def ledgers(self, topic: TopicRecord) -> int:
        return len(self.workbench.metadata.ledgers.of_topic(topic.id))

    def objects(self, topic: TopicRecord) -> int:
        return len(list(self.workbench.store.list(f"topics/{topic.uid}/")))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(Workbench.embedded(tmp_path))


def test_what_an_idle_topic_holds_is_rolled(bench: Bench) -> None:
    topic = bench.workbench.topic("idle")
    produce(topic, [single(b"k", b"v")])
    for state in ("OPEN", "ROLLED"):
        bench.leads = False
        assert bench.maintenance.run_due() == EACH_SERVICES
        assert [item.state.value for item in bench.workbench.metadata.segments.of_topic(topic.record.id)] == [state]
        bench.clock.advance(4 * HOUR)


def test_retention_and_garbage_by_the_clock(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    metadata = bench.workbench.metadata
    kept, expiring = bench.imported("kept"), bench.imported("expiring")
    metadata.policies.change([f"topic:{expiring.uid}"], {"cleanup.policy": "delete"})
    metadata.policies.change([f"topic:{expiring.uid}"], {"retention.ms": HOUR})
    assert bench.maintenance.run_due() == list(MaintenanceTask)
    assert bench.maintenance.run_due() == []
    assert bench.ledgers(expiring) == 1
    bench.clock.advance(HOUR + 1)
    assert bench.maintenance.run_due() == [*EACH_SERVICES, MaintenanceTask.RETENTION, MaintenanceTask.GARBAGE]
    assert (bench.ledgers(expiring), bench.ledgers(kept)) == (0, 1)
    assert bench.objects(expiring) == 2, "the delay of its rows and index is not over"
    bench.clock.advance(GRACE_MS)
    bench.maintenance.run_due()
    assert (bench.objects(expiring), bench.objects(kept)) == (0, 2)
    assert caplog.messages == []


def test_only_the_leader(bench: Bench) -> None:
    topic = bench.imported("t")
    bench.expire()
    bench.leads = False
    assert bench.maintenance.run_due() == EACH_SERVICES
    assert bench.ledgers(topic) == 1
    bench.leads = True
    assert bench.maintenance.run_due() == [MaintenanceTask.RETENTION, MaintenanceTask.GARBAGE, MaintenanceTask.SCRUB]
    assert bench.ledgers(topic) == 0


def test_backlogs_are_limited_by_who_has_the_tail(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The leader limits a sealed topic. The service that has the tail limits a topic with one, leader or not."""
    metadata = bench.workbench.metadata
    metadata.policies.change([BROKER], {"backlog.quota.bytes": 0})
    sealed, local, elsewhere = (bench.workbench.topic(name) for name in ("sealed", "local", "elsewhere"))
    bench.workbench.append(sealed, [content((b"k", b"v"))])
    for topic in (local, elsewhere):
        produce(topic, [single(b"k", b"v")])
    for topic in (sealed, local, elsewhere):
        metadata.cursors.create(topic.record.id, "s", None, {})
    with metadata.database.write() as connection:
        statement = update(segments).where(segments.c.topic_id == elsewhere.record.id)
        connection.execute(statement.values(log_uid="0" * 32))
    bench.leads = False
    bench.maintenance.run_due()
    assert set(bench.maintenance.over_quota) == {local.record.id}
    bench.leads = True
    bench.maintenance.make_due(MaintenanceTask.BACKLOG)
    bench.maintenance.run_due()
    assert set(bench.maintenance.over_quota) == {sealed.record.id, local.record.id}
    answer = [record for record in caplog.records if "accepts no messages" in record.getMessage()]
    assert [record.levelname for record in answer] == ["WARNING", "WARNING"], "once for each topic"
    metadata.cursors.delete(local.record.id, "s")
    bench.maintenance.make_due(MaintenanceTask.BACKLOG)
    bench.maintenance.run_due()
    assert set(bench.maintenance.over_quota) == {sealed.record.id}


def test_the_service_that_serves_a_sealed_topic_limits_its_backlog(bench: Bench) -> None:
    """The consumers acknowledge there: the leader would move a cursor of its own."""
    metadata = bench.workbench.metadata
    metadata.policies.change([BROKER], {"backlog.quota.bytes": 0})
    topics = served, elsewhere = [bench.imported(name) for name in ("served", "elsewhere")]
    for topic in topics:
        metadata.cursors.create(topic.id, "s", None, {})
    leases = [
        metadata.leases.acquire(topic.id, str(owner), LEASE_TTL_MS)
        for topic, owner in ((served, Owner.current()), (elsewhere, Owner("elsewhere", 1, "00000000")))
    ]
    limited = []
    for leads in (False, True):
        bench.leads = leads
        bench.maintenance.make_due(MaintenanceTask.BACKLOG)
        bench.maintenance.run_due()
        limited.append(set(bench.maintenance.over_quota))
    assert limited == [{served.id}, {served.id}]
    for lease in leases:
        metadata.leases.release(lease)
    bench.maintenance.make_due(MaintenanceTask.BACKLOG)
    bench.maintenance.run_due()
    assert set(bench.maintenance.over_quota) == {served.id, elsewhere.id}


def test_who_has_the_end_of_a_topic_limits_its_backlog_also_where_rolled_segments_lie_elsewhere(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, topic = bench.workbench.metadata, bench.workbench.topic("t")
    metadata.cursors.create(topic.record.id, "s", None, {})
    metadata.policies.change([BROKER], {"message.ttl.seconds": 60})
    metadata.policies.change([BROKER], {"backlog.quota.seconds": 10})
    began = bench.clock.now_ms()
    for times in ((0, 10_000), (40_000, 60_000)):
        topic.log_manager().roll(topic.record)
        produce(topic, [single(b"k", b"v", publish_time=began + time) for time in times])
    with metadata.database.write() as connection:
        rolled = update(segments).where(
            segments.c.ledger_id == metadata.segments.of_topic(topic.record.id)[0].ledger_id
        )
        connection.execute(rolled.values(log_uid="0" * 32))
    bench.leads = False
    marks = []
    for seconds in (65, 15, 45):  # half of the rolled segment is old, which does not count; all of it; all there is
        bench.clock.advance(seconds * 1000)
        bench.maintenance.make_due(MaintenanceTask.BACKLOG)
        bench.maintenance.run_due()
        mark = metadata.cursors.get(topic.record.id, "s").mark_delete
        marks.append((mark and mark.offset, bool(bench.maintenance.over_quota)))
    assert marks == [(None, True), (1, True), (3, False)]
    assert not [message for message in caplog.messages if message.startswith("backlog")]


@pytest.mark.parametrize(
    "error", [Unavailable("the store is away", "try again"), RuntimeError("a defect")], ids=["store", "defect"]
)
def test_a_topic_that_fails_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    names = ["a", "bad", "c", "gone"]
    topics = {name: bench.imported(name) for name in names}
    bench.expire()
    real = Retention.trim

    def failing(retention: Retention, topic: TopicRecord, **options: Any) -> Any:
        if topic.name.topic == "bad":
            raise error
        if topic.name.topic == "gone":
            raise TopicNotFound("it was deleted", "create it")
        return real(retention, topic, **options)

    monkeypatch.setattr(Retention, "trim", failing)
    with caplog.at_level(logging.WARNING):
        bench.maintenance.run_due()
    assert [bench.ledgers(topics[name]) for name in names] == [0, 1, 0, 1]
    assert caplog.messages == [f"retention: persistent://public/default/bad: {error}"]
    caplog.clear()
    monkeypatch.undo()
    bench.clock.advance(60_000)
    bench.maintenance.run_due()
    assert bench.ledgers(topics["bad"]) == 0
    assert caplog.messages == []


def test_a_damaged_tail_is_logged_though_ledgers_go(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    topic = bench.workbench.topic("t")
    bench.workbench.append(topic, [content((b"k", b"v"))])
    with topic.append_log() as log:
        log.append(encode_message(b"k", b"v", producer="p", sequence_id=0, publish_time=bench.clock.now_ms()))
    (file,) = bench.workbench.log.topic_folder(topic.record.uid).glob("*.log")
    file.unlink()
    bench.expire()
    bench.maintenance.run_due()
    assert bench.ledgers(topic.record) == 0
    (message,) = [message for message in caplog.messages if message.startswith(f"retention: {topic.name}: ")]
    assert str(file) in message


def test_raw_of_a_lost_compacted_ledger_stays_and_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """R8: automatic retention removes no raw ledger that only a compacted ledger replaces that cannot be read."""
    workbench, topic = bench.workbench, bench.workbench.topic("t")
    workbench.append(topic, [content((b"k", b"v"))])
    workbench.compact(topic)
    workbench.set_policies(topic, **{"cleanup.policy": "compact,delete"})
    workbench.set_policies(topic, **{"retention.bytes": 0})
    other = bench.imported("u")
    workbench.store.delete(compacted_ledger(topic).manifest.name)
    bench.expire()
    workbench.set_policies(topic, **{"retention.ms": -1})
    with caplog.at_level(logging.WARNING):
        bench.maintenance.run_due()
    assert (bench.ledgers(topic.record), bench.ledgers(other)) == (1, 0)
    (message,) = [message for message in caplog.messages if message.startswith("retention: ")]
    assert message.startswith(f"retention: {topic.name}: the compacted ledger ")


def test_a_task_that_fails_as_a_whole_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(LogManager, "remove_sealed_files", failing)
    assert bench.maintenance.run_due() == list(MaintenanceTask)
    assert caplog.messages == ["sweep: the disk is gone"]


def test_whether_it_leads_may_be_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> bool:
        raise Unavailable("the database is away", "try again")

    monkeypatch.setattr(bench.maintenance, "leads", unknown)
    assert bench.maintenance.run_due() == []


def test_it_ends_between_topics(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [bench.imported(name) for name in "abc"]
    bench.expire()
    real = Retention.trim

    def then_stop(retention: Retention, topic: TopicRecord, **options: Any) -> Any:
        bench.stopping = True
        return real(retention, topic, **options)

    monkeypatch.setattr(Retention, "trim", then_stop)
    bench.maintenance.run_due()
    assert [bench.ledgers(topic) for topic in topics] == [0, 1, 1]


def test_collecting_rests_after_each_topic_as_long_as_it_took_and_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        bench.imported(name)
    rested: list[float] = []
    pins = bench.workbench.metadata.pins
    real = pins.gc_snapshot

    def slowly(topic_id: int) -> Any:
        bench.clock.advance(500)
        return real(topic_id)

    monkeypatch.setattr(pins, "gc_snapshot", slowly)
    bench.maintenance.throttle = rested.append
    bench.maintenance.run_due()
    assert [item for item in rested if item] == [RESTS * 0.5, RESTS * 0.5]


def test_what_a_deleted_topic_left_goes_after_its_delay(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Objects and segments' files; a topic created again under the name keeps its own."""
    workbench = bench.workbench
    topic = workbench.topic("t")
    bench.imported("t")
    with topic.append_log() as log:
        log.append(single(b"k", b"v"))
        log.roll()
        log.append(single(b"k", b"w"))
    folder = workbench.log.topic_folder(topic.record.uid)
    workbench.metadata.policies.change(["namespace:public/default"], {"file.delete.delay.ms": 5 * HOUR})
    bench.maintenance.run_due()
    workbench.metadata.tenancy.delete_topic(topic.record.id)
    again = bench.imported("t")
    with workbench.topic("t").append_log() as log:
        log.append(single(b"new", b"v"))
    bench.clock.advance(5 * HOUR - 1)
    bench.maintenance.run_due()
    assert len(list(folder.glob("*.log"))) == 2
    assert len(list(workbench.store.list(f"topics/{topic.record.uid}/"))) == 2
    bench.clock.advance(HOUR)
    bench.maintenance.run_due()
    assert not folder.exists()
    assert list(workbench.store.list(f"topics/{topic.record.uid}/")) == []
    assert [message.key for message in workbench.topic("t").messages()] == [b"k", b"new"]
    assert workbench.topic("t").record.uid == again.uid

    late = f"topics/{topic.record.uid}/" + next(
        info.name for info in workbench.store.list(f"topics/{again.uid}/")
    ).removeprefix(f"topics/{again.uid}/")
    workbench.store.put(late, b"of a writer that had not heard")
    bench.clock.advance(HOUR)
    bench.maintenance.run_due()
    assert bench.objects(topic.record) == 1, "no row leads to it"
    bench.clock.advance(SCRUB)
    bench.maintenance.run_due()
    assert bench.objects(topic.record) == 0
    assert caplog.messages == []


def test_a_scrub_lets_other_tasks_run_and_continues_where_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [bench.imported(name) for name in "abcdef"]
    seen: list[str] = []
    pins = bench.workbench.metadata.pins
    gc_snapshot = pins.gc_snapshot

    def slow(topic_id: int) -> GcSnapshot:
        snapshot = gc_snapshot(topic_id)
        seen.append(snapshot.topic.uid)
        bench.clock.advance(SLICE_MS // 2)
        return snapshot

    bench.maintenance.run_due()
    bench.clock.advance(SCRUB)
    bench.maintenance.make_due(MaintenanceTask.GARBAGE)
    bench.maintenance.run_due()
    monkeypatch.setattr(pins, "gc_snapshot", slow)
    note = bench.workbench.metadata.topic_work.leader_note
    uids = sorted(topic.uid for topic in topics)

    bench.clock.advance(SCRUB)
    assert MaintenanceTask.SCRUB in bench.maintenance.run_due()
    assert seen == uids[:2]
    bench.clock.advance(NOTED_MS)
    assert MaintenanceTask.SCRUB in bench.maintenance.run_due()
    assert seen == uids[:4]
    assert json.loads(note(SCRUB_NOTE) or "")[1] == uids[2]

    other = Bench(bench.workbench)
    assert MaintenanceTask.SCRUB in other.maintenance.run_due()
    assert seen == [*uids[:4], *uids[3:5]], "it continues after the last note"
    assert MaintenanceTask.SCRUB in other.maintenance.run_due()
    assert seen[-1] == uids[5]
    assert json.loads(note(SCRUB_NOTE) or "")[1] is None
    assert MaintenanceTask.SCRUB not in other.maintenance.run_due()
    third = Bench(bench.workbench)
    third.maintenance.run_due()
    assert len(seen) == 7, "its time has not come"


def test_a_scrub_that_fails_goes_on_in_a_minute(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.imported("t")

    def fail(*_: object, **__: object) -> Iterator[CollectionResult]:
        raise Unavailable("the store is away", "wait")

    with monkeypatch.context() as patched:
        patched.setattr(GarbageCollector, "collect_all", fail)
        assert MaintenanceTask.SCRUB in bench.maintenance.run_due()
        bench.clock.advance(NOTED_MS - 1)
        assert MaintenanceTask.SCRUB not in bench.maintenance.run_due()
    bench.clock.advance(1)
    assert MaintenanceTask.SCRUB in bench.maintenance.run_due()
    assert bench.workbench.metadata.topic_work.leader_note(SCRUB_NOTE) is not None
