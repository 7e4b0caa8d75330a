"""What a service does for its topics by itself, besides compacting: rolling and sealing its log, and maintenance.

A run in another service asks through SQL for the tail of a topic to be rolled; if nobody has the topic's log open, that
is done here (a log that is open is watched by storage/log/lease_renewer.py).

Sealing costs time and memory, so it is a process of its own for all topics of the log directory (sealer_process.py),
which is started when something is rolled, or was left so by the directory's owner before, and started again if it
dies. Maintenance (compactor/maintenance/tasks.py) is a thread that looks every `LOOK_SECONDS` what is due.

Nothing here raises once it is started: what goes wrong is logged, kept in `status`, and tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from api.background.sealer_process import BackgroundSealer
from api.components import Components
from api.settings.settings import Settings
from compactor.maintenance.tasks import Intervals, Maintenance, TaskStatus
from storage.errors import CompactorError, LeaseHeld
from storage.log.log_manager import LogManager
from storage.metadata.records import SegmentState
from storage.owner import owner_name

LOOK_SECONDS = 1.0
QUOTA_LOOK_MS = 60_000
"""How often backlogs are compared with their quotas, at least (Pulsar's backlogQuotaCheckIntervalInSeconds)."""
_log = logging.getLogger(__name__)


class MaintenanceLoop:
    """A context manager around the service's life. `wake`: something was rolled; called from any thread."""

    def __init__(self, settings: Settings, components: Components, leads: Callable[[], bool]) -> None:
        """`leads`: whether this process does the leader's part of the maintenance."""
        self._components = components
        self._sealer = BackgroundSealer(settings, None)
        self._seal_ms = settings.maintenance_seal_interval_ms
        self._stop = threading.Event()
        self._looked_at: int | None = None
        self._failing: set[int] = set()
        """Topics that cannot be rolled."""
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        intervals = Intervals(
            sweep_ms=settings.maintenance_interval_ms,
            backlog_ms=min(settings.maintenance_interval_ms, QUOTA_LOOK_MS),
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
        """There is something to seal. Raises nothing: the writer has rolled, and this is tried again."""
        try:
            if not self._stop.is_set():
                self._sealer.wake()
        except Exception:
            _log.exception("the sealing process cannot be started now")

    def status(self) -> dict[str, TaskStatus]:
        """How it stands with each task: `sweep`, `backlog`, `retention`, `garbage`."""
        return {task.value: status for task, status in self.maintenance.status().items()}

    def _rest(self, seconds: float) -> None:
        """Between two topics of thousands; sealing is not to wait for all of them."""
        self._stop.wait(min(seconds, LOOK_SECONDS))
        self._look_after_logs()

    def _run(self) -> None:
        while True:
            self._look_after_logs()
            if self.maintenance.run_due():
                self._components.metadata.keep_reserve()
            if self._stop.wait(LOOK_SECONDS):
                return

    def _look_after_logs(self) -> None:
        """Roll what nobody here has open, if asked to, and start the sealing process for what nobody wakes it for."""
        try:
            here = self._components.log.known_uid
            if here is not None:
                self._roll(here)
                self._seal(here)
        except CompactorError as error:
            _log.warning("looking after the log directory: %s", error)
        except Exception:  # a thread that ends here would end all maintenance, in silence
            _log.exception("looking after the log directory failed in an unexpected way")

    def _roll(self, here: str) -> None:
        """A run elsewhere wants a tail that is here; if its log is open here, its lease renewer does the same."""
        one = self._components
        for topic in one.metadata.segments.topics_to_roll(here):
            keeper = LogManager(one.metadata, one.store, one.clock, one.log, owner_name())
            try:
                keeper.roll(topic, 0)
            except LeaseHeld:
                continue
            except CompactorError as error:  # tried again each time, told once
                level = logging.DEBUG if topic.id in self._failing else logging.WARNING
                _log.log(level, "%s was asked for, and cannot be rolled: %s", topic.name, error)
                self._failing.add(topic.id)
                continue
            self._failing.discard(topic.id)
            self.wake()

    def _seal(self, here: str) -> None:
        """What was left by others, or by a sealing process that has died."""
        now = self._components.clock.now_ms()
        if self._looked_at is not None and self._looked_at <= now < self._looked_at + self._seal_ms:
            return
        self._looked_at = now
        if self._components.metadata.segments.topics_with([SegmentState.ROLLED], here):
            self.wake()
