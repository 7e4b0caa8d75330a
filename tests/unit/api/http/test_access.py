"""Permissions: every action with every source of a permission, through an application of routes like the service's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from api.http import openapi
from api.http.access import DASHBOARD_COOKIE, AuthAction, CallerName, authorization_header_from_cookie
from api.http.paths import EncodedSlashMiddleware
from api.http.router import Routes
from api.http.tokens import create_token
from storage.errors import NotFound
from storage.metadata.records import NamespaceRecord, TenantRecord
from storage.model import TopicName
from tests.asgi import TestClient, access_of, application

SECRET = bytes(32)
router = Routes(prefix="")
SCOPED = (AuthAction.PRODUCE, AuthAction.CONSUME, AuthAction.COMPACT, AuthAction.ADMIN)

for action in (*SCOPED, AuthAction.SUPERUSER):

    @router.get(f"/{action}/{{tenant}}", action, operation_id=f"{action}-tenant")
    @router.get(f"/{action}/{{tenant}}/{{namespace}}", action, operation_id=f"{action}-ns")
    @router.get(f"/{action}/{{tenant}}/{{namespace}}/{{topic}}", action, operation_id=action)
    @router.get(f"/{action}", action, operation_id=f"{action}-nowhere")
    def scoped(by: CallerName) -> str:
        return by


@router.get("/either/{tenant}/{namespace}", AuthAction.PRODUCE, AuthAction.CONSUME)
def either() -> str:
    return "done"


@router.get("/anyone", AuthAction.ANYONE)
def anyone(by: CallerName) -> str:
    return by


@router.get("/open")
def open_to_all() -> str:
    return "done"


@dataclass
class Grants:
    """The grants of tenants and namespaces: the part of TenancyStore that access control reads."""

    admins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tenants: dict[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    namespaces: dict[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    topics: dict[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def tenant(self, name: str) -> TenantRecord:
        if name not in self.tenants:
            raise NotFound("no tenant", "make it")
        return TenantRecord(name, self.admins.get(name, ()), (), self.tenants[name], 0)

    def namespace(self, name: str) -> NamespaceRecord:
        if name not in self.namespaces:
            raise NotFound("no namespace", "make it")
        return NamespaceRecord(name, self.namespaces[name], 0)

    def topic_permissions(self, names: Sequence[TopicName]) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        return {str(name): self.topics[str(name)] for name in names if str(name) in self.topics}


GRANTS = Grants(
    admins={"t": ("boss",)},
    tenants={"t": {"overseer": ("admin",), "reader": ("consume",)}, "other": {}},
    namespaces={
        "t/n": {"chief": ("admin",), "writer": ("produce",), "cook": ("compact", "functions"), "old": ("functions",)},
        "t/m": {},
        "other/n": {},
    },
    topics={
        "persistent://t/n/x": {"clerk": ("produce",), "owner": ("admin",)},
        "persistent://t/n/x-partition-1": {"sweeper": ("compact",)},
    },
)


def client_of(secret: bytes | None) -> TestClient:
    app = application(router, access_of(secret, "root", GRANTS))
    openapi.install_openapi(app)
    app.add_middleware(EncodedSlashMiddleware)
    return TestClient(app)


@pytest.fixture(scope="module")
def client() -> TestClient:
    return client_of(SECRET)


def bearing(role: str, **claims: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_token(SECRET, role, claims)}"}


EVERYTHING = set(itertools.product(SCOPED, ("t", "t/n", "t/n/x", "t/n/x-partition-1", "t/m", "other/n", "none/n")))
IN_TENANT = {(action, where) for action, where in EVERYTHING if where.startswith("t")}
IN_NAMESPACE = {(action, where) for action, where in EVERYTHING if where.startswith("t/n")}


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("root", EVERYTHING),
        ("boss", IN_TENANT),
        ("overseer", IN_TENANT),
        ("reader", {(action, where) for action, where in IN_TENANT if action is AuthAction.CONSUME}),
        ("chief", IN_NAMESPACE),
        ("writer", {(action, where) for action, where in IN_NAMESPACE if action is AuthAction.PRODUCE}),
        ("cook", {(action, where) for action, where in IN_NAMESPACE if action is AuthAction.COMPACT}),
        ("clerk", {(AuthAction.PRODUCE, "t/n/x"), (AuthAction.PRODUCE, "t/n/x-partition-1")}),
        ("owner", {(action, f"t/n/{topic}") for action in SCOPED for topic in ("x", "x-partition-1")}),
        ("sweeper", {(AuthAction.COMPACT, "t/n/x-partition-1")}),
        ("old", set()),
        ("stranger", set()),
    ],
)
def test_what_each_role_may_do_where(role: str, may: set[tuple[AuthAction, str]], client: TestClient) -> None:
    for action, where in EVERYTHING:
        answer = client.get(f"/{action}/{where}", headers=bearing(role))
        expected = 200 if (action, where) in may else 403
        assert answer.status_code == expected, (action, where)
        if expected == 403:
            assert role in answer.json()["reason"]


@pytest.fixture(scope="module")
def behind_a_proxy() -> TestClient:
    """A client of a service with the proxy roles `writer`, which may produce in t/n, and `root`, a superuser."""
    access = replace(access_of(SECRET, "root", GRANTS), proxy_roles=frozenset({"writer", "root"}))
    return TestClient(application(router, access))


@pytest.mark.parametrize(
    ("role", "original", "path", "status"),
    [
        ("root", "writer2", "/produce/t/n", 403),
        ("root", "clerk", "/produce/t/n/x", 200),
        ("root", "chief", "/produce/t/n", 200),
        ("root", "stranger", "/superuser", 403),
        ("writer", "chief", "/produce/t/n", 200),
        ("writer", "chief", "/consume/t/n", 403),
        ("writer", "reader", "/produce/t/n", 403),
        ("root", None, "/produce/t/n", 401),
        ("root", "writer", "/produce/t/n", 401),
        ("chief", None, "/produce/t/n", 200),
        ("chief", "chief", "/produce/t/n", 200),
        ("chief", "root", "/produce/t/n", 401),
    ],
)
def test_a_proxy_needs_the_permission_of_its_client_too(
    behind_a_proxy: TestClient, role: str, original: str | None, path: str, status: int
) -> None:
    named = {} if original is None else {"X-Original-Principal": original}
    answer = behind_a_proxy.get(path, headers=bearing(role) | named)
    assert answer.status_code == status
    if status == 200:
        assert answer.json() == (original or role)


def test_what_concerns_the_whole_service_is_for_superusers(client: TestClient) -> None:
    paths = [f"/{action}" for action in SCOPED] + ["/superuser", "/superuser/t", "/superuser/t/n/x"]
    for path in paths:
        assert client.get(path, headers=bearing("root")).json() == "root"
        assert client.get(path, headers=bearing("boss")).status_code == 403


def test_any_of_several_actions_is_enough(client: TestClient) -> None:
    statuses = {
        role: client.get("/either/t/n", headers=bearing(role)).status_code for role in ("writer", "reader", "cook")
    }
    assert statuses == {"writer": 200, "reader": 200, "cook": 403}


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "a token is needed"),
        ({"Authorization": ""}, "is not"),
        ({"Authorization": "Bearer"}, "is not"),
        ({"Authorization": "Bearer "}, "is not"),
        ({"Authorization": "Basic cm9vdDpyb290"}, "is not"),
        ({"Authorization": "Bearer x.y.z"}, "no JSON Web Token"),
        (bearing("root", exp=1), "expired"),
        ({"Authorization": f"Bearer {create_token(bytes([1] * 32), 'root', {})}"}, "no key"),
    ],
)
def test_without_a_token_that_holds(headers: dict[str, str], why: str, client: TestClient) -> None:
    for path in ("/anyone", "/admin/t/n", "/superuser"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert why in answer.json()["reason"]
        for secret in headers.values():
            assert "." not in secret or secret not in answer.text
    assert client.get("/open", headers=headers).status_code == 200


def test_two_tokens_are_none(client: TestClient) -> None:
    two = [("Authorization", bearing("root")["Authorization"]), ("Authorization", bearing("old")["Authorization"])]
    assert client.get("/anyone", headers=two).status_code == 401


def test_the_scheme_is_compared_without_capitals(client: TestClient) -> None:
    token = bearing("stranger")["Authorization"].removeprefix("Bearer ")
    assert client.get("/anyone", headers={"Authorization": f"bearer  {token}"}).json() == "stranger"


def test_encoded_slashes_do_not_move_what_is_asked_for(client: TestClient) -> None:
    """`t%2Fn` as a tenant is a tenant of that name, in which no role has a permission."""
    assert client.get("/admin/t%2Fn/x", headers=bearing("chief")).status_code == 403
    assert client.get("/admin/t/n%2Fx/y", headers=bearing("chief")).status_code == 403
    assert client.get("/admin/t/n/x%2Fy", headers=bearing("chief")).status_code == 200


def test_off_everything_is_allowed() -> None:
    client = client_of(None)
    for path in ("/superuser", "/admin/none/n", "/anyone"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.json() == "anonymous@testclient"


def test_the_document_says_what_any_route_may_answer_and_which_need_a_token(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        for operation in operations.values():
            common = {"400", "413", "429", "503"}
            if path != "/open":
                common |= {"401", "403"}
                assert operation["security"] == [{"token": []}]
            else:
                assert "security" not in operation
            assert common <= set(operation["responses"])
            assert "422" not in operation["responses"]


def test_a_cookie_does_not_replace_an_authorization_header() -> None:
    """A form that a header had authorised was sent over REST for the role of the cookie."""
    cookie = (b"cookie", f"{DASHBOARD_COOKIE}=t".encode())
    assert authorization_header_from_cookie({"headers": [cookie]}) == {"authorization": "Bearer t"}
    assert authorization_header_from_cookie({"headers": [cookie, (b"authorization", b"Bearer other")]}) == {}
    assert authorization_header_from_cookie({"headers": []}) == {}
