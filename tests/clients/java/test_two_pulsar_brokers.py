"""Two brokers of one cluster of Pulsar with the plug-in, and one service: topics move from one to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.java.broker import VERSION
from tests.clients.java.compacting_broker import CompactingBroker, two_compacting_brokers
from tests.clients.java.plugin_jar import plugin_jar
from tests.clients.python.conftest import WAIT_MS, values, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def owner(broker: CompactingBroker, topic: str) -> str:
    """Ask a broker for a topic, which it loads unless another one has it; the URL of the one that does.

    Empty: the other one takes it at the same time, and this one answers with an error of the server.
    """
    path = topic.replace("://", "/")
    answer = broker.admin.get(f"/lookup/v2/topic/{path}")
    if answer.status_code == 500 and "Failed to acquire ownership" in answer.text:
        return ""
    assert answer.is_success, answer.text
    return str(answer.json()["brokerUrl"])


def move(topic: str, source: CompactingBroker, target: CompactingBroker) -> None:
    """Unload a topic, with all of its namespace, from a broker, and load it in the other one."""
    assert owner(source, topic) == source.broker.url
    namespace = "/".join(topic.split("/")[2:4])

    def is_moved() -> bool:  # a client that asks the source again is sometimes faster
        answer = source.admin.put(f"/admin/v2/namespaces/{namespace}/unload")
        assert answer.is_success, answer.text
        return owner(target, topic) == target.broker.url

    wait_for(is_moved, seconds=60)


def test_a_topic_moves_between_brokers(tmp_path: Path) -> None:
    with two_compacting_brokers(tmp_path, VERSION, plugin_jar(tmp_path)) as (first, second):
        topic = first.topic()
        expected = [(f"k{number}", b"1") for number in range(200)]
        assert owner(first, topic) == first.broker.url
        first.send(topic, *[(key, b"0") for key, _ in expected], *expected)
        first.compact(topic)

        reader = first.reader(topic, receiver_queue_size=10)
        received = [reader.read_next(WAIT_MS) for _ in range(5)]
        move(topic, first, second)
        received += [reader.read_next(WAIT_MS) for _ in expected[5:]]
        assert values(received) == expected, "a reader that stays open follows its topic"
        reader.close()
        assert second.values(topic) == expected

        # A compaction of the broker that loses the topic ends without effect.
        second.send(topic, ("k0", b"2"))
        second.compact(topic)
        expected = [*expected[1:], ("k0", b"2")]
        assert second.values(topic) == expected
        move(topic, second, first)
        assert first.values(topic) == expected
        assert first.generation(topic) == 2
        first.send(topic, ("k1", b"3"))
        first.link.is_away = True
        assert first.ask("PUT", topic, "/compaction").status_code == 204
        move(topic, first, second)
        first.link.is_away = False
        wait_for(lambda: f"[{topic}] Compaction failure" in first.log(), seconds=60)
        expected = [*expected[1:], ("k1", b"3")]
        second.compact(topic)
        assert second.values(topic) == expected
        assert second.generation(topic) == 3

        # A broker is killed, and the other one has its topics.
        second.send(topic, ("k2", b"4"))
        second.broker.kill()
        wait_for(lambda: owner(first, topic) == first.broker.url, seconds=120)
        assert first.values(topic) == [*expected, ("k2", b"4")]
        first.compact(topic)
        assert first.values(topic) == [*expected[1:], ("k2", b"4")]
