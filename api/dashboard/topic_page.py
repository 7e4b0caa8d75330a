"""Content of a topic's page, from one moment of SQL, the manifest of the compacted ledger and the connected clients.

If the manifest cannot be read, the page states the reason, and its picture lacks the compacted parts. Everything else
stays, since an operator then needs the last error, the time of the next try, and the buttons. A lost part is known from
the error of the run that read it; the page checks whether the store has it again, in full length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from api.broker import compaction, names
from api.broker.broker import Broker
from api.broker.ownership import UnservedLogDirectory
from api.broker.refusals import NotTheOwner
from api.broker.stats import StatsSnapshot, stats_snapshot
from api.dashboard.failure import Failure, LostObject, failure_of_read, lost_object, topic_failure
from api.dashboard.formats import shorten
from api.dashboard.lost_objects import LossCache, breaks_raw_reads, needed_bytes, stored_bytes
from api.dashboard.message_browser import LOOKUP_MS, Deadline
from api.dashboard.policy_table import PolicyRow, policy_rows
from api.dashboard.run_chart import (
    PHASES,
    EarlyEndReason,
    RunChart,
    RunQuantity,
    draw_chart,
    early_end_reasons,
    messages_in_and_out,
)
from api.dashboard.schema_versions import SchemaHistory, schema_history
from api.dashboard.topic_clients import TopicClients, topic_clients
from api.dashboard.topic_picture import (
    CURSOR,
    GARBAGE,
    HORIZON,
    LIVE,
    READER,
    SEALED,
    START,
    UNSEALED,
    Extent,
    Mark,
    Picture,
    draw_picture,
)
from api.dashboard.topic_status import TopicStatus, topic_status
from api.dashboard.topics_table import CompactionStates, TopicRow, cleanable_ratio
from api.http.problems import public_reason
from api.observability.error_text import PAGE_WITH_STEPS_WORDING
from api.observability.redaction import redacted
from api.reports import compaction_control_document, run_document
from compactor.scheduling.backlog import Backlog
from storage.advice import AdviceWording
from storage.errors import CompactorError, failure_phrase
from storage.ledger.manifest import Manifest, Part, read_manifest
from storage.ledger.names import ObjectKind
from storage.metadata.records import (
    COMPACTION_CURSOR,
    CompactedLedgerRecord,
    RunState,
    SegmentRecord,
    TopicSnapshot,
    TopicSummary,
)
from storage.model import LedgerRecord, Message, TopicName
from storage.topic import Topic as OpenTopic

RUNS_IN_CHART = 50
RUNS_IN_TABLE = 10


class ListedRun(NamedTuple):
    """A run in the table of a topic's page, with the number of messages that it read and left; None: it has not counted
    them."""

    run: dict[str, Any]
    messages_in: int | None
    messages_out: int | None


@dataclass(frozen=True)
class TopicView:
    """The content of a topic's page.

    `garbage`: rows of the compacted ledger that no read returns. `failure`: that of the last run, or of the manifest.
    `can_read_compacted`: the compacted ledger can be read as far as is known, or there is none. `has_raw_loss`:
    a read has met a lost object of a raw ledger. `unserved`: log directories with unsealed messages of the topic that
    no live service has.
    """

    name: TopicName
    status: TopicStatus
    stats: StatsSnapshot
    compacted: CompactedLedgerRecord | None
    picture: Picture
    backlog: Backlog
    control: Mapping[str, Any]
    runs: Sequence[dict[str, Any]]
    chart: RunChart
    early_end_reasons: Sequence[EarlyEndReason]
    clients: TopicClients
    schemas: SchemaHistory
    policies: Sequence[PolicyRow]
    garbage: int = 0
    failure: Failure | None = None
    can_read_compacted: bool = True
    has_raw_loss: bool = False
    unserved: Sequence[UnservedLogDirectory] = ()

    @property
    def is_busy(self) -> bool:
        """Return whether a compaction is requested or active; the page then refreshes by itself."""
        return bool(self.control["state"] == "InProgress")

    @property
    def cleanable_ratio(self) -> float | None:
        """Return the cleanable ratio of the topic; None: nothing is sealed."""
        return cleanable_ratio(self.backlog)

    @property
    def was_compacted_recently(self) -> bool:
        """Return whether one of the topic's newest runs published a compacted ledger."""
        return any(run["compacted_ledger"] is not None for run in self.runs)

    def found_nothing_new(self, after: int | None) -> bool:
        """Return whether a request ended without a run, since nothing was new. `after`: the newest run at the request,
        0 for none; None: there was no request."""
        is_idle = not self.is_busy and not self.control["failures"] and not self.control["paused"]
        return after is not None and is_idle and not self.backlog.messages and after == newest_run_number(self.runs)

    @property
    def active_run(self) -> dict[str, Any] | None:
        """Return the document of the active run; None: no run is active."""
        return next((run for run in self.runs if run["state"] == "RUNNING"), None)

    @property
    def listed_runs(self) -> Sequence[ListedRun]:
        """Return the newest runs, which the table of the page lists."""
        return [ListedRun(run, *messages_in_and_out(run)) for run in self.runs[:RUNS_IN_TABLE]]

    @property
    def phases(self) -> Sequence[RunQuantity]:
        """Return the phases that took time in at least one run of the table."""
        return [phase for phase in PHASES if any(phase.value(run) for run in self.runs[:RUNS_IN_TABLE])]


