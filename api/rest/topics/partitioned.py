"""Routes of partitioned topics as a whole: create, list, grow, describe, restore and delete them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ValidationError

from api.broker import names, partitioned_topics
from api.broker.refusals import ClientsConnected, NotPartitioned, NotTheOwner
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE, AuthAction
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Namespace, Topic
from api.http.problems import RestException, reword_errors
from api.http.router import Routes
from api.rest.models import (
    UNREADABLE,
    MissingBody,
    PulsarBody,
    parse_int32,
    parse_json_body,
    read_body,
    unreadable_body_error,
)
from api.rest.topics.lifecycle import EXISTS, NO_NAMESPACE
from storage.errors import InvalidInput
from storage.metadata.partitions import MAX_PARTITIONS
from storage.model import TopicName

router = Routes("partitioned topics")


class PartitionedTopicMetadata(BaseModel):
    """The number of partitions of a topic; 0: it is not partitioned."""

    partitions: int
    deleted: bool = False
    properties: dict[str, str] | None = None


class _PartitionsBody(PulsarBody):
    """The number of partitions and the properties of a partitioned topic, the body
    `application/vnd.partitioned-topic-metadata+json`."""

    partitions: int
    properties: dict[str, str] | None = None
    deleted: bool = False


_NUMBER = {"type": "integer", "minimum": 1, "maximum": MAX_PARTITIONS, "example": 3}
_TEXT = {"type": "string", "pattern": "^[0-9]{1,5}$", "description": "Read as a number."}
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "How many partitions; with properties in Pulsar's own content type.",
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [_NUMBER, _TEXT]}},
            "application/vnd.partitioned-topic-metadata+json": {"schema": _PartitionsBody.model_json_schema()},
        },
    }
}


def _parse_partitions_body(body: bytes) -> _PartitionsBody:
    """Return the number of partitions, and the properties, in a body: a number, or an object. Raise UnreadableBody."""
    value = parse_json_body(body)
    if isinstance(value, dict):
        try:
            return _PartitionsBody.model_validate(value)
        except ValidationError as error:
            raise unreadable_body_error(
                "Cannot deserialize value of type `org.apache.pulsar.common.partition.PartitionedTopicMetadata` "
                f"({error.error_count()} errors)"
            ) from error
    if value is None:
        raise MissingBody
    return _PartitionsBody(partitions=parse_int32(body))


async def _partitions_body(request: Request) -> _PartitionsBody:
    return await read_body(request, _parse_partitions_body)


Body = Annotated[_PartitionsBody, Depends(_partitions_body)]


@router.get("/persistent/{tenant}/{namespace}/partitioned", *ANY_USE)
def list_partitioned_topics(broker: Broker, namespace: Namespace) -> list[str]:
    """Return the partitioned topics of a namespace, without their partitions."""
    return [str(name) for name in partitioned_topics.in_namespace(broker.environment, namespace)]


@router.put(TOPIC_PATH + "/partitions", AuthAction.ADMIN, refuses=(406, 409), openapi_extra=_BODY, responses=UNREADABLE)
def create_partitioned_topic(broker: Broker, topic: Topic, body: Body) -> None:
    """Create a partitioned topic with its partitions."""
    _check_partition_count(topic, body.partitions)
    if topic.partition >= 0:
        raise RestException(412, "Partitioned Topic Name should not contain '-partition-'")
    with reword_errors(NO_NAMESPACE, EXISTS):
        partitioned_topics.create(broker.environment, topic, body.partitions, body.properties or {})


@router.post(
    TOPIC_PATH + "/partitions", AuthAction.ADMIN, refuses=(406, 409), openapi_extra=_BODY, responses=UNREADABLE
)
def update_partitioned_topic(
    broker: Broker,
    topic: Topic,
    body: Body,
    force: bool = False,
) -> None:
    """Increase the number of partitions of a topic to that in the body; new ones get the policies of the others.
    Partitions cannot be removed."""
    _check_partition_count(topic, body.partitions)
    partitioned_topics.grow(broker.environment, topic, body.partitions)


@router.post(TOPIC_PATH + "/createMissedPartitions", AuthAction.ADMIN, refuses=(409,))
def create_missed_partitions(broker: Broker, topic: Topic) -> None:
    """Create the partitions that were deleted again, empty, with the policies of the others."""
    partitioned_topics.recreate_deleted_partitions(broker.environment, topic)


@router.get(TOPIC_PATH + "/partitions", *ANY_USE, response_model_exclude_none=True)
def get_partitioned_metadata(
    broker: Broker,
    topic: Topic,
    check_auto_creation: Annotated[
        bool,
        Query(
            alias="checkAllowAutoCreation",
            description="0 also for a topic that does not exist yet, if producers and consumers may create it.",
        ),
    ] = False,
) -> PartitionedTopicMetadata:
    """Return the number of a topic's partitions; 0 for a topic without partitions. This request creates no topic."""
    create = check_auto_creation and broker.settings.broker_auto_topic_creation and topic.partition < 0
    with reword_errors(NO_NAMESPACE if create else ""):
        whole = names.find_partitioned(broker.environment, topic, create)
    if whole is None:
        return PartitionedTopicMetadata(partitions=0)
    return PartitionedTopicMetadata(partitions=whole.partitions, properties=dict(whole.properties) or None)


@router.delete(TOPIC_PATH + "/partitions", AuthAction.ADMIN, refuses=(409,))
async def delete_partitioned_topic(request: Request, broker: Broker, topic: Topic, force: bool = False) -> None:
    """Delete a partitioned topic with its partitions, all or nothing. It is refused and forced as `deleteTopic`."""
    log = broker.pools[WaitsFor.LOG]
    try:
        with reword_errors(f"Topic {topic} not found."):
            others = await log.run(partitioned_topics.owned_elsewhere, broker, topic)
            for other in others if not force else ():
                await _check_no_clients(request, broker, other)
            for other in others:
                await context_of(request).proxy.send_to_owner(request, other, "PUT", "unload")
            await log.run(partitioned_topics.delete, broker, topic, force)
    except NotPartitioned as error:
        advice = "Instead of calling delete-partitioned-topic please call delete."
        raise RestException(409, f"{topic} is a non-partitioned topic. {advice}") from error


async def _check_no_clients(request: Request, broker: Broker, other: NotTheOwner) -> None:
    """Ask the service that owns a partition for its clients. Raise ClientsConnected if there are any."""
    content = await context_of(request).proxy.send_to_owner(request, other, "GET", "stats")
    if await broker.pools[WaitsFor.PARSING].run(_has_clients, content):
        raise ClientsConnected(other.topic.name)


def _has_clients(stats: bytes) -> bool:
    """Return whether the statistics of a topic, as JSON, show a producer or a consumer. Empty: it was deleted."""
    topic = json.loads(stats or b"{}")
    return bool(topic.get("publishers") or any(item["consumers"] for item in topic.get("subscriptions", {}).values()))


def _check_partition_count(topic: TopicName, partitions: int) -> None:
    """Raise RestException (406) for a number of partitions that no topic can have, in the words of a broker.

    They name no topic; `compactor-admin` shows the cause.
    """
    if not 0 < partitions <= MAX_PARTITIONS:
        bound = "more than 0" if partitions <= 0 else f"less than or equal to {MAX_PARTITIONS}"
        cause = InvalidInput(f"{topic} cannot have {partitions} partitions", f"give 1 to {MAX_PARTITIONS}")
        raise RestException(406, f"Number of partitions should be {bound}") from cause
