"""Policies that Pulsar's calls get and set: one table of policies, with the calls of each scope.

A policy of Pulsar is stored as one policy of `storage/options/policies.py` or several. Its wire value is the JSON value
of its calls. A row of `PULSAR_POLICIES` converts in both directions. REST derives its routes and the document of a
namespace from the table, `compactor-admin` its paths and verbs.

Must not know: HTTP, SQL. `compactor-admin` imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from storage.errors import InvalidInput
from storage.options.policies import HOLD, POLICIES, RETENTION_TIMES, SchemaCompatibilityStrategy, TopicPolicies
from storage.options.resolution import PolicyOrigin, PolicyResolution

_MIB = 1 << 20
_NO_LIMIT = -1
_MINUTES, _BYTES = "retention.minutes", "retention.bytes"
_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
    "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits "
    "must be set to 0."
)
OwnPolicies = Mapping[str, object]
"""Policies that one scope sets, by name."""
Changes = dict[str, object | None]
"""Policies to set, by name; None: the policy is removed."""


class PolicyValueRefused(InvalidInput):
    """A policy value that Pulsar's broker refuses, too. `reason`: the text of its response."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "set another value")
        self.reason = reason


@dataclass(frozen=True)
class PolicyEndpoints:
    """The endpoints of a policy in one scope: GET, DELETE and `verb` of a path below the scope's.

    `verb`: the method that sets the policy. `label`: the start of the policy's name in the operation ids of the calls.
    `out_of_range_reason`: the words of a broker for a number out of range. `unset_value`: the answer of GET if the
    scope does not set the policy. `is_query`: the value to set is the query parameter with the name of the path.
    `is_extension`: Pulsar has no such call.
    """

    path: str
    verb: str = "POST"
    label: str = ""
    out_of_range_reason: str = ""
    unset_value: object = None
    is_query: bool = False
    is_extension: bool = False


@dataclass(frozen=True)
class PulsarPolicy:
    """A policy of Pulsar: its REST calls, and the conversion between its JSON value and stored policies.

    This class: the JSON value is the value of one stored policy.

    `operation`: the policy's name in operation ids. `tag`: the group of its calls in the documentation. `names`: the
    names under which it is stored. `field`: its name in Pulsar's document of a namespace; empty: it has none.
    """

    operation: str
    tag: str
    names: tuple[str, ...]
    endpoints: Mapping[PolicyOrigin, PolicyEndpoints]
    field: str = ""

    def wire_value(self, policies: OwnPolicies) -> Any:
        """Return the JSON value for Pulsar's REST API, from the policies that one scope itself sets; None: not set."""
        return policies.get(self.names[0])

    def changes_of(self, value: Any, endpoints: PolicyEndpoints) -> Changes:
        """Return the changes of stored policies that set a JSON value of Pulsar's REST API.

        `endpoints`: those of the scope. Raise PolicyValueRefused.
        """
        return {self.names[0]: value}

    def applied_wire_value(self, resolution: PolicyResolution) -> Any:
        """Return the JSON value for Pulsar's REST API of the effective policies of a topic."""
        return self.wire_value({name: getattr(resolution.policies, POLICIES[name].attribute) for name in self.names})


@dataclass(frozen=True)
class NumberPolicy(PulsarPolicy):
    """A policy that is a number, within the bounds of its kind. `example`: for the documentation."""

    example: int = 0

    def changes_of(self, value: int, endpoints: PolicyEndpoints) -> Changes:
        (name,) = self.names
        try:
            return {name: POLICIES[name].kind.parse(name, value)}
        except InvalidInput as error:
            raise PolicyValueRefused(endpoints.out_of_range_reason) from error


@dataclass(frozen=True)
class StrategyPolicy(PulsarPolicy):
    """The policy of the schema compatibility strategy. UNDEFINED removes it, so that the next wider scope decides."""

    def changes_of(self, value: str, endpoints: PolicyEndpoints) -> Changes:
        return {self.names[0]: None if value == SchemaCompatibilityStrategy.UNDEFINED else str(value)}


