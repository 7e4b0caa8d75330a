"""Rows of compaction control: what is wanted of a topic's compaction (S4, S5, S6).

Invariants: a request is taken by the transaction that claims its run, so it is executed once, whichever process
executes it or dies; a paused topic has no request. Every change is made while the topic's row is locked. A topic that
was never requested has no row; that is the same as a row of zeros. How pausing and requesting go together with runs is
in compaction_control.py.
"""

from __future__ import annotations

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from storage.errors import CompactionPaused, CompactionRunning, Fenced
from storage.metadata import queries
from storage.metadata.liveness import is_alive
from storage.metadata.records import CompactionControl, TopicRecord
from storage.metadata.tables import controls, runs, topics as topics_table

_ROWS = select(
    controls, runs.c.heartbeat_at.label("aborting_heartbeat"), runs.c.holder.label("aborting_owner")
).select_from(
    controls.join(topics_table, topics_table.c.id == controls.c.topic_id).outerjoin(
        runs, runs.c.run_id == controls.c.aborting_run_id
    )
)
"""Rows, each with the last heartbeat of the run that is being aborted."""
_OF_TOPIC = _ROWS.where(controls.c.topic_id == bindparam("topic"))


def find(connection: Connection, topic_id: int, now: int, dead_ms: int) -> CompactionControl:
    """What is wanted of the topic. `dead_ms`: a run without a heartbeat for that long is dead."""
    row = connection.execute(_OF_TOPIC, {"topic": topic_id}).one_or_none()
    return _record(row, now, dead_ms) if row is not None else CompactionControl()


def of_all(connection: Connection, now: int, dead_ms: int) -> dict[int, CompactionControl]:
    """By topic id, of those that have a row."""
    return {row.topic_id: _record(row, now, dead_ms) for row in connection.execute(_ROWS)}


def requested(connection: Connection, now: int, dead_ms: int) -> dict[int, CompactionControl]:
    """By topic id, the oldest request first."""
    waiting = _ROWS.where(controls.c.requested_at.is_not(None))
    found = connection.execute(waiting.order_by(controls.c.requested_at, controls.c.topic_id))
    return {row.topic_id: _record(row, now, dead_ms) for row in found}


def put(connection: Connection, topic_id: int, **values: object) -> None:
    """Change the topic's row, which is created if need be. The topic is locked."""
    if not queries.change(connection, controls, topic_id, **values):
        connection.execute(insert(controls).values(topic_id=topic_id, **values))


def request_again(connection: Connection, topic_id: int, by: str, now: int) -> None:
    """Request what was interrupted, unless it is requested already, or the topic is paused. The topic is locked."""
    found = connection.execute(_OF_TOPIC, {"topic": topic_id}).one_or_none()
    if found is None or (found.requested_at is None and not found.paused):
        put(connection, topic_id, requested_at=now, cause="interrupted", requested_by=by)


def take_request(connection: Connection, topic: TopicRecord, must_exist: bool, now: int, dead_ms: int) -> str:
    """The cause of the request, which is over then. The topic is locked.

    Raises CompactionPaused, CompactionRunning for a run that is being aborted, Fenced if there `must_exist` a
    request and there is none.
    """
    control = find(connection, topic.id, now, dead_ms)
    check_not_paused(topic, control)
    if control.aborting:
        raise CompactionRunning(
            f"a run of {topic.name} was aborted, and its worker has not stopped yet", "try again in some seconds"
        )
    if control.requested_at is None:
        if must_exist:
            raise Fenced(
                f"the compaction of {topic.name} is not requested any more: it was taken, withdrawn or paused",
                "nothing is left to do",
            )
        return ""
    put(connection, topic.id, requested_at=None, requested_by="")
    return control.cause


def check_not_paused(topic: TopicRecord, control: CompactionControl) -> None:
    """Raises CompactionPaused."""
    if control.paused:
        times = "" if control.paused == 1 else f" ({control.paused} times)"
        raise CompactionPaused(
            f"compaction of {topic.name} is paused{times}",
            "resume it, as often as it was paused: `compactor-admin compactions resume`",
        )


def cleared(connection: Connection, topic_id: int) -> None:
    """The topic does not fail any more; nothing happens without a row. The topic is locked."""
    connection.execute(
        update(controls)
        .where(controls.c.topic_id == topic_id, controls.c.failures > 0)
        .values(failures=0, retry_at=None, last_error="")
    )


def ended(connection: Connection, topic_id: int, run_id: int) -> None:
    """The worker of an aborted run has stopped. The topic is locked."""
    connection.execute(
        update(controls)
        .where(controls.c.topic_id == topic_id, controls.c.aborting_run_id == run_id)
        .values(aborting_run_id=None)
    )


def _record(row: Row[tuple[object, ...]], now: int, dead_ms: int) -> CompactionControl:
    at = row.aborting_heartbeat
    return CompactionControl(
        requested_at=row.requested_at,
        cause=row.cause if row.requested_at is not None else "",
        paused=row.paused,
        failures=row.failures,
        retry_at=row.retry_at,
        last_error=row.last_error,
        # A worker that died does not report its end.
        aborting=at is not None and is_alive(row.aborting_owner, at, dead_ms, now),
        requested_by=row.requested_by,
    )
