"""The policies of a topic: one typed table.

A new policy is a field of TopicPolicies and nothing else. Names are Kafka's where Kafka has one; other names of Kafka
and Pulsar are aliases with the same unit. resolution.py derives the policies of a topic from the settings of the topic
and of its scopes.

`cleanup.policy` is empty by default: everything is kept. (Kafka's default is `delete`, after 168 hours.)

This version may be unable to read a stored value: a newer version allowed it, or the row was damaged. Then
`Policy.unreadable` counts instead, which deletes no data and acknowledges no message:
    WIDER   the next wider scope, for policies that do neither
    NO_RUN  the next wider scope, and no compaction: any other value may choose the wrong messages
    else    that value: the one that keeps the most

Pure. Must not know: SQL, the use of policies (the compactor derives its run's policies from these).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from storage.advice import Advice, AdviceKind
from storage.errors import InvalidInput
from storage.options.kinds import (
    ALWAYS_MS,
    BOOLEAN,
    NO_LIMIT,
    RATIO,
    Choice,
    CleanupPolicy,
    Duration,
    Optional,
    Size,
    ValueKind,
    WholeNumber,
)
from storage.options.option import Option, option, options_of

DAY_MS = 86_400_000
HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
"""The actions above a backlog quota: producers wait, get an error, or the oldest messages count as acknowledged."""
_OVER_QUOTA = Choice((HOLD, REFUSE, EVICT))
_INT = (1 << 31) - 1
_MIB = 1 << 20
MAX_COMPACTION_LAG = "max.compaction.lag.ms"
MIN_COMPACTION_LAG = "min.compaction.lag.ms"
MAX_MESSAGE_BYTES = "max.message.bytes"


class FallbackValue(Enum):
    """The substitute of a stored value that cannot be read, if it is no value itself (see the module docstring)."""

    WIDER = "wider"
    NO_RUN = "no run"


WIDER, NO_RUN = FallbackValue.WIDER, FallbackValue.NO_RUN


@dataclass(frozen=True)
class UnreadableStoredValue:
    """A stored JSON value that this version cannot read, and the reason, a text."""

    value: object
    reason: str


@dataclass(frozen=True)
class Policy(Option):
    """A policy. `aliases`: its other names. `fallback`: the substitute of a stored value that cannot be read.

    `fallback` is a value of the policy or a FallbackValue.
    """

    aliases: tuple[str, ...] = ()
    fallback: object = WIDER


def _policy_field(
    default: object, name: str, kind: ValueKind, doc: str, *aliases: str, unreadable: object = WIDER
) -> Any:
    return option(Policy(name, kind, doc, default, aliases=aliases, fallback=unreadable))


class SchemaCompatibilityStrategy(StrEnum):
    """The rule for a new version of a topic's schema, in Pulsar's words."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True)
