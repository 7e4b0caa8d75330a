"""The heartbeat of many runs at once: one transaction and a handful of statements, however many runs there are.

Invariants: a run is beaten only while it is RUNNING in the epoch that it claimed and its attempt is open; any other
is fenced, which is an answer here, no error, since the rest must go on. Progress is merged into the statistics that
are there, not put in their place; a `phase` in it is the run's phase.

No topic is locked, so a heartbeat waits for no writer: attempts are locked first, by id, and that is where every
transaction that ends a run comes by. So each row is updated once: PostgreSQL checks the foreign key of a row again that
the same transaction has updated before, and locks the topic for that. An epoch that rises meanwhile is seen at the next
heartbeat.
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
        alive |= _locked(connection, [by_attempt[attempt] for attempt in open_ones])
    if alive:
        _update(connection, [_progressed(alive[run_id], progress.get(run_id, {})) for run_id in sorted(alive)], now)
    return [run.run_id for run in beating if run.run_id not in alive]


def _progressed(found: RowMapping, progress: Mapping[str, object]) -> dict[str, object]:
    statistics = {**found["statistics"], **progress}
    phase = statistics.pop("phase", found["phase"])
    key = {"beaten_run": found["run_id"], "beaten_attempt": found["attempt_id"]}
    return {**key, "now_in": phase, "merged": statistics}


def _update(connection: Connection, values: Sequence[Mapping[str, object]], now: int) -> None:
    """Update each run and each attempt, all of which are locked, once."""
    run = update(runs).where(runs.c.run_id == bindparam("beaten_run"))
    connection.execute(run.values(heartbeat_at=now, phase=bindparam("now_in"), statistics=bindparam("merged")), values)
    attempt = update(attempts).where(attempts.c.attempt_id == bindparam("beaten_attempt"))
    connection.execute(attempt.values(heartbeat_at=now), values)


def _locked(connection: Connection, some: Sequence[RunRecord]) -> dict[int, RowMapping]:
    """Lock those that are current; what their rows say, by run id. Their attempts are locked and open."""
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
    return {row["run_id"]: row for row in connection.execute(statement).mappings()}
