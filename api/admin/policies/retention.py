"""Retention of namespaces and topics, as Pulsar has it: minutes and MiB, -1 for no limit.

It is kept as the policies `retention.minutes` and `retention.bytes` (docs/policies.md), and matters where the cleanup
policy has `delete`; where that has not and nobody sets a retention, everything is kept. Set here, it takes the place of
`retention.ms` and `retention.hours` of the same scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from fastapi import Body
from pydantic import Field
from starlette.responses import Response

from api.admin import resolve
from api.admin.models import Strict, done, unset
from api.http.access import Action, allowed
from api.http.paths import Namespace, Topic
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.service import Parts, Service
from compactor.maintenance.retention_plan import DELETE
from storage.metadata.policy_store import namespace_scope, topic_scope
from storage.options.resolution import Origin

router = Routes(prefix="/admin/v2", tags=["retention"])

_MIB = 1 << 20
_MINUTES, _BYTES = "retention.minutes", "retention.bytes"
_TIMES = {"retention.ms": (1, 60_000), _MINUTES: (1, 1), "retention.hours": (60, 1)}
"""The policies of retention by time, the first that is set counts; how many minutes how many of them are."""
_INT, _LONG = (1 << 31) - 1, (1 << 63) - 1
_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
    "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits "
    "must be set to 0."
)


class Retention(Strict):
    """How long, and how much, is kept."""

    retentionTimeInMinutes: int = Field(0, le=_INT, ge=-_INT - 1)  # noqa: N815
    retentionSizeInMB: int = Field(0, le=_LONG // _MIB, ge=-_LONG)  # noqa: N815


RetentionBody = Annotated[Retention, Body()]
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"model": Retention, "description": "Empty where it is not set."}}


@router.get(
    "/namespaces/{tenant}/{namespace}/retention",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getNamespaceRetention",
    response_model=None,
    responses=_ANSWER | refusals(404, 412),
)
def get_namespace_retention(parts: Parts, namespace: Namespace) -> Response | dict[str, int]:
    """What is set for the namespace; an empty answer if nothing is."""
    resolve.namespace(parts, namespace)
    found = retention_of(parts.components.metadata.policies.of_scope(namespace_scope(namespace)))
    return unset() if found is None else found


@router.post(
    "/namespaces/{tenant}/{namespace}/retention",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setNamespaceRetention",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def set_namespace_retention(parts: Parts, namespace: Namespace, retention: RetentionBody) -> Response:
    """Set it for the namespace."""
    resolve.namespace(parts, namespace)
    set_retention(parts, [namespace_scope(namespace)], retention)
    return done()


@router.delete(
    "/namespaces/{tenant}/{namespace}/retention",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeNamespaceRetention",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_namespace_retention(parts: Parts, namespace: Namespace) -> Response:
    """Let the broker's hold again."""
    resolve.namespace(parts, namespace)
    remove_retention(parts, [namespace_scope(namespace)])
    return done()


@router.get(
    "/persistent/{tenant}/{namespace}/{topic}/retention",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="getTopicRetention",
    response_model=None,
    responses=_ANSWER | refusals(404, 412),
)
def get_topic_retention(parts: Parts, topic: Topic, applied: bool = False) -> Response | dict[str, int]:
    """What is set for the topic; `applied`: what holds for it, wherever it is set."""
    record = next(iter(resolve.with_policies(parts, topic)))
    policies = parts.components.metadata.policies
    if not applied:
        found = retention_of(policies.of_scope(topic_scope(record)))
        return unset() if found is None else found
    resolved = policies.resolved(record)
    held, origins = resolved.policies, resolved.origins
    if DELETE not in held.cleanup_policy and {origins[name] for name in (*_TIMES, _BYTES)} == {Origin.DEFAULT}:
        return _document(-1, -1)  # the default of Kafka's policy `delete`, which does not hold here
    time = held.retention_ms_effective
    return _document(-1 if time is None else time // 60_000, held.retention_bytes)


@router.post(
    "/persistent/{tenant}/{namespace}/{topic}/retention",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setTopicRetention",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def set_topic_retention(parts: Parts, topic: Topic, retention: RetentionBody) -> Response:
    """Set it for the topic, or all its partitions."""
    set_retention(parts, list(map(topic_scope, resolve.with_policies(parts, topic))), retention)
    return done()


@router.delete(
    "/persistent/{tenant}/{namespace}/{topic}/retention",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeTopicRetention",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_topic_retention(parts: Parts, topic: Topic) -> Response:
    """Let the namespace's hold again."""
    remove_retention(parts, list(map(topic_scope, resolve.with_policies(parts, topic))))
    return done()


def retention_of(settings: Mapping[str, object]) -> dict[str, int] | None:
    """What one scope has set; None: nothing of it."""
    times = (
        cast(int, settings[one]) * minutes // of_them
        for one, (minutes, of_them) in _TIMES.items()
        if settings.get(one) is not None
    )
    time = next(times, None)
    size = cast("int | None", settings.get(_BYTES))
    if time is None and size is None:
        return None
    return _document(-1 if time is None else max(time, -1), -1 if size is None else size)


def check_retention(retention: Retention) -> None:
    """Raises Problem 412 for what a broker refuses."""
    time, size = retention.retentionTimeInMinutes, retention.retentionSizeInMB
    for what, value in (("size", size), ("time", time)):
        if value < -1:
            raise Problem(412, f"Invalid retention policy: {what} limit must be >= -1")
    if (time == 0) != (size == 0):
        raise Problem(412, _ZERO)


def set_retention(parts: Service, scopes: list[str], retention: Retention) -> None:
    """In each of these scopes, or in none. Raises Problem 412 for what a broker refuses."""
    check_retention(retention)
    time, size = retention.retentionTimeInMinutes, retention.retentionSizeInMB
    values = {_MINUTES: time, _BYTES: size * _MIB if size > 0 else size}
    parts.components.metadata.policies.change(scopes, values, _TIMES.keys() - {_MINUTES})


def remove_retention(parts: Service, scopes: list[str]) -> None:
    """In each of these scopes, or in none."""
    parts.components.metadata.policies.change(scopes, {}, [*_TIMES, _BYTES])


def _document(minutes: int, size: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size // _MIB if size > 0 else size}
