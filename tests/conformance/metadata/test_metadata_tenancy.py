"""Tenants, namespaces, permissions, partitioned topics and properties, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import URL, Connection, text

from storage.errors import Conflict, ErrorText, InvalidInput, InvalidTopicName, LeaseHeld, NotFound, TopicNotFound
from storage.metadata import attempts
from storage.metadata.policy_store import namespace_scope
from storage.metadata.records import NamespaceRecord, PartitionedTopic, TenantRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, at_once, claim
from tests.conformance.metadata.conftest import OpenStores
from tests.counted import statements

PT = TopicName("acme", "shop", "pt")


@pytest.fixture
def shop(store: MetadataStore) -> str:
    store.tenancy.create_tenant("acme", ["boss"], ["standalone"])
    store.tenancy.create_namespace("acme/shop")
    return "acme/shop"


def names(topics: list[TopicRecord]) -> list[str]:
    return [topic.name.topic for topic in topics]


def test_a_new_database_has_public_default(store: MetadataStore) -> None:
    assert store.tenancy.tenants() == ["public"]
    assert store.tenancy.tenant("public") == TenantRecord("public", (), ("standalone",), {}, 0)
    assert store.tenancy.namespaces("public") == ["public/default"]
    assert store.tenancy.namespace("public/default") == NamespaceRecord("public/default", {}, 0)


def test_a_tenants_life(store: MetadataStore, clock: ManualClock) -> None:
    tenancy = store.tenancy
    tenancy.create_tenant("acme", ["a", "b"], ["standalone"])
    assert tenancy.tenant("acme") == TenantRecord("acme", ("a", "b"), ("standalone",), {}, clock.now_ms())
    with pytest.raises(Conflict, match="the tenant acme exists already"):
        tenancy.create_tenant("acme", [], [])
    tenancy.update_tenant("acme", [], ["x"])
    assert (tenancy.tenant("acme").admin_roles, tenancy.tenant("acme").allowed_clusters) == ((), ("x",))
    assert tenancy.tenants() == ["acme", "public"]
    assert tenancy.namespaces("acme") == []
    tenancy.delete_tenant("acme")
    assert tenancy.tenants() == ["public"]


def test_the_namespaces_that_a_role_may_administer(store: MetadataStore) -> None:
    tenancy = store.tenancy
    for tenant, roles in (("acme", ["owner"]), ("globex", [])):
        tenancy.create_tenant(tenant, roles, [])
        tenancy.create_namespace(f"{tenant}/a")
        tenancy.create_namespace(f"{tenant}/b")
    tenancy.set_permissions("globex", "helper", ["consume", "admin"])
    tenancy.set_permissions("acme/b", "helper", ["admin"])
    tenancy.set_permissions("acme/a", "helper", ["produce"])
    assert tenancy.administered_namespaces("owner") == ["acme/a", "acme/b"]
    assert tenancy.administered_namespaces("helper") == ["acme/b", "globex/a", "globex/b"]
    assert tenancy.administered_namespaces("stranger") == []
    assert tenancy.administered_namespaces(None) == ["acme/a", "acme/b", "globex/a", "globex/b", "public/default"]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.tenancy.tenant("no"),
        lambda store: store.tenancy.update_tenant("no", [], []),
        lambda store: store.tenancy.delete_tenant("no"),
        lambda store: store.tenancy.namespaces("no"),
        lambda store: store.tenancy.create_namespace("no/ns"),
        lambda store: store.tenancy.namespace("public/no"),
        lambda store: store.tenancy.delete_namespace("public/no"),
        lambda store: store.tenancy.set_permissions("no", "role", ["produce"]),
        lambda store: store.tenancy.set_permissions("public/no", "role", ["produce"]),
        lambda store: store.tenancy.revoke("public/no", "role"),
        lambda store: store.tenancy.create_topic(TopicName("public", "no", "t"), {}),
        lambda store: store.partitions.create(TopicName("public", "no", "t"), 1, {}),
        lambda store: store.partitions.increase_partitions_to(TopicName("public", "default", "t"), 1),
        lambda store: store.partitions.delete(TopicName("public", "default", "t"), True),
    ],
)
def test_what_is_not_there(store: MetadataStore, call: Callable[[object], object]) -> None:
    with pytest.raises(NotFound, match="does not exist") as answer:
        call(store)
    assert answer.value.remedy == "create it first, or check the name"
    assert store.tenancy.tenants() == ["public"]


def test_names_that_cannot_be(store: MetadataStore) -> None:
    with pytest.raises(InvalidTopicName):
        store.tenancy.create_tenant("a/b", [], [])
    with pytest.raises(InvalidTopicName):
        store.tenancy.ensure_topic(TopicName("public", "default", ".."))
    with pytest.raises(InvalidTopicName):
        store.partitions.create(TopicName("public", "default", "."), 2, {})
    for name in ("public", "public/", "public/a/b", "public/ä"):
        with pytest.raises(InvalidInput):
            store.tenancy.create_namespace(name)


def test_what_is_not_empty_stays(store: MetadataStore, shop: str) -> None:
    with pytest.raises(Conflict, match="the tenant acme has 1 namespaces, acme/shop among them"):
        store.tenancy.delete_tenant("acme")
    topic = store.tenancy.create_topic(TopicName("acme", "shop", "t"), {})
    with pytest.raises(Conflict, match="is not empty: it has persistent://acme/shop/t"):
        store.tenancy.delete_namespace(shop)
    store.tenancy.delete_topic(topic.id)
    store.partitions.create(PT, 1, {})
    with pytest.raises(Conflict, match="is not empty"):
        store.tenancy.delete_namespace(shop)
    store.partitions.delete(PT, False)
    store.tenancy.delete_namespace(shop)
    store.tenancy.delete_tenant("acme")
    assert store.tenancy.tenants() == ["public"]


def test_permissions_go_with_their_topic(store: MetadataStore, shop: str) -> None:
    tenancy = store.tenancy
    topic = tenancy.create_topic(TopicName("acme", "shop", "t"), {})
    store.partitions.create(PT, 2, {})
    names = [topic.name, PT, TopicName("acme", "shop", f"{PT.topic}-partition-1")]
    for name in names:
        tenancy.set_permissions(str(name), "app", ["consume"])
    tenancy.set_permissions(shop, "app", ["produce"])
    granted = {str(name): {"app": ("consume",)} for name in names}
    assert tenancy.topic_permissions(names) == tenancy.topic_permissions_in(shop) == granted
    assert tenancy.topic_permissions_of("app") == {str(name): ("consume",) for name in names}
    assert tenancy.topic_permissions_of("other") == {}
    assert tenancy.topic_permissions_in("acme/sho_") == tenancy.topic_permissions_in("ACME/shop") == {}
    assert tenancy.namespace(shop).permissions == {"app": ("produce",)}
    tenancy.delete_topic(topic.id)
    assert list(tenancy.topic_permissions_in(shop)) == [str(PT), str(names[2])]
    with pytest.raises(NotFound, match="does not exist"):
        tenancy.set_permissions(str(topic.name), "app", ["consume"])
    with pytest.raises(NotFound, match="does not exist"):
        tenancy.revoke(str(topic.name), "app")
    store.partitions.delete(PT, False)
    assert tenancy.topic_permissions_in(shop) == {}


def test_permissions_and_policies_go_with_their_namespace(store: MetadataStore, shop: str) -> None:
    tenancy = store.tenancy
    tenancy.set_permissions("acme", "boss", ["admin"])
    tenancy.set_permissions(shop, "app", ["produce", "consume"])
    tenancy.set_permissions(shop, "app", ["consume"])
    tenancy.set_permissions(shop, "other", ["produce"])
    assert [tenancy.revoke(shop, role) for role in ("other", "stranger")] == [True, False]
    assert tenancy.tenant("acme").permissions == {"boss": ("admin",)}
    assert tenancy.namespace(shop).permissions == {"app": ("consume",)}
    store.policies.change([namespace_scope(shop)], {"retention.ms": 5})
    tenancy.delete_namespace(shop)
    tenancy.create_namespace(shop)
    assert tenancy.namespace(shop).permissions == {}
    assert store.policies.readable_of_scope(namespace_scope(shop)) == {}
    tenancy.delete_namespace(shop)
    tenancy.delete_tenant("acme")
    tenancy.create_tenant("acme", [], [])
    assert tenancy.tenant("acme").permissions == {}


def test_an_import_makes_what_its_topic_needs(store: MetadataStore) -> None:
    store.tenancy.ensure_topic(TopicName("new", "ns", "t"))
    assert store.tenancy.namespaces("new") == ["new/ns"]
    assert store.tenancy.tenant("new").allowed_clusters == ("standalone",)


def test_a_topic_is_made_once_with_its_properties(store: MetadataStore, shop: str) -> None:
    name = TopicName("acme", "shop", "t")
    topic = store.tenancy.create_topic(name, {"owner": "me", "ключ": "значение"})
    assert store.tenancy.ensure_topic(name) == topic
    with pytest.raises(Conflict, match="persistent://acme/shop/t exists already"):
        store.tenancy.create_topic(name, {})
    assert store.topics.properties(topic.id) == {"owner": "me", "ключ": "значение"}
    store.topics.set_properties(topic.id, {"owner": "you", "b": ""})
    assert store.topics.properties(topic.id) == {"owner": "you", "ключ": "значение", "b": ""}
    store.topics.set_properties(topic.id, {"c": "d"}, ["ключ", "absent"])
    assert store.topics.properties(topic.id) == {"owner": "you", "b": "", "c": "d"}
    with pytest.raises(InvalidInput, match="is no text"):
        store.topics.set_properties(topic.id, {"a\x00": ""})
    with pytest.raises(TopicNotFound):
        store.topics.properties(topic.id + 1)
    assert store.topics.properties(store.tenancy.ensure_topic(TopicName("acme", "shop", "u")).id) == {}


def test_a_partitioned_topics_life(store: MetadataStore, shop: str, clock: ManualClock) -> None:
    tenancy = store.tenancy
    assert store.partitions.find(PT) is None
    created = store.partitions.create(PT, 2, {"a": "b"})
    assert created == PartitionedTopic(PT, 2, {"a": "b"}, clock.now_ms()) == store.partitions.find(PT)
    assert names(store.topics.in_namespace(shop)) == ["pt-partition-0", "pt-partition-1"]
    assert store.partitions.in_namespace(shop) == [created]
    assert store.partitions.in_namespace("public/default") == []
    assert store.partitions.by_names([created.name, TopicName.parse("pt")]) == {created.name: created}
    assert store.partitions.increase_partitions_to(PT, 3).partitions == 3
    with pytest.raises(Conflict, match="has 3 partitions, and cannot be brought to 2"):
        store.partitions.increase_partitions_to(PT, 2)
    store.partitions.set_properties(PT, {"c": "d"})
    store.partitions.set_properties(PT, {"e": "f"}, ["a", "none"])
    assert store.partitions.find(PT) == PartitionedTopic(PT, 3, {"c": "d", "e": "f"}, created.created_at)

    tenancy.delete_topic(store.topics.in_namespace(shop)[1].id)
    store.partitions.increase_partitions_to(PT, 3)
    assert names(store.topics.in_namespace(shop)) == [f"pt-partition-{n}" for n in range(3)], "a lost one comes back"
    uids = {topic.uid for topic in store.topics.in_namespace(shop)}
    assert {item.uid for item in store.partitions.delete(PT, False)} == uids
    assert (store.topics.in_namespace(shop), store.partitions.find(PT)) == ([], None)


def test_names_of_partitioned_topics_are_taken(store: MetadataStore, shop: str) -> None:
    tenancy = store.tenancy
    store.partitions.create(PT, 1, {})
    for call in (
        lambda: store.partitions.create(PT, 1, {}),
        lambda: tenancy.create_topic(PT, {}),
        lambda: store.tenancy.ensure_topic(PT),
    ):
        with pytest.raises(Conflict):
            call()
    plain = store.tenancy.ensure_topic(TopicName("acme", "shop", "plain"))
    with pytest.raises(Conflict, match="plain exists already"):
        store.partitions.create(plain.name, 1, {})
    store.tenancy.ensure_topic(TopicName("acme", "shop", "pt-partition-1"))
    with pytest.raises(Conflict, match="is no partition of"):
        store.partitions.increase_partitions_to(PT, 3)
    record = store.partitions.find(PT)
    assert record is not None
    assert record.partitions == 1, "all or nothing"
    assert "pt-partition-2" not in names(store.topics.in_namespace(shop))


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_numbers_of_partitions_that_cannot_be(store: MetadataStore, shop: str, count: int) -> None:
    with pytest.raises(InvalidInput, match="is no number of partitions"):
        store.partitions.create(PT, count, {})
    with pytest.raises(InvalidInput, match="named like a partition"):
        store.partitions.create(TopicName("acme", "shop", "x-partition-0"), 1, {})


def test_a_partition_that_is_written_is_deleted_by_force_only(store: MetadataStore, shop: str) -> None:
    store.partitions.create(PT, 2, {})
    second = store.topics.in_namespace(shop)[1]
    store.leases.acquire(second.id, "writer", TTL)
    with pytest.raises(LeaseHeld, match="writer is writing to persistent://acme/shop/pt-partition-1"):
        store.partitions.delete(PT, False)
    assert len(store.topics.in_namespace(shop)) == 2
    store.partitions.delete(PT, True)
    assert store.topics.in_namespace(shop) == []


def test_partitions_that_come_back_are_locked_by_id_as_all_topics(store: MetadataStore, shop: str) -> None:
    """`open_store` checks the order of locks: the partition that was rebuilt has the largest id."""
    store.partitions.create(PT, 2, {})
    first, second = store.topics.in_namespace(shop)
    store.tenancy.delete_topic(first.id)
    store.policies.change([namespace_scope(shop)], {"compaction.threshold.bytes": 1})
    store.partitions.increase_partitions_to(PT, 2)
    again, _ = store.topics.in_namespace(shop)
    assert again.id > second.id
    assert all(store.cursors.of_topic(topic.id) for topic in (again, second))


def test_changes_of_partitions_take_as_many_statements_for_any_number(store: MetadataStore, shop: str) -> None:
    """Nothing is executed for each partition: neither rows of topics, nor leases, nor cursors."""
    store.policies.change([namespace_scope(shop)], {"compaction.threshold.bytes": 1})
    counts = []
    for count in (2, 300):
        store.partitions.create(PT, 1, {})
        calls = (
            partial(store.partitions.increase_partitions_to, PT, count),
            partial(store.partitions.increase_partitions_to, PT, count),
            partial(store.partitions.delete, PT, True),
            partial(store.partitions.create, PT, count, {}),
        )
        counts.append([len(statements(store, call)) for call in calls])
        assert all(store.cursors.of_topic(topic.id) for topic in store.topics.in_namespace(shop))
        store.partitions.delete(PT, True)
    assert counts[0] == counts[1]


def test_more_partitions_than_fit_into_a_statement(
    store: MetadataStore, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.metadata.queries.AT_ONCE", 3)
    store.policies.change([namespace_scope(shop)], {"compaction.threshold.bytes": 1})
    store.partitions.create(PT, 7, {})
    first = store.topics.in_namespace(shop)[0]
    store.tenancy.delete_topic(first.id)
    store.partitions.increase_partitions_to(PT, 11)
    created = store.topics.in_namespace(shop)
    assert {topic.name.partition for topic in created} == set(range(11))
    assert len({topic.uid for topic in created}) == 11
    assert all(store.cursors.of_topic(topic.id) for topic in created)
    assert [store.leases.acquire(topic.id, "writer", TTL).token for topic in created] == [1] * 11


@pytest.mark.parametrize("change", ["delete", "pause", "abort"])
def test_partitions_are_changed_beside_a_heartbeat_of_all(
    database_url: URL, open_stores: OpenStores, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A heartbeat locks attempts in the order of their ids, whatever their topics'; so does who changes several."""
    if database_url.get_backend_name() != "postgresql":
        pytest.skip("SQLite has one lock for everything")
    store, other = open_stores(2)
    parent = TopicName.parse("p")
    store.partitions.create(parent, 2, {})
    partitions = [store.topics.get(TopicName.parse(f"p-partition-{number}")) for number in range(2)]
    runs = [claim(store, topic) for topic in partitions]
    while runs[1].attempt_id > runs[0].attempt_id:
        store.runs.fail(runs[1], ErrorText("another one"))
        runs[1] = claim(store, partitions[1])
    began, real = threading.Event(), attempts.lock_unfinished
    waiting = text(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE NOT granted AND datname = current_database()"
    )

    def one_by_one(connection: Connection, attempt_ids: Collection[str]) -> list[str]:
        if began.is_set():  # not the heartbeat
            return real(connection, attempt_ids)
        first, second = sorted(attempt_ids)
        open_ids = real(connection, [first])
        began.set()
        while not connection.execute(waiting).scalar_one():
            pass
        return open_ids + real(connection, [second])

    monkeypatch.setattr(attempts, "lock_unfinished", one_by_one)
    with ThreadPoolExecutor(1) as pool:
        beaten = pool.submit(other.runs.heartbeat, runs)
        assert began.wait(60)
        ids = [topic.id for topic in partitions]
        if change == "delete":
            assert len(store.partitions.delete(parent, True)) == 2
        else:
            assert len(getattr(store.compaction_control, change)(ids)) == 2
        assert beaten.result() == []


