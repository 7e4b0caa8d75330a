"""Policies (S1–S3, C1 and all others of docs/policies.md) of topics, namespaces and the broker: get, set, remove.

What is shown is what holds in the end, with where it comes from; with `applied=false` only what the scope itself sets.
Values are JSON values, or texts as the command line takes them. A partitioned topic's are kept with its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, Path, Query
from pydantic import BaseModel, BeforeValidator
from starlette.responses import Response

from api.admin import resolve
from api.admin.models import (
    UNREADABLE,
    LongBody,
    done,
    number_schema,
    unset,
)
from api.http import json_bounds
from api.http.access import Action, allowed
from api.http.paths import Namespace, Topic, decoded
from api.http.problems import Problem, refusals
from api.http.query_parameters import KNOWN_QUERY
from api.http.routes import Routes
from api.reports import policies_document, settings_document
from api.service import Parts, Service
from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope
from storage.metadata.records import TopicRecord
from storage.model import TopicName
from storage.options import policies
from storage.options.resolution import Origin

router = Routes(prefix="/admin/v2", tags=["policies"])

_TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/namespaces/{tenant}/{namespace}"
_BROKER = "/brokers"
MESSAGES = "compaction.threshold.messages"
_NO_POLICY = "a policy's own name, or one of its aliases; docs/policies.md has them all"


class UnreadableValue(BaseModel):
    """A stored value that this version cannot read, where it is set, and why."""

    value: Any
    origin: Origin
    reason: str


class Policy(BaseModel):
    """A value, and where it comes from: topic, namespace, broker, file or default. `unreadable`: that value would count
    if it could be read, and this one does instead."""

    value: Any
    origin: Origin
    unreadable: UnreadableValue | None = None


Policies = dict[str, Policy]
Applied = Annotated[bool, Query(description="What holds in the end; false: only what is set in this scope.")]
Name = Annotated[str, Path(description=_NO_POLICY)]
Values = Annotated[dict[str, Any], Body(description="Values by name.")]


def _of_json(body: object) -> object:
    """The value of a body that came without a JSON content type, as `curl -d` sends it."""
    if not isinstance(body, bytes):
        return body
    try:
        return json_bounds.load(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON value") from None


Value = Annotated[Any, BeforeValidator(_of_json), Body(description="A JSON value.")]

_MAY_LOOK = allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT, Action.ADMIN)


@router.get(
    _TOPIC + "/policies",
    dependencies=[_MAY_LOOK, KNOWN_QUERY],
    operation_id="getTopicPolicies",
    response_model_exclude_unset=True,
    responses=refusals(404, 412),
)
def of_topic(parts: Parts, topic: Topic, applied: Applied = True) -> Policies:
    """The policies of a topic."""
    return _of_topic(parts, topic, applied)


@router.get(
    _TOPIC + "/policies/{name}",
    dependencies=[_MAY_LOOK, KNOWN_QUERY],
    operation_id="getTopicPolicy",
    response_model_exclude_unset=True,
    responses=refusals(400, 404, 412),
)
def one_of_topic(parts: Parts, topic: Topic, name: Name, applied: Applied = True) -> Policy:
    """One policy of a topic. 404 if it is not set in this scope, and nothing else was asked for."""
    return _one(_of_topic(parts, topic, applied), name)


@router.put(
    _TOPIC + "/policies",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="setTopicPolicies",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def set_of_topic(parts: Parts, topic: Topic, values: Values) -> Response:
    """Set several policies of a topic; the others stay."""
    return _set_of_topic(parts, topic, values)


@router.put(
    _TOPIC + "/policies/{name}",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="setTopicPolicy",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def set_one_of_topic(parts: Parts, topic: Topic, name: Name, value: Value) -> Response:
    """Set a policy of a topic."""
    return _set_of_topic(parts, topic, {decoded(name): value})


@router.delete(
    _TOPIC + "/policies",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="removeTopicPolicies",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_of_topic(parts: Parts, topic: Topic) -> Response:
    """Let the namespace's policies, or wider ones, count again."""
    return _remove(parts, _topic_scopes(parts, topic), None)


