"""Control loop of a service: heartbeat, leadership, and, as leader, the start of requested and due compactions.

Two threads: one sends the heartbeats of service and leadership, so that these never wait; the other polls. It polls
requests once a second, and at once after `wake`. It checks the queued topics (due_queue.py) every monitor interval, and
at once when this service becomes leader. A due topic is requested only when a worker slot is free, so the order by
dirty ratio stays current. The list of due topics lives until the next check; a new leader checks again. Between the
checks the reconciler walks over all topics.

Each poll requests again the runs whose heartbeat has stopped. Tests call `heartbeat` and `poll` with their own clock,
and start no thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

from compactor.engines.auto import IN_PROCESS_BYTES
from compactor.engines.engine import EngineProvider
from compactor.scheduling.backlog import BacklogReader
from compactor.scheduling.due import DueTopic, TopicsCheckResult, WorkerSlots, jobs_to_begin, without_topics
from compactor.scheduling.due_queue import DueQueue
from compactor.scheduling.leadership import RENEWALS, Leadership
from compactor.scheduling.reconciler import Reconciler, with_totals
from compactor.scheduling.worker import Worker, WorkerSettings
from storage.clock import is_due
from storage.environment import Environment
from storage.errors import CompactionPaused, CompactionRunning, CompactorError
from storage.metadata.policy_store import UnreadablePolicy
from storage.metadata.records import MANUAL, SERVICE_DEAD_MS, CompactionControl, ServiceRecord, TopicRecord
from storage.owner import new_owner_name

POLL_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlLoopSettings:
    """Settings of the control loop, times in milliseconds. `automatic`: compact due topics, not only requested ones.

    `service_dead_ms`: a service without a heartbeat for that time is dead. `small_bytes`, `batch`: see WorkerSlots.
    `in_process_bytes`: a run with that backlog needs Spark, if there is one.
    """

    monitor_interval_ms: int = 60_000
    lease_ttl_ms: int = 10_000
    service_dead_ms: int = SERVICE_DEAD_MS
    automatic: bool = True
    small_bytes: int = 64 << 20
    in_process_bytes: int = IN_PROCESS_BYTES
    batch: int = 100
    worker: WorkerSettings = field(default_factory=WorkerSettings)


class ControlLoop:
    """The control loop of one service: sends heartbeats, and as leader starts compactions.

    Call `start` and `drain` once each, the rest from any thread at any time.
    """

    def __init__(
        self,
        environment: Environment,
        engines: EngineProvider,
        settings: ControlLoopSettings = ControlLoopSettings(),
        *,
        url: str = "",
        name: str | None = None,
        random: Random | None = None,
        broker_service_urls: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Build the loop.

        `url`: address of this service for others. `broker_service_urls`: its addresses for Pulsar's protocol, without
        and with TLS.
        """
        self.name = name or new_owner_name()
        self._environment = environment
        self._control = environment.metadata.compaction_control
        self._services = environment.metadata.services
        self._engines = engines
        self._settings = settings
        self._url = url
        self._broker_service_urls = broker_service_urls
        self._started_at = environment.clock.now_ms()
        self._slots = WorkerSlots(settings.worker.slots, settings.small_bytes, settings.batch)
        self._leadership = Leadership(self._services, environment.clock, self.name, settings.lease_ttl_ms)
        self._backlogs = BacklogReader(environment.metadata, environment.log)
        clock = environment.clock
        self._queue = DueQueue(environment.metadata, self._backlogs, clock, self._wait_between_pages)
        self._reconciler = Reconciler(environment.metadata, self._backlogs, clock, settings.monitor_interval_ms)
        jitter = random or Random()  # noqa: S311  no secret
        self.worker = Worker(environment, engines, self._leadership, settings.worker, jitter, self.wake)
        self._due: list[DueTopic] = []
        self._check_token: int | None = None
        """The token of the leadership of the last check."""
        self._checked_at = 0
        self._unreadable = 0
        """The number of stored policies that this version cannot read."""
        self.last_check: TopicsCheckResult | None = None
        """Result of the last check, with the sums of the reconciler, for metrics."""
        self._lost_services: frozenset[str] = frozenset()
        """Names of the lost services that were logged."""
        self._logged_policies: list[UnreadablePolicy] = []
        self._warm = False
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    # For REST

    def trigger(self, topic: TopicRecord, cause: str = MANUAL, by: str = "") -> CompactionControl:
        """Request a compaction, which the leader executes. Return the topic's compaction state with the request.

        `by`: the name of the caller; empty: this service. Raises TopicNotFound, CompactionRunning, CompactionPaused.
        """
        state = self._control.request(topic.id, cause, by or self.name)
        self.wake()
        return state

    def wake(self) -> None:
        """Let the control loop poll at once."""
        self._wake.set()

    @property
    def is_leader(self) -> bool:
        """True if this service is the leader."""
        return self._leadership.token is not None

    @property
    def engine_error(self) -> str | None:
        """The reason why compactions cannot begin here; empty: they can; None: no engine was opened yet."""
        return self.worker.engine_error

    # Start and end

    def start(self) -> None:
        """Start the threads of heartbeat and scheduler."""
        renewal = min(self._settings.lease_ttl_ms, self._settings.service_dead_ms) / 1000 / RENEWALS
        for name, step, waits, seconds in (
            ("leadership", self.heartbeat, self._ending.wait, renewal),
            ("scheduler", self.poll, self._wait_and_check_ending, POLL_SECONDS),
        ):
            thread = threading.Thread(target=self._repeat, args=(step, waits, seconds), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def drain(self, grace_seconds: float = 30.0) -> None:
        """Resign, begin no run, let active runs finish for the grace time, hand over the others, and stop the
        engines."""
        self._ending.set()
        self._wake.set()
        self._engines.stop_opening()
        self._leadership.resign()
        self.worker.drain(grace_seconds)
        for thread in self._threads:
            thread.join()
        self._run_and_log_errors(lambda: self._services.leave(self.name, self._settings.service_dead_ms))
        self._engines.close()

    def _wait_between_pages(self, seconds: float) -> None:
        """Wait between pages of topics, until `wake`. Does not wait without threads, when tests call `poll`."""
        if self._threads:
            self._wake.wait(seconds)

    def _wait_and_check_ending(self, seconds: float) -> bool:
        """Wait until `wake`, `seconds` at most. Return whether the control loop is ending."""
        self._wake.wait(seconds)
        self._wake.clear()
        return self._ending.is_set()

    def _repeat(self, step: Callable[[], object], waits: Callable[[float], bool], seconds: float) -> None:
        """Run a step again and again until the loop ends. `waits`: waits, and returns whether the loop is ending."""
        while not self._ending.is_set():
            self._run_and_log_errors(step)
            if waits(seconds):
                return

    def _run_and_log_errors(self, step: Callable[[], object]) -> None:
        """Run a step and log its errors, because an error that ends a thread would end the loop forever."""
        try:
            step()
        except CompactorError as error:
            _log.warning("the control loop failed and tries again: %s", error)
        except Exception:
            _log.exception("the control loop failed unexpectedly and tries again")

    # One step of each thread

    def heartbeat(self) -> None:
        """Send the service's heartbeat, take or renew the leadership, and log services whose heartbeat has stopped."""
        previous = self._leadership.token
        token = self._leadership.acquire_or_renew()
        uid, now = self._environment.log.known_uid, self._environment.clock.now_ms()
        self._services.heartbeat(
            ServiceRecord(self.name, self._url, uid, self._started_at, now, *self._broker_service_urls)
        )
        self._run_and_log_errors(self._log_lost_services)
        if token is not None and token != previous:
            self._warm_up()
            self.wake()

    def poll(self) -> None:
        """Schedule, as leader: request interrupted runs again, check for due topics, and fill the free worker slots."""
        token = self._leadership.token
        if token is None:
            self._due, self._check_token = [], None
            return
        self._control.request_dead_runs_again(self.name)
        for topic in self._control.topics_to_retry(self._settings.worker.retry_max_ms):
            self._request_compaction(topic, "retry")
        now = self._environment.clock.now_ms()
        is_new = self._settings.automatic and token != self._check_token
        if is_new or is_due(self._checked_at, self._settings.monitor_interval_ms, now):
            self._checked_at = now
            self._run_and_log_errors(lambda: self._services.purge_dead(self._settings.service_dead_ms))
            if self._settings.automatic:
                self._run_and_log_errors(lambda: self._refresh_due_topics(token, now))
        self._begin_jobs()
        if self._settings.automatic:
            self._run_and_log_errors(lambda: self._step_reconciler(token))

    @property
    def unqueued_due_topics_since_start(self) -> int:
        """The number of topics that were due and not in the queue, summed since the process began."""
        return self._reconciler.unqueued_due_topics_since_start

    def _refresh_due_topics(self, token: int, now: int) -> None:
        """Read the queue of topics, and replace the list of due topics and the result of the last check."""
        if token != self._check_token:
            self._due = []
            self._environment.metadata.topic_work.queue_for_new_leader(token, self._environment.log.known_uid)
        self._due = self._queue.check(now, token)
        self._check_token = token
        checked = TopicsCheckResult.of([item.backlog for item in self._due], {}, len(self._due), now)
        self.last_check = with_totals(checked, self._reconciler.totals)

    def _step_reconciler(self, token: int) -> None:
        """Let the reconciler take a step, and add its sums to the result of the last check."""
        if self._reconciler.walk_next_page_if_due(token):
            self._unreadable = self._log_unreadable_policies()
        if self.last_check is not None:
            totals = replace(self._reconciler.totals, unreadable_policies=self._unreadable)
            self.last_check = with_totals(self.last_check, totals)

    def _log_unreadable_policies(self) -> int:
        """Log each stored policy that this version cannot read, once. Return their number."""
        unreadable = self._environment.metadata.policies.unreadable_policies()
        for item in unreadable:
            if item not in self._logged_policies:
                _log.warning(
                    "the policy %s of %s cannot be read (%s): a value that deletes nothing is used instead; set it "
                    "again, or remove it",
                    item.name,
                    item.scope,
                    item.stored.reason,
                )
        self._logged_policies = unreadable
        return len(unreadable)

    def _begin_jobs(self) -> None:
        """Fill the free worker slots: requested topics first, then due topics by descending dirty ratio."""
        large, small = self.worker.busy_slots()
        if large + small >= self._slots.count:
            return
        unavailable = self.worker.unavailable_topic_ids()
        requested = [topic.id for topic, _ in self._control.requests() if topic.id not in unavailable]
        self._due = without_topics(self._due, unavailable.union(requested))
        measured = {item.topic.id: item for item in self._backlogs.read(requested)} if requested else {}
        backlogs = [measured[topic_id] for topic_id in requested if topic_id in measured]
        backlogs += [item.backlog for item in self._due]
        causes = {item.topic.id: item.cause for item in self._due}
        by_id = {item.topic.id: item for item in backlogs}
        for topics in jobs_to_begin(backlogs, large, small, self._slots):
            ready = [
                topic for topic in topics if topic.id in measured or self._request_compaction(topic, causes[topic.id])
            ]
            self._due = without_topics(self._due, {topic.id for topic in topics})
            if ready and self._leadership.token is not None:
                first = by_id[ready[0].id]
                self.worker.begin(
                    ready,
                    large=not self._slots.is_small(first),
                    opens_spark=first.bytes >= self._settings.in_process_bytes,
                    engine_kind=first.engine_kind,
                )

    def _request_compaction(self, topic: TopicRecord, cause: str) -> bool:
        """Request a due compaction. Return whether it is requested."""
        try:
            self._control.request(topic.id, cause, self.name)
        except (CompactionRunning, CompactionPaused):
            return False
        except CompactorError as error:
            _log.warning("a due compaction of %s was not requested: %s", topic.name, error)
            return False
        return True

    def _log_lost_services(self) -> None:
        """Log once each service that ended without leaving, with the consequence for the messages in its log."""
        lost = self._services.lost(self._settings.service_dead_ms)
        new = [record for record in lost if record.name not in self._lost_services]
        self._lost_services = frozenset(record.name for record in lost)
        if not new:
            return
        open_logs = {record.log_uid for record in self._services.live(self._settings.service_dead_ms)}
        now = self._environment.clock.now_ms()
        for record in new:
            consequence = (
                "another service has its log directory and takes over its topics"
                if record.log_uid in open_logs
                else "start it again: its topics are unavailable, and only its log directory has their messages"
            )
            _log.warning(
                "the service %s (%s) has ended without leaving; its last heartbeat was %d s ago; %s",
                record.name,
                record.url or "no URL",
                max(0, now - record.heartbeat_at) // 1000,
                consequence,
            )

    def _warm_up(self) -> None:
        """Open an engine once, in a thread of its own, so that the first run need not wait for the start of Spark."""
        if not self._warm and self._threads:
            self._warm = True
            threading.Thread(target=self._open_engine, name="warm-up", daemon=True).start()

    def _open_engine(self) -> None:
        with suppress(CompactorError):  # the worker has logged it
            self.worker.open_engine(large=False)
