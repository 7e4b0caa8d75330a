"""Forms of a topic's page that change its compaction and its policies, and trim its old raw ledgers.

Each form calls the same operation as a REST route, under the same permission. `form_of` checks its origin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.broker import compaction, names, policies
from api.broker.policies import PolicyScope
from api.broker.threads import WaitsFor
from api.dashboard.policy_table import policies_of
from api.dashboard.rendering import HEADERS, TOPIC_PAGE, form_of, page, rendered, require, topic_path
from api.formats.position_text import parse_trim_place
from api.http.access import AuthAction, caller_of
from api.http.dependencies import Broker, broker_of
from api.http.paths import Topic
from api.http.problems import public_reason
from api.http.router import Routes
from api.reports import trim_document
from storage.environment import Environment
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


def _set_policy(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    name, value = form.get("name", ""), form.get("value", "")
    scope = PolicyScope(PolicyOrigin.TOPIC, topic=topic)
    try:
        if form.get("do") == "remove":
            policies.change(broker.environment, scope, {}, [name])
        else:
            policies.change(broker.environment, scope, {name: value})
    except InvalidInput as error:
        return rendered(
            request, "policies.html", 400, name=topic, rows=policies_of(broker.environment, topic), changed=name,
            problem=public_reason(error), may_change=True,
        )  # fmt: skip
    return _back(topic, f"/policies?{urlencode({'changed': name})}")


def _trim(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    before = form.get("before", "").strip()
    is_dry = form.get("do") != "trim"
    place = parse_trim_place(before) if before else None
    trimmed = compaction.trim(broker, topic, place, dry_run=is_dry, force=False)
    reports = [trim_document(result, words=None) for result in trimmed]
    return rendered(request, "trim.html", name=topic, before=before, reports=reports, is_dry=is_dry)


def _control(operate: Callable[[Environment, TopicName], object]) -> Change:
    """Return the function of a button that changes the control of a topic's compaction."""

    def press(broker: Broker, _request: Request, topic: TopicName, _: Form) -> Response:
        operate(broker.environment, topic)
        return _back(topic)

    return press


def _compact(broker: Broker, request: Request, topic: TopicName, _: Form) -> Response:
    compaction.trigger(broker, topic, caller_of(request).name)
    return _back(topic)


_EITHER = (AuthAction.COMPACT, AuthAction.ADMIN)
BUTTONS = (
    Button("compact", "compactNow", (AuthAction.COMPACT,), _compact),
    Button("abort", "cancelNow", _EITHER, _control(compaction.abort)),
    Button("pause", "pauseNow", _EITHER, _control(compaction.pause)),
    Button("resume", "resumeNow", _EITHER, _control(compaction.resume)),
    Button("policies", "setPolicyNow", (AuthAction.ADMIN,), _set_policy),
    Button("trim", "trimNow", (AuthAction.ADMIN,), _trim, WaitsFor.WORK),
)


def _offer(button: Button) -> None:
    """Register the route of a button."""

    def pressed(request: Request, broker: Broker, topic: TopicName, form: Form) -> Response:
        require(request, *button.needs, topic=topic)
        return button.press(broker, request, topic, form)

    @page
    async def press(broker: Broker, request: Request, topic: Topic) -> Response:
        form = await form_of(request)
        work = partial(pressed, request=request, broker=broker, topic=topic, form=form)
        return await broker_of(request).pools[button.waits_for].run(work)

    router.post(f"{TOPIC_PAGE}/{button.path}", operation_id=button.operation, include_in_schema=False)(press)


for _button in BUTTONS:
    _offer(_button)


@router.get(f"{TOPIC_PAGE}/trim", include_in_schema=False)
@page
def show_trim(broker: Broker, request: Request, topic: Topic) -> Response:
    """Return the page that previews a trim, by the cleanup policies or before a message."""
    require(request, AuthAction.ADMIN, topic=topic)
    names.topics(broker.environment, topic)
    return rendered(request, "trim.html", name=topic, before="", reports=None, is_dry=True)
