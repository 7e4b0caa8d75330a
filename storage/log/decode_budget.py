"""A bound on the bytes of decoded large entries that all reads of a process hold.

A compressed entry of a few KiB may expand to tens of MiB (storage/entries/expansion.py), and a read of one message
decodes the whole entry. So reads of large entries wait for each other: together they hold at most `limit` bytes, or one
entry. Smaller tables are not counted: the number of reading threads bounds them.

The freed memory is returned to the system: otherwise the C library keeps the freed memory of each thread, measured as
840 MiB after 16 reads.

Thread-safe. Must not know: entries, files.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from storage.errors import Unavailable

MOST_BYTES = 128 << 20
WAIT_SECONDS = 10.0
"""The longest time that a read waits for others to finish."""


class DecodeBudget:
    """A limit of the memory that all reads of a process hold for decoded large entries.

    `limit`: the most bytes that reads hold together, unless one entry is larger; `wait_seconds`: the longest wait for
    room.
    """

    def __init__(self, limit: int = MOST_BYTES, wait_seconds: float = WAIT_SECONDS) -> None:
        self.limit = limit
        self.wait_seconds = wait_seconds
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes of the budget inside the context, after a wait for room; 0 never waits. Raises
        Unavailable after `wait_seconds`."""
        if not size:
            yield
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(size), self.wait_seconds):
                raise Unavailable(
                    f"an entry of {size} bytes uncompressed is not read: {self._held} bytes of other large entries are "
                    f"being read, and {self.limit} are allowed at once",
                    "try again",
                )
            self._held += size
        try:
            yield
        finally:
            _return_freed_memory()
            with self._changed:
                self._held -= size
                self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._held or self._held + size <= self.limit


def _return_freed_memory() -> None:
    """Return freed memory to the operating system, where the C library can: glibc does."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
