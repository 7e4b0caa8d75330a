"""Retention: which ledgers go and why, what holds them, and that reads are as they must be afterwards (C1–C3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.retention import (
    Piece,
    Retention,
    RetentionHold,
    TrimCandidate,
    Trimmed,
    TrimPlan,
    Why,
    is_expired,
    plan_before,
    plan_policies,
)
from compactor.run.plan import Policies
from storage.entries.encode import encode_message
from storage.errors import Conflict, InvalidInput, LeaseHeld, ObjectMissing
from storage.ledger.seek import AtOffset, Reset
from storage.log.bulk_append import INPUT_SCHEMA
from storage.log.directory import LogDirectory
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, SegmentState, TopicRecord, TopicSnapshot
from storage.model import EARLIEST, LATEST, MessageId, Position, TopicName
from storage.options.policies import TopicPolicies
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.workbench import Workbench, ids, raw, store_policy

NOW = 1_700_000_000_000
HOUR = 3_600_000
GB = 1 << 30
DELETE, COMPACT = frozenset({"delete"}), frozenset({"compact"})


def pieces(*lengths: int, size: int = 1, newest: Sequence[int] = ()) -> list[Piece]:
    """Ledgers with so many messages each, one after the other."""
    found: list[Piece] = []
    for number, length in enumerate(lengths):
        first = found[-1].last_offset + 1 if found else 0
        time = newest[number] if newest else NOW
        found.append(Piece(number, first, first + length - 1, length, size, time))
    return found


def snapshot(start: int = 0, end: int = 10_000, horizon: int | None = None) -> TopicSnapshot:
    topic = TopicRecord(1, "a" * 32, TopicName.parse("t"), 0, 0, 0, end, NOW, start)

    class Snapshot(TopicSnapshot):
        @property
        def horizon(self) -> Position | None:
            return None if horizon is None else Position(horizon, MessageId(0, horizon))

    return Snapshot(topic, (), None, None, None)


def cursor(name: str, offset: int | None) -> CursorRecord:
    return CursorRecord(name, None if offset is None else Position(offset, MessageId(0, offset)), {})


def why(plan: TrimPlan) -> list[Why]:
    return [gone.why for gone in plan.going]


# --- by time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "goes"), [(HOUR - 1, False), (HOUR, False), (HOUR + 1, True)])
def test_a_ledger_goes_when_its_newest_message_is_older_than_the_retention(age: int, goes: bool) -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=HOUR)
    plan = plan_policies(snapshot(), pieces(3, newest=[NOW - age]), [], policies, NOW)
    assert plan == TrimPlan(*((3, plan.going, 3) if goes else (0, (), 0)))
    assert why(plan) == [Why.TIME] * goes


def test_milliseconds_beat_minutes_beat_hours_and_minus_one_is_for_ever() -> None:
    newest = NOW - 30 * 60_000
    assert is_expired(newest, TopicPolicies(retention_hours=0), NOW)
    assert not is_expired(newest, TopicPolicies(retention_hours=0, retention_minutes=31), NOW)
    assert is_expired(newest, TopicPolicies(retention_hours=9, retention_minutes=29), NOW)
    assert is_expired(newest, TopicPolicies(retention_hours=9, retention_minutes=31, retention_ms=1), NOW)
    assert not is_expired(newest, TopicPolicies(retention_hours=0, retention_minutes=0, retention_ms=-1), NOW)
    assert not is_expired(NOW - 10**12, TopicPolicies(retention_hours=-1), NOW)
    assert is_expired(NOW - 168 * HOUR - 1, TopicPolicies(), NOW)
    assert not is_expired(NOW - 168 * HOUR, TopicPolicies(), NOW)


def test_a_young_ledger_keeps_all_that_lies_behind_it() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=HOUR)
    old = NOW - 2 * HOUR
    plan = plan_policies(snapshot(), pieces(2, 2, 2, newest=[old, NOW, old]), [], policies, NOW)
    assert [gone.piece.ledger_id for gone in plan.going] == [0]
    assert plan.start_offset == 2


def test_what_is_not_known_is_not_old() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=0)
    unknown = replace(pieces(2)[0], newest=None, sealed=False)
    assert plan_policies(snapshot(), [unknown], [], policies, NOW + 10**9).going == ()


# --- by size -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "going"),
    [(-1, 0), (0, 5), (1, 4), (2 * GB, 3), (3 * GB, 2), (3 * GB + 1, 1), (9 * GB, 0)],
)
def test_worked_example_9_retention_by_size(limit: int, going: int) -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=-1, retention_bytes=limit)
    plan = plan_policies(snapshot(), pieces(1, 1, 1, 1, 1, size=GB), [], policies, NOW)
    assert why(plan) == [Why.SIZE] * going
    assert plan.start_offset == going


def test_size_is_of_what_time_leaves() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=HOUR, retention_bytes=2)
    old = NOW - 2 * HOUR
    plan = plan_policies(snapshot(), pieces(1, 1, 1, 1, newest=[old, NOW, NOW, NOW]), [], policies, NOW)
    assert why(plan) == [Why.TIME, Why.SIZE]


# --- by start offset -----------------------------------------------------------------------------------------------


def test_worked_example_7_retention_by_start_offset() -> None:
    """Ledgers at 0, 11 and 23; the start offset is moved to 25."""
    plan = plan_before(snapshot(end=40), pieces(11, 12, 17), [], TopicPolicies(), 25)
    assert [gone.piece.first_offset for gone in plan.going] == [0, 11]
    assert (plan.start_offset, plan.hold) == (25, None)


@pytest.mark.parametrize(("before", "going"), [(0, 0), (10, 0), (11, 1), (22, 1), (23, 2), (24, 2), (40, 3)])
def test_a_ledger_goes_when_the_next_one_begins_at_or_before_the_start(before: int, going: int) -> None:
    plan = plan_before(snapshot(end=40), pieces(11, 12, 17), [], TopicPolicies(), before)
    assert (len(plan.going), plan.start_offset) == (going, before)


def test_the_start_never_goes_back() -> None:
    assert plan_before(snapshot(start=25, end=40), pieces(11, 12, 17)[2:], [], TopicPolicies(), 3).start_offset == 25


@pytest.mark.parametrize("before", [-1, 41])
def test_an_offset_out_of_range_is_refused(before: int) -> None:
    with pytest.raises(InvalidInput, match=r"an offset from 0 to 40"):
        plan_before(snapshot(end=40), pieces(11, 12, 17), [], TopicPolicies(), before)


def test_records_of_a_topic_with_compact_alone_cannot_be_deleted_by_offset() -> None:
    """Kafka's POLICY_VIOLATION (44)."""
    with pytest.raises(InvalidInput, match="policy compact"):
        plan_before(snapshot(end=9), pieces(9), [], TopicPolicies(cleanup_policy=COMPACT), 3)
    for allowed in (frozenset[str](), DELETE, DELETE | COMPACT):
        policies = TopicPolicies(cleanup_policy=allowed)
        plan = plan_before(snapshot(end=9), pieces(9), [cursor(COMPACTION_CURSOR, 8)], policies, 3)
        assert plan.start_offset == 3


