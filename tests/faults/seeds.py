"""The defects that test_verify_seeded.py seeds into a topic: a function for each, and a table of the expected findings.

`SEEDS`: differences of keys, forged so that no checksum, count or sum betrays them. `RECORDS`: rows and manifests that
contradict something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Table, update

from compactor.verify.findings import DifferenceKind
from storage.ledger import key_index
from storage.ledger.key_index import MARKER, IndexRecords
from storage.metadata.tables import cursors, ledgers, runs, topics
from storage.model import LogPosition, MessageId
from tests.forgery import Forger, with_rows, with_value, without
from tests.workbench import Workbench


def place(forger: Forger, key: bytes, newest: bool = True) -> tuple[int, int]:
    """The number of the part, and the offset, of a key's row: the last, or the first of all, dead ones too."""
    places = [
        (number, row["offset"])
        for number, part in enumerate(forger.manifest.parts)
        for row in forger.rows_of(part.rows).to_pylist()
        if row["key"] == key
    ]
    return places[-1] if newest else places[0]


def raw_place(forger: Forger, key: bytes, newest: bool = True) -> tuple[int, int]:
    """The same in raw: the number of the ledger, and the offset."""
    places = [
        (number, row["offset"])
        for number, ledger in enumerate(forger.topic.snapshot().ledgers)
        for row in forger.rows_of(ledger.rows_object).to_pylist()
        if row["key"] == key
    ]
    return places[-1] if newest else places[0]


def raw_row(forger: Forger, ledger: int, offset: int) -> pa.Table:
    record = forger.topic.snapshot().ledgers[ledger]
    table = forger.rows_of(record.rows_object)
    return table.filter(pc.equal(table.column("offset"), offset))


def level_of(forger: Forger, key: bytes) -> int:
    """The newest level that has a record of the key."""
    for number, level in enumerate(forger.manifest.index):
        for location in level:
            records = key_index.read_records(forger.bench.store, location, key_index.HashRange())
            if at(forger, key)(records).any():
                return number
    raise AssertionError(key)


def at(forger: Forger, key: bytes) -> Callable[[IndexRecords], npt.NDArray[np.bool_]]:
    hi, lo = forger.key_hash(key)
    return lambda records: (records.hi == np.uint64(hi)) & (records.lo == np.uint64(lo))


def without_record(forger: Forger, key: bytes) -> Callable[[IndexRecords], IndexRecords]:
    return lambda records: records.take(~at(forger, key)(records))


def with_offset(forger: Forger, key: bytes, offset: int) -> Callable[[IndexRecords], IndexRecords]:
    """Give the record of a key another flagged offset."""

    def change(records: IndexRecords) -> IndexRecords:
        return replace(records, offset=np.where(at(forger, key)(records), np.uint64(offset), records.offset))

    return change


def with_record(forger: Forger, key: bytes, offset: int) -> Callable[[IndexRecords], IndexRecords]:
    """Add a record of a key that has none."""
    hi, lo = (np.array([half], dtype=np.uint64) for half in forger.key_hash(key))

    def change(records: IndexRecords) -> IndexRecords:
        offsets = np.array([offset], dtype=np.uint64)
        columns = ((records.hi, hi), (records.lo, lo), (records.offset, offsets))
        return IndexRecords(*(np.concatenate(column) for column in columns))

    return change


def put_back(forger: Forger, part: int, key: bytes) -> None:
    """Put the first row of a key in raw into a part that does not have it."""
    ledger, offset = raw_place(forger, key, newest=False)
    forger.part(part, with_rows(raw_row(forger, ledger, offset)))


# Each seed: what it changes, and what must be named of which key.


def part_missing(forger: Forger) -> None:
    number, offset = place(forger, b"key05")
    forger.part(number, without(offset))


def part_missing_and_index(forger: Forger) -> None:
    part_missing(forger)
    forger.level(level_of(forger, b"key05"), without_record(forger, b"key05"))


def part_extra(forger: Forger) -> None:
    """A key that raw does not have, in part and index, at the offset of a row that was dropped."""
    number, offset = place(forger, b"key05")
    forger.part(number, with_value(offset, "key", b"never"))
    level = level_of(forger, b"key05")
    forger.level(level, without_record(forger, b"key05"))
    forger.level(level, with_record(forger, b"never", offset))


def part_altered(forger: Forger) -> None:
    number, offset = place(forger, b"key05")
    forger.part(number, with_value(offset, "payload", b"another value"))


