"""RunHistory: which removals the runs of a topic explain, and which they require."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from compactor.run.plan import RunPolicies
from compactor.verify.run_history import ALWAYS, NEVER, PublishedRun, RunHistory
from storage.metadata.records import RunRecord, RunState
from storage.model import LogPosition, MessageId
from tests.unit.compactor.verify.records import manifest

OFFSETS = np.array([0, 10, 11, 20, 21])


def ran(horizon: int, now: int, certain: bool = True, raw_from: int = 0, **policies: Any) -> PublishedRun:
    return PublishedRun(horizon, now, RunPolicies(**policies), certain, raw_from)


def complete(*runs: PublishedRun) -> RunHistory:
    return RunHistory(runs, complete=True)


def test_a_run_decides_over_the_rows_at_or_below_its_horizon() -> None:
    history = complete(ran(10, 1000, key_ttl_ms=100), ran(20, 2000), ran(30, 1500, key_ttl_ms=700))
    offsets = np.array([0, 10, 11, 30, 31])
    assert history.latest_removable_value_publish_time(offsets).tolist() == [900, 900, 800, 800, NEVER]
    assert history.latest_removed_value_publish_time(offsets).tolist() == [900, 900, 800, 800, NEVER]


def test_runs_of_an_earlier_incarnation_explain_but_require_nothing() -> None:
    history = complete(ran(10, 1000, False, key_ttl_ms=1), ran(10, 2000))
    assert history.latest_removable_value_publish_time(np.array([3])).tolist() == [999]
    assert history.latest_removed_value_publish_time(np.array([3])).tolist() == [NEVER]


def test_retention_removes_rows_of_any_kind() -> None:
    """A row goes if it is older than the retention time, so its limit is one below."""
    history = complete(ran(10, 1000, False, retention_ms=100), ran(20, 1000, retention_ms=400))
    assert history.latest_removable_row_publish_time(OFFSETS).tolist() == [899, 899, 599, 599, NEVER]
    assert history.latest_removed_row_publish_time(OFFSETS).tolist() == [599, 599, 599, 599, NEVER]
    assert history.latest_removable_value_publish_time(OFFSETS).tolist() == [899, 899, 599, 599, NEVER]
    assert history.last_removable_unkeyed_offset == 20


def test_rows_below_a_start_offset_may_go_whatever_their_time() -> None:
    history = complete(ran(20, 1000, start_offset=11))
    assert history.latest_removable_row_publish_time(OFFSETS).tolist() == [ALWAYS, ALWAYS, NEVER, NEVER, NEVER]
    assert history.latest_removed_value_publish_time(OFFSETS).tolist() == [ALWAYS, ALWAYS, NEVER, NEVER, NEVER]
    assert history.last_removable_unkeyed_offset == 20


def test_a_start_offset_above_the_horizon_removes_only_what_the_run_read() -> None:
    assert (
        complete(ran(10, 1000, start_offset=50)).latest_removable_row_publish_time(OFFSETS).tolist()
        == [ALWAYS] * 2 + [NEVER] * 3
    )


def test_tombstones_must_be_dropped_after_their_retention() -> None:
    history = complete(ran(10, 1000, tombstone_retention_ms=300), ran(20, 2000, tombstone_retention_ms=1500))
    assert history.latest_removed_tombstone_retained_at(OFFSETS).tolist() == [700, 700, 500, 500, NEVER]


def test_a_run_that_waits_for_cursors_requires_nothing_of_tombstones() -> None:
    assert (
        complete(ran(20, 1000, tombstones_wait_for_cursors=True)).latest_removed_tombstone_retained_at(OFFSETS).tolist()
        == [NEVER] * 5
    )


def test_first_kept_is_the_time_of_the_first_run_over_a_tombstone() -> None:
    history = complete(ran(10, 1000, tombstone_retention_ms=1), ran(15, 2000), ran(20, 3000, tombstone_retention_ms=1))
    kept = history.expected_retained_at(np.array([10, 11, 16, 21]))
    assert kept is not None
    assert kept.tolist() == [1000, NEVER, 3000, NEVER]


def test_raw_from_is_the_start_of_the_first_run_over_a_row() -> None:
    begins = complete(ran(10, 1000), ran(20, 2000, raw_from=12)).topic_start_at_first_run(OFFSETS)
    assert begins is not None
    assert begins.tolist() == [0, 0, 12, 12, 0]


def test_chunks_are_dropped_by_runs_before_the_rest_of_their_message() -> None:
    history = complete(ran(10, 1000, incomplete_chunk_max_age_ms=100), ran(20, 2000, incomplete_chunk_max_age_ms=100))
    assert history.latest_droppable_chunk_publish_time(5) == 1900
    assert history.latest_droppable_chunk_publish_time(5, 20) == 900
    assert history.latest_droppable_chunk_publish_time(11, 20) == NEVER
    assert complete(ran(10, 1000, incomplete_chunk_max_age_ms=None)).latest_droppable_chunk_publish_time(5) == NEVER


def test_null_keys_are_dropped_up_to_the_last_run_that_does_not_retain_them() -> None:
    assert complete(ran(10, 0), ran(20, 0, retain_null_key=True)).last_droppable_null_key_offset == 10
    assert complete(ran(10, 0, retain_null_key=True)).last_droppable_null_key_offset == -1
    assert complete(ran(10, 0)).last_removable_unkeyed_offset == -1


def test_deletions_are_purged_after_the_allowed_lateness() -> None:
    history = complete(ran(10, 1000, event_time_max_lateness_ms=10), ran(20, 1100, event_time_max_lateness_ms=500))
    assert history.latest_purgeable_deletion_event_time == 990


def test_an_incomplete_history_explains_everything_and_requires_only_its_last_run() -> None:
    history = RunHistory((ran(10, 1000, key_ttl_ms=1), ran(20, 1000, key_ttl_ms=400)), complete=False)
    assert (
        history.latest_removable_value_publish_time(OFFSETS).tolist()
        == history.latest_removable_row_publish_time(OFFSETS).tolist()
        == [ALWAYS] * 5
    )
    assert history.latest_removed_value_publish_time(OFFSETS).tolist() == [600, 600, 600, 600, NEVER]
    assert (history.expected_retained_at(OFFSETS), history.topic_start_at_first_run(OFFSETS)) == (None, None)
    assert (history.latest_purgeable_deletion_event_time, history.latest_droppable_chunk_publish_time(3)) == (
        ALWAYS,
        ALWAYS,
    )
    assert (history.last_droppable_null_key_offset, history.last_removable_unkeyed_offset) == (20, 20)
    assert history.event_time_orders == {True, False}


def row(run_id: int, epoch: int, state: RunState = RunState.SUCCESS, **fields: Any) -> RunRecord:
    published: dict[str, Any] = {}
    if state is RunState.SUCCESS:
        published = {"horizon": LogPosition(run_id, MessageId(0, 0)), "compacted_ledger_id": run_id}
    policies = fields.pop("policies", asdict(RunPolicies()))
    return RunRecord(run_id, 1, "a", "owner", epoch, state, "", policies, run_id * 100, 0, **(published | fields))


def of(*rows: RunRecord, generation: int) -> RunHistory:
    """Return the history of a manifest of the newest row's run."""
    record = manifest(rows[-1].run_id, policies=asdict(RunPolicies(key_ttl_ms=7)), frozen_at=5)
    own = {"run_id": rows[-1].run_id, "generation": generation}
    return RunHistory.of(type(record)(**{**record.__dict__, **own}), rows[::-1])


