"""Damaged-segment recovery: the readable entries of a segment, as the rows of the ledger that replaces it.

Its row in SQL records how many entries and offsets it held. Entries that the file proves (segment_dump.py) are returned
as they were; each lost offset gets a row of slot COMPACTED_OUT, which is never delivered. So offsets stay dense, and
the ledger has the segment's counts, its last offset and its last message id, as if it were undamaged. Entries after
damage get their places again from the next known place, at the latest from the segment's end, which the row records.

The entry ids of lost rows follow from their neighbours: each lost entry of a gap gets one offset, the segment's last
one as many as its row says, and the first of the gap all remaining ones. Publish times are those of the message before;
at the end, that of the newest message that the segment held, so the ledger is no older than the segment was.

Only for an operator who has decided to accept the loss. Changes nothing. Errors: Unavailable (the disk). Memory: as
sealing the segment (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from storage.entries.batch import Messages
from storage.entries.columns import EntryFields, RowColumns
from storage.entries.decode import StoredEntry, unpack
from storage.errors import ObjectMissing
from storage.ledger.rows import RowType
from storage.log.frames import SegmentHeader, frame_checksum
from storage.log.segment import LocalSegment
from storage.log.segment_dump import FrameState, ScannedFrame, SegmentScan
from storage.metadata.records import SegmentContent

_RUN_BYTES = 4 << 20
_Place = tuple[int, int]
"""Entry id and offset of an entry, or of the next one after the last."""


class RecoveredRows(NamedTuple):
    """The recovered rows of a damaged segment, and the number of its offsets whose messages are lost."""

    table: pa.Table
    lost: int


def recovered_rows(segment: LocalSegment, content: SegmentContent) -> RecoveredRows:
    """Read a damaged or missing file of a rolled segment; return a row for each of the segment's offsets.

    A lost offset gets a row of slot COMPACTED_OUT. `content`: the content of the segment, by its row in SQL.
    """
    header = segment.header
    end = content.entries, content.last_offset + 1
    tables, lost = [], 0
    position, publish_time = (0, header.first_offset), content.min_publish_time
    for entries in _contiguous_runs(_consistent_entries(segment.files.log, header, position, end)):
        start = entries[0].entry_id, entries[0].offset
        if start != position:
            tables.append(_compacted_out_rows(header.ledger_id, position, start, publish_time, 1))
            lost += start[1] - position[1]
        tables.append(unpack(entries, header.ledger_id))
        position, publish_time = _place_after(entries[-1]), entries[-1].header.publish_time
    if position != end:
        last = max(1, content.last_message_id.batch_index + 1)
        tables.append(_compacted_out_rows(header.ledger_id, position, end, content.max_publish_time, last))
        lost += end[1] - position[1]
    return RecoveredRows(pa.concat_tables(tables), lost)


def _contiguous_runs(entries: Iterator[StoredEntry]) -> Iterator[list[StoredEntry]]:
    """Group entries into lists without a gap of offsets inside, each of a limited number of bytes; yield the lists in
    order."""
    run: list[StoredEntry] = []
    size = 0
    for entry in entries:
        if run and (size > _RUN_BYTES or _place_after(run[-1]) != (entry.entry_id, entry.offset)):
            yield run
            run, size = [], 0
        run.append(entry)
        size += max(len(entry.data), entry.header.payload_bytes)
    if run:
        yield run


def _consistent_entries(file: Path, header: SegmentHeader, first: _Place, end: _Place) -> Iterator[StoredEntry]:
    """Yield the verified entries, in order, that leave enough entry ids and offsets for the missing entries between
    `first` and `end`. Yield nothing if the file is missing."""
    position = first
    try:
        for entry in _verified_entries(file, header, end):
            if _entries_fit_between(position, (entry.entry_id, entry.offset)) and _entries_fit_between(
                _place_after(entry), end
            ):
                yield entry
                position = _place_after(entry)
    except ObjectMissing:
        return


def _verified_entries(file: Path, header: SegmentHeader, end: _Place) -> Iterator[StoredEntry]:
    """Yield the entries of a segment's file whose place is proved, by the checksum of their frame or of a following
    one."""
    with SegmentScan(file, expected=header) as scanned:
        is_expected = scanned.header == header
        doubtful: list[StoredEntry] = []
        unplaced: list[ScannedFrame] = []
        for frame in scanned.frames():
            if frame.data is None or frame.header is None:
                doubtful, unplaced = [], []
            elif frame.entry_id is None or frame.offset is None:
                doubtful = []
                unplaced.append(frame)
            else:
                yield from _assign_places_before(unplaced, (frame.entry_id, frame.offset), header)
                unplaced = []
                doubtful.append(StoredEntry(frame.entry_id, frame.offset, frame.data, frame.header))
            if frame.state is FrameState.VALID:
                is_expected = True
                yield from doubtful
                doubtful = []
        yield from _assign_places_before(unplaced, end, header)
        if is_expected and doubtful and _place_after(doubtful[-1]) == end:
            yield from doubtful


def _assign_places_before(frames: list[ScannedFrame], place: _Place, header: SegmentHeader) -> list[StoredEntry]:
    """Assign entry ids and offsets to consecutive frames that end at `place`, from the last one backwards, as long as
    their checksums agree; return these entries, in order."""
    placed: list[StoredEntry] = []
    entry_id, offset = place
    for frame in reversed(frames):
        assert frame.data is not None
        assert frame.header is not None
        entry_id, offset = entry_id - 1, offset - frame.header.messages
        if (
            entry_id < 0
            or offset < 0
            or frame.checksum != frame_checksum(header.checksum, entry_id, offset, frame.data)
        ):
            break
        placed.append(StoredEntry(entry_id, offset, frame.data, frame.header))
    return placed[::-1]


def _place_after(entry: StoredEntry) -> _Place:
    return entry.entry_id + 1, entry.offset + entry.header.messages


def _entries_fit_between(start: _Place, end: _Place) -> bool:
    """Return whether the missing entries between two places can exist: each takes at least one offset."""
    entries, offsets = end[0] - start[0], end[1] - start[1]
    return entries == offsets == 0 or 1 <= entries <= offsets


def _compacted_out_rows(ledger_id: int, start: _Place, end: _Place, publish_time: int, last: int) -> pa.Table:
    """Return a row of slot COMPACTED_OUT for each offset between two places, as a table. `last`: the offsets of the
    last entry, if that many remain."""
    entries, offsets = end[0] - start[0], end[1] - start[1]
    spare = offsets - entries
    counts = [1] * entries
    counts[-1] += min(spare, last - 1)
    counts[0] += offsets - sum(counts)
    columns = RowColumns()
    offset = start[1]
    for number, count in enumerate(counts):
        rows = EntryFields(start[0] + number, offset, publish_time, None, count > 1, count if count > 1 else 0)
        none: list[bytes | None] = [None] * count
        slots = [(row, int(RowType.COMPACTED_OUT)) for row in range(count)]
        columns.add(rows, Messages(keys=none, payloads=none, sequence_ids=[0] * count, slots=slots))
        offset += count
    return columns.table(ledger_id)