def part_altered_column(forger: Forger) -> None:
    number, offset = place(forger, b"key05")
    forger.part(number, with_value(offset, "properties", [("trace", "forged")]))


def part_revived(forger: Forger) -> None:
    put_back(forger, 0, b"early")


def part_revived_and_index(forger: Forger) -> None:
    put_back(forger, 0, b"early")
    _, offset = raw_place(forger, b"early", newest=False)
    for number in range(len(forger.manifest.index)):
        forger.level(number, without_record(forger, b"early"))
    forger.level(0, with_record(forger, b"early", offset))


def part_tombstone_made_a_value(forger: Forger) -> None:
    number, offset = place(forger, b"kept")
    forger.part(
        number, lambda table: with_value(offset, "retained_at", None)(with_value(offset, "payload", b"x")(table))
    )
    forger.level(level_of(forger, b"kept"), with_offset(forger, b"kept", offset))


def part_retained_at_altered(forger: Forger) -> None:
    number, offset = place(forger, b"kept")
    forger.part(number, with_value(offset, "retained_at", forger.manifest.frozen_at - 1))


def part_null_key_missing(forger: Forger) -> None:
    number, offset = next(
        (number, row["offset"])
        for number, part in enumerate(forger.manifest.parts)
        for row in forger.rows_of(part.rows).to_pylist()
        if row["key"] is None
    )
    forger.part(number, without(offset))


def bitmap_missing(forger: Forger) -> None:
    number, offset = place(forger, b"key05")
    forger.bitmap(number, lambda dead: dead | {offset})


def bitmap_extra(forger: Forger) -> None:
    number, offset = place(forger, b"key00", newest=False)
    forger.bitmap(number, lambda dead: dead - {offset})


def bitmap_altered(forger: Forger) -> None:
    """The older row of a key is alive, the newer is deleted; the index follows."""
    number, old = place(forger, b"key00", newest=False)
    newer, offset = place(forger, b"key00")
    assert newer != number
    forger.bitmap(number, lambda dead: dead - {old})
    forger.bitmap(newer, lambda dead: dead | {offset})
    forger.level(level_of(forger, b"key00"), with_offset(forger, b"key00", old))


def bitmap_revived(forger: Forger) -> None:
    """The value of a deleted key is alive again; its tombstone is deleted, the index follows."""
    number, old = place(forger, b"kept", newest=False)
    newer, offset = place(forger, b"kept")
    forger.bitmap(number, lambda dead: dead - {old})
    forger.bitmap(newer, lambda dead: dead | {offset})
    forger.level(level_of(forger, b"kept"), with_offset(forger, b"kept", old))


def level_missing(forger: Forger) -> None:
    forger.level(level_of(forger, b"key05"), without_record(forger, b"key05"))


def level_extra(forger: Forger) -> None:
    forger.level(0, with_record(forger, b"never", place(forger, b"key05")[1]))
    assert level_of(forger, b"never") == 0, "the level has a hash range for it, or this seeds nothing"


def level_altered(forger: Forger) -> None:
    forger.level(level_of(forger, b"key05"), with_offset(forger, b"key05", place(forger, b"key06")[1]))


def level_record_hidden_no_more(forger: Forger) -> None:
    """The newest level loses the key: the older level shows a row that is dead."""
    assert level_of(forger, b"key00") == 0
    forger.level(0, without_record(forger, b"key00"))


def level_revived(forger: Forger) -> None:
    level = level_of(forger, b"gone")
    _, offset = raw_place(forger, b"gone", newest=False)
    forger.level(level, with_offset(forger, b"gone", offset))


def level_marker_lost(forger: Forger) -> None:
    """The marker that hides an older level goes: what it hid is visible again."""
    forger.level(level_of(forger, b"gone"), without_record(forger, b"gone"))


def level_made_a_marker(forger: Forger) -> None:
    _, offset = place(forger, b"key05")
    forger.level(level_of(forger, b"key05"), with_offset(forger, b"key05", int(np.uint64(offset) | MARKER)))


def level_tombstone_flag(forger: Forger) -> None:
    forger.level(level_of(forger, b"kept"), with_offset(forger, b"kept", place(forger, b"kept")[1]))


def level_null_key_missing(forger: Forger) -> None:
    forger.unkeyed("null_keys", lambda bitmap: bitmap - bitmap[:1])


def level_null_key_extra(forger: Forger) -> None:
    forger.unkeyed("null_keys", lambda bitmap: bitmap | type(bitmap)([place(forger, b"key05")[1]]))


