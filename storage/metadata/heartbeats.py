"""The heartbeat of many runs at once: one transaction and a handful of statements, however many runs there are.

Invariants: a run is beaten only while it is RUNNING in the epoch that it claimed and its attempt is open; any other
is fenced, which is an answer here, no error, since the rest must go on. Progress is merged into the statistics that
are there, not put in their place; a `phase` in it is the run's phase.

No topic is locked, so a heartbeat waits for no writer: attempts are locked first, by id, and that is where every
transaction that ends a run comes by. An epoch that rises meanwhile is seen at the next beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from storage.metadata.attempts import AT_ONCE, lock_open
from storage.metadata.records import RunRecord, RunState
from storage.metadata.tables import attempts, runs, topics


def beat(
    connection: Connection, beating: Sequence[RunRecord], progress: Mapping[int, Mapping[str, object]], now: int
) -> list[int]:
    """Say that the runs are alive; `progress` by run id. The ids of those that are fenced, in the order given."""
    by_attempt = {run.attempt_id: run for run in beating}
    alive: dict[int, RowMapping] = {}
    ordered = sorted(by_attempt)
    for first in range(0, len(ordered), AT_ONCE):
        open_ones = lock_open(connection, ordered[first : first + AT_ONCE])
        alive |= _beat_some(connection, [by_attempt[attempt] for attempt in open_ones], now)
    values = [_progressed(alive[run_id], progress[run_id]) for run_id in sorted(alive.keys() & progress.keys())]
    if values:
        statement = update(runs).where(runs.c.run_id == bindparam("beaten_run"))
        connection.execute(statement.values(phase=bindparam("now_in"), statistics=bindparam("merged")), values)
    return [run.run_id for run in beating if run.run_id not in alive]


def _progressed(found: RowMapping, progress: Mapping[str, object]) -> dict[str, object]:
    statistics = {**found["statistics"], **progress}
    phase = statistics.pop("phase", found["phase"])
    return {"beaten_run": found["run_id"], "now_in": phase, "merged": statistics}


def _beat_some(connection: Connection, some: Sequence[RunRecord], now: int) -> dict[int, RowMapping]:
    """Beat those that are current; what their rows say, by run id. Their attempts are locked and open."""
    statement = (
        select(runs.c.run_id, runs.c.attempt_id, runs.c.phase, runs.c.statistics)
        .join(topics, topics.c.id == runs.c.topic_id)
        .where(
            runs.c.run_id.in_([run.run_id for run in some]),
            runs.c.state == RunState.RUNNING.value,
            runs.c.epoch == topics.c.epoch,
        )
        .order_by(runs.c.run_id)
        .with_for_update(of=runs)
    )
    found = {row["run_id"]: row for row in connection.execute(statement).mappings()}
    attempt_ids = [row["attempt_id"] for row in found.values()]
    connection.execute(update(attempts).where(attempts.c.attempt_id.in_(attempt_ids)).values(heartbeat_at=now))
    connection.execute(update(runs).where(runs.c.run_id.in_(found)).values(heartbeat_at=now))
    return found
