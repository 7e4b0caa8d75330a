"""The table of policies: what may be set, under which names, and how a topic's are resolved (C1, S3)."""

from __future__ import annotations

import pytest

from compactor.run.plan import RunPolicies
from storage.errors import InvalidInput
from storage.options import policies
from storage.options.policies import POLICIES, FallbackValue, TopicPolicies, UnreadableStoredValue


@pytest.mark.parametrize(
    ("name", "text", "value"),
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
def test_values(name: str, text: object, value: object) -> None:
    parsed = policies.parse(name, text)
    assert parsed == (name, value)
    assert type(parsed[1]) is type(value)
    assert policies.parse(name, policies.to_json(*parsed)) == parsed


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
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
def test_an_error_names_the_policy_and_what_is_allowed(name: str, text: object, allowed: str) -> None:
    with pytest.raises(InvalidInput) as answer:
        policies.parse(name, text)
    assert name in answer.value.message
    assert allowed in answer.value.remedy


@pytest.mark.parametrize(
    ("value", "shown"), [("two", "'two'"), (None, "null"), (True, "true"), (1.5, "1.5"), (["a", None], '["a", null]')]
)
def test_an_error_shows_the_value_as_json_has_it(value: object, shown: str) -> None:
    with pytest.raises(InvalidInput) as answer:
        policies.parse("retention.bytes", value)
    assert answer.value.message == f"{shown} is not a value of retention.bytes"


def test_defaults_are_allowed_values() -> None:
    for policy in POLICIES.values():
        stored = policies.to_json(policy.name, policy.default)
        assert policies.parse(policy.name, stored) == (policy.name, policy.default)
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
    names = [name.lower() for policy in POLICIES.values() for name in {policy.name, policy.attribute, *policy.aliases}]
    assert len(names) == len(set(names))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"no policy 'retension\.ms'") as answer:
        policies.policy("retension.ms")
    assert answer.value.remedy.startswith("did you mean retention.ms")
    assert answer.value.remedy.endswith("? see the list of policies")
    with pytest.raises(InvalidInput) as answer:
        policies.policy("xyz")
    assert answer.value.remedy == "see the list of policies"


def test_defaults_of_compaction_are_the_compactors() -> None:
    policies, theirs = TopicPolicies(), RunPolicies()
    assert (
        policies.compaction_retain_null_key,
        policies.delete_retention_ms,
        policies.compaction_tombstones_wait_for_cursors,
        policies.compaction_key_ttl_ms,
        policies.min_compaction_lag_ms,
        policies.compaction_event_time_order,
        policies.compaction_event_time_max_lateness_ms,
    ) == (
        theirs.retain_null_key,
        theirs.tombstone_retention_ms,
        theirs.tombstones_wait_for_cursors,
        theirs.key_ttl_ms,
        theirs.min_lag_ms,
        theirs.event_time_order,
        theirs.event_time_max_lateness_ms,
    )


LEAST, MOST = "min.compaction.lag.ms", "max.compaction.lag.ms"


def test_lags_that_contradict_each_other_are_refused() -> None:
    for wrong in ({LEAST: 2, MOST: 1},):
        with pytest.raises(InvalidInput, match=rf"{LEAST} \(2\) is above {MOST} \(1\)"):
            policies.check_consistent(wrong)
    policies.check_consistent({LEAST: 2, MOST: 2})
    policies.check_consistent({LEAST: 2, MOST: None})
    policies.check_consistent({MOST: 1})
    with pytest.raises(InvalidInput):
        TopicPolicies(min_compaction_lag_ms=2, max_compaction_lag_ms=1)


def test_an_unreadable_value_contradicts_nothing() -> None:
    unreadable = policies.decode_stored(LEAST, "two")
    assert isinstance(unreadable, UnreadableStoredValue)
    assert unreadable.value == "two"
    assert unreadable.reason.startswith("'two' is not a value of min.compaction.lag.ms: give milliseconds")
    policies.check_consistent({LEAST: unreadable, MOST: 1})
    assert policies.decode_stored(LEAST, "2") == 2


def test_what_counts_instead_of_an_unreadable_value_is_a_value() -> None:
    for policy in POLICIES.values():
        if not isinstance(policy.fallback, FallbackValue):
            document = policies.to_json(policy.name, policy.fallback)
            assert policies.parse(policy.name, document) == (policy.name, policy.fallback)
