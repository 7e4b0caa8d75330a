"""What retention lets go of one topic, by pure functions over one snapshot (C1–C3).

    start offset    ledgers that are wholly below the topic's start, under any policy (Kafka's DeleteRecords moves it)
    time            `delete`: ledgers whose newest message is older than the retention, whatever their own age
    compacted       `compact`: ledgers at or below the horizon; the topic's start stays, compacted reads are unchanged
    size            `delete`: the oldest ledgers, while the rest still holds the limit

Invariants: what goes is a prefix of the topic, whole ledgers, the oldest first; nothing that a cursor still has to
read, nor what is above the horizon of a topic that is compacted, unless forced; the start offset only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

from storage.errors import InvalidInput
from storage.metadata.records import CursorRecord, TopicRecord, TopicSnapshot
from storage.model import LedgerRecord, LogPosition
from storage.options.policies import TopicPolicies

DELETE = "delete"
COMPACT = "compact"


class TrimReason(StrEnum):
    """Why a ledger goes; the first that applies."""

    START_OFFSET = "start offset"
    TIME = "time"
    COMPACTED = "compacted"
    SIZE = "size"


@dataclass(frozen=True)
class RetentionLedger:
    """A ledger, or a segment that is not sealed: what retention must know of it. Offsets are inclusive.

    `newest`: the largest publish time, or when it was closed, if that was earlier; None: not known, and so not old.
    `logical_bytes` of an open segment is 0.
    """

    ledger_id: int
    first_offset: int
    last_offset: int
    messages: int
    logical_bytes: int
    newest: int | None
    sealed: bool = True


@dataclass(frozen=True)
class TrimCandidate:
    """An extent that goes, or would, and why."""

    extent: RetentionLedger
    reason: TrimReason


@dataclass(frozen=True)
class RetentionHold:
    """The cursor that keeps something from going. `mark_delete` None: nothing is acknowledged; `needs`: the first
    offset that it has not acknowledged."""

    cursor: str
    mark_delete: LogPosition | None
    needs: int


@dataclass(frozen=True)
class TrimPlan:
    """What is to be done at one moment. `start_offset`: the topic's new one, or the one it has.

    `hold`: what keeps more from going, if anything does: `held` extents, and the topic's start up to `wanted_start`.
    """

    start_offset: int
    going: tuple[TrimCandidate, ...]
    wanted_start: int
    hold: RetentionHold | None = None
    held: tuple[TrimCandidate, ...] = ()

    @property
    def unsealed(self) -> bool:
        """Whether something goes that must be rolled and sealed first."""
        return any(not candidate.extent.sealed for candidate in self.going)


def extents_of(snapshot: TopicSnapshot, tail: Sequence[RetentionLedger] = ()) -> tuple[RetentionLedger, ...]:
    """The topic's extents in order of offsets, up to the first segment that is not in `tail`."""
    known = {extent.ledger_id: extent for extent in (*map(_sealed, snapshot.ledgers), *tail)}
    in_reach = takewhile(lambda record: record.ledger_id in known, snapshot.extents)
    return tuple(known[record.ledger_id] for record in in_reach)


def end_of(topic: TopicRecord, extents: Sequence[RetentionLedger]) -> int:
    """Return the offset after the last message that is known here: the open segment may be in another log directory."""
    return max([topic.next_offset, *(extent.last_offset + 1 for extent in extents)])


def plan_policies(
    snapshot: TopicSnapshot,
    extents: Sequence[RetentionLedger],
    cursors: Sequence[CursorRecord],
    policies: TopicPolicies,
    now: int,
    *,
    force: bool = False,
) -> TrimPlan:
    """What the topic's cleanup policies ask for now."""
    start = snapshot.topic.start_offset
    due = _due(extents, start, policies, snapshot.horizon, now)
    wanted = _start_behind(due, start)
    return _held_back(start, due, max(start, wanted), None if force else _slowest(cursors))


