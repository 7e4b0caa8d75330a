"""Stats of topics and partitioned topics: with every field of a broker's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Query, Request

from api.broker import names
from api.broker.refusals import PartitionedTopicRefused
from api.broker.serving.consumer import SubscriptionType
from api.broker.stats import StatsSnapshot, stats_snapshot, topic_stats
from api.broker.stats_tree import TopicStats
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, public_reason
from api.http.router import Routes
from api.rest.models import PulsarTree
from api.rest.topics.lookup import service_urls
from api.rest.topics.stats_models import OfflineTopicStats, PartitionedMetadata, PartitionedTopicStats
from storage.metadata.records import COMPACTION_CURSOR, PartitionedTopic
from storage.model import TopicName
from storage.options.policies import TopicPolicies

router = Routes("stats")

PerPartition = Annotated[bool, Query(alias="perPartition", description="With the stats of each partition.")]


@dataclass(frozen=True)
class StatsOptions:
    """The parts of a topic's stats that a caller requests. Counts and rates of excluded clients stay.

    `with_backlog_bytes`: the bytes of backlogs. `with_oldest_publish_times`: the oldest publish time of each backlog.
    """

    with_backlog_bytes: bool
    with_oldest_publish_times: bool
    exclude_publishers: bool
    exclude_consumers: bool


async def stats_options(
    precise: Annotated[
        bool, Query(alias="getPreciseBacklog", description="Single acknowledgements are always counted.")
    ] = False,
    with_backlog_bytes: Annotated[
        bool, Query(alias="subscriptionBacklogSize", description="With the backlog's bytes; else -1.")
    ] = True,
    with_oldest_publish_times: Annotated[
        bool, Query(alias="getEarliestTimeInBacklog", description="With the oldest publish time; else 0.")
    ] = False,
    exclude_publishers: Annotated[
        bool, Query(alias="excludePublishers", description="Without the list of producers.")
    ] = False,
    exclude_consumers: Annotated[
        bool, Query(alias="excludeConsumers", description="Without the lists of consumers.")
    ] = False,
) -> StatsOptions:
    """Return the options of stats in a request's query."""
    return StatsOptions(with_backlog_bytes, with_oldest_publish_times, exclude_publishers, exclude_consumers)


Options = Annotated[StatsOptions, Depends(stats_options)]
_STATS: dict[str, Any] = {"waits_for": WaitsFor.LOG, "response_model_exclude_none": True}


@router.get(TOPIC_PATH + "/stats", *ANY_USE, **_STATS, response_model=PulsarTree[TopicStats])
def get_stats(broker: Broker, request: Request, topic: Topic, options: Options) -> Any:
    """Return the stats of a topic that is not partitioned."""
    snapshot = topic_snapshot(broker, topic, with_last_publish_time=True)
    broker.ownership.check_not_owned_elsewhere(snapshot.stats.topic)
    policies = broker.environment.metadata.policies.effective(snapshot.stats.topic)
    return replace(_requested_stats(broker, snapshot, policies, options), owner_broker=_own_address(broker, request))


@router.get(TOPIC_PATH + "/partitioned-stats", *ANY_USE, **_STATS, response_model=PulsarTree[PartitionedTopicStats])
def get_partitioned_stats(
    broker: Broker, request: Request, topic: Topic, options: Options, per_partition: PerPartition = True
) -> Any:
    """Return the sum of the stats of all partitions and, unless `perPartition=false`, the stats of each partition."""
    whole = partitioned_topic(broker, topic)
    policies: TopicPolicies | None = None
    each: dict[str, TopicStats] = {}
    for name in names.partition_names(whole):
        snapshot = stats_snapshot(broker.environment, name, with_last_publish_time=True)
        if snapshot is not None:
            # Policies are set for the whole topic, so the first partition's are those of all.
            policies = policies or broker.environment.metadata.policies.effective(snapshot.stats.topic)
            each[str(name)] = _with_exclusive_compaction_cursor(_requested_stats(broker, snapshot, policies, options))
    total = _with_exclusive_compaction_cursor(TopicStats.merge(list(each.values())))
    owner = _own_address(broker, request)
    return PartitionedTopicStats(
        **vars(replace(total, oldest_backlog_message_age_seconds=0)),
        metadata=PartitionedMetadata(partitions=whole.partitions),
        partitions={name: replace(stats, owner_broker=owner) for name, stats in each.items()} if per_partition else {},
    )


