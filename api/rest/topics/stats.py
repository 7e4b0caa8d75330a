"""Stats of topics and partitioned topics. They cost a few statements, whatever a topic holds (stats_snapshot.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Query, Request
from pydantic import BaseModel

from api.broker.serving.connected_clients import TopicClients
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException
from api.http.router import Routes
from api.rest import resolve
from api.rest.topics.lookup import service_urls
from api.rest.topics.stats_models import (
    EXCLUSIVE,
    ONE_ACTIVE,
    CompactionStats,
    OfflineTopicStats,
    PartitionedMetadata,
    PartitionedTopicStats,
    SubscriptionStats,
    TopicStats,
)
from api.rest.topics.stats_snapshot import StatsSnapshot, compaction_stats, stats_snapshot
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, PartitionedTopic
from storage.metadata.stats import CursorStatsRecord
from storage.model import TopicName
from storage.options.policies import TopicPolicies

router = Routes("stats")

Precise = Annotated[bool, Query(alias="getPreciseBacklog", description="Single acknowledgements are always counted.")]
Sizes = Annotated[bool, Query(alias="subscriptionBacklogSize", description="With the backlog's bytes; else -1.")]
Earliest = Annotated[bool, Query(alias="getEarliestTimeInBacklog", description="With the oldest publish time; else 0.")]
PerPartition = Annotated[bool, Query(alias="perPartition", description="With the stats of each partition.")]
FLOW_TIME = "lastConsumedFlowTimestamp"


@dataclass(frozen=True)
class ExcludedClients:
    """The clients that a caller leaves out of stats: their counts and rates stay."""

    publishers: bool = False
    consumers: bool = False


ALL_CLIENTS = ExcludedClients()


async def excluded_clients(
    publishers: Annotated[bool, Query(alias="excludePublishers", description="Without the list of producers.")] = False,
    consumers: Annotated[bool, Query(alias="excludeConsumers", description="Without the lists of consumers.")] = False,
) -> ExcludedClients:
    """A route's dependency: the clients that the answer leaves out."""
    return ExcludedClients(publishers, consumers)


Excluded = Annotated[ExcludedClients, Depends(excluded_clients)]
NOT_COUNTED = -1
"""A subscription's backlog in bytes, where it was not asked for."""


@router.get(TOPIC_PATH + "/stats", *ANY_USE, waits_for=WaitsFor.LOG, response_model_exclude_none=True)
def get_stats(
    broker: Broker,
    request: Request,
    topic: Topic,
    precise: Precise = False,
    sizes: Sizes = True,
    earliest: Earliest = False,
    excluded: Excluded = ALL_CLIENTS,
) -> TopicStats:
    """A topic's stats."""
    found = of_topic(broker, topic, times=True)
    broker.ownership.check_for_clients(found.stats.topic)
    policies = broker.environment.metadata.policies.effective(found.stats.topic)
    shown = topic_stats(found, policies, _owner(broker, request), sizes=sizes, earliest=earliest)
    return with_clients(shown, found, broker.clients.of_topic(topic), excluded)


@router.get(TOPIC_PATH + "/partitioned-stats", *ANY_USE, waits_for=WaitsFor.LOG, response_model_exclude_none=True)
def get_partitioned_stats(
    broker: Broker,
    request: Request,
    topic: Topic,
    per_partition: PerPartition = True,
    precise: Precise = False,
    sizes: Sizes = True,
    earliest: Earliest = False,
    excluded: Excluded = ALL_CLIENTS,
) -> PartitionedTopicStats:
    """The stats of all partitions, summed, and, unless `perPartition=false`, each by itself."""
    whole = partitioned(broker, topic)
    owner = _owner(broker, request)
    policies: TopicPolicies | None = None
    each = {}
    for name in resolve.partition_names(whole):
        found = stats_snapshot(broker, name, times=True)
        if found is not None:
            # What is set is set for the whole, so the first partition's are those of all.
            policies = policies or broker.environment.metadata.policies.effective(found.stats.topic)
            one = topic_stats(found, policies, owner, sizes=sizes, earliest=earliest)
            each[str(name)] = with_clients(one, found, broker.clients.of_topic(name), excluded)
    summed = PartitionedTopicStats.model_validate(summed_fields(list(each.values())))
    summed.metadata = PartitionedMetadata(partitions=whole.partitions)
    summed.oldest_backlog_message_age_seconds = 0
    if per_partition:
        summed.partitions = each
    for item in (summed, *each.values()):
        if COMPACTION_CURSOR in item.subscriptions:
            item.subscriptions[COMPACTION_CURSOR].type = EXCLUSIVE
    return summed


