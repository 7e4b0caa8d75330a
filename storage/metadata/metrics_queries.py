"""MetricsQueries: the numbers that a scrape of /metrics shows, in few statements.

Each method is one read, may be called again, and may raise Unavailable and Misconfigured. Nothing here grows with the
number of ledgers; runs are read once each, page by page, by the process that keeps their sums
(`api/observability/run_totals.py`). Must not know: Prometheus, names of metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import RowMapping, case, func, or_, select

from storage.metadata import queries, row_mapping
from storage.metadata.engine import Database
from storage.metadata.records import MAX_SEALING_TRIES, RunState, SegmentState
from storage.metadata.tables import controls, runs, segments, topics
from storage.model import TopicName

PAGE_RUNS = 5000


@dataclass(frozen=True)
class RunSummary:
    """One run, as far as it is counted. Times are milliseconds since the Unix epoch."""

    run_id: int
    topic_id: int
    state: RunState
    started_at: int
    heartbeat_at: int
    finished_at: int | None
    statistics: Mapping[str, object]


@dataclass(frozen=True)
class TopicCounts:
    """How many topics there are, and how many wait for a run, are paused, fail. `segments`: by their state.

    `rolled_bytes`: of files that wait to be sealed; `given_up`: segments of these that are sealed by hand alone.
    """

    topics: int
    requested: int
    oldest_request_at: int | None
    paused: int
    failing: int
    segments: Mapping[str, int]
    rolled_bytes: int
    given_up: int


class MetricsQueries:
    """The numbers, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, run_dead_ms: int) -> None:
        """`run_dead_ms`: see CompactionControlStore."""
        self._database = database
        self.run_dead_ms = run_dead_ms

    def ping(self) -> None:
        """The database answers."""
        with self._database.read() as connection:
            connection.execute(select(1))

    def counts(self) -> TopicCounts:
        """As of now."""
        wanted = select(
            func.count(controls.c.requested_at),
            func.min(controls.c.requested_at),
            func.sum(case((controls.c.paused > 0, 1), else_=0)),
            func.sum(case((controls.c.failures > 0, 1), else_=0)),
        )
        by_state = select(segments.c.state, func.count()).group_by(segments.c.state)
        rolled = select(
            func.sum(segments.c.size), func.sum(case((segments.c.sealing_tries >= MAX_SEALING_TRIES, 1), else_=0))
        ).where(segments.c.state == SegmentState.ROLLED.value)
        with self._database.snapshot() as connection:
            all_topics = connection.execute(select(func.count()).select_from(topics)).scalar_one()
            requested, oldest, paused, failing = connection.execute(wanted).one()
            states = {str(state): int(count) for state, count in connection.execute(by_state)}
            size, given_up = (int(item or 0) for item in connection.execute(rolled).one())
        return TopicCounts(all_topics, requested, oldest, int(paused or 0), int(failing or 0), states, size, given_up)

    def topic_names(self) -> dict[int, TopicName]:
        """All topics' names, by id."""
        with self._database.read() as connection:
            rows = connection.execute(select(topics.c.id, topics.c.name))
            return {topic_id: TopicName.parse(name) for topic_id, name in rows}

    def runs(self, after: int, again: Collection[int] = ()) -> list[RunSummary]:
        """Runs of a larger id than `after`, by id, one page of them; and before them, those of the ids in `again`."""
        columns = [runs.c[name] for name in row_mapping.names(RunSummary)]
        which = or_(runs.c.run_id > after, runs.c.run_id.in_(again)) if again else runs.c.run_id > after
        statement = select(*columns).where(which).order_by(runs.c.run_id).limit(PAGE_RUNS + len(again))
        with self._database.read() as connection:
            return queries.fetch(connection, statement, _figures)


def _figures(row: RowMapping) -> RunSummary:
    return row_mapping.record(RunSummary, row, state=RunState(row["state"]))
