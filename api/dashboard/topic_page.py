"""Content of a topic's page, from one moment of SQL, the manifest of the compacted ledger and the connected clients.

If the manifest cannot be read, the page states the reason, and its picture lacks the compacted parts. Everything else
stays, since an operator then needs the last error, the time of the next try, and the buttons. A lost part is known from
the error of the run that read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.broker import compaction, names
from api.broker.broker import Broker
from api.broker.ownership import UnservedLog
from api.broker.refusals import NotTheOwner
from api.broker.serving.connected_clients import LiveTopicState
from api.broker.stats import StatsSnapshot, stats_snapshot
from api.dashboard.policy_table import PolicyRow, policy_rows
from api.dashboard.run_chart import EndedRuns, RunChart, chart, ended_early
from api.dashboard.schema_versions import SchemaHistory, schema_history
from api.dashboard.topic_clients import TopicClients, topic_clients
from api.dashboard.topic_picture import GARBAGE, LIVE, SEALED, UNSEALED, Extent, Mark, Picture, draw
from api.http.problems import public_reason
from api.observability.redaction import redacted
from api.reports import control_document, run_document
from compactor.scheduling.backlog import Backlog, BacklogReader
from storage.advice import Words
from storage.errors import CompactorError
from storage.ledger.manifest import Manifest, read_manifest
from storage.metadata.records import CompactedLedgerRecord, SegmentRecord, TopicSnapshot
from storage.model import LedgerRecord, Message, TopicName
from storage.topic import Topic as OpenTopic

RUNS_IN_CHART = 50
RUNS_IN_TABLE = 10


@dataclass(frozen=True)
class TopicView:
    """The content of a topic's page.

    `problem`: the reason why the manifest cannot be read; else empty. `unserved`: log directories with unsealed
    messages of the topic that no live service has.
    """

    name: TopicName
    stats: StatsSnapshot
    compacted: CompactedLedgerRecord | None
    picture: Picture
    backlog: Backlog
    control: Mapping[str, Any]
    runs: Sequence[dict[str, Any]]
    chart: RunChart
    ended_early: Sequence[EndedRuns]
    clients: TopicClients
    schemas: SchemaHistory
    policies: Sequence[PolicyRow]
    unserved: Sequence[UnservedLog] = ()
    problem: str = ""

    @property
    def is_busy(self) -> bool:
        """Return whether a compaction is requested or active; the page then refreshes by itself."""
        return bool(self.control["state"] == "InProgress")

    @property
    def running(self) -> dict[str, Any] | None:
        """Return the active run, or None."""
        return next((run for run in self.runs if run["state"] == "RUNNING"), None)

    @property
    def newest_runs(self) -> Sequence[dict[str, Any]]:
        """Return the runs that the table lists."""
        return self.runs[:RUNS_IN_TABLE]


@dataclass(frozen=True)
class KeyLookup:
    """The newest message of a key, also a tombstone, or None.

    `is_sealed_only`: unsealed messages are on another machine, and were not searched. `problem`: the reason of a failed
    lookup; else empty.
    """

    key: str
    message: Message | None
    is_sealed_only: bool
    problem: str = ""


def look_up(broker: Broker, name: TopicName, key: str) -> KeyLookup:
    """Look up the newest message of a key. Waits for the store. Raises TopicNotFound."""
    record = names.topic(broker.environment, name)
    is_sealed_only = False
    try:
        broker.ownership.check_for_reading(record)
    except NotTheOwner:
        is_sealed_only = True
    try:
        message = OpenTopic(broker.environment, record).newest(key.encode(), sealed_only=is_sealed_only)
    except CompactorError as error:
        return KeyLookup(key, None, is_sealed_only, public_reason(error))
    return KeyLookup(key, message, is_sealed_only)


def topic_view(broker: Broker, name: TopicName, *, words: Words | None, with_subscriptions: bool) -> TopicView:
    """Return the content of the page. `with_subscriptions`: the picture marks them. Raises TopicNotFound."""
    environment = broker.environment
    record = names.topic(broker.environment, name)
    snapshot = environment.metadata.snapshot(record.id)
    stats = stats_snapshot(environment, name)
    if stats is None:
        raise names.missing(broker.environment, name)
    compacted = snapshot.compacted
    manifest, problem = None, ""
    if compacted is not None:
        try:
            manifest = read_manifest(environment.store, compacted.manifest)
        except CompactorError as error:
            problem = public_reason(error) if words is None else redacted(" ".join(error.worded(words).split()))
    (backlog,) = BacklogReader(environment.metadata, environment.log).of([record.id])
    live = broker.clients.of_topic(name)
    runs = [
        run_document(name, run, environment.clock.now_ms(), words=words)
        for _, run in environment.metadata.runs.newest(RUNS_IN_CHART, topic_ids=[record.id])
    ]
    return TopicView(
        name,
        stats,
        compacted,
        _picture(snapshot, stats, manifest, live if with_subscriptions else None),
        backlog,
        control_document(compaction.controls(environment, name)[0], words=words),
        runs,
        chart(runs),
        ended_early(runs),
        topic_clients(broker, stats, live),
        schema_history(broker.schemas, name),
        policy_rows(environment.metadata.policies.resolved(record)),
        _unserved(broker, snapshot),
        problem,
    )


def _unserved(broker: Broker, snapshot: TopicSnapshot) -> list[UnservedLog]:
    """Return the log directories without a live service in which the topic has unsealed messages."""
    own = broker.environment.log.known_uid
    if all(segment.log_uid == own for segment in snapshot.segments):
        return []
    return [log for log in broker.ownership.unserved_logs() if snapshot.topic.name in log.topics]


def _picture(
    snapshot: TopicSnapshot, stats: StatsSnapshot, manifest: Manifest | None, clients: LiveTopicState | None
) -> Picture:
    """Draw a topic. `clients` None: leave out subscriptions and readers."""
    extents = [_raw(extent, stats.end) for extent in snapshot.extents]
    for part in () if manifest is None else manifest.parts:
        extents.append(Extent(LIVE, part.first.offset, part.last.offset, part.live))
        extents.append(Extent(GARBAGE, part.first.offset, part.last.offset, part.dead))
    marks = [] if clients is None else _client_marks(stats, clients)
    if snapshot.compacted is not None:
        horizon = snapshot.compacted.horizon.offset
        marks.append(Mark("horizon", horizon + 1, f"the horizon: compacted up to offset {horizon:,}"))
    if stats.first:
        marks.append(Mark("start", stats.first, f"the first offset that can be read raw: {stats.first:,}"))
    return draw([extent for extent in extents if extent.messages], marks, stats.end)


def _client_marks(stats: StatsSnapshot, clients: LiveTopicState) -> list[Mark]:
    marks = [
        Mark(
            "cursor",
            cursor.record.mark + 1,
            f"subscription {cursor.record.name}: next is offset {cursor.record.mark + 1:,}",
        )
        for cursor in stats.stats.cursors
        if cursor.record.name != "__compaction"
    ]
    marks += [
        Mark("reader", reader.delivered_end, f"reader {reader_name}: has got what is before {reader.delivered_end:,}")
        for reader_name, reader in clients.subscriptions.items()
        if not reader.stats.durable and reader.stats.consumers
    ]
    return marks


def _raw(extent: LedgerRecord | SegmentRecord, end: int) -> Extent:
    if isinstance(extent, LedgerRecord):
        return Extent(SEALED, extent.first_offset, extent.last_offset, extent.messages)
    last = end - 1 if extent.content is None else extent.content.last_offset
    return Extent(UNSEALED, extent.first_offset, max(last, extent.first_offset), last - extent.first_offset + 1)
