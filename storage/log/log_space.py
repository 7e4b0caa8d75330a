"""Whether a log directory has room for more: appends are refused before its disk is full.

Two limits: how many bytes of rolled segments may wait to be sealed, which grow while the object store is away; and how
many bytes of the disk stay free, for the operator who frees space. What is refused was never taken, and appends
continue by themselves when there is room again.

Asked before each append, so what was found counts for a moment: `DISK_MS` for the disk, `ROLLED_MS` for what is rolled.
If that cannot be asked, what was found before counts. May go wrong: StorageFull. Must not know: SQL, segments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.clock import Clock
from storage.disk_space import free_bytes
from storage.errors import CompactorError, StorageFull

DISK_MS = 100
ROLLED_MS = 1000


@dataclass(frozen=True)
class LogRoom:
    """The room of a log directory at one moment. `refusal`: the reason why nothing is appended; None: appends pass.

    `free_bytes` None: the disk cannot be asked. `least_free_bytes`: appends are refused below it."""

    free_bytes: int | None = 0
    least_free_bytes: int = 0
    refusal: StorageFull | None = None


class LogSpace:
    """The limits of one log directory in this process. Safe to share between threads."""

    def __init__(
        self,
        clock: Clock,
        folder: Path,
        rolled_bytes: Callable[[], int],
        *,
        max_rolled_bytes: int = 0,
        min_free_bytes: int = 0,
    ) -> None:
        """`rolled_bytes`: of the directory's segments that wait to be sealed. A limit of 0 is none."""
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
        """Raises StorageFull if there is no room."""
        self._measure()
        if self._free < self._min_free_bytes:
            raise StorageFull(
                f"nothing is appended: the disk of the log directory has {self._free} bytes left, and "
                f"{self._min_free_bytes} are to stay free",
                "free space there; appends continue by themselves",
                is_public=True,
            )
        if self._rolled > self._max_rolled_bytes > 0:
            raise StorageFull(
                f"nothing is appended: {self._rolled} bytes of rolled segments in the log directory are "
                f"not sealed yet, and {self._max_rolled_bytes} may be",
                "see why they are not sealed (the object store, the sealing process); appends continue by themselves",
                is_public=True,
            )

    def room(self) -> LogRoom:
        """Return the room that there is now, for reports."""
        refusal = None
        try:
            self.check()
        except StorageFull as error:
            refusal = error
        try:
            free: int | None = free_bytes(self._folder)
        except OSError:
            free = None
        return LogRoom(free, self._min_free_bytes, refusal)

    def _measure(self) -> None:
        """One thread looks, when it is time to; the others go by what was found before."""
        now = self._clock.now_ms()
        if not _is_due(self._disk_at, DISK_MS, now) or not self._lock.acquire(blocking=False):
            return
        try:
            self._disk_at = now
            if self._min_free_bytes:
                self._free = free_bytes(self._folder)
            if self._max_rolled_bytes and _is_due(self._rolled_at, ROLLED_MS, now):
                self._rolled_at = now
                self._rolled = self._rolled_bytes()
        except (CompactorError, OSError):
            pass  # an append needs neither; what it needs itself it will say
        finally:
            self._lock.release()


def _is_due(since: int | None, term_ms: int, now: int) -> bool:
    return since is None or not since <= now < since + term_ms
