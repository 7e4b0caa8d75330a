"""Retention: which raw ledgers of a topic go, and letting them go (C1–C3).

    start offset    ledgers that are wholly below the topic's start, under any policy (Kafka's DeleteRecords moves it)
    time            `delete`: ledgers whose newest message is older than the retention, whatever their own age
    compacted       `compact`: ledgers at or below the horizon; the topic's start stays, compacted reads are unchanged
    size            `delete`: the oldest ledgers, while what is left still holds the limit

Invariants: what goes is a prefix of the topic, whole ledgers, the oldest first; nothing that a cursor still has to
read, nor what is above the horizon of a topic that is compacted, unless forced; the start offset only grows; doing
it again at the same time changes nothing more. What is not sealed yet counts as ledgers do, and is rolled and sealed
before it goes; of the open segment only time and start offset are looked at, because its logical size is not known. One
that is damaged or lost is left alone and told of; what is before it goes all the same.

Ledgers are only marked here. Their rows and objects go after `file.delete.delay` (garbage.py), so their readers
may finish. What goes is decided by pure functions over one snapshot; the transaction that marks looks at cursors and
horizon once more. May go wrong: Conflict, InvalidInput, TopicNotFound, whatever sealing raises, Unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

from storage.clock import Clock
from storage.errors import Conflict, DataLoss, InvalidInput, recorded
from storage.failpoints import Failpoint, failpoint
from storage.ledger.seek import NOWHERE, AtTime
from storage.log.directory import LogDirectory
from storage.log.log_manager import LogManager
from storage.log.segment_tables import UnsealedSegments
from storage.metadata.records import (
    COMPACTION_CURSOR,
    CursorRecord,
    SegmentRecord,
    TopicRecord,
    TopicSnapshot,
)
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord, MessageId, Position
from storage.objects.interface import ObjectStore
from storage.options.policies import TopicPolicies
from storage.options.resolution import Resolved
from storage.owner import owner_name
from storage.reading.snapshot_reader import SnapshotReader
from storage.topic import Topic

DELETE = "delete"
COMPACT = "compact"
_TRIES = 5
"""How often to look again when cursors or ledgers changed between the look and the transaction."""


class Why(StrEnum):
    """Why a ledger goes; the first that applies."""

    START_OFFSET = "start offset"
    TIME = "time"
    COMPACTED = "compacted"
    SIZE = "size"


@dataclass(frozen=True)
class Piece:
    """A ledger, or a segment that is none yet: what of it retention looks at. Offsets are inclusive.

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
    """A piece that goes, or would, and why."""

    piece: Piece
    why: Why


@dataclass(frozen=True)
class RetentionHold:
    """The cursor that keeps something from going. `mark_delete` None: nothing is acknowledged; `needs`: the first
    offset that it has not acknowledged."""

    cursor: str
    mark_delete: Position | None
    needs: int


@dataclass(frozen=True)
class TrimPlan:
    """What is to be done at one moment. `start_offset`: the topic's new one, or the one it has.

    `hold`: what keeps more from going, if anything does: `held` pieces, and the topic's start up to `wanted_start`.
    """

    start_offset: int
    going: tuple[TrimCandidate, ...]
    wanted_start: int
    hold: RetentionHold | None = None
    held: tuple[TrimCandidate, ...] = ()

    @property
    def unsealed(self) -> bool:
        """Whether something goes that must be rolled and sealed first."""
        return any(not gone.piece.sealed for gone in self.going)


@dataclass(frozen=True)
class Trimmed:
    """What was done to a topic; or would be, unless `trimmed`. `tail_left`: why what is not sealed was left alone
    (`recorded`); `tail_damaged`: because the open segment is damaged or lost.
    """

    topic: TopicRecord
    plan: TrimPlan
    trimmed: bool
    tail_left: str = ""
    tail_damaged: bool = False


@dataclass(frozen=True)
class _Tail:
    """The segments that can be looked at; `damage`: why the open one cannot."""

    pieces: tuple[Piece, ...]
    damage: DataLoss | None = None


