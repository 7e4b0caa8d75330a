"""A read-only catalog of Iceberg's REST protocol: the tables of topics, for Spark, DuckDB, pyiceberg and others.

A namespace has two levels, tenant and namespace, which a path joins by the character 31 (`public%1Fdefault`); a table
has the name of its topic. Lists show the tables whose topics the caller may consume. There are no calls that write, and
`config` says so: a client that would write is refused by its own library.

Answers and errors are Iceberg's: https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, cast

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from api.broker import tables
from api.broker.threads import WaitsFor
from api.http.access import AuthAction, AuthorizationService, caller_of, topic_permission_check
from api.http.dependencies import Broker
from api.http.openapi import ICEBERG
from api.http.paths import decode_path_part
from api.http.problems import RestException
from api.http.router import Routes
from api.reports import redacted_error_text
from storage.errors import CompactorError, InvalidInput
from storage.model import TopicName

PREFIX = "/iceberg/v1"
SEPARATOR = "\x1f"
"""Between the levels of a namespace in a path."""
PAGE = 1000
"""Tables of a page, and names that are read at once."""
NO_NAMESPACE, NO_TABLE = "NoSuchNamespaceException", "NoSuchTableException"
BEHIND = "compactor.table-error"
"""A property of a table that does not show the last compaction of its topic: why."""
_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]
_TYPES = {400: "BadRequestException", 401: "NotAuthorizedException", 403: "ForbiddenException", 404: NO_TABLE}
_NAMESPACE = "/namespaces/{levels}"
_TABLE = _NAMESPACE + "/tables/{table}"
PageToken = Annotated[str | None, Query(alias="pageToken", description="Of the page before; empty: the first page.")]
PageSize = Annotated[int, Query(alias="pageSize", ge=1, description="At most this many tables, and at most 1000.")]
Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]

router = Routes(ICEBERG, PREFIX)


def _topic_of_path(request: Request) -> TopicName | None:
    """Return the topic of the table that a request's path names; None: the name is not that of a topic."""
    tenant, _, namespace = decode_path_part(request.path_params["levels"]).partition(SEPARATOR)
    try:
        return TopicName(tenant, namespace, decode_path_part(request.path_params["table"]))
    except InvalidInput:
        return None


_MAY_READ = topic_permission_check(_topic_of_path, AuthAction.CONSUME)


