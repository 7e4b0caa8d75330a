"""A read of a topic in pieces, each by another process: a part of the compacted ledger, a sealed ledger, or a segment.

`plan_scan` decides in one snapshot which pieces there are, and leaves out those that cannot have a wanted message, by
offsets, publish times and, through the key indexes, keys. `ScanPiece.tables` reads one: it needs the object store, and
for a segment the log directory, but no database. All pieces together are what a reader of the snapshot gets, in the
order of the pieces. Keys and times only leave out extents and row groups: the caller filters rows.

No pin protects the pieces. A part stays for the grace time of garbage collection after it was replaced, a segment for
the delay of deleted files after it was sealed; later, reading a piece raises Unavailable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage.errors import CompactorError, InvalidInput, ObjectMissing, OffsetOutOfRange, StateMayBeStale, Unavailable
from storage.ledger import key_index, rows
from storage.ledger.chunk_table import read_ledger_chunks
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import MARKER, OFFSET_MASK, U64
from storage.ledger.manifest import Manifest, Part
from storage.ledger.rows_file import RowsReader
from storage.ledger.seek import SeekOffset
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import SegmentRecord, TopicSnapshot
from storage.model import IndexLocation, LedgerRecord, LogPosition
from storage.objects.interface import ObjectStore
from storage.reading.compacted_loss import naming_compacted_ledger
from storage.reading.snapshot_reader import RetentionFilter, SnapshotReader, last_position_of, rows_between

END = 2**63 - 1
"""An end after every offset and time."""
MAX_KEYS = 1000
"""More keys than these are not searched in the indexes: their reads would cost more than the rows."""
_CHECKED = ("offset", "slot")
"""Columns that are read whatever is asked for."""


@dataclass(frozen=True)
class ScanRange:
    """The range of messages that a scan reads: offsets and publish times (ms) from `first` to before `end`, and keys.

    `keys` None: all keys, and messages without one.
    """

    first_offset: int = 0
    end_offset: int = END
    first_time: int = 0
    end_time: int = END
    keys: frozenset[bytes] | None = None


@dataclass(frozen=True)
class _Window:
    """The range of a scan as a seek position (storage/ledger/seek.py) that also has an end. `offsets`: the offsets that
    may have one of the keys; None: any."""

    range: ScanRange
    offsets: tuple[int, ...] | None = None

    def surely_begins_after(self, last: LogPosition) -> bool:
        return last.offset < self.range.first_offset

    def skips_row_group(self, reader: RowsReader, group: int) -> bool:
        first, last = reader.groups[group].first_offset, reader.groups[group].last_offset
        if last < self.range.first_offset or first >= self.range.end_offset:
            return True
        if self.offsets is not None and not any(first <= offset <= last for offset in self.offsets):
            return True
        newest, oldest = reader.greatest(group, "publish_time"), reader.least(group, "publish_time")
        is_old = newest is not None and newest < self.range.first_time
        return is_old or (oldest is not None and oldest >= self.range.end_time)

    def first_row(self, table: pa.Table) -> int:
        return SeekOffset(self.range.first_offset).first_row(table)


@dataclass(frozen=True)
class ScanPiece:
    """A piece of a scan, for one task; it can be pickled. `snapshot`: the topic with the one extent that is read, or
    none.

    `part`: of the compacted ledger; None: the extent is read.
    """

    snapshot: TopicSnapshot
    window: _Window
    part: Part | None = None
    retention: RetentionFilter | None = None

    def tables(self, store: ObjectStore, unsealed: SegmentTableReader, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the messages of the piece as tables of some columns of rows.SCHEMA; none is empty.

        Raises ObjectDamaged, Unavailable, SegmentNotLocal, and InvalidInput for a row that is no message of its own (an
        encrypted entry, a chunk) unless `columns` has `slot`, by which a caller distinguishes it.
        """
        hiding = () if self.retention is None else ("publish_time",)
        read = list(dict.fromkeys((*columns, *_CHECKED, *hiding)))
        reader = SnapshotReader(store, self.snapshot, unsealed, self.retention, read)
        tables = reader.raw(self.window) if self.part is None else reader.part(self.part, self.window)
        for table in _explaining_missing_objects(tables):
            table = rows_between(table, self.window.range.first_offset, self.window.range.end_offset)
            if len(table) and "slot" not in columns:
                self._check_only_messages(table)
            if len(table):
                yield table.select(list(columns))

    def _check_only_messages(self, table: pa.Table) -> None:
        other = np.flatnonzero(table.column("slot").to_numpy() != int(rows.RowType.MESSAGE))
        if len(other):
            row = int(other[0])
            kind, offset = rows.RowType(table.column("slot")[row].as_py()), table.column("offset")[row]
            raise InvalidInput(
                f"offset {offset} of {self.snapshot.topic.name} is no message of its own but {_NAMES[kind]}",
                "select the column slot too, which distinguishes such rows, or read by REST or a Pulsar client",
            )