class TopicPolicies:
    """The policies of one topic, resolved. Times are milliseconds, sizes bytes."""

    cleanup_policy: frozenset[str] = _policy_field(
        frozenset(),
        "cleanup.policy",
        CleanupPolicy(),
        "The ledgers that a trim deletes: `delete`: old raw ledgers; `compact`: compacted raw ledgers; both; or "
        "nothing.",
        "log.cleanup.policy",
        unreadable=frozenset(),
    )
    retention_ms: int | None = _policy_field(
        None,
        "retention.ms",
        Optional(Duration(least=NO_LIMIT)),
        "How long messages are kept under `delete`; -1: forever. Beats minutes and hours.",
        "log.retention.ms",
        unreadable=NO_LIMIT,
    )
    retention_minutes: int | None = _policy_field(
        None,
        "retention.minutes",
        Optional(WholeNumber("minutes", least=NO_LIMIT)),
        "How long messages are kept under `delete`, in minutes; -1: forever. Beats hours.",
        "log.retention.minutes",
        "retentionTimeInMinutes",
        "defaultRetentionTimeInMinutes",
        unreadable=NO_LIMIT,
    )
    retention_hours: int = _policy_field(
        168,
        "retention.hours",
        WholeNumber("hours", least=NO_LIMIT),
        "How long messages are kept under `delete`, in hours; -1: forever.",
        "log.retention.hours",
        unreadable=NO_LIMIT,
    )
    retention_bytes: int = _policy_field(
        -1,
        "retention.bytes",
        Size(least=NO_LIMIT),
        "How many bytes of raw messages are kept under `delete`; -1: any number.",
        "log.retention.bytes",
        unreadable=NO_LIMIT,
    )
    segment_bytes: int = _policy_field(
        32 * _MIB,
        "segment.bytes",
        Size(least=1 << 14, greatest=(1 << 31) - 1),
        "The size at which the open segment is rolled.",
        "log.segment.bytes",
    )
    segment_ms: int = _policy_field(
        4 * 3_600_000,
        "segment.ms",
        Duration(least=1),
        "The age at which the open segment is rolled.",
        "log.roll.ms",
    )
    flush_messages: int | None = _policy_field(
        1,
        "flush.messages",
        Optional(WholeNumber("messages", least=1)),
        "The number of messages after which a flush comes; 1: nothing is acknowledged before it is flushed.",
        "log.flush.interval.messages",
        unreadable=1,
    )
    flush_ms: int | None = _policy_field(
        None,
        "flush.ms",
        Optional(Duration(least=1)),
        "The longest time between a message and its flush.",
        "log.flush.interval.ms",
        unreadable=1,
    )
    max_message_bytes: int = _policy_field(
        5 * _MIB,
        MAX_MESSAGE_BYTES,
        Size(least=1, greatest=1 << 30),
        "The largest entry (a message, or a batch as it was sent) that is appended, and 10 KiB more for its metadata. "
        "Clients get the broker's value when they connect; a namespace or topic can only lower it.",
        "message.max.bytes",
        "maxMessageSize",
    )
    message_timestamp_after_max_ms: int | None = _policy_field(
        3_600_000,
        "message.timestamp.after.max.ms",
        Optional(Duration()),
        "How far in the future an appended or imported message's publish time may be; else it is refused.",
        "log.message.timestamp.after.max.ms",
    )
    file_delete_delay_ms: int = _policy_field(
        60_000,
        "file.delete.delay.ms",
        Duration(),
        "How long files and objects stay after they were marked as deleted.",
        "log.segment.delete.delay.ms",
        unreadable=ALWAYS_MS,
    )
    min_compaction_lag_ms: int = _policy_field(
        0,
        MIN_COMPACTION_LAG,
        Duration(),
        "Younger messages are not compacted yet.",
        "log.cleaner.min.compaction.lag.ms",
        unreadable=NO_RUN,
    )
    max_compaction_lag_ms: int | None = _policy_field(
        None,
        MAX_COMPACTION_LAG,
        Optional(Duration(least=1)),
        "Older messages are compacted whatever the dirty ratio.",
        "log.cleaner.max.compaction.lag.ms",
    )
    min_cleanable_dirty_ratio: float = _policy_field(
        0.5,
        "min.cleanable.dirty.ratio",
        RATIO,
        "A compaction is due when the cleanable ratio is larger: the sealed bytes after the horizon, as a share of "
        "these and the compacted ledger. Set by the broker, the file or the default it counts only where "
        "cleanup.policy has `compact`.",
        "log.cleaner.min.cleanable.ratio",
    )
    delete_retention_ms: int = _policy_field(
        0,
        "delete.retention.ms",
        Duration(),
        "How long a tombstone stays in the compacted ledger, from the first run that kept it.",
        "log.cleaner.delete.retention.ms",
        unreadable=ALWAYS_MS,
    )
    compaction_retain_null_key: bool = _policy_field(
        False,
        "compaction.retain-null-key",
        BOOLEAN,
        "Compaction keeps all messages without a key; it drops them otherwise.",
        "topicCompactionRetainNullKey",
        unreadable=True,
    )
    compaction_tombstones_wait_for_cursors: bool = _policy_field(
        False,
        "compaction.tombstones-wait-for-cursors",
        BOOLEAN,
        "A tombstone stays until the slowest cursor of a compacted reader has passed it.",
        unreadable=True,
    )
    compaction_key_ttl_ms: int | None = _policy_field(
        None,
        "compaction.key-ttl.ms",
        Optional(Duration(least=1)),
        "A key whose value is older than this is removed from the compacted ledger.",
        unreadable=None,
    )
    compaction_event_time_order: bool = _policy_field(
        False,
        "compaction.event-time-order",
        BOOLEAN,
        "Of a key the message with the largest event time stays, not the newest one.",
        unreadable=NO_RUN,
    )
    compaction_event_time_max_lateness_ms: int = _policy_field(
        7 * DAY_MS,
        "compaction.event-time-max-lateness.ms",
        Duration(),
        "How long keys that left the data are remembered under event-time order.",
        "event-time.max-lateness",
        unreadable=ALWAYS_MS,
    )
    compaction_chunk_expiry_ms: int | None = _policy_field(
        DAY_MS,
        "compaction.chunk-expiry.ms",
        Optional(Duration(least=1)),
        "Chunks of a message that is still incomplete after this time are removed.",
        unreadable=None,
    )
    compaction_topic_engine: str | None = _policy_field(
        None,
        "compaction.topic-engine",
        Optional(Choice(("auto", "in-process", "spark"))),
        "Where compactions of the topic run; none: where the setting compaction.engine says. A service with the "
        "setting in-process, or with a Spark cluster, ignores it.",
    )
    compaction_threshold_bytes: int = _policy_field(
        0,
        "compaction.threshold.bytes",
        Size(),
        "A compaction is due when more bytes than this are after the horizon; 0: off.",
        "compactionThreshold",
        "compaction-threshold",
        "brokerServiceCompactionThresholdInBytes",
    )
    compaction_threshold_messages: int = _policy_field(
        0,
        "compaction.threshold.messages",
        WholeNumber("messages"),
        "A compaction is due when more messages than this are after the horizon; 0: off.",
    )
    table_enabled: bool = _policy_field(
        False,
        "table.enabled",
        BOOLEAN,
        "Each compaction also writes a snapshot of the topic's Iceberg table, which shows the compacted ledger.",
    )
    table_format_version: int = _policy_field(
        3,
        "table.format-version",
        WholeNumber("version", least=2, greatest=3),
        "Iceberg's format version of the table: 3 with deletion vectors, 2 with position deletes. A change begins a "
        "new history of snapshots.",
    )
    table_snapshot_age_ms: int = _policy_field(
        DAY_MS,
        "table.snapshot.age.ms",
        Duration(),
        "How long a snapshot of the table stays readable after the next one. Parts that compactions replaced stay as "
        "long.",
        "table.snapshot.age",
        unreadable=ALWAYS_MS,
    )
    table_snapshots_max: int = _policy_field(
        10,
        "table.snapshots.max",
        WholeNumber("snapshots", least=1, greatest=1000),
        "How many snapshots the table lists at most.",
        unreadable=1000,
    )

    message_ttl_seconds: int = _policy_field(
        0,
        "message.ttl.seconds",
        WholeNumber("seconds", greatest=_INT),
        "Older messages count as acknowledged by every subscription; 0: off. `__compaction` is exempt.",
        "messageTTLInSeconds",
        "ttlDurationDefaultInSeconds",
        unreadable=0,
    )
    backlog_quota_bytes: int = _policy_field(
        -1,
        "backlog.quota.bytes",
        Size(least=NO_LIMIT),
        "How many bytes the backlog of a subscription, `__compaction` apart, may have; -1: any number.",
        "backlogQuotaDefaultLimitBytes",
        unreadable=NO_LIMIT,
    )
    backlog_quota_bytes_action: str = _policy_field(
        HOLD,
        "backlog.quota.bytes.action",
        _OVER_QUOTA,
        "What happens above backlog.quota.bytes: producers wait (producer_request_hold), get an error "
        "(producer_exception), or the oldest messages count as acknowledged (consumer_backlog_eviction).",
        "backlogQuotaDefaultRetentionPolicy",
        unreadable=HOLD,
    )
    backlog_quota_seconds: int = _policy_field(
        -1,
        "backlog.quota.seconds",
        WholeNumber("seconds", least=NO_LIMIT, greatest=_INT),
        "How old a message may be that a subscription, `__compaction` apart, has not acknowledged; -1: any age.",
        "backlogQuotaDefaultLimitSecond",
        unreadable=NO_LIMIT,
    )
    backlog_quota_seconds_action: str = _policy_field(
        HOLD,
        "backlog.quota.seconds.action",
        _OVER_QUOTA,
        "What happens above backlog.quota.seconds, with the same choice.",
        unreadable=HOLD,
    )

    deduplication_enabled: bool = _policy_field(
        False,
        "deduplication.enabled",
        BOOLEAN,
        "An entry that a producer of the same name sends again, by its sequence id, is not stored again.",
        "deduplicationEnabled",
        "brokerDeduplicationEnabled",
    )
    replication_accept_gaps: bool = _policy_field(
        False,
        "replication.accept-gaps",
        BOOLEAN,
        "A cluster that replicates to the topic goes on without entries that a restored log lacks.",
    )
    schema_compatibility_strategy: str = _policy_field(
        "FULL",
        "schema.compatibility-strategy",
        Choice(tuple(item.value for item in SchemaCompatibilityStrategy)),
        "The rule for a new schema: whether it must read the messages of those that the topic has, or the reverse.",
        "schemaCompatibilityStrategy",
    )

    def __post_init__(self) -> None:
        """Raise InvalidInput if the policies contradict each other."""
        if self.max_compaction_lag_ms is not None and self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidInput(
                f"{MIN_COMPACTION_LAG} ({self.min_compaction_lag_ms}) is above {MAX_COMPACTION_LAG} "
                f"({self.max_compaction_lag_ms})",
                "lower the first or raise the second: a message cannot be compacted both later and sooner",
            )

    @property
    def retention_ms_effective(self) -> int | None:
        """The time that messages are kept under `delete`; None: forever."""
        milliseconds = self.retention_ms
        if milliseconds is None and self.retention_minutes is not None:
            milliseconds = self.retention_minutes * 60_000
        if milliseconds is None:
            milliseconds = self.retention_hours * 3_600_000
        return milliseconds if milliseconds >= 0 else None