def plan_before(
    snapshot: TopicSnapshot,
    extents: Sequence[RetentionLedger],
    cursors: Sequence[CursorRecord],
    policies: TopicPolicies,
    before: int,
    *,
    force: bool = False,
) -> TrimPlan:
    """What has to be done for the topic to begin at offset `before`.

    Raises InvalidInput under the policy `compact` alone (Kafka's POLICY_VIOLATION), and for an offset out of range.
    """
    topic = snapshot.topic
    if policies.cleanup_policy == {COMPACT}:
        raise InvalidInput(
            f"{topic.name} has the cleanup policy compact, under which messages do not go by their offset",
            "set cleanup.policy to compact,delete, or leave out --before to trim what is compacted",
        )
    end = end_of(topic, extents)
    if not 0 <= before <= end:
        raise InvalidInput(f"{topic.name} cannot begin at offset {before}", f"choose an offset from 0 to {end}")
    wanted = max(topic.start_offset, before)
    due = [
        TrimCandidate(extent, TrimReason.START_OFFSET)
        for extent in takewhile(lambda extent: extent.last_offset < wanted, extents)
    ]
    return _held_back(topic.start_offset, due, wanted, None if force else _slowest(cursors))


def is_expired(newest: int | None, policies: TopicPolicies, now: int) -> bool:
    """Whether what has this newest publish time is older than the topic's retention (worked example 8)."""
    kept = policies.retention_ms_effective
    return kept is not None and newest is not None and now - newest > kept


def _due(
    extents: Sequence[RetentionLedger], start: int, policies: TopicPolicies, horizon: LogPosition | None, now: int
) -> list[TrimCandidate]:
    """The prefix of extents that should go, with the reason of each."""
    delete, compact = DELETE in policies.cleanup_policy, COMPACT in policies.cleanup_policy
    compacted_to = horizon.offset if horizon is not None and compact else -1
    reasons: list[TrimReason] = []
    for extent in extents:
        if extent.last_offset < start:
            reasons.append(TrimReason.START_OFFSET)
        elif delete and is_expired(extent.newest, policies, now):
            reasons.append(TrimReason.TIME)
        else:
            break
    for extent in extents[len(reasons) :]:
        if extent.last_offset > compacted_to:
            break
        reasons.append(TrimReason.COMPACTED)
    remaining = sum(extent.logical_bytes for extent in extents[len(reasons) :])
    for extent in extents[len(reasons) :]:
        remaining -= extent.logical_bytes
        if not delete or policies.retention_bytes < 0 or remaining < policies.retention_bytes:
            break
        reasons.append(TrimReason.SIZE)
    return [TrimCandidate(extent, reason) for extent, reason in zip(extents, reasons, strict=False)]


def _start_behind(going: Sequence[TrimCandidate], start: int) -> int:
    """Where the topic begins when these are gone; `start` if only compacted ones go, which leave it in place."""
    moving = (candidate.extent for candidate in going if candidate.reason is not TrimReason.COMPACTED)
    return max((extent.last_offset + 1 for extent in moving), default=start)


def _slowest(cursors: Sequence[CursorRecord]) -> RetentionHold | None:
    """The cursor that needs the oldest message."""
    holds = [RetentionHold(cursor.name, cursor.mark_delete, cursor.mark + 1) for cursor in cursors]
    return min(holds, key=lambda hold: hold.needs, default=None)


def _held_back(start: int, due: Sequence[TrimCandidate], wanted: int, slowest: RetentionHold | None) -> TrimPlan:
    """What of `due` may go. A cursor below the topic's start needs nothing below that start any more."""
    if slowest is None:
        return TrimPlan(wanted, tuple(due), wanted)
    limit = max(start, slowest.needs)
    going = tuple(takewhile(lambda candidate: candidate.extent.last_offset < limit, due))
    held = tuple(due[len(going) :])
    if not held and wanted <= limit:
        return TrimPlan(wanted, going, wanted)
    moved = _start_behind(going, start)
    by_offset = any(candidate.reason is TrimReason.START_OFFSET for candidate in held) or not held
    return TrimPlan(max(start, min(wanted, limit) if by_offset else moved), going, wanted, slowest, held)


def _sealed(ledger: LedgerRecord) -> RetentionLedger:
    return RetentionLedger(
        ledger.ledger_id,
        ledger.first_offset,
        ledger.last_offset,
        ledger.messages,
        ledger.logical_bytes,
        ledger.newest,
    )


def sealed_part(plan: TrimPlan, topic: TopicRecord) -> TrimPlan:
    """The part of a plan that can be done without what is not sealed."""
    if plan.unsealed or plan.start_offset > topic.next_offset:
        going = tuple(takewhile(lambda candidate: candidate.extent.sealed, plan.going))
        moved = _start_behind(going, 0)
        return replace(plan, start_offset=max(topic.start_offset, moved), going=going)
    return plan
