"""Stats of topics as values: the tree that every door renders. It has every field of Pulsar 4.2, in its order.

A field has the name of Pulsar's class in snake case. What this service has none of (replication, offloading,
transactions) stays at its default. Source: the classes that Pulsar's admin client reads, as they write themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NO_LIMIT = -1
NO_CONSUMER = "None"
"""The type of a subscription without consumers."""


@dataclass(frozen=True)
class ProducerStats:
    """The stats of a producer, with the fields of Pulsar's `PublisherStats`."""

    access_mode: str = "Shared"
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    chunked_message_rate: float = 0.0
    producer_id: int = 0
    supports_partial_producer: bool = True
    producer_name: str = ""
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsumerStats:
    """The stats of a consumer or reader, with the fields of Pulsar's `ConsumerStats`; times in milliseconds."""

    last_consumed_flow_timestamp: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    consumer_name: str = ""
    available_permits: int = 0
    unacked_messages: int = 0
    avg_messages_per_entry: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CompactionStats:
    """The stats of a topic's compaction: its last successful and last failed run; milliseconds, 0: never."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0

    @classmethod
    def merge(cls, parts: Sequence[CompactionStats]) -> CompactionStats:
        """Combine the compaction stats of partitions: sum of removed messages, newest times, longest duration."""
        newest = "last_compaction_succeed_timestamp", "last_compaction_failed_timestamp"
        longest = "last_compaction_duration_time_in_mills"
        return cls(
            **_aggregate_fields(sum, parts, "last_compaction_removed_event_count"),
            **_aggregate_fields(max, parts, *newest, longest),
        )


@dataclass(frozen=True)
class SubscriptionStats:
    """The stats of a subscription: the backlog of its cursor, if it has one, and its consumers."""

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
    consumers: tuple[ConsumerStats, ...] = ()
    is_durable: bool = True
    is_replicated: bool = False
    allow_out_of_order_delivery: bool = False
    consumers_after_mark_delete_position: Mapping[str, str] = field(default_factory=dict)
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
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

    @classmethod
    def merge(cls, parts: Sequence[SubscriptionStats]) -> SubscriptionStats:
        """Combine the stats of one subscription in several partitions: sums and all properties, without consumers."""
        counts = _aggregate_fields(
            sum,
            parts,
            "msg_backlog",
            "backlog_size",
            "msg_backlog_no_delayed",
            "non_contiguous_deleted_messages_ranges",
        )
        properties = {name: value for item in parts for name, value in item.subscription_properties.items()}
        return cls(**counts, subscription_properties=properties)


@dataclass(frozen=True)
class TopicStats:
    """The stats of a topic, or the sums of its partitions. `msg_in_counter`: all messages ever appended.
    `bytes_in_counter`: the bytes of the messages that still exist."""

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
    publishers: tuple[ProducerStats, ...] = ()
    waiting_publishers: int = 0
    subscriptions: Mapping[str, SubscriptionStats] = field(default_factory=dict)
    replication: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    deduplication_status: str | None = "Disabled"
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    compaction: CompactionStats = field(default_factory=CompactionStats)
    owner_broker: str | None = None
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0

    @classmethod
    def merge(cls, parts: Sequence[TopicStats]) -> TopicStats:
        """Combine the stats of partitions, without clients: sums, subscriptions by name, newest compaction times.

        Policies are set for all partitions together, so all have the same quotas.
        """
        if not parts:
            return cls(deduplication_status=None)
        counts = _aggregate_fields(
            sum,
            parts,
            "bytes_in_counter",
            "msg_in_counter",
            "storage_size",
            "backlog_size",
            "non_contiguous_deleted_messages_ranges",
        )
        earliest = [time for item in parts if (time := item.earliest_msg_publish_time_in_backlogs)]
        names = sorted({name for item in parts for name in item.subscriptions})
        return cls(
            **counts,
            **_aggregate_fields(min, parts, "topic_creation_time_stamp"),
            **_aggregate_fields(max, parts, "last_publish_time_stamp"),
            earliest_msg_publish_time_in_backlogs=min(earliest, default=0),
            subscriptions={
                name: SubscriptionStats.merge(
                    [item.subscriptions[name] for item in parts if name in item.subscriptions]
                )
                for name in names
            },
            compaction=CompactionStats.merge([item.compaction for item in parts]),
            deduplication_status=None,
            backlog_quota_limit_size=parts[0].backlog_quota_limit_size,
            backlog_quota_limit_time=parts[0].backlog_quota_limit_time,
        )


def _aggregate_fields(fold: Callable[[Iterable[int]], int], parts: Sequence[object], *names: str) -> dict[str, Any]:
    """Return the values of the named fields, each reduced over `parts` by `fold` (sum, min or max)."""
    return {name: fold(getattr(item, name) for item in parts) for name in names}
