"""Rendering of a page: its template, its headers, its errors, and the permission to see it.

A browser sends a cookie by itself, so the cookie counts only for the dashboard's paths (`api/http/access.py`), and a
request that changes something must come from a page of the dashboard. Every answer forbids frames, inline scripts and
other hosts.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from api.broker.refusals import NotTheOwner
from api.dashboard import formats
from api.dashboard.failure import failure_of_read
from api.dashboard.topic_status import current_states
from api.http.access import ANY_USE, DASHBOARD, LOGIN, AuthAction, caller_of
from api.http.context import context_of
from api.http.limits import limit_body
from api.http.owner_proxy import FORWARDED
from api.http.paths import check_utf8_url, encode_path_segment
from api.http.problems import RestException, log_for_operators, set_wording
from api.http.router import Endpoint, Routes
from api.observability.error_text import DASHBOARD_WORDING
from storage.advice import AdviceWording
from storage.errors import CompactorError, SegmentNotLocal
from storage.model import TopicName
from storage.reading.key_lookup import SearchStopped

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOPIC_PAGE = "/dashboard/topics/{tenant}/{namespace}/{topic}"
NEW_TOPIC = "/dashboard/topics/new"
ANY_ROLE = (*ANY_USE, AuthAction.ADMIN)
RESULTS: Mapping[str, str] = {
    "created": "The topic was created.",
    "deleted": "The topic was deleted.",
    "produced": "The message was stored.",
    "reset": "The subscription was moved.",
    "requested": "A compaction was requested.",
    "cancelled": "The compaction was cancelled.",
    "paused": "Compaction was paused.",
    "resumed": "Compaction was resumed.",
}
"""The sentence about a form that was executed, by the query parameter `done` of the page that follows."""
_TEMPLATES = Environment(
    loader=PackageLoader("api.dashboard"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(formats.FILTERS)
FORM_BYTES = 64 << 10
"""The largest form, as a browser encodes it."""
_KEPT_FORM_BYTES = 1 << 20
"""The largest form that is shown again after it was refused for its size."""
_TOO_LARGE = f"the form is larger than {FORM_BYTES >> 10} KiB, as the browser encodes it: shorten it"
_MOST_FIELDS = 100
_TABS = (
    ("", "Topic", ANY_ROLE),
    ("/messages", "Messages", (AuthAction.CONSUME,)),
    ("/produce", "Produce", (AuthAction.PRODUCE,)),
    ("/policies", "Policies", ANY_ROLE),
    ("/trim", "Trim", (AuthAction.ADMIN,)),
    ("/delete", "Delete", (AuthAction.ADMIN,)),
)
"""The pages of a topic: the end of the path, the text of the link, and the actions of which a caller needs one."""
Handler = Callable[[Request, Exception], Awaitable[Response]]
_IS_PAGE = "is_page"
_UTF8_URL = Depends(check_utf8_url)


@dataclass(frozen=True)
class Tab:
    """A link to a page of a topic. `is_current`: it is the page that is rendered, or one below it is."""

    path: str
    text: str
    is_current: bool


class MessageNotFound(RestException):
    """The topic of a page has no message at the offset of its path: 404."""

    def __init__(self, reason: str) -> None:
        super().__init__(404, reason)


class ParsedForm(NamedTuple):
    """The fields of a form that are UTF-8, and the names of those that are not."""

    fields: dict[str, str]
    malformed_names: list[str]


class FormRefused(RestException):
    """The refusal of a form whose body is invalid. `form`: the fields that a page can show again."""

    def __init__(self, status: int, reason: str, form: Mapping[str, str]) -> None:
        super().__init__(status, reason)
        self.form = form


class PageRoutes(Routes):
    """Routes for browsers, which OpenAPI does not describe. Errors of pages are pages, too (`install_error_pages`)."""

    def __init__(self) -> None:
        super().__init__(prefix="")

    def route(
        self, methods: str | Collection[str], path: str, *needs: Any, is_page: bool = True, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds a function as a route. `is_page`: it answers with a page."""
        add = super().route(methods, path, *needs, _UTF8_URL, include_in_schema=False, **options)

        def add_marked(endpoint: Endpoint) -> Endpoint:
            vars(endpoint)[_IS_PAGE] = is_page
            return add(endpoint)

        return add_marked


