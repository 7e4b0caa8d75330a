"""Retention: the removal of the raw ledgers that retention_plan.py selects (C1–C3).

Unsealed segments count like ledgers, and are rolled and sealed before their removal. For the open segment only time and
start offset count, because its logical size is unknown. A damaged or lost open segment stays and is reported; ledgers
before it are removed regardless. A repetition at the same time changes nothing.

This module only marks ledgers. Garbage collection removes their rows and objects after `file.delete.delay`
(garbage.py), so that readers may finish. The marking transaction checks cursors and horizon again. While the compacted
ledger cannot be read, raw has the only copy of its messages, so nothing is removed unless forced (R8). Errors:
Conflict, InvalidInput, TopicNotFound, DataLoss, the errors of sealing, Unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from compactor.maintenance.retention_plan import (
    DELETE,
    RetentionExtent,
    TrimPlan,
    end_offset,
    first_offset_after,
    plan_before,
    plan_by_policies,
    without_unsealed_extents,
)
from compactor.maintenance.sequence_ids import store_sequence_ids
from storage.environment import Environment
from storage.errors import NO_ERROR, Conflict, DataLoss, ErrorText
from storage.failpoints import Failpoint, failpoint
from storage.ledger.seek import NOWHERE
from storage.log.log_manager import LogManager
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, SegmentRecord, TopicRecord, TopicSnapshot
from storage.model import LedgerRecord, MessageId
from storage.options.policies import TopicPolicies
from storage.options.resolution import PolicyResolution
from storage.positions import StartTime
from storage.reading.compacted_loss import check_compacted_ledger
from storage.reading.snapshot_reader import SnapshotReader
from storage.topic import Topic

_TRIES = 5
"""Number of tries, if cursors or ledgers change between the plan and the transaction."""


@dataclass(frozen=True)
class TrimResult:
    """Result of a trim, or of a dry run unless `trimmed`.

    `topic`: as before the trim. `first_offset`: of the first raw message after it, or of the next message if there is
    none; compacted ones may be before it. `tail_error`: the reason why unsealed messages were left alone; empty: they
    were not. `tail_damaged`: the open segment is damaged or lost.
    """

    topic: TopicRecord
    plan: TrimPlan
    trimmed: bool
    first_offset: int
    tail_error: ErrorText = NO_ERROR
    tail_damaged: bool = False


@dataclass(frozen=True)
class Retention:
    """Trimming of topics, which marks raw ledgers as deleted."""

    environment: Environment

    def trim(
        self, topic: TopicRecord, before: int | MessageId | None = None, *, dry_run: bool = False, force: bool = False
    ) -> TrimResult:
        """Let the topic start at an offset or message, and remove the ledgers below it.

        `before` None: trim by the cleanup policies. `dry_run`: change nothing. `force`: also remove what cursors and
        compaction still need, also while the compacted ledger cannot be read. Raises TopicNotFound, Conflict,
        InvalidInput, DataLoss, Unavailable, and the errors of sealing.
        """
        tail_left, sealed = NO_ERROR, False
        for tries_left in reversed(range(_TRIES)):
            policies = self.environment.metadata.policies.resolve_policies(topic)
            snapshot = self.environment.metadata.topic_snapshot(topic.id)
            now = self.environment.clock.now_ms()
            extents, damage = self._retention_extents(snapshot, policies.policies, now)
            cursors = self._ensure_compaction_cursor_and_list(snapshot.topic, policies, dry_run)
            blocking = [] if force else cursors
            if before is None:
                plan = plan_by_policies(snapshot, extents, blocking, policies.policies, now)
            else:
                offset = (
                    before if isinstance(before, int) else self._first_offset_at_or_after(snapshot, extents, before)
                )
                plan = plan_before(snapshot, extents, blocking, policies.policies, offset)
            if damage is not None:
                tail_left = ErrorText.from_error(damage)
            if not force and plan.removes_messages(snapshot.topic):
                self._check_compacted_ledger(topic)
            if dry_run:
                first = first_offset_after(plan, snapshot, extents)
                return TrimResult(snapshot.topic, plan, False, first, tail_left, damage is not None)
            if not sealed and (plan.needs_sealing or plan.start_offset > snapshot.topic.next_offset):
                # a writer or sealer may hold the tail, or it is damaged
                error = LogManager(self.environment).try_roll_and_seal(topic)
                sealed, tail_left = True, NO_ERROR if error is None else ErrorText.from_error(error)
                continue
            plan = without_unsealed_extents(plan, snapshot.topic)
            try:
                self._mark_trimmed(snapshot.topic, plan, force)
            except Conflict:
                if not tries_left:
                    raise
                continue
            first = first_offset_after(plan, snapshot, extents)
            return TrimResult(snapshot.topic, plan, True, first, tail_left, damage is not None)
        raise AssertionError("the last try returns or raises")

    def _check_compacted_ledger(self, topic: TopicRecord) -> None:
        """Raise DataLoss unless the compacted ledger that the topic has now, if any, is whole (R8)."""
        store = self.environment.store
        Topic(self.environment, topic).read_snapshot(lambda reader: check_compacted_ledger(store, reader.snapshot))

    def _ensure_compaction_cursor_and_list(
        self, topic: TopicRecord, policies: PolicyResolution, dry_run: bool
    ) -> list[CursorRecord]:
        """Return the topic's cursors, with `__compaction` if compaction is enabled.

        If compaction is enabled for the namespace or broker, the cursor may not exist yet; then this creates it (S9).
        """
        cursors = self.environment.metadata.cursors.of_topic(topic.id)
        if not policies.compaction_enabled or any(cursor.name == COMPACTION_CURSOR for cursor in cursors):
            return cursors
        missing = CursorRecord(COMPACTION_CURSOR, None, {})
        return [*cursors, missing if dry_run else self.environment.metadata.cursors.ensure(topic.id, COMPACTION_CURSOR)]

    def _mark_trimmed(self, topic: TopicRecord, plan: TrimPlan, force: bool) -> None:
        """Mark the ledgers of the plan as deleted, and move the topic's start, in at most two transactions.

        After the first the topic is as after a smaller trim.
        """
        removed = [candidate.extent for candidate in plan.candidates]
        if removed or plan.start_offset > topic.start_offset:
            end = max([plan.start_offset, *(extent.last_offset + 1 for extent in removed)])
            store_sequence_ids(self.environment, topic, end)
        below = [extent.ledger_id for extent in removed if extent.last_offset < plan.start_offset]
        compacted = [extent.ledger_id for extent in removed if extent.last_offset >= plan.start_offset]
        if below or plan.start_offset > topic.start_offset:
            self.environment.metadata.trimming.trim(topic.id, plan.start_offset, below, force=force)
            failpoint(Failpoint.TRIM_MARKED)
        if compacted:
            end = max(extent.last_offset + 1 for extent in removed)
            self.environment.metadata.trimming.trim(topic.id, end, compacted, force=force, keep_start=True)
            failpoint(Failpoint.TRIM_MARKED)

    def _retention_extents(
        self, snapshot: TopicSnapshot, policies: TopicPolicies, now: int
    ) -> tuple[list[RetentionExtent], DataLoss | None]:
        """Return the topic's extents in offset order, up to the first one that is empty, remote or unreadable.

        The second value is the error of an unreadable open segment. It is the last segment, and earlier ones may be
        removed.
        """
        extents: dict[int, RetentionExtent] = {}
        damage: DataLoss | None = None
        for record in snapshot.extents:
            try:
                extent = self._retention_extent(snapshot, record, policies, now)
            except DataLoss as error:
                damage = error
            else:
                if extent is not None:
                    extents[record.ledger_id] = extent
        prefix = takewhile(lambda record: record.ledger_id in extents, snapshot.extents)
        return [extents[record.ledger_id] for record in prefix], damage

    def _retention_extent(
        self, snapshot: TopicSnapshot, record: LedgerRecord | SegmentRecord, policies: TopicPolicies, now: int
    ) -> RetentionExtent | None:
        """Return the extent of a ledger or segment; None: a segment is in another log directory, or has no messages.

        Raises DataLoss.
        """
        if isinstance(record, SegmentRecord) and record.log_uid != self.environment.log.known_uid:
            return None
        if record.content is None:
            return self._open_segment_extent(snapshot, record, policies, now)
        return RetentionExtent(
            record.ledger_id,
            record.first_offset,
            record.content.last_offset,
            record.content.messages,
            record.content.logical_bytes,
            record.newest_publish_time,
            sealed=isinstance(record, LedgerRecord),
        )

    def _open_segment_extent(
        self, snapshot: TopicSnapshot, segment: SegmentRecord, policies: TopicPolicies, now: int
    ) -> RetentionExtent | None:
        """Return the extent of an open segment; None: it has no visible messages."""
        alone = replace(
            snapshot, ledgers=(), segments=(segment,), topic=replace(snapshot.topic, start_offset=0), compacted=None
        )
        reader = SnapshotReader(self.environment.store, alone, SegmentTableReader(self.environment.log))
        last = reader.last_position()
        if last is None:
            return None
        messages = last.offset - segment.first_offset + 1
        newest = self._publish_time_if_all_expired(reader, policies, now)
        return RetentionExtent(segment.ledger_id, segment.first_offset, last.offset, messages, 0, newest, sealed=False)

    def _publish_time_if_all_expired(self, reader: SnapshotReader, policies: TopicPolicies, now: int) -> int | None:
        """Return an expired time if all messages of the segment are older than the retention time, else None."""
        kept = policies.retention_ms_effective
        if DELETE not in policies.cleanup_policy or kept is None:
            return None
        young = reader.seek_position(StartTime(now - kept), read_compacted=False)
        return now - kept - 1 if young == NOWHERE else None

    def _first_offset_at_or_after(
        self, snapshot: TopicSnapshot, extents: Sequence[RetentionExtent], message_id: MessageId
    ) -> int:
        """Return the offset of the first message at or after an id; if raw is trimmed there, of the compacted ones."""
        trimmed = not extents or message_id.ledger_id < extents[0].ledger_id
        if trimmed and snapshot.compacted is None:
            return snapshot.topic.start_offset
        topic = Topic(self.environment, snapshot.topic)
        for batch in topic.read(message_id, read_compacted=trimmed, max_messages=1):
            return int(batch.column("offset")[0].as_py())
        return end_offset(snapshot.topic, extents)
