"""Backlog quotas of namespaces and topics, by Pulsar's calls.

They are stored as the policies `backlog.quota.…` (docs/policies.md); compactor/maintenance/backlog_limits.py enforces
them. Of the two kinds of quota, `destination_storage` has a limit of bytes and `message_age` one of seconds; the other
number of a kind means nothing, as in a broker, and is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from fastapi import Body, Query
from pydantic import Field

from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.problems import RestException
from api.http.router import Routes
from api.rest.models import INT, LONG, PulsarAnswer, PulsarBody
from api.rest.policies.scopes import NAMESPACE, TOPIC, PolicyScope, ScopeKind
from storage.options import policies
from storage.options.policies import HOLD, TopicPolicies

router = Routes("backlog")

_NO_LIMIT = -1


class QuotaType(StrEnum):
    """The measure that a quota limits: the bytes of a backlog, or the age of its oldest message."""

    SIZE = "destination_storage"
    AGE = "message_age"

    @property
    def policy(self) -> str:
        """Return the name of the policy with its limit; `….action` is the policy with the action beyond it."""
        return "backlog.quota.bytes" if self is QuotaType.SIZE else "backlog.quota.seconds"


class OverQuotaAction(StrEnum):
    """The action beyond a quota."""

    HOLD = policies.HOLD
    REFUSE = policies.REFUSE
    EVICT = policies.EVICT


class BacklogQuota(PulsarBody):
    """A quota; -1: no limit. `limit` is an older name of `limitSize`."""

    limit: int | None = Field(None, ge=-1, le=LONG)
    limit_size: int | None = Field(None, ge=-1, le=LONG)
    limit_time: int | None = Field(None, ge=-1, le=INT)
    policy: Annotated[OverQuotaAction, Field(strict=False)]

    def limit_of(self, kind: QuotaType) -> int:
        """Return the limit of that kind. Raises RestException (412) if the quota has none."""
        if kind is QuotaType.AGE:
            name, limit = "limitTime", self.limit_time
        else:
            name, limit = "limitSize", self.limit if self.limit_size is None else self.limit_size
        if limit is None:
            raise RestException(412, f"a backlog quota of the type {kind} needs {name}")
        return limit


class BacklogQuotaDocument(PulsarAnswer):
    """A quota as a broker shows it."""

    limit: int = _NO_LIMIT
    limit_size: int = _NO_LIMIT
    limit_time: int = _NO_LIMIT
    policy: str = HOLD


Quotas = dict[QuotaType, BacklogQuotaDocument]
Kind = Annotated[QuotaType, Query(alias="backlogQuotaType", description="Of bytes, or of age.")]
QuotaBody = Annotated[BacklogQuota, Body()]


def _offer(scope_kind: ScopeKind, label: str) -> None:
    """Register the routes of one scope. `label`: in operation ids."""
    path, reads = scope_kind.path, ANY_USE if scope_kind is TOPIC else (AuthAction.ADMIN,)

    def set_in(broker: Broker, scope: PolicyScope) -> Quotas:
        return quotas_of(broker.environment.metadata.policies.of_scope(scope.keys(broker)[0]))

    def get_set(broker: Broker, scope: PolicyScope = scope_kind.of) -> Quotas:
        """The quotas that the scope sets, by type."""
        return set_in(broker, scope)

    def get_applied(broker: Broker, scope: PolicyScope = scope_kind.of, applied: bool = False) -> Quotas:
        """The quotas that the topic sets, by type; `applied`: those that hold for it, wherever they are set."""
        return applied_quotas(scope.resolved(broker).policies) if applied else set_in(broker, scope)

    get = get_applied if scope_kind is TOPIC else get_set
    router.get(path + "/backlogQuotaMap", *reads, operation_id=f"get{label}BacklogQuotaMap")(get)

    @router.post(path + "/backlogQuota", AuthAction.ADMIN, operation_id=f"set{label}BacklogQuota")
    def set_quota(
        broker: Broker, quota: QuotaBody, scope: PolicyScope = scope_kind.of, kind: Kind = QuotaType.SIZE
    ) -> None:
        """Set one for the scope; of a partitioned topic, for each of its partitions."""
        keys = scope.keys(broker)
        broker.environment.metadata.policies.change(keys, quota_values(kind, quota))

    @router.delete(path + "/backlogQuota", AuthAction.ADMIN, operation_id=f"remove{label}BacklogQuota")
    def remove_quota(broker: Broker, scope: PolicyScope = scope_kind.of, kind: Kind = QuotaType.SIZE) -> None:
        """Remove it: the next wider scope counts again. It is no error if the scope does not set it."""
        scope.change(broker, {}, [kind.policy, f"{kind.policy}.action"])


_offer(NAMESPACE, "Namespace")
_offer(TOPIC, "")


def quotas_of(settings: Mapping[str, object]) -> Quotas:
    """Return the quotas that one scope sets."""
    return {
        kind: _model(kind, limit, str(settings.get(f"{kind.policy}.action", HOLD)))
        for kind in QuotaType
        if isinstance(limit := settings.get(kind.policy), int)
    }


def applied_quotas(held: TopicPolicies) -> Quotas:
    """Return the quotas that hold for a topic, one of each type."""
    return {
        QuotaType.SIZE: _model(QuotaType.SIZE, held.backlog_quota_bytes, held.backlog_quota_bytes_action),
        QuotaType.AGE: _model(QuotaType.AGE, held.backlog_quota_seconds, held.backlog_quota_seconds_action),
    }


def quota_values(kind: QuotaType, quota: BacklogQuota) -> dict[str, object]:
    """Return the policies to set. Raises RestException (412)."""
    return {kind.policy: quota.limit_of(kind), f"{kind.policy}.action": quota.policy}


def _model(kind: QuotaType, limit: int, action: str) -> BacklogQuotaDocument:
    if kind is QuotaType.AGE:
        return BacklogQuotaDocument(limit_time=limit, policy=action)
    return BacklogQuotaDocument(limit=limit, limit_size=limit, policy=action)
