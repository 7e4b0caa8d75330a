"""Phase two over a local store: parts are the survivors of the reference, every column kept, run after run."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from compactor import reference
from compactor.phase_two import run_task
from compactor.run import layout
from compactor.run.plan import (
    DeletedRowsTask,
    DeletedRowsTaskResult,
    PartTask,
    PartTaskResult,
    RunPlan,
    RunPolicies,
    Sizing,
    SourceSlice,
    SourceTotals,
)
from compactor.run.run_output import RunAfterPhaseOne
from storage.entries.chunk_assembler import assemble_messages
from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import names, rows
from storage.ledger.deletion_bitmap import read_deleted_rows, read_deletion_bitmaps
from storage.ledger.manifest import Manifest, Part
from storage.ledger.rows_file import RowsReader
from storage.log.bulk_append import to_ledger_rows
from storage.model import Message, MessageId, RowsObject
from storage.objects.interface import ObjectStore
from tests.budgets import examples
from tests.sealed import NOW, carry_out, damaged_copy, decide, live_rows, manifest_of, seal, seal_history, source
from tests.strategies import histories
from tests.workbench import content

KEEP = Sizing(1, max_garbage_ratio=1)
"""No part is rewritten for its garbage."""
REWRITE = Sizing(1, max_garbage_ratio=0)
"""Every part with garbage is rewritten."""


def table_of(store: ObjectStore, part: Part | None) -> pa.Table:
    assert part is not None
    return pa.concat_tables(RowsReader(store, part.rows))


def as_messages(table: pa.Table) -> list[Message]:
    return list(assemble_messages(iter(table.to_batches()), -1))


def without_times(table: pa.Table) -> list[dict[str, object]]:
    return table.drop_columns(["retained_at"]).to_pylist()


def check_part(store: ObjectStore, part: Part) -> None:
    """A new part is what it says of itself."""
    table = table_of(store, part)
    drawn = table.to_pylist()
    first, last = drawn[0], drawn[-1]
    assert part.messages == len(drawn)
    assert part.deleted is None
    assert (part.first.offset, part.last.offset) == (first["offset"], last["offset"])
    ids = [(row["ledger_id"], row["entry_id"], row["batch_index"]) for row in (first, last)]
    assert [item.message_id.sort_key for item in (part.first, part.last)] == ids
    assert part.logical_bytes == int(rows.logical_sizes(table).sum())
    times = [row["publish_time"] for row in drawn]
    assert (part.min_publish_time, part.max_publish_time) == (min(times), max(times))
    assert part.offset_sum == sum(row["offset"] for row in drawn)


def check_run(store: ObjectStore, phase_one: RunAfterPhaseOne, expected: pa.Table) -> Manifest:
    """Carry a run out and compare with the rows that must be left."""
    created = carry_out(phase_one)
    for result in created.parts:
        if result.part is not None:
            check_part(store, result.part)
    manifest = manifest_of(store, created)
    assert without_times(live_rows(store, manifest)) == without_times(expected)
    for part in manifest.parts:
        live = live_rows(store, replace(manifest, parts=(part,))).column("offset").to_pylist()
        assert (part.live, part.offset_sum) == (len(live), sum(live))
    return manifest


def rows_left(previous: pa.Table, raw: pa.Table, retain_null_key: bool) -> pa.Table:
    """The rows of the reference's survivors, whole."""
    both = pa.concat_tables([previous, raw])
    live = {item.offset for item in reference.compact(as_messages(previous), as_messages(raw), retain_null_key)}
    return both.filter(pa.array([offset in live for offset in both.column("offset").to_pylist()], pa.bool_()))


sizings = st.builds(
    Sizing,
    parallelism=st.integers(1, 4),
    range_records=st.sampled_from([3, 1000]),
    part_bytes=st.sampled_from([1, 300, 3000, 1 << 20]),
    small_range_records=st.sampled_from([1, 1000]),
    small_part_bytes=st.just(1),
    max_garbage_ratio=st.sampled_from([0, 0.5, 1]),
)


