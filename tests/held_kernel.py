"""Asynchronous flushes that end when a test says so, in the place of the kernel's (storage/log/kernel_flushes.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from queue import SimpleQueue

from storage.log.kernel_flushes import FlushEnd

TIMEOUT = 30.0


class HeldKernel:
    """Asynchronous flushes that end when a test says so; at most `room` are begun."""

    is_supported = True

    def __init__(self, room: int = 1_000) -> None:
        self._room = room
        self._begun: SimpleQueue[tuple[int, FlushEnd]] = SimpleQueue()

    def begin_flushes(self, flushes: Sequence[tuple[int, FlushEnd]]) -> int:
        taken = flushes[: self._room]
        self._room -= len(taken)
        for flush in taken:
            self._begun.put(flush)
        return len(taken)

    def take_no_more(self) -> None:
        """Let the committing threads flush from now on."""
        self._room = 0

    def next(self) -> FlushEnd:
        """Wait for the next flush, and return what ends it. The file is flushed by then."""
        descriptor, end = self._begun.get(timeout=TIMEOUT)
        os.fdatasync(descriptor)
        return end
