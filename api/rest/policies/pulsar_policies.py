"""Policies by Pulsar's own calls, of topics and namespaces: compaction thresholds, time to live, retention,
deduplication, which schema may follow which.

Each call is a row of `CALLS`: a path with GET, DELETE, and POST or PUT. What a call sets is stored as one
policy of docs/policies.md or several, in one transaction. A GET answers what the scope sets, or an empty body if it
sets nothing; of a topic, with `applied`, what holds for it.

Retention is minutes and MiB, -1 for no limit. It is stored as the policies `retention.minutes` and `retention.bytes`,
and matters where the cleanup policy has `delete`; without that, and without a retention, everything is retained. A
retention that is set here replaces `retention.ms` and `retention.hours` of the same scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

from fastapi import Body, Depends, Query
from pydantic import Field

from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.problems import RestException
from api.http.router import Routes
from api.rest.models import INT, LONG, UNREADABLE, PulsarBody, long_body, number_schema, unset
from api.rest.policies.scopes import NAMESPACE, TOPIC, PolicyScope, ScopeKind
from compactor.maintenance.retention_plan import DELETE
from storage.options.policies import POLICIES, SchemaCompatibilityStrategy
from storage.options.resolution import PolicyOrigin, PolicyResolution

thresholds, ttls, retentions = Routes("compaction"), Routes("backlog"), Routes("retention")
message_thresholds, clients = Routes("policies", known_query=True), Routes("policies")
ROUTERS = (thresholds, ttls, retentions, message_thresholds, clients)

THRESHOLD = "compaction.threshold.bytes"
THRESHOLD_MESSAGES = "compaction.threshold.messages"
TTL = "message.ttl.seconds"
DEDUPLICATION = "deduplication.enabled"
STRATEGY = "schema.compatibility-strategy"
_MIB = 1 << 20
_MINUTES, _BYTES = "retention.minutes", "retention.bytes"
_TIMES = {"retention.ms": (1, 60_000), _MINUTES: (1, 1), "retention.hours": (60, 1)}
"""The policies of retention by time, the first that is set counts; how many minutes how many of them are."""
RETENTION_NAMES = (*_TIMES, _BYTES)
"""All policies that are a retention."""
_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
    "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits "
    "must be set to 0."
)
Values = Mapping[str, object]


@dataclass(frozen=True)
class PulsarPolicy:
    """The policies that a call gets and sets.

    `names`: the policies that are removed together. `set_in`: the value that the settings of one scope are, or None.
    `applied`: the value that holds. `values`: the policies to set for a value, raises RestException (412). `answer`:
    the OpenAPI of the answer of GET. `read`: the default of a route's parameter that is the value to set. `options`: of
    that route.
    """

    names: tuple[str, ...]
    set_in: Callable[[Values], Any]
    applied: Callable[[PolicyResolution], Any]
    values: Callable[[Any], Values]
    answer: dict[str, Any]
    read: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PulsarCall:
    """A call in one scope. `operation`: what its operation ids end with; `verb`: the one that sets; `reads`: the
    actions of which a caller may do any, to get it; empty: those of the scope."""

    routes: Routes
    scope: ScopeKind
    path: str
    operation: str
    policy: PulsarPolicy
    verb: str = "POST"
    reads: tuple[AuthAction, ...] = ()


def _in_range(name: str, greatest: int, problem: str) -> Callable[[int], Values]:
    """Return a function from a number to the policy to set; it refuses numbers outside 0 to `greatest`."""

    def values(number: int) -> Values:
        if not 0 <= number <= greatest:
            raise RestException(412, problem)
        return {name: number}

    return values


def _number(name: str, values: Callable[[int], Values], unit: str, meaning: str, example: int) -> PulsarPolicy:
    """Return a policy that is a number."""
    return PulsarPolicy(
        (name,),
        lambda settings: settings.get(name),
        lambda resolved: getattr(resolved.policies, POLICIES[name].attribute),
        values,
        {"description": f"{unit}; empty where none is set.", "content": {"application/json": {}}},
        Depends(long_body),
        {"openapi_extra": number_schema(f"{meaning}; 0: off.", example), "responses": UNREADABLE},
    )


class RetentionPolicies(PulsarBody):
    """For how long, and up to which size, messages are retained."""

    retention_time_in_minutes: int = Field(0, le=INT, ge=-INT - 1)
    retention_size_in_mb: int = Field(0, alias="retentionSizeInMB", le=LONG // _MIB, ge=-LONG)


async def ttl_query(seconds: Annotated[int, Query(alias="messageTTL", description="Seconds; 0: off.")]) -> int:
    """A route's dependency: the time to live, as Pulsar's clients send it for a topic."""
    return seconds


async def retention_body(retention: Annotated[RetentionPolicies, Body()]) -> RetentionPolicies:
    """A route's dependency: its body is a retention."""
    return retention


