"""Compaction control: requests for compactions, pauses and failures, by topic.

    None ── a run is claimed ──► InProgress ── pause ──► Aborted(1) ── its worker stops ──► Paused(1)
    Paused(1) ── pause ──► Paused(2) ── resume ──► Paused(1) ── resume ──► None   (S5; Kafka's LogCleanerManager)

A request survives a crash: it is a row, and the leader executes it; `runs.claim` takes it in the transaction that
begins the run. "Running", for users, is a topic whose compaction is requested, or that has a run that is alive.

After Unavailable, `request` may have stored its request; `pause` finds out by itself, by the counts that it wrote; all
others may be called again. Every function here may raise TopicNotFound. Must not know: when compactions are due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sqlalchemy import Connection, select

from storage.advice import Advice, AdviceKind
from storage.errors import CompactionRunning, Conflict, ErrorText
from storage.metadata import compaction_control_rows, cursors, runs, services, topic_work, topics
from storage.metadata.leases import time_text
from storage.metadata.liveness import is_alive
from storage.metadata.records import (
    COMPACTION_CURSOR,
    CompactionActivity,
    CompactionControl,
    RunRecord,
    RunState,
    TopicRecord,
)
from storage.metadata.tables import controls as controls_table, runs as runs_table
from storage.metadata.transactions import Context

FailureCount = int
"""The number of failures of a topic's compaction in a row."""
_NAMED = 3
"""The greatest number of topics that an error names."""
_ENDING = Advice(AdviceKind.AWAIT_ABORT)


# Queries


def get(connection: Connection, context: Context, topic_id: int) -> CompactionControl:
    """Return the request, pauses and failures of a topic's compaction; all are empty if the topic has no row."""
    return compaction_control_rows.get(connection, topic_id, context.now, context.run_dead_ms)


def all_topics(connection: Connection, context: Context) -> Mapping[int, CompactionControl]:
    """Return the requests, pauses and failures of compaction of all topics that have a row, by topic id."""
    return compaction_control_rows.of_all(connection, context.now, context.run_dead_ms)


def of_topics(connection: Connection, context: Context, topic_ids: Collection[int]) -> Mapping[int, CompactionControl]:
    """Return the requests, pauses and failures of compaction of those of the topics that have a row, by topic id."""
    return compaction_control_rows.of_topics(connection, topic_ids, context.now, context.run_dead_ms)


def activity(connection: Connection, context: Context, topic_id: int) -> CompactionActivity:
    """Return the compaction control and the last run of a topic, and whether a compaction is requested or running."""
    control = get(connection, context, topic_id)
    last = runs.last(connection, topic_id)
    return CompactionActivity(control, last, control.requested_at is not None or _is_run_alive(context, last))


def requests(connection: Connection, context: Context) -> list[tuple[TopicRecord, CompactionControl]]:
    """Return the topics whose compaction is requested, with their controls, the oldest request first."""
    controls = compaction_control_rows.of_requested_topics(connection, context.now, context.run_dead_ms)
    records = topics.by_ids(connection, controls)
    return [(records[topic_id], control) for topic_id, control in controls.items()]


def topics_to_retry(connection: Connection, context: Context, max_delay_ms: int) -> list[TopicRecord]:
    """Return the failing topics that are due for another try, the longest due first; not those requested or paused.

    `max_delay_ms`: the longest wait between two tries; a later time was written before the clock was set back, and
    counts as due.
    """
    retry_at = controls_table.c.retry_at
    waiting = controls_table.c.requested_at.is_(None) & (controls_table.c.paused == 0)
    due = (retry_at <= context.now) | (retry_at > context.now + max_delay_ms)
    statement = select(controls_table.c.topic_id).where(controls_table.c.failures > 0, due, waiting)
    topic_ids = list(connection.execute(statement.order_by(retry_at, controls_table.c.topic_id)).scalars())
    records = topics.by_ids(connection, topic_ids)
    return [records[topic_id] for topic_id in topic_ids]


# Requests


def request(connection: Connection, context: Context, topic_id: int, cause: str, by: str) -> CompactionControl:
    """Request a run, which the leader executes, and ensure the topic's cursor `__compaction` (S9). Returns the control.

    `cause`: why, for reports; `by`: the caller's name. Raises CompactionRunning if a run is requested or running (S4),
    CompactionPaused.
    """
    topic = topics.lock(connection, topic_id)
    _check_requestable(connection, context, topic)
    cursors.ensure(connection, topic_id, COMPACTION_CURSOR)
    _store_request(connection, context, topic_id, cause, by)
    return get(connection, context, topic_id)


def check_requestable(connection: Connection, context: Context, topic_id: int) -> None:
    """Raise CompactionPaused if the topic is paused, CompactionRunning if a run is requested or running."""
    _check_requestable(connection, context, topics.by_id(connection, topic_id))


