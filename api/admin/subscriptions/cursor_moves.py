"""Moving subscriptions, by Pulsar's calls: reset, skip, expire; as far as a broker allows it on a partitioned topic."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Path

from api.admin import resolve
from api.admin.subscriptions.cursor_positions import (
    LONG,
    ONE,
    Owned,
    PlaceBody,
    ResetCursorData,
    Subscription,
    before_time,
    each,
    opened,
    place_of,
    position_of,
    refuse_compaction,
)
from api.http.access import Action
from api.http.paths import TOPIC_PATH, Topic
from api.http.query_parameters import AUTHORITATIVE
from api.http.routes import Routes
from api.http.thread_pools import WaitsFor
from api.service import Parts, Service
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import LATEST
from storage.reading.positions import mark_delete_before

router = Routes("subscriptions")

Seconds = Annotated[int, Path(ge=0, le=LONG // 1000)]


@router.post(ONE + "/resetcursor/{timestamp}", Action.CONSUME, AUTHORITATIVE, waits_for=WaitsFor.STORE)
def reset_cursor_to_time(
    parts: Parts, topic: Topic, subscription: Subscription, timestamp: Annotated[int, Path(ge=0, le=LONG)]
) -> None:
    """Deliver again, or first, what was published at that time (ms) or later."""

    def reset(record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        topic_read = opened(parts, record)
        parts.environment.metadata.cursors.reset(record.id, name, before_time(topic_read, timestamp))

    each(parts, topic, subscription, reset)


@router.post(ONE + "/resetcursor", Action.CONSUME, AUTHORITATIVE, refuses=(405,), waits_for=WaitsFor.STORE)
def reset_cursor(parts: Parts, topic: Topic, subscription: Subscription, place: PlaceBody = None) -> None:
    """Move a subscription to a message, which it delivers next."""
    resolve.refuse_partitioned(parts, topic, "Reset-cursor at position is not allowed for partitioned-topic")

    def reset(record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        position = position_of(opened(parts, record), place_of(place))
        parts.environment.metadata.cursors.reset(record.id, name, position)

    each(parts, topic, subscription, reset)


@router.post(ONE + "/skip/{count}", Action.CONSUME, AUTHORITATIVE, refuses=(405, 409), waits_for=WaitsFor.STORE)
def skip_messages(
    parts: Parts, topic: Topic, subscription: Subscription, count: Annotated[int, Path(ge=0, le=LONG)]
) -> None:
    """Acknowledge the first `count` messages that are not."""
    resolve.refuse_partitioned(parts, topic, "Skip messages on a partitioned topic is not allowed")

    def skip(record: TopicRecord, name: str) -> None:
        with Owned(parts, record, name) as owned:
            owned.cursor.skip(count, owned.end, owned.begin)

    each(parts, topic, subscription, skip)


@router.post(ONE + "/skip_all", Action.CONSUME, AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.STORE)
def skip_all_messages(parts: Parts, topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all that there is."""
    each(parts, topic, subscription, lambda record, name: clear_backlog(parts, record, name))


@router.post(ONE + "/expireMessages/{seconds}", Action.CONSUME, AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.STORE)
def expire_messages(parts: Parts, topic: Topic, subscription: Subscription, seconds: Seconds) -> None:
    """Acknowledge the messages that are older."""
    each(parts, topic, subscription, lambda record, name: _expire(parts, record, name, seconds))


@router.post(ONE + "/expireMessages", Action.CONSUME, AUTHORITATIVE, refuses=(405, 409), waits_for=WaitsFor.STORE)
def expire_messages_to_position(
    parts: Parts, topic: Topic, subscription: Subscription, place: Annotated[ResetCursorData, Body()]
) -> None:
    """Acknowledge the messages before one; `excluded`: that one, too."""
    resolve.refuse_partitioned(parts, topic, "Expire message at position is not supported for partitioned-topic")

    def expire(record: TopicRecord, name: str) -> None:
        with Owned(parts, record, name) as owned:
            owned.acknowledge_to(position_of(owned.topic, place))

    each(parts, topic, subscription, expire)


@router.post(
    TOPIC_PATH + "/all_subscription/expireMessages/{seconds}",
    Action.CONSUME,
    AUTHORITATIVE,
    refuses=(409,),
    waits_for=WaitsFor.STORE,
)
def expire_messages_for_all_subscriptions(parts: Parts, topic: Topic, seconds: Seconds) -> None:
    """Acknowledge older messages for all subscriptions but `__compaction`."""
    for record in resolve.local_topics(parts, topic):
        for cursor in parts.environment.metadata.cursors.of_topic(record.id):
            if cursor.name != COMPACTION_CURSOR:
                _expire(parts, record, cursor.name, seconds)


def clear_backlog(parts: Service, record: TopicRecord, name: str) -> None:
    """Acknowledge all that a topic holds; its messages are here."""
    with Owned(parts, record, name) as owned:
        owned.acknowledge_to(mark_delete_before(owned.topic, LATEST))


def _expire(parts: Service, record: TopicRecord, name: str, seconds: int) -> None:
    with Owned(parts, record, name) as owned:
        before = parts.environment.clock.now_ms() - seconds * 1000
        owned.acknowledge_to(before_time(owned.topic, max(before, 0)))
