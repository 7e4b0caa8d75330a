"""Requests of consumers: SUBSCRIBE, FLOW, ACK, SEEK and others that concern their subscription."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.consumer import Consumer, ConsumerOptions, SubscriptionType
from api.broker.serving.loop_turns import in_turns
from api.broker.serving.position import SubscribeRequest, entry_id_of_message
from api.http.access import AuthAction
from api.pulsar.client_versions import returns_permits_for_hidden_slots
from api.pulsar.codec import requests, responses
from api.pulsar.errors import Refused, ServerError, refusal
from api.pulsar.handlers.schemas import is_storable_schema, store_if_first_or_check_readable
from api.pulsar.pending_requests import Work
from api.pulsar.session import ConnectedConsumer, IsReserved, Session
from storage.errors import CompactorError, Fenced
from storage.model import EARLIEST, LATEST, MessageId
from storage.positions import StartPosition, StartTime
from storage.topic import Topic

ACKS_AT_ONCE = 500
"""Entries of one command that are acknowledged in one step of the event loop at most: 50,000 take 0.6 s."""
_ACKNOWLEDGING = "acknowledging"


async def subscribe(session: Session, request: requests.Subscribe) -> responses.Success | None:
    """Create a consumer and join it to its subscription. The response is sent before the first message, not returned.

    A consumer that exists already is a success. No response is sent if the client has closed the consumer meanwhile.
    """
    if request.consumer_id in session.consumers:
        return responses.Success(request.request_id)
    with session.reserve_id("consumer", request.consumer_id, request.request_id) as is_reserved:
        await _create_consumer(session, request, is_reserved)
    return None


async def _create_consumer(session: Session, request: requests.Subscribe, is_reserved: IsReserved) -> None:
    """Create a consumer, join it to its subscription and respond, unless the client has closed it meanwhile."""
    context, identity = session.context, session.identity
    name = await identity.permitted_topic(request.topic, AuthAction.CONSUME)
    if is_storable_schema(request.schema):
        await store_if_first_or_check_readable(session, name, request.schema)
    may_create = request.force_topic_creation and session.settings.broker_auto_topic_creation
    topic = await context.topics.get_or_open(name, may_create, identity.audit)
    connected = ConnectedConsumer(session, topic, _consumer_options(session, request), request.consumer_epoch)
    consumer = connected.consumer
    present = topic.subscriptions.get(request.subscription)
    if present is not None and consumer.type is SubscriptionType.EXCLUSIVE:
        for other in list(present.consumers):  # its client may have lost the connection without our knowing
            if other.channel.connection is not session:
                await other.channel.connection.close_unless_alive()
    options = _subscribe_request(request, context.clock.now_ms())
    connected.subscription = subscription = await topic.find_or_create_subscription(consumer, options)
    if subscription.position.is_new:
        subscription.position.is_new = False
        identity.audit("create_subscription", topic.name, subscription.name)
    if not is_reserved():
        await topic.remove_consumer(subscription, consumer)
        return
    # The response goes first: a client takes no message of a consumer that it does not know yet.
    session.consumers[request.consumer_id] = connected
    session.send(responses.Success(request.request_id))
    assert subscription.dispatcher is not None
    subscription.dispatcher.add(consumer)


def _consumer_options(session: Session, request: requests.Subscribe) -> ConsumerOptions:
    return ConsumerOptions(
        name=request.consumer_name or session.context.new_consumer_name(),
        type=SubscriptionType(request.sub_type),
        consumer_id=request.consumer_id,
        priority=request.priority_level,
        read_compacted=request.read_compacted,
        metadata=request.metadata,
        sticky_ranges=request.sticky_ranges,
        returns_permits_for_hidden_slots=returns_permits_for_hidden_slots(session.client_version),
    )


def _subscribe_request(request: requests.Subscribe, now_ms: int) -> SubscribeRequest:
    start: StartPosition = EARLIEST if request.initial_position == requests.AT_EARLIEST else LATEST
    resumes = False
    if request.start_message_rollback_duration_sec:
        start = StartTime(now_ms - 1000 * request.start_message_rollback_duration_sec)
    elif not request.durable and request.start_message_id is not None:
        start = entry_id_of_message(request.start_message_id)
        resumes = start not in (EARLIEST, LATEST)
    return SubscribeRequest(
        request.subscription,
        request.durable,
        request.read_compacted,
        start,
        resumes,
        request.subscription_properties,
    )


def flow(session: Session, request: requests.Flow) -> None:
    """Add flow permits to a consumer. Do nothing if the session does not have it: it was closed meanwhile."""
    connected = session.consumers.get(request.consumer_id)
    if connected is not None:
        connected.subscription.add_permits(connected.consumer, request.message_permits)


def ack(session: Session, request: requests.Ack) -> None:
    """Acknowledge entries; those of a consumer that the session does not have are ignored.

    A request of more than `ACKS_AT_ONCE` entries is executed in parts, and holds later requests back until it has
    ended.
    """
    connected = session.consumers.get(request.consumer_id)
    if connected is None:
        return
    count = min(len(request.entries), 1) if request.is_cumulative else len(request.entries)
    unknown: list[AckedEntry] = []
    moves = connected.subscription.position.moves
    first = next(_acked_entries_in_parts(connected, request, count, moves), ())
    error = _ack_refusal(connected.consumer, request)
    if error is None and len(first) < count:
        # All of it or nothing: a request that is refused because too many are under way has no effect.
        # The position may move before the task begins, so the task begins with the first part again.
        remaining = _acked_entries_in_parts(connected, request, count, moves)
        if session.begin(request, _finish_ack(session, connected, request, remaining, unknown, None)):
            session.channel.hold_requests(_ACKNOWLEDGING)  # later requests must not overtake the entries
        return
    if error is None:
        error = _acknowledge(connected, request, first, unknown)
    if unknown or request.request_id is not None:
        session.begin(request, _finish_ack(session, connected, request, None, unknown, error))


def _acked_entries_in_parts(
    connected: ConnectedConsumer, request: requests.Ack, entry_count: int, moves_at_arrival: int
) -> Iterator[Sequence[AckedEntry]]:
    """Yield the first `entry_count` entries of an acknowledgement in parts, each for one step of the event loop.

    `moves_at_arrival`: the number of moves of the subscription's position when the request arrived. The consumer may
    leave between two steps. After another move the remaining entries are not yielded, since they are about the earlier
    position.
    """
    position = connected.subscription.position
    for start in range(0, entry_count, ACKS_AT_ONCE):
        part = request.entries[start : min(start + ACKS_AT_ONCE, entry_count)]
        while part and position.moves == moves_at_arrival:
            end = connected.subscription.acks.count_within_step_limit(part)
            yield part[:end]
            part = part[end:]


def _acknowledge(
    connected: ConnectedConsumer, request: requests.Ack, entries: Sequence[AckedEntry], unknown: list[AckedEntry]
) -> Refused | None:
    """Acknowledge a part of a request's entries. Add those that are not pending to `unknown`.

    Return the refusal if another process has moved or deleted the cursor; None: there is none.
    """
    cumulative = request.is_cumulative
    try:
        unknown += connected.subscription.acknowledge(connected.consumer, entries, cumulative=cumulative)
    except Fenced as error:  # another process has moved or deleted the cursor
        return refusal(error)
    return None


async def _finish_ack(
    session: Session,
    connected: ConnectedConsumer,
    request: requests.Ack,
    remaining: Iterator[Sequence[AckedEntry]] | None,
    unknown: list[AckedEntry],
    error: Refused | None,
) -> responses.AckResponse | None:
    """Acknowledge the remaining entries part by part, and look up the unknown ones.

    Return the response; None: the client asked for none.
    """
    consumer, subscription = connected.consumer, connected.subscription
    if remaining is not None:
        try:
            async for part in in_turns(remaining, 1):
                error = _acknowledge(connected, request, part, unknown)
                if error is not None:
                    break
        finally:
            session.channel.resume_requests(_ACKNOWLEDGING)
    try:
        if unknown:
            await subscription.acks.acknowledge_by_lookup(consumer, unknown, cumulative=request.is_cumulative)
        if request.request_id is not None and error is None:
            await subscription.flush()
    except CompactorError as failure:
        error = refusal(failure)
        session.context.log_throttle.warn(
            "an acknowledgement of %s failed: %s",
            subscription.name,
            error.message,
            condition=f"ack {connected.topic.name}",
        )
    if request.request_id is None:
        return None
    if error is None:
        return responses.AckResponse(request.request_id, request.consumer_id)
    return responses.AckResponse(request.request_id, request.consumer_id, error.error, error.message)


def _ack_refusal(consumer: Consumer, request: requests.Ack) -> Refused | None:
    """Return the refusal of an acknowledgement that the consumer may not send; None: it may."""
    if request.is_transactional:
        return Refused(ServerError.NotAllowedError, "transactions are not offered")
    if request.is_cumulative and consumer.type.is_individual:
        return Refused(
            ServerError.NotAllowedError,
            "shared consumers acknowledge messages one by one",
        )
    return None


def redeliver(session: Session, request: requests.RedeliverUnacknowledgedMessages) -> None:
    """Deliver entries again to a consumer. Do nothing for a consumer that the session does not have."""
    connected = session.consumers.get(request.consumer_id)
    if connected is None:
        return
    if request.consumer_epoch is not None:
        connected.epoch = max(request.consumer_epoch, connected.epoch or 0)
    connected.subscription.redeliver(connected.consumer, request.entries)


def unsubscribe(session: Session, request: requests.Unsubscribe) -> Work:
    """Return the work that deletes the consumer's subscription.

    Raise Refused if the subscription has other consumers, unless the request has `force`.
    """
    connected = _require_consumer(session, request.consumer_id)
    topic, subscription = connected.topic, connected.subscription
    if len(subscription.consumers) > 1 and not request.force:
        raise Refused(
            ServerError.MetadataError,
            f"the subscription {subscription.name} has other consumers: close them first, or unsubscribe by force",
        )

    async def respond() -> responses.Success:
        session.consumers.pop(request.consumer_id, None)
        await topic.unsubscribe(subscription, force=True)
        session.identity.audit("delete_subscription", topic.name, subscription.name)
        return responses.Success(request.request_id)

    return respond()


def seek(session: Session, request: requests.Seek) -> Work:
    """Return the work that moves the consumer's subscription to a message, earliest, latest, or a publish time."""
    connected = _require_consumer(session, request.consumer_id)
    topic, subscription = connected.topic, connected.subscription

    async def respond() -> responses.Success:
        message_id = request.message_id
        if message_id is None:
            await subscription.seek(StartTime(request.message_publish_time))
        elif 0 <= message_id.ledger_id < LATEST.ledger_id:
            await subscription.seek(message_id)
        else:
            await subscription.seek(entry_id_of_message(message_id))
        if subscription.durable:
            session.identity.audit("reset_cursor", topic.name, subscription.name)
        return responses.Success(request.request_id)

    return respond()


