"""Worker: it executes requests, that is, claims their runs, drives them, and records the results.

A job is one large topic, or several small topics that share the jobs of the engine. Each job has its own thread and
engine, so it is cancelled separately. A request stays until its run is claimed; the transaction of the claim removes it
and checks the leadership. So a worker that dies or sleeps neither loses nor doubles a run.

The result of a topic:
    its run succeeded                     nothing to record: the success clears the failures. If the tail stayed
                                          unsealed, the publishing transaction records the time of a retry
    nothing was new (P11)                 the request is withdrawn
    fenced, cancelled, paused, taken      no failure: another process or a user decided so; a request, if any, stays
    anything else                         a failure: recorded with the time of the next try (S6), in the transaction
                                          that ends the run, if there is one; other topics continue

A worker that ends lets its runs finish for a time. Then it hands them over: one transaction cancels each run and
requests it again, so another service repeats it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import NamedTuple

from compactor.batch import Outcome
from compactor.engines.engine import Engine, EngineProvider
from compactor.engines.kinds import IN_PROCESS, SPARK
from compactor.run.plan import Sizing
from compactor.run.run_policies import run_policies_from_stored
from compactor.scheduling.due import retry_delay_ms
from compactor.scheduling.leadership import Leadership
from compactor.two_phase import TwoPhaseCompactor
from storage.environment import Environment
from storage.errors import (
    CompactionPaused,
    CompactionRunning,
    CompactorError,
    Conflict,
    ErrorText,
    Fenced,
    TopicNotFound,
)
from storage.metadata.records import RUN_DEAD_MS, RunRecord, TopicRecord
from storage.objects.throttled import RateLimits

ENDS_WITHIN_SECONDS = 10.0
"""Time for handed-over runs to notice their end."""
NOT_BEFORE_MS = 5_000
"""Delay before the next try of a topic that another owner holds."""
ENDING = "its service is ending; another service compacts the topic"
_NO_FAILURES = (CompactionPaused, Fenced, TopicNotFound)
_CLAIMS_AT_ONCE = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker. Times in milliseconds. `run_dead_ms`: a run without a heartbeat for that time is dead.
    `stalled_ms`: a run without a finished task for that time fails. `rates`: limits of each job. `sizing` None: by the
    engine's parallelism."""

    slots: int = 4
    retry_first_ms: int = 30_000
    retry_max_ms: int = 3_600_000
    run_dead_ms: int = RUN_DEAD_MS
    stalled_ms: int = 1_800_000
    rates: RateLimits = field(default_factory=RateLimits)
    sizing: Sizing | None = None


@dataclass(eq=False)
class JobTopics:
    """Topics of one job. `large`: it is one large topic. `opens_spark`: Spark is opened before a run is claimed.
    `engine_kind`: their policy compaction.topic-engine; None: not set.

    `requested_at`: time of each request, by topic id, read before the run begins. A later request is another one.
    """

    topics: Sequence[TopicRecord]
    large: bool
    opens_spark: bool
    engine_kind: str | None = None
    engine: Engine | None = None
    runs: list[RunRecord] = field(default_factory=list)
    requested_at: Mapping[int, int] = field(default_factory=dict)

    def topic_of(self, run: RunRecord) -> TopicRecord | None:
        """Return the topic of a run of this job; None: it was deleted and created again after the job began."""
        return next((topic for topic in self.topics if topic.id == run.topic_id), None)


class BusySlots(NamedTuple):
    """The numbers of worker slots that large and small topics use."""

    large: int
    small: int


