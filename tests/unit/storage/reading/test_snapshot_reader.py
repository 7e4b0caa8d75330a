"""The reader over a part that a later run kept, with rows that no longer count (docs/format.md)."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyroaring import BitMap

from storage.errors import ObjectDamaged
from storage.ledger import names, rows
from storage.ledger.deletion_bitmap import encode_bitmaps
from storage.ledger.manifest import Manifest, Part, write_manifest
from storage.ledger.seek import SeekMessageId
from storage.log.bulk_append import INPUT_SCHEMA, to_ledger_rows
from storage.metadata.records import CompactedLedgerRecord, TopicRecord, TopicSnapshot
from storage.model import EARLIEST, LogPosition, MessageId, TopicName
from storage.objects.interface import ObjectStore
from storage.reading.snapshot_reader import SnapshotReader
from tests.budgets import examples
from tests.sealed import NOW, SEED, damaged_copy, new_id, seal
from tests.segments import NO_LOG

FIRST = 10**12
COUNT = 20
OFFSETS = [FIRST + number + number // 3 for number in range(COUNT)]
"""Of the part's rows: with gaps, so that row numbers and offsets differ, and far from 0."""
NAME = TopicName.parse("t")


def part_without(store: ObjectStore, dead: set[int]) -> Part:
    """A part of 20 rows in groups of 4; those numbered in `dead` do not count any more."""
    content = pa.Table.from_pylist([{"key": b"%d" % n, "payload": b"v"} for n in range(30)], schema=INPUT_SCHEMA)
    table = to_ledger_rows(content, 5, FIRST, NOW).take([offset - FIRST for offset in OFFSETS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 4)
        ledger = seal(store, table)
    name = names.bitmaps(new_id(), new_id(), 0)
    data, places = encode_bitmaps(name, [BitMap([1, 2]), BitMap(OFFSETS[number] - FIRST for number in dead)])
    store.put(name, data)
    first, last = (LogPosition(offset, MessageId(5, offset - FIRST)) for offset in (OFFSETS[0], OFFSETS[-1]))
    rows_object = ledger.rows_object
    return Part(rows_object, first, last, COUNT, ledger.logical_bytes, NOW, NOW, places[1])


def reader_of(store: ObjectStore, part: Part) -> SnapshotReader:
    """A reader of a topic that has only a compacted ledger of this part."""
    topic = TopicRecord(1, "0" * 32, NAME, SEED, 1, 1, FIRST + 30, NOW)
    manifest = Manifest(str(NAME), topic.uid, 6, 1, 1, NOW, part.last, (part,), ())
    stored = write_manifest(store, f"manifests/{new_id()}", manifest)
    compacted = CompactedLedgerRecord(
        6, 1, part.last, stored, manifest.messages, 1, 1, part.last.message_id, "a" * 32, NOW
    )
    return SnapshotReader(store, TopicSnapshot(topic, (), None, compacted, None), NO_LOG)


def offsets(reader: SnapshotReader, start: MessageId = EARLIEST) -> list[int]:
    compacted = reader.snapshot.compacted
    assert compacted is not None
    tables = reader.compacted(SeekMessageId(start), reader.manifest(compacted))
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.sets(st.integers(0, COUNT - 1), max_size=COUNT - 1), st.integers(0, 30))
def test_deleted_rows_are_left_out_and_no_others(object_store: ObjectStore, dead: set[int], start: int) -> None:
    reader = reader_of(object_store, part_without(object_store, dead))
    alive = [offset for number, offset in enumerate(OFFSETS) if number not in dead]
    assert offsets(reader) == alive
    assert offsets(reader, MessageId(5, start)) == [offset for offset in alive if offset - FIRST >= start]


def test_a_damaged_bitmap_is_damage_of_the_compacted_ledger(object_store: ObjectStore) -> None:
    part = part_without(object_store, {3, 9})
    assert part.deleted is not None
    damaged = replace(part.deleted, name=damaged_copy(object_store, part.deleted.name, part.deleted.offset))
    with pytest.raises(ObjectDamaged, match=f"compacted ledger 6 .*{damaged.name}") as raised:
        offsets(reader_of(object_store, replace(part, deleted=damaged)))
    assert "raw reads still work" in raised.value.remedy