def raw_row_altered(forger: Forger) -> None:
    number, offset = raw_place(forger, b"key05")
    forger.ledger(number, with_value(offset, "payload", b"another"))


def raw_row_of_another_key(forger: Forger) -> None:
    """Raw has a key that was never compacted: in the compacted ledger it is missing."""
    number, offset = raw_place(forger, b"key20", newest=False)
    forger.ledger(number, with_value(offset, "key", b"never"))


def raw_row_gone(forger: Forger) -> None:
    number, offset = raw_place(forger, b"key05")
    forger.ledger(number, without(offset))


def raw_value_deleted(forger: Forger) -> None:
    """The key is deleted in the raw messages; the compacted ledger revives it."""
    number, offset = raw_place(forger, b"key05")
    forger.ledger(number, with_value(offset, "payload", b""))


def raw_rows_without_index(forger: Forger) -> None:
    number, offset = raw_place(forger, b"key05")
    forger.ledger_rows(number, with_value(offset, "key", b"never"))


def raw_index_missing(forger: Forger) -> None:
    forger.ledger_index(raw_place(forger, b"key05")[0], without_record(forger, b"key05"))


def raw_index_extra(forger: Forger) -> None:
    number, offset = raw_place(forger, b"key05")
    forger.ledger_index(number, with_record(forger, b"never", offset))


def raw_index_altered(forger: Forger) -> None:
    number, offset = raw_place(forger, b"key05")
    forger.ledger_index(number, with_offset(forger, b"key05", offset + 1))


def raw_index_revived(forger: Forger) -> None:
    number, offset = raw_place(forger, b"gone")
    forger.ledger_index(number, with_offset(forger, b"gone", offset))


def tail_index_missing(forger: Forger) -> None:
    """Behind the horizon too: the next run would lose the key."""
    last = len(forger.topic.snapshot().ledgers) - 1
    forger.ledger_index(last, without_record(forger, b"key02"))


def manifest_part_missing(forger: Forger) -> None:
    manifest = forger.manifest
    forger.publish(replace(manifest, parts=manifest.parts[1:]))


def manifest_level_missing(forger: Forger) -> None:
    manifest = forger.manifest
    forger.publish(replace(manifest, index=manifest.index[1:]))


def manifest_bitmap_forgotten(forger: Forger) -> None:
    manifest = forger.manifest
    parts = [replace(p, deleted=None, offset_sum=_sum(forger.rows_of(p.rows)) if p.deleted else p.offset_sum)
             for p in manifest.parts]  # fmt: skip
    forger.publish(replace(manifest, parts=tuple(parts)))


def _sum(table: pa.Table) -> int:
    return int(sum(table.column("offset").to_pylist()))


SEEDS: list[tuple[Callable[[Forger], None], DifferenceKind, bytes | None]] = [
    (part_missing, DifferenceKind.MISSING, b"key05"),
    (part_missing_and_index, DifferenceKind.MISSING, b"key05"),
    (part_extra, DifferenceKind.EXTRA, b"never"),
    (part_altered, DifferenceKind.ALTERED, b"key05"),
    (part_altered_column, DifferenceKind.ALTERED, b"key05"),
    (part_revived, DifferenceKind.EXTRA, b"early"),
    (part_revived_and_index, DifferenceKind.REVIVED, b"early"),
    (part_tombstone_made_a_value, DifferenceKind.REVIVED, b"kept"),
    (part_retained_at_altered, DifferenceKind.ALTERED, b"kept"),
    (part_null_key_missing, DifferenceKind.EXTRA, None),
    (bitmap_missing, DifferenceKind.MISSING, b"key05"),
    (bitmap_extra, DifferenceKind.EXTRA, b"key00"),
    (bitmap_altered, DifferenceKind.ALTERED, b"key00"),
    (bitmap_revived, DifferenceKind.REVIVED, b"kept"),
    (level_missing, DifferenceKind.MISSING, b"key05"),
    (level_extra, DifferenceKind.EXTRA, None),
    (level_altered, DifferenceKind.ALTERED, None),
    (level_record_hidden_no_more, DifferenceKind.ALTERED, b"key00"),
    (level_revived, DifferenceKind.REVIVED, b"gone"),
    (level_marker_lost, DifferenceKind.REVIVED, b"gone"),
    (level_made_a_marker, DifferenceKind.MISSING, b"key05"),
    (level_tombstone_flag, DifferenceKind.REVIVED, b"kept"),
    (level_null_key_missing, DifferenceKind.MISSING, None),
    (level_null_key_extra, DifferenceKind.EXTRA, None),
    (raw_row_altered, DifferenceKind.ALTERED, b"key05"),
    (raw_row_of_another_key, DifferenceKind.MISSING, b"never"),
    (raw_row_gone, DifferenceKind.EXTRA, b"key05"),
    (raw_value_deleted, DifferenceKind.REVIVED, b"key05"),
    (raw_rows_without_index, DifferenceKind.MISSING, b"never"),
    (raw_index_missing, DifferenceKind.MISSING, b"key05"),
    (raw_index_extra, DifferenceKind.EXTRA, None),
    (raw_index_altered, DifferenceKind.ALTERED, None),
    (raw_index_revived, DifferenceKind.REVIVED, b"gone"),
    (tail_index_missing, DifferenceKind.MISSING, b"key02"),
    (manifest_part_missing, DifferenceKind.MISSING, None),
    (manifest_level_missing, DifferenceKind.MISSING, b"twice"),
    (manifest_bitmap_forgotten, DifferenceKind.EXTRA, b"key00"),
]


