"""Every operation of the service authenticates its caller, whatever its path and its caller."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest

from api.app import ROUTERS
from api.http.router import Route
from api.http.tokens import create_token
from storage.errors import ErrorText, Unavailable
from storage.model import TopicName
from tests.asgi import TestClient
from tests.serving import serving

SECRET = bytes(32)
OPEN = {"/livez", "/readyz", "/metrics"}
ANY_TOKEN = {
    "GET /admin/v2/brokers/health",
    "GET /admin/v2/brokers/ready",
    "GET /admin/v2/brokers/version",
    "GET /admin/v2/brokers/policies",
    "GET /admin/v2/brokers/policies/{name}",
    "GET /iceberg/v1/config",
    "GET /iceberg/v1/namespaces",
    "GET /iceberg/v1/namespaces/{levels}",
    "GET /iceberg/v1/namespaces/{levels}/tables",
    *(f"{method} /admin/v2/non-persistent/{{rest}}" for method in ("GET", "PUT", "POST", "DELETE")),
}
"""What asks for a token and for no permission; docs/security.md says that there may be such."""
METHODS = ("get", "put", "post", "delete", "patch")


def bearing(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_token(SECRET, role, {})}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    access = {"auth_token_secret_key": key, "auth_superuser_roles": ("root",), "limits_requests_per_second": 0.0}
    with serving(tmp_path_factory.mktemp("access"), **access) as served:
        yield served.client


@pytest.fixture(scope="module")
def operations(client: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each."""
    paths = client.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), path, described)
        for path, methods in paths.items()
        for method, described in methods.items()
        if method in METHODS and path not in OPEN
    ]


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "1", path.replace("{tenant}", "public").replace("{namespace}", "default"))


def test_every_route_goes_through_the_same_steps_and_is_made_before_the_first_request(client: TestClient) -> None:
    app = cast(Any, client.app)
    for route in (route for router in ROUTERS for route in router.routes):
        assert isinstance(route, Route)
        assert any(item is route for item in app.router.routes), route.path


def test_without_a_token_nothing_is_answered(client: TestClient, operations: list[tuple[str, str, Any]]) -> None:
    assert len(operations) > 50
    answered = {
        f"{method} {path}": status
        for method, path, _ in operations
        if (status := client.request(method, filled(path)).status_code) != 401
    }
    assert answered == {}


def test_a_stranger_may_do_nothing(client: TestClient, operations: list[tuple[str, str, Any]]) -> None:
    """The permission is checked before the body and the names: a refused caller does not learn that they are wrong."""
    answered = {
        f"{method} {path}": status
        for method, path, _ in operations
        if (status := client.request(method, filled(path), headers=bearing("stranger")).status_code) != 403
    }
    assert sorted(set(answered) ^ ANY_TOKEN) == []


def test_a_superuser_is_refused_nothing(client: TestClient, operations: list[tuple[str, str, Any]]) -> None:
    reads = [path for method, path, _ in operations if method == "GET" and "/events" not in path]
    refused = {path for path in reads if client.get(filled(path), headers=bearing("root")).status_code in (401, 403)}
    assert refused == set()


def test_operations_have_ids_of_their_own_and_say_that_they_want_a_token(
    operations: list[tuple[str, str, dict[str, Any]]],
) -> None:
    ids = [described["operationId"] for _, _, described in operations]
    assert len(ids) == len(set(ids))
    assert [path for _, path, described in operations if described.get("security") != [{"token": []}]] == []


