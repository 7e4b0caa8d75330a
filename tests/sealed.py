"""Sealed ledgers for tests, without a database: objects under names that no other test has."""

from __future__ import annotations

from itertools import count

import numpy as np
import pyarrow as pa

from compactor.plan import Source
from storage.bulk_append import to_rows
from storage.ledger.hashing import Hashes, KeyHasher, Xxh3KeyHasher
from storage.ledger.rows_file import RowsObject
from storage.ledger.sealing import Sealer
from storage.metadata.records import LedgerRecord
from storage.objects.interface import ObjectStore

SEED = 0x0123_4567_89AB_CDEF
NOW = 1_700_000_000_000
_attempts = count(1)


class CollidingHasher:
    """Hashes of which only two bits of the high half and three of the low half differ: keys fall together.

    Keys share high halves, and whole hashes too; tests that use it know keys by their hash.
    """

    def __init__(self, low_bits: int = 64) -> None:
        self._inner = Xxh3KeyHasher(SEED)
        self._low_mask = np.uint64((1 << low_bits) - 1)

    def __call__(self, keys: pa.BinaryArray) -> tuple[Hashes, Hashes]:
        hi, lo = self._inner(keys)
        return hi & np.uint64(0b11 << 62), lo & self._low_mask


def new_id() -> str:
    """An attempt id or topic uid that no other test of this process has."""
    return f"{next(_attempts):032x}"


def seal(store: ObjectStore, table: pa.Table, hasher: KeyHasher | None = None, partition: int = -1) -> LedgerRecord:
    """Seal `table` (rows.SCHEMA) as the ledger of its first row."""
    sealer = Sealer(store, new_id(), partition, hasher or Xxh3KeyHasher(SEED), new_id())
    return sealer.seal(table, table.column("ledger_id")[0].as_py(), NOW)


def seal_history(
    store: ObjectStore, history: list[pa.Table], hasher: KeyHasher | None = None, first_ledger_id: int = 5
) -> tuple[pa.Table, list[LedgerRecord]]:
    """Seal each table (INPUT_SCHEMA) as a ledger of its own; all rows, and the ledgers."""
    tables, next_offset = [], 0
    for number, content in enumerate(history):
        tables.append(to_rows(content, first_ledger_id + number, next_offset, NOW))
        next_offset += len(content)
    return pa.concat_tables(tables), [seal(store, table, hasher) for table in tables]


def source(ledger: LedgerRecord) -> Source:
    """The ledger as a run's source."""
    rows_object = RowsObject(ledger.rows, ledger.footer_size)
    return Source(rows_object, ledger.first_offset, ledger.last_offset, ledger.messages)


def damaged_copy(store: ObjectStore, name: str, position: int, mask: int = 0xFF) -> str:
    """The name of a copy of an object with one byte changed (`mask` is not 0)."""
    data = bytearray(store.get(name))
    data[position] ^= mask
    copy = f"damaged/{new_id()}/{name}"
    store.put(copy, bytes(data))
    return copy
