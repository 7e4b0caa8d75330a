"""From a topic's policies to a run's, and what a run does with the limits of `compact,delete` (C2)."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies, Sizing
from compactor.run.run_policies import POLICY_OF, names_of_differing_overrides, run_policies, run_policies_from_stored
from storage.metadata.policy_store import BROKER, namespace_scope
from storage.metadata.records import RunRecord
from storage.options.policies import TopicPolicies, policy
from storage.topic import Topic
from tests.sealed import live_rows
from tests.workbench import Workbench, content

BOTH = frozenset({"compact", "delete"})
HOUR = 3_600_000
STAY = {"delete.retention.ms": 9 * HOUR, "compaction.retain-null-key": True}
"""Policies under which rows of every kind stay until a limit of the topic takes them."""


def test_every_policy_of_a_run_comes_from_one_of_the_topic_or_from_its_limits() -> None:
    assert {field.name for field in fields(RunPolicies)} == POLICY_OF.keys() | {
        "retention_ms",
        "start_offset",
        "table_format_version",
    }
    assert run_policies(TopicPolicies()) == RunPolicies()
    others: dict[str, Any] = {
        "compaction_retain_null_key": True,
        "delete_retention_ms": 1,
        "compaction_tombstones_wait_for_cursors": True,
        "compaction_key_ttl_ms": 2,
        "min_compaction_lag_ms": 3,
        "compaction_event_time_order": True,
        "compaction_event_time_max_lateness_ms": 4,
        "compaction_chunk_expiry_ms": 5,
        "table_snapshot_age_ms": 6,
        "table_snapshots_max": 7,
    }
    answer = asdict(run_policies(TopicPolicies(**others)))
    for name, stored in POLICY_OF.items():
        assert answer[name] == others.get(policy(stored).attribute, getattr(RunPolicies(), name))
    assert all(answer[name] != getattr(RunPolicies(), name) for name in POLICY_OF)


def test_a_run_writes_a_table_of_the_topics_version_if_tables_are_enabled() -> None:
    assert run_policies(TopicPolicies(table_format_version=2)).table_format_version is None
    assert run_policies(TopicPolicies(table_enabled=True)).table_format_version == 3
    assert run_policies(TopicPolicies(table_enabled=True, table_format_version=2)).table_format_version == 2


@pytest.mark.parametrize("cleanup", [frozenset(), {"delete"}, {"compact"}], ids=sorted)
def test_the_limits_of_a_topic_hold_under_both_policies_alone(cleanup: set[str]) -> None:
    limited: dict[str, Any] = {"retention_minutes": 5, "retention_bytes": 7}
    plain = run_policies(TopicPolicies(cleanup_policy=frozenset(cleanup), **limited), 25)
    assert (plain.retention_ms, plain.start_offset) == (None, 0)
    both = run_policies(TopicPolicies(cleanup_policy=BOTH, **limited), 25)
    assert (both.retention_ms, both.start_offset) == (300_000, 25)
    assert run_policies(TopicPolicies(cleanup_policy=BOTH, retention_ms=-1)).retention_ms is None


def append(bench: Workbench, topic: Topic, *messages: tuple[bytes | None, bytes | None, int]) -> None:
    """Key, payload, and how long ago it was published."""
    now = bench.clock.now_ms()
    bench.append(topic, [content(*((key, payload, now - age) for key, payload, age in messages))])


def run(bench: Workbench, topic: Topic) -> RunRecord | None:
    """A run by the stored policies."""
    return bench.compactor().compact(topic.name, lambda record: run_policies_from_stored(bench.metadata, record)).run


def payloads(bench: Workbench, topic: Topic) -> list[bytes | None]:
    """Return what the compacted ledger holds, whatever readers get of it."""
    column: list[bytes | None] = live_rows(bench.store, bench.manifest(topic)).column("payload").to_pylist()
    return column


def test_who_set_what_apart(bench: Workbench, topic: Topic) -> None:
    options = {"key_ttl_ms": 5, "tombstone_retention_ms": 6, "min_lag_ms": 7}
    assert names_of_differing_overrides(bench.metadata, topic.record, options) == []
    bench.metadata.policies.change([BROKER], {"delete.retention.ms": 1})
    bench.metadata.policies.change([namespace_scope("public/default")], {"compaction.key-ttl.ms": 5})
    assert names_of_differing_overrides(bench.metadata, topic.record, options) == ["tombstone_retention_ms"]


@pytest.mark.parametrize(
    ("cleanup", "raw", "compacted"),
    [("delete", [], [b"5"]), ("compact", [], [b"5"]), ("compact,delete", [], []), ("", [b"5"], [b"5"])],
)
def test_worked_example_10_delete_compact_both(
    bench: Workbench, topic: Topic, cleanup: str, raw: list[bytes], compacted: list[bytes]
) -> None:
    """Message 5 is the newest of its key and older than the retention.

    `delete` takes it from raw, `compact` keeps it in the compacted ledger, both together take it from there, too.
    """
    bench.set_policies(topic, **{"cleanup.policy": cleanup, "retention.ms": HOUR})
    messages = [(b"k%d" % n, b"%d" % n, 3 * HOUR) for n in range(5)]
    append(bench, topic, *((key, None, age) for key, _, age in messages), (b"k5", b"5", 2 * HOUR))
    run(bench, topic)
    Retention(bench).trim(topic.record)
    run(bench, topic)
    assert [message.payload for message in topic.messages() if message.payload] == raw
    assert payloads(bench, topic) == compacted


@pytest.mark.parametrize(("later", "remaining"), [(-1, 3), (0, 3), (1, 0)])
def test_rows_of_every_kind_go_by_time_at_the_same_moment(
    bench: Workbench, topic: Topic, later: int, remaining: int
) -> None:
    """A value, a retained tombstone and a message without a key."""
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete", "retention.ms": HOUR, **STAY})
    append(bench, topic, (b"a", b"1", 0), (b"b", None, 0), (None, b"n", 0))
    append(bench, topic, (b"c", b"2", -HOUR))
    run(bench, topic)
    assert len(payloads(bench, topic)) == 4
    bench.advance(HOUR + later)
    created = run(bench, topic)
    assert (created is None) == (later < 1), "P11 knows whether something is due"
    assert len(payloads(bench, topic)) == remaining + 1
    assert run(bench, topic) is None


def test_dirty_rows_that_are_too_old_never_come_in(bench: Workbench, topic: Topic) -> None:
    """And what they superseded does not come back."""
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete", "retention.ms": HOUR, **STAY})
    append(bench, topic, (b"a", b"old", 0), (b"x", b"x", 0), (b"y", b"y", 0))
    run(bench, topic)
    append(bench, topic, (b"a", b"new", HOUR + 1), (b"x", None, HOUR + 1), (None, b"n", HOUR + 1), (b"z", b"z", HOUR))
    run(bench, topic)
    assert payloads(bench, topic) == [b"y", b"z"]


def test_rows_below_the_start_go(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete", "retention.ms": -1, **STAY})
    append(bench, topic, (b"a", b"0", 0), (b"b", None, 0), (None, b"2", 0), (b"c", b"3", 0))
    run(bench, topic)
    assert payloads(bench, topic) == [b"0", None, b"2", b"3"]
    retention = Retention(bench)
    retention.trim(topic.record, 2)
    created = run(bench, topic)
    assert created is not None
    assert created.policies["start_offset"] == 2
    assert payloads(bench, topic) == [b"2", b"3"]
    assert run(bench, topic) is None
    retention.trim(topic.record, 3)
    run(bench, topic)
    assert payloads(bench, topic) == [b"3"]


def test_a_larger_start_without_anything_below_it_makes_no_run(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete", "retention.ms": -1})
    append(bench, topic, (b"a", b"0", 0), (b"a", b"1", 0))
    run(bench, topic)
    Retention(bench).trim(topic.record, 1)
    assert run(bench, topic) is None
    append(bench, topic, (b"a", b"2", 0), (b"b", b"3", 0))
    run(bench, topic)
    assert run(bench, topic) is None, "a start that a run has gone by is not due again"
    assert payloads(bench, topic) == [b"2", b"3"]


def test_parts_with_dead_rows_are_not_due_for_ever(bench: Workbench, topic: Topic) -> None:
    """The dead rows of a kept part count neither by their time nor by their offset."""
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete", "retention.ms": HOUR})
    append(bench, topic, (b"a", b"0", 0), *((b"k%d" % n, b"%d" % n, -HOUR) for n in range(9)))
    roomy = bench.with_sizing(Sizing(1, max_garbage_ratio=1.0))
    run(roomy, topic)
    bench.advance(HOUR + 1)
    assert run(roomy, topic) is not None
    bench.advance(5)
    assert run(roomy, topic) is None
    Retention(bench).trim(topic.record, 3)
    created = run(roomy, topic)
    assert created is not None
    assert created.statistics["parts_kept"] == 1
    assert payloads(bench, topic) == [b"%d" % n for n in range(2, 9)]
    bench.advance(5)
    assert run(roomy, topic) is None


def test_a_topic_that_becomes_one_of_both_policies_loses_what_is_too_old(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "compact", "retention.ms": HOUR})
    append(bench, topic, (b"a", b"1", 2 * HOUR), (b"b", b"2", 0))
    run(bench, topic)
    assert payloads(bench, topic) == [b"1", b"2"]
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete"})
    run(bench, topic)
    assert payloads(bench, topic) == [b"2"]
