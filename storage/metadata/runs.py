"""Compaction runs: one at a time per topic, each in an epoch of its own; a run's row stays forever.

States (S7): RUNNING, then once SUCCESS, ERROR or CANCELLED; a finished run never changes again. A run without
heartbeats (liveness.py) is taken over: it gets ERROR and its epoch ends, so its worker is fenced if it continues. The
same holds for the worker of a run that was cancelled or expired by garbage collection. The database itself forbids a
second RUNNING row (tables.py). Publishing a result is in publishing.py.

The heartbeat of many runs locks no topic, so it waits for no writer: it locks the attempts first, by id, as every
transaction that ends a run does. So each row is updated once: PostgreSQL checks the foreign key of a row again that
the same transaction has updated before, and locks the topic for that. The next heartbeat sees an epoch that rises
meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from storage.advice import Advice, AdviceKind
from storage.errors import CompactionRunning, Conflict, ErrorText, NotFound
from storage.metadata import attempts, compaction_control_rows, queries, row_mapping, services, topics
from storage.metadata.invariants import check_run_is_current
from storage.metadata.leases import time_text
from storage.metadata.liveness import is_alive
from storage.metadata.records import AttemptKind, RunRecord, RunState, TopicRecord
from storage.metadata.tables import attempts as attempts_table, runs, topics as topics_table
from storage.metadata.transactions import Context
from storage.model import LogPosition, TopicName

RunIdsToStop = list[int]
"""The ids of runs that ended, or lost their epoch or attempt: their workers must stop."""
CLAIMED = "claimed"
"""The phase of a run that has not begun."""
_NAMED = select(runs, topics_table.c.name.label("topic_name")).join(topics_table, topics_table.c.id == runs.c.topic_id)
_LAST = select(runs).where(runs.c.topic_id == bindparam("topic")).order_by(runs.c.run_id.desc()).limit(1)


def claim(
    connection: Connection,
    context: Context,
    topic_id: int,
    owner: str,
    policies: Mapping[str, object],
    heartbeat_ttl_ms: int,
    *,
    leader_token: int | None = None,
) -> RunRecord:
    """Begin a compaction run of a topic, in a new epoch, and end the topic's request; return the run.

    A run whose heartbeat is older than `heartbeat_ttl_ms` is taken over: it ends as ERROR. `policies`: those of the
    run, stored with it. `leader_token`: the token of the leadership that begins it; None: another process begins it,
    with or without a request. Raises CompactionRunning, which names the run under way (S4), CompactionPaused (S5),
    TopicNotFound; with `leader_token`, Fenced if the leadership was lost, or the request no longer exists.
    """
    topic = topics.lock(connection, topic_id)
    now = context.now
    cause = compaction_control_rows.take_request(connection, topic, leader_token is not None, now, heartbeat_ttl_ms)
    under_way = select(runs).where(runs.c.topic_id == topic_id, runs.c.state == RunState.RUNNING.value)
    running = queries.find(connection, under_way, row_mapping.run)
    if running is not None:
        if is_alive(running.owner, running.heartbeat_at, heartbeat_ttl_ms, now):
            raise running_error(topic, running)
        # Before the insert: at most one row may be RUNNING. The text is completed when the new id is known.
        _end_run(connection, running, RunState.ERROR, now)
    epoch = topic.epoch + 1
    queries.change(connection, topics_table, topic_id, epoch=epoch)
    attempt = attempts.begin(connection, context, topic_id, AttemptKind.RUN, owner)
    run_id = queries.insert_numbered(
        connection,
        runs,
        topic_id=topic_id,
        attempt_id=attempt.attempt_id,
        holder=owner,
        epoch=epoch,
        state=RunState.RUNNING.value,
        phase=CLAIMED,
        policies=dict(policies),
        started_at=now,
        heartbeat_at=now,
        error="",
        statistics={},
        cause=cause,
    )
    if running is not None:
        error = ErrorText(f"its worker {running.owner} stopped answering; taken over by run {run_id}")
        queries.change(connection, runs, running.run_id, **error.fields("error"))
    claimed = get(connection, run_id)
    if leader_token is not None:
        services.lock_and_check_leader(connection, leader_token)
    return claimed


def has_claimed(connection: Connection, claimed: RunRecord, topic_id: int, *_: object, **__: object) -> bool:
    """Return whether a `claim` with this result was committed."""
    topics.lock(connection, topic_id)
    return queries.exists(connection, runs, runs.c.attempt_id == claimed.attempt_id)


def record_progress(
    connection: Connection,
    context: Context,
    run: RunRecord,
    *,
    phase: str | None = None,
    horizon: LogPosition | None = None,
    statistics: Mapping[str, object] | None = None,
) -> RunRecord:
    """Store a heartbeat of a run, and those of the values that are not None; return the run.

    `statistics` replace those that are stored. Raises Fenced if the run must stop.
    """
    _lock_current_run(connection, run)
    attempts.heartbeat(connection, context, run)
    values: dict[str, object] = {"heartbeat_at": context.now}
    if phase is not None:
        values["phase"] = phase
    if horizon is not None:
        values |= row_mapping.position_values("horizon", horizon)
    if statistics is not None:
        values["statistics"] = dict(statistics)
    queries.change(connection, runs, run.run_id, **values)
    return get(connection, run.run_id)


def heartbeat(
    connection: Connection,
    context: Context,
    running: Sequence[RunRecord],
    progress: Mapping[int, Mapping[str, object]] = MappingProxyType({}),
) -> RunIdsToStop:
    """Store the heartbeats of runs, in a few statements; return the ids of those that must stop, in order.

    `progress`: by run id, statistics that are merged into the stored ones; its item `phase` becomes the run's phase. A
    run gets its heartbeat only while it is RUNNING in the epoch that it claimed and its attempt is open. A run that
    must stop is no error: the others get theirs.
    """
    by_attempt = {run.attempt_id: run for run in running}
    alive: dict[int, RowMapping] = {}
    for attempt_ids in queries.batches(sorted(by_attempt)):
        open_ids = attempts.lock_unfinished(connection, attempt_ids)
        alive |= _lock_current_rows(connection, [by_attempt[attempt_id].run_id for attempt_id in open_ids])
    if alive:
        values = [_heartbeat_parameters(alive[run_id], progress.get(run_id, {})) for run_id in sorted(alive)]
        _update_heartbeats(connection, values, context.now)
    return [run.run_id for run in running if run.run_id not in alive]


def succeed_unchanged(
    connection: Connection, context: Context, run: RunRecord, statistics: Mapping[str, object]
) -> RunRecord:
    """End a run as SUCCESS that had nothing to write: cursor and compacted ledger stay (P1). Raises Fenced."""
    _end_run(connection, _lock_current_run(connection, run), RunState.SUCCESS, context.now, statistics=dict(statistics))
    return get(connection, run.run_id)


def has_succeeded_unchanged(
    connection: Connection, _: RunRecord, run: RunRecord, statistics: Mapping[str, object]
) -> bool:
    """Return whether a `succeed_unchanged` was committed."""
    topics.lock(connection, run.topic_id)
    record = get(connection, run.run_id)
    return record.state is RunState.SUCCESS and record.compacted_ledger_id is None


def fail(connection: Connection, context: Context, run: RunRecord, error: ErrorText) -> RunRecord:
    """End a run as ERROR, in any epoch; a run that has ended stays as it is (W3). Returns it as it is afterwards.

    Only the run's worker calls this, when it has stopped: a topic that waits for an aborted run waits no longer.
    """
    topics.lock(connection, run.topic_id)
    compaction_control_rows.clear_aborting_run(connection, run.topic_id, run.run_id)
    record = get(connection, run.run_id)
    if record.state is not RunState.RUNNING:
        return record
    _end_run(connection, record, RunState.ERROR, context.now, **error.fields("error"))
    return get(connection, run.run_id)


def cancel(connection: Connection, context: Context, run_id: int, reason: str) -> RunRecord:
    """End a RUNNING run as CANCELLED, in a new epoch, so that its worker can never publish. Returns the run.

    `reason`: stored as its error. Raises NotFound, Conflict for a run that has ended.
    """
    topic = topics.lock(connection, get(connection, run_id).topic_id)
    record = get(connection, run_id)
    if record.state is not RunState.RUNNING:
        raise Conflict(
            f"run {run_id} of {topic.name} cannot be cancelled: it has ended as {record.state.value}",
            Advice(AdviceKind.LIST_RUNS_AFTER_END),
        )
    queries.change(connection, topics_table, topic.id, epoch=topic.epoch + 1)
    _end_run(connection, record, RunState.CANCELLED, context.now, **ErrorText(reason).fields("error"))
    return get(connection, run_id)


def expire_attempts(connection: Connection, context: Context, topic_id: int, older_than_ms: int) -> list[str]:
    """Finish the topic's attempts whose heartbeat is at least `older_than_ms` old, and end their runs as ERROR.

    Returns the ids of the attempts. A run that was requested is requested again, as for any run that died with its
    worker. Afterwards nothing of these attempts can become part of the topic, so their objects may be deleted. Raises
    TopicNotFound.
    """
    expired = attempts.expire(connection, topic_id, older_than_ms, context.now)
    dying = runs.c.attempt_id.in_(expired) & (runs.c.state == RunState.RUNNING.value)
    requested = connection.execute(select(runs.c.topic_id).where(dying, runs.c.cause != "")).scalars().all()
    for requested_id in requested:
        compaction_control_rows.request_again_unless_requested_or_paused(
            connection, requested_id, "garbage collection", context.now
        )
    error = "its worker stopped answering; expired by garbage collection"
    values = {"state": RunState.ERROR.value, "finished_at": context.now, "error": error}
    queries.change_where(connection, runs, dying, **values)
    return expired


def get(connection: Connection, run_id: int) -> RunRecord:
    """Return the compaction run of an id. Raises NotFound."""
    run = queries.find(connection, select(runs).where(runs.c.run_id == run_id), row_mapping.run)
    if run is None:
        raise _not_found(run_id)
    return run


def get_with_topic_name(connection: Connection, run_id: int) -> tuple[TopicName, RunRecord]:
    """Return the compaction run of an id, with its topic's name. Raises NotFound."""
    named_run = queries.find(connection, _NAMED.where(runs.c.run_id == run_id), _named_run)
    if named_run is None:
        raise _not_found(run_id)
    return named_run


