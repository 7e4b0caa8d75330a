"""Phase one against the page of plain Python: the same survivors, whatever the keys' hashes and the hash ranges."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyroaring import BitMap64

from compactor import reference
from compactor.phase_one import run_range, split_by_source, unkeyed_survivors
from compactor.phase_two import read_row_sets
from compactor.run.plan import (
    RangeTaskResult,
    RunPlan,
    RunPolicies,
    Sizing,
    Source,
    expected_totals,
    row_sets_by_source,
)
from storage.checksums import crc32c
from storage.entries.chunk_assembler import assemble_messages
from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import key_index
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.key_index import MARKER, OFFSET_MASK, HashRange
from storage.model import LedgerRecord, RowsObject, StoredObject
from storage.objects.interface import ObjectStore
from tests.budgets import examples
from tests.sealed import (
    NOW,
    SEED,
    CollidingHasher,
    carry_out,
    decide,
    live_rows,
    manifest_of,
    new_id,
    seal_history,
    source,
)
from tests.strategies import contents, histories
from tests.workbench import content

HASHERS = st.sampled_from([Xxh3KeyHasher(SEED), CollidingHasher()])


def plan_of(store: ObjectStore, ledgers: list[LedgerRecord], bits: int, retain_null_key: bool = False) -> RunPlan:
    """The plan of a first run: no old parts, no levels."""
    return RunPlan(
        store=store.location,
        topic_uid=new_id(),
        partition=-1,
        attempt_id=new_id(),
        policies=RunPolicies(retain_null_key),
        now=NOW,
        hasher=Xxh3KeyHasher(SEED),
        sources=tuple(map(source, ledgers)),
        indexes=tuple(ledger.index for ledger in ledgers),
        range_bits=bits,
    )


def surviving_offsets(store: ObjectStore, plan: RunPlan, results: list[RangeTaskResult]) -> list[int]:
    """The offsets in the row sets, read as phase two reads them."""
    by_source = sorted(row_sets_by_source(results).items())
    named = read_row_sets(store, [row_sets for _, row_sets in by_source])
    return [
        int(offset) + plan.sources[number].first_offset
        for (number, _), offsets in zip(by_source, named, strict=True)
        for offset in offsets
    ]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(histories(), HASHERS, st.integers(0, 3), st.booleans())
def test_the_tasks_of_all_ranges_promise_the_survivors_of_the_reference(
    object_store: ObjectStore, history: list[pa.Table], hasher: KeyHasher, bits: int, retain_null_key: bool
) -> None:
    table, ledgers = seal_history(object_store, history, hasher)
    plan = plan_of(object_store, ledgers, bits, retain_null_key)
    results = [run_range(plan, number) for number in range(2**bits)]
    everything = list(assemble_messages(iter(table.to_batches()), -1))
    expected = reference.compact([], everything, retain_null_key)
    offsets = [message.offset for message in expected]
    assert surviving_offsets(object_store, plan, results) == offsets

    totals = expected_totals(plan, row_sets_by_source(results))
    assert sum(total.count for total in totals.values()) == len(offsets)
    assert sum(total.offset_sum for total in totals.values()) == sum(offsets)
    assert sum(result.statistics.keys for result in results) == len([m for m in expected if m.key is not None])
    assert sum(result.statistics.null_keys for result in results) == len([m for m in expected if m.key is None])
    assert sum(result.statistics.records for result in results) == sum(
        len({m.key for m in assemble_messages(iter(item.to_batches()), -1) if m.key is not None})
        for item in (table.slice(ledger.first_offset, ledger.messages) for ledger in ledgers)
    )


@settings(max_examples=examples(30))
@given(histories(), HASHERS, st.integers(0, 3), st.booleans())
def test_the_new_index_names_the_survivors_and_nothing_else(
    object_store: ObjectStore, history: list[pa.Table], hasher: KeyHasher, bits: int, retain_null_key: bool
) -> None:
    table, ledgers = seal_history(object_store, history, hasher)
    plan = plan_of(object_store, ledgers, bits, retain_null_key)
    results = [run_range(plan, number) for number in range(2**bits)]
    indexes = [result.index for result in results if result.index is not None]
    keyed = [
        offset
        for index in indexes
        for offset in key_index.read_records(object_store, index, HashRange()).offset.tolist()
    ]
    unkeyed = [offset for index in indexes for offset in key_index.read_unkeyed(object_store, index, "null_keys")]
    expected = reference.compact([], assemble_messages(iter(table.to_batches()), -1), retain_null_key)
    assert sorted(keyed) == [message.offset for message in expected if message.key is not None]
    assert sorted(unkeyed) == [message.offset for message in expected if message.key is None]


def test_a_range_in_which_nothing_survives_writes_nothing(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [content((b"k", None))])
    plan = plan_of(object_store, ledgers, 0)
    result = run_range(plan, 0)
    assert (result.row_sets, result.index) == ((), None)
    assert list(object_store.list(f"topics/{plan.topic_uid}/")) == []


def test_a_lost_index_fails_the_task(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [content((b"k", b"v"))])
    object_store.delete(ledgers[0].index.name)
    with pytest.raises(ObjectMissing, match=ledgers[0].index.name):
        run_range(plan_of(object_store, ledgers, 0), 0)


@pytest.mark.parametrize("retain_null_key", [False, True])
def test_whole_entries_and_chunks_always_stay_and_null_keys_by_policy(retain_null_key: bool) -> None:
    unkeyed = {"null_keys": BitMap64([1]), "whole_entries": BitMap64([2]), "chunks": BitMap64([3])}
    kept = unkeyed_survivors(unkeyed, RunPolicies(retain_null_key))
    assert {name: list(bitmap) for name, bitmap in kept.items()} == {
        "null_keys": [1] if retain_null_key else [],
        "whole_entries": [2],
        "chunks": [3],
    }
    assert list(unkeyed["null_keys"]) == [1]


def spanning(*spans: tuple[int, int]) -> tuple[Source, ...]:
    rows_object = RowsObject(StoredObject("rows", 1, 0), 1)
    return tuple(Source(rows_object, first, last, last - first + 1) for first, last in spans)


def test_offsets_are_split_by_the_source_that_holds_them() -> None:
    offsets = np.array([0, 4, 10, 19, 2**40], dtype=np.uint64)
    split = split_by_source(offsets, spanning((0, 4), (5, 9), (10, 19), (2**40, 2**40)))
    assert {number: part.tolist() for number, part in split.items()} == {0: [0, 4], 2: [10, 19], 3: [2**40]}
    assert split_by_source(offsets[:0], spanning((0, 4))) == {}
    assert split_by_source(offsets[:0], ()) == {}


@pytest.mark.parametrize("offset", [0, 4, 10, 14, 20])
def test_an_offset_that_no_source_holds_is_damage(offset: int) -> None:
    offsets = np.array(sorted([5, 15, offset]), dtype=np.uint64)
    with pytest.raises(ObjectDamaged, match=f"offset {offset},"):
        split_by_source(offsets, spanning((5, 9), (15, 19)))


def test_row_sets_are_offsets_relative_to_their_source(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [content(*((b"%d" % number, b"v") for number in range(3)))] * 2)
    result = run_range(plan_of(object_store, ledgers, 0), 0)
    (row_set,) = result.row_sets
    block = object_store.get(result.name)
    assert (row_set.source, row_set.start, row_set.count, row_set.offset_sum) == (1, 0, 3, 3 + 4 + 5)
    assert np.frombuffer(block, dtype="<u4").tolist() == [0, 1, 2]
    assert row_set.crc32c == crc32c(block)


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.lists(contents(max_size=8), min_size=5, max_size=5), HASHERS, st.sampled_from([1, 3, 1000]), st.booleans())
def test_levels_that_are_merged_and_levels_that_are_probed_tell_the_same(
    object_store: ObjectStore, history: list[pa.Table], hasher: KeyHasher, range_records: int, retained: bool
) -> None:
    """Four runs that merge nothing leave up to four levels; the fifth merges that many of them."""
    policies = RunPolicies(tombstone_retention_ms=10 if retained else 0)
    _, ledgers = seal_history(object_store, history, hasher)
    sizing, previous = Sizing(1, range_records=range_records), None
    for number in range(1, 5):
        before = decide(object_store, ledgers[:number], previous, policies, sizing=sizing, hasher=hasher, merged=0)
        previous = manifest_of(object_store, carry_out(before))
    assert previous is not None
    decisions = [
        decide(object_store, ledgers, previous, policies, sizing=sizing, hasher=hasher, merged=merged)
        for merged in range(len(previous.index) + 1)
    ]
    assert all(decision.expected == decisions[0].expected for decision in decisions)
    for decision in decisions:
        manifest = manifest_of(object_store, carry_out(decision))
        live = live_rows(object_store, manifest).column("offset").to_pylist()
        records = [
            [key_index.read_records(object_store, location, HashRange()) for location in level]
            for level in manifest.index
        ]
        seen: dict[tuple[int, int], int] = {}
        for level in records:
            for part in level:
                for hi, lo, offset in zip(part.hi.tolist(), part.lo.tolist(), part.offset.tolist(), strict=True):
                    seen.setdefault((hi, lo), offset)
        visible = [offset & int(OFFSET_MASK) for offset in seen.values() if not offset & int(MARKER)]
        assert sorted(visible) == live
        assert manifest.keys + manifest.tombstones == len(live)
