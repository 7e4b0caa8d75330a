"""What open segments hold, for those who only count: SQL knows nothing of it before they are rolled.

    unsealed_end       where a segment ends: one small file is read, and no frame unless that file is damaged
    last_publish_time  when its last entry was published: a few frames are read
    UnsealedCounter    its messages and logical bytes, as its row will say: only what came since the last count is read
    with_open_segments the counts of topics in lists, with those of their open segments

What a reader cannot see yet does not count (segment_reader.py). A segment in another log directory cannot be counted
here. What cannot be read counts as before, or not at all: the reader or sealer of the segment reports why.

Memory: a few numbers a segment. Must not know: SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage.errors import CompactorError, DataLoss
from storage.log.directory import LogDirectory
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, SegmentState, TopicActiveSegment, TopicRecord, TopicSummary
from storage.metadata.store import MetadataStore


@dataclass(frozen=True)
class UnsealedEnd:
    """What can be read of an open segment; `size`: bytes of its entries as they were sent."""

    next_offset: int
    entries: int
    size: int


def unsealed_end(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord) -> UnsealedEnd | None:
    """None: it is in another log directory, or its file cannot be read, as readers say. Raises Misconfigured."""
    if segment.log_uid != log.known_uid:
        return None
    try:
        found = SegmentReader(LocalSegment.of(log, topic, segment)).high_watermark()
    except DataLoss:
        return None
    size = found.visible - HEADER_BYTES - found.entries * FRAME_BYTES
    return UnsealedEnd(found.next_offset, found.entries, max(size, 0))


def last_publish_time(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord, end: UnsealedEnd) -> int:
    """Return the publish time of an open segment's last entry; 0: it has none, or it cannot be read.

    Reads the frames behind the last one that the segment's index knows.
    """
    if not end.entries:
        return 0
    last = 0
    try:
        for entry in SegmentReader(LocalSegment.of(log, topic, segment)).entries(end.next_offset - 1):
            assert entry.header is not None, "a walk reads each entry"
            last = entry.header.publish_time
    except (CompactorError, OSError):
        pass  # its reader or sealer reports why
    return last


@dataclass(frozen=True)
class UnsealedCount:
    """What an open segment holds up to `next_offset`. `oldest`, `newest`: publish times; None: it is empty."""

    next_offset: int
    messages: int = 0
    logical_bytes: int = 0
    oldest: int | None = None
    newest: int | None = None


class UnsealedCounter:
    """Counts open segments that are in one log directory. Safe to share between threads."""

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[int, UnsealedCount] = {}

    def count(self, topic: TopicRecord, segment: SegmentRecord) -> UnsealedCount:
        """What the segment holds now."""
        with self._lock:
            before = self._known.get(segment.ledger_id) or UnsealedCount(segment.first_offset)
        counted = self._counted(topic, segment, before)
        with self._lock:
            self._known[segment.ledger_id] = counted
        return counted

    def keep_only(self, ledger_ids: set[int]) -> None:
        """Drop the counts of all segments but these: the others were rolled."""
        with self._lock:
            self._known = {key: count for key, count in self._known.items() if key in ledger_ids}

    def _counted(self, topic: TopicRecord, segment: SegmentRecord, before: UnsealedCount) -> UnsealedCount:
        try:
            if segment.log_uid != self._log.known_uid:
                return before
            local = LocalSegment.of(self._log, topic, segment)
            end = SegmentReader(local).high_watermark()
            if end.next_offset == before.next_offset:
                return before
            if end.next_offset < before.next_offset:  # a flush failed, and what was visible is gone
                before = UnsealedCount(segment.first_offset)
            counted = before
            for entry in SegmentReader(local, end.visible).entries(before.next_offset):
                header = entry.header
                assert header is not None, "a walk reads each entry"
                at = header.publish_time
                counted = replace(
                    counted,
                    next_offset=entry.offset + header.messages,
                    messages=counted.messages + header.messages,
                    logical_bytes=counted.logical_bytes + header.logical_bytes,
                    oldest=at if counted.oldest is None else min(counted.oldest, at),
                    newest=at if counted.newest is None else max(counted.newest, at),
                )
        except (CompactorError, OSError):
            return before
        return counted


def with_open_segments(
    metadata: MetadataStore, log: LogDirectory, summaries: Sequence[TopicSummary]
) -> list[TopicSummary]:
    """Return the summaries with the messages and bytes of open segments added to what is not sealed."""
    uid = log.known_uid
    if uid is None:
        return list(summaries)  # nothing was ever appended here
    listed = {summary.topic_id for summary in summaries}
    written = [topic.id for topic in metadata.segments.topics_with([SegmentState.OPEN], uid) if topic.id in listed]
    active = {item.topic.id: item for item in metadata.segments.active_segments(written)}
    return [
        _counted(log, summary, active[summary.topic_id]) if summary.topic_id in active else summary
        for summary in summaries
    ]


def _counted(log: LogDirectory, summary: TopicSummary, active: TopicActiveSegment) -> TopicSummary:
    if active.open is None:
        return summary
    try:
        end = unsealed_end(log, active.topic, active.open)
    except (CompactorError, OSError):
        return summary
    if end is None:
        return summary
    return replace(
        summary,
        unsealed_messages=summary.unsealed_messages + end.next_offset - active.open.first_offset,
        unsealed_bytes=summary.unsealed_bytes + end.size,
    )
