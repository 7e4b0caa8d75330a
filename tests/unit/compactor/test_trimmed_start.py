"""A trim that cuts a ledger in two: what is below the topic's start is not there for a run, and verify knows (P3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from compactor import reference
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPlan, RunPolicies
from compactor.run.run_input import initial_plan
from compactor.verify.findings import DifferenceKind
from compactor.verify.verify import Report, Verifier
from storage.errors import Conflict
from storage.failpoints import Failpoint
from storage.metadata.records import COMPACTION_CURSOR, TopicSnapshot
from storage.objects.interface import StoreLocation
from storage.topic import Topic
from tests.chunked import append as append_rows, chunk, message, whole
from tests.clocks import ManualClock
from tests.workbench import TINY, Workbench, compacted_only, content, raw

NOW = ManualClock().now_ms()
BY_EVENT = RunPolicies(event_time_order=True)


def trim(bench: Workbench, topic: Topic, before: int) -> None:
    Retention(bench).trim(topic.record, before, force=True)
    assert topic.snapshot().topic.start_offset == before


def verified(bench: Workbench, topic: Topic) -> Report:
    return Verifier(bench, bench.engine, sizing=TINY).verify(topic.name)


def assert_clean(bench: Workbench, topic: Topic) -> None:
    """Nothing is wrong, and everything could be checked."""
    report = verified(bench, topic)
    assert report.differences == ()
    assert report.total == 0


def offsets(topic: Topic) -> list[int]:
    return [item.offset for item in topic.messages(read_compacted=True)]


def ten(bench: Workbench, topic: Topic) -> None:
    bench.append(topic, [content(*((f"k{n}".encode(), b"v") for n in range(10)))])


def at(bench: Workbench, topic: Topic, *messages: tuple[bytes | None, bytes | None, int | None]) -> None:
    """Key, payload, event time."""
    bench.append(topic, [content(*messages, time="event_time")])


def dropped_to(bench: Workbench, topic: Topic) -> int:
    return bench.manifest(topic).dropped_to


def forced_trim_before_the_first_run(bench: Workbench, topic: Topic) -> None:
    trim(bench, topic, 5)


def forced_trim_above_the_horizon(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    assert dropped_to(bench, topic) == -1
    trim(bench, topic, 10)
    ten(bench, topic)
    trim(bench, topic, 15)


def truncated(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    bench.metadata.trimming.truncate([topic.record.id])
    ten(bench, topic)


def the_cursor_is_gone_and_raw_with_it(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    trim(bench, topic, 10)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR, force=True)
    ten(bench, topic)


def trimmed_under_the_policy_compact(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    bench.set_policies(topic, **{"cleanup.policy": "compact"})
    Retention(bench).trim(topic.record)
    assert topic.snapshot().ledgers == ()
    ten(bench, topic)


@pytest.mark.parametrize(
    ("losing", "last_unread_trimmed_offset"),
    [
        (forced_trim_before_the_first_run, 4),
        (forced_trim_above_the_horizon, 14),
        (truncated, 9),
        (the_cursor_is_gone_and_raw_with_it, 9),
        (trimmed_under_the_policy_compact, -1),
    ],
)
def test_a_manifest_says_below_what_a_reader_may_miss_something(
    bench: Workbench, losing: Callable[[Workbench, Topic], None], last_unread_trimmed_offset: int
) -> None:
    """R7: raw that went before a run saw it may have held deletions."""
    topic = bench.topic()
    ten(bench, topic)
    losing(bench, topic)
    bench.compact(topic)
    assert dropped_to(bench, topic) == last_unread_trimmed_offset
    ten(bench, topic)
    bench.compact(topic)
    assert dropped_to(bench, topic) == last_unread_trimmed_offset, "forever"


def test_a_run_does_not_bring_back_what_was_trimmed_before_it(bench: Workbench) -> None:
    topic = bench.topic()
    ten(bench, topic)
    trim(bench, topic, 5)
    outcome = bench.compact(topic)
    assert offsets(topic) == [5, 6, 7, 8, 9] == [item.offset for item in raw(topic)]
    assert [topic.newest_value(f"k{n}".encode()) is None for n in range(10)] == [True] * 5 + [False] * 5
    assert outcome.run is not None
    assert outcome.run.statistics["messages_in"] == 5
    assert_clean(bench, topic)
    assert bench.compact(topic).run is None, "P11"


def test_a_dry_run_foretells_it(bench: Workbench) -> None:
    topic = bench.topic()
    ten(bench, topic)
    trim(bench, topic, 5)
    answer = bench.compactor().dry_run(topic.name)
    assert (answer["messages_in"], answer["messages_out"]) == (5, 5)


@pytest.mark.parametrize("retained", [True, False])
def test_a_message_without_a_key_stays_gone(bench: Workbench, retained: bool) -> None:
    topic = bench.topic()
    bench.append(topic, [content(*((None, b"%d" % n) for n in range(6)))])
    trim(bench, topic, 4)
    bench.compact(topic, retain_null_key=retained)
    assert offsets(topic) == ([4, 5] if retained else [])
    assert_clean(bench, topic)


def test_chunks_below_the_start_make_no_message(bench: Workbench) -> None:
    """Trimmed: one whole, the head of another, and a begin that was begun again behind the start."""
    topic = bench.topic()
    rows = [*whole("u", b"u", b"1", b"2"), chunk("v", 0, 2, b"v", b"1"), chunk("w", 0, 2, b"w", b"0")]
    rows += [chunk("v", 1, 2, b"v", b"2"), *whole("w", b"w", b"1", b"2"), message(b"a", b"3")]
    history = append_rows(bench, topic, rows)
    trim(bench, topic, 4)
    bench.compact(topic)
    expected = reference.run(reference.ReferenceLedger(), history, RunPolicies(), NOW, raw_from=4)
    assert [item.offset for item in expected.messages] == [4, 5, 6, 7]
    manifest = bench.manifest(topic)
    assert manifest.messages == 4
    assert sum(table.pending for table in manifest.chunks) == 1
    assert [topic.newest_value(key) is None for key in (b"u", b"v", b"w", b"a")] == [True, True, False, False]
    assert_clean(bench, topic)


def test_by_event_time_the_best_of_what_is_left_wins(bench: Workbench) -> None:
    """The index knows of a key the newest message and that of the largest event time: the winner is neither."""
    topic = bench.topic()
    at(bench, topic, (b"a", b"gone", 90), (b"b", b"gone", 90), (b"a", b"wins", 50), (b"a", b"newest", 20))
    at(bench, topic, (b"c", b"other", None))
    trim(bench, topic, 2)
    bench.compactor().compact(topic.name, BY_EVENT)
    assert [(item.key, item.payload) for item in compacted_only(topic)] == [(b"a", b"wins"), (b"c", b"other")]
    assert_clean(bench, topic)


def test_late_values_revive_nothing_after_compaction_cursor_was_deleted(bench: Workbench) -> None:
    """P9, R8: from whole raw a run learns of deletions and expiries again; where raw is trimmed, only the compacted
    ledger remembers them, and it is not deleted by the way."""
    topic, policies = bench.topic(), replace(BY_EVENT, key_ttl_ms=1000)

    def compact() -> list[bytes | None]:
        bench.compactor().compact(topic.name, policies)
        return [item.key for item in compacted_only(topic)]

    at(bench, topic, (b"deleted", b"v", NOW), (b"deleted", None, NOW + 200), (b"expired", b"v", NOW + 200))
    bench.advance(1001)
    assert compact() == []
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    at(bench, topic, (b"deleted", b"late", NOW + 100), (b"expired", b"late", NOW + 100), (b"other", b"v", NOW))
    assert compact() == [b"other"]
    at(bench, topic, (b"other", None, NOW + 1))
    assert compact() == []
    bench.set_policies(topic, **{"cleanup.policy": "compact"})
    Retention(bench).trim(topic.record)
    assert raw(topic) == []
    with pytest.raises(Conflict, match="what it remembers of deleted keys"):
        bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)


def test_what_an_earlier_run_kept_stays(bench: Workbench) -> None:
    """Incremental: the second ledger is cut, and what it had of `a` supersedes nothing."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"))])
    bench.compact(topic)
    bench.append(topic, [content((b"a", b"2"), (b"b", None), (b"b", b"4"), (b"c", b"5"))])
    trim(bench, topic, 4)
    bench.compact(topic)
    assert [item.payload for item in compacted_only(topic)] == [b"0", b"4", b"5"]
    assert_clean(bench, topic)
    bench.append(topic, [content((b"a", None))])
    bench.compact(topic)
    assert [item.payload for item in compacted_only(topic)] == [b"4", b"5"]
    assert_clean(bench, topic)


