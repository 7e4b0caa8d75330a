"""Probes of REST: lookup, statistics, namespaces, bodies; and of schemas, which both doors store."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping
from typing import Any

from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.clients.behaviour.endpoint import Endpoint, settled
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import SHARED, Wire, ids_of, outcome, plain, produced

NAMESPACES = "/admin/v2/namespaces"


def _local(topic: str) -> str:
    return topic.rsplit("/", 1)[1]


def _answer(response: Any) -> Any:
    """Status and, of a success, the JSON body."""
    if response.status_code >= 300 or not response.content:
        return response.status_code
    return [response.status_code, response.json()]


@probe("S2")
def partitions_of_a_topic_to_create(endpoint: Endpoint, topic: str) -> Any:
    """Ask over REST for the partitions of a missing topic, with and without automatic creation."""
    seen = {
        "with creation": _answer(endpoint.topic("GET", topic, "/partitions?checkAllowAutoCreation=true")),
        "without": _answer(endpoint.topic("GET", topic, "/partitions")),
        "false": _answer(endpoint.topic("GET", topic, "/partitions?checkAllowAutoCreation=false")),
    }
    seen["listed"] = topic in endpoint.ask("GET", "/admin/v2/persistent/public/default").json()
    other = "/admin/v2/persistent/public/nowhere/x/partitions?checkAllowAutoCreation=true"
    seen["missing namespace"] = _answer(endpoint.ask("GET", other))
    return seen


@probe("S4")
def lookup_fields(endpoint: Endpoint, topic: str) -> Any:
    """Look a topic up over REST; the fields, and which of them hold a URL."""
    response = endpoint.ask("GET", "/lookup/v2/topic/" + topic.replace("://", "/"))
    body = {name: bool(value) for name, value in response.json().items()}
    missing = endpoint.ask("GET", "/lookup/v2/topic/persistent/public/nowhere/x")
    return {"status": response.status_code, "fields": body, "missing namespace": missing.status_code}


@probe("S10")
def lookup_with_an_unknown_listener(endpoint: Endpoint, topic: str) -> Any:
    """Look a topic up with the name of a listener that is not configured."""
    endpoint.topic("PUT", topic)
    return endpoint.ask("GET", "/lookup/v2/topic/" + topic.replace("://", "/") + "?listenerName=test").status_code


@probe("S7")
def peek_at_a_missing_subscription(endpoint: Endpoint, topic: str) -> Any:
    """Peek at a message of a subscription that does not exist, then list subscriptions."""
    produced(endpoint, topic, 3)
    status = [endpoint.topic("GET", topic, f"/subscription/new/position/{number}").status_code for number in (1, 4)]
    return {"status": status, "subscriptions": endpoint.topic("GET", topic, "/subscriptions").json()}


@probe("S6")
def bodies_as_text(endpoint: Endpoint, topic: str) -> Any:
    """Send numbers as text, null for a map and unknown fields."""
    namespace = f"{NAMESPACES}/public/{_local(topic)}"
    seen = {"namespace": endpoint.ask("PUT", namespace).status_code}
    for name, verb, path, body in (
        ("backlog quota", "POST", f"{namespace}/backlogQuota", {"limit": "10240", "policy": "producer_request_hold"}),
        ("retention", "POST", f"{namespace}/retention", {"retentionTimeInMinutes": "10", "retentionSizeInMB": 100}),
        (
            "unknown field",
            "POST",
            f"{namespace}/retention",
            {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1, "x": 1},
        ),
        ("threshold", "PUT", f"{namespace}/compactionThreshold", "1000"),
        (
            "schema",
            "POST",
            f"/admin/v2/schemas/public/default/{_local(topic)}/schema",
            {"type": "STRING", "schema": "", "properties": None},
        ),
    ):
        seen[name] = endpoint.ask(verb, path, body).status_code
    seen["stored"] = endpoint.ask("GET", f"{namespace}/retention").json()
    return seen


@probe("S9")
def namespace_with_policies(endpoint: Endpoint, topic: str) -> Any:
    """Create namespaces with a body of policies; the status, and what is in force then."""
    seen: dict[str, Any] = {}
    bodies: dict[str, Any] = {
        "nothing": {},
        "cluster": {"replication_clusters": ["standalone"]},
        "retention": {"retention_policies": {"retentionTimeInMinutes": 7, "retentionSizeInMB": 5}},
        "threshold": {"compaction_threshold": 4711},
        "roles": {"auth_policies": {"namespace_auth": {"somebody": ["produce"]}}},
        "producers": {"max_producers_per_topic": 3},
        "encryption": {"encryption_required": True},
    }
    for name, body in bodies.items():
        path = f"{NAMESPACES}/public/{_local(topic)}-{name}"
        seen[name] = endpoint.ask("PUT", path, body).status_code
        if name == "retention":
            seen[name] = [seen[name], endpoint.ask("GET", f"{path}/retention").json()]
        if name == "threshold":
            seen[name] = [seen[name], endpoint.ask("GET", f"{path}/compactionThreshold").json()]
    return seen


@probe("S10")
def what_is_missing_over_rest(endpoint: Endpoint, topic: str) -> Any:
    """List topics of a missing namespace and tenant; create a cluster that exists; set a policy of a missing tenant."""
    return {
        "topics of a missing namespace": _answer(endpoint.ask("GET", f"{NAMESPACES}/public/nowhere/topics")),
        "topics of a missing tenant": _answer(endpoint.ask("GET", f"{NAMESPACES}/missing/nowhere/topics")),
        "persistent of a missing namespace": _answer(endpoint.ask("GET", "/admin/v2/persistent/public/nowhere")),
        "partitioned of a missing namespace": _answer(
            endpoint.ask("GET", "/admin/v2/persistent/public/nowhere/partitioned")
        ),
        "cluster again": endpoint.ask(
            "PUT", "/admin/v2/clusters/standalone", {"serviceUrl": "http://localhost:8080/"}
        ).status_code,
        "policy of a missing tenant": endpoint.ask(
            "PUT", f"{NAMESPACES}/missing/ns/schemaCompatibilityStrategy", "FULL"
        ).status_code,
    }


@probe("S10")
def topics_of_a_missing_namespace(endpoint: Endpoint, topic: str) -> Any:
    """List and watch the topics of a missing namespace and of a missing tenant by the binary protocol."""
    seen = []
    with Wire(endpoint) as wire:
        for number, namespace in enumerate(("public/nowhere", "missing/nowhere")):
            asking = {"request_id": number, "namespace": namespace, "mode": 0}
            wire.send(type=BaseCommand.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=asking)
            answer = wire.answer(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, BaseCommand.ERROR)
            topics = list(answer.get_topics_of_namespace_response.topics)
            seen.append(topics if answer.type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE else outcome(answer))
            watch = {"request_id": number, "watcher_id": number, "namespace": namespace, "topics_pattern": ".*"}
            wire.send(type=BaseCommand.WATCH_TOPIC_LIST, watch_topic_list=watch)
            answer = wire.answer(BaseCommand.WATCH_TOPIC_LIST_SUCCESS, BaseCommand.ERROR)
            watched = list(answer.watch_topic_list_success.topic)
            seen.append(watched if answer.type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS else outcome(answer))
    return seen


@probe("S10")
def removed_by_a_compaction(endpoint: Endpoint, topic: str) -> Any:
    """Compact values and tombstones; the count of removed messages."""
    with Wire(endpoint) as wire:
        wire.producer(topic)
        for number, (key, value) in enumerate((("a", "1"), ("b", "1"), ("a", "2"), ("b", ""), ("c", "1"), ("d", ""))):
            wire.publish(plain(value, number, key=key), number)
    status = endpoint.compact(topic)
    name = "lastCompactionRemovedEventCount"
    settled(lambda: endpoint.stats(topic)["compaction"][name] > 0, True)
    return {"status": status, "removed": endpoint.stats(topic)["compaction"][name]}


@probe("S8")
def statistics_fields(endpoint: Endpoint, topic: str) -> Any:
    """Read a topic's statistics with one producer and one consumer: which fields are set, and what may be left out."""
    with Wire(endpoint) as wire:
        wire.producer(topic, producer_name="p")
        wire.subscribe(topic, "s", SHARED, consumer_name="c")
        wire.flow(10)
        wire.publish(plain("x"))
        wire.ack(ids_of(wire.messages(1)))
        settled(lambda: endpoint.subscription(topic)["lastMarkDeleteAdvancedTimestamp"] > 0, True)
        stats = endpoint.stats(topic)
        subscription = stats["subscriptions"]["s"]
        left_out = endpoint.stats(topic, "excludePublishers=true&excludeConsumers=true")
        return {
            "set in the topic": _set(stats, "lastPublishTimeStamp", "topicCreationTimeStamp"),
            "set in the subscription": _set(
                subscription, "lastAckedTimestamp", "lastConsumedTimestamp", "lastConsumedFlowTimestamp",
                "lastMarkDeleteAdvancedTimestamp",
            ),
            "set in the consumer": _set(
                subscription["consumers"][0], "lastAckedTimestamp", "lastConsumedTimestamp",
                "lastConsumedFlowTimestamp", "connectedSince", "address",
            ),
            "publishers": [each["producerName"] for each in stats["publishers"]],
            "left out": [left_out["publishers"], left_out["subscriptions"]["s"]["consumers"]],
        }  # fmt: skip


