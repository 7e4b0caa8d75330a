"""The content of open segments: SQL knows nothing of their content before they are rolled.

    open_segment_end      the end of a segment: one small file is read, and no frame unless that file is damaged
    last_publish_time     the time of its last entry: a few frames are read
    open_segment_content  its messages and logical bytes up to that end, without times
    OpenSegmentCounter    its messages and logical bytes, as its row will have them, with times or without; reads only
                          the entries that are new since the last count
    add_open_segments     the counts of topics in lists, with those of their open segments

Entries that a reader cannot see yet do not count (segment_reader.py). A segment in another log directory cannot be
counted here. Of a segment that cannot be read an OpenSegmentCounter returns its last count, or an empty one, and the
functions return None, or count nothing: its reader or sealer reports why.

Memory: a few numbers for each topic. Must not know: SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage.errors import CompactorError, DataLoss
from storage.log.directory import LogDirectory
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.high_watermark import HighWatermark
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord, TopicSummary
from storage.metadata.store import MetadataStore


@dataclass(frozen=True)
class OpenSegmentEnd:
    """The readable end of an open segment.

    `logical_bytes`: of its entries; their stored bytes, if its writer was of an older version or the file is damaged.
    """

    next_offset: int
    entries: int
    logical_bytes: int


def open_segment_end(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord) -> OpenSegmentEnd | None:
    """Return the readable end of an open segment. Raises Misconfigured.

    None: the segment is in another log directory, or its file cannot be read, which its readers report.
    """
    try:
        watermark = _high_watermark(log, topic, segment)
    except DataLoss:
        return None
    if watermark is None:
        return None
    size = watermark.logical_bytes
    if size is None:
        size = max(watermark.visible_bytes - HEADER_BYTES - watermark.entries * FRAME_BYTES, 0)
    return OpenSegmentEnd(watermark.next_offset, watermark.entries, size)


def _high_watermark(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord) -> HighWatermark | None:
    """Return the high watermark of an open segment; None: it is in another log directory. Raises CompactorError,
    OSError."""
    if segment.log_uid != log.known_uid:
        return None
    return SegmentReader(LocalSegment.from_row(log, topic, segment)).high_watermark()


def last_publish_time(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord, end: OpenSegmentEnd) -> int:
    """Return the publish time (ms) of an open segment's last entry; 0: it has none, or it cannot be read.

    `end`: as `open_segment_end` returned it. Reads the frames after the last one that the segment's index knows.
    """
    if not end.entries:
        return 0
    last = 0
    try:
        for entry in SegmentReader(LocalSegment.from_row(log, topic, segment)).entries(end.next_offset - 1):
            last = entry.header.publish_time
    except (CompactorError, OSError):
        pass  # its reader or sealer reports why
    return last


@dataclass(frozen=True)
class OpenSegmentContent:
    """The content of an open segment up to `next_offset`. `oldest`, `newest`: publish times (ms); None: it is empty, or
    they were not read."""

    next_offset: int
    messages: int = 0
    logical_bytes: int = 0
    oldest: int | None = None
    newest: int | None = None


def open_segment_content(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord) -> OpenSegmentContent:
    """Return the present content of an open segment without times: one small file is read, and no entry. Empty if it
    cannot be read here."""
    try:
        end = open_segment_end(log, topic, segment)
    except (CompactorError, OSError):
        end = None
    if end is None:
        return OpenSegmentContent(segment.first_offset)
    return OpenSegmentContent(end.next_offset, end.next_offset - segment.first_offset, end.logical_bytes)


class _CountCache:
    """The last count of the open segment of each topic. A newer segment takes the place of the one before it, so the
    number of topics bounds the memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, tuple[int, OpenSegmentContent]] = {}
        """Ledger ids and counts, by topic id."""

    def find(self, topic: TopicRecord, segment: SegmentRecord) -> OpenSegmentContent | None:
        """Return the last count of a segment; None: it was not counted, or a newer one of its topic was."""
        with self._lock:
            ledger_id, count = self._counts.get(topic.id, (None, None))
        return count if ledger_id == segment.ledger_id else None

    def keep(self, topic: TopicRecord, segment: SegmentRecord, count: OpenSegmentContent) -> None:
        with self._lock:
            self._counts[topic.id] = segment.ledger_id, count

    def keep_only(self, ledger_ids: set[int]) -> None:
        with self._lock:
            self._counts = {topic_id: count for topic_id, count in self._counts.items() if count[0] in ledger_ids}


