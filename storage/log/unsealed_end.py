"""How much an open segment holds, for those who only count: one small file is read; no frame, unless it is damaged.

Invariant: nothing is said that a reader could not read (segment_reader.py). A segment in another process's log
directory says nothing here. Must not know: SQL, what is in entries.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import DataLoss
from storage.log.directory import LogDirectory
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord


@dataclass(frozen=True)
class UnsealedEnd:
    """What can be read of an open segment; `size`: bytes of its entries as they were sent."""

    next_offset: int
    entries: int
    size: int


def open_end(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord) -> UnsealedEnd | None:
    """None: it is in another log directory, or its file cannot be read, as readers say. Raises Misconfigured."""
    if segment.log_uid != log.known_uid:
        return None
    folder = log.of_topic(topic.uid)
    reader = SegmentReader(folder, topic.uid, segment.ledger_id, segment.first_offset, topic.name.partition)
    try:
        found = reader.visible_end()
    except DataLoss:
        return None
    size = found.visible - HEADER_BYTES - found.entries * FRAME_BYTES
    return UnsealedEnd(found.next_offset, found.entries, max(size, 0))