def test_a_trim_after_the_run_takes_nothing_from_it(bench: Workbench) -> None:
    topic = bench.topic()
    ten(bench, topic)
    bench.compact(topic)
    trim(bench, topic, 5)
    bench.append(topic, [content((b"k1", b"new"))])
    bench.compact(topic)
    assert [item.offset for item in compacted_only(topic)] == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert_clean(bench, topic)


def test_a_run_goes_by_the_start_that_its_snapshot_had(bench: Workbench) -> None:
    """A trim commits while a run that was planned before it is carried out: that run saw all."""
    topic = bench.topic()
    ten(bench, topic)

    def failpoint(step: Failpoint) -> None:
        if step is Failpoint.RUN_SNAPSHOT_TAKEN:
            trim(bench, topic, 5)

    with patch("compactor.two_phase.failpoint", failpoint):
        bench.compact(topic)
    assert [item.offset for item in compacted_only(topic)] == list(range(10))
    assert_clean(bench, topic)


def test_a_ledger_that_lies_below_the_start_as_a_whole_has_nothing(bench: Workbench) -> None:
    """Its trim is still to come, as when the start moved alone."""
    topic = bench.topic()
    ten(bench, topic)
    at(bench, topic, (b"z", b"1", None))
    bench.metadata.trimming.trim(topic.record.id, 10, [], force=True)
    bench.compact(topic)
    assert offsets(topic) == [10]
    assert_clean(bench, topic)