@settings(max_examples=examples(40))
@given(histories(), sizings, st.booleans())
def test_parts_are_the_survivors_with_every_column(
    object_store: ObjectStore, history: list[pa.Table], sizing: Sizing, retain_null_key: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 4)
        table, ledgers = seal_history(object_store, history)
        expected = rows_left(table.slice(0, 0), table, retain_null_key)
        check_run(
            object_store, decide(object_store, ledgers, None, RunPolicies(retain_null_key), sizing=sizing), expected
        )


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    histories(max_tables=5), st.lists(sizings, min_size=3, max_size=3), st.lists(st.booleans(), min_size=3), st.data()
)
def test_run_after_run_starts_from_the_parts_bitmaps_and_index_of_the_one_before(
    object_store: ObjectStore, history: list[pa.Table], sizing: list[Sizing], retain: list[bool], data: st.DataObject
) -> None:
    table, ledgers = seal_history(object_store, history)
    cuts = [*sorted(data.draw(st.lists(st.integers(0, len(ledgers)), min_size=2, max_size=2))), len(ledgers)]
    remaining, previous, result = table.slice(0, 0), None, 0
    for number, cut in enumerate(cuts):
        if cut == 0:
            continue
        upto = ledgers[cut - 1].last_offset + 1
        policies = RunPolicies(retain[number])
        phase_one = decide(object_store, ledgers[:cut], previous, policies, sizing=sizing[number])
        remaining = rows_left(remaining, table.slice(result, upto - result), retain[number])
        previous, result = check_run(object_store, phase_one, remaining), upto


def keyed(*keys: bytes | None, payload: bytes = b"v") -> pa.Table:
    return content(*((key, payload) for key in keys))


def one_run(store: ObjectStore, *history: pa.Table) -> tuple[RunPlan, tuple[PartTask, ...]]:
    """A first run of one part, up to phase two."""
    _, ledgers = seal_history(store, list(history))
    phase_one = decide(store, ledgers)
    return phase_one.plan, phase_one.layout.parts


def part_of(plan: RunPlan, parts: tuple[PartTask | DeletedRowsTask, ...]) -> PartTaskResult:
    result = run_task(plan, parts[0])
    assert isinstance(result, PartTaskResult)
    return result


