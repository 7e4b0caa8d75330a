"""Stats of topics: one tree, which REST renders for one topic, for partitions and for all topics.

`stats_snapshot` reads the counts of a topic from SQL, and from the active segment if it is local: a few statements and
one small file, whatever the topic holds. `topic_stats` makes the tree of them, with the connected clients of this
process. Fields have the names of Pulsar's classes in snake case. A broker counts entries; these are messages. Bytes are
those that a producer sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from api.broker.serving.connected_clients import (
    LiveSubscriptionState,
    LiveTopicState,
    SubscriptionClients,
    TopicClients,
)
from api.broker.serving.consumer import SubscriptionType
from storage.environment import Environment
from storage.errors import TopicNotFound
from storage.log.unsealed_counts import UnsealedEnd, last_publish_time, unsealed_end
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, RunRecord, SegmentRecord
from storage.metadata.stats import CursorStatsRecord, TopicStatsRecord
from storage.model import TopicName

INDIVIDUAL = frozenset(kind.pulsar_name for kind in SubscriptionType if kind.is_individual)
"""The types of subscriptions that acknowledge one by one."""
ONE_ACTIVE = frozenset(kind.pulsar_name for kind in SubscriptionType) - INDIVIDUAL
"""The types of which one consumer is active."""
NOT_COUNTED = -1
"""A subscription's backlog in bytes, where the caller did not request it."""


class EntryPosition(NamedTuple):
    """An entry, as Pulsar's managed ledger names it."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


class LedgerCounts(NamedTuple):
    """A ledger, or a segment that will be one. `size`: bytes of its entries; `open`: it is appended to."""

    ledger_id: int
    entries: int
    size: int
    created_at: int
    open: bool


@dataclass(frozen=True)
class StatsSnapshot:
    """A topic at one moment. `active`: the end of the active segment, if it is local. `active_published_at`: when its
    last entry was published; 0 if that was not asked for."""

    stats: TopicStatsRecord
    active: UnsealedEnd | None
    active_published_at: int = 0

    @property
    def end(self) -> int:
        """The offset that the next message gets, by what this process can read."""
        known = self.stats.topic.next_offset
        return max(known, self.active.next_offset) if self.active else known

    @property
    def first(self) -> int:
        """The first offset that can be read."""
        sums = self.stats.sums
        starts = [segment.first_offset for segment in self.stats.segments]
        starts += [sums.first_offset] if sums.first_offset is not None else []
        return max(min(starts, default=self.end), self.stats.topic.start_offset)

    @property
    def entries(self) -> int:
        return self.stats.sums.entries + sum(self._segment(segment)[0] for segment in self.stats.segments)

    @property
    def size(self) -> int:
        return self.stats.sums.logical_bytes + sum(self._segment(segment)[1] for segment in self.stats.segments)

    @property
    def last_publish_time(self) -> int:
        rolled = [segment.content.max_publish_time for segment in self.stats.segments if segment.content]
        return max([self.stats.sums.max_publish_time, self.active_published_at, *rolled])

    def backlog(self, cursor: CursorStatsRecord) -> int:
        """Return the messages after a cursor's mark, less those acknowledged one by one, if they were counted."""
        return max(self.end - max(cursor.record.mark + 1, self.first) - cursor.acknowledged, 0)

    def since_mark_delete(self, cursor: CursorStatsRecord) -> int:
        """Return the distance from the mark-delete position to the end, as a broker counts it: 1 if nothing is between.

        Messages that are acknowledged one by one count.
        """
        return self.end - max(cursor.record.mark + 1, self.first) + 1

    def backlog_bytes(self, cursor: CursorStatsRecord) -> int:
        """Return the bytes of the ledgers and segments with messages after a cursor's mark."""
        remaining = [
            segment
            for segment in self.stats.segments
            if segment.content is None or segment.content.last_offset > cursor.record.mark
        ]
        if self.end - 1 <= cursor.record.mark:
            return 0
        return cursor.sealed_bytes + sum(self._segment(item)[1] for item in remaining)

    @property
    def extents(self) -> list[LedgerCounts]:
        """Ledgers and segments in their order; ledgers only in a snapshot with lines."""
        sealed = [
            LedgerCounts(line.ledger_id, line.entries, line.logical_bytes, line.created_at, False)
            for line in self.stats.lines
        ]
        unsealed = [
            LedgerCounts(segment.ledger_id, *self._segment(segment), segment.created_at, segment.content is None)
            for segment in self.stats.segments
        ]
        return sorted((*sealed, *unsealed), key=lambda item: item.ledger_id)

    @property
    def last_entry(self) -> EntryPosition:
        """The last entry, or the position before the first. Needs a snapshot with lines."""
        extents = self.extents
        filled = [extent for extent in extents if extent.entries]
        if filled:
            return EntryPosition(filled[-1].ledger_id, filled[-1].entries - 1)
        return EntryPosition(extents[0].ledger_id if extents else -1, -1)

    def position(self, cursor: CursorStatsRecord) -> EntryPosition:
        """Return the mark-delete position as a broker shows it: an entry. Needs a snapshot with lines."""
        mark = cursor.record.mark_delete
        if mark is not None:
            return EntryPosition(mark.message_id.ledger_id, mark.message_id.entry_id)
        extents = self.extents
        return EntryPosition(extents[0].ledger_id if extents else -1, -1)

    def _segment(self, segment: SegmentRecord) -> tuple[int, int]:
        """Return the entries and bytes of a segment."""
        if segment.content is not None:
            return segment.content.entries, segment.content.logical_bytes
        return (self.active.entries, self.active.size) if self.active else (0, 0)


