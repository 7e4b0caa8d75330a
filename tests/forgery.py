"""Changes to a topic's objects and rows that no checksum betrays: rewritten, and all that vouches made right.

A `Forger` works through the project's own writers. Each method changes one kind of object and lets manifest and row
follow, with sums, counts and sizes as they must be for the changed content; so what verify then finds, it finds by what
the objects mean. Its arguments are functions from what there is to what there shall be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap, BitMap64
from sqlalchemy import update

from storage.ledger import key_index, rows
from storage.ledger.deletion_bitmap import encode_bitmaps, read_deleted_rows
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import IndexDirectory, IndexRecords
from storage.ledger.manifest import Manifest, Part, read_manifest, write_manifest
from storage.ledger.rows_file import RowsReader, RowsWriter
from storage.ledger.sealing import Sealer
from storage.metadata import row_mapping
from storage.metadata.records import CompactedLedgerRecord
from storage.metadata.tables import compacted_ledgers, ledgers
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, RowsObject
from storage.topic import Topic
from tests.sealed import new_id
from tests.workbench import Workbench

TableChange = Callable[[pa.Table], pa.Table]
RecordsChange = Callable[[IndexRecords], IndexRecords]


@dataclass(frozen=True)
class Forger:
    """Changes one topic."""

    bench: Workbench
    topic: Topic

    @property
    def record(self) -> CompactedLedgerRecord:
        compacted = self.topic.snapshot().compacted
        assert compacted is not None
        return compacted

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.bench.store, self.record.manifest)

    @property
    def hasher(self) -> Xxh3KeyHasher:
        return Xxh3KeyHasher(self.topic.record.hash_seed)

    def key_hash(self, key: bytes) -> tuple[int, int]:
        hi, lo = self.hasher(pa.array([key], pa.binary()))
        return int(hi[0]), int(lo[0])

    def rows_of(self, rows_object: RowsObject) -> pa.Table:
        return pa.concat_tables(list(RowsReader(self.bench.store, rows_object)))

    def live_rows(self, part: Part) -> pa.Table:
        table = self.rows_of(part.rows)
        dead = read_deleted_rows(self.bench.store, part)
        return table.filter(
            pa.array([int(o) - part.first.offset not in dead for o in table.column("offset").to_pylist()])
        )

    # What serves

    def publish(self, manifest: Manifest) -> None:
        """Let a changed manifest serve; the row says of it what is true of its parts."""
        live = [self.live_rows(part) for part in manifest.parts]
        keyed = [t.filter(pc.and_(t.column("key").is_valid(), pc.equal(t.column("slot"), 0))) for t in live]
        tombstones = sum(sum(not payload for payload in t.column("payload").to_pylist()) for t in keyed)
        manifest = replace(manifest, keys=sum(map(len, keyed)) - tombstones, tombstones=tombstones)
        self.publish_as_it_is(manifest, _id(live[-1], len(live[-1]) - 1) if live else None)

    def publish_as_it_is(self, manifest: Manifest, last: MessageId | None) -> None:
        stored = write_manifest(self.bench.store, f"forged/{new_id()}.json", manifest)
        self.change_record(
            manifest=stored,
            messages=manifest.messages,
            logical_bytes=manifest.logical_bytes,
            stored_bytes=manifest.stored_bytes,
            last_message_id=last,
        )

    def change_record(self, **changes: Any) -> None:
        """Change the row of the compacted ledger."""
        record = replace(self.record, **changes)
        values = row_mapping.compacted_ledger_values(self.topic.record.id, record)
        with self.bench.metadata.database.write() as connection:
            statement = update(compacted_ledgers).where(compacted_ledgers.c.ledger_id == self.record.ledger_id)
            connection.execute(statement.values(**values))

    # Parts and their bitmaps

    def part(self, number: int, change: TableChange) -> None:
        """Change the rows of a part. Its bitmap stays, by offset."""
        manifest = self.manifest
        part = manifest.parts[number]
        dead = {offset + part.first.offset for offset in read_deleted_rows(self.bench.store, part)}
        table = change(self.rows_of(part.rows))
        self._replace_part(manifest, number, self._part(table, dead))

    def bitmap(self, number: int, change: Callable[[set[int]], set[int]]) -> None:
        """Change which rows of a part, by offset, are deleted."""
        manifest = self.manifest
        part = manifest.parts[number]
        dead = change({offset + part.first.offset for offset in read_deleted_rows(self.bench.store, part)})
        forged = self._part(self.rows_of(part.rows), dead)
        self._replace_part(manifest, number, replace(forged, rows=part.rows))

    def _replace_part(self, manifest: Manifest, number: int, part: Part) -> None:
        parts = (*manifest.parts[:number], part, *manifest.parts[number + 1 :])
        self.publish(replace(manifest, parts=parts))

    def _part(self, table: pa.Table, dead: set[int]) -> Part:
        written = self._write_rows(table)
        offsets = [int(offset) for offset in table.column("offset").to_pylist()]
        dead &= set(offsets)
        first = LogPosition(offsets[0], _id(table, 0))
        deleted = None
        if dead:
            name = f"forged/{new_id()}.bin"
            data, (deleted,) = encode_bitmaps(name, [BitMap([offset - offsets[0] for offset in dead])])
            self.bench.store.put(name, data)
        times = pc.min_max(table.column("publish_time")).as_py()
        return Part(
            written,
            first,
            LogPosition(offsets[-1], _id(table, len(table) - 1)),
            len(table),
            int(rows.logical_sizes(table).sum()),
            times["min"],
            times["max"],
            deleted,
            sum(set(offsets) - dead) % 2**64,
            times["min"],
            pc.min(table.column("retained_at")).as_py(),
        )

    def _write_rows(self, table: pa.Table) -> RowsObject:
        with RowsWriter(self.bench.store, f"forged/{new_id()}.parquet") as writer:
            writer.write(table, rows.logical_sizes(table))
        assert writer.result is not None
        return writer.result

    # The index of the compacted ledger

    def level(self, number: int, change: RecordsChange) -> None:
        """Change the records of a level, all of its hash ranges together."""
        manifest = self.manifest
        forged = tuple(self._index(location, change) for location in manifest.index[number])
        levels = (*manifest.index[:number], forged, *manifest.index[number + 1 :])
        self.publish(replace(manifest, index=levels))

    def unkeyed(self, kind: str, change: Callable[[BitMap64], BitMap64]) -> None:
        """Change the bitmap of an unkeyed class, in the first index that has one."""
        manifest = self.manifest
        levels = [list(level) for level in manifest.index]
        level, position = next(
            (level, position)
            for level in levels
            for position, location in enumerate(level)
            if IndexDirectory.decode(location.directory).unkeyed_sizes[kind]
        )
        level[position] = self._index(level[position], lambda records: records, {kind: change})
        self.publish(replace(manifest, index=tuple(map(tuple, levels))))

    def _index(
        self,
        location: IndexLocation,
        change: RecordsChange,
        bitmaps: dict[str, Callable[[BitMap64], BitMap64]] | None = None,
    ) -> IndexLocation:
        store = self.bench.store
        covers = IndexDirectory.decode(location.directory).hash_range
        records = change(key_index.read_records(store, location, covers, events=True))
        records = records.take(np.lexsort((records.lo, records.hi)))
        records = records.take(covers.slice_of(records.hi))
        unkeyed = {name: key_index.read_unkeyed(store, location, name) for name in key_index.UNKEYED_CLASSES}
        for name, changed in (bitmaps or {}).items():
            unkeyed[name] = changed(unkeyed[name])
        data, directory = key_index.encode_index(records, covers, unkeyed)
        name = f"forged/{new_id()}.index"
        store.put(name, data)
        return IndexLocation(name, 0, len(data), directory.encode())

    # Raw ledgers

    def ledger(self, number: int, change: TableChange) -> None:
        """Change the rows of a raw ledger, with its index and row."""
        self.change_ledger(number, self._sealed(self.topic.snapshot().ledgers[number], change))

    def ledger_rows(self, number: int, change: TableChange) -> None:
        """Change the rows of a raw ledger and its row in the database, but not its index."""
        old = self.topic.snapshot().ledgers[number]
        self.change_ledger(number, replace(self._sealed(old, change), index=old.index))

    def ledger_index(self, number: int, change: RecordsChange) -> None:
        """Change the records of a raw ledger's index."""
        old = self.topic.snapshot().ledgers[number]
        self.change_ledger(number, replace(old, index=self._index(old.index, change)))

    def change_ledger(self, number: int, new: LedgerRecord) -> None:
        """Change a raw ledger's row."""
        values = row_mapping.ledger_values(self.topic.record.id, new)
        with self.bench.metadata.database.write() as connection:
            statement = update(ledgers).where(ledgers.c.ledger_id == self.topic.snapshot().ledgers[number].ledger_id)
            connection.execute(statement.values(**values))

    def _sealed(self, old: LedgerRecord, change: TableChange) -> LedgerRecord:
        table = change(self.rows_of(old.rows_object))
        sealer = Sealer(self.bench.store, self.topic.record.uid, -1, self.hasher, new_id())
        return replace(sealer.seal([table], old.ledger_id, old.created_at), attempt_id=old.attempt_id)


def without(offset: int) -> TableChange:
    """Leave out a row."""
    return lambda table: table.filter(pc.not_equal(table.column("offset"), offset))


def with_value(offset: int, column: str, value: Any) -> TableChange:
    """Give a row another value in one column."""

    def change(table: pa.Table) -> pa.Table:
        content = table.to_pylist()
        for row in content:
            if row["offset"] == offset:
                row[column] = value
        return pa.Table.from_pylist(content, schema=rows.SCHEMA)

    return change


def with_rows(*added: pa.Table) -> TableChange:
    """Add rows, where their offsets are."""
    return lambda table: pa.concat_tables([table, *added]).sort_by("offset")


def _id(table: pa.Table, row: int) -> MessageId:
    ledger, entry, index = (table.column(name)[row].as_py() for name in ("ledger_id", "entry_id", "batch_index"))
    return MessageId(ledger, entry, -1, index)