def test_a_task_that_runs_twice_makes_two_objects_of_the_same_rows(object_store: ObjectStore) -> None:
    plan, parts = one_run(object_store, keyed(b"a", b"b"))
    first, second = (part_of(plan, parts).part for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.rows.stored.name != second.rows.stored.name
    assert table_of(object_store, first) == table_of(object_store, second)
    parsed = names.parse(first.rows.stored.name)
    assert parsed == names.ParsedName(plan.topic_uid, names.ObjectKind.PART, 0, plan.attempt_id)


def with_damage_at(store: ObjectStore, plan: RunPlan, source: int, position: int) -> RunPlan:
    """The plan with one byte of a source changed."""
    rows_object = plan.sources[source].rows
    stored = replace(rows_object.stored, name=damaged_copy(store, rows_object.stored.name, position))
    moved = replace(plan.sources[source], rows=RowsObject(stored, rows_object.footer_size))
    return replace(plan, sources=(*plan.sources[:source], moved, *plan.sources[source + 1 :]))


def test_row_groups_without_survivors_are_not_read(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 10)
    again = keyed(*(b"%d" % n for n in range(50) if n != 25))
    plan, parts = one_run(object_store, keyed(*(b"%d" % number for number in range(50))), again)
    result = part_of(plan, parts)
    groups = RowsReader(object_store, plan.sources[0].rows).groups
    read = [groups[2], *RowsReader(object_store, plan.sources[1].rows).groups]
    assert result.bytes_read == sum(group.end - group.start for group in read)
    assert table_of(object_store, result.part).column("key").to_pylist()[0] == b"25"
    damaged = part_of(with_damage_at(object_store, plan, 0, groups[0].start), parts).part
    assert damaged is not None
    assert damaged.messages == 50


def test_slices_in_which_nothing_survives_make_no_part(object_store: ObjectStore) -> None:
    plan, (part,) = one_run(object_store, keyed(b"a", b"b", b"a"))
    (whole,) = part.slices
    none = PartTask(0, (replace(whole, first_offset=0, last_offset=0),))
    assert part_of(plan, (none,)) == PartTaskResult()
    assert list(object_store.list(names.run_prefix(plan.topic_uid, plan.attempt_id) + "part-")) == []


def test_damage_fails_the_task_and_leaves_no_part(object_store: ObjectStore) -> None:
    plan, parts = one_run(object_store, keyed(b"a", b"b"))
    damaged = with_damage_at(object_store, plan, 0, 10)
    with pytest.raises(ObjectDamaged, match=damaged.sources[0].rows.stored.name):
        run_task(damaged, parts[0])
    assert list(object_store.list(names.run_prefix(plan.topic_uid, plan.attempt_id) + "part-")) == []


def test_row_sets_that_were_changed_or_lost_fail_the_task(object_store: ObjectStore) -> None:
    plan, (part,) = one_run(object_store, keyed(b"a", b"b"))
    (whole,) = part.slices
    ((name, row_set),) = whole.row_sets
    damaged = replace(whole, row_sets=((damaged_copy(object_store, name, 0), row_set),))
    with pytest.raises(ObjectDamaged, match="row sets"):
        run_task(plan, PartTask(0, (damaged,)))
    lost = replace(whole, row_sets=((f"{name}x", row_set),))
    with pytest.raises(ObjectMissing):
        run_task(plan, PartTask(0, (lost,)))


def test_rows_that_the_index_names_and_the_ledger_lacks_are_damage(object_store: ObjectStore) -> None:
    """A source may have gaps: an offset in a gap must not become the row beside it."""
    plan, parts = one_run(object_store, keyed(b"a", b"b", b"c"))
    table = to_ledger_rows(keyed(b"a", b"b", b"c", b"d"), 5, 0, NOW)
    gapped = seal(object_store, pa.concat_tables([table.slice(0, 1), table.slice(2)]))
    with pytest.raises(ObjectDamaged, match="do not exist"):
        run_task(replace(plan, sources=(source(gapped),)), parts[0])


def letters(text: str, payload: bytes = b"v") -> pa.Table:
    """A message for each letter."""
    return keyed(*(letter.encode() for letter in text), payload=payload)


def runs(
    store: ObjectStore, *history: pa.Table, sizing: Sizing = KEEP, policies: RunPolicies | None = None
) -> tuple[RunAfterPhaseOne, Manifest | None]:
    """One run a ledger, a second apart; the last one after its phase one, and what it starts from.

    Parts are not merged, and the runs before the last keep all of them.
    """
    _, ledgers = seal_history(store, list(history))
    previous, policies = None, policies or RunPolicies()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "MERGE_RATIO", 0)
        for number in range(1, len(ledgers)):
            phase_one = decide(store, ledgers[:number], previous, policies, sizing=KEEP, now=NOW + 1000 * number)
            previous = manifest_of(store, carry_out(phase_one))
        last = decide(store, ledgers, previous, policies, sizing=sizing, now=NOW + 1000 * len(ledgers))
    return last, previous


def offsets(store: ObjectStore, part: Part | None) -> list[int]:
    column: list[int] = table_of(store, part).column("offset").to_pylist()
    return column


def test_a_kept_part_gets_the_union_of_its_deleted_rows(object_store: ObjectStore) -> None:
    phase_one, previous = runs(object_store, letters("abcdef"), letters("b"), letters("ef"))
    assert previous is not None
    assert list(read_deleted_rows(object_store, previous.parts[0])) == [1]
    manifest = manifest_of(object_store, carry_out(phase_one))
    kept = manifest.parts[0]
    assert kept.rows == previous.parts[0].rows
    assert list(read_deleted_rows(object_store, kept)) == [1, 4, 5]
    assert (kept.dead, kept.live, kept.offset_sum) == (3, 3, 0 + 2 + 3)
    assert manifest.parts[1] == previous.parts[1]


def test_bitmaps_of_several_parts_share_an_object(object_store: ObjectStore) -> None:
    phase_one, previous = runs(object_store, letters("abc"), letters("def"), letters("ghi"), letters("af"))
    assert previous is not None
    (plan,) = phase_one.layout.bitmaps
    assert [number for number, _ in plan.parts] == [0, 1]
    result = run_task(phase_one.plan, plan)
    assert isinstance(result, DeletedRowsTaskResult)
    assert {place.name for place in result.deleted.values()} == {result.deleted[0].name}
    assert [list(item) for item in read_deletion_bitmaps(object_store, list(result.deleted.values()))] == [[0], [2]]
    assert result.kept == {0: SourceTotals(2, 1 + 2), 1: SourceTotals(2, 3 + 4)}
    assert result.last_alive is None
    parsed = names.parse(result.deleted[0].name)
    assert parsed is not None
    assert parsed.kind is names.ObjectKind.BITMAPS


