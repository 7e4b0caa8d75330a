"""How much an open segment holds, for those who only count: one small file is read, no frame.

Invariant: nothing is said that a reader could not read (visible_end.py). A segment in another process's log directory
says nothing here. Must not know: SQL, what is in entries.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.log.directory import LogDirectory
from storage.log.frames import FRAME_BYTES, HEADER_BYTES, SegmentHeader
from storage.log.segment import SegmentFiles
from storage.log.visible_end import read_visible_end
from storage.metadata.records import SegmentRecord, TopicRecord


@dataclass(frozen=True)
class OpenEnd:
    """What can be read of an open segment; `size`: bytes of its entries as they were sent."""

    next_offset: int
    entries: int
    size: int


def open_end(log: LogDirectory, topic: TopicRecord, segment: SegmentRecord) -> OpenEnd | None:
    """None: it lies in another log directory, or there is nothing to see. Raises Misconfigured."""
    if segment.log_uid != log.known_uid:
        return None
    header = SegmentHeader(topic.uid, segment.ledger_id, segment.first_offset)
    found = read_visible_end(SegmentFiles(log.of_topic(topic.uid), segment.first_offset).end, header.checksum)
    if found is None:
        return None
    size = found.visible - HEADER_BYTES - found.entries * FRAME_BYTES
    return OpenEnd(found.next_offset, found.entries, max(size, 0))
