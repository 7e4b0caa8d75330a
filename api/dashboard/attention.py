"""Topics whose compaction fails, for the first page: each with its reason and next try, and all by reason. Pure.

A reason is the text of the last error, as far as the caller may know it, without the name of its topic. Reasons that
differ in numbers and ids alone are one, since a failure of a store or an engine stops many topics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from api.dashboard.topics_table import FAILING, TopicRow
from api.observability.error_text import STEPS_ON_PAGE
from api.reports import redacted_error_text
from storage.advice import AdviceWording
from storage.metadata.records import CompactionControl
from storage.model import TopicName

EXAMPLES = 3
"""The topics of a reason that the page names."""
REASONS = 5
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")


@dataclass(frozen=True)
class FailingTopic:
    """A topic that fails, its reason, its failures since the last success, and the time of its next try, if known."""

    row: TopicRow
    reason: str
    failures: int
    retry_at: int | None


@dataclass(frozen=True)
class FailureReason:
    """A reason for which topics fail. `examples`: some of them; `next_at`: the first of their next tries."""

    text: str
    topics: int
    examples: Sequence[FailingTopic]
    next_at: int | None

    @property
    def text_with_remedy(self) -> str:
        """Return the reason with a hint to the page that says what to do."""
        return self.text if STEPS_ON_PAGE in self.text else f"{self.text}; {STEPS_ON_PAGE}"


def failing_topics(
    rows: Iterable[TopicRow],
    controls: Mapping[int, CompactionControl],
    may_watch: Callable[[TopicName], bool],
    wording: AdviceWording | None = None,
) -> dict[int, FailingTopic]:
    """Return the topics that fail, by id, without those whose errors the caller may not see.

    `wording`: of advice in errors, for operators; None: the caller reads their public part.
    """
    failing = (row for row in rows if FAILING in row.states and may_watch(row.name))
    return {row.summary.topic_id: _failing_topic(row, controls[row.summary.topic_id], wording) for row in failing}


def group_by_reason(failing: Iterable[FailingTopic]) -> list[FailureReason]:
    """Return the reasons, that of the most topics first; the examples are the topics with the largest backlog."""
    by_text: dict[str, list[FailingTopic]] = {}
    for topic in sorted(failing, key=lambda item: -(item.row.backlog_bytes or 0)):
        by_text.setdefault(_NUMBERS.sub("#", topic.reason), []).append(topic)
    groups = sorted(by_text.values(), key=len, reverse=True)
    return [
        FailureReason(
            group[0].reason,
            len(group),
            group[:EXAMPLES],
            min((item.retry_at for item in group if item.retry_at is not None), default=None),
        )
        for group in groups
    ]


def _failing_topic(row: TopicRow, control: CompactionControl, wording: AdviceWording | None) -> FailingTopic:
    error = redacted_error_text(control.last_error, wording=wording) or "no reason is known"
    return FailingTopic(row, error.replace(f" of {row.name}", ""), control.failures, control.retry_at)