class OpenSegmentCounter:
    """A counter of the open segments of one log directory, which keeps the last counts. Thread-safe.

    The counts with times and those without are kept apart: a count with times cannot go on from one without.
    """

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._with_times = _CountCache()
        self._without_times = _CountCache()

    def content_with_times(self, topic: TopicRecord, segment: SegmentRecord) -> OpenSegmentContent:
        """Count a segment's messages, bytes and publish times up to its present end, and return them; the last count,
        or an empty one, if the segment cannot be read here."""
        before = self._with_times.find(topic, segment) or OpenSegmentContent(segment.first_offset)
        counted = self._count_new_entries(topic, segment, before)
        self._with_times.keep(topic, segment, counted)
        return counted

    def content(self, topic: TopicRecord, segment: SegmentRecord) -> OpenSegmentContent:
        """Count a segment's messages and bytes up to its present end, and return them, with or without times; the last
        count, or an empty one, if the segment cannot be read here.

        One small file is read, and entries only if its writer has not counted their logical bytes.
        """
        try:
            watermark = _high_watermark(self._log, topic, segment)
        except (CompactorError, OSError):
            return self._without_times.find(topic, segment) or self.content_with_times(topic, segment)
        if watermark is None or watermark.logical_bytes is None:
            counted = self.content_with_times(topic, segment)
        else:
            messages = watermark.next_offset - segment.first_offset
            counted = OpenSegmentContent(watermark.next_offset, messages, watermark.logical_bytes)
        self._without_times.keep(topic, segment, counted)
        return counted

    def keep_only(self, ledger_ids: set[int]) -> None:
        """Drop the counts of all segments but `ledger_ids`, the open ones."""
        self._with_times.keep_only(ledger_ids)
        self._without_times.keep_only(ledger_ids)

    def _count_new_entries(
        self, topic: TopicRecord, segment: SegmentRecord, before: OpenSegmentContent
    ) -> OpenSegmentContent:
        """Return the count `before` with the entries that were appended since; unchanged if the segment cannot be read
        here."""
        try:
            if segment.log_uid != self._log.known_uid:
                return before
            local = LocalSegment.from_row(self._log, topic, segment)
            end = SegmentReader(local).high_watermark()
            if end.next_offset == before.next_offset:
                return before
            if end.next_offset < before.next_offset:  # a flush failed, and visible entries were lost
                before = OpenSegmentContent(segment.first_offset)
            counted = before
            for entry in SegmentReader(local, end.visible_bytes).entries(before.next_offset):
                header = entry.header
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


def add_open_segments(
    metadata: MetadataStore, log: LogDirectory, summaries: Sequence[TopicSummary]
) -> list[TopicSummary]:
    """Return the summaries, with messages and bytes of the open segments here added to those that are not sealed.

    A segment in another log directory, or that cannot be read, adds nothing.
    """
    uid = log.known_uid
    if uid is None:
        return list(summaries)  # nothing was ever appended here
    listed = {summary.topic_id for summary in summaries}
    opened = {
        topic.id: (topic, segment) for topic, segment in metadata.segments.open_segments_in(uid) if topic.id in listed
    }
    return [
        _add_open_segment(log, summary, *opened[summary.topic_id]) if summary.topic_id in opened else summary
        for summary in summaries
    ]


def _add_open_segment(
    log: LogDirectory, summary: TopicSummary, topic: TopicRecord, segment: SegmentRecord
) -> TopicSummary:
    """Return a topic's summary with the messages and bytes of its open segment added; unchanged if it cannot be read
    here."""
    try:
        end = open_segment_end(log, topic, segment)
    except (CompactorError, OSError):
        return summary
    if end is None:
        return summary
    return replace(
        summary,
        unsealed_messages=summary.unsealed_messages + end.next_offset - segment.first_offset,
        unsealed_bytes=summary.unsealed_bytes + end.logical_bytes,
    )
