"""Open segments whose rows are encoded and indexed while the segments fill, in the process that seals them.

A compaction rolls the open segment and waits until it is sealed. What was prepared is not read again then, so it waits
for the last few MiB instead of the whole segment. The bytes of the ledger are the same either way.

Only flushed entries are prepared, because no recovery cuts them off. They are encoded in pieces, so a segment that
waits to be sealed waits for one piece at most. Memory: `max_bytes` for all segments, and one piece. A segment is not
prepared further when memory is full, unless another one has not grown for `IDLE_MS`: that one is dropped. What is in
memory ends with the process: the segment is sealed from its file.

Errors: ObjectMissing, ObjectDamaged, Misconfigured, Unavailable; then the segment is not prepared any more, and its
sealer reports the damage. For one thread. Must not know: SQL, the object store.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.clock import Clock
from storage.entries.decode import StoredEntry, unpack_in_blocks
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.sealing import LedgerBuilder
from storage.log.directory import LogDirectory
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.high_watermark import read_high_watermark
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord

PIECE_BYTES = 2 << 20
"""The least growth of a segment that is prepared."""
_PIECES_TOGETHER = 2
"""Number of PIECE_BYTES of entries, uncompressed, that are encoded together if a segment has grown so much."""
OVERHEAD_BYTES = 5 << 20
"""Memory of a segment besides its encoded bytes and keys: buffers of Parquet, and rows of the next row group."""
IDLE_MS = 60_000
"""Time without growth after which a segment makes room for others."""


@dataclass
class PreparedSegment:
    """The beginning of an open segment, encoded in advance as a part of its ledger. `topic_uid`: its topic's.

    `next_offset`: the offset after it; `size`: its bytes of the segment's file; `grown_at`: the time (ms) of its last
    growth.
    """

    topic_uid: str
    first_offset: int
    ledger: LedgerBuilder
    next_offset: int
    size: int = HEADER_BYTES
    grown_at: int = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that the encoded beginning takes in memory."""
        return OVERHEAD_BYTES + self.ledger.held_bytes


class PreparedSegments:
    """The open segments of one log directory whose beginnings are encoded in advance, in memory."""

    def __init__(self, log: LogDirectory, clock: Clock, max_bytes: int) -> None:
        """Create an empty set. `max_bytes`: the most memory of all segments; 0: none is encoded in advance."""
        self._log = log
        self._clock = clock
        self._max_bytes = max_bytes
        self._by_ledger: dict[int, PreparedSegment] = {}
        """Prepared segments by ledger id; those that have grown last come last."""

    @property
    def held_bytes(self) -> int:
        """The bytes that all encoded beginnings take in memory."""
        return sum(prepared.held_bytes for prepared in self._by_ledger.values())

    def extend(self, topic: TopicRecord, segment: SegmentRecord) -> bool:
        """Encode the next flushed entries of an open segment. Return False, and encode nothing, if too few were
        flushed, or memory is full."""
        self._log.check_is_local(topic.name, segment)
        local = LocalSegment.from_row(self._log, topic, segment)
        watermark = read_high_watermark(local.files.high_watermark, local.header.checksum)
        if watermark is None:  # what is flushed is not known
            return False
        prepared = self._by_ledger.get(segment.ledger_id)
        if watermark.flushed_bytes - (prepared.size if prepared else HEADER_BYTES) < PIECE_BYTES:
            return False
        if prepared is None:
            builder = LedgerBuilder(Xxh3KeyHasher(topic.hash_seed))
            prepared = PreparedSegment(topic.uid, segment.first_offset, builder, segment.first_offset)
        if not self._make_room(prepared):
            return False
        self._by_ledger.pop(segment.ledger_id, None)
        try:
            self._encode_next_entries(prepared, SegmentReader(local, watermark.flushed_bytes), segment.ledger_id)
        except BaseException:
            prepared.ledger.encoder.abandon()
            raise
        prepared.grown_at = self._clock.now_ms()
        self._by_ledger[segment.ledger_id] = prepared
        return True

    def take(self, topic: TopicRecord, segment: SegmentRecord) -> PreparedSegment | None:
        """Remove and return the encoded beginning of a segment; None: there is none."""
        prepared = self._by_ledger.pop(segment.ledger_id, None)
        if prepared is None or (prepared.topic_uid, prepared.first_offset) != (topic.uid, segment.first_offset):
            return None
        return prepared

    def _make_room(self, grown: PreparedSegment) -> bool:
        """Drop segments that have been idle for long, as far as needed; return whether `grown` can grow by one more
        piece."""
        now = self._clock.now_ms()
        others = {ledger_id: item for ledger_id, item in self._by_ledger.items() if item is not grown}
        held = grown.held_bytes + _PIECES_TOGETHER * PIECE_BYTES + sum(item.held_bytes for item in others.values())
        for ledger_id, item in others.items():
            if held <= self._max_bytes or 0 <= now - item.grown_at < IDLE_MS:
                break
            self._by_ledger.pop(ledger_id).ledger.encoder.abandon()
            held -= item.held_bytes
        return held <= self._max_bytes

    def _encode_next_entries(self, prepared: PreparedSegment, reader: SegmentReader, ledger_id: int) -> None:
        """Encode the next entries of a segment, a limited number of bytes, and add them to its beginning."""
        entries: list[StoredEntry] = []
        size = 0
        for entry in reader.entries(prepared.next_offset):
            entries.append(entry)
            size += max(len(entry.data), entry.header.payload_bytes)
            if size >= _PIECES_TOGETHER * PIECE_BYTES:
                break
        for table in unpack_in_blocks(entries, ledger_id):
            prepared.ledger.add(table)
        last = entries[-1]
        prepared.next_offset = last.offset + last.header.messages
        prepared.size += sum(FRAME_BYTES + len(entry.data) for entry in entries)
