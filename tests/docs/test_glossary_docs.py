"""docs/glossary.md: each term is in the file that it names, under the name that it gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| ([^|]+) \|.*\| `([a-z_/]+\.py)(?:: (\w+))?` \|$",
    (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_each_term_is_there_once() -> None:
    terms = [term for term, _, _ in ROWS]
    assert len(terms) == len(set(terms)) >= 60


@pytest.mark.parametrize(("term", "file", "name"), ROWS, ids=[term for term, _, _ in ROWS])
def test_a_term_is_where_the_glossary_says(term: str, file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not name or re.search(rf"^(?:class|def) {name}\b", text, re.MULTILINE), f"{term}: no {name} in {file}"
