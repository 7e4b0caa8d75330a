"""The maintenance of a service besides compaction: it rolls and seals the log, and calls the maintenance tasks.

A run in another service requests through SQL that the active segment of a topic is rolled. If no process has the
topic's log open, this loop rolls it; storage/log/lease_renewer.py serves the requests for open logs.

Sealing costs time and memory, so it is a process of its own for all topics of the log directory (sealer_process.py). It
is started when something is rolled, or when the directory's last owner left rolled segments, and started again if it
dies. Maintenance (compactor/maintenance/tasks.py) is a thread that checks every `POLL_SECONDS` what is due.

Nothing here raises once it is started: an error is logged, and the work is tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from api.background.sealer_process import BackgroundSealer
from api.components import store_trial
from api.settings.settings import Settings
from compactor.maintenance.backlog_limits import ServedCursor
from compactor.maintenance.tasks import Maintenance, MaintenanceTask
from storage.clock import is_due
from storage.environment import Environment
from storage.errors import CompactorError, LeaseHeld, Unavailable
from storage.log.log_manager import LogManager
from storage.metadata.records import SegmentState, TopicRecord
from storage.store_trial import StoreTrial

POLL_SECONDS = 1.0
QUOTA_CHECK_MS = 60_000
"""How often backlogs are compared with their quotas, at least (Pulsar's backlogQuotaCheckIntervalInSeconds)."""
AWAY_RETRY_MS = 5_000
"""Delay before a store that was unavailable is tried again."""
_log = logging.getLogger(__name__)


class MaintenanceLoop:
    """The maintenance thread of one service, as a context manager: it starts and stops with the context."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        leads: Callable[[], bool],
        served: Callable[[TopicRecord, str], ServedCursor | None] = lambda _topic, _name: None,
    ) -> None:
        """Make the thread, which the context starts. `leads`: returns whether this process leads, and so runs the
        leader's tasks. `served`: as in `BacklogLimits`."""
        self._environment = environment
        self._store_trial: StoreTrial | None = store_trial(settings, environment)
        self._store_tried_at: int | None = None
        self._store_retry_ms = 0
        self._interval_ms = settings.maintenance_interval_ms
        self._sealer = BackgroundSealer(settings, None)
        self._seal_ms = settings.maintenance_seal_interval_ms
        self._stop = threading.Event()
        self._checked_at: int | None = None
        self._has_growth = False
        """True if a segment may be prepared and no sealing process runs."""
        self._failing: set[int] = set()
        """Topics that cannot be rolled."""
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        interval = settings.maintenance_interval_ms
        self.maintenance = Maintenance(
            environment,
            {
                MaintenanceTask.SWEEP: interval,
                MaintenanceTask.BACKLOG: min(interval, QUOTA_CHECK_MS),
                MaintenanceTask.RETENTION: interval,
                MaintenanceTask.GARBAGE: settings.gc_interval_ms,
                MaintenanceTask.SCRUB: settings.gc_scrub_interval_ms,
            },
            settings.gc_grace_ms,
            leads,
            self._stop.is_set,
            self._wait_between_topics,
            served,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the maintenance thread after its present topic, and end the sealing process."""
        self._stop.set()
        self._thread.join()
        self._sealer.__exit__()

    def wake_sealer(self) -> None:
        """Let the sealing process check for rolled segments at once; start it if it does not run.

        Callable from any thread. Raises nothing: an error is logged, and the loop tries again.
        """
        try:
            if not self._stop.is_set() and self._store_trial is None:
                self._sealer.wake()
        except Exception:
            _log.exception("the sealing process cannot be started now")

    def report_log_growth(self, topic_id: int) -> None:
        """Report that the log of a topic has grown, so that the sealing process prepares its active segment.

        If that process does not run, this loop starts it later. Callable from any thread; it waits for nothing and
        raises nothing.
        """
        if self._store_trial is None and not self._sealer.report_log_growth(topic_id):
            self._has_growth = True

    def _wait_between_topics(self, seconds: float) -> None:
        """Wait up to `seconds` between two topics of a maintenance task, and serve roll and seal requests meanwhile."""
        self._stop.wait(min(seconds, POLL_SECONDS))
        self._roll_requested_segments_and_wake_sealer()

    def _run(self) -> None:
        """Run the maintenance thread until it is stopped: poll every `POLL_SECONDS` what is due."""
        while True:
            self.run_store_trial_if_due()
            self._roll_requested_segments_and_wake_sealer()
            if self.maintenance.run_due():
                self._environment.metadata.ensure_reserve()
            if self._stop.wait(POLL_SECONDS):
                return

    def run_store_trial_if_due(self) -> None:
        """Run the trial of the object store if it is due and has not passed yet. Nothing is sealed until it passes.

        Raises nothing: a failed trial is logged and repeated later.
        """
        now = self._environment.clock.now_ms()
        if self._store_trial is None or not is_due(self._store_tried_at, self._store_retry_ms, now):
            return
        self._store_tried_at, self._store_retry_ms = now, self._interval_ms
        try:
            self._store_trial.try_unless_passed()
            self._store_trial = self._checked_at = None
        except Unavailable as error:
            self._store_retry_ms = min(AWAY_RETRY_MS, self._interval_ms)
            _log.info("the object store cannot be tried now: %s", error)
        except CompactorError as error:
            _log.error("nothing is sealed into this object store: %s", error)
        except Exception:
            _log.exception("trying the object store failed in an unexpected way")

    def _roll_requested_segments_and_wake_sealer(self) -> None:
        """Roll the segments of the local log directory that a run requests, and wake the sealing process if its
        interval has elapsed and a segment waits. Raises nothing: an error is logged."""
        try:
            log_uid = self._environment.log.known_uid
            if log_uid is not None:
                self._roll_requested_segments(log_uid)
                self._wake_sealer_if_due(log_uid)
        except CompactorError as error:
            _log.warning("the log directory cannot be checked now: %s", error)
        except Exception:  # a thread that ends here would end all maintenance, in silence
            _log.exception("checking the log directory failed in an unexpected way")

    def _roll_requested_segments(self, log_uid: str) -> None:
        """Roll the active segments that runs in other processes request. `log_uid`: the local log directory.

        A topic whose log is open elsewhere is left out. An error of a topic is logged.
        """
        for topic in self._environment.metadata.segments.topics_to_roll(log_uid):
            try:
                LogManager(self._environment).roll(topic, 0)
            except LeaseHeld:
                continue
            except CompactorError as error:  # tried again each time, logged once
                level = logging.DEBUG if topic.id in self._failing else logging.WARNING
                _log.log(level, "%s cannot be rolled for a run that waits for it: %s", topic.name, error)
                self._failing.add(topic.id)
                continue
            self._failing.discard(topic.id)
            self.wake_sealer()

    def _wake_sealer_if_due(self, log_uid: str) -> None:
        """Wake the sealing process if its interval has elapsed and a segment waits: a rolled one, or an active one that
        has grown. `log_uid`: the local log directory."""
        now = self._environment.clock.now_ms()
        if not is_due(self._checked_at, self._seal_ms, now):
            return
        self._checked_at = now
        has_growth, self._has_growth = self._has_growth, False
        if has_growth or self._environment.metadata.segments.topics_with_segments([SegmentState.ROLLED], log_uid):
            self.wake_sealer()
