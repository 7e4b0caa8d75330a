"""Routes of single subscriptions, by Pulsar's calls: list, create, delete, properties, peek; reset, skip, expire.

A role that may compact can list `__compaction`, create it by hand (without a horizon) and delete it (R8).
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Depends, Path, Query
from starlette.responses import Response

from api.broker import subscriptions
from api.broker.entries import MOST_ENTRIES
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import reword_errors
from api.http.query_parameters import AUTHORITATIVE
from api.http.router import Routes
from api.rest.messages.entry_response import ENTRY, entry_response
from api.rest.models import LONG, TextByName
from api.rest.subscriptions.requests import (
    CURSOR_PATH,
    PositionBody,
    ResetCursorData,
    Subscription,
    check_compaction_cursor_permission,
    position_of,
)
from storage.positions import StartTime

router = Routes("subscriptions")

Seconds = Annotated[int, Path(ge=0, le=LONG // 1000)]
_MOVES: dict[str, Any] = {"waits_for": WaitsFor.STORE, "refuses": (409,)}
_MOVES_ONE: dict[str, Any] = {"waits_for": WaitsFor.STORE, "refuses": (405, 409)}
"""Options of routes that create or move a subscription. `_MOVES_ONE`: of those that refuse partitioned topics."""


@router.get(TOPIC_PATH + "/subscriptions", AuthAction.ADMIN, AuthAction.CONSUME, AUTHORITATIVE)
def get_subscriptions(broker: Broker, topic: Topic) -> list[str]:
    """Return the names of a topic's subscriptions. For a partitioned topic, return the union over its partitions."""
    return subscriptions.of_topic(broker.environment, topic)


@router.put(CURSOR_PATH, AuthAction.CONSUME, Depends(check_compaction_cursor_permission), AUTHORITATIVE, **_MOVES)
def create_subscription(
    broker: Broker, topic: Topic, subscription: Subscription, position: PositionBody = None, replicated: bool = False
) -> None:
    """Create a subscription at a position, or at the end of the topic. The topic keeps the messages that the
    subscription has not acknowledged."""
    properties = (position.properties if position else None) or {}
    with reword_errors(conflict="Subscription already exists for topic"):
        subscriptions.create(broker, topic, subscription, position_of(position), properties)


@router.delete(
    CURSOR_PATH,
    AuthAction.CONSUME,
    Depends(check_compaction_cursor_permission),
    AUTHORITATIVE,
    refuses=(409,),
    waits_for=WaitsFor.STORE,
)
def delete_subscription(
    broker: Broker,
    topic: Topic,
    subscription: Subscription,
    force: Annotated[
        bool,
        Query(
            description="Disconnect its consumers. __compaction also where its keys would be lost: raw is trimmed, or "
            "an object of it is missing in the store."
        ),
    ] = False,
) -> None:
    """Delete a subscription. Deleting `__compaction` also removes the compacted ledger and fences the active run.

    Refused while consumers are connected, or, for `__compaction`, if keys would be lost, unless `force` is given.
    """
    subscriptions.delete(broker, topic, subscription, force)


@router.get(CURSOR_PATH + "/properties", AuthAction.CONSUME, AUTHORITATIVE)
def get_subscription_properties(broker: Broker, topic: Topic, subscription: Subscription) -> dict[str, str]:
    """Return the properties of a subscription."""
    return subscriptions.properties(broker.environment, topic, subscription)


@router.put(
    CURSOR_PATH + "/properties",
    AuthAction.CONSUME,
    Depends(check_compaction_cursor_permission),
    AUTHORITATIVE,
    operation_id="updateSubscriptionProperties",
)
def replace_subscription_properties(
    broker: Broker, topic: Topic, subscription: Subscription, properties: Annotated[TextByName, Body()]
) -> None:
    """Replace all properties of a subscription."""
    subscriptions.replace_properties(broker, topic, subscription, properties)


