"""What a service does for its topics at intervals: sweeping its log directory, retention, garbage collection.

    sweep       this service's log directory: each service does it. Open segments that no writer has are rolled by age;
                files of sealed segments, and of deleted topics, are removed
    backlog     message time to live and backlog quotas (backlog_limits.py): the service in whose log directory the
                end of the topic is; of topics that are sealed, the leader
    retention   what the topics' cleanup policies let go (retention.py): the leader
    garbage     objects that nothing refers to (garbage.py): the leader

`due` decides by the clock and by when each task began last, so nothing waits here; api/background/maintenance_loop.py
calls `run_due` once a second. A topic that fails does so alone: it is logged, shown, and tried again the next time. All
tasks are safe beside anything, also beside another leader that does not know yet that it was replaced, so leadership
saves work and is not relied on.

Memory: the records of all topics; of garbage collection what garbage.py says. Must not know: settings, threads.
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
    """What is done at intervals, in this order if several are due."""

    SWEEP = "sweep"
    BACKLOG = "backlog"
    RETENTION = "retention"
    GARBAGE = "garbage"


OF_THE_LEADER = frozenset({MaintenanceTask.RETENTION, MaintenanceTask.GARBAGE})
Failing = dict[str, str]
"""Why a task did not do all, by topic."""


Intervals = Mapping[MaintenanceTask, int]
"""How long after its last beginning each task is due again, in ms."""


@dataclass(frozen=True)
class MaintenanceTaskStatus:
    """The status of one task in this process. Times in ms; None: never.

    `last_error`: why the last time did not do all, empty if it did; `failing`: why, by topic, as of the last time.
    `removed`: segments' files, ledgers marked as deleted, or objects, and `removed_bytes` theirs as far as they are
    known, since the process began.
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
    """The tasks whose time has come; also if the clock was set back, since it is not known by how much."""

    def is_due(task: MaintenanceTask) -> bool:
        began = statuses[task].began_at
        return began is None or not began <= now < began + intervals[task]

    return [task for task in MaintenanceTask if (leads or task not in OF_THE_LEADER) and is_due(task)]


class Maintenance:
    """Does what is due, one thread at a time; `status` may be asked from any."""

    def __init__(
        self,
        environment: Environment,
        intervals: Intervals,
        grace_ms: int,
        leads: Callable[[], bool],
        stopping: Callable[[], bool] = lambda: False,
        rest: Rest = lambda _: None,
    ) -> None:
        """`grace_ms`: of garbage; `leads`: whether this process leads; `stopping`: read between topics.

        `rest` waits between topics, so that thousands of them take little from whatever else the process does
        (scan_throttle.py).
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
        """By id, the topics of this process that are to take no messages, as of the last task `backlog`."""

    def hasten(self, task: MaintenanceTask) -> None:
        """Let a task be due now."""
        self._change(task, began_at=None)

    def status(self) -> dict[MaintenanceTask, MaintenanceTaskStatus]:
        """The status of each task now."""
        with self._lock:
            return dict(self._statuses)

    def run_due(self) -> list[MaintenanceTask]:
        """Do what is due now; what that was. Raises nothing: what goes wrong is logged and in the status."""
        with self._running:
            try:
                tasks = due(self.status(), self._intervals, self._leads(), self._environment.clock.now_ms())
            except CompactorError as error:  # whether we lead is not known: the database is away
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
        except Exception as caught:  # whatever it is, the other tasks and the next time have their turn
            error = _reason(caught)
            _log.warning("%s: %s", task, error, exc_info=not isinstance(caught, CompactorError))
        if failing and not error:
            name, why = next(iter(failing.items()))
            error = f"{name}: {why}" + (f" (and {len(failing) - 1} more topics)" if len(failing) > 1 else "")
        self._change(
            task, ended_at=self._environment.clock.now_ms(), last_error=error, failing=MappingProxyType(failing)
        )

    def _topics(self) -> Iterator[tuple[TopicRecord, TopicPolicies]]:
        """All topics with their policies, a page at a time, until the process stops."""
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
        for name, why in failing.items():
            _log.warning("%s: %s: %s", MaintenanceTask.SWEEP, name, why)

    def _limit_backlogs(self, failing: Failing) -> None:
        limits = BacklogLimits(self._environment)
        leads = self._leads()
        before, found = self.over_quota, dict[int, OverQuota]()
        for topic, policies in self._topics():
            if not has_limits(policies):
                continue
            over = before.get(topic.id)
            with _alone(MaintenanceTask.BACKLOG, topic, failing):
                over = limits.apply(topic, policies) if self._is_local(topic, leads) else None
            if over is not None:
                found[topic.id] = over
                _log.log(logging.DEBUG if topic.id in before else logging.WARNING, "%s", over.error)
        if not self._stopping():
            self.over_quota = MappingProxyType(found)

    def _is_local(self, topic: TopicRecord, leads: bool) -> bool:
        """Whether this process limits the topic's backlog: its last messages are in its log directory, or sealed.

        Rolled segments before them may wait in another log directory to be sealed.
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
        going = [candidate.extent for candidate in trimmed.plan.going]
        self._count(MaintenanceTask.RETENTION, len(going), sum(extent.logical_bytes for extent in going))
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

    def _change(self, task: MaintenanceTask, **changed: object) -> None:
        with self._lock:
            self._statuses[task] = replace(self._statuses[task], **changed)  # type: ignore[arg-type]


@contextmanager
def _alone(task: MaintenanceTask, topic: TopicRecord, failing: Failing) -> Iterator[None]:
    """An error of one topic is recorded, and stops no other topic. A topic that was deleted has none."""
    try:
        yield
    except TopicNotFound:
        return
    except Exception as error:
        failing[str(topic.name)] = _reason(error)
        _log.warning("%s: %s: %s", task, topic.name, _reason(error), exc_info=not isinstance(error, CompactorError))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
