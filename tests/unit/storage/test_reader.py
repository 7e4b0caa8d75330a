"""The reader over a compacted ledger with deleted rows, which later writers may make (docs/format.md)."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from storage.bulk_append import INPUT_SCHEMA
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger import rows
from storage.ledger.manifest import DeletedRows, Manifest, Part, write_manifest
from storage.ledger.rows_file import RowsObject
from storage.metadata.records import CompactedLedgerRecord, TopicRecord, TopicSnapshot
from storage.model import EARLIEST, MessageId, Position, TopicName
from storage.objects.interface import ObjectStore
from storage.reader import SnapshotReader
from tests.sealed import NOW, SEED, damaged_copy, new_id, seal_history

COUNT = 20
NAME = TopicName.parse("t")


def part_without(store: ObjectStore, dead: set[int]) -> Part:
    """A part of 20 rows in groups of 4, some of them deleted."""
    content = pa.Table.from_pylist([{"key": b"%d" % n, "payload": b"v"} for n in range(COUNT)], schema=INPUT_SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 4)
        _, (ledger,) = seal_history(store, [content])
    bitmap, name = BitMap(dead).serialize(), f"bitmaps/{new_id()}"
    store.put(name, b"another part's" + bitmap)
    deleted = DeletedRows(name, 14, len(bitmap), len(dead), crc32c(bitmap))
    first, last = Position(0, MessageId(5, 0)), Position(COUNT - 1, ledger.last_message_id)
    rows_object = RowsObject(ledger.rows, ledger.footer_size)
    return Part(rows_object, first, last, COUNT, ledger.logical_bytes, NOW, NOW, deleted)


def reader_of(store: ObjectStore, part: Part) -> SnapshotReader:
    """A reader of a topic that has only a compacted ledger of this part."""
    topic = TopicRecord(1, "0" * 32, NAME, SEED, 1, 1, COUNT, NOW)
    manifest = Manifest(str(NAME), topic.uid, 6, 1, 1, NOW, part.last, (part,), ())
    stored = write_manifest(store, f"manifests/{new_id()}", manifest)
    compacted = CompactedLedgerRecord(
        6, 1, part.last, stored, manifest.messages, 1, 1, part.last.message_id, "a" * 32, NOW
    )
    return SnapshotReader(store, TopicSnapshot(topic, (), None, compacted, None))


def offsets(reader: SnapshotReader, start: MessageId = EARLIEST) -> list[int]:
    return [offset for batch in reader.batches(start, True) for offset in batch.column("offset").to_pylist()]


@settings(max_examples=30)
@given(st.sets(st.integers(0, COUNT - 1), min_size=1), st.integers(0, COUNT - 1))
def test_deleted_rows_are_left_out_and_no_others(object_store: ObjectStore, dead: set[int], start: int) -> None:
    reader = reader_of(object_store, part_without(object_store, dead))
    assert offsets(reader) == [number for number in range(COUNT) if number not in dead]
    assert offsets(reader, MessageId(5, start)) == [n for n in range(start, COUNT) if n not in dead]


def test_a_damaged_bitmap_is_damage_of_the_compacted_ledger(object_store: ObjectStore) -> None:
    part = part_without(object_store, {3, 9})
    assert part.deleted is not None
    damaged = replace(part.deleted, name=damaged_copy(object_store, part.deleted.name, part.deleted.offset))
    with pytest.raises(ObjectDamaged, match=f"compacted ledger 6 .*{damaged.name}") as raised:
        offsets(reader_of(object_store, replace(part, deleted=damaged)))
    assert "raw reads still work" in raised.value.remedy
