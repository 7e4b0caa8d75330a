"""Rows of compaction control: requests, pauses and failures of a topic's compaction (S4, S5, S6).

Invariants: a request is taken by the transaction that claims its run, so it is executed once, whichever process
executes it or dies; a paused topic has no request. Every change is made while the topic's row is locked. A topic that
was never requested has no row; that is the same as a row of zeros. compaction_control.py combines these rows with runs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, select

from storage.advice import Advice, AdviceKind
from storage.errors import NO_ERROR, CompactionPaused, CompactionRunning, ErrorText, Fenced
from storage.metadata import queries, row_mapping
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
"""Rows, each with the last heartbeat of the aborted run that has not stopped yet."""
_OF_TOPIC = _ROWS.where(controls.c.topic_id == bindparam("topic"))


def get(connection: Connection, topic_id: int, now: int, dead_ms: int) -> CompactionControl:
    """Return the compaction control of a topic; an empty one if it has no row.

    `dead_ms`: a run without a heartbeat for that long is dead.
    """
    row = connection.execute(_OF_TOPIC, {"topic": topic_id}).mappings().one_or_none()
    return _record(row, now, dead_ms) if row is not None else CompactionControl()


def of_all(connection: Connection, now: int, dead_ms: int) -> dict[int, CompactionControl]:
    """Return the compaction controls of all topics that have a row, by topic id."""
    return {row["topic_id"]: _record(row, now, dead_ms) for row in connection.execute(_ROWS).mappings()}


def of_topics(
    connection: Connection, topic_ids: Collection[int], now: int, dead_ms: int
) -> dict[int, CompactionControl]:
    """Return the compaction controls of those of the topics that have a row, by topic id."""
    return {
        row["topic_id"]: _record(row, now, dead_ms)
        for ids in queries.batches(topic_ids)
        for row in connection.execute(_ROWS.where(controls.c.topic_id.in_(ids))).mappings()
    }


def of_requested_topics(connection: Connection, now: int, dead_ms: int) -> dict[int, CompactionControl]:
    """Return the compaction controls of topics with a request, by topic id, the oldest request first."""
    waiting = _ROWS.where(controls.c.requested_at.is_not(None))
    rows = connection.execute(waiting.order_by(controls.c.requested_at, controls.c.topic_id)).mappings()
    return {row["topic_id"]: _record(row, now, dead_ms) for row in rows}


class PausesAndRequest(NamedTuple):
    """The number of a topic's pauses, and the time (ms) of its request; None: it is not requested."""

    pauses: int
    requested_at: int | None


def pauses_and_request(connection: Connection, topic_id: int) -> PausesAndRequest:
    """Return the number of pauses of a topic's compaction, and the time of its request."""
    row = connection.execute(_OF_TOPIC, {"topic": topic_id}).one_or_none()
    return PausesAndRequest(0, None) if row is None else PausesAndRequest(row.paused, row.requested_at)


def put(connection: Connection, topic_id: int, **values: object) -> None:
    """Insert the topic's row of compaction control, or update these columns of it. The topic must be locked."""
    queries.put(connection, controls, {"topic_id": topic_id, **values})


def request_again_unless_requested_or_paused(connection: Connection, topic_id: int, by: str, now: int) -> None:
    """Request a compaction of a topic whose run was interrupted, unless the topic is requested or paused.

    The topic must be locked.
    """
    if pauses_and_request(connection, topic_id) == (0, None):
        put(connection, topic_id, requested_at=now, cause="interrupted", requested_by=by)


def take_request(connection: Connection, topic: TopicRecord, must_exist: bool, now: int, dead_ms: int) -> str:
    """End the topic's request for a compaction and return its cause; empty: there is none. The topic must be locked.

    `must_exist`: raise Fenced if there is no request. Raises CompactionPaused; CompactionRunning if an aborted run has
    not stopped yet.
    """
    control = get(connection, topic.id, now, dead_ms)
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
    """Raise CompactionPaused if the topic is paused."""
    if control.paused:
        times = "" if control.paused == 1 else f" ({control.paused} times)"
        raise CompactionPaused(
            f"compaction of {topic.name} is paused{times}",
            Advice(AdviceKind.RESUME_COMPACTION),
        )


def clear_failures(connection: Connection, topic_id: int) -> None:
    """Clear the stored failures of the topic's compaction. Idempotent. The topic must be locked."""
    failing = (controls.c.topic_id == topic_id) & (controls.c.failures > 0)
    queries.change_where(connection, controls, failing, failures=0, retry_at=None, **NO_ERROR.fields("last_error"))


def store_failures(connection: Connection, topic_id: int, failures: int, retry_at: int, error: ErrorText) -> None:
    """Store the number of the topic's failures in a row, the time of the next try (ms), and the last error.

    The topic must be locked.
    """
    put(connection, topic_id, failures=failures, retry_at=retry_at, **error.fields("last_error"))


def clear_aborting_run(connection: Connection, topic_id: int, run_id: int) -> None:
    """Store that the worker of the topic's aborted run has stopped. The topic must be locked.

    Does nothing if the aborted run is not `run_id`.
    """
    aborted = (controls.c.topic_id == topic_id) & (controls.c.aborting_run_id == run_id)
    queries.change_where(connection, controls, aborted, aborting_run_id=None)


def _record(row: RowMapping, now: int, dead_ms: int) -> CompactionControl:
    at = row["aborting_heartbeat"]
    return row_mapping.record(
        CompactionControl,
        row,
        cause=row["cause"] if row["requested_at"] is not None else "",
        last_error=ErrorText.from_fields("last_error", row),
        # A worker that died does not report its end.
        aborting=at is not None and is_alive(row["aborting_owner"], at, dead_ms, now),
    )
