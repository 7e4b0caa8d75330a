"""Recovery: the content of a segment that was left open, and the byte at which it is cut.

All frames are read. The first invalid one (torn, zeros or other bytes) ends the segment: nothing after it was
acknowledged under flush-every-append, because a flush makes all bytes before it durable. The high watermark, if it
survived, records how far flushes had come: if frames before it are invalid, acknowledged data is damaged, which is an
error and no cut, unless the caller accepts the loss.

The index is rebuilt in the same pass. Changes nothing; the calling writer cuts. Errors: ObjectDamaged with file and
position. Memory: the largest entry, and 28 bytes for each 64 KiB of the segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.errors import ObjectDamaged
from storage.log.frame_reader import FrameReader
from storage.log.frames import FRAME_BYTES, HEADER_BYTES, SegmentHeader, read_header
from storage.log.high_watermark import HighWatermark
from storage.log.segment import LocalSegment, SegmentTally, WriterOptions
from storage.log.sparse_index import FramePosition, SparseIndexBuilder

RESTORE = "restore the file from a backup, or accept the loss of the bytes after it (docs/operations.md)"


@dataclass(frozen=True)
class RecoveryResult:
    """The recoverable content of a segment's file. `end`: the position in the file after its last whole frame.

    `problem`: the defect of the bytes from there on; None: there are none. `index`: the rebuilt records of the sparse
    index.
    """

    tally: SegmentTally
    pointers: SparseIndexBuilder
    index: bytes
    end: int
    problem: str | None


def check_header(path: Path, data: bytes, expected: SegmentHeader) -> None:
    """Raise ObjectDamaged if a file's header is damaged, or is not that of the expected segment."""
    header = read_header(data)
    if isinstance(header, str):
        raise ObjectDamaged(f"the segment {path} is damaged at byte 0: {header}", RESTORE)
    if header != expected:
        raise ObjectDamaged(
            f"the segment {path} is another one: ledger {header.ledger_id} from offset {header.first_offset} of topic "
            f"{header.topic_uid}, not ledger {expected.ledger_id} from offset {expected.first_offset} of topic "
            f"{expected.topic_uid}",
            "put back the file that the topic was written to",
        )


def scan_segment(descriptor: int, size: int, segment: LocalSegment, options: WriterOptions) -> RecoveryResult:
    """Read all frames of a segment's file of `size` bytes up to the first invalid one; return the content. The header
    was checked; nothing is changed.

    `descriptor`: of the open file. Raises OSError.
    """
    header, seed = segment.header, segment.header.checksum
    frames = FrameReader(descriptor, seed, FramePosition.first(header.first_offset), max(size, HEADER_BYTES))
    tally = SegmentTally(segment)
    pointers = SparseIndexBuilder(header.first_offset, seed, options.index_spacing)
    index = bytearray()
    for entry in frames:
        tally.add(entry.header)
        position = frames.position - FRAME_BYTES - len(entry.data)
        index += pointers.record(entry.entry_id, entry.offset, position, entry.header.publish_time)
    return RecoveryResult(tally, pointers, bytes(index), frames.position, frames.problem)


def check_no_flushed_loss(path: Path, result: RecoveryResult, end: HighWatermark | None) -> None:
    """Raise ObjectDamaged if bytes after the last whole frame were flushed by the record of `end`. `end` None: that
    record cannot be read."""
    if end is None or end.flushed_bytes <= result.end:
        return
    problem = result.problem or "the file ends there"
    raise ObjectDamaged(
        f"the segment {path} is damaged at byte {result.end}: {problem}; bytes up to {end.flushed_bytes}, "
        f"{end.entries} entries, were flushed, and only {result.tally.entries} entries can be read",
        RESTORE,
    )
