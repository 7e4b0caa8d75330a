"""MetadataStore: everything the rest of the project asks of SQL, in its own words.

Each method is one transaction: it commits when it returns, and changed nothing if it raised. Times come from the
clock that is handed in; two processes that share a database should agree on it within a lease's term.

All methods may raise Unavailable (StorageFull) and Misconfigured, and, where a topic is named, TopicNotFound; only
other errors are listed. What a method does is said where it is done: topics, leases, attempts, ledgers, cursors,
runs, publishing. Must not know: objects, Spark, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import URL

from storage.clock import Clock
from storage.metadata import attempts, cursors, leases, ledgers, publishing, runs, schema, topics
from storage.metadata.engine import Database
from storage.metadata.records import (
    COMPACTION_CURSOR,
    Attempt,
    AttemptKind,
    CompactedLedgerRecord,
    CursorRecord,
    Lease,
    LedgerRecord,
    RunRecord,
    TopicRecord,
    TopicSnapshot,
    TopicSummary,
)
from storage.model import Position, TopicName
from storage.steps import Step, reached


class MetadataStore:
    """The metadata in one database. Safe to share between threads, not between processes. Close it at the end."""

    def __init__(self, url: str | URL, clock: Clock) -> None:
        """Raises Misconfigured for a URL that cannot be used; does not connect."""
        self.database = Database(url)
        self._clock = clock

    @property
    def url(self) -> str:
        """The database's URL without its password."""
        return self.database.shown_url

    def upgrade(self) -> None:
        """Bring the database to the schema of this version, from nothing or from an older one."""
        schema.upgrade(self.database)

    def check_schema(self) -> None:
        """Raises Misconfigured unless the schema is exactly this version's. Changes nothing."""
        schema.check(self.database)

    def close(self) -> None:
        """Close the connections; the store may be used again and then opens new ones."""
        self.database.close()

    # Topics

    def create_topic(self, name: TopicName) -> TopicRecord:
        """The topic of that name, made if it does not exist."""
        with self.database.write() as connection:
            return topics.create(connection, name, self._clock.now_ms())

    def topic(self, name: TopicName) -> TopicRecord:
        with self.database.read() as connection:
            return topics.by_name(connection, name)

    def topics(self) -> list[TopicRecord]:
        """All topics, by name."""
        with self.database.read() as connection:
            return topics.list_all(connection)

    def topic_summaries(self) -> list[TopicSummary]:
        """All topics, by name, with sums over their raw ledgers."""
        with self.database.read() as connection:
            return topics.summaries(connection)

    def snapshot(self, topic_id: int) -> TopicSnapshot:
        """The topic with its ledgers, `__compaction` cursor, compacted ledger and last run, all of one moment."""
        with self.database.snapshot() as connection:
            return TopicSnapshot(
                topic=topics.by_id(connection, topic_id),
                ledgers=ledgers.of_topic(connection, topic_id),
                cursor=cursors.find(connection, topic_id, COMPACTION_CURSOR),
                compacted=cursors.serving_compacted(connection, topic_id),
                last_run=runs.last(connection, topic_id),
            )

    # The writer's lease

    def acquire_lease(self, topic_id: int, holder: str, ttl_ms: int) -> Lease:
        """Take the topic's lease. `holder` must be unique to one piece of work. Raises LeaseHeld."""
        with self.database.write() as connection:
            return leases.acquire(connection, topic_id, holder, ttl_ms, self._clock.now_ms())

    def renew_lease(self, lease: Lease, ttl_ms: int) -> Lease:
        """A new term from now on. Raises Fenced if somebody took the lease, or it was given back."""
        with self.database.write() as connection:
            return leases.renew(connection, lease, ttl_ms, self._clock.now_ms())

    def release_lease(self, lease: Lease) -> None:
        """Give the lease back; nothing happens if it was lost."""
        with self.database.write() as connection:
            leases.release(connection, lease)

    # Attempts

    def begin_attempt(self, topic_id: int, kind: AttemptKind, holder: str) -> Attempt:
        """Say that objects may come, before the first one is written."""
        with self.database.write() as connection:
            return attempts.begin(connection, topic_id, kind, holder, self._clock.now_ms())

    def heartbeat_attempt(self, attempt: Attempt) -> None:
        """Raises Fenced if the attempt was given up as dead."""
        with self.database.write() as connection:
            attempts.heartbeat(connection, attempt.attempt_id, self._clock.now_ms())

    def finish_attempt(self, attempt_id: str) -> None:
        """Say that no more objects come; nothing happens if that was said already."""
        with self.database.write() as connection:
            attempts.finish(connection, [attempt_id], self._clock.now_ms())

    def attempt(self, attempt_id: str) -> Attempt | None:
        """The attempt, or None if nobody knows of it (any more)."""
        with self.database.read() as connection:
            return attempts.find(connection, attempt_id)

    # Raw ledgers

    def allocate_ledger_ids(self, count: int) -> int:
        """The first of `count` consecutive ledger ids that nobody else gets, ever."""
        with self.database.write() as connection:
            return ledgers.allocate_ids(connection, count)

    def append_ledgers(self, lease: Lease, new: Sequence[LedgerRecord]) -> None:
        """Make sealed ledgers visible, all at once, and finish their attempts.

        Raises Fenced if the lease was overtaken (a mere expiry does no harm), the topic has moved on, or an attempt
        was given up as dead.
        """
        with self.database.write() as connection:
            ledgers.append(connection, lease, new, self._clock.now_ms())
            reached(Step.IMPORT_INSIDE_COMMIT)

    def ledgers(self, topic_id: int) -> tuple[LedgerRecord, ...]:
        """The topic's raw ledgers in the order of offsets."""
        with self.database.read() as connection:
            return ledgers.of_topic(connection, topic_id)

    # Cursors

    def create_cursor(self, topic_id: int, name: str) -> CursorRecord:
        """The cursor of that name, made with nothing acknowledged if it does not exist."""
        with self.database.write() as connection:
            return cursors.create(connection, topic_id, name)

    def cursor(self, topic_id: int, name: str) -> CursorRecord:
        """Raises NotFound."""
        with self.database.read() as connection:
            return cursors.get(connection, topics.by_id(connection, topic_id), name)

    def cursors(self, topic_id: int) -> list[CursorRecord]:
        """The topic's cursors, by name."""
        with self.database.read() as connection:
            return cursors.of_topic(connection, topic_id)

    def reset_cursor(self, topic_id: int, name: str, position: Position) -> CursorRecord:
        """Move a cursor anywhere. Raises InvalidInput for `__compaction` (A4), NotFound."""
        with self.database.write() as connection:
            return cursors.reset(connection, topic_id, name, position)

    def set_cursor_properties(self, topic_id: int, name: str, updates: Mapping[str, str]) -> CursorRecord:
        """Merge properties. Raises InvalidInput for a change of `CompactedTopicLedger` (A2), NotFound."""
        with self.database.write() as connection:
            return cursors.set_properties(connection, topic_id, name, updates)

    def delete_cursor(self, topic_id: int, name: str) -> None:
        """Delete a cursor. `__compaction` takes the compacted ledger and any running run with it. Raises NotFound."""
        with self.database.write() as connection:
            cursors.remove(connection, topic_id, name, self._clock.now_ms())

    # Compaction runs

    def claim_run(self, topic_id: int, holder: str, policies: Mapping[str, object], heartbeat_ttl_ms: int) -> RunRecord:
        """Begin a run, in a new epoch; one whose heartbeat is older than the ttl is taken over.

        Raises CompactionRunning, which names the run under way (S4).
        """
        with self.database.write() as connection:
            return runs.claim(connection, topic_id, holder, policies, heartbeat_ttl_ms, self._clock.now_ms())

    def update_run(
        self,
        run: RunRecord,
        *,
        phase: str | None = None,
        horizon: Position | None = None,
        statistics: Mapping[str, object] | None = None,
    ) -> RunRecord:
        """A heartbeat, with what is new. Raises Fenced if the run must stop."""
        with self.database.write() as connection:
            return runs.progress(connection, run, phase, horizon, statistics, self._clock.now_ms())

    def publish(
        self,
        run: RunRecord,
        expected_generation: int,
        compacted: CompactedLedgerRecord,
        statistics: Mapping[str, object],
    ) -> RunRecord:
        """The commit point (A1): let `compacted` serve, move the horizon, end the run.

        Raises Fenced if run, epoch or generation are not the topic's any more; nothing has changed then.
        """
        reached(Step.PUBLISH_BEFORE_TRANSACTION)
        with self.database.write() as connection:
            published = publishing.publish(
                connection, run, expected_generation, compacted, statistics, self._clock.now_ms()
            )
        reached(Step.PUBLISH_AFTER_COMMIT)
        return published

    def finish_run(self, run: RunRecord, statistics: Mapping[str, object]) -> RunRecord:
        """End a run that had nothing to write: cursor and compacted ledger stay (P1). Raises Fenced."""
        with self.database.write() as connection:
            return runs.succeed_without_result(connection, run, statistics, self._clock.now_ms())

    def fail_run(self, run: RunRecord, error: str) -> RunRecord:
        """End a run as failed with the original error; one that has ended already stays as it is (W3)."""
        with self.database.write() as connection:
            return runs.fail(connection, run, error, self._clock.now_ms())

    def run(self, run_id: int) -> RunRecord:
        """Raises NotFound."""
        with self.database.read() as connection:
            return runs.get(connection, run_id)

    def last_run(self, topic_id: int) -> RunRecord | None:
        """The newest run of the topic, or None: NOT_RUN (S7)."""
        with self.database.read() as connection:
            return runs.last(connection, topic_id)

    def runs(self, topic_id: int, limit: int) -> list[RunRecord]:
        """The newest runs of the topic, the newest first."""
        with self.database.read() as connection:
            return runs.of_topic(connection, topic_id, limit)
