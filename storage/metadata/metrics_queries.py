"""The numbers of metrics, in few statements.

No cost here grows with the number of ledgers; runs are read once each, page by page, by the process that keeps their
sums. Must not know: Prometheus, names of metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, case, func, or_, select

from storage.metadata import queries, row_mapping
from storage.metadata.records import MAX_SEALING_TRIES, RunState, SegmentState
from storage.metadata.tables import controls, runs, segments, topics
from storage.model import TopicName

PAGE_RUNS = 5000


@dataclass(frozen=True)
class RunSummary:
    """A run, with the fields that metrics count. Times are milliseconds since the Unix epoch."""

    run_id: int
    topic_id: int
    state: RunState
    started_at: int
    heartbeat_at: int
    finished_at: int | None
    statistics: Mapping[str, object]


@dataclass(frozen=True)
class TopicCounts:
    """The numbers of topics: all of them, and those that wait for a run, are paused, or fail. Times in ms.

    `oldest_request_at` None: no topic waits. `segments`: the number of segments by state. `rolled_bytes`: of files that
    wait to be sealed; `abandoned_segments`: the number of segments that are sealed only by hand.
    """

    topics: int
    requested: int
    oldest_request_at: int | None
    paused: int
    failing: int
    segments: Mapping[str, int]
    rolled_bytes: int
    abandoned_segments: int


def ping(connection: Connection) -> None:
    """Execute an empty query, to check that the database answers."""
    connection.execute(select(1))


def counts(connection: Connection) -> TopicCounts:
    """Return the numbers of topics, by the state of their compaction, and of segments, by their state."""
    by_control = select(
        func.count(controls.c.requested_at),
        func.min(controls.c.requested_at),
        queries.total(case((controls.c.paused > 0, 1), else_=0)),
        queries.total(case((controls.c.failures > 0, 1), else_=0)),
    )
    by_state = select(segments.c.state, func.count()).group_by(segments.c.state)
    rolled = select(
        queries.total(segments.c.size),
        queries.total(case((segments.c.sealing_tries >= MAX_SEALING_TRIES, 1), else_=0)),
    ).where(segments.c.state == SegmentState.ROLLED.value)
    all_topics = connection.execute(select(func.count()).select_from(topics)).scalar_one()
    requested, oldest, paused, failing = connection.execute(by_control).one()
    states = {str(state): int(count) for state, count in connection.execute(by_state)}
    size, given_up = connection.execute(rolled).one()
    return TopicCounts(all_topics, requested, oldest, paused, failing, states, size, given_up)


def topic_names(connection: Connection) -> dict[int, TopicName]:
    """Return the names of all topics by id."""
    rows = connection.execute(select(topics.c.id, topics.c.name))
    return {topic_id: TopicName.parse(name) for topic_id, name in rows}


def page_of_runs(connection: Connection, after_id: int, also_ids: Collection[int] = ()) -> list[RunSummary]:
    """Return the runs whose ids are in `also_ids`, and at most `PAGE_RUNS` of those with an id above `after_id`; by
    id."""
    columns = [runs.c[name] for name in row_mapping.field_names(RunSummary)]
    selected = or_(runs.c.run_id > after_id, runs.c.run_id.in_(also_ids)) if also_ids else runs.c.run_id > after_id
    statement = select(*columns).where(selected).order_by(runs.c.run_id).limit(PAGE_RUNS + len(also_ids))
    return queries.fetch(connection, statement, _run_summary)


def _run_summary(row: RowMapping) -> RunSummary:
    return row_mapping.record(RunSummary, row, state=RunState(row["state"]))
