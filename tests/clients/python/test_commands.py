"""Commands that no client here sends in a way that a test could watch, frame by frame."""

from __future__ import annotations

import json
import socket
import ssl
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest

from api.pulsar.pulsar_api_pb2 import BaseCommand, ServerError
from tests.clients.python.conftest import WAIT_MS, Admin, all_of, wait_for
from tests.clients.python.frame_client import FrameClient, frame_client
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow


def test_consumer_stats(service: RunningService, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"x")
    with frame_client(service) as frames:
        subscribe = {
            "topic": topic, "subscription": "s", "sub_type": 1, "consumer_id": 3, "request_id": 1,
            "consumer_name": "me", "initial_position": 1,
        }  # fmt: skip
        assert frames.ask(type=BaseCommand.SUBSCRIBE, subscribe=subscribe).type == BaseCommand.SUCCESS
        message = frames.ask(type=BaseCommand.FLOW, flow={"consumer_id": 3, "message_permits": 10})
        assert message.type == BaseCommand.MESSAGE

        def stats(consumer_id: int) -> BaseCommand:
            return frames.ask(
                type=BaseCommand.CONSUMER_STATS, consumer_stats={"request_id": 2, "consumer_id": consumer_id}
            )

        response = stats(3).consumer_stats_response
        assert (response.request_id, response.consumer_name, response.type) == (2, "me", "Shared")
        assert (response.available_permits, response.unacked_messages) == (9, 1)
        assert stats(4).consumer_stats_response.error_code == ServerError.ConsumerNotFound


def test_transactions_are_refused(service: RunningService) -> None:
    with frame_client(service) as frames:
        answer = frames.ask(type=BaseCommand.NEW_TXN, new_txn={"request_id": 5})
        assert answer.type == BaseCommand.NEW_TXN_RESPONSE
        assert answer.new_txn_response.request_id == 5
        assert answer.new_txn_response.error == ServerError.NotAllowedError


def test_deduplication_begins_with_the_next_producer(
    service: RunningService, client: pulsar.Client, admin: Admin, topic: str
) -> None:
    def send(producer: pulsar.Producer, *sequence_ids: int) -> None:
        for number in sequence_ids:
            producer.send(b"%d" % number, sequence_id=number)

    def stored() -> int:
        return int(admin.topic("GET", topic, "/stats").json()["msgInCounter"])

    first = client.create_producer(topic, producer_name="p", batching_enabled=False)
    send(first, 1, 2, 2)  # from 1 on: this client takes 0 for none
    wait_for(lambda: stored() == 3)
    admin.topic("POST", topic, "/deduplicationEnabled", True)
    second = client.create_producer(topic, producer_name="q", batching_enabled=False)

    send(second, 1, 1)
    wait_for(lambda: stored() == 4)
    send(first, 2, 3, 3)  # what it stored before deduplication was switched on is not known, as in a broker

    wait_for(lambda: stored() == 6)
    assert second.last_sequence_id() == 1


@pytest.mark.parametrize("compacted", [False, True])
def test_a_reader_that_sought_by_time_knows_whether_messages_follow(
    client: pulsar.Client, admin: Admin, topic: str, compacted: bool
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    if compacted:
        admin.compact(topic)
    reader = client.create_reader(topic, pulsar.MessageId.latest, is_read_compacted=compacted)

    reader.seek(1)  # ms since the Unix epoch: before all of them

    assert [message.data() for message in all_of(reader)] == [b"%d" % number for number in range(5)]


def test_a_topic_in_use_is_deleted_by_force_alone_and_loses_nothing_that_comes_later(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    path = "/admin/v2/" + topic.replace("://", "/")
    refused = httpx.delete(admin.url + path)
    assert refused.status_code == 412
    assert "has active producers/subscriptions" in refused.json()["reason"]

    assert httpx.delete(admin.url + path, params={"force": "true"}).status_code == 204
    producer.send(b"after")

    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [message.data() for message in all_of(reader)] == [b"after"]


def test_a_partition_that_there_is_not_is_not_made(client: pulsar.Client, admin: Admin, topic: str) -> None:
    admin.topic("PUT", topic, "/partitions", 2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-7")


def test_a_reader_that_acknowledged_seeks_back(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    first = producer.send(b"0")
    for number in range(1, 5):
        producer.send(b"%d" % number)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert len(all_of(reader)) == 5

    reader.seek(first)

    assert [message.data() for message in all_of(reader)][-4:] == [b"1", b"2", b"3", b"4"]


def test_what_a_client_changes_is_in_the_audit_log(service: RunningService, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    consumer.receive(WAIT_MS)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.unsubscribe()

    def changes() -> list[str]:
        lines = map(json.loads, service.log.read_text().splitlines())
        return [item["action"] for item in lines if item.get("logger") == "audit" and topic in item["target"]]

    expected = ["create_topic", "create_subscription", "reset_cursor", "delete_subscription"]
    wait_for(lambda: changes() == expected)


def test_a_client_that_speaks_tls_at_the_plain_port_is_named_the_other(service: RunningService) -> None:
    url = urlsplit(service.broker_service_url)
    with socket.create_connection((str(url.hostname), int(url.port or 0)), 20) as opened, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(opened, server_hostname="localhost")
    wait_for(lambda: "broker-service-port-tls, with pulsar+ssl" in service.log.read_text())


def test_a_namespace_that_is_deleted_holds_up_no_other_watcher(service: RunningService, admin: Admin) -> None:
    admin.ask("PUT", "/admin/v2/namespaces/public/short", {})
    admin.ask("PUT", "/admin/v2/persistent/public/short/t", None)

    def watch(frames: FrameClient, watcher_id: int, namespace: str) -> BaseCommand:
        request = {
            "request_id": watcher_id, "watcher_id": watcher_id, "namespace": namespace,
            "topics_pattern": ".*/(t|later)",
        }  # fmt: skip
        return frames.ask(type=BaseCommand.WATCH_TOPIC_LIST, watch_topic_list=request)

    with frame_client(service) as frames:
        assert watch(frames, 1, "public/short").watch_topic_list_success.topic == ["persistent://public/short/t"]
        assert watch(frames, 2, "public/default").type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        admin.ask("DELETE", "/admin/v2/persistent/public/short/t", None)
        admin.ask("DELETE", "/admin/v2/namespaces/public/short", None)
        assert frames.next().watch_topic_update.deleted_topics == ["persistent://public/short/t"]
        admin.ask("PUT", "/admin/v2/persistent/public/default/later", None)
        assert frames.next().watch_topic_update.new_topics == ["persistent://public/default/later"]
