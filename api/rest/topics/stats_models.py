"""Stats as Pulsar 4.2 has them: every field, in its order, at its default; a field of None is left out, as there.

The stats of topics are `api/broker/stats_tree.py`. What this service has none of (offloading, pending reads) stays at
its default. Source: the classes that Pulsar's admin client reads, as they write themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from api.broker.stats_tree import TopicStats
from api.rest.models import PulsarAnswer


class PartitionedMetadata(PulsarAnswer):
    """The number of partitions of a topic."""

    partitions: int = 0
    deleted: bool = False


@dataclass(frozen=True)
class PartitionedTopicStats(TopicStats):
    """The sum of the stats of the partitions, and the stats of each by its full name, unless `perPartition=false`."""

    metadata: PartitionedMetadata = field(default_factory=PartitionedMetadata)
    partitions: Mapping[str, TopicStats] = field(default_factory=dict)


class LedgerInfo(PulsarAnswer):
    """A sealed ledger, or a segment that becomes a ledger when it is sealed."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    offloaded: bool = False
    metadata: str | None = None
    under_replicated: bool = False


class CursorStats(PulsarAnswer):
    """The internal stats of a cursor. Of `__compaction`, `properties` hold the compacted ledger's id."""

    mark_delete_position: str
    read_position: str
    waiting_read_op: bool = False
    pending_read_ops: int = 0
    messages_consumed_counter: int = 0
    cursor_ledger: int = -1
    cursor_ledger_last_entry: int = -1
    individually_deleted_messages: str = "[]"
    last_ledger_switch_timestamp: str
    state: str = "Open"
    active: bool = False
    number_of_entries_since_first_not_acked_message: int = 0
    total_non_contiguous_deleted_messages_range: int = 0
    subscription_have_pending_read: bool = False
    subscription_have_pending_replay_read: bool = False
    properties: dict[str, int] = Field(default_factory=dict)


class TopicInternalStats(PulsarAnswer):
    """The internal stats of a topic: its ledgers, its compacted ledger, its cursors."""

    entries_added_counter: int = 0
    number_of_entries: int = 0
    total_size: int = 0
    current_ledger_entries: int = 0
    current_ledger_size: int = 0
    last_ledger_created_timestamp: str
    waiting_cursors_count: int = 0
    pending_add_entries_count: int = 0
    last_confirmed_entry: str
    state: str = "LedgerOpened"
    ledgers: list[LedgerInfo] = Field(default_factory=list)
    cursors: dict[str, CursorStats] = Field(default_factory=dict)
    properties: dict[str, str] = Field(default_factory=dict)
    schema_ledgers: list[LedgerInfo] = Field(default_factory=list)
    compacted_ledger: LedgerInfo


class PartitionedTopicInternalStats(PulsarAnswer):
    """The internal stats of each partition, by its full name."""

    metadata: PartitionedMetadata = Field(default_factory=PartitionedMetadata)
    partitions: dict[str, TopicInternalStats] = Field(default_factory=dict)


class PositionInfo(PulsarAnswer):
    """The position of an entry: ledger id and entry id."""

    ledger_id: int
    entry_id: int


class StoredLedgerInfo(PulsarAnswer):
    """A ledger as stored metadata has it. The open one has neither `entries` nor `size`."""

    ledger_id: int
    entries: int | None = None
    size: int | None = None
    timestamp: int
    is_offloaded: bool = False


class StoredCursorInfo(PulsarAnswer):
    """A cursor as stored metadata has it."""

    version: int = 0
    creation_date: str
    modification_date: str
    cursors_ledger_id: int = -1
    mark_delete: PositionInfo | None = None
    individual_deleted_messages: list[dict[str, object]] | None = None
    properties: dict[str, int] | None = None


class TopicInternalInfo(PulsarAnswer):
    """The metadata of a topic, or, by full name, of the partitions of a partitioned topic."""

    version: int = 0
    creation_date: str | None = None
    modification_date: str | None = None
    ledgers: list[StoredLedgerInfo] | None = None
    cursors: dict[str, StoredCursorInfo] | None = None
    properties: dict[str, str] | None = None
    partitions: dict[str, TopicInternalInfo] | None = None


class OfflineTopicStats(PulsarAnswer):
    """The backlog of the cursors of a topic, with fields in the order of a broker."""

    topic_name: str
    broker_name: str
    storage_size: int = 0
    total_messages: int = 0
    message_backlog: int = 0
    data_ledger_details: list[dict[str, int]] = Field(default_factory=list)
    cursor_details: dict[str, dict[str, int]] = Field(default_factory=dict)
    stat_generated_at: int
