"""The verbs of pulsar-admin, by `compactor-admin`."""

from __future__ import annotations

import pytest

from storage.entries.encode import encode_message
from storage.ledger.rows import CompressionType
from tests.entries import NOW, batch, produce, single
from tests.program import Program
from tests.serving import Served


def put(admin: Program, topic: str, *values: str) -> None:
    lines = "".join(f'{{"key": "{value[0]}", "value": "{value}"}}\n' for value in values)
    admin("topics", "produce", topic, stdin=lines.encode()).done()


def test_tenants_and_namespaces(admin: Program) -> None:
    assert "tenant lab created" in admin("tenants", "create", "lab", "-r", "joe,ann").done().stderr
    admin("tenants", "create", "lab").refused(4, "the tenant lab exists already")
    assert admin("tenants", "list").lines == ["lab", "public"]
    assert admin.json("tenants", "get", "lab")["adminRoles"] == ["ann", "joe"]
    admin("tenants", "update", "lab", "--admin-roles", "eve").done()
    assert admin.json("tenants", "get", "lab") == {
        "adminRoles": ["eve"],
        "allowedClusters": ["standalone"],
    }
    admin("namespaces", "create", "lab/ns").done()
    assert admin("namespaces", "list", "lab").lines == ["lab/ns"]
    assert "replication_clusters" in admin("namespaces", "policies", "lab/ns").stdout
    admin("namespaces", "grant-permission", "lab/ns", "--role", "joe", "--actions", "produce,admin").done()
    permissions = admin.json("namespaces", "permissions", "lab/ns")
    assert sorted(permissions["joe"]) == ["admin", "produce"], "also what Pulsar's tools do not know"
    admin("namespaces", "revoke-permission", "lab/ns", "--role", "joe").done()
    assert admin.json("namespaces", "permissions", "lab/ns") == {}
    admin("topics", "create", "lab/ns/t").done()
    admin("topics", "grant-permission", "lab/ns/t", "--role", "joe", "--actions", "consume,compact").done()
    assert admin.json("topics", "permissions", "lab/ns/t") == {"joe": ["compact", "consume"]}
    admin("topics", "revoke-permission", "lab/ns/t", "--role", "joe").done()
    admin("topics", "revoke-permission", "lab/ns/t", "--role", "joe").refused(2, "joe has no permissions of its own")
    admin("topics", "delete", "lab/ns/t").done()
    admin("topics", "create", "lab/ns/t").done()
    assert admin("namespaces", "topics", "lab/ns").lines == ["persistent://lab/ns/t"]
    admin("namespaces", "delete", "lab/ns").refused(4, "the namespace lab/ns is not empty")
    admin("topics", "delete", "lab/ns/t").done()
    admin("namespaces", "delete", "lab/ns").done()
    admin("tenants", "delete", "lab").done()
    admin("tenants", "get", "lab").refused(3, "the tenant lab does not exist")
    admin("namespaces", "list", "nosuch").refused(3)
    admin("namespaces", "create", "nosuch").refused(2, "not the name of a namespace")


def test_partitioned_topics_and_properties(admin: Program) -> None:
    admin("topics", "create-partitioned-topic", "parted", "-p", "2", "-m", "k=v").done()
    admin("topics", "update-partitioned-topic", "parted", "-p", "3").done()
    metadata = admin.json("topics", "get-partitioned-topic-metadata", "parted")
    assert (metadata["partitions"], metadata["properties"]) == (3, {"k": "v"})
    name = "persistent://public/default/parted"
    assert admin("topics", "list-partitioned-topics", "public/default").lines == [name]
    assert f"{name}-partition-2" in admin("topics", "list", "public/default").lines
    admin("topics", "update-properties", "parted", "-p", "a=b").done()
    admin("topics", "remove-properties", "parted", "-k", "k").done()
    assert admin.json("topics", "get-properties", "parted") == {"a": "b"}
    assert admin.json("topics", "partitioned-stats", "parted")["msgInCounter"] == 0
    assert "partition-2" in admin("topics", "partitioned-stats-internal", "parted").stdout
    admin("topics", "stats", "parted").refused(3, "is a partitioned topic", "partitioned-stats")
    admin("topics", "stats-internal", "parted").refused(3, "is a partitioned topic", "partitioned-stats")
    admin("topics", "stats", "nosuch").refused(3, "nosuch does not exist")
    admin("topics", "produce", "parted", "nofile").refused(2, "nofile cannot be read")
    admin("topics", "delete", "parted").refused(4, "delete-partitioned-topic")
    admin("topics", "delete-partitioned-topic", "parted").done()
    admin("topics", "delete-partitioned-topic", "parted").refused(3)
    admin("topics", "create-partitioned-topic", "parted", "-p", "0").refused(2)
    answer = admin("topics", "create-partitioned-topic", "parted", "-p", "99999999")
    answer.refused(2, "persistent://public/default/parted cannot have 99999999 partitions: give 1 to 10000")


