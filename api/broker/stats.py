"""Stats of topics: the tree of `stats_tree.py`, which REST renders for one topic, for partitions and for all topics.

`stats_snapshot` reads the counts of a topic from SQL, and from the active segment if it is local: a few statements and
one small file, whatever the topic holds. `topic_stats` makes the tree of them, with the connected clients of this
process. A broker counts entries; these are messages. Bytes are logical bytes (docs/scheduling.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.serving.consumer import SubscriptionType
from api.broker.stats_tree import CompactionStats, SubscriptionStats, TopicStats
from compactor.maintenance.backlog_limits import bytes_from, extent_bytes
from storage.environment import Environment
from storage.errors import TopicNotFound
from storage.log.open_segments import OpenSegmentEnd, last_publish_time, open_segment_end
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, RunRecord, SegmentRecord
from storage.metadata.stats import CursorStatsRecord, TopicStatsRecord
from storage.model import TopicName

INDIVIDUAL = frozenset(kind.pulsar_name for kind in SubscriptionType if kind.is_individual)
"""The types of subscriptions that acknowledge messages individually."""
ONE_ACTIVE = frozenset(kind.pulsar_name for kind in SubscriptionType) - INDIVIDUAL
"""The types of which one consumer is active."""
NOT_COUNTED = -1
"""A subscription's backlog in bytes, where the caller did not request it."""
_NO_CLIENTS = LiveSubscriptionState()


class EntryPosition(NamedTuple):
    """The position of an entry in Pulsar's managed ledger: `ledger:entry` as text."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


class LedgerCounts(NamedTuple):
    """The counts of a ledger, or of a segment that becomes a ledger. `size`: logical bytes; `created_at`: milliseconds
    since the Unix epoch; `open`: entries are appended to it."""

    ledger_id: int
    entries: int
    size: int
    created_at: int
    open: bool


@dataclass(frozen=True)
class StatsSnapshot:
    """The counts of a topic at one moment, and what they imply for its cursors. `active`: the end of the active
    segment; None: there is none, or it is not local. `active_published_at`: publish time in milliseconds of its last
    entry; 0: it was not requested."""

    stats: TopicStatsRecord
    active: OpenSegmentEnd | None
    active_published_at: int = 0

    @property
    def end_offset(self) -> int:
        """Return the offset of the next message, as far as this process can read."""
        known = self.stats.topic.next_offset
        return max(known, self.active.next_offset) if self.active else known

    @property
    def first_offset(self) -> int:
        """Return the first offset that can be read raw."""
        sums = self.stats.sums
        starts = [segment.first_offset for segment in self.stats.segments]
        starts += [sums.first_offset] if sums.first_offset is not None else []
        return max(min(starts, default=self.end_offset), self.stats.topic.start_offset)

    @property
    def entries(self) -> int:
        return self.stats.sums.entries + sum(
            self._segment_entries_and_bytes(segment)[0] for segment in self.stats.segments
        )

    @property
    def size(self) -> int:
        return self.stats.sums.logical_bytes + sum(
            self._segment_entries_and_bytes(segment)[1] for segment in self.stats.segments
        )

    @property
    def last_publish_time(self) -> int:
        rolled = [segment.content.max_publish_time for segment in self.stats.segments if segment.content]
        return max([self.stats.sums.max_publish_time, self.active_published_at, *rolled])

    def backlog(self, cursor: CursorStatsRecord) -> int:
        """Return the number of messages in a cursor's backlog: after its mark-delete position, without individually
        acknowledged ones as far as the record counts them."""
        return max(
            self.end_offset - max(cursor.record.mark_delete_offset + 1, self.first_offset) - cursor.acknowledged, 0
        )

    def messages_since_first_unacknowledged(self, cursor: CursorStatsRecord) -> int:
        """Return the number of messages from the first one after the mark-delete position to the end, plus 1, as a
        broker counts. Individually acknowledged messages count, too."""
        return self.end_offset - max(cursor.record.mark_delete_offset + 1, self.first_offset) + 1

    def backlog_bytes(self, cursor: CursorStatsRecord) -> int:
        """Return the approximate logical bytes of the messages after a cursor's mark-delete position."""
        sizes = (extent_bytes(segment, self.active) for segment in self.stats.segments)
        return cursor.sealed_bytes + bytes_from([size for size in sizes if size], cursor.record.mark_delete_offset + 1)

    @property
    def extents(self) -> list[LedgerCounts]:
        """Return the counts of all ledgers and segments, in order. A snapshot without ledgers has only segments."""
        sealed = [
            LedgerCounts(line.ledger_id, line.entries, line.logical_bytes, line.created_at, False)
            for line in self.stats.ledgers
        ]
        unsealed = [
            LedgerCounts(
                segment.ledger_id,
                *self._segment_entries_and_bytes(segment),
                segment.created_at,
                segment.content is None,
            )
            for segment in self.stats.segments
        ]
        return sorted((*sealed, *unsealed), key=lambda item: item.ledger_id)

    @property
    def last_entry(self) -> EntryPosition:
        """Return the position of the last entry; if the topic is empty, the position before the first one.

        The snapshot must have ledgers.
        """
        extents = self.extents
        filled = [extent for extent in extents if extent.entries]
        if filled:
            return EntryPosition(filled[-1].ledger_id, filled[-1].entries - 1)
        return EntryPosition(extents[0].ledger_id if extents else -1, -1)

    def mark_delete_entry(self, cursor: CursorStatsRecord) -> EntryPosition:
        """Return the mark-delete position of a cursor as the position of an entry. The snapshot must have ledgers."""
        mark = cursor.record.mark_delete
        if mark is not None:
            return EntryPosition(mark.message_id.ledger_id, mark.message_id.entry_id)
        extents = self.extents
        return EntryPosition(extents[0].ledger_id if extents else -1, -1)

    def _segment_entries_and_bytes(self, segment: SegmentRecord) -> tuple[int, int]:
        """Return the number of entries and of logical bytes of a segment; 0 for one that is not local."""
        if segment.content is not None:
            return segment.content.entries, segment.content.logical_bytes
        return (self.active.entries, self.active.logical_bytes) if self.active else (0, 0)