@dataclass(frozen=True)
class RetentionPolicy(PulsarPolicy):
    """The retention policy: minutes and MiB, -1 for no limit.

    It has an effect if the cleanup policy contains `delete`. Without `delete` and without a retention, everything is
    retained. Setting it replaces all retention times of the same scope.
    """

    def wire_value(self, policies: OwnPolicies) -> dict[str, int] | None:
        times: dict[str, Any] = {
            POLICIES[name].attribute: policies[name] for name in RETENTION_TIMES if policies.get(name) is not None
        }
        size = policies.get(_BYTES)
        if not times and size is None:
            return None
        milliseconds = TopicPolicies(**times).retention_ms_effective if times else None
        minutes = _NO_LIMIT if milliseconds is None else milliseconds // 60_000
        return _retention_wire_value(minutes, size if isinstance(size, int) else _NO_LIMIT)

    def changes_of(self, value: Mapping[str, int], endpoints: PolicyEndpoints) -> Changes:
        time, size = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
        for noun, limit in (("size", size), ("time", time)):
            if limit < _NO_LIMIT:
                raise PolicyValueRefused(f"Invalid retention policy: {noun} limit must be >= -1")
        if (time == 0) != (size == 0):
            raise PolicyValueRefused(_ZERO)
        return {**dict.fromkeys(RETENTION_TIMES), _MINUTES: time, _BYTES: size * _MIB if size > 0 else size}

    def applied_wire_value(self, resolution: PolicyResolution) -> Any:
        is_default = {resolution.origins[name] for name in self.names} == {PolicyOrigin.DEFAULT}
        if is_default and "delete" not in resolution.policies.cleanup_policy:
            # The default time is Kafka's, for the cleanup policy `delete`.
            return _retention_wire_value(_NO_LIMIT, _NO_LIMIT)
        return super().applied_wire_value(resolution)


class QuotaPolicyNames(NamedTuple):
    """The names of the two stored policies of a backlog quota: its limit, and the action when it is exceeded."""

    limit: str
    action: str


class QuotaType(StrEnum):
    """The measure that a quota limits: the bytes of a backlog, or the age of its oldest message."""

    SIZE = "destination_storage"
    AGE = "message_age"

    @property
    def policy_names(self) -> QuotaPolicyNames:
        """Return the names of the stored policies of this type of quota."""
        limit = "backlog.quota.bytes" if self is QuotaType.SIZE else "backlog.quota.seconds"
        return QuotaPolicyNames(limit, f"{limit}.action")


@dataclass(frozen=True)
class QuotaPolicy(PulsarPolicy):
    """The policy of backlog quotas, by type. `compactor/maintenance/backlog_limits.py` enforces them.

    A quota has two numbers, of which its type uses one, as in a broker; only that number is stored.
    """

    def wire_value(self, policies: OwnPolicies) -> dict[str, dict[str, object]]:
        quotas: dict[str, dict[str, object]] = {}
        for kind in QuotaType:
            limit, action = map(policies.get, kind.policy_names)
            if limit is not None:
                size, seconds = (limit, _NO_LIMIT) if kind is QuotaType.SIZE else (_NO_LIMIT, limit)
                quotas[kind] = {"limit": size, "limitSize": size, "limitTime": seconds, "policy": action or HOLD}
        return quotas

    def changes_of(self, value: Mapping[QuotaType, Mapping[str, object]], endpoints: PolicyEndpoints) -> Changes:
        changes: Changes = {}
        for kind, quota in value.items():
            name = "limitSize" if kind is QuotaType.SIZE else "limitTime"
            limit = quota["limit"] if name == "limitSize" and quota[name] is None else quota[name]
            if limit is None:
                raise PolicyValueRefused(f"a backlog quota of the type {kind} needs {name}")
            changes |= zip(kind.policy_names, (limit, quota["policy"]), strict=True)
        return changes


