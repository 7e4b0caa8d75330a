"""Tables of topics: rows with their states, totals, filters, sorting, and division into numbered pages.

Pure, but for `CompactionStates.read`, which reads requests, pauses, failures and active runs from SQL, and
`partition_rows`, which reads the rows of one topic. Sizes of many topics may be some seconds old, so `topics_page`
lets the caller read those of one page again. The object store is not read.

A topic is in any number of states. `due` comes from the code of the control loop (compactor/scheduling/due.py), so it
excludes topics that are requested, paused or waiting after a failure; here also those with an active run.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.broker import names
from api.broker.broker import Broker
from api.dashboard.failure import lost_object
from api.dashboard.formats import count, policy_of_cause, share, size
from compactor.scheduling.backlog import Backlog
from compactor.scheduling.due import due_topics
from storage.environment import Environment
from storage.metadata.records import CompactionControl, PartitionedTopic, RunRecord, RunState, TopicSummary
from storage.model import TopicName

PAGE_ROWS = 50
MOST_RUNS = 1_000
FAILING, PAUSED, DUE, REQUESTED, RUNNING = "failing", "paused", "due", "requested", "running"
STATES = (FAILING, PAUSED, DUE, REQUESTED, RUNNING)
"""States in the order in which the table sorts them: those that need attention first."""


@dataclass(frozen=True)
class TopicRow:
    """A topic in a table. Sizes are logical bytes, as producers sent them; unsealed messages count.

    `backlog` None: the topic was created after the backlogs were read. `cause`: the policy by which it is due.
    `is_unreadable`: the last run failed because compacted reads of the compacted ledger fail.
    """

    summary: TopicSummary
    backlog: Backlog | None = None
    states: tuple[str, ...] = ()
    cause: str = ""
    is_unreadable: bool = False

    @functools.cached_property
    def name(self) -> TopicName:
        """Return the topic's name."""
        return self.summary.name

    @functools.cached_property
    def full_name(self) -> str:
        """Return the topic's full name as a text."""
        return str(self.name)

    @functools.cached_property
    def namespace(self) -> str:
        """Return the topic's tenant and namespace."""
        return f"{self.name.tenant}/{self.name.namespace}"

    @functools.cached_property
    def messages(self) -> int:
        """Return the number of messages that are not trimmed."""
        return self.summary.all_messages + (self.backlog.open_messages if self.backlog else 0)

    @functools.cached_property
    def raw_bytes(self) -> int:
        """Return the bytes of messages that are not trimmed."""
        return self.summary.all_bytes + (self.backlog.open_bytes if self.backlog else 0)

    @functools.cached_property
    def compacted_read_bytes(self) -> int | None:
        """Return the bytes that a compacted read reads: the compacted ledger with its garbage, and the backlog; None:
        never compacted, or it cannot be read."""
        compacted = None if self.is_unreadable else self.summary.compacted_bytes
        return None if compacted is None else compacted + (self.backlog.bytes if self.backlog else 0)

    @functools.cached_property
    def saved_bytes(self) -> int:
        """Return the number of raw bytes that a compacted read does not read."""
        return 0 if self.compacted_read_bytes is None else max(0, self.raw_bytes - self.compacted_read_bytes)

    @functools.cached_property
    def saved_share(self) -> float | None:
        """Return the share of the raw bytes that a compacted read saves; None: there is none, or all is trimmed."""
        return None if self.compacted_read_bytes is None or not self.raw_bytes else self.saved_bytes / self.raw_bytes

    @property
    def backlog_bytes(self) -> int | None:
        """Return the bytes of the topic that are not compacted yet; None: the backlog is not known."""
        return self.backlog.bytes if self.backlog else None

    @property
    def cleanable_ratio(self) -> float | None:
        """Return the cleanable ratio of the topic; None: nothing is sealed, or the backlog is not known."""
        return None if self.backlog is None else cleanable_ratio(self.backlog)

    @property
    def threshold_share(self) -> float | None:
        """Return the backlog as a share of the threshold for compaction; None: no threshold is set."""
        return self.backlog.threshold_share if self.backlog else None

    @property
    def is_busy(self) -> bool:
        """Return whether a compaction of the topic is requested or active."""
        return RUNNING in self.states or REQUESTED in self.states