def close(session: Session, request: requests.CloseConsumer) -> None:
    """Remove a consumer, or cancel its creation, and respond; also for a consumer that the session does not have."""
    connected = session.consumers.get(request.consumer_id)

    async def respond() -> responses.Success:
        if connected is not None:
            await connected.topic.remove_consumer(connected.subscription, connected.consumer)
        return responses.Success(request.request_id)

    if session.begin(request, respond()):  # a refused request leaves the consumer to the session
        session.cancel_creation("consumer", request.consumer_id)
        session.consumers.pop(request.consumer_id, None)


def get_last_message_id(session: Session, request: requests.GetLastMessageId) -> Work:
    """Return the work that reads the id of the last message and the position of the consumer's subscription."""
    connected = _require_consumer(session, request.consumer_id)
    topic, subscription = connected.topic, connected.subscription

    async def respond() -> responses.GetLastMessageIdResponse:
        last, before_first = await topic.store.run(
            _last_and_before_first_id, topic.storage, subscription.position.read_compacted
        )
        mark = subscription.position.mark_delete_or_start_id
        if mark == EARLIEST:
            mark = before_first
        return responses.GetLastMessageIdResponse(
            request.request_id,
            replace(last, partition=topic.name.partition),
            MessageId(mark.ledger_id, mark.entry_id),
        )

    return respond()