async def flag_body(enabled: Annotated[bool, Body(description="`true`: on; `false`: off.")]) -> bool:
    """A route's dependency: its body is a boolean."""
    return enabled


async def strategy_body(strategy: Annotated[SchemaCompatibilityStrategy, Body()]) -> SchemaCompatibilityStrategy:
    """A route's dependency: its body is the name of a strategy."""
    return strategy


def strategy_values(strategy: SchemaCompatibilityStrategy) -> dict[str, object]:
    """The policy to set; UNDEFINED is none: the next wider scope counts."""
    return {} if strategy is SchemaCompatibilityStrategy.UNDEFINED else {STRATEGY: strategy.value}


def set_strategy(settings: Values) -> object:
    """The strategy that a namespace sets, or UNDEFINED."""
    return settings.get(STRATEGY) or SchemaCompatibilityStrategy.UNDEFINED.value


def set_retention(settings: Mapping[str, object]) -> dict[str, int] | None:
    """The retention that one scope sets; None: it sets nothing of it."""
    times = (
        cast(int, settings[name]) * minutes // units
        for name, (minutes, units) in _TIMES.items()
        if settings.get(name) is not None
    )
    time = next(times, None)
    size = cast("int | None", settings.get(_BYTES))
    if time is None and size is None:
        return None
    return _retention(-1 if time is None else max(time, -1), -1 if size is None else size)


