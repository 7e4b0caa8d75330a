"""Phase two over a local store: parts are the survivors of the reference, every column kept, run after run."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import reference
from compactor.phase_one import run_range
from compactor.phase_two import run_part
from compactor.plan import (
    PartPlan,
    PartResult,
    Policies,
    RangeResult,
    RunPlan,
    Sizing,
    Source,
    SourceTotals,
    cut_parts,
    promised,
)
from storage.bulk_append import INPUT_SCHEMA
from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import names, rows
from storage.ledger.rows_file import RowsObject, RowsReader
from storage.metadata.records import IndexLocation, LedgerRecord
from storage.model import Message
from storage.objects.interface import ObjectStore
from storage.reader import messages
from tests.sealed import damaged_copy, new_id, seal_history, source
from tests.strategies import histories


def plan_of(
    store: ObjectStore,
    sources: list[Source],
    indexes: list[IndexLocation],
    bits: int = 0,
    retain_null_key: bool = False,
) -> RunPlan:
    policies = Policies(retain_null_key)
    return RunPlan(store.location, new_id(), -1, new_id(), policies, tuple(sources), tuple(indexes), bits)


def run(plan: RunPlan, parallelism: int) -> tuple[list[RangeResult], list[PartResult]]:
    """Both phases, one task after the other; about `parallelism` parts."""
    ranges = [run_range(plan, number) for number in range(len(plan.ranges))]
    parts = tuple(cut_parts(plan, ranges, Sizing(parallelism, small_part_bytes=1)))
    return ranges, [run_part(plan, parts, number) for number in range(len(parts))]


def table_of(store: ObjectStore, written: RowsObject | None) -> pa.Table:
    assert written is not None
    return pa.concat_tables(RowsReader(store, written))


def as_messages(table: pa.Table) -> list[Message]:
    return list(messages(iter(table.to_batches()), -1))


def check_part(store: ObjectStore, result: PartResult) -> pa.Table:
    """A part is what its result says; its rows."""
    table = table_of(store, result.rows)
    drawn = table.to_pylist()
    first, last = drawn[0], drawn[-1]
    assert result.messages == len(drawn)
    assert (result.first_offset, result.last_offset) == (first["offset"], last["offset"])
    ids = [(row["ledger_id"], row["entry_id"], row["batch_index"]) for row in (first, last)]
    assert [one.order for one in (result.first_message_id, result.last_message_id) if one] == ids
    assert result.logical_bytes == int(rows.logical_sizes(table).sum())
    times = [row["publish_time"] for row in drawn]
    assert (result.min_publish_time, result.max_publish_time) == (min(times), max(times))
    return table


def check_run(store: ObjectStore, plan: RunPlan, parallelism: int, expected: list[dict[str, object]]) -> list[Source]:
    """Run both phases and compare with the rows that must be left; the parts as sources of the next run."""
    ranges, results = run(plan, parallelism)
    written = [result for result in results if result.rows is not None]
    found = [row for result in written for row in check_part(store, result).to_pylist()]
    assert found == expected
    kept: dict[int, SourceTotals] = {}
    for result in results:
        for number, totals in result.kept.items():
            kept[number] = kept.get(number, SourceTotals()) + totals
    assert kept == promised(ranges)
    return [Source(one.rows, one.first_offset, one.last_offset, one.messages) for one in written if one.rows]


def rows_left(previous: pa.Table, raw: pa.Table, retain_null_key: bool) -> pa.Table:
    """The rows of the reference's survivors, whole."""
    both = pa.concat_tables([previous, raw])
    live = {one.offset for one in reference.compact(as_messages(previous), as_messages(raw), retain_null_key)}
    return both.filter(pa.array([offset in live for offset in both.column("offset").to_pylist()], pa.bool_()))


@settings(max_examples=40)
@given(histories(), st.integers(0, 2), st.integers(1, 4), st.booleans())
def test_parts_are_the_survivors_with_every_column(
    object_store: ObjectStore, history: list[pa.Table], bits: int, parallelism: int, retain_null_key: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "GROUP_ROWS", 4)
        table, ledgers = seal_history(object_store, history)
        indexes = [ledger.index for ledger in ledgers]
        plan = plan_of(object_store, list(map(source, ledgers)), indexes, bits, retain_null_key)
        expected = rows_left(table.slice(0, 0), table, retain_null_key)
        check_run(object_store, plan, parallelism, expected.to_pylist())


@settings(max_examples=30)
@given(histories(), st.integers(0, 3), st.booleans(), st.booleans())
def test_a_second_run_starts_from_the_parts_and_index_of_the_first(
    object_store: ObjectStore, history: list[pa.Table], first_part: int, retained: bool, retain: bool
) -> None:
    table, ledgers = seal_history(object_store, history)
    before, after = ledgers[:first_part], ledgers[first_part:]
    cut = before[-1].last_offset + 1 if before else 0
    plan = plan_of(object_store, list(map(source, before)), [one.index for one in before], 1, retained)
    left = rows_left(table.slice(0, 0), table.slice(0, cut), retained)
    parts = check_run(object_store, plan, 2, left.to_pylist())
    indexes = [found for n in range(2) if (found := run_range(plan, n).index) is not None]

    sources = [*parts, *map(source, after)]
    again = plan_of(object_store, sources, [*indexes, *(one.index for one in after)], 2, retain)
    expected = rows_left(left, table.slice(cut), retain)
    check_run(object_store, again, 3, expected.to_pylist())