@router.get(TOPIC_PATH + "/backlog", *ANY_USE, waits_for=WaitsFor.LOG)
def get_backlog(broker: Broker, request: Request, topic: Topic) -> OfflineTopicStats:
    """Return the size of a topic, and the size of the backlog of its slowest cursor."""
    snapshot = topic_snapshot(broker, topic)
    backlogs = {cursor.record.name: snapshot.backlog(cursor) for cursor in snapshot.stats.cursors}
    return OfflineTopicStats(
        topic_name=f"{topic.tenant}/{topic.namespace}/persistent/{topic.topic}",
        broker_name=urlsplit(service_urls(broker, request).http).hostname or "",
        storage_size=snapshot.size,
        total_messages=snapshot.end_offset - snapshot.first_offset,
        message_backlog=max(backlogs.values(), default=0),
        cursor_details={
            name: {"cursorBacklog": backlog, "cursorLedgerId": -1} for name, backlog in backlogs.items() if backlog
        },
        stat_generated_at=broker.environment.clock.now_ms(),
    )


def topic_snapshot(
    broker: Broker, topic: TopicName, *, with_ledgers: bool = False, with_last_publish_time: bool = False
) -> StatsSnapshot:
    """Return the snapshot of a topic's stats, with the options of `stats_snapshot`.

    Raise an error (404) for a missing topic; for a partitioned topic it names the calls to use instead.
    """
    snapshot = stats_snapshot(
        broker.environment, topic, with_ledgers=with_ledgers, with_last_publish_time=with_last_publish_time
    )
    if snapshot is None:
        error = names.missing_topic_error(broker.environment, topic)
        if broker.environment.metadata.partitions.find(topic) is not None:
            whole = "it is a partitioned topic, ask for partitioned-stats or partitioned-internalStats"
            raise RestException(404, f"{public_reason(error)}: {whole}") from PartitionedTopicRefused(topic)
        raise error
    return snapshot


def partitioned_topic(broker: Broker, topic: TopicName) -> PartitionedTopic:
    """Return the record of a partitioned topic. Raise RestException (404) for another topic."""
    whole = broker.environment.metadata.partitions.find(topic)
    if whole is None:
        raise RestException(404, f"Partitioned Topic not found: {topic} has zero partitions")
    return whole


def _requested_stats(
    broker: Broker, snapshot: StatsSnapshot, policies: TopicPolicies, options: StatsOptions
) -> TopicStats:
    """Return the stats of one topic that `options` request, with the backlog quotas of its policies."""
    live = broker.clients.of_topic(snapshot.stats.topic.name)
    stats = topic_stats(
        snapshot,
        live,
        with_backlog_bytes=options.with_backlog_bytes,
        with_oldest_publish_times=options.with_oldest_publish_times,
    )
    subscriptions = stats.subscriptions
    if options.exclude_consumers:
        subscriptions = {name: replace(item, consumers=()) for name, item in subscriptions.items()}
    return replace(
        stats,
        publishers=() if options.exclude_publishers else stats.publishers,
        subscriptions=subscriptions,
        backlog_quota_limit_size=policies.backlog_quota_bytes,
        backlog_quota_limit_time=policies.backlog_quota_seconds,
    )


def _with_exclusive_compaction_cursor(stats: TopicStats) -> TopicStats:
    """Return the stats with `__compaction` as an exclusive subscription, as a broker shows it in partitioned topics."""
    subscriptions = dict(stats.subscriptions)
    if COMPACTION_CURSOR in subscriptions:
        cursor = subscriptions[COMPACTION_CURSOR]
        subscriptions[COMPACTION_CURSOR] = replace(cursor, type=SubscriptionType.EXCLUSIVE.pulsar_name)
    return replace(stats, subscriptions=subscriptions)


def _own_address(broker: Broker, request: Request) -> str:
    """Return the host and port of this service."""
    return urlsplit(service_urls(broker, request).http).netloc