def test_when_nothing_is_left_there_is_nothing(bench: Workbench) -> None:
    topic = bench.topic()
    ten(bench, topic)
    bench.metadata.trimming.trim(topic.record.id, 10, [], force=True)
    bench.compact(topic, retain_null_key=True)
    assert offsets(topic) == []
    assert_clean(bench, topic)


def test_under_compact_delete_it_is_the_same(bench: Workbench) -> None:
    topic = bench.topic()
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete"})
    at(bench, topic, (b"a", b"gone", 90), (b"a", b"wins", 50), (b"a", b"newest", 20))
    trim(bench, topic, 1)
    bench.compactor().compact(topic.name, replace(BY_EVENT, start_offset=1))
    assert [item.payload for item in compacted_only(topic)] == [b"wins"]
    assert_clean(bench, topic)


def reading_all(store: StoreLocation, snapshot: TopicSnapshot, *rest: Any) -> RunPlan:
    """A plan over all rows of its ledgers, whose run is recorded as if it had begun at the start."""
    without_start = replace(snapshot, topic=replace(snapshot.topic, start_offset=0))
    return replace(initial_plan(store, without_start, *rest), raw_from=snapshot.topic.start_offset)


@pytest.mark.parametrize(
    "policies",
    [RunPolicies(retain_null_key=True), replace(BY_EVENT, retain_null_key=True)],
    ids=["by offset", "by event time"],
)
def test_verify_names_what_a_run_brought_back(bench: Workbench, policies: RunPolicies) -> None:
    """The run has an old bug: it reads below the start, and records that it did not."""
    topic = bench.topic()
    at(bench, topic, (b"a", b"0", 1), (None, b"1", 1), (b"b", b"2", 1))
    trim(bench, topic, 2)
    with patch("compactor.two_phase.run_input.initial_plan", reading_all):
        bench.compactor().compact(topic.name, policies)
    assert offsets(topic) == [0, 1, 2]
    report = verified(bench, topic)
    assert {difference.kind for difference in report.differences} == {DifferenceKind.EXTRA}
    assert {difference.offset for difference in report.differences} == {0, 1}
