"""Routes of policies by Pulsar's own calls, generated from the table `api/broker/pulsar_policies.py`.

Each policy has GET, DELETE, and POST or PUT, for a topic and for a namespace. A GET answers the value that the scope
sets, or an empty body if it sets none; for a topic, with `applied`, the value that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Body, Depends, Query
from pydantic import Field

from api.broker import policies
from api.broker.policies import PolicyScope
from api.broker.pulsar_policies import (
    PULSAR_POLICIES,
    NumberPolicy,
    PulsarPolicy,
    QuotaPolicy,
    QuotaType,
    RetentionPolicy,
    StrategyPolicy,
)
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.query_parameters import KNOWN_QUERY
from api.http.router import Routes
from api.rest.models import (
    INT,
    LONG,
    UNREADABLE,
    PulsarAnswer,
    PulsarBody,
    int64_body,
    number_body_schema,
    unset_policy_answer,
)
from api.rest.policies.scopes import KINDS, TOPIC
from storage.options.policies import EVICT, HOLD, POLICIES, REFUSE, SchemaCompatibilityStrategy
from storage.options.resolution import PolicyOrigin

_ROUTES = {policy.tag: Routes(policy.tag) for policy in PULSAR_POLICIES}
ROUTERS = tuple(_ROUTES.values())


class RetentionPolicies(PulsarBody):
    """For how long, and up to which size, messages are retained."""

    retention_time_in_minutes: int = Field(0, le=INT, ge=-INT - 1)
    retention_size_in_mb: int = Field(0, alias="retentionSizeInMB", le=LONG // (1 << 20), ge=-LONG)


class OverQuotaAction(StrEnum):
    """The action when a backlog is over its quota."""

    HOLD = HOLD
    REFUSE = REFUSE
    EVICT = EVICT


class BacklogQuota(PulsarBody):
    """A backlog quota: `limitSize` in bytes, `limitTime` in seconds; -1: no limit. `limit` is an older name of
    `limitSize`."""

    limit: int | None = Field(None, ge=-1, le=LONG)
    limit_size: int | None = Field(None, ge=-1, le=LONG)
    limit_time: int | None = Field(None, ge=-1, le=INT)
    policy: Annotated[OverQuotaAction, Field(strict=False)]


class BacklogQuotaDocument(PulsarAnswer):
    """A quota as a broker shows it."""

    limit: int = -1
    limit_size: int = -1
    limit_time: int = -1
    policy: str = HOLD


QuotaKind = Annotated[QuotaType, Query(alias="backlogQuotaType", description="Of bytes, or of age.")]


async def _retention_body(retention: Annotated[RetentionPolicies, Body()]) -> dict[str, int]:
    return retention.model_dump(by_alias=True)


async def _quota_body(
    quota: Annotated[BacklogQuota, Body()], kind: QuotaKind = QuotaType.SIZE
) -> dict[QuotaType, dict[str, Any]]:
    return {kind: quota.model_dump(by_alias=True)}


async def _quota_policy_names(kind: QuotaKind = QuotaType.SIZE) -> Sequence[str]:
    return kind.policy_names


async def _flag_body(enabled: Annotated[bool, Body(description="`true`: on; `false`: off.")]) -> bool:
    return enabled


async def _strategy_body(strategy: Annotated[SchemaCompatibilityStrategy, Body()]) -> SchemaCompatibilityStrategy:
    return strategy


_VALUES: Mapping[type[PulsarPolicy], Callable[..., Any]] = {
    PulsarPolicy: _flag_body,
    NumberPolicy: int64_body,
    StrategyPolicy: _strategy_body,
    RetentionPolicy: _retention_body,
    QuotaPolicy: _quota_body,
}
"""The dependency of a route that reads a wire value, by class of policies."""


def _query_number_dependency(name: str, description: str) -> Callable[..., Any]:
    """Return a route's dependency that reads the whole number `name` from the query."""

    async def number(value: int = Query(alias=name, description=description)) -> int:
        return value

    return number


