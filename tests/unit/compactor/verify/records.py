"""Ledger records and index records without objects, for tests of the pure parts of verify."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compactor.verify.plan import VerifyPlan
from compactor.verify.run_history import RunHistory
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import NO_EVENT_TIME, HashRange, IndexDirectory, IndexRecords
from storage.ledger.manifest import Manifest
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, StoredObject
from storage.objects.interface import StoreLocation

NO_EVENTS = IndexDirectory(HashRange(), (0,), (0,))
EVENTS = IndexDirectory(HashRange(), (0,), (0,), (0,))


def ledger(first: int, last: int, directory: bytes | None = None, ledger_id: int = 0) -> LedgerRecord:
    """A ledger of the offsets `first` to `last`, both inclusive. Its id is `first`, unless `ledger_id` is set."""
    number = ledger_id or first
    rows = StoredObject(f"rows-{number}", 0, 0)
    index = IndexLocation(f"index-{number}", 0, 0, NO_EVENTS.encode() if directory is None else directory)
    messages = last - first + 1
    return LedgerRecord(
        number, first, last, messages, messages, MessageId(number, messages - 1), 0, 0, 0, rows, 0, index, "", 0
    )


def manifest(horizon: int, **fields: object) -> Manifest:
    """An empty compacted ledger of generation 1, of run 1."""
    position = LogPosition(horizon, MessageId(0, horizon))
    return Manifest("t", "uid", 9, 1, 1, 0, position, (), (), **fields)  # type: ignore[arg-type]


def plan(
    ledgers: Sequence[LedgerRecord], horizon: int, history: RunHistory | None = None, start_offset: int = 0
) -> VerifyPlan:
    """A verification of a compacted ledger up to `horizon`. Its default history is incomplete."""
    return VerifyPlan(
        StoreLocation("file:///nowhere"),
        Xxh3KeyHasher(0),
        tuple(ledgers),
        manifest(horizon),
        history or RunHistory((), complete=False),
        range_bits=0,
        limit=5,
        start_offset=start_offset,
    )


def index_records(*rows: tuple[int, int], event_times: Sequence[int] | None = None) -> IndexRecords:
    """Index records of (hash, offset)."""
    lo = np.array([row[0] for row in rows], dtype=np.uint64)
    offset = np.array([row[1] for row in rows], dtype=np.uint64)
    times = [NO_EVENT_TIME] * len(rows) if event_times is None else event_times
    return IndexRecords(np.zeros(len(rows), np.uint64), lo, offset, offset, np.array(times, dtype=np.int64))
