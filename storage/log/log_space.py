"""The room of a log directory: appends are refused before its disk is full.

Two limits: the bytes of rolled segments that may wait to be sealed, which grow while the object store is unreachable;
and the bytes of the disk that stay free, for the operator who frees space. A refused entry was never accepted, and
appends continue by themselves when there is room again.

The room is checked before each append, so a measurement counts for a moment: `DISK_MS` for the disk, `ROLLED_MS` for
rolled segments. If a measurement fails, the last one counts. Errors: StorageFull. Must not know: SQL, segments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.clock import Clock, is_due
from storage.disk_space import free_bytes
from storage.errors import CompactorError, StorageFull

DISK_MS = 100
ROLLED_MS = 1000


@dataclass(frozen=True)
class LogSpaceStatus:
    """The free space of a log directory at one moment, and whether appends are refused.

    `free_bytes` None: the disk cannot be measured. `least_free_bytes`: the limit below which appends are refused.
    `refusal`: the error with which appends are refused; None: they are accepted.
    """

    free_bytes: int | None = 0
    least_free_bytes: int = 0
    refusal: StorageFull | None = None


class LogSpaceLimit:
    """The limits of space in one log directory, for one process. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        folder: Path,
        rolled_bytes: Callable[[], int],
        *,
        max_rolled_bytes: int = 0,
        min_free_bytes: int = 0,
    ) -> None:
        """Create the limits of the directory `folder`; a limit of 0 is none.

        `rolled_bytes` returns the bytes of the directory's segments that wait to be sealed. `max_rolled_bytes`: the
        most of them; `min_free_bytes`: the bytes of the disk that stay free.
        """
        self._clock = clock
        self._folder = folder
        self._rolled_bytes = rolled_bytes
        self._max_rolled_bytes = max_rolled_bytes
        self._min_free_bytes = min_free_bytes
        self._lock = threading.Lock()
        self._disk_at: int | None = None
        self._rolled_at: int | None = None
        self._rolled = 0
        self._free = min_free_bytes

    def check(self) -> None:
        """Raise StorageFull if a limit of space is exceeded, so that nothing may be appended now."""
        self._measure_if_due()
        refusal = self._refusal_error()
        if refusal is not None:
            raise refusal

    @property
    def is_known_to_have_space(self) -> bool:
        """True if a measurement that is still valid permits appends. Waits for nothing."""
        return not is_due(self._disk_at, DISK_MS, self._clock.now_ms()) and self._refusal_error() is None

    def _refusal_error(self) -> StorageFull | None:
        if self._free < self._min_free_bytes:
            return StorageFull(
                f"nothing is appended: the disk of the log directory has {self._free} bytes left, and "
                f"{self._min_free_bytes} are to stay free",
                "free space there; appends continue by themselves",
                is_public=True,
            )
        if self._rolled > self._max_rolled_bytes > 0:
            return StorageFull(
                f"nothing is appended: {self._rolled} bytes of rolled segments in the log directory are "
                f"not sealed yet, and {self._max_rolled_bytes} may be",
                "see why they are not sealed (the object store, the sealing process); appends continue by themselves",
                is_public=True,
            )
        return None

    def status(self) -> LogSpaceStatus:
        """Return the present free space, and the error if appends are refused, for reports."""
        refusal = None
        try:
            self.check()
        except StorageFull as error:
            refusal = error
        try:
            free: int | None = free_bytes(self._folder)
        except OSError:
            free = None
        return LogSpaceStatus(free, self._min_free_bytes, refusal)

    def _measure_if_due(self) -> None:
        """Measure the free space and the rolled bytes if the last measurement is old; while one thread measures, others
        use the last one."""
        now = self._clock.now_ms()
        if not is_due(self._disk_at, DISK_MS, now) or not self._lock.acquire(blocking=False):
            return
        try:
            self._disk_at = now
            if self._min_free_bytes:
                self._free = free_bytes(self._folder)
            if self._max_rolled_bytes and is_due(self._rolled_at, ROLLED_MS, now):
                self._rolled_at = now
                self._rolled = self._rolled_bytes()
        except (CompactorError, OSError):
            pass  # the append itself reports what it cannot do
        finally:
            self._lock.release()
