"""The table of policies: what may be set, under which names, and how a topic's are resolved (C1, S3)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compactor.plan import Policies
from storage import policies
from storage.errors import InvalidInput
from storage.policies import POLICIES, Origin, TopicPolicies


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("retention.ms", "500ms", 500),
        ("retention.ms", "90s", 90_000),
        ("retention.ms", "10m", 600_000),
        ("retention.ms", " 2 H ", 7_200_000),
        ("retention.ms", "-1", -1),
        ("retention.ms", "NONE", None),
        ("retention.ms", None, None),
        ("retention.hours", "168", 168),
        ("segment.bytes", "64k", 65_536),
        ("segment.bytes", "128MiB", 128 << 20),
        ("segment.bytes", "1 GB", 1 << 30),
        ("retention.bytes", "2T", 2 << 40),
        ("retention.bytes", -1, -1),
        ("cleanup.policy", "", frozenset()),
        ("cleanup.policy", "DELETE", frozenset({"delete"})),
        ("cleanup.policy", "delete,compact", frozenset({"delete", "compact"})),
        ("cleanup.policy", ["compact"], frozenset({"compact"})),
        ("min.cleanable.dirty.ratio", 1, 1.0),
        ("compaction.retain-null-key", " True ", True),
        ("compaction.retain-null-key", False, False),
    ],
)
def test_values(name: str, given: object, value: object) -> None:
    parsed = policies.parse(name, given)
    assert parsed == (name, value)
    assert type(parsed[1]) is type(value)
    assert policies.parse(name, policies.shown(*parsed)) == parsed


@pytest.mark.parametrize(
    ("name", "given", "allowed"),
    [
        ("retention.ms", "7 days", "7d"),
        ("retention.ms", "-7d", "-1 for no limit"),
        ("retention.ms", -2, "-1 for no limit"),
        ("retention.ms", "1.5h", "milliseconds"),
        ("retention.ms", 10**19, "milliseconds"),
        ("retention.ms", "9999999999999999d", "milliseconds"),
        ("retention.ms", True, "milliseconds"),
        ("retention.ms", "", "or none"),
        ("retention.hours", "7d", "a whole number of hours"),
        ("retention.hours", None, "a whole number of hours"),
        ("flush.messages", 0, "at least 1"),
        ("flush.ms", "0", "at least 1"),
        ("segment.ms", -1, "at least 1"),
        ("segment.bytes", "1K", "from 16384 to 2147483647"),
        ("segment.bytes", "2G", "from 16384 to 2147483647"),
        ("segment.bytes", 1.5, "bytes"),
        ("max.message.bytes", 0, "from 1 to"),
        ("cleanup.policy", "compact;delete", "compact,delete"),
        ("cleanup.policy", "keep", "compact,delete"),
        ("cleanup.policy", ["delete", 1], "compact,delete"),
        ("cleanup.policy", None, "compact,delete"),
        ("min.cleanable.dirty.ratio", "1.1", "0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "0 to 1"),
        ("min.cleanable.dirty.ratio", True, "0 to 1"),
        ("compaction.retain-null-key", "yes", "true or false"),
        ("compaction.retain-null-key", 1, "true or false"),
    ],
)
def test_an_error_names_the_policy_and_what_is_allowed(name: str, given: object, allowed: str) -> None:
    with pytest.raises(InvalidInput) as told:
        policies.parse(name, given)
    assert name in told.value.message
    assert repr(given) in told.value.message
    assert allowed in told.value.remedy


def test_defaults_are_allowed_values() -> None:
    for policy in POLICIES.values():
        assert policies.parse(policy.name, policies.shown(policy.name, policy.default)) == (policy.name, policy.default)
        assert policy.doc.endswith(".")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("log.retention.ms", "retention.ms"),
        ("LOG.RETENTION.HOURS", "retention.hours"),
        ("topicCompactionRetainNullKey", "compaction.retain-null-key"),
        ("brokerServiceCompactionThresholdInBytes", "compaction.threshold.bytes"),
        ("retention_bytes", "retention.bytes"),
    ],
)
def test_other_names(alias: str, name: str) -> None:
    assert policies.policy(alias).name == name


def test_a_name_means_one_policy() -> None:
    names = [name.lower() for one in POLICIES.values() for name in {one.name, one.attribute, *one.aliases}]
    assert len(names) == len(set(names))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"no policy 'retension\.ms'") as told:
        policies.policy("retension.ms")
    assert told.value.remedy.startswith("did you mean retention.ms? there are cleanup.policy, ")
    with pytest.raises(InvalidInput) as told:
        policies.policy("xyz")
    assert told.value.remedy.startswith("there are cleanup.policy, ")


def test_defaults_of_compaction_are_the_compactors() -> None:
    ours, theirs = TopicPolicies(), Policies()
    assert (
        ours.compaction_retain_null_key,
        ours.delete_retention_ms,
        ours.compaction_tombstones_wait_for_cursors,
        ours.compaction_key_ttl_ms,
        ours.min_compaction_lag_ms,
        ours.compaction_event_time_order,
        ours.compaction_event_time_max_lateness_ms,
    ) == (
        theirs.retain_null_key,
        theirs.tombstone_retention_ms,
        theirs.tombstones_wait_for_cursors,
        theirs.key_ttl_ms,
        theirs.min_lag_ms,
        theirs.event_time_order,
        theirs.event_time_max_lateness_ms,
    )


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
    assert policies.effective(broker, namespace, topic).retention_ms_effective == kept


def test_origins() -> None:
    found = policies.origins({"retention.ms": 1, "segment.ms": 1}, {"retention.hours": 1}, {"flush.ms": None})
    assert set(found) == set(POLICIES)
    named = {name: origin for name, origin in found.items() if origin is not Origin.DEFAULT}
    assert named == {
        "segment.ms": Origin.BROKER,
        "retention.hours": Origin.NAMESPACE,
        "flush.ms": Origin.TOPIC,
    }


LEAST, MOST = "min.compaction.lag.ms", "max.compaction.lag.ms"


def test_lags_that_contradict_each_other_are_refused() -> None:
    for wrong in ({LEAST: 2, MOST: 1},):
        with pytest.raises(InvalidInput, match=rf"{LEAST} \(2\) is above {MOST} \(1\)"):
            policies.check(wrong)
    policies.check({LEAST: 2, MOST: 2})
    policies.check({LEAST: 2, MOST: None})
    policies.check({MOST: 1})
    with pytest.raises(InvalidInput):
        TopicPolicies(min_compaction_lag_ms=2, max_compaction_lag_ms=1)


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
    found = policies.effective(broker, {}, topic)
    assert (found.min_compaction_lag_ms, found.max_compaction_lag_ms) == lags
