"""Subscriptions: durable cursors of a topic, by Pulsar's calls: list, create, delete, properties, peek; reset, skip,
expire, as far as a broker allows it on a partitioned topic.

A role that may compact can list `__compaction`, create it by hand (without a horizon) and delete it (R8).
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Body, Depends, Path, Query
from starlette.responses import Response

from api.broker import names
from api.broker.positions import After, CursorPosition, is_after_end, mark_delete_before
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic, decoded
from api.http.problems import RestException, reported_as
from api.http.query_parameters import AUTHORITATIVE
from api.http.router import Routes
from api.rest.messages.entry_response import ENTRY, MOST_ENTRIES, NOT_FOUND, entries, entry_response, refuse_far
from api.rest.models import LONG, TextByName
from api.rest.subscriptions.cursor_access import (
    ONE,
    OwnedCursor,
    PlaceBody,
    ResetCursorData,
    Subscription,
    changes_it,
    delete_cursor,
    each,
    next_of,
    opened,
    position_of,
    refuse_compaction,
    reset_cursor_to,
    subscription_of,
)
from storage.errors import Conflict
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import EARLIEST, LATEST
from storage.positions import StartTime

router = Routes("subscriptions")

EXISTS = "Subscription already exists for topic"
Seconds = Annotated[int, Path(ge=0, le=LONG // 1000)]


@router.get(TOPIC_PATH + "/subscriptions", AuthAction.ADMIN, AuthAction.CONSUME, AUTHORITATIVE)
def get_subscriptions(broker: Broker, topic: Topic) -> list[str]:
    """Their names; of a partitioned topic those of all partitions."""
    records = names.topics(broker.environment, topic)
    return sorted({item.name for record in records for item in broker.environment.metadata.cursors.of_topic(record.id)})


@router.put(ONE, AuthAction.CONSUME, Depends(changes_it), AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.STORE)
def create_subscription(
    broker: Broker, topic: Topic, subscription: Subscription, place: PlaceBody = None, replicated: bool = False
) -> None:
    """Make one; without a place it begins with messages that are still to come. What it needs is not trimmed."""
    name, position = decoded(subscription), position_of(place)
    records = names.local_topics(broker, topic)
    first = position.message_id if isinstance(position, After) else position
    if records and all(is_after_end(opened(broker, record), first) for record in records):
        raise RestException(412, f"Unable to find position for position specified: {first} is after the end of {topic}")
    properties = (place.properties or {}) if isinstance(place, ResetCursorData) else {}
    created = [_created(broker, record, name, position, properties) for record in records]
    if created and not any(created):
        raise RestException(409, EXISTS)


@router.delete(ONE, AuthAction.CONSUME, Depends(changes_it), AUTHORITATIVE, refuses=(409,))
def delete_subscription(
    broker: Broker,
    topic: Topic,
    subscription: Subscription,
    force: Annotated[
        bool,
        Query(description="Disconnect its consumers. __compaction also where its keys would be lost: raw is trimmed."),
    ] = False,
) -> None:
    """Delete one. With `__compaction` go the compacted ledger and a run that is under way."""
    each(broker, topic, subscription, lambda record, name: delete_cursor(broker, record, name, force), False)


@router.get(ONE + "/properties", AuthAction.CONSUME, AUTHORITATIVE)
def get_subscription_properties(broker: Broker, topic: Topic, subscription: Subscription) -> dict[str, str]:
    """The properties of a subscription."""
    properties: dict[str, str] = {}
    name = decoded(subscription)
    for record in names.topics(broker.environment, topic):
        with subscription_of(record, name):
            properties |= broker.environment.metadata.cursors.get(record.id, name).properties
    return properties


@router.put(ONE + "/properties", AuthAction.CONSUME, Depends(changes_it), AUTHORITATIVE)
def update_subscription_properties(
    broker: Broker, topic: Topic, subscription: Subscription, properties: Annotated[TextByName, Body()]
) -> None:
    """Set them, instead of those that there were."""
    cursors = broker.environment.metadata.cursors
    each(
        broker, topic, subscription, lambda record, name: cursors.replace_properties(record.id, name, properties), False
    )


@router.get(ONE + "/position/{position}", AuthAction.CONSUME, AUTHORITATIVE, **ENTRY)
def peek_nth_message(
    broker: Broker,
    topic: Topic,
    subscription: Subscription,
    position: Annotated[
        int, Path(ge=1, le=LONG, description=f"1: the next entry that it delivers; at most {MOST_ENTRIES}.")
    ],
) -> Response:
    """An entry that is still to be delivered. As in a broker, a subscription that does not exist is made, at the
    earliest message."""
    refuse_far(position)
    with reported_as(partitioned="Peek messages on a partitioned topic is not allowed"):
        names.check_not_partitioned(broker.environment, topic)
    name = decoded(subscription)
    record = names.local_topic(broker, topic)
    cursors = broker.environment.metadata.cursors
    if name == COMPACTION_CURSOR:
        with subscription_of(record, name):
            mark = cursors.get(record.id, name).mark_delete
        rows = entries(opened(broker, record), next_of(mark))
    else:
        if all(item.name != name for item in cursors.of_topic(record.id)):
            _created(broker, record, name, EARLIEST, {})
        with OwnedCursor(broker, record, name) as owned:
            cursor = owned.cursor
            remaining = entries(owned.topic, next_of(cursor.mark_delete))
            rows = (item for item in remaining if not all(cursor.is_acknowledged(row["offset"]) for row in item))
    entry = next(islice(rows, position - 1, None), None)
    if entry is None:
        raise RestException(404, NOT_FOUND)
    return entry_response(entry)


@router.post(ONE + "/resetcursor/{timestamp}", AuthAction.CONSUME, AUTHORITATIVE, waits_for=WaitsFor.STORE)
def reset_cursor_to_time(
    broker: Broker, topic: Topic, subscription: Subscription, timestamp: Annotated[int, Path(ge=0, le=LONG)]
) -> None:
    """Deliver again, or first, what was published at that time (ms) or later."""

    def reset(record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        reset_cursor_to(broker, record, name, mark_delete_before(opened(broker, record), StartTime(timestamp)))

    each(broker, topic, subscription, reset)


@router.post(ONE + "/resetcursor", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405,), waits_for=WaitsFor.STORE)
def reset_cursor(broker: Broker, topic: Topic, subscription: Subscription, place: PlaceBody = None) -> None:
    """Move a subscription to a message, which it delivers next."""
    with reported_as(partitioned="Reset-cursor at position is not allowed for partitioned-topic"):
        names.check_not_partitioned(broker.environment, topic)

    def reset(record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        reset_cursor_to(broker, record, name, mark_delete_before(opened(broker, record), position_of(place)))

    each(broker, topic, subscription, reset)


@router.post(ONE + "/skip/{count}", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405, 409), waits_for=WaitsFor.STORE)
def skip_messages(
    broker: Broker, topic: Topic, subscription: Subscription, count: Annotated[int, Path(ge=0, le=LONG)]
) -> None:
    """Acknowledge the first `count` messages that are not."""
    with reported_as(partitioned="Skip messages on a partitioned topic is not allowed"):
        names.check_not_partitioned(broker.environment, topic)

    def skip(record: TopicRecord, name: str) -> None:
        with OwnedCursor(broker, record, name) as owned:
            owned.cursor.skip(count, owned.end, owned.begin)

    each(broker, topic, subscription, skip)


@router.post(ONE + "/skip_all", AuthAction.CONSUME, AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.STORE)
def skip_all_messages(broker: Broker, topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all that there is."""
    each(broker, topic, subscription, lambda record, name: clear_backlog(broker, record, name))


