"""Pages of the dashboard, rendered by the server, under the same permissions as the REST API.

    /                                   all topics: totals, size, saved share, last success, state
    /dashboard/topics/T/N/TOPIC         one topic: its picture, runs, clients, schema, policies; buttons
    …/messages, …/messages/OFFSET       messages raw and compacted, and one of them
    …/policies                          forms for policies
    /dashboard/service                  the leader, the services, also lost ones, requested and failing compactions
    /dashboard/settings                 the settings, each with its origin

changes.py, topic_changes.py and subscription_page.py have the other forms. A script replaces parts of a page while a
compaction runs; without scripts, the page reloads.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Path, Query, Request
from pydantic import BeforeValidator
from starlette.responses import Response

from api.broker import compaction
from api.broker.mirroring import operations
from api.broker.threads import WaitsFor
from api.dashboard.fields import without_commas
from api.dashboard.formats import counted
from api.dashboard.lost_objects import loss_cache_of
from api.dashboard.message_browser import OFFSETS, Order, PageQuery, View, message_page
from api.dashboard.message_view import message_view
from api.dashboard.overview import render_overview
from api.dashboard.policy_table import policy_tables, setting_tables
from api.dashboard.rendering import (
    ANY_ROLE,
    HEADERS,
    TOPIC_PAGE,
    PageRoutes,
    has_permission,
    log_read_errors,
    operator_wording,
    render_page,
    require_permission,
)
from api.dashboard.topic_page import look_up_key, topic_view
from api.dashboard.topic_sizes import sizes_cache_of
from api.dashboard.topics_table import COLUMNS, STATES, TableView, partition_rows
from api.http.access import AuthAction, topic_permission_check
from api.http.context import Context
from api.http.dependencies import Broker
from api.http.paths import Topic
from api.http.problems import RestException
from api.http.run_events import RunId, run_events, topic_of_run
from api.observability.error_text import DASHBOARD_WORDING, PAGE_WITH_STEPS_WORDING
from api.reports import mirror_document, scheduler_document
from storage.model import TopicName
from storage.options.policies import POLICIES

router = PageRoutes()
_COMMAS = BeforeValidator(without_commas)
_STATIC = {
    name: ((files("api.dashboard") / "static" / name).read_bytes(), kind)
    for name, kind in (
        ("dashboard.css", "text/css"),
        ("dashboard.js", "text/javascript"),
        ("icon.svg", "image/svg+xml"),
    )
}


@router.get("/")
async def show_topics(
    broker: Broker, request: Request, q: str = "", state: str = "", sort: str = "name", page: int = 1
) -> Response:
    """Return the page of the topics that the caller may see."""
    require_permission(request, AuthAction.ANYONE)
    view = TableView(q.strip(), state if state in STATES else "", sort, page)
    sizes = await sizes_cache_of(request).all_sizes()
    return await broker.pools[WaitsFor.DATABASE].run(render_overview, request, view, sizes)


@router.get(TOPIC_PAGE, waits_for=WaitsFor.STORE)
def show_topic(
    broker: Broker, request: Request, topic: Topic, key: str | None = None, after: int | None = None
) -> Response:
    """Return the page of a topic, with the newest message of `key`; for a partitioned topic, the list of partitions.

    `after`: the number of the newest run when the form before this page requested one; 0: there was none.
    """
    require_permission(request, *ANY_ROLE, topic=topic)
    may_change = has_permission(request, AuthAction.ADMIN, topic=topic)
    may_compact = may_change or has_permission(request, AuthAction.COMPACT, topic=topic)
    partitioned = broker.environment.metadata.partitions.find(topic)
    if partitioned is not None:
        rows = partition_rows(broker, partitioned)
        is_busy = any(row.is_busy for row in rows)
        return render_page(
            request, "partitioned.html", name=topic, rows=rows, columns=COLUMNS, may_compact=may_compact,
            may_change=may_change, done=_result_sentence(broker, request, topic, is_busy) if may_compact else None,
        )  # fmt: skip
    lookup, losses = None, loss_cache_of(request)
    if key is not None:
        require_permission(request, AuthAction.CONSUME, topic=topic)
        lookup = look_up_key(broker, topic, key, losses)
        log_read_errors(request, [] if lookup.error is None else [lookup.error])
    may_consume = has_permission(request, AuthAction.CONSUME, topic=topic)
    wording = None if operator_wording(request) is None else PAGE_WITH_STEPS_WORDING
    view = topic_view(broker, topic, wording=wording, with_subscriptions=may_consume, losses=losses, lookup=lookup)
    return render_page(
        request, "topic.html", view=view, lookup=lookup, may_compact=may_compact, may_change=may_change,
        may_consume=may_consume, found_nothing_new=view.found_nothing_new(after),
        done=_result_sentence(broker, request, topic, view.is_busy) if may_compact else None,
    )  # fmt: skip


def _result_sentence(broker: Broker, request: Request, topic: TopicName, is_busy: bool) -> str | None:
    """Return the sentence about a button that was pressed before a topic's page; None: that of `RESULTS`.

    It states the pauses that are left, and does not state a request that has ended (`is_busy` is false). For callers
    that may see both.
    """
    done = request.query_params.get("done", "")
    if done == "requested":
        return None if is_busy else ""
    if done not in ("paused", "resumed"):
        return None
    pauses = [item.control.paused for item in compaction.controls(broker.environment, topic)]
    maximum = max(pauses, default=0)
    times = ("at most " if min(pauses, default=0) < maximum else "") + counted(maximum, "time")
    if done == "resumed" and maximum:
        return f"One pause was undone: compaction is still paused, {times}."
    if done == "paused" and maximum > 1:
        return f"Compaction was paused again: it is paused {times}, and continues after as many presses of “Resume”."
    return None


@router.get(f"{TOPIC_PAGE}/messages", waits_for=WaitsFor.STORE)
def show_messages(
    broker: Broker,
    request: Request,
    topic: Topic,
    view: View = View.BOTH,
    order: Order = Order.NEWEST,
    offset: Annotated[int | None, Query(ge=0), _COMMAS] = None,
    before: Annotated[int | None, Query(ge=0)] = None,
    time: str = "",
    key: str = "",
) -> Response:
    """Return a page of a topic's messages: raw, compacted, or both in one column."""
    require_permission(request, AuthAction.CONSUME, topic=topic)
    query = PageQuery(view, order, offset, before, time.strip(), key)

    def link(**changes: object) -> str:
        parameters = {"view": view.value, "order": order.value, **changes}
        return "?" + urlencode({name: value for name, value in parameters.items() if value is not None})

    messages = message_page(broker, topic, query, loss_cache_of(request))
    log_read_errors(request, messages.errors)
    return render_page(request, "messages.html", name=topic, page=messages, link=link, end=OFFSETS)


