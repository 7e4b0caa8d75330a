"""Verify, third stage: what exactly differs where fingerprints of index and parts do not agree. Usually nothing.

One task a hash range that differs: it walks through all parts for the range's keys. And one for all rows outside the
key map. Only when a compacted ledger is wrong are its parts read again, so the tasks need not be fast.

Memory: about 100 bytes a record and live row of the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from compactor.verify.chunks import made_of
from compactor.verify.chunks import records_of as chunked_records
from compactor.verify.findings import (
    UNREADABLE,
    Difference,
    Findings,
    Kind,
)
from compactor.verify.fingerprints import (
    align,
    compare_bitmaps,
    key_hash,
    keyed_rows,
    last_of_each,
    name_records,
    numbers,
    of_messages,
    records_of,
    unkeyed_masks,
)
from compactor.verify.keys import unkeyed_bitmaps, visible_records
from compactor.verify.plan import VerifyPlan
from storage.ledger import chunk_table, key_index
from storage.ledger.deletion_bitmap import alive, read_deleted
from storage.ledger.key_index import MARKER, OFFSET_MASK, HashRange, Records
from storage.ledger.manifest import Part
from storage.ledger.rows_file import RowsObject, RowsReader
from storage.objects.interface import ObjectStore

_CHUNK_COLUMNS = ("chunk_uuid", "chunk_index", "chunk_count")
_COLUMNS = ("offset", "key", "payload", "publish_time", "event_time", "slot", *_CHUNK_COLUMNS)


def explain_range(store: ObjectStore, plan: VerifyPlan, number: int) -> Findings:
    """The keys of hash range `number` of which index and parts do not say the same."""
    assert plan.manifest is not None
    findings = Findings(plan.limit)
    where = f"index and parts of compacted ledger {plan.manifest.ledger_id}"
    wanted = plan.ranges[number]
    with findings.reading(where):
        found = visible_records(store, plan, wanted, findings)
        if found is None:
            return findings
        found = found.take(found.offset & MARKER == 0)
        live = _live_records(store, plan, wanted)
        newest = last_of_each(live.hi, live.lo, live.offset & OFFSET_MASK)
        twice = np.ones(len(live), dtype=np.bool_)
        twice[newest] = False
        what = "a part has a live row of a key that has a newer live row"
        name_records(findings, Kind.EXTRA, where, live.take(twice), what)
        _compare(findings, where, live.take(newest), found, plan.by_event)
    return findings


def _compare(findings: Findings, where: str, live: Records, found: Records, by_event: bool) -> None:
    ours, theirs = align(live, found)
    both = np.flatnonzero((ours >= 0) & (theirs >= 0))
    row, record = live.take(ours[both]), found.take(theirs[both])
    same = row.offset == record.offset
    elsewhere = (row.offset & OFFSET_MASK) != (record.offset & OFFSET_MASK)
    if by_event and row.event_time is not None and record.event_time is not None:
        same &= row.event_time == record.event_time
    name_records(findings, Kind.EXTRA, where, live.take(ours[theirs < 0]), "a live row is not in the index")
    name_records(findings, Kind.MISSING, where, found.take(theirs[ours < 0]), "a key of the index has no live row")
    what = "the index names another row of the key than the one that is alive"
    name_records(findings, Kind.ALTERED, where, record.take(elsewhere), what)
    what = "flag or event time in the index are not those of the row"
    name_records(findings, Kind.ALTERED, where, record.take(~same & ~elsewhere), what)


def explain_unkeyed(store: ObjectStore, plan: VerifyPlan, number: int) -> Findings:
    """The rows outside the key map of which index and parts do not say the same."""
    assert plan.manifest is not None
    findings = Findings(plan.limit)
    where = f"index and parts of compacted ledger {plan.manifest.ledger_id}"
    with findings.reading(where):
        live = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
        chunks = BitMap64()
        for part in plan.manifest.parts:
            for table in _live_groups(store, part):
                offsets = numbers(table, "offset")
                for name, mask in unkeyed_masks(table).items():
                    live[name] |= BitMap64(offsets[mask].tolist())
                chunks |= BitMap64(offsets[of_messages(table)].tolist())
        tables = BitMap64()
        for found in chunk_table.read_tables(store, plan.manifest.chunks, HashRange()):
            tables |= BitMap64(chunk_table.offsets(found).tolist())
        compare_bitmaps(findings, f"{where} (chunk tables)", "chunks", chunks, tables)
        if chunks == tables:
            _compare_chunks(store, plan, findings)
        for name, bitmap in (unkeyed_bitmaps(store, plan, findings) or {}).items():
            compare_bitmaps(findings, where, name, live[name], bitmap)
    return findings


def _compare_chunks(store: ObjectStore, plan: VerifyPlan, findings: Findings) -> None:
    """Name the chunks of which tables and parts have the offset, but do not say the same."""
    assert plan.manifest is not None
    tables = np.concatenate([chunk_table.none(), *chunk_table.read_tables(store, plan.manifest.chunks, HashRange())])
    seen = {int(offset): one for offset, one in zip(chunk_table.offsets(tables), tables, strict=True)}
    for part in plan.manifest.parts:
        for table in _live_groups(store, part):
            for one in chunk_table.chunk_records(table, plan.hasher):
                offset = int(one["offset"] & OFFSET_MASK)
                if any(one[name] != seen[offset][name] for name in one.dtype.names if name != "retained_at"):
                    what = "the chunk table does not say what the row of the chunk says"
                    where = f"compacted ledger {plan.manifest.ledger_id}"
                    findings.add(Difference(Kind.ALTERED, where, what, offset))


def with_keys(store: ObjectStore, plan: VerifyPlan, differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """The differences, with the keys of those that only have a hash, where a row at their offset has it."""
    return tuple(
        one if one.key is not None or one.key_hash is None or one.offset is None
        else replace(one, key=_key_at(store, plan, one.offset, one.key_hash))
        for one in differences
    )  # fmt: skip


def _key_at(store: ObjectStore, plan: VerifyPlan, offset: int, wanted: str) -> bytes | None:
    """The key of the row at an offset, in raw or in a part, if it has that hash. Damage was found already."""
    spans = [(one.first_offset, one.last_offset, RowsObject(one.rows, one.footer_size)) for one in plan.ledgers]
    parts = plan.manifest.parts if plan.manifest else ()
    spans += [(part.first.offset, part.last.offset, part.rows) for part in parts]
    for first, last, rows_object in spans:
        if not first <= offset <= last:
            continue
        with suppress(*UNREADABLE):
            reader = RowsReader(store, rows_object)
            for number, group in enumerate(reader.groups):
                if not group.first_offset <= offset <= group.last_offset:
                    continue
                table = keyed_rows(reader.read(number, ["offset", "key", "payload", "event_time", "slot"]))
                table = table.filter(pc.equal(table.column("offset"), offset))
                records = records_of(table, plan.hasher)
                if len(records) and key_hash(records, 0) == wanted:
                    key: bytes = table.column("key")[0].as_py()
                    return key
    return None


def _live_records(store: ObjectStore, plan: VerifyPlan, wanted: HashRange) -> Records:
    """A record for each live keyed row, and each chunked message, of the range."""
    assert plan.manifest is not None
    pieces = []
    for part in plan.manifest.parts:
        for table in _live_groups(store, part):
            records = records_of(keyed_rows(table), plan.hasher)
            if wanted.bits:
                records = records.take(records.hi >> np.uint64(64 - wanted.bits) == wanted.prefix)
            pieces.append(records)
    chunks = chunk_table.read_tables(store, plan.manifest.chunks, wanted)
    pieces.append(chunked_records(made_of(np.concatenate([chunk_table.none(), *chunks])).complete))
    return key_index.concatenated(pieces)


def _live_groups(store: ObjectStore, part: Part) -> Iterator[pa.Table]:
    deleted = read_deleted(store, part)
    reader = RowsReader(store, part.rows)
    for number in range(len(reader.groups)):
        table = reader.read(number, list(_COLUMNS))
        yield table.filter(pa.array(alive(deleted, part.first.offset, table.column("offset").to_numpy())))
