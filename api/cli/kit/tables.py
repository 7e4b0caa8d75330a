"""Tables for people, on stdout: nothing is cut off, nothing in a cell is understood as more than text.

On a terminal columns wrap to its width; in a pipe or file every row is one line.
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
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    width = None if is_terminal(sys.stdout) else _PIPE_COLUMNS
    _Pipe(markup=False, emoji=False, highlight=False, width=width).print(table)