def newest_run_number(runs: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the newest of some runs, the newest first; 0: there is none."""
    return int(runs[0]["run"]) if runs else 0


@dataclass(frozen=True)
class KeyLookup:
    """The result of a look-up of a key: its newest message, also a tombstone, or None.

    `is_sealed_only`: unsealed messages are on another machine, and were not searched. `error`: of a failed lookup.
    """

    key: str
    message: Message | None
    is_sealed_only: bool
    error: CompactorError | None = None

    @property
    def problem(self) -> str:
        """Return the reason why the look-up of a key failed; empty: it succeeded."""
        failure = failure_of_read(self.error)
        if failure is not None and failure.lost is not None and failure.lost.ledger_id is None:
            return failure.what[0].lower() + failure.what.rstrip(".")[1:]  # the public text of the error says less
        return "" if self.error is None else public_reason(self.error, PAGE_WITH_STEPS_WORDING)

    @property
    def has_steps(self) -> bool:
        """Return whether a lost object ended the look-up, so that the page says what to do."""
        return failure_of_read(self.error) is not None


def look_up_key(broker: Broker, name: TopicName, key: str, losses: LossCache) -> KeyLookup:
    """Look up the newest message of a key, and cache the loss that the look-up meets. Waits for the store.

    Raises TopicNotFound.
    """
    record = names.topic(broker.environment, name)
    is_sealed_only = False
    try:
        broker.ownership.check_for_reading(record)
    except NotTheOwner:
        is_sealed_only = True
    should_stop = Deadline(broker.environment.clock, LOOKUP_MS)
    try:
        message = OpenTopic(broker.environment, record).newest_message(
            key.encode(), sealed_only=is_sealed_only, should_stop=should_stop
        )
    except CompactorError as error:
        losses.record_losses(record.id, [error])
        return KeyLookup(key, None, is_sealed_only, error)
    return KeyLookup(key, message, is_sealed_only)


def topic_view(
    broker: Broker,
    name: TopicName,
    *,
    wording: AdviceWording | None,
    with_subscriptions: bool,
    losses: LossCache,
    lookup: KeyLookup | None = None,
) -> TopicView:
    """Return the content of a topic's page. `with_subscriptions`: the picture marks them. `losses`: the lost objects
    that pages have met. `lookup`: the look-up of a key that the page shows. Raises TopicNotFound."""
    environment = broker.environment
    record = names.topic(broker.environment, name)
    # Before anything else: a page that is not busy refreshes no more, so it must have what the last run left.
    control = compaction.controls(environment, name)[0]
    snapshot = environment.metadata.topic_snapshot(record.id)
    stats = stats_snapshot(environment, name)
    backlog = next(iter(broker.backlogs.read([record.id])), None)
    if stats is None or backlog is None:
        raise names.missing_topic_error(broker.environment, name)
    compacted = snapshot.compacted
    manifest, reason, manifest_error = None, "", None
    if compacted is not None:
        try:
            manifest = read_manifest(environment.store, compacted.manifest)
        except CompactorError as error:
            reason = failure_phrase(error) if wording is None else redacted(error.message)
            manifest_error = error
    clients = topic_clients(broker, stats, broker.clients.of_topic(name))
    now = environment.clock.now_ms()
    newest = environment.metadata.runs.newest(RUNS_IN_CHART, topic_ids=[record.id])
    runs = [run_document(name, run, now, wording=wording) for _, run in newest]
    document = compaction_control_document(control, wording=wording)
    running = [(topic, run) for topic, run in newest if run.state is RunState.RUNNING]
    states = CompactionStates({record.id: control.control}, running, now)
    (row,) = states.rows_with_states([TopicRow(_topic_summary(snapshot), backlog)])
    lost = lost_object(control.control.last_error) if row.is_unreadable or control.control.failures else None
    needed = 0 if lost is None else needed_bytes(lost.name, snapshot, manifest)
    size = None if lost is None else stored_bytes(environment.store, lost)
    # A damaged object has been restored when a run has read all of it, and the manifest when it can be read.
    ledger_ids = {None, None if compacted is None else compacted.ledger_id}
    is_back = (
        lost is not None
        and lost.ledger_id in ledger_ids
        and manifest_error is None
        and (lost.kind is ObjectKind.MANIFEST or (lost.is_missing and size is not None and size >= needed))
    )
    can_read = manifest_error is None and (is_back or not row.is_unreadable)
    failure = topic_failure(
        name,
        control.control.last_error,
        document["last_error"],
        None if compacted is None else compacted.ledger_id,
        manifest_error,
        reason,
        is_raw_whole=not stats.first_offset,
        is_restored=is_back,
        is_truncated=size is not None and size < needed,
    )
    met = None if lookup is None else failure_of_read(lookup.error)
    raw_error = losses.current_raw_loss(environment.store, snapshot)
    if met is None:
        met = failure_of_read(losses.current_compacted_loss(environment.store, snapshot, manifest)) or failure_of_read(
            raw_error
        )
    if met is not None and met.lost is not None and met.lost.ledger_id in ledger_ids:
        if met.lost.breaks_compacted_reads(met.lost.ledger_id):
            lost, can_read = (met.lost if can_read else lost), False
        if failure is None or failure.is_over or failure.lost is None:
            failure = replace(met, error=document["last_error"] or "")
    row = replace(row, is_unreadable=not can_read)
    unserved = _unserved_logs(broker, snapshot)
    return TopicView(
        name,
        topic_status(
            row,
            backlog,
            control.control,
            None if compacted is None else compacted.messages,
            now,
            is_waiting=bool(unserved),
            is_raw_lost=breaks_raw_reads(raw_error),
        ),
        stats,
        compacted,
        _draw_topic_picture(
            snapshot, stats, manifest, clients if with_subscriptions else None, None if can_read else lost
        ),
        backlog,
        document,
        runs,
        draw_chart(runs),
        early_end_reasons(runs),
        clients,
        schema_history(broker.schemas, name),
        policy_rows(environment.metadata.policies.resolve_policies(record)),
        0 if manifest is None else sum(part.dead for part in manifest.parts),
        failure,
        can_read,
        raw_error is not None,
        unserved,
    )


def _unserved_logs(broker: Broker, snapshot: TopicSnapshot) -> list[UnservedLogDirectory]:
    """Return the log directories without a live service in which the topic has unsealed messages."""
    own = broker.environment.log.known_uid
    if all(segment.log_uid == own for segment in snapshot.segments):
        return []
    return [log for log in broker.ownership.unserved_log_directories() if snapshot.topic.name in log.topics]


def _topic_summary(snapshot: TopicSnapshot) -> TopicSummary:
    """Return the summary of a topic, as the table of topics has it, from a snapshot."""
    rolled = [segment.content for segment in snapshot.segments if segment.content is not None]
    compacted = snapshot.compacted
    return TopicSummary(
        snapshot.topic.id,
        snapshot.topic.name,
        len(snapshot.ledgers),
        sum(ledger.messages for ledger in snapshot.ledgers),
        sum(ledger.logical_bytes for ledger in snapshot.ledgers),
        None if compacted is None else compacted.ledger_id,
        None if compacted is None else compacted.logical_bytes,
        None if compacted is None else compacted.created_at,
        sum(content.messages for content in rolled),
        sum(content.logical_bytes for content in rolled),
    )


def _draw_topic_picture(
    snapshot: TopicSnapshot,
    stats: StatsSnapshot,
    manifest: Manifest | None,
    clients: TopicClients | None,
    lost: LostObject | None,
) -> Picture:
    """Draw the picture of a topic. `clients` None: leave out subscriptions and readers. `lost`: an object that parts
    need."""
    extents = [_raw_extent(extent, stats.end_offset) for extent in snapshot.extents]
    parts = () if manifest is None else manifest.parts
    lost_parts = [] if lost is None else [part for part in parts if _part_needs_object(part, lost.name)]
    for part in parts:
        if part in lost_parts:
            continue
        extents.append(Extent(LIVE, part.first.offset, part.last.offset, part.live))
        extents.append(Extent(GARBAGE, part.first.offset, part.last.offset, part.dead))
    marks = [] if clients is None else _client_marks(clients)
    horizon_end = None
    if snapshot.compacted is not None:
        horizon = snapshot.compacted.horizon.offset
        horizon_end = horizon + 1
        title = f"the horizon: compacted up to offset {horizon:,}"
        marks.append(Mark(HORIZON, horizon_end, title, f"compacted up to {horizon:,}"))
    if stats.first_offset:
        title = f"the first offset that can be read raw: {stats.first_offset:,}"
        marks.append(Mark(START, stats.first_offset, title, f"raw from {stats.first_offset:,}"))
    unreadable = range(0)
    if manifest is None:
        unreadable = range(horizon_end or 0)
    elif lost_parts:
        unreadable = range(lost_parts[0].first.offset, lost_parts[-1].last.offset + 1)
    drawn = [extent for extent in extents if extent.messages]
    return draw_picture(drawn, marks, stats.end_offset, horizon_end, unreadable)


def _part_needs_object(part: Part, object_name: str) -> bool:
    """Return whether reads of a part need an object."""
    return object_name == part.rows.stored.name or (part.deleted is not None and object_name == part.deleted.name)


def _client_marks(clients: TopicClients) -> list[Mark]:
    """Return the marks of subscriptions and readers in the picture. A reader's mark is the offset that the service
    sends next: its client may hold messages before it that the program has not read yet."""
    marks = []
    for name, cursor in clients.cursors.items():
        if name != COMPACTION_CURSOR:
            end = cursor.record.mark_delete_offset + 1
            title = f"subscription {name}: all before offset {end:,} is acknowledged"
            marks.append(Mark(CURSOR, end, title, f"{shorten(name)} at {end:,}"))
    for name, end in clients.reader_next_offsets.items():
        if consumers := clients.stats.subscriptions[name].consumers:
            title = f"reader {name}: all before offset {end:,} is sent"
            called = consumers[0].consumer_name or name
            marks.append(Mark(READER, end, title, f"reader {shorten(called)} at {end:,}"))
    return marks


def _raw_extent(extent: LedgerRecord | SegmentRecord, end: int) -> Extent:
    if isinstance(extent, LedgerRecord):
        return Extent(SEALED, extent.first_offset, extent.last_offset, extent.messages)
    last = end - 1 if extent.content is None else extent.content.last_offset
    return Extent(UNSEALED, extent.first_offset, max(last, extent.first_offset), last - extent.first_offset + 1)
