"""Verify, third stage: what exactly differs where fingerprints of index and parts do not agree. Usually nothing.

One task a hash range that differs: it walks through all parts for the range's keys. And one for all rows outside the
key map. Only when a compacted ledger is wrong are its parts read again, so the tasks need not be fast.

Memory: about 100 bytes a record and live row of the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from compactor.verify.unkeyed import assembled, records_of as chunked_records
from compactor.verify.compare import (
    RowsByOffset,
    TaskFindings,
    compare_bitmaps,
    key_hash,
    keyed_rows,
    last_of_each,
    name_records,
    numbers,
    of_messages,
    plain,
    records_of,
    split,
    unkeyed_masks,
)
from compactor.verify.findings import UNREADABLE, Difference, DifferenceKind, Findings
from compactor.verify.keys import unkeyed_bitmaps, visible_records
from compactor.verify.plan import VerifyPlan
from storage.ledger import chunk_table, key_index
from storage.ledger.deletion_bitmap import alive, read_deleted
from storage.ledger.key_index import MARKER, OFFSET_MASK, HashRange, IndexRecords
from storage.ledger.rows_file import RowsReader
from storage.objects.interface import ObjectStore

_KEY_COLUMNS = ["offset", "key", "payload", "event_time", "slot"]
_COLUMNS = [*_KEY_COLUMNS, "publish_time", "chunk_uuid", "chunk_index", "chunk_count"]


def explain_range(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """The keys of hash range `number` of which index and parts do not say the same."""
    findings = Findings(plan.limit)
    where = f"index and parts of {plan.where}"
    wanted = plan.ranges[number]
    with findings.reading(where):
        index = visible_records(store, plan, wanted, findings)
        if index is None:
            return TaskFindings(findings)
        live = _live_records(store, plan, wanted)
        newest = last_of_each(live.hi, live.lo, live.offset & OFFSET_MASK)
        twice = np.ones(len(live), dtype=np.bool_)
        twice[newest] = False
        what = "a part has a live row of a key that has a newer live row"
        name_records(findings, DifferenceKind.EXTRA, where, live.take(twice), what)
        _compare(findings, where, live.take(newest), index.take(index.offset & MARKER == 0), plan.by_event)
    return TaskFindings(findings)


def _compare(findings: Findings, where: str, live: IndexRecords, index: IndexRecords, by_event: bool) -> None:
    no_record, no_row, row, record = split(live, index)
    same = row.offset == record.offset
    displaced = plain(row) != plain(record)
    if by_event and row.event_time is not None and record.event_time is not None:
        same &= row.event_time == record.event_time
    name_records(findings, DifferenceKind.EXTRA, where, no_record, "a live row is not in the index")
    name_records(findings, DifferenceKind.MISSING, where, no_row, "a key of the index has no live row")
    what = "the index names another row of the key than the one that is alive"
    name_records(findings, DifferenceKind.ALTERED, where, record.take(displaced), what)
    what = "flag or event time in the index are not those of the row"
    name_records(findings, DifferenceKind.ALTERED, where, record.take(~same & ~displaced), what)


def explain_unkeyed(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """The rows outside the key map, and the chunks, of which index and parts do not say the same."""
    findings = Findings(plan.limit)
    where = f"index and parts of {plan.where}"
    with findings.reading(where):
        live = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
        chunks = BitMap64()
        for table in _live_groups(store, plan):
            offsets = numbers(table, "offset")
            for name, mask in unkeyed_masks(table).items():
                live[name] |= BitMap64(offsets[mask].tolist())
            chunks |= BitMap64(offsets[of_messages(table)].tolist())
        read = chunk_table.read_tables(store, plan.serving.chunks, HashRange())
        tables = np.concatenate([chunk_table.none(), *read])
        by_offset = dict(zip(chunk_table.offsets(tables).tolist(), tables, strict=True))
        compare_bitmaps(findings, f"{where} (chunk tables)", "chunks", chunks, BitMap64(by_offset))
        if chunks == BitMap64(by_offset):
            _compare_chunks(store, plan, by_offset, findings)
        for name, bitmap in (unkeyed_bitmaps(store, plan, findings) or {}).items():
            compare_bitmaps(findings, where, name, live[name], bitmap)
    return TaskFindings(findings)


def _compare_chunks(store: ObjectStore, plan: VerifyPlan, tables: Mapping[int, np.void], findings: Findings) -> None:
    """Name the chunks of which tables and parts have the offset, but do not say the same."""
    for table in _live_groups(store, plan):
        for chunk in chunk_table.chunk_records(table, plan.hasher):
            offset = int(chunk["offset"] & OFFSET_MASK)
            if any(chunk[name] != tables[offset][name] for name in chunk.dtype.names if name != "retained_at"):
                what = "the chunk table does not say what the row of the chunk says"
                findings.add(Difference(DifferenceKind.ALTERED, plan.where, what, offset))


def with_keys(store: ObjectStore, plan: VerifyPlan, differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """The differences, with the keys of those that only have a hash, where a row at their offset has it."""
    return tuple(
        found if found.key is not None or found.key_hash is None or found.offset is None
        else replace(found, key=_key_at(store, plan, found.offset, found.key_hash))
        for found in differences
    )  # fmt: skip


def _key_at(store: ObjectStore, plan: VerifyPlan, offset: int, wanted: str) -> bytes | None:
    """The key of the row at an offset, in raw or in a part, if it has that hash. Damage was found already."""
    extents = [(ledger.first_offset, ledger.last_offset, ledger.rows_object) for ledger in plan.ledgers]
    parts = plan.manifest.parts if plan.manifest else ()
    extents += [(part.first.offset, part.last.offset, part.rows) for part in parts]
    for rows_object in [rows_object for first, last, rows_object in extents if first <= offset <= last]:
        with suppress(*UNREADABLE):
            rows, at = RowsByOffset(store, rows_object), np.array([offset])
            for number, _ in rows.groups(at):
                table = keyed_rows(rows.rows(number, at, _KEY_COLUMNS)[1])
                records = records_of(table, plan.hasher)
                if len(records) and key_hash(records, 0) == wanted:
                    key: bytes = table.column("key")[0].as_py()
                    return key
    return None


def _live_records(store: ObjectStore, plan: VerifyPlan, wanted: HashRange) -> IndexRecords:
    """A record for each live keyed row, and each chunked message, of the range."""
    found = []
    for table in _live_groups(store, plan):
        records = records_of(keyed_rows(table), plan.hasher)
        if wanted.bits:
            records = records.take(records.hi >> np.uint64(64 - wanted.bits) == wanted.prefix)
        found.append(records)
    chunks = chunk_table.read_tables(store, plan.serving.chunks, wanted)
    found.append(chunked_records(assembled(np.concatenate([chunk_table.none(), *chunks])).complete))
    return key_index.concatenated(found)


def _live_groups(store: ObjectStore, plan: VerifyPlan) -> Iterator[pa.Table]:
    """The live rows of all parts, a row group at a time."""
    for part in plan.serving.parts:
        deleted = read_deleted(store, part)
        reader = RowsReader(store, part.rows)
        for number in range(len(reader.groups)):
            table = reader.read(number, _COLUMNS)
            yield table.filter(pa.array(alive(deleted, part.first.offset, table.column("offset").to_numpy())))
