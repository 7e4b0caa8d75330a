"""What a service does for its topics by itself, besides compacting: sealing what is rolled, and maintenance.

Sealing costs time and memory, so it is a process of its own for all topics of the log directory (background_sealer.py),
which is started when something is rolled, or was left so by whoever had the directory before, and started again if it
dies. Maintenance (compactor/maintenance.py) is a thread that looks every `LOOK_SECONDS` what is due.

Nothing here raises once it is started: what goes wrong is logged, kept in `status`, and tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from api.background_sealer import BackgroundSealer
from api.settings import Settings
from api.wiring import Components
from compactor.maintenance import Intervals, Maintenance, TaskStatus
from storage.errors import CompactorError
from storage.metadata.records import SegmentState

LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Upkeep:
    """A context manager around the service's life. `wake`: something was rolled; called from any thread."""

    def __init__(self, settings: Settings, components: Components, leads: Callable[[], bool]) -> None:
        """`leads`: whether this process does the leader's part of the maintenance."""
        self._components = components
        self._sealer = BackgroundSealer(settings, None)
        self._seal_ms = settings.maintenance_seal_interval_ms
        self._stop = threading.Event()
        self._looked_at: int | None = None
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        intervals = Intervals(
            sweep_ms=settings.maintenance_interval_ms,
            retention_ms=settings.maintenance_interval_ms,
            garbage_ms=settings.gc_interval_ms,
            grace_ms=settings.gc_grace_ms,
        )
        one = components
        self.maintenance = Maintenance(
            one.metadata, one.store, one.clock, one.log, intervals, leads, self._stop.is_set, self._rest
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """What is under way is let finish, topic by topic."""
        self._stop.set()
        self._thread.join()
        self._sealer.__exit__(None, None, None)

    def wake(self) -> None:
        """There is something to seal. Raises nothing: whoever rolled has done so, and this is tried again."""
        try:
            if not self._stop.is_set():
                self._sealer.wake()
        except Exception:
            _log.exception("the sealing process cannot be started now")

    def status(self) -> dict[str, TaskStatus]:
        """How it stands with each task: `sweep`, `retention`, `garbage`."""
        return {task.value: status for task, status in self.maintenance.status().items()}

    def _rest(self, seconds: float) -> None:
        """Between two topics of thousands; sealing is not to wait for all of them."""
        self._stop.wait(min(seconds, LOOK_SECONDS))
        self._look_after_sealing()

    def _run(self) -> None:
        while True:
            self._look_after_sealing()
            self.maintenance.run_due()
            if self._stop.wait(LOOK_SECONDS):
                return

    def _look_after_sealing(self) -> None:
        """Start the sealing process for what nobody will wake it for: left by others, or by one that has died."""
        now = self._components.clock.now_ms()
        if self._looked_at is not None and self._looked_at <= now < self._looked_at + self._seal_ms:
            return
        self._looked_at = now
        try:
            here = self._components.log.known_uid
            waiting = self._components.metadata.log.topics_with_segments([SegmentState.ROLLED], here) if here else []
        except CompactorError as error:
            _log.warning("looking for segments to seal: %s", error)
            return
        except Exception:  # a thread that ends here would end all maintenance, in silence
            _log.exception("looking for segments to seal failed in an unexpected way")
            return
        if waiting:
            self.wake()
