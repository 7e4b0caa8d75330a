"""The disk reserve: an empty file beside a SQLite database that keeps space for the time when the disk is full.

On a full disk not even a topic can be deleted, because SQLite writes before it deletes; opening a database that no
process has open takes space, too. So the first access that fails for lack of space removes the file, and the next ones
have its space: to delete and to trim. The file is created again when there is plenty of space.

The file is as large as the database, within bounds: a delete writes less than that ahead. Any program that writes to
the disk may use the space up; so the log stops before (storage/log/log_space.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from storage.disk_space import free_bytes

LEAST_BYTES = 256 << 10
MOST_BYTES = 16 << 20
_PLENTY = 4
"""The reserve is created if this many times its size is free."""
_log = logging.getLogger(__name__)


class DiskReserve:
    """The reserve file beside one database file, at `path`. Safe to share between threads and processes."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = Path(f"{database}.reserve")

    def ensure(self) -> None:
        """Create the reserve file if it is missing or too small by half, if the disk has plenty of space."""
        with contextlib.suppress(OSError):
            size = min(max(self._database.stat().st_size, LEAST_BYTES), MOST_BYTES)
            present = self.path.stat().st_size if self.path.exists() else 0
            if 2 * present < size and free_bytes(self.path.parent) >= _PLENTY * size:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(descriptor, 0, size)
                finally:
                    os.close(descriptor)

    def release_if_full(self) -> int:
        """Remove the reserve file if the disk is full. Returns the number of bytes freed; 0: none. Raises nothing."""
        with contextlib.suppress(OSError):
            size = self.path.stat().st_size
            if free_bytes(self.path.parent) < size:
                self.path.unlink()
                _log.warning(
                    "the disk of %s is full: %d bytes that were reserved for this are freed", self._database, size
                )
                return size
        return 0
