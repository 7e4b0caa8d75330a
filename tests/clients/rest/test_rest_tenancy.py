"""Tenants, namespaces, permissions and their policies, beyond the calls that were recorded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, Table

from storage.errors import Unavailable
from storage.metadata import queries
from storage.metadata.records import RUN_DEAD_MS, SERVICE_DEAD_MS, ServiceRecord
from storage.metadata.stores import ServiceStore
from storage.metadata.tables import policies as policies_table
from tests.clocks import ManualClock
from tests.serving import Served

_NUMBERS = itertools.count()
ADMIN = "/admin/v2"


@pytest.fixture
def namespace(served: Served) -> str:
    """A namespace of its own, in a tenant of its own."""
    tenant = f"tenant{next(_NUMBERS)}"
    assert served.ask("PUT", f"{ADMIN}/tenants/{tenant}", '{"allowedClusters": ["standalone"]}').status_code == 204
    assert served.ask("PUT", f"{ADMIN}/namespaces/{tenant}/ns").status_code == 204
    return f"{tenant}/ns"


def _reason(served: Served, verb: str, path: str, body: object = None) -> tuple[int, str]:
    answer = served.ask(verb, ADMIN + path, None if body is None else json.dumps(body))
    return answer.status_code, answer.json()["reason"]


def _get(served: Served, path: str) -> Any:
    answer = served.ask("GET", ADMIN + path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_tenant_is_updated(served: Served) -> None:
    path = f"{ADMIN}/tenants/updated"
    assert served.ask("PUT", path, '{"allowedClusters": ["standalone"], "adminRoles": ["b", "a"]}').status_code == 204
    assert _get(served, "/tenants/updated") == {"adminRoles": ["a", "b"], "allowedClusters": ["standalone"]}
    assert served.ask("POST", path, '{"allowedClusters": ["standalone"], "adminRoles": ["c"]}').status_code == 204
    assert _get(served, "/tenants/updated")["adminRoles"] == ["c"]
    assert _reason(served, "POST", "/tenants/nosuch", {"allowedClusters": ["standalone"]})[0] == 404


@pytest.mark.parametrize(
    ("name", "body", "status", "reported"),
    [
        ("none", None, 412, "Clusters can not be empty"),
        ("none", {"allowedClusters": []}, 412, "Clusters can not be empty"),
        ("none", {"allowedClusters": ["standalone", "nosuch"]}, 412, "Clusters do not exist"),
        ("none", {"allowedClusters": ["standalone"], "adminRoles": [" a"]}, 412, "whitespace"),
        ("none", {"allowedClusters": "standalone"}, 400, "allowedClusters"),
        ("none", {"allowedClusters": [1]}, 400, "allowedClusters"),
        ("none", [], 400, "body"),
        ("a%20b", {"allowedClusters": ["standalone"]}, 412, "Tenant name is not valid"),
        ("a%2Fb", {"allowedClusters": ["standalone"]}, 412, "Tenant name is not valid"),
    ],
)
def test_tenants_that_are_refused(served: Served, name: str, body: object, status: int, reported: str) -> None:
    code, reason = _reason(served, "PUT", f"/tenants/{name}", body)
    assert (code, reported in reason) == (status, True), reason
    assert "none" not in _get(served, "/tenants")


def test_a_tenant_with_namespaces_stays(served: Served, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    assert _reason(served, "DELETE", f"/tenants/{tenant}") == (409, "The tenant still has active namespaces")
    assert _reason(served, "DELETE", f"/tenants/{tenant}?force=true")[0] == 405
    assert _reason(served, "DELETE", f"/namespaces/{namespace}?force=true")[0] == 405
    assert served.ask("DELETE", f"{ADMIN}/namespaces/{namespace}").status_code == 204
    assert served.ask("DELETE", f"{ADMIN}/tenants/{tenant}").status_code == 204
    assert _reason(served, "DELETE", f"/tenants/{tenant}") == (404, "Tenant does not exist")
    assert _reason(served, "DELETE", f"/namespaces/{namespace}") == (404, "Namespace does not exist")


def test_a_namespace_begins_with_the_policies_it_is_given(served: Served, namespace: str) -> None:
    other = f"{namespace}2"
    policies = {
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "replication_clusters": ["standalone"],
        "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 3},
        "compaction_threshold": 4096,
        "message_ttl_in_seconds": 60,
        "backlog_quota_map": {
            "destination_storage": {"limitSize": 1024, "policy": "producer_exception"},
            "message_age": {"limitTime": 9, "policy": "consumer_backlog_eviction"},
        },
        "persistence": None,
    }
    assert served.ask("PUT", f"{ADMIN}/namespaces/{other}", json.dumps(policies)).status_code == 204
    document = _get(served, f"/namespaces/{other}")
    assert document["retention_policies"] == policies["retention_policies"]
    assert document["compaction_threshold"] == 4096
    assert document["message_ttl_in_seconds"] == 60
    none = {"limit": -1, "limitSize": -1, "limitTime": -1}
    assert document["backlog_quota_map"] == {
        "destination_storage": {**none, "limit": 1024, "limitSize": 1024, "policy": "producer_exception"},
        "message_age": {**none, "limitTime": 9, "policy": "consumer_backlog_eviction"},
    }
    assert document["is_allow_auto_update_schema"] is True
    assert "clusterThatCanDeleteNamespace" not in document
    assert _get(served, f"/namespaces/{other}/compactionThreshold") == 4096
    assert "compaction_threshold" not in _get(served, f"/namespaces/{namespace}")


def test_a_namespace_is_made_with_all_of_its_policies_or_not_at_all(
    served: Served, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = queries.put

    def failing(connection: Connection, table: Table, *rows: Mapping[str, object]) -> None:
        put(connection, table, *rows)
        if table is policies_table:
            raise Unavailable("the database is away", "try again")

    monkeypatch.setattr(queries, "put", failing)
    policies = {
        "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 3},
        "compaction_threshold": 4096,
        "message_ttl_in_seconds": 60,
    }
    other = f"{namespace}-whole"
    assert _reason(served, "PUT", f"/namespaces/{other}", policies)[0] == 503
    assert _reason(served, "GET", f"/namespaces/{other}")[0] == 404
    assert served.broker.environment.metadata.policies.readable_of_scope(f"namespace:{other}") == {}


@pytest.mark.parametrize(
    ("policies", "status"),
    [
        ({"colour": 1}, 412),
        ({"replication_clusters": ["standalone", "west"]}, 412),
        ({"replication_clusters": "standalone"}, 400),
        ({"retention_policies": 5}, 400),
        ({"retention_policies": {"retentionTimeInMinutes": "five"}}, 400),
        ({"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}}, 412),
        ({"compaction_threshold": True}, 400),
        ({"compaction_threshold": -1}, 412),
        ({"compaction_threshold": 2**63}, 400),
        ({"replication_clusters": [[]]}, 400),
        ({"message_ttl_in_seconds": -1}, 412),
        ({"backlog_quota_map": {"message_age": {"limitSize": 5, "policy": "producer_exception"}}}, 412),
        ({"backlog_quota_map": {"size": {"limitSize": 5, "policy": "producer_exception"}}}, 400),
    ],
)
def test_a_namespace_with_other_policies_is_not_made(
    served: Served, namespace: str, policies: object, status: int
) -> None:
    other = f"{namespace}-not"
    assert _reason(served, "PUT", f"/namespaces/{other}", policies)[0] == status
    assert _reason(served, "GET", f"/namespaces/{other}")[0] == 404


@pytest.mark.parametrize(
    "policies",
    [
        {"auth_policies": {"namespace_auth": {"joe": ["produce"]}}},
        {"max_producers_per_topic": 3},
        {"encryption_required": True},
        {"is_allow_auto_update_schema": False},
        {"offload_threshold": 0},
        {"colour": "red"},
    ],
)
def test_a_policy_that_would_be_lost_is_refused_by_its_name(
    served: Served, namespace: str, policies: dict[str, object]
) -> None:
    status, reason = _reason(served, "PUT", f"/namespaces/{namespace}-lost", policies)
    (name,) = policies
    assert (status, repr(name) in reason) == (412, True), reason
    assert _reason(served, "GET", f"/namespaces/{namespace}-lost")[0] == 404


def test_policies_at_their_defaults_are_accepted_as_clients_send_them(served: Served, namespace: str) -> None:
    """Policies in the form of a broker's new namespace, in that of Go's client, and with fields of a newer version."""
    document = _get(served, f"/namespaces/{namespace}")
    go = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "bundles": {"boundaries": [], "numBundles": 16},
        "compaction_threshold": None,
        "max_producers_per_topic": 0,
        "max_consumers_per_subscription": 0,
        "offload_threshold": -1,
        "schema_auto_update_compatibility_strategy": "Full",
        "subscription_auth_mode": "None",
    }
    newer = {"a_new_switch": False, "a_new_map": {"inner": []}, "a_new_limit": None}
    for number, policies in enumerate((document, go, document | newer)):
        path = f"{ADMIN}/namespaces/{namespace}-defaults{number}"
        assert served.ask("PUT", path, json.dumps(policies)).status_code == 204
        assert served.ask("GET", path).json() == document


def test_retention_of_a_namespace(served: Served, namespace: str) -> None:
    path = f"{ADMIN}/namespaces/{namespace}/retention"
    empty = served.ask("GET", path)
    assert (empty.status_code, empty.text, empty.headers.get("content-type")) == (200, "", None)
    assert served.ask("POST", path, '{"retentionTimeInMinutes": 7, "retentionSizeInMB": -1}').status_code == 204
    assert served.ask("GET", path).json() == {"retentionTimeInMinutes": 7, "retentionSizeInMB": -1}
    assert served.ask("POST", path, '{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}').status_code == 204
    assert served.ask("GET", path).json() == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    assert served.ask("DELETE", path).status_code == 204
    assert served.ask("GET", path).text == ""
    assert served.ask("DELETE", path).status_code == 204
    as_jackson = '{"retentionTimeInMinutes": "10", "retentionSizeInMB": 100, "unknown": 1}'
    assert served.ask("POST", path, as_jackson).status_code == 204
    assert served.ask("GET", path).json() == {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}
    assert served.ask("DELETE", path).status_code == 204


@pytest.mark.parametrize(
    ("body", "status", "reported"),
    [
        ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 412, "Setting a single time or size limit to 0"),
        ({"retentionTimeInMinutes": 5}, 412, "Setting a single time or size limit to 0"),
        ({"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, 412, "time limit must be >= -1"),
        ({"retentionTimeInMinutes": 5, "retentionSizeInMB": -2}, 412, "size limit must be >= -1"),
        ({"retentionTimeInMinutes": "5s", "retentionSizeInMB": 5}, 400, "retentionTimeInMinutes"),
        ({"retentionTimeInMinutes": "", "retentionSizeInMB": 5}, 400, "retentionTimeInMinutes"),
        ({"retentionTimeInMinutes": 5.5, "retentionSizeInMB": 5}, 400, "retentionTimeInMinutes"),
        ({"retentionTimeInMinutes": 2**31, "retentionSizeInMB": 5}, 400, "retentionTimeInMinutes"),
        ({"retentionTimeInMinutes": 5, "retentionSizeInMB": 2**63 - 1}, 400, "retentionSizeInMB"),
        (None, 400, "body"),
    ],
)
def test_retention_that_is_refused(served: Served, namespace: str, body: object, status: int, reported: str) -> None:
    code, reason = _reason(served, "POST", f"/namespaces/{namespace}/retention", body)
    assert (code, reported in reason) == (status, True), reason
    assert served.ask("GET", f"{ADMIN}/namespaces/{namespace}/retention").text == ""


def test_retention_set_here_takes_the_place_of_finer_ones(served: Served, namespace: str) -> None:
    policies = served.broker.environment.metadata.policies
    path = f"{ADMIN}/namespaces/{namespace}/retention"
    for name, value, minutes in (("retention.hours", 2, 120), ("retention.ms", -1, -1), ("retention.ms", 90_000, 1)):
        policies.change([f"namespace:{namespace}"], {name: value})
        assert served.ask("GET", path).json()["retentionTimeInMinutes"] == minutes
    assert served.ask("GET", path).json() == {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    assert served.ask("POST", path, '{"retentionTimeInMinutes": 3, "retentionSizeInMB": 2}').status_code == 204
    assert policies.readable_of_scope(f"namespace:{namespace}") == {"retention.minutes": 3, "retention.bytes": 2 << 20}


def test_permissions_of_a_namespace(served: Served, namespace: str) -> None:
    path = f"{ADMIN}/namespaces/{namespace}/permissions"
    assert served.ask("POST", f"{path}/joe", '["consume", "produce", "compact"]').status_code == 204
    assert served.ask("POST", f"{path}/jim%2Fson", '["admin"]').status_code == 204
    assert served.ask("GET", path).json() == {"joe": ["consume", "produce"]}
    assert served.ask("GET", f"{path}?all=true").json() == {
        "jim/son": ["admin"],
        "joe": ["compact", "consume", "produce"],
    }
    assert _get(served, f"/namespaces/{namespace}")["auth_policies"]["namespace_auth"] == {
        "joe": ["consume", "produce"]
    }
    assert _reason(served, "POST", f"/namespaces/{namespace}/permissions/joe", ["fly"])[0] == 400
    assert _reason(served, "POST", f"/namespaces/{namespace}/permissions/joe", "produce")[0] == 400
    assert _reason(served, "POST", "/namespaces/public/nosuch/permissions/joe", ["produce"])[0] == 404
    assert served.ask("DELETE", f"{path}/joe").status_code == 204
    assert served.ask("DELETE", f"{path}/joe").status_code == 204
    assert served.ask("GET", path).json() == {}


def test_permissions_of_a_topic_are_its_namespaces_and_its_own(served: Served, namespace: str) -> None:
    topic = f"/persistent/{namespace}/t"
    for verb, body in (("GET", None), ("POST", ["produce"]), ("DELETE", None)):
        below = "permissions" if verb == "GET" else "permissions/joe"
        assert _reason(served, verb, f"{topic}/{below}", body)[0] == 404
    assert served.ask("PUT", ADMIN + topic).status_code == 204
    assert served.ask("POST", f"{ADMIN}/namespaces/{namespace}/permissions/joe", '["produce"]').status_code == 204
    assert _get(served, f"{topic}/permissions") == {"joe": ["produce"]}
    for role in ("joe", "jim%2Fson"):
        assert served.ask("POST", f"{ADMIN}{topic}/permissions/{role}", '["consume", "compact"]').status_code == 204
    assert _get(served, f"{topic}/permissions") == {"joe": ["consume", "produce"], "jim/son": ["consume"]}
    assert _get(served, f"{topic}/permissions?all=true")["jim/son"] == ["compact", "consume"]
    assert _get(served, f"/namespaces/{namespace}")["auth_policies"]["destination_auth"] == {
        f"persistent://{namespace}/t": {"joe": ["consume"], "jim/son": ["consume"]}
    }
    assert served.ask("DELETE", f"{ADMIN}{topic}/permissions/joe").status_code == 204
    again = _reason(served, "DELETE", f"{topic}/permissions/joe")
    assert again == (412, "Permissions are not set at the topic level")
    assert _get(served, f"{topic}/permissions") == {"joe": ["produce"], "jim/son": ["consume"]}
    assert served.ask("DELETE", ADMIN + topic).status_code == 204
    assert served.ask("PUT", ADMIN + topic).status_code == 204
    assert _get(served, f"{topic}/permissions") == {"joe": ["produce"]}, "a topic created again begins without"


def test_permissions_of_a_partitioned_topic_are_its_partitions(served: Served, namespace: str) -> None:
    topic = f"/persistent/{namespace}/pt"
    assert served.ask("PUT", f"{ADMIN}{topic}/partitions", "2").status_code == 204
    assert served.ask("POST", f"{ADMIN}{topic}/permissions/joe", '["consume"]').status_code == 204
    assert served.ask("POST", f"{ADMIN}{topic}-partition-1/permissions/joe", '["produce"]').status_code == 204
    assert _get(served, f"{topic}/permissions") == {"joe": ["consume"]}
    assert _get(served, f"{topic}-partition-0/permissions") == {"joe": ["consume"]}
    assert _get(served, f"{topic}-partition-1/permissions") == {"joe": ["consume", "produce"]}
    assert served.ask("DELETE", f"{ADMIN}{topic}/partitions").status_code == 204
    assert served.ask("PUT", f"{ADMIN}{topic}/partitions", "2").status_code == 204
    assert _get(served, f"{topic}/permissions") == _get(served, f"{topic}-partition-1/permissions") == {}


def test_permissions_of_a_tenant(served: Served, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    path = f"{ADMIN}/tenants/{tenant}/permissions"
    assert served.ask("POST", f"{path}/joe", '["compact"]').status_code == 204
    assert served.ask("GET", path).json() == {"joe": ["compact"]}
    escape = f"{ADMIN}/tenants/{namespace.replace('/', '%2F')}/permissions/joe"
    assert served.ask("POST", escape, '["admin"]').status_code == 412
    assert served.ask("DELETE", f"{path}/joe").status_code == 204
    assert served.ask("GET", path).json() == {}
    assert _reason(served, "GET", "/tenants/nosuch/permissions")[0] == 404


def test_lists_of_a_namespace(served: Served, namespace: str) -> None:
    assert served.ask("PUT", f"{ADMIN}/persistent/{namespace}/t").status_code == 204
    name = f"persistent://{namespace}/t"
    assert _get(served, f"/namespaces/{namespace}/topics") == [name]
    assert _get(served, f"/namespaces/{namespace}/topics?mode=NON_PERSISTENT") == []
    assert _get(served, f"/namespaces/{namespace}/topics?mode=ALL") == [name]
    assert _get(served, f"/non-persistent/{namespace}") == []
    assert _get(served, f"/non-persistent/{namespace}/partitioned") == []
    assert _reason(served, "GET", "/non-persistent/public/nosuch")[0] == 404
    assert _reason(served, "PUT", f"/non-persistent/{namespace}/t")[0] == 412
    assert _get(served, f"/namespaces/{namespace}/bundles")["numBundles"] == 4
    assert served.ask("PUT", f"{ADMIN}/namespaces/{namespace}/unload").status_code == 204
    assert _reason(served, "PUT", "/namespaces/public/nosuch/unload")[0] == 404


def test_only_services_that_live_are_brokers(served: Served) -> None:
    metadata, now = served.broker.environment.metadata, served.broker.environment.clock.now_ms()
    for name, silent_ms in (("live:1:aa", SERVICE_DEAD_MS // 2), ("killed:1:aa", SERVICE_DEAD_MS)):
        store = ServiceStore(metadata.database, ManualClock(now - silent_ms), {}, RUN_DEAD_MS)
        store.heartbeat(ServiceRecord(name, f"http://{name[:-3]}", None, 0, 0))
    try:
        assert _get(served, "/brokers") == _get(served, "/brokers/standalone") == ["live:1"]
        assert [service["name"] for service in _get(served, "/compactions/scheduler")["services"]] == ["live:1:aa"]
    finally:
        for name in ("live:1:aa", "killed:1:aa"):
            metadata.services.leave(name)


def test_the_cluster_and_the_brokers(served: Served) -> None:
    assert _get(served, "/clusters/standalone")["serviceUrl"] == "http://127.0.0.1:8080"
    assert _reason(served, "GET", "/clusters/west") == (404, "Cluster does not exist")
    body = {"serviceUrl": "http://127.0.0.1:8080"}
    assert _reason(served, "PUT", "/clusters/standalone", body) == (409, "Cluster already exists")
    assert _reason(served, "PUT", "/clusters/west", body)[0] == 405
    assert _get(served, "/brokers") == _get(served, "/brokers/standalone") == ["127.0.0.1:8080"]
    assert _reason(served, "GET", "/brokers/west")[0] == 404
    assert _reason(served, "GET", "/brokers/leaderBroker")[0] == 404
    assert _reason(served, "DELETE", "/brokers/configuration/x")[0] == 412
    runtime = _get(served, "/brokers/configuration/runtime")
    assert (runtime["brokerServiceCompactionThresholdInBytes"], runtime["topicCompactionRetainNullKey"]) == (
        "0",
        "false",
    )
    served.broker.environment.metadata.policies.change(["broker"], {"compactionThreshold": "1M"})
    try:
        runtime = _get(served, "/brokers/configuration/runtime")
        assert runtime["brokerServiceCompactionThresholdInBytes"] == str(1 << 20)
    finally:
        served.broker.environment.metadata.policies.change(["broker"], {}, ["compactionThreshold"])


@pytest.mark.parametrize("role", ["a\x00b", "a\nb", "\ud800", "r" * 1025])
def test_a_role_that_no_token_can_name_is_not_permitted_anything(served: Served, namespace: str, role: str) -> None:
    tenant = namespace.partition("/")[0]
    body = json.dumps({"allowedClusters": ["standalone"], "adminRoles": [role]})
    if len(role) < 1024:
        assert served.ask("POST", f"{ADMIN}/tenants/{tenant}", body).status_code == 412
    if role.isascii():
        for scope in (f"namespaces/{namespace}", f"tenants/{tenant}"):
            path = f"{ADMIN}/{scope}/permissions/{quote(role)}"
            assert served.ask("POST", path, '["consume"]').status_code == 412
            assert served.ask("DELETE", path).status_code == 412