def test_thresholds_and_retention(admin: Program, topic: str) -> None:
    unset = admin("topics", "get-compaction-threshold", topic).done()
    assert (unset.stdout, unset.stderr) == ("", "compactor-admin: no value is set\n")
    assert admin.json("topics", "get-compaction-threshold", topic) is None
    admin("topics", "set-compaction-threshold", topic, "-t", "100M").done()
    assert admin("topics", "get-compaction-threshold", topic).lines == [str(100 << 20)]
    admin("topics", "remove-compaction-threshold", topic).done()
    admin("namespaces", "set-compaction-threshold", "public/default", "-t", "2K").done()
    assert admin("namespaces", "get-compaction-threshold", "public/default").lines == ["2048"]
    assert admin("topics", "get-compaction-threshold", topic, "--applied").lines == ["2048"]
    admin("namespaces", "remove-compaction-threshold", "public/default").done()
    admin("topics", "set-compaction-threshold", topic, "--threshold=many").refused(2, "not a value of --threshold")
    for group, what in (("topics", topic), ("namespaces", "public/default")):
        admin(group, "set-retention", what, "-t", "1w", "-s", "10M").done()
        retention = admin.json(group, "get-retention", what)
        assert retention == {"retentionTimeInMinutes": 7 * 24 * 60, "retentionSizeInMB": 10}
        admin(group, "remove-retention", what).done()
        assert admin(group, "get-retention", what).stdout == ""
    admin("topics", "set-retention", topic, "-t", "90s", "-s", "-1").refused(2, "give --time in whole minutes")
    admin("topics", "set-retention", topic, "-t", "soon", "-s", "-1").refused(2, "give --time in whole minutes")
    admin("topics", "set-retention", topic, "-t", "-1", "-s", "x").refused(2, "give --size in whole megabytes")
    admin("topics", "set-retention", topic, "-t", "-1", "-s", "10K").refused(2, "whole number of megabytes")


