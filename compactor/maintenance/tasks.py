"""What a service does for its topics at intervals: sweeping its log directory, retention, garbage collection.

    sweep       this service's log directory: each service does it. Open segments that no writer has are rolled by age;
                files of sealed segments, and of deleted topics, are removed
    backlog     message time to live and backlog quotas (backlog_limits.py): the service in whose log directory the
                topic's tail is; of topics without one, the leader
    retention   what the topics' cleanup policies let go (retention.py): the leader
    garbage     objects that nobody refers to (garbage.py): the leader

What is due is decided by a pure function of the clock and of when each was done last (`due`), so nothing waits here;
who calls `run_due` often enough is said in api/background/maintenance_loop.py. A topic that fails does so alone: it is
logged, shown, and tried again the next time. All are safe beside anything, also beside another leader that does not
know yet that it is none, so leadership saves work and is not relied on.

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
from compactor.maintenance.garbage import GRACE_MS, GarbageCollector
from compactor.maintenance.retention import Retention
from compactor.scheduling.throttle import TOPICS_AT_ONCE, Rest, paced
from storage.clock import Clock
from storage.errors import CompactorError, TopicNotFound, full_part
from storage.log.directory import LogDirectory
from storage.log.log_manager import LogManager
from storage.metadata.records import SegmentState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.objects.interface import ObjectStore
from storage.owner import owner_name

_log = logging.getLogger(__name__)


class Task(StrEnum):
    """What is done at intervals, in this order if several are due."""

    SWEEP = "sweep"
    BACKLOG = "backlog"
    RETENTION = "retention"
    GARBAGE = "garbage"


OF_THE_LEADER = frozenset({Task.RETENTION, Task.GARBAGE})


@dataclass(frozen=True)
class Intervals:
    """How long after its last beginning each is due again, in ms, and the grace time of garbage."""

    sweep_ms: int = 60_000
    backlog_ms: int = 60_000
    retention_ms: int = 60_000
    garbage_ms: int = 600_000
    grace_ms: int = GRACE_MS

    def of(self, task: Task) -> int:
        return {
            Task.SWEEP: self.sweep_ms,
            Task.BACKLOG: self.backlog_ms,
            Task.RETENTION: self.retention_ms,
            Task.GARBAGE: self.garbage_ms,
        }[task]


@dataclass(frozen=True)
class TaskStatus:
    """How it stands with one task in this process. Times in ms; None: never.

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


def due(statuses: Mapping[Task, TaskStatus], intervals: Intervals, leads: bool, now: int) -> list[Task]:
    """The tasks whose time has come; also if the clock was set back, since nobody knows by how much."""

    def is_due(task: Task) -> bool:
        began = statuses[task].began_at
        return began is None or not began <= now < began + intervals.of(task)

    return [task for task in Task if (leads or task not in OF_THE_LEADER) and is_due(task)]


