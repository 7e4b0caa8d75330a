"""Reading compacted topics with Pulsar's Python client: no dropped message, every id as it was (R1 to R10)."""

from __future__ import annotations

import pulsar
import pytest

from tests.clients.python.conftest import WAIT_MS, Admin, all_of, position, send_all, values, wait_for

pytestmark = pytest.mark.slow

EARLIEST = pulsar.InitialPosition.Earliest


def compacted_reader(client: pulsar.Client, topic: str, **options: object) -> pulsar.Reader:
    return client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, **options)


@pytest.mark.parametrize("batched", [False, True])
def test_the_newest_message_of_each_key_and_no_other(
    client: pulsar.Client, topic: str, admin: Admin, batched: bool
) -> None:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_messages=50)
    sent = [(f"k{number * 7919 % 100}", b"%d" % number) for number in range(1000)]
    send_all(producer, sent)
    raw = all_of(client.create_reader(topic, pulsar.MessageId.earliest))
    admin.compact(topic)

    read = all_of(compacted_reader(client, topic))

    newest = {message.partition_key(): message for message in raw}
    assert values(read) == values(sorted(newest.values(), key=position))
    assert [position(message) for message in read] == sorted(position(message) for message in newest.values())
    assert len(all_of(client.create_reader(topic, pulsar.MessageId.earliest))) == 1000


def test_what_comes_behind_the_horizon_is_all_there(client: pulsar.Client, topic: str, admin: Admin) -> None:
    producer = client.create_producer(topic)
    send_all(producer, [("a", b"1"), ("b", b"1"), ("a", b"2")])
    admin.compact(topic)
    send_all(producer, [("a", b"3"), ("b", b"2"), ("b", b"3")])

    assert values(all_of(compacted_reader(client, topic))) == [
        ("b", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"2"), ("b", b"3"),
    ]  # fmt: skip


def test_a_reader_continues_while_compactions_publish(client: pulsar.Client, topic: str, admin: Admin) -> None:
    producer = client.create_producer(topic)
    reader = compacted_reader(client, topic, receiver_queue_size=1)
    seen: list[tuple[int, int, int]] = []
    for turn in range(3):
        send_all(producer, [(f"k{number}", b"%d" % turn) for number in range(10)])
        seen += [position(reader.read_next(WAIT_MS)) for _ in range(5)]
        admin.compact(topic)
        seen += [position(message) for message in all_of(reader)]

    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


def test_all_deleted(client: pulsar.Client, topic: str, admin: Admin) -> None:
    producer = client.create_producer(topic)
    send_all(producer, [("a", b"1"), ("b", b"1"), ("a", b""), ("b", b"")])
    admin.compact(topic)

    reader = compacted_reader(client, topic)

    assert not reader.has_message_available()
    send_all(producer, [("c", b"1")])
    assert reader.read_next(WAIT_MS).data() == b"1"


def test_a_consumer_of_a_compacted_topic_resumes(client: pulsar.Client, topic: str, admin: Admin) -> None:
    producer = client.create_producer(topic)
    send_all(producer, [(f"k{number % 10}", b"%d" % number) for number in range(100)])
    admin.compact(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    got = [consumer.receive(WAIT_MS) for _ in range(10)]
    assert [message.data() for message in got] == [b"%d" % number for number in range(90, 100)]
    for message in got[:4]:
        consumer.acknowledge(message)
    consumer.close()

    again = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, is_read_compacted=True)

    assert [again.receive(WAIT_MS).data() for _ in range(6)] == [b"%d" % number for number in range(94, 100)]


def test_shared_subscriptions_do_not_read_compacted(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, is_read_compacted=True)


def test_topics_that_are_not_persistent_are_refused(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic.replace("persistent", "non-persistent"))


def test_a_table_view_has_the_newest_values(client: pulsar.Client, topic: str, admin: Admin) -> None:
    producer = client.create_producer(topic, batching_enabled=True)
    send_all(producer, [(f"k{number % 10}", b"%d" % number) for number in range(100)])
    admin.compact(topic)

    view = client.create_table_view(topic)

    assert dict(view.snapshot() if hasattr(view, "snapshot") else _items(view)) == {
        f"k{number % 10}": b"%d" % number for number in range(90, 100)
    }


def _items(view: pulsar.TableView) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    view.for_each(lambda key, value: found.__setitem__(key, value))
    return found


def test_a_reader_inside_the_horizon_begins_at_the_next_message_that_is_left(
    client: pulsar.Client, topic: str, admin: Admin
) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number, partition_key=f"k{number % 3}") for number in range(9)]
    admin.compact(topic)

    reader = client.create_reader(topic, ids[2], is_read_compacted=True)

    assert [message.data() for message in all_of(reader)] == [b"6", b"7", b"8"]


def test_what_compaction_dropped_is_no_backlog_once_the_rest_is_acknowledged(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    send_all(producer, [(f"k{number % 7}", b"%d" % number) for number in range(50)])
    admin.compact(topic)
    consumer = client.subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest, is_read_compacted=True,
        batch_index_ack_enabled=True,
    )  # fmt: skip

    for _ in range(7):
        consumer.acknowledge(consumer.receive(WAIT_MS))

    wait_for(lambda: admin.topic("GET", topic, "/stats").json()["subscriptions"]["s"]["msgBacklog"] == 0)
