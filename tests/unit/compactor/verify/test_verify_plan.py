"""VerifyPlan: gaps between raw ledgers, and which offsets and winners raw decides."""

from __future__ import annotations

import numpy as np
import pytest

from compactor.run.plan import RunPolicies
from compactor.verify.plan import VerifyPlan, WinnerOrder
from compactor.verify.run_history import PublishedRun, RunHistory
from tests.unit.compactor.verify.records import EVENTS, ledger, plan

OFFSETS = np.arange(12)


def history(*by_event: bool, raw_from: int = 0) -> RunHistory:
    runs = [PublishedRun(9, 0, RunPolicies(event_time_order=order), True, raw_from) for order in by_event]
    return RunHistory(tuple(runs), complete=True)


@pytest.mark.parametrize(
    ("ledgers", "gaps"),
    [
        ([(0, 4), (5, 9)], ()),
        ([(5, 9)], ((0, 4),)),
        ([(0, 4)], ((5, 9),)),
        ([(2, 3), (6, 7)], ((0, 1), (4, 5), (8, 9))),
        ([], ((0, 9),)),
        ([(0, 9), (12, 15)], ()),
    ],
)
def test_gaps_are_the_offsets_up_to_the_horizon_without_a_ledger(
    ledgers: list[tuple[int, int]], gaps: tuple[tuple[int, int], ...]
) -> None:
    assert plan([ledger(*each) for each in ledgers], horizon=9).gaps == gaps


def test_without_a_manifest_no_ledger_is_below_the_horizon() -> None:
    whole = plan([ledger(0, 4)], horizon=9)
    empty = VerifyPlan(whole.store, whole.hasher, whole.ledgers, None, whole.history, 0, 5)
    assert (empty.ledgers_to_horizon, empty.gaps, empty.index_locations, empty.index_has_event_times) == (
        (),
        (),
        (),
        False,
    )


def test_covered_offsets_are_in_a_ledger_at_or_below_the_horizon() -> None:
    covered = plan([ledger(2, 3), ledger(6, 7), ledger(10, 11)], horizon=9).covered_by_ledger(OFFSETS)
    assert np.flatnonzero(covered).tolist() == [2, 3, 6, 7]
    assert not plan([], horizon=9).covered_by_ledger(OFFSETS).any()


def test_ledger_of_is_the_last_ledger_that_begins_at_or_before_an_offset() -> None:
    two = plan([ledger(2, 3), ledger(6, 7)], horizon=9)
    assert [two.ledger_position(offset) for offset in (1, 2, 4, 6, 9)] == [-1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("orders", "directory", "last", "order"),
    [
        ([False], EVENTS.encode(), 9, WinnerOrder.OFFSET),
        ([True], EVENTS.encode(), 9, WinnerOrder.EVENT),
        ([True, False], EVENTS.encode(), 9, WinnerOrder.EITHER),
        ([True], None, 9, WinnerOrder.OFFSET),
        ([True], None, 8, WinnerOrder.EVENT),
        ([True], b"damaged", 9, WinnerOrder.EVENT),
    ],
    ids=["offsets", "event times", "the order changed", "no event times", "a trimmed ledger", "a damaged directory"],
)
def test_order_follows_the_runs_unless_no_message_can_have_an_event_time(
    orders: list[bool], directory: bytes | None, last: int, order: WinnerOrder
) -> None:
    assert plan([ledger(0, last, directory)], 9, history(*orders)).winner_order is order


def test_an_incomplete_history_leaves_the_order_open() -> None:
    assert plan([ledger(0, 9, EVENTS.encode())], 9).winner_order is WinnerOrder.EITHER


def test_by_offset_a_later_gap_leaves_earlier_winners_undecided() -> None:
    decided = plan([ledger(0, 3), ledger(6, 9)], 9, history(False)).proven_winners(OFFSETS)
    assert np.flatnonzero(decided).tolist() == [6, 7, 8, 9, 10, 11]


def test_by_event_time_any_gap_leaves_all_winners_undecided() -> None:
    gap = plan([ledger(0, 3), ledger(6, 9, EVENTS.encode())], 9, history(True))
    assert not gap.proven_winners(OFFSETS).any()
    assert plan([ledger(0, 9, EVENTS.encode())], 9, history(True)).proven_winners(OFFSETS).all()


def test_rows_below_the_start_of_their_run_took_no_part() -> None:
    read_by_run = plan([ledger(0, 9)], 9, history(False, raw_from=4)).read_by_run(OFFSETS)
    assert np.flatnonzero(~read_by_run).tolist() == [0, 1, 2, 3]


def test_with_an_incomplete_history_rows_below_the_start_may_have_taken_part() -> None:
    unknown = plan([ledger(0, 9)], 9, start_offset=4)
    assert unknown.read_by_run(OFFSETS).all()
    assert np.flatnonzero(~unknown.is_read_state_known(OFFSETS)).tolist() == [0, 1, 2, 3]
    assert not unknown.proven_winners(OFFSETS)[:4].any()