def keyed(*keys: bytes) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "payload": b"of " + key} for key in keys], schema=INPUT_SCHEMA)


def one_run(store: ObjectStore, ledgers: list[LedgerRecord]) -> tuple[RunPlan, tuple[PartPlan, ...]]:
    plan = plan_of(store, list(map(source, ledgers)), [ledger.index for ledger in ledgers])
    return plan, tuple(cut_parts(plan, [run_range(plan, 0)], Sizing(1)))


def test_a_task_that_runs_twice_makes_two_objects_of_the_same_rows(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [keyed(b"a", b"b")])
    plan, parts = one_run(object_store, ledgers)
    first, second = (run_part(plan, parts, 0) for _ in range(2))
    assert first.rows is not None
    assert second.rows is not None
    assert first.rows.stored.name != second.rows.stored.name
    assert table_of(object_store, first.rows) == table_of(object_store, second.rows)
    parsed = names.parse(first.rows.stored.name)
    assert parsed == names.ParsedName(plan.topic_uid, names.ObjectKind.PART, 0, plan.attempt_id)


def test_row_groups_without_survivors_are_not_read(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 10)
    history = [keyed(*(b"%d" % number for number in range(50))), keyed(*(b"%d" % n for n in range(50) if n != 25))]
    _, ledgers = seal_history(object_store, history)
    plan, parts = one_run(object_store, ledgers)
    result = run_part(plan, parts, 0)
    assert result.statistics.groups_read == 1 + 5
    assert table_of(object_store, result.rows).column("key").to_pylist()[0] == b"25"
    groups = RowsReader(object_store, plan.sources[0].rows).groups
    damaged = damaged_copy(object_store, ledgers[0].rows.name, groups[0].start)
    stored = replace(ledgers[0].rows, name=damaged)
    moved = replace(plan.sources[0], rows=RowsObject(stored, ledgers[0].footer_size))
    assert run_part(replace(plan, sources=(moved, plan.sources[1])), parts, 0).messages == 50


def test_slices_in_which_nothing_survives_make_no_part(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [keyed(b"a", b"b", b"a")])
    plan, (part,) = one_run(object_store, ledgers)
    (whole,) = part.slices
    none = PartPlan(0, (replace(whole, first_offset=0, last_offset=0),))
    assert run_part(plan, (none,), 0) == PartResult(0)
    assert list(object_store.list(names.run_prefix(plan.topic_uid, plan.attempt_id) + "part-")) == []


def test_damage_fails_the_task_and_leaves_no_part(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [keyed(b"a", b"b")])
    plan, parts = one_run(object_store, ledgers)
    stored = replace(ledgers[0].rows, name=damaged_copy(object_store, ledgers[0].rows.name, 10))
    damaged = replace(plan.sources[0], rows=RowsObject(stored, ledgers[0].footer_size))
    with pytest.raises(ObjectDamaged, match=stored.name):
        run_part(replace(plan, sources=(damaged,)), parts, 0)
    assert list(object_store.list(names.run_prefix(plan.topic_uid, plan.attempt_id) + "part-")) == []


def test_row_sets_that_were_changed_or_lost_fail_the_task(object_store: ObjectStore) -> None:
    _, ledgers = seal_history(object_store, [keyed(b"a", b"b")])
    plan, (part,) = one_run(object_store, ledgers)
    (whole,) = part.slices
    ((name, row_set),) = whole.row_sets
    damaged = replace(whole, row_sets=((damaged_copy(object_store, name, 0), row_set),))
    with pytest.raises(ObjectDamaged, match="row sets"):
        run_part(plan, (PartPlan(0, (damaged,)),), 0)
    lost = replace(whole, row_sets=((f"{name}x", row_set),))
    with pytest.raises(ObjectMissing):
        run_part(plan, (PartPlan(0, (lost,)),), 0)


def test_rows_that_the_index_names_and_the_part_lacks_are_damage(object_store: ObjectStore) -> None:
    """A part has gaps: an offset in a gap must not become the row beside it."""
    _, ledgers = seal_history(object_store, [keyed(b"a", b"b", b"c"), keyed(b"b")])
    plan, parts = one_run(object_store, ledgers)
    first = run_part(plan, parts, 0)
    assert first.rows is not None
    gapped = Source(first.rows, 0, 3, 3)
    older = plan_of(object_store, [gapped], [ledgers[0].index])
    wrong = tuple(cut_parts(older, [run_range(older, 0)], Sizing(1)))
    with pytest.raises(ObjectDamaged, match="not there"):
        run_part(older, wrong, 0)
