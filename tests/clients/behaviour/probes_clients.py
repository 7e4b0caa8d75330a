"""Probes through Pulsar's own Python client: what its dead letter policy, readers and codecs make of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar

from tests.clients.behaviour.endpoint import SUPERUSER, Endpoint, token_of
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import EARLIEST, Wire, parse_metadata, produced

WAIT_MS = 20_000


@contextmanager
def _client(url: str) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(url, logger=logger, authentication=pulsar.AuthenticationToken(token_of(SUPERUSER)))
    try:
        yield client
    finally:
        client.close()


@probe("G1")
def dead_letters_after_restarts(endpoint: Endpoint, topic: str) -> Any:
    """Restart a consumer with a dead letter policy six times, each with one acknowledgement; what became dead."""
    produced(endpoint, topic, 20)
    dead, seen = topic + "-dead", []
    with _client(endpoint.broker_service_url) as watching:
        letters = watching.subscribe(dead, "s", initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(6):
            with _client(endpoint.broker_service_url) as client:
                consumer = client.subscribe(
                    topic, "s", consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                    dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(3, dead_letter_topic=dead),
                )  # fmt: skip
                message = consumer.receive(WAIT_MS)
                seen.append([message.data().decode(), message.redelivery_count()])
                consumer.acknowledge(message)
        return {"received": seen, "dead": _rest(letters), "msgBacklog": endpoint.subscription(topic)["msgBacklog"]}


def _rest(consumer: Any, milliseconds: int = 1500) -> list[str]:
    received = []
    while True:
        try:
            message = consumer.receive(milliseconds)
        except pulsar.Timeout:
            return received
        received.append(message.data().decode())
        consumer.acknowledge(message)


@probe("G1")
def dead_letter_after_negative_acknowledgements(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge a message negatively until it is a dead letter (at most two redeliveries)."""
    produced(endpoint, topic, 1)
    dead = topic + "-dead"
    with _client(endpoint.broker_service_url) as client:
        letters = client.subscribe(dead, "s", initial_position=pulsar.InitialPosition.Earliest)
        consumer = client.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100,
            initial_position=pulsar.InitialPosition.Earliest,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, dead_letter_topic=dead),
        )  # fmt: skip
        seen = []
        for _ in range(3):
            message = consumer.receive(WAIT_MS)
            seen.append(message.redelivery_count())
            consumer.negative_acknowledge(message)
        return {"counts": seen, "dead": letters.receive(WAIT_MS).data().decode()}


@probe("S2")
def client_with_a_service_url_of_http(endpoint: Endpoint, topic: str) -> Any:
    """Produce to a missing topic through a client whose service URL is one of HTTP."""
    with _client(endpoint.url) as client:
        client.create_producer(topic).send(b"x")
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return reader.read_next(WAIT_MS).data().decode()


@probe("S3")
def reader_at_the_latest_inclusive(endpoint: Endpoint, topic: str) -> Any:
    """Read the newest message with a reader at the latest, inclusive."""
    produced(endpoint, topic, 3)
    with _client(endpoint.broker_service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
        available = reader.has_message_available()
        return {"available": available, "read": reader.read_next(5000).data().decode() if available else None}


@probe("S3")
def reader_that_sought_the_end(endpoint: Endpoint, topic: str) -> Any:
    """Seek a reader past all messages; whether messages are available before and after one more."""
    produced(endpoint, topic, 3)
    with _client(endpoint.broker_service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        reader.seek(4_102_444_800_000)  # the year 2100
        before = reader.has_message_available()
        produced(endpoint, topic, 1, 3)
        after = reader.has_message_available()
        return {"before": before, "after": after, "read": reader.read_next(WAIT_MS).data().decode()}


@probe("G22")
def delayed_through_a_client(endpoint: Endpoint, topic: str) -> Any:
    """Send a message with `deliver_after` and one without, to a shared consumer."""
    import datetime

    with _client(endpoint.broker_service_url) as client:
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"delayed", deliver_after=datetime.timedelta(seconds=6))
        producer.send(b"at once")
        return [consumer.receive(WAIT_MS).data().decode() for _ in range(2)]


@probe("S1")
def codec_of_compacted_entries(endpoint: Endpoint, topic: str) -> Any:
    """Compact batches that were sent with each codec; the codec of the entry that a compacted reader gets."""
    codecs = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")
    seen = {}
    with _client(endpoint.broker_service_url) as client:
        for codec in codecs:
            own = f"{topic}-{codec.lower()}"
            producer = client.create_producer(
                own, compression_type=getattr(pulsar.CompressionType, codec), batching_enabled=True,
                batching_max_publish_delay_ms=10_000, batching_max_messages=4,
            )  # fmt: skip
            for key in ("a", "b", "a", "c"):
                producer.send_async(b"x" * 1000, None, partition_key=key)
            producer.flush()
    for codec in codecs:
        own = f"{topic}-{codec.lower()}"
        assert endpoint.compact(own) == "SUCCESS"
        with Wire(endpoint) as wire:
            wire.subscribe(own, "r", durable=False, start_message_id=EARLIEST, read_compacted=True)
            wire.flow(100)
            (frame,) = wire.messages(1)
            seen[codec] = parse_metadata(frame.entry, checksum_verified=True)[0].compression
    return seen