@router.post(
    ONE + "/expireMessages/{seconds}", AuthAction.CONSUME, AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.STORE
)
def expire_messages(broker: Broker, topic: Topic, subscription: Subscription, seconds: Seconds) -> None:
    """Acknowledge the messages that are older."""
    each(broker, topic, subscription, lambda record, name: _expire(broker, record, name, seconds))


@router.post(ONE + "/expireMessages", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405, 409), waits_for=WaitsFor.STORE)
def expire_messages_to_position(
    broker: Broker, topic: Topic, subscription: Subscription, place: Annotated[ResetCursorData, Body()]
) -> None:
    """Acknowledge the messages before one; `excluded`: that one, too."""
    with reported_as(partitioned="Expire message at position is not supported for partitioned-topic"):
        names.check_not_partitioned(broker.environment, topic)

    def expire(record: TopicRecord, name: str) -> None:
        with OwnedCursor(broker, record, name) as owned:
            owned.acknowledge_to(mark_delete_before(owned.topic, place.position))

    each(broker, topic, subscription, expire)


@router.post(
    TOPIC_PATH + "/all_subscription/expireMessages/{seconds}",
    AuthAction.CONSUME,
    AUTHORITATIVE,
    refuses=(409,),
    waits_for=WaitsFor.STORE,
)
def expire_messages_for_all_subscriptions(broker: Broker, topic: Topic, seconds: Seconds) -> None:
    """Acknowledge older messages for all subscriptions but `__compaction`."""
    for record in names.local_topics(broker, topic):
        for cursor in broker.environment.metadata.cursors.of_topic(record.id):
            if cursor.name != COMPACTION_CURSOR:
                _expire(broker, record, cursor.name, seconds)


def clear_backlog(broker: Broker, record: TopicRecord, name: str) -> None:
    """Acknowledge all that a topic holds; its messages are here."""
    with OwnedCursor(broker, record, name) as owned:
        owned.acknowledge_to(mark_delete_before(owned.topic, LATEST))


def _expire(broker: Broker, record: TopicRecord, name: str, seconds: int) -> None:
    with OwnedCursor(broker, record, name) as owned:
        before = broker.environment.clock.now_ms() - seconds * 1000
        owned.acknowledge_to(mark_delete_before(owned.topic, StartTime(max(before, 0))))


def _created(
    broker: Broker, record: TopicRecord, name: str, position: CursorPosition, properties: dict[str, str]
) -> bool:
    """Return whether the subscription was created; False: it exists."""
    metadata = broker.environment.metadata
    if name == COMPACTION_CURSOR:
        if any(item.name == name for item in metadata.cursors.of_topic(record.id)):
            return False
        metadata.cursors.ensure(record.id, name)
        if properties:
            metadata.cursors.set_properties(record.id, name, properties)
        return True
    try:
        metadata.cursors.create(record.id, name, mark_delete_before(opened(broker, record), position), properties)
    except Conflict:
        return False
    return True