def stats_snapshot(
    environment: Environment, name: TopicName, *, with_ledgers: bool = False, with_last_publish_time: bool = False
) -> StatsSnapshot | None:
    """Read the present counts of a topic from the database and the active segment; None: the topic does not exist.

    `with_ledgers`: with counts of each ledger, and properties. `with_last_publish_time`: that of the newest entry.
    """
    try:
        stats = environment.metadata.stats.of_topic(name, with_ledgers=with_ledgers)
    except TopicNotFound:
        return None
    unrolled = next((segment for segment in stats.segments if segment.content is None), None)
    if unrolled is None:
        return StatsSnapshot(stats, None)
    active = open_segment_end(environment.log, stats.topic, unrolled)
    at = (
        last_publish_time(environment.log, stats.topic, unrolled, active)
        if with_last_publish_time and active is not None
        else 0
    )
    return StatsSnapshot(stats, active, at)


def topic_stats(
    snapshot: StatsSnapshot,
    live: LiveTopicState,
    *,
    with_backlog_bytes: bool = True,
    with_oldest_publish_times: bool = False,
) -> TopicStats:
    """Compute the stats of one topic from its counts and from the clients that are connected to this process.

    `with_backlog_bytes`: with each subscription's backlog in bytes, otherwise `NOT_COUNTED`.
    `with_oldest_publish_times`: with the oldest publish time of each backlog, otherwise 0.
    """
    cursors = {cursor.record.name: cursor for cursor in snapshot.stats.cursors}
    oldest = (
        [cursor.oldest_publish_time for cursor in cursors.values() if snapshot.backlog(cursor)]
        if with_oldest_publish_times
        else []
    )
    return replace(
        live.stats,
        bytes_in_counter=snapshot.size,
        msg_in_counter=snapshot.end_offset,
        storage_size=snapshot.size,
        backlog_size=max((snapshot.backlog_bytes(cursor) for cursor in cursors.values()), default=0),
        earliest_msg_publish_time_in_backlogs=min((time for time in oldest if time), default=0),
        subscriptions={
            name: _subscription_stats(
                snapshot,
                cursors.get(name),
                live.subscriptions.get(name, _NO_CLIENTS),
                with_backlog_bytes,
                with_oldest_publish_times,
            )
            for name in {**cursors, **live.subscriptions}
        },
        non_contiguous_deleted_messages_ranges=sum(cursor.ranges for cursor in cursors.values()),
        compaction=_compaction_stats(snapshot.stats.succeeded, snapshot.stats.failed),
        topic_creation_time_stamp=snapshot.stats.topic.created_at,
        last_publish_time_stamp=snapshot.last_publish_time,
    )


def _subscription_stats(
    snapshot: StatsSnapshot,
    cursor: CursorStatsRecord | None,
    live: LiveSubscriptionState,
    with_backlog_bytes: bool,
    with_oldest_publish_times: bool,
) -> SubscriptionStats:
    """Return the stats of a subscription. `cursor` None: it is not durable, and only has connected consumers."""
    stats, backlog = live.stats, live.backlog(snapshot.end_offset, snapshot.first_offset)
    if cursor is not None:
        stored_backlog = snapshot.backlog(cursor)
        backlog = stored_backlog if backlog is None else backlog
        properties = cursor.record.properties
        stats = replace(
            stats,
            backlog_size=snapshot.backlog_bytes(cursor) if with_backlog_bytes else NOT_COUNTED,
            earliest_msg_publish_time_in_backlog=cursor.oldest_publish_time
            if with_oldest_publish_times and stored_backlog
            else 0,
            non_contiguous_deleted_messages_ranges=cursor.ranges,
            subscription_properties={k: v for k, v in properties.items() if k != COMPACTED_LEDGER_PROPERTY},
        )
    active = stats.active_consumer_name
    if active is None and stats.type in ONE_ACTIVE and len(stats.consumers) == 1:
        active = stats.consumers[0].consumer_name
    return replace(
        stats,
        msg_backlog=backlog or 0,
        msg_backlog_no_delayed=max((backlog or 0) - stats.msg_delayed, 0),
        active_consumer_name=active,
        last_consumed_flow_timestamp=max((item.last_consumed_flow_timestamp for item in stats.consumers), default=0),
    )


def _compaction_stats(succeeded: RunRecord | None, failed: RunRecord | None) -> CompactionStats:
    """Return the compaction stats of a topic from its last successful run and its last failed run."""
    newest = max((run for run in (succeeded, failed) if run is not None), key=lambda run: run.run_id, default=None)
    return CompactionStats(
        _removed_messages(succeeded) if succeeded is not None else 0,
        (succeeded.finished_at or 0) if succeeded is not None else 0,
        (failed.finished_at or 0) if failed is not None else 0,
        (newest.finished_at or 0) - newest.started_at if newest is not None else 0,
    )


def _removed_messages(run: RunRecord) -> int:
    """Return the number of messages that a compaction run removed."""
    numbers = [run.statistics.get(name, 0) for name in ("messages_before", "messages_in", "messages_out")]
    before, new, remaining = (number if isinstance(number, int) else 0 for number in numbers)
    return max(before + new - remaining, 0)
