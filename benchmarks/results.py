"""Published results: one file with all tables that the documentation shows and quotes.

`benchmarks/results.json` maps the id of a sitting (`compaction/10m`) to its date, command and table, with the cells as
the benchmark printed them. `python -m benchmarks NAME … --record ID` stores the tables that a benchmark prints, and
`python -m benchmarks.results` writes them into docs/benchmarks.md, below their marks `<!-- figures: ID -->`.
tests/docs/test_figures.py compares that page with the file, and each figure that another page quotes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
_TABLE = r"(?:^\|.*\n)+"
_MARKED = re.compile(rf"^<!-- figures: (\S+) -->\n\n({_TABLE})", re.MULTILINE)


@dataclass(frozen=True)
class Sitting:
    """One table of results. `rows`: the cells of each row, as text; `rule`: the alignments of the columns."""

    date: str
    command: str
    columns: list[str]
    rule: list[str]
    rows: list[list[str]]

    def cell(self, row: str, column: str) -> str:
        """Return a cell by its column's name and its row's first cell, or first two as `one, two`. Raises KeyError."""
        if column not in self.columns:
            raise KeyError(f"there is no column {column!r} of {self.columns}")
        for cells in self.rows:
            if row in (cells[0], ", ".join(cells[:2])):
                return cells[self.columns.index(column)]
        raise KeyError(f"there is no row {row!r} of {[cells[0] for cells in self.rows]}")

    def markdown(self) -> str:
        """Return the table as Markdown, with a line end after each row."""
        return "".join(_line(cells) for cells in (self.columns, self.rule, *self.rows))


def load(file: Path = FILE) -> dict[str, Sitting]:
    """Read all sittings, by id."""
    return {name: Sitting(**sitting) for name, sitting in json.loads(file.read_text(encoding="utf-8")).items()}


def save(sittings: Mapping[str, Sitting], file: Path = FILE) -> None:
    """Write all sittings."""
    document = {name: asdict(sittings[name]) for name in sorted(sittings)}
    file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def parse(table: str, date: str, command: str) -> Sitting:
    """Return the sitting of a Markdown table."""
    columns, rule, *rows = [_cells(line) for line in table.splitlines()]
    return Sitting(date, command, columns, rule, rows)


def record(name: str, printed: str, date: str, command: str, file: Path = FILE) -> list[str]:
    """Store the printed tables as `name`, `name-2` and so on. Return these ids."""
    sittings, kept = load(file) if file.exists() else {}, []
    for number, table in enumerate(re.findall(_TABLE, printed, re.MULTILINE), start=1):
        kept.append(name if number == 1 else f"{name}-{number}")
        sittings[kept[-1]] = parse(table, date, command)
    save(sittings, file)
    return kept


def marked(page: str) -> Iterator[tuple[str, str]]:
    """Yield the id and table of each mark of a page."""
    return ((mark[1], mark[2]) for mark in _MARKED.finditer(page))


def written(page: str, sittings: Mapping[str, Sitting]) -> str:
    """Return the page with the table of each mark as the file has it. Raises KeyError for an id without a sitting."""
    return _MARKED.sub(lambda mark: f"<!-- figures: {mark[1]} -->\n\n{sittings[mark[1]].markdown()}", page)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _line(cells: list[str]) -> str:
    if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
        return f"|{'|'.join(cells)}|\n"
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")
    sys.stderr.write(f"{PAGE} has the tables of {FILE}\n")
