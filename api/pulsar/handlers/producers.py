"""Requests of producers: PRODUCER, SEND, CLOSE_PRODUCER."""

from __future__ import annotations

from api.broker import names
from api.broker.serving.publishing import QueuedEntry
from api.http.access import AuthAction
from api.pulsar.codec import requests, responses
from api.pulsar.errors import Refused, ServerError
from api.pulsar.frames import MalformedFrame
from api.pulsar.handlers.schemas import ensure_stored, is_storable_schema, version_bytes
from api.pulsar.session import ConnectedProducer, IsReserved, Session
from storage.entries.replicated import split_source
from storage.entries.source_position import without_position
from storage.errors import ChecksumMismatch, Fenced, InvalidRecord
from storage.model import TopicName

REPLICATOR_PREFIX = "pulsar.repl"
"""The names of a broker's replicators begin so (Pulsar's replicatorPrefix)."""
MARKER_RECEIPT = 1 << 63
"""The highest sequence id in the receipt of a marker: Java's Long.MIN_VALUE."""


async def create(session: Session, request: requests.Producer) -> responses.ProducerSuccess | None:
    """Create a producer, or return the present one of this id unless the request has a higher epoch.

    Return None if the client has closed the producer meanwhile. An exclusive producer that has to wait for its turn
    gets a first response with `producer_ready` false.
    """
    with session.reserve_id("producer", request.producer_id, request.request_id) as is_reserved:
        return await _create_producer(session, request, is_reserved)


async def _create_producer(
    session: Session, request: requests.Producer, is_reserved: IsReserved
) -> responses.ProducerSuccess | None:
    context = session.context
    name = await session.identity.permitted_topic(request.topic, AuthAction.PRODUCE)
    if request.txn_enabled:
        raise Refused(ServerError.NotAllowedError, "transactions are not offered")
    is_replicator = request.producer_name.startswith(REPLICATOR_PREFIX)
    if is_replicator:
        _check_replication(session, name, request.producer_name)
    present = session.producers.get(request.producer_id)
    if present is not None and present.producer.options.epoch >= request.epoch:
        return _producer_success(request, present, b"")
    topic = await context.topics.get_or_open(name, session.settings.broker_auto_topic_creation, session.identity.audit)
    topic.check_backlog_quota()
    if is_replicator:
        topic.admit_replicator(request.producer_name)
    await topic.load_sequences(is_replicator)
    version = b""
    if is_storable_schema(request.schema):
        version = version_bytes(await ensure_stored(session, name, request.schema))
    if request.initial_subscription_name:
        await session.identity.require_topic_permission(name, AuthAction.CONSUME)
        await topic.ensure_subscription(request.initial_subscription_name)
    connected = ConnectedProducer(session, topic, request, request.producer_name or context.new_producer_name())
    producer = connected.producer
    other = topic.producers.get(producer.name)
    if other is not None and other.channel.connection is not session:
        # Its client may have lost the connection without our knowing; else it answers, and this one is refused.
        await other.channel.connection.close_unless_alive()
    await _drain_predecessor_entries(connected)
    if not is_reserved():
        return None
    earlier = session.producers.pop(request.producer_id, None)
    if earlier is not None:  # of a lower epoch, perhaps of another name or topic
        earlier.topic.remove_producer(earlier.producer)
    turn = topic.add_producer(producer)
    session.producers[request.producer_id] = connected
    try:
        if turn is not None:
            session.send(_producer_success(request, connected, version, is_ready=False))
            await turn  # raises ProducerFenced if another producer took the topic
            await _drain_predecessor_entries(connected)
        await topic.producers.store_epoch(producer)
    except BaseException as error:
        session.remove_producer(connected)
        topic.remove_producer(producer)
        if isinstance(error, Fenced):
            topic.report_topic_lost(error)
        raise
    if producer.is_closed:
        raise Refused(ServerError.ServiceNotReady, f"the producer {producer.name!r} was closed while it was created")
    return _producer_success(request, connected, version)


