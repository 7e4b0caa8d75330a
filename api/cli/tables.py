"""Tables for people, on stdout: nothing is cut off, nothing in a cell is understood as more than text.

On a terminal columns wrap to its width; in a pipe or file every row is one line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

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
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    _Pipe(markup=False, emoji=False, highlight=False, width=width).print(table)


def plain(text: str) -> str:
    """`text` with line ends, escapes and other unprintable characters made visible: they could steer a terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
