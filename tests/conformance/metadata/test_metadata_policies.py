"""Policies by scope: set, removed, resolved; checked when they are set, and never a cursor's business (A2)."""

from __future__ import annotations

import json
from functools import partial

import pytest
from sqlalchemy import text

from storage.errors import Conflict, InvalidInput, InvalidTopicName, TopicNotFound
from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.options.policies import POLICIES, TopicPolicies, UnreadableStoredValue
from storage.options.resolution import PolicyOrigin
from tests.conformance.metadata.builders import append, at_once, publish_all
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import state
from tests.counted import statements
from tests.workbench import store_policy

NAMESPACE = namespace_scope("public/default")

EXAMPLES: dict[str, tuple[object, object]] = {
    "cleanup.policy": ("compact, delete", frozenset({"delete", "compact"})),
    "retention.ms": ("7d", 604_800_000),
    "retention.minutes": ("-1", -1),
    "retention.hours": (24, 24),
    "retention.bytes": ("3G", 3 << 30),
    "segment.bytes": ("64M", 64 << 20),
    "segment.ms": ("1h", 3_600_000),
    "flush.messages": ("none", None),
    "flush.ms": ("200", 200),
    "max.message.bytes": (1 << 20, 1 << 20),
    "file.delete.delay.ms": ("0", 0),
    "min.compaction.lag.ms": ("1m", 60_000),
    "max.compaction.lag.ms": ("2m", 120_000),
    "min.cleanable.dirty.ratio": ("0.25", 0.25),
    "delete.retention.ms": (86_400_000, 86_400_000),
    "compaction.retain-null-key": ("true", True),
    "compaction.tombstones-wait-for-cursors": (True, True),
    "compaction.key-ttl.ms": ("30d", 30 * 86_400_000),
    "compaction.event-time-order": ("TRUE", True),
    "compaction.event-time-max-lateness.ms": ("1d", 86_400_000),
    "compaction.chunk-expiry.ms": (None, None),
    "compaction.topic-engine": ("In-Process", "in-process"),
    "compaction.threshold.bytes": ("100M", 100 << 20),
    "compaction.threshold.messages": ("1000", 1000),
    "message.ttl.seconds": ("3600", 3600),
    "message.timestamp.after.max.ms": ("2h", 7_200_000),
    "backlog.quota.bytes": ("10G", 10 << 30),
    "backlog.quota.bytes.action": ("Producer_Exception", "producer_exception"),
    "backlog.quota.seconds": (-1, -1),
    "backlog.quota.seconds.action": ("consumer_backlog_eviction", "consumer_backlog_eviction"),
    "deduplication.enabled": ("true", True),
    "replication.accept-gaps": ("true", True),
    "schema.compatibility-strategy": ("BACKWARD", "BACKWARD"),
    "table.enabled": ("true", True),
    "table.format-version": (2, 2),
    "table.snapshot.age.ms": ("2d", 172_800_000),
    "table.snapshots.max": ("7", 7),
}


def test_every_policy_comes_back_as_it_was_set(store: MetadataStore, topic: TopicRecord) -> None:
    assert set(EXAMPLES) == set(POLICIES)
    for name, (setting, value) in EXAMPLES.items():
        store.policies.change([topic_scope(topic)], {name: setting})
        assert store.policies.readable_of_scope(topic_scope(topic))[name] == value
    values = {name: value for name, (_, value) in EXAMPLES.items()}
    assert store.policies.readable_of_scope(topic_scope(topic)) == values
    resolved = store.policies.resolve_policies(topic)
    assert {name: getattr(resolved.policies, POLICIES[name].attribute) for name in POLICIES} == values
    assert set(resolved.origins.values()) == {PolicyOrigin.TOPIC}
    assert resolved.policies == store.policies.effective(topic)


def test_a_policy_is_kept_under_its_own_name(store: MetadataStore) -> None:
    store.policies.change([BROKER], {"log.retention.ms": "1d"})
    assert store.policies.readable_of_scope(BROKER) == {"retention.ms": 86_400_000}
    store.policies.change([BROKER], {"retention.ms": "2d"})
    assert store.policies.readable_of_scope(BROKER) == {"retention.ms": 172_800_000}
    for name in ("Log.Retention.MS", "retention.ms"):
        store.policies.change([BROKER], {}, [name])
        assert store.policies.of_scope(BROKER) == {}
    assert store.policies.readable_of_scope(BROKER) == {}


