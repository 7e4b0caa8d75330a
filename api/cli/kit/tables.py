"""Tables for people, on stdout. Cells are printed in full, as plain text without markup.

In a pipe or file every row is one line. A terminal that is too narrow for the table gets it without borders. If that
does not fit either, a row becomes a block: its first field, and below it, indented, the other fields, as many per line
as fit. A wrapped table would break names in the middle of a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from api.cli.kit.terminal import escape_controls, is_terminal

_PIPE_COLUMNS = 100_000
"""Wider than any table: rows of a pipe or file must not be wrapped."""
_INDENT, _GAP = "  ", "  "


class _BrokenPipeConsole(Console):
    """A console that raises BrokenPipeError when the reader of stdout has closed it."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError again; rich itself would exit with code 1."""
        raise


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print `rows` of cells below `columns`, on stdout."""
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    width = None if is_terminal(sys.stdout) else _PIPE_COLUMNS
    console = _BrokenPipeConsole(markup=False, emoji=False, highlight=False, width=width)
    for table in (Table(), Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))):
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*row)
        if not cells or _unwrapped_width(console, table) <= console.width:
            console.print(table)
            return
    _print_rows_as_blocks(console, columns, cells)


def _unwrapped_width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(width=_PIPE_COLUMNS)).maximum


def _print_rows_as_blocks(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        console.print(row[0], soft_wrap=True)
        line = ""
        for name, cell in zip(columns[1:], row[1:], strict=True):
            field = f"{name} {cell}"
            if line and len(_INDENT) + len(line) + len(_GAP) + len(field) > console.width:
                console.print(f"{_INDENT}{line}", soft_wrap=True)
                line = ""
            line += f"{_GAP if line else ''}{field}"
        if line:
            console.print(f"{_INDENT}{line}", soft_wrap=True)
