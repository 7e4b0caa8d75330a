"""The state of a topic at the top of its page: states, saved share, and cause and time of the next run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.dashboard.topic_status import TopicStatus, topic_status
from api.dashboard.topics_table import CompactionStates, topic_rows
from compactor.scheduling.backlog import Backlog
from storage.metadata.records import CompactionControl, RunRecord, RunState, TopicRecord, TopicSummary
from storage.model import TopicName
from storage.options.resolution import CompactionTriggers

NOW, HOUR = 1_000_000_000, 3_600_000
NAME = TopicName.parse("t")
RECORD = TopicRecord(1, f"{1:032x}", NAME, 1, 0, 0, 0, NOW)
NO_TRIGGERS, NO_CONTROL = CompactionTriggers(), CompactionControl()


def backlog(messages: int = 4_300, triggers: CompactionTriggers = NO_TRIGGERS) -> Backlog:
    size = messages * 10
    return Backlog(RECORD, triggers, size, messages, size, 8_000, NOW - HOUR, NOW - HOUR)


def status(
    behind: Backlog, control: CompactionControl = NO_CONTROL, *, running: bool = False, compacted: int | None = 795
) -> TopicStatus:
    run = RunRecord(7, 1, "a", "owner", 1, RunState.RUNNING, "", {}, NOW, NOW)
    states = CompactionStates({1: control}, [(NAME, run)] if running else [], NOW)
    summary = TopicSummary(1, NAME, 1, 24_300, 243_000, 1, None if compacted is None else 8_000)
    (row,) = states.rows_with_states(topic_rows([summary], [behind]))
    return topic_status(row, behind, control, compacted, NOW)


def test_the_saved_share_is_that_of_the_first_page_and_the_messages_are_those_of_a_compacted_read() -> None:
    result = status(backlog())
    assert (result.compacted_read_messages, result.raw_messages) == (5_095, 24_300)
    assert (result.compacted_read_bytes, result.raw_bytes) == (51_000, 243_000)
    assert result.saved_share == pytest.approx(1 - 51_000 / 243_000)
    never = status(backlog(), compacted=None)
    assert (never.compacted_read_messages, never.saved_share) == (None, None)


@pytest.mark.parametrize(
    ("behind", "control", "running", "state", "next_run", "next_at"),
    [
        (backlog(0), NO_CONTROL, False, "up to date", "none; there is no message to compact", None),
        (
            backlog(),
            NO_CONTROL,
            False,
            "not due",
            "on request; 4,300 messages not compacted yet, no threshold is set",
            None,
        ),
        (backlog(), NO_CONTROL, True, "running", "a run is active", None),
        (backlog(), CompactionControl(paused=1), False, "paused", "none until compaction is resumed", None),
        (
            backlog(),
            CompactionControl(requested_at=NOW),
            False,
            "requested",
            "requested, begins when the leader has a free slot",
            None,
        ),
        (
            backlog(1),
            CompactionControl(failures=1, retry_at=NOW + 5),
            False,
            "failing",
            "as the next try; 1 message not compacted yet",
            NOW + 5,
        ),
        (
            backlog(4_300, CompactionTriggers(threshold_bytes=21_500)),
            NO_CONTROL,
            False,
            "due",
            "due now by compaction.threshold.bytes; 4,300 messages not compacted yet, 200 % of the threshold of "
            "21.0 KiB",
            None,
        ),
        (
            backlog(4_300, CompactionTriggers(threshold_bytes=86_000, threshold_messages=43_000, dirty_ratio=0.9)),
            NO_CONTROL,
            False,
            "not due",
            "when a policy requires it; 4,300 messages not compacted yet, 50 % of the threshold of 84.0 KiB, 10 % of "
            "the threshold of 43,000 messages, cleanable ratio 84 %, due above 90 %",
            None,
        ),
        (
            backlog(4_300, CompactionTriggers(max_lag_ms=3 * HOUR)),
            NO_CONTROL,
            False,
            "not due",
            "at the latest by max.compaction.lag.ms; 4,300 messages not compacted yet",
            NOW + 2 * HOUR,
        ),
        (
            backlog(4_300, CompactionTriggers(threshold_messages=1, min_lag_ms=2 * HOUR)),
            NO_CONTROL,
            False,
            "not due",
            "not yet; 4,300 messages not compacted yet, younger than min.compaction.lag.ms (120 min 0 s)",
            None,
        ),
    ],
)
def test_the_next_run_has_its_cause_and_time(
    behind: Backlog, control: CompactionControl, running: bool, state: str, next_run: str, next_at: int | None
) -> None:
    result = status(behind, control, running=running)
    assert list(result.states) == [state]
    assert (result.next_run, result.next_at) == (next_run, next_at)


def test_a_state_that_needs_attention_comes_first() -> None:
    control = replace(NO_CONTROL, failures=1, retry_at=NOW)
    assert status(backlog(4_300, CompactionTriggers(threshold_bytes=1)), control).states == ["failing", "due"]


def test_a_topic_without_sealed_messages_has_no_ratio() -> None:
    behind = replace(backlog(5, CompactionTriggers(dirty_ratio=0.5)), dirty_bytes=0, clean_bytes=0)
    assert status(behind, compacted=None).next_run == (
        "when a policy requires it; 5 messages not compacted yet, nothing sealed, due above a ratio of 50 %"
    )
