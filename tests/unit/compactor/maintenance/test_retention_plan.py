"""The pure functions of retention: which ledgers go, for which reason, and what holds them back (C1–C3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactor.maintenance.retention_plan import (
    RetentionExtent,
    TrimCandidate,
    TrimPlan,
    TrimReason,
    is_expired,
    plan_before,
    plan_by_policies,
)
from storage.errors import InvalidInput
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, TopicRecord, TopicSnapshot
from storage.model import LogPosition, MessageId, TopicName
from storage.options.policies import TopicPolicies

NOW = 1_700_000_000_000
HOUR = 3_600_000
GB = 1 << 30
DELETE, COMPACT = frozenset({"delete"}), frozenset({"compact"})


def extents(*lengths: int, size: int = 1, newest: Sequence[int] = ()) -> list[RetentionExtent]:
    """Ledgers with that many messages each, one after the other."""
    ledgers: list[RetentionExtent] = []
    for number, length in enumerate(lengths):
        first = ledgers[-1].last_offset + 1 if ledgers else 0
        time = newest[number] if newest else NOW
        ledgers.append(RetentionExtent(number, first, first + length - 1, length, size, time))
    return ledgers


def snapshot(start: int = 0, end: int = 10_000, horizon: int | None = None) -> TopicSnapshot:
    topic = TopicRecord(1, "a" * 32, TopicName.parse("t"), 0, 0, 0, end, NOW, start)

    class Snapshot(TopicSnapshot):
        @property
        def horizon(self) -> LogPosition | None:
            return None if horizon is None else LogPosition(horizon, MessageId(0, horizon))

    return Snapshot(topic, (), None, None, None)


def cursor(name: str, offset: int | None) -> CursorRecord:
    return CursorRecord(name, None if offset is None else LogPosition(offset, MessageId(0, offset)), {})


def reasons(plan: TrimPlan) -> list[TrimReason]:
    return [candidate.reason for candidate in plan.candidates]


# --- by time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "goes"), [(HOUR - 1, False), (HOUR, False), (HOUR + 1, True)])
def test_a_ledger_goes_when_its_newest_message_is_older_than_the_retention(age: int, goes: bool) -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=HOUR)
    plan = plan_by_policies(snapshot(), extents(3, newest=[NOW - age]), [], policies, NOW)
    assert plan == TrimPlan(*((3, plan.candidates, 3) if goes else (0, (), 0)))
    assert reasons(plan) == [TrimReason.TIME] * goes


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
    plan = plan_by_policies(snapshot(), extents(2, 2, 2, newest=[old, NOW, old]), [], policies, NOW)
    assert [candidate.extent.ledger_id for candidate in plan.candidates] == [0]
    assert plan.start_offset == 2


def test_what_is_not_known_is_not_old() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=0)
    unknown = replace(extents(2)[0], newest_publish_time=None, sealed=False)
    assert plan_by_policies(snapshot(), [unknown], [], policies, NOW + 10**9).candidates == ()


# --- by size -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "count"),
    [(-1, 0), (0, 5), (1, 4), (2 * GB, 3), (3 * GB, 2), (3 * GB + 1, 1), (9 * GB, 0)],
)
def test_worked_example_9_retention_by_size(limit: int, count: int) -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=-1, retention_bytes=limit)
    plan = plan_by_policies(snapshot(), extents(1, 1, 1, 1, 1, size=GB), [], policies, NOW)
    assert reasons(plan) == [TrimReason.SIZE] * count
    assert plan.start_offset == count


def test_size_is_of_what_time_leaves() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=HOUR, retention_bytes=2)
    old = NOW - 2 * HOUR
    plan = plan_by_policies(snapshot(), extents(1, 1, 1, 1, newest=[old, NOW, NOW, NOW]), [], policies, NOW)
    assert reasons(plan) == [TrimReason.TIME, TrimReason.SIZE]


# --- by start offset -----------------------------------------------------------------------------------------------


def test_worked_example_7_retention_by_start_offset() -> None:
    """Ledgers at 0, 11 and 23; the start offset is moved to 25."""
    plan = plan_before(snapshot(end=40), extents(11, 12, 17), [], TopicPolicies(), 25)
    assert [candidate.extent.first_offset for candidate in plan.candidates] == [0, 11]
    assert (plan.start_offset, plan.hold) == (25, None)


@pytest.mark.parametrize(("before", "count"), [(0, 0), (10, 0), (11, 1), (22, 1), (23, 2), (24, 2), (40, 3)])
def test_a_ledger_goes_when_the_next_one_begins_at_or_before_the_start(before: int, count: int) -> None:
    plan = plan_before(snapshot(end=40), extents(11, 12, 17), [], TopicPolicies(), before)
    assert (len(plan.candidates), plan.start_offset) == (count, before)


def test_the_start_never_goes_back() -> None:
    assert plan_before(snapshot(start=25, end=40), extents(11, 12, 17)[2:], [], TopicPolicies(), 3).start_offset == 25


@pytest.mark.parametrize("before", [-1, 41])
def test_an_offset_out_of_range_is_refused(before: int) -> None:
    with pytest.raises(InvalidInput, match=r"an offset from 0 to 40"):
        plan_before(snapshot(end=40), extents(11, 12, 17), [], TopicPolicies(), before)


def test_records_of_a_topic_with_compact_alone_cannot_be_deleted_by_offset() -> None:
    """Kafka's POLICY_VIOLATION (44)."""
    with pytest.raises(InvalidInput, match="policy compact"):
        plan_before(snapshot(end=9), extents(9), [], TopicPolicies(cleanup_policy=COMPACT), 3)
    for allowed in (frozenset[str](), DELETE, DELETE | COMPACT):
        policies = TopicPolicies(cleanup_policy=allowed)
        plan = plan_before(snapshot(end=9), extents(9), [cursor(COMPACTION_CURSOR, 8)], policies, 3)
        assert plan.start_offset == 3


