"""Compaction thresholds in bytes, of namespaces and topics (S1): the policy `compaction.threshold.bytes`; 0: off."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from api.admin import resolve
from api.admin.models import (
    UNREADABLE,
    LongBody,
    done,
    number_schema,
    unset,
)
from api.http.access import Action, allowed
from api.http.paths import Namespace, Topic
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.service import Parts
from storage.metadata.policy_store import namespace_scope, topic_scope

router = Routes(prefix="/admin/v2", tags=["compaction"])

THRESHOLD = "compaction.threshold.bytes"
_BODY = number_schema("Bytes behind the horizon that are still no reason to compact; 0: off.", 1_048_576)
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "Bytes; empty where none is set.", "content": {"application/json": {}}}
}


@router.get(
    "/namespaces/{tenant}/{namespace}/compactionThreshold",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getNamespaceCompactionThreshold",
    response_model=None,
    responses=_ANSWER | refusals(404, 412),
)
def get_namespace_threshold(parts: Parts, namespace: Namespace) -> Response | int:
    """What is set for the namespace; an empty answer if nothing is."""
    resolve.namespace(parts, namespace)
    return _shown(parts.components.metadata.policies.of_scope(namespace_scope(namespace)).get(THRESHOLD))


@router.put(
    "/namespaces/{tenant}/{namespace}/compactionThreshold",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setNamespaceCompactionThreshold",
    status_code=204,
    openapi_extra=_BODY,
    responses=UNREADABLE | refusals(404, 412),
)
def set_namespace_threshold(parts: Parts, namespace: Namespace, threshold: LongBody) -> Response:
    """Set it for the namespace."""
    resolve.namespace(parts, namespace)
    if threshold < 0:
        raise Problem(412, "compactionThreshold must be 0 or more")
    parts.components.metadata.policies.set(namespace_scope(namespace), THRESHOLD, threshold)
    return done()


@router.delete(
    "/namespaces/{tenant}/{namespace}/compactionThreshold",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeNamespaceCompactionThreshold",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_namespace_threshold(parts: Parts, namespace: Namespace) -> Response:
    """Let the broker's hold again; none is no error."""
    resolve.namespace(parts, namespace)
    parts.components.metadata.policies.remove(namespace_scope(namespace), THRESHOLD)
    return done()


@router.get(
    "/persistent/{tenant}/{namespace}/{topic}/compactionThreshold",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="getCompactionThreshold",
    response_model=None,
    responses=_ANSWER | refusals(404, 412),
)
def get_threshold(parts: Parts, topic: Topic, applied: bool = False) -> Response | int:
    """What is set for the topic, or an empty answer; `applied`: what holds for it, wherever it is set."""
    record = next(iter(resolve.with_policies(parts, topic)))
    policies = parts.components.metadata.policies
    if applied:
        return policies.effective(record).compaction_threshold_bytes
    return _shown(policies.of_scope(topic_scope(record)).get(THRESHOLD))


@router.post(
    "/persistent/{tenant}/{namespace}/{topic}/compactionThreshold",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setCompactionThreshold",
    status_code=204,
    openapi_extra=_BODY,
    responses=UNREADABLE | refusals(404, 412),
)
def set_threshold(parts: Parts, topic: Topic, threshold: LongBody) -> Response:
    """Set it for the topic, or for each of its partitions."""
    records = resolve.with_policies(parts, topic)
    if threshold < 0:
        raise Problem(412, "Invalid value for compactionThreshold")
    parts.components.metadata.policies.change(list(map(topic_scope, records)), {THRESHOLD: threshold})
    return done()


@router.delete(
    "/persistent/{tenant}/{namespace}/{topic}/compactionThreshold",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeCompactionThreshold",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_threshold(parts: Parts, topic: Topic) -> Response:
    """Let the namespace's hold again; none is no error."""
    scopes = list(map(topic_scope, resolve.with_policies(parts, topic)))
    parts.components.metadata.policies.change(scopes, {}, [THRESHOLD])
    return done()


def _shown(value: object) -> Response | int:
    return value if isinstance(value, int) else unset()
