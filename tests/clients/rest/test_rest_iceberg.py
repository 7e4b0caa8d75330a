"""The read-only Iceberg catalog: what clients ask, who may see which table, and Iceberg's errors."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError
from requests.adapters import BaseAdapter

from api.http.tokens import create_token
from api.rest.tables.iceberg_catalog import BEHIND
from storage.errors import Conflict, ErrorText
from storage.metadata.policy_store import BROKER, namespace_scope
from storage.metadata.records import COMPACTION_CURSOR
from storage.model import TopicName
from storage.topic import Topic
from tests.asgi import TestClient
from tests.serving import Served, serving
from tests.tables import expected, rows_of
from tests.workbench import content

pytestmark = pytest.mark.slow
SECRET = bytes(32)
TOPICS = ("public/default/users", "public/default/a b%2F.é", "public/other/users", "acme/eu/orders")
PUBLIC = "public\x1fdefault"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Four topics with tables, one without; `reader` may consume in public/default."""
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    access = {"auth_token_secret_key": key, "auth_superuser_roles": ("root",), "limits_requests_per_second": 0.0}
    with serving(tmp_path_factory.mktemp("iceberg"), **access) as served:
        metadata = served.broker.environment.metadata
        metadata.policies.change([BROKER], {"table.enabled": True})
        metadata.tenancy.ensure_namespace(TopicName.parse("persistent://public/other/any"))
        metadata.policies.change([namespace_scope("public/other")], {"table.format-version": 2})
        for name in TOPICS:
            topic_of(served, name)
        metadata.tenancy.ensure_topic(TopicName.parse("persistent://public/default/raw"))
        metadata.tenancy.set_permissions("public/default", "reader", ["consume"])
        metadata.tenancy.set_permissions("public/default", "writer", ["produce"])
        yield served


