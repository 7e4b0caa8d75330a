"""Message time to live and backlog quotas of namespaces and topics, by Pulsar's calls.

They are kept as the policies `message.ttl.seconds` and `backlog.quota.…` (docs/policies.md); what they do is said in
compactor/maintenance/backlog_limits.py. Of the two kinds of quota, `destination_storage` has a limit of bytes and
`message_age` one of seconds; the other number of a kind means nothing, as in a broker, and is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from api.admin import resolve
from api.admin.models import (
    UNREADABLE,
    LongBody,
    Strict,
    done,
    number_schema,
    unset,
)
from api.http.access import Action, allowed
from api.http.paths import Namespace, Topic
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.service import Parts, Service
from storage.metadata.policy_store import namespace_scope, topic_scope
from storage.model import TopicName
from storage.options import policies
from storage.options.policies import HOLD, TopicPolicies

router = Routes(prefix="/admin/v2", tags=["backlog"])

TTL = "message.ttl.seconds"
_TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/namespaces/{tenant}/{namespace}"
_NO_LIMIT = -1
_INT, _LONG = (1 << 31) - 1, (1 << 63) - 1
_BAD_TTL = "Invalid value for message TTL"
_LOOK = allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)
_TTL_BODY = number_schema("Seconds; 0: off.", 3600)
_TTL_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "Seconds; empty where none is set.", "content": {"application/json": {}}}
}


class QuotaType(StrEnum):
    """What a quota limits: the bytes of a backlog, or the age of its oldest message."""

    SIZE = "destination_storage"
    AGE = "message_age"

    @property
    def policy(self) -> str:
        """The policy that is its limit; the one that says what happens beyond is `….action`."""
        return "backlog.quota.bytes" if self is QuotaType.SIZE else "backlog.quota.seconds"


class OverQuotaAction(StrEnum):
    """What happens beyond a quota."""

    HOLD = policies.HOLD
    REFUSE = policies.REFUSE
    EVICT = policies.EVICT


class BacklogQuota(Strict):
    """A quota; -1: no limit. `limit` is an older name of `limitSize`."""

    limit: int | None = Field(None, ge=-1, le=_LONG)
    limitSize: int | None = Field(None, ge=-1, le=_LONG)  # noqa: N815
    limitTime: int | None = Field(None, ge=-1, le=_INT)  # noqa: N815
    policy: Annotated[OverQuotaAction, Field(strict=False)]

    def limit_of(self, kind: QuotaType) -> int:
        """Raises Problem (412) if the limit of that kind is not given."""
        if kind is QuotaType.AGE:
            name, found = "limitTime", self.limitTime
        else:
            name, found = "limitSize", self.limit if self.limitSize is None else self.limitSize
        if found is None:
            raise Problem(412, f"a backlog quota of the type {kind} needs {name}")
        return found


class BacklogQuotaDocument(BaseModel):
    """A quota as a broker shows it."""

    limit: int = _NO_LIMIT
    limitSize: int = _NO_LIMIT  # noqa: N815
    limitTime: int = _NO_LIMIT  # noqa: N815
    policy: str = HOLD


Quotas = dict[QuotaType, BacklogQuotaDocument]
Kind = Annotated[QuotaType, Query(alias="backlogQuotaType", description="Of bytes, or of age.")]
QuotaBody = Annotated[BacklogQuota, Body()]


@router.get(
    _NAMESPACE + "/messageTTL",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getNamespaceMessageTTL",
    response_model=None,
    responses=_TTL_ANSWER | refusals(404, 412),
)
def get_namespace_ttl(parts: Parts, namespace: Namespace) -> Response | int:
    """What is set for the namespace; an empty answer if nothing is."""
    return _shown(_of_namespace(parts, namespace).get(TTL))


@router.post(
    _NAMESPACE + "/messageTTL",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setNamespaceMessageTTL",
    status_code=204,
    openapi_extra=_TTL_BODY,
    responses=UNREADABLE | refusals(404, 412),
)
def set_namespace_ttl(parts: Parts, namespace: Namespace, seconds: LongBody) -> Response:
    """Set it for the namespace: older messages count as acknowledged by every subscription."""
    resolve.namespace(parts, namespace)
    parts.components.metadata.policies.set(namespace_scope(namespace), TTL, check_ttl(seconds))
    return done()


@router.delete(
    _NAMESPACE + "/messageTTL",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeNamespaceMessageTTL",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_namespace_ttl(parts: Parts, namespace: Namespace) -> Response:
    """Let the broker's hold again; none is no error."""
    resolve.namespace(parts, namespace)
    parts.components.metadata.policies.remove(namespace_scope(namespace), TTL)
    return done()


@router.get(
    _TOPIC + "/messageTTL",
    dependencies=[_LOOK],
    operation_id="getMessageTTL",
    response_model=None,
    responses=_TTL_ANSWER | refusals(404, 412),
)
def get_ttl(parts: Parts, topic: Topic, applied: bool = False) -> Response | int:
    """What is set for the topic, or an empty answer; `applied`: what holds for it, wherever it is set."""
    record = resolve.with_policies(parts, topic)[0]
    store = parts.components.metadata.policies
    if applied:
        return store.effective(record).message_ttl_seconds
    return _shown(store.of_scope(topic_scope(record)).get(TTL))


