"""One compaction run, in order: tail → claim → snapshot → scan → phase one → layout → phase two → verify → publish.

    tail       roll and seal the active segment, so that ledgers hold all messages     (storage/log/log_manager.py)
    claim      one run per topic; the epoch grows, the run's row freezes policies and clock
    snapshot   fix the end position, once (P2): dirty ledgers, and the previous compacted ledger        (run_input.py)
    scan       only for policies by time: find the rows that are due for removal                     (expiry_scan.py)
    phase one  one task per hash range: read key indexes, write row sets and the new index level       (phase_one.py)
    layout     decide which old parts stay or are rewritten, and how to divide the survivors              (layout.py)
    phase two  one task per part: copy survivors; write bitmaps for parts that stay                    (phase_two.py)
    verify     phase two wrote exactly the rows that phase one counted, and the store has them        (run_output.py)
    table      only with the policy table.enabled: write the next snapshot of the Iceberg table  (storage/table)
    publish    create the manifest, then compare-and-swap generation and epoch in one SQL transaction (A1)

A failure before the transaction leaves the old generation unchanged, and only unreferenced objects (W3). The run's row
records the original error, and the caller gets it. A fenced run (cancelled, its heartbeat stopped, its cursor or topic
deleted) can never publish.

A run is a generator: it yields the tasks of each phase and receives their results. So one loop drives one run or a
thousand: many topics share a Spark job (batch.py), and a run that fails ends alone. This module knows nothing of Spark:
an `Engine` runs the tasks. No value here is per key or per message.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from compactor.batch import BatchRunner, Job, OnFailed, Outcome, StallDetector, Steps, TaskSet
from compactor.engines.engine import Engine, Progress, SilentProgress, TaskInputs, answers_or_raise
from compactor.phase_one import run_range
from compactor.phase_two import run_task
from compactor.run import run_input
from compactor.run.expiry_scan import run_scan
from compactor.run.layout import lay_out
from compactor.run.plan import (
    DeletedRowsTaskResult,
    PartTaskResult,
    RangeTaskResult,
    RunPolicies,
    Sizing,
    expected_totals,
    row_sets_by_source,
)
from compactor.run.run_output import RunAfterPhaseOne, RunOutput
from storage.ahead import run_ahead
from storage.clock import Clock
from storage.environment import Environment
from storage.errors import CompactorError, Conflict, DataLoss, ErrorText, Fenced
from storage.failpoints import Failpoint, failpoint
from storage.heartbeat import Heartbeat
from storage.ledger import names
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.manifest import Manifest, read_manifest, write_manifest
from storage.ledger.names import ObjectKind
from storage.ledger.object_check import check_compacted_objects
from storage.log.lease import release_ignoring_errors
from storage.log.ledger_id_recovery import reserve_lost_ids
from storage.log.log_manager import LogManager
from storage.metadata.records import (
    TABLE_ERROR,
    TABLE_RETRY,
    TAIL_LEFT,
    Attempt,
    AttemptKind,
    CompactedLedgerRecord,
    CompactionRetry,
    Pin,
    RunRecord,
    TopicRecord,
    TopicSnapshot,
)
from storage.metadata.store import MetadataStore
from storage.model import LogPosition, SourcePosition, TopicName
from storage.objects.interface import ObjectStore
from storage.objects.throttled import RateLimits, throttled
from storage.owner import new_owner_name
from storage.reading.compacted_loss import lost_compacted_error, naming_compacted_ledger
from storage.store_identity import StoreIdentity
from storage.topic import Topic

_log = logging.getLogger(__name__)

PoliciesOf = Callable[[TopicRecord], RunPolicies]
"""A function from a topic to the policies of a run of the topic that begins now."""
HEARTBEAT_MS = 30_000
"""A run whose heartbeat is older counts as dead, and another process may take it over."""


@dataclass(frozen=True)
class TwoPhaseCompactor:
    """Compactor of topics, without state of a run. `sizing` None: by the engine's parallelism.

    `leader_token`: returns the token of the leadership that begins these runs. With it, only requested topics are
    compacted, and a leader that lost its lease begins no run. If it raises an error, no run begins. `claims_at_once`:
    number of topics whose tails are sealed concurrently, each in a thread. `on_failed`: see BatchRunner.
    `retry_tail_at`: time of the next run for a topic whose tail was not sealed completely; None: no retry.
    `stalled_ms`: a run fails if none of its tasks ends within that time.
    """

    environment: Environment
    engine: Engine
    progress: Progress = field(default_factory=SilentProgress)
    sizing: Sizing | None = None
    rates: RateLimits = field(default_factory=RateLimits)
    hasher: Callable[[int], KeyHasher] = Xxh3KeyHasher
    heartbeat_ms: int = HEARTBEAT_MS
    leader_token: Callable[[], int] | None = None
    on_claimed: Callable[[RunRecord], object] = lambda _: None
    claims_at_once: int = 1
    on_failed: OnFailed | None = None
    retry_tail_at: Callable[[], int] | None = None
    stalled_ms: float = math.inf

    def compact(self, name: TopicName, policies: RunPolicies | PoliciesOf = RunPolicies()) -> Outcome:  # noqa: B008
        """Compact one topic and return its outcome, whose `run` is None if nothing was new.

        `policies`: of the run, or a function that returns them. Raises TopicNotFound, CompactionRunning,
        CompactionPaused, Fenced, DataLoss, Unavailable.
        """
        (outcome,) = self.compact_all([name], policies)
        if outcome.error is not None:
            raise outcome.error
        return outcome

    def compact_all(
        self,
        topics: Iterable[TopicName],
        policies: RunPolicies | PoliciesOf = RunPolicies(),  # noqa: B008
    ) -> Iterator[Outcome]:
        """Compact many topics, `Sizing.topics_per_job` per Spark job. Yield outcomes in order, as their jobs end.

        The failure of a topic is part of its outcome. Raises only what stops all topics, such as KeyboardInterrupt;
        then each active run is recorded as failed.
        """
        batch = BatchRunner(
            self.environment.metadata,
            self.engine,
            self.progress,
            self.heartbeat_ms,
            self.claims_at_once,
            self.on_failed,
            StallDetector(self.environment.clock, self.stalled_ms),
        )
        return batch.run(topics, lambda name: self.seal_and_claim(name, policies), self._sizing.topics_per_job)

    def dry_run(self, name: TopicName, policies: RunPolicies | PoliciesOf = RunPolicies()) -> dict[str, object]:  # noqa: B008
        """Return, by name, what a run would keep, drop and write (run_output.RunAfterPhaseOne.estimate).

        It runs phase one and deletes the objects of that again. It claims no run, so it may run beside a compaction.
        Its own attempt protects its objects from garbage collection.
        """
        StoreIdentity(self.environment.metadata, self.environment.store).check_or_bind()
        topic = self.environment.metadata.topics.get(name)
        owner = new_owner_name()
        attempt = self.environment.metadata.attempts.begin(topic.id, AttemptKind.RUN, owner)
        with release_ignoring_errors(lambda: self._delete_dry_run_objects(topic.uid, attempt)):
            snapshot, pin = self.environment.metadata.pins.take(topic.id, owner, HEARTBEAT_MS)
            with (
                release_ignoring_errors(lambda: None if pin is None else self.environment.metadata.pins.release(pin)),
                Heartbeat(lambda: self._heartbeat_dry_run(attempt, pin), HEARTBEAT_MS / 5000, self.engine.cancel),
            ):
                return self._run_phase_one_and_estimate(snapshot, attempt, _policies_of(snapshot.topic, policies))

    def _heartbeat_dry_run(self, attempt: Attempt, pin: Pin | None) -> None:
        """Renew the attempt and the pin of a dry run, which protect its objects from garbage collection."""
        self.environment.metadata.attempts.heartbeat(attempt)
        if pin is not None:
            self.environment.metadata.pins.renew(pin, HEARTBEAT_MS)

    def _run_phase_one_and_estimate(
        self, snapshot: TopicSnapshot, attempt: Attempt, policies: RunPolicies
    ) -> dict[str, object]:
        now = self.environment.clock.now_ms()
        if run_input.end_position(snapshot, policies, now) is None:
            return {"messages_in": 0, "messages_before": 0, "messages_out": 0, "messages_dropped": 0}
        steps = self._run_to_layout(snapshot, attempt.attempt_id, policies, now, _PhaseTimer(self.environment.clock))
        try:
            with self._translating_data_loss(snapshot):
                work = next(steps)
                while True:
                    self.progress.begin_phase(work.name, len(work.costs), work.messages)
                    task = TaskInputs(work.task, work.inputs)
                    done = self.engine.run(
                        len(work.costs), task, self.progress.report_tasks_done_in_phase, work.weights
                    )
                    work = steps.send(answers_or_raise(done))
        except StopIteration as stop:
            phase_one: RunAfterPhaseOne = stop.value
            return phase_one.estimate()
        finally:
            self.progress.end()

    def _delete_dry_run_objects(self, topic_uid: str, attempt: Attempt) -> None:
        """Delete the objects of a dry run. After a failure garbage collection deletes them."""
        for stored in list(self.environment.store.list(names.run_prefix(topic_uid, attempt.attempt_id))):
            self.environment.store.delete(stored.name)
        self.environment.metadata.attempts.finish(attempt.attempt_id)

    def seal_and_claim(self, name: TopicName, policies: RunPolicies | PoliciesOf) -> Job | None:
        """Roll and seal the tail, claim a run, and return its job, not started; None: there is nothing to compact
        (P11).

        Raises the errors of `compact`.
        """
        if self.leader_token is not None:
            self.leader_token()  # raises before the tail is rolled
        StoreIdentity(self.environment.metadata, self.environment.store).check_or_bind()
        topic = self.environment.metadata.topics.get(name)
        tail_error = self._roll_and_seal(topic)
        snapshot = self.environment.metadata.topic_snapshot(topic.id)
        policies = _policies_of(snapshot.topic, policies)
        if has_nothing_new(
            self.environment.metadata, self.environment.store, self.environment.clock, snapshot, policies
        ):
            return None
        token = None if self.leader_token is None else self.leader_token()
        run = self.environment.metadata.runs.claim(
            topic.id, new_owner_name(), asdict(policies), self.heartbeat_ms, leader_token=token
        )
        failpoint(Failpoint.RUN_CLAIMED)
        self.on_claimed(run)
        engines: dict[str, str] = {}
        return Job(name, run, self._run_steps(run, policies, tail_error, engines), engines)

    def _roll_and_seal(self, topic: TopicRecord) -> CompactorError | None:
        """Roll and seal the tail (P2). Return the error if a part of the tail is not sealed; a later run takes it.

        Raises the error if there is nothing else to compact.
        """
        reserve_lost_ids(self.environment.metadata, self.environment.log)
        log_manager = LogManager(self.environment)
        error = log_manager.try_roll_and_seal(topic)
        if error is not None:
            snapshot = self.environment.metadata.topic_snapshot(topic.id)
            if not run_input.dirty_ledgers(snapshot, RunPolicies(), self.environment.clock.now_ms()):
                raise error
        return error

    def _run_steps(
        self, run: RunRecord, policies: RunPolicies, tail_error: CompactorError | None, engines: Mapping[str, str]
    ) -> Steps:
        statistics = {} if tail_error is None else ErrorText.from_error(tail_error).fields(TAIL_LEFT)
        timer = _PhaseTimer(self.environment.clock, statistics)
        snapshot = self.environment.metadata.topic_snapshot(run.topic_id)
        if snapshot.topic.epoch != run.epoch:
            raise Fenced(f"run {run.run_id} of {snapshot.topic.name} was overtaken", "check the newer run")
        horizon = run_input.end_position(snapshot, policies, run.started_at)
        failpoint(Failpoint.RUN_SNAPSHOT_TAKEN)
        if horizon is None:
            return self.environment.metadata.runs.succeed_unchanged(run, {"messages_in": 0, "messages_out": 0})
        run = self.environment.metadata.runs.update(run, phase="phase one", horizon=horizon, statistics=statistics)
        with self._translating_data_loss(snapshot, run):
            source_horizon = self._source_horizon(snapshot, horizon)
            phase_one = yield from self._run_to_layout(snapshot, run.attempt_id, policies, run.started_at, timer)
            output = yield from self._run_phase_two(phase_one)
        timer.lap("phase_two")
        output.check_totals()
        timer.add_entry("engine", _format_engines(engines))
        manifest = output.build_manifest(
            snapshot.topic.name,
            self.environment.metadata.ledgers.allocate_ids(1),
            snapshot.topic.generation + 1,
            run.run_id,
            self.environment.clock.now_ms(),
            horizon,
        )
        with self._translating_data_loss(snapshot, run):
            check_compacted_objects(self.environment.store, manifest)
        failpoint(Failpoint.RUN_VERIFIED)
        timer.lap("verify")
        if policies.table_format_version is not None:
            manifest = self._write_table(run, policies, phase_one.previous, manifest, timer)
            timer.lap("table")

        retry = self._tail_retry(run, tail_error)
        run = self._publish(snapshot, run, output, manifest, source_horizon, timer, retry)
        self._delete_row_sets(phase_one.ranges)
        return run

    @contextmanager
    def _translating_data_loss(self, before: TopicSnapshot, run: RunRecord | None = None) -> Iterator[None]:
        """Turn a DataLoss of the body into Fenced or Conflict if the data was truncated, deleted or trimmed.

        A DataLoss of an object of the previous compacted ledger names that ledger.
        """
        try:
            yield
        except DataLoss as error:
            if run is not None:
                self.environment.metadata.runs.update(run)
            listed = {ledger.ledger_id for ledger in self.environment.metadata.ledgers.of_topic(before.topic.id)}
            for ledger in run_input.dirty_ledgers(before, RunPolicies(), self.environment.clock.now_ms()):
                if ledger.ledger_id not in listed:
                    raise Conflict(
                        f"ledger {ledger.ledger_id} of {before.topic.name} was trimmed while a compaction read it",
                        "compact the rest of the topic",
                    ) from error
            if before.compacted is not None and _is_object_of_other_run(error, other_than=run):
                raise lost_compacted_error(before, error) from error
            raise

    def _tail_retry(self, run: RunRecord, tail_error: CompactorError | None) -> CompactionRetry | None:
        if tail_error is None or self.retry_tail_at is None:
            return None
        prefix = f"run {run.run_id} succeeded without the messages that are not sealed: "
        return CompactionRetry(ErrorText.from_error(tail_error).with_prefix(prefix), self.retry_tail_at())

    def _run_to_layout(
        self, snapshot: TopicSnapshot, attempt_id: str, policies: RunPolicies, now: int, timer: _PhaseTimer
    ) -> Generator[TaskSet, list[Any], RunAfterPhaseOne]:
        """Run scan and phase one, and return the run with its layout.

        The tasks write row sets and an index level, which nothing references.
        """
        previous = self._read_previous_manifest(snapshot)
        topic = snapshot.topic
        floor = _cursor_floor(self.environment.metadata, topic.id, policies)
        plan = run_input.initial_plan(
            self.environment.store.location,
            snapshot,
            previous,
            policies,
            now,
            attempt_id,
            self.hasher(topic.hash_seed),
            floor,
            self.rates,
            self.engine.parallelism,
        )
        reindexed = run_input.lacks_event_times(previous, policies)
        timer.lap("snapshot")

        scans = run_input.scan_tasks(plan, previous, run_input.dirty_ledgers(snapshot, policies, now))
        scanned = []
        if scans:
            sizes = [plan.sources[scan.source].rows.stored.size for scan in scans]
            scanned = yield TaskSet("scan", partial(run_scan, plan), scans, sizes, len(scans))
            plan = run_input.with_scan_results(plan, scanned, reindexed=reindexed)
        plan = run_input.with_sizing(plan, previous, self._sizing, reindexed=reindexed)
        failpoint(Failpoint.RUN_SCAN_DONE)
        timer.lap("scan")

        messages_in = sum(source.messages for source in plan.sources[plan.old_parts :])
        ranges: list[RangeTaskResult] = yield TaskSet(
            "phase one",
            partial(run_range, plan),
            range(len(plan.ranges)),
            run_input.range_costs(plan),
            messages_in,
            memory_factor=run_input.INDEX_MEMORY,
        )
        failpoint(Failpoint.PHASE_ONE_DONE)
        timer.lap("phase_one")

        row_sets = row_sets_by_source(ranges)
        expected = expected_totals(plan, row_sets)
        layout = lay_out(plan, row_sets, expected, self._sizing)
        failpoint(Failpoint.RUN_LAYOUT_DECIDED)
        return RunAfterPhaseOne(plan, previous, scanned, ranges, expected, layout)

    def _run_phase_two(self, phase_one: RunAfterPhaseOne) -> Generator[TaskSet, list[Any], RunOutput]:
        """Run phase two, and return the run's output. Its tasks write parts and bitmaps, which nothing references."""
        plan, layout = phase_one.plan, phase_one.layout
        results: list[PartTaskResult | DeletedRowsTaskResult] = []
        if layout.tasks:
            survivors = sum(totals.count for totals in phase_one.expected.values())
            costs = layout.task_costs(plan)
            results = yield TaskSet("phase two", partial(run_task, plan), layout.tasks, costs, survivors)
        failpoint(Failpoint.PHASE_TWO_DONE)
        return RunOutput(
            phase_one,
            [result for result in results if isinstance(result, PartTaskResult)],
            [result for result in results if isinstance(result, DeletedRowsTaskResult)],
        )

    def _write_table(
        self, run: RunRecord, policies: RunPolicies, previous: Manifest | None, manifest: Manifest, timer: _PhaseTimer
    ) -> Manifest:
        """Write the next snapshot of the topic's table; return the manifest with it.

        If that fails, whatever the error, the run goes on, with the table of the previous compacted ledger, and its
        statistics have the error. Raises Fenced.
        """
        from storage.table.table_writer import TablePolicies, write_table

        assert policies.table_format_version is not None
        limits = TablePolicies(
            policies.table_format_version, policies.table_snapshot_age_ms, policies.table_snapshots_max
        )
        before = previous.table if previous else None
        store = throttled(self.environment.store, self.rates, self.environment.clock)  # C4: it may read parts
        try:
            table = write_table(store, manifest, run.attempt_id, limits, before)
        except Fenced:
            raise
        except Exception as error:
            if not isinstance(error, CompactorError):
                _log.exception(
                    "the Iceberg table of %s was not written, because of a fault of this program", manifest.topic
                )
            for name, value in ErrorText.from_error(error).fields(TABLE_ERROR).items():
                timer.add_entry(name, value)
            timer.add_entry(TABLE_RETRY, not isinstance(error, Conflict))
            return replace(manifest, table=before)
        timer.add_entry("table_bytes", sum(stored.size for stored in table.objects.values()))
        return replace(manifest, table=table)

    @property
    def _sizing(self) -> Sizing:
        return self.sizing or Sizing(self.engine.parallelism)

    def _source_horizon(self, snapshot: TopicSnapshot, horizon: LogPosition) -> SourcePosition | None:
        """Return the position of a horizon at the source of a replicated topic; None: no replicator writes to the
        topic, or the position is unknown.

        A run stores it, because it can be found only while the topic has raw messages.
        """
        before = snapshot.compacted
        if before is not None and before.horizon == horizon and before.source_horizon is not None:
            return before.source_horizon
        stored = self.environment.metadata.producer_sequences.of_topic(snapshot.topic.id)
        if stored is None or stored.sources is None:
            return None
        return Topic(self.environment, snapshot.topic).source_position_before(horizon.offset + 1)

    def _read_previous_manifest(self, snapshot: TopicSnapshot) -> Manifest | None:
        if snapshot.compacted is None:
            return None
        with naming_compacted_ledger(snapshot):
            return read_manifest(self.environment.store, snapshot.compacted.manifest)

    def _publish(
        self,
        snapshot: TopicSnapshot,
        run: RunRecord,
        output: RunOutput,
        manifest: Manifest,
        source_horizon: SourcePosition | None,
        timer: _PhaseTimer,
        retry: CompactionRetry | None,
    ) -> RunRecord:
        before = snapshot.compacted
        name = names.manifest(manifest.topic_uid, manifest.ledger_id, run.attempt_id)
        failpoint(Failpoint.MANIFEST_BEFORE_PUT)
        stored = write_manifest(self.environment.store, name, manifest)
        failpoint(Failpoint.MANIFEST_PUT)
        compacted = CompactedLedgerRecord(
            ledger_id=manifest.ledger_id,
            generation=manifest.generation,
            horizon=manifest.horizon,
            manifest=stored,
            messages=manifest.messages,
            logical_bytes=manifest.logical_bytes,
            stored_bytes=manifest.stored_bytes,
            last_message_id=output.last_message_id(manifest, before.last_message_id if before else None),
            attempt_id=run.attempt_id,
            created_at=manifest.created_at,
            table_metadata=manifest.table.metadata if manifest.table else None,
            source_horizon=source_horizon,
        )
        statistics = output.statistics(manifest) | timer.lap("publish")
        return self.environment.metadata.publishing.publish(
            run, snapshot.topic.generation, compacted, statistics, retry
        )

    def _delete_row_sets(self, ranges: Sequence[RangeTaskResult]) -> None:
        """Delete the row sets. Only this run, between its two phases, reads them."""
        store = self.environment.store
        deletions = (partial(store.delete, result.name) for result in ranges if result.row_sets)
        try:
            for _ in run_ahead(deletions, store.concurrent_requests):
                pass
        except CompactorError:
            return  # the run has published; garbage collection deletes the rest
        failpoint(Failpoint.RUN_ROW_SETS_CLEANED)