@router.get(TOPIC_PATH + "/backlog", *ANY_USE, waits_for=WaitsFor.LOG)
def get_backlog(broker: Broker, request: Request, topic: Topic) -> OfflineTopicStats:
    """How much a topic holds, and how much of it is before its slowest cursor."""
    found = of_topic(broker, topic)
    backlogs = {cursor.record.name: found.backlog(cursor) for cursor in found.stats.cursors}
    return OfflineTopicStats(
        topic_name=f"{topic.tenant}/{topic.namespace}/persistent/{topic.topic}",
        broker_name=urlsplit(service_urls(broker, request)[0]).hostname or "",
        storage_size=found.size,
        total_messages=found.end - found.first,
        message_backlog=max(backlogs.values(), default=0),
        cursor_details={
            name: {"cursorBacklog": backlog, "cursorLedgerId": -1} for name, backlog in backlogs.items() if backlog
        },
        stat_generated_at=broker.environment.clock.now_ms(),
    )


def of_topic(broker: Broker, topic: TopicName, *, lines: bool = False, times: bool = False) -> StatsSnapshot:
    """404 in the words of a broker; for a partitioned topic it names the calls to use instead."""
    found = stats_snapshot(broker, topic, lines=lines, times=times)
    if found is None:
        error = resolve.not_found(broker, topic)
        if broker.environment.metadata.partitions.find(topic) is not None:
            whole = "it is a partitioned topic, ask for partitioned-stats or partitioned-internalStats"
            raise RestException(404, f"{error.detail}: {whole}")
        raise error
    return found


def partitioned(broker: Broker, topic: TopicName) -> PartitionedTopic:
    """404 for one that is none."""
    whole = broker.environment.metadata.partitions.find(topic)
    if whole is None:
        raise RestException(404, f"Partitioned Topic not found: {topic} has zero partitions")
    return whole


def topic_stats(
    found: StatsSnapshot, policies: TopicPolicies, owner: str, *, sizes: bool, earliest: bool
) -> TopicStats:
    """The stats of one topic."""
    stats = found.stats
    waiting = [cursor for cursor in stats.cursors if found.backlog(cursor)]
    return TopicStats(
        bytes_in_counter=found.size,
        msg_in_counter=found.end,
        storage_size=found.size,
        backlog_size=max((found.backlog_bytes(cursor) for cursor in stats.cursors), default=0),
        backlog_quota_limit_size=policies.backlog_quota_bytes,
        backlog_quota_limit_time=policies.backlog_quota_seconds,
        earliest_msg_publish_time_in_backlogs=_earliest(waiting) if earliest else 0,
        subscriptions={cursor.record.name: _subscription(found, cursor, sizes, earliest) for cursor in stats.cursors},
        deduplication_status="Disabled",
        non_contiguous_deleted_messages_ranges=sum(cursor.ranges for cursor in stats.cursors),
        compaction=compaction_stats(stats),
        owner_broker=owner,
        topic_creation_time_stamp=stats.topic.created_at,
        last_publish_time_stamp=found.last_publish_time,
    )


