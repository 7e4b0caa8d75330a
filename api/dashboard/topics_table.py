"""Table of topics on the first page, filtered, sorted and divided into pages by the server.

Names, sizes and states come from three statements for any number of topics. Backlogs and the counts of open segments
are read only for the topics of the page, unless the table is sorted by a count. The object store is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.broker import names
from compactor.scheduling.backlog import Backlog, BacklogReader
from compactor.scheduling.due import cause_of
from storage.environment import Environment
from storage.log.unsealed_counts import with_open_segments
from storage.metadata.records import CompactionControl, PartitionedTopic, RunState, TopicSummary
from storage.metadata.store import MetadataStore
from storage.model import TopicName

PAGE_ROWS = 50
MOST_RUNS = 1_000
RUNNING, REQUESTED, PAUSED, FAILING = "running", "requested", "paused", "failing"


@dataclass(frozen=True)
class TopicRow:
    """A topic in the table. Sizes are logical bytes, as producers sent them."""

    summary: TopicSummary
    state: str
    backlog: Backlog | None = None
    """The backlog after the horizon, for the rows of a page; None: no compaction can be due."""
    due: str | None = None
    """The cause of a compaction that is due, or None."""

    @property
    def saved(self) -> float | None:
        """Return the share of the raw bytes that a compacted read saves; None: the topic was never compacted."""
        summary = self.summary
        if summary.compacted_bytes is None or not summary.logical_bytes:
            return None
        return max(0.0, 1 - summary.compacted_bytes / summary.logical_bytes)

    @property
    def is_busy(self) -> bool:
        """Return whether a compaction of the topic is requested or active."""
        return self.state in (RUNNING, REQUESTED)


@dataclass(frozen=True)
class TopicsPage:
    """One page. `number` and `pages` count from 1; `matches`: topics that pass the filter, of `total`."""

    rows: Sequence[TopicRow]
    number: int
    pages: int
    matches: int
    total: int


_SORTS: dict[str, Callable[[TopicRow], Any]] = {
    "name": lambda row: str(row.summary.name),
    "raw": lambda row: row.summary.all_bytes,
    "messages": lambda row: row.summary.all_messages,
    "compacted": lambda row: -1 if row.summary.compacted_bytes is None else row.summary.compacted_bytes,
    "saved": lambda row: -1.0 if row.saved is None else row.saved,
    "at": lambda row: row.summary.compacted_at or 0,
    "state": lambda row: row.state,
}


_BY_COUNT = ("raw", "messages")
"""The sorts that need the open segments of all topics."""


def partition_rows(environment: Environment, partitioned: PartitionedTopic) -> list[TopicRow]:
    """Return the rows of the existing partitions, in order."""
    metadata = environment.metadata
    partitions = set(names.partition_names(partitioned))
    summaries = [item for item in metadata.topics.summaries() if item.name in partitions]
    states = _states(metadata)
    rows = [
        TopicRow(item, states.get(item.topic_id, ""))
        for item in with_open_segments(metadata, environment.log, summaries)
    ]
    return sorted(rows, key=lambda row: row.summary.name.partition)


def _states(metadata: MetadataStore) -> dict[int, str]:
    """Return the states of the topics that have one, by topic id."""
    states = {topic_id: _state(control) for topic_id, control in metadata.compaction_control.all().items()}
    return states | {run.topic_id: RUNNING for _, run in metadata.runs.newest(MOST_RUNS, state=RunState.RUNNING)}


def topics_page(
    environment: Environment, may_see: Callable[[TopicName], bool], text: str, sort: str, page: int
) -> TopicsPage:
    """Return a page of the topics whose name contains `text`. `sort`: a key of _SORTS, with a minus if descending."""
    metadata, log = environment.metadata, environment.log
    summaries = [item for item in metadata.topics.summaries() if may_see(item.name)]
    states = _states(metadata)
    key = sort.removeprefix("-")
    named = [item for item in summaries if text in str(item.name)]
    if key in _BY_COUNT:
        named = with_open_segments(metadata, log, named)
    rows = [TopicRow(item, states.get(item.topic_id, "")) for item in named]
    rows.sort(key=_SORTS.get(key, _SORTS["name"]), reverse=sort.startswith("-"))
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    number = min(max(page, 1), pages)
    start = (number - 1) * PAGE_ROWS
    on_page = rows[start : start + PAGE_ROWS]
    if key not in _BY_COUNT:
        counted = with_open_segments(metadata, log, [row.summary for row in on_page])
        on_page = [replace(row, summary=summary) for row, summary in zip(on_page, counted, strict=True)]
    backlogs = BacklogReader(metadata, log)
    backlog_of = {item.topic.id: item for item in backlogs.of([row.summary.topic_id for row in on_page])}
    now = environment.clock.now_ms()
    due = {topic_id: cause_of(backlog, now) for topic_id, backlog in backlog_of.items()}
    on_page = [
        replace(row, backlog=backlog_of.get(row.summary.topic_id), due=due.get(row.summary.topic_id)) for row in on_page
    ]
    return TopicsPage(on_page, number, pages, len(rows), len(summaries))


def _state(control: CompactionControl) -> str:
    if control.paused:
        return PAUSED
    if control.requested_at is not None:
        return REQUESTED
    return FAILING if control.failures else ""