def _policies_of(topic: TopicRecord, policies: RunPolicies | PoliciesOf) -> RunPolicies:
    return policies if isinstance(policies, RunPolicies) else policies(topic)


def _cursor_floor(metadata: MetadataStore, topic_id: int, policies: RunPolicies) -> int | None:
    """Return the offset above which tombstones wait for a compacted reader (T1); None: none waits."""
    return metadata.cursors.slowest_compacted_reader_offset(topic_id) if policies.tombstones_wait_for_cursors else None


def _is_object_of_other_run(error: DataLoss, other_than: RunRecord | None) -> bool:
    """Return whether the lost object is a part, bitmap, index or chunk table of a compacted ledger, and no output of
    `other_than`."""
    parsed = names.parse(str(error.advice.arguments.get("object", ""))) if error.advice is not None else None
    return (
        parsed is not None
        and parsed.kind in (ObjectKind.PART, ObjectKind.INDEX, ObjectKind.BITMAPS, ObjectKind.CHUNKS)
        and (other_than is None or parsed.attempt_id != other_than.attempt_id)
    )


def _format_engines(engines: Mapping[str, str]) -> str:
    """Return the engines of the phases, and why, as one line."""
    if len(set(engines.values())) == 1:
        return next(iter(engines.values()))
    return "; ".join(f"{phase} {choice}" for phase, choice in engines.items())


