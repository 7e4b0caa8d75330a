"""Compaction runs: one at a time a topic, each in an epoch of its own; a run's row stays forever.

States (S7): RUNNING, then once SUCCESS, ERROR or CANCELLED; a finished run never changes again. A run that stops
answering (liveness.py) is taken over: it gets ERROR, and its epoch is over, so if its worker wakes up it finds itself
fenced. So does the worker of a run that was cancelled, or given up by garbage collection. The database itself forbids a
second RUNNING row (tables.py). Publishing a result is in publishing.py.

The heartbeat of many runs locks no topic, so it waits for no writer: attempts are locked first, by id, and that is
where every transaction that ends a run comes by. So each row is updated once: PostgreSQL checks the foreign key of a
row again that the same transaction has updated before, and locks the topic for that. An epoch that rises meanwhile is
seen at the next heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from sqlalchemy import Connection, RowMapping, bindparam, insert, select, update

from storage.errors import CompactionRunning, Conflict, NotFound
from storage.metadata import attempts, compaction_control_rows, queries, row_mapping, services, topics
from storage.metadata.invariants import check_run_is_current
from storage.metadata.leases import shown_time
from storage.metadata.liveness import is_alive
from storage.metadata.queries import Store
from storage.metadata.records import AttemptKind, RunRecord, RunState, TopicRecord
from storage.metadata.tables import attempts as attempts_table, runs, topics as topics_table
from storage.model import LogPosition, TopicName

CLAIMED = "claimed"
"""The phase of a run that has not begun."""
_NAMED = select(runs, topics_table.c.name.label("topic_name")).join(topics_table, topics_table.c.id == runs.c.topic_id)
_LAST = select(runs).where(runs.c.topic_id == bindparam("topic")).order_by(runs.c.run_id.desc()).limit(1)


class RunStore(Store):
    """Runs."""

    def claim(
        self,
        topic_id: int,
        owner: str,
        policies: Mapping[str, object],
        heartbeat_ttl_ms: int,
        *,
        leader: int | None = None,
    ) -> RunRecord:
        """Begin a run, in a new epoch; one whose heartbeat is older than the TTL is taken over. It takes the request.

        Raises CompactionRunning, which names the run under way (S4), CompactionPaused (S5), TopicNotFound. `leader`:
        the token of the leadership that begins it: Fenced if it was lost, or the request is gone.
        """

        def claim(connection: Connection) -> RunRecord:
            now, requested = self._clock.now_ms(), leader is not None
            claimed = _claim(connection, topic_id, owner, policies, heartbeat_ttl_ms, now, requested)
            if leader is not None:
                services.check_leader(connection, leader)
            return claimed

        def happened(connection: Connection, claimed: RunRecord) -> bool:
            topics.locked(connection, topic_id)
            ours = select(runs.c.run_id).where(runs.c.attempt_id == claimed.attempt_id)
            return connection.execute(ours).first() is not None

        return self._database.write_once(claim, happened, f"whether {owner} claimed a compaction run")

    def update(
        self,
        run: RunRecord,
        *,
        phase: str | None = None,
        horizon: LogPosition | None = None,
        statistics: Mapping[str, object] | None = None,
    ) -> RunRecord:
        """A heartbeat, with what is new. Raises Fenced if the run must stop."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            _current(connection, run)
            attempts.heartbeat(connection, run.attempt_id, now)
            values: dict[str, object] = {"heartbeat_at": now}
            if phase is not None:
                values["phase"] = phase
            if horizon is not None:
                values |= row_mapping.position_values("horizon", horizon)
            if statistics is not None:
                values["statistics"] = dict(statistics)
            queries.change(connection, runs, run.run_id, **values)
            return get(connection, run.run_id)

    def heartbeat(
        self, running: Sequence[RunRecord], progress: Mapping[int, Mapping[str, object]] = MappingProxyType({})
    ) -> list[int]:
        """A heartbeat of many runs at once, in a handful of statements; the ids of those that must stop, in order.

        `progress`, by run id, is merged into their statistics, its `phase` into phase. A run gets its heartbeat only
        while it is RUNNING in the epoch that it claimed and its attempt is open. That one must stop is no error: the
        others got theirs.
        """
        by_attempt = {run.attempt_id: run for run in running}
        alive: dict[int, RowMapping] = {}
        with self._database.write() as connection:
            now = self._clock.now_ms()
            for attempt_ids in queries.batches(sorted(by_attempt)):
                open_ids = attempts.lock_open(connection, attempt_ids)
                alive |= _lock_current(connection, [by_attempt[attempt_id].run_id for attempt_id in open_ids])
            if alive:
                values = [_with_progress(alive[run_id], progress.get(run_id, {})) for run_id in sorted(alive)]
                _update_locked(connection, values, now)
            return [run.run_id for run in running if run.run_id not in alive]

    def finish(self, run: RunRecord, statistics: Mapping[str, object]) -> RunRecord:
        """End a run that had nothing to write: cursor and compacted ledger stay (P1). Raises Fenced."""

        def finish(connection: Connection) -> RunRecord:
            now = self._clock.now_ms()
            _end(connection, _current(connection, run), RunState.SUCCESS, now, statistics=dict(statistics))
            return get(connection, run.run_id)

        def happened(connection: Connection, _: RunRecord) -> bool:
            topics.locked(connection, run.topic_id)
            found = get(connection, run.run_id)
            return found.state is RunState.SUCCESS and found.compacted_ledger_id is None

        return self._database.write_once(finish, happened, f"whether run {run.run_id} has ended")

    def fail(self, run: RunRecord, error: str) -> RunRecord:
        """End a run as failed, in any epoch; one that has ended stays as it is (W3). Returns it as it is then.

        Only its worker says this, when it has stopped.
        """
        with self._database.write() as connection:
            return fail(connection, run, error, self._clock.now_ms())

    def cancel(self, run_id: int, reason: str) -> RunRecord:
        """End a RUNNING run as CANCELLED, in a new epoch: whatever its worker still does, it never publishes.

        Raises NotFound, Conflict for a run that has ended.
        """
        with self._database.write() as connection:
            return cancel(connection, run_id, reason, self._clock.now_ms())

    def expire_attempts(self, topic_id: int, older_than_ms: int) -> list[str]:
        """Finish the topic's attempts whose heartbeat is that old, and end their runs as ERROR; their ids.

        A run that was requested is requested again, as for any run that died with its worker. Afterwards nothing of
        these attempts can become part of the topic, so their objects may be deleted. Raises TopicNotFound.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            expired = attempts.expire(connection, topic_id, older_than_ms, now)
            dying = (runs.c.attempt_id.in_(expired), runs.c.state == RunState.RUNNING.value)
            requested = connection.execute(select(runs.c.topic_id).where(*dying, runs.c.cause != "")).scalars().all()
            for requested_id in requested:
                compaction_control_rows.request_again(connection, requested_id, "garbage collection", now)
            error = "its worker stopped answering; given up by garbage collection"
            ended = update(runs).where(*dying)
            connection.execute(ended.values(state=RunState.ERROR.value, finished_at=now, error=error))
            return expired

    def get(self, run_id: int) -> RunRecord:
        """Raises NotFound."""
        with self._database.read() as connection:
            return get(connection, run_id)

    def named(self, run_id: int) -> tuple[TopicName, RunRecord]:
        """A run, with its topic's name. Raises NotFound."""
        with self._database.read() as connection:
            found = connection.execute(_NAMED.where(runs.c.run_id == run_id)).mappings().one_or_none()
            if found is None:
                raise _not_found(run_id)
            return TopicName.parse(found["topic_name"]), row_mapping.run(found)

    def last(self, topic_id: int) -> RunRecord | None:
        """The newest run of the topic, or None: NOT_RUN (S7)."""
        with self._database.read() as connection:
            return last(connection, topic_id)

    def of_topic(self, topic_id: int, limit: int) -> list[RunRecord]:
        """The newest runs of the topic, the newest first."""
        newest = select(runs).where(runs.c.topic_id == topic_id).order_by(runs.c.run_id.desc()).limit(limit)
        with self._database.read() as connection:
            return queries.fetch(connection, newest, row_mapping.run)

    def newest(
        self, limit: int, *, topic_ids: Collection[int] | None = None, state: RunState | None = None
    ) -> list[tuple[TopicName, RunRecord]]:
        """The newest runs of all topics, or of some, or in one state, with their topics' names; the newest first."""
        statement = _NAMED
        if topic_ids is not None:
            statement = statement.where(runs.c.topic_id.in_(topic_ids))
        if state is not None:
            statement = statement.where(runs.c.state == state.value)
        with self._database.read() as connection:
            found = connection.execute(statement.order_by(runs.c.run_id.desc()).limit(limit)).mappings()
            return [(TopicName.parse(row["topic_name"]), row_mapping.run(row)) for row in found]

    def has_published(self, topic_id: int, ledger_id: int) -> bool:
        """Whether a run of the topic published that compacted ledger: the topic has it, or once had it."""
        ours = (runs.c.topic_id == topic_id) & (runs.c.compacted_ledger_id == ledger_id)
        with self._database.read() as connection:
            return connection.execute(select(runs.c.run_id).where(ours).limit(1)).first() is not None


