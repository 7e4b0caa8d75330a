"""The table of topics: states, totals, order, groups, and pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.dashboard.topics_table import (
    DUE,
    FAILING,
    PAUSED,
    REQUESTED,
    RUNNING,
    CompactionStates,
    TableView,
    TopicRow,
    TopicsPage,
    filter_by_name,
    topic_rows,
    topics_page,
    totals,
)
from compactor.scheduling.backlog import Backlog
from storage.metadata.records import CompactionControl, RunRecord, RunState, TopicRecord, TopicSummary
from storage.model import TopicName
from storage.options.resolution import CompactionTriggers

NOW = 1_000_000
THRESHOLD = CompactionTriggers(threshold_bytes=100)
NO_TRIGGERS = CompactionTriggers()
NO_CONTROLS = CompactionStates({}, [], NOW)


def summary(number: int, name: str = "", raw: int = 1_000, compacted: int | None = None) -> TopicSummary:
    return TopicSummary(number, TopicName.parse(name or f"t{number:03}"), 1, raw // 10, raw, None, compacted)


def backlog(of: TopicSummary, size: int, triggers: CompactionTriggers = NO_TRIGGERS) -> Backlog:
    record = TopicRecord(of.topic_id, f"{of.topic_id:032x}", of.name, 1, 0, 0, 0, NOW)
    return Backlog(record, triggers, size, size // 10, size, of.compacted_bytes or 0, NOW, NOW)


def row(number: int, size: int | None = 0, triggers: CompactionTriggers = NO_TRIGGERS, name: str = "") -> TopicRow:
    item = summary(number, name)
    return TopicRow(item, None if size is None else backlog(item, size, triggers))


def order(rows: list[TopicRow], sort: str) -> list[int]:
    page = topics_page(rows, TableView(sort=sort))
    return [item.summary.topic_id for group in page.groups for item in group.rows]


@pytest.mark.parametrize(
    ("control", "is_running", "states"),
    [
        (CompactionControl(), False, {DUE}),
        (CompactionControl(), True, {RUNNING}),
        (CompactionControl(paused=2), False, {PAUSED}),
        (CompactionControl(requested_at=NOW), False, {REQUESTED}),
        (CompactionControl(failures=1, retry_at=NOW + 1), False, {FAILING}),
        (CompactionControl(failures=1, retry_at=NOW), False, {FAILING, DUE}),
        (CompactionControl(failures=1, paused=1), False, {FAILING, PAUSED}),
    ],
)
def test_a_topic_is_due_as_the_control_loop_decides(
    control: CompactionControl, is_running: bool, states: set[str]
) -> None:
    item = summary(1)
    run = RunRecord(7, 1, "a", "owner", 1, RunState.RUNNING, "", {}, NOW, NOW)
    read = CompactionStates({1: control}, [(item.name, run)] if is_running else [], NOW)
    (result,) = read.rows_with_states([TopicRow(item, backlog(item, 101, THRESHOLD))])
    assert set(result.states) == states
    assert result.cause == ("compaction.threshold.bytes" if DUE in states else "")


def test_a_topic_below_its_threshold_and_a_new_topic_have_no_state() -> None:
    item, new = summary(1), summary(2)
    rows = NO_CONTROLS.rows_with_states(topic_rows([item, new], [backlog(item, 100, THRESHOLD)]))
    assert [item.states for item in rows] == [(), ()]


def test_a_topic_without_a_state_keeps_the_row_that_requests_share() -> None:
    rows = [row(1), row(2, 101, THRESHOLD), row(3, None)]
    result = NO_CONTROLS.rows_with_states(rows)
    assert [item is shared for item, shared in zip(result, rows, strict=True)] == [True, False, True]
    assert rows[1].states == (), "the shared row is not changed"


def test_totals_count_unsealed_messages_and_what_a_compacted_read_saves() -> None:
    compacted = row(1, 100)
    compacted = replace(compacted, summary=replace(compacted.summary, compacted_bytes=150))
    never = row(2)
    assert never.backlog is not None
    unsealed = replace(never, backlog=replace(never.backlog, bytes=50, messages=5, open_messages=5))
    total = totals([compacted, unsealed, replace(row(3), states=(FAILING, DUE))])
    assert (total.topics, total.messages, total.raw_bytes) == (3, 305, 3_050)
    assert (total.compacted_bytes, total.saved_share, total.backlog_bytes) == (150, 750 / 3_050, 150)
    assert total.states == {FAILING: 1, DUE: 1}
    assert totals([never]).saved_share == 0
    assert totals([]).saved_share is None


def test_a_compacted_ledger_that_is_larger_than_trimmed_raw_saves_nothing() -> None:
    trimmed = replace(row(1), summary=summary(1, raw=10, compacted=500))
    assert trimmed.saved_share == 0
    assert totals([trimmed]).saved_share == 0


@pytest.mark.parametrize(
    ("sort", "expected"), [("threshold", [3, 1, 2, 4]), ("-threshold", [1, 3, 2, 4]), ("unknown", [1, 2, 3, 4])]
)
def test_blank_values_are_last_in_both_directions(sort: str, expected: list[int]) -> None:
    rows = [row(1, 90, THRESHOLD), row(2, 90), row(3, 10, THRESHOLD), row(4, None)]
    assert order(rows, sort) == expected


def test_equal_values_stay_in_the_order_of_names() -> None:
    assert order([row(1), row(2), row(3, 5)], "-backlog") == [3, 1, 2]


def test_the_states_that_need_attention_come_first() -> None:
    states = [(), (RUNNING,), (DUE, FAILING), (PAUSED,), (DUE,)]
    rows = [replace(row(number), states=state) for number, state in enumerate(states)]
    assert order(rows, "state") == [2, 3, 4, 1, 0]
    assert order(rows, "-state") == [1, 4, 3, 2, 0]


def test_rows_are_grouped_by_namespace_while_they_are_sorted_by_name() -> None:
    rows = [row(number, name=f"a/n/t{number:03}") for number in range(48)]
    rows += [row(48 + number, name=f"a/o/t{number}") for number in range(4)]
    first = topics_page(rows, TableView())
    assert [(group.namespace, group.topics, len(group.rows)) for group in first.groups] == [
        ("a/n", 48, 48),
        ("a/o", 4, 2),
    ]
    assert [group.namespace for group in topics_page(rows, TableView(sort="-name")).groups] == ["a/o", "a/n"]
    (group,) = topics_page(rows, TableView(sort="-raw", page_number=9)).groups
    assert (group.namespace, len(group.rows)) == ("", 2)


def test_filters_by_name_and_state() -> None:
    rows = [row(1, name="a/n/orders"), replace(row(2, name="a/n/users"), states=(FAILING, DUE))]
    assert [item.summary.topic_id for item in filter_by_name(rows, "n/ord")] == [1]
    page = topics_page(rows, TableView(state=DUE))
    assert (page.matches, page.groups[0].rows[0].summary.topic_id) == (1, 2)
    assert topics_page(rows, TableView(state=PAUSED)).groups == []


def test_the_rows_of_a_page_are_read_again() -> None:
    rows = [row(number) for number in range(60)]
    page = topics_page(rows, TableView(page_number=2), lambda part: [replace(item, states=(RUNNING,)) for item in part])
    assert [item.states for item in page.groups[0].rows] == [(RUNNING,)] * 10


@pytest.mark.parametrize(
    ("number", "pages", "expected"),
    [
        (1, 1, [1]),
        (1, 2, [1, 2]),
        (1, 20, [1, 2, None, 20]),
        (5, 20, [1, None, 4, 5, 6, None, 20]),
        (4, 20, [1, 2, 3, 4, 5, None, 20]),
        (18, 20, [1, None, 17, 18, 19, 20]),
        (20, 20, [1, None, 19, 20]),
    ],
)
def test_page_numbers_have_the_ends_and_the_neighbours(number: int, pages: int, expected: list[int | None]) -> None:
    assert TopicsPage([], number, pages, 0).offered_page_numbers == expected