def test_the_manifest_has_priority_over_the_row_of_its_run() -> None:
    history = of(row(1, 1), row(2, 2, statistics={"raw_from": 3}), generation=2)
    assert history.complete
    assert [(run.now, run.policies.key_ttl_ms, run.raw_from) for run in history.runs] == [(100, None, 0), (5, 7, 3)]


@pytest.mark.parametrize(
    ("rows", "certain"),
    [
        ([row(1, 1), row(2, 2), row(3, 3)], [True, True, True]),
        ([row(1, 1), row(2, 3), row(3, 4)], [False, True, True]),
        ([row(1, 1), row(2, 2, RunState.CANCELLED), row(3, 4)], [True, True]),
        ([row(1, 1), row(2, 2, RunState.CANCELLED), row(3, 5)], [False, True]),
        ([row(1, 1), row(2, 2, RunState.ERROR), row(3, 3)], [True, True]),
    ],
    ids=["no break", "a deleted cursor", "a cancelled run", "both", "a failed run"],
)
def test_an_unexplained_step_of_the_epoch_is_a_restart_from_raw(rows: list[RunRecord], certain: list[bool]) -> None:
    history = of(*rows, generation=len(certain))
    assert [run.certain for run in history.runs] == certain
    assert history.complete


def test_a_history_without_a_run_per_generation_is_incomplete() -> None:
    assert not of(row(2, 2), row(3, 3), generation=3).complete


def test_unknown_names_of_policies_are_ignored() -> None:
    history = of(row(1, 1, policies={"key_ttl_ms": 4, "of a later version": 1}), row(2, 2), generation=2)
    assert history.runs[0].policies == RunPolicies(key_ttl_ms=4)