def _explaining_missing_objects(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables unchanged; turn ObjectMissing into Unavailable, since a missing object was probably replaced,
    sealed or trimmed after the plan."""
    try:
        yield from tables
    except ObjectMissing as error:
        raise Unavailable(
            f"{error.message}; since the scan was planned it may have been compacted, sealed or trimmed",
            "run the query again; if it fails again, verify the topic with `compactor verify`",
        ) from error


_NAMES = {
    rows.RowType.WHOLE_ENTRY: "an entry that is encrypted or cannot be decoded",
    rows.RowType.CHUNK: "a chunk of a chunked message",
}


def plan_scan(
    store: ObjectStore,
    reader: SnapshotReader,
    hasher: KeyHasher,
    scan_range: ScanRange,
    *,
    read_compacted: bool = False,
    resumes: bool = False,
    known_ledger_id: int | None = None,
) -> list[ScanPiece]:
    """Divide a read of a topic into pieces for tasks; return them in the order of messages. The topic's present end is
    the end of the scan.

    `reader`: of the topic as it is now. `read_compacted`: the parts of the compacted ledger, then raw after its
    horizon. `resumes`: an earlier scan has read all messages before the first offset, so nothing may be missing from
    there on: raises OffsetOutOfRange where raw is trimmed, and StateMayBeStale (R7) where the compacted ledger lacks
    what that scan has not read, unless it is `known_ledger_id`, from which that scan has read. Raises DataLoss, and
    SegmentNotLocal where the end is in another machine's log.
    """
    snapshot = reader.snapshot
    if scan_range.end_offset > snapshot.topic.next_offset:
        scan_range = replace(scan_range, end_offset=min(scan_range.end_offset, reader.end))
    plan = _ScanPlanner(store, replace(snapshot, ledgers=(), segments=()), scan_range, reader.retention, None)
    if scan_range.keys is not None and len(scan_range.keys) <= MAX_KEYS:
        hi, lo = hasher(pa.array(sorted(scan_range.keys), pa.binary()))
        order = np.lexsort((lo, hi))
        plan = replace(plan, hashes=(hi[order], lo[order]))
    pieces: list[ScanPiece] = []
    first = scan_range.first_offset
    manifest = None
    if read_compacted:
        manifest = _usable_manifest(reader, first, resumes=resumes, known_ledger_id=known_ledger_id)
    if manifest is not None:
        with naming_compacted_ledger(snapshot):
            pieces += plan.compacted_pieces(manifest)
        first = manifest.horizon.offset + 1
    if resumes and first < min(reader.first_offset, scan_range.end_offset):
        raise _trimmed_error(reader, first, read_compacted=read_compacted)
    plan = replace(plan, range=replace(scan_range, first_offset=first))
    for extent in snapshot.extents:
        pieces += plan.raw_pieces(extent)
    return pieces


def compacted_ledger_of_scan(
    reader: SnapshotReader, first_offset: int, *, resumes: bool, known_ledger_id: int | None
) -> int | None:
    """Return the id of the compacted ledger from which a scan with `read_compacted` reads; None: it reads raw alone.

    For the arguments and errors see `plan_scan`.
    """
    manifest = _usable_manifest(reader, first_offset, resumes=resumes, known_ledger_id=known_ledger_id)
    compacted = reader.snapshot.compacted
    return None if manifest is None or compacted is None else compacted.ledger_id


def _usable_manifest(
    reader: SnapshotReader, first_offset: int, *, resumes: bool, known_ledger_id: int | None
) -> Manifest | None:
    """Return the manifest of the compacted ledger for a scan from an offset; None: the scan does not read that ledger,
    or might miss messages in it.

    A usable one has the newest value or deletion, at that offset or later, of each key that was read before.
    """
    compacted = reader.snapshot.compacted
    if compacted is None or first_offset > compacted.horizon.offset:
        return None
    with naming_compacted_ledger(reader.snapshot):
        manifest = reader.manifest(compacted)
    if not resumes or first_offset == 0:
        return manifest
    if reader.retention is not None and reader.retention.may_hide_after(first_offset - 1, manifest.parts):
        return None
    is_complete = manifest.dropped_to < first_offset and not manifest.policies.get("event_time_order")
    return manifest if is_complete or compacted.ledger_id == known_ledger_id else None


def _trimmed_error(reader: SnapshotReader, offset: int, *, read_compacted: bool) -> CompactorError:
    name, first = reader.snapshot.topic.name, reader.first_offset
    what = f"offsets {offset} to {first - 1} of {name} are trimmed, and were not read"
    if read_compacted:
        return StateMayBeStale(
            f"{what}; the compacted ledger lacks deletions or values among them",
            "read again from earliest, into an empty state",
        )
    return OffsetOutOfRange(what, "begin again, and read more often than raw messages are trimmed")


@dataclass(frozen=True)
class _ScanPlanner:
    """The choice of the pieces of a scan. `hashes`: the high and low halves of the hashes of the requested keys,
    ascending."""

    store: ObjectStore
    snapshot: TopicSnapshot
    range: ScanRange
    retention: RetentionFilter | None
    hashes: tuple[U64, U64] | None

    def compacted_pieces(self, manifest: Manifest) -> Iterator[ScanPiece]:
        """Yield the pieces of a compacted ledger that may have a requested message. One with chunked messages is not
        searched by keys: they are in no index."""
        offsets = None if self.hashes is None or manifest.chunks else self._newest_row_offsets(manifest)
        for part in manifest.parts:
            window = self.range.first_time <= part.max_publish_time and part.min_publish_time < self.range.end_time
            if not window or not self._overlaps(part.first.offset, part.last.offset):
                continue
            if self.retention is not None and self.retention.hides_all(part):
                continue
            own = None
            if offsets is not None:
                own = tuple(offset for offset in offsets if part.first.offset <= offset <= part.last.offset)
                if not own:
                    continue
            yield ScanPiece(self.snapshot, _Window(self.range, own), part, self.retention)

    def _newest_row_offsets(self, manifest: Manifest) -> list[int]:
        """Return the offsets of the newest rows of the requested keys in a compacted ledger: the newest level that has
        a key decides."""
        by_event = bool(manifest.policies.get("event_time_order"))
        newest: dict[int, int] = {}
        for level in manifest.index:
            for location in level:
                for place, flagged in self._index_records(location, by_event):
                    newest.setdefault(place, flagged)
        return sorted(flagged & int(OFFSET_MASK) for flagged in newest.values() if not flagged & int(MARKER))

    def raw_pieces(self, extent: LedgerRecord | SegmentRecord) -> Iterator[ScanPiece]:
        """Yield the piece of a ledger or segment, if it may have a requested message."""
        last = last_position_of(extent)
        if not self._overlaps(extent.first_offset, END if last is None else last.offset):
            return
        if isinstance(extent, SegmentRecord):
            yield ScanPiece(replace(self.snapshot, segments=(extent,)), _Window(self.range))
            return
        if extent.max_publish_time < self.range.first_time or extent.min_publish_time >= self.range.end_time:
            return
        if (
            self.hashes is None
            or len(read_ledger_chunks(self.store, extent.index))
            or any(self._index_records(extent.index))
        ):
            yield ScanPiece(replace(self.snapshot, ledgers=(extent,)), _Window(self.range))

    def _overlaps(self, first: int, last: int) -> bool:
        return first < self.range.end_offset and last >= self.range.first_offset

    def _index_records(self, location: IndexLocation, by_event: bool = False) -> Iterator[tuple[int, int]]:
        """Look up the requested keys in a key index; yield the place and the flagged offset of each key that it has."""
        assert self.hashes is not None
        hi, lo = self.hashes
        records = key_index.probe_records(self.store, location, hi, events=by_event)
        if by_event:
            records = records.event_winners()
        flagged = records.offset if records.event_offset is None else records.event_offset
        for place, position in enumerate(key_index.positions_of_hashes(records, hi, lo).tolist()):
            if position >= 0:
                yield place, int(flagged[position])