@router.post(
    _TOPIC + "/messageTTL",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setMessageTTL",
    status_code=204,
    responses=refusals(404, 412),
)
def set_ttl(
    parts: Parts, topic: Topic, seconds: Annotated[int, Query(alias="messageTTL", description="Seconds; 0: off.")]
) -> Response:
    """Set it for the topic, or for each of its partitions."""
    parts.components.metadata.policies.change(_scopes(parts, topic), {TTL: check_ttl(seconds)})
    return done()


@router.delete(
    _TOPIC + "/messageTTL",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeMessageTTL",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_ttl(parts: Parts, topic: Topic) -> Response:
    """Let the namespace's hold again; none is no error."""
    parts.components.metadata.policies.change(_scopes(parts, topic), {}, [TTL])
    return done()


@router.get(
    _NAMESPACE + "/backlogQuotaMap",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getNamespaceBacklogQuotaMap",
    responses=refusals(404, 412),
)
def get_namespace_quotas(parts: Parts, namespace: Namespace) -> Quotas:
    """What is set for the namespace, by type."""
    return quotas_of(_of_namespace(parts, namespace))


@router.post(
    _NAMESPACE + "/backlogQuota",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setNamespaceBacklogQuota",
    status_code=204,
    responses=refusals(404, 412),
)
def set_namespace_quota(parts: Parts, namespace: Namespace, quota: QuotaBody, kind: Kind = QuotaType.SIZE) -> Response:
    """Set one for the namespace."""
    resolve.namespace(parts, namespace)
    set_quota(parts, [namespace_scope(namespace)], kind, quota)
    return done()


@router.delete(
    _NAMESPACE + "/backlogQuota",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeNamespaceBacklogQuota",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_namespace_quota(parts: Parts, namespace: Namespace, kind: Kind = QuotaType.SIZE) -> Response:
    """Let the broker's hold again; none is no error."""
    resolve.namespace(parts, namespace)
    _remove_quota(parts, [namespace_scope(namespace)], kind)
    return done()


@router.get(
    _TOPIC + "/backlogQuotaMap",
    dependencies=[_LOOK],
    operation_id="getBacklogQuotaMap",
    responses=refusals(404, 412),
)
def get_quotas(parts: Parts, topic: Topic, applied: bool = False) -> Quotas:
    """What is set for the topic, by type; `applied`: what holds for it, wherever it is set."""
    record = resolve.with_policies(parts, topic)[0]
    store = parts.components.metadata.policies
    return applied_quotas(store.effective(record)) if applied else quotas_of(store.of_scope(topic_scope(record)))


@router.post(
    _TOPIC + "/backlogQuota",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="setBacklogQuota",
    status_code=204,
    responses=refusals(404, 412),
)
def set_topic_quota(parts: Parts, topic: Topic, quota: QuotaBody, kind: Kind = QuotaType.SIZE) -> Response:
    """Set one for the topic, or for each of its partitions."""
    set_quota(parts, _scopes(parts, topic), kind, quota)
    return done()


@router.delete(
    _TOPIC + "/backlogQuota",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="removeBacklogQuota",
    status_code=204,
    responses=refusals(404, 412),
)
def remove_topic_quota(parts: Parts, topic: Topic, kind: Kind = QuotaType.SIZE) -> Response:
    """Let the namespace's hold again; none is no error."""
    _remove_quota(parts, _scopes(parts, topic), kind)
    return done()


def check_ttl(seconds: int) -> int:
    """Raises Problem (412) for what is no time to live."""
    if not 0 <= seconds <= _INT:
        raise Problem(412, _BAD_TTL)
    return seconds


def quotas_of(settings: Mapping[str, object]) -> Quotas:
    """The quotas that one scope has set."""
    return {
        kind: _document(kind, limit, str(settings.get(f"{kind.policy}.action", HOLD)))
        for kind in QuotaType
        if isinstance(limit := settings.get(kind.policy), int)
    }


def applied_quotas(held: TopicPolicies) -> Quotas:
    """The quotas that hold for a topic; there is one of each type."""
    return {
        QuotaType.SIZE: _document(QuotaType.SIZE, held.backlog_quota_bytes, held.backlog_quota_bytes_action),
        QuotaType.AGE: _document(QuotaType.AGE, held.backlog_quota_seconds, held.backlog_quota_seconds_action),
    }


def set_quota(parts: Service, scopes: list[str], kind: QuotaType, quota: BacklogQuota) -> None:
    """In each of these scopes, limit and action, or in none. Raises Problem (412)."""
    values = {kind.policy: quota.limit_of(kind), f"{kind.policy}.action": quota.policy}
    parts.components.metadata.policies.change(scopes, values)


def _remove_quota(parts: Service, scopes: list[str], kind: QuotaType) -> None:
    parts.components.metadata.policies.change(scopes, {}, [kind.policy, f"{kind.policy}.action"])


def _scopes(parts: Service, topic: TopicName) -> list[str]:
    """Of the topic, or of its partitions."""
    return list(map(topic_scope, resolve.with_policies(parts, topic)))


def _document(kind: QuotaType, limit: int, action: str) -> BacklogQuotaDocument:
    if kind is QuotaType.AGE:
        return BacklogQuotaDocument(limitTime=limit, policy=action)
    return BacklogQuotaDocument(limit=limit, limitSize=limit, policy=action)


def _of_namespace(parts: Service, namespace: str) -> dict[str, object]:
    resolve.namespace(parts, namespace)
    return parts.components.metadata.policies.of_scope(namespace_scope(namespace))


def _shown(value: object) -> Response | int:
    return value if isinstance(value, int) else unset()
