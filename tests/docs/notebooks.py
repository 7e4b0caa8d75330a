"""Notebooks as programs: their cells of code, executed one after another in one namespace, as Jupyter does."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A cell of code. `tags`: what the cell needs that not every machine has."""

    source: str
    tags: frozenset[str]


def code_cells(notebook: Path) -> list[Cell]:
    """The cells of code of a notebook, in order."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return [
        Cell("".join(cell["source"]), frozenset(cell["metadata"].get("tags", ())))
        for cell in document["cells"]
        if cell["cell_type"] == "code"
    ]


def run_cells(notebook: Path, tags: Collection[str] = ()) -> dict[str, Any]:
    """Execute the cells whose tags are among `tags`; return their variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.tags <= set(tags):
            exec(compile(cell.source, f"{notebook.name}, cell {number}", "exec"), names)
    return names