def is_dashboard_path(path: str) -> bool:
    """Return whether a path belongs to the dashboard."""
    return path == "/" or path == DASHBOARD.rstrip("/") or path.startswith(DASHBOARD)


def install_error_pages(app: FastAPI) -> None:
    """Render errors of pages as pages, also those of paths and queries, which precede the endpoint.

    A caller without a token is redirected to the login page. Needs the handlers of errors that answer JSON. A page that
    another service renders, which owns the topic, is passed on.
    """
    for kind in (RequestValidationError, HTTPException, CompactorError, NotTheOwner):
        app.add_exception_handler(kind, _page_error_handler(cast(Handler, app.exception_handlers[kind])))


def _page_error_handler(handler: Handler) -> Handler:
    async def answered(request: Request, error: Exception) -> Response:
        is_page = getattr(request.scope.get("endpoint"), _IS_PAGE, False)
        if is_page:
            set_wording(request, DASHBOARD_WORDING)
        answer = await handler(request, error)
        if not is_page or not isinstance(answer, JSONResponse):
            return answer
        if answer.status_code == 401:
            path = request.scope["raw_path"].decode("latin-1")  # as the browser has it, encoded once
            return RedirectResponse(f"{LOGIN}?{urlencode({'next': path})}", 303, HEADERS)
        return render_problem_page(request, answer.status_code, json.loads(bytes(answer.body))["reason"], error)

    return answered


def require_permission(request: Request, *actions: AuthAction, topic: TopicName | None = None) -> None:
    """Raise RestException (401, 403) unless the caller may do any of `actions`."""
    where = (None, None, None) if topic is None else (topic.tenant, topic.namespace, topic.topic)
    request.app.state.access.require_any(caller_of(request), actions, *where)


def has_permission(request: Request, *actions: AuthAction, topic: TopicName | None = None) -> bool:
    """Return whether the caller may do any of `actions`."""
    try:
        require_permission(request, *actions, topic=topic)
    except RestException:
        return False
    return True


def operator_wording(request: Request) -> AdviceWording | None:
    """Return the wording of advice for a caller that may read errors in full, with the locations of database and store;
    None for any other caller."""
    return DASHBOARD_WORDING if context_of(request).access.is_superuser(caller_of(request)) else None


def render_page(
    request: Request, template: str, status: int = 200, *, done: str | None = None, **values: Any
) -> Response:
    """Render a page from a template. `done`: the sentence about the form that was executed before it; None: that of
    `RESULTS`. Needs a thread if the template checks permissions or states: `may_create`, `tabs`, `states_of`."""
    context = context_of(request)
    broker = context.broker
    content = _TEMPLATES.get_template(template).render(
        now=broker.environment.clock.now_ms(),
        cluster=broker.settings.cluster_name,
        role=caller_of(request).role,
        access_control=context.access.verifier is not None,
        path_of=topic_path,
        segment=encode_path_segment,
        current=request.url.path,
        done=RESULTS.get(request.query_params.get("done", ""), "") if done is None else done,
        is_operator=context.access.is_superuser(caller_of(request)),
        may_create=lambda: context.access.may_create_topics_in_some_namespace(caller_of(request)),
        tabs=lambda name: _visible_tabs(request, name),
        states_of=lambda name: current_states(broker, name),
        **values,
    )
    return Response(content, status, HEADERS, media_type="text/html")


def log_read_errors(request: Request, errors: Iterable[CompactorError]) -> None:
    """Log the errors of reads that a page shows beside its content, for operators."""
    for error in errors:
        if not isinstance(error, SegmentNotLocal | SearchStopped):
            log_for_operators(request, error, 200)


