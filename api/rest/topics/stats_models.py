"""Stats as Pulsar 4.2 has them: every field, in its order, at its default; a field of None is left out, as there.

What this service has none of (consumers, publishers, rates, replication, offloading, transactions) stays at its
default. Source: the classes that Pulsar's admin client reads, as they write themselves.
"""

from __future__ import annotations

from pydantic import Field

from api.broker.serving.connected_clients import NO_CONSUMER
from api.rest.models import PulsarAnswer

NO_LIMIT = -1


class CompactionStats(PulsarAnswer):
    """Results of the newest compactions."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0


class SubscriptionStats(PulsarAnswer):
    """A durable subscription: a cursor."""

    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    msg_backlog: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    msg_delayed: int = 0
    msg_in_replay: int = 0
    unacked_messages: int = 0
    type: str = NO_CONSUMER
    active_consumer_name: str | None = None
    msg_rate_expired: float = 0.0
    msg_expired: int = 0
    total_msg_expired: int = 0
    last_expire_timestamp: int = 0
    last_consumed_flow_timestamp: int = 0
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    last_mark_delete_advanced_timestamp: int = 0
    consumers: list[dict[str, object]] = Field(default_factory=list)
    is_durable: bool = True
    is_replicated: bool = False
    allow_out_of_order_delivery: bool = False
    consumers_after_mark_delete_position: dict[str, str] = Field(default_factory=dict)
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    subscription_properties: dict[str, str] = Field(default_factory=dict)
    filter_processed_msg_count: int = 0
    filter_accepted_msg_count: int = 0
    filter_rejected_msg_count: int = 0
    filter_rescheduled_msg_count: int = 0
    dispatch_throttled_msg_events_by_subscription_limit: int = 0
    dispatch_throttled_bytes_events_by_subscription_limit: int = 0
    dispatch_throttled_msg_events_by_topic_limit: int = 0
    dispatch_throttled_bytes_events_by_topic_limit: int = 0
    dispatch_throttled_msg_events_by_broker_limit: int = 0
    dispatch_throttled_bytes_events_by_broker_limit: int = 0
    durable: bool = True
    replicated: bool = False


class TopicStats(PulsarAnswer):
    """A topic. `msgInCounter` is every message that it ever got, `bytesInCounter` what is left of their bytes."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_in_counter: int = 0
    msg_in_counter: int = 0
    system_topic_bytes_in_counter: int = 0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    bytes_out_internal_counter: int = 0
    average_msg_size: float = 0.0
    msg_chunk_published: bool = False
    storage_size: int = 0
    backlog_size: int = 0
    backlog_quota_limit_size: int = NO_LIMIT
    backlog_quota_limit_time: int = NO_LIMIT
    oldest_backlog_message_age_seconds: int = NO_LIMIT
    publish_rate_limited_times: int = 0
    earliest_msg_publish_time_in_backlogs: int = 0
    offloaded_storage_size: int = 0
    last_offload_ledger_id: int = 0
    last_offload_success_time_stamp: int = 0
    last_offload_failure_time_stamp: int = 0
    ongoing_txn_count: int = 0
    aborted_txn_count: int = 0
    committed_txn_count: int = 0
    publishers: list[dict[str, object]] = Field(default_factory=list)
    waiting_publishers: int = 0
    subscriptions: dict[str, SubscriptionStats] = Field(default_factory=dict)
    replication: dict[str, dict[str, object]] = Field(default_factory=dict)
    deduplication_status: str | None = None
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    compaction: CompactionStats = Field(default_factory=CompactionStats)
    owner_broker: str | None = None
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0


class PartitionedMetadata(PulsarAnswer):
    """The number of partitions of a topic."""

    partitions: int = 0
    deleted: bool = False


class PartitionedTopicStats(TopicStats):
    """The sum of the partitions, and each, by its full name, unless `perPartition=false`."""

    metadata: PartitionedMetadata = Field(default_factory=PartitionedMetadata)
    partitions: dict[str, TopicStats] = Field(default_factory=dict)


class LedgerInfo(PulsarAnswer):
    """A ledger, or the segment that will be one."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    offloaded: bool = False
    metadata: str | None = None
    under_replicated: bool = False


class CursorStats(PulsarAnswer):
    """A cursor. Of `__compaction`, `properties` hold the compacted ledger's id."""

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
    """The storage of a topic: ledgers, the compacted ledger, cursors."""

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
    """An entry."""

    ledger_id: int
    entry_id: int


class StoredLedgerInfo(PulsarAnswer):
    """A ledger as metadata has it; the one that is appended to has no numbers yet."""

    ledger_id: int
    entries: int | None = None
    size: int | None = None
    timestamp: int
    is_offloaded: bool = False


class StoredCursorInfo(PulsarAnswer):
    """A cursor as metadata has it."""

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
