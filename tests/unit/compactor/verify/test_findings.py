"""Findings: named and counted differences, and what a damaged object raises."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from compactor.verify.findings import Difference, DifferenceKind, Findings, Fingerprint, TaskFindings
from storage.errors import ObjectMissing, Unavailable


def damaged(findings: Findings, where: str, error: Exception) -> Findings:
    with findings.record_damage(where):
        raise error
    return findings


def test_findings_name_some_and_count_all() -> None:
    findings = Findings(limit=2)
    for offset in range(5):
        findings.add(Difference(DifferenceKind.EXTRA, "here", "a row", offset))
    other = damaged(Findings(limit=2), "there", ObjectMissing("it is gone", "find it"))
    other.add(findings.named[0])
    findings.merge(other)
    assert [finding.offset for finding in findings.named] == [0, 1, None]
    assert findings.counts == {DifferenceKind.EXTRA: 5, DifferenceKind.DAMAGED: 1}
    assert findings.named[0] == Difference(DifferenceKind.EXTRA, "here", "a row", 0)


def test_add_each_names_offsets_with_their_keys_and_counts_the_rest() -> None:
    findings = Findings(limit=2)
    keys = pa.chunked_array([pa.array([b"a", None, b"c"])])
    findings.add_each(DifferenceKind.MISSING, "index", "it is absent", np.array([4, 5, 6]), keys, lambda row: f"{row}")
    assert [(each.offset, each.key, each.key_hash) for each in findings.named] == [(4, b"a", "0"), (5, None, "1")]
    assert findings.counts == {DifferenceKind.MISSING: 3}


def test_compare_adds_each_value_that_differs() -> None:
    findings = Findings(limit=5)
    findings.compare("row", {"a": 1, "b": (2, "id"), "c": 3}, {"a": 1, "b": (3, "id"), "c": None})
    assert [each.what for each in findings.named] == ["b is 2 (id), not 3 (id)", "c is 3, not None"]


@pytest.mark.parametrize(("bound", "values", "wrong"), [(3, [3, 4], 0), (4, [5, 3], 1), (None, [3], 1), (None, [], 0)])
def test_a_lower_bound_must_not_be_above_any_value(bound: int | None, values: list[int], wrong: int) -> None:
    findings = Findings(limit=5)
    findings.check_lower_bounds("part", SimpleNamespace(oldest=bound), "a row", {"oldest": values})
    assert findings.counts.get(DifferenceKind.INCONSISTENT, 0) == wrong


@pytest.mark.parametrize("error", [pa.ArrowInvalid("bad"), ValueError("bad"), KeyError("bad"), OverflowError("bad")])
def test_an_undecodable_object_is_damaged(error: Exception) -> None:
    (difference,) = damaged(Findings(limit=5), "part", error).named
    assert (difference.kind, difference.where) == (DifferenceKind.DAMAGED, "part")
    assert "cannot be decoded" in difference.what


def test_an_unavailable_store_is_no_damage() -> None:
    with pytest.raises(Unavailable, match="away"):
        damaged(Findings(limit=5), "part", Unavailable("the store is away", "wait"))


def test_forgive_removes_the_damage_of_the_objects_alone() -> None:
    findings = Findings(limit=5)
    for name in ("trimmed", "kept"):
        damaged(findings, name, ObjectMissing(f"{name} is missing", "restore it"))
    findings.add_inconsistency("trimmed", "its row differs")
    findings.remove_damage({"trimmed"})
    assert [(each.kind, each.where) for each in findings.named] == [
        (DifferenceKind.DAMAGED, "kept"),
        (DifferenceKind.INCONSISTENT, "trimmed"),
    ]
    assert findings.counts == {DifferenceKind.DAMAGED: 1, DifferenceKind.INCONSISTENT: 1}


def test_a_task_adds_up_fingerprints_by_name() -> None:
    answer = TaskFindings(Findings(5))
    answer.add_fingerprint("range 0", Fingerprint(1, 2**64 - 1))
    answer.add_fingerprint("range 0", Fingerprint(2, 3))
    assert answer.fingerprints == {"range 0": Fingerprint(3, 2)}