def _last_and_before_first_id(topic: Topic, read_compacted: bool) -> tuple[MessageId, MessageId]:
    """Return the id of a topic's last message, and the position before its first entry."""
    extents = topic.snapshot().extents
    return topic.last_message_id(read_compacted), MessageId(extents[0].ledger_id if extents else -1, -1)


def get_stats(session: Session, request: requests.ConsumerStats) -> responses.ConsumerStatsResponse:
    """Return the rates and counts of a consumer. Raise Refused (ConsumerNotFound)."""
    consumer = _require_consumer(session, request.consumer_id).consumer
    return responses.ConsumerStatsResponse(
        request.request_id,
        msg_rate_out=consumer.delivered.per_second,
        msg_throughput_out=consumer.delivered.bytes_per_second,
        msg_rate_redeliver=consumer.redelivered.per_second,
        message_ack_rate=consumer.acknowledged.per_second,
        consumer_name=consumer.name,
        available_permits=max(0, consumer.permits),  # the field has no sign
        unacked_messages=max(0, consumer.unacked),
        address=session.address,
        type=consumer.type.pulsar_name.replace("_", ""),
    )


def _require_consumer(session: Session, consumer_id: int) -> ConnectedConsumer:
    """Return a consumer of the session by its id. Raise Refused (ConsumerNotFound) if there is none."""
    connected = session.consumers.get(consumer_id)
    if connected is None:
        raise Refused(ServerError.ConsumerNotFound, f"this connection has no consumer {consumer_id}")
    return connected
