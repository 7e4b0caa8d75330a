"""Internal stats of a topic: ledgers, cursors, the compacted ledger; from SQL, without reading any of them."""

from __future__ import annotations

from api.broker import names
from api.broker.stats import EntryPosition, StatsSnapshot, stats_snapshot
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.router import Routes
from api.rest.models import pulsar_time
from api.rest.topics.stats import partitioned_topic, topic_snapshot
from api.rest.topics.stats_models import (
    CursorStats,
    LedgerInfo,
    PartitionedMetadata,
    PartitionedTopicInternalStats,
    PositionInfo,
    StoredCursorInfo,
    StoredLedgerInfo,
    TopicInternalInfo,
    TopicInternalStats,
)
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, CursorRecord, PartitionedTopic
from storage.metadata.stats import CursorStatsRecord

router = Routes("stats")


@router.get(TOPIC_PATH + "/internalStats", *ANY_USE, waits_for=WaitsFor.LOG, response_model_exclude_none=True)
def get_internal_stats(broker: Broker, topic: Topic) -> TopicInternalStats:
    """Return the ledgers and cursors of a topic that is not partitioned."""
    return internal_stats(topic_snapshot(broker, topic, with_ledgers=True))


@router.get(
    TOPIC_PATH + "/partitioned-internalStats", *ANY_USE, waits_for=WaitsFor.LOG, response_model_exclude_none=True
)
def get_partitioned_internal_stats(broker: Broker, topic: Topic) -> PartitionedTopicInternalStats:
    """Return the ledgers and cursors of each partition of a partitioned topic."""
    whole = partitioned_topic(broker, topic)
    return PartitionedTopicInternalStats(
        metadata=PartitionedMetadata(partitions=whole.partitions),
        partitions={name: internal_stats(snapshot) for name, snapshot in _partition_snapshots(broker, whole).items()},
    )


@router.get(TOPIC_PATH + "/internal-info", *ANY_USE, waits_for=WaitsFor.LOG, response_model_exclude_none=True)
def get_internal_info(broker: Broker, topic: Topic) -> TopicInternalInfo:
    """Return the stored metadata of the ledgers and cursors of a topic, or of each partition of a partitioned topic."""
    whole = broker.environment.metadata.partitions.find(topic)
    if whole is None:
        return internal_info(topic_snapshot(broker, topic, with_ledgers=True))
    return TopicInternalInfo(
        partitions={name: internal_info(snapshot) for name, snapshot in _partition_snapshots(broker, whole).items()}
    )


def internal_stats(snapshot: StatsSnapshot) -> TopicInternalStats:
    """Return the internal stats of one topic from its snapshot, which must have been read `with_ledgers`."""
    stats, extents = snapshot.stats, snapshot.extents
    unrolled = next((extent for extent in extents if extent.open), None)
    compacted = stats.compacted
    return TopicInternalStats(
        entries_added_counter=snapshot.entries,
        number_of_entries=snapshot.entries,
        total_size=snapshot.size,
        current_ledger_entries=unrolled.entries if unrolled else 0,
        current_ledger_size=unrolled.size if unrolled else 0,
        last_ledger_created_timestamp=pulsar_time(
            max([stats.topic.created_at, *(extent.created_at for extent in extents)])
        ),
        last_confirmed_entry=str(snapshot.last_entry),
        ledgers=[
            LedgerInfo(ledger_id=extent.ledger_id, entries=extent.entries, size=extent.size) for extent in extents
        ],
        cursors={cursor.record.name: _cursor_stats(snapshot, cursor) for cursor in stats.cursors},
        properties=dict(stats.properties),
        compacted_ledger=LedgerInfo(ledger_id=-1, entries=-1, size=-1)
        if compacted is None
        else LedgerInfo(ledger_id=compacted.ledger_id, entries=compacted.messages, size=compacted.logical_bytes),
    )


def internal_info(snapshot: StatsSnapshot) -> TopicInternalInfo:
    """Return the metadata of ledgers and cursors of one topic from its snapshot, which must have been read
    `with_ledgers`."""
    topic, extents = snapshot.stats.topic, snapshot.extents
    created = pulsar_time(topic.created_at)
    changed = pulsar_time(max([topic.created_at, *(extent.created_at for extent in extents)]))
    return TopicInternalInfo(
        version=topic.generation,
        creation_date=created,
        modification_date=changed,
        ledgers=[
            StoredLedgerInfo(
                ledger_id=extent.ledger_id,
                entries=None if extent.open else extent.entries,
                size=None if extent.open else extent.size,
                timestamp=extent.created_at,
            )
            for extent in extents
        ],
        cursors={
            cursor.record.name: StoredCursorInfo(
                creation_date=created,
                modification_date=changed,
                mark_delete=PositionInfo(**snapshot.mark_delete_entry(cursor)._asdict()),
                properties=_numeric_properties(cursor.record) or None,
            )
            for cursor in snapshot.stats.cursors
        },
    )


def _cursor_stats(snapshot: StatsSnapshot, cursor: CursorStatsRecord) -> CursorStats:
    mark = snapshot.mark_delete_entry(cursor)
    return CursorStats(
        mark_delete_position=str(mark),
        read_position=str(EntryPosition(mark.ledger_id, mark.entry_id + 1)),
        messages_consumed_counter=max(snapshot.end_offset - snapshot.backlog(cursor), 0),
        last_ledger_switch_timestamp=pulsar_time(snapshot.stats.topic.created_at),
        number_of_entries_since_first_not_acked_message=snapshot.messages_since_first_unacknowledged(cursor),
        total_non_contiguous_deleted_messages_range=cursor.ranges,
        properties=_numeric_properties(cursor.record),
    )


def _numeric_properties(record: CursorRecord) -> dict[str, int]:
    """Return the cursor's properties that are numbers, as Pulsar's clients read no others: of `__compaction` the id of
    the compacted ledger."""
    value = record.properties.get(COMPACTED_LEDGER_PROPERTY) if record.name == COMPACTION_CURSOR else None
    return {} if value is None else {COMPACTED_LEDGER_PROPERTY: int(value)}


def _partition_snapshots(broker: Broker, whole: PartitionedTopic) -> dict[str, StatsSnapshot]:
    """Return the snapshots of the partitions that exist, by full name."""
    partitions = names.partition_names(whole)
    snapshots = {str(name): stats_snapshot(broker.environment, name, with_ledgers=True) for name in partitions}
    return {name: snapshot for name, snapshot in snapshots.items() if snapshot is not None}
