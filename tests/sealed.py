"""Sealed ledgers and whole runs for tests, without a database: objects under names that no other test has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa

from compactor.phase_one import run_range
from compactor.phase_two import run_task
from compactor.run import run_input
from compactor.run.expiry_scan import run_scan
from compactor.run.layout import lay_out
from compactor.run.plan import (
    DeletedRowsTaskResult,
    PartTaskResult,
    RemovalScanResult,
    RunPlan,
    RunPolicies,
    Sizing,
    Source,
    expected_totals,
    row_sets_by_source,
)
from compactor.run.run_output import RunAfterPhaseOne, RunOutput
from storage.ledger import rows
from storage.ledger.deletion_bitmap import live_mask, read_deleted_rows
from storage.ledger.hashing import Hashes, KeyHasher, Xxh3KeyHasher
from storage.ledger.manifest import Manifest
from storage.ledger.object_check import check_compacted_objects
from storage.ledger.rows_file import RowsReader
from storage.ledger.sealing import Sealer
from storage.log.bulk_append import to_ledger_rows
from storage.metadata.records import CompactedLedgerRecord, TopicRecord, TopicSnapshot
from storage.model import LedgerRecord, LogPosition, MessageId, StoredObject, TopicName
from storage.objects.interface import ObjectStore
from storage.objects.throttled import RateLimits

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
    return sealer.seal([table], table.column("ledger_id")[0].as_py(), NOW)


def seal_history(
    store: ObjectStore, history: list[pa.Table], hasher: KeyHasher | None = None, first_ledger_id: int = 5
) -> tuple[pa.Table, list[LedgerRecord]]:
    """Seal each table (INPUT_SCHEMA) as a ledger of its own; all rows, and the ledgers."""
    tables, next_offset = [], 0
    for number, content in enumerate(history):
        tables.append(to_ledger_rows(content, first_ledger_id + number, next_offset, NOW))
        next_offset += len(content)
    return pa.concat_tables(tables), [seal(store, table, hasher) for table in tables]


def source(ledger: LedgerRecord) -> Source:
    """The ledger as a run's source."""
    rows_object = ledger.rows_object
    return Source(rows_object, ledger.first_offset, ledger.last_offset, ledger.messages)


def snapshot_of(ledgers: Sequence[LedgerRecord], previous: Manifest | None = None) -> TopicSnapshot:
    """A topic that has these ledgers, the compacted ones included."""
    generation = previous.generation if previous else 0
    uid = previous.topic_uid if previous else new_id()
    topic = TopicRecord(1, uid, TopicName.parse("t"), SEED, generation, 1, 0, NOW)
    compacted = None
    if previous is not None:
        stored = StoredObject("manifest", 1, 0)
        compacted = CompactedLedgerRecord(
            previous.ledger_id, generation, previous.horizon, stored, 0, 0, 0, None, new_id(), NOW
        )
    return TopicSnapshot(topic, tuple(ledgers), None, compacted, None)


def decide(
    store: ObjectStore,
    ledgers: Sequence[LedgerRecord],
    previous: Manifest | None = None,
    policies: RunPolicies = RunPolicies(),  # noqa: B008
    *,
    now: int = NOW,
    sizing: Sizing = Sizing(1),  # noqa: B008
    hasher: KeyHasher | None = None,
    cursor_floor: int | None = None,
    merged: int | None = None,
) -> RunAfterPhaseOne:
    """A run up to its layout, as two_phase.py does it; `merged`: that many levels, not as many as it would."""
    snapshot = snapshot_of(ledgers, previous)
    plan = run_input.initial_plan(
        store.location,
        snapshot,
        previous,
        policies,
        now,
        new_id(),
        hasher or Xxh3KeyHasher(SEED),
        cursor_floor,
        RateLimits(),
    )
    reindexed = run_input.lacks_event_times(previous, policies)
    scans = run_input.scan_tasks(plan, previous, run_input.dirty_ledgers(snapshot, policies, now))
    scanned: list[RemovalScanResult] = [run_scan(plan, scan) for scan in scans]
    plan = run_input.with_scan_results(plan, scanned, reindexed=reindexed) if scans else plan
    plan = run_input.with_sizing(plan, previous, sizing, reindexed=reindexed)
    if merged is not None:
        plan = replace(plan, merged=min(merged, len(plan.levels)))
    ranges = [run_range(plan, number) for number in range(len(plan.ranges))]
    by_source = row_sets_by_source(ranges)
    remaining = expected_totals(plan, by_source)
    return RunAfterPhaseOne(plan, previous, scanned, ranges, remaining, lay_out(plan, by_source, remaining, sizing))


def carry_out(phase_one: RunAfterPhaseOne) -> RunOutput:
    """Phase two of a run."""
    results = [run_task(phase_one.plan, task) for task in phase_one.layout.tasks]
    return RunOutput(
        phase_one,
        [result for result in results if isinstance(result, PartTaskResult)],
        [result for result in results if isinstance(result, DeletedRowsTaskResult)],
    )


def manifest_of(store: ObjectStore, output: RunOutput) -> Manifest:
    """Return the checked result of a run, as the next run's previous ledger."""
    output.check_totals()
    plan, previous = output.phase_one.plan, output.phase_one.previous
    generation = previous.generation + 1 if previous else 1
    horizon = end_of(plan, previous)
    manifest = output.build_manifest(TopicName.parse("t"), 1000 + generation, generation, generation, plan.now, horizon)
    check_compacted_objects(store, manifest)
    return manifest


def end_of(plan: RunPlan, previous: Manifest | None) -> LogPosition:
    """The horizon of a run: the end of its last dirty ledger, or the one before."""
    if len(plan.sources) == plan.old_parts:
        assert previous is not None
        return previous.horizon
    last = plan.sources[-1].last_offset
    # parts only ever compare offsets, so the id may be any
    return LogPosition(last, MessageId(last, 0))


def live_rows(store: ObjectStore, manifest: Manifest) -> pa.Table:
    """The rows that a reader of a compacted ledger gets, every column."""
    tables = []
    for part in manifest.parts:
        table = pa.concat_tables(RowsReader(store, part.rows))
        mask = live_mask(read_deleted_rows(store, part), part.first.offset, table.column("offset").to_numpy())
        tables.append(table.filter(pa.array(mask)))
    return pa.concat_tables(tables) if tables else rows.SCHEMA.empty_table()


def damaged_copy(store: ObjectStore, name: str, position: int, mask: int = 0xFF) -> str:
    """The name of a copy of an object with one byte changed (`mask` is not 0)."""
    data = bytearray(store.get(name))
    data[position] ^= mask
    copy = f"damaged/{new_id()}/{name}"
    store.put(copy, bytes(data))
    return copy