class Maintenance:
    """Does what is due, one thread at a time; `status` may be asked from any."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        clock: Clock,
        log: LogDirectory,
        intervals: Intervals,
        leads: Callable[[], bool],
        stopping: Callable[[], bool] = lambda: False,
        rest: Rest = lambda _: None,
    ) -> None:
        """`leads`: whether this process does the leader's part; `stopping`: looked at between topics.

        `rest` waits between topics, so that thousands of them take little from whatever else the process does
        (throttle.py).
        """
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._log = log
        self._intervals = intervals
        self._leads = leads
        self._stopping = stopping
        self._rest = rest
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._statuses = {task: TaskStatus() for task in Task}
        self.over_quota: Mapping[int, OverQuota] = MappingProxyType({})
        """By id, the topics of this process that are to take no messages, as of the last look at backlogs."""

    def hasten(self, task: Task) -> None:
        """Let a task be due now."""
        self._change(task, began_at=None)

    def status(self) -> dict[Task, TaskStatus]:
        """How it stands with each task now."""
        with self._lock:
            return dict(self._statuses)

    def run_due(self) -> list[Task]:
        """Do what is due now; what that was. Raises nothing: what goes wrong is logged and in the status."""
        with self._running:
            try:
                tasks = due(self.status(), self._intervals, self._leads(), self._clock.now_ms())
            except CompactorError as error:  # whether we lead is not known: the database is away
                _log.warning("maintenance: %s", error)
                return []
            for task in tasks:
                if not self._stopping():
                    self._run(task)
            return tasks

    def _run(self, task: Task) -> None:
        work = {
            Task.SWEEP: self._sweep,
            Task.BACKLOG: self._limit_backlogs,
            Task.RETENTION: self._retain,
            Task.GARBAGE: self._collect,
        }[task]
        self._change(task, began_at=self._clock.now_ms())
        failing: dict[str, str] = {}
        error = ""
        try:
            work(failing)
        except Exception as caught:  # whatever it is, the other tasks and the next time have their turn
            error = _told(caught)
            _log.warning("%s: %s", task, error, exc_info=not isinstance(caught, CompactorError))
        if failing and not error:
            name, why = next(iter(failing.items()))
            error = f"{name}: {why}" + (f" (and {len(failing) - 1} more topics)" if len(failing) > 1 else "")
        self._change(task, ended_at=self._clock.now_ms(), last_error=error, failing=MappingProxyType(failing))

    def _sweep(self, failing: dict[str, str]) -> None:
        keeper = LogManager(self._metadata, self._store, self._clock, self._log, owner_name())
        keeper.roll_old(failing)
        self._count(Task.SWEEP, keeper.sweep(failing=failing), 0)
        for name, why in failing.items():
            _log.warning("%s: %s: %s", Task.SWEEP, name, why)

    def _limit_backlogs(self, failing: dict[str, str]) -> None:
        limits = BacklogLimits(self._metadata, self._store, self._clock, self._log)
        resolver, leads = self._metadata.policies.resolver(), self._leads()
        before, found = self.over_quota, dict[int, OverQuota]()
        for page in paced(self._metadata.topics.in_pages(TOPICS_AT_ONCE), self._clock, self._rest):
            for topic in page:
                if self._stopping():
                    return
                policies = resolver.resolved(topic).policies
                if not has_limits(policies):
                    continue
                over = before.get(topic.id)
                with _alone(Task.BACKLOG, topic, failing):
                    over = limits.apply(topic, policies) if self._is_at_hand(topic, leads) else None
                if over is not None:
                    found[topic.id] = over
                    _log.log(logging.DEBUG if topic.id in before else logging.WARNING, "%s", over.error)
        self.over_quota = MappingProxyType(found)

    def _is_at_hand(self, topic: TopicRecord, leads: bool) -> bool:
        """Whether this process looks after the topic's backlog: its last messages are here, or are sealed.

        Rolled segments before them may be elsewhere, and wait to be sealed there.
        """
        unsealed = [one for one in self._metadata.segments.of_topic(topic.id) if one.state is not SegmentState.SEALED]
        return unsealed[-1].log_uid == self._log.known_uid if unsealed else leads

    def _retain(self, failing: dict[str, str]) -> None:
        retention = Retention(self._metadata, self._store, self._clock, self._log)
        resolver = self._metadata.policies.resolver()
        for page in paced(self._metadata.topics.in_pages(TOPICS_AT_ONCE), self._clock, self._rest):
            for topic in page:
                if self._stopping():
                    return
                if resolver.resolved(topic).policies.cleanup_policy or topic.start_offset:
                    with _alone(Task.RETENTION, topic, failing):
                        self._trim(retention, topic, failing)

    def _trim(self, retention: Retention, topic: TopicRecord, failing: dict[str, str]) -> None:
        trimmed = retention.apply(topic)
        gone = [one.piece for one in trimmed.plan.going]
        self._count(Task.RETENTION, len(gone), sum(piece.logical_bytes for piece in gone))
        if trimmed.tail_damaged:
            failing[str(topic.name)] = full_part(trimmed.tail_left)
            _log.warning("%s: %s: %s", Task.RETENTION, topic.name, full_part(trimmed.tail_left))

    def _collect(self, failing: dict[str, str]) -> None:
        collector = GarbageCollector(self._metadata, self._store, self._clock, self._intervals.grace_ms)
        for collected in paced(collector.collect_all(), self._clock, self._rest):
            if collected.deleted:
                self._count(Task.GARBAGE, collected.total.count, collected.total.bytes)
            if collected.error is not None and not isinstance(collected.error, TopicNotFound):
                failing[str(collected.topic)] = _told(collected.error)
                _log.warning("%s: %s: %s", Task.GARBAGE, collected.topic, collected.error)
            if self._stopping():
                return

    def _count(self, task: Task, removed: int, removed_bytes: int) -> None:
        status = self.status()[task]
        self._change(task, removed=status.removed + removed, removed_bytes=status.removed_bytes + removed_bytes)

    def _change(self, task: Task, **changed: object) -> None:
        with self._lock:
            self._statuses[task] = replace(self._statuses[task], **changed)  # type: ignore[arg-type]


@contextmanager
def _alone(task: Task, topic: TopicRecord, failing: dict[str, str]) -> Iterator[None]:
    """What goes wrong with one topic is kept for all to see, and stops no other. One that was deleted has no wrongs."""
    try:
        yield
    except TopicNotFound:
        return
    except Exception as error:
        failing[str(topic.name)] = _told(error)
        _log.warning("%s: %s: %s", task, topic.name, _told(error), exc_info=not isinstance(error, CompactorError))


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