def set_values(bench: Workbench, table: Table, **values: object) -> None:
    with bench.metadata.database.write() as connection:
        connection.execute(update(table).values(**values))


RECORDS: dict[str, Callable[[Forger], None]] = {
    "messages": lambda forger: forger.change_record(messages=forger.record.messages - 1),
    "logical bytes": lambda forger: forger.change_record(logical_bytes=0),
    "stored bytes": lambda forger: forger.change_record(stored_bytes=1),
    "last message id": lambda forger: forger.change_record(last_message_id=MessageId(1, 0)),
    "no last message id": lambda forger: forger.change_record(last_message_id=None),
    "generation": lambda forger: forger.change_record(generation=9),
    "horizon": lambda forger: forger.change_record(horizon=LogPosition(40, forger.record.horizon.message_id)),
    "property": lambda forger: set_values(forger.bench, cursors, properties={"CompactedTopicLedger": "1"}),
    "mark-delete": lambda forger: set_values(forger.bench, cursors, mark_delete_offset=1),
    "run": lambda forger: set_values(forger.bench, runs, policies={}),
    "next offset": lambda forger: set_values(forger.bench, topics, next_offset=1),
    "a ledger's messages": lambda forger: set_values(forger.bench, ledgers, messages=1),
    "a ledger's last id": lambda forger: set_values(forger.bench, ledgers, last_message_entry_id=99),
    "keys": lambda forger: forger.publish_as_it_is(replace(forger.manifest, keys=1), forger.record.last_message_id),
    "tombstones": lambda forger: forger.publish_as_it_is(
        replace(forger.manifest, tombstones=7), forger.record.last_message_id
    ),
    "dropped tombstones": lambda forger: forger.publish(replace(forger.manifest, dropped_to=-1)),
    "frozen at": lambda forger: forger.publish(replace(forger.manifest, frozen_at=1)),
    "another topic": lambda forger: forger.publish(replace(forger.manifest, topic="persistent://a/b/c")),
    **{
        f"a part's {name}": partial(lambda name, forger: forge_part(forger, name), name)
        for name in ("messages", "logical_bytes", "min_publish_time", "max_publish_time", "offset_sum", "first", "last")
    },
    "a part's oldest value": lambda forger: forge_part(forger, "oldest_value"),
    "a part's oldest tombstone": lambda forger: forge_part(forger, "oldest_tombstone"),
    "a bitmap's cardinality": lambda forger: forge_part(forger, "deleted"),
}


def forge_part(forger: Forger, name: str) -> None:
    """Say something else of a part than its rows: of the last one that says it, or of the first (a bitmap)."""
    manifest = forger.manifest
    parts = list(manifest.parts)
    number = 0 if name == "deleted" else max(at for at, part in enumerate(parts) if getattr(part, name) is not None)
    part = parts[number]
    value = getattr(part, name)
    if name in ("first", "last"):
        value = replace(value, message_id=MessageId(value.message_id.ledger_id, value.message_id.entry_id + 1))
    elif name == "deleted":
        value = replace(value, cardinality=value.cardinality + 1)
    else:
        value += 1 if name != "messages" else -1
    parts[number] = replace(part, **{name: value})
    forger.publish(replace(manifest, parts=tuple(parts)))