def topic_of(served: Served, name: str) -> Topic:
    """A compacted topic with a table."""
    environment = served.broker.environment
    record = environment.metadata.tenancy.ensure_topic(TopicName.parse(f"persistent://{name}"))
    topic = Topic(environment, record)
    rows = content((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", None))
    topic.bulk_append(ledger_bytes=1 << 20, workers=1).append([rows])
    environment.metadata.compaction_control.request(record.id, "manual", "test")
    served.compact_requested()
    return served.topic(f"persistent://{name}")


def ask(served: Served, path: str, role: str | None = "root", verb: str = "GET") -> Any:
    headers = {} if role is None else {"Authorization": f"Bearer {create_token(SECRET, role, {})}"}
    return served.client.request(verb, "/iceberg/v1" + path, headers=headers)


def path_of(namespace: str, table: str = "") -> str:
    below = f"/tables/{quote(table, safe='')}" if table else ""
    return f"/namespaces/{quote(namespace, safe='')}{below}"


class InProcess(BaseAdapter):
    """Requests of `requests` to the application, without a port."""

    def __init__(self, client: TestClient) -> None:
        super().__init__()
        self._client = client

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:  # type: ignore[override]
        assert request.url is not None
        target = request.url.removeprefix("http://catalog")
        answer = self._client.request(request.method or "GET", target, headers=dict(request.headers))
        response = requests.Response()
        response.status_code, response.url, response.request = answer.status_code, request.url, request
        response.raw = io.BytesIO(answer.content)
        return response

    def close(self) -> None:
        return


@pytest.fixture
def catalog_of(served: Served, monkeypatch: pytest.MonkeyPatch) -> Any:
    """pyiceberg's catalog, as a role uses it."""
    created = RestCatalog._create_session

    def in_process(self: RestCatalog) -> requests.Session:
        session = created(self)
        session.mount("http://catalog", InProcess(served.client))
        return session

    monkeypatch.setattr(RestCatalog, "_create_session", in_process)

    def open_as(role: str) -> RestCatalog:
        return RestCatalog("c", uri="http://catalog/iceberg", token=create_token(SECRET, role, {}))

    return open_as


def test_pyiceberg_lists_and_reads_tables(served: Served, catalog_of: Any) -> None:
    catalog = catalog_of("root")
    assert catalog.list_namespaces() == [("acme",), ("public",)]
    assert catalog.list_namespaces("public") == [("public", "default"), ("public", "other")]
    assert catalog.list_tables(("public", "default")) == [
        ("public", "default", "a b%2F.é"),
        ("public", "default", "users"),
    ]
    for name in TOPICS:
        tenant, namespace, topic = name.split("/")
        table = catalog.load_table((tenant, namespace, topic))
        assert rows_of(table.scan().to_arrow()) == expected(served.topic(f"persistent://{name}"))
    assert catalog.table_exists(("public", "default", "users"))
    assert not catalog.table_exists(("public", "default", "none"))
    assert catalog.namespace_exists(("public", "default"))
    with pytest.raises(NoSuchTableError, match="compact the topic"):
        catalog.load_table(("public", "default", "raw"))


def test_no_client_writes(served: Served, catalog_of: Any) -> None:
    """I7: the catalog names no call that writes, and has none."""
    table = catalog_of("root").load_table(("public", "other", "users"))
    assert table.format_version == 2, "pyiceberg writes no other"
    with pytest.raises(NotImplementedError, match="does not support endpoint"):
        table.append(table.scan().to_arrow())
    answer = ask(served, path_of(PUBLIC, "users"), verb="POST")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == 405
    assert {line.split()[0] for line in ask(served, "/config").json()["endpoints"]} == {"GET", "HEAD"}


def test_a_role_sees_the_tables_that_it_may_consume(served: Served, catalog_of: Any) -> None:
    catalog = catalog_of("reader")
    assert catalog.list_namespaces() == [("public",)]
    assert catalog.list_namespaces("public") == [("public", "default")]
    assert len(catalog.list_tables(("public", "default"))) == 2
    assert catalog.load_table(("public", "default", "users")).current_snapshot() is not None
    with pytest.raises(ForbiddenError, match="permission consume"):
        catalog.load_table(("acme", "eu", "orders"))
    with pytest.raises(ForbiddenError):
        catalog_of("writer").load_table(("public", "default", "users"))
    assert catalog_of("writer").list_namespaces() == []
    with pytest.raises(UnauthorizedError):
        RestCatalog("c", uri="http://catalog/iceberg", token="none")
    for path in ("/config", "/namespaces", path_of(PUBLIC), path_of(PUBLIC, "users")):
        assert ask(served, path, role=None).status_code == 401


@pytest.mark.parametrize(
    ("path", "kind", "says"),
    [
        (path_of(PUBLIC, "none"), "NoSuchTableException", "not found"),
        (path_of(PUBLIC, "raw"), "NoSuchTableException", "it was never compacted: compact the topic"),
        (path_of("public", "users"), "NoSuchTableException", "does not exist"),
        (path_of("public\x1fdefault\x1fmore", "users"), "NoSuchTableException", "does not exist"),
        (path_of("none"), "NoSuchNamespaceException", "does not exist"),
        (path_of("public\x1fnone"), "NoSuchNamespaceException", "does not exist"),
        (path_of("public\x1fnone") + "/tables", "NoSuchNamespaceException", "does not exist"),
        ("/namespaces?parent=none", "NoSuchNamespaceException", "does not exist"),
    ],
)
def test_what_is_missing_is_reported_in_icebergs_words(served: Served, path: str, kind: str, says: str) -> None:
    answer = ask(served, path)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == (kind, 404)
    assert says in error["message"]
    if "/tables" not in path or not path.endswith("tables"):
        assert "parent" in path or ask(served, path, verb="HEAD").status_code == 404


def test_heads_and_a_tenant_without_tables_of_its_own(served: Served) -> None:
    for path in (path_of("public"), path_of(PUBLIC), path_of(PUBLIC, "users")):
        answer = ask(served, path, verb="HEAD")
        assert (answer.status_code, answer.content) == (204, b"")
    assert ask(served, path_of("public") + "/tables").json() == {"identifiers": []}
    assert ask(served, path_of(PUBLIC)).json() == {"namespace": ["public", "default"], "properties": {}}


def test_a_table_that_is_behind_says_why(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a run that failed altogether; the catalog keeps the reason of the run that published."""
    name = "public/gone/behind"
    topic = topic_of(served, name)
    path = path_of("public\x1fgone", "behind")
    assert BEHIND not in ask(served, path).json()["metadata"]["properties"]
    monkeypatch.setattr("storage.table.table_writer.write_table", mock.Mock(side_effect=Conflict("chunks", "wait")))
    topic_of(served, name)
    environment = served.broker.environment
    runs = environment.metadata.runs
    runs.fail(runs.claim(topic.record.id, "a", {}, 9), ErrorText("failed"))
    answer = ask(served, path).json()
    assert "chunks" in answer["metadata"]["properties"][BEHIND]
    assert answer["metadata"]["properties"]["gc.enabled"] == "false"
    assert (
        "compactor_tables_behind 1.0"
        in served.client.get("/metrics", headers={"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}).text
    )


def test_lists_of_tables_have_pages(served: Served) -> None:
    path = path_of(PUBLIC) + "/tables"
    whole = ask(served, path).json()
    assert whole.keys() == {"identifiers"}
    first = ask(served, path + "?pageToken=&pageSize=1").json()
    second = ask(served, path + f"?pageSize=1&pageToken={quote(first['next-page-token'], safe='')}").json()
    last = ask(served, path + f"?pageSize=1&pageToken={quote(second['next-page-token'], safe='')}").json()
    assert [*first["identifiers"], *second["identifiers"]] == whole["identifiers"]
    assert last == {"identifiers": [], "next-page-token": None}
    assert len(ask(served, path + "?pageToken=").json()["identifiers"]) == 2


def test_a_namespace_is_found_without_the_names_of_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = served.broker.environment.metadata.topics
    returned: list[TopicName] = []
    monkeypatch.setattr("api.rest.tables.iceberg_catalog.PAGE", 1)
    read = type(topics).with_iceberg_tables

    def with_iceberg_tables(*arguments: Any) -> list[TopicName]:
        names = read(*arguments)
        returned.extend(names)
        return names

    monkeypatch.setattr(type(topics), "with_iceberg_tables", with_iceberg_tables)
    assert ask(served, path_of(PUBLIC), verb="HEAD").status_code == 204
    assert [(name.tenant, name.namespace) for name in returned] == [("public", "default")]


@pytest.mark.parametrize("event", ["topic deleted", "cursor deleted"])
def test_a_table_is_gone_with_what_it_shows(served: Served, tmp_path: Path, event: str) -> None:
    name = f"public/gone/{event.replace(' ', '-')}"
    topic = topic_of(served, name)
    path = path_of("public\x1fgone", name.rpartition("/")[2])
    assert ask(served, path).status_code == 200
    metadata = served.broker.environment.metadata
    if event == "topic deleted":
        metadata.tenancy.delete_topic(topic.record.id)
    else:
        metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    assert ask(served, path).json()["error"]["type"] == "NoSuchTableException"
    assert name.rpartition("/")[2] not in str(ask(served, path_of("public\x1fgone") + "/tables").json())
    if event == "topic deleted":
        again = topic_of(served, name)
        assert ask(served, path).json()["metadata"]["table-uuid"].replace("-", "") == again.record.uid