def last(connection: Connection, topic_id: int) -> RunRecord | None:
    """Return the newest run of the topic; None: it never had one (NOT_RUN, S7)."""
    return queries.find(connection, _LAST, row_mapping.run, {"topic": topic_id})


def of_topic(connection: Connection, topic_id: int, limit: int) -> list[RunRecord]:
    """Return the newest `limit` runs of the topic, the newest first."""
    newest_first = select(runs).where(runs.c.topic_id == topic_id).order_by(runs.c.run_id.desc()).limit(limit)
    return queries.fetch(connection, newest_first, row_mapping.run)


def newest(
    connection: Connection, limit: int, *, topic_ids: Collection[int] | None = None, state: RunState | None = None
) -> list[tuple[TopicName, RunRecord]]:
    """Return the newest `limit` runs with their topics' names, the newest first.

    `topic_ids`: of these topics only; `state`: only runs in this state; None: any.
    """
    statement = _NAMED
    if topic_ids is not None:
        statement = statement.where(runs.c.topic_id.in_(topic_ids))
    if state is not None:
        statement = statement.where(runs.c.state == state.value)
    return queries.fetch(connection, statement.order_by(runs.c.run_id.desc()).limit(limit), _named_run)


def run_that_published(connection: Connection, topic_id: int, ledger_id: int) -> RunRecord | None:
    """Return the run of the topic that published a compacted ledger; None: there is none."""
    published = (runs.c.topic_id == topic_id) & (runs.c.compacted_ledger_id == ledger_id)
    return queries.find(connection, select(runs).where(published), row_mapping.run)


