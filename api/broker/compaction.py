"""Compaction of topics: requests, status, runs, pauses and verification; removal of data that is no longer needed.

A trigger is a request in SQL, so it survives the process that accepts it; the leading service executes it. Status and
runs come from SQL, too (S7). An operation on a partitioned topic is executed on each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.broker import names
from api.broker.refusals import VerificationBusy
from compactor.scheduling.status import CompactionStatus, StatusAndError, compaction_status
from storage.errors import ErrorText, TopicNotFound
from storage.metadata.records import MANUAL, RunState

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from compactor.maintenance.garbage import CollectionResult
    from compactor.maintenance.retention import TrimResult
    from compactor.verify.findings import Report
    from storage.environment import Environment
    from storage.metadata.records import CompactionControl, RunRecord, ServiceRecord, TopicRecord
    from storage.model import MessageId, TopicName
    from storage.objects.interface import ObjectInfo

MOST_RUNS = 10_000
"""Maximum number of runs that a list has."""


@dataclass(frozen=True)
class TopicControl:
    """The compaction state of one topic: pauses, request and failures. `is_running`: a run of the topic is active."""

    topic: TopicName
    control: CompactionControl
    is_running: bool = False

    @property
    def cleaner_state(self) -> str:
        """Return the compaction state as Kafka's LogCleanerManager names it: None, InProgress, Aborted, Paused(n)."""
        if self.control.aborting:
            return "Aborted"
        if self.is_running or self.control.requested_at is not None:
            return "InProgress"
        return f"Paused({self.control.paused})" if self.control.paused else "None"


@dataclass(frozen=True)
class SchedulerState:
    """The state of the compaction scheduler. `leader`: the name of the leading service. `queue`: the topics with a
    requested compaction, the oldest request first. `failing`, `paused`: topics in that state."""

    leader: str | None
    services: Sequence[ServiceRecord]
    queue: Sequence[TopicControl]
    running: Sequence[tuple[TopicName, RunRecord]]
    failing: Sequence[TopicControl]
    paused: Sequence[TopicControl]


def trigger(broker: Broker, name: TopicName, by: str) -> None:
    """Request a compaction of a topic, or of every partition. `by`: the caller's name, for the audit log.

    Raise TopicNotFound; CompactionRunning and CompactionPaused, for a partitioned topic before any
    partition is requested.
    """
    environment = broker.environment
    records = names.topics(environment, name)
    record = records[0]
    try:
        if len(records) > 1:
            for record in records:
                environment.metadata.compaction_control.check_requestable(record.id)
        for record in records:
            broker.control.trigger(record, MANUAL, by)
    except TopicNotFound as error:  # deleted meanwhile
        raise names.missing_topic_error(environment, record.name) from error


def newest_run_id(environment: Environment, name: TopicName) -> int:
    """Return the id of the newest compaction run of a topic, or of all its partitions; 0: there is no run.

    Raise TopicNotFound.
    """
    topic_ids = [record.id for record in names.topics(environment, name)]
    return max((run.run_id for _, run in environment.metadata.runs.newest(1, topic_ids=topic_ids)), default=0)


def status(environment: Environment, name: TopicName) -> StatusAndError:
    """Return the status of a topic's compaction, or the `combined_status` of its partitions. Raise TopicNotFound."""
    records = names.topics(environment, name)
    return combined_status({record.name: compaction_status(environment.metadata, record.id) for record in records})


def combined_status(states: Mapping[TopicName, StatusAndError]) -> StatusAndError:
    """Return the status of several topics, at least one, as one: the first of RUNNING, ERROR, NOT_RUN that a topic has.

    If no topic has one of these: SUCCESS. If there are several topics, the error names those that failed.
    """
    if len(states) == 1:
        return next(iter(states.values()))
    for worst in (CompactionStatus.RUNNING, CompactionStatus.ERROR, CompactionStatus.NOT_RUN):
        of_worst = {name: state for name, state in states.items() if state.status is worst}
        if of_worst:
            errors = [state.last_error.with_prefix(f"{name}: ") for name, state in of_worst.items() if state.last_error]
            return StatusAndError(worst, ErrorText.joined(errors))
    return StatusAndError(CompactionStatus.SUCCESS)


def runs(
    environment: Environment, limit: int, state: RunState | None = None, name: TopicName | None = None
) -> list[tuple[TopicName, RunRecord]]:
    """Return at most `limit` compaction runs with the names of their topics, the newest first.

    `name`: only those of a topic, or of a partitioned topic's partitions; None: of all topics. `state`: only runs in
    this state. Raise TopicNotFound.
    """
    topic_ids = None if name is None else [record.id for record in names.topics(environment, name)]
    return environment.metadata.runs.newest(limit, topic_ids=topic_ids, state=state)


def scheduler_state(environment: Environment) -> SchedulerState:
    """Return the leading service, the live services, requests, active runs, and topics that fail or are paused."""
    metadata = environment.metadata
    topics = {record.id: record for record in metadata.topics.all()}
    controls = [
        TopicControl(topics[topic_id].name, control)
        for topic_id, control in metadata.compaction_control.all().items()
        if topic_id in topics
    ]
    return SchedulerState(
        metadata.services.leader(),
        metadata.services.live(),
        [TopicControl(record.name, control) for record, control in metadata.compaction_control.requests()],
        metadata.runs.newest(MOST_RUNS, state=RunState.RUNNING),
        [item for item in controls if item.control.failures],
        [item for item in controls if item.control.paused],
    )


