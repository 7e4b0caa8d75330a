"""Writing and reading one rows object: Parquet, whose footer vouches for every row group.

The footer's key-value metadata holds the CRC32C of each row group's bytes; the CRC32C of the footer itself is in the
row or manifest that names the object. So every read, one ranged read for each row group, is checked, and trust begins
at the database. Other tools see plain Parquet.

Reading does the least work: a row group's bytes are one ranged read; columns that the footer's statistics prove
constant (most of Pulsar's metadata, most of the time) are not decoded but rebuilt.

Errors: ObjectMissing, ObjectDamaged from any read; any store error from a write, which then leaves no object.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.advice import damaged_object_advice
from storage.ahead import run_ahead
from storage.checksums import crc32c, extend_crc32c
from storage.errors import ObjectDamaged
from storage.ledger import rows
from storage.model import LedgerStart, RowsObject, StoredObject
from storage.objects.interface import ObjectStore, ObjectWriter

VERSION_KEY = b"compactor.format_version"
CHECKSUMS_KEY = b"compactor.row_group_crc32c"
READS_AHEAD = 2
"""Ranged reads of up to `ObjectStore.preferred_read_bytes` that run ahead of a reader that reads all it announces."""
_PLACED_COLUMNS = ("offset", "ledger_id")
_IN_PLACE = LedgerStart(0, 0)
_VARIES = object()
"""Stands for the value of a column that is not known to be constant."""
_WHOLE_BOUND = 60
"""Characters up to which a bound of a text is whole. Writers may cut longer ones; pyarrow omits them from 4 KiB on."""
_WRITE_BYTES = 1 << 20
"""Pyarrow writes many small buffers; they are passed on in buffers of this size."""


@dataclass(frozen=True)
class RowGroup:
    """A row group: its bytes in the object, from `start` to before `end`, and its offsets in the topic (inclusive).

    `last_entry_id` None: the group spans ledgers, so the footer's statistics do not contain it.
    """

    start: int
    end: int
    crc32c: int
    rows: int
    first_offset: int
    last_offset: int
    last_ledger_id: int
    last_entry_id: int | None


class RowsEncoder:
    """An encoder of tables of `rows.SCHEMA` as row groups of one file, whose bytes it holds until `pass_to`.

    `has_topic_offsets`: offsets and ledger ids are those of the topic; otherwise they count from 0
    (rows.UNPLACED_VERSION).
    """

    def __init__(self, *, has_topic_offsets: bool = True) -> None:
        self._version = rows.FORMAT_VERSION if has_topic_offsets else rows.UNPLACED_VERSION
        self._checksums: list[int] = []
        self._cutter = rows.TableCutter(rows.GROUP_ROWS, rows.GROUP_BYTES)
        self._parquet: Any = None
        self._sink = _ChecksumSink()
        self._buffered = io.BufferedWriter(self._sink, _WRITE_BYTES)

    @property
    def held_bytes(self) -> int:
        """The bytes of the file in memory, and those of the rows of the next row group."""
        return self._sink.held_bytes + self._cutter.pending_bytes

    def pass_to(self, target: ObjectWriter) -> None:
        """Write the present bytes to `target`, and all later ones. Raises any store error."""
        self._sink.pass_to(target)

    def write(self, table: pa.Table, sizes: npt.NDArray[np.int64]) -> None:
        """Append rows, ascending by offset; `sizes`: the logical bytes of each.

        Row groups are cut by rows and by bytes.
        """
        self._write_groups(self._cutter.add(table, sizes))

    def _write_groups(self, groups: Iterable[pa.Table]) -> None:
        for group in groups:
            if self._parquet is None:
                self._parquet = self._open_parquet_writer(group)
            self._restart_checksum()
            # Pages are cut at the ends of chunks, too: the same rows shall give the same bytes.
            self._parquet.write_table(group.combine_chunks(), row_group_size=len(group))
            self._buffered.flush()
            self._checksums.append(self._sink.checksum)

    def _open_parquet_writer(self, group: pa.Table) -> Any:
        return pq.ParquetWriter(self._buffered, rows.FILE_SCHEMA, **rows.parquet_writer_options(group))

    def finish(self, name: str) -> RowsObject:
        """Encode the remaining rows and the footer; return the object of that name that the bytes are."""
        self._write_groups(self._cutter.remaining())
        if self._parquet is None:
            self._parquet = self._open_parquet_writer(rows.FILE_SCHEMA.empty_table())
        checksums = np.asarray(self._checksums, dtype="<u4").tobytes().hex()
        metadata = {VERSION_KEY: str(self._version), CHECKSUMS_KEY: checksums}
        self._parquet.add_key_value_metadata(rows.ARROW_SCHEMA | metadata)
        self._restart_checksum()
        start = self._sink.tell()
        self._parquet.close()
        self._buffered.flush()
        size = self._sink.tell()
        return RowsObject(StoredObject(name, size, self._sink.checksum), size - start)

    def _restart_checksum(self) -> None:
        self._buffered.flush()
        self._sink.checksum = 0

    def abandon(self) -> None:
        """Drop the held bytes and all later ones, and close pyarrow's writer, so that no destructor writes later."""
        self._sink.discard()
        if self._parquet is not None:
            self._parquet.close()