POLICIES = options_of(TopicPolicies, Policy)
"""All policies by name, in the order in which they are listed."""
_BY_ANY_NAME = {
    name.lower(): policy for policy in POLICIES.values() for name in (policy.name, policy.attribute, *policy.aliases)
}
RETENTION_TIMES = ("retention.ms", "retention.minutes", "retention.hours")


def policy(name: str) -> Policy:
    """Return the policy of a name or alias, in upper or lower case. Raises InvalidInput for an unknown name."""
    known = _BY_ANY_NAME.get(name.strip().lower())
    if known is None:
        matches = difflib.get_close_matches(name.strip().lower(), _BY_ANY_NAME, n=5)
        near = " or ".join(dict.fromkeys(_BY_ANY_NAME[match].name for match in matches))
        meant = f"did you mean {near}? " if near else ""
        raise InvalidInput(f"there is no policy {name!r}", Advice(AdviceKind.LIST_POLICIES, {"meant": meant}))
    return known


def parse(name: str, raw: object) -> tuple[str, object]:
    """Return the policy's own name, and the value that `raw`, a text or a JSON value, means. `name`: also an alias.

    Raises InvalidInput.
    """
    known = policy(name)
    return known.name, known.kind.parse(known.name, raw)


def decode_stored(name: str, stored: object) -> object:
    """Return the value of the policy `name` from its stored JSON value; UnreadableStoredValue if it cannot be read."""
    try:
        return policy(name).kind.parse(name, stored)
    except InvalidInput as error:
        return UnreadableStoredValue(stored, str(error))