def has_published(connection: Connection, topic_id: int, ledger_id: int) -> bool:
    """Return whether a run of the topic published that compacted ledger: the topic has it, or once had it."""
    published = (runs.c.topic_id == topic_id) & (runs.c.compacted_ledger_id == ledger_id)
    return queries.exists(connection, runs, published)


# Parts of other transactions


def succeed(
    connection: Connection, run: RunRecord, compacted_ledger_id: int, statistics: Mapping[str, object], now: int
) -> None:
    """End a run as SUCCESS, with the compacted ledger that it published.

    Only for publishing.py, which has checked that the run is current.
    """
    _end_run(
        connection, run, RunState.SUCCESS, now, statistics=dict(statistics), compacted_ledger_id=compacted_ledger_id
    )


def lock_running(connection: Connection, topic_ids: Collection[int]) -> None:
    """Lock the RUNNING runs of topics, after their attempts, before several are ended. The topics are locked."""
    running = runs.c.topic_id.in_(topic_ids), runs.c.state == RunState.RUNNING.value
    attempts.lock_unfinished(connection, connection.execute(select(runs.c.attempt_id).where(*running)).scalars().all())
    connection.execute(select(runs.c.run_id).where(*running).order_by(runs.c.run_id).with_for_update()).all()


def running_error(topic: TopicRecord, run: RunRecord) -> CompactionRunning:
    """Return the error that says that `run` is compacting the topic, and since when."""
    return CompactionRunning(
        f"run {run.run_id} by {run.owner} is compacting {topic.name} since {time_text(run.started_at)}",
        Advice(AdviceKind.WATCH_OR_CANCEL_RUN, {"run_id": run.run_id}),
    )


