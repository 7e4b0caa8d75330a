"""Forms of topics: the routes of the pages that show them and of the requests that they send.

Each form calls the same operation as a REST route, under the same permission. `read_same_origin_form` checks its
origin. A form with a page of its own is shown again, with the reason and what was entered, if the operation refuses it.
The page that follows an executed form states the result (`rendering.RESULTS`).

A form of a topic that another service has is forwarded to it. If services share the partitions of a topic, the form's
REST call takes its place, which reaches each of them (`api/http/partition_fan_out.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.broker.refusals import NotTheOwner
from api.broker.threads import WaitsFor
from api.dashboard.rendering import (
    HEADERS,
    TOPIC_PAGE,
    FormRefused,
    PageRoutes,
    read_same_origin_form,
    require_permission,
    topic_path,
)
from api.http.access import AuthAction, authorization_header_from_cookie
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.owner_proxy import FORWARDED, reason_in_response
from api.http.paths import Topic, encode_path_segment
from api.http.problems import RestException, log_for_operators, public_reason, status_of
from api.observability.error_text import DASHBOARD_WORDING
from api.observability.redaction import redacted_excerpt
from storage.errors import CompactorError
from storage.model import TopicName

Form = Mapping[str, str]


@dataclass(frozen=True)
class Refusal:
    """The reason why an operation refused a form, and the status of the answer. An empty reason: it was not refused.

    `error`: the error that refused it; None: there is none, or another service raised it.
    """

    reason: str = ""
    status: int = 200
    error: CompactorError | None = None


@dataclass(frozen=True)
class RestCall:
    """The REST call that executes a form: its path below the topic's, quoted, with its query, and its JSON body.

    `render`: the function that renders its result.
    """

    path: str
    body: object
    render: Callable[[Any], Response]


Press = Callable[[Broker, Request, TopicName, Form], Response]
OverRest = Callable[[Request, TopicName, Form], RestCall]
Show = Callable[[Broker, Request, TopicName, Form, Refusal], Response]


@dataclass(frozen=True)
class Button:
    """A form on a topic's pages, with its path, permission and functions.

    `path`: the end of its path. `operation`: its name in the audit log. `needs`: actions, of which the caller needs
    one. `press`: the function that executes it. `show`: the function that renders its page; None: another page has it.
    `over_rest`: the same operation as a REST call; None: it needs no service of a partition.
    """

    path: str
    operation: str
    needs: tuple[AuthAction, ...]
    press: Press
    show: Show | None = None
    waits_for: WaitsFor = WaitsFor.DATABASE
    over_rest: OverRest | None = None


def add_button_routes(router: PageRoutes, button: Button) -> None:
    """Register the routes of a button: GET for its page, if it has one, and POST."""
    path = f"{TOPIC_PAGE}/{button.path}"

    def pressed(
        request: Request, broker: Broker, topic: TopicName, form: Form, refused: FormRefused | None = None
    ) -> Response:
        require_permission(request, *button.needs, topic=topic)
        try:
            if refused is not None:
                raise refused
            return button.press(broker, request, topic, form)
        except (CompactorError, RestException) as error:
            if button.show is None:
                raise
            return button.show(broker, request, topic, form, refusal_of(request, error))

    @router.post(path, operation_id=button.operation)
    async def press(broker: Broker, request: Request, topic: Topic) -> Response:
        pool = broker.pools[button.waits_for]
        try:
            form = await read_same_origin_form(request)
        except FormRefused as error:
            return await pool.run(partial(pressed, request, broker, topic, error.form, error))
        try:
            return await pool.run(partial(pressed, request=request, broker=broker, topic=topic, form=form))
        except NotTheOwner as other:
            if button.over_rest is None or other.topic.name.partitioned_topic != topic or FORWARDED in request.headers:
                raise
        call = button.over_rest(request, topic, form)
        path = "/".join(map(encode_path_segment, (topic.tenant, topic.namespace, topic.topic)))
        response = await context_of(request).proxy.send_to_own_application(
            request,
            f"/admin/v2/persistent/{path}/{call.path}",
            b"" if call.body is None else json.dumps(call.body).encode(),
            {"content-type": "application/json", **authorization_header_from_cookie(request.scope)},
        )

        def answered() -> Response:
            if response.is_success:
                return call.render(json.loads(response.content) if response.content else None)
            refusal = Refusal(redacted_excerpt(reason_in_response(response)), response.status_code)
            assert button.show is not None, "a form with a REST call has a page"
            return button.show(broker, request, topic, form, refusal)

        return await pool.run(answered)

    show = button.show
    if show is None:
        return

    @router.get(path, operation_id=f"{button.operation}Form")
    def open_form(broker: Broker, request: Request, topic: Topic) -> Response:
        require_permission(request, *button.needs, topic=topic)
        return show(broker, request, topic, {}, Refusal())


def refusal_of(request: Request, error: CompactorError | RestException) -> Refusal:
    """Return the refusal that a form's page shows for an error, and log the full text for operators."""
    log_for_operators(request, error)
    if isinstance(error, RestException):
        return Refusal(redacted_excerpt(error.detail), error.status_code)
    return Refusal(redacted_excerpt(public_reason(error, DASHBOARD_WORDING)), status_of(error), error)


def redirect(path: str, **query: object) -> Response:
    """Return the response that redirects a browser from an executed form to a page. `query`: of the page's URL."""
    return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303, HEADERS)


def redirect_to_topic(topic: TopicName, subpath: str = "", **query: object) -> Response:
    """Return the response that redirects a browser to a page of a topic. `subpath`: the end of its path."""
    return redirect(topic_path(topic) + subpath, **query)
