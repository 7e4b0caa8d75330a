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
from api.http.access import AuthAction, AuthorizationService, caller_of, permission_check_on
from api.http.dependencies import Broker
from api.http.openapi import ICEBERG
from api.http.paths import decoded
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


def _table_name(request: Request) -> TopicName | None:
    """Return the topic of the table that a path names; None: it names none."""
    tenant, _, namespace = decoded(request.path_params["levels"]).partition(SEPARATOR)
    try:
        return TopicName(tenant, namespace, decoded(request.path_params["table"]))
    except InvalidInput:
        return None


_MAY_READ = permission_check_on(_table_name, AuthAction.CONSUME)


class _Missing(RestException):
    """A namespace or table does not exist. `kind`: Iceberg's name of the error."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(404, f"{what} does not exist")
        self.kind = kind


@router.get("/config", AuthAction.ANYONE, operation_id="getIcebergConfig")
async def get_config() -> dict[str, Any]:
    """Return the calls of the catalog."""
    return {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS}


@router.get("/namespaces", AuthAction.ANYONE, operation_id="listIcebergNamespaces")
def list_namespaces(broker: Broker, request: Request, parent: str = "") -> dict[str, Any]:
    """Return the tenants with tables, or with `parent` the namespaces of a tenant."""
    if not parent:
        return {"namespaces": [[tenant] for tenant in sorted({name.tenant for name in _visible(broker, request, [])})]}
    inner = {name.namespace for name in _visible(broker, request, [parent])}
    if not inner:
        raise _no_namespace([parent])
    return {"namespaces": [[parent, namespace] for namespace in sorted(inner)]}


@router.get(_NAMESPACE, AuthAction.ANYONE, refuses=(404,), operation_id="getIcebergNamespace")
def get_namespace(broker: Broker, request: Request, levels: str) -> dict[str, Any]:
    """Return a tenant or namespace with tables."""
    path = decoded(levels).split(SEPARATOR)
    _check_namespace(broker, request, path)
    return {"namespace": path, "properties": {}}


@router.route("HEAD", _NAMESPACE, AuthAction.ANYONE, refuses=(404,), operation_id="headIcebergNamespace")
def head_namespace(broker: Broker, request: Request, levels: str) -> None:
    """Check that a tenant or namespace with tables exists; 404 if it does not."""
    _check_namespace(broker, request, decoded(levels).split(SEPARATOR))


@router.get(_NAMESPACE + "/tables", AuthAction.ANYONE, refuses=(404,), operation_id="listIcebergTables")
def list_tables(
    broker: Broker, request: Request, levels: str, page_token: PageToken = None, page_size: PageSize = PAGE
) -> dict[str, Any]:
    """Return the tables of a namespace, with `pageToken` (empty: the first) a page of them; a tenant alone has none."""
    path = decoded(levels).split(SEPARATOR)
    if not page_token:
        _check_namespace(broker, request, path)
    visible = _visible(broker, request, path, page_token or "") if len(path) == 2 else iter(())
    count = min(page_size, PAGE)
    names = list(visible if page_token is None else islice(visible, count))
    answer: dict[str, Any] = {"identifiers": [{"namespace": path, "name": name.topic} for name in names]}
    if page_token is not None:
        answer["next-page-token"] = str(names[-1]) if len(names) == count else None
    return answer


@router.get(_TABLE, _MAY_READ, refuses=(404,), waits_for=WaitsFor.STORE, operation_id="loadIcebergTable")
def load_table(broker: Broker, request: Request) -> dict[str, Any]:
    """Return the metadata of a table."""
    table = _table_of(broker, request)
    document = dict(table.metadata.document)
    if not table.is_current:
        error = redacted_error_text(table.error, wording=None) or ""
        document["properties"] = {**document["properties"], BEHIND: error}
    # No endpoint of the store in `config`: DuckDB would use it with its own defaults instead of the reader's secret.
    return {"metadata-location": table.uri, "metadata": document, "config": {}}


@router.route("HEAD", _TABLE, _MAY_READ, refuses=(404,), waits_for=WaitsFor.STORE, operation_id="headIcebergTable")
def head_table(broker: Broker, request: Request) -> None:
    """Return whether there is a table."""
    _table_of(broker, request)


def _table_of(broker: Broker, request: Request) -> tables.TopicTable:
    name = _table_name(request)
    if name is None:
        raise _Missing(NO_TABLE, "a table of that name")
    return tables.table_of(broker.environment, name)


def _visible(broker: Broker, request: Request, path: Sequence[str], after: str = "") -> Iterator[TopicName]:
    """Yield the topics of a tenant or namespace with tables that the caller may consume, in the database's order."""
    access = cast(AuthorizationService, request.app.state.access)
    may = access.topic_filter(caller_of(request), (AuthAction.CONSUME,))
    while page := broker.environment.metadata.topics.with_iceberg_tables(path, after, PAGE):
        for name in page:
            if [name.tenant, name.namespace][: len(path)] == path and may(name):
                yield name
        after = str(page[-1])


def _check_namespace(broker: Broker, request: Request, path: Sequence[str]) -> None:
    """Raise _Missing unless a table is in the namespace, or in one of the tenant."""
    if next(_visible(broker, request, path), None) is None:
        raise _no_namespace(path)


def _no_namespace(path: Sequence[str]) -> _Missing:
    return _Missing(NO_NAMESPACE, f"the namespace {'.'.join(path)}")


def install_catalog_errors(app: FastAPI) -> None:
    """Answer errors of the catalog's paths with Iceberg's body. Needs the handlers of errors that answer JSON."""
    for kind in (RequestValidationError, HTTPException, CompactorError, Exception):
        app.add_exception_handler(kind, _as_iceberg(cast(Handler, app.exception_handlers[kind])))


def _as_iceberg(handler: Handler) -> Handler:
    async def answered(request: Request, error: Exception) -> Response:
        answer = await handler(request, error)
        if not request.url.path.startswith(PREFIX) or not isinstance(answer, JSONResponse):
            return answer
        kind = error.kind if isinstance(error, _Missing) else _TYPES.get(answer.status_code, type(error).__name__)
        reason = json.loads(bytes(answer.body)).get("reason", "")
        body = {"error": {"message": reason, "type": kind, "code": answer.status_code}}
        headers = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        return JSONResponse(body, answer.status_code, headers)

    return answered