def test_the_nearest_scope_counts(store: MetadataStore, topic: TopicRecord) -> None:
    name = "segment.bytes"

    def nearest(of: TopicRecord = topic) -> tuple[int, PolicyOrigin]:
        resolved = store.policies.resolve_policies(of)
        return resolved.policies.segment_bytes, resolved.origins[name]

    assert store.policies.effective(topic) == TopicPolicies()
    assert nearest() == (32 << 20, PolicyOrigin.DEFAULT)
    store.policies.change([BROKER], {name: "1M"})
    assert nearest() == (1 << 20, PolicyOrigin.BROKER)
    store.policies.change([NAMESPACE], {name: "2M"})
    assert nearest() == (2 << 20, PolicyOrigin.NAMESPACE)
    store.policies.change([topic_scope(topic)], {name: "3M"})
    assert nearest() == (3 << 20, PolicyOrigin.TOPIC)
    neighbour = store.tenancy.ensure_topic(TopicName.parse("neighbour"))
    stranger = store.tenancy.ensure_topic(TopicName.parse("public/other/orders"))
    assert (nearest(neighbour), nearest(stranger)) == (
        (2 << 20, PolicyOrigin.NAMESPACE),
        (1 << 20, PolicyOrigin.BROKER),
    )
    store.policies.change([topic_scope(topic)], {}, [name])
    assert nearest() == (2 << 20, PolicyOrigin.NAMESPACE)


def test_only_the_broker_raises_the_size_of_messages(store: MetadataStore, topic: TopicRecord) -> None:
    """Clients know the broker's size alone, and refuse larger messages."""
    for scope in (topic_scope(topic), NAMESPACE):
        with pytest.raises(InvalidInput, match="above the broker's"):
            store.policies.change([scope], {"max.message.bytes": "6M"})
    store.policies.change([BROKER], {"max.message.bytes": "8M"})
    store.policies.change([topic_scope(topic)], {"max.message.bytes": "6M"})
    assert store.policies.effective(topic).max_message_bytes == 6 << 20
    store.policies.change([BROKER], {}, ["max.message.bytes"])
    assert store.policies.effective(topic).max_message_bytes == 5 << 20


def test_none_and_nothing_are_settings_too(store: MetadataStore, topic: TopicRecord) -> None:
    store.policies.change([BROKER], {"cleanup.policy": "compact"})
    store.policies.change([BROKER], {"compaction.key-ttl.ms": "1d"})
    store.policies.change([topic_scope(topic)], {"cleanup.policy": ""})
    store.policies.change([topic_scope(topic)], {"compaction.key-ttl.ms": "none"})
    policies = store.policies.effective(topic)
    assert (policies.cleanup_policy, policies.compaction_key_ttl_ms) == (frozenset(), None)


def test_what_is_not_allowed_is_not_kept(store: MetadataStore, topic: TopicRecord) -> None:
    scope = topic_scope(topic)
    store.policies.change([scope], {"min.compaction.lag.ms": "2h"})
    for name, value, why in (
        ("segment.bytes", "1K", "segment.bytes"),
        ("no.such.policy", "1", "no policy"),
        (
            "max.compaction.lag.ms",
            "1h",
            r"min.compaction.lag.ms \(7200000\) is above max.compaction.lag.ms \(3600000\)",
        ),
    ):
        with pytest.raises(InvalidInput, match=why):
            store.policies.change([scope], {name: value})
    with pytest.raises(InvalidInput):
        store.policies.change([scope], {}, ["no.such.policy"])
    assert store.policies.readable_of_scope(scope) == {"min.compaction.lag.ms": 7_200_000}


def test_scopes(store: MetadataStore, topic: TopicRecord) -> None:
    assert (NAMESPACE, topic_scope(topic)) == ("namespace:public/default", f"topic:{topic.uid}")
    for wrong in ("public", "public/", "a/b/c", ""):
        with pytest.raises(InvalidInput, match="is not a namespace"):
            namespace_scope(wrong)
    with pytest.raises(InvalidTopicName):
        namespace_scope("public/a b")
    with pytest.raises(TopicNotFound, match="uid gone"):
        store.policies.change(["topic:gone"], {"retention.ms": 1})
    with pytest.raises(AssertionError, match="make it with"):
        store.policies.change(["public/default"], {"retention.ms": 1})