def _set(statistics: Mapping[str, Any], *names: str) -> dict[str, bool]:
    return {name: bool(statistics.get(name)) for name in names}


@probe("G18")
def broker_stats_of_topics(endpoint: Endpoint, topic: str) -> Any:
    """Read the statistics of all topics while a producer and a consumer are connected to one."""
    with Wire(endpoint) as wire:
        wire.producer(topic, producer_name="p")
        wire.subscribe(topic, "s", SHARED, consumer_name="c")
        wire.publish(plain("x"))

        def read() -> Any:
            body = endpoint.ask("GET", "/admin/v2/broker-stats/topics").json()
            for bundle in body["public/default"].values():
                stats = bundle["persistent"].get(topic)
                if stats is not None:
                    names = [each["producerName"] for each in stats["publishers"]]
                    subscription = stats["subscriptions"]["s"]
                    consumers = [each["consumerName"] for each in subscription["consumers"]]
                    return {"producers": names, "consumers": consumers, "type": subscription["type"]}
            return None

        expected = {"producers": ["p"], "consumers": ["c"], "type": "Shared"}
        return settled(read, expected)


@probe("G10")
def rates(endpoint: Endpoint, topic: str) -> Any:
    """Publish until each rate was above zero; the rates when nothing was published for a while."""
    names = "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut"
    above, numbers = set[str](), itertools.count()
    with Wire(endpoint) as wire:
        wire.producer(topic)
        wire.subscribe(topic, "s", SHARED)
        wire.flow(1_000_000)

        def moved() -> list[str]:
            wire.publish(plain("x"), next(numbers))
            stats = endpoint.stats(topic)
            above.update(name for name in names if stats[name] > 0)
            return sorted(above)

        seen = settled(moved, sorted(names))
        later = settled(lambda: [endpoint.stats(topic)[name] for name in names], [0.0] * 4)
        stats, count = endpoint.stats(topic), next(numbers)
        counters = {name: stats[name] == count for name in ("msgInCounter", "msgOutCounter")}
        return {"above zero": seen, "later": later, "counters are right": counters}