def topic_rows(summaries: Iterable[TopicSummary], backlogs: Iterable[Backlog]) -> list[TopicRow]:
    """Join summaries and backlogs of topics to table rows without states, in the order of the summaries."""
    by_id = {backlog.topic.id: backlog for backlog in backlogs}
    return [TopicRow(summary, by_id.get(summary.topic_id)) for summary in summaries]


@dataclass(frozen=True)
class Column:
    """A column of the table. `value` None in a row: blank, which sorts last.

    `text`: the form of its numbers; None: the template has it. `descends`: the first click sorts the largest first.
    `meaning`: its explanation.
    """

    key: str
    heading: str
    value: Callable[[TopicRow], Any]
    text: Callable[[Any], str] | None = None
    descends: bool = True
    meaning: str = ""


COLUMNS = (
    Column("name", "Topic", lambda row: row.full_name, descends=False),
    Column(
        "state",
        "State",
        lambda row: (min(map(STATES.index, row.states)), -(row.backlog_bytes or 0)) if row.states else None,
        descends=False,
        meaning="Due: a policy asks for a compaction, and the leader has not begun it. Requested: it waits for a "
        "worker. Failing: the last try failed, and the next one follows by itself. Paused: none begins until it is "
        "resumed. Sorted by it, failing topics come first, then paused, then due ones; the largest backlog first.",
    ),
    Column("messages", "Messages", lambda row: row.messages, count),
    Column("raw", "Raw", lambda row: row.raw_bytes, size),
    Column(
        "compacted",
        "Compacted",
        lambda row: None if row.is_unreadable else row.summary.compacted_bytes,
        size,
        meaning="The compacted ledger with its garbage: superseded rows that no read returns, until a run rewrites "
        "their part.",
    ),
    Column(
        "saved",
        "Saved",
        lambda row: row.saved_share,
        share,
        meaning="The share of the raw bytes that a compacted read does not read. It reads the compacted ledger with "
        "its garbage, then what is not compacted yet. Unreadable: by the last run, an object of the compacted ledger "
        "is lost or damaged, so compacted reads fail. The total counts all topics, also those that were never "
        "compacted.",
    ),
    Column(
        "backlog",
        "Not compacted yet",
        lambda row: row.backlog_bytes,
        size,
        meaning="The messages after the horizon, the last message that a compaction has read. Sealed or not, they are "
        "the input of the next one.",
    ),
    Column(
        "cleanable",
        "Cleanable",
        lambda row: row.cleanable_ratio,
        share,
        meaning="Kafka's cleanable ratio: sealed bytes that are not compacted yet, as a share of these and the "
        "compacted ledger. 100 %: nothing of them is compacted yet; no value: nothing is sealed. It makes a topic "
        "due only where cleanup.policy has compact, or where the topic or its namespace sets "
        "min.cleanable.dirty.ratio: its default alone does not.",
    ),
    Column(
        "threshold",
        "Of the threshold",
        lambda row: row.threshold_share,
        share,
        meaning="The bytes that are not compacted yet as a share of the policy compaction.threshold.bytes. Above 100 % "
        "the topic is due.",
    ),
    Column(
        "at",
        "Last success",
        lambda row: row.summary.compacted_at,
        meaning="The publication of the compacted ledger, by the last run that succeeded. If later runs failed, the "
        "state is failing.",
    ),
)
_COLUMNS = {column.key: column for column in COLUMNS}
NAME = COLUMNS[0]


