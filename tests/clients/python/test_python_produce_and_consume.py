"""Producing, consuming and reading raw with Pulsar's Python client."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pulsar
import pytest

from tests.clients.python.conftest import WAIT_MS, Admin, all_of, position, send_all, values, wait_for

pytestmark = pytest.mark.slow

CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_is_sent_is_read(client: pulsar.Client, topic: str, codec: Any, batched: bool) -> None:
    sent = [(f"k{number % 7}", b"value %d" % number * 20) for number in range(100)]
    producer = client.create_producer(topic, compression_type=codec, batching_enabled=batched)
    send_all(producer, sent, properties={"colour": "red"}, event_timestamp=1234)

    read = all_of(client.create_reader(topic, pulsar.MessageId.earliest))

    assert values(read) == sent
    assert {message.event_timestamp() for message in read} == {1234}
    assert all(message.properties() == {"colour": "red"} for message in read)
    assert [position(message) for message in read] == sorted(position(message) for message in read)
    assert {message.producer_name() for message in read} == {producer.producer_name()}


def test_sealed_messages_have_the_ids_and_the_content_that_they_had(
    client: pulsar.Client, topic: str, admin: Admin
) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    send_all(producer, [(f"k{number}", b"%d" % number) for number in range(95)], properties={"a": "b"})
    alone = client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD)
    alone.send(b"alone", partition_key="k", ordering_key="o", event_timestamp=7, properties={"x": "y"})
    before = all_of(client.create_reader(topic, pulsar.MessageId.earliest))
    admin.topic("PUT", topic, "/compaction")
    wait_for(lambda: admin.topic("GET", topic, "/compaction").json()["status"] == "SUCCESS")

    after = all_of(client.create_reader(topic, pulsar.MessageId.earliest))

    def all_about(message: pulsar.Message) -> tuple[Any, ...]:
        return (
            position(message), message.data(), message.partition_key(), message.ordering_key(), message.properties(),
            message.publish_timestamp(), message.event_timestamp(), message.producer_name(),
        )  # fmt: skip

    assert [all_about(message) for message in after] == [all_about(message) for message in before]


def test_a_large_message_goes_in_chunks(client: pulsar.Client, topic: str, admin: Admin) -> None:
    large = bytes(range(256)) * (50 << 10)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(large, partition_key="large")
    producer.send(b"small", partition_key="small")

    assert values(all_of(client.create_reader(topic, pulsar.MessageId.earliest))) == [
        ("large", large),
        ("small", b"small"),
    ]
    admin.compact(topic)
    compacted = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert values(all_of(compacted)) == [("large", large), ("small", b"small")]


def test_a_reader_begins_where_it_is_told(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(10)]

    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    behind = client.create_reader(topic, ids[3])
    assert [message.data() for message in all_of(behind)] == [b"4", b"5", b"6", b"7", b"8", b"9"]
    at = client.create_reader(topic, ids[3], start_message_id_inclusive=True)
    assert all_of(at)[0].data() == b"3"
    producer.send(b"new")
    assert latest.read_next(WAIT_MS).data() == b"new"


def test_a_reader_begins_in_the_middle_of_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True)
    send_all(producer, [("k", b"%d" % number) for number in range(10)])
    whole = all_of(client.create_reader(topic, pulsar.MessageId.earliest))

    behind = client.create_reader(topic, whole[6].message_id())

    assert [message.data() for message in all_of(behind)] == [b"7", b"8", b"9"]


def test_a_reader_seeks_by_id_and_by_time(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    first = all_of(reader)
    wait_for(lambda: pulsar_time(client, topic) > first[-1].publish_timestamp())
    producer.send(b"later")
    later = reader.read_next(WAIT_MS)

    reader.seek(first[2].message_id())
    assert [message.data() for message in all_of(reader)] == [b"3", b"4", b"later"]
    reader.seek(later.publish_timestamp())
    assert reader.read_next(WAIT_MS).data() == b"later"
    reader.seek(pulsar.MessageId.earliest)
    assert len(all_of(reader)) == 6


def pulsar_time(client: pulsar.Client, topic: str) -> int:
    """The publish time of a message that is sent now, elsewhere."""
    producer = client.create_producer(topic + "-clock")
    producer.send(b"")
    return all_of(client.create_reader(topic + "-clock", pulsar.MessageId.earliest))[-1].publish_timestamp()


def test_a_subscription_continues_behind_what_was_acknowledged(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    for number in range(10):
        producer.send(b"%d" % number)
    for _ in range(4):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.close()

    again = client.subscribe(topic, "s")

    assert [again.receive(WAIT_MS).data() for _ in range(6)] == [b"%d" % number for number in range(4, 10)]


def test_single_messages_of_a_batch_are_acknowledged(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True)
    send_all(producer, [("k", b"%d" % number) for number in range(10)])
    got = [consumer.receive(WAIT_MS) for _ in range(10)]
    for number in (1, 4, 9):
        consumer.acknowledge(got[number])
    consumer.close()

    again = client.subscribe(topic, "s", batch_index_ack_enabled=True)

    assert [again.receive(WAIT_MS).data() for _ in range(7)] == [b"0", b"2", b"3", b"5", b"6", b"7", b"8"]


def test_cumulative_acknowledgement(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    got = [consumer.receive(WAIT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(got[6])
    consumer.close()

    again = client.subscribe(topic, "s")

    assert [again.receive(WAIT_MS).data() for _ in range(3)] == [b"7", b"8", b"9"]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_a_negative_acknowledgement_brings_the_message_again(client: pulsar.Client, topic: str, kind: str) -> None:
    consumer = client.subscribe(
        topic, "s", getattr(pulsar.ConsumerType, kind), initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    got = [consumer.receive(WAIT_MS) for _ in range(3)]
    consumer.acknowledge(got[0])
    consumer.acknowledge(got[2])
    consumer.negative_acknowledge(got[1])

    again = consumer.receive(WAIT_MS)

    assert again.data() == b"1"
    assert again.redelivery_count() == (kind == "Shared")  # for an exclusive consumer a broker counts none


def test_a_consumer_seeks(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(6)]
    for _ in range(6):
        consumer.acknowledge(consumer.receive(WAIT_MS))

    consumer.seek(ids[2])  # this client leaves out the message to which it seeks
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [b"3", b"4", b"5"]
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(WAIT_MS).data() == b"0"


def test_shared_consumers_share(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=1) for _ in range(2)]
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    got: list[list[bytes]] = [[], []]
    while sum(map(len, got)) < 20:
        for at, consumer in enumerate(consumers):
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            got[at].append(message.data())

    assert all(got)
    assert sorted(got[0] + got[1]) == sorted(b"%d" % number for number in range(20))


def test_what_a_lost_shared_consumer_had_goes_to_the_other(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    for _ in range(5):
        first.receive(WAIT_MS)
    second = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    first.close()

    assert sorted(second.receive(WAIT_MS).data() for _ in range(5)) == [b"%d" % number for number in range(5)]


def test_a_key_goes_to_one_key_shared_consumer_in_order(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic)
    for number in range(90):
        producer.send(b"%d" % number, partition_key=f"k{number % 9}")
    got: list[list[tuple[str, int]]] = [[] for _ in consumers]

    def receive(at: int) -> None:
        while sum(map(len, got)) < 90:
            try:
                message = consumers[at].receive(500)
            except pulsar.Timeout:
                continue
            consumers[at].acknowledge(message)
            got[at].append((message.partition_key(), int(message.data())))

    threads = [threading.Thread(target=receive, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    keys = [{key for key, _ in items} for items in got]
    assert sum(map(len, keys)) == 9
    for items in got:
        for key in {key for key, _ in items}:
            numbers = [number for other, number in items if other == key]
            assert numbers == sorted(numbers)


def test_an_exclusive_subscription_has_one_consumer(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)


def test_a_failover_consumer_takes_over(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name="a", initial_position=EARLIEST)
    second = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number)
    first.acknowledge(first.receive(WAIT_MS))
    first.close()

    assert [second.receive(WAIT_MS).data() for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_subscription_in_use_is_deleted_by_force_alone_and_the_refusal_says_so(
    client: pulsar.Client, topic: str, admin: Admin
) -> None:
    client.subscribe(topic, "busy")
    refused = httpx.delete(f"{admin.url}/admin/v2/{topic.replace('://', '/')}/subscription/busy")
    assert refused.status_code == 412
    assert refused.json()["reason"].endswith("has active connected consumers: end them, or delete it with force")


def test_unsubscribe_deletes_the_cursor(client: pulsar.Client, topic: str, admin: Admin) -> None:
    consumer = client.subscribe(topic, "s")
    assert admin.cursor_names(topic) == ["s"]
    consumer.unsubscribe()
    assert admin.cursor_names(topic) == []


def test_partitions(client: pulsar.Client, topic: str, admin: Admin) -> None:
    admin.topic("PUT", topic, "/partitions", 3)
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)

    got = [consumer.receive(WAIT_MS) for _ in range(30)]

    assert sorted(int(message.data()) for message in got) == list(range(30))
    assert {message.message_id().partition() for message in got} == {0, 1, 2}
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{number}" for number in range(3)]


def test_topics_by_pattern(client: pulsar.Client, topic: str) -> None:
    import re

    name = topic.rpartition("/")[2]
    client.create_producer(f"{topic}-a").send(b"a")
    client.create_producer(f"{topic}-b").send(b"b")
    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{name}-.*"),
        "s",
        initial_position=EARLIEST,
    )

    assert sorted(consumer.receive(WAIT_MS).data() for _ in range(2)) == [b"a", b"b"]


def test_a_producer_name_is_had_by_one(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")


def test_exclusive_producers(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    first.send(b"1")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    fencing = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    fencing.send(b"2")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"3")
    waiting: list[pulsar.Producer] = []
    thread = threading.Thread(
        target=lambda: waiting.append(
            client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.WaitForExclusive)
        )
    )
    thread.start()
    fencing.close()
    thread.join(30)
    waiting[0].send(b"4")

    read = [message.data() for message in all_of(client.create_reader(topic, pulsar.MessageId.earliest))]
    assert read == [b"1", b"2", b"4"]


def test_a_message_that_is_too_large_is_refused(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 << 20))
    assert producer.send(b"small") is not None


def test_last_sequence_id_without_deduplication(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=41)
    producer.send(b"x")
    assert producer.last_sequence_id() == 42


def test_stats_name_producers_and_consumers(client: pulsar.Client, topic: str, admin: Admin) -> None:
    producer = client.create_producer(topic, producer_name="the producer")
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="the consumer")
    for number in range(5):
        producer.send(b"%d" % number)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    for _ in range(4):
        consumer.receive(WAIT_MS)

    def stats() -> Any:
        return admin.topic("GET", topic, "/stats").json()

    wait_for(lambda: stats()["subscriptions"]["s"]["unackedMessages"] == 4)
    topic_stats = stats()
    assert [item["producerName"] for item in topic_stats["publishers"]] == ["the producer"]
    subscription = topic_stats["subscriptions"]["s"]
    assert subscription["type"] == "Shared"
    assert [item["consumerName"] for item in subscription["consumers"]] == ["the consumer"]
    assert subscription["consumers"][0]["unackedMessages"] == 4
    assert topic_stats["msgInCounter"] == 5
    assert subscription["msgOutCounter"] == 5


@pytest.mark.parametrize("what", ["topic", "namespace"])
def test_clients_come_again_when_a_topic_is_unloaded(
    client: pulsar.Client, admin: Admin, topic: str, what: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer.send(b"1")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    # The client sends an acknowledgement up to 0.1 s later. The service drops one that arrives after the unload, and
    # delivers the message again.
    wait_for(lambda: admin.topic("GET", topic, "/stats").json()["subscriptions"]["s"]["msgBacklog"] == 0)
    connected_since = connections(admin, topic)

    if what == "topic":
        admin.topic("PUT", topic, "/unload")
    else:
        admin.ask("PUT", "/admin/v2/namespaces/public/default/unload")

    wait_for(lambda: len(current := connections(admin, topic)) == 2 and not current & connected_since)
    producer.send(b"2")
    assert consumer.receive(WAIT_MS).data() == b"2"


def connections(admin: Admin, topic: str) -> set[str]:
    """The times at which a topic's producers and consumers have come."""
    stats = admin.topic("GET", topic, "/stats").json()
    clients = [*stats["publishers"], *(item for sub in stats["subscriptions"].values() for item in sub["consumers"])]
    return {f"{number} {item['connectedSince']}" for number, item in enumerate(clients)}