@pytest.mark.parametrize(("deleted", "last"), [("f", 4), ("ef", 3), ("cdef", 1), ("a", 5)])
def test_the_last_message_alive_is_looked_for_when_a_kept_part_is_the_end(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, deleted: str, last: int
) -> None:
    """R6; also where whole row groups at the end are dead."""
    monkeypatch.setattr(rows, "GROUP_ROWS", 2)
    phase_one, _ = runs(object_store, letters("abcdef"), letters(deleted, payload=b""))
    (plan,) = phase_one.layout.bitmaps
    assert plan.find_last
    created = carry_out(phase_one)
    (result,) = created.bitmaps
    assert result.last_alive == MessageId(5, last)
    assert created.last_message_id(manifest_of(object_store, created), None) == MessageId(5, last)


def test_a_part_that_is_written_anew_leaves_out_what_its_bitmap_and_the_row_sets_name(
    object_store: ObjectStore,
) -> None:
    phase_one, _ = runs(
        object_store,
        letters("abcdef"),
        letters("b"),
        letters("ef", payload=b""),
        sizing=REWRITE,
    )
    created = carry_out(phase_one)
    assert created.bitmaps == []
    (written,) = created.parts
    assert offsets(object_store, written.part) == [0, 2, 3]
    assert written.kept == {0: SourceTotals(3, 0 + 2 + 3)}


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_part_may_be_cut_anywhere_also_between_dead_rows(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 3)
    phase_one, _ = runs(object_store, letters("abcdef"), letters("bc", payload=b""), letters("d", payload=b""))
    dead_rows = phase_one.layout.bitmaps[0].parts[0][1]
    halves = tuple(PartTask(n, (SourceSlice(0, a, b, dead_rows),)) for n, (a, b) in enumerate([(0, cut - 1), (cut, 5)]))
    results = [run_task(phase_one.plan, half) for half in halves]
    remaining = [0, 4, 5]
    for result, expected in zip(
        results, ([n for n in remaining if n < cut], [n for n in remaining if n >= cut]), strict=True
    ):
        assert isinstance(result, PartTaskResult)
        assert offsets(object_store, result.part) == expected
        assert result.kept == {0: SourceTotals(len(expected), sum(expected))}


def test_row_groups_of_an_old_part_in_which_nothing_is_alive_are_not_read(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 2)
    phase_one, _ = runs(
        object_store,
        letters("abcdef"),
        letters("c", payload=b""),
        letters("d", payload=b""),
        sizing=REWRITE,
    )
    groups = RowsReader(object_store, phase_one.plan.sources[0].rows).groups
    damaged = with_damage_at(object_store, phase_one.plan, 0, groups[1].start)
    results = [run_task(damaged, part) for part in phase_one.layout.parts]
    parts = [result for result in results if isinstance(result, PartTaskResult)]
    assert sum(result.bytes_read for result in parts) == sum(
        group.end - group.start for group in (groups[0], groups[2])
    )
    assert [offset for result in parts for offset in offsets(object_store, result.part)] == [0, 1, 4, 5]


def test_a_tombstone_keeps_the_time_of_the_run_that_kept_it_first(object_store: ObjectStore) -> None:
    """T1: set once, carried from part to part; of anything else it is null."""
    policies = RunPolicies(retain_null_key=True, tombstone_retention_ms=3_600_000)
    history = [
        pa.concat_tables([letters("ab"), letters("x", payload=b""), keyed(None, payload=b"")]),
        letters("y", payload=b""),
        pa.concat_tables([letters("a"), letters("z", payload=b"")]),
    ]
    phase_one, previous = runs(object_store, *history, sizing=REWRITE, policies=policies)
    assert previous is not None
    assert [part.oldest_tombstone for part in previous.parts] == [NOW + 1000, NOW + 2000]
    created = carry_out(phase_one)
    assert [sorted(result.kept) for result in created.parts] == [[0], [2]]
    manifest = manifest_of(object_store, created)
    times = live_rows(object_store, manifest).select(["key", "retained_at"]).to_pylist()
    assert [(row["key"], row["retained_at"]) for row in times] == [
        (b"b", None),
        (b"x", NOW + 1000),
        (None, None),
        (b"y", NOW + 2000),
        (b"a", None),
        (b"z", NOW + 3000),
    ]
    assert [part.oldest_tombstone for part in manifest.parts] == [NOW + 1000, NOW + 2000, NOW + 3000]
