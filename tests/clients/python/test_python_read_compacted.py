"""Reading compacted topics with Pulsar's Python client: no dropped message, every id as it was (R1 to R10)."""

from __future__ import annotations

import pulsar
import pytest

from tests.clients.python.conftest import WAIT_MS, Admin, send_all, wait_for
from tests.clients.python.messaging import PythonClient
from tests.clients.read_compacted import SCENARIOS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(client: pulsar.Client, topic: str, admin: Admin, scenario: str) -> None:
    SCENARIOS[scenario](PythonClient(client), topic, admin.compact)


def test_a_producer_of_a_topic_that_is_not_persistent_is_refused(client: pulsar.Client, topic: str) -> None:
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
    items: dict[str, bytes] = {}
    view.for_each(lambda key, value: items.__setitem__(key, value))
    return items


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