def test_a_policy_of_a_newer_version_is_left_alone(store: MetadataStore, topic: TopicRecord) -> None:
    store.policies.change([BROKER], {"retention.ms": 5})
    with store.database.write() as connection:
        connection.execute(
            text("INSERT INTO policies (scope, name, value) VALUES ('broker', 'from.the.future', :value)"),
            {"value": json.dumps({"a": 1})},
        )
    assert store.policies.readable_of_scope(BROKER) == {"retention.ms": 5}
    assert store.policies.effective(topic).retention_ms == 5


def test_a_value_that_cannot_be_read_stops_nothing_and_is_named(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord
) -> None:
    store.policies.change([BROKER], {"retention.ms": 5})
    for scope in (topic_scope(topic), NAMESPACE, "topic:gone"):
        store_policy(store, scope, "segment.bytes", 1 << 40)
    store_policy(store, BROKER, "cleanup.policy", ["tier"])

    resolved = store.policies.resolve_policies(other)
    assert (resolved.policies.retention_ms, resolved.policies.cleanup_policy) == (5, frozenset())
    assert {name: unreadable.origin for name, unreadable in resolved.unreadable.items()} == {
        "segment.bytes": PolicyOrigin.NAMESPACE,
        "cleanup.policy": PolicyOrigin.BROKER,
    }
    assert store.policies.resolver().resolve(other) == resolved
    assert store.policies.policies_inherited_from(NAMESPACE) == resolved
    assert store.policies.readable_of_scope(BROKER) == {"retention.ms": 5}
    assert isinstance(store.policies.of_scope(BROKER)["cleanup.policy"], UnreadableStoredValue)
    assert [(item.scope, item.name, item.stored.value) for item in store.policies.unreadable_policies()] == [
        ("the broker", "cleanup.policy", ["tier"]),
        ("the namespace public/default", "segment.bytes", 1 << 40),
        (f"the topic {topic.name}", "segment.bytes", 1 << 40),
    ]

    store.policies.change([topic_scope(topic)], {"segment.ms": 9})
    store.policies.change([topic_scope(topic)], {"segment.bytes": 1 << 20})
    store.policies.change([BROKER], {}, ["cleanup.policy"])
    store.policies.change([NAMESPACE], {}, ["segment.bytes"])
    assert store.policies.unreadable_policies() == []


TRIGGERS = {
    "compaction.threshold.bytes": 1 << 30,
    "compaction.threshold.messages": 10**6,
    "min.cleanable.dirty.ratio": 0.9,
    "max.compaction.lag.ms": 10**9,
    "cleanup.policy": "compact",
}


def compacted(store: MetadataStore, topic: TopicRecord) -> bool:
    return [cursor.name for cursor in store.cursors.of_topic(topic.id)] == [COMPACTION_CURSOR]


@pytest.mark.parametrize("name", TRIGGERS)
def test_a_topic_whose_own_policies_enable_compaction_has_its_cursor(
    store: MetadataStore, topic: TopicRecord, name: str
) -> None:
    """S9, Pulsar #11672."""
    store.policies.change([topic_scope(topic)], {"cleanup.policy": "delete"})
    assert not compacted(store, topic)
    store.policies.change([topic_scope(topic)], {name: TRIGGERS[name]})
    assert compacted(store, topic)


def test_a_topic_that_no_longer_turns_compaction_off_has_its_cursor(store: MetadataStore, topic: TopicRecord) -> None:
    store.policies.change([topic_scope(topic)], {"compaction.threshold.bytes": 0})
    store.policies.change([BROKER], {"compaction.threshold.bytes": 5})
    assert not compacted(store, topic)
    store.policies.change([topic_scope(topic)], {}, ["compaction.threshold.bytes"])
    assert compacted(store, topic)


def test_topics_that_come_later_have_their_cursor_from_the_beginning(store: MetadataStore, topic: TopicRecord) -> None:
    store.policies.change([NAMESPACE], {"compaction.threshold.messages": 5})
    assert not compacted(store, topic), "not thousands in one request: the one that trims asks"
    assert compacted(store, store.tenancy.ensure_topic(TopicName.parse("later")))
    assert compacted(store, store.tenancy.create_topic(TopicName.parse("properly"), {}))
    store.partitions.create(TopicName.parse("parts"), 2, {})
    assert compacted(store, store.topics.get(TopicName.parse("parts-partition-1")))
    assert not compacted(store, store.tenancy.ensure_topic(TopicName.parse("public/else/where")))