def _record(name: str, *fields: str, optional: bool = True) -> bytes:
    kind: Any = {"type": ["null", "string"], "default": None} if optional else {"type": "string"}
    described = {
        "type": "record",
        "name": name,
        "namespace": "n",
        "fields": [{"name": field, **kind} for field in fields],
    }
    return json.dumps(described).encode()


def _pair(key: bytes, value: bytes) -> bytes:
    return struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value


_PAIR = {
    "key.schema.name": "k", "key.schema.type": "AVRO", "key.schema.properties": "{}", "value.schema.name": "v",
    "value.schema.type": "AVRO", "value.schema.properties": "{}", "kv.encoding.type": "INLINE",
}  # fmt: skip


def _schema(kind: int, data: bytes, properties: dict[str, str] | None = None) -> dict[str, Any]:
    pairs = [{"key": key, "value": value} for key, value in (properties or {}).items()]
    return {"name": "s", "schema_data": data, "type": kind, "properties": pairs}


def _version(endpoint: Endpoint, topic: str, schema: dict[str, Any] | None) -> Any:
    """Create a producer with a schema; the schema's version, or the error."""
    with Wire(endpoint) as wire:
        answer = wire.producer(topic, **({} if schema is None else {"schema": schema}))
        if outcome(answer) != "Success":
            return outcome(answer)
        version = answer.producer_success.schema_version
        return int.from_bytes(version, "big") if version else None


@probe("G11")
def key_value_schemas(endpoint: Endpoint, topic: str) -> Any:
    """Evolve a KeyValue schema: the same, an optional field more, a required field more, another key."""
    steps = {
        "first": _pair(_record("K", "a"), _record("V", "x")),
        "same": _pair(_record("K", "a"), _record("V", "x")),
        "optional field": _pair(_record("K", "a"), _record("V", "x", "y")),
        "required field": _pair(_record("K", "a"), _record("V", "x", "z", optional=False)),
        "optional field of the key": _pair(_record("K", "a", "b"), _record("V", "x", "y")),
    }
    return {name: _version(endpoint, topic, _schema(15, data, _PAIR)) for name, data in steps.items()}


