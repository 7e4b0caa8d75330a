"""The queue of due topics gives what a scan of all topics gives, and the reconciler proves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import URL, delete, update

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.scheduling.backlog import Backlog, BacklogReader
from compactor.scheduling.due import cause_of, due_topics, next_due_at
from compactor.scheduling.due_queue import DueQueue
from compactor.scheduling.reconciler import PARTS, Reconciler
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE
from storage.errors import CompactionPaused, ErrorText, Fenced
from storage.failpoints import Failpoint
from storage.ledger import names
from storage.log.directory import LogDirectory
from storage.log.lease_renewer import TICKS, LeaseRenewer
from storage.metadata import leases
from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope
from storage.metadata.records import AttemptKind, TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import topic_work as table
from storage.metadata.topic_work import WorkKind
from storage.model import TopicName
from storage.objects.local import LocalStore
from storage.options.resolution import CompactionTriggers
from storage.store_identity import StoreIdentity
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.conformance.metadata.conftest import OpenStore
from tests.entries import produce, single
from tests.failpoint_listeners import observed
from tests.workbench import TINY, Workbench, all_ids, content

NOW = 1_700_000_000_000
MESSAGES = "compaction.threshold.messages"
TTL_MS = 10_000
times = st.one_of(st.none(), st.integers(NOW - 50, NOW + 50))
counts = st.integers(0, 5)


class Leader:
    """A leader with its queue, and the scan of all topics that it replaces."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        token = bench.metadata.services.acquire_leadership("leader", TTL_MS)
        assert token is not None
        self.token = token
        bench.metadata.topic_work.queue_for_new_leader(token, bench.log.known_uid)
        self.backlogs = BacklogReader(bench.metadata, bench.log)
        self.queue = DueQueue(bench.metadata, self.backlogs, bench.clock)
        self.reconciler = Reconciler(bench.metadata, self.backlogs, bench.clock, 0)

    def check(self) -> list[tuple[str, str]]:
        return causes(self.queue.check(self.bench.clock.now_ms(), self.token))

    def scan(self) -> list[tuple[str, str]]:
        """Return what is due, from the rows of all topics; of paused ones only an unpaused one is."""
        backlogs = BacklogReader(self.bench.metadata, self.bench.log).read_with_trigger(all_ids(self.bench))
        return causes(due_topics(backlogs, self.bench.metadata.compaction_control.all(), self.bench.clock.now_ms()))

    def walk(self) -> int:
        """Let the reconciler walk over all topics once; return how many it missed."""
        before = self.reconciler.unqueued_due_topics_since_start
        for _ in range(len(all_ids(self.bench)) // TOPICS_AT_ONCE + 1):
            self.reconciler.walk_next_page_if_due(self.token)
        return self.reconciler.unqueued_due_topics_since_start - before

    def queued(self) -> list[int]:
        return [work.topic_id for work in self.bench.metadata.topic_work.due(WorkKind.COMPACT, 1 << 60)]


def causes(due: list) -> list[tuple[str, str]]:
    return [(item.topic.name.topic, item.cause) for item in due]


@pytest.fixture
def bench(tmp_path: Path, database_url: URL, clock: ManualClock, open_store: OpenStore) -> Workbench:
    """Everything on a local disk, and the metadata in each kind of database."""
    store = LocalStore(tmp_path / "objects")
    metadata = open_store(database_url)
    StoreIdentity(metadata, store).check_or_bind()
    return Workbench(metadata, store, clock, LogDirectory(tmp_path / "log"), sizing=TINY)


@given(
    st.builds(
        CompactionTriggers,
        st.integers(0, 3),
        st.integers(0, 3),
        st.one_of(st.none(), st.sampled_from([0.0, 0.5])),
        st.one_of(st.none(), st.integers(1, 40)),
        st.integers(0, 40),
    ),
    counts,
    counts,
    counts,
    times,
    times,
)
def test_a_topic_is_not_due_before_its_time_and_is_at_it(
    triggers: CompactionTriggers, messages: int, dirty: int, clean: int, oldest: int | None, newest: int | None
) -> None:
    backlog = Backlog(a_topic(), triggers, dirty + 1, messages, dirty, clean, oldest, newest)
    at = next_due_at(backlog, NOW)
    for time in range(NOW, NOW + 120 if at is None else at):
        assert cause_of(backlog, time) is None
    if at is not None:
        assert at >= NOW
        assert cause_of(backlog, at) is not None


def a_topic() -> TopicRecord:
    return TopicRecord(1, "0" * 32, TopicName.parse("t"), 0, 0, 0, 0, 0, 0)


class World:
    """Random operations on some topics, each as a method whose name begins with `do_`."""

    def __init__(self, bench: Workbench, random: Random) -> None:
        self.bench, self.random = bench, random
        self.metadata = bench.metadata
        self.leader = Leader(bench)
        self.number = 0
        self.metadata.policies.change([BROKER], {MESSAGES: 3})
        for _ in range(3):
            self.do_create()

    def step(self) -> str:
        operations = sorted(name for name in dir(self) if name.startswith("do_"))
        name = self.random.choice([*operations, *["do_produce", "do_append", "do_wait"] * 3])
        with suppress(CompactionPaused):
            getattr(self, name)()
        return name

    def some(self) -> Topic:
        record = self.random.choice(self.metadata.topics.all())
        return self.bench.topic(record.name.topic)

    def value(self) -> dict[str, object]:
        return self.random.choice(
            [
                {MESSAGES: self.random.choice([0, 1, 3, 8])},
                {"compaction.threshold.bytes": self.random.choice([0, 5, 40])},
                {"cleanup.policy": self.random.choice(["compact", "delete", ""])},
                {"min.cleanable.dirty.ratio": self.random.choice([0.1, 0.5, 0.9])},
                {"min.compaction.lag.ms": self.random.choice([0, 500])},
                {"max.compaction.lag.ms": self.random.choice([700, 5000])},
            ]
        )

    def set_at(self, scope: str) -> None:
        self.metadata.policies.change([scope], {}, None)
        self.metadata.policies.change([scope], self.value())

    def do_create(self) -> None:
        self.number += 1
        self.bench.topic(f"t{self.number % 5}")

    def do_delete(self) -> None:
        topic = self.some()
        self.metadata.tenancy.delete_topic(topic.record.id, force=True)
        if not all_ids(self.bench):
            self.do_create()

    def do_produce(self) -> None:
        produce(self.some(), [single(b"%d" % self.random.randrange(9), b"v", self.time()) for _ in range(3)])

    def do_append(self) -> None:
        self.bench.append(self.some(), [content((b"%d" % self.random.randrange(9), b"v"))])

    def do_roll(self) -> None:
        topic = self.some()
        topic.log_manager().roll(topic.record)

    def do_seal(self) -> None:
        topic = self.some()
        topic.log_manager().roll_and_seal(topic.record)

    def do_publish(self) -> None:
        self.bench.compact(self.some())

    def do_trim(self) -> None:
        topic = self.some()
        end = self.metadata.topics.get(topic.name).next_offset
        ledgers = self.metadata.ledgers.of_topic(topic.record.id)
        if ledgers:
            first = ledgers[0]
            self.metadata.trimming.trim(topic.record.id, min(end, first.last_offset + 1), [first.ledger_id], force=True)

    def do_truncate(self) -> None:
        topic = self.some()
        topic.log_manager().roll(topic.record)
        self.metadata.trimming.truncate([topic.record.id])

    def do_drop_cursor(self) -> None:
        topic = self.some()
        if any(cursor.name == "__compaction" for cursor in self.metadata.cursors.of_topic(topic.record.id)):
            self.metadata.cursors.delete(topic.record.id, "__compaction", force=True)

    def do_die(self) -> None:
        """An import or run writes an object, and its process ends."""
        topic = self.some()
        attempt = self.metadata.attempts.begin(topic.record.id, AttemptKind.RUN, "dead")
        self.bench.store.put(names.part(topic.record.uid, attempt.attempt_id, 0), b"of a dead attempt")

    def do_broker_policy(self) -> None:
        self.set_at(BROKER)

    def do_namespace_policy(self) -> None:
        self.set_at(namespace_scope("public/default"))

    def do_topic_policy(self) -> None:
        self.set_at(topic_scope(self.some().record))

    def do_pause(self) -> None:
        self.metadata.compaction_control.pause([self.some().record.id])

    def do_resume(self) -> None:
        paused = [key for key, item in self.metadata.compaction_control.all().items() if item.paused]
        if paused:
            self.metadata.compaction_control.resume([self.random.choice(paused)])

    def do_fail(self) -> None:
        retry_at = self.bench.clock.now_ms() + 600
        self.metadata.compaction_control.record_failure(self.some().record.id, ErrorText("no space"), retry_at)

    def do_abort(self) -> None:
        self.metadata.compaction_control.abort([self.some().record.id])

    def do_wait(self) -> None:
        self.bench.advance(self.random.choice([1, 300, 2000]))

    def do_check(self) -> None:
        self.leader.check()

    def do_another_leader(self) -> None:
        self.metadata.services.resign(self.leader.token)
        self.leader = Leader(self.bench)

    def time(self) -> int:
        return self.bench.clock.now_ms() + self.random.choice([-1500, 0, 800])


@pytest.mark.parametrize("seed", range(4))
def test_the_queue_leads_to_all_garbage_whatever_happened(bench: Workbench, seed: int) -> None:
    """Collections that are cut off anywhere among them; at the end a listing of the whole store has nothing to do."""
    world = World(bench, Random(seed))
    collector = GarbageCollector(bench)
    for _ in range(30):
        world.step()
        if world.random.random() < 0.5:
            bench.advance(world.random.choice([GRACE_MS // 3, GRACE_MS + 1]))
            collect_until(collector, world.random.randrange(40))
        if world.random.random() < 0.3:
            for _ in range(3):
                bench.advance(GRACE_MS + 1)
                list(collector.collect_due())
    for _ in range(4):  # attempts expire, then their objects go, then their rows
        bench.advance(GRACE_MS + 1)
        assert [item.error for item in collector.collect_due() if item.error] == []
    for _ in range(3):
        for item in collector.collect_all():
            assert not item.total.count, "objects"
            assert (item.compacted_ledgers, item.trimmed_ledgers, item.attempts_given_up) == (0, 0, 0)
        bench.advance(GRACE_MS + 1)
    assert bench.metadata.tenancy.uncollected_topics() == []


class Cut(Exception):
    """The end of a collection at a failpoint."""


def collect_until(collector: GarbageCollector, step: int) -> None:
    """Collect what is due; end at the failpoint after `step` others, if there are so many."""
    remaining = iter(range(step))

    def cut(_: Failpoint) -> None:
        if next(remaining, None) is None:
            raise Cut

    with suppress(Cut), observed(cut):
        list(collector.collect_due())


@pytest.mark.parametrize("seed", range(4))
def test_the_queue_gives_what_a_scan_gives_whatever_happened(bench: Workbench, seed: int) -> None:
    world = World(bench, Random(seed))
    done = []
    for _ in range(40):
        done.append(world.step())
        if world.random.random() < 0.6:
            expected = world.leader.scan()
            assert world.leader.check() == expected, done
        if seed % 2 and world.random.random() < 0.5:  # a walk may queue what an event did not
            assert world.leader.walk() == 0, done
    last = bench.topic("last")
    bench.append(last, [content((b"a", b"v"), (b"b", b"v"))])
    bench.set_policies(last, **{MESSAGES: 1, "min.compaction.lag.ms": 0, "max.compaction.lag.ms": None})
    assert ("last", "threshold.messages") in world.leader.check()


Event = Callable[[Workbench, Topic], object]
COMPACT, COLLECT = {WorkKind.COMPACT}, {WorkKind.COLLECT}
EVENTS: dict[str, tuple[set[WorkKind], Event]] = {
    "bulk append": (COMPACT | COLLECT, lambda bench, topic: bench.append(topic, [content((b"a", b"v"))])),
    "roll": (COMPACT, lambda bench, topic: topic.log_manager().roll(topic.record)),
    "seal": (COLLECT, lambda bench, topic: [*topic.log_manager().seal(topic.record)]),
    "run": (COMPACT | COLLECT, lambda bench, topic: bench.compact(topic)),
    "attempt": (
        COLLECT,
        lambda bench, topic: bench.metadata.attempts.begin(topic.record.id, AttemptKind.RUN, "x"),
    ),
    "trim": (
        COMPACT | COLLECT,
        lambda bench, topic: bench.metadata.trimming.trim(
            topic.record.id, 2, [bench.metadata.ledgers.of_topic(topic.record.id)[0].ledger_id], force=True
        ),
    ),
    "later start": (COMPACT, lambda bench, topic: bench.metadata.trimming.trim(topic.record.id, 1, [], force=True)),
    "truncation": (COMPACT | COLLECT, lambda bench, topic: bench.metadata.trimming.truncate([topic.record.id])),
    "removal of the cursor": (
        COMPACT | COLLECT,
        lambda bench, topic: bench.metadata.cursors.delete(topic.record.id, "__compaction", force=True),
    ),
    "resumption": (COMPACT, lambda bench, topic: bench.metadata.compaction_control.resume([topic.record.id])),
    "topic's policy": (COMPACT, lambda bench, topic: bench.set_policies(topic, **{MESSAGES: 1})),
    "namespace's policy": (
        COMPACT,
        lambda bench, topic: bench.metadata.policies.change([namespace_scope("public/default")], {MESSAGES: 1}),
    ),
    "broker's policy": (COMPACT, lambda bench, topic: bench.metadata.policies.change([BROKER], {MESSAGES: 1})),
    "removal of policies": (COMPACT, lambda bench, topic: bench.metadata.policies.change([BROKER], {}, None)),
}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_queues_the_topic(bench: Workbench, event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, without what the release of a lease queues."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"v"), (b"b", b"v"))])
    bench.compact(topic)
    produce(topic, [single(b"c", b"v")])
    if event == "seal":
        topic.log_manager().roll(topic.record)
    if event == "resumption":
        bench.metadata.compaction_control.pause([topic.record.id])
    with bench.metadata.database.write() as connection:
        connection.execute(delete(table))
    monkeypatch.setattr(leases, "topic_work", SimpleNamespace(mark=lambda *_: None, WorkKind=WorkKind))
    kinds, act = EVENTS[event]
    act(bench, topic)
    of_topics = bench.metadata.topic_work.of_topics
    queued = {kind: of_topics(kind, [topic.record.id]) for kind in WorkKind}
    assert {kind for kind, works in queued.items() if works} == kinds
    assert {work.due_at for works in queued.values() for work in works.values()} == {0}


def test_a_due_topic_stays_and_another_is_removed_or_waits(bench: Workbench) -> None:
    leader = Leader(bench)
    due, empty, late, untriggered = (bench.topic(name) for name in ("due", "empty", "late", "untriggered"))
    bench.set_policies(due, **{MESSAGES: 1})
    bench.set_policies(empty, **{MESSAGES: 1})
    bench.set_policies(late, **{"max.compaction.lag.ms": 9})
    for topic in (due, late, untriggered):
        produce(topic, [single(b"a", b"v", bench.clock.now_ms()), single(b"b", b"v", bench.clock.now_ms())])
    assert leader.check() == [("due", "threshold.messages")]
    assert leader.queued() == [due.record.id, late.record.id]
    bench.advance(9)
    assert leader.check() == [("due", "threshold.messages")]
    bench.advance(1)
    assert leader.check() == [("due", "threshold.messages"), ("late", "max.lag")]
    bench.metadata.compaction_control.pause([due.record.id])
    assert leader.check() == [("late", "max.lag")]
    assert leader.queued() == [late.record.id]
    bench.metadata.compaction_control.resume([due.record.id])
    assert leader.check() == [("due", "threshold.messages"), ("late", "max.lag")]
    bench.compact(due)
    bench.compact(late)
    assert leader.check() == []
    assert leader.queued() == []


def test_a_mark_after_the_read_of_a_check_stays(bench: Workbench) -> None:
    leader, topic = Leader(bench), bench.topic()
    bench.append(topic, [content((b"a", b"v"))])
    (work,) = bench.metadata.topic_work.due(WorkKind.COMPACT, NOW * 2)
    bench.set_policies(topic, **{"max.compaction.lag.ms": 5})
    for due_at in (None, NOW * 3):
        bench.metadata.topic_work.reschedule([(work, due_at)], leader.token)
        (after,) = bench.metadata.topic_work.due(WorkKind.COMPACT, 0)
        assert (after.topic_id, after.changes) == (topic.record.id, work.changes + 1)
    bench.metadata.topic_work.reschedule([(after, None)], leader.token)
    assert leader.queued() == []


def test_a_leader_that_lost_its_leadership_settles_nothing(bench: Workbench) -> None:
    leader, topic = Leader(bench), bench.topic()
    bench.append(topic, [content((b"a", b"v"))])
    bench.metadata.services.resign(leader.token)
    with pytest.raises(Fenced):
        leader.check()
    with pytest.raises(Fenced):
        bench.metadata.topic_work.set_leader_note("walk", "7", leader.token)
    assert leader.queued() == [topic.record.id]
    assert bench.metadata.topic_work.leader_note("walk") is None


def test_a_leader_with_other_defaults_checks_all_topics_and_one_with_the_same_its_own_open_segments(
    bench: Workbench, tmp_path: Path, database_url: URL, open_store: OpenStore
) -> None:
    first, topics = Leader(bench), [bench.topic(name) for name in ("a", "b")]
    bench.append(topics[0], [content((b"a", b"v"), (b"b", b"v"))])
    produce(topics[1], [single(b"a", b"v"), single(b"b", b"v")])
    assert first.check() == []
    assert first.queued() == []
    bench.metadata.services.resign(first.token)

    same = Leader(bench)
    assert same.queued() == [topics[1].record.id]
    bench.metadata.services.resign(same.token)
    elsewhere = Leader(replace(bench, log=LogDirectory(tmp_path / "another")))
    elsewhere.check()
    assert elsewhere.queued() == []
    bench.metadata.services.resign(elsewhere.token)

    metadata = MetadataStore(database_url, bench.clock, {MESSAGES: 1})
    try:
        other = Leader(replace(bench, metadata=metadata))
        assert other.check() == [("a", "threshold.messages"), ("b", "threshold.messages")]
    finally:
        metadata.close()


def test_a_topic_that_was_due_and_not_queued_is_counted_logged_and_queued(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Leader(bench)
    bench.metadata.policies.change([BROKER], {MESSAGES: 1})
    closed, opened, late = (bench.topic(name) for name in ("closed", "opened", "late"))
    bench.append(closed, [content((b"a", b"v"), (b"b", b"v"))])
    produce(opened, [single(b"a", b"v"), single(b"b", b"v")])
    bench.set_policies(late, **{MESSAGES: 0, "max.compaction.lag.ms": 50})
    bench.append(late, [content((b"a", b"v"))])
    expected = leader.check()
    assert [name for name, _ in expected] == ["closed", "opened"]
    with bench.metadata.database.write() as connection:
        connection.execute(delete(table).where(table.c.topic_id != late.record.id))
    with bench.metadata.database.write() as connection:
        connection.execute(update(table).values(due_at=NOW * 2))
    assert leader.check() == []
    with caplog.at_level(logging.WARNING):
        assert leader.walk() == 1
    (line,) = caplog.messages
    assert line.startswith("a compaction of persistent://public/default/closed is due and was not queued")
    assert leader.check() == expected
    assert leader.queued() == [closed.record.id, opened.record.id, late.record.id]
    assert leader.walk() == 0


def test_the_reconciler_rests_and_goes_on_where_the_leader_before_it_was(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Leader(bench)
    topics = [bench.topic(f"t{number}") for number in range(TOPICS_AT_ONCE + 1)]
    for topic in topics:
        bench.set_policies(topic, **{MESSAGES: 1})
    read: list[int] = []
    read_with_trigger = BacklogReader.read_with_trigger

    def slow(reader: BacklogReader, topic_ids: list[int]) -> list[Backlog]:
        read.append(len(topic_ids))
        bench.advance(5)
        return read_with_trigger(reader, topic_ids)

    monkeypatch.setattr(BacklogReader, "read_with_trigger", slow)
    reconciler = Reconciler(bench.metadata, leader.backlogs, bench.clock, 300)
    assert reconciler.walk_next_page_if_due(leader.token)
    assert (read, reconciler.totals.topics) == ([TOPICS_AT_ONCE], TOPICS_AT_ONCE)
    bench.advance(5 * PARTS - 1)
    assert not reconciler.walk_next_page_if_due(leader.token)
    assert len(read) == 1, "it rests"
    bench.advance(1)
    reconciler.walk_next_page_if_due(leader.token)
    assert (read, reconciler.totals.topics) == ([TOPICS_AT_ONCE, 1], TOPICS_AT_ONCE + 1)
    bench.advance(1000)
    assert reconciler.walk_next_page_if_due(leader.token)
    bench.metadata.topic_work.set_leader_note("walk", str(topics[-2].record.id), leader.token)
    successor = Reconciler(bench.metadata, leader.backlogs, bench.clock, 300)
    successor.walk_next_page_if_due(leader.token)
    assert read == [TOPICS_AT_ONCE, 1, TOPICS_AT_ONCE, 1]
    assert bench.metadata.topic_work.leader_note("walk") == "-1"


def test_entries_of_an_open_log_queue_its_topic_and_an_idle_log_does_not(bench: Workbench) -> None:
    bench.metadata.policies.change([BROKER], {MESSAGES: 1})
    leader, topic = Leader(bench), bench.topic()
    renewer = LeaseRenewer(bench.metadata, clock=bench.clock)

    def renew() -> None:
        for _ in range(TICKS):
            renewer.renew_due_leases()

    with topic.append_log(0, renewer=renewer) as log:
        log.append(single(b"a", b"v"))
        assert leader.check() == []
        log.append(single(b"b", b"v"))
        assert leader.check() == []
        renew()
        assert leader.check() == [("t", "threshold.messages")]
        renew()
        with bench.metadata.database.write() as connection:
            connection.execute(delete(table))
        renew()
        assert leader.queued() == []
    assert leader.check() == [("t", "threshold.messages")], "the end of the log queues it as well"


def test_a_deleted_topic_takes_its_marks_along_and_a_mark_makes_no_topic_used(bench: Workbench) -> None:
    leader, (used, unused) = Leader(bench), (bench.topic(name) for name in ("used", "unused"))
    bench.append(used, [content((b"a", b"v"))])
    bench.metadata.topic_work.queue(WorkKind.COMPACT, [used.record.id, unused.record.id, 99])
    assert leader.queued() == [used.record.id, unused.record.id]
    assert bench.metadata.tenancy.delete_unused_topic(unused.record.id)
    bench.metadata.tenancy.delete_topic(used.record.id, force=True)
    assert leader.queued() == []