def succeed(
    connection: Connection, run: RunRecord, compacted_ledger_id: int, statistics: Mapping[str, object], now: int
) -> None:
    """Only for publishing.py, which has checked that the run is current."""
    _end(connection, run, RunState.SUCCESS, now, statistics=dict(statistics), compacted_ledger_id=compacted_ledger_id)


def fail(connection: Connection, run: RunRecord, error: str, now: int) -> RunRecord:
    """What `RunStore.fail` changes."""
    topics.locked(connection, run.topic_id)
    compaction_control_rows.ended(connection, run.topic_id, run.run_id)
    found = get(connection, run.run_id)
    if found.state is not RunState.RUNNING:
        return found
    _end(connection, found, RunState.ERROR, now, error=storable(error))
    return get(connection, run.run_id)


def cancel(connection: Connection, run_id: int, reason: str, now: int) -> RunRecord:
    """What `RunStore.cancel` changes."""
    topic = topics.locked(connection, get(connection, run_id).topic_id)
    found = get(connection, run_id)
    if found.state is not RunState.RUNNING:
        raise Conflict(
            f"run {run_id} of {topic.name} cannot be cancelled: it has ended as {found.state.value}",
            "nothing was changed and nothing is left to do; `compactor compactions list` shows which runs continue",
        )
    queries.change(connection, topics_table, topic.id, epoch=topic.epoch + 1)
    _end(connection, found, RunState.CANCELLED, now, error=storable(reason))
    return get(connection, run_id)


