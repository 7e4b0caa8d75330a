"""Compaction for brokers of Pulsar that keep a topic and replicate it here (PIP-278): integrations/pulsar-compaction.

Such a broker knows positions of its own ledgers. It asks for a compaction up to a position, when its replicator has
delivered all entries up to there. It then serves compacted reads from entries here, up to the horizon that it learned,
and raw reads from its own ledgers.

A request for a compaction has a text that names its state: the end of the log when it was made, and what had run
before. The broker repeats the request with it until a run covers that end, or what the policies allow of it. So it may
lose answers, and no state is kept here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, cast

from api.broker import names
from compactor.run import run_input
from compactor.run.plan import RunPolicies
from compactor.scheduling.status import CompactionStatus
from storage.errors import NO_ERROR, CompactionRunning, Conflict, ErrorText, InvalidInput, SegmentNotLocal
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import MANUAL, RunState
from storage.model import EARLIEST, SourcePosition
from storage.topic import Topic

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from storage.metadata.records import RunRecord, TopicRecord, TopicSnapshot
    from storage.model import TopicName
    from storage.reading.source_reader import SourceMessage, SourceReader

PAGE_BYTES = 4 << 20
"""Maximum bytes of a page of entries, unless its first entry is larger."""
PAGE_ENTRIES = 10_000
_FRAME = Struct(">qqI")
"""The head of an entry in a page: ledger id, entry id, bytes of the entry."""
_REQUEST = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class CompactedView:
    """The compacted ledger of a topic, for the Pulsar broker that replicates the topic to this service.

    Positions are those of the broker's ledgers. `generation` 0: the topic was never compacted; then `horizon` is None.
    `last`: the last compacted message; None: there is none. `first`: the first entry that was ever stored; None: it is
    trimmed, or there is none.
    """

    generation: int
    horizon: SourcePosition | None
    last: SourceMessage | None
    first: SourcePosition | None
    messages: int
    logical_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class CompactionRequestState:
    """The state of a broker's request for a compaction. `status`: RUNNING, SUCCESS or ERROR.

    `request`: the text with which the broker asks for the state again. `run`: the newest run since the request; None:
    there is none. `error`: the reason of ERROR.
    """

    status: CompactionStatus
    request: str
    run: RunRecord | None = None
    error: ErrorText = NO_ERROR


@dataclass(frozen=True)
class _CompactionRequest:
    """A broker's request for a compaction, as a text that the broker keeps. `end`: the offset that a run must reach.
    `run_id`, `failures`: the newest run and the failures of the topic when the request was made."""

    end: int
    run_id: int
    failures: int

    @classmethod
    def parse(cls, text: str) -> _CompactionRequest:
        match = _REQUEST.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text[:100]!r} is no request for a compaction", "repeat the text of the first answer")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.end}.{self.run_id}.{self.failures}"


@dataclass(frozen=True)
class EntryPage:
    """A page of entries of a compacted ledger. `generation`: of that ledger. `frames`: head and bytes of each entry.
    `is_last`: no entry is left up to the horizon; False: unknown."""

    generation: int
    frames: bytes
    is_last: bool


def compact_up_to(
    broker: Broker, name: TopicName, upto: SourcePosition, request: str | None, by: str, retain_null_key: bool
) -> CompactionRequestState:
    """Request a compaction of all entries up to a position of the replicating broker, or ask for its state.

    `request`: None: this is the first call; then the text of the first result. An active run counts, and is followed by
    another one if its input ends before that position. `by`: the caller's name, for the audit log. `retain_null_key`:
    set the topic's policy to keep messages without a key, for later runs, too. Raise PartitionedTopicRefused,
    TopicNotFound, NotTheOwner, CompactionPaused, Conflict.
    """
    record = names.unpartitioned_topic(broker.environment, name)
    broker.ownership.check_for_reading(record)
    if retain_null_key:
        _retain_null_keys(broker, record)
    control = broker.environment.metadata.compaction_control
    activity = control.activity(record.id)
    goal = _new_request(broker, record, upto) if request is None else _CompactionRequest.parse(request)
    snapshot = Topic(broker.environment, record).snapshot()  # later than `activity`: it has all that runs did till then
    run = snapshot.last_run if snapshot.last_run is not None and snapshot.last_run.run_id > goal.run_id else None
    if goal.end == 0 or (snapshot.horizon is not None and snapshot.horizon.offset + 1 >= goal.end):
        return CompactionRequestState(CompactionStatus.SUCCESS, str(goal), run)
    if not activity.running and request is not None:
        if activity.control.failures > goal.failures:
            return CompactionRequestState(CompactionStatus.ERROR, str(goal), run, activity.control.last_error)
        if run is not None and run.state in (RunState.ERROR, RunState.CANCELLED):
            return CompactionRequestState(CompactionStatus.ERROR, str(goal), run, run.error)
        if run is not None and run.skipped_tail_error:
            return CompactionRequestState(CompactionStatus.ERROR, str(goal), run, run.skipped_tail_error)
        if _is_compacted_except_young(broker, snapshot, run, goal.end):
            return CompactionRequestState(CompactionStatus.SUCCESS, str(goal), run)
    if not activity.running:
        with suppress(CompactionRunning):
            broker.control.trigger(record, MANUAL, by)
    return CompactionRequestState(CompactionStatus.RUNNING, str(goal), run)


def _retain_null_keys(broker: Broker, record: TopicRecord) -> None:
    """Set the policy that keeps messages without a key, unless it is in force: of a topic, or of all partitions of the
    topic to which it belongs. Raise TopicNotFound."""
    policies = broker.environment.metadata.policies
    if policies.effective(record).compaction_retain_null_key:
        return
    whole = record.name.partitioned_topic
    partitioned = None if whole is None else broker.environment.metadata.partitions.find(whole)
    records = [record] if partitioned is None else names.partitions(broker.environment, partitioned)
    policies.change([topic_scope(each) for each in records], {"compaction.retain-null-key": True})


def _is_compacted_except_young(broker: Broker, snapshot: TopicSnapshot, run: RunRecord | None, end: int) -> bool:
    """Return whether all messages before the offset `end` are compacted, except those younger than the minimum lag.

    The age counts at the start of `run` if it has succeeded, so that the wait has an end; otherwise it counts now.
    """
    if any(segment.first_offset < end for segment in snapshot.segments):
        return False
    if run is not None and run.state is RunState.SUCCESS:
        min_lag_ms, at = cast("int", run.policies["min_lag_ms"]), run.started_at
    else:
        policies = broker.environment.metadata.policies.effective(snapshot.topic)
        min_lag_ms, at = policies.min_compaction_lag_ms, broker.environment.clock.now_ms()
    dirty = run_input.dirty_ledgers(snapshot, RunPolicies(min_lag_ms=min_lag_ms), at)
    return not dirty or dirty[0].first_offset >= end


def _new_request(broker: Broker, record: TopicRecord, upto: SourcePosition) -> _CompactionRequest:
    """Return a new request up to the end of the log; up to offset 0 if `upto` is already compacted."""
    topic = Topic(broker.environment, record)
    reader = topic.snapshot_reader()
    activity = broker.environment.metadata.compaction_control.activity(record.id)
    run_id = 0 if activity.last_run is None else activity.last_run.run_id
    compacted = topic.reader_by_source_position()
    covers = compacted is not None and _source_horizon(broker, record, compacted) >= upto
    return _CompactionRequest(0 if covers else reader.end, run_id, activity.control.failures)


def compacted_view(broker: Broker, name: TopicName) -> CompactedView:
    """Return generation, horizon, last message and size of the compacted ledger of a topic that a broker replicates.

    Raise PartitionedTopicRefused, TopicNotFound, NotTheOwner, Conflict.
    """
    record = names.unpartitioned_topic(broker.environment, name)
    topic = Topic(broker.environment, record)
    reader = topic.reader_by_source_position()
    try:
        first = topic.first_source_entry()
    except SegmentNotLocal:
        broker.ownership.check_for_reading(record, EARLIEST)
        raise
    if reader is None:
        return CompactedView(0, None, None, first, 0, 0, 0)
    compacted = reader.compacted
    return CompactedView(
        compacted.generation,
        _source_horizon(broker, record, reader),
        reader.last_message(),
        first,
        compacted.messages,
        compacted.logical_bytes,
        compacted.stored_bytes,
    )


def compacted_entries(
    broker: Broker,
    name: TopicName,
    start: SourcePosition,
    horizon: SourcePosition | None,
    generation: int | None,
    max_entries: int,
    max_bytes: int,
) -> EntryPage:
    """Read compacted entries from `start` on, ascending, up to `horizon`; at least one if any is left.

    `horizon`, `generation`: those that the caller knows; None: those of the current compacted ledger. Raise Conflict if
    the topic is compacted less far than the caller knows; PartitionedTopicRefused, TopicNotFound, NotTheOwner.
    """
    record = names.unpartitioned_topic(broker.environment, name)
    pieces: list[bytes] = []
    size = 0
    reader = Topic(broker.environment, record).reader_by_source_position(generation)
    covered = _readable_horizon(broker, record, reader, horizon, generation)
    if reader is None or covered is None:
        return EntryPage(0, b"", True)
    is_last = True
    for entry in reader.entries(start, covered):
        size += _FRAME.size + len(entry.data)
        if pieces and size > max_bytes:
            is_last = False
            break
        pieces += (_FRAME.pack(entry.ledger_id, entry.entry_id, len(entry.data)), entry.data)
        if len(pieces) >= 2 * max_entries:
            is_last = False
            break
    return EntryPage(reader.compacted.generation, b"".join(pieces), is_last)


def first_position_since(
    broker: Broker,
    name: TopicName,
    publish_time_ms: int,
    horizon: SourcePosition | None,
    generation: int | None,
) -> SourcePosition | None:
    """Return the position of the first compacted entry with a message published at `publish_time_ms` or later.

    None: there is none. The other parameters and the errors are those of `compacted_entries`.
    """
    record = names.unpartitioned_topic(broker.environment, name)
    reader = Topic(broker.environment, record).reader_by_source_position(generation)
    covered = _readable_horizon(broker, record, reader, horizon, generation)
    return None if reader is None or covered is None else reader.first_since(publish_time_ms, covered)


def _source_horizon(broker: Broker, record: TopicRecord, reader: SourceReader) -> SourcePosition:
    """Return the horizon of a compacted ledger as a position of the replicating broker.

    Raise NotTheOwner if another service has the messages that determine it; Conflict for a topic of several sources.
    """
    reader.check_one_source()
    try:
        return reader.horizon()
    except SegmentNotLocal:
        broker.ownership.check_for_reading(record)
        raise


def _readable_horizon(
    broker: Broker,
    record: TopicRecord,
    reader: SourceReader | None,
    horizon: SourcePosition | None,
    generation: int | None,
) -> SourcePosition | None:
    """Return the horizon up to which a caller may read: its own, or that of the compacted ledger; None: there is none.

    Raise Conflict if the compacted ledger ends before the caller's horizon, or has another horizon stored for the
    caller's generation.
    """
    known = None if reader is None else _source_horizon(broker, record, reader)
    stored = None
    if reader is not None and reader.compacted.generation == generation:
        stored = reader.compacted.source_horizon
    if horizon is not None and (known is None or known < horizon or stored not in (None, horizon)):
        raise Conflict(
            f"{record.name} is compacted up to {known or 'nothing'} of its source here, and the caller knows the "
            f"horizon {horizon}{'' if stored is None else f' of the same generation, {generation}'}: the database was "
            "restored from a backup, or is another one",
            "restore a newer backup; or, if the source still has all raw messages, reset the caller's horizon and "
            "compact again",
        )
    return horizon or known