@router.get(f"{TOPIC_PAGE}/messages/{{offset}}", waits_for=WaitsFor.STORE)
def show_message(
    broker: Broker, request: Request, topic: Topic, offset: Annotated[int, Path(ge=0, le=OFFSETS), _COMMAS]
) -> Response:
    """Return the page of the message at an offset."""
    require_permission(request, AuthAction.CONSUME, topic=topic)
    view = message_view(broker, topic, offset, loss_cache_of(request))
    log_read_errors(request, view.errors)
    return render_page(request, "message.html", name=topic, view=view)


@router.get(f"{TOPIC_PAGE}/policies")
def show_policies(broker: Broker, request: Request, topic: Topic, changed: str = "") -> Response:
    """Return the page of a topic's policies, each with a form."""
    require_permission(request, *ANY_ROLE, topic=topic)
    return render_page(
        request, "policies.html", name=topic, policies=policy_tables(broker.environment, topic), problem="",
        changed=changed if changed in POLICIES else "",
        may_change=has_permission(request, AuthAction.ADMIN, topic=topic),
    )  # fmt: skip


@router.get(
    "/dashboard/runs/{run}/events",
    topic_permission_check(topic_of_run, AuthAction.COMPACT),
    is_page=False,
)
async def stream_run_events(context: Context, run: RunId) -> Response:
    """Follow a run: the server-sent events of REST, to the same roles, for a browser with the dashboard's cookie."""
    return await run_events(context, run)


@router.get("/dashboard/service")
def show_service(broker: Broker, request: Request) -> Response:
    """Return the page of the services, those that are gone, requested, failing and paused compactions, and mirrors."""
    require_permission(request, AuthAction.SUPERUSER)
    now = broker.environment.clock.now_ms()
    state = scheduler_document(compaction.scheduler_state(broker.environment), now, DASHBOARD_WORDING)
    mirrors = [
        mirror_document(mirror, wording=DASHBOARD_WORDING) for mirror in operations.all_mirrors(broker.environment)
    ]
    return render_page(
        request,
        "service.html",
        scheduler=state,
        unserved=broker.ownership.unserved_log_directories(),
        mirrors=mirrors,
        parsed=TopicName.parse,
    )


@router.get("/dashboard/settings")
def show_settings(broker: Broker, request: Request) -> Response:
    """Return the page of this service's settings and their origins, without secrets."""
    require_permission(request, AuthAction.SUPERUSER)
    return render_page(request, "settings.html", settings=setting_tables(broker.settings))


@router.get("/dashboard/{name}.{kind}", is_page=False)
def show_static(broker: Broker, name: str, kind: str) -> Response:
    """Return a static file: the style sheet, the icon or the script. Raises RestException (404)."""
    content, media_type = _STATIC.get(f"{name}.{kind}", (b"", ""))
    if not content:
        raise RestException(404, f"the dashboard has no file {name}.{kind}")
    return Response(content, 200, {**HEADERS, "Cache-Control": "max-age=3600"}, media_type=media_type)
