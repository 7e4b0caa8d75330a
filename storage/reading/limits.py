"""How much one read may deliver (R10), and the count of what it has delivered.

At least one message is delivered whatever its size: a message larger than the page makes the page grow (L3).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage.ledger import rows


@dataclass(frozen=True)
class ReadLimits:
    """At most this many messages, and that many logical bytes; None: no limit."""

    messages: int | None = None
    bytes: int | None = None


class PageBudget:
    """Counts rows of a page until a limit is reached."""

    def __init__(self, limits: ReadLimits) -> None:
        self.is_full = limits.messages == 0
        self._messages, self._bytes = limits.messages, limits.bytes
        self._is_empty = True

    def take(self, table: pa.Table) -> int:
        """How many of the first rows of `table` (not empty) fit; they count as delivered."""
        taken = len(table) if self._messages is None else min(len(table), self._messages)
        if self._bytes is not None:
            filled = np.cumsum(rows.logical_sizes(table))
            fits = int(np.searchsorted(filled, self._bytes, "right"))
            if self._is_empty:  # not "nothing was used of the limit": messages may be empty
                fits = max(fits, 1)
            taken = min(taken, fits)
            self._bytes -= int(filled[taken - 1]) if taken else 0
        if self._messages is not None:
            self._messages -= taken
        self._is_empty = self._is_empty and not taken
        self.is_full = taken < len(table) or self._messages == 0
        return taken


def limited(tables: Generator[pa.Table, None, None], limits: ReadLimits) -> Generator[pa.RecordBatch, None, None]:
    """Tables as record batches, none empty, until a limit is reached; then `tables` is closed."""
    budget = PageBudget(limits)
    with closing(tables):
        while not budget.is_full and (table := next(tables, None)) is not None:
            yield from table.slice(0, budget.take(table)).combine_chunks().to_batches()