@dataclass(frozen=True)
class TableView:
    """The choices of a viewer of the table of topics: a part of the name, a state, and a column, with a minus for
    descending order."""

    name_filter: str = ""
    state: str = ""
    sort: str = NAME.key
    page_number: int = 1

    @property
    def column(self) -> Column:
        """Return the column by which the rows are sorted; that of the name for an unknown one."""
        return _COLUMNS.get(self.sort.removeprefix("-"), NAME)

    @property
    def descends(self) -> bool:
        """Return whether the table is sorted in descending order."""
        return self.sort.startswith("-")


@dataclass(frozen=True)
class Totals:
    """Totals of topics. `states`: topics by state. `saved_share`: as `TopicRow.saved_share`, of all topics together,
    also of those that were never compacted; None: there are no raw bytes. `unreadable`: topics whose compacted ledger
    cannot be read, which is not in `compacted_bytes`."""

    topics: int
    states: Mapping[str, int]
    messages: int
    raw_bytes: int
    compacted_bytes: int
    unreadable: int
    saved_share: float | None
    backlog_bytes: int


@dataclass(frozen=True)
class RowGroup:
    """Rows of one namespace that follow each other. `topics`: its topics on all pages. `namespace` empty: no group."""

    namespace: str
    topics: int
    rows: Sequence[TopicRow]


@dataclass(frozen=True)
class TopicsPage:
    """One page of the table of topics. `page_number` and `page_count` count from 1; `matches`: topics that pass the
    filters."""

    groups: Sequence[RowGroup]
    page_number: int
    page_count: int
    matches: int

    @property
    def offered_page_numbers(self) -> list[int | None]:
        """Return the page numbers to offer: the first, the last and those around this one; None for a gap."""
        around = range(max(1, self.page_number - 1), min(self.page_count, self.page_number + 1) + 1)
        offered = sorted({1, *around, self.page_count})
        numbers: list[int | None] = []
        for before, number in zip([0, *offered], offered, strict=False):
            if number - before == 2:
                numbers.append(number - 1)
            elif number - before > 2:
                numbers.append(None)
            numbers.append(number)
        return numbers


def totals(rows: Sequence[TopicRow]) -> Totals:
    """Return the totals of the topics in some rows."""
    raw_bytes = sum(row.raw_bytes for row in rows)
    return Totals(
        len(rows),
        Counter(itertools.chain.from_iterable(row.states for row in rows if row.states)),
        sum(row.messages for row in rows),
        raw_bytes,
        sum(row.summary.compacted_bytes or 0 for row in rows if not row.is_unreadable),
        sum(row.is_unreadable for row in rows),
        sum(row.saved_bytes for row in rows) / raw_bytes if raw_bytes else None,
        sum(row.backlog_bytes or 0 for row in rows),
    )


def filter_by_name(rows: Sequence[TopicRow], text: str) -> Sequence[TopicRow]:
    """Return the rows whose full name contains `text`."""
    return [row for row in rows if text in row.full_name] if text else rows


