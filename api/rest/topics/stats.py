"""Stats of topics and partitioned topics: the tree of api/broker/stats.py, with every field of a broker's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Query, Request
from pydantic.alias_generators import to_camel

from api.broker import names
from api.broker.serving.connected_clients import ConsumerStats, ProducerStats
from api.broker.serving.consumer import SubscriptionType
from api.broker.stats import StatsSnapshot, SubscriptionStats, TopicStats, stats_snapshot, topic_stats
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, public_reason
from api.http.router import Routes
from api.rest.topics import stats_models as models
from api.rest.topics.lookup import service_urls
from api.rest.topics.stats_models import OfflineTopicStats, PartitionedMetadata, PartitionedTopicStats
from storage.metadata.records import COMPACTION_CURSOR, PartitionedTopic
from storage.model import TopicName
from storage.options.policies import TopicPolicies

router = Routes("stats")

Precise = Annotated[bool, Query(alias="getPreciseBacklog", description="Single acknowledgements are always counted.")]
Sizes = Annotated[bool, Query(alias="subscriptionBacklogSize", description="With the backlog's bytes; else -1.")]
Earliest = Annotated[bool, Query(alias="getEarliestTimeInBacklog", description="With the oldest publish time; else 0.")]
PerPartition = Annotated[bool, Query(alias="perPartition", description="With the stats of each partition.")]


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


@router.get(TOPIC_PATH + "/stats", *ANY_USE, waits_for=WaitsFor.LOG, response_model_exclude_none=True)
def get_stats(
    broker: Broker,
    request: Request,
    topic: Topic,
    precise: Precise = False,
    sizes: Sizes = True,
    earliest: Earliest = False,
    excluded: Excluded = ALL_CLIENTS,
) -> models.TopicStats:
    """A topic's stats."""
    snapshot = of_topic(broker, topic, times=True)
    broker.ownership.check_for_clients(snapshot.stats.topic)
    policies = broker.environment.metadata.policies.effective(snapshot.stats.topic)
    stats = topic_stats(snapshot, broker.clients.of_topic(topic), sizes=sizes, earliest=earliest)
    fields = _fields(stats, policies, excluded)
    return models.TopicStats.model_validate(fields | {"owner_broker": _owner(broker, request)})


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
    owner = {"owner_broker": _owner(broker, request)}
    policies: TopicPolicies | None = None
    each: dict[str, TopicStats] = {}
    for name in names.partition_names(whole):
        snapshot = stats_snapshot(broker.environment, name, times=True)
        if snapshot is not None:
            # Policies are set for the whole topic, so the first partition's are those of all.
            policies = policies or broker.environment.metadata.policies.effective(snapshot.stats.topic)
            each[str(name)] = _of_partition(
                topic_stats(snapshot, broker.clients.of_topic(name), sizes=sizes, earliest=earliest)
            )
    fields = _fields(_of_partition(TopicStats.merge(list(each.values()))), policies, excluded)
    fields["metadata"] = PartitionedMetadata(partitions=whole.partitions)
    fields["oldest_backlog_message_age_seconds"] = 0
    if per_partition:
        fields["partitions"] = {name: _fields(stats, policies, excluded) | owner for name, stats in each.items()}
    return PartitionedTopicStats.model_validate(fields)


@router.get(TOPIC_PATH + "/backlog", *ANY_USE, waits_for=WaitsFor.LOG)
def get_backlog(broker: Broker, request: Request, topic: Topic) -> OfflineTopicStats:
    """Return the size of a topic, and the size of the backlog of its slowest cursor."""
    snapshot = of_topic(broker, topic)
    backlogs = {cursor.record.name: snapshot.backlog(cursor) for cursor in snapshot.stats.cursors}
    return OfflineTopicStats(
        topic_name=f"{topic.tenant}/{topic.namespace}/persistent/{topic.topic}",
        broker_name=urlsplit(service_urls(broker, request)[0]).hostname or "",
        storage_size=snapshot.size,
        total_messages=snapshot.end - snapshot.first,
        message_backlog=max(backlogs.values(), default=0),
        cursor_details={
            name: {"cursorBacklog": backlog, "cursorLedgerId": -1} for name, backlog in backlogs.items() if backlog
        },
        stat_generated_at=broker.environment.clock.now_ms(),
    )


def of_topic(broker: Broker, topic: TopicName, *, lines: bool = False, times: bool = False) -> StatsSnapshot:
    """Return the counts of a topic. Raises RestException (404) in a broker's words; for a partitioned topic it names
    the calls to use instead."""
    snapshot = stats_snapshot(broker.environment, topic, lines=lines, times=times)
    if snapshot is None:
        error = names.missing(broker.environment, topic)
        if broker.environment.metadata.partitions.find(topic) is not None:
            whole = "it is a partitioned topic, ask for partitioned-stats or partitioned-internalStats"
            raise RestException(404, f"{public_reason(error)}: {whole}")
        raise error
    return snapshot


def partitioned(broker: Broker, topic: TopicName) -> PartitionedTopic:
    """Return a partitioned topic. Raises RestException (404)."""
    whole = broker.environment.metadata.partitions.find(topic)
    if whole is None:
        raise RestException(404, f"Partitioned Topic not found: {topic} has zero partitions")
    return whole


def client_fields(stats: ProducerStats | ConsumerStats) -> dict[str, object]:
    """Return the fields of a client as Pulsar names them, in its order."""
    return {to_camel(name): value for name, value in vars(stats).items()}


def _fields(stats: TopicStats, policies: TopicPolicies | None, excluded: ExcludedClients) -> dict[str, Any]:
    """Return the fields of the model of a topic, or of the sum of partitions. `policies` None: it has no partitions."""
    fields = vars(stats.clients) | vars(stats)
    if policies is not None:
        fields["backlog_quota_limit_size"] = policies.backlog_quota_bytes
        fields["backlog_quota_limit_time"] = policies.backlog_quota_seconds
    fields["compaction"] = vars(stats.compaction)
    fields["publishers"] = [] if excluded.publishers else [client_fields(item) for item in stats.clients.publishers]
    fields["subscriptions"] = {
        name: vars(item.clients)
        | vars(item)
        | {"consumers": [] if excluded.consumers else [client_fields(each) for each in item.clients.consumers]}
        for name, item in stats.subscriptions.items()
    }
    return fields


def _of_partition(stats: TopicStats) -> TopicStats:
    """Return the stats with the type that a broker gives the compaction's cursor in partitioned topics."""
    subscriptions: dict[str, SubscriptionStats] = dict(stats.subscriptions)
    if COMPACTION_CURSOR in subscriptions:
        cursor = subscriptions[COMPACTION_CURSOR]
        subscriptions[COMPACTION_CURSOR] = replace(
            cursor, clients=replace(cursor.clients, type=SubscriptionType.EXCLUSIVE.pulsar_name)
        )
    return replace(stats, subscriptions=subscriptions)


def _owner(broker: Broker, request: Request) -> str:
    """Return the host and port of this service."""
    return urlsplit(service_urls(broker, request)[0]).netloc
