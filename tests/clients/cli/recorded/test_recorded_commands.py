"""Comparison, byte by byte, of command output, refusals and advice with `recorded.json`.

`python -m tests.clients.cli.recorded --write` records again: for a change that a user may see, and for no other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.cli.recorded.replay import RECORDED, TABLES, outcomes
from tests.clients.rest.recorded.replay import differences


@pytest.mark.parametrize("table", TABLES)
def test_outcomes_are_as_recorded(table: str, tmp_path: Path) -> None:
    wrong = differences(RECORDED, table, outcomes(table, tmp_path))
    assert not wrong, "\n".join(wrong)