@pytest.mark.parametrize("cleanup", [frozenset(), DELETE, COMPACT, DELETE | COMPACT], ids=sorted)
def test_what_lies_below_the_start_goes_under_any_policy(cleanup: frozenset[str]) -> None:
    policies = TopicPolicies(cleanup_policy=cleanup, retention_ms=-1)
    plan = plan_policies(snapshot(start=25), pieces(11, 12, 17), [], policies, NOW)
    assert why(plan) == [Why.START_OFFSET] * 2
    assert plan.start_offset == 25


# --- compact, and both ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("horizon", "going"), [(None, 0), (1, 0), (2, 1), (4, 1), (5, 2)])
def test_compact_lets_raw_at_or_below_the_horizon_go(horizon: int | None, going: int) -> None:
    policies = TopicPolicies(cleanup_policy=COMPACT)
    plan = plan_policies(
        snapshot(horizon=horizon), pieces(3, 3, 3), [cursor(COMPACTION_CURSOR, horizon)], policies, NOW + 10**12
    )
    assert why(plan) == [Why.COMPACTED] * going
    assert plan.start_offset == 0, "what survived is in the compacted ledger, which begins where it did"
    forced = plan_policies(snapshot(horizon=horizon), pieces(3, 3, 3), [], policies, NOW, force=True)
    assert len(forced.going) == going, "a ledger that straddles the horizon is not compacted"


def test_an_empty_policy_lets_nothing_go() -> None:
    policies = TopicPolicies(retention_ms=0, retention_bytes=0)
    assert plan_policies(snapshot(horizon=8), pieces(3, 3, 3), [], policies, NOW + 10**12).going == ()


