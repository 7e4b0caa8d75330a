"""Compaction runs: one at a time a topic, each in an epoch of its own, none forgotten.

States (S7): RUNNING, then once SUCCESS, ERROR or CANCELLED; a finished run never changes again. A run that stops
answering (liveness.py) is taken over: it gets ERROR, and its epoch is over, so if its worker wakes up it finds itself
fenced. So does the worker of a run that was cancelled, or given up by garbage
collection. The database itself forbids a second RUNNING row (tables.py).
Publishing a result is in publishing.py, beating for many runs at once in heartbeats.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from sqlalchemy import Connection, RowMapping, Select, bindparam, insert, select, update

from storage.clock import Clock
from storage.errors import CompactionRunning, Conflict, NotFound
from storage.metadata import attempts, compaction_state, row_mapping, services, topics
from storage.metadata.engine import Database
from storage.metadata.invariants import check_run_is_current
from storage.metadata.leases import shown_time
from storage.metadata.liveness import is_alive
from storage.metadata.records import AttemptKind, RunRecord, RunState, TopicRecord
from storage.metadata.tables import attempts as attempts_table
from storage.metadata.tables import runs
from storage.metadata.tables import topics as topics_table
from storage.model import Position, TopicName

CLAIMED = "claimed"
"""The phase of a run that has not begun."""
_LAST = select(runs).where(runs.c.topic_id == bindparam("topic")).order_by(runs.c.run_id.desc()).limit(1)


def claim(
    connection: Connection,
    topic_id: int,
    holder: str,
    policies: Mapping[str, object],
    heartbeat_ttl_ms: int,
    now: int,
    *,
    requested: bool = False,
) -> RunRecord:
    """Begin a run in a new epoch; the topic's request is over with it, and there must be one if it is `requested`.

    Raises CompactionRunning (S4), CompactionPaused (S5), Fenced for a request that is gone, TopicNotFound.
    """
    topic = topics.locked(connection, topic_id)
    cause = compaction_state.take_request(connection, topic, requested, now, heartbeat_ttl_ms)
    running = _find(connection, select(runs).where(runs.c.topic_id == topic_id, runs.c.state == RunState.RUNNING.value))
    if running is not None:
        if is_alive(running.holder, running.heartbeat_at, heartbeat_ttl_ms, now):
            raise is_running(topic, running)
        # Before the insert: at most one row may be RUNNING. The text is completed when the new id is known.
        _end(connection, running, RunState.ERROR, now)
    epoch = topic.epoch + 1
    connection.execute(update(topics_table).where(topics_table.c.id == topic_id).values(epoch=epoch))
    attempt = attempts.begin(connection, topic_id, AttemptKind.RUN, holder, now)
    made = connection.execute(
        insert(runs).values(
            topic_id=topic_id,
            attempt_id=attempt.attempt_id,
            holder=holder,
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
    assert made.inserted_primary_key is not None
    run_id: int = made.inserted_primary_key[0]
    if running is not None:
        told = f"its worker {running.holder} stopped answering; taken over by run {run_id}"
        connection.execute(update(runs).where(runs.c.run_id == running.run_id).values(error=told))
    return get(connection, run_id)


def is_running(topic: TopicRecord, run: RunRecord) -> CompactionRunning:
    """The error that names the run under way."""
    return CompactionRunning(
        f"run {run.run_id} by {run.holder} is compacting {topic.name} since {shown_time(run.started_at)}",
        f"wait for it to finish; `compactor compactions show {run.run_id}` shows its progress, "
        f"`compactor compactions cancel {run.run_id}` ends it",
    )


def progress(
    connection: Connection,
    run: RunRecord,
    phase: str | None,
    horizon: Position | None,
    statistics: Mapping[str, object] | None,
    now: int,
) -> RunRecord:
    """A heartbeat of a run, with what is new. Raises Fenced."""
    current(connection, run)
    attempts.heartbeat(connection, run.attempt_id, now)
    values: dict[str, object] = {"heartbeat_at": now}
    if phase is not None:
        values["phase"] = phase
    if horizon is not None:
        values |= row_mapping.position_values("horizon", horizon)
    if statistics is not None:
        values["statistics"] = dict(statistics)
    connection.execute(update(runs).where(runs.c.run_id == run.run_id).values(**values))
    return get(connection, run.run_id)


def succeed_without_result(
    connection: Connection, run: RunRecord, statistics: Mapping[str, object], now: int
) -> RunRecord:
    """The run found nothing to do (P1). Raises Fenced."""
    _end(connection, current(connection, run), RunState.SUCCESS, now, statistics=dict(statistics))
    return get(connection, run.run_id)


def succeed(
    connection: Connection, run: RunRecord, compacted_ledger_id: int, statistics: Mapping[str, object], now: int
) -> None:
    """Only for publishing.py, which has checked that the run is current."""
    _end(
        connection,
        run,
        RunState.SUCCESS,
        now,
        statistics=dict(statistics),
        compacted_ledger_id=compacted_ledger_id,
    )


def fail(connection: Connection, run: RunRecord, error: str, now: int) -> RunRecord:
    """End a run as failed, in any epoch; one that has ended stays as it is (W3). Returns it as it is then.

    Only its worker says this, when it has stopped.
    """
    topics.locked(connection, run.topic_id)
    compaction_state.ended(connection, run.topic_id, run.run_id)
    found = get(connection, run.run_id)
    if found.state is not RunState.RUNNING:
        return found
    _end(connection, found, RunState.ERROR, now, error=storable(error))
    return get(connection, run.run_id)


def cancel(connection: Connection, run_id: int, reason: str, now: int) -> RunRecord:
    """End a RUNNING run as CANCELLED, in a new epoch: whatever its worker still does, it never publishes.

    Raises NotFound, Conflict for a run that has ended.
    """
    topic = topics.locked(connection, get(connection, run_id).topic_id)
    found = get(connection, run_id)
    if found.state is not RunState.RUNNING:
        raise Conflict(
            f"run {run_id} of {topic.name} cannot be cancelled: it has ended as {found.state.value}",
            "nothing was changed and nothing is left to do; `compactor compactions list` shows which runs go on",
        )
    connection.execute(update(topics_table).where(topics_table.c.id == topic.id).values(epoch=topic.epoch + 1))
    _end(connection, found, RunState.CANCELLED, now, error=storable(reason))
    return get(connection, run_id)


def give_up(connection: Connection, attempt_ids: Collection[str], now: int) -> None:
    """End the RUNNING runs of attempts that were given up as dead; their topics are locked, attempts finished.

    A run that was requested is requested again, as for any run that died with its worker.
    """
    dying = (runs.c.attempt_id.in_(attempt_ids), runs.c.state == RunState.RUNNING.value)
    for topic_id in connection.execute(select(runs.c.topic_id).where(*dying, runs.c.cause != "")).scalars().all():
        compaction_state.request_again(connection, topic_id, "garbage collection", now)
    connection.execute(
        update(runs)
        .where(*dying)
        .values(
            state=RunState.ERROR.value,
            finished_at=now,
            error="its worker stopped answering; given up by garbage collection",
        )
    )


def lock_running(connection: Connection, topic_ids: Collection[int]) -> None:
    """Lock the RUNNING runs of topics, all of which are locked, behind their attempts: before several are ended."""
    running = runs.c.topic_id.in_(topic_ids), runs.c.state == RunState.RUNNING.value
    attempts.lock_open(connection, connection.execute(select(runs.c.attempt_id).where(*running)).scalars().all())
    connection.execute(select(runs.c.run_id).where(*running).order_by(runs.c.run_id).with_for_update()).all()


def current(connection: Connection, run: RunRecord) -> RunRecord:
    """The run as it is now, with its topic locked. Raises Fenced if it may not go on."""
    topic = topics.locked(connection, run.topic_id)
    found = get(connection, run.run_id)
    check_run_is_current(topic, found)
    return found


def get(connection: Connection, run_id: int) -> RunRecord:
    """Raises NotFound."""
    run = _find(connection, select(runs).where(runs.c.run_id == run_id))
    if run is None:
        raise NotFound(
            f"the compaction run {run_id} does not exist", "`compactor compactions list` shows those that do"
        )
    return run


def last(connection: Connection, topic_id: int) -> RunRecord | None:
    row = connection.execute(_LAST, {"topic": topic_id}).mappings().one_or_none()
    return row_mapping.run(row) if row is not None else None


def of_topic(connection: Connection, topic_id: int, limit: int) -> list[RunRecord]:
    """The newest first."""
    return [row_mapping.run(row) for row in connection.execute(_newest_first(topic_id).limit(limit)).mappings()]


def has_written(connection: Connection, topic_id: int, compacted_ledger_id: int) -> bool:
    """Whether a run of the topic published that compacted ledger."""
    ours = (runs.c.topic_id == topic_id) & (runs.c.compacted_ledger_id == compacted_ledger_id)
    return connection.execute(select(runs.c.run_id).where(ours).limit(1)).first() is not None


def of_all_topics(
    connection: Connection, limit: int, topic_id: int | None, state: RunState | None
) -> list[tuple[TopicName, RunRecord]]:
    """The newest first, with the names of their topics; None: any topic, any state."""
    statement = select(runs, topics_table.c.name.label("topic_name")).join(
        topics_table, topics_table.c.id == runs.c.topic_id
    )
    if topic_id is not None:
        statement = statement.where(runs.c.topic_id == topic_id)
    if state is not None:
        statement = statement.where(runs.c.state == state.value)
    found = connection.execute(statement.order_by(runs.c.run_id.desc()).limit(limit)).mappings()
    return [(TopicName.parse(row["topic_name"]), row_mapping.run(row)) for row in found]


def by_attempt(connection: Connection, attempt_id: str) -> RunRecord | None:
    return _find(connection, select(runs).where(runs.c.attempt_id == attempt_id))


def _end(connection: Connection, run: RunRecord, state: RunState, now: int, **values: object) -> None:
    attempts.finish(connection, [run.attempt_id], now)
    if state is RunState.SUCCESS:
        compaction_state.cleared(connection, run.topic_id)
    connection.execute(
        update(runs).where(runs.c.run_id == run.run_id).values(state=state.value, finished_at=now, **values)
    )


def _newest_first(topic_id: int) -> Select[tuple[object, ...]]:
    return select(runs).where(runs.c.topic_id == topic_id).order_by(runs.c.run_id.desc())


def _find(connection: Connection, statement: Select[tuple[object, ...]]) -> RunRecord | None:
    row = connection.execute(statement).mappings().one_or_none()
    return row_mapping.run(row) if row is not None else None


def storable(error: str) -> str:
    """Any text of an exception, as every database takes it: no NUL, no half surrogates."""
    return error.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def beat(
    connection: Connection, beating: Sequence[RunRecord], progress: Mapping[int, Mapping[str, object]], now: int
) -> list[int]:
    """Say that the runs are alive; `progress` by run id. The ids of those that are fenced, in the order given."""
    by_attempt = {run.attempt_id: run for run in beating}
    alive: dict[int, RowMapping] = {}
    ordered = sorted(by_attempt)
    for first in range(0, len(ordered), attempts.AT_ONCE):
        open_ones = attempts.lock_open(connection, ordered[first : first + attempts.AT_ONCE])
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
    attempt = update(attempts_table).where(attempts_table.c.attempt_id == bindparam("beaten_attempt"))
    connection.execute(attempt.values(heartbeat_at=now), values)


def _locked(connection: Connection, some: Sequence[RunRecord]) -> dict[int, RowMapping]:
    """Lock those that are current; what their rows say, by run id. Their attempts are locked and open."""
    statement = (
        select(runs.c.run_id, runs.c.attempt_id, runs.c.phase, runs.c.statistics)
        .join(topics_table, topics_table.c.id == runs.c.topic_id)
        .where(
            runs.c.run_id.in_([run.run_id for run in some]),
            runs.c.state == RunState.RUNNING.value,
            runs.c.epoch == topics_table.c.epoch,
        )
        .order_by(runs.c.run_id)
        .with_for_update(of=runs)
    )
    return {row["run_id"]: row for row in connection.execute(statement).mappings()}


class RunStore:
    """The rows of runs, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def expire_attempts(self, topic_id: int, older_than_ms: int) -> list[str]:
        """Give up the attempts whose heartbeat is that old, and end their runs as ERROR; their ids.

        Afterwards nothing of theirs can become part of the topic, so their objects may be deleted.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            expired = attempts.expire(connection, topic_id, older_than_ms, now)
            give_up(connection, expired, now)
            return expired

    def claim(
        self,
        topic_id: int,
        holder: str,
        policies: Mapping[str, object],
        heartbeat_ttl_ms: int,
        *,
        leader: int | None = None,
    ) -> RunRecord:
        """Begin a run, in a new epoch; one whose heartbeat is older than the ttl is taken over. It takes the request.

        Raises CompactionRunning, which names the run under way (S4), CompactionPaused (S5). `leader`: the token of the
        leadership that begins it: Fenced if it was lost, or the request is gone.
        """

        def happened(connection: Connection, claimed: RunRecord) -> bool:
            topics.locked(connection, topic_id)
            return by_attempt(connection, claimed.attempt_id) is not None

        def change(connection: Connection) -> RunRecord:
            now, requested = self._clock.now_ms(), leader is not None
            claimed = claim(connection, topic_id, holder, policies, heartbeat_ttl_ms, now, requested=requested)
            if leader is not None:
                services.check_leader(connection, leader)
            return claimed

        return self._database.write_once(change, happened, f"whether {holder} claimed a compaction run")

    def update(
        self,
        run: RunRecord,
        *,
        phase: str | None = None,
        horizon: Position | None = None,
        statistics: Mapping[str, object] | None = None,
    ) -> RunRecord:
        """A heartbeat, with what is new. Raises Fenced if the run must stop."""
        with self._database.write() as connection:
            return progress(connection, run, phase, horizon, statistics, self._clock.now_ms())

    def heartbeat(
        self, beating: Sequence[RunRecord], progress: Mapping[int, Mapping[str, object]] = MappingProxyType({})
    ) -> list[int]:
        """A heartbeat of many runs at once; `progress`, by run id, goes into their statistics, its `phase` into phase.

        The ids of the runs that must stop: ended, of a past epoch, or given up. No error; the others were beaten.
        """
        with self._database.write() as connection:
            return beat(connection, beating, progress, self._clock.now_ms())

    def cancel(self, run_id: int, reason: str) -> RunRecord:
        """End a run as CANCELLED; from then on it can never publish, and its worker finds itself fenced.

        Raises NotFound, Conflict for a run that has ended.
        """
        with self._database.write() as connection:
            return cancel(connection, run_id, reason, self._clock.now_ms())

    def finish(self, run: RunRecord, statistics: Mapping[str, object]) -> RunRecord:
        """End a run that had nothing to write: cursor and compacted ledger stay (P1). Raises Fenced."""

        def happened(connection: Connection, _: RunRecord) -> bool:
            topics.locked(connection, run.topic_id)
            found = get(connection, run.run_id)
            return found.state is RunState.SUCCESS and found.compacted_ledger_id is None

        return self._database.write_once(
            lambda connection: succeed_without_result(connection, run, statistics, self._clock.now_ms()),
            happened,
            f"whether run {run.run_id} has ended",
        )

    def fail(self, run: RunRecord, error: str) -> RunRecord:
        """End a run as failed with the original error; one that has ended already stays as it is (W3)."""
        with self._database.write() as connection:
            return fail(connection, run, error, self._clock.now_ms())

    def get(self, run_id: int) -> RunRecord:
        """Raises NotFound."""
        with self._database.read() as connection:
            return get(connection, run_id)

    def last(self, topic_id: int) -> RunRecord | None:
        """The newest run of the topic, or None: NOT_RUN (S7)."""
        with self._database.read() as connection:
            return last(connection, topic_id)

    def of_topic(self, topic_id: int, limit: int) -> list[RunRecord]:
        """The newest runs of the topic, the newest first."""
        with self._database.read() as connection:
            return of_topic(connection, topic_id, limit)

    def has_published(self, topic_id: int, ledger_id: int) -> bool:
        """Whether the topic has, or once had, that compacted ledger."""
        with self._database.read() as connection:
            return has_written(connection, topic_id, ledger_id)

    def newest(
        self, limit: int, *, topic_id: int | None = None, state: RunState | None = None
    ) -> list[tuple[TopicName, RunRecord]]:
        """The newest runs of all topics, or of one, or in one state, with their topics' names; the newest first."""
        with self._database.read() as connection:
            return of_all_topics(connection, limit, topic_id, state)
