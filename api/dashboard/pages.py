"""The dashboard: pages made by the server, without scripts, under the same permissions as the REST API.

    /                                   all topics: size, saved share, last compaction, state
    /dashboard/topics/T/N/TOPIC         one topic: its picture, runs, subscriptions, policies; buttons
    /dashboard/service                  the leader, the services, what is requested, what fails
    /dashboard/login, …/logout          a token, kept in a cookie that no script reads and no other site sends

A browser sends a cookie by itself, so it counts for these paths alone (`api/http/access.py`), and what changes
something must come from one of these pages. Every answer forbids scripts, frames, and other hosts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.responses import RedirectResponse, Response

from api.admin import resolve
from api.admin.compaction import runs as run_routes, trigger
from api.dashboard import formats
from api.dashboard.topic_page import look_up, topic_view
from api.dashboard.topics_table import topics_page
from api.http.access import ANY_USE, DASHBOARD_COOKIE, LOGIN, AuthAction, caller_of
from api.http.paths import Topic, segment
from api.http.problems import RestException, public_reason, status_of
from api.http.router import Routes
from api.http.thread_pools import WaitsFor
from api.service import Parts, Service
from storage.errors import CompactorError
from storage.metadata.records import TopicSummary
from storage.model import TopicName

router = Routes(prefix="")
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TEMPLATES = Environment(
    loader=PackageLoader("api.dashboard"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(formats.FILTERS)
_STYLE = (files("api.dashboard") / "static" / "dashboard.css").read_bytes()
_TOPIC = "/dashboard/topics/{tenant}/{namespace}/{topic}"
Page = Callable[..., Response]


def _page(endpoint: Page) -> Page:
    """An error of a page is a page; who is not known is asked for a token."""

    @functools.wraps(endpoint)
    def answer(request: Request, **values: Any) -> Response:
        try:
            return endpoint(request=request, **values)
        except RestException as error:
            if error.status_code == 401:
                return RedirectResponse(f"{LOGIN}?{urlencode({'next': request.url.path})}", 303, _HEADERS)
            return _problem(request, error.status_code, str(error.detail))
        except CompactorError as error:
            return _problem(request, status_of(error), public_reason(error))

    return answer


def _require(request: Request, *actions: AuthAction, topic: TopicName | None = None) -> None:
    """Raises RestException (401, 403) unless the caller may do any of `actions`."""
    where = (None, None, None) if topic is None else (topic.tenant, topic.namespace, topic.topic)
    request.app.state.access.require(caller_of(request), actions, *where)


def _rendered(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    service: Service = request.app.state.service
    content = _TEMPLATES.get_template(template).render(
        now=service.environment.clock.now_ms(),
        cluster=service.settings.cluster_name,
        role=caller_of(request).role,
        access_control=service.access.verifier is not None,
        path_of=topic_path,
        **values,
    )
    return Response(content, status, _HEADERS, media_type="text/html")


def _problem(request: Request, status: int, reason: str) -> Response:
    return _rendered(request, "problem.html", status, reason=reason)


def topic_path(topic: TopicName) -> str:
    """The path of a topic's page."""
    return "/dashboard/topics/" + "/".join(map(segment, (topic.tenant, topic.namespace, topic.topic)))


@router.get("/", include_in_schema=False)
@_page
def show_topics(parts: Parts, request: Request, q: str = "", sort: str = "name", page: int = 1) -> Response:
    """The topics that the caller may see."""
    _require(request, AuthAction.ANYONE)
    access, caller = parts.access, caller_of(request)
    allowed: dict[str, bool] = {}

    def may_see(summary: TopicSummary) -> bool:
        namespace = resolve.namespace_of(summary.name)
        if namespace not in allowed:
            try:
                access.require(caller, (*ANY_USE, AuthAction.ADMIN), summary.name.tenant, summary.name.namespace)
                allowed[namespace] = True
            except RestException:
                allowed[namespace] = False
        return allowed[namespace]

    found = topics_page(parts.environment.metadata, may_see, q.strip(), sort, page)

    def link(**changes: object) -> str:
        wanted = {"q": q, "sort": sort, "page": found.number, **changes}
        return "/?" + urlencode({name: value for name, value in wanted.items() if value not in ("", None)})

    return _rendered(request, "topics.html", page=found, q=q, sort=sort, link=link)