def to_json(name: str, value: object) -> object:
    """Return the JSON value of a value of the policy `name`, from which `parse` returns an equal value."""
    return policy(name).kind.to_json(value)


def check_below_broker(settings: Mapping[str, object], broker: TopicPolicies) -> None:
    """Raise InvalidInput if `settings` of a namespace or topic exceed a limit of the broker.

    Clients could not receive messages above the broker's `max.message.bytes`. `settings`: values by name.
    """
    size = settings.get(MAX_MESSAGE_BYTES)
    if isinstance(size, int) and size > broker.max_message_bytes:
        raise InvalidInput(
            f"{MAX_MESSAGE_BYTES} ({size}) is above the broker's ({broker.max_message_bytes}), and a client refuses "
            "messages that are larger than the broker's value",
            f"give at most {broker.max_message_bytes}, or raise {MAX_MESSAGE_BYTES} of the broker first",
        )


def check_consistent(settings: Mapping[str, object]) -> None:
    """Raise InvalidInput if the settings of one scope contradict each other. `settings`: values by name.

    An UnreadableStoredValue contradicts none.
    """
    lags = {name: settings[name] for name in (MIN_COMPACTION_LAG, MAX_COMPACTION_LAG) if name in settings}
    readable = {name: value for name, value in lags.items() if not isinstance(value, UnreadableStoredValue)}
    lags_by_field: dict[str, Any] = {POLICIES[name].attribute: value for name, value in readable.items()}
    TopicPolicies(**lags_by_field)