def pieces_of(snapshot: TopicSnapshot, tail: Sequence[Piece] = ()) -> tuple[Piece, ...]:
    """The topic's pieces in order of offsets, up to the first segment that is not in `tail`."""
    known = {piece.ledger_id: piece for piece in (*map(_sealed, snapshot.ledgers), *tail)}
    everything: list[LedgerRecord | SegmentRecord] = [*snapshot.ledgers, *snapshot.segments]
    everything.sort(key=lambda one: one.first_offset)
    return tuple(known[one.ledger_id] for one in takewhile(lambda one: one.ledger_id in known, everything))


def plan_policies(
    snapshot: TopicSnapshot,
    pieces: Sequence[Piece],
    cursors: Sequence[CursorRecord],
    policies: TopicPolicies,
    now: int,
    *,
    force: bool = False,
) -> TrimPlan:
    """What the topic's cleanup policies ask for now."""
    start = snapshot.topic.start_offset
    due = _due(pieces, start, policies, snapshot.horizon, now)
    wanted = max((gone.piece.last_offset + 1 for gone in due if gone.why is not Why.COMPACTED), default=start)
    return _held_back(start, due, max(start, wanted), None if force else _slowest(cursors))


def plan_before(
    snapshot: TopicSnapshot,
    pieces: Sequence[Piece],
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
    end = max([topic.next_offset, *(piece.last_offset + 1 for piece in pieces)])
    if not 0 <= before <= end:
        raise InvalidInput(f"{topic.name} cannot begin at offset {before}", f"choose an offset from 0 to {end}")
    wanted = max(topic.start_offset, before)
    due = [TrimCandidate(piece, Why.START_OFFSET) for piece in takewhile(lambda one: one.last_offset < wanted, pieces)]
    return _held_back(topic.start_offset, due, wanted, None if force else _slowest(cursors))


def is_expired(newest: int | None, policies: TopicPolicies, now: int) -> bool:
    """Whether what has this newest publish time is older than the topic's retention (worked example 8)."""
    kept = policies.retention_ms_effective
    return kept is not None and newest is not None and now - newest > kept


def _due(
    pieces: Sequence[Piece], start: int, policies: TopicPolicies, horizon: Position | None, now: int
) -> list[TrimCandidate]:
    """The prefix of pieces that should go, with the reason of each."""
    delete, compact = DELETE in policies.cleanup_policy, COMPACT in policies.cleanup_policy
    compacted_to = horizon.offset if horizon is not None and compact else -1
    why: list[Why] = []
    for piece in pieces:
        if piece.last_offset < start:
            why.append(Why.START_OFFSET)
        elif delete and is_expired(piece.newest, policies, now):
            why.append(Why.TIME)
        else:
            break
    for piece in pieces[len(why) :]:
        if piece.last_offset > compacted_to:
            break
        why.append(Why.COMPACTED)
    left = sum(piece.logical_bytes for piece in pieces[len(why) :])
    for piece in pieces[len(why) :]:
        left -= piece.logical_bytes
        if not delete or policies.retention_bytes < 0 or left < policies.retention_bytes:
            break
        why.append(Why.SIZE)
    return [TrimCandidate(piece, reason) for piece, reason in zip(pieces, why, strict=False)]


def _slowest(cursors: Sequence[CursorRecord]) -> RetentionHold | None:
    """The cursor that needs the oldest message."""
    holds = [
        RetentionHold(cursor.name, cursor.mark_delete, cursor.mark_delete.offset + 1 if cursor.mark_delete else 0)
        for cursor in cursors
    ]
    return min(holds, key=lambda hold: hold.needs, default=None)


def _held_back(start: int, due: Sequence[TrimCandidate], wanted: int, slowest: RetentionHold | None) -> TrimPlan:
    """What of `due` may go. A cursor below the topic's start needs nothing below that start any more."""
    if slowest is None:
        return TrimPlan(wanted, tuple(due), wanted)
    limit = max(start, slowest.needs)
    going = tuple(takewhile(lambda gone: gone.piece.last_offset < limit, due))
    held = tuple(due[len(going) :])
    if not held and wanted <= limit:
        return TrimPlan(wanted, going, wanted)
    moved = max((gone.piece.last_offset + 1 for gone in going if gone.why is not Why.COMPACTED), default=start)
    by_offset = any(gone.why is Why.START_OFFSET for gone in held) or not held
    return TrimPlan(max(start, min(wanted, limit) if by_offset else moved), going, wanted, slowest, held)


def _sealed(ledger: LedgerRecord) -> Piece:
    return Piece(
        ledger.ledger_id,
        ledger.first_offset,
        ledger.last_offset,
        ledger.messages,
        ledger.logical_bytes,
        ledger.newest,
    )


@dataclass(frozen=True)
class Retention:
    """Trims topics. `log`: where the unsealed segments are; None: what is not sealed yet stays."""

    metadata: MetadataStore
    store: ObjectStore
    clock: Clock
    log: LogDirectory | None = None

    def apply(self, topic: TopicRecord, *, dry_run: bool = False, force: bool = False) -> Trimmed:
        """Let go what the topic's cleanup policies say. Raises TopicNotFound, Conflict, what sealing raises."""

        def plan(snapshot: TopicSnapshot, policies: Resolved, tail: _Tail, now: int) -> TrimPlan:
            pieces, cursors = pieces_of(snapshot, tail.pieces), self._cursors(snapshot.topic, policies, dry_run)
            return plan_policies(snapshot, pieces, cursors, policies.policies, now, force=force)

        return self._carry_out(topic, plan, dry_run=dry_run, force=force)

    def trim(
        self, topic: TopicRecord, before: int | MessageId, *, dry_run: bool = False, force: bool = False
    ) -> Trimmed:
        """Let the topic begin at an offset or message, so that ledgers wholly below it go. Raises InvalidInput, too."""

        def plan(snapshot: TopicSnapshot, policies: Resolved, tail: _Tail, _: int) -> TrimPlan:
            pieces, cursors = pieces_of(snapshot, tail.pieces), self._cursors(snapshot.topic, policies, dry_run)
            offset = before if isinstance(before, int) else self._offset_of(snapshot, pieces, before)
            return plan_before(snapshot, pieces, cursors, policies.policies, offset, force=force)

        return self._carry_out(topic, plan, dry_run=dry_run, force=force)

    def _carry_out(
        self,
        topic: TopicRecord,
        planned: Callable[[TopicSnapshot, Resolved, _Tail, int], TrimPlan],
        *,
        dry_run: bool,
        force: bool,
    ) -> Trimmed:
        tail_left, settled = "", False
        for left in reversed(range(_TRIES)):
            policies = self.metadata.policies.resolved(topic)
            snapshot = self.metadata.snapshot(topic.id)
            now = self.clock.now_ms()
            tail = self._tail(snapshot, policies.policies, now)
            plan = planned(snapshot, policies, tail, now)
            if tail.damage is not None:
                tail_left = recorded(tail.damage)
            if dry_run:
                return Trimmed(snapshot.topic, plan, False, tail_left, tail.damage is not None)
            if not settled and (plan.unsealed or plan.start_offset > snapshot.topic.next_offset):
                settled, tail_left = True, self._settle(topic)
                continue
            plan = _of_sealed(plan, snapshot.topic)
            try:
                self._mark(snapshot.topic, plan, force)
            except Conflict:
                if not left:
                    raise
                continue
            return Trimmed(snapshot.topic, plan, True, tail_left, tail.damage is not None)
        raise AssertionError("the last try returns or raises")

    def _cursors(self, topic: TopicRecord, policies: Resolved, dry_run: bool) -> list[CursorRecord]:
        """The topic's cursors. One for which compaction is enabled has `__compaction`, which is made here if it is
        enabled around the topic (S9)."""
        cursors = self.metadata.cursors.of_topic(topic.id)
        if not policies.compaction_enabled or any(cursor.name == COMPACTION_CURSOR for cursor in cursors):
            return cursors
        missing = CursorRecord(COMPACTION_CURSOR, None, {})
        return [*cursors, missing if dry_run else self.metadata.cursors.ensure(topic.id, COMPACTION_CURSOR)]

    def _mark(self, topic: TopicRecord, plan: TrimPlan, force: bool) -> None:
        """Two transactions at most; between them the topic is as it would be had only the first been asked for."""
        below = [gone.piece.ledger_id for gone in plan.going if gone.piece.last_offset < plan.start_offset]
        compacted = [gone.piece.ledger_id for gone in plan.going if gone.piece.last_offset >= plan.start_offset]
        if below or plan.start_offset > topic.start_offset:
            self.metadata.trimming.trim(topic.id, plan.start_offset, below, force=force)
            failpoint(Failpoint.TRIM_MARKED)
        if compacted:
            end = max(gone.piece.last_offset + 1 for gone in plan.going)
            self.metadata.trimming.trim(topic.id, end, compacted, force=force, keep_start=True)
            failpoint(Failpoint.TRIM_MARKED)

    def _settle(self, topic: TopicRecord) -> str:
        """Roll and seal the tail; why it could not be done: a writer or sealer has it, or it is damaged."""
        assert self.log is not None, "without a log directory no unsealed piece is looked at"
        keeper = LogManager(self.metadata, self.store, self.clock, self.log, owner_name())
        left = keeper.roll_and_seal_what_can_be(topic)
        return "" if left is None else recorded(left)

    def _tail(self, snapshot: TopicSnapshot, policies: TopicPolicies, now: int) -> _Tail:
        """The segments in our log directory, as far as they hold something that can be seen."""
        here = self.log.known_uid if self.log is not None else None
        pieces: list[Piece] = []
        damage: DataLoss | None = None
        for segment in snapshot.segments:
            if segment.log_uid != here:
                continue
            if (content := segment.content) is not None:
                pieces.append(
                    Piece(
                        segment.ledger_id,
                        segment.first_offset,
                        content.last_offset,
                        content.messages,
                        content.logical_bytes,
                        segment.newest,
                        sealed=False,
                    )
                )
                continue
            try:
                pieces += self._open(snapshot, segment, policies, now)
            except DataLoss as error:  # nothing is behind it, and what is before it need not stay for it
                damage = error
        return _Tail(tuple(pieces), damage)

    def _open(
        self, snapshot: TopicSnapshot, segment: SegmentRecord, policies: TopicPolicies, now: int
    ) -> tuple[Piece, ...]:
        """The open segment, if it holds something that can be seen. Raises DataLoss."""
        reader = self._reader_of(snapshot, segment)
        last = reader.last_position()
        if last is None:
            return ()
        messages = last.offset - segment.first_offset + 1
        newest = self._newest_if_expired(reader, policies, now)
        return (Piece(segment.ledger_id, segment.first_offset, last.offset, messages, 0, newest, sealed=False),)

    def _reader_of(self, snapshot: TopicSnapshot, segment: SegmentRecord) -> SnapshotReader:
        """A reader of one segment and nothing else."""
        assert self.log is not None
        alone = replace(
            snapshot, ledgers=(), segments=(segment,), topic=replace(snapshot.topic, start_offset=0), compacted=None
        )
        return SnapshotReader(self.store, alone, UnsealedSegments(self.log))

    def _newest_if_expired(self, reader: SnapshotReader, policies: TopicPolicies, now: int) -> int | None:
        """A time that is older than the retention if all messages of the segment are, else None."""
        kept = policies.retention_ms_effective
        if DELETE not in policies.cleanup_policy or kept is None:
            return None
        young = reader.bound(AtTime(now - kept), read_compacted=False)
        return now - kept - 1 if young == NOWHERE else None

    def _offset_of(self, snapshot: TopicSnapshot, pieces: Sequence[Piece], message_id: MessageId) -> int:
        """The offset of the first message at or behind an id; if raw is gone there, of the compacted ones."""
        gone = not pieces or message_id.ledger_id < pieces[0].ledger_id
        if gone and snapshot.compacted is None:
            return snapshot.topic.start_offset
        topic = Topic(self.metadata, self.store, self.clock, snapshot.topic, log=self.log)
        for batch in topic.read(message_id, read_compacted=gone, max_messages=1):
            return int(batch.column("offset")[0].as_py())
        return max([snapshot.topic.next_offset, *(piece.last_offset + 1 for piece in pieces)])


def _of_sealed(plan: TrimPlan, topic: TopicRecord) -> TrimPlan:
    """The part of a plan that can be done without what is not sealed."""
    if plan.unsealed or plan.start_offset > topic.next_offset:
        going = tuple(takewhile(lambda gone: gone.piece.sealed, plan.going))
        moved = max((one.piece.last_offset + 1 for one in going if one.why is not Why.COMPACTED), default=0)
        return replace(plan, start_offset=max(topic.start_offset, moved), going=going)
    return plan
