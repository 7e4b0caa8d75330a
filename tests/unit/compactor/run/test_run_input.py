"""The dirty ledgers, the due rows and the size of a run, from a snapshot and a manifest alone."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from pyroaring import BitMap64

from compactor.run import run_input
from compactor.run.plan import RemovalScanResult, RemovalScanTask, RunPlan, RunPolicies, Sizing
from storage.ledger import key_index
from storage.ledger.chunk_table import ChunkTable
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import HashRange, IndexRecords
from storage.ledger.manifest import DeletedRows, Manifest, Part
from storage.metadata.records import RunRecord, RunState
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, RowsObject, StoredObject
from storage.objects.interface import StoreLocation
from storage.objects.throttled import RateLimits
from tests.sealed import NOW, SEED, snapshot_of

MINUTE = 60_000
HOUR = 60 * MINUTE
STORE = StoreLocation("file:///nowhere")


def index(records: int, null_keys: int = 0) -> IndexLocation:
    numbers = np.arange(records, dtype=np.uint64)
    # every other offset, so that the bitmap does not shrink to one run
    unkeyed = {"null_keys": BitMap64(range(0, 2 * null_keys, 2))}
    data, directory = key_index.encode_index(IndexRecords(numbers, numbers, numbers), HashRange(), unkeyed)
    return IndexLocation("index", 0, len(data), directory.encode())


def ledger(
    number: int, youngest: int, oldest: int | None = None, records: int = 10, null_keys: int = 0
) -> LedgerRecord:
    """Ledger `number` of ten messages; `youngest`, `oldest`: milliseconds before NOW."""
    return LedgerRecord(
        ledger_id=number,
        first_offset=10 * number,
        last_offset=10 * number + 9,
        messages=10,
        entries=10,
        last_message_id=MessageId(number, 9),
        logical_bytes=100,
        min_publish_time=NOW - (youngest if oldest is None else oldest),
        max_publish_time=NOW - youngest,
        rows=StoredObject(f"rows-{number}", 100, 0),
        footer_size=1,
        index=index(records, null_keys),
        attempt_id="a",
        created_at=NOW,
    )


def part(number: int, value: int | None = None, tombstone: int | None = None) -> Part:
    """Part `number`, at the offsets of ledger `number`; its oldest times, in milliseconds before NOW. Its first
    tombstone is its fifth row."""
    first, last = (LogPosition(10 * number + n, MessageId(number, n)) for n in (0, 9))
    return Part(
        RowsObject(StoredObject(f"part-{number}", 100, 0), 1),
        first,
        last,
        10,
        100,
        0,
        0,
        offset_sum=7,
        oldest_value=None if value is None else NOW - value,
        oldest_tombstone=None if tombstone is None else NOW - tombstone,
        first_tombstone=None if tombstone is None else 10 * number + 4,
    )


def manifest(*parts: Part, policies: RunPolicies | None = None, levels: tuple[int, ...] = ()) -> Manifest:
    index_ = tuple((index(records),) for records in levels)
    end = parts[-1].last if parts else LogPosition(9, MessageId(0, 9))
    return Manifest("t", "u", 1, 1, 1, NOW, end, parts, index_, policies=asdict(policies or RunPolicies()))


def plan_of(
    ledgers: list[LedgerRecord], previous: Manifest | None, policies: RunPolicies, floor: int | None = None
) -> RunPlan:
    snapshot, hasher = snapshot_of(ledgers, previous), Xxh3KeyHasher(SEED)
    return run_input.initial_plan(STORE, snapshot, previous, policies, NOW, "a", hasher, floor, RateLimits())


# --- P2: where a run ends


@pytest.mark.parametrize(
    ("lag", "ends"),
    [(0, 39), (1, 39), (MINUTE, 29), (2 * MINUTE, 29), (2 * MINUTE + 1, 19), (HOUR, None)],
)
def test_a_run_ends_before_the_first_ledger_with_a_message_that_is_too_young(lag: int, ends: int | None) -> None:
    ledgers = [ledger(0, 30 * MINUTE), ledger(1, 20 * MINUTE), ledger(2, 2 * MINUTE), ledger(3, 10)]
    end = run_input.end_position(snapshot_of(ledgers), RunPolicies(min_lag_ms=lag), NOW)
    assert (end.offset if end else None) == ends


def test_a_ledger_that_straddles_the_lag_is_left_whole_and_so_is_all_behind_it() -> None:
    """P2, also where times do not ascend: an old ledger behind a young one waits with it."""
    ledgers = [ledger(0, 30 * MINUTE), ledger(1, 1, oldest=20 * MINUTE), ledger(2, 30 * MINUTE)]
    assert run_input.dirty_ledgers(snapshot_of(ledgers), RunPolicies(min_lag_ms=MINUTE), NOW) == (ledgers[0],)
    assert run_input.dirty_ledgers(snapshot_of(ledgers), RunPolicies(), NOW) == tuple(ledgers)


def test_what_lies_at_or_below_the_horizon_is_not_dirty() -> None:
    ledgers = [ledger(number, HOUR) for number in range(3)]
    snapshot = snapshot_of(ledgers, manifest(part(0)))
    assert run_input.dirty_ledgers(snapshot, RunPolicies(), NOW) == tuple(ledgers[1:])
    assert run_input.end_position(snapshot_of(ledgers[:1], manifest(part(0))), RunPolicies(), NOW) == part(0).last
    assert run_input.end_position(snapshot, RunPolicies(min_lag_ms=2 * HOUR), NOW) == part(0).last
    assert run_input.end_position(snapshot_of([]), RunPolicies(), NOW) is None


# --- P11: nothing new


def last_run(state: RunState, policies: RunPolicies) -> RunRecord:
    return RunRecord(1, 1, "a", "h", 1, state, "", asdict(policies), NOW, NOW)


@pytest.mark.parametrize(
    ("state", "before", "ledgers", "nothing"),
    [
        (RunState.SUCCESS, RunPolicies(), 1, True),
        (RunState.SUCCESS, RunPolicies(), 2, False),
        (RunState.SUCCESS, RunPolicies(retain_null_key=True), 1, False),
        (RunState.ERROR, RunPolicies(), 1, False),
        (RunState.CANCELLED, RunPolicies(), 1, False),
        (RunState.RUNNING, RunPolicies(), 1, False),
    ],
)
def test_nothing_is_new_after_a_success_of_the_same_policies(
    state: RunState, before: RunPolicies, ledgers: int, nothing: bool
) -> None:
    snapshot = snapshot_of([ledger(number, HOUR) for number in range(ledgers)], manifest(part(0)))
    snapshot = replace(snapshot, last_run=last_run(state, before))
    assert run_input.is_unchanged(snapshot, RunPolicies(), NOW) == nothing


def test_a_ledger_that_is_too_young_is_nothing_new() -> None:
    policies = RunPolicies(min_lag_ms=MINUTE)
    snapshot = snapshot_of([ledger(0, HOUR), ledger(1, 5)], manifest(part(0)))
    snapshot = replace(snapshot, last_run=last_run(RunState.SUCCESS, policies))
    assert run_input.is_unchanged(snapshot, policies, NOW)
    assert not run_input.is_unchanged(snapshot, policies, NOW + MINUTE)
    assert not run_input.is_unchanged(replace(snapshot, last_run=None), policies, NOW)


# --- what is due by time


@pytest.mark.parametrize(
    ("policies", "old", "floor", "due"),
    [
        pytest.param(RunPolicies(), part(1, value=HOUR), None, False, id="no policy"),
        pytest.param(RunPolicies(key_ttl_ms=HOUR), part(1, value=HOUR), None, True, id="a value, to the millisecond"),
        pytest.param(
            RunPolicies(key_ttl_ms=HOUR), part(1, value=HOUR - 1), None, False, id="a value a millisecond early"
        ),
        pytest.param(RunPolicies(key_ttl_ms=HOUR), part(1), None, False, id="no value"),
        pytest.param(RunPolicies(key_ttl_ms=0), part(1, value=0), None, True, id="a time to live of nothing"),
        pytest.param(RunPolicies(tombstone_retention_ms=HOUR), part(1, None, HOUR), None, True, id="a tombstone"),
        pytest.param(
            RunPolicies(tombstone_retention_ms=HOUR), part(1, None, HOUR - 1), None, False, id="one kept too late"
        ),
        pytest.param(RunPolicies(), part(1, None, 0), None, True, id="a tombstone, and retention is over"),
        pytest.param(RunPolicies(), part(1, None, 0), 13, False, id="a cursor is before the tombstone"),
        pytest.param(RunPolicies(), part(1, None, 0), 14, True, id="the cursor has passed the tombstone"),
        pytest.param(RunPolicies(key_ttl_ms=HOUR), part(1, HOUR, 0), -1, True, id="values do not wait for cursors"),
    ],
)
def test_a_part_is_due(policies: RunPolicies, old: Part, floor: int | None, due: bool) -> None:
    assert run_input.anything_due(manifest(part(0), old), policies, NOW, floor) == due


@pytest.mark.parametrize(
    ("policies", "times", "floor", "due"),
    [
        pytest.param(RunPolicies(key_ttl_ms=HOUR), {"oldest_value": HOUR}, None, True, id="a value"),
        pytest.param(RunPolicies(key_ttl_ms=HOUR), {"oldest_value": HOUR - 1}, None, False, id="a value, too early"),
        pytest.param(RunPolicies(), {"oldest_value": HOUR}, None, False, id="no time to live"),
        pytest.param(RunPolicies(), {"oldest_tombstone": 0, "first_tombstone": NOW - 14}, None, True, id="a tombstone"),
        pytest.param(
            RunPolicies(), {"oldest_tombstone": 0, "first_tombstone": NOW - 14}, 13, False, id="a slow cursor"
        ),
        pytest.param(
            RunPolicies(incomplete_chunk_max_age_ms=HOUR),
            {"oldest_pending": HOUR},
            None,
            True,
            id="an incomplete message",
        ),
        pytest.param(
            RunPolicies(incomplete_chunk_max_age_ms=HOUR), {"oldest_pending": HOUR - 1}, None, False, id="a fresh one"
        ),
        pytest.param(RunPolicies(), {"oldest_pending": 24 * HOUR}, None, True, id="a day by default"),
        pytest.param(
            RunPolicies(incomplete_chunk_max_age_ms=None),
            {"oldest_pending": 99 * HOUR},
            None,
            False,
            id="they never go",
        ),
        pytest.param(RunPolicies(), {}, None, False, id="nothing that goes by time"),
    ],
)
def test_chunked_messages_are_due(policies: RunPolicies, times: dict[str, int], floor: int | None, due: bool) -> None:
    """Times of the table in milliseconds before NOW; the first tombstone is at offset 14."""
    table = ChunkTable("c", 72, 0, pending=1, **{name: NOW - time for name, time in times.items()})
    assert run_input.anything_due(replace(manifest(part(0)), chunks=(table,)), policies, NOW, floor) == due


def test_chunks_count_as_records_do() -> None:
    """Hash ranges bound what a task holds: four records a chunk."""
    previous = replace(manifest(part(0), levels=(1,)), chunks=(ChunkTable("c", 72 * 25, 0),))
    plan = plan_of([], previous, RunPolicies())
    for records, ranges in ((50, 2), (100, 1)):
        assert len(run_input.with_sizing(plan, previous, Sizing(1, records), reindexed=False).ranges) == ranges


@pytest.mark.parametrize(
    ("policies", "goes"),
    [
        (RunPolicies(), False),
        (RunPolicies(key_ttl_ms=0), True),
        (RunPolicies(tombstone_retention_ms=1), True),
        (RunPolicies(tombstones_wait_for_cursors=True), True),
        (RunPolicies(event_time_order=True, min_lag_ms=5), False),
    ],
)
def test_only_retention_and_time_to_live_go_by_time(policies: RunPolicies, goes: bool) -> None:
    assert run_input.depends_on_time(snapshot_of([]), policies) == goes


def test_incomplete_chunked_messages_go_by_time() -> None:
    run = replace(last_run(RunState.SUCCESS, RunPolicies()), statistics={"incomplete_chunks": 1})
    assert run_input.depends_on_time(replace(snapshot_of([]), last_run=run), RunPolicies())
    run = replace(run, statistics={"incomplete_chunks": 0})
    assert not run_input.depends_on_time(replace(snapshot_of([]), last_run=run), RunPolicies())


def test_scans_look_at_what_is_due_and_at_nothing_else() -> None:
    policies = RunPolicies(key_ttl_ms=HOUR, tombstone_retention_ms=MINUTE)
    previous = manifest(part(0, HOUR), part(1, MINUTE, MINUTE), part(2, HOUR - 1, 1), policies=policies)
    ledgers = [ledger(3, 0, oldest=2 * HOUR), ledger(4, 0, oldest=HOUR - 1), ledger(5, HOUR)]
    plan = plan_of(ledgers, previous, policies)
    assert run_input.scan_tasks(plan, previous, ledgers) == (
        RemovalScanTask(0, values_to=NOW - HOUR),
        RemovalScanTask(1, tombstones_to=NOW - MINUTE),
        RemovalScanTask(3, values_to=NOW - HOUR),
        RemovalScanTask(5, values_to=NOW - HOUR),
    )
    none = RunPolicies()
    assert run_input.scan_tasks(plan_of(ledgers, manifest(part(0, HOUR)), none), manifest(part(0, HOUR)), ledgers) == ()


def test_a_change_to_event_time_order_scans_every_part_once() -> None:
    policies = RunPolicies(event_time_order=True)
    previous = manifest(part(0), part(1))
    assert run_input.lacks_event_times(previous, policies)
    assert not run_input.lacks_event_times(manifest(part(0), policies=policies), policies)
    assert not run_input.lacks_event_times(previous, RunPolicies())
    assert not run_input.lacks_event_times(None, policies)
    plan = plan_of([ledger(2, 0)], previous, policies)
    assert run_input.scan_tasks(plan, previous, [ledger(2, 0)]) == (
        RemovalScanTask(0, reindex=True),
        RemovalScanTask(1, reindex=True),
    )


# --- the plan


def test_sources_are_the_parts_that_serve_and_then_the_dirty_ledgers() -> None:
    """P3; what a part has lost already does not count."""
    deleted = DeletedRows("bitmaps", 0, 9, 4, 0)
    previous = manifest(replace(part(0), deleted=deleted), levels=(3, 9))
    ledgers = [ledger(0, 0), ledger(1, 0), ledger(2, 0)]
    plan = plan_of(ledgers, previous, RunPolicies(), floor=5)
    assert [source.rows.stored.name for source in plan.sources] == ["part-0", "rows-1", "rows-2"]
    assert (plan.old_parts, plan.sources[0].messages, plan.sources[0].deleted) == (1, 6, deleted)
    assert plan.sources[0].offset_sum == 7
    assert plan.indexes == (ledgers[1].index, ledgers[2].index)
    assert (plan.levels, plan.cursor_floor, plan.now) == (previous.index, 5, NOW)


def test_scans_put_what_is_due_in_front_of_the_dirty_indexes() -> None:
    previous = manifest(part(0), part(1), levels=(5,))
    plan = plan_of([ledger(2, 0)], previous, RunPolicies())
    due, again = index(1), index(2)
    expired = DeletedRows("expired", 0, 1, 1, 0)
    results = [
        RemovalScanResult(0, index=again, removal_markers=due),
        RemovalScanResult(1),
        RemovalScanResult(2, expired=expired),
    ]
    scanned = run_input.with_scan_results(plan, results, reindexed=False)
    assert scanned.indexes == (due, *plan.indexes)
    assert scanned.expired == ((2, expired),)
    assert scanned.levels == plan.levels
    assert run_input.with_scan_results(plan, results, reindexed=True).levels == ((again,),)


def sized(
    ledgers: list[LedgerRecord], levels: tuple[IndexLocation, ...], policies: RunPolicies | None = None
) -> RunPlan:
    previous = replace(manifest(part(0)), index=tuple((level,) for level in levels))
    plan = plan_of(ledgers, previous, policies or RunPolicies())
    return run_input.with_sizing(plan, None, Sizing(4, range_records=1000, small_range_records=100), reindexed=False)


def test_levels_are_merged_by_their_records() -> None:
    assert sized([ledger(1, 0, records=10)], (index(20), index(50))).merged == 0
    assert sized([ledger(1, 0, records=10)], (index(19), index(58))).merged == 1
    assert sized([ledger(1, 0, records=10)], (index(19), index(57))).merged == 2
    assert sized([ledger(1, 0, records=10)], (index(20), index(21))).merged == 0


def test_levels_of_unkeyed_rows_alone_are_merged_too() -> None:
    """Else a topic of null keys would get a level with every run."""
    policies = RunPolicies(retain_null_key=True)
    assert sized([ledger(1, 0, records=0, null_keys=10)], (index(0, null_keys=10),), policies).merged == 1
    assert sized([ledger(1, 0, records=0, null_keys=10)], (index(0, null_keys=9000),), policies).merged == 0


def test_null_keys_that_were_kept_go_with_a_merge_of_all_levels() -> None:
    """P6: a run without retained null keys must see them all."""
    levels = (index(500), index(5000, null_keys=3))
    assert sized([ledger(1, 0, records=1)], levels).merged == 2
    assert sized([ledger(1, 0, records=1)], levels, RunPolicies(retain_null_key=True)).merged == 0


def test_hash_ranges_count_every_record_also_of_levels_that_are_probed() -> None:
    assert len(sized([ledger(1, 0, records=99)], ()).ranges) == 1
    assert len(sized([ledger(1, 0, records=100)], (index(300),)).ranges) == 4
    assert len(sized([ledger(1, 0, records=10)], (index(4990),)).ranges) == 8
    costs = run_input.range_costs(sized([ledger(1, 0, records=100)], (index(300),)))
    assert costs == [(2 * 100 + 300) * 24 / 4] * 4


def test_what_is_reindexed_is_merged_whole() -> None:
    previous = manifest(part(0), part(1), levels=(500, 5000))
    plan = plan_of([ledger(2, 0, records=1)], previous, RunPolicies(event_time_order=True))
    assert run_input.with_sizing(plan, None, Sizing(1), reindexed=True).merged == len(plan.levels)
    assert run_input.with_sizing(plan, None, Sizing(1), reindexed=False).merged < len(plan.levels)