def lock_running(connection: Connection, topic_ids: Collection[int]) -> None:
    """Lock the RUNNING runs of topics, all of which are locked, behind their attempts: before several are ended."""
    running = runs.c.topic_id.in_(topic_ids), runs.c.state == RunState.RUNNING.value
    attempts.lock_open(connection, connection.execute(select(runs.c.attempt_id).where(*running)).scalars().all())
    connection.execute(select(runs.c.run_id).where(*running).order_by(runs.c.run_id).with_for_update()).all()


def is_running(topic: TopicRecord, run: RunRecord) -> CompactionRunning:
    """The error that names the run under way."""
    return CompactionRunning(
        f"run {run.run_id} by {run.owner} is compacting {topic.name} since {shown_time(run.started_at)}",
        f"wait for it to finish; `compactor compactions show {run.run_id}` shows its progress, "
        f"`compactor compactions cancel {run.run_id}` ends it",
    )


def get(connection: Connection, run_id: int) -> RunRecord:
    """Raises NotFound."""
    run = queries.find(connection, select(runs).where(runs.c.run_id == run_id), row_mapping.run)
    if run is None:
        raise _not_found(run_id)
    return run


def _not_found(run_id: int) -> NotFound:
    return NotFound(f"the compaction run {run_id} does not exist", "`compactor compactions list` shows those that do")