class _NoSuchObject(RestException):
    """The error (404) for a namespace or table that does not exist. `kind`: Iceberg's name of the error."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(404, f"{what} does not exist")
        self.kind = kind


@router.get("/config", AuthAction.ANYONE, operation_id="getIcebergConfig")
async def get_config() -> dict[str, Any]:
    """Return the configuration of the catalog: the calls that it offers."""
    return {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS}


@router.get("/namespaces", AuthAction.ANYONE, operation_id="listIcebergNamespaces")
def list_namespaces(broker: Broker, request: Request, parent: str = "") -> dict[str, Any]:
    """Return the tenants with tables, or the namespaces with tables of the tenant `parent`."""
    if not parent:
        return {
            "namespaces": [
                [tenant]
                for tenant in sorted({name.tenant for name in _visible_topics_with_tables(broker, request, [])})
            ]
        }
    inner = {name.namespace for name in _visible_topics_with_tables(broker, request, [parent])}
    if not inner:
        raise _no_namespace_error([parent])
    return {"namespaces": [[parent, namespace] for namespace in sorted(inner)]}


@router.get(_NAMESPACE, AuthAction.ANYONE, refuses=(404,), operation_id="getIcebergNamespace")
def get_namespace(broker: Broker, request: Request, levels: str) -> dict[str, Any]:
    """Return the name of a tenant or namespace with tables; 404 if it has none."""
    path = decode_path_part(levels).split(SEPARATOR)
    _check_namespace_exists(broker, request, path)
    return {"namespace": path, "properties": {}}


@router.route("HEAD", _NAMESPACE, AuthAction.ANYONE, refuses=(404,), operation_id="headIcebergNamespace")
def head_namespace(broker: Broker, request: Request, levels: str) -> None:
    """Check that a tenant or namespace with tables exists; 404 if it does not."""
    _check_namespace_exists(broker, request, decode_path_part(levels).split(SEPARATOR))


@router.get(_NAMESPACE + "/tables", AuthAction.ANYONE, refuses=(404,), operation_id="listIcebergTables")
def list_tables(
    broker: Broker, request: Request, levels: str, page_token: PageToken = None, page_size: PageSize = PAGE
) -> dict[str, Any]:
    """Return the names of the tables of a namespace, all or, with `pageToken`, a page. A tenant alone has none."""
    path = decode_path_part(levels).split(SEPARATOR)
    if not page_token:
        _check_namespace_exists(broker, request, path)
    visible = _visible_topics_with_tables(broker, request, path, page_token or "") if len(path) == 2 else iter(())
    count = min(page_size, PAGE)
    names = list(visible if page_token is None else islice(visible, count))
    answer: dict[str, Any] = {"identifiers": [{"namespace": path, "name": name.topic} for name in names]}
    if page_token is not None:
        answer["next-page-token"] = str(names[-1]) if len(names) == count else None
    return answer


@router.get(_TABLE, _MAY_READ, refuses=(404,), waits_for=WaitsFor.STORE, operation_id="loadIcebergTable")
def load_table(broker: Broker, request: Request) -> dict[str, Any]:
    """Return the location and the metadata of a table; 404 if it does not exist."""
    table = _table_of_path(broker, request)
    document = dict(table.metadata.document)
    if not table.is_current:
        error = redacted_error_text(table.error, wording=None) or ""
        document["properties"] = {**document["properties"], BEHIND: error}
    # No endpoint of the store in `config`: DuckDB would use it with its own defaults instead of the reader's secret.
    return {"metadata-location": table.uri, "metadata": document, "config": {}}


@router.route("HEAD", _TABLE, _MAY_READ, refuses=(404,), waits_for=WaitsFor.STORE, operation_id="headIcebergTable")
def head_table(broker: Broker, request: Request) -> None:
    """Check that a table exists; 404 if it does not."""
    _table_of_path(broker, request)


def _table_of_path(broker: Broker, request: Request) -> tables.IcebergTable:
    """Return the table that a request's path names. Raise an error (404) if it does not exist."""
    name = _topic_of_path(request)
    if name is None:
        raise _NoSuchObject(NO_TABLE, "a table of that name")
    return tables.iceberg_table_of(broker.environment, name)


def _visible_topics_with_tables(
    broker: Broker, request: Request, path: Sequence[str], after: str = ""
) -> Iterator[TopicName]:
    """Yield the topics with tables that the caller may consume, in the database's order. `path`: only those of this
    tenant, or tenant and namespace; `after`: only those after this name."""
    access = cast(AuthorizationService, request.app.state.access)
    may = access.topic_filter(caller_of(request), (AuthAction.CONSUME,))
    while page := broker.environment.metadata.topics.with_iceberg_tables(path, after, PAGE):
        for name in page:
            if [name.tenant, name.namespace][: len(path)] == path and may(name):
                yield name
        after = str(page[-1])


def _check_namespace_exists(broker: Broker, request: Request, path: Sequence[str]) -> None:
    """Raise _NoSuchObject (404) unless the caller may consume a topic with a table in the tenant or namespace."""
    if next(_visible_topics_with_tables(broker, request, path), None) is None:
        raise _no_namespace_error(path)


def _no_namespace_error(path: Sequence[str]) -> _NoSuchObject:
    return _NoSuchObject(NO_NAMESPACE, f"the namespace {'.'.join(path)}")


def install_catalog_error_handlers(app: FastAPI) -> None:
    """Wrap the error handlers of `app`, which must be registered, so that errors of the catalog's paths have Iceberg's
    body."""
    for kind in (RequestValidationError, HTTPException, CompactorError, Exception):
        app.add_exception_handler(kind, _with_iceberg_body(cast(Handler, app.exception_handlers[kind])))


def _with_iceberg_body(handler: Handler) -> Handler:
    """Return an error handler that gives the answers of `handler` Iceberg's body on the catalog's paths."""

    async def answered(request: Request, error: Exception) -> Response:
        answer = await handler(request, error)
        if not request.url.path.startswith(PREFIX) or not isinstance(answer, JSONResponse):
            return answer
        kind = error.kind if isinstance(error, _NoSuchObject) else _TYPES.get(answer.status_code, type(error).__name__)
        reason = json.loads(bytes(answer.body)).get("reason", "")
        body = {"error": {"message": reason, "type": kind, "code": answer.status_code}}
        headers = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        return JSONResponse(body, answer.status_code, headers)

    return answered