def _check_requestable(connection: Connection, context: Context, topic: TopicRecord) -> None:
    control = get(connection, context, topic.id)
    compaction_control_rows.check_not_paused(topic, control)
    if control.requested_at is not None:
        raise CompactionRunning(
            f"a compaction of {topic.name} is requested since {time_text(control.requested_at)} "
            f"({control.cause}, by {control.requested_by})",
            "wait for it to finish",
        )
    last = runs.last(connection, topic.id)
    if last is not None and _is_run_alive(context, last):
        raise runs.running_error(topic, last)


def withdraw(
    connection: Connection,
    context: Context,
    topic_id: int,
    *,
    leader_token: int | None = None,
    requested_at: int | None = None,
) -> bool:
    """Withdraw a request that is useless, for example because nothing is new (P11). Returns False if there is none.

    `requested_at`: withdraw only the request of that time; a later one stays, since something may be new.
    `leader_token`: the token of the leadership that decided this. Raises Fenced if it was lost: the process may have
    slept, and the request be another one.
    """
    topics.lock(connection, topic_id)
    control = get(connection, context, topic_id)
    withdrawn = control.requested_at is not None and requested_at in (None, control.requested_at)
    if withdrawn:
        compaction_control_rows.put(connection, topic_id, requested_at=None, requested_by="")
    if leader_token is not None:
        services.lock_and_check_leader(connection, leader_token)
    return withdrawn


def topics_to_request_again(connection: Connection, context: Context) -> list[int]:
    """Return the ids of topics whose run died with its worker, and that are neither requested again nor paused.

    Takes no lock.
    """
    waits = controls_table.c.requested_at.is_not(None) | (controls_table.c.paused > 0)
    candidates = select(runs_table.c.topic_id, runs_table.c.holder, runs_table.c.heartbeat_at).where(
        runs_table.c.state == RunState.RUNNING.value,
        runs_table.c.topic_id.not_in(select(controls_table.c.topic_id).where(waits)),
    )
    return [
        row.topic_id
        for row in connection.execute(candidates)
        if not is_alive(row.holder, row.heartbeat_at, context.run_dead_ms, context.now)
    ]


def request_again_if_run_died(connection: Connection, context: Context, topic_id: int, by: str) -> TopicRecord | None:
    """Request a new run of a topic if its run died with its worker. Returns the topic.

    None: no run died, or the topic is requested or paused already. The dead run is ended by the claim of the next one.
    """
    topic = topics.lock(connection, topic_id)
    control = get(connection, context, topic_id)
    last = runs.last(connection, topic_id)
    if last is None or last.state is not RunState.RUNNING or _is_run_alive(context, last):
        return None
    if control.requested_at is not None or control.paused:
        return None
    _store_request(connection, context, topic_id, "interrupted", by)
    return topic


def cancel_and_request_again(connection: Connection, context: Context, run: RunRecord, reason: str, by: str) -> bool:
    """End a run as CANCELLED and request a new one of its topic, in one transaction. `by`: the caller's name.

    Returns False, and changes nothing, if the run has ended already or may not publish any more. Raises NotFound.
    """
    topic = topics.lock(connection, run.topic_id)
    if runs.get(connection, run.run_id).state is not RunState.RUNNING or topic.epoch != run.epoch:
        return False
    runs.cancel(connection, context, run.run_id, reason)
    _store_request(connection, context, run.topic_id, "interrupted", by)
    return True


def _store_request(connection: Connection, context: Context, topic_id: int, cause: str, by: str) -> None:
    compaction_control_rows.put(connection, topic_id, requested_at=context.now, cause=cause, requested_by=by)


# Pausing


def pause(connection: Connection, context: Context, topic_ids: Sequence[int]) -> list[CompactionControl]:
    """Pause the compaction of topics until as many resumes; end their requests and cancel their runs.

    All of them or none. Returns their controls afterwards, in the order of `topic_ids`.
    """
    _lock_topics_and_runs(connection, topic_ids)
    for topic_id in sorted(topic_ids):
        before = _withdraw_request_and_cancel_run(connection, context, topic_id, "compaction of the topic was paused")
        compaction_control_rows.put(connection, topic_id, paused=before.paused + 1)
    return _get_controls(connection, context, topic_ids)


def has_paused(connection: Connection, paused: Sequence[CompactionControl], topic_ids: Sequence[int]) -> bool:
    """Return whether the `pause` that returned `paused` was committed."""
    topics.lock_all(connection, topic_ids)
    return all(
        compaction_control_rows.pauses_and_request(connection, topic_id) == (control.paused, None)
        for topic_id, control in zip(topic_ids, paused, strict=True)
    )


