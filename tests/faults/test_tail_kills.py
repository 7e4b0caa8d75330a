"""Writers and sealers of a tail killed at random moments, over the whole stack (the lives are in tail_lives.py).

Nothing that was acknowledged is lost, nothing is out of order or there twice, no id is given twice, and a reader that
has followed through all of it was given the same. `python -m tests.faults.tail_lives FOLDER --kills N --seed S` shows a
failure again, as far as the machine's own timing lets it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


def figures_of(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Return the figures of a run in a process of its own, which forks: this one has threads."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults.tail_lives", folder, "--kills", str(kills), "--seed", str(seed)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    figures = (figure.split(": ") for figure in result.stdout.split(", "))
    return {name: int(number) for name, number in figures}


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(20, 1), pytest.param(500, 2, marks=pytest.mark.soak)],
)
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path, kills: int, seed: int) -> None:
    answer = figures_of(tmp_path, kills, seed)
    assert answer["kills"] >= kills
    assert answer["messages"] >= answer["entries"] >= answer["heard"], "a writer that was heard had acknowledged"
    assert answer["heard"] >= kills // 4, "too few lives acknowledged anything: the kills prove little"
