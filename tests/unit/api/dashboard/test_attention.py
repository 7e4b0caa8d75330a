"""Topics that fail, by reason: what the first page says before its table."""

from __future__ import annotations

from dataclasses import replace

from api.dashboard.attention import EXAMPLES, failing_topics, group_by_reason
from api.dashboard.topics_table import FAILING, CompactionStates, TopicRow
from api.observability.error_text import DASHBOARD_WORDING
from compactor.scheduling.backlog import Backlog
from storage.advice import Advice, AdviceKind, missing_object_advice
from storage.errors import ErrorText
from storage.ledger import names
from storage.metadata.records import CompactionControl, TopicRecord, TopicSummary
from storage.model import TopicName
from storage.options.resolution import CompactionTriggers

NOW = 1_000_000


def row(number: int, backlog: int = 0, compacted: int | None = None) -> TopicRow:
    name = TopicName.parse(f"persistent://a/b/t{number}")
    record = TopicRecord(number, f"{number:032x}", name, 1, 0, 0, 0, NOW)
    summary = TopicSummary(number, name, 1, 100, 1_000, None if compacted is None else 86, compacted)
    return TopicRow(summary, Backlog(record, CompactionTriggers(), backlog, 1, backlog), (FAILING,))


def control(error: str, retry_at: int | None = None) -> CompactionControl:
    return CompactionControl(failures=2, retry_at=retry_at, last_error=ErrorText(error))


def test_topics_are_grouped_by_reason_and_the_most_come_first() -> None:
    rows = [row(1), *(row(number, backlog=number) for number in range(2, 7))]
    controls = {1: control("executor 7 is gone")} | {
        number: control(f"object ab{number}99887766 of persistent://a/b/t{number} is slow", NOW + number)
        for number in range(2, 7)
    }
    first, second = group_by_reason(failing_topics(rows, controls, lambda _: True).values())
    assert (first.topics, first.text, first.next_at) == (5, "object ab699887766 is slow", NOW + 2)
    assert [item.row.summary.topic_id for item in first.examples] == [6, 5, 4][:EXAMPLES]
    assert (second.topics, second.text, second.next_at) == (1, "executor 7 is gone", None)
    assert second.text_with_remedy == "executor 7 is gone; the topic's page says what to do"
    named = replace(second, text=DASHBOARD_WORDING[AdviceKind.REBUILD_COMPACTED])
    assert named.text_with_remedy == named.text


def test_errors_are_shown_to_callers_that_may_see_them() -> None:
    rows, controls = [row(1), row(2)], {number: control("no") for number in (1, 2)}
    assert [*failing_topics(rows, controls, lambda name: name.topic == "t2")] == [2]


def test_a_compacted_ledger_that_cannot_be_read_saves_nothing() -> None:
    """N10: the row of a failing topic said in green that 62 % are saved."""
    item = replace(row(1, compacted=300), states=())
    part, index = names.part("a" * 32, "b" * 32, 0), names.compacted_index("a" * 32, "b" * 32, 0)
    cases: list[tuple[str, int, float | None]] = [(part, 86, None), (part, 85, 0.7), (index, 86, 0.7)]
    for lost, ledger_id, saved in cases:
        arguments = {**missing_object_advice(lost, "file:///s").arguments, "topic": "t1", "ledger_id": ledger_id}
        error = ErrorText("it cannot be read", advice=Advice(AdviceKind.GIVE_UP_COMPACTED, arguments))
        failed = replace(control(""), last_error=ErrorText.from_fields("error", error.fields("error")))
        (read,) = CompactionStates({1: failed}, [], NOW).rows_with_states([item])
        assert (read.is_unreadable, read.saved_share) == (saved is None, saved), (lost, ledger_id)
    (read,) = CompactionStates({1: control("the store does not answer")}, [], NOW).rows_with_states([item])
    assert (read.is_unreadable, read.saved_share) == (False, 0.7)


def test_an_operator_reads_the_cause_and_others_its_public_part() -> None:
    error = ErrorText("the object store does not answer", "cannot write object a/b in file:///s: the disk is full")
    controls = {1: replace(control(""), last_error=error)}
    (public,) = failing_topics([row(1)], controls, lambda _: True).values()
    (whole,) = failing_topics([row(1)], controls, lambda _: True, DASHBOARD_WORDING).values()
    assert (public.reason, whole.reason) == (error.summary, error.detail)