def _policy_description(policy: PulsarPolicy) -> str:
    """Return the OpenAPI description of a policy's value: the name of the stored policy, which has the unit, and its
    documentation."""
    return f"`{policy.names[0]}`: {POLICIES[policy.names[0]].doc}"


def _answer_options(policy: PulsarPolicy) -> dict[str, Any]:
    """Return the options of a route that declare the answer with the value of a policy."""
    if isinstance(policy, QuotaPolicy):
        return {"response_model": dict[QuotaType, BacklogQuotaDocument]}
    if isinstance(policy, RetentionPolicy):
        answer = {"model": RetentionPolicies, "description": "Empty where it is not set."}
    else:
        answer = {
            "description": f"The value of `{policy.names[0]}`; empty where none is set.",
            "content": {"application/json": {}},
        }
    return {"response_model": None, "responses": {200: answer}}


def _register_routes(policy: PulsarPolicy, origin: PolicyOrigin) -> None:
    """Register the routes of a policy in the scope `origin`: get, set, remove."""
    endpoints, kind, routes = policy.endpoints[origin], KINDS[origin], _ROUTES[policy.tag]
    path = f"{kind.path}/{endpoints.path}"
    label = endpoints.label or ("" if kind is TOPIC else kind.label)
    readers, needs = ((*ANY_USE, AuthAction.ADMIN), [KNOWN_QUERY]) if endpoints.is_extension else (kind.readers, [])
    is_quota = isinstance(policy, QuotaPolicy)
    body: dict[str, Any] = {}
    value_read = Depends(_VALUES[type(policy)])
    if endpoints.is_query:
        value_read = Depends(_query_number_dependency(endpoints.path, _policy_description(policy)))
    elif isinstance(policy, NumberPolicy):
        schema = number_body_schema(_policy_description(policy), policy.example)
        body = {"openapi_extra": schema, "responses": UNREADABLE}

    async def all_names() -> Sequence[str]:
        return policy.names

    names_read = Depends(_quota_policy_names if is_quota else all_names)

    def get_set(broker: Broker, scope: PolicyScope = kind.dependency) -> Any:
        """Return the value that the scope sets; an empty answer if it sets none."""
        value = policies.get_wire_value(broker.environment, scope, policy)
        return unset_policy_answer() if value is None else value

    def get_applied(broker: Broker, scope: PolicyScope = kind.dependency, applied: bool = False) -> Any:
        """Return the value that the topic sets, or an empty answer; `applied`: the value that holds for it."""
        return (
            policy.applied_wire_value(policies.resolved(broker.environment, scope))
            if applied
            else get_set(broker, scope)
        )

    def set_value(broker: Broker, scope: PolicyScope = kind.dependency, value: Any = value_read) -> None:
        """Set the policy for the scope; for a partitioned topic, for each of its partitions."""
        policies.set_wire_value(broker.environment, scope, policy, value)

    def remove(broker: Broker, scope: PolicyScope = kind.dependency, names: Sequence[str] = names_read) -> None:
        """Remove the policy: the next wider scope counts again. It is no error if the scope does not set it."""
        policies.change(broker.environment, scope, {}, names)

    operation, reading = f"{label}{policy.operation}", "Map" if is_quota else ""
    get = routes.get(
        path + reading, *readers, *needs, operation_id=f"get{operation}{reading}", **_answer_options(policy)
    )
    get(get_applied if kind is TOPIC else get_set)
    routes.route(endpoints.verb, path, AuthAction.ADMIN, *needs, operation_id=f"set{operation}", **body)(set_value)
    routes.delete(path, AuthAction.ADMIN, *needs, operation_id=f"remove{operation}")(remove)


for _policy in PULSAR_POLICIES:
    for _origin in _policy.endpoints:
        _register_routes(_policy, _origin)
