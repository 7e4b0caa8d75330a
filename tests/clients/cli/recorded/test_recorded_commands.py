"""What commands print, refuse and advise is byte by byte what `recorded.json` holds.

`python -m tests.clients.cli.recorded --write` records again: for a change that a user may see, and for no other.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.cli.recorded.replay import RECORDED, TABLES, outcomes


@pytest.mark.parametrize("table", TABLES)
def test_outcomes_are_as_recorded(table: str, tmp_path: Path) -> None:
    expected = json.loads(RECORDED.read_text())[table]
    actual = outcomes(table, tmp_path)
    assert [line[0] for line in actual] == [line[0] for line in expected], "record again: another table"
    wrong = [f"{new}\n  recorded: {old[1:]}" for new, old in zip(actual, expected, strict=True) if new != old]
    assert not wrong, "\n".join(wrong)
