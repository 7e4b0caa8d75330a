"""Maintenance tasks that a service runs at intervals:

    sweep       each service, for its own log directory: roll open segments without a writer by age; remove the files
                of sealed segments and of deleted topics
    backlog     message time to live and backlog quotas (backlog_limits.py): the service whose log directory has the
                end of the topic; for a sealed topic the one that serves it, else the leader
    retention   trim topics by their cleanup policies (retention.py): the leader
    garbage     delete the objects of topics without references, where rows lead to some (garbage.py): the leader
    scrub       the same for all objects of the store, rarely and in slices: the leader

`due_tasks` decides by the clock and the last start of each task, so nothing waits here;
api/background/maintenance_loop.py calls `run_due` once a second. The failure of a topic is logged, and retried at the
next start; other topics continue. All tasks are safe beside any other work, even beside an old leader that has not
noticed its replacement. Leadership only saves work.

Memory: that of garbage.py, and a page of topics. This module must not know settings and threads.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from compactor.maintenance.backlog_limits import BacklogLimits, ExceededQuota, ServedCursor, has_limits
from compactor.maintenance.garbage import CollectionResult, GarbageCollector
from compactor.maintenance.retention import Retention
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE, Throttle, throttle_items
from storage.clock import is_due
from storage.environment import Environment
from storage.errors import CompactorError, ErrorText, TopicNotFound
from storage.log.log_manager import LogManager
from storage.metadata.records import SegmentState, TopicRecord
from storage.options.policies import TopicPolicies
from storage.owner import Owner, same_process

_log = logging.getLogger(__name__)


class MaintenanceTask(StrEnum):
    """Maintenance task. Several due tasks run in this order."""

    SWEEP = "sweep"
    BACKLOG = "backlog"
    RETENTION = "retention"
    GARBAGE = "garbage"
    SCRUB = "scrub"


LEADER_TASKS = frozenset({MaintenanceTask.RETENTION, MaintenanceTask.GARBAGE, MaintenanceTask.SCRUB})
SCRUB_NOTE = "scrub"
"""The name of the note with the place of a scrub."""
SLICE_MS = 500
"""Time after which a scrub lets other tasks run."""
NOTED_MS = 60_000
"""Time between two notes of a scrub's place."""
Intervals = Mapping[MaintenanceTask, int]
"""Time between two starts of each task, in ms."""
Starts = Mapping[MaintenanceTask, int | None]
"""The last start of each task, in ms; None or absent: the task is due."""


def due_tasks(starts: Starts, intervals: Intervals, leads: bool, now: int) -> list[MaintenanceTask]:
    """Return the due tasks at `now` (milliseconds), in order. `leads`: whether this process is the leader.

    After the clock was set back a task is due, because the time since its last start is unknown.
    """
    candidates = (task for task in MaintenanceTask if leads or task not in LEADER_TASKS)
    return [task for task in candidates if is_due(starts.get(task), intervals[task], now)]


@dataclass
class _ScrubState:
    """A scrub in progress. `began_at`, `noted_at`: its begin and the last note of its place, in ms."""

    began_at: int
    results: Iterator[CollectionResult]
    noted_at: int


