"""Subscriptions: durable cursors of a topic, by Pulsar's calls: list, create, delete, properties, peek.

A role that may compact can list `__compaction`, create it by hand (without a horizon) and delete it (R8). Moving
cursors: cursor_moves.py.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Body, Depends, Path, Query
from starlette.responses import Response

from api.admin import resolve
from api.admin.messages.entries import MOST_ENTRIES, NOT_FOUND, RESPONSE, entries, entry_response, refuse_far
from api.admin.models import TextByName
from api.admin.subscriptions.cursor_positions import (
    LONG,
    ONE,
    Owned,
    PlaceBody,
    ResetCursorData,
    Subscription,
    changes_it,
    each,
    opened,
    place_of,
    position_of,
    subscription_of,
)
from api.http.access import Action
from api.http.paths import TOPIC_PATH, Topic, decoded
from api.http.problems import Problem
from api.http.query_parameters import AUTHORITATIVE
from api.http.routes import Routes
from api.http.thread_pools import WaitsFor
from api.service import Parts, Service
from storage.errors import Conflict
from storage.ledger.seek import AtOffset
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import MessageId
from storage.reading.positions import is_behind_end

router = Routes("subscriptions")

EXISTS = "Subscription already exists for topic"


@router.get(TOPIC_PATH + "/subscriptions", Action.ADMIN, Action.CONSUME, AUTHORITATIVE)
def get_subscriptions(parts: Parts, topic: Topic) -> list[str]:
    """Their names; of a partitioned topic those of all partitions."""
    records = resolve.topics(parts, topic)
    return sorted({item.name for record in records for item in parts.environment.metadata.cursors.of_topic(record.id)})


@router.put(ONE, Action.CONSUME, Depends(changes_it), AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.STORE)
def create_subscription(
    parts: Parts, topic: Topic, subscription: Subscription, place: PlaceBody = None, replicated: bool = False
) -> None:
    """Make one; without a place it begins with messages that are still to come. What it needs is not trimmed."""
    name, asked = decoded(subscription), place_of(place)
    records = resolve.local_topics(parts, topic)
    first = asked.message_id if isinstance(asked, ResetCursorData) else asked
    if records and all(is_behind_end(opened(parts, record), first) for record in records):
        raise Problem(412, f"Unable to find position for position specified: {first} is behind the end of {topic}")
    found = [_created(parts, record, name, asked) for record in records]
    if found and not any(found):
        raise Problem(409, EXISTS)


@router.delete(ONE, Action.CONSUME, Depends(changes_it), AUTHORITATIVE, refuses=(409,))
def delete_subscription(
    parts: Parts,
    topic: Topic,
    subscription: Subscription,
    force: Annotated[
        bool, Query(description="__compaction also where its keys would be lost: raw is trimmed.")
    ] = False,
) -> None:
    """Delete one. With `__compaction` go the compacted ledger and a run that is under way."""
    metadata = parts.environment.metadata
    each(parts, topic, subscription, lambda record, name: metadata.cursors.delete(record.id, name, force), False)


@router.get(ONE + "/properties", Action.CONSUME, AUTHORITATIVE)
def get_subscription_properties(parts: Parts, topic: Topic, subscription: Subscription) -> dict[str, str]:
    """The properties of a subscription."""
    found: dict[str, str] = {}
    name = decoded(subscription)
    for record in resolve.topics(parts, topic):
        with subscription_of(record, name):
            found |= parts.environment.metadata.cursors.get(record.id, name).properties
    return found


@router.put(ONE + "/properties", Action.CONSUME, Depends(changes_it), AUTHORITATIVE)
def update_subscription_properties(
    parts: Parts, topic: Topic, subscription: Subscription, properties: Annotated[TextByName, Body()]
) -> None:
    """Set them, instead of those that there were."""
    cursors = parts.environment.metadata.cursors
    each(
        parts, topic, subscription, lambda record, name: cursors.replace_properties(record.id, name, properties), False
    )


@router.get(
    ONE + "/position/{position}",
    Action.CONSUME,
    AUTHORITATIVE,
    refuses=(405,),
    waits_for=WaitsFor.STORE,
    response_class=Response,
    responses=RESPONSE,
)
def peek_nth_message(
    parts: Parts,
    topic: Topic,
    subscription: Subscription,
    position: Annotated[
        int, Path(ge=1, le=LONG, description=f"1: the next entry that it delivers; at most {MOST_ENTRIES}.")
    ],
) -> Response:
    """An entry that is still to be delivered."""
    refuse_far(position)
    resolve.refuse_partitioned(parts, topic, "Peek messages on a partitioned topic is not allowed")
    name = decoded(subscription)
    record = resolve.local_topic(parts, topic)
    with subscription_of(record, name):
        parts.environment.metadata.cursors.get(record.id, name)
    if name == COMPACTION_CURSOR:
        mark = parts.environment.metadata.cursors.get(record.id, name).mark_delete
        rows = entries(opened(parts, record), AtOffset(mark.offset + 1 if mark else 0))
    else:
        with Owned(parts, record, name) as owned:
            cursor = owned.cursor
            mark = cursor.mark_delete
            found = entries(owned.topic, AtOffset(mark.offset + 1 if mark else 0))
            rows = (item for item in found if not all(cursor.is_acknowledged(row["offset"]) for row in item))
    entry = next(islice(rows, position - 1, None), None)
    if entry is None:
        raise Problem(404, NOT_FOUND)
    return entry_response(entry)


def _created(parts: Service, record: TopicRecord, name: str, place: ResetCursorData | MessageId) -> bool:
    """Whether it was made: it may exist."""
    metadata = parts.environment.metadata
    properties = (place.properties or {}) if isinstance(place, ResetCursorData) else {}
    if name == COMPACTION_CURSOR:
        if any(item.name == name for item in metadata.cursors.of_topic(record.id)):
            return False
        metadata.cursors.ensure(record.id, name)
        if properties:
            metadata.cursors.set_properties(record.id, name, properties)
        return True
    try:
        metadata.cursors.create(record.id, name, position_of(opened(parts, record), place), properties)
    except Conflict:
        return False
    return True