def test_both_policies_at_once() -> None:
    """Time moves the start; what is compacted goes besides, and the start stays in front of it."""
    policies = TopicPolicies(cleanup_policy=DELETE | COMPACT, retention_ms=HOUR, retention_bytes=0)
    old = NOW - 2 * HOUR
    found = pieces(3, 3, 3, newest=[old, NOW, NOW])
    plan = plan_policies(snapshot(horizon=5), found, [cursor(COMPACTION_CURSOR, 5)], policies, NOW)
    assert why(plan) == [Why.TIME, Why.COMPACTED]
    assert plan.start_offset == 3
    assert plan.hold is not None
    assert plan.hold.cursor == COMPACTION_CURSOR
    assert plan.held == (TrimCandidate(found[2], Why.SIZE),)
    forced = plan_policies(snapshot(horizon=5), found, [cursor(COMPACTION_CURSOR, 5)], policies, NOW, force=True)
    assert why(forced) == [Why.TIME, Why.COMPACTED, Why.SIZE]
    assert forced.start_offset == 9


# --- cursors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("marked", "going"), [(None, 0), (1, 0), (2, 1), (4, 1), (5, 2), (9, 3)])
@pytest.mark.parametrize("name", ["reader", COMPACTION_CURSOR])
def test_a_cursor_holds_what_it_has_not_acknowledged(name: str, marked: int | None, going: int) -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=0)
    found = pieces(3, 3, 3, newest=[0, 0, 0])
    cursors = [cursor(name, marked), cursor("ahead", 100)]
    plan = plan_policies(snapshot(), found, cursors, policies, NOW)
    assert len(plan.going) == going
    assert plan.start_offset == 3 * going
    assert plan.wanted_start == 9
    assert len(plan.held) == 3 - going
    if going < 3:
        assert plan.hold is not None
        assert (plan.hold.cursor, plan.hold.needs) == (name, 0 if marked is None else marked + 1)
    else:
        assert plan.hold is None
    assert len(plan_policies(snapshot(), found, cursors, policies, NOW, force=True).going) == 3


def test_the_start_moves_as_far_as_the_slowest_cursor() -> None:
    plan = plan_before(snapshot(end=9), pieces(3, 3, 3), [cursor("reader", 6)], TopicPolicies(), 9)
    assert (plan.start_offset, plan.wanted_start, len(plan.going), len(plan.held)) == (7, 9, 2, 1)
    inside = plan_before(snapshot(end=9), pieces(3, 3, 3), [cursor("reader", 6)], TopicPolicies(), 8)
    assert (inside.start_offset, inside.held) == (7, ())
    assert inside.hold is not None


def test_a_cursor_below_the_start_holds_nothing_more() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=0)
    plan = plan_policies(snapshot(start=3), pieces(3, 3, newest=[0, 0]), [cursor("late", None)], policies, NOW)
    assert why(plan) == [Why.START_OFFSET]


# --- on a topic ----------------------------------------------------------------------------------------------------


def clock_of(bench: Workbench) -> ManualClock:
    assert isinstance(bench.clock, ManualClock)
    return bench.clock


def retention(bench: Workbench) -> Retention:
    return Retention(bench.metadata, bench.store, bench.clock, bench.log)


def published(*messages: tuple[bytes | None, bytes | None, int]) -> pa.Table:
    """Key, payload and publish time of each message."""
    return pa.Table.from_pylist(
        [{"key": key, "payload": payload, "publish_time": time} for key, payload, time in messages],
        schema=INPUT_SCHEMA,
    )


def ledgers(bench: Workbench, topic: Topic, *lengths: int, age: int = 0) -> None:
    time = bench.clock.now_ms() - age
    for number, length in enumerate(lengths):
        bench.append(topic, [published(*((b"k%d" % (number % 2), b"%d" % n, time) for n in range(length)))])


def allow(bench: Workbench, topic: Topic, **policies: object) -> None:
    for name, value in policies.items():
        bench.metadata.policies.set(topic_scope(topic.record), name, value)


def cursor_at(bench: Workbench, topic: Topic, name: str, offset: int) -> None:
    bench.metadata.cursors.ensure(topic.record.id, name)
    bench.metadata.cursors.reset(topic.record.id, name, topic.locate(offset))


def produce(bench: Workbench, topic: Topic, *times: int) -> None:
    """One message at each time into the active segment, which stays open."""
    with topic.append_log() as log:
        for number, time in enumerate(times):
            log.append(encode_message(b"k", b"%d" % number, producer="p", sequence_id=number, publish_time=time))