def render_problem_page(request: Request, status: int, reason: str, error: Exception) -> Response:
    """Render the page of an error, with the steps after a lost object, with a link to the topic of its path if there is
    one and this is another page, and to its messages if it does not have the one of the path."""
    path = request.scope["raw_path"].decode("latin-1").split("/")
    is_missing_message = isinstance(error, MessageNotFound)
    is_below = (status != 404 or is_missing_message) and "topic" in request.path_params
    below = TOPIC_PAGE.count("/") + 1
    is_another = len(path) > below or bool(request.url.query)
    topic_page = "/".join(path[:below]) if is_below and is_another else ""
    return render_page(
        request, "problem.html", status, reason=reason, topic_page=topic_page,
        messages_page=f"{topic_page}/messages" if is_missing_message else "",
        failure=failure_of_read(error) if isinstance(error, CompactorError) else None,
    )  # fmt: skip


def _visible_tabs(request: Request, topic: TopicName) -> Sequence[Tab]:
    """Return the links to the pages of a topic that the caller may see. A partition has the policies of its topic, and
    a partitioned topic has no messages of its own."""
    current = "/".join(request.scope["route"].path.removeprefix(TOPIC_PAGE).split("/")[:2])
    is_partitioned = context_of(request).broker.environment.metadata.partitions.find(topic) is not None
    return [
        Tab(
            topic_path(topic.partitioned_topic if topic.partitioned_topic and place == "/policies" else topic) + place,
            text,
            place == current,
        )
        for place, text, actions in _TABS
        if has_permission(request, *actions, topic=topic) and not (is_partitioned and place == "/messages")
    ]


def topic_path(topic: TopicName) -> str:
    """Return the URL path of a topic's page."""
    return "/dashboard/topics/" + "/".join(map(encode_path_segment, (topic.tenant, topic.namespace, topic.topic)))


def require_same_origin(request: Request) -> None:
    """Refuse a request that no browser sent from a page of this service. Raises RestException (403).

    The `Origin` of such a request is the request's host, with the request's scheme, or https if a proxy ends TLS. A
    service that forwards a form has checked it; a browser cannot add the header of a forwarded request by a form.
    """
    origins = request.headers.getlist("origin")
    if not origins and FORWARDED in request.headers:
        return
    scheme, _, host = origins[0].partition("://") if len(origins) == 1 else ("", "", "")
    if not host or host != request.headers.get("host") or scheme not in (request.scope["scheme"], "https"):
        raise RestException(403, "the request does not come from a page of this service: open the page, and try there")


def uses_tls(request: Request) -> bool:
    """Return whether the browser that sent a form uses TLS; if a proxy ends TLS, `Origin` has the browser's scheme."""
    return request.scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https://")


async def read_same_origin_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises RestException (403) for a form of another site's page, and FormRefused: 413,
    or 400 for one that is not UTF-8."""
    require_same_origin(request)
    try:
        limit_body(request.scope, _KEPT_FORM_BYTES)
        body = await request.body()
    except RestException as error:
        if error.status_code != 413:
            raise
        raise FormRefused(413, _TOO_LARGE, {}) from error
    form, malformed = parse_form_fields(body)
    if len(body) > FORM_BYTES:
        raise FormRefused(413, _TOO_LARGE, form)
    if malformed:
        raise FormRefused(400, f"the text of {' and '.join(malformed)} is not UTF-8: enter a text", form)
    return form


def parse_form_fields(body: bytes) -> ParsedForm:
    """Parse the body of a form. Empty fields are left out. Raises RestException (400) for too many fields."""
    form, malformed = dict[str, str](), list[str]()
    try:
        # Each byte becomes a character, so that bytes that are not UTF-8 are seen.
        fields = parse_qsl(body.decode("latin-1"), encoding="latin-1", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise RestException(400, f"the form has more than {_MOST_FIELDS} fields") from error
    for name, value in fields:
        try:
            form.setdefault(name.encode("latin-1").decode(), value.encode("latin-1").decode())
        except UnicodeDecodeError:
            malformed.append(ascii(name))
    return ParsedForm(form, malformed)
