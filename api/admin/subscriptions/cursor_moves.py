"""Moving subscriptions, by Pulsar's calls: reset, skip, expire; as far as a broker allows it on a partitioned topic."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Path
from starlette.responses import Response

from api.admin.models import done
from api.admin.subscriptions.cursor_positions import (
    LONG,
    ONE,
    PATH,
    Owned,
    PlaceBody,
    ResetCursorData,
    Subscription,
    at_hand,
    before_time,
    each,
    opened,
    place_of,
    position_of,
    refuse_compaction,
    refuse_partitioned,
)
from api.http.access import Action, allowed
from api.http.paths import Topic
from api.http.problems import refusals
from api.http.routes import Routes
from api.http.thread_pools import WaitsFor, waits_for
from api.service import Parts, Service
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import LATEST
from storage.reading.positions import mark_delete_before

router = Routes(prefix="/admin/v2", tags=["subscriptions"])

Seconds = Annotated[int, Path(ge=0, le=LONG // 1000)]


@router.post(
    ONE + "/resetcursor/{timestamp}",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="resetCursorToTime",
    status_code=204,
    responses=refusals(404, 412, 507),
)
@waits_for(WaitsFor.STORE)
def reset_to_time(
    parts: Parts,
    topic: Topic,
    subscription: Subscription,
    timestamp: Annotated[int, Path(ge=0, le=LONG)],
    authoritative: bool = False,
) -> Response:
    """Deliver again, or first, what was published at that time (ms) or later."""

    def reset(record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        topic_read = opened(parts, record)
        parts.components.metadata.cursors.reset(record.id, name, before_time(topic_read, timestamp))

    return each(parts, topic, subscription, reset)


@router.post(
    ONE + "/resetcursor",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="resetCursor",
    status_code=204,
    responses=refusals(400, 404, 405, 412, 507),
)
@waits_for(WaitsFor.STORE)
def reset_cursor(
    parts: Parts,
    topic: Topic,
    subscription: Subscription,
    place: PlaceBody = None,
    authoritative: bool = False,
) -> Response:
    """Move a subscription to a message, which it delivers next."""
    refuse_partitioned(parts, topic, "Reset-cursor at position is not allowed for partitioned-topic")

    def reset(record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        position = position_of(opened(parts, record), place_of(place))
        parts.components.metadata.cursors.reset(record.id, name, position)

    return each(parts, topic, subscription, reset)


@router.post(
    ONE + "/skip/{count}",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="skipMessages",
    status_code=204,
    responses=refusals(404, 405, 409, 412, 507),
)
@waits_for(WaitsFor.STORE)
def skip_messages(
    parts: Parts,
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int, Path(ge=0, le=LONG)],
    authoritative: bool = False,
) -> Response:
    """Acknowledge the first so many messages that are not."""
    refuse_partitioned(parts, topic, "Skip messages on a partitioned topic is not allowed")

    def skip(record: TopicRecord, name: str) -> None:
        with Owned(parts, record, name) as owned:
            owned.cursor.skip(count, owned.end, owned.begin)

    return each(parts, topic, subscription, skip)


@router.post(
    ONE + "/skip_all",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="skipAllMessages",
    status_code=204,
    responses=refusals(404, 409, 412, 507),
)
@waits_for(WaitsFor.STORE)
def skip_all(parts: Parts, topic: Topic, subscription: Subscription, authoritative: bool = False) -> Response:
    """Acknowledge all that there is."""
    return each(parts, topic, subscription, lambda record, name: clear_backlog(parts, record, name))


@router.post(
    ONE + "/expireMessages/{seconds}",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="expireMessages",
    status_code=204,
    responses=refusals(404, 409, 412, 507),
)
@waits_for(WaitsFor.STORE)
def expire_messages(
    parts: Parts, topic: Topic, subscription: Subscription, seconds: Seconds, authoritative: bool = False
) -> Response:
    """Acknowledge the messages that are older."""
    return each(parts, topic, subscription, lambda record, name: _expire(parts, record, name, seconds))


@router.post(
    ONE + "/expireMessages",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="expireMessagesToPosition",
    status_code=204,
    responses=refusals(400, 404, 405, 409, 412, 507),
)
@waits_for(WaitsFor.STORE)
def expire_to_position(
    parts: Parts,
    topic: Topic,
    subscription: Subscription,
    place: Annotated[ResetCursorData, Body()],
    authoritative: bool = False,
) -> Response:
    """Acknowledge the messages before one; `excluded`: that one, too."""
    refuse_partitioned(parts, topic, "Expire message at position is not supported for partitioned-topic")

    def expire(record: TopicRecord, name: str) -> None:
        with Owned(parts, record, name) as owned:
            owned.acknowledge_to(position_of(owned.topic, place))

    return each(parts, topic, subscription, expire)


@router.post(
    PATH + "/all_subscription/expireMessages/{seconds}",
    dependencies=[allowed(Action.CONSUME)],
    operation_id="expireMessagesForAllSubscriptions",
    status_code=204,
    responses=refusals(404, 409, 412, 507),
)
@waits_for(WaitsFor.STORE)
def expire_for_all(parts: Parts, topic: Topic, seconds: Seconds, authoritative: bool = False) -> Response:
    """Acknowledge older messages for all subscriptions but `__compaction`."""
    for record in at_hand(parts, topic):
        for cursor in parts.components.metadata.cursors.of_topic(record.id):
            if cursor.name != COMPACTION_CURSOR:
                _expire(parts, record, cursor.name, seconds)
    return done()


def clear_backlog(parts: Service, record: TopicRecord, name: str) -> None:
    """Acknowledge all that a topic holds; its messages are here."""
    with Owned(parts, record, name) as owned:
        owned.acknowledge_to(mark_delete_before(owned.topic, LATEST))


def _expire(parts: Service, record: TopicRecord, name: str, seconds: int) -> None:
    with Owned(parts, record, name) as owned:
        before = parts.components.clock.now_ms() - seconds * 1000
        owned.acknowledge_to(before_time(owned.topic, max(before, 0)))
