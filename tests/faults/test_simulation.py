"""Random lives of topics hold for many seeds, the same seed is always the same life, and seeded bugs are found.

`python -m tests.faults.simulate` runs more of them, longer; a failure here prints the command that shows it again.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.faults.simulate import Simulated, SimulationFailed, simulate
from tests.faults.simulation.bugs import BUGS

STEPS = 50
SEEDS = 200
TRIED = range(60)
"""If the code has changed so that the seed below does not come by the bug any more, one of these does."""
FOUND_BY = {
    "publish-unfenced": 16,
    "publish-any-epoch": 33,
    "delete-cursor-keeps-epoch": 4,
    "gc-ignores-pins": 0,
    "gc-ignores-attempts": 0,
    "gc-ignores-retired": 0,
    "gc-dry-run-deletes": 1,
    "marker-dropped": 10,
    "bitmaps-not-united": 18,
    "horizon-at-survivor": 0,
    "reader-jumps": 0,
    "reader-ignores-deleted": 5,
    "reader-starts-again": 16,
    "reader-silently-stale": 5,
    "tombstone-kept-anew": 0,
    "newest-for-oldest": 10,
    "cursors-not-waited-for": 7,
    "commit-not-looked-for": 2,
}
"""By bug, a seed that comes by it; found by trying."""
FEW = sorted(set(FOUND_BY.values()))
"""So each bug is found by a seed that holds without it."""
HAPPENS = frozenset(
    {
        "COMMIT AFTER",
        "COMMIT BEFORE",
        "cancelled",
        "collected",
        "cursor deleted",
        "dies",
        "interrupted",
        "killed",
        "nothing to collect",
        "reader StateMayBeStale",
        "reader moved",
        "run CANCELLED",
        "run ERROR",
        "run SUCCESS",
    }
)
"""What lives must come by, or they would show little."""


@pytest.mark.parametrize("seed", FEW)
def test_a_life_holds(seed: int) -> None:
    simulate(seed, STEPS)


def test_the_same_seed_is_the_same_life() -> None:
    assert simulate(5, STEPS) == simulate(5, STEPS)
    assert simulate(5, STEPS).log != simulate(6, STEPS).log


def test_every_bug_has_its_seed() -> None:
    assert FOUND_BY.keys() == BUGS.keys()
    assert len(BUGS) >= 10


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_seeded_bug_is_found(bug: str) -> None:
    with pytest.raises(SimulationFailed, match=f"--bug {bug}"):
        _live_until_found(bug)


def _live_until_found(bug: str) -> None:
    for seed in (FOUND_BY[bug], *TRIED):
        simulate(seed, STEPS, bug)


def test_a_failure_tells_how_to_see_it_again() -> None:
    with pytest.raises(SimulationFailed) as failed:
        simulate(0, STEPS, "horizon-at-survivor")
    first, *events, again = str(failed.value).splitlines()
    assert first.startswith("seed 0, at step ")
    assert "with horizon" in first
    assert 1 < len(events) <= 20
    assert again == f"again: python -m tests.faults.simulate --seed 0 --steps {STEPS} --bug horizon-at-survivor"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_lives_hold() -> None:
    """In two processes, which are new ones: nothing is shared with this one, which may have threads."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        lives = list(pool.map(_life, range(SEEDS), chunksize=5))
    happened: Counter[str] = Counter()
    for life in lives:
        assert not isinstance(life, str), life
        happened.update(life.happened)
    assert happened.keys() >= HAPPENS


def _life(seed: int) -> Simulated | str:
    try:
        return simulate(seed, STEPS)
    except SimulationFailed as failure:
        return str(failure)
