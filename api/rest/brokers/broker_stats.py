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

from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.router import Routes
from api.observability.logs import LogThrottle
from api.rest.tenancy.bundles import RANGES, bundle_of
from api.rest.topics.stats_models import NO_CONSUMER
from api.rest.topics.stats_snapshot import StatsSnapshot, stats_snapshot
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
                found = stats_snapshot(broker, name)
            except CompactorError as error:  # the answer has begun
                reason = f"{name} is left out of the stats of all topics: {error}"
                log_throttle.warn(reason, f"{type(error).__name__} in stats of all topics")
                continue
            if found is not None:  # it may have been deleted meanwhile
                yield f"{between}{json.dumps(str(name))}:{json.dumps(_stats(found))}"
                between = ","
        yield "}}"


def _namespaces(broker: Broker) -> Iterator[str]:
    tenancy = broker.environment.metadata.tenancy
    for tenant in tenancy.tenants():
        try:
            yield from tenancy.namespaces(tenant)
        except NotFound:
            continue


def _stats(found: StatsSnapshot) -> dict[str, Any]:
    """A topic, with what this service has none of at a broker's default."""
    cursors = found.stats.cursors
    return {
        "publishers": [],
        "replication": {},
        "subscriptions": {
            cursor.record.name: {
                "consumers": [],
                "msgBacklog": found.backlog(cursor),
                "msgRateExpired": 0.0,
                "msgRateOut": 0.0,
                "messageAckRate": 0.0,
                "msgThroughputOut": 0.0,
                "msgRateRedeliver": 0.0,
                "numberOfEntriesSinceFirstNotAckedMessage": found.since_mark_delete(cursor),
                "totalNonContiguousDeletedMessagesRange": cursor.ranges,
                "type": NO_CONSUMER,
            }
            for cursor in cursors
        },
        "producerCount": 0,
        "averageMsgSize": 0.0,
        "msgRateIn": 0.0,
        "msgRateOut": 0.0,
        "msgInCount": found.end,
        "bytesInCount": found.size,
        "msgOutCount": 0,
        "bytesOutCount": 0,
        "msgThroughputIn": 0.0,
        "msgThroughputOut": 0.0,
        "storageSize": found.size,
        "backlogSize": max((found.backlog_bytes(cursor) for cursor in cursors), default=0),
        "pendingAddEntriesCount": 0,
        "filteredEntriesCount": 0,
    }
