"""Pulsar's Java client, beside reading compacted topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from py4j.java_gateway import JavaGateway

from tests.clients.java.messaging import JavaClient, JavaConsumer
from tests.clients.python.conftest import Admin, wait_for
from tests.clients.read_compacted import Received, pairs
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow

SOON_MS = 300


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """URLs of a public and of a private key, as the client takes them."""
    folder = tmp_path_factory.mktemp("keys")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return public.as_uri(), private.as_uri()


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_encrypted_messages_are_compacted_by_their_keys(
    java: JavaClient, topic: str, compact: Callable[[str], None], keys: tuple[str, str], compression: str
) -> None:
    public, private = keys
    producer = java.producer(topic, compression=compression, addEncryptionKey="k", defaultCryptoKeyReader=public)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", b"2")])
    raw = java.reader(topic, defaultCryptoKeyReader=private).all()
    compact(topic)

    read = java.reader(topic, compacted=True, defaultCryptoKeyReader=private).all()

    assert pairs(raw) == [("a", b"1"), ("b", b"1"), ("a", b"2")]
    assert pairs(read) == [("b", b"1"), ("a", b"2")]
    assert [message.position for message in read] == [raw[1].position, raw[2].position]


def test_an_encrypted_batch_stays_whole(
    java: JavaClient, topic: str, compact: Callable[[str], None], keys: tuple[str, str]
) -> None:
    public, private = keys
    sent: list[tuple[str | None, bytes | None]] = [("a", b"1"), ("b", b"1"), ("a", b"2")]
    java.producer(topic, batched=True, addEncryptionKey="k", defaultCryptoKeyReader=public).send_together(sent)
    java.producer(topic).send_together([("c", b"1"), ("c", b"2")])
    compact(topic)

    read = java.reader(topic, compacted=True, defaultCryptoKeyReader=private).all()

    assert pairs(read) == [*sent, ("c", b"2")]


def test_a_key_shared_consumer_that_joins_gets_no_key_out_of_order(java: JavaClient, topic: str) -> None:
    producer = java.producer(topic)
    first = java.consumer(topic, "s", "Key_Shared", receiverQueueSize=100)
    producer.send_together([(f"k{number % 10}", b"%d" % number) for number in range(50)])
    held = [first.receive() for _ in range(50)]
    second = java.consumer(topic, "s", "Key_Shared", receiverQueueSize=100)
    producer.send_together([(f"k{number % 10}", b"%d" % number) for number in range(50, 100)])
    # What belongs to the second waits until the first has acknowledged what it had of the same key.
    assert second.receive_now(SOON_MS) is None
    for message in held:
        first.acknowledge(message)

    later = _both(first, second, 50)

    assert {message.key for message in later[0]}.isdisjoint(message.key for message in later[1])
    assert later[0], "the first has no keys left"
    assert later[1], "the second got no keys"
    for messages in later:
        for key in {message.key for message in messages}:
            positions = [message.position for message in messages if message.key == key]
            assert positions == sorted(positions)


def test_a_key_shared_consumer_that_leaves_loses_nothing(java: JavaClient, topic: str) -> None:
    producer = java.producer(topic)
    consumers = [java.consumer(topic, "s", "Key_Shared") for _ in range(3)]
    sent = [(f"k{number % 50}", b"%d" % number) for number in range(100)]
    producer.send_together(sent)
    consumers[0].receive()  # has it and does not acknowledge it
    consumers[0].java.close()

    by_consumer = _both(consumers[1], consumers[2], 100)

    for key in {key for key, _ in sent}:
        values = [message.value for messages in by_consumer for message in messages if message.key == key]
        assert values == [value for sent_key, value in sent if sent_key == key]


def test_a_failover_consumer_takes_over_where_the_other_stopped(java: JavaClient, topic: str) -> None:
    active = java.consumer(topic, "s", "Failover", consumerName="a")
    waiting = java.consumer(topic, "s", "Failover", consumerName="b")
    java.producer(topic).send_together([("k", b"%d" % number) for number in range(10)])
    for _ in range(4):
        active.acknowledge(active.receive())
    assert waiting.receive_now(SOON_MS) is None
    active.java.close()

    assert [waiting.receive().value for _ in range(6)] == [b"%d" % number for number in range(4, 10)]


def test_a_table_view_follows(
    java: JavaClient, gateway: JavaGateway, topic: str, compact: Callable[[str], None]
) -> None:
    producer = java.producer(topic)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", None)])
    compact(topic)
    schema = gateway.jvm.org.apache.pulsar.client.api.Schema.BYTES

    view = java.java.newTableView(schema).topic(topic).create()
    producer.send("c", b"1")
    wait_for(lambda: view.containsKey("c"))

    assert {key: bytes(view.get(key)) for key in view.keySet()} == {"a": b"2", "c": b"1"}
    view.close()


def test_a_pattern_consumer_is_told_of_a_new_topic(java: JavaClient, gateway: JavaGateway, topic: str) -> None:
    java.producer(f"{topic}-one").send("k", b"1")
    pattern = gateway.jvm.java.util.regex.Pattern.compile(f"{topic}-.*")
    builder = java.java.newConsumer().topicsPattern(pattern).subscriptionName("s")
    builder.subscriptionInitialPosition(gateway.jvm.org.apache.pulsar.client.api.SubscriptionInitialPosition.Earliest)
    # An hour until it would ask: that it knows sooner is the watch.
    builder.patternAutoDiscoveryPeriod(1, gateway.jvm.java.util.concurrent.TimeUnit.HOURS)
    consumer = JavaConsumer(builder.subscribe(), gateway.jvm.java.util.concurrent.TimeUnit.SECONDS)
    assert consumer.receive().value == b"1"

    java.producer(f"{topic}-two").send("k", b"2")

    assert consumer.receive().value == b"2"


def test_a_dead_letter_topic_gets_what_failed_too_often(java: JavaClient, gateway: JavaGateway, topic: str) -> None:
    policy = (
        gateway.jvm.org.apache.pulsar.client.api.DeadLetterPolicy.builder()
        .maxRedeliverCount(2)
        .deadLetterTopic(f"{topic}-dead")
        .build()
    )
    unit = gateway.jvm.java.util.concurrent.TimeUnit.MILLISECONDS
    builder = java.java.newConsumer().topic(java.strings(topic)).subscriptionName("s").deadLetterPolicy(policy)
    builder.subscriptionType(gateway.jvm.org.apache.pulsar.client.api.SubscriptionType.Shared)
    builder.negativeAckRedeliveryDelay(1, unit)
    consumer = JavaConsumer(builder.subscribe(), gateway.jvm.java.util.concurrent.TimeUnit.SECONDS)
    java.producer(topic).send("k", b"bad")
    dead = java.consumer(f"{topic}-dead", "d")

    for count in range(3):
        message = consumer.receive()
        assert message.native.getRedeliveryCount() == count
        consumer.java.negativeAcknowledge(message.native)
    assert consumer.receive_now(SOON_MS) is None

    assert dead.receive().value == b"bad"


def test_consumers_of_partitions_share_them(java: JavaClient, service: RunningService, topic: str) -> None:
    Admin(service.url).topic("PUT", topic, "/partitions", 3)
    sent = {(f"k{number}", b"%d" % number) for number in range(60)}
    first, second = (java.consumer(topic, "s", "Failover") for _ in range(2))
    java.producer(topic).send_together(sorted(sent))

    by_consumer = _both(first, second, 60)

    assert {message.pair for messages in by_consumer for message in messages} == sent
    assert all(by_consumer)


def _both(first: JavaConsumer, second: JavaConsumer, count: int) -> tuple[list[Received], list[Received]]:
    """Receive `count` messages with two consumers, acknowledge each at once, and return them by consumer."""
    by_consumer: tuple[list[Received], list[Received]] = ([], [])
    wait_for(lambda: _receive(first, by_consumer[0]) + _receive(second, by_consumer[1]) >= count)
    assert len(by_consumer[0]) + len(by_consumer[1]) == count
    return by_consumer


def _receive(consumer: JavaConsumer, messages: list[Received]) -> int:
    while (message := consumer.receive_now(20)) is not None:
        messages.append(message)
        consumer.acknowledge(message)
    return len(messages)
