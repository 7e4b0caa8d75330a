"""Tables for people, on stdout: nothing is cut off, nothing in a cell is understood as more than text.

In a pipe or file every row is one line. On a terminal that is too narrow for the table each row is a block of lines, a
field a line: a wrapped table breaks names in the middle of a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from api.cli.kit.terminal import is_terminal, plain

_PIPE_COLUMNS = 100_000
"""Wider than any table: what is not read on a screen must not be wrapped."""


class _Pipe(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which ends quietly; rich itself would exit with 1."""
        raise


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print `rows` below `columns`."""
    cells = [[plain(cell) for cell in row] for row in rows]
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    width = None if is_terminal(sys.stdout) else _PIPE_COLUMNS
    console = _Pipe(markup=False, emoji=False, highlight=False, width=width)
    if cells and console.measure(table, options=console.options.update(width=_PIPE_COLUMNS)).maximum > console.width:
        _print_blocks(console, columns, cells)
    else:
        console.print(table)


def _print_blocks(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    widest = max(map(len, columns))
    for number, row in enumerate(rows):
        if number:
            console.print()
        for name, cell in zip(columns, row, strict=True):
            console.print(f"{name:{widest}}  {cell}", soft_wrap=True)