class RowsWriter:
    """A writer of tables of `rows.SCHEMA` as row groups of one new object; a context manager.

    On a clean exit the object exists, durably, and `result` names it; on an exception there is no object, and `result`
    stays None. The exit raises ObjectExists if there is an object of that name.
    """

    def __init__(self, store: ObjectStore, name: str, encoder: RowsEncoder | None = None) -> None:
        """`encoder`: has encoded the first rows of the object already; it belongs to this writer from now on."""
        self._store = store
        self._name = name
        self._encoder = encoder or RowsEncoder()
        self.result: RowsObject | None = None

    def __enter__(self) -> RowsWriter:
        self._object: ObjectWriter = self._store.create(self._name)
        try:
            self._object.__enter__()
        except BaseException:
            self._encoder.abandon()
            raise
        try:
            self._encoder.pass_to(self._object)
        except BaseException as failure:
            self._abandon_object(failure)
            raise
        return self

    def write(self, table: pa.Table, sizes: npt.NDArray[np.int64]) -> None:
        """Append rows; see `RowsEncoder.write`."""
        self._encoder.write(table, sizes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon_object(error)
            return
        try:
            result = self._encoder.finish(self._name)
        except BaseException as failure:
            self._abandon_object(failure)
            raise
        self._object.__exit__(None, None, None)
        self.result = result

    def _abandon_object(self, error: BaseException) -> None:
        self._encoder.abandon()
        self._object.__exit__(type(error), error, error.__traceback__)


class _ConstantArray(NamedTuple):
    """A column that holds one value in every row."""

    value: Any
    array: pa.Array


class RowsReader:
    """A reader of one rows object by row group. Every byte that it returns was checked.

    Creating it reads the footer. Iterating yields each row group as a table. Offsets and ledger ids are those of the
    topic, also of a ledger that counts from 0. Raises ObjectMissing, ObjectDamaged.
    """

    def __init__(self, store: ObjectStore, rows_object: RowsObject) -> None:
        self._store = store
        self._place = rows_object.place
        self._stored = rows_object.stored
        self._footer_start = self._stored.size - rows_object.footer_size
        footer = store.get(self._stored.name, self._footer_start, rows_object.footer_size)
        if crc32c(footer) != self._stored.crc32c:
            raise self._checksum_error("its footer")
        self._metadata = pq.read_metadata(pa.BufferReader(footer))
        self._window = LoadedRange(self._stored.size)
        self._announced: deque[range] = deque()
        self._ahead: Iterator[memoryview] = iter(())
        self._scratch = bytearray()
        self._known_constants: dict[int, dict[str, Any]] = {}
        self._constant_arrays: dict[str, _ConstantArray] = {}
        self._file = pq.ParquetFile(pa.PythonFile(self._window, mode="r"), metadata=self._metadata, pre_buffer=False)
        self._absent = dict.fromkeys(set(rows.SCHEMA.names) - set(self._file.schema_arrow.names))
        """Columns that the object lacks, because it is older than they are: null in every row."""

    @property
    def stored(self) -> StoredObject:
        """The stored object that this reader reads."""
        return self._stored

    @property
    def metadata(self) -> Any:
        """The footer: `pyarrow.parquet.FileMetaData`."""
        return self._metadata

    @cached_property
    def groups(self) -> tuple[RowGroup, ...]:
        """The row groups, in offset order. Raises ObjectDamaged for an unknown format version."""
        base = self._place_base
        checksums = np.frombuffer(bytes.fromhex(self._metadata.metadata[CHECKSUMS_KEY].decode()), dtype="<u4").tolist()
        described = [self._metadata.row_group(i) for i in range(self._metadata.num_row_groups)]
        starts = [_group_start(group) for group in described]
        ends = [*starts[1:], self._footer_start] if starts else []
        groups = []
        for group, start, end, checksum in zip(described, starts, ends, checksums, strict=True):
            offset, ledger, entry = (group.column(i).statistics for i in range(3))
            groups.append(
                RowGroup(
                    start,
                    end,
                    checksum,
                    group.num_rows,
                    offset.min + base.first_offset,
                    offset.max + base.first_offset,
                    ledger.max + base.ledger_id,
                    entry.max if ledger.min == ledger.max else None,
                )
            )
        return tuple(groups)

    @cached_property
    def _place_base(self) -> LedgerStart:
        """The place that is added to offsets and ledger ids of the object. Raises ObjectDamaged for another version."""
        version = (self._metadata.metadata or {}).get(VERSION_KEY, b"")
        if version == b"%d" % rows.FORMAT_VERSION:
            return _IN_PLACE
        if version == b"%d" % rows.UNPLACED_VERSION and self._place is not None:
            return self._place
        raise ObjectDamaged(
            f"{self._stored.name} is of format version {version!r}",
            "use a newer compactor to read it",
            is_public=True,
        )

    def read(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """Return the rows of row group `group`, with all columns or only `columns`, in the order of `columns`."""
        names = columns or rows.SCHEMA.names
        decoded = self._decode_columns(group, names, None)
        return self._assemble_table(names, [decoded], self._constant_columns(group, names), self.groups[group].rows)

    def decoded_bytes(self, group: int) -> int:
        """Return the approximate bytes of a row group in memory, by its metadata."""
        return int(self._metadata.row_group(group).total_byte_size)

    def take(self, selections: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> Iterator[pa.Table]:
        """Yield all columns of some rows of row groups.

        `selections`: row groups, ascending, and the positions in each, ascending and not empty. Groups with few
        selected rows are returned in one table, up to about `rows.GROUP_BYTES` in memory (stored, they may be a
        thousandth of it), so that they share the cost of a table.
        """
        pieces: list[pa.Table] = []
        constants: dict[str, Any] = {}
        count = size = 0
        for number, positions in selections:
            group, own = self.groups[number], self._constant_columns(number, rows.SCHEMA.names)
            full = size >= rows.GROUP_BYTES or count + len(positions) > rows.GROUP_ROWS
            if pieces and (full or own != constants):
                yield self._assemble_table(rows.SCHEMA.names, pieces, constants, count)
                pieces, count, size = [], 0, 0
            constants = own
            pieces.append(
                self._decode_columns(number, rows.SCHEMA.names, None if len(positions) == group.rows else positions)
            )
            count += len(positions)
            size += self._metadata.row_group(number).total_byte_size * len(positions) // group.rows
        if pieces:
            yield self._assemble_table(rows.SCHEMA.names, pieces, constants, count)

    def announce_row_groups(self, groups: Sequence[int], *, ahead: bool = False) -> None:
        """Announce the row groups that will be read, ascending, so that neighbours may be read in one ranged read.

        `ahead`: all of them will be read, so up to `READS_AHEAD` ranged reads run beside the use of the one before.
        """
        self._announced = deque(self._ranges_of_neighbours(groups))
        reads = (partial(self._read_checked, window) for window in tuple(self._announced))
        self._ahead = run_ahead(reads, min(READS_AHEAD, self._store.concurrent_requests) if ahead else 0)

    def _ranges_of_neighbours(self, groups: Sequence[int]) -> Iterator[range]:
        """Yield the row groups as ranges of neighbours that are read together."""
        first = last = -1
        for number in groups:
            size = self.groups[number].end - self.groups[first].start
            if first >= 0 and number == last + 1 and size <= self._store.preferred_read_bytes:
                last = number
                continue
            if first >= 0:
                yield range(first, last + 1)
            first = last = number
        if first >= 0:
            yield range(first, last + 1)

    def offsets(self, group: int) -> npt.NDArray[np.int64]:
        """Return the offsets of the rows of one row group, shape (rows,)."""
        return np.asarray(self.read(group, ["offset"]).column("offset").to_numpy(), dtype=np.int64)

    def least(self, group: int, column: str) -> int | None:
        """Return the least value of a numeric column in one row group, by its statistics; None if all are null."""
        statistics = self._column_statistics(group, column)
        return int(statistics.min) + self._place_shift(column) if statistics is not None else None

    def greatest(self, group: int, column: str) -> int | None:
        """Return the largest value of a numeric column in one row group, by its statistics; None if all are null."""
        statistics = self._column_statistics(group, column)
        return int(statistics.max) + self._place_shift(column) if statistics is not None else None

    def _place_shift(self, column: str) -> int:
        """Return the number to add to the values of a column: its ledger's first offset or id; 0 for other columns."""
        return {"offset": self._place_base.first_offset, "ledger_id": self._place_base.ledger_id}.get(column, 0)

    def _column_statistics(self, number: int, column: str) -> Any:
        if column in self._absent:
            return None
        statistics = self._metadata.row_group(number).column(self._column_numbers[column]).statistics
        return statistics if statistics is not None and statistics.has_min_max else None

    @cached_property
    def _column_numbers(self) -> Mapping[str, int]:
        """The number of each column in a row group, by its name: leaves of nested columns shift later columns."""
        schema = self._metadata.schema
        return {schema.column(number).path: number for number in range(len(schema))}

    @cached_property
    def _leaf_numbers(self) -> Mapping[str, list[int]]:
        """The numbers of the leaves of each column of rows.SCHEMA in a row group."""
        leaves: dict[str, list[int]] = {}
        for path, number in self._column_numbers.items():
            leaves.setdefault(path.partition(".")[0], []).append(number)
        return leaves

    def __iter__(self) -> Iterator[pa.Table]:
        self.announce_row_groups(range(len(self.groups)))
        for number in range(len(self.groups)):
            yield self.read(number)

    def _decode_columns(self, number: int, columns: list[str], positions: npt.NDArray[np.int64] | None) -> pa.Table:
        """Return the columns that vary in a row group; its bytes are checked even if none does."""
        self._load_row_group(number)
        constants = self._constant_columns(number, columns)
        varying = [name for name in columns if name not in constants]
        decoded = self._file.read_row_group(number, columns=varying, use_threads=False)
        for name in _PLACED_COLUMNS:
            if (added := self._place_shift(name)) and name in varying:
                moved = pc.add(decoded.column(name), added)
                decoded = decoded.set_column(decoded.schema.get_field_index(name), rows.SCHEMA.field(name), moved)
        return decoded if positions is None else decoded.take(pa.array(positions))

    def _load_row_group(self, number: int) -> None:
        """Load the row group's bytes into the window, with its neighbours if they were announced."""
        group = self.groups[number]
        if self._window.holds(group.start, group.end):
            return
        self._window.clear()
        if self._announced and number in self._announced[0]:
            window = self._announced.popleft()
            view = next(self._ahead)
        else:
            window = range(number, number + 1)
            view = self._read_checked(window)
        self._window.load(view, self.groups[window.start].start)

    def _read_checked(self, window: range) -> memoryview:
        """Return the bytes of neighbouring row groups. Raises ObjectMissing, ObjectDamaged."""
        start = self.groups[window.start].start
        size = self.groups[window.stop - 1].end - start
        if self._store.concurrent_requests:
            view = memoryview(self._store.get(self._stored.name, start, size))
        else:
            if size > len(self._scratch):
                self._scratch = bytearray(size)
            # The tables decoded from it do not refer to it: every value is copied.
            view = memoryview(self._scratch)[:size]
            self._store.read_into(self._stored.name, start, view)
        for number in window:
            group = self.groups[number]
            if crc32c(view[group.start - start : group.end - start]) != group.crc32c:
                raise self._checksum_error(f"row group {number} (bytes {group.start} to {group.end})")
        return view

    def _constant_columns(self, number: int, columns: Sequence[str]) -> dict[str, Any]:
        """Return those of `columns` that statistics prove constant in a row group, with their value."""
        known = self._known_constants.setdefault(number, {})
        group = self._metadata.row_group(number)
        for name in columns:
            if name not in known:
                statistics = [group.column(leaf).statistics for leaf in self._leaf_numbers.get(name, ())]
                value: Any = None if name in self._absent else _constant_value(statistics, group.num_rows)
                known[name] = (
                    value + self._place_shift(name) if name in _PLACED_COLUMNS and value is not _VARIES else value
                )
        return {name: known[name] for name in columns if known[name] is not _VARIES}

    def _assemble_table(
        self, columns: list[str], pieces: list[pa.Table], constants: dict[str, Any], count: int
    ) -> pa.Table:
        """Return the decoded columns of `pieces`, one after the other, with the constant ones rebuilt."""
        decoded = pa.concat_tables(pieces)
        created = [
            self._constant_array(name, constants[name], count) if name in constants else decoded.column(name)
            for name in columns
        ]
        return pa.table(created, schema=pa.schema([rows.SCHEMA.field(name) for name in columns]))

    def _constant_array(self, name: str, value: Any, count: int) -> pa.Array:
        """Return a column that holds `value` in `count` rows. Row groups with the same value share its memory."""
        built = self._constant_arrays.get(name)
        if built is None or built.value != value or len(built.array) < count:
            built = self._constant_arrays[name] = _ConstantArray(value, rows.constant_column(value, name, count))
        return built.array.slice(0, count)

    def _checksum_error(self, what: str) -> ObjectDamaged:
        return ObjectDamaged(
            f"{what} of {self._stored.name} does not match its checksum",
            damaged_object_advice(self._stored.name),
            is_public=True,
        )


def _group_start(group: Any) -> int:
    starts = []
    for i in range(group.num_columns):
        column = group.column(i)
        starts.append(column.dictionary_page_offset or column.data_page_offset)
    return int(min(starts))


def _constant_value(statistics: Sequence[Any], count: int) -> Any:
    """Return the value of a column in all `count` rows, by the statistics of its leaves; _VARIES: they prove none."""
    if any(leaf is None or not leaf.has_null_count for leaf in statistics):
        return _VARIES
    if all(leaf.null_count == count and leaf.num_values == 0 for leaf in statistics):
        return None
    return statistics[0].min if len(statistics) == 1 and _has_one_value(statistics[0]) else _VARIES


def _has_one_value(statistics: Any) -> bool:
    return bool(
        statistics.has_min_max
        and statistics.null_count == 0
        and statistics.min == statistics.max
        and (statistics.physical_type != "BYTE_ARRAY" or len(statistics.min) <= _WHOLE_BOUND)
    )


class _ChecksumSink(io.RawIOBase):
    """A writable file that keeps a running checksum. It holds its bytes until they are passed to an object writer."""

    def __init__(self) -> None:
        self._target: ObjectWriter | None = None
        self._held: list[bytes] = []
        self._is_discarded = False
        self._position = 0
        self.checksum = 0

    @property
    def held_bytes(self) -> int:
        return 0 if self._target is not None else self._position

    def pass_to(self, target: ObjectWriter) -> None:
        held, self._held, self._target = self._held, [], target
        for data in held:
            target.write(data)

    def discard(self) -> None:
        self._is_discarded, self._held, self._target = True, [], None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        if not self._is_discarded:
            if self._target is not None:
                self._target.write(data)
            else:
                self._held.append(bytes(data))
            self.checksum = extend_crc32c(self.checksum, data)
        self._position += len(data)
        return len(data)


class LoadedRange(io.RawIOBase):
    """A readable file of an object's size that holds a range of its bytes, such as some neighbouring row groups."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._data = memoryview(b"")
        self._position = 0
        self._start = 0

    def load(self, data: memoryview, start: int) -> None:
        self._data, self._start = data, start

    def clear(self) -> None:
        self._data, self._start = memoryview(b""), 0

    def holds(self, start: int, end: int) -> bool:
        return self._start <= start and end <= self._start + len(self._data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset if whence == io.SEEK_SET else self._size + offset
        return self._position

    def read(self, size: int = -1) -> memoryview:
        first = self._position - self._start
        if first < 0 or size < 0 or first + size > len(self._data):
            raise ValueError(f"bytes {self._position} and {size} after them are not in the loaded range")
        self._position += size
        return self._data[first : first + size]
