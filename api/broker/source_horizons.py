"""Horizons of compacted ledgers in positions of the source cluster, which cost a read of the store to compute."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.model import SourcePosition
    from storage.reading.source_reader import SourceReader


class SourceHorizons:
    """The horizons of the compacted ledgers that were read last: a compacted ledger never changes its own.

    Safe to share between threads.
    """

    def __init__(self, limit: int = 1_000) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._by_attempt: OrderedDict[str, SourcePosition] = OrderedDict()

    def horizon(self, reader: SourceReader) -> SourcePosition:
        """Return the horizon of the reader's compacted ledger. Raise Conflict, SegmentNotLocal."""
        attempt = reader.compacted.attempt_id
        with self._lock:
            if attempt in self._by_attempt:
                self._by_attempt.move_to_end(attempt)
                return self._by_attempt[attempt]
        horizon = reader.horizon()
        with self._lock:
            self._by_attempt[attempt] = horizon
            if len(self._by_attempt) > self._limit:
                self._by_attempt.popitem(last=False)
        return horizon