def controls(environment: Environment, name: TopicName) -> list[TopicControl]:
    """Return the compaction state of a topic, or of each partition: pauses, request, failures. Raise TopicNotFound."""
    states = []
    for record in names.topics(environment, name):
        activity = environment.metadata.compaction_control.activity(record.id)
        states.append(TopicControl(record.name, activity.control, activity.running))
    return states


def pause(environment: Environment, name: TopicName) -> list[TopicControl]:
    """Pause the compaction of a topic: end its run and request; no run starts until as many resumes follow (S5).

    All partitions are paused, or none. Return the new compaction states. Raise TopicNotFound.
    """
    return _change_control(environment, name, environment.metadata.compaction_control.pause)


def resume(environment: Environment, name: TopicName) -> list[TopicControl]:
    """Undo one pause of the compaction of a topic, or of each paused partition. Return the new compaction states.

    Raise TopicNotFound; Conflict if none is paused, or if a run that a pause aborted has not stopped yet.
    """
    return _change_control(environment, name, environment.metadata.compaction_control.resume)


def abort(environment: Environment, name: TopicName) -> list[TopicControl]:
    """End the compaction run, the request and the retry of a topic, or of all partitions; later requests are executed.

    Return the new compaction states. Raise TopicNotFound, Conflict.
    """
    return _change_control(environment, name, environment.metadata.compaction_control.abort)


def trim(
    broker: Broker, name: TopicName, before_offset_or_id: int | MessageId | None, *, dry_run: bool, force: bool
) -> list[TrimResult]:
    """Trim the raw ledgers of a topic, or of each partition; see `trim_topic`.

    Raise PartitionedTopicRefused for a position in a partitioned topic, NotTheOwner, and the errors of `trim_topic`.
    """
    if before_offset_or_id is not None:
        names.check_not_partitioned(broker.environment, name)
    records = names.local_topics(broker, name)
    return [
        trim_topic(broker.long_work_environment, record, before_offset_or_id, dry_run=dry_run, force=force)
        for record in records
    ]


def trim_topic(
    environment: Environment,
    topic: TopicRecord,
    before_offset_or_id: int | MessageId | None,
    *,
    dry_run: bool,
    force: bool,
) -> TrimResult:
    """Trim raw ledgers: all before an offset or message id; None: those that the cleanup policies allow.

    They disappear from listings at once; garbage collection deletes their objects after `file.delete.delay.ms` (C3).
    `force`: also messages that cursors and compaction need. `dry_run`: change nothing, and return what a trim would do.
    Raise TopicNotFound, InvalidInput, Conflict, DataLoss, Unavailable.
    """
    from compactor.maintenance.retention import Retention

    return Retention(environment).trim(topic, before_offset_or_id, dry_run=dry_run, force=force)


def collect_garbage(
    environment: Environment,
    grace_ms: int,
    topics: Sequence[TopicName] | None = None,
    *,
    unknown_topics: bool = False,
    dry_run: bool,
    on_object: Callable[[ObjectInfo], object] = lambda _: None,
) -> Iterator[CollectionResult]:
    """Delete the objects without references of these topics, or of all; yield a result per topic (A3).

    `unknown_topics`: also the objects of topics that the database does not know. `on_object` gets each object that is
    deleted, or would be. Raise TopicNotFound before any deletion, DataLoss, Misconfigured for another database's store.
    """
    from compactor.maintenance.garbage import GarbageCollector

    collector = GarbageCollector(environment, grace_ms, on_object=on_object)
    if topics is None:
        yield from collector.collect_all(dry_run, unknown_topics)
        return
    for record in [environment.metadata.topics.get(name) for name in topics]:
        yield collector.collect(record, dry_run)


def verify(broker: Broker, name: TopicName) -> list[Report]:
    """Derive the compacted ledger of a topic, or of each partition, again, and compare. Return a report for each.

    Changes nothing. Raise TopicNotFound, VerificationBusy while this process verifies another topic, Fenced.
    """
    from compactor.engines.engine import InProcessEngine
    from compactor.verify.verify import Verifier

    records = names.topics(broker.environment, name)
    if not broker.verify_lock.acquire(blocking=False):
        raise VerificationBusy
    try:
        verifier = Verifier(broker.long_work_environment, InProcessEngine())
        return [verifier.verify(record.name) for record in records]
    finally:
        broker.verify_lock.release()


def _change_control(
    environment: Environment, name: TopicName, change: Callable[[list[int]], Sequence[CompactionControl]]
) -> list[TopicControl]:
    """Call `change` with the id of a topic, or of all its partitions; return the new compaction states.

    `change`: changes the compaction state of the topics with some ids in one transaction.
    """
    records = names.topics(environment, name)
    changed = change([record.id for record in records])
    return [TopicControl(record.name, control) for record, control in zip(records, changed, strict=True)]
