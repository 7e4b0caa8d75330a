"""Forms that change the compaction and the policies of a topic, and trim its old raw ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from api.broker import compaction, names, policies
from api.broker.policies import PolicyScope
from api.broker.threads import WaitsFor
from api.dashboard.buttons import Button, Form, Press, Refusal, RestCall, add_button_routes, redirect_to_topic
from api.dashboard.failure import failure_of_read
from api.dashboard.fields import without_commas
from api.dashboard.policy_table import policy_tables
from api.dashboard.rendering import PageRoutes, render_page
from api.formats.position_text import parse_trim_position
from api.http.access import AuthAction, caller_of
from api.http.dependencies import Broker
from api.http.problems import public_reason
from api.observability.error_text import DASHBOARD_WORDING, PAGE_WITH_STEPS_WORDING
from api.observability.redaction import redacted_excerpt
from api.reports import trim_document
from storage.environment import Environment
from storage.errors import InvalidInput
from storage.model import TopicName
from storage.options.resolution import PolicyOrigin

router = PageRoutes()


def _change_policy(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    name, value = form.get("name", ""), form.get("value", "")
    scope = PolicyScope(PolicyOrigin.TOPIC, topic=topic)
    try:
        if form.get("do") == "remove":
            policies.change(broker.environment, scope, {}, [name])
        else:
            policies.change(broker.environment, scope, {name: value})
    except InvalidInput as error:
        return render_page(
            request, "policies.html", 400, name=topic, policies=policy_tables(broker.environment, topic), changed=name,
            problem=public_reason(error, DASHBOARD_WORDING), may_change=True,
        )  # fmt: skip
    return redirect_to_topic(topic, "/policies", changed=name)


def _execute_trim_form(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    before = without_commas(form.get("before", ""))
    place = parse_trim_position(before) if before else None
    trimmed = compaction.trim(broker, topic, place, dry_run=_is_dry_run(form), force=False)
    return _render_trim_reports(request, topic, form, [trim_document(result, wording=None) for result in trimmed])


def _is_dry_run(form: Form) -> bool:
    return form.get("do") != "trim"


def _trim_rest_call(request: Request, topic: TopicName, form: Form) -> RestCall:
    """Return the REST call that trims all partitions of a topic. A form with a message was refused before: it is one
    partition's."""
    path = f"trim?dryRun={'true' if _is_dry_run(form) else 'false'}"
    return RestCall(path, None, partial(_render_trim_reports, request, topic, form))


def _render_trim_reports(
    request: Request, topic: TopicName, form: Form, reports: Sequence[Mapping[str, Any]]
) -> Response:
    before = form.get("before", "").strip()
    return render_page(
        request, "trim.html", name=topic, before=before, reports=reports, is_dry=_is_dry_run(form), problem="",
        failure=None,
    )  # fmt: skip


def _render_trim_form(broker: Broker, request: Request, topic: TopicName, form: Form, refusal: Refusal) -> Response:
    names.topics(broker.environment, topic)
    failure, problem = failure_of_read(refusal.error), refusal.reason
    if failure is not None and refusal.error is not None:
        problem = redacted_excerpt(public_reason(refusal.error, PAGE_WITH_STEPS_WORDING))
    return render_page(
        request, "trim.html", refusal.status, name=topic, before=form.get("before", ""), reports=None, is_dry=True,
        problem=problem, failure=failure,
    )  # fmt: skip


def _compaction_control_handler(operate: Callable[[Environment, TopicName], object], result: str) -> Press:
    """Return the handler of a button that pauses, resumes or aborts a topic's compaction."""

    def press(broker: Broker, _request: Request, topic: TopicName, _: Form) -> Response:
        operate(broker.environment, topic)
        return redirect_to_topic(topic, done=result)

    return press


def _request_compaction(broker: Broker, request: Request, topic: TopicName, _: Form) -> Response:
    before = compaction.newest_run_id(broker.environment, topic)
    compaction.trigger(broker, topic, caller_of(request).name)
    return redirect_to_topic(topic, done="requested", after=before)


_EITHER = (AuthAction.COMPACT, AuthAction.ADMIN)
BUTTONS = (
    Button("compact", "compactNow", (AuthAction.COMPACT,), _request_compaction),
    Button("abort", "cancelNow", _EITHER, _compaction_control_handler(compaction.abort, "cancelled")),
    Button("pause", "pauseNow", _EITHER, _compaction_control_handler(compaction.pause, "paused")),
    Button("resume", "resumeNow", _EITHER, _compaction_control_handler(compaction.resume, "resumed")),
    Button("policies", "setPolicyNow", (AuthAction.ADMIN,), _change_policy),
    Button(
        "trim", "trimNow", (AuthAction.ADMIN,), _execute_trim_form, _render_trim_form, WaitsFor.WORK, _trim_rest_call
    ),
)
for _button in BUTTONS:
    add_button_routes(router, _button)