def _check_replication(session: Session, name: TopicName, replicator: str) -> None:
    """Raise Refused for a replicator that does not send positions, and for a system topic of its cluster."""
    if not session.sends_positions:
        raise Refused(
            ServerError.NotAllowedError,
            f"{replicator!r} is the name of a geo-replicator, and its broker does not send the positions of entries, "
            "without which a repeated entry would be stored twice: replicate from a broker of Pulsar 4.0 or newer, or "
            f"remove this cluster from the replication clusters of {name.tenant}/{name.namespace} or of the topic at "
            f"its source; any other producer takes a name that does not begin with {REPLICATOR_PREFIX!r}",
        )
    if names.is_system_topic(name):
        raise Refused(
            ServerError.NotAllowedError,
            f"{name} is a system topic of the cluster that {replicator!r} replicates, and is left out here: its broker "
            "tries again from time to time, and its other topics are replicated",
        )


async def _drain_predecessor_entries(connected: ConnectedProducer) -> None:
    """Wait until no entry of an earlier producer of the same name is in the queue of a topic that deduplicates.

    PRODUCER_SUCCESS names the last sequence id that is stored. An entry in the queue may be stored later, and the new
    producer would give its id to another message, which then counts as a duplicate and is lost. An earlier producer
    that is connected elsewhere still sends: this one is refused.
    """
    topic, producer = connected.topic, connected.producer
    while topic.is_deduplicating and topic.publishing.has_entries_of(producer.name):
        other = topic.producers.get(producer.name)
        if other is not None and other.channel.connection is not connected.connection:
            return
        await topic.publishing.drain()


def _producer_success(
    request: requests.Producer, connected: ConnectedProducer, version: bytes, is_ready: bool = True
) -> responses.ProducerSuccess:
    producer = connected.producer
    is_exclusive = is_ready and bool(producer.options.access_mode)
    return responses.ProducerSuccess(
        request.request_id,
        producer.name,
        connected.topic.last_sequence_id(producer.name),
        version,
        producer.topic_epoch if is_exclusive else None,
        is_ready,
    )


def send(session: Session, request: requests.Send) -> None:
    """Queue an entry to be appended; its receipt or error follows.

    An entry of a producer that the session does not have, or that waits for its turn, is ignored. Raise MalformedFrame
    for a SEND without an entry. A replicator's entry follows other rules: see `_send_replicated`.
    """
    producer_id, sequence_id, highest_sequence_id, messages, is_transactional, entry = request
    connected = session.producers.get(producer_id)
    if connected is None:
        return  # its client was asked to connect again, and sends the entry once more then
    topic, producer = connected.topic, connected.producer
    if topic.producers.get(producer.name) is not producer:
        return  # its turn has not come
    is_replicator = producer.name.startswith(REPLICATOR_PREFIX)
    if is_transactional and not is_replicator:
        error = Refused(ServerError.NotAllowedError, "transactions and markers are not offered")
        connected.send_error(sequence_id, error)
    elif not entry:
        raise MalformedFrame("SEND without an entry")
    elif is_replicator:
        _send_replicated(request, connected)
    else:  # a position in front would count as that of a replicator
        entry = without_position(entry)
        topic.publishing.put(QueuedEntry(producer, sequence_id, highest_sequence_id, messages, entry))


def _send_replicated(request: requests.Send, connected: ConnectedProducer) -> None:
    """Queue an entry of a replicator. Its receipt names the position at the source; that of a marker, its sequence id.

    An entry that cannot be stored stops the replicator; with an error for the entry alone its client would drop it.
    """
    topic, producer = connected.topic, connected.producer
    try:
        source, entry = split_source(request.entry)
    except ChecksumMismatch:
        producer.disconnect()  # its client sends the entry again
    except InvalidRecord as error:
        topic.refuse_replicator(producer, error)
    else:
        ids = (request.sequence_id, MARKER_RECEIPT) if source.is_marker else source.position
        topic.publishing.put(QueuedEntry(producer, *ids, request.num_messages, entry, source))


def close(session: Session, request: requests.CloseProducer) -> responses.Success | None:
    """Remove a producer after its queued entries are appended; the response follows then, and the call returns None.

    Return Success for a producer that the session does not have, and cancel its creation.
    """
    connected = session.producers.get(request.producer_id)
    if connected is None:
        session.cancel_creation("producer", request.producer_id)
        return responses.Success(request.request_id)

    async def respond() -> responses.Success:
        await connected.topic.publishing.drain()
        connected.topic.remove_producer(connected.producer)
        return responses.Success(request.request_id)

    if session.begin(request, respond()):  # a refused request leaves the producer to the session
        session.cancel_creation("producer", request.producer_id)
        session.remove_producer(connected)
    return None