def offsets(topic: Topic, read_compacted: bool = False) -> list[int]:
    return [message.offset for message in topic.messages(read_compacted=read_compacted)]


def gone(trimmed: Trimmed) -> list[int]:
    return [one.piece.first_offset for one in trimmed.plan.going]


def states(bench: Workbench, topic: Topic) -> list[SegmentState]:
    return [segment.state for segment in topic.snapshot().segments]


def test_worked_example_7_on_a_topic(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 11, 12, 17)
    trimmed = retention(bench).trim(topic.record, 25)
    assert gone(trimmed) == [0, 11]
    assert [ledger.first_offset for ledger in topic.snapshot().ledgers] == [23]
    assert offsets(topic) == list(range(25, 40))
    assert [m.offset for m in topic.messages(AtOffset(11), max_messages=1)] == [25]
    assert [one.first_offset for one in bench.metadata.trimming.trimmed(topic.record.id)] == [0, 11]


def test_a_message_id_is_as_good_as_its_offset(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 11, 12, 17)
    messages = raw(topic)
    trimmed = retention(bench).trim(topic.record, messages[25].message_id)
    assert (gone(trimmed), trimmed.plan.start_offset) == ([0, 11], 25)
    again = retention(bench).trim(topic.record, messages[4].message_id)
    assert (gone(again), again.plan.start_offset) == ([], 25)
    assert retention(bench).trim(topic.record, EARLIEST).plan.start_offset == 25
    everything = retention(bench).trim(topic.record, LATEST)
    assert (gone(everything), everything.plan.start_offset) == ([23], 40)
    assert offsets(topic) == []


def test_a_dry_run_changes_nothing(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 2, 2)
    produce(bench, topic, NOW, NOW)
    dry = retention(bench).trim(topic.record, 6, dry_run=True)
    assert not dry.trimmed
    assert gone(dry) == [0, 2, 4]
    assert offsets(topic) == list(range(6))
    assert states(bench, topic) == [SegmentState.OPEN]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact,delete"),
        ("compaction.threshold.bytes", 1 << 30),
        ("compaction.threshold.messages", 10**6),
        ("compaction.threshold.bytes", "of a newer version"),
    ],
)
def test_a_topic_that_is_to_be_compacted_has_its_cursor_from_then_on(
    bench: Workbench, topic: Topic, name: str, value: object
) -> None:
    """S9, Pulsar #11672: also where the policy was set around it, and cannot be read; a look makes nothing."""
    ledgers(bench, topic, 3)
    allow(bench, topic, **{"retention.ms": 0})
    bench.metadata.policies.set("namespace:public/default", "cleanup.policy", "delete")
    clock_of(bench).advance(HOUR)
    assert why(retention(bench).apply(topic.record, dry_run=True).plan) == [Why.TIME]
    bench.metadata.policies.remove("namespace:public/default", "cleanup.policy")
    bench.metadata.policies.set("broker", "cleanup.policy", "delete")
    store_policy(bench.metadata, "namespace:public/default", name, value)
    plan = retention(bench).apply(topic.record, dry_run=True).plan
    assert (plan.going, plan.hold) == ((), RetentionHold(COMPACTION_CURSOR, None, 0))
    assert bench.metadata.cursors.of_topic(topic.record.id) == []
    for _ in range(2):
        retention(bench).apply(topic.record)
        assert bench.metadata.cursors.of_topic(topic.record.id) == [CursorRecord(COMPACTION_CURSOR, None, {})]
    with pytest.raises(Conflict, match="its cursor '__compaction' is with nothing acknowledged"):
        bench.metadata.trimming.trim(topic.record.id, 3, [], force=False)
    bench.compact(topic)
    assert topic.snapshot().horizon is not None


