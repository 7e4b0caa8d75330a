"""Tenancy against a plain model: any calls leave SQL and the model with the same tree, after the same errors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage.errors import Conflict, NotFound
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.budgets import IN_SOAK
from tests.clocks import ManualClock

pytestmark = pytest.mark.slow

TENANTS = st.sampled_from(["public", "a", "b"])
NAMESPACES = st.sampled_from(["default", "n"])
TOPICS = st.sampled_from(["t", "u", "t-partition-0", "t-partition-1", "t-partition-2"])
PLAIN = st.sampled_from(["t", "u"])


class Tenancy(RuleBasedStateMachine):
    """`tree`: tenant → namespace → its topics' uids by name; `partitioned`: their numbers by full name."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = MetadataStore(f"sqlite:///{Path(self.folder.name) / 'm.db'}", ManualClock())
        self.store.upgrade()
        self.tree: dict[str, dict[str, dict[str, str]]] = {"public": {"default": {}}}
        self.partitioned: dict[TopicName, int] = {}
        self.ended: set[str] = set()

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def check(self, call: Callable[[], object], missing: bool, refused: bool) -> bool:
        """`call` raises NotFound if something is missing, else Conflict if it is refused; whether it happened."""
        try:
            call()
        except NotFound:
            assert missing
            return False
        except Conflict:
            assert refused
            assert not missing
            return False
        assert not missing
        assert not refused
        return True

    @rule(tenant=TENANTS)
    def create_tenant(self, tenant: str) -> None:
        if self.check(lambda: self.store.tenancy.create_tenant(tenant, [], []), False, tenant in self.tree):
            self.tree[tenant] = {}

    @rule(tenant=TENANTS)
    def delete_tenant(self, tenant: str) -> None:
        namespaces = self.tree.get(tenant)
        if self.check(lambda: self.store.tenancy.delete_tenant(tenant), namespaces is None, bool(namespaces)):
            del self.tree[tenant]

    @rule(tenant=TENANTS, namespace=NAMESPACES)
    def create_namespace(self, tenant: str, namespace: str) -> None:
        namespaces = self.tree.get(tenant)
        full = f"{tenant}/{namespace}"
        if self.check(
            lambda: self.store.tenancy.create_namespace(full), namespaces is None, namespace in (namespaces or {})
        ):
            self.tree[tenant][namespace] = {}

    @rule(tenant=TENANTS, namespace=NAMESPACES)
    def delete_namespace(self, tenant: str, namespace: str) -> None:
        topics = self.tree.get(tenant, {}).get(namespace)
        inside = any((name.tenant, name.namespace) == (tenant, namespace) for name in self.partitioned)
        full = f"{tenant}/{namespace}"
        if self.check(lambda: self.store.tenancy.delete_namespace(full), topics is None, bool(topics) or inside):
            del self.tree[tenant][namespace]

    @rule(tenant=TENANTS, namespace=NAMESPACES, topic=TOPICS)
    def create_topic(self, tenant: str, namespace: str, topic: str) -> None:
        topics = self.tree.get(tenant, {}).get(namespace)
        name = TopicName(tenant, namespace, topic)
        taken = topic in (topics or {}) or name in self.partitioned
        if self.check(lambda: self.store.tenancy.create_topic(name, {"a": topic}), topics is None, taken):
            self.record_topic(name)

    @rule(tenant=TENANTS, namespace=NAMESPACES, topic=TOPICS)
    def import_topic(self, tenant: str, namespace: str, topic: str) -> None:
        name = TopicName(tenant, namespace, topic)
        if self.check(lambda: self.store.tenancy.ensure_topic(name), False, name in self.partitioned):
            topics = self.tree.setdefault(tenant, {}).setdefault(namespace, {})
            if topic not in topics:
                self.record_topic(name)

    @rule(tenant=TENANTS, namespace=NAMESPACES, topic=TOPICS)
    def delete_topic(self, tenant: str, namespace: str, topic: str) -> None:
        topics = self.tree.get(tenant, {}).get(namespace, {})
        name = TopicName(tenant, namespace, topic)
        if self.check(
            lambda: self.store.tenancy.delete_topic(self.store.topics.get(name).id), topic not in topics, False
        ):
            self.ended.add(topics.pop(topic))

    @rule(tenant=TENANTS, namespace=NAMESPACES, topic=PLAIN, partitions=st.integers(1, 3))
    def create_partitioned(self, tenant: str, namespace: str, topic: str, partitions: int) -> None:
        topics = self.tree.get(tenant, {}).get(namespace)
        name = TopicName(tenant, namespace, topic)
        new = [f"{topic}-partition-{n}" for n in range(partitions)]
        taken = bool({topic, *new} & set(topics or {})) or name in self.partitioned
        if self.check(lambda: self.store.partitions.create(name, partitions, {}), topics is None, taken):
            self.partitioned[name] = partitions
            for item in new:
                self.record_topic(TopicName(tenant, namespace, item))

    @rule(tenant=TENANTS, namespace=NAMESPACES, topic=PLAIN, partitions=st.integers(1, 3))
    def update_partitions(self, tenant: str, namespace: str, topic: str, partitions: int) -> None:
        name = TopicName(tenant, namespace, topic)
        before = self.partitioned.get(name)
        topics = self.tree.get(tenant, {}).get(namespace, {})
        taken = any(f"{topic}-partition-{n}" in topics for n in range(before or 0, partitions))
        refused = partitions < (before or 0) or taken
        if self.check(lambda: self.store.partitions.increase_partitions_to(name, partitions), before is None, refused):
            self.partitioned[name] = partitions
            for number in range(partitions):
                if f"{topic}-partition-{number}" not in topics:
                    self.record_topic(TopicName(tenant, namespace, f"{topic}-partition-{number}"))

    @rule(tenant=TENANTS, namespace=NAMESPACES, topic=PLAIN)
    def delete_partitioned(self, tenant: str, namespace: str, topic: str) -> None:
        name = TopicName(tenant, namespace, topic)
        number = self.partitioned.get(name)
        if self.check(lambda: self.store.partitions.delete(name, False), number is None, False):
            topics = self.tree[tenant][namespace]
            self.ended |= {
                topics.pop(item) for item in [f"{topic}-partition-{n}" for n in range(number or 0)] if item in topics
            }
            del self.partitioned[name]

    def record_topic(self, name: TopicName) -> None:
        uid = self.store.topics.get(name).uid
        assert uid not in self.ended
        self.tree[name.tenant][name.namespace][name.topic] = uid

    @invariant()
    def the_same_tree(self) -> None:
        tenancy = self.store.tenancy
        tree = {
            tenant: {
                full.partition("/")[2]: {item.name.topic: item.uid for item in self.store.topics.in_namespace(full)}
                for full in tenancy.namespaces(tenant)
            }
            for tenant in tenancy.tenants()
        }
        assert tree == self.tree
        everywhere = [full for tenant in self.tree for full in tenancy.namespaces(tenant)]
        assert {
            item.name: item.partitions for full in everywhere for item in self.store.partitions.in_namespace(full)
        } == self.partitioned
        assert all(tenancy.deleted_topic(uid) is not None for uid in self.ended)


TestTenancy = pytest.mark.budgeted(Tenancy.TestCase)
TestTenancy.settings = settings(max_examples=25 if IN_SOAK else 6, stateful_step_count=30, deadline=None)