def test_racing_for_one_name(open_stores: OpenStores) -> None:
    """Topics, partitioned topics and the end of their namespace, all at once: somebody wins, nothing is half."""
    stores = open_stores(4)
    stores[0].tenancy.create_tenant("acme", [], [])
    stores[0].tenancy.create_namespace("acme/shop")
    answers = at_once(
        lambda: stores[0].tenancy.create_topic(PT, {}),
        lambda: stores[1].partitions.create(PT, 2, {}),
        lambda: stores[2].tenancy.create_topic(PT, {}),
        lambda: stores[3].tenancy.delete_namespace("acme/shop"),
    )
    failures = [answer for answer in answers if isinstance(answer, Exception)]
    assert len(failures) == 3
    assert {type(failure) for failure in failures} <= {Conflict, NotFound}
    topics = stores[0].topics.in_namespace("acme/shop")
    if isinstance(answers[1], PartitionedTopic):
        assert names(topics) == ["pt-partition-0", "pt-partition-1"]
    elif answers[3] is None:
        assert topics == []
        assert stores[0].tenancy.namespaces("acme") == []
    else:
        assert names(topics) == ["pt"]


def test_racing_first_imports_make_one_namespace(open_stores: OpenStores) -> None:
    stores = open_stores(4)
    answers = at_once(
        *(
            lambda item=store, n=n: item.tenancy.ensure_topic(TopicName("new", "ns", f"t{n}"))
            for n, store in enumerate(stores)
        )
    )
    assert all(isinstance(answer, TopicRecord) for answer in answers), answers
    assert stores[0].tenancy.namespaces("new") == ["new/ns"]
    with stores[0].database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 2
