"""The resolution of a topic's policies from the settings of the topic and of its scopes.

A policy is set for a topic, for its namespace or for the broker; the nearest setting counts, then the service's
settings file (`configured`), then the default. Two groups are resolved together:

- `retention.ms`, `.minutes` and `.hours` are one policy in three units: the nearest scope that sets any of them
  counts, and of those it sets, ms beats minutes beats hours (C1).
- A minimum compaction lag above the maximum is refused where both are set. If the two come from different scopes the
  nearest wins and the other gives way, so that no change at the broker makes a topic's policies invalid.

`max.message.bytes` of a namespace or topic only lowers the broker's, by which clients refuse larger messages.

A stored value that cannot be read stops nothing: policies.py has its substitute, and the resolution names it. Pure.
Must not know: SQL, the use of policies.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from storage.options.policies import (
    MAX_COMPACTION_LAG,
    MAX_MESSAGE_BYTES,
    MIN_COMPACTION_LAG,
    POLICIES,
    RETENTION_TIMES,
    FallbackValue,
    TopicPolicies,
    UnreadableStoredValue,
)

_NONE: Mapping[str, object] = MappingProxyType({})
_TRIGGERS = ("compaction.threshold.bytes", "compaction.threshold.messages", "cleanup.policy")
_RATIO, _LAG = "min.cleanable.dirty.ratio", MAX_COMPACTION_LAG


class PolicyOrigin(StrEnum):
    """The scope from which the value of a topic's policy comes, the nearest first."""

    TOPIC = "topic"
    NAMESPACE = "namespace"
    BROKER = "broker"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class UnreadableSetting:
    """A setting that cannot be read but would count otherwise, and the scope in which it is set."""

    origin: PolicyOrigin
    stored: UnreadableStoredValue


@dataclass(frozen=True)
class CompactionTriggers:
    """The conditions under which a compaction of a topic is due; 0 and None: no condition.

    `dirty_ratio` and `max_lag_ms` are Kafka's, so they apply to topics that are cleaned by compaction (their
    `cleanup.policy` has `compact`), and to those for which, or for whose namespace, they are set.
    """

    threshold_bytes: int = 0
    threshold_messages: int = 0
    dirty_ratio: float | None = None
    max_lag_ms: int | None = None
    min_lag_ms: int = 0

    @property
    def has_any(self) -> bool:
        """True if any condition for a compaction is set."""
        return bool(self.threshold_bytes or self.threshold_messages or self.dirty_ratio is not None or self.max_lag_ms)


@dataclass(frozen=True)
class PolicyResolution:
    """The policies of a topic; their origins, and the settings among them that cannot be read, by policy name."""

    policies: TopicPolicies
    origins: Mapping[str, PolicyOrigin]
    unreadable: Mapping[str, UnreadableSetting]

    @functools.cached_property
    def triggers(self) -> CompactionTriggers:
        """The conditions under which an automatic compaction of the topic is due."""
        policies, compact = self.policies, "compact" in self.policies.cleanup_policy
        return CompactionTriggers(
            policies.compaction_threshold_bytes,
            policies.compaction_threshold_messages,
            policies.min_cleanable_dirty_ratio if compact or self._is_set_for_topic_or_namespace(_RATIO) else None,
            policies.max_compaction_lag_ms if compact or self._is_set_for_topic_or_namespace(_LAG) else None,
            policies.min_compaction_lag_ms,
        )

    @property
    def compaction_enabled(self) -> bool:
        """True if the topic is compacted automatically, or may be, by a setting that cannot be read.

        Then it has the cursor `__compaction`, and no message that no run has read is trimmed (S9).
        """
        return self.triggers.has_any or any(
            self._may_trigger_compaction(name, setting.origin) for name, setting in self.unreadable.items()
        )

    def _is_set_for_topic_or_namespace(self, name: str) -> bool:
        return self.origins[name] in _NEAR

    def _may_trigger_compaction(self, name: str, origin: PolicyOrigin) -> bool:
        return name in _TRIGGERS or (name in (_RATIO, _LAG) and origin in _NEAR)


_NEAR = (PolicyOrigin.TOPIC, PolicyOrigin.NAMESPACE)


def resolve(
    broker: Mapping[str, object],
    namespace: Mapping[str, object],
    topic: Mapping[str, object],
    configured: Mapping[str, object] = _NONE,
) -> PolicyResolution:
    """Return the policies of a topic, resolved from the settings of its scopes: the nearest scope counts.

    Settings are values by name, as `policies.parse` returns them, or UnreadableStoredValue. `configured`: those of the
    settings file, which count below the broker's.
    """
    values: dict[str, Any] = {policy.name: policy.default for policy in POLICIES.values()}
    origins = dict.fromkeys(POLICIES, PolicyOrigin.DEFAULT)
    unreadable: dict[str, UnreadableSetting] = {}
    scopes = (
        (PolicyOrigin.FILE, configured),
        (PolicyOrigin.BROKER, broker),
        (PolicyOrigin.NAMESPACE, namespace),
        (PolicyOrigin.TOPIC, topic),
    )
    largest: tuple[Any, PolicyOrigin] = values[MAX_MESSAGE_BYTES], PolicyOrigin.DEFAULT
    for origin, settings in scopes:
        if any(settings.get(name) is not None for name in RETENTION_TIMES):
            for name in RETENTION_TIMES:
                values[name], origins[name] = POLICIES[name].default, PolicyOrigin.DEFAULT
                unreadable.pop(name, None)
        for name, value in settings.items():
            unreadable.pop(name, None)
            if isinstance(value, UnreadableStoredValue):
                unreadable[name] = UnreadableSetting(origin, value)
                value = POLICIES[name].fallback
            if not isinstance(value, FallbackValue):
                values[name], origins[name] = value, origin
        if origin not in _NEAR:
            largest = values[MAX_MESSAGE_BYTES], origins[MAX_MESSAGE_BYTES]
    if values[MAX_MESSAGE_BYTES] > largest[0]:
        values[MAX_MESSAGE_BYTES], origins[MAX_MESSAGE_BYTES] = largest
    least, greatest = values[MIN_COMPACTION_LAG], values[MAX_COMPACTION_LAG]
    if greatest is not None and least > greatest:
        # The nearest wins; of one scope, where `check` was raced, the one that compacts less.
        nearest = list(PolicyOrigin).index
        if nearest(origins[MAX_COMPACTION_LAG]) < nearest(origins[MIN_COMPACTION_LAG]):
            values[MIN_COMPACTION_LAG], origins[MIN_COMPACTION_LAG] = greatest, origins[MAX_COMPACTION_LAG]
        else:
            values[MAX_COMPACTION_LAG], origins[MAX_COMPACTION_LAG] = least, origins[MIN_COMPACTION_LAG]
    policies = TopicPolicies(**{POLICIES[name].attribute: value for name, value in values.items()})
    return PolicyResolution(policies, MappingProxyType(origins), MappingProxyType(unreadable))
