"""Scenarios of reading compacted topics, as Pulsar's own tests of compaction describe them, for any client of Pulsar.

`SCENARIOS` is the table; the tests of each client replay it with a driver: `java/messaging.py`, `python/messaging.py`.
A driver has producers, readers and consumers of bytes in plain Python values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pytest

Pair = tuple[str | None, bytes | None]
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


@dataclass(frozen=True)
class Received:
    """A message: its key, None for none; its payload; its id without the partition; the client's own object."""

    key: str | None
    value: bytes
    position: tuple[int, int, int]
    native: Any

    @property
    def pair(self) -> tuple[str | None, bytes]:
        return self.key, self.value


def pairs(messages: Sequence[Received]) -> list[tuple[str | None, bytes]]:
    return [message.pair for message in messages]


class Producer(Protocol):
    """A producer of bytes."""

    def send(self, key: str | None, value: bytes | None) -> Any:
        """Send a message, wait for it, and return its id."""

    def send_together(self, messages: Iterable[Pair]) -> None:
        """Send messages, in one batch if the producer batches, and wait for all."""


class Reader(Protocol):
    """A reader of bytes."""

    def has_message_available(self) -> bool: ...

    def next(self) -> Received:
        """Return the next message, which is expected."""

    def all(self) -> list[Received]:
        """Return all that are available."""

    def seek(self, message_id: Any) -> None: ...


class Consumer(Protocol):
    """A consumer of bytes."""

    def receive(self) -> Received:
        """Return the next message, which is expected."""

    def acknowledge(self, message: Received) -> None: ...

    def close(self) -> None: ...


class Client(Protocol):
    """A client of one service. `refusals`: the errors that it raises where a call is refused."""

    refusals: type[Exception]

    @property
    def latest(self) -> Any: ...

    def producer(self, topic: str, *, batched: bool = False, compression: str = "NONE") -> Producer: ...

    def reader(
        self, topic: str, start: Any = None, *, compacted: bool = False, inclusive: bool = False, queue: int = 1000
    ) -> Reader: ...

    def consumer(
        self, topic: str, subscription: str, kind: str = "Exclusive", *, compacted: bool = False, by_index: bool = False
    ) -> Consumer: ...


Compact = Callable[[str], None]
Scenario = Callable[[Client, str, Compact], None]
"""A scenario of a client, a new topic's name, and what compacts a topic."""


def _newest_of_each_key(client: Client, topic: str, compact: Compact, batched: bool) -> None:
    sent: list[Pair] = [(f"k{number * 31 % 10}", b"%d" % number) for number in range(100)]
    client.producer(topic, batched=batched).send_together(sent)
    raw = client.reader(topic).all()
    compact(topic)

    read = client.reader(topic, compacted=True).all()

    newest = {message.key: message for message in raw}
    expected = sorted(newest.values(), key=lambda message: message.position)
    assert [(message.pair, message.position) for message in read] == [
        (message.pair, message.position) for message in expected
    ]
    assert pairs(client.reader(topic).all()) == sent


def _everything_after_the_horizon(client: Client, topic: str, compact: Compact, batched: bool) -> None:
    producer = client.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", b"2")])
    compact(topic)
    producer.send_together([("a", b"3"), ("b", b"2"), ("a", b"4")])

    read = pairs(client.reader(topic, compacted=True).all())

    assert read == [("b", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"2"), ("a", b"4")]
    compact(topic)
    assert pairs(client.reader(topic, compacted=True).all()) == [("b", b"2"), ("a", b"4")]


def _first_message_alone_of_its_key(client: Client, topic: str, compact: Compact, batched: bool) -> None:
    producer = client.producer(topic, batched=batched)
    producer.send_together([("first", b"1"), ("other", b"1"), ("other", b"2")])
    compact(topic)
    assert pairs(client.reader(topic, compacted=True).all()) == [("first", b"1"), ("other", b"2")]


def _empty_value_deletes(client: Client, topic: str, compact: Compact, batched: bool, tombstone: bytes | None) -> None:
    producer = client.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", tombstone), ("c", b"1")])
    compact(topic)
    assert pairs(client.reader(topic, compacted=True).all()) == [("b", b"1"), ("c", b"1")]


def _batches_compacted_in_part_and_whole(client: Client, topic: str, compact: Compact, codec: str) -> None:
    producer = client.producer(topic, batched=True, compression=codec)
    producer.send_together([("a", b"1" * 100), ("b", b"1" * 100)])  # whole
    producer.send_together([("a", b"2" * 100), ("b", b"2" * 100), ("c", b"2" * 100)])  # in part
    producer.send_together([("a", b"3" * 100), ("c", b"3" * 100)])
    compact(topic)

    read = client.reader(topic, compacted=True).all()

    assert pairs(read) == [("b", b"2" * 100), ("a", b"3" * 100), ("c", b"3" * 100)]
    assert [message.position[2] for message in read] == [1, 0, 1]


def _all_deleted(client: Client, topic: str, compact: Compact, batched: bool) -> None:
    producer = client.producer(topic, batched=batched)
    producer.send_together([("a", b"1"), ("b", b"1"), ("a", None), ("b", None)])
    compact(topic)

    reader = client.reader(topic, compacted=True)

    assert reader.all() == []
    producer.send_together([("c", b"1")])
    assert reader.next().pair == ("c", b"1")
    assert reader.all() == []


