"""The policies of a topic: one typed table of what may be set, and how a topic's are resolved.

A new policy is a field of TopicPolicies and nothing else. Names are Kafka's where Kafka has one; other names of Kafka
and Pulsar are aliases with the same unit. A policy is set for a topic, for its namespace or for the broker; the
nearest setting counts, then what the service's settings file says (`configured`), then the default. Two groups are
looked at together:

- `retention.ms`, `.minutes` and `.hours` are one policy in three units: the nearest scope that sets any of them
  counts, and of those it sets, ms beats minutes beats hours (C1).
- A minimum compaction lag above the maximum is refused where both are set. If the two come from different scopes the
  nearest wins and the other gives way, so that no change at the broker makes a topic's policies invalid.

`cleanup.policy` is empty by default: everything is kept. (Kafka's default is `delete`, after 168 hours.)
Pure. Must not know: SQL, what is done with policies (the compactor makes its run's policies from these).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from storage.errors import InvalidInput
from storage.policy_values import (
    BOOLEAN,
    FOR_EVER,
    RATIO,
    CleanupPolicy,
    Duration,
    Kind,
    Optional,
    Size,
    Whole,
)

DAY_MS = 86_400_000
_MIB = 1 << 20
_MAX_COMPACTION_LAG = "max.compaction.lag.ms"
_MIN_COMPACTION_LAG = "min.compaction.lag.ms"


@dataclass(frozen=True)
class Policy:
    """What may be set: its name, other names, what values it takes, and what it does."""

    name: str
    kind: Kind
    doc: str
    aliases: tuple[str, ...] = ()
    default: object = None
    attribute: str = ""


def _policy(default: object, name: str, kind: Kind, doc: str, *aliases: str) -> Any:
    return field(default=default, metadata={"policy": Policy(name, kind, doc, aliases, default)})


@dataclass(frozen=True)
class TopicPolicies:
    """The policies of one topic, resolved. Times are milliseconds, sizes bytes."""

    cleanup_policy: frozenset[str] = _policy(
        frozenset(),
        "cleanup.policy",
        CleanupPolicy(),
        "What a trim lets go: `delete`: old raw ledgers; `compact`: raw ledgers once they are compacted; both; or "
        "nothing.",
        "log.cleanup.policy",
    )
    retention_ms: int | None = _policy(
        None,
        "retention.ms",
        Optional(Duration(least=FOR_EVER)),
        "How long messages are kept under `delete`; -1: for ever. Beats minutes and hours.",
        "log.retention.ms",
    )
    retention_minutes: int | None = _policy(
        None,
        "retention.minutes",
        Optional(Whole("minutes", least=FOR_EVER)),
        "The same in minutes; -1: for ever. Beats hours.",
        "log.retention.minutes",
        "retentionTimeInMinutes",
        "defaultRetentionTimeInMinutes",
    )
    retention_hours: int = _policy(
        168,
        "retention.hours",
        Whole("hours", least=FOR_EVER),
        "The same in hours; -1: for ever.",
        "log.retention.hours",
    )
    retention_bytes: int = _policy(
        -1,
        "retention.bytes",
        Size(least=FOR_EVER),
        "How many bytes of raw messages are kept under `delete`; -1: any number.",
        "log.retention.bytes",
    )
    segment_bytes: int = _policy(
        128 * _MIB,
        "segment.bytes",
        Size(least=1 << 14, most=(1 << 31) - 1),
        "The size at which the open segment is rolled.",
        "log.segment.bytes",
    )
    segment_ms: int = _policy(
        4 * 3_600_000,
        "segment.ms",
        Duration(least=1),
        "The age at which the open segment is rolled.",
        "log.roll.ms",
    )
    flush_messages: int | None = _policy(
        1,
        "flush.messages",
        Optional(Whole("messages", least=1)),
        "A flush comes after so many messages; 1: nothing is acknowledged before it is flushed.",
        "log.flush.interval.messages",
    )
    flush_ms: int | None = _policy(
        None,
        "flush.ms",
        Optional(Duration(least=1)),
        "A flush comes at most so long after a message.",
        "log.flush.interval.ms",
    )
    max_message_bytes: int = _policy(
        5 * _MIB,
        "max.message.bytes",
        Size(least=1, most=1 << 30),
        "The largest entry (a message, or a batch as it was sent) that is appended, and 10 KiB more for its metadata.",
        "message.max.bytes",
        "maxMessageSize",
    )
    message_timestamp_after_max_ms: int | None = _policy(
        3_600_000,
        "message.timestamp.after.max.ms",
        Optional(Duration()),
        "How far in the future an appended or imported message's publish time may lie; else it is refused.",
        "log.message.timestamp.after.max.ms",
    )
    file_delete_delay_ms: int = _policy(
        60_000,
        "file.delete.delay.ms",
        Duration(),
        "How long files and objects stay after they were marked as deleted (C3).",
        "log.segment.delete.delay.ms",
    )
    min_compaction_lag_ms: int = _policy(
        0,
        _MIN_COMPACTION_LAG,
        Duration(),
        "Younger messages are not compacted yet (S3).",
        "log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int | None = _policy(
        None,
        _MAX_COMPACTION_LAG,
        Optional(Duration(least=1)),
        "Older messages are compacted whatever the dirty ratio (S3).",
        "log.cleaner.max.compaction.lag.ms",
    )
    min_cleanable_dirty_ratio: float = _policy(
        0.5,
        "min.cleanable.dirty.ratio",
        RATIO,
        "A compaction is due when a larger share of the bytes is dirty (S2).",
        "log.cleaner.min.cleanable.ratio",
    )
    delete_retention_ms: int = _policy(
        0,
        "delete.retention.ms",
        Duration(),
        "How long a tombstone stays in the compacted ledger, from the first run that kept it (T1).",
        "log.cleaner.delete.retention.ms",
    )
    compaction_retain_null_key: bool = _policy(
        False,
        "compaction.retain-null-key",
        BOOLEAN,
        "Messages without a key stay, all of them (P6).",
        "topicCompactionRetainNullKey",
    )
    compaction_tombstones_wait_for_cursors: bool = _policy(
        False,
        "compaction.tombstones-wait-for-cursors",
        BOOLEAN,
        "A tombstone stays until the slowest cursor of a compacted reader has passed it (T1).",
    )
    compaction_key_ttl_ms: int | None = _policy(
        None,
        "compaction.key-ttl.ms",
        Optional(Duration(least=1)),
        "A key whose value is so old goes from the compacted ledger (T2).",
    )
    compaction_event_time_order: bool = _policy(
        False,
        "compaction.event-time-order",
        BOOLEAN,
        "Of a key the message with the largest event time stays, not the newest one (P9).",
    )
    compaction_event_time_max_lateness_ms: int = _policy(
        7 * DAY_MS,
        "compaction.event-time-max-lateness.ms",
        Duration(),
        "How long keys that left the data are remembered under event-time order (P9).",
        "event-time.max-lateness",
    )
    compaction_chunk_expiry_ms: int | None = _policy(
        DAY_MS,
        "compaction.chunk-expiry.ms",
        Optional(Duration(least=1)),
        "Chunks of a message that is still incomplete after so long go (P10).",
    )
    compaction_threshold_bytes: int = _policy(
        0,
        "compaction.threshold.bytes",
        Size(),
        "A compaction is due when more bytes than this lie after the horizon (S1); 0: off.",
        "compactionThreshold",
        "compaction-threshold",
        "brokerServiceCompactionThresholdInBytes",
    )
    compaction_threshold_messages: int = _policy(
        0,
        "compaction.threshold.messages",
        Whole("messages"),
        "A compaction is due when more messages than this lie after the horizon (S1); 0: off.",
    )

    def __post_init__(self) -> None:
        """Raises InvalidInput if the policies contradict each other."""
        if self.max_compaction_lag_ms is not None and self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidInput(
                f"{_MIN_COMPACTION_LAG} ({self.min_compaction_lag_ms}) is above {_MAX_COMPACTION_LAG} "
                f"({self.max_compaction_lag_ms})",
                "lower the first or raise the second: a message cannot be compacted both later and sooner",
            )

    @property
    def retention_ms_effective(self) -> int | None:
        """How long messages are kept under `delete`, or None: for ever."""
        found = self.retention_ms
        if found is None and self.retention_minutes is not None:
            found = self.retention_minutes * 60_000
        if found is None:
            found = self.retention_hours * 3_600_000
        return found if found >= 0 else None


class Origin(StrEnum):
    """Where a policy of a topic comes from, the nearest first."""

    TOPIC = "topic"
    NAMESPACE = "namespace"
    BROKER = "broker"
    FILE = "file"
    DEFAULT = "default"


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {one.metadata["policy"].name: replace(one.metadata["policy"], attribute=one.name) for one in fields(TopicPolicies)}
)
"""All policies by name, in the order in which they are shown."""
_BY_ANY_NAME = {
    name.lower(): policy for policy in POLICIES.values() for name in (policy.name, policy.attribute, *policy.aliases)
}
_RETENTION_TIMES = ("retention.ms", "retention.minutes", "retention.hours")


def policy(name: str) -> Policy:
    """By name or alias; capitals do not matter. Raises InvalidInput."""
    found = _BY_ANY_NAME.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), _BY_ANY_NAME, n=1)
        meant = f"did you mean {_BY_ANY_NAME[near[0]].name}? " if near else ""
        raise InvalidInput(f"there is no policy {name!r}", f"{meant}there are {', '.join(POLICIES)}")
    return found


def parse(name: str, given: object) -> tuple[str, object]:
    """The policy's own name, and the value, from a text or a JSON value. Raises InvalidInput."""
    known = policy(name)
    return known.name, known.kind.parse(known.name, given)