def last(connection: Connection, topic_id: int) -> RunRecord | None:
    return queries.find(connection, _LAST, row_mapping.run, {"topic": topic_id})


def storable(error: str) -> str:
    """Any text of an exception, as every database takes it: no NUL, no half surrogates."""
    return error.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _claim(
    connection: Connection,
    topic_id: int,
    owner: str,
    policies: Mapping[str, object],
    heartbeat_ttl_ms: int,
    now: int,
    requested: bool,
) -> RunRecord:
    topic = topics.locked(connection, topic_id)
    cause = compaction_control_rows.take_request(connection, topic, requested, now, heartbeat_ttl_ms)
    under_way = select(runs).where(runs.c.topic_id == topic_id, runs.c.state == RunState.RUNNING.value)
    running = queries.find(connection, under_way, row_mapping.run)
    if running is not None:
        if is_alive(running.owner, running.heartbeat_at, heartbeat_ttl_ms, now):
            raise is_running(topic, running)
        # Before the insert: at most one row may be RUNNING. The text is completed when the new id is known.
        _end(connection, running, RunState.ERROR, now)
    epoch = topic.epoch + 1
    queries.change(connection, topics_table, topic_id, epoch=epoch)
    attempt = attempts.begin(connection, topic_id, AttemptKind.RUN, owner, now)
    inserted = connection.execute(
        insert(runs).values(
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
    )
    assert inserted.inserted_primary_key is not None
    run_id: int = inserted.inserted_primary_key[0]
    if running is not None:
        error = f"its worker {running.owner} stopped answering; taken over by run {run_id}"
        queries.change(connection, runs, running.run_id, error=error)
    return get(connection, run_id)


def _current(connection: Connection, run: RunRecord) -> RunRecord:
    """The run as it is now, with its topic locked. Raises Fenced if it may not continue."""
    topic = topics.locked(connection, run.topic_id)
    found = get(connection, run.run_id)
    check_run_is_current(topic, found)
    return found


def _end(connection: Connection, run: RunRecord, state: RunState, now: int, **values: object) -> None:
    attempts.finish(connection, [run.attempt_id], now)
    if state is RunState.SUCCESS:
        compaction_control_rows.cleared(connection, run.topic_id)
    queries.change(connection, runs, run.run_id, state=state.value, finished_at=now, **values)


def _lock_current(connection: Connection, run_ids: Collection[int]) -> dict[int, RowMapping]:
    """Lock those that are current; what their rows say, by run id. Their attempts are locked and open."""
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


def _with_progress(found: RowMapping, progress: Mapping[str, object]) -> dict[str, object]:
    statistics = {**found["statistics"], **progress}
    phase = statistics.pop("phase", found["phase"])
    key = {"this_run": found["run_id"], "this_attempt": found["attempt_id"]}
    return {**key, "new_phase": phase, "merged": statistics}


def _update_locked(connection: Connection, values: Sequence[Mapping[str, object]], now: int) -> None:
    """Update each run and each attempt, all of which are locked, once."""
    run = update(runs).where(runs.c.run_id == bindparam("this_run"))
    changed = run.values(heartbeat_at=now, phase=bindparam("new_phase"), statistics=bindparam("merged"))
    connection.execute(changed, values)
    attempt = update(attempts_table).where(attempts_table.c.attempt_id == bindparam("this_attempt"))
    connection.execute(attempt.values(heartbeat_at=now), values)
