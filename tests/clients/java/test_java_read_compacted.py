"""Compacted topics read by Pulsar's Java client, as Pulsar's own tests of compaction describe it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.java.messaging import JavaClient
from tests.clients.read_compacted import SCENARIOS, pairs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(java: JavaClient, topic: str, compact: Callable[[str], None], scenario: str) -> None:
    SCENARIOS[scenario](java, topic, compact)


def test_messages_without_a_key_are_dropped(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic, batched=True)
    producer.send_together([(None, b"1"), ("a", b"1"), (None, b"2"), ("", b"empty")])
    compact(topic)
    assert pairs(java.reader(topic, compacted=True).all()) == [("a", b"1"), ("", b"empty")]


def test_keys_of_bytes(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic)
    for value in (b"1", b"2"):
        producer.java.newMessage().keyBytes(bytes((0, 255, 7))).value(value).send()
    compact(topic)
    (message,) = java.reader(topic, compacted=True).all()
    assert message.value == b"2"
    assert bytes(message.native.getKeyBytes()) == bytes((0, 255, 7))


@pytest.mark.parametrize("batched", [False, True])
def test_the_last_message_id_of_a_compacted_topic(
    java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool
) -> None:
    producer = java.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("b", None)])
    compact(topic)

    reader = java.reader(topic, compacted=True)

    (message,) = reader.all()
    assert message.pair == ("a", b"1")
    (last,) = reader.java.getLastMessageIds()
    assert (last.getLedgerId(), last.getEntryId()) == message.position[:2]
    assert len(java.reader(topic).all()) == 3


def test_a_large_message_in_chunks(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic, enableChunking=True, chunkMaxMessageSize=1000)
    producer.send("large", b"1" * 10_000)
    producer.send("small", b"1")
    producer.send("large", b"2" * 10_000)
    compact(topic)
    assert pairs(java.reader(topic, compacted=True).all()) == [("small", b"1"), ("large", b"2" * 10_000)]