class Worker:
    """A runner of jobs in threads. Thread-safe. `drain` ends it."""

    def __init__(
        self,
        environment: Environment,
        engines: EngineProvider,
        leadership: Leadership,
        settings: WorkerSettings,
        random: Random,
        on_ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Build the worker. `on_ended`: called when a worker slot becomes free."""
        self._environment = environment
        self._control = environment.metadata.compaction_control
        self._engines = engines
        self._leadership = leadership
        self._settings = settings
        self._random = random
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(settings.slots, "compaction")
        self._jobs: dict[Future[None], JobTopics] = {}
        self._held_until: dict[int, int] = {}
        self._ending = False
        self.engine_error: str | None = None
        """The error of the last `open_engine`; empty: it succeeded; None: it was not called yet.

        It stays while engines are opened that need no Spark: for small jobs, and for topics with that policy.
        """

    def begin(
        self, topics: Sequence[TopicRecord], *, large: bool, opens_spark: bool, engine_kind: str | None = None
    ) -> None:
        """Execute the requests of these topics as one job in a thread; do nothing after `drain`.

        `large`: it is one large topic. `opens_spark`: it is expected to need Spark, if its kind has Spark.
        `engine_kind`: the policy compaction.topic-engine of all. The caller ensures that a worker slot is free.
        """
        job = JobTopics(topics, large, opens_spark, engine_kind)
        with self._lock:
            if self._ending:
                return
            future = self._pool.submit(self._execute_job, job)
            self._jobs[future] = job
        future.add_done_callback(self._on_job_ended)

    def open_engine(self, *, large: bool, kind: str | None = None) -> Engine:
        """Return an engine for a job. `kind`: as in `EngineProvider.open`.

        Raises the provider's error, which is logged once until it changes or an engine opens.
        """
        try:
            engine = self._engines.open(large=large, kind=kind)
        except CompactorError as error:
            with self._lock:
                is_new, self.engine_error = str(error) != self.engine_error, str(error)
            if is_new:
                _log.warning("compactions wait because no engine is available: %s", error)
            raise
        has_spark = engine.engine_choice == SPARK or (large and kind != IN_PROCESS)
        with self._lock:
            waited = bool(self.engine_error) and has_spark
            if waited or self.engine_error is None:
                self.engine_error = ""
        if waited:
            _log.info("compactions continue: an engine is available")
        return engine

    def busy_slots(self) -> BusySlots:
        """Return the numbers of worker slots in use."""
        with self._lock:
            large = sum(job.large for job in self._jobs.values())
            return BusySlots(large, len(self._jobs) - large)

    def unavailable_topic_ids(self) -> set[int]:
        """Return the ids of topics that cannot begin now: they run, or wait some seconds after an obstacle, such as
        another owner or a missing engine."""
        now = self._environment.clock.now_ms()
        with self._lock:
            # After a clock was set back, the end of a hold may be too far away.
            held = self._held_until.items()
            self._held_until = {topic_id: until for topic_id, until in held if now < until <= now + NOT_BEFORE_MS}
            active = {topic.id for job in self._jobs.values() for topic in job.topics}
            return active | self._held_until.keys()

    def drain(self, grace_seconds: float) -> None:
        """Begin no job, let active jobs finish for the grace time, then hand them over to the next leader."""
        with self._lock:
            self._ending = True
            running = set(self._jobs)
        _, unfinished = wait(running, grace_seconds)
        for future in unfinished:
            with self._lock:
                job = self._jobs.get(future)
            if job is not None:
                self._hand_over_runs(job)
        wait(unfinished, ENDS_WITHIN_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _hand_over_runs(self, job: JobTopics) -> None:
        """Cancel the runs of a job, request them again for the next leader, and stop the engine of the job."""
        for run in list(job.runs):
            try:
                if self._control.cancel_and_request_again(run, ENDING, run.owner):
                    _log.warning("run %d did not end in time and is handed over to the next leader", run.run_id)
            except CompactorError as error:  # its heartbeat stops, so the next leader requests it again
                _log.warning("run %d could not be handed over: %s", run.run_id, error)
        if job.engine is not None:
            job.engine.cancel()

    def _on_job_ended(self, future: Future[None]) -> None:
        """Remove a job that has ended, log its unexpected error, and report the free worker slot."""
        with self._lock:
            job = self._jobs.pop(future, None)
        error = None if future.cancelled() else future.exception()
        if error is not None and job is not None:
            names = ", ".join(str(topic.name) for topic in job.topics[:3])
            _log.error("compacting %s (%d topics) failed", names, len(job.topics), exc_info=error)
            self._postpone_topics(job.topics)
        self._on_ended()

    def _execute_job(self, job: JobTopics) -> None:
        """Compact the topics of a job, and record each result. Postpone them without an engine or a database."""
        by_name = {topic.name: topic for topic in job.topics}
        try:
            job.engine = self.open_engine(large=job.opens_spark, kind=job.engine_kind)
        except CompactorError:
            # The cause is no topic (no Java, no executors), so no failure is recorded, and the requests stay.
            self._postpone_topics(job.topics)
            return
        try:
            requested = {topic.id: control.requested_at for topic, control in self._control.requests()}
            job.requested_at = {topic.id: at for topic in job.topics if (at := requested.get(topic.id)) is not None}
            compactor = self._build_compactor(job, job.engine)
            for outcome in compactor.compact_all(
                by_name, partial(run_policies_from_stored, self._environment.metadata)
            ):
                self._record_outcome(job, by_name[outcome.topic], outcome)
        except CompactorError as error:
            # The cause is no topic either, for instance an unreachable database.
            _log.warning("compactions wait: %s", error)
            self._postpone_topics(job.topics)

    def _build_compactor(self, job: JobTopics, engine: Engine) -> TwoPhaseCompactor:
        """Return the compactor of a job, which checks the leadership at each claim of a run."""
        settings = self._settings
        sizing = settings.sizing or Sizing(engine.parallelism)
        return TwoPhaseCompactor(
            self._environment,
            engine,
            sizing=replace(sizing, topics_per_job=max(1, len(job.topics))),
            rates=settings.rates,
            heartbeat_ms=settings.run_dead_ms,
            leader_token=self._require_leader_token,
            on_claimed=partial(_add_claimed_run, job),
            claims_at_once=_CLAIMS_AT_ONCE,
            on_failed=partial(self._record_failed_run, job),
            retry_tail_at=lambda: self._retry_at(1),
            stalled_ms=settings.stalled_ms,
        )

    def _require_leader_token(self) -> int:
        """Return the token of the leadership for which a run is claimed. Raises Fenced."""
        with self._lock:
            ending = self._ending
        if ending:
            raise Fenced("this service is ending", "another service compacts the topic")
        return self._leadership.required_token()

    def _record_outcome(self, job: JobTopics, topic: TopicRecord, outcome: Outcome) -> None:
        """Log the result of a topic's compaction, and record it as the module describes."""
        error, run = outcome.error, outcome.run
        if run is not None:
            names = _log_fields(topic, run)
            if isinstance(error, Conflict):
                _log.info("compaction stopped: %s", error, extra=names)
            else:  # `_log_failure` has logged a failure
                _log.info("compaction %s", "succeeded" if error is None else "stopped", extra=names)
            if error is None and run.skipped_tail_error:
                text = "the compaction of %s did not include unsealed messages: %s"
                _log.warning(text, topic.name, run.skipped_tail_error, extra=names)
            if error is None and run.iceberg_table_error:
                text = "the Iceberg table of %s does not show its last compaction: %s"
                _log.warning(text, topic.name, run.iceberg_table_error, extra=names)
        requested_at = job.requested_at.get(topic.id)
        try:
            if error is None and run is None:
                if requested_at is not None:
                    leader = self._leadership.required_token()
                    self._control.withdraw(topic.id, leader_token=leader, requested_at=requested_at)
                self._control.clear_failures(topic.id)
            elif isinstance(error, CompactionRunning):
                self._postpone_topics([topic])
            elif error is not None and run is None and not isinstance(error, _NO_FAILURES):
                self._record_failure_before_run(topic, requested_at, error)
        except CompactorError as second:
            _log.warning("the result of the compaction of %s was not recorded: %s", topic.name, second.message)
            self._postpone_topics([topic])

    def _record_failure_before_run(self, topic: TopicRecord, requested_at: int | None, error: Exception) -> None:
        """Record the failure of a compaction before its run was claimed. The request stays."""
        failures = self._control.get(topic.id).failures + 1
        leader = self._leadership.required_token() if requested_at is not None else None
        retry_at = self._retry_at(failures)
        self._control.record_failure(
            topic.id, ErrorText.from_error(error), retry_at, leader_token=leader, requested_at=requested_at
        )
        _log_failure(topic, None, failures, error)

    def _record_failed_run(self, job: JobTopics, run: RunRecord, error: BaseException) -> None:
        """Record that a run failed. If that raises CompactorError, its heartbeat stops and it is requested again."""
        topic = job.topic_of(run)
        try:
            self._end_failed_run(topic, run, error)
        except CompactorError as second:
            text = "compaction of %s failed: %s; the failure was not recorded: %s"
            _log.warning(text, _topic_label(topic, run), error, second.message, extra=_log_fields(topic, run))
            raise

    def _end_failed_run(self, topic: TopicRecord | None, run: RunRecord, error: BaseException) -> None:
        """End a failed run in the database, with the time of the next try unless the error is no failure."""
        text = ErrorText.from_error(error)
        if not isinstance(error, _NO_FAILURES):
            failures = self._control.fail_run(run, text, self._retry_at)
            if failures is not None:
                _log_failure(topic, run, failures, error)
            return
        with self._lock:
            ending = self._ending
        if ending and isinstance(error, Fenced):
            # The engine was stopped for all runs of the job, and this run may not be handed over yet.
            self._control.cancel_and_request_again(run, ENDING, run.owner)
        self._environment.metadata.runs.fail(run, text)

    def _retry_at(self, failures: int) -> int:
        """Return the time (ms) of the next try after so many failures in a row."""
        settings, chance = self._settings, self._random.random()
        return self._environment.clock.now_ms() + retry_delay_ms(
            failures, settings.retry_first_ms, settings.retry_max_ms, chance
        )

    def _postpone_topics(self, topics: Collection[TopicRecord]) -> None:
        """Let no compaction of the topics begin for `NOT_BEFORE_MS`."""
        until = self._environment.clock.now_ms() + NOT_BEFORE_MS
        with self._lock:
            self._held_until |= {topic.id: until for topic in topics}


def _log_failure(topic: TopicRecord | None, run: RunRecord | None, failures: int, error: BaseException) -> None:
    text = "compaction of %s failed (%d in a row): %s"
    _log.warning(text, _topic_label(topic, run), failures, error, extra=_log_fields(topic, run))


def _add_claimed_run(job: JobTopics, run: RunRecord) -> None:
    """Add a claimed run to its job, and log it."""
    job.runs.append(run)
    _log.info("compaction begun", extra=_log_fields(job.topic_of(run), run))


def _topic_label(topic: TopicRecord | None, run: RunRecord | None) -> str:
    """Return the name of a topic, or that of a run if its topic is not in the job."""
    return str(topic.name) if topic else f"run {run.run_id if run else None}"


def _log_fields(topic: TopicRecord | None, run: RunRecord | None) -> dict[str, object]:
    """Return the fields of a log line about a run."""
    return {"topic": str(topic.name) if topic else None, "run": run.run_id if run else None}
