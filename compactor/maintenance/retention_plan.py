"""Trim plan of one topic: the ledgers that retention removes, as pure functions of one snapshot (C1–C3).

    start offset    any policy: ledgers wholly below the topic's start (Kafka's DeleteRecords moves the start)
    time            `delete`: ledgers whose newest message is older than the retention time, whatever their own age
    compacted       `compact`: ledgers at or below the horizon; the topic's start stays, compacted reads are unchanged
    size            `delete`: the oldest ledgers, while the others still reach the size limit

Invariants: a trim removes a prefix of the topic, whole ledgers, oldest first. Without force it removes no message that
a cursor has not acknowledged, and none above the horizon of a compacted topic. The start offset only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

from storage.advice import Advice, AdviceKind
from storage.errors import InvalidInput
from storage.metadata.records import CursorRecord, TopicRecord, TopicSnapshot
from storage.model import LogPosition
from storage.options.policies import TopicPolicies

DELETE = "delete"
COMPACT = "compact"


class TrimReason(StrEnum):
    """Reason of a removal. If several apply, the first of these counts."""

    START_OFFSET = "start offset"
    TIME = "time"
    COMPACTED = "compacted"
    SIZE = "size"


@dataclass(frozen=True)
class RetentionExtent:
    """A ledger or an unsealed segment, as retention needs it. Offsets are inclusive.

    `newest_publish_time`: largest publish time in milliseconds, or the time of the close if that is earlier; None:
    unknown, so the extent does not expire. `logical_bytes` of an open segment is 0. `sealed`: it is a ledger.
    """

    ledger_id: int
    first_offset: int
    last_offset: int
    messages: int
    logical_bytes: int
    newest_publish_time: int | None
    sealed: bool = True


@dataclass(frozen=True)
class TrimCandidate:
    """An extent that a trim removes, or would remove, and the reason."""

    extent: RetentionExtent
    reason: TrimReason


@dataclass(frozen=True)
class TrimPlan:
    """Plan of a trim. `start_offset`: the topic's start after the trim. `candidates`: the extents to remove.

    `hold`: the cursor that prevents the removal of the `held` extents, or a start at `requested_start`; None: no cursor
    does.
    """

    start_offset: int
    candidates: tuple[TrimCandidate, ...]
    requested_start: int
    hold: CursorRecord | None = None
    held: tuple[TrimCandidate, ...] = ()

    def removes_messages(self, topic: TopicRecord) -> bool:
        """Return whether the trim removes an extent, or messages below a new start of the topic."""
        return bool(self.candidates) or self.start_offset > topic.start_offset

    @property
    def needs_sealing(self) -> bool:
        """True if a removed extent must be rolled and sealed first."""
        return any(not candidate.extent.sealed for candidate in self.candidates)


def end_offset(topic: TopicRecord, extents: Sequence[RetentionExtent]) -> int:
    """Return the offset after the last message that is known here: the open segment may be in another log directory."""
    return max([topic.next_offset, *(extent.last_offset + 1 for extent in extents)])


def plan_by_policies(
    snapshot: TopicSnapshot,
    extents: Sequence[RetentionExtent],
    cursors: Sequence[CursorRecord],
    policies: TopicPolicies,
    now: int,
) -> TrimPlan:
    """Return the trim that the topic's cleanup policies require at `now` (milliseconds).

    `extents`: in order. `cursors`: those that protect messages they have not acknowledged; empty: remove regardless.
    """
    start = snapshot.topic.start_offset
    due = _due_candidates(extents, start, policies, snapshot.horizon, now)
    requested = max(start, _start_offset_after(due, start))
    return _plan_held_by_cursor(start, due, requested, _slowest_cursor(cursors))


def plan_before(
    snapshot: TopicSnapshot,
    extents: Sequence[RetentionExtent],
    cursors: Sequence[CursorRecord],
    policies: TopicPolicies,
    start_offset: int,
) -> TrimPlan:
    """Return the trim that makes the topic start at offset `start_offset`. `extents`, `cursors`: as in
    `plan_by_policies`.

    Raises InvalidInput under the policy `compact` alone (Kafka's POLICY_VIOLATION), and for an offset out of range.
    """
    topic = snapshot.topic
    if policies.cleanup_policy == {COMPACT}:
        raise InvalidInput(
            f"{topic.name} has the cleanup policy compact, under which messages are not removed by offset",
            Advice(AdviceKind.TRIM_COMPACTED),
        )
    end = end_offset(topic, extents)
    if not 0 <= start_offset <= end:
        raise InvalidInput(f"{topic.name} cannot begin at offset {start_offset}", f"choose an offset from 0 to {end}")
    requested = max(topic.start_offset, start_offset)
    due = [
        TrimCandidate(extent, TrimReason.START_OFFSET)
        for extent in takewhile(lambda extent: extent.last_offset < requested, extents)
    ]
    return _plan_held_by_cursor(topic.start_offset, due, requested, _slowest_cursor(cursors))


def is_expired(newest_publish_time: int | None, policies: TopicPolicies, now: int) -> bool:
    """Return whether an extent with this newest publish time is older than the retention (worked example 8)."""
    kept = policies.retention_ms_effective
    return kept is not None and newest_publish_time is not None and now - newest_publish_time > kept


def _due_candidates(
    extents: Sequence[RetentionExtent], start: int, policies: TopicPolicies, horizon: LogPosition | None, now: int
) -> list[TrimCandidate]:
    """Return the prefix of extents to remove, with the reason of each, regardless of cursors."""
    delete, compact = DELETE in policies.cleanup_policy, COMPACT in policies.cleanup_policy
    compacted_to = horizon.offset if horizon is not None and compact else -1
    reasons: list[TrimReason] = []
    for extent in extents:
        if extent.last_offset < start:
            reasons.append(TrimReason.START_OFFSET)
        elif delete and is_expired(extent.newest_publish_time, policies, now):
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


def _start_offset_after(candidates: Sequence[TrimCandidate], start: int) -> int:
    """Return the topic's start after these removals. Compacted extents do not move it."""
    moving = (candidate.extent for candidate in candidates if candidate.reason is not TrimReason.COMPACTED)
    return max((extent.last_offset + 1 for extent in moving), default=start)


def _slowest_cursor(cursors: Sequence[CursorRecord]) -> CursorRecord | None:
    """Return the cursor that needs the oldest message."""
    return min(cursors, key=lambda cursor: cursor.mark_delete_offset, default=None)


def _plan_held_by_cursor(
    start: int, due: Sequence[TrimCandidate], requested: int, slowest: CursorRecord | None
) -> TrimPlan:
    """Return the plan that removes the extents of `due` before the slowest cursor, and holds the others.

    `start`: the topic's start, below which no cursor needs messages. `requested`: the start without cursors.
    """
    if slowest is None:
        return TrimPlan(requested, tuple(due), requested)
    limit = max(start, slowest.mark_delete_offset + 1)
    candidates = tuple(takewhile(lambda candidate: candidate.extent.last_offset < limit, due))
    held = tuple(due[len(candidates) :])
    if not held and requested <= limit:
        return TrimPlan(requested, candidates, requested)
    new_start = _start_offset_after(candidates, start)
    by_offset = any(candidate.reason is TrimReason.START_OFFSET for candidate in held) or not held
    new_start = max(start, min(requested, limit) if by_offset else new_start)
    return TrimPlan(new_start, candidates, requested, slowest, held)


def first_offset_after(plan: TrimPlan, snapshot: TopicSnapshot, extents: Sequence[RetentionExtent]) -> int:
    """Return the offset of the first raw message after a trim of the snapshot; of the next message, if none is left."""
    removed = {candidate.extent.ledger_id for candidate in plan.candidates}
    left = (extent.first_offset for extent in snapshot.extents if extent.ledger_id not in removed)
    return max(plan.start_offset, next(left, end_offset(snapshot.topic, extents)))


def without_unsealed_extents(plan: TrimPlan, topic: TopicRecord) -> TrimPlan:
    """Return the part of a plan that removes only sealed extents, and moves the start no further."""
    if plan.needs_sealing or plan.start_offset > topic.next_offset:
        sealed = tuple(takewhile(lambda candidate: candidate.extent.sealed, plan.candidates))
        return replace(plan, start_offset=max(topic.start_offset, _start_offset_after(sealed, 0)), candidates=sealed)
    return plan