@router.delete(
    _TOPIC + "/policies/{name}",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="removeTopicPolicy",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def remove_one_of_topic(parts: Parts, topic: Topic, name: Name) -> Response:
    """Let the next wider scope count again."""
    return _remove(parts, _topic_scopes(parts, topic), decoded(name))


@router.get(
    _NAMESPACE + "/policies",
    dependencies=[_MAY_LOOK, KNOWN_QUERY],
    operation_id="getNamespacePolicies",
    response_model_exclude_unset=True,
    responses=refusals(404, 412),
)
def of_namespace(parts: Parts, namespace: Namespace, applied: Applied = True) -> Policies:
    """What a topic of the namespace has that sets nothing itself."""
    return _of_scope(parts, _namespace_scope(parts, namespace), Origin.NAMESPACE, applied)


@router.get(
    _NAMESPACE + "/policies/{name}",
    dependencies=[_MAY_LOOK, KNOWN_QUERY],
    operation_id="getNamespacePolicy",
    response_model_exclude_unset=True,
    responses=refusals(400, 404, 412),
)
def one_of_namespace(parts: Parts, namespace: Namespace, name: Name, applied: Applied = True) -> Policy:
    """One policy of a namespace."""
    return _one(_of_scope(parts, _namespace_scope(parts, namespace), Origin.NAMESPACE, applied), name)


@router.put(
    _NAMESPACE + "/policies",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="setNamespacePolicies",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def set_of_namespace(parts: Parts, namespace: Namespace, values: Values) -> Response:
    """Set several policies of a namespace; the others stay."""
    return _set(parts, [_namespace_scope(parts, namespace)], values)


@router.put(
    _NAMESPACE + "/policies/{name}",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="setNamespacePolicy",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def set_one_of_namespace(parts: Parts, namespace: Namespace, name: Name, value: Value) -> Response:
    """Set a policy of a namespace."""
    return _set(parts, [_namespace_scope(parts, namespace)], {decoded(name): value})


@router.delete(
    _NAMESPACE + "/policies/{name}",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="removeNamespacePolicy",
    status_code=204,
    responses=refusals(400, 404, 412),
)
def remove_one_of_namespace(parts: Parts, namespace: Namespace, name: Name) -> Response:
    """Let the broker's count again."""
    return _remove(parts, [_namespace_scope(parts, namespace)], decoded(name))


@router.get(
    _BROKER + "/policies",
    dependencies=[allowed(Action.ANYONE), KNOWN_QUERY],
    operation_id="getBrokerPolicies",
    response_model_exclude_unset=True,
)
def of_broker(parts: Parts, applied: Applied = True) -> Policies:
    """What a topic has that nobody sets anything for but the broker."""
    return _of_scope(parts, BROKER, Origin.BROKER, applied)


@router.get(
    _BROKER + "/policies/{name}",
    dependencies=[allowed(Action.ANYONE), KNOWN_QUERY],
    operation_id="getBrokerPolicy",
    response_model_exclude_unset=True,
    responses=refusals(400, 404),
)
def one_of_broker(parts: Parts, name: Name, applied: Applied = True) -> Policy:
    """One policy of the broker."""
    return _one(_of_scope(parts, BROKER, Origin.BROKER, applied), name)


@router.put(
    _BROKER + "/policies",
    dependencies=[allowed(Action.SUPERUSER), KNOWN_QUERY],
    operation_id="setBrokerPolicies",
    status_code=204,
    responses=refusals(400),
)
def set_of_broker(parts: Parts, values: Values) -> Response:
    """Set several policies of the broker; the others stay."""
    return _set(parts, [BROKER], values)


@router.put(
    _BROKER + "/policies/{name}",
    dependencies=[allowed(Action.SUPERUSER), KNOWN_QUERY],
    operation_id="setBrokerPolicy",
    status_code=204,
    responses=refusals(400),
)
def set_one_of_broker(parts: Parts, name: Name, value: Value) -> Response:
    """Set a policy of the broker."""
    return _set(parts, [BROKER], {decoded(name): value})


@router.delete(
    _BROKER + "/policies/{name}",
    dependencies=[allowed(Action.SUPERUSER), KNOWN_QUERY],
    operation_id="removeBrokerPolicy",
    status_code=204,
    responses=refusals(400),
)
def remove_one_of_broker(parts: Parts, name: Name) -> Response:
    """Let the default count again."""
    return _remove(parts, [BROKER], decoded(name))


_NUMBER = number_schema("Messages behind the horizon that are still no reason to compact; 0: off.", 10_000)
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "Messages; empty where none is set.", "content": {"application/json": {}}}
}


@router.get(
    _TOPIC + "/compactionThresholdMessages",
    dependencies=[_MAY_LOOK, KNOWN_QUERY],
    operation_id="getCompactionThresholdMessages",
    response_model=None,
    responses=_ANSWER | refusals(404, 412),
)
def message_threshold(parts: Parts, topic: Topic, applied: bool = False) -> Response | int:
    """What is set for the topic, or what holds; an empty answer if nothing is set."""
    found = _of_topic(parts, topic, applied).get(MESSAGES)
    return unset() if found is None else int(found.value)


@router.post(
    _TOPIC + "/compactionThresholdMessages",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="setCompactionThresholdMessages",
    status_code=204,
    openapi_extra=_NUMBER,
    responses=UNREADABLE | refusals(404, 412),
)
def set_message_threshold(parts: Parts, topic: Topic, threshold: LongBody) -> Response:
    """Set it for the topic."""
    if threshold < 0:
        raise Problem(412, "Invalid value for compactionThresholdMessages")
    return _set_of_topic(parts, topic, {MESSAGES: threshold})


@router.delete(
    _TOPIC + "/compactionThresholdMessages",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="removeCompactionThresholdMessages",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_message_threshold(parts: Parts, topic: Topic) -> Response:
    """Let the namespace's count again."""
    return _remove(parts, _topic_scopes(parts, topic), MESSAGES)


def _of_topic(parts: Service, topic: TopicName, applied: bool) -> Policies:
    record = _with_policies(parts, topic)[0]
    store = parts.components.metadata.policies
    if applied:
        return _shown(policies_document(store.resolved(record)))
    return _shown(settings_document(store.settings(topic_scope(record)), Origin.TOPIC))


def _of_scope(parts: Service, scope: str, origin: Origin, applied: bool) -> Policies:
    store = parts.components.metadata.policies
    if applied:
        return _shown(policies_document(store.resolved_around(scope)))
    return _shown(settings_document(store.settings(scope), origin))


def _shown(document: Mapping[str, Any]) -> Policies:
    return {name: Policy.model_validate(one) for name, one in document.items()}


def _one(found: Policies, name: str) -> Policy:
    known = policies.policy(decoded(name)).name
    if known not in found:
        raise Problem(404, f"{known} is not set in this scope")
    return found[known]


def _set_of_topic(parts: Service, topic: TopicName, values: Mapping[str, object]) -> Response:
    return _set(parts, _topic_scopes(parts, topic), values)


def _set(parts: Service, scopes: list[str], values: Mapping[str, object]) -> Response:
    parts.components.metadata.policies.change(scopes, values)
    return done()


def _remove(parts: Service, scopes: list[str], name: str | None) -> Response:
    parts.components.metadata.policies.change(scopes, {}, None if name is None else [name])
    return done()


def _topic_scopes(parts: Service, topic: TopicName) -> list[str]:
    return [topic_scope(record) for record in _with_policies(parts, topic)]


def _with_policies(parts: Service, topic: TopicName) -> list[TopicRecord]:
    found = resolve.with_policies(parts, topic)
    if not found:
        raise Problem(404, f"{topic} has no partitions left")
    return found


def _namespace_scope(parts: Service, namespace: str) -> str:
    resolve.namespace(parts, namespace)
    return namespace_scope(namespace)
