"""The content of a topic's page, from one moment of SQL and, where the topic is compacted, its manifest.

A manifest that cannot be read leaves the page as it is, with the reason and without the compacted parts in its picture:
it is then that an operator needs the last error, the time of the next try, and the buttons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from api.broker import names
from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.broker.serving.connected_clients import LiveTopicState
from api.broker.stats import StatsSnapshot, stats_snapshot
from api.dashboard.formats import count, share, size
from api.dashboard.message_browser import text_of
from api.dashboard.policy_table import PolicyRow, policy_rows
from api.dashboard.run_timeline import bar, longest_ms
from api.dashboard.topic_picture import Extent, Mark, draw
from api.http.problems import HTTP_WORDS, public_reason
from api.observability.redaction import redacted
from api.reports import run_document
from api.rest.compaction.runs import get_compaction_control
from compactor.scheduling.backlog import Backlog, BacklogReader
from storage.errors import CompactorError
from storage.ledger.manifest import Manifest, read_manifest
from storage.metadata.records import CompactedLedgerRecord, SegmentRecord, TopicSnapshot
from storage.model import LedgerRecord, Message, TopicName
from storage.topic import Topic as OpenTopic

RUNS_SHOWN = 20
_VALUE_CHARACTERS = 4_000


@dataclass(frozen=True)
class TopicView:
    """A topic as its page shows it. `threshold_share`: how much of the threshold in bytes the backlog is, 0 to 1 and
    more; None: there is no threshold. `problem`: why its manifest cannot be read; empty: it can."""

    name: TopicName
    stats: StatsSnapshot
    compacted: CompactedLedgerRecord | None
    picture: Markup
    backlog: Backlog
    threshold_share: float | None
    control: Any
    runs: Sequence[dict[str, Any]]
    policies: Sequence[PolicyRow]
    problem: str = ""

    @property
    def is_busy(self) -> bool:
        """Return whether a compaction is requested or under way: the page then refreshes by itself."""
        return bool(self.control.state == "InProgress")

    @property
    def running(self) -> dict[str, Any] | None:
        """Return the run that is under way; None: there is none."""
        return next((run for run in self.runs if run["state"] == "RUNNING"), None)

    @property
    def timelines(self) -> Mapping[int, Markup]:
        """Return the timeline of each run by its number."""
        longest = longest_ms(self.runs)
        return {run["run"]: bar(run, longest) for run in self.runs}


@dataclass(frozen=True)
class KeyLookup:
    """The newest message of a key, also a tombstone; None: there is none. `is_sealed_only`: what is not sealed yet is
    on another machine, and was not asked. `problem`: why it could not be looked up; empty: it was."""

    key: str
    message: Message | None
    is_sealed_only: bool
    problem: str = ""

    @property
    def value(self) -> str:
        """Return the value as text, or as base64 if it is not UTF-8, cut if it is long."""
        return text_of((self.message.payload if self.message else None) or b"", _VALUE_CHARACTERS)


def look_up(broker: Broker, name: TopicName, key: str) -> KeyLookup:
    """Look up the newest message of a key, in a thread that may wait for the store. Raises RestException (404)."""
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


def topic_view(broker: Broker, name: TopicName, *, in_full: bool, with_subscriptions: bool) -> TopicView:
    """Return what the page shows. `with_subscriptions`: the picture marks them. Raises RestException (404)."""
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
            problem = redacted(" ".join(error.worded(HTTP_WORDS).split())) if in_full else public_reason(error)
    (backlog,) = BacklogReader(environment.metadata, environment.log).of([record.id])
    threshold = backlog.triggers.threshold_bytes
    return TopicView(
        name,
        stats,
        compacted,
        _picture(snapshot, stats, manifest, broker.clients.of_topic(name) if with_subscriptions else None),
        backlog,
        backlog.bytes / threshold if threshold else None,
        get_compaction_control(broker, name, in_full)[0],
        [
            run_document(name, run, environment.clock.now_ms(), in_full=in_full)
            for _, run in environment.metadata.runs.newest(RUNS_SHOWN, topic_ids=[record.id])
        ],
        policy_rows(environment.metadata.policies.resolved(record)),
        problem,
    )


def _picture(
    snapshot: TopicSnapshot, stats: StatsSnapshot, manifest: Manifest | None, clients: LiveTopicState | None
) -> Markup:
    """Draw a topic. `clients` None: without subscriptions and readers."""
    raw = [_raw(extent, stats.end) for extent in snapshot.extents]
    parts = [] if manifest is None else [_part(number, part) for number, part in enumerate(manifest.parts)]
    marks = [] if clients is None else _client_marks(stats, clients)
    if snapshot.compacted is not None:
        horizon = snapshot.compacted.horizon
        marks.append(
            Mark(
                "horizon",
                horizon.offset + 1,
                f"horizon: compacted up to offset {horizon.offset:,}, {horizon.message_id}",
            )
        )
    if stats.first:
        marks.append(Mark("start", stats.first, f"the first offset that can be read raw: {stats.first:,}"))
    return draw(raw, parts, marks, stats.end)


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
        if not reader.clients.durable and reader.clients.consumers
    ]
    return marks


def _raw(extent: LedgerRecord | SegmentRecord, end: int) -> Extent:
    if isinstance(extent, LedgerRecord):
        title = (
            f"ledger {extent.ledger_id}: offsets {extent.first_offset:,} to {extent.last_offset:,}, "
            f"{count(extent.messages)} messages, {size(extent.logical_bytes)}"
        )
        return Extent("ledger", extent.first_offset, extent.last_offset, title)
    if extent.content is None:
        title = f"open segment {extent.ledger_id}: from offset {extent.first_offset:,}"
        return Extent("open", extent.first_offset, max(end - 1, extent.first_offset), title)
    title = (
        f"segment {extent.ledger_id}, not sealed yet: offsets {extent.first_offset:,} to {extent.content.last_offset:,}"
    )
    return Extent("segment", extent.first_offset, extent.content.last_offset, title)


def _part(number: int, part: Any) -> Extent:
    deleted = 0 if part.deleted is None else part.deleted.cardinality
    garbage = deleted / part.messages if part.messages else 0.0
    title = (
        f"compacted part {number}: offsets {part.first.offset:,} to {part.last.offset:,}, "
        f"{count(part.messages - deleted)} messages, {size(part.logical_bytes)}, {share(garbage)} garbage"
    )
    return Extent("part", part.first.offset, part.last.offset, title, garbage)