def has_nothing_new(
    metadata: MetadataStore, store: ObjectStore, clock: Clock, snapshot: TopicSnapshot, policies: RunPolicies
) -> bool:
    """Return whether no message is new, no policy changed, and nothing is due by time (P11). Needs no engine.

    False for a lost manifest: a run reports that (R8).
    """
    if not run_input.is_unchanged(snapshot, policies, clock.now_ms()):
        return False
    if snapshot.compacted is None or not run_input.depends_on_time(snapshot, policies):
        return True
    floor = _cursor_floor(metadata, snapshot.topic.id, policies)
    try:
        manifest = read_manifest(store, snapshot.compacted.manifest)
    except DataLoss:
        return False
    return not run_input.anything_due(manifest, policies, clock.now_ms(), floor)


class _PhaseTimer:
    """Timer of the phases, in milliseconds. `statistics`: other entries of the run's statistics."""

    def __init__(self, clock: Clock, statistics: Mapping[str, object] = MappingProxyType({})) -> None:
        self._clock = clock
        self._last = clock.now_ms()
        self._laps: dict[str, object] = dict(statistics)

    def add_entry(self, name: str, value: object) -> None:
        """Add an entry to the statistics."""
        self._laps[name] = value

    def lap(self, name: str) -> dict[str, object]:
        now = self._clock.now_ms()
        self._laps[f"{name}_ms"] = now - self._last
        self._last = now
        return self._laps