def shown(name: str, value: object) -> object:
    """A value as JSON has it: what `parse` gives back equal."""
    return policy(name).kind.shown(value)


def check(settings: Mapping[str, object]) -> None:
    """Settings of one scope do not contradict each other. Raises InvalidInput."""
    lags = (_MIN_COMPACTION_LAG, _MAX_COMPACTION_LAG)
    given: dict[str, Any] = {POLICIES[name].attribute: settings[name] for name in lags if name in settings}
    TopicPolicies(**given)


_NONE: Mapping[str, object] = MappingProxyType({})


def effective(
    broker: Mapping[str, object],
    namespace: Mapping[str, object],
    topic: Mapping[str, object],
    configured: Mapping[str, object] = _NONE,
) -> TopicPolicies:
    """The policies of a topic, from what is set (values by name, as `parse` gives them)."""
    return _resolved(broker, namespace, topic, configured)[0]


def origins(
    broker: Mapping[str, object],
    namespace: Mapping[str, object],
    topic: Mapping[str, object],
    configured: Mapping[str, object] = _NONE,
) -> dict[str, Origin]:
    """Where each policy of the topic comes from, by name."""
    return _resolved(broker, namespace, topic, configured)[1]


def _resolved(
    broker: Mapping[str, object],
    namespace: Mapping[str, object],
    topic: Mapping[str, object],
    configured: Mapping[str, object],
) -> tuple[TopicPolicies, dict[str, Origin]]:
    values: dict[str, Any] = {policy.name: policy.default for policy in POLICIES.values()}
    found = dict.fromkeys(POLICIES, Origin.DEFAULT)
    scopes = (
        (Origin.FILE, configured),
        (Origin.BROKER, broker),
        (Origin.NAMESPACE, namespace),
        (Origin.TOPIC, topic),
    )
    for origin, settings in scopes:
        if any(settings.get(name) is not None for name in _RETENTION_TIMES):
            for name in _RETENTION_TIMES:
                values[name], found[name] = POLICIES[name].default, Origin.DEFAULT
        for name, value in settings.items():
            values[name], found[name] = value, origin
    least, most = values[_MIN_COMPACTION_LAG], values[_MAX_COMPACTION_LAG]
    if most is not None and least > most:
        # The nearest wins; of one scope, where `check` was raced, the one that compacts less.
        nearest = list(Origin).index
        if nearest(found[_MAX_COMPACTION_LAG]) < nearest(found[_MIN_COMPACTION_LAG]):
            values[_MIN_COMPACTION_LAG], found[_MIN_COMPACTION_LAG] = most, found[_MAX_COMPACTION_LAG]
        else:
            values[_MAX_COMPACTION_LAG], found[_MAX_COMPACTION_LAG] = least, found[_MIN_COMPACTION_LAG]
    return TopicPolicies(**{POLICIES[name].attribute: value for name, value in values.items()}), found
