"""The output of a run: a broken promise of any kind is detected; manifests and statistics state what was decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from compactor.run import layout
from compactor.run.plan import PartTaskResult, RunPolicies, Sizing, SourceTotals
from compactor.run.run_output import RunOutput
from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger.object_check import check_compacted_objects
from storage.model import LedgerRecord, MessageId
from storage.objects.interface import ObjectStore
from tests.sealed import NOW, carry_out, decide, live_rows, manifest_of, seal_history
from tests.workbench import content

KEEP = Sizing(1, max_garbage_ratio=1)


def letters(text: str, payload: bytes = b"v") -> pa.Table:
    return content(*((character.encode(), payload) for character in text))


def last_output(
    store: ObjectStore, *history: pa.Table, policies: RunPolicies | None = None
) -> tuple[RunOutput, list[LedgerRecord]]:
    """Run once for each ledger. Return the output of the last run and the ledgers. Parts stay as they are."""
    _, ledgers = seal_history(store, list(history))
    previous = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "MERGE_RATIO", 0)
        for number in range(1, len(ledgers) + 1):
            output = carry_out(decide(store, ledgers[:number], previous, policies or RunPolicies(), sizing=KEEP))
            if number < len(ledgers):
                previous = manifest_of(store, output)
    return output, ledgers


@pytest.fixture
def output(object_store: ObjectStore) -> RunOutput:
    """The first of two old parts loses b and stays with a bitmap, the second is not touched; x and b are new."""
    return last_output(object_store, letters("abc"), letters("def"), letters("xb"))[0]


def without_a_bitmap(output: RunOutput) -> RunOutput:
    return replace(output, bitmaps=[])


def without_a_part(output: RunOutput) -> RunOutput:
    return replace(output, parts=[])


def with_a_row_too_many(output: RunOutput) -> RunOutput:
    (part,) = output.parts
    return replace(output, parts=[replace(part, kept={2: part.kept[2] + SourceTotals(1, 9)})])


def with_another_row(output: RunOutput) -> RunOutput:
    (part,) = output.parts
    return replace(output, parts=[replace(part, kept={2: part.kept[2] + SourceTotals(0, 1)})])


def with_another_row_deleted(output: RunOutput) -> RunOutput:
    (bitmap,) = output.bitmaps
    return replace(output, bitmaps=[replace(bitmap, kept={0: bitmap.kept[0] + SourceTotals(0, 1)})])


def with_rows_of_a_kept_part(output: RunOutput) -> RunOutput:
    (part,) = output.parts
    return replace(output, parts=[replace(part, kept={**part.kept, 1: SourceTotals(1, 3)})])


def with_a_part_twice(output: RunOutput) -> RunOutput:
    return replace(output, parts=[*output.parts, *output.parts])


@pytest.mark.parametrize(
    ("break_it", "source"),
    [
        (without_a_bitmap, 0),
        (without_a_part, 2),
        (with_a_row_too_many, 2),
        (with_another_row, 2),
        (with_another_row_deleted, 0),
        (with_rows_of_a_kept_part, 1),
        (with_a_part_twice, 2),
    ],
)
def test_a_promise_that_was_not_kept_names_its_source(
    output: RunOutput, break_it: Callable[[RunOutput], RunOutput], source: int
) -> None:
    output.check_totals()
    with pytest.raises(ObjectDamaged, match=rf"sources \[{source}\]"):
        break_it(output).check_totals()


def test_parts_must_ascend(output: RunOutput) -> None:
    (part,) = output.parts
    twin = PartTaskResult(part.part)
    with pytest.raises(ObjectDamaged, match="before its predecessor ends"):
        replace(output, parts=[part, twin]).check_totals()


def test_all_that_a_manifest_names_must_be_there_at_its_full_length(
    object_store: ObjectStore, output: RunOutput
) -> None:
    """R8: also what a run keeps, which it never opens."""
    manifest = manifest_of(object_store, output)
    kept, new = manifest.parts[1], manifest.parts[-1]
    stored = new.rows.stored
    longer = replace(new, rows=replace(new.rows, stored=replace(stored, size=stored.size + 1)))
    with pytest.raises(ObjectDamaged, match=stored.name):
        check_compacted_objects(object_store, replace(manifest, parts=(*manifest.parts[:-1], longer)))
    for name in (kept.rows.stored.name, *manifest.object_names):
        data = object_store.get(name)
        object_store.delete(name)
        with pytest.raises(ObjectMissing, match=name):
            check_compacted_objects(object_store, manifest)
        object_store.put(name, data)
    check_compacted_objects(object_store, manifest)


def test_a_manifest_joins_what_was_kept_and_what_is_new(object_store: ObjectStore, output: RunOutput) -> None:
    before = output.phase_one.previous
    assert before is not None
    manifest = manifest_of(object_store, output)
    assert [part.first.offset for part in manifest.parts] == [0, 3, 6]
    assert manifest.parts[1] == before.parts[1]
    assert (manifest.parts[0].rows, manifest.parts[0].dead, manifest.parts[0].offset_sum) == (
        before.parts[0].rows,
        1,
        2,
    )
    assert manifest.parts[2] == output.parts[0].part
    assert (manifest.keys, manifest.tombstones, manifest.dropped_to) == (7, 0, -1)
    assert (manifest.frozen_at, manifest.policies) == (NOW, asdict(RunPolicies()))
    new = tuple(result.index for result in output.phase_one.ranges)
    assert manifest.index == (new, *before.index[output.phase_one.plan.merged :])
    assert live_rows(object_store, manifest).column("key").to_pylist() == [b"a", b"c", b"d", b"e", b"f", b"x", b"b"]


def test_the_highest_tombstone_that_left_is_remembered_for_ever(object_store: ObjectStore) -> None:
    history = [letters("abc"), letters("cb", payload=b""), letters("x")]
    output, _ = last_output(object_store, *history)
    assert manifest_of(object_store, output).dropped_to == 4
    kept, _ = last_output(object_store, *history, policies=RunPolicies(tombstone_retention_ms=1))
    manifest = manifest_of(object_store, kept)
    assert (manifest.keys, manifest.tombstones, manifest.dropped_to) == (2, 2, -1)


@pytest.mark.parametrize(
    ("history", "last"),
    [
        pytest.param(["abc", "d"], MessageId(6, 0), id="a new part is the end"),
        pytest.param(["abc", "-c"], MessageId(5, 1), id="the last row of a kept part went"),
        pytest.param(["abc", "d", "-d"], MessageId(5, 2), id="the part behind it went"),
        pytest.param(["abc", "d", "-c", "-d"], MessageId(5, 1), id="and it had lost rows before"),
        pytest.param(["abc", "d", "-a"], MessageId(6, 0), id="the end is not touched"),
        pytest.param(["abc", "de", "-e", "-a"], MessageId(6, 0), id="the end lost rows, but not now"),
        pytest.param(["abc", "-abc"], None, id="nothing is left"),
    ],
)
def test_the_last_message_id_is_that_of_the_last_live_row(
    object_store: ObjectStore, history: list[str], last: MessageId | None
) -> None:
    """R6; a - deletes."""
    tables = [letters(text.lstrip("-"), b"" if text.startswith("-") else b"v") for text in history]
    output, ledgers = last_output(object_store, *tables)
    # what the run before found, for where no task has to search again
    before = None
    if len(tables) > 1:
        previous, _ = last_output(object_store, *tables[:-1])
        before = previous.last_message_id(manifest_of(object_store, previous), MessageId(6, 0))
    assert output.last_message_id(manifest_of(object_store, output), before) == last
    assert ledgers


def test_statistics_are_of_all_phases(object_store: ObjectStore, output: RunOutput) -> None:
    manifest = manifest_of(object_store, output)
    totals = output.statistics(manifest)
    ranges, (part,), (bitmap,) = output.phase_one.ranges, output.parts, output.bitmaps
    assert part.part is not None
    assert {name: totals[name] for name in ("messages_in", "messages_before", "messages_out", "keys")} == {
        "messages_in": 2,
        "messages_before": 6,
        "messages_out": 7,
        "keys": 7,
    }
    assert (totals["parts"], totals["parts_kept"], totals["parts_written"], totals["tasks"]) == (3, 2, 1, 3)
    assert totals["bytes_read"] == sum(item.statistics.bytes_read for item in ranges) + part.bytes_read
    assert totals["bytes_written"] == (
        part.part.rows.stored.size + bitmap.deleted[0].length + sum(item.statistics.bytes_written for item in ranges)
    )
    assert totals["bytes_out"] == manifest.stored_bytes


def test_a_forecast_says_what_phase_two_then_does(object_store: ObjectStore, output: RunOutput) -> None:
    estimate, statistics = output.phase_one.estimate(), output.statistics(manifest_of(object_store, output))
    same = ["messages_in", "messages_before", "messages_out", "tombstones_removed", "tombstones_kept", "expired"]
    assert {name: estimate[name] for name in same} == {name: statistics[name] for name in same}
    assert estimate["messages_dropped"] == 1
    assert (estimate["parts_before"], estimate["parts_kept"], estimate["parts_to_write"]) == (2, 2, 1)