@router.get(_TOPIC, waits_for=WaitsFor.STORE, include_in_schema=False)
@_page
def show_topic(parts: Parts, request: Request, topic: Topic, key: str | None = None) -> Response:
    """One topic, and the newest message of a key if one is asked for."""
    _require(request, *ANY_USE, AuthAction.ADMIN, topic=topic)
    found = None
    if key is not None:
        _require(request, AuthAction.CONSUME, topic=topic)
        found = look_up(parts, topic, key)
    view = topic_view(parts, topic, in_full=parts.access.is_superuser(caller_of(request)))
    return _rendered(request, "topic.html", view=view, lookup=found)


@router.get("/dashboard/service", include_in_schema=False)
@_page
def show_service(parts: Parts, request: Request) -> Response:
    """The services and their work."""
    _require(request, AuthAction.SUPERUSER)
    return _rendered(request, "service.html", scheduler=run_routes.get_scheduler(parts))


@router.get("/dashboard/dashboard.css", include_in_schema=False)
def show_style(parts: Parts) -> Response:
    """How it looks."""
    return Response(_STYLE, 200, {**_HEADERS, "Cache-Control": "max-age=3600"}, media_type="text/css")


# What changes something


def _compact(parts: Service, caller: str, topic: TopicName) -> None:
    trigger.compact(parts, caller, topic)


def _cancel(parts: Service, _: str, topic: TopicName) -> None:
    run_routes.abort_compaction(parts, topic, False)


def _pause(parts: Service, _: str, topic: TopicName) -> None:
    run_routes.pause_compaction(parts, topic, False)


def _resume(parts: Service, _: str, topic: TopicName) -> None:
    run_routes.resume_compaction(parts, topic, False)


@dataclass(frozen=True)
class Button:
    """A button of a topic's page: the last part of its path, its name in the audit log, the actions of which the caller
    may do any, and what it does for a caller's name."""

    path: str
    operation: str
    needs: tuple[AuthAction, ...]
    press: Callable[[Service, str, TopicName], None]


BUTTONS = (
    Button("compact", "compactNow", (AuthAction.COMPACT,), _compact),
    Button("abort", "cancelNow", (AuthAction.COMPACT, AuthAction.ADMIN), _cancel),
    Button("pause", "pauseNow", (AuthAction.COMPACT, AuthAction.ADMIN), _pause),
    Button("resume", "resumeNow", (AuthAction.COMPACT, AuthAction.ADMIN), _resume),
)


def _offer(button: Button) -> None:
    """The route of a button."""

    @_page
    def press(parts: Parts, request: Request, topic: Topic) -> Response:
        _from_our_page(request)
        _require(request, *button.needs, topic=topic)
        button.press(parts, caller_of(request).name, topic)
        return _back(topic)

    router.post(f"{_TOPIC}/{button.path}", operation_id=button.operation, include_in_schema=False)(press)


for _button in BUTTONS:
    _offer(_button)


@router.get(LOGIN, include_in_schema=False)
def show_login(parts: Parts, request: Request, next: str = "/") -> Response:
    """Asks for a token."""
    return _rendered(request, "login.html", next=next, reason="")


@router.post(LOGIN, include_in_schema=False)
async def log_in(parts: Parts, request: Request) -> Response:
    """Keeps a token that holds."""
    form = parse_qs((await request.body()).decode(errors="replace"))
    token, place = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
    reason = parts.access.refusal_of(token)
    if reason:
        return _rendered(request, "login.html", 401, next=place, reason=reason)
    answer = RedirectResponse(_ours(place), 303, _HEADERS)
    answer.set_cookie(
        DASHBOARD_COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return answer


@router.post("/dashboard/logout", include_in_schema=False)
async def log_out(parts: Parts, request: Request) -> Response:
    """Forgets the token."""
    answer = RedirectResponse(LOGIN, 303, _HEADERS)
    answer.delete_cookie(DASHBOARD_COOKIE, path="/")
    return answer


def _from_our_page(request: Request) -> None:
    """Raises RestException (403) for a form of another site's page."""
    origin = request.headers.get("origin", "")
    if urlsplit(origin).netloc != request.headers.get("host", "") or not origin:
        raise RestException(403, "the request does not come from a page of this service: open the page, and try there")


def _back(topic: TopicName) -> Response:
    return RedirectResponse(topic_path(topic), 303, _HEADERS)


def _ours(place: str) -> str:
    """A path of this service, whatever a link says."""
    path = urlsplit(place).path
    return quote(path) if path.startswith("/") and not path.startswith("//") else "/"
