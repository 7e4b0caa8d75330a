"""Counting what open segments hold: messages and logical bytes, as their row will say once they are rolled.

SQL knows nothing of an open segment, so its file is read, as far as its writer lets it be seen, and only what has come
since the last count: the rest is remembered. A segment in another log directory cannot be counted here.

May go wrong: nothing; what cannot be read counts as it did before, and the reader or sealer of the segment reports why.
Memory: a few numbers a segment.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from storage.errors import CompactorError
from storage.log.directory import LogDirectory
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord


@dataclass(frozen=True)
class UnsealedMessages:
    """What an open segment holds up to `next_offset`. `oldest`, `newest`: publish times; None: it is empty."""

    next_offset: int
    messages: int = 0
    logical_bytes: int = 0
    oldest: int | None = None
    newest: int | None = None


class OpenSegments:
    """Counts open segments that are in one log directory. Safe to share between threads."""

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[int, UnsealedMessages] = {}

    def count(self, topic: TopicRecord, segment: SegmentRecord) -> UnsealedMessages:
        """What the segment holds now."""
        with self._lock:
            before = self._known.get(segment.ledger_id) or UnsealedMessages(segment.first_offset)
        counted = self._counted(topic, segment, before)
        with self._lock:
            self._known[segment.ledger_id] = counted
        return counted

    def forget_others(self, ledger_ids: set[int]) -> None:
        """Forget all segments but these: the others were rolled."""
        with self._lock:
            self._known = {one: count for one, count in self._known.items() if one in ledger_ids}

    def _counted(self, topic: TopicRecord, segment: SegmentRecord, before: UnsealedMessages) -> UnsealedMessages:
        try:
            if segment.log_uid != self._log.known_uid:
                return before
            folder = self._log.of_topic(topic.uid)
            identity = (folder, topic.uid, segment.ledger_id, segment.first_offset, topic.name.partition)
            end = SegmentReader(*identity).visible_end()
            if end.next_offset == before.next_offset:
                return before
            if end.next_offset < before.next_offset:  # a flush failed, and what was visible is gone
                before = UnsealedMessages(segment.first_offset)
            counted = before
            for entry in SegmentReader(*identity, end=end.visible).entries(before.next_offset):
                header = entry.header
                assert header is not None, "a walk looks into each entry"
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
