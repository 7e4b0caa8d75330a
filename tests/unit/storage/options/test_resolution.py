"""A topic's policies follow from the values of all scopes, also where a value cannot be read (C1, S3, S9)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from storage.options.policies import EVICT, HOLD, POLICIES, TopicPolicies, UnreadableStoredValue
from storage.options.resolution import CompactionTriggers, PolicyOrigin, UnreadableSetting, resolve

HOUR = 3_600_000
Settings = Mapping[str, object]


@pytest.mark.parametrize(
    ("broker", "namespace", "topic", "kept"),
    [
        ({}, {}, {}, 168 * HOUR),
        ({"retention.hours": -1}, {}, {}, None),
        ({"retention.hours": 3, "retention.minutes": 2}, {}, {}, 120_000),
        ({"retention.hours": 3, "retention.minutes": 2, "retention.ms": 1}, {}, {}, 1),
        ({"retention.minutes": 2, "retention.ms": -1}, {}, {}, None),
        ({"retention.hours": 2, "retention.minutes": -1}, {}, {}, None),
        ({"retention.ms": 0}, {}, {}, 0),
        # The nearest scope that says anything of it counts, in whatever unit it says it.
        ({"retention.ms": 1}, {"retention.hours": 3}, {}, 3 * HOUR),
        ({"retention.ms": 1}, {"retention.ms": 2}, {"retention.minutes": 5}, 300_000),
        ({}, {"retention.minutes": 5}, {"retention.hours": 1}, HOUR),
        ({"retention.ms": 1}, {}, {"segment.bytes": 1 << 20}, 1),
    ],
)
def test_ms_beats_minutes_beats_hours(broker: Settings, namespace: Settings, topic: Settings, kept: int | None) -> None:
    """Worked example 8."""
    assert resolve(broker, namespace, topic).policies.retention_ms_effective == kept


def test_origins() -> None:
    origins = resolve({"retention.ms": 1, "segment.ms": 1}, {"retention.hours": 1}, {"flush.ms": None}).origins
    assert set(origins) == set(POLICIES)
    named = {name: origin for name, origin in origins.items() if origin is not PolicyOrigin.DEFAULT}
    assert named == {
        "segment.ms": PolicyOrigin.BROKER,
        "retention.hours": PolicyOrigin.NAMESPACE,
        "flush.ms": PolicyOrigin.TOPIC,
    }


LEAST, MOST = "min.compaction.lag.ms", "max.compaction.lag.ms"


@pytest.mark.parametrize(
    ("broker", "topic", "lags"),
    [
        ({LEAST: 5}, {MOST: 3}, (3, 3)),
        ({MOST: 3}, {LEAST: 5}, (5, 5)),
        ({LEAST: 5, MOST: 3}, {}, (5, 5)),
        ({LEAST: 2}, {MOST: 3}, (2, 3)),
    ],
)
def test_of_lags_from_two_scopes_the_nearest_wins(broker: Settings, topic: Settings, lags: tuple[int, int]) -> None:
    policies = resolve(broker, {}, topic).policies
    assert (policies.min_compaction_lag_ms, policies.max_compaction_lag_ms) == lags


SIZE = "max.message.bytes"


@pytest.mark.parametrize(
    ("scopes", "size", "origin"),
    [
        (({}, {}, {SIZE: 100}), 100, PolicyOrigin.TOPIC),
        (({}, {}, {SIZE: 6 << 20}), 5 << 20, PolicyOrigin.DEFAULT),
        (({SIZE: 7 << 20}, {}, {SIZE: 6 << 20}), 6 << 20, PolicyOrigin.TOPIC),
        (({SIZE: 50}, {SIZE: 100}, {}), 50, PolicyOrigin.BROKER),
        (({}, {SIZE: 100}, {}, {SIZE: 50}), 50, PolicyOrigin.FILE),
        (({}, {SIZE: 50}, {SIZE: 100}), 100, PolicyOrigin.TOPIC),
    ],
)
def test_no_topic_takes_larger_messages_than_clients_receive(
    scopes: tuple[Settings, ...], size: int, origin: PolicyOrigin
) -> None:
    resolution = resolve(*scopes)
    assert (resolution.policies.max_message_bytes, resolution.origins[SIZE]) == (size, origin)


# --- values that cannot be read ------------------------------------------------------------------------------------

BAD = UnreadableStoredValue("from a newer version", "cannot be read")


@pytest.mark.parametrize("name", ["retention.ms", "retention.minutes", "retention.hours"])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_retention_that_cannot_be_read_keeps_everything(name: str, where: int) -> None:
    """A wider scope's, or the default, could be shorter."""
    scopes: list[Settings] = [{"retention.ms": 1}, {}, {}]
    scopes[where] = {name: BAD}
    resolution = resolve(*scopes)
    assert resolution.policies.retention_ms_effective is None
    assert resolution.unreadable == {name: UnreadableSetting(list(PolicyOrigin)[2 - where], BAD)}


