"""Each worked example of the page has a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("number", range(1, 13))
def test_each_worked_example_has_a_test(number: int) -> None:
    pattern = re.compile(rf"^def test_worked_example_{number}_", re.MULTILINE)
    assert any(pattern.search(file.read_text(encoding="utf-8")) for file in TESTS.rglob("test_*.py"))