def test_why_it_is_not_ready_is_for_superusers_and_the_log(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No token is needed to ask, and the reason names host, user and bucket."""
    full = "the database postgresql://compactor@db.internal/x does not answer: start it"

    def ping() -> None:
        raise Unavailable(*full.rsplit(": ", 1))

    metadata = cast(Any, client.app).state.broker.environment.metadata
    monkeypatch.setattr(metadata.metrics, "ping", ping)
    for headers in ({}, bearing("stranger"), {"Authorization": "Bearer x.y.z"}):
        answer = client.get("/readyz", headers=headers)
        assert answer.status_code == 503
        message = "it does not answer now: see the service's log"
        assert answer.json() == {
            "reason": f"database: {message}",
            "checks": {"database": message, "schema": "ok", "store": "ok", "log": "ok"},
        }
    assert client.get("/readyz", headers=bearing("root")).json()["reason"] == f"database: {full}"
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("readiness")]
    assert logged == [f"readiness: database: {full}"]


@pytest.mark.parametrize("path", ["/admin/v2/worker/cluster", "/admin/v3/functions/public/default/f"])
def test_whoever_asks_for_what_is_not_offered_is_answered_that(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    refused = client.get(path, headers=bearing("stranger"))
    assert (refused.status_code, refused.json()["reason"][:16]) == (405, "not offered here")
    assert client.get("/admin/v2/resourcegroups", headers=bearing("stranger")).status_code == 403


def test_why_a_run_failed_is_told_in_full_to_superusers_only(client: TestClient) -> None:
    root, clerk = bearing("root"), bearing("clerk")
    topic = "/admin/v2/persistent/public/default/fails"
    assert client.put(topic, headers=root).status_code == 204
    grant = "/admin/v2/namespaces/public/default/permissions/clerk"
    assert client.post(grant, json=["compact"], headers=root).status_code == 204
    metadata = cast(Any, client.app).state.broker.environment.metadata
    error = ErrorText.from_error(Unavailable("cannot read object x of bucket acme at minio.internal", "try again"))
    record = metadata.topics.get(TopicName.parse("persistent://public/default/fails"))
    metadata.runs.fail(metadata.runs.claim(record.id, "one", {}, 1000), error)
    metadata.compaction_control.record_failure(record.id, error, 0)
    for path, named in (("compaction", "lastError"), ("compaction/control", "last_error"), ("compactions", "error")):
        for headers, full in ((clerk, False), (root, True)):
            document = client.get(f"{topic}/{path}", headers=headers).json()
            answer = (document[0] if isinstance(document, list) else document)[named]
            assert ("acme" in answer, "minio" in answer, "does not answer now" in answer) == (full, full, not full), (
                path
            )


def test_permissions_of_tenant_and_namespace_count_at_once(client: TestClient) -> None:
    root, cook, boss = bearing("root"), bearing("cook"), bearing("boss")
    prefix = "/admin/v2/persistent/kitchen/main"
    tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert client.put("/admin/v2/tenants/kitchen", json=tenant, headers=boss).status_code == 403
    assert client.put("/admin/v2/tenants/kitchen", json=tenant, headers=root).status_code == 204
    assert client.put("/admin/v2/namespaces/kitchen/main", headers=boss).status_code == 204
    assert client.put(f"{prefix}/soup", headers=boss).status_code == 204
    grant = "/admin/v2/namespaces/kitchen/main/permissions/cook"

    def may() -> tuple[bool, bool]:
        """Compact, and produce."""
        compact = client.put(f"{prefix}/soup/compaction", headers=cook).status_code
        message = {"messages": [{"key": "k", "payload": "v"}]}
        produce = client.post("/topics/persistent/kitchen/main/soup", json=message, headers=cook).status_code
        return compact != 403, produce != 403

    assert may() == (False, False)
    assert client.post(grant, json=["compact"], headers=cook).status_code == 403
    assert client.post(grant, json=["compact"], headers=boss).status_code == 204
    assert may() == (True, False)
    assert client.post(grant, json=["produce", "functions"], headers=boss).status_code == 204
    assert may() == (False, True)
    assert client.delete(grant, headers=boss).status_code == 204
    assert may() == (False, False)
    assert client.get("/admin/v2/persistent/public/default", headers=boss).status_code == 403, "another tenant's"


def test_the_compaction_cursor_is_not_a_consumers(client: TestClient) -> None:
    """With it the compacted ledger goes; forced, also what is nowhere else any more."""
    root = bearing("root")
    topic = "/admin/v2/persistent/public/default/horizon"
    cursor = f"{topic}/subscription/__compaction"
    grant = "/admin/v2/namespaces/public/default/permissions/"
    assert client.put(topic, headers=root).status_code == 204
    for role, actions in (("reader", ["consume"]), ("janitor", ["consume", "compact"]), ("owner", ["admin"])):
        assert client.post(grant + role, json=actions, headers=root).status_code == 204
    for verb, path in (("PUT", cursor), ("PUT", f"{cursor}/properties"), ("DELETE", cursor)):
        assert client.request(verb, path, json={}, headers=bearing("reader")).status_code == 403, path
    assert client.put(cursor, headers=bearing("janitor")).status_code == 204
    assert client.put(f"{cursor}/properties", json={"a": "b"}, headers=bearing("janitor")).status_code == 204
    assert client.delete(f"{cursor}?force=true", headers=bearing("janitor")).status_code == 403
    assert client.delete(cursor, headers=bearing("janitor")).status_code == 204
    assert client.put(cursor, headers=bearing("owner")).status_code == 204
    assert client.delete(f"{cursor}?force=true", headers=bearing("owner")).status_code == 204
    assert client.put(f"{topic}/subscription/mine", headers=bearing("reader")).status_code == 204
    assert client.delete(f"{topic}/subscription/mine?force=true", headers=bearing("reader")).status_code == 204


def test_who_may_compact_a_topic_may_show_follow_and_cancel_its_runs(client: TestClient) -> None:
    root, clerk = bearing("root"), bearing("clerk")
    tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
    runs = {}
    metadata = cast(Any, client.app).state.broker.environment.metadata
    for name in ("shop", "other"):
        assert client.put(f"/admin/v2/tenants/{name}", json=tenant, headers=root).status_code == 204
        assert client.put(f"/admin/v2/namespaces/{name}/orders", headers=root).status_code == 204
        assert client.put(f"/admin/v2/persistent/{name}/orders/paid", headers=root).status_code == 204
        topic = metadata.topics.get(TopicName(name, "orders", "paid"))
        runs[name] = metadata.runs.claim(topic.id, "worker", {}, 60_000).run_id
    grant = "/admin/v2/namespaces/shop/orders/permissions/"
    for role, action in (("clerk", "compact"), ("reader", "consume")):
        assert client.post(grant + role, json=[action], headers=root).status_code == 204
    own, others = (f"/admin/v2/compactions/{runs[name]}" for name in ("shop", "other"))
    assert client.get(own, headers=clerk).json()["topic"] == "persistent://shop/orders/paid"
    assert client.delete(own, headers=clerk).status_code == 204
    assert "event: end" in client.get(f"{own}/events", headers=clerk).text
    missing = "/admin/v2/compactions/99999"
    for verb, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        for run, role in ((others, "clerk"), (own, "reader"), (missing, "clerk"), (missing, "reader")):
            refused = client.request(verb, run + path, headers=bearing(role))
            assert refused.status_code == 403, (verb, run, role)
            message = refused.json()["reason"].replace(role, "ROLE")
            assert (
                message
                == "role 'ROLE' does not have the permission compact for what this names, or nothing is named so"
            )
    assert client.get("/admin/v2/compactions/99999", headers=root).status_code == 404
    assert client.get("/admin/v2/compactions", headers=clerk).status_code == 403


@pytest.mark.parametrize("path", ["/admin/v2/persistent/public/default/t/messages/", "/admin/v2/tenants/"])
def test_nothing_redirects_to_where_the_caller_says(client: TestClient, path: str) -> None:
    for headers in ({}, bearing("root")):
        answer = client.get(path, headers={**headers, "Host": "evil.example"}, follow_redirects=False)
        assert (answer.status_code, "location" in answer.headers, "evil" in answer.text) == (404, False, False)