def test_subscriptions_and_their_messages(admin: Program, topic: str) -> None:
    put(admin, topic, "a1", "b1", "c1")
    admin("topics", "create-subscription", topic, "-s", "s", "-m", "earliest", "-p", "k=v").done()
    admin("topics", "create-subscription", topic, "-s", "s").refused(4, "has a cursor 's' already")
    assert admin("topics", "subscriptions", topic).lines == ["s"]
    assert admin.json("topics", "get-subscription-properties", topic, "-s", "s") == {"k": "v"}
    admin("topics", "update-subscription-properties", topic, "-s", "s", "-p", "x=y").done()
    assert admin.json("topics", "get-subscription-properties", topic, "-s", "s") == {"x": "y"}
    peeked = admin.json("topics", "peek-messages", topic, "-s", "s", "-n", "2")
    assert [(item["key"], item["value"]) for item in peeked] == [("a", "a1"), ("b", "b1")]
    admin("topics", "skip", topic, "-s", "s", "-n", "2").done()
    assert "c1" in admin("topics", "peek-messages", topic, "-s", "s").stdout
    last = admin.json("topics", "last-message-id", topic)
    assert last["entryId"] == 2
    middle = ("-l", str(last["ledgerId"]), "-e", "1")
    (message,) = admin.json("topics", "get-message-by-id", topic, *middle)
    (expected,) = admin("topics", "read", topic, "--from", "1", "--limit", "1").messages
    del expected["offset"]
    assert expected.items() <= message.items()
    admin("topics", "get-message-by-id", topic, "-l", "99", "-e", "0").refused(3)
    admin("topics", "reset-cursor", topic, "-s", "s", "-m", f"{last['ledgerId']}:1").done()
    assert "b1" in admin("topics", "peek-messages", topic, "-s", "s").stdout
    admin("topics", "reset-cursor", topic, "-s", "s", "-t", "1h").done()
    assert "a1" in admin("topics", "peek-messages", topic, "-s", "s").stdout
    admin("topics", "reset-cursor", topic, "-s", "s").refused(2, "--message-id or --time")
    admin("topics", "reset-cursor", topic, "-s", "s", "-m", "abc").refused(2, "give latest, earliest, or")
    admin("topics", "skip-all", topic, "-s", "s").done()
    ran = admin("topics", "peek-messages", topic, "-s", "s").done()
    assert (ran.stdout, ran.stderr) == ("", f"compactor-admin: subscription s of {topic} has no messages left\n")
    assert admin.json("topics", "peek-messages", topic, "-s", "s") == []
    for count in ("0", str(2**63)):
        admin("topics", "skip", topic, "-s", "s", "-n", count).refused(2, "'-n' / '--count': must be ")
    admin("topics", "skip", topic, "-s", "").refused(2, "the name of the subscription is empty")
    admin("topics", "unsubscribe", topic, "-s", "s").done()
    admin("topics", "get-message-by-id", topic, "-l", "99", "-e", "0").refused(3, f"{topic} has no message 99:0")
    assert admin("topics", "subscriptions", topic).lines == []
    admin("topics", "truncate", topic).done()
    assert admin("topics", "read", topic).lines == []


def test_a_batch_is_shown_message_by_message(admin: Program, topic: str, served: Served) -> None:
    """A batch of three, with bytes that are no text, before one of two that is compressed."""
    sent = (
        batch((b"k0", b"v0"), (b"k1", None), (None, b"\xff")),
        batch((b"k3", b"v3"), (b"\xfe", b"v4"), codec=CompressionType.ZSTD),
        encode_message(
            b"\xfd", b"v5", producer="p", sequence_id=0, publish_time=NOW, event_time=7, properties=[("a", "b")]
        ),
        single(None, None),
    )
    produce(served.topic(topic), sent)
    admin("topics", "create-subscription", topic, "-s", "s", "-m", "earliest").done()
    messages = admin.json("topics", "peek-messages", topic, "-s", "s", "-n", "9")
    ledger = messages[0]["message_id"].partition(":")[0]
    fields = [(item.get("key"), item.get("value")) for item in messages]
    assert fields == [
        ("k0", "v0"),
        ("k1", None),
        (None, None),
        ("k3", "v3"),
        (None, "v4"),
        (None, "v5"),
        (None, None),
    ]
    assert [item["message_id"] for item in messages] == [
        *(f"{ledger}:0:-1:{index}" for index in range(3)),
        *(f"{ledger}:1:-1:{index}" for index in range(2)),
        f"{ledger}:2:-1",
        f"{ledger}:3:-1",
    ]
    assert [messages[place].get("key_base64") for place in (3, 4, 5)] == [None, "/g==", "/Q=="]
    assert messages[2]["value_base64"] == "/w=="
    assert (messages[5]["properties"], messages[5]["event_time"]) == ({"a": "b"}, 7)
    assert {item["publish_time"] for item in messages} == {NOW}
    assert {item["producer"] for item in messages} == {"p"}
    assert admin.json("topics", "peek-messages", topic, "-s", "s", "-n", "4") == messages[:4]
    assert admin.json("topics", "get-message-by-id", topic, "-l", ledger, "-e", "1") == messages[3:5]
    admin("topics", "skip", topic, "-s", "s", "-n", "3").done()
    assert admin.json("topics", "peek-messages", topic, "-s", "s", "-n", "1") == messages[3:4]