def _not_found(run_id: int) -> NotFound:
    return NotFound(f"the compaction run {run_id} does not exist", Advice(AdviceKind.LIST_RUNS))


def _named_run(row: RowMapping) -> tuple[TopicName, RunRecord]:
    return TopicName.parse(row["topic_name"]), row_mapping.run(row)


def _lock_current_run(connection: Connection, run: RunRecord) -> RunRecord:
    """Lock the run's topic and return the stored run. Raises Fenced unless the run is RUNNING in the topic's epoch."""
    topic = topics.lock(connection, run.topic_id)
    record = get(connection, run.run_id)
    check_run_is_current(topic, record)
    return record


def _end_run(connection: Connection, run: RunRecord, state: RunState, now: int, **values: object) -> None:
    attempts.finish_all(connection, [run.attempt_id], now)
    if state is RunState.SUCCESS:
        compaction_control_rows.clear_failures(connection, run.topic_id)
    queries.change(connection, runs, run.run_id, state=state.value, finished_at=now, **values)


def _lock_current_rows(connection: Connection, run_ids: Collection[int]) -> dict[int, RowMapping]:
    """Lock those of the runs that are RUNNING in the topic's epoch; return their rows by run id.

    Their attempts are locked already.
    """
    statement = (
        select(runs.c.run_id, runs.c.attempt_id, runs.c.phase, runs.c.statistics)
        .join(topics_table, topics_table.c.id == runs.c.topic_id)
        .where(
            runs.c.run_id.in_(run_ids),
            runs.c.state == RunState.RUNNING.value,
            runs.c.epoch == topics_table.c.epoch,
        )
        .order_by(runs.c.run_id)
        .with_for_update(of=runs)
    )
    return {row["run_id"]: row for row in connection.execute(statement).mappings()}


def _heartbeat_parameters(row: RowMapping, progress: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters of `_update_heartbeats` for one run: its progress merged into its stored statistics."""
    statistics = {**row["statistics"], **progress}
    phase = statistics.pop("phase", row["phase"])
    key = {"this_run": row["run_id"], "this_attempt": row["attempt_id"]}
    return {**key, "new_phase": phase, "merged": statistics}


def _update_heartbeats(connection: Connection, values: Sequence[Mapping[str, object]], now: int) -> None:
    """Store the heartbeats of locked runs and of their attempts, and the runs' phases and statistics.

    Each row is updated once.
    """
    run = update(runs).where(runs.c.run_id == bindparam("this_run"))
    changed = run.values(heartbeat_at=now, phase=bindparam("new_phase"), statistics=bindparam("merged"))
    connection.execute(changed, values)
    attempt = update(attempts_table).where(attempts_table.c.attempt_id == bindparam("this_attempt"))
    connection.execute(attempt.values(heartbeat_at=now), values)
