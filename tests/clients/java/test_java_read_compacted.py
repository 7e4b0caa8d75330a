"""Compacted topics read by Pulsar's Java client, as Pulsar's own tests of compaction describe it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JJavaError

from tests.clients.java.messaging import JavaClient, pairs

pytestmark = pytest.mark.slow

CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
BOTH = pytest.mark.parametrize("batched", [False, True])


@BOTH
def test_the_newest_value_of_each_key(
    java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool
) -> None:
    sent = [(f"k{number * 31 % 10}", b"%d" % number) for number in range(100)]
    java.producer(topic, batched=batched).send_together(sent)
    raw = java.reader(topic).all()
    compact(topic)

    read = java.reader(topic, compacted=True).all()

    newest = {message.key: message for message in raw}
    wanted = sorted(newest.values(), key=lambda message: message.position)
    assert [(message.pair, message.position) for message in read] == [
        (message.pair, message.position) for message in wanted
    ]
    assert pairs(java.reader(topic).all()) == sent


@BOTH
def test_behind_the_horizon_nothing_is_left_out(
    java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool
) -> None:
    producer = java.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", b"2")])
    compact(topic)
    producer.send_together([("a", b"3"), ("b", b"2"), ("a", b"4")])

    read = pairs(java.reader(topic, compacted=True).all())

    assert read == [("b", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"2"), ("a", b"4")]
    compact(topic)
    assert pairs(java.reader(topic, compacted=True).all()) == [("b", b"2"), ("a", b"4")]


@BOTH
def test_the_first_message_stays_if_it_is_the_only_one_of_its_key(
    java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool
) -> None:
    producer = java.producer(topic, batched=batched)
    producer.send_together([("first", b"1"), ("other", b"1"), ("other", b"2")])
    compact(topic)
    assert pairs(java.reader(topic, compacted=True).all()) == [("first", b"1"), ("other", b"2")]


@BOTH
@pytest.mark.parametrize("tombstone", [b"", None])
def test_an_empty_value_deletes_its_key(
    java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool, tombstone: bytes | None
) -> None:
    producer = java.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", tombstone), ("c", b"1")])
    compact(topic)
    assert pairs(java.reader(topic, compacted=True).all()) == [("b", b"1"), ("c", b"1")]


@pytest.mark.parametrize("codec", CODECS)
def test_batches_partly_and_wholly_compacted_out(
    java: JavaClient, topic: str, compact: Callable[[str], None], codec: str
) -> None:
    producer = java.producer(topic, batched=True, compression=codec)
    producer.send_together([("a", b"1" * 100), ("b", b"1" * 100)])  # wholly
    producer.send_together([("a", b"2" * 100), ("b", b"2" * 100), ("c", b"2" * 100)])  # partly
    producer.send_together([("a", b"3" * 100), ("c", b"3" * 100)])
    compact(topic)

    read = java.reader(topic, compacted=True).all()

    assert pairs(read) == [("b", b"2" * 100), ("a", b"3" * 100), ("c", b"3" * 100)]
    assert [message.position[2] for message in read] == [1, 0, 1]


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
    assert bytes(message.java.getKeyBytes()) == bytes((0, 255, 7))


@BOTH
def test_all_messages_deleted(java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool) -> None:
    producer = java.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", None), ("b", None)])
    compact(topic)

    reader = java.reader(topic, compacted=True)

    assert reader.all() == []
    producer.send_together([("c", b"1")])
    assert reader.next().pair == ("c", b"1")
    assert reader.all() == []


def test_an_empty_topic(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic)
    compact(topic)
    reader = java.reader(topic, compacted=True)
    assert reader.all() == []
    producer.send("a", b"1")
    assert pairs(reader.all()) == [("a", b"1")]


@BOTH
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


def test_a_reader_inside_the_horizon(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic)
    ids = [producer.send(f"k{number % 3}", b"%d" % number) for number in range(9)]
    compact(topic)

    assert pairs(java.reader(topic, ids[2], compacted=True).all()) == [
        ("k0", b"6"), ("k1", b"7"), ("k2", b"8"),
    ]  # fmt: skip
    assert pairs(java.reader(topic, ids[7], compacted=True).all()) == [("k2", b"8")]
    assert pairs(java.reader(topic, ids[7], compacted=True, inclusive=True).all()) == [("k1", b"7"), ("k2", b"8")]


def test_a_reader_from_latest(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic)
    producer.send("a", b"1")
    compact(topic)
    reader = java.reader(topic, java.latest, compacted=True)
    assert not reader.has_message_available()
    producer.send("a", b"2")
    assert reader.next().pair == ("a", b"2")


@BOTH
def test_a_receiver_queue_of_one(java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool) -> None:
    producer = java.producer(topic, batched=batched)
    producer.send_together([(f"k{number % 10}", b"%d" % number) for number in range(50)])
    compact(topic)
    read = java.reader(topic, compacted=True, queue=1).all()
    assert [message.value for message in read] == [b"%d" % number for number in range(40, 50)]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_consumer_resumes_behind_what_it_acknowledged(
    java: JavaClient, topic: str, compact: Callable[[str], None], kind: str
) -> None:
    producer = java.producer(topic, batched=True)
    producer.send_together([(f"k{number % 10}", b"%d" % number) for number in range(30)])
    compact(topic)
    consumer = java.consumer(topic, "s", kind, compacted=True, enableBatchIndexAcknowledgment=True)
    for number in range(20, 25):
        message = consumer.receive()
        assert message.value == b"%d" % number
        consumer.acknowledge(message)
    consumer.java.close()
    producer.send_together([("k0", b"new")])

    again = java.consumer(topic, "s", kind, compacted=True, enableBatchIndexAcknowledgment=True)

    assert [again.receive().value for _ in range(6)] == [b"25", b"26", b"27", b"28", b"29", b"new"]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_shared_subscriptions_do_not_read_compacted(java: JavaClient, topic: str, kind: str) -> None:
    with pytest.raises(Py4JJavaError, match=r"[rR]ead ?[cC]ompacted"):
        java.consumer(topic, "s", kind, compacted=True)


def test_topics_that_are_not_persistent_are_refused(java: JavaClient, topic: str) -> None:
    with pytest.raises(Py4JJavaError):
        java.reader(topic.replace("persistent", "non-persistent"), compacted=True)


@BOTH
def test_a_consumer_sees_each_id_once_while_compactions_publish(
    java: JavaClient, topic: str, compact: Callable[[str], None], batched: bool
) -> None:
    producer = java.producer(topic, batched=batched)
    reader = java.reader(topic, compacted=True, queue=2)
    seen: list[tuple[int, int, int]] = []
    for turn in range(3):
        producer.send_together([(f"k{number}", b"%d" % turn) for number in range(10)])
        seen += [reader.next().position for _ in range(3)]
        compact(topic)
        seen += [message.position for message in reader.all()]
    assert seen == sorted(set(seen))


def test_a_large_message_in_chunks(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic, enableChunking=True, chunkMaxMessageSize=1000)
    producer.send("large", b"1" * 10_000)
    producer.send("small", b"1")
    producer.send("large", b"2" * 10_000)
    compact(topic)
    assert pairs(java.reader(topic, compacted=True).all()) == [("small", b"1"), ("large", b"2" * 10_000)]


def test_a_seek_on_a_compacted_topic(java: JavaClient, topic: str, compact: Callable[[str], None]) -> None:
    producer = java.producer(topic)
    ids = [producer.send(f"k{number % 3}", b"%d" % number) for number in range(9)]
    compact(topic)
    reader = java.reader(topic, compacted=True)
    assert len(reader.all()) == 3
    reader.java.seek(ids[0])
    assert [message.value for message in reader.all()] == [b"6", b"7", b"8"]
    reader.java.seek(java.latest)
    assert reader.all() == []