@dataclass(eq=False)
class Maintenance:
    """Runner of the maintenance tasks that are due.

    One thread at a time runs them; `make_due` may be called from any thread.

    `grace_ms`: grace time of garbage. `leads`: returns whether this process is the leader. `stopping`: ends a task
    between two topics. `throttle`: waits between topics, so that thousands of topics do not slow down the other work of
    the process (scan_throttle.py).
    """

    environment: Environment
    intervals: Intervals
    grace_ms: int
    leads: Callable[[], bool]
    stopping: Callable[[], bool] = lambda: False
    throttle: Throttle = lambda _: None
    served: Callable[[TopicRecord, str], ServedCursor | None] = lambda _topic, _name: None
    """The argument `served` of `BacklogLimits`."""
    over_quota: Mapping[int, ExceededQuota] = field(init=False, default_factory=dict)
    """The topics of this process, by id, that accept no messages, as of the last task `backlog`."""
    _process: str = field(init=False, default_factory=lambda: str(Owner.current()))
    _running: threading.Lock = field(init=False, default_factory=threading.Lock)
    _scrub: _ScrubState | int | None = field(init=False, default=None)
    _starts: dict[MaintenanceTask, int | None] = field(init=False, default_factory=dict)

    def make_due(self, task: MaintenanceTask) -> None:
        """Make a task due now."""
        self._starts[task] = None

    def run_due(self) -> list[MaintenanceTask]:
        """Run the due tasks and return them. Raises no CompactorError: errors are logged."""
        work = {
            MaintenanceTask.SWEEP: self._sweep_log_directory,
            MaintenanceTask.BACKLOG: self._limit_backlogs,
            MaintenanceTask.RETENTION: self._trim_topics,
            MaintenanceTask.GARBAGE: self._collect_garbage,
            MaintenanceTask.SCRUB: self._run_scrub_slice,
        }
        with self._running:
            try:
                tasks = due_tasks(self._starts, self.intervals, self.leads(), self.environment.clock.now_ms())
            except CompactorError as error:  # the database is away, so the leader is unknown
                _log.warning("maintenance: %s", error)
                return []
            for task in tasks:
                if not self.stopping():
                    self._starts[task] = self.environment.clock.now_ms()
                    with _log_and_suppress_errors(task):
                        work[task]()
            return tasks

    def _topics_with_policies(self) -> Iterator[tuple[TopicRecord, TopicPolicies]]:
        """Yield all topics with their policies, page by page, until the process stops."""
        resolver = self.environment.metadata.policies.resolver()
        for page in throttle_items(
            self.environment.metadata.topics.in_pages(TOPICS_AT_ONCE), self.environment.clock, self.throttle
        ):
            for topic in page:
                if self.stopping():
                    return
                yield topic, resolver.resolve(topic).policies

    def _sweep_log_directory(self) -> None:
        failing: dict[str, ErrorText] = {}
        manager = LogManager(self.environment)
        manager.roll_old_segments(failing)
        manager.remove_sealed_files(errors=failing)
        for name, reason in failing.items():
            _log.warning("%s: %s: %s", MaintenanceTask.SWEEP, name, reason)

    def _limit_backlogs(self) -> None:
        limits = BacklogLimits(self.environment, self.served)
        leads = self.leads()
        before, current = self.over_quota, dict[int, ExceededQuota]()
        for topic, policies in self._topics_with_policies():
            if not has_limits(policies):
                continue
            over = before.get(topic.id)
            with _log_and_suppress_errors(MaintenanceTask.BACKLOG, topic):
                over = limits.enforce(topic, policies) if self._limits_backlog_here(topic, leads) else None
            if over is not None:
                current[topic.id] = over
                _log.log(logging.DEBUG if topic.id in before else logging.WARNING, "%s", over.error)
        if not self.stopping():
            self.over_quota = MappingProxyType(current)

    def _limits_backlog_here(self, topic: TopicRecord, leads: bool) -> bool:
        """Return whether this process limits the topic's backlog: it has the last segment; if all are sealed, it serves
        the topic, or leads and none does.

        Earlier rolled segments may wait in another log directory to be sealed.
        """
        metadata = self.environment.metadata
        unsealed = [item for item in metadata.segments.of_topic(topic.id) if item.state is not SegmentState.SEALED]
        if unsealed:
            return unsealed[-1].log_uid == self.environment.log.known_uid
        lease = metadata.leases.current(topic.id)
        return leads if lease is None else same_process(lease.owner, self._process)

    def _trim_topics(self) -> None:
        retention = Retention(self.environment)
        for topic, policies in self._topics_with_policies():
            if policies.cleanup_policy or topic.start_offset:
                with _log_and_suppress_errors(MaintenanceTask.RETENTION, topic):
                    trimmed = retention.trim(topic)
                    if trimmed.tail_damaged:
                        _log.warning("%s: %s: %s", MaintenanceTask.RETENTION, topic.name, trimmed.tail_error)

    def _collect_garbage(self) -> None:
        collector = GarbageCollector(self.environment, self.grace_ms)
        for collected in throttle_items(collector.collect_due(), self.environment.clock, self.throttle):
            _log_collection_error(MaintenanceTask.GARBAGE, collected)
            if self.stopping():
                return

    def _run_scrub_slice(self) -> None:
        """Go on with a scrub of the store for `SLICE_MS`, or begin one if the last began long enough ago."""
        clock = self.environment.clock
        began = clock.now_ms()
        # After an error it goes on in a minute.
        self._starts[MaintenanceTask.SCRUB] = began + NOTED_MS - self.intervals[MaintenanceTask.SCRUB]
        if self._scrub is None:
            self._scrub = self._due_scrub_or_last_begin()
        scrub, self._scrub = self._scrub, None  # an error ends it; the next slice begins where the note is
        if isinstance(scrub, int):
            self._starts[MaintenanceTask.SCRUB] = scrub
            return
        for collected in throttle_items(scrub.results, clock, self.throttle):
            _log_collection_error(MaintenanceTask.SCRUB, collected)
            now = clock.now_ms()
            if is_due(scrub.noted_at, NOTED_MS, now):
                scrub.noted_at = now
                self._store_scrub_position(scrub.began_at, collected.topic_uid)
            if self.stopping() or not self.leads():
                return
            if now - began >= SLICE_MS:
                self._scrub, self._starts[MaintenanceTask.SCRUB] = scrub, None
                return
        self._store_scrub_position(scrub.began_at, None)
        self._starts[MaintenanceTask.SCRUB] = scrub.began_at

    def _due_scrub_or_last_begin(self) -> _ScrubState | int:
        """Return the scrub that is due or was interrupted; or the time (ms) of the last one's begin if none is."""
        now = self.environment.clock.now_ms()
        noted = self.environment.metadata.topic_work.leader_note(SCRUB_NOTE)
        began_at, after_uid = json.loads(noted) if noted else (0, None)
        if after_uid is None:
            if noted and not is_due(began_at, self.intervals[MaintenanceTask.SCRUB], now):
                return int(began_at)
            began_at, after_uid = now, ""
        collector = GarbageCollector(self.environment, self.grace_ms)
        return _ScrubState(began_at, collector.collect_all(after_uid=after_uid), now)

    def _store_scrub_position(self, began_at: int, after_uid: str | None) -> None:
        """Store how far a scrub is: `after_uid`, the uid of its last topic; None: it is finished.

        Any process continues it.
        """
        self.environment.metadata.topic_work.set_leader_note(SCRUB_NOTE, json.dumps([began_at, after_uid]))


def _log_collection_error(task: MaintenanceTask, collected: CollectionResult) -> None:
    """Log the error of a collection. A deleted topic is no error."""
    if collected.error is not None and not isinstance(collected.error, TopicNotFound):
        _log.warning("%s: %s: %s", task, collected.topic or collected.topic_uid, collected.error)


@contextmanager
def _log_and_suppress_errors(task: MaintenanceTask, topic: TopicRecord | None = None) -> Iterator[None]:
    """Log an error of the body, and let other topics and tasks continue. A deleted topic is no error."""
    try:
        yield
    except TopicNotFound:
        return
    except Exception as error:
        about = f"{task}: {topic.name}" if topic else task
        _log.warning("%s: %s", about, error, exc_info=not isinstance(error, CompactorError))