@probe("G11")
def protobuf_schemas(endpoint: Endpoint, topic: str) -> Any:
    """Evolve a Protobuf schema, which is defined in Avro: an optional field more, a required one more."""
    steps = {
        "first": _record("R", "x"), "optional field": _record("R", "x", "y"),
        "required field": _record("R", "x", "z", optional=False),
    }  # fmt: skip
    return {name: _version(endpoint, topic, _schema(3, data)) for name, data in steps.items()}


@probe("S5")
def avro_schemas_by_strategy(endpoint: Endpoint, topic: str) -> Any:
    """Evolve an Avro schema under each strategy: a record of another name, an optional field, a required field."""
    seen: dict[str, Any] = {}
    for strategy in ("FULL", "FORWARD", "BACKWARD", "FULL_TRANSITIVE", "ALWAYS_INCOMPATIBLE"):
        namespace = f"public/{_local(topic)}-{strategy.lower()}"
        endpoint.ask("PUT", f"{NAMESPACES}/{namespace}")
        endpoint.ask("PUT", f"{NAMESPACES}/{namespace}/schemaCompatibilityStrategy", strategy)
        steps = {
            "another name": (_record("R", "x"), _record("Other", "x")),
            "optional field": (_record("R", "x"), _record("R", "x", "y")),
            "required field": (_record("R", "x"), _record("R", "x", "y", optional=False)),
            "field less": (_record("R", "x", "y"), _record("R", "x")),
        }
        for kind in (4, 2):
            for name, (first, second) in steps.items():
                own = f"persistent://{namespace}/{name.replace(' ', '-')}-{kind}"
                label = f"{strategy}, {'Avro' if kind == 4 else 'JSON'}, {name}"
                seen[label] = [
                    _version(endpoint, own, _schema(kind, first)),
                    _version(endpoint, own, _schema(kind, second)),
                ]
    return seen


@probe("G11")
def schema_types_of_producers_and_consumers(endpoint: Endpoint, topic: str) -> Any:
    """Connect producers and consumers with other schemas to a topic with an Avro schema."""
    seen = {
        "Avro": _version(endpoint, topic, _schema(4, _record("R", "x"))),
        "none": _version(endpoint, topic, None),
        "String": _version(endpoint, topic, _schema(1, b"")),
        "Avro again": _version(endpoint, topic, _schema(4, _record("R", "x"))),
    }
    with Wire(endpoint) as wire:
        for number, (name, kind, data) in enumerate(
            (
                ("reads it", 4, _record("R", "x")),
                ("another record", 4, _record("Q", "q", optional=False)),
                ("text", 1, b""),
            )
        ):
            answer = wire.subscribe(topic, f"s{number}", consumer_id=number, schema=_schema(kind, data))
            seen[f"consumer, {name}"] = outcome(answer)
    return seen


def _dropped(wire: Wire, number: int, producer: str) -> bool:
    """Publish a message with that sequence id; return whether it was dropped as a duplicate."""
    receipt = wire.publish(plain("x", number, producer_name=producer), number)
    return bool(receipt["ledger_id"] >= 2**63)


@probe("G21")
def deduplication_switched_on(endpoint: Endpoint, topic: str) -> Any:
    """Switch deduplication on over messages of a producer that exists, then send its ids again."""
    with Wire(endpoint) as wire:
        wire.producer(topic, producer_name="p")
        for number in range(3):
            wire.publish(plain("x", number, producer_name="p"), number)
    status = endpoint.topic("POST", topic, "/deduplicationEnabled", True).status_code
    attempts = itertools.count()

    def in_force() -> bool:
        name = f"q{next(attempts)}"
        with Wire(endpoint) as wire:
            wire.producer(topic, producer_name=name)
            return [_dropped(wire, 5, name), _dropped(wire, 5, name)] == [False, True]

    effective = settled(in_force, True)
    with Wire(endpoint) as wire:
        last = wire.producer(topic, producer_name="p").producer_success.last_sequence_id
        return {
            "switched": status, "effective": effective, "last sequence id": last,
            "dropped": [_dropped(wire, number, "p") for number in (1, 2, 3, 3)],
        }  # fmt: skip