def test_looking_makes_no_log_directory(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    """Nor does it where the segments are in another one, as on a machine that only looks."""
    produce(bench, topic, NOW)
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.ms": 0})
    elsewhere = Retention(bench.metadata, bench.store, bench.clock, LogDirectory(tmp_path / "nowhere"))
    for dry_run in (True, False):
        assert elsewhere.apply(topic.record, dry_run=dry_run).plan.going == ()
    assert not (tmp_path / "nowhere").exists()


def test_worked_example_8_retention_by_time(bench: Workbench, topic: Topic) -> None:
    """A ledger outlives its messages by its own newest one; when all are expired, the open segment is rolled first."""
    now = bench.clock.now_ms()
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    bench.append(topic, [published((b"a", b"1", now - 5 * HOUR), (b"b", b"2", now))])
    produce(bench, topic, now - HOUR, now)
    trimming = retention(bench)
    assert gone(trimming.apply(topic.record)) == []
    clock_of(bench).advance(HOUR)
    assert gone(trimming.apply(topic.record)) == [], "an hour old is not older than an hour"
    assert states(bench, topic) == [SegmentState.OPEN]
    clock_of(bench).advance(1)
    assert gone(trimming.apply(topic.record)) == [0, 2]
    assert offsets(topic) == []
    assert topic.snapshot().topic.start_offset == 4
    produce(bench, topic, now)
    assert offsets(topic) == [4], "a new segment goes on with the next offset"


def test_an_open_segment_with_a_young_message_stays(bench: Workbench, topic: Topic) -> None:
    now = bench.clock.now_ms()
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    ledgers(bench, topic, 2, age=2 * HOUR)
    produce(bench, topic, now - 2 * HOUR, now - HOUR, now - 3 * HOUR)
    assert gone(retention(bench).apply(topic.record)) == [0]
    assert states(bench, topic) == [SegmentState.OPEN]


def test_no_bytes_at_all(bench: Workbench, topic: Topic) -> None:
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, bench.clock.now_ms())
    assert gone(retention(bench).apply(topic.record)) == [0, 2]
    assert offsets(topic) == []


def test_a_start_inside_the_open_segment(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 2)
    produce(bench, topic, *[NOW] * 4)
    trimmed = retention(bench).trim(topic.record, 4)
    assert (gone(trimmed), trimmed.plan.start_offset) == ([0], 4)
    assert offsets(topic) == [4, 5]


def test_a_tail_that_a_cursor_needs_is_not_rolled(bench: Workbench, topic: Topic) -> None:
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, NOW)
    cursor_at(bench, topic, "reader", 1)
    trimmed = retention(bench).apply(topic.record)
    assert gone(trimmed) == [0]
    assert trimmed.plan.hold is not None
    assert trimmed.plan.hold.cursor == "reader"
    assert states(bench, topic) == [SegmentState.OPEN]


def test_a_tail_that_cannot_be_sealed_is_left_and_said(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*_: object) -> None:
        raise LeaseHeld("the writer sleeps", "wake it")

    allow(bench, topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, NOW)
    monkeypatch.setattr("compactor.maintenance.retention.LogManager.settle", held)
    trimmed = retention(bench).apply(topic.record)
    assert gone(trimmed) == [0]
    assert trimmed.tail_left == "the writer sleeps: wake it"
    assert offsets(topic) == [2]


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_an_open_segment_that_cannot_be_read_holds_up_no_ledger(bench: Workbench, topic: Topic, how: str) -> None:
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    ledgers(bench, topic, 2, 2, age=2 * HOUR)
    produce(bench, topic, NOW, NOW)
    assert bench.log is not None
    (file,) = bench.log.of_topic(topic.record.uid).glob("*.log")
    if how == "gone":
        file.unlink()
    else:
        written = bytearray(file.read_bytes())
        written[100] ^= 1
        file.write_bytes(written)
    dry = retention(bench).apply(topic.record, dry_run=True)
    trimmed = retention(bench).apply(topic.record)
    assert gone(trimmed) == gone(dry) == [0, 2]
    assert trimmed.tail_damaged
    assert "--accept-loss" in trimmed.tail_left
    assert trimmed.tail_left == dry.tail_left
    assert topic.snapshot().ledgers == ()
    assert states(bench, topic) == [SegmentState.OPEN]


def test_without_a_log_directory_the_tail_stays(bench: Workbench, topic: Topic) -> None:
    allow(bench, topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, NOW)
    assert gone(Retention(bench.metadata, bench.store, bench.clock).apply(topic.record)) == [0]
    assert offsets(topic) == [2]


def test_compact_trims_what_is_compacted_and_compacted_reads_stay_whole(bench: Workbench, topic: Topic) -> None:
    """T3 and R4."""
    allow(bench, topic, **{"cleanup.policy": "compact"})
    ledgers(bench, topic, 3, 3)
    bench.compact(topic)
    ledgers(bench, topic, 2)
    before = ids(topic.messages(read_compacted=True))
    trimmed = retention(bench).apply(topic.record)
    assert why(trimmed.plan) == [Why.COMPACTED] * 2
    assert ids(topic.messages(read_compacted=True)) == before
    assert offsets(topic) == [6, 7]
    assert topic.snapshot().topic.start_offset == 0
    assert gone(retention(bench).apply(topic.record)) == []
    bench.compact(topic)
    assert offsets(topic, read_compacted=True) == [5, 7]