@pytest.mark.parametrize("scope", [BROKER, NAMESPACE])
def test_nothing_is_trimmed_of_a_topic_that_is_to_be_compacted_by_what_is_set_around_it(
    store: MetadataStore, topic: TopicRecord, scope: str
) -> None:
    """In the transaction that trims: the policy may have been set since somebody looked."""
    append(store, topic, 3)
    (ledger,) = store.ledgers.of_topic(topic.id)
    store.policies.change([scope], {"compaction.threshold.bytes": 1 << 30})
    with pytest.raises(Conflict, match="its cursor '__compaction' is with nothing acknowledged"):
        store.trimming.trim(topic.id, 3, [ledger.ledger_id], force=False)
    assert store.ledgers.of_topic(topic.id) == (ledger,)
    store.trimming.trim(topic.id, 3, [ledger.ledger_id], force=True)
    assert store.ledgers.of_topic(topic.id) == ()


def test_policies_never_touch_a_cursor(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    store.cursors.ensure(topic.id, "reader")
    before = (state(store, topic), store.cursors.of_topic(topic.id))
    for scope in (BROKER, NAMESPACE, topic_scope(topic)):
        for name, (setting, _) in EXAMPLES.items():
            store.policies.change([scope], {name: setting})
        for name in EXAMPLES:
            store.policies.change([scope], {}, [name])
        assert store.policies.of_scope(scope) == {}
    assert (state(store, topic), store.cursors.of_topic(topic.id)) == before


def test_several_set_the_same_policy_at_once(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(4)
    for name in ("retention.ms", "retention.bytes", "segment.bytes"):
        values = [20_000 + number for number in range(len(stores))]
        results = at_once(
            *(
                lambda item=store, value=value, name=name: item.policies.change([topic_scope(topic)], {name: value})
                for store, value in zip(stores, values, strict=True)
            )
        )
        assert results == [None] * len(stores)
        assert stores[0].policies.readable_of_scope(topic_scope(topic))[name] in values


def test_a_change_of_many_topics_takes_as_many_statements_as_one(store: MetadataStore) -> None:
    changes: list[tuple[dict[str, object], list[str]]] = [
        ({"compaction.threshold.bytes": 5, "segment.ms": "1h"}, []),
        ({"segment.ms": "2h"}, ["compaction.threshold.bytes"]),
    ]
    counts = []
    for count in (1, 300):
        created = [store.tenancy.ensure_topic(TopicName.parse(f"{count}-{number}")) for number in range(count)]
        scopes = [topic_scope(topic) for topic in created]
        counts.append([len(statements(store, partial(store.policies.change, scopes, *change))) for change in changes])
        assert set(map(str, store.policies.readable_of_scopes(scopes).values())) == {"{'segment.ms': 7200000}"}
        assert all(compacted(store, topic) for topic in created)
    assert counts[0] == counts[1]


def test_several_scopes_change_together_or_not_at_all(store: MetadataStore, topic: TopicRecord) -> None:
    first, second = topic_scope(topic), topic_scope(store.tenancy.ensure_topic(TopicName.parse("second")))
    store.policies.change([first, second], {"segment.ms": "1h", "min.compaction.lag.ms": "1m"})
    store.policies.change([second], {"max.compaction.lag.ms": "2m"})
    before = [store.policies.readable_of_scope(scope) for scope in (first, second)]
    with pytest.raises(InvalidInput, match="lag"):  # only the second one's contradicts
        store.policies.change([first, second], {"segment.ms": "2h", "min.compaction.lag.ms": "3m"})
    with pytest.raises(TopicNotFound):
        store.policies.change([first, "topic:gone"], {"segment.ms": "2h"})
    assert [store.policies.readable_of_scope(scope) for scope in (first, second)] == before
    store.policies.change([second], {"min.compaction.lag.ms": "3m", "max.compaction.lag.ms": "4m"})
    store.policies.change([first, second], {}, None)
    assert [store.policies.readable_of_scope(scope) for scope in (first, second)] == [{}, {}]