def test_a_readable_unit_of_the_same_scope_beats_one_that_cannot_be_read() -> None:
    assert resolve({}, {}, {"retention.ms": 5, "retention.hours": BAD}).policies.retention_ms_effective == 5


@pytest.mark.parametrize("name", POLICIES)
def test_a_value_that_cannot_be_read_stops_nothing_and_is_named(name: str) -> None:
    resolution = resolve({}, {name: BAD}, {})
    assert resolution.unreadable == {name: UnreadableSetting(PolicyOrigin.NAMESPACE, BAD)}
    nearer = resolve({}, {name: BAD}, {name: POLICIES[name].default})
    assert nearer.unreadable == {}, "what does not count is not missed"


def test_what_counts_instead_deletes_nothing() -> None:
    """The wider scope's says much is to be deleted."""
    harsh = {
        "cleanup.policy": frozenset({"delete", "compact"}),
        "retention.bytes": 0,
        "delete.retention.ms": 0,
        "compaction.retain-null-key": False,
        "compaction.tombstones-wait-for-cursors": False,
        "compaction.key-ttl.ms": 1,
        "compaction.event-time-max-lateness.ms": 0,
        "compaction.chunk-expiry.ms": 1,
        "flush.messages": 1000,
        "flush.ms": 1000,
        "file.delete.delay.ms": 0,
        "message.ttl.seconds": 60,
        "backlog.quota.bytes": 0,
        "backlog.quota.bytes.action": EVICT,
        "backlog.quota.seconds": 0,
        "backlog.quota.seconds.action": EVICT,
    }
    policies = resolve(harsh, {}, dict.fromkeys(harsh, BAD)).policies
    forever = 1 << 62
    assert policies == TopicPolicies(
        cleanup_policy=frozenset(),
        retention_bytes=-1,
        delete_retention_ms=forever,
        compaction_retain_null_key=True,
        compaction_tombstones_wait_for_cursors=True,
        compaction_key_ttl_ms=None,
        compaction_event_time_max_lateness_ms=forever,
        compaction_chunk_expiry_ms=None,
        flush_messages=1,
        flush_ms=1,
        file_delete_delay_ms=forever,
        message_ttl_seconds=0,
        backlog_quota_bytes=-1,
        backlog_quota_bytes_action=HOLD,
        backlog_quota_seconds=-1,
        backlog_quota_seconds_action=HOLD,
    )


def test_what_deletes_nothing_falls_back_to_the_wider_scope() -> None:
    resolution = resolve({"segment.bytes": 1 << 20}, {}, {"segment.bytes": BAD})
    assert (resolution.policies.segment_bytes, resolution.origins["segment.bytes"]) == (1 << 20, PolicyOrigin.BROKER)


# --- when compaction is enabled (S9) -------------------------------------------------------------------------------

DELETE = {"cleanup.policy": frozenset({"delete"})}


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup.policy": frozenset({"compact"})},
        {**DELETE, "compaction.threshold.bytes": 1},
        {**DELETE, "compaction.threshold.messages": 1},
        {**DELETE, "min.cleanable.dirty.ratio": 0.5},
        {**DELETE, "max.compaction.lag.ms": 1},
        {**DELETE, "compaction.threshold.bytes": BAD},
        {**DELETE, "max.compaction.lag.ms": BAD},
        {"cleanup.policy": BAD},
    ],
)
def test_whatever_can_make_a_compaction_due_enables_it(settings: Settings) -> None:
    assert resolve({}, {}, settings).compaction_enabled
    assert resolve({}, settings, {}).compaction_enabled
    around_all = resolve(settings, {}, {}).compaction_enabled
    only_where_compact_or_near = settings.keys() & {"min.cleanable.dirty.ratio", "max.compaction.lag.ms"}
    assert around_all != bool(only_where_compact_or_near), "Kafka's ratio and lag of a broker hold where it compacts"


def test_a_topic_with_delete_alone_is_not_compacted() -> None:
    assert not resolve({}, {}, {}).compaction_enabled
    off = {**DELETE, "compaction.threshold.bytes": 0, "max.compaction.lag.ms": None}
    assert not resolve({"compaction.threshold.bytes": 5}, {}, off).compaction_enabled


def test_ratio_and_maximum_lag_hold_where_topics_are_cleaned_by_compaction_or_somebody_set_them() -> None:
    values: Settings = {"min.cleanable.dirty.ratio": 0.3, "max.compaction.lag.ms": 5}
    assert resolve(values, {}, DELETE).triggers == CompactionTriggers()
    for scopes in (({}, values, {}), ({}, {}, values)):
        assert resolve(*scopes).triggers == CompactionTriggers(dirty_ratio=0.3, max_lag_ms=5)
    compact = {"cleanup.policy": frozenset({"compact"})}
    assert resolve(values, compact, {}).triggers == CompactionTriggers(dirty_ratio=0.3, max_lag_ms=5)
    assert resolve(values, compact, DELETE).triggers == CompactionTriggers()
