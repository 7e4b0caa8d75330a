"""Stats of all topics in one answer, as a broker gives those that it serves: here any service serves all.

It is written while it is read, a topic at a time, so it takes the memory of one namespace's list, however many topics
there are; each topic is of a moment of its own. Source of the shape: Pulsar's `PulsarStats` and `PersistentTopic`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import fields
from typing import Any

from fastapi import Request
from pydantic.alias_generators import to_camel
from starlette.responses import Response, StreamingResponse

from api.broker.stats import INDIVIDUAL, StatsSnapshot, stats_snapshot, topic_stats
from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.router import Routes
from api.observability.error_text import one_line
from api.observability.logs import LogThrottle
from api.rest.tenancy.bundles import RANGES, bundle_of
from storage.errors import NotFound
from storage.model import TopicName

router = Routes("brokers", "/admin/v2/broker-stats")

_CLIENT = ("clientVersion", "metadata")
_PRODUCER = (
    *("msgRateIn", "msgThroughputIn", "averageMsgSize", "address", "producerId", "producerName", "connectedSince"),
    *_CLIENT,
)
_CONSUMER = (
    *("address", "consumerName", "availablePermits", "connectedSince", "msgRateOut", "msgThroughputOut"),
    *("msgRateRedeliver", "avgMessagesPerEntry"),
)
_SUBSCRIPTION = ("msgBacklog", "msgRateExpired", "msgRateOut", "messageAckRate", "msgThroughputOut", "msgRateRedeliver")
_INDIVIDUAL_CONSUMER = (*_CONSUMER, "unackedMessages", "blockedConsumerOnUnackedMsgs", *_CLIENT)
"""The fields of a consumer that acknowledges one by one."""
_ATTRIBUTES: dict[type, dict[str, str]] = {
    kind: {to_camel(field.name): field.name for field in fields(kind)}
    for kind in (ProducerStats, ConsumerStats, SubscriptionStats, TopicStats)
}
"""The attributes of each class of stats, by their names in the answer."""


@router.get(
    "/topics",
    AuthAction.SUPERUSER,
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "By namespace, bundle, domain and topic."}},
)
async def get_broker_topics(broker: Broker, request: Request) -> Response:
    """Return the stats of every topic, by namespace and bundle. A topic whose stats cannot be read is left out, and
    logged."""
    written = broker.pools[WaitsFor.LOG].iterate(_stats_json_pieces(broker, request.app.state.log_throttle))
    return StreamingResponse(written, media_type="application/json")


def _stats_json_pieces(broker: Broker, log_throttle: LogThrottle) -> Generator[str, None, None]:
    """Yield the JSON text of the stats of all topics in pieces."""
    yield "{"
    between = ""
    for namespace in _all_namespaces(broker):
        by_bundle: dict[str, list[TopicName]] = {}
        for record in broker.environment.metadata.topics.in_namespace(namespace):
            by_bundle.setdefault(bundle_of(record.name), []).append(record.name)
        if not by_bundle:
            continue
        yield f"{between}{json.dumps(namespace)}:{{"
        yield from _bundles_json_pieces(broker, log_throttle, by_bundle)
        yield "}"
        between = ","
    yield "}"


def _bundles_json_pieces(
    broker: Broker, log_throttle: LogThrottle, by_bundle: dict[str, list[TopicName]]
) -> Iterator[str]:
    for number, bundle in enumerate(item for item in RANGES if item in by_bundle):
        yield f'{"," if number else ""}{json.dumps(bundle)}:{{"persistent":{{'
        between = ""
        for name in by_bundle[bundle]:
            try:
                snapshot = stats_snapshot(broker.environment, name)
                if snapshot is None:  # deleted meanwhile
                    continue
                topic_fields = _topic_fields(snapshot, topic_stats(snapshot, broker.clients.of_topic(name)))
            except Exception as error:  # the answer has begun
                condition = f"{type(error).__name__} in stats of all topics"
                log_throttle.warn(
                    "%s is left out of the stats of all topics: %s", name, one_line(error), condition=condition
                )
                continue
            yield f"{between}{json.dumps(str(name))}:{json.dumps(topic_fields)}"
            between = ","
        yield "}}"


def _all_namespaces(broker: Broker) -> Iterator[str]:
    """Yield `tenant/namespace` of each namespace."""
    tenancy = broker.environment.metadata.tenancy
    for tenant in tenancy.tenants():
        try:
            yield from tenancy.namespaces(tenant)
        except NotFound:
            continue


def _topic_fields(snapshot: StatsSnapshot, stats: TopicStats) -> dict[str, Any]:
    """Return a topic's stats by field, in a broker's order. Fields that this service lacks have a broker's default."""
    distances = {
        cursor.record.name: snapshot.messages_since_first_unacknowledged(cursor) for cursor in snapshot.stats.cursors
    }
    return {
        "publishers": [_selected_fields(item, _PRODUCER) for item in stats.publishers],
        "replication": {},
        "subscriptions": {
            name: _subscription_fields(item, distances.get(name, 0)) for name, item in stats.subscriptions.items()
        },
        "producerCount": len(stats.publishers),
        **_selected_fields(stats, ("averageMsgSize", "msgRateIn", "msgRateOut")),
        "msgInCount": stats.msg_in_counter,
        "bytesInCount": stats.bytes_in_counter,
        "msgOutCount": stats.msg_out_counter,
        "bytesOutCount": stats.bytes_out_counter,
        **_selected_fields(stats, ("msgThroughputIn", "msgThroughputOut", "storageSize", "backlogSize")),
        "pendingAddEntriesCount": 0,
        "filteredEntriesCount": 0,
    }


def _subscription_fields(stats: SubscriptionStats, messages_since_first_unacknowledged: int) -> dict[str, Any]:
    """Return a subscription's stats by field, in a broker's order."""
    is_individual = stats.type in INDIVIDUAL  # a broker gives unacknowledged messages of these alone
    names = _INDIVIDUAL_CONSUMER if is_individual else (*_CONSUMER, *_CLIENT)
    fields = {
        "consumers": [_selected_fields(item, names) for item in stats.consumers],
        **_selected_fields(stats, _SUBSCRIPTION),
        "numberOfEntriesSinceFirstNotAckedMessage": messages_since_first_unacknowledged,
        "totalNonContiguousDeletedMessagesRange": stats.non_contiguous_deleted_messages_ranges,
        "type": stats.type,
    }
    if is_individual:
        fields |= _selected_fields(stats, ("blockedSubscriptionOnUnackedMsgs", "unackedMessages"))
    return fields


def _selected_fields(
    stats: ProducerStats | ConsumerStats | SubscriptionStats | TopicStats, names: Sequence[str]
) -> dict[str, Any]:
    """Return the fields `names` of stats with their values, in the order of `names`."""
    attributes = _ATTRIBUTES[type(stats)]
    return {name: getattr(stats, attributes[name]) for name in names}
