"""Maintenance tasks that a service runs at intervals:

    sweep       each service, for its own log directory: roll open segments without a writer by age; remove the files
                of sealed segments and of deleted topics
    backlog     message time to live and backlog quotas (backlog_limits.py): the service whose log directory has the
                end of the topic; the leader for sealed topics
    retention   trim topics by their cleanup policies (retention.py): the leader
    garbage     delete objects without references (garbage.py): the leader

`due` decides by the clock and the last start of each task, so nothing waits here; api/background/maintenance_loop.py
calls `run_due` once a second. The failure of a topic is logged, shown, and retried at the next start; other topics
continue. All tasks are safe beside any other work, even beside an old leader that has not noticed its replacement.
Leadership only saves work.

Memory: the records of all topics, and that of garbage.py. This module must not know settings and threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from compactor.maintenance.backlog_limits import BacklogLimits, OverQuota, has_limits
from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.retention import Retention
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE, Rest, paced
from storage.environment import Environment
from storage.errors import CompactorError, TopicNotFound, full_part
from storage.log.log_manager import LogManager
from storage.metadata.records import SegmentState, TopicRecord
from storage.options.policies import TopicPolicies

_log = logging.getLogger(__name__)


class MaintenanceTask(StrEnum):
    """Maintenance task. Several due tasks run in this order."""

    SWEEP = "sweep"
    BACKLOG = "backlog"
    RETENTION = "retention"
    GARBAGE = "garbage"


LEADER_TASKS = frozenset({MaintenanceTask.RETENTION, MaintenanceTask.GARBAGE})
Failing = dict[str, str]
"""Reasons of failures, by topic."""


Intervals = Mapping[MaintenanceTask, int]
"""Time between two starts of each task, in ms."""


@dataclass(frozen=True)
class MaintenanceTaskStatus:
    """Status of one task in this process. Times in ms; None: never.

    `last_error`: error of the last execution, empty if it had none. `failing`: errors of the last execution by topic.
    `removed`: number of removed segment files, marked ledgers, or objects since the start of the process;
    `removed_bytes`: their known sizes.
    """

    began_at: int | None = None
    ended_at: int | None = None
    last_error: str = ""
    failing: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    removed: int = 0
    removed_bytes: int = 0


def due(
    statuses: Mapping[MaintenanceTask, MaintenanceTaskStatus], intervals: Intervals, leads: bool, now: int
) -> list[MaintenanceTask]:
    """Return the due tasks. After the clock was set back a task is due, because the difference is unknown."""

    def is_due(task: MaintenanceTask) -> bool:
        began = statuses[task].began_at
        return began is None or not began <= now < began + intervals[task]

    return [task for task in MaintenanceTask if (leads or task not in LEADER_TASKS) and is_due(task)]


class Maintenance:
    """Runner of due tasks. One thread at a time runs them; `status` may be called from any thread."""

    def __init__(
        self,
        environment: Environment,
        intervals: Intervals,
        grace_ms: int,
        leads: Callable[[], bool],
        stopping: Callable[[], bool] = lambda: False,
        rest: Rest = lambda _: None,
    ) -> None:
        """Build the runner.

        `grace_ms`: grace time of garbage. `leads`: returns whether this process is the leader. `stopping`: ends a task
        between two topics. `rest`: waits between topics, so that thousands of topics do not slow down the other work of
        the process (scan_throttle.py).
        """
        self._environment = environment
        self._intervals = intervals
        self._grace_ms = grace_ms
        self._leads = leads
        self._stopping = stopping
        self._rest = rest
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._statuses = {task: MaintenanceTaskStatus() for task in MaintenanceTask}
        self._work: Mapping[MaintenanceTask, Callable[[Failing], None]] = {
            MaintenanceTask.SWEEP: self._sweep,
            MaintenanceTask.BACKLOG: self._limit_backlogs,
            MaintenanceTask.RETENTION: self._retain,
            MaintenanceTask.GARBAGE: self._collect,
        }
        self.over_quota: Mapping[int, OverQuota] = MappingProxyType({})
        """The topics of this process, by id, that accept no messages, as of the last task `backlog`."""

    def hasten(self, task: MaintenanceTask) -> None:
        """Make a task due now."""
        self._change(task, began_at=None)

    def status(self) -> dict[MaintenanceTask, MaintenanceTaskStatus]:
        """Return the current status of each task."""
        with self._lock:
            return dict(self._statuses)

    def run_due(self) -> list[MaintenanceTask]:
        """Run the due tasks and return them. Errors are logged and in the status; none is raised."""
        with self._running:
            try:
                tasks = due(self.status(), self._intervals, self._leads(), self._environment.clock.now_ms())
            except CompactorError as error:  # the database is away, so the leader is unknown
                _log.warning("maintenance: %s", error)
                return []
            for task in tasks:
                if not self._stopping():
                    self._run(task)
            return tasks

    def _run(self, task: MaintenanceTask) -> None:
        self._change(task, began_at=self._environment.clock.now_ms())
        failing: Failing = {}
        error = ""
        try:
            self._work[task](failing)
        except Exception as exception:  # other tasks, and the next start of this one, must run
            error = _reason(exception)
            _log.warning("%s: %s", task, error, exc_info=not isinstance(exception, CompactorError))
        if failing and not error:
            name, reason = next(iter(failing.items()))
            error = f"{name}: {reason}" + (f" (and {len(failing) - 1} more topics)" if len(failing) > 1 else "")
        self._change(
            task, ended_at=self._environment.clock.now_ms(), last_error=error, failing=MappingProxyType(failing)
        )

    def _topics(self) -> Iterator[tuple[TopicRecord, TopicPolicies]]:
        """Yield all topics with their policies, page by page, until the process stops."""
        resolver = self._environment.metadata.policies.resolver()
        for page in paced(
            self._environment.metadata.topics.in_pages(TOPICS_AT_ONCE), self._environment.clock, self._rest
        ):
            for topic in page:
                if self._stopping():
                    return
                yield topic, resolver.resolved(topic).policies

    def _sweep(self, failing: Failing) -> None:
        manager = LogManager(self._environment)
        manager.roll_old(failing)
        self._count(MaintenanceTask.SWEEP, manager.sweep(failing=failing), 0)
        for name, reason in failing.items():
            _log.warning("%s: %s: %s", MaintenanceTask.SWEEP, name, reason)

    def _limit_backlogs(self, failing: Failing) -> None:
        limits = BacklogLimits(self._environment)
        leads = self._leads()
        before, current = self.over_quota, dict[int, OverQuota]()
        for topic, policies in self._topics():
            if not has_limits(policies):
                continue
            over = before.get(topic.id)
            with _alone(MaintenanceTask.BACKLOG, topic, failing):
                over = limits.apply(topic, policies) if self._is_local(topic, leads) else None
            if over is not None:
                current[topic.id] = over
                _log.log(logging.DEBUG if topic.id in before else logging.WARNING, "%s", over.error)
        if not self._stopping():
            self.over_quota = MappingProxyType(current)

    def _is_local(self, topic: TopicRecord, leads: bool) -> bool:
        """Return whether this process limits the topic's backlog: it has the last segment, or leads and all are sealed.

        Earlier rolled segments may wait in another log directory to be sealed.
        """
        unsealed = [
            segment
            for segment in self._environment.metadata.segments.of_topic(topic.id)
            if segment.state is not SegmentState.SEALED
        ]
        return unsealed[-1].log_uid == self._environment.log.known_uid if unsealed else leads

    def _retain(self, failing: Failing) -> None:
        retention = Retention(self._environment)
        for topic, policies in self._topics():
            if policies.cleanup_policy or topic.start_offset:
                with _alone(MaintenanceTask.RETENTION, topic, failing):
                    self._trim(retention, topic, failing)

    def _trim(self, retention: Retention, topic: TopicRecord, failing: Failing) -> None:
        trimmed = retention.apply(topic)
        removed = [candidate.extent for candidate in trimmed.plan.candidates]
        self._count(MaintenanceTask.RETENTION, len(removed), sum(extent.logical_bytes for extent in removed))
        if trimmed.tail_damaged:
            failing[str(topic.name)] = full_part(trimmed.tail_left)
            _log.warning("%s: %s: %s", MaintenanceTask.RETENTION, topic.name, full_part(trimmed.tail_left))

    def _collect(self, failing: Failing) -> None:
        collector = GarbageCollector(self._environment, self._grace_ms)
        for collected in paced(collector.collect_all(), self._environment.clock, self._rest):
            if collected.deleted:
                self._count(MaintenanceTask.GARBAGE, collected.total.count, collected.total.bytes)
            if collected.error is not None and not isinstance(collected.error, TopicNotFound):
                failing[str(collected.topic)] = _reason(collected.error)
                _log.warning("%s: %s: %s", MaintenanceTask.GARBAGE, collected.topic, collected.error)
            if self._stopping():
                return

    def _count(self, task: MaintenanceTask, removed: int, removed_bytes: int) -> None:
        status = self.status()[task]
        self._change(task, removed=status.removed + removed, removed_bytes=status.removed_bytes + removed_bytes)

    def _change(self, task: MaintenanceTask, **fields: object) -> None:
        with self._lock:
            self._statuses[task] = replace(self._statuses[task], **fields)  # type: ignore[arg-type]


@contextmanager
def _alone(task: MaintenanceTask, topic: TopicRecord, failing: Failing) -> Iterator[None]:
    """Record an error of the body as a failure of the topic. A deleted topic is no failure."""
    try:
        yield
    except TopicNotFound:
        return
    except Exception as error:
        failing[str(topic.name)] = _reason(error)
        _log.warning("%s: %s: %s", task, topic.name, _reason(error), exc_info=not isinstance(error, CompactorError))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