def resume(connection: Connection, context: Context, topic_ids: Sequence[int]) -> list[CompactionControl]:
    """End one pause of each of these topics that is paused, all or nothing.

    Returns all controls, as `topic_ids` order them. Topics that are not paused are left as they are. Raises Conflict if
    none is paused, or if a run of a paused one was aborted and has not stopped yet.
    """
    records = [topics.lock(connection, topic_id) for topic_id in sorted(topic_ids)]
    controls = [(topic, get(connection, context, topic.id)) for topic in records]
    paused = [(topic, control) for topic, control in controls if control.paused]
    if not paused:
        names = ", ".join(str(topic.name) for topic in records[:_NAMED])
        raise Conflict(f"compaction of {names} is not paused", "nothing is left to do")
    for topic, control in paused:
        if control.aborting:
            raise Conflict(f"a run of {topic.name} was aborted by a pause and has not stopped yet", _ENDING)
        compaction_control_rows.put(connection, topic.id, paused=control.paused - 1)
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic.id for topic, _ in paused])
    return _get_controls(connection, context, topic_ids)


def abort(connection: Connection, context: Context, topic_ids: Sequence[int]) -> list[CompactionControl]:
    """End the requests, runs and retries of topics. Those that are not paused may be compacted again at once.

    All of them or none. Returns their controls afterwards, in the order of `topic_ids`.
    """
    _lock_topics_and_runs(connection, topic_ids)
    for topic_id in sorted(topic_ids):
        _withdraw_request_and_cancel_run(connection, context, topic_id, "compaction of the topic was aborted")
        compaction_control_rows.clear_failures(connection, topic_id)
    return _get_controls(connection, context, topic_ids)


def _get_controls(connection: Connection, context: Context, topic_ids: Sequence[int]) -> list[CompactionControl]:
    return [get(connection, context, topic_id) for topic_id in topic_ids]


def _lock_topics_and_runs(connection: Connection, topic_ids: Collection[int]) -> None:
    """Lock topics and their runs, in the order of locks of topics.py, before a run is cancelled."""
    topics.lock_all(connection, topic_ids)
    runs.lock_running(connection, topic_ids)


def _withdraw_request_and_cancel_run(
    connection: Connection, context: Context, topic_id: int, reason: str
) -> CompactionControl:
    """End the topic's request and cancel its run. Returns the control before that.

    Until the worker of a cancelled run has stopped, the topic counts as `aborting`.
    """
    topics.lock(connection, topic_id)
    before = get(connection, context, topic_id)
    if before.requested_at is not None:
        compaction_control_rows.put(connection, topic_id, requested_at=None, requested_by="")
    last = runs.last(connection, topic_id)
    if last is not None and last.state is RunState.RUNNING:
        lived = _is_run_alive(context, last)
        runs.cancel(connection, context, last.run_id, reason)
        compaction_control_rows.put(connection, topic_id, aborting_run_id=last.run_id if lived else None)
    return before


# Failures


def record_failure(
    connection: Connection,
    context: Context,
    topic_id: int,
    error: ErrorText,
    retry_at: int,
    *,
    leader_token: int | None = None,
    requested_at: int | None = None,
) -> CompactionControl:
    """Store that the topic's compaction failed once more, with this error and without a run. Returns the control.

    `retry_at`: the time of the next try (ms). `leader_token`: the token of the leadership that executed a request,
    which ends with this; see `withdraw`, also for `requested_at` and Fenced.
    """
    topics.lock(connection, topic_id)
    before = get(connection, context, topic_id)
    compaction_control_rows.store_failures(connection, topic_id, before.failures + 1, retry_at, error)
    if leader_token is not None:
        if requested_at in (None, before.requested_at):
            compaction_control_rows.put(connection, topic_id, requested_at=None, requested_by="")
        services.lock_and_check_leader(connection, leader_token)
    return get(connection, context, topic_id)


def fail_run(
    connection: Connection, context: Context, run: RunRecord, error: ErrorText, retry_at: Callable[[FailureCount], int]
) -> FailureCount | None:
    """End a run, whose worker has stopped, as ERROR and store when its topic is tried again (S6), in one transaction.

    `retry_at`: returns the time of the next try (ms) for a number of failures in a row. Returns that number; None: the
    run had ended already, and nothing has changed.
    """
    topics.lock(connection, run.topic_id)
    was_running = runs.get(connection, run.run_id).state is RunState.RUNNING
    runs.fail(connection, context, run, error)
    if not was_running:
        return None
    failures = get(connection, context, run.topic_id).failures + 1
    compaction_control_rows.store_failures(connection, run.topic_id, failures, retry_at(failures), error)
    return failures


def clear_failures(connection: Connection, topic_id: int) -> None:
    """Clear the stored failures of the topic's compaction. Idempotent. A run that succeeds has done this already."""
    topics.lock(connection, topic_id)
    compaction_control_rows.clear_failures(connection, topic_id)


def _is_run_alive(context: Context, run: RunRecord | None) -> bool:
    return (
        run is not None
        and run.state is RunState.RUNNING
        and is_alive(run.owner, run.heartbeat_at, context.run_dead_ms, context.now)
    )
