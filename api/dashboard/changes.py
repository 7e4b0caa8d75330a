"""Changes by the forms of a topic's page: its compaction, its policies, its old raw ledgers.

Each form does the same as the REST call, needs the same permission, and comes from a page of the service (`form_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.broker import names
from api.broker.threads import WaitsFor
from api.dashboard.policy_table import policies_of
from api.dashboard.rendering import HEADERS, TOPIC_PAGE, form_of, page, problem, rendered, require, topic_path
from api.http.access import AuthAction, caller_of
from api.http.dependencies import Broker, broker_of
from api.http.paths import Topic
from api.http.problems import RestException, public_reason
from api.http.router import Routes
from api.rest.compaction import runs as run_routes, trigger
from api.rest.compaction.trim import TrimRequest, trim_topic
from api.rest.policies.scopes import PolicyScope
from storage.errors import InvalidInput
from storage.model import TopicName
from storage.options.resolution import PolicyOrigin

router = Routes(prefix="")
Form = dict[str, str]
Change = Callable[[Broker, Request, TopicName, Form], Response]


@dataclass(frozen=True)
class Button:
    """A form of a topic's page.

    `path`: the last part of its path. `operation`: its name in the audit log. `needs`: actions, of which the caller
    needs one. `press`: its function.
    """

    path: str
    operation: str
    needs: tuple[AuthAction, ...]
    press: Change
    waits_for: WaitsFor = WaitsFor.DATABASE


def _back(topic: TopicName, place: str = "") -> Response:
    return RedirectResponse(topic_path(topic) + place, 303, HEADERS)


def _compact(broker: Broker, request: Request, topic: TopicName, _: Form) -> Response:
    trigger.compact(broker, caller_of(request).name, topic)
    return _back(topic)


def _abort(broker: Broker, _request: Request, topic: TopicName, _: Form) -> Response:
    run_routes.abort_compaction(broker, topic, False)
    return _back(topic)


def _pause(broker: Broker, _request: Request, topic: TopicName, _: Form) -> Response:
    run_routes.pause_compaction(broker, topic, False)
    return _back(topic)


def _resume(broker: Broker, _request: Request, topic: TopicName, _: Form) -> Response:
    run_routes.resume_compaction(broker, topic, False)
    return _back(topic)


def _set_policy(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    name, value = form.get("name", ""), form.get("value", "")
    scope = PolicyScope(PolicyOrigin.TOPIC, topic=topic)
    try:
        if form.get("do") == "remove":
            scope.change(broker, {}, [name])
        else:
            scope.change(broker, {name: value})
    except InvalidInput as error:
        return rendered(
            request, "policies.html", 400, name=topic, rows=policies_of(broker, topic), changed=name,
            problem=public_reason(error), may_change=True,
        )  # fmt: skip
    return _back(topic, f"/policies?{urlencode({'changed': name})}")


def _trim(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    before = form.get("before", "").strip()
    trim = TrimRequest(before=before or None)
    is_dry = form.get("do") != "trim"
    reports: list[dict[str, Any]] = trim_topic(broker, topic, False, trim, is_dry)
    return rendered(request, "trim.html", name=topic, before=before, reports=reports, is_dry=is_dry)


_EITHER = (AuthAction.COMPACT, AuthAction.ADMIN)
BUTTONS = (
    Button("compact", "compactNow", (AuthAction.COMPACT,), _compact),
    Button("abort", "cancelNow", _EITHER, _abort),
    Button("pause", "pauseNow", _EITHER, _pause),
    Button("resume", "resumeNow", _EITHER, _resume),
    Button("policies", "setPolicyNow", (AuthAction.ADMIN,), _set_policy),
    Button("trim", "trimNow", (AuthAction.ADMIN,), _trim, WaitsFor.WORK),
)


def _offer(button: Button) -> None:
    """Register the route of a button."""

    @page
    def pressed(request: Request, broker: Broker, topic: TopicName, form: Form) -> Response:
        require(request, *button.needs, topic=topic)
        return button.press(broker, request, topic, form)

    async def press(broker: Broker, request: Request, topic: Topic) -> Response:
        try:
            form = await form_of(request)
        except RestException as error:
            return problem(request, error.status_code, str(error.detail))
        work = partial(pressed, request=request, broker=broker, topic=topic, form=form)
        return await broker_of(request).pools[button.waits_for].run(work)

    router.post(f"{TOPIC_PAGE}/{button.path}", operation_id=button.operation, include_in_schema=False)(press)


for _button in BUTTONS:
    _offer(_button)


@router.get(f"{TOPIC_PAGE}/trim", include_in_schema=False)
@page
def show_trim(broker: Broker, request: Request, topic: Topic) -> Response:
    """Return the page that asks up to which message to trim."""
    require(request, AuthAction.ADMIN, topic=topic)
    names.topics(broker.environment, topic)
    return rendered(request, "trim.html", name=topic, before="", reports=None, is_dry=True)
