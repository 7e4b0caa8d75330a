"""CompactionControlStore: what is wanted of compactions: requests, pauses, failures.

    None ── a run is claimed ──► InProgress ── pause ──► Aborted(1) ── its worker stops ──► Paused(1)
    Paused(1) ── pause ──► Paused(2) ── resume ──► Paused(1) ── resume ──► None   (S5; Kafka's LogCleanerManager)

A request survives a crash: it is a row, and the leader executes it; `runs.claim` takes it in the transaction
that begins the run. "Running", for users, is a topic whose compaction is requested, or that has a run that is alive.

Each method is one transaction and may raise Unavailable, Misconfigured and TopicNotFound. After Unavailable, `request`
may have been made; `pause` finds out by itself, by the counts that it wrote; all others may be called again. Must not
know: when compactions are due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from sqlalchemy import Connection, func, select

from storage.clock import Clock
from storage.errors import CompactionRunning, Conflict, TopicNotFound
from storage.metadata import compaction_control_rows, cursors, runs, services, topics
from storage.metadata.engine import Database
from storage.metadata.leases import shown_time
from storage.metadata.liveness import beating, is_alive
from storage.metadata.queries import Store
from storage.metadata.records import (
    COMPACTION_CURSOR,
    RUN_DEAD_MS,
    CompactionActivity,
    CompactionControl,
    RunRecord,
    RunState,
    TopicRecord,
)
from storage.metadata.tables import controls as controls_table, runs as runs_table

_NAMED = 3
"""How many topics an error names at most."""
_ENDING = "check with `compactor-admin topics compaction-status`, and try again when it has ended"


class CompactionControlStore(Store):
    """What is wanted of compactions."""

    def __init__(self, database: Database, clock: Clock, dead_ms: int = RUN_DEAD_MS) -> None:
        """`dead_ms`: a run without a heartbeat for that long is dead."""
        super().__init__(database, clock)
        self._dead_ms = dead_ms

    def _find(self, connection: Connection, topic_id: int) -> CompactionControl:
        return compaction_control_rows.find(connection, topic_id, self._clock.now_ms(), self._dead_ms)

    def _lives(self, run: RunRecord | None) -> bool:
        return _lives(run, self._dead_ms, self._clock.now_ms())

    def _request(self, connection: Connection, topic_id: int, cause: str, by: str) -> None:
        requested_at = self._clock.now_ms()
        compaction_control_rows.put(connection, topic_id, requested_at=requested_at, cause=cause, requested_by=by)

    # Queries

    def get(self, topic_id: int) -> CompactionControl:
        """What is wanted of the topic's compaction."""
        with self._database.read() as connection:
            return self._find(connection, topic_id)

    def all(self) -> Mapping[int, CompactionControl]:
        """By topic id; a topic that is not there wants nothing."""
        with self._database.read() as connection:
            return compaction_control_rows.of_all(connection, self._clock.now_ms(), self._dead_ms)

    def activity(self, topic_id: int) -> CompactionActivity:
        """The topic's compaction as it is now."""
        with self._database.snapshot() as connection:
            found = self._find(connection, topic_id)
            last = runs.last(connection, topic_id)
            return CompactionActivity(found, last, found.requested_at is not None or self._lives(last))

    def requests(self) -> list[tuple[TopicRecord, CompactionControl]]:
        """The topics whose compaction is requested, the oldest request first."""
        with self._database.snapshot() as connection:
            found = compaction_control_rows.requested(connection, self._clock.now_ms(), self._dead_ms)
            records = topics.by_ids(connection, found)
            return [(records[topic_id], state) for topic_id, state in found.items()]

    def running(self) -> int:
        """How many runs live, of all topics."""
        alive = beating(self._dead_ms, self._clock.now_ms()).where(runs_table.c.heartbeat_at)
        with self._database.read() as connection:
            statement = select(func.count()).where(runs_table.c.state == RunState.RUNNING.value, alive)
            return int(connection.execute(statement).scalar_one())

    def retries(self, most_ms: int) -> list[TopicRecord]:
        """The failing topics that may be tried again, and are not requested or paused; the longest due first.

        `most_ms`: the longest wait; a time beyond it was written before the clock was set back.
        """
        with self._database.snapshot() as connection:
            now = self._clock.now_ms()
            waiting = controls_table.c.requested_at.is_(None) & (controls_table.c.paused == 0)
            due = (controls_table.c.retry_at <= now) | (controls_table.c.retry_at > now + most_ms)
            statement = select(controls_table.c.topic_id).where(controls_table.c.failures > 0, due, waiting)
            ordered = statement.order_by(controls_table.c.retry_at, controls_table.c.topic_id)
            found = list(connection.execute(ordered).scalars())
            records = topics.by_ids(connection, found)
            return [records[topic_id] for topic_id in found]

    # Requests

    def request(self, topic_id: int, cause: str, by: str) -> CompactionControl:
        """Ask for a run; the leader executes it. `by`: who asks. The topic has its cursor `__compaction` then (S9).

        Raises CompactionRunning if one is requested or runs (S4), CompactionPaused.
        """
        with self._database.write() as connection:
            topic = topics.locked(connection, topic_id)
            found = self._find(connection, topic_id)
            compaction_control_rows.check_not_paused(topic, found)
            if found.requested_at is not None:
                raise CompactionRunning(
                    f"a compaction of {topic.name} is requested since {shown_time(found.requested_at)} "
                    f"({found.cause}, by {found.requested_by})",
                    "wait for it to finish",
                )
            last = runs.last(connection, topic_id)
            if last is not None and self._lives(last):
                raise runs.is_running(topic, last)
            cursors.ensure(connection, topic_id, COMPACTION_CURSOR)
            self._request(connection, topic_id, cause, by)
            return self._find(connection, topic_id)

    def withdraw(self, topic_id: int, *, leader: int | None = None, requested_at: int | None = None) -> bool:
        """Withdraw a request, as nothing is new (P11) or it is not wanted any more; whether there was one.

        `requested_at`: only the request of that time; a later one stays, as something may be new. `leader`: the token
        of the leadership that found that nothing is new; Fenced if it was lost, since it may have slept, and the
        request be another one.
        """
        with self._database.write() as connection:
            topics.locked(connection, topic_id)
            found = self._find(connection, topic_id)
            going = found.requested_at is not None and requested_at in (None, found.requested_at)
            if going:
                compaction_control_rows.put(connection, topic_id, requested_at=None, requested_by="")
            if leader is not None:
                services.check_leader(connection, leader)
            return going

    def request_interrupted(self, by: str) -> list[TopicRecord]:
        """Ask again for the runs that died with their worker; those topics. Each run is asked for once.

        The dead run is ended by the claim of the next one.
        """
        running = runs_table.c.state == RunState.RUNNING.value
        waits = controls_table.c.requested_at.is_not(None) | (controls_table.c.paused > 0)
        asked_for = select(controls_table.c.topic_id).where(waits)
        candidates = select(runs_table.c.topic_id, runs_table.c.holder, runs_table.c.heartbeat_at).where(
            running, runs_table.c.topic_id.not_in(asked_for)
        )
        now = self._clock.now_ms()
        with self._database.read() as connection:
            rows = connection.execute(candidates).all()
        found = [row.topic_id for row in rows if not is_alive(row.holder, row.heartbeat_at, self._dead_ms, now)]
        asked = []
        for topic_id in found:
            with suppress(TopicNotFound), self._database.write() as connection:  # deleted meanwhile
                topic = topics.locked(connection, topic_id)
                wanted = self._find(connection, topic_id)
                last = runs.last(connection, topic_id)
                if last is None or last.state is not RunState.RUNNING or self._lives(last):
                    continue
                if wanted.requested_at is None and not wanted.paused:
                    self._request(connection, topic_id, "interrupted", by)
                    asked.append(topic)
        return asked

    def hand_over(self, run: RunRecord, reason: str, by: str) -> bool:
        """End a run as CANCELLED and ask for it again, in one transaction.

        False if it has ended already, or may not publish any more: it is not wanted then.
        """
        with self._database.write() as connection:
            topic = topics.locked(connection, run.topic_id)
            if runs.get(connection, run.run_id).state is not RunState.RUNNING or topic.epoch != run.epoch:
                return False
            now = self._clock.now_ms()
            runs.cancel(connection, run.run_id, reason, now)
            self._request(connection, run.topic_id, "interrupted", by)
            return True

    # Pausing

    def pause(self, topic_ids: Sequence[int]) -> list[CompactionControl]:
        """Keep topics from being compacted, until as many resumes; their requests go, their runs are cancelled.

        Each of them or none; how they are then, in their order.
        """

        def pause(connection: Connection) -> list[CompactionControl]:
            _lock(connection, topic_ids)
            for topic_id in sorted(topic_ids):
                reason = "compaction of the topic was paused"
                found = _stop(connection, topic_id, reason, self._dead_ms, self._clock.now_ms())
                compaction_control_rows.put(connection, topic_id, paused=found.paused + 1)
            return self._found(connection, topic_ids)

        def happened(connection: Connection, paused: list[CompactionControl]) -> bool:
            topics.all_locked(connection, topic_ids)
            found = self._found(connection, topic_ids)
            return [(now.paused, now.requested_at) for now in found] == [(then.paused, None) for then in paused]

        return self._database.write_once(pause, happened, f"whether the compaction of topics {topic_ids} was paused")

    def resume(self, topic_ids: Sequence[int]) -> list[CompactionControl]:
        """End one pause of each of these topics that is paused, or of none; how they are then, in their order.

        So topics of which only some were paused come together again. Raises Conflict if none is paused, or a run of one
        is being aborted still.
        """
        with self._database.write() as connection:
            records = [topics.locked(connection, topic_id) for topic_id in sorted(topic_ids)]
            paused = [(topic, found) for topic in records if (found := self._find(connection, topic.id)).paused]
            if not paused:
                names = ", ".join(str(topic.name) for topic in records[:_NAMED])
                raise Conflict(f"compaction of {names} is not paused", "nothing is left to do")
            for topic, found in paused:
                if found.aborting:
                    raise Conflict(f"a run of {topic.name} was aborted by a pause and has not stopped yet", _ENDING)
                compaction_control_rows.put(connection, topic.id, paused=found.paused - 1)
            return self._found(connection, topic_ids)

    def abort(self, topic_ids: Sequence[int]) -> list[CompactionControl]:
        """End requests, runs and retries of topics, which may be compacted again at once, if they are not paused.

        Each of them or none; how they are then, in their order.
        """
        with self._database.write() as connection:
            _lock(connection, topic_ids)
            for topic_id in sorted(topic_ids):
                reason = "compaction of the topic was aborted"
                _stop(connection, topic_id, reason, self._dead_ms, self._clock.now_ms())
                compaction_control_rows.cleared(connection, topic_id)
            return self._found(connection, topic_ids)

    def _found(self, connection: Connection, topic_ids: Sequence[int]) -> list[CompactionControl]:
        return [self._find(connection, topic_id) for topic_id in topic_ids]

    # Failures

    def record_failure(
        self,
        topic_id: int,
        error: str,
        retry_at: int,
        *,
        leader: int | None = None,
        requested_at: int | None = None,
    ) -> CompactionControl:
        """The topic's compaction failed once more, with this error and without a run; it is tried again at `retry_at`.

        `leader`: its request is over with this; Fenced, and `requested_at`, as in `withdraw`.
        """
        with self._database.write() as connection:
            topics.locked(connection, topic_id)
            found = self._find(connection, topic_id)
            failures, last_error = found.failures + 1, runs.storable(error)
            compaction_control_rows.put(
                connection, topic_id, failures=failures, retry_at=retry_at, last_error=last_error
            )
            if leader is not None:
                if requested_at in (None, found.requested_at):
                    compaction_control_rows.put(connection, topic_id, requested_at=None, requested_by="")
                services.check_leader(connection, leader)
            return self._find(connection, topic_id)

    def fail_run(self, run: RunRecord, error: str, retry_at: Callable[[int], int]) -> int | None:
        """The worker of a run has stopped, with this error: the run ends as ERROR, and its topic is tried again (S6).

        In one transaction, so a kill between the two loses nothing. `retry_at`: when, by the number of
        failures in a row, which is the answer; None: the run had ended already, and that stays as it was.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            topics.locked(connection, run.topic_id)
            counts = runs.get(connection, run.run_id).state is RunState.RUNNING
            runs.fail(connection, run, error, now)
            if not counts:
                return None
            failures = self._find(connection, run.topic_id).failures + 1
            values = {"failures": failures, "retry_at": retry_at(failures), "last_error": runs.storable(error)}
            compaction_control_rows.put(connection, run.topic_id, **values)
            return failures

    def record_success(self, topic_id: int) -> None:
        """The topic does not fail any more. A run that succeeds says so by itself."""
        with self._database.write() as connection:
            topics.locked(connection, topic_id)
            compaction_control_rows.cleared(connection, topic_id)


def _lock(connection: Connection, topic_ids: Collection[int]) -> None:
    """Lock topics and their runs, in the order of locks of topics.py, before the first of them is stopped."""
    topics.all_locked(connection, topic_ids)
    runs.lock_running(connection, topic_ids)


def _stop(connection: Connection, topic_id: int, reason: str, dead_ms: int, now: int) -> CompactionControl:
    """Drop the request and end the run, whose worker is waited for if it lives. As it was before."""
    topics.locked(connection, topic_id)
    found = compaction_control_rows.find(connection, topic_id, now, dead_ms)
    if found.requested_at is not None:
        compaction_control_rows.put(connection, topic_id, requested_at=None, requested_by="")
    last = runs.last(connection, topic_id)
    if last is not None and last.state is RunState.RUNNING:
        lived = _lives(last, dead_ms, now)
        runs.cancel(connection, last.run_id, reason, now)
        compaction_control_rows.put(connection, topic_id, aborting_run_id=last.run_id if lived else None)
    return found


def _lives(run: RunRecord | None, dead_ms: int, now: int) -> bool:
    return run is not None and run.state is RunState.RUNNING and is_alive(run.owner, run.heartbeat_at, dead_ms, now)