def _empty_topic(client: Client, topic: str, compact: Compact) -> None:
    producer = client.producer(topic)
    compact(topic)
    reader = client.reader(topic, compacted=True)
    assert reader.all() == []
    producer.send("a", b"1")
    assert pairs(reader.all()) == [("a", b"1")]


def _start_before_the_horizon(client: Client, topic: str, compact: Compact) -> None:
    producer = client.producer(topic)
    ids = [producer.send(f"k{number % 3}", b"%d" % number) for number in range(9)]
    compact(topic)

    assert pairs(client.reader(topic, ids[2], compacted=True).all()) == [("k0", b"6"), ("k1", b"7"), ("k2", b"8")]
    assert pairs(client.reader(topic, ids[7], compacted=True).all()) == [("k2", b"8")]
    assert pairs(client.reader(topic, ids[7], compacted=True, inclusive=True).all()) == [("k1", b"7"), ("k2", b"8")]


def _start_at_latest(client: Client, topic: str, compact: Compact) -> None:
    producer = client.producer(topic)
    producer.send("a", b"1")
    compact(topic)
    reader = client.reader(topic, client.latest, compacted=True)
    assert not reader.has_message_available()
    producer.send("a", b"2")
    assert reader.next().pair == ("a", b"2")


def _seek(client: Client, topic: str, compact: Compact) -> None:
    producer = client.producer(topic)
    ids = [producer.send(f"k{number % 3}", b"%d" % number) for number in range(9)]
    compact(topic)
    reader = client.reader(topic, compacted=True)
    assert len(reader.all()) == 3
    reader.seek(ids[0])
    assert [message.value for message in reader.all()] == [b"6", b"7", b"8"]
    reader.seek(client.latest)
    assert reader.all() == []


def _receiver_queue_of_one(client: Client, topic: str, compact: Compact, batched: bool) -> None:
    producer = client.producer(topic, batched=batched)
    producer.send_together([(f"k{number % 10}", b"%d" % number) for number in range(50)])
    compact(topic)
    read = client.reader(topic, compacted=True, queue=1).all()
    assert [message.value for message in read] == [b"%d" % number for number in range(40, 50)]


def _consumer_resumes(client: Client, topic: str, compact: Compact, kind: str) -> None:
    producer = client.producer(topic, batched=True)
    producer.send_together([(f"k{number % 10}", b"%d" % number) for number in range(30)])
    compact(topic)
    consumer = client.consumer(topic, "s", kind, compacted=True, by_index=True)
    for number in range(20, 25):
        message = consumer.receive()
        assert message.value == b"%d" % number
        consumer.acknowledge(message)
    consumer.close()
    producer.send_together([("k0", b"new")])

    again = client.consumer(topic, "s", kind, compacted=True, by_index=True)

    assert [again.receive().value for _ in range(6)] == [b"25", b"26", b"27", b"28", b"29", b"new"]


def _each_id_once_while_compactions_publish(client: Client, topic: str, compact: Compact, batched: bool) -> None:
    producer = client.producer(topic, batched=batched)
    reader = client.reader(topic, compacted=True, queue=2)
    seen: list[tuple[int, int, int]] = []
    for turn in range(3):
        producer.send_together([(f"k{number}", b"%d" % turn) for number in range(10)])
        seen += [reader.next().position for _ in range(3)]
        compact(topic)
        seen += [message.position for message in reader.all()]
    assert seen == sorted(set(seen))


def _shared_subscription_is_refused(client: Client, topic: str, compact: Compact, kind: str) -> None:
    with pytest.raises(client.refusals):
        client.consumer(topic, "s", kind, compacted=True)


def _non_persistent_topic_is_refused(client: Client, topic: str, compact: Compact) -> None:
    with pytest.raises(client.refusals):
        client.reader(topic.replace("persistent", "non-persistent"), compacted=True)


def _batched_or_not(scenario: Callable[..., None]) -> dict[str, Scenario]:
    name = scenario.__name__.strip("_")
    return {
        f"{name}-single": partial(scenario, batched=False),
        f"{name}-batched": partial(scenario, batched=True),
    }


SCENARIOS: dict[str, Scenario] = {
    **_batched_or_not(_newest_of_each_key),
    **_batched_or_not(_everything_after_the_horizon),
    **_batched_or_not(_first_message_alone_of_its_key),
    "empty_value_deletes-single": partial(_empty_value_deletes, batched=False, tombstone=b""),
    "empty_value_deletes-batched": partial(_empty_value_deletes, batched=True, tombstone=b""),
    "null_value_deletes-single": partial(_empty_value_deletes, batched=False, tombstone=None),
    "null_value_deletes-batched": partial(_empty_value_deletes, batched=True, tombstone=None),
    **{f"batches-{codec}": partial(_batches_compacted_in_part_and_whole, codec=codec) for codec in CODECS},
    **_batched_or_not(_all_deleted),
    "empty_topic": _empty_topic,
    "start_before_the_horizon": _start_before_the_horizon,
    "start_at_latest": _start_at_latest,
    "seek": _seek,
    **_batched_or_not(_receiver_queue_of_one),
    "consumer_resumes-Exclusive": partial(_consumer_resumes, kind="Exclusive"),
    "consumer_resumes-Failover": partial(_consumer_resumes, kind="Failover"),
    **_batched_or_not(_each_id_once_while_compactions_publish),
    "Shared_is_refused": partial(_shared_subscription_is_refused, kind="Shared"),
    "Key_Shared_is_refused": partial(_shared_subscription_is_refused, kind="Key_Shared"),
    "non_persistent_topic_is_refused": _non_persistent_topic_is_refused,
}
