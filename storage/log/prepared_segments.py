"""Open segments whose rows are encoded and indexed while the segments fill, in the process that seals them.

A compaction rolls the open segment and waits until it is sealed. What was prepared is not read again then, so it waits
for the last few MiB instead of the whole segment. The bytes of the ledger are the same either way.

Only flushed entries are prepared, because no recovery cuts them off. They are encoded in pieces, so a segment that
waits to be sealed waits for one piece at most. Memory: `max_bytes` for all segments, and one piece with its keys. A
segment that does not fit is not prepared further; the segments that have grown last keep their place. What is in memory
ends with the process: the segment is sealed from its file.

Errors: ObjectMissing, ObjectDamaged, Misconfigured, Unavailable; then nothing of that segment stays prepared, and its
sealer reports the damage. For one thread. Must not know: SQL, the object store.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.entries.decode import StoredEntry, unpack_some
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.sealing import LedgerBuilder
from storage.log.directory import LogDirectory
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.high_watermark import read_high_watermark
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import SegmentRecord, TopicRecord

GROWTH_BYTES = 2 << 20
"""Bytes by which a segment grows before it is worth a piece."""
PIECE_BYTES = 2 << 20
"""Bytes of entries, uncompressed, that are encoded together."""


@dataclass
class PreparedSegment:
    """The beginning of a segment. `next_offset`: the offset after it; `size`: its bytes of the segment's file."""

    ledger: LedgerBuilder
    next_offset: int
    size: int = HEADER_BYTES


class PreparedSegments:
    """The prepared segments of one log directory."""

    def __init__(self, log: LogDirectory, max_bytes: int) -> None:
        """`max_bytes`: of all of them in memory; 0: none is prepared."""
        self._log = log
        self._max_bytes = max_bytes
        self._by_ledger: dict[int, PreparedSegment] = {}
        """By ledger id; those that have grown last come last."""

    @property
    def held_bytes(self) -> int:
        """The bytes of all prepared segments in memory."""
        return sum(prepared.ledger.held_bytes for prepared in self._by_ledger.values())

    def extend(self, topic: TopicRecord, segment: SegmentRecord) -> int:
        """Prepare the next piece of an open segment. Return its bytes of the segment's file; 0: too little was flushed,
        or memory is full."""
        self._log.check_is_local(topic.name, segment)
        local = LocalSegment.of(self._log, topic, segment)
        watermark = read_high_watermark(local.files.high_watermark, local.header.checksum)
        if watermark is None:  # what is flushed is not known
            return 0
        flushed = watermark.flushed_bytes
        prepared = self._by_ledger.pop(segment.ledger_id, None)
        if prepared is None:
            prepared = PreparedSegment(LedgerBuilder(Xxh3KeyHasher(topic.hash_seed)), segment.first_offset)
        self._make_room(prepared)
        before = prepared.size
        if flushed - before >= GROWTH_BYTES and self._has_room(prepared):
            try:
                self._add_piece(prepared, SegmentReader(local, flushed), segment.ledger_id)
            except BaseException:
                prepared.ledger.encoder.abandon()
                raise
        if prepared.ledger.held_bytes:
            self._by_ledger[segment.ledger_id] = prepared
        return prepared.size - before

    def take(self, segment: SegmentRecord) -> PreparedSegment | None:
        """Return what is prepared of a segment, and forget it; None: nothing is."""
        return self._by_ledger.pop(segment.ledger_id, None)

    def _make_room(self, prepared: PreparedSegment) -> None:
        """Drop segments that have not grown for longer than this one, until a piece of it fits."""
        while self._by_ledger and not self._has_room(prepared):
            self._by_ledger.pop(next(iter(self._by_ledger))).ledger.encoder.abandon()

    def _has_room(self, prepared: PreparedSegment) -> bool:
        return self.held_bytes + prepared.ledger.held_bytes + PIECE_BYTES <= self._max_bytes

    def _add_piece(self, prepared: PreparedSegment, reader: SegmentReader, ledger_id: int) -> None:
        entries: list[StoredEntry] = []
        size = 0
        for entry in reader.entries(prepared.next_offset):
            entries.append(entry)
            size += max(len(entry.data), entry.header.payload_bytes)
            if size >= PIECE_BYTES:
                break
        for table in unpack_some(entries, ledger_id):
            prepared.ledger.add(table)
        last = entries[-1]
        prepared.next_offset = last.offset + last.header.messages
        prepared.size += sum(FRAME_BYTES + len(entry.data) for entry in entries)
