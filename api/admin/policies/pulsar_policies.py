"""Policies by Pulsar's own calls, of topics and namespaces: compaction thresholds, time to live, retention.

Each call is a row of `CALLS`: a path with GET, DELETE, and POST or PUT. What a call sets is stored as one
policy of docs/policies.md or several, in one transaction. A GET answers what the scope sets, or an empty body if it
sets nothing; of a topic, with `applied`, what holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Query

from api.admin.models import UNREADABLE, long_body, number_schema, unset
from api.admin.policies import retention
from api.admin.policies.scopes import NAMESPACE, TOPIC, PolicyScope, ScopeKind
from api.http.access import ANY_USE, Action
from api.http.problems import Problem
from api.http.routes import Routes
from api.service import Parts
from storage.options.policies import POLICIES
from storage.options.resolution import Resolved

thresholds, ttls, retentions = Routes("compaction"), Routes("backlog"), Routes("retention")
message_thresholds = Routes("policies", known_query=True)
ROUTERS = (thresholds, ttls, retentions, message_thresholds)

THRESHOLD = "compaction.threshold.bytes"
THRESHOLD_MESSAGES = "compaction.threshold.messages"
TTL = "message.ttl.seconds"
_INT, _LONG = (1 << 31) - 1, (1 << 63) - 1
Values = Mapping[str, object]


@dataclass(frozen=True)
class Kind:
    """What a call gets and sets. `names`: the policies that are removed together; `set_in`: the value that the settings
    of one scope are, or None; `applied`: the value that holds; `answer`: how OpenAPI describes the answer of GET."""

    names: tuple[str, ...]
    set_in: Callable[[Values], Any]
    applied: Callable[[Resolved], Any]
    answer: dict[str, Any]


@dataclass(frozen=True)
class Body:
    """How a call reads the value to set. `read`: the default of a route's parameter; `options`: of the route."""

    read: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A call in one scope. `operation`: what its operation ids end with; `values`: the policies to set for a value,
    raises Problem (412); `verb`: the one that sets; `reads`: the actions of which a caller may do any, to get it;
    empty: those of the scope."""

    routes: Routes
    scope: ScopeKind
    path: str
    operation: str
    kind: Kind
    body: Body
    values: Callable[[Any], Values]
    verb: str = "POST"
    reads: tuple[Action, ...] = ()


def _number(name: str, unit: str) -> Kind:
    """A policy that is a number."""
    return Kind(
        (name,),
        lambda settings: settings.get(name),
        lambda resolved: getattr(resolved.policies, POLICIES[name].attribute),
        {"description": f"{unit}; empty where none is set.", "content": {"application/json": {}}},
    )


def _number_body(description: str, example: int) -> Body:
    return Body(Depends(long_body), {"openapi_extra": number_schema(description, example), "responses": UNREADABLE})


async def ttl_query(seconds: Annotated[int, Query(alias="messageTTL", description="Seconds; 0: off.")]) -> int:
    """A route's dependency: the time to live, as Pulsar's clients send it for a topic."""
    return seconds


def _in_range(name: str, most: int, problem: str) -> Callable[[int], Values]:
    """The policy to set for a number from 0 to `most`; any other is refused as a broker does."""

    def values(number: int) -> Values:
        if not 0 <= number <= most:
            raise Problem(412, problem)
        return {name: number}

    return values


_BYTES, _MESSAGES, _TTL = _number(THRESHOLD, "Bytes"), _number(THRESHOLD_MESSAGES, "Messages"), _number(TTL, "Seconds")
_RETENTION = Kind(
    retention.NAMES,
    retention.set_retention,
    retention.applied_retention,
    {"model": retention.Retention, "description": "Empty where it is not set."},
)
_BYTES_BODY = _number_body("Bytes behind the horizon that are still no reason to compact; 0: off.", 1_048_576)
_MESSAGES_BODY = _number_body("Messages behind the horizon that are still no reason to compact; 0: off.", 10_000)
_TTL_BODY = _number_body("Seconds; 0: off.", 3600)
_RETENTION_BODY = Body(Depends(retention.retention_body))

namespace_threshold_values = _in_range(THRESHOLD, _LONG, "compactionThreshold must be 0 or more")
ttl_values = _in_range(TTL, _INT, "Invalid value for message TTL")
_topic_threshold_values = _in_range(THRESHOLD, _LONG, "Invalid value for compactionThreshold")
_messages_values = _in_range(THRESHOLD_MESSAGES, _LONG, "Invalid value for compactionThresholdMessages")
_retention_values = retention.retention_values

CALLS = (
    Call(
        thresholds,
        NAMESPACE,
        "compactionThreshold",
        "NamespaceCompactionThreshold",
        _BYTES,
        _BYTES_BODY,
        namespace_threshold_values,
        "PUT",
    ),
    Call(thresholds, TOPIC, "compactionThreshold", "CompactionThreshold", _BYTES, _BYTES_BODY, _topic_threshold_values),
    Call(
        message_thresholds,
        TOPIC,
        "compactionThresholdMessages",
        "CompactionThresholdMessages",
        _MESSAGES,
        _MESSAGES_BODY,
        _messages_values,
        reads=(*ANY_USE, Action.ADMIN),
    ),
    Call(ttls, NAMESPACE, "messageTTL", "NamespaceMessageTTL", _TTL, _TTL_BODY, ttl_values),
    Call(ttls, TOPIC, "messageTTL", "MessageTTL", _TTL, Body(Depends(ttl_query)), ttl_values),
    Call(retentions, NAMESPACE, "retention", "NamespaceRetention", _RETENTION, _RETENTION_BODY, _retention_values),
    Call(retentions, TOPIC, "retention", "TopicRetention", _RETENTION, _RETENTION_BODY, _retention_values),
)


def _offer(call: Call) -> None:
    """The routes of a call."""
    routes, of, kind = call.routes, call.scope.of, call.kind
    path = f"{call.scope.path}/{call.path}"
    reads = call.reads or (ANY_USE if call.scope is TOPIC else (Action.ADMIN,))

    def set_in(parts: Parts, scope: PolicyScope) -> Any:
        value = kind.set_in(parts.environment.metadata.policies.of_scope(scope.keys(parts)[0]))
        return unset() if value is None else value

    def get_set(parts: Parts, scope: PolicyScope = of) -> Any:
        """What the scope sets; an empty answer if it sets nothing."""
        return set_in(parts, scope)

    def get_applied(parts: Parts, scope: PolicyScope = of, applied: bool = False) -> Any:
        """What the topic sets, or an empty answer; `applied`: what holds for it, wherever it is set."""
        return kind.applied(scope.resolved(parts)) if applied else set_in(parts, scope)

    def set_value(parts: Parts, scope: PolicyScope = of, value: Any = call.body.read) -> None:
        """Set it for the scope; of a partitioned topic, for each of its partitions."""
        keys, values = scope.keys(parts), call.values(value)
        parts.environment.metadata.policies.change(keys, values, set(kind.names) - values.keys())

    def remove(parts: Parts, scope: PolicyScope = of) -> None:
        """Remove it: the next wider scope counts again. It is no error if the scope does not set it."""
        scope.change(parts, {}, kind.names)

    get = get_applied if call.scope is TOPIC else get_set
    routes.get(path, *reads, operation_id=f"get{call.operation}", response_model=None, responses={200: kind.answer})(
        get
    )
    routes.route(call.verb, path, Action.ADMIN, operation_id=f"set{call.operation}", **call.body.options)(set_value)
    routes.delete(path, Action.ADMIN, operation_id=f"remove{call.operation}")(remove)


for _call in CALLS:
    _offer(_call)
