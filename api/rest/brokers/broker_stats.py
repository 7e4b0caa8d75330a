"""Stats of all topics in one answer, as a broker gives those that it serves: here any service serves all.

It is written while it is read, a topic at a time, so it takes the memory of one namespace's list, however many topics
there are; each topic is of a moment of its own. Source of the shape: Pulsar's `PulsarStats` and `PersistentTopic`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from api.broker.serving.connected_clients import ConsumerStats, ProducerStats
from api.broker.stats import INDIVIDUAL, SubscriptionStats, TopicStats, stats_snapshot, topic_stats
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.router import Routes
from api.observability.logs import LogThrottle
from api.rest.tenancy.bundles import RANGES, bundle_of
from storage.errors import CompactorError, NotFound
from storage.model import TopicName

router = Routes("brokers", "/admin/v2/broker-stats")


@router.get(
    "/topics",
    AuthAction.SUPERUSER,
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "By namespace, bundle, domain and topic."}},
)
async def get_broker_topics(broker: Broker, request: Request) -> Response:
    """Stats of every topic, by namespace and bundle. A topic whose stats cannot be read is left out, and logged."""
    written = broker.pools[WaitsFor.LOG].each(_written(broker, request.app.state.log_throttle))
    return StreamingResponse(written, media_type="application/json")


def _written(broker: Broker, log_throttle: LogThrottle) -> Generator[str, None, None]:
    yield "{"
    between = ""
    for namespace in _namespaces(broker):
        by_bundle: dict[str, list[TopicName]] = {}
        for record in broker.environment.metadata.topics.in_namespace(namespace):
            by_bundle.setdefault(bundle_of(record.name), []).append(record.name)
        if not by_bundle:
            continue
        yield f"{between}{json.dumps(namespace)}:{{"
        yield from _bundles(broker, log_throttle, by_bundle)
        yield "}"
        between = ","
    yield "}"


def _bundles(broker: Broker, log_throttle: LogThrottle, by_bundle: dict[str, list[TopicName]]) -> Iterator[str]:
    for number, bundle in enumerate(item for item in RANGES if item in by_bundle):
        yield f'{"," if number else ""}{json.dumps(bundle)}:{{"persistent":{{'
        between = ""
        for name in by_bundle[bundle]:
            try:
                snapshot = stats_snapshot(broker.environment, name)
            except CompactorError as error:  # the answer has begun
                reason = f"{name} is left out of the stats of all topics: {error}"
                log_throttle.warn(reason, f"{type(error).__name__} in stats of all topics")
                continue
            if snapshot is not None:  # it may have been deleted meanwhile
                stats = topic_stats(snapshot, broker.clients.of_topic(name))
                yield f"{between}{json.dumps(str(name))}:{json.dumps(_fields(stats))}"
                between = ","
        yield "}}"


def _namespaces(broker: Broker) -> Iterator[str]:
    tenancy = broker.environment.metadata.tenancy
    for tenant in tenancy.tenants():
        try:
            yield from tenancy.namespaces(tenant)
        except NotFound:
            continue


def _fields(stats: TopicStats) -> dict[str, Any]:
    """Return a topic's fields in a broker's order; what this service does not have is at a broker's default."""
    clients = stats.clients
    return {
        "publishers": [_producer(item) for item in clients.publishers],
        "replication": {},
        "subscriptions": {name: _subscription(item) for name, item in stats.subscriptions.items()},
        "producerCount": len(clients.publishers),
        "averageMsgSize": clients.average_msg_size,
        "msgRateIn": clients.msg_rate_in,
        "msgRateOut": clients.msg_rate_out,
        "msgInCount": stats.msg_in_counter,
        "bytesInCount": stats.bytes_in_counter,
        "msgOutCount": clients.msg_out_counter,
        "bytesOutCount": clients.bytes_out_counter,
        "msgThroughputIn": clients.msg_throughput_in,
        "msgThroughputOut": clients.msg_throughput_out,
        "storageSize": stats.storage_size,
        "backlogSize": stats.backlog_size,
        "pendingAddEntriesCount": 0,
        "filteredEntriesCount": 0,
    }


def _subscription(stats: SubscriptionStats) -> dict[str, Any]:
    clients = stats.clients
    is_individual = clients.type in INDIVIDUAL  # a broker gives unacknowledged messages of these alone
    fields = {
        "consumers": [_consumer(item, is_individual) for item in clients.consumers],
        "msgBacklog": stats.msg_backlog,
        "msgRateExpired": 0.0,
        "msgRateOut": clients.msg_rate_out,
        "messageAckRate": clients.message_ack_rate,
        "msgThroughputOut": clients.msg_throughput_out,
        "msgRateRedeliver": clients.msg_rate_redeliver,
        "numberOfEntriesSinceFirstNotAckedMessage": stats.since_mark_delete,
        "totalNonContiguousDeletedMessagesRange": stats.non_contiguous_deleted_messages_ranges,
        "type": clients.type,
    }
    if is_individual:
        fields |= {"blockedSubscriptionOnUnackedMsgs": False, "unackedMessages": clients.unacked_messages}
    return fields


def _producer(stats: ProducerStats) -> dict[str, Any]:
    return {
        "msgRateIn": stats.msg_rate_in,
        "msgThroughputIn": stats.msg_throughput_in,
        "averageMsgSize": stats.average_msg_size,
        "address": stats.address,
        "producerId": stats.producer_id,
        "producerName": stats.producer_name,
        "connectedSince": stats.connected_since,
        "clientVersion": stats.client_version,
        "metadata": dict(stats.metadata),
    }


def _consumer(stats: ConsumerStats, is_individual: bool) -> dict[str, Any]:
    fields = {
        "address": stats.address,
        "consumerName": stats.consumer_name,
        "availablePermits": stats.available_permits,
        "connectedSince": stats.connected_since,
        "msgRateOut": stats.msg_rate_out,
        "msgThroughputOut": stats.msg_throughput_out,
        "msgRateRedeliver": stats.msg_rate_redeliver,
        "avgMessagesPerEntry": stats.avg_messages_per_entry,
    }
    if is_individual:
        fields |= {"unackedMessages": stats.unacked_messages, "blockedConsumerOnUnackedMsgs": False}
    return fields | {"clientVersion": stats.client_version, "metadata": dict(stats.metadata)}
