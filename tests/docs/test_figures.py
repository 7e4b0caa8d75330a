"""Each published figure against benchmarks/results.json: the tables of docs/benchmarks.md, and what other pages quote.

A comment `<!-- quoted … -->` has a line for each figure of the text before it: `0.57 s = sitting | row | column`, with
`#3` for the third column, or `758 MiB = text` for a figure that docs/benchmarks.md has outside of its tables. The
figure may be rounded to fewer digits than the file has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from benchmarks import results

ROOT = Path(__file__).resolve().parents[2]
SITTINGS = results.load()
BENCHMARKS = results.PAGE.read_text(encoding="utf-8")
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_QUOTED = re.compile(r"<!-- quoted\n(.*?)\n-->\n", re.DOTALL)
_FIGURE = re.compile(r"(?<![\w.,])(?:\d+\.\d+(?!\.)|\d{1,3}(?:,\d{3})+)(?![\w.,]*\.\d)")


def text_before_quotes(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each text, from a heading or the quotes before it, with the lines of its quotes."""
    *blocks, rest = re.split(r"(?<=-->\n)", page.read_text(encoding="utf-8"))
    for block in blocks:
        if (quoted := _QUOTED.search(block)) is not None:
            yield block[: quoted.start()].rpartition("\n## ")[2], quoted[1].splitlines()
    assert "<!-- quoted" not in rest


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def cell(reference: str) -> str:
    sitting, row, column = reference.split(" | ")
    if column.startswith("#"):
        columns = SITTINGS[sitting].columns
        (cells,) = (cells for cells in SITTINGS[sitting].rows if cells[0] == row)
        assert len(columns) >= int(column[1:])
        return cells[int(column[1:]) - 1]
    return SITTINGS[sitting].cell(row, column)


def agree(quoted: str, stored: str) -> bool:
    """Return whether a figure is a number of the cell, rounded to the digits that it has; scale `%` and GB."""
    match = re.search(_NUMBER, quoted)
    assert match is not None
    figure = number(match[0])
    scale = Decimal(100) if "%" in quoted else Decimal("0.001") if "GB" in quoted and "MB" in stored else Decimal(1)
    unit = Decimal(1).scaleb(int(figure.as_tuple().exponent))
    return any(
        figure == (number(value) * scale).quantize(unit, rounding)
        for value in re.findall(_NUMBER, stored)
        for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN)
    )


QUOTES = [
    (page, line, text)
    for page in ("README.md", "docs/comparison.md")
    for text, lines in text_before_quotes(ROOT / page)
    for line in lines
]


@pytest.mark.parametrize(("page", "line", "text"), QUOTES, ids=[f"{page}: {line}" for page, line, _ in QUOTES])
def test_a_quoted_figure_is_the_measured_one(page: str, line: str, text: str) -> None:
    figure, _, reference = line.partition(" = ")
    assert re.search(rf"(?<![\d.,]){re.escape(figure)}", text), "the text does not have the figure"
    if reference == "text":
        assert figure in BENCHMARKS
    else:
        assert agree(figure, cell(reference)), cell(reference)


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_no_figure_is_without_its_source(page: str) -> None:
    """Counts figures with decimals or thousands; versions follow the name of a program."""
    for text, lines in text_before_quotes(ROOT / page):
        quoted = {match[0] for line in lines if (match := re.search(_NUMBER, line)) is not None}
        plain = re.sub(r"\b(?:Pulsar|Kafka|Python) [\d.]+", "", text)
        assert set(_FIGURE.findall(plain)) - {"10,000", "100,000"} <= quoted  # the shape of the service's benchmark


def test_the_tables_of_the_page_are_the_files() -> None:
    assert results.written(BENCHMARKS, SITTINGS) == BENCHMARKS, "run python -m benchmarks.results"
    assert {name for name, _ in results.marked(BENCHMARKS)} == set(SITTINGS)


def test_a_comparison_begins_with_a_sitting_and_its_date() -> None:
    """The newest sitting counts: a page that quotes one names its date."""
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    for sitting in {line.partition(" = ")[2].split(" | ")[0] for name, line, _ in QUOTES if "comparison" in name}:
        assert not SITTINGS[sitting].date or SITTINGS[sitting].date in page, sitting


@pytest.mark.parametrize(
    ("quoted", "stored", "same"),
    [
        ("0.57 s", "0.57 (0.54 – 0.59)", True),
        ("0.58 s", "0.57", False),
        ("11 %", "0.11", True),
        ("15 times", "15.23", True),
        ("16 times", "15.23", False),
        ("1.8 GB/s", "1,788 MB/s", True),
        ("1.32", "1.10–1.32", True),
    ],
)
def test_what_agrees(quoted: str, stored: str, same: bool) -> None:
    assert agree(quoted, stored) is same
