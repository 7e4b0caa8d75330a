"""`pulsar-admin`, as Apache publishes it, at our service: outputs and exit codes as from a real broker.

What a broker answers is recorded in pulsar-admin-rest.md; what pulsar-admin makes of it are its own words. Its
`topics delete` ends with 0 whatever the broker says: that is so with a real one, too.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.clients.java.jvm import ADMIN_TOOL, OPTIONS, PulsarAdmin, java
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow

MIB = 1 << 20
CLIENT_SAYS = "Failed to delete topic: {}. Exception: org.apache.pulsar.client.admin.PulsarAdminException${}: {}"


def refused(admin: PulsarAdmin, reason: str, *arguments: str) -> None:
    answer = admin(*arguments)
    assert answer.exit_code == 1
    assert answer.stdout == ""
    assert answer.stderr.endswith(f"{reason}\n\nReason: {reason}\n")


def done(admin: PulsarAdmin, *arguments: str) -> list[str]:
    return admin(*arguments).done().lines


def document(admin: PulsarAdmin, *arguments: str) -> dict[str, object]:
    answer = json.loads(admin(*arguments).done().stdout)
    assert isinstance(answer, dict)
    return answer


def namespace(admin: PulsarAdmin, name: str) -> str:
    """A namespace of a tenant of its own."""
    assert done(admin, "tenants", "create", name) == []
    assert done(admin, "namespaces", "create", f"{name}/rest") == []
    return f"{name}/rest"


def produce(rest: httpx.Client, topic: str, messages: int, keys: int) -> None:
    """`messages` messages in turn with one of `keys` keys."""
    body = {"messages": [{"key": f"k{n % keys}", "payload": f"v{n}"} for n in range(messages)]}
    answer = rest.post(f"/topics/{topic.replace('://', '/')}", json=body).raise_for_status()
    assert all(result["errorCode"] == 0 for result in answer.json()["messagePublishResults"])


def test_tenants_and_namespaces(admin: PulsarAdmin) -> None:
    assert done(admin, "clusters", "list") == ["standalone"]
    assert done(admin, "tenants", "create", "lab") == []
    refused(admin, "Tenant already exist", "tenants", "create", "lab")
    refused(admin, "Clusters do not exist", "tenants", "create", "labx", "--allowed-clusters", "nosuch")
    assert {"lab", "public"} <= set(done(admin, "tenants", "list"))
    assert document(admin, "tenants", "get", "lab") == {"adminRoles": [], "allowedClusters": ["standalone"]}
    refused(admin, "Tenant does not exist", "tenants", "get", "nosuch")
    assert done(admin, "tenants", "update", "lab", "-r", "joe") == []
    assert document(admin, "tenants", "get", "lab")["adminRoles"] == ["joe"]
    assert done(admin, "namespaces", "create", "lab/rest") == []
    refused(admin, "Namespace already exists", "namespaces", "create", "lab/rest")
    refused(admin, "Tenant does not exist", "namespaces", "create", "nosuch/x")
    assert done(admin, "namespaces", "list", "lab") == ["lab/rest"]
    refused(admin, "Tenant not found", "namespaces", "list", "nosuch")
    assert document(admin, "namespaces", "policies", "lab/rest")["replication_clusters"] == ["standalone"]
    assert done(admin, "namespaces", "grant-permission", "lab/rest", "--role", "joe", "--actions", "produce") == []
    assert done(admin, "namespaces", "permissions", "lab/rest") == ["joe    [produce]"]
    assert done(admin, "namespaces", "revoke-permission", "lab/rest", "--role", "joe") == []
    assert done(admin, "namespaces", "permissions", "lab/rest") == []
    assert done(admin, "namespaces", "delete", "lab/rest") == []
    assert done(admin, "tenants", "delete", "lab") == []
    assert "lab" not in done(admin, "tenants", "list")


def test_topics_and_their_properties(admin: PulsarAdmin) -> None:
    ns = namespace(admin, "topics")
    first, second = f"persistent://{ns}/t1", f"persistent://{ns}/t2"
    assert done(admin, "topics", "list", ns) == []
    assert done(admin, "topics", "create", first) == []
    refused(admin, "This topic already exists", "topics", "create", first)
    refused(admin, "Namespace not found", "topics", "create", "persistent://topics/nosuch/t")
    refused(admin, "Namespace does not exist", "topics", "list", "topics/nosuch")
    assert done(admin, "topics", "create", second, "-m", "k=v") == []
    assert sorted(done(admin, "topics", "list", ns)) == [first, second]
    assert done(admin, "topics", "get-properties", second) == ["k    v"]
    assert done(admin, "topics", "update-properties", second, "-p", "a=b") == []
    assert done(admin, "topics", "remove-properties", second, "-k", "k") == []
    assert done(admin, "topics", "get-properties", second) == ["a    b"]
    assert done(admin, "topics", "lookup", first)[0].startswith("pulsar://127.0.0.1:")
    assert done(admin, "topics", "unload", first) == []
    assert done(admin, "topics", "delete", second) == []
    missing = CLIENT_SAYS.format(second, "NotFoundException", f"Topic {second} not found")
    assert done(admin, "topics", "delete", second) == [missing]
    assert done(admin, "topics", "list", ns) == [first]
    refused(admin, "Cannot delete non empty namespace", "namespaces", "delete", ns)


def test_partitioned_topics(admin: PulsarAdmin, rest: httpx.Client) -> None:
    ns = namespace(admin, "parts")
    topic = f"persistent://{ns}/pt"
    assert done(admin, "topics", "create-partitioned-topic", topic, "-p", "2", "-m", "x=y") == []
    refused(admin, "This topic already exists", "topics", "create-partitioned-topic", topic, "-p", "2")
    assert document(admin, "topics", "get-partitioned-topic-metadata", topic) == {
        "partitions": 2,
        "deleted": False,
        "properties": {"x": "y"},
    }
    assert done(admin, "topics", "update-partitioned-topic", topic, "-p", "3") == []
    assert done(admin, "topics", "list-partitioned-topics", ns) == [topic]
    assert sorted(done(admin, "topics", "list", ns)) == [f"{topic}-partition-{n}" for n in range(3)]
    produce(rest, topic, messages=30, keys=6)
    assert done(admin, "topics", "compact", topic) == [f"Topic compaction requested for {topic}"]
    for partition in range(3):
        status = done(admin, "topics", "compaction-status", "--wait-complete", f"{topic}-partition-{partition}")
        assert status == ["Compaction was a success"]
    stats = document(admin, "topics", "partitioned-stats", topic, "--per-partition")
    assert stats["msgInCounter"] == 30
    assert sorted(stats["partitions"]) == [f"{topic}-partition-{n}" for n in range(3)]  # type: ignore[call-overload]
    internal = document(admin, "topics", "partitioned-stats-internal", topic)
    entries = [item["numberOfEntries"] for item in internal["partitions"].values()]  # type: ignore[attr-defined]
    assert sum(entries) == 30
    plain = f"{topic} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
    assert done(admin, "topics", "delete", topic) == [CLIENT_SAYS.format(topic, "ConflictException", plain)]
    assert done(admin, "topics", "delete-partitioned-topic", topic) == []
    refused(admin, f"Topic {topic} not found.", "topics", "delete-partitioned-topic", topic)
    assert done(admin, "topics", "list", ns) == []


def test_thresholds_and_retention(admin: PulsarAdmin) -> None:
    ns = namespace(admin, "thresholds")
    topic = f"persistent://{ns}/t"
    done(admin, "topics", "create", topic)
    got = ("get-compaction-threshold", topic)
    assert done(admin, "topics", *got) == ["null"]
    assert done(admin, "topics", *got, "--applied") == ["0"]
    assert done(admin, "namespaces", "get-compaction-threshold", ns) == ["null"]
    assert done(admin, "namespaces", "set-compaction-threshold", ns, "-t", "2K") == []
    assert done(admin, "namespaces", "get-compaction-threshold", ns) == ["2048"]
    assert done(admin, "topics", *got, "--applied") == ["2048"]
    for group in ("topics", "topicPolicies"):
        assert done(admin, group, "set-compaction-threshold", topic, "-t", "100M") == []
        assert done(admin, group, *got) == [str(100 * MIB)]
        assert done(admin, group, *got, "--applied") == [str(100 * MIB)]
        assert done(admin, group, "remove-compaction-threshold", topic) == []
        assert done(admin, group, *got) == ["null"]
    assert done(admin, "namespaces", "remove-compaction-threshold", ns) == []
    assert done(admin, "topics", *got, "--applied") == ["0"]
    nosuch = f"persistent://{ns}/nosuch"
    refused(admin, f"Topic {nosuch} not found", "topics", "set-compaction-threshold", nosuch, "-t", "1M")
    refused(admin, "Namespace does not exist", "namespaces", "set-compaction-threshold", "lab/nosuch", "-t", "1M")

    retention = {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10}
    for group, what in (("namespaces", ns), ("topics", topic), ("topicPolicies", topic)):
        assert done(admin, group, "set-retention", what, "-t", "3h", "-s", "10M") == []
        assert document(admin, group, "get-retention", what) == retention
        assert done(admin, group, "remove-retention", what) == []
        assert done(admin, group, "get-retention", what) == ["null"]


def test_a_compaction_from_trigger_to_the_numbers_after_it(admin: PulsarAdmin, rest: httpx.Client) -> None:
    ns = namespace(admin, "compactions")
    topic = f"persistent://{ns}/t"
    done(admin, "topics", "create", topic)
    status = ("topics", "compaction-status", topic)
    assert done(admin, *status) == [f"Compaction has not been run for {topic} since broker startup"]
    produce(rest, topic, messages=100, keys=10)
    before = document(admin, "topics", "stats-internal", topic)
    assert before["numberOfEntries"] == 100
    assert before["cursors"] == {}
    assert done(admin, "topics", "compact", topic) == [f"Topic compaction requested for {topic}"]
    assert done(admin, *status, "--wait-complete") == ["Compaction was a success"]

    numbers = document(admin, "topics", "stats", topic)["compaction"]
    assert isinstance(numbers, dict)
    assert numbers["lastCompactionRemovedEventCount"] == 90
    assert numbers["lastCompactionSucceedTimestamp"] > 0
    assert numbers["lastCompactionFailedTimestamp"] == 0
    after = document(admin, "topics", "stats-internal", topic)
    assert after["numberOfEntries"] == 100
    assert after["compactedLedger"]["entries"] == 10  # type: ignore[index]
    cursor = after["cursors"]["__compaction"]  # type: ignore[index]
    assert cursor["markDeletePosition"] == after["lastConfirmedEntry"]
    assert cursor["properties"]["CompactedTopicLedger"] == after["compactedLedger"]["ledgerId"]  # type: ignore[index]
    assert document(admin, "topics", "info-internal", topic)["cursors"]
    assert done(admin, "topics", "subscriptions", topic) == ["__compaction"]

    nosuch = f"persistent://{ns}/nosuch"
    refused(admin, f"Topic {nosuch} not found", "topics", "compact", nosuch)
    refused(admin, f"Topic {nosuch} not found", "topics", "compaction-status", nosuch)
    refused(admin, f"Topic {nosuch} not found", "topics", "stats", nosuch)


def test_subscriptions_and_messages(admin: PulsarAdmin, rest: httpx.Client) -> None:
    ns = namespace(admin, "subscriptions")
    topic = f"persistent://{ns}/t"
    done(admin, "topics", "create", topic)
    produce(rest, topic, messages=5, keys=5)
    assert done(admin, "topics", "create-subscription", topic, "-s", "s1", "-m", "earliest") == []
    exists = "Subscription already exists for topic"
    refused(admin, exists, "topics", "create-subscription", topic, "-s", "s1")
    assert done(admin, "topics", "subscriptions", topic) == ["s1"]
    assert "v0" in "\n".join(done(admin, "topics", "peek-messages", topic, "-s", "s1"))
    assert done(admin, "topics", "skip", topic, "-s", "s1", "-n", "2") == []
    assert "v2" in "\n".join(done(admin, "topics", "peek-messages", topic, "-s", "s1"))
    last = document(admin, "topics", "last-message-id", topic)
    assert last["entryId"] == 4
    ledger = str(last["ledgerId"])
    assert done(admin, "topics", "reset-cursor", topic, "-s", "s1", "-m", f"{ledger}:1") == []
    assert "v1" in "\n".join(done(admin, "topics", "peek-messages", topic, "-s", "s1"))
    assert "v3" in "\n".join(done(admin, "topics", "get-message-by-id", topic, "-l", ledger, "-e", "3"))
    assert done(admin, "topics", "clear-backlog", topic, "-s", "s1") == []
    backlog = document(admin, "topics", "stats", topic)["subscriptions"]["s1"]["msgBacklog"]  # type: ignore[index]
    assert backlog == 0
    assert done(admin, "topics", "unsubscribe", topic, "-s", "s1") == []
    assert done(admin, "topics", "subscriptions", topic) == []
    assert done(admin, "topics", "truncate", topic) == []


def test_what_frees_a_trim(admin: PulsarAdmin, rest: httpx.Client) -> None:
    """Subscriptions that hold raw ledgers back, their time to live and quotas, and the trim itself."""
    ns = namespace(admin, "backlogs")
    topic = f"persistent://{ns}/t"
    done(admin, "topics", "create", topic)
    produce(rest, topic, messages=5, keys=5)
    assert done(admin, "topics", "create-subscription", topic, "-s", "s", "-m", "earliest") == []
    size = int(done(admin, "topics", "get-backlog-size", topic)[0])
    assert size == document(admin, "topics", "stats", topic)["storageSize"] > 0
    assert document(admin, "topics", "analyze-backlog", topic, "-s", "s")["messages"] == 5
    assert done(admin, "namespaces", "clear-backlog", ns, "-s", "s", "-force") == []
    assert document(admin, "topics", "analyze-backlog", topic, "-s", "s")["messages"] == 0
    assert done(admin, "namespaces", "unsubscribe", ns, "-s", "s") == []
    assert done(admin, "topics", "subscriptions", topic) == []
    for group, what in (("namespaces", ns), ("topics", topic), ("topicPolicies", topic)):
        assert done(admin, group, "get-message-ttl", what) == ["null"]
        assert done(admin, group, "set-message-ttl", what, "-ttl" if group == "namespaces" else "-t", "1h") == []
        assert done(admin, group, "get-message-ttl", what) == ["3600"]
        assert done(admin, group, "remove-message-ttl", what) == []
        quota = "get-backlog-quota" if group == "topicPolicies" else "get-backlog-quotas"
        assert done(admin, group, "set-backlog-quota", what, "-l", "10M", "-p", "producer_exception") == []
        output = "\n".join(done(admin, group, quota, what))
        assert str(10 * MIB) in output
        assert "producer_exception" in output
        assert done(admin, group, "remove-backlog-quota", what) == []
        assert "producer_exception" not in "\n".join(done(admin, group, quota, what))
    assert document(admin, "topics", "get-retention", topic, "-ap") == {
        "retentionTimeInMinutes": -1,
        "retentionSizeInMB": -1,
    }
    rest.put(f"/admin/v2/{topic.replace('://', '/')}/policies/cleanup.policy", json="compact").raise_for_status()
    done(admin, "topics", "compact", topic)
    assert done(admin, "topics", "compaction-status", "--wait-complete", topic) == ["Compaction was a success"]
    assert done(admin, "topics", "trim-topic", topic) == []
    assert document(admin, "topics", "stats-internal", topic)["numberOfEntries"] == 0


def test_permissions_and_bundles_of_topics(admin: PulsarAdmin) -> None:
    ns = namespace(admin, "permitted")
    topic = f"persistent://{ns}/t"
    done(admin, "topics", "create", topic)
    assert done(admin, "topics", "grant-permission", topic, "--role", "joe", "--actions", "produce,consume") == []
    assert done(admin, "topics", "permissions", topic)[0] in ("joe    [consume, produce]", "joe    [produce, consume]")
    assert done(admin, "topics", "revoke-permission", topic, "--role", "joe") == []
    refused(admin, "Permissions are not set at the topic level", "topics", "revoke-permission", topic, "--role", "joe")
    bundles = document(admin, "namespaces", "bundles", ns)["boundaries"]
    assert isinstance(bundles, list)
    ranges = [f"{first}_{end}" for first, end in itertools.pairwise(bundles)]
    (lies,) = done(admin, "topics", "bundle-range", topic)
    assert [item for item in ranges if topic in done(admin, "topics", "list", ns, "-b", item)] == [lies]
    assert topic in "\n".join(done(admin, "broker-stats", "topics"))


def test_what_is_not_offered_says_so(admin: PulsarAdmin) -> None:
    topic = "persistent://public/default/not-offered"
    done(admin, "topics", "create", topic)
    for command, feature in (
        (("topics", "set-persistence", topic, "-e", "2", "-w", "2", "-a", "2"), "BookKeeper: "),
        (("namespaces", "set-schema-validation-enforce", "public/default", "-e"), "demanding a schema"),
        (("brokers", "get-internal-config"), "ZooKeeper and BookKeeper: "),
        (("functions", "list"), "functions"),
        (("topics", "terminate", topic), "closing a topic for writing"),
    ):
        answer = admin(*command)
        assert (answer.exit_code, answer.stdout) == (1, ""), command
        assert f"not offered here: {feature}" in answer.stderr, command


def test_brokers(admin: PulsarAdmin, service: RunningService) -> None:
    broker = service.url.removeprefix("http://")
    assert done(admin, "brokers", "list", "standalone") == [broker]
    assert done(admin, "brokers", "healthcheck") == ["ok"]
    assert done(admin, "brokers", "version") == ["4.2.4"]
    assert "topicCompactionRetainNullKey    false" in done(admin, "brokers", "get-runtime-config")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "out", "err"),
    [(["tenants", "get", "public"], 0, "standalone", ""), (["tenants", "get", "nosuch"], 1, "", "does not exist")],
)
def test_the_program_itself(
    tools_class_path: str, client_conf: Path, arguments: list[str], exit_code: int, out: str, err: str
) -> None:
    """The program as its script starts it, in a process of its own."""
    command = [java(), *OPTIONS, "-cp", tools_class_path, ADMIN_TOOL, str(client_conf), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == exit_code, answer.stderr
    assert out in answer.stdout
    assert err in answer.stderr


def test_schemas(admin: PulsarAdmin, tmp_path: Path) -> None:
    topic = "persistent://public/default/with-schema"
    done(admin, "topics", "create", topic)

    def payload(name: str, *fields: object) -> str:
        definition = json.dumps({"type": "record", "name": "User", "fields": [{"name": "id", "type": "int"}, *fields]})
        file = tmp_path / name
        file.write_text(json.dumps({"type": "AVRO", "schema": definition, "properties": {"made": "by hand"}}))
        return str(file)

    first, second = payload("first"), payload("second", {"name": "town", "type": ["null", "string"], "default": None})
    refused = payload("refused", {"name": "town", "type": "int"})
    done(admin, "schemas", "upload", topic, "--filename", first)
    done(admin, "schemas", "upload", topic, "--filename", second)
    answer = admin("schemas", "upload", topic, "--filename", refused)
    assert answer.exit_code == 1
    assert "cannot change so" in answer.stderr

    newest = document(admin, "schemas", "get", topic)
    assert newest["version"] == 1
    schema = newest["schemaInfo"]
    assert isinstance(schema, dict)
    assert (schema["type"], schema["properties"]) == ("AVRO", {"made": "by hand"})
    assert [field["name"] for field in schema["schema"]["fields"]] == ["id", "town"]
    assert document(admin, "schemas", "get", topic, "--version", "0")["type"] == "AVRO"
    versions = "".join(done(admin, "schemas", "get", topic, "--all-version"))
    assert versions.count("schemaDefinition") == 2
    assert [item["version"] for item in document(admin, "schemas", "metadata", topic)["index"]] == [0, 1]  # type: ignore[attr-defined]
    done(admin, "schemas", "compatibility", topic, "--filename", refused)
    done(admin, "schemas", "delete", topic)
    assert "Schema not found" in admin("schemas", "get", topic).stderr


def test_policies_of_clients(admin: PulsarAdmin) -> None:
    topic = "persistent://public/default/client-policies"
    done(admin, "topics", "create", topic)
    for command, of in (("namespaces", "public/default"), ("topicPolicies", topic)):
        done(admin, command, "set-deduplication", of, "--enable")
        assert done(admin, command, "get-deduplication", of) == ["true"]
        done(admin, command, "remove-deduplication", of)
        assert done(admin, command, "get-deduplication", of) == ["null"]
    for command, of in (("namespaces", "public/default"), ("topicPolicies", topic)):
        flag = "--compatibility" if command == "namespaces" else "--strategy"
        done(admin, command, "set-schema-compatibility-strategy", of, flag, "BACKWARD")
        assert done(admin, command, "get-schema-compatibility-strategy", of) == ["BACKWARD"]
        done(admin, command, "set-schema-compatibility-strategy", of, flag, "UNDEFINED")
        none = "UNDEFINED" if command == "namespaces" else "null"
        assert done(admin, command, "get-schema-compatibility-strategy", of) == [none]