def applied_retention(resolved: PolicyResolution) -> dict[str, int]:
    """The retention that holds for a topic."""
    policies, origins = resolved.policies, resolved.origins
    if DELETE not in policies.cleanup_policy and {origins[name] for name in RETENTION_NAMES} == {PolicyOrigin.DEFAULT}:
        return _retention(-1, -1)  # the default of Kafka's policy `delete`, which does not hold here
    time = policies.retention_ms_effective
    return _retention(-1 if time is None else time // 60_000, policies.retention_bytes)


def retention_values(retention: RetentionPolicies) -> dict[str, object]:
    """The policies to set. Raises RestException (412) for a retention that a broker refuses."""
    time, size = retention.retention_time_in_minutes, retention.retention_size_in_mb
    for what, value in (("size", size), ("time", time)):
        if value < -1:
            raise RestException(412, f"Invalid retention policy: {what} limit must be >= -1")
    if (time == 0) != (size == 0):
        raise RestException(412, _ZERO)
    return {_MINUTES: time, _BYTES: size * _MIB if size > 0 else size}


def _retention(minutes: int, size: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size // _MIB if size > 0 else size}


namespace_threshold_values = _in_range(THRESHOLD, LONG, "compactionThreshold must be 0 or more")
ttl_values = _in_range(TTL, INT, "Invalid value for message TTL")
_THRESHOLD = _number(
    THRESHOLD,
    _in_range(THRESHOLD, LONG, "Invalid value for compactionThreshold"),
    "Bytes",
    "Bytes behind the horizon that are still no reason to compact",
    1_048_576,
)
_THRESHOLD_MESSAGES = _number(
    THRESHOLD_MESSAGES,
    _in_range(THRESHOLD_MESSAGES, LONG, "Invalid value for compactionThresholdMessages"),
    "Messages",
    "Messages behind the horizon that are still no reason to compact",
    10_000,
)
_TTL = _number(TTL, ttl_values, "Seconds", "Seconds", 3600)
_TOPIC_TTL = replace(_TTL, read=Depends(ttl_query), options={})
_NAMESPACE_THRESHOLD = replace(_THRESHOLD, values=namespace_threshold_values)
_RETENTION = PulsarPolicy(
    RETENTION_NAMES,
    set_retention,
    applied_retention,
    retention_values,
    {"model": RetentionPolicies, "description": "Empty where it is not set."},
    Depends(retention_body),
)

_DEDUPLICATION = PulsarPolicy(
    (DEDUPLICATION,),
    lambda settings: settings.get(DEDUPLICATION),
    lambda resolved: resolved.policies.deduplication_enabled,
    lambda enabled: {DEDUPLICATION: enabled},
    {"description": "`true` or `false`; empty where neither is set.", "content": {"application/json": {}}},
    Depends(flag_body),
)
_STRATEGY = PulsarPolicy(
    (STRATEGY,),
    lambda settings: settings.get(STRATEGY),
    lambda resolved: resolved.policies.schema_compatibility_strategy,
    strategy_values,
    {"description": "The name of a strategy; empty where none is set.", "content": {"application/json": {}}},
    Depends(strategy_body),
)
_NAMESPACE_STRATEGY = replace(_STRATEGY, set_in=set_strategy)

CALLS = (
    PulsarCall(
        thresholds, NAMESPACE, "compactionThreshold", "NamespaceCompactionThreshold", _NAMESPACE_THRESHOLD, verb="PUT"
    ),
    PulsarCall(thresholds, TOPIC, "compactionThreshold", "CompactionThreshold", _THRESHOLD),
    PulsarCall(
        message_thresholds,
        TOPIC,
        "compactionThresholdMessages",
        "CompactionThresholdMessages",
        _THRESHOLD_MESSAGES,
        reads=(*ANY_USE, AuthAction.ADMIN),
    ),
    PulsarCall(ttls, NAMESPACE, "messageTTL", "NamespaceMessageTTL", _TTL),
    PulsarCall(ttls, TOPIC, "messageTTL", "MessageTTL", _TOPIC_TTL),
    PulsarCall(retentions, NAMESPACE, "retention", "NamespaceRetention", _RETENTION),
    PulsarCall(retentions, TOPIC, "retention", "TopicRetention", _RETENTION),
    PulsarCall(clients, NAMESPACE, "deduplication", "NamespaceDeduplication", _DEDUPLICATION),
    PulsarCall(clients, TOPIC, "deduplicationEnabled", "Deduplication", _DEDUPLICATION),
    PulsarCall(
        clients,
        NAMESPACE,
        "schemaCompatibilityStrategy",
        "NamespaceSchemaCompatibilityStrategy",
        _NAMESPACE_STRATEGY,
        verb="PUT",
    ),
    PulsarCall(clients, TOPIC, "schemaCompatibilityStrategy", "SchemaCompatibilityStrategy", _STRATEGY, verb="PUT"),
)


def _offer(call: PulsarCall) -> None:
    """Register the routes of a call."""
    routes, of, policy = call.routes, call.scope.of, call.policy
    path = f"{call.scope.path}/{call.path}"
    reads = call.reads or (ANY_USE if call.scope is TOPIC else (AuthAction.ADMIN,))

    def set_in(broker: Broker, scope: PolicyScope) -> Any:
        value = policy.set_in(broker.environment.metadata.policies.of_scope(scope.keys(broker)[0]))
        return unset() if value is None else value

    def get_set(broker: Broker, scope: PolicyScope = of) -> Any:
        """Return the value that the scope sets; an empty answer if it sets none."""
        return set_in(broker, scope)

    def get_applied(broker: Broker, scope: PolicyScope = of, applied: bool = False) -> Any:
        """Return the value that the topic sets, or an empty answer; `applied`: the value that holds for it."""
        return policy.applied(scope.resolved(broker)) if applied else set_in(broker, scope)

    def set_value(broker: Broker, scope: PolicyScope = of, value: Any = policy.read) -> None:
        """Set it for the scope; of a partitioned topic, for each of its partitions."""
        keys, values = scope.keys(broker), policy.values(value)
        broker.environment.metadata.policies.change(keys, values, set(policy.names) - values.keys())

    def remove(broker: Broker, scope: PolicyScope = of) -> None:
        """Remove it: the next wider scope counts again. It is no error if the scope does not set it."""
        scope.change(broker, {}, policy.names)

    get = get_applied if call.scope is TOPIC else get_set
    routes.get(path, *reads, operation_id=f"get{call.operation}", response_model=None, responses={200: policy.answer})(
        get
    )
    routes.route(call.verb, path, AuthAction.ADMIN, operation_id=f"set{call.operation}", **policy.options)(set_value)
    routes.delete(path, AuthAction.ADMIN, operation_id=f"remove{call.operation}")(remove)


for _call in CALLS:
    _offer(_call)