@router.get(CURSOR_PATH + "/position/{position}", AuthAction.CONSUME, AUTHORITATIVE, **ENTRY)
def peek_nth_message(
    broker: Broker,
    topic: Topic,
    subscription: Subscription,
    position: Annotated[
        int, Path(ge=1, le=LONG, description=f"1: the next entry that it delivers; at most {MOST_ENTRIES}.")
    ],
) -> Response:
    """Return the n-th entry that a subscription has still to deliver, without moving it.

    As in a broker, a subscription that does not exist is created, at the earliest message.
    """
    with reword_errors(partitioned="Peek messages on a partitioned topic is not allowed"):
        return entry_response(subscriptions.peek(broker, topic, subscription, position))


@router.post(CURSOR_PATH + "/resetcursor/{timestamp}", AuthAction.CONSUME, AUTHORITATIVE, waits_for=WaitsFor.STORE)
def reset_cursor_to_time(
    broker: Broker, topic: Topic, subscription: Subscription, timestamp: Annotated[int, Path(ge=0, le=LONG)]
) -> None:
    """Move a subscription to the first message that was published at a time (ms) or later, which it delivers next."""
    subscriptions.reset(broker, topic, subscription, StartTime(timestamp))


@router.post(CURSOR_PATH + "/resetcursor", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405,), waits_for=WaitsFor.STORE)
def reset_cursor(broker: Broker, topic: Topic, subscription: Subscription, position: PositionBody = None) -> None:
    """Move a subscription to a message, which it delivers next; without a body, to the end of the topic."""
    with reword_errors(partitioned="Reset-cursor at position is not allowed for partitioned-topic"):
        subscriptions.reset(broker, topic, subscription, position_of(position))


@router.post(CURSOR_PATH + "/skip/{count}", AuthAction.CONSUME, AUTHORITATIVE, **_MOVES_ONE)
def skip_messages(
    broker: Broker, topic: Topic, subscription: Subscription, count: Annotated[int, Path(ge=0, le=LONG)]
) -> None:
    """Acknowledge the first `count` unacknowledged messages of a subscription."""
    with reword_errors(partitioned="Skip messages on a partitioned topic is not allowed"):
        subscriptions.skip(broker, topic, subscription, count)


@router.post(CURSOR_PATH + "/skip_all", AuthAction.CONSUME, AUTHORITATIVE, **_MOVES)
def skip_all_messages(broker: Broker, topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all messages for a subscription."""
    subscriptions.clear_backlog(broker, topic, subscription)


@router.post(CURSOR_PATH + "/expireMessages/{seconds}", AuthAction.CONSUME, AUTHORITATIVE, **_MOVES)
def expire_messages(broker: Broker, topic: Topic, subscription: Subscription, seconds: Seconds) -> None:
    """Acknowledge the messages that are older than a number of seconds for a subscription."""
    subscriptions.expire(broker, topic, subscription, seconds)


@router.post(CURSOR_PATH + "/expireMessages", AuthAction.CONSUME, AUTHORITATIVE, **_MOVES_ONE)
def expire_messages_to_position(
    broker: Broker, topic: Topic, subscription: Subscription, position: Annotated[ResetCursorData, Body()]
) -> None:
    """Acknowledge the messages before a message for a subscription; with `excluded`, also this message."""
    with reword_errors(partitioned="Expire message at position is not supported for partitioned-topic"):
        subscriptions.expire_before(broker, topic, subscription, position.position)


@router.post(TOPIC_PATH + "/all_subscription/expireMessages/{seconds}", AuthAction.CONSUME, AUTHORITATIVE, **_MOVES)
def expire_messages_for_all_subscriptions(broker: Broker, topic: Topic, seconds: Seconds) -> None:
    """Acknowledge the messages that are older than a number of seconds for all subscriptions but `__compaction`."""
    subscriptions.expire_all(broker, topic, seconds)