def topics_page(
    rows: Sequence[TopicRow],
    view: TableView,
    read_again: Callable[[Sequence[TopicRow]], Sequence[TopicRow]] = lambda rows: rows,
) -> TopicsPage:
    """Return a page of the rows, which are sorted by name and have passed `filter_by_name`.

    `read_again` returns the rows of the page with their present sizes, without deleted topics.
    """
    matches = [row for row in rows if not view.state or view.state in row.states]
    ordered = _sort_rows(matches, view.column, view.descends)
    pages = max(1, -(-len(ordered) // PAGE_ROWS))
    number = min(max(view.page_number, 1), pages)
    on_page = read_again(ordered[(number - 1) * PAGE_ROWS : number * PAGE_ROWS])
    return TopicsPage(_group_by_namespace(on_page, matches, view.column), number, pages, len(ordered))


def _sort_rows(rows: Sequence[TopicRow], column: Column, descends: bool) -> list[TopicRow]:
    """Return the rows in the order of a column; equal ones stay in their order, and blank ones are last."""
    filled: list[TopicRow] = []
    blank: list[TopicRow] = []
    for row in rows:
        (blank if column.value(row) is None else filled).append(row)
    return sorted(filled, key=column.value, reverse=descends) + blank


def _group_by_namespace(on_page: Sequence[TopicRow], rows: Sequence[TopicRow], column: Column) -> list[RowGroup]:
    """Return the rows by namespace if they are sorted by name, else all as one group."""
    if column is not NAME:
        return [RowGroup("", len(rows), on_page)]
    topics = Counter(row.namespace for row in rows)
    return [
        RowGroup(namespace, topics[namespace], list(members))
        for namespace, members in itertools.groupby(on_page, key=lambda row: row.namespace)
    ]


@dataclass(frozen=True)
class CompactionStates:
    """The compaction states of all topics at the time `now`. `controls`: by topic id. `running`: active runs, the
    newest first."""

    controls: Mapping[int, CompactionControl]
    running: Sequence[tuple[TopicName, RunRecord]]
    now: int

    @classmethod
    def read(cls, environment: Environment) -> CompactionStates:
        """Read the compaction states of all topics from the database."""
        metadata = environment.metadata
        controls = metadata.compaction_control.all()  # first: a request that is not among them has become a run
        running = metadata.runs.newest(MOST_RUNS, state=RunState.RUNNING)
        return cls(controls, running, environment.clock.now_ms())

    def rows_with_states(self, rows: Sequence[TopicRow]) -> list[TopicRow]:
        """Return the rows with their states, in the same order. A topic without a state keeps its row."""
        active = {run.topic_id for _, run in self.running}
        due = due_topics([row.backlog for row in rows if row.backlog is not None], self.controls, self.now)
        causes = {item.topic.id: policy_of_cause(item.cause) for item in due if item.topic.id not in active}
        affected = self.controls.keys() | active | causes.keys()
        return [self._row_with_states(row, active, causes) if row.summary.topic_id in affected else row for row in rows]

    def _row_with_states(self, row: TopicRow, active: Collection[int], causes: Mapping[int, str]) -> TopicRow:
        topic_id = row.summary.topic_id
        control, policy = self.controls.get(topic_id), causes.get(topic_id, "")
        states = _compaction_states(control, bool(policy), topic_id in active)
        return TopicRow(row.summary, row.backlog, states, policy, _is_unreadable(row.summary, control))


def _compaction_states(control: CompactionControl | None, is_due: bool, is_running: bool) -> tuple[str, ...]:
    conditions = [(DUE, is_due), (RUNNING, is_running)]
    if control is not None:
        conditions += [
            (FAILING, control.failures > 0),
            (PAUSED, control.paused > 0),
            (REQUESTED, control.requested_at is not None),
        ]
    return tuple(state for state, applies in conditions if applies)


def _is_unreadable(summary: TopicSummary, control: CompactionControl | None) -> bool:
    """Return whether the last run failed because an object is lost that compacted reads of the topic need."""
    lost = lost_object(control.last_error) if control is not None and control.failures else None
    return lost is not None and lost.breaks_compacted_reads(summary.compacted_ledger_id)


def cleanable_ratio(backlog: Backlog) -> float | None:
    """Return the cleanable ratio of a topic; None: nothing is sealed, so nothing could be dirty or clean."""
    return backlog.dirty_ratio if backlog.dirty_bytes or backlog.clean_bytes else None


def partition_rows(broker: Broker, partitioned: PartitionedTopic) -> list[TopicRow]:
    """Return the table rows of the existing partitions of a partitioned topic, in order."""
    metadata = broker.environment.metadata
    records = metadata.topics.by_names(names.partition_names(partitioned)).values()
    topic_ids = [record.id for record in records]
    states = CompactionStates.read(broker.environment)  # before the sizes: a page that is not busy refreshes no more
    rows = states.rows_with_states(topic_rows(metadata.topics.summaries(topic_ids), broker.backlogs.read(topic_ids)))
    return sorted(rows, key=lambda row: row.name.partition)
