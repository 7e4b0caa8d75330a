"""Random lives of topics hold for many seeds, the same seed is always the same life, and seeded bugs are found.

`python -m tests.faults.simulate` runs more of them, longer; a failure here prints the command that shows it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.faults.simulate import Simulated, SimulationFailed, simulate
from tests.faults.simulation.bugs import BUGS

STEPS = 50
TRIED = range(60)
"""If the code has changed so that the seed below does not come by the bug any more, one of these does."""
FOUND_BY = {
    "publish-unfenced": 18,
    "publish-any-epoch": 13,
    "delete-cursor-keeps-epoch": 0,
    "gc-ignores-pins": 14,
    "gc-ignores-attempts": 2,
    "gc-ignores-retired": 4,
    "gc-dry-run-deletes": 3,
    "marker-dropped": 7,
    "bitmaps-not-united": 1,
    "horizon-at-survivor": 2,
    "reader-jumps": 13,
    "reader-ignores-deleted": 1,
    "reader-starts-again": 13,
    "reader-silently-stale": 1,
    "tombstone-kept-again": 31,
    "newest-for-oldest": 38,
    "cursors-not-waited-for": 18,
    "recovery-cuts-too-much": 0,
    "sealed-beside-its-segment": 0,
    "dirty-over-segments": 37,
    "import-does-not-roll": 0,
    "reader-repeats-after-sealing": 14,
    "sweep-takes-unsealed": 0,
    "commit-not-looked-for": 0,
    "trim-ignores-cursors": 3,
    "trimmed-is-gone-at-once": 0,
    "truncate-keeps-epoch": 12,
    "truncate-keeps-compacted": 12,
    "delete-is-purged": 0,
    "deleted-is-gone-at-once": 0,
    "pause-leaves-the-run": 2,
    "claimed-while-paused": 0,
    "lost-lease-unnoticed": 2,
}
"""A seed that comes by each bug with little CPU; found by trying."""
RUN_BY_MAKE_TEST = (0, 1, 2)
EVENTS = {
    0: {"COMMIT AFTER", "deleted", "deleted topic collected", "interrupted", "paused", "run ERROR", "truncated"},
    1: {"COMMIT BEFORE", "cursor deleted", "dies", "reader StateMayBeStale", "trimmed"},
    2: {"appended", "killed", "lease lost", "nothing to collect", "rolls", "run SUCCESS", "seals", "sweeps"},
    7: {"surfaced"},
    12: {"aborted", "reader moved", "run CANCELLED"},
    37: {"collected", "collected all", "trimmed by force"},
}
"""Events of a life, by its seed. Lives without them would show little."""


def _lives() -> Iterator[object]:
    """Yield the lives: `make test` has three, CI those with all events, `make soak` each that finds a bug."""
    for seed in sorted({*EVENTS, *FOUND_BY.values()}):
        slow = [] if seed in RUN_BY_MAKE_TEST else pytest.mark.slow
        yield pytest.param(seed, marks=slow if seed in EVENTS else pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*_lives()])
def test_a_life_holds(seed: int) -> None:
    assert _life(seed).counts.keys() >= EVENTS.get(seed, set())


@cache
def _life(seed: int) -> Simulated:
    return simulate(seed, STEPS)


@pytest.mark.slow
def test_the_same_seed_is_the_same_life() -> None:
    first, second = RUN_BY_MAKE_TEST[:2]
    assert simulate(first, STEPS) == _life(first)
    assert _life(second).log[:10] != _life(first).log[:10]


def test_every_bug_has_its_seed() -> None:
    assert FOUND_BY.keys() == BUGS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_seeded_bug_is_found(bug: str) -> None:
    with pytest.raises(SimulationFailed, match=f"--bug {bug}") as failed:
        _live_until_found(bug)
    assert not re.search("AttributeError|ImportError|NameError|TypeError", str(failed.value)), (
        "it is the bug's, not ours"
    )


def _live_until_found(bug: str) -> None:
    for seed in (FOUND_BY[bug], *TRIED):
        simulate(seed, STEPS, bug)


def test_a_failure_tells_how_to_see_it_again() -> None:
    with pytest.raises(SimulationFailed) as failed:
        simulate(2, STEPS, "horizon-at-survivor")
    first, *events, again = str(failed.value).splitlines()
    assert first.startswith("seed 2, at step ")
    assert "with horizon" in first
    assert 1 < len(events) <= 20
    assert again == f"again: python -m tests.faults.simulate --seed 2 --steps {STEPS} --bug horizon-at-survivor"