@dataclass(frozen=True)
class CompactionStats:
    """The last run that succeeded and the last that did not; times and durations in milliseconds, 0: never."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0

    @classmethod
    def of(cls, succeeded: RunRecord | None, failed: RunRecord | None) -> CompactionStats:
        newest = max((run for run in (succeeded, failed) if run is not None), key=lambda run: run.run_id, default=None)
        return cls(
            _removed(succeeded) if succeeded is not None else 0,
            (succeeded.finished_at or 0) if succeeded is not None else 0,
            (failed.finished_at or 0) if failed is not None else 0,
            (newest.finished_at or 0) - newest.started_at if newest is not None else 0,
        )

    @classmethod
    def merge(cls, each: Sequence[CompactionStats]) -> CompactionStats:
        """Return the sum of removed messages, and the newest times."""
        newest = "last_compaction_succeed_timestamp", "last_compaction_failed_timestamp"
        longest = "last_compaction_duration_time_in_mills"
        return cls(**_folded(sum, each, "last_compaction_removed_event_count"), **_folded(max, each, *newest, longest))


@dataclass(frozen=True)
class SubscriptionStats:
    """A subscription: what its cursor has before it, and its clients.

    `since_mark_delete`: the distance from the mark-delete position to the end, as a broker counts it.
    """

    msg_backlog: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    non_contiguous_deleted_messages_ranges: int = 0
    since_mark_delete: int = 0
    last_consumed_flow_timestamp: int = 0
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    clients: SubscriptionClients = field(default_factory=SubscriptionClients)

    @classmethod
    def merge(cls, each: Sequence[SubscriptionStats]) -> SubscriptionStats:
        """Return the sums of one subscription over partitions, without its clients."""
        counts = _folded(
            sum,
            each,
            "msg_backlog",
            "backlog_size",
            "msg_backlog_no_delayed",
            "non_contiguous_deleted_messages_ranges",
            "since_mark_delete",
        )
        properties = {name: value for item in each for name, value in item.subscription_properties.items()}
        return cls(**counts, subscription_properties=properties)


@dataclass(frozen=True)
class TopicStats:
    """A topic, or the sum of its partitions."""

    bytes_in_counter: int = 0
    msg_in_counter: int = 0
    storage_size: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlogs: int = 0
    subscriptions: Mapping[str, SubscriptionStats] = field(default_factory=dict)
    non_contiguous_deleted_messages_ranges: int = 0
    compaction: CompactionStats = field(default_factory=CompactionStats)
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0
    clients: TopicClients = field(default_factory=TopicClients)

    @classmethod
    def merge(cls, each: Sequence[TopicStats]) -> TopicStats:
        """Return the sum of partitions, without clients: subscriptions by name, the newest times of compactions."""
        without_clients = TopicClients(deduplication_status=None)
        if not each:
            return cls(clients=without_clients)
        counts = _folded(
            sum,
            each,
            "bytes_in_counter",
            "msg_in_counter",
            "storage_size",
            "backlog_size",
            "non_contiguous_deleted_messages_ranges",
        )
        earliest = [time for item in each if (time := item.earliest_msg_publish_time_in_backlogs)]
        names = sorted({name for item in each for name in item.subscriptions})
        return cls(
            **counts,
            **_folded(min, each, "topic_creation_time_stamp"),
            **_folded(max, each, "last_publish_time_stamp"),
            earliest_msg_publish_time_in_backlogs=min(earliest, default=0),
            subscriptions={
                name: SubscriptionStats.merge([item.subscriptions[name] for item in each if name in item.subscriptions])
                for name in names
            },
            compaction=CompactionStats.merge([item.compaction for item in each]),
            clients=without_clients,
        )


def stats_snapshot(
    environment: Environment, name: TopicName, *, lines: bool = False, times: bool = False
) -> StatsSnapshot | None:
    """Return the counts of a topic at this moment; None: the topic does not exist. `times`: with that of the newest
    entry."""
    try:
        stats = environment.metadata.stats.of(name, lines=lines)
    except TopicNotFound:
        return None
    unrolled = next((segment for segment in stats.segments if segment.content is None), None)
    if unrolled is None:
        return StatsSnapshot(stats, None)
    active = unsealed_end(environment.log, stats.topic, unrolled)
    at = last_publish_time(environment.log, stats.topic, unrolled, active) if times and active is not None else 0
    return StatsSnapshot(stats, active, at)


def topic_stats(
    snapshot: StatsSnapshot, live: LiveTopicState, *, sizes: bool = True, earliest: bool = False
) -> TopicStats:
    """Return the stats of one topic, with the clients that are connected to this process.

    `sizes`: with each subscription's backlog in bytes, otherwise `NOT_COUNTED`. `earliest`: with the oldest publish
    time of each backlog, otherwise 0.
    """
    cursors = snapshot.stats.cursors
    subscriptions = {cursor.record.name: _stored(snapshot, cursor, sizes, earliest) for cursor in cursors}
    for name, state in live.subscriptions.items():
        subscriptions[name] = _with_clients(subscriptions.get(name, SubscriptionStats()), snapshot, state)
    oldest = [cursor.oldest_publish_time for cursor in cursors if snapshot.backlog(cursor)] if earliest else []
    return TopicStats(
        bytes_in_counter=snapshot.size,
        msg_in_counter=snapshot.end,
        storage_size=snapshot.size,
        backlog_size=max((snapshot.backlog_bytes(cursor) for cursor in cursors), default=0),
        earliest_msg_publish_time_in_backlogs=min((time for time in oldest if time), default=0),
        subscriptions=subscriptions,
        non_contiguous_deleted_messages_ranges=sum(cursor.ranges for cursor in cursors),
        compaction=CompactionStats.of(snapshot.stats.succeeded, snapshot.stats.failed),
        topic_creation_time_stamp=snapshot.stats.topic.created_at,
        last_publish_time_stamp=snapshot.last_publish_time,
        clients=live.clients,
    )


def _stored(snapshot: StatsSnapshot, cursor: CursorStatsRecord, sizes: bool, earliest: bool) -> SubscriptionStats:
    backlog, properties = snapshot.backlog(cursor), cursor.record.properties
    return SubscriptionStats(
        msg_backlog=backlog,
        backlog_size=snapshot.backlog_bytes(cursor) if sizes else NOT_COUNTED,
        earliest_msg_publish_time_in_backlog=cursor.oldest_publish_time if earliest and backlog else 0,
        msg_backlog_no_delayed=backlog,
        non_contiguous_deleted_messages_ranges=cursor.ranges,
        since_mark_delete=snapshot.since_mark_delete(cursor),
        subscription_properties={k: v for k, v in properties.items() if k != COMPACTED_LEDGER_PROPERTY},
    )


def _with_clients(stats: SubscriptionStats, snapshot: StatsSnapshot, live: LiveSubscriptionState) -> SubscriptionStats:
    """Add the clients of a subscription, and its backlog of now instead of the stored one."""
    clients = live.clients
    backlog = live.backlog(snapshot.end, snapshot.first)
    if backlog is not None:
        without_delayed = max(backlog - clients.msg_delayed, 0)
        stats = replace(stats, msg_backlog=backlog, msg_backlog_no_delayed=without_delayed)
    if clients.active_consumer_name is None and clients.type in ONE_ACTIVE and len(clients.consumers) == 1:
        clients = replace(clients, active_consumer_name=clients.consumers[0].consumer_name)
    flow = max((consumer.last_consumed_flow_timestamp for consumer in clients.consumers), default=0)
    return replace(stats, last_consumed_flow_timestamp=flow, clients=clients)


def _folded(fold: Callable[[Iterable[int]], int], each: Sequence[object], *names: str) -> dict[str, Any]:
    """Return fields by name, each the sum, minimum or maximum of those of several stats."""
    return {name: fold(getattr(item, name) for item in each) for name in names}


def _removed(run: RunRecord) -> int:
    """Return the number of messages that a run removed."""
    numbers = [run.statistics.get(name, 0) for name in ("messages_before", "messages_in", "messages_out")]
    before, new, remaining = (number if isinstance(number, int) else 0 for number in numbers)
    return max(before + new - remaining, 0)
