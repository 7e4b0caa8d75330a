"""Comparison of rows and index records: fingerprints, sets by hash, rows by offset."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from compactor.verify.compare import (
    RowsByOffset,
    align_by_hash,
    compare_bitmaps,
    diff_by_hash,
    event_winner_per_hash,
    fingerprint,
    fingerprint_of_bits,
    last_per_hash,
    newest_per_hash,
    record_bits,
)
from compactor.verify.findings import DifferenceKind, Findings, Fingerprint
from storage.ledger.key_index import TOMBSTONE
from tests.unit.compactor.verify.records import index_records


def test_rows_are_found_where_offsets_do_not_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a ledger gets a difference for its order. Its rows are not missing."""
    reader = Mock(read=Mock(return_value=pa.table({"offset": pa.array([7, 3, 5], pa.int64())})))
    monkeypatch.setattr("compactor.verify.compare.RowsReader", lambda *_: reader)
    rows = RowsByOffset(Mock(), Mock())
    positions, table = rows.find_in_group(0, np.array([2, 3, 7, 9]))
    assert positions.tolist() == [1, 2]
    assert table.column("offset").to_pylist() == [3, 7]


def test_fingerprints_of_equal_sets_are_equal_in_any_order() -> None:
    offsets = np.arange(50, dtype=np.int64)
    assert fingerprint(offsets) == fingerprint(offsets[::-1])
    assert fingerprint(offsets) == fingerprint(offsets[:20]) + fingerprint(offsets[20:])
    assert fingerprint(offsets) - fingerprint(offsets[20:]) == fingerprint(offsets[:20])
    assert fingerprint(offsets) != fingerprint(offsets + 1)
    assert fingerprint(offsets[:0]) == Fingerprint()


def test_a_fingerprint_depends_on_the_column_of_a_value() -> None:
    low, high = np.array([1], dtype=np.int64), np.array([2], dtype=np.int64)
    assert fingerprint(low, high) != fingerprint(high, low)


def test_event_times_count_only_in_an_index_that_has_them() -> None:
    early, late = index_records((1, 5), event_times=[10]), index_records((1, 5), event_times=[20])
    assert fingerprint_of_bits(record_bits(early, by_event=False)) == fingerprint_of_bits(
        record_bits(late, by_event=False)
    )
    assert fingerprint_of_bits(record_bits(early, by_event=True)) != fingerprint_of_bits(
        record_bits(late, by_event=True)
    )


def test_align_returns_the_positions_of_every_hash_on_both_sides() -> None:
    at_left, at_right = align_by_hash(index_records((3, 0), (1, 0)), index_records((2, 0), (3, 0)))
    assert at_left.tolist() == [1, -1, 0]
    assert at_right.tolist() == [-1, 0, 1]


def test_align_of_nothing_is_empty() -> None:
    at_left, at_right = align_by_hash(index_records(), index_records())
    assert (at_left.tolist(), at_right.tolist()) == ([], [])


def test_split_separates_common_hashes_from_those_of_one_side() -> None:
    sides = diff_by_hash(index_records((3, 30), (1, 10)), index_records((2, 21), (3, 31)))
    assert [side.offset.tolist() for side in sides] == [[10], [21], [30], [31]]


def test_the_newest_record_of_a_hash_is_the_one_of_the_largest_offset_without_flags() -> None:
    records = index_records((1, 4), (1, 7 | int(TOMBSTONE)), (1, 5), (2, 1))
    assert newest_per_hash(records).offset.tolist() == [7 | int(TOMBSTONE), 1]


def test_the_largest_event_time_wins_and_then_the_offset() -> None:
    records = index_records((1, 4), (1, 7), (1, 5), (2, 1), event_times=[9, 3, 9, 0])
    assert event_winner_per_hash(records).offset.tolist() == [5, 1]


def test_last_of_each_of_nothing_is_empty() -> None:
    none = np.empty(0, dtype=np.uint64)
    assert last_per_hash(none, none).tolist() == []


def test_compare_bitmaps_adds_the_offsets_of_each_side() -> None:
    findings = Findings(limit=5)
    compare_bitmaps(findings, "index", "null_keys", BitMap64([1, 2]), BitMap64([2, 3]))
    assert [(each.kind, each.offset) for each in findings.named] == [
        (DifferenceKind.MISSING, 1),
        (DifferenceKind.EXTRA, 3),
    ]
