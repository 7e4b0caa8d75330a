"""The counts behind a topic's stats: from SQL, and from the active segment if it is local.

Cheap, whatever a topic holds: a few statements and one small file; no object, no entry. Messages are counted, where a
broker counts entries; bytes are those that a producer sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from api.broker.broker import Broker
from api.rest.topics.stats_models import CompactionStats
from storage.errors import TopicNotFound
from storage.log.unsealed_counts import UnsealedEnd, last_publish_time, unsealed_end
from storage.metadata.records import RunRecord, SegmentRecord
from storage.metadata.stats import CursorStatsRecord, TopicStatsRecord
from storage.model import TopicName


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
        """The offset that the next message gets, as far as can be seen."""
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
        """Messages that a cursor has before it, less those acknowledged one by one, if they were counted."""
        return max(self.end - max(cursor.record.mark + 1, self.first) - cursor.acknowledged, 0)

    def since_mark_delete(self, cursor: CursorStatsRecord) -> int:
        """Return the distance from the mark-delete position to the end, as a broker counts it: 1 if nothing is between.

        Messages that are acknowledged one by one count.
        """
        return self.end - max(cursor.record.mark + 1, self.first) + 1

    def backlog_bytes(self, cursor: CursorStatsRecord) -> int:
        """Bytes of the ledgers and segments that a cursor is not through with."""
        behind = [
            segment
            for segment in self.stats.segments
            if segment.content is None or segment.content.last_offset > cursor.record.mark
        ]
        if self.end - 1 <= cursor.record.mark:
            return 0
        return cursor.sealed_bytes + sum(self._segment(item)[1] for item in behind)

    @property
    def extents(self) -> list[LedgerCounts]:
        """Ledgers and segments in their order; of ledgers only if their lines were asked for."""
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
        """The last entry, or the place before the first one. Asks for lines."""
        extents = self.extents
        filled = [extent for extent in extents if extent.entries]
        if filled:
            return EntryPosition(filled[-1].ledger_id, filled[-1].entries - 1)
        return EntryPosition(extents[0].ledger_id if extents else -1, -1)

    def position(self, cursor: CursorStatsRecord) -> EntryPosition:
        """Mark-delete as a broker shows it: an entry. Asks for lines."""
        mark = cursor.record.mark_delete
        if mark is not None:
            return EntryPosition(mark.message_id.ledger_id, mark.message_id.entry_id)
        extents = self.extents
        return EntryPosition(extents[0].ledger_id if extents else -1, -1)

    def _segment(self, segment: SegmentRecord) -> tuple[int, int]:
        """Entries and bytes."""
        if segment.content is not None:
            return segment.content.entries, segment.content.logical_bytes
        return (self.active.entries, self.active.size) if self.active else (0, 0)


def stats_snapshot(
    broker: Broker, name: TopicName, *, lines: bool = False, times: bool = False
) -> StatsSnapshot | None:
    """Return the topic of this moment; None: there is no such topic. `times`: with that of the newest entry."""
    environment = broker.environment
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


def compaction_stats(stats: TopicStatsRecord) -> CompactionStats:
    """From the last run that succeeded and the last that did not; times are milliseconds, 0: never."""
    good, bad = stats.succeeded, stats.failed
    newest = max((run for run in (good, bad) if run is not None), key=lambda run: run.run_id, default=None)
    return CompactionStats(
        last_compaction_removed_event_count=_removed(good) if good is not None else 0,
        last_compaction_succeed_timestamp=(good.finished_at or 0) if good is not None else 0,
        last_compaction_failed_timestamp=(bad.finished_at or 0) if bad is not None else 0,
        last_compaction_duration_time_in_mills=(newest.finished_at or 0) - newest.started_at if newest else 0,
    )


def _removed(run: RunRecord) -> int:
    """Messages that were there before a run, and are not after it."""
    numbers = [run.statistics.get(name, 0) for name in ("messages_before", "messages_in", "messages_out")]
    before, new, remaining = (number if isinstance(number, int) else 0 for number in numbers)
    return max(before + new - remaining, 0)
