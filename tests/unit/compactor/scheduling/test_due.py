"""The topics that are due, their order, and the batches of small ones (S1, S2, S3, S6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from compactor.scheduling.backlog import Backlog
from compactor.scheduling.due import TopicsCheckResult, WorkerSlots, cause_of, due_topics, jobs_to_begin, retry_delay_ms
from storage.metadata.records import CompactionControl, TopicRecord
from storage.model import TopicName
from storage.options.resolution import CompactionTriggers

NOW = 1_000_000


def topic(number: int) -> TopicRecord:
    return TopicRecord(number, f"{number:032x}", TopicName.parse(f"t{number:04d}"), 1, 0, 0, 0, NOW)


def backlog(number: int = 1, size: int = 100, clean: int = 0, oldest: int = NOW, **triggers: object) -> Backlog:
    created = CompactionTriggers(**triggers)  # type: ignore[arg-type]
    return Backlog(
        topic(number), created, size, max(1, size // 10), size, clean, oldest, first_extent_newest_time=oldest + 5
    )


@pytest.mark.parametrize(
    ("triggers", "cause"),
    [
        ({"threshold_bytes": 101}, None),
        ({"threshold_bytes": 100}, None),
        ({"threshold_bytes": 99}, "threshold.bytes"),
        ({"threshold_bytes": 0}, None),
        ({"threshold_messages": 11}, None),
        ({"threshold_messages": 10}, None),
        ({"threshold_messages": 9}, "threshold.messages"),
        ({"threshold_bytes": 100, "threshold_messages": 9}, "threshold.messages"),
        ({"max_lag_ms": 50}, None),
        ({"max_lag_ms": 49}, "max.lag"),
        ({}, None),
    ],
)
def test_what_is_due(triggers: dict[str, int], cause: str | None) -> None:
    assert cause_of(backlog(oldest=NOW - 50, **triggers), NOW) == cause


def test_the_dirty_ratio_is_that_of_what_is_closed() -> None:
    limited = backlog(size=100, clean=100, dirty_ratio=0.5)
    assert cause_of(limited, NOW) is None
    assert cause_of(replace(limited, dirty_bytes=101), NOW) == "dirty.ratio"
    assert cause_of(replace(limited, dirty_bytes=0, bytes=10**9), NOW) is None, "what is open does not count"
    assert cause_of(replace(limited, clean_bytes=0), NOW) == "dirty.ratio"


def test_nothing_is_due_of_a_topic_whose_messages_are_all_too_young() -> None:
    """Ledgers are taken whole: while each holds something that is too young, a run would find nothing."""
    young = backlog(oldest=NOW - 50, threshold_bytes=1, min_lag_ms=46)
    assert cause_of(young, NOW) is None
    assert cause_of(young, NOW + 1) == "threshold.bytes"
    assert cause_of(replace(young, first_extent_newest_time=None), NOW + 1) is None


def test_an_empty_backlog_is_never_due() -> None:
    empty = replace(backlog(dirty_ratio=0.0, max_lag_ms=1), bytes=0, messages=0, dirty_bytes=0, oldest=None)
    assert cause_of(empty, NOW) is None


def test_the_dirtiest_goes_first_and_equal_ones_by_size_then_name() -> None:
    backlogs = [
        backlog(1, size=50, clean=100, threshold_bytes=1),
        backlog(2, size=50, clean=0, threshold_bytes=1),
        backlog(3, size=60, clean=0, threshold_bytes=1),
        backlog(4, size=100, clean=100, threshold_bytes=1),
        backlog(5, size=50, clean=0, threshold_bytes=1),
    ]
    assert [item.topic.id for item in due_topics(backlogs, {}, NOW)] == [3, 2, 5, 4, 1]


@pytest.mark.parametrize(
    ("control", "begins"),
    [
        (CompactionControl(), True),
        (CompactionControl(requested_at=1), False),
        (CompactionControl(paused=1), False),
        (CompactionControl(aborting=True), False),
        (CompactionControl(failures=1, retry_at=NOW + 1), False),
        (CompactionControl(failures=1, retry_at=NOW), True),
    ],
)
def test_who_is_left_out(control: CompactionControl, begins: bool) -> None:
    backlogs = [backlog(1, threshold_bytes=1), backlog(2, threshold_bytes=1)]
    assert [item.topic.id for item in due_topics(backlogs, {1: control}, NOW)] == ([1, 2] if begins else [2])


SLOTS = WorkerSlots(count=3, small_bytes=100, batch=3)


def small(number: int) -> Backlog:
    return backlog(number, size=100, clean=1600)


def large(number: int) -> Backlog:
    return backlog(number, size=101)


def ids(batches: list[list[TopicRecord]]) -> list[list[int]]:
    return [[item.id for item in topics] for topics in batches]


def test_small_topics_go_together_and_large_ones_alone() -> None:
    assert SLOTS.is_small(small(1))
    assert not SLOTS.is_small(large(1))
    assert not SLOTS.is_small(backlog(1, size=100, clean=1601))
    backlogs = [small(1), large(2), small(3), large(4), large(5), small(6), small(7)]
    assert ids(jobs_to_begin(backlogs, 0, 0, SLOTS)) == [[1, 3, 6], [2], [4]]
    assert ids(jobs_to_begin(backlogs[1:], 0, 0, SLOTS)) == [[2], [3, 6, 7], [4]]


def test_small_topics_go_together_only_on_the_same_engine() -> None:
    backlogs = [
        small(1),
        replace(small(2), engine_kind="spark"),
        small(3),
        replace(small(4), engine_kind="spark"),
        small(5),
    ]
    assert ids(jobs_to_begin(backlogs, 0, 0, SLOTS)) == [[1, 3, 5], [2, 4]]
    assert ids(jobs_to_begin(backlogs, 0, 0, replace(SLOTS, count=1))) == [[1, 3, 5]]


def test_large_topics_leave_a_lane_to_small_ones() -> None:
    backlogs = [large(1), large(2), large(3), small(4)]
    assert ids(jobs_to_begin(backlogs[:3], 0, 0, SLOTS)) == [[1], [2]]
    assert ids(jobs_to_begin(backlogs, 0, 0, SLOTS)) == [[1], [2], [4]]
    assert ids(jobs_to_begin(backlogs, 2, 0, SLOTS)) == [[4]]
    assert ids(jobs_to_begin(backlogs, 2, 1, SLOTS)) == []
    assert ids(jobs_to_begin([large(1), small(2)], 0, 0, replace(SLOTS, count=1))) == [[1]]


@given(
    st.lists(st.booleans(), max_size=40),
    st.integers(0, 4),
    st.integers(0, 4),
    st.builds(WorkerSlots, st.integers(1, 5), st.just(100), st.integers(1, 4)),
)
def test_no_lane_has_two_jobs_and_no_topic_is_begun_twice(
    kinds: list[bool], busy_large: int, busy_small: int, slots: WorkerSlots
) -> None:
    backlogs = [small(number) if kind else large(number) for number, kind in enumerate(kinds)]
    batches = jobs_to_begin(backlogs, busy_large, busy_small, slots)
    begun = Counter(item.id for topics in batches for item in topics)
    assert set(begun.values()) <= {1}
    assert len(batches) <= max(0, slots.count - busy_large - busy_small)
    for topics in batches:
        assert 1 <= len(topics) <= slots.batch
        assert len(topics) == 1 or all(kinds[item.id] for item in topics)
    if busy_large + busy_small < slots.count and any(kinds):
        assert any(kinds[item] for item in begun) or (slots.count - busy_large - busy_small) <= len(batches)


def test_a_failing_topic_waits_longer_each_time_up_to_the_most() -> None:
    assert [retry_delay_ms(failures, 1000, 6000, 1.0) for failures in (1, 2, 3, 4, 100)] == [
        1000,
        2000,
        4000,
        6000,
        6000,
    ]
    assert retry_delay_ms(3, 1000, 6000, 0.0) == 2000
    assert retry_delay_ms(3, 1000, 6000, 0.5) == 3000


def test_a_check_in_the_terms_of_kafkas_metrics() -> None:
    backlogs = [
        backlog(1, size=100, clean=300, oldest=NOW - 70, max_lag_ms=50),
        backlog(2, size=40, clean=40, oldest=NOW - 10, max_lag_ms=50),
    ]
    failing = {2: CompactionControl(failures=3)}
    assert TopicsCheckResult.of(backlogs, failing, 1, NOW, 7) == TopicsCheckResult(NOW, 2, 1, 140, 0.5, 20, 1, 40, 7)
    assert TopicsCheckResult.of([], {}, 0, NOW) == TopicsCheckResult(NOW, 0, 0, 0, 0.0, 0, 0, 0)