_TOPIC, _NAMESPACE = PolicyOrigin.TOPIC, PolicyOrigin.NAMESPACE
_BAD_TTL = "Invalid value for message TTL"
THRESHOLD = NumberPolicy(
    "CompactionThreshold",
    "compaction",
    ("compaction.threshold.bytes",),
    {
        _NAMESPACE: PolicyEndpoints(
            "compactionThreshold", "PUT", out_of_range_reason="compactionThreshold must be 0 or more"
        ),
        _TOPIC: PolicyEndpoints("compactionThreshold", out_of_range_reason="Invalid value for compactionThreshold"),
    },
    "compaction_threshold",
    1_048_576,
)
RETENTION = RetentionPolicy(
    "Retention",
    "retention",
    (*RETENTION_TIMES, _BYTES),
    {_NAMESPACE: PolicyEndpoints("retention"), _TOPIC: PolicyEndpoints("retention", label="Topic")},
    "retention_policies",
)
PULSAR_POLICIES: tuple[PulsarPolicy, ...] = (
    THRESHOLD,
    NumberPolicy(
        "CompactionThresholdMessages",
        "policies",
        ("compaction.threshold.messages",),
        {
            _TOPIC: PolicyEndpoints(
                "compactionThresholdMessages",
                out_of_range_reason="Invalid value for compactionThresholdMessages",
                is_extension=True,
            )
        },
        example=10_000,
    ),
    NumberPolicy(
        "MessageTTL",
        "backlog",
        ("message.ttl.seconds",),
        {
            _NAMESPACE: PolicyEndpoints("messageTTL", out_of_range_reason=_BAD_TTL),
            _TOPIC: PolicyEndpoints("messageTTL", out_of_range_reason=_BAD_TTL, is_query=True),
        },
        "message_ttl_in_seconds",
        3600,
    ),
    RETENTION,
    PulsarPolicy(
        "Deduplication",
        "policies",
        ("deduplication.enabled",),
        {_NAMESPACE: PolicyEndpoints("deduplication"), _TOPIC: PolicyEndpoints("deduplicationEnabled")},
        "deduplicationEnabled",
    ),
    StrategyPolicy(
        "SchemaCompatibilityStrategy",
        "policies",
        ("schema.compatibility-strategy",),
        {
            _NAMESPACE: PolicyEndpoints(
                "schemaCompatibilityStrategy", "PUT", unset_value=SchemaCompatibilityStrategy.UNDEFINED.value
            ),
            _TOPIC: PolicyEndpoints("schemaCompatibilityStrategy", "PUT"),
        },
        "schema_compatibility_strategy",
    ),
    QuotaPolicy(
        "BacklogQuota",
        "backlog",
        (*QuotaType.SIZE.policy_names, *QuotaType.AGE.policy_names),
        {_NAMESPACE: PolicyEndpoints("backlogQuota"), _TOPIC: PolicyEndpoints("backlogQuota")},
        "backlog_quota_map",
    ),
)
"""All policies of Pulsar's calls."""


def namespace_document(policies: OwnPolicies) -> dict[str, Any]:
    """Return the policy fields of Pulsar's document of a namespace; `unset_value` for a policy that is not set."""
    fields = {}
    for policy in PULSAR_POLICIES:
        if policy.field:
            value = policy.wire_value(policies)
            fields[policy.field] = policy.endpoints[_NAMESPACE].unset_value if value is None else value
    return fields


def policies_from_document(fields: Mapping[str, Any]) -> dict[str, object]:
    """Return the stored policies, by name, for the fields of Pulsar's document of a namespace.

    `fields`: JSON values; None sets nothing. Raise PolicyValueRefused.
    """
    changes: Changes = {}
    for policy in PULSAR_POLICIES:
        if (value := fields.get(policy.field)) is not None:
            changes |= policy.changes_of(value, policy.endpoints[_NAMESPACE])
    return {name: value for name, value in changes.items() if value is not None}


def _retention_wire_value(minutes: int, size_bytes: int) -> dict[str, int]:
    """Return a retention as Pulsar's JSON. -1: no limit."""
    megabytes = size_bytes // _MIB if size_bytes > 0 else size_bytes
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