def test_bytes_that_are_no_text_are_read_by_an_option(admin: Program, topic: str, served: Served) -> None:
    produce(served.topic(topic), [single(b"a", b"\xff"), single(b"\xff", b"v")])
    admin("topics", "read", topic).refused(2, "the value of message", "text: read with --value-encoding base64")
    value = ("--value-encoding", "base64")
    admin("topics", "read", topic, *value).refused(2, "the key of message", "text: read with --key-encoding base64")
    admin("topics", "get-key", topic, "a").refused(2, "the value of message", "read with --value-encoding base64")
    assert len(admin("topics", "read", topic, *value, "--key-encoding", "base64").messages) == 2


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "peek-messages", "t", "-s", "\udcff"),
        ("topics", "read", "t", "--from", "\udcff"),
        ("topics", "update-properties", "t", "-p", "a=\udcff"),
        ("tenants", "create", "\udcff"),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(admin: Program, command: tuple[str, ...]) -> None:
    """In a path, a query and a body."""
    admin(*command).refused(2, f"the argument {command[-1]!r} is not UTF-8: encode it in UTF-8")


def test_a_missing_subscription_is_not_created_by_a_look_at_its_messages(admin: Program, topic: str) -> None:
    put(admin, topic, "a1")
    admin("topics", "peek-messages", topic, "-s", "nope").refused(3, f"{topic} has no cursor 'nope'")
    assert admin("topics", "subscriptions", topic).lines == []


def test_numbers_lookup_and_brokers(admin: Program, topic: str) -> None:
    put(admin, topic, "a1")
    assert admin.json("topics", "stats", topic)["msgInCounter"] == 1
    assert "numberOfEntries" in admin("topics", "stats-internal", topic).stdout
    assert admin.json("topics", "info-internal", topic)["version"] >= 0
    assert admin.json("topics", "lookup", topic)["httpUrl"].startswith("http://")
    admin("topics", "unload", topic).done()
    assert admin("clusters", "list").lines == ["standalone"]
    assert "serviceUrl" in admin("clusters", "get", "standalone").stdout
    admin("clusters", "get", "nosuch").refused(3)
    assert admin("brokers", "version").lines == ["4.2.4"]
    assert admin("brokers", "healthcheck").lines == ["ok"]
    assert isinstance(admin.json("brokers", "list"), list)
    assert "topicCompactionRetainNullKey" in admin("brokers", "get-runtime-config").stdout
    assert isinstance(admin.json("brokers", "list-dynamic-config"), list)


@pytest.mark.parametrize("name", ["a/b", "non-persistent://public/default/t", "persistent://public/default/"])
def test_names_that_no_topic_has_are_refused_before_anything_is_asked(outside: Program, name: str) -> None:
    outside("topics", "stats", name, "--admin-url", "http://127.0.0.1:1").refused(2)


@pytest.mark.parametrize("name", ["with space", "ü😀", "per cent%", "q?x#y", "...", "a;b=c"])
def test_every_character_of_a_name_arrives(admin: Program, name: str) -> None:
    admin("topics", "create", name).done()
    assert f"persistent://public/default/{name}" in admin("topics", "list", "public/default").lines
    admin("topics", "delete", name).done()


@pytest.mark.slow
def test_what_was_not_taken_is_told_by_its_line_and_the_rest_is_counted(admin: Program) -> None:
    admin("topics", "create", "lines").done()
    admin("policies", "set", "--topic", "lines", "max.message.bytes=100").done()
    line = b'{"key": "k", "value": "v"}\n'
    large = b'{"key": "k", "value": "%s"}\n' % (b"x" * 20_000)
    ran = admin("topics", "produce", "lines", "--ids", stdin=line + large + line + large)
    assert (ran.exit_code, len(ran.lines)) == (2, 2)
    assert "line 2 was refused: " in ran.stderr
    assert "; so were lines 4" in ran.stderr
    assert "2 messages of lines acknowledged; lines from 5 on, if any, were not" in ran.stderr
    ran = admin("topics", "produce", "lines", stdin=line * 1_004 + b"nonsense\n" + line)
    assert ran.exit_code == 2
    assert "1,000 messages of lines acknowledged; lines from 1001 on, if any, were not" in ran.stderr
    assert "compactor-admin: line 1005: " in ran.stderr
    assert "the lines before line 1001 were appended" in ran.stderr
    assert len(admin("topics", "read", "lines").lines) == 1_002