def with_clients(
    shown: TopicStats, snapshot: StatsSnapshot, clients: TopicClients, excluded: ExcludedClients = ALL_CLIENTS
) -> TopicStats:
    """Add the producers and consumers that are connected to this service; of their subscriptions the backlog of now."""
    for name, value in clients.fields.items():
        setattr(shown, name, value)
    if not excluded.publishers:
        shown.publishers = [dict(item) for item in clients.publishers]
    for name, subscription in clients.subscriptions.items():
        found = shown.subscriptions.setdefault(name, SubscriptionStats())
        for field, value in subscription.fields.items():
            setattr(found, field, value)
        backlog = subscription.backlog(snapshot.end, snapshot.first)
        if backlog is not None:
            found.msg_backlog = backlog
            found.msg_backlog_no_delayed = max(backlog - found.msg_delayed, 0)
        consumers = [{FLOW_TIME: 0, **item} for item in subscription.consumers]
        found.last_consumed_flow_timestamp = max((int(item[FLOW_TIME]) for item in consumers), default=0)
        if found.active_consumer_name is None and found.type in ONE_ACTIVE and len(consumers) == 1:
            found.active_consumer_name = str(consumers[0].get("consumerName", ""))
        if not excluded.consumers:
            found.consumers = consumers
    return shown


def summed_fields(each: Sequence[TopicStats]) -> dict[str, object]:
    """The fields of the sum of several topics; of subscriptions by name, of compactions the newest times."""
    if not each:
        return {}
    names = sorted({name for item in each for name in item.subscriptions})
    runs = [item.compaction for item in each]
    oldest = [item.earliest_msg_publish_time_in_backlogs for item in each if item.earliest_msg_publish_time_in_backlogs]
    return {
        **_folded(sum, each, _COUNTED),
        "subscriptions": {
            name: _summed_subscription([item.subscriptions[name] for item in each if name in item.subscriptions])
            for name in names
        },
        "compaction": CompactionStats.model_validate(
            _folded(sum, runs, ["last_compaction_removed_event_count"]) | _folded(max, runs, _NEWEST)
        ),
        "earliest_msg_publish_time_in_backlogs": min(oldest, default=0),
        "backlog_quota_limit_size": each[-1].backlog_quota_limit_size,
        "backlog_quota_limit_time": each[-1].backlog_quota_limit_time,
        **_folded(min, each, ["topic_creation_time_stamp"]),
        **_folded(max, each, ["last_publish_time_stamp"]),
    }


_COUNTED = (
    "bytes_in_counter",
    "msg_in_counter",
    "storage_size",
    "backlog_size",
    "non_contiguous_deleted_messages_ranges",
)
_COUNTED_OF_SUBSCRIPTION = (
    "msg_backlog",
    "backlog_size",
    "msg_backlog_no_delayed",
    "non_contiguous_deleted_messages_ranges",
)
_NEWEST = (
    "last_compaction_succeed_timestamp",
    "last_compaction_failed_timestamp",
    "last_compaction_duration_time_in_mills",
)


def _folded(fold: Callable[[Iterable[int]], int], each: Sequence[BaseModel], names: Iterable[str]) -> dict[str, object]:
    """Fields by name, each the sum, minimum or maximum of those of several models."""
    return {name: fold(getattr(item, name) for item in each) for name in names}


def _subscription(found: StatsSnapshot, cursor: CursorStatsRecord, sizes: bool, earliest: bool) -> SubscriptionStats:
    backlog = found.backlog(cursor)
    text = {name: value for name, value in cursor.record.properties.items() if name != COMPACTED_LEDGER_PROPERTY}
    return SubscriptionStats(
        msg_backlog=backlog,
        backlog_size=found.backlog_bytes(cursor) if sizes else NOT_COUNTED,
        earliest_msg_publish_time_in_backlog=cursor.oldest_publish_time if earliest and backlog else 0,
        msg_backlog_no_delayed=backlog,
        non_contiguous_deleted_messages_ranges=cursor.ranges,
        subscription_properties=text,
    )


def _summed_subscription(each: Sequence[SubscriptionStats]) -> SubscriptionStats:
    properties = {k: v for item in each for k, v in item.subscription_properties.items()}
    counted = _folded(sum, each, _COUNTED_OF_SUBSCRIPTION)
    return SubscriptionStats.model_validate(counted | {"subscription_properties": properties})


def _earliest(cursors: Iterable[CursorStatsRecord]) -> int:
    return min((cursor.oldest_publish_time for cursor in cursors if cursor.oldest_publish_time), default=0)


def _owner(broker: Broker, request: Request) -> str:
    """Host and port of this service."""
    return urlsplit(service_urls(broker, request)[0]).netloc