def test_a_reader_holds_what_is_compacted_too(bench: Workbench, topic: Topic) -> None:
    allow(bench, topic, **{"cleanup.policy": "compact"})
    ledgers(bench, topic, 3, 3)
    bench.compact(topic)
    cursor_at(bench, topic, "reader", 3)
    trimmed = retention(bench).apply(topic.record)
    assert gone(trimmed) == [0]
    assert trimmed.plan.hold is not None
    assert gone(retention(bench).apply(topic.record, force=True)) == [3]


def test_force_goes_past_compaction(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 3)
    bench.compact(topic)
    ledgers(bench, topic, 3)
    held = retention(bench).trim(topic.record, 6)
    assert (gone(held), held.plan.start_offset) == ([0], 3)
    forced = retention(bench).trim(topic.record, 6, force=True)
    assert (gone(forced), forced.plan.start_offset) == ([3], 6)
    assert offsets(topic) == []


def test_a_cursor_that_is_made_meanwhile_is_seen(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers(bench, topic, 3, 3)
    looked: list[list[CursorRecord]] = [[]]
    real = bench.metadata.cursors.of_topic
    bench.metadata.cursors.ensure(topic.record.id, "new")

    def cursors(topic_id: int) -> list[CursorRecord]:
        return looked.pop() if looked else real(topic_id)

    monkeypatch.setattr(bench.metadata.cursors, "of_topic", cursors)
    trimmed = retention(bench).trim(topic.record, 6)
    assert gone(trimmed) == []
    assert trimmed.plan.hold is not None
    assert offsets(topic) == list(range(6))


def test_who_is_always_overtaken_is_told(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers(bench, topic, 3)
    bench.metadata.cursors.ensure(topic.record.id, "new")
    monkeypatch.setattr(bench.metadata.cursors, "of_topic", lambda _: [])
    with pytest.raises(Conflict, match="'new'"):
        retention(bench).trim(topic.record, 3)


# --- afterwards ----------------------------------------------------------------------------------------------------


def test_a_reader_that_is_under_way_goes_on_until_the_objects_go(bench: Workbench, topic: Topic) -> None:
    """C3: marked, then removed after the delay; until then whoever reads what was marked may finish."""
    allow(bench, topic, **{"file.delete.delay.ms": 60_000})
    ledgers(bench, topic, 3, 3, 3)
    clock_of(bench).advance(2 * HOUR)
    reading = topic.messages()
    assert [next(reading).offset for _ in range(2)] == [0, 1]
    retention(bench).trim(topic.record, 7)
    collector = GarbageCollector(bench.metadata, bench.store, bench.clock, skew_ms=0)
    clock_of(bench).advance(59_999)
    assert collector.collect(topic.record).trimmed_ledgers == 0
    assert [next(reading).offset for _ in range(3)] == [2, 3, 4]
    clock_of(bench).advance(1)
    dry = collector.collect(topic.record, dry_run=True)
    assert dry.trimmed_ledgers == 2
    assert bench.metadata.trimming.trimmed(topic.record.id) != []
    wet = collector.collect(topic.record)
    assert (wet.trimmed_ledgers, wet.objects) == (2, dry.objects)
    assert sum(one.count for one in wet.objects.values()) == 4
    assert collector.collect(topic.record).trimmed_ledgers == 0
    assert offsets(topic) == [7, 8]
    late = topic.read(AtOffset(0), reset=Reset.EARLIEST)
    assert [row for batch in late for row in batch.column("offset").to_pylist()] == [7, 8]


def test_trimmed_objects_that_are_gone_do_not_hurt_a_compacted_read(bench: Workbench, topic: Topic) -> None:
    allow(bench, topic, **{"cleanup.policy": "compact", "file.delete.delay.ms": 0})
    ledgers(bench, topic, 3, 3)
    bench.compactor().compact(topic.name, Policies())
    before = ids(topic.messages(read_compacted=True))
    retention(bench).apply(topic.record)
    rows = bench.metadata.trimming.trimmed(topic.record.id)[0].rows.name
    clock_of(bench).advance(2 * HOUR)
    GarbageCollector(bench.metadata, bench.store, bench.clock).collect(topic.record)
    with pytest.raises(ObjectMissing):
        bench.store.get(rows)
    assert ids(topic.messages(read_compacted=True)) == before