@pytest.mark.parametrize("cleanup", [frozenset(), DELETE, COMPACT, DELETE | COMPACT], ids=sorted)
def test_what_lies_below_the_start_goes_under_any_policy(cleanup: frozenset[str]) -> None:
    policies = TopicPolicies(cleanup_policy=cleanup, retention_ms=-1)
    plan = plan_by_policies(snapshot(start=25), extents(11, 12, 17), [], policies, NOW)
    assert reasons(plan) == [TrimReason.START_OFFSET] * 2
    assert plan.start_offset == 25


# --- compact, and both ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("horizon", "count"), [(None, 0), (1, 0), (2, 1), (4, 1), (5, 2)])
def test_compact_lets_raw_at_or_below_the_horizon_go(horizon: int | None, count: int) -> None:
    policies = TopicPolicies(cleanup_policy=COMPACT)
    plan = plan_by_policies(
        snapshot(horizon=horizon), extents(3, 3, 3), [cursor(COMPACTION_CURSOR, horizon)], policies, NOW + 10**12
    )
    assert reasons(plan) == [TrimReason.COMPACTED] * count
    assert plan.start_offset == 0, "what survived is in the compacted ledger, which begins where it did"
    forced = plan_by_policies(snapshot(horizon=horizon), extents(3, 3, 3), [], policies, NOW)
    assert len(forced.candidates) == count, "a ledger that straddles the horizon is not compacted"


def test_an_empty_policy_lets_nothing_go() -> None:
    policies = TopicPolicies(retention_ms=0, retention_bytes=0)
    assert plan_by_policies(snapshot(horizon=8), extents(3, 3, 3), [], policies, NOW + 10**12).candidates == ()


def test_both_policies_at_once() -> None:
    """Time moves the start; what is compacted goes besides, and the start stays in front of it."""
    policies = TopicPolicies(cleanup_policy=DELETE | COMPACT, retention_ms=HOUR, retention_bytes=0)
    old = NOW - 2 * HOUR
    ledgers = extents(3, 3, 3, newest=[old, NOW, NOW])
    plan = plan_by_policies(snapshot(horizon=5), ledgers, [cursor(COMPACTION_CURSOR, 5)], policies, NOW)
    assert reasons(plan) == [TrimReason.TIME, TrimReason.COMPACTED]
    assert plan.start_offset == 3
    assert plan.hold is not None
    assert plan.hold.name == COMPACTION_CURSOR
    assert plan.held == (TrimCandidate(ledgers[2], TrimReason.SIZE),)
    forced = plan_by_policies(snapshot(horizon=5), ledgers, [], policies, NOW)
    assert reasons(forced) == [TrimReason.TIME, TrimReason.COMPACTED, TrimReason.SIZE]
    assert forced.start_offset == 9


# --- cursors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("marked", "count"), [(None, 0), (1, 0), (2, 1), (4, 1), (5, 2), (9, 3)])
@pytest.mark.parametrize("name", ["reader", COMPACTION_CURSOR])
def test_a_cursor_holds_what_it_has_not_acknowledged(name: str, marked: int | None, count: int) -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=0)
    ledgers = extents(3, 3, 3, newest=[0, 0, 0])
    cursors = [cursor(name, marked), cursor("ahead", 100)]
    plan = plan_by_policies(snapshot(), ledgers, cursors, policies, NOW)
    assert len(plan.candidates) == count
    assert plan.start_offset == 3 * count
    assert plan.requested_start == 9
    assert len(plan.held) == 3 - count
    if count < 3:
        assert plan.hold is not None
        assert (plan.hold.name, plan.hold.mark_delete_offset) == (name, -1 if marked is None else marked)
    else:
        assert plan.hold is None
    assert len(plan_by_policies(snapshot(), ledgers, [], policies, NOW).candidates) == 3


def test_the_start_moves_as_far_as_the_slowest_cursor() -> None:
    plan = plan_before(snapshot(end=9), extents(3, 3, 3), [cursor("reader", 6)], TopicPolicies(), 9)
    assert (plan.start_offset, plan.requested_start, len(plan.candidates), len(plan.held)) == (7, 9, 2, 1)
    inside = plan_before(snapshot(end=9), extents(3, 3, 3), [cursor("reader", 6)], TopicPolicies(), 8)
    assert (inside.start_offset, inside.held) == (7, ())
    assert inside.hold is not None


def test_a_cursor_below_the_start_holds_nothing_more() -> None:
    policies = TopicPolicies(cleanup_policy=DELETE, retention_ms=0)
    plan = plan_by_policies(snapshot(start=3), extents(3, 3, newest=[0, 0]), [cursor("late", None)], policies, NOW)
    assert reasons(plan) == [TrimReason.START_OFFSET]
