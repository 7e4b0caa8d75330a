"""MetadataStore: everything the rest of the project asks of SQL, in its own words.

Each method is one transaction: it commits when it returns, and changed nothing if it raised. Only after Unavailable
may a change have happened whose answer was lost: `append_ledgers`, `claim_run` and `publish` find out by themselves,
all other methods may be called again. Times come from the clock that is handed in; two processes that share a database
should agree on it within a lease's term.

All methods may raise Unavailable (StorageFull) and Misconfigured, and, where a topic is named, TopicNotFound; only
other errors are listed. What a method does is said where it is done: topics, leases, attempts, ledgers, cursors,
runs, heartbeats, publishing, pins, snapshots. More faces: `log`, `policies`, `tenancy`. Must not know: objects, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from sqlalchemy import URL, Connection

from storage.clock import Clock
from storage.failpoints import Failpoint, failpoint
from storage.metadata import (
    attempts,
    cursors,
    heartbeats,
    leases,
    ledgers,
    pins,
    publishing,
    row_mapping,
    runs,
    schema,
    services,
    snapshots,
    tenancy_topics,
    topics,
    trimming,
)
from storage.metadata.compaction_state_records import RUN_DEAD_MS, Retry
from storage.metadata.compaction_state_store import CompactionStateStore
from storage.metadata.cursor_store import CursorStore
from storage.metadata.engine import Database
from storage.metadata.log_store import LogStore
from storage.metadata.metrics_store import MetricsStore
from storage.metadata.policy_store import PolicyStore
from storage.metadata.records import (
    Attempt,
    AttemptKind,
    CompactedLedgerRecord,
    CursorRecord,
    GcSnapshot,
    Lease,
    Pin,
    RunRecord,
    RunState,
    TopicRecord,
    TopicSnapshot,
    TopicSummary,
)
from storage.metadata.service_store import ServiceStore
from storage.metadata.stats_store import StatsStore
from storage.metadata.store_binding import StoreBinding
from storage.metadata.tenancy_store import TenancyStore
from storage.model import LedgerRecord, Position, TopicName


class MetadataStore:
    """The metadata in one database. Safe to share between threads, not between processes. Close it at the end."""

    def __init__(
        self,
        url: str | URL,
        clock: Clock,
        policies: Mapping[str, object] = MappingProxyType({}),
        run_dead_ms: int = RUN_DEAD_MS,
    ) -> None:
        """`policies`: the broker's defaults (PolicyStore); `run_dead_ms`: see CompactionStateStore.

        Does not connect. Raises Misconfigured for a bad URL.
        """
        self.database = Database(url)
        self._clock = clock
        self.log = LogStore(self.database, clock, policies)
        self.policies = PolicyStore(self.database, policies)
        self.acknowledgements = CursorStore(self.database)
        self.stats = StatsStore(self.database)
        self.metrics = MetricsStore(self.database, run_dead_ms)
        self.control = CompactionStateStore(self.database, clock, run_dead_ms)
        self.services = ServiceStore(self.database, clock)
        self.tenancy = TenancyStore(self.database, clock, policies)
        self.store_binding = StoreBinding(self.database, clock)

    @property
    def url(self) -> str:
        """The database's URL without its password."""
        return self.database.shown_url

    def upgrade(self) -> None:
        """Bring the database to the schema of this version, from nothing or from an older one."""
        schema.upgrade(self.database)

    def keep_reserve(self) -> None:
        """Keep some space for a full disk, if the database is a file here (reserve.py). Quick; raises nothing."""
        if self.database.reserve is not None:
            self.database.reserve.keep()

    def check_schema(self) -> None:
        """Raises Misconfigured unless the schema is exactly this version's. Changes nothing."""
        schema.check(self.database)

    def close(self) -> None:
        """Close the connections; the store may be used again and then opens new ones."""
        self.database.close()

    # Topics

    def create_topic(self, name: TopicName) -> TopicRecord:
        """The topic of that name, made with tenant and namespace if not there. Raises Conflict if it is partitioned."""
        with self.database.write() as connection:
            return tenancy_topics.ensure(connection, name, self._clock.now_ms(), self.policies.broker_defaults)

    def topic(self, name: TopicName) -> TopicRecord:
        with self.database.read() as connection:
            return topics.by_name(connection, name)

    def topics(self) -> list[TopicRecord]:
        """All topics, by name."""
        with self.database.read() as connection:
            return topics.list_all(connection)

    def topics_in_pages(self, count: int) -> Iterator[list[TopicRecord]]:
        """All topics, by id, so many at a time; each page is of its own moment."""
        after = -1
        while True:
            with self.database.read() as connection:
                page = [row_mapping.topic(row) for row in topics.page_rows(connection, after, count)]
            if not page:
                return
            yield page
            after = page[-1].id

    def topics_in(self, namespace: str) -> list[TopicRecord]:
        """The topics of `tenant/namespace`, by name. Raises InvalidInput."""
        with self.database.read() as connection:
            return topics.in_namespace(connection, namespace)

    def topic_summaries(self) -> list[TopicSummary]:
        """All topics, by name, with sums over their raw ledgers."""
        with self.database.read() as connection:
            return topics.summaries(connection)

    def snapshot(self, topic_id: int) -> TopicSnapshot:
        """The topic with its ledgers, tail, `__compaction` cursor, compacted ledger and last run, of one moment."""
        with self.database.snapshot() as connection:
            return snapshots.of_topic(connection, topic_id)

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

    def attempts(self, topic_id: int) -> list[Attempt]:
        """The topic's attempts that are known, finished or not, the oldest first."""
        with self.database.read() as connection:
            return list(attempts.of_topic(connection, topic_id))

    def expire_attempts(self, topic_id: int, older_than_ms: int) -> list[str]:
        """Give up the attempts whose heartbeat is that old, and end their runs as ERROR; their ids.

        Afterwards nothing of theirs can become part of the topic, so their objects may be deleted.
        """
        with self.database.write() as connection:
            now = self._clock.now_ms()
            expired = attempts.expire(connection, topic_id, older_than_ms, now)
            runs.give_up(connection, expired, now)
            return expired

    def forget_attempts(self, topic_id: int, finished_before: int, keep: Set[str] = frozenset()) -> int:
        """Delete the rows of attempts that were finished before that time (ms); how many.

        `keep`: ids of those that have objects yet. An attempt that nobody knows counts as finished.
        """
        with self.database.write() as connection:
            return attempts.forget(connection, topic_id, finished_before, keep)

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

        def append(connection: Connection) -> None:
            ledgers.append(connection, lease, new, self._clock.now_ms())
            failpoint(Failpoint.IMPORT_INSIDE_COMMIT)

        def happened(connection: Connection, _: None) -> bool:
            topics.locked(connection, lease.topic_id)
            return ledgers.contains(connection, lease.topic_id, new[-1].ledger_id)

        self.database.write_once(
            append,
            happened,
            f"whether ledger {new[-1].ledger_id if new else None} and those with it were appended",
        )

    def ledgers(self, topic_id: int) -> tuple[LedgerRecord, ...]:
        """Those that are not trimmed, in the order of offsets."""
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
        """By name."""
        with self.database.read() as connection:
            return cursors.of_topic(connection, topic_id)

    def reset_cursor(self, topic_id: int, name: str, position: Position | None) -> CursorRecord:
        """Move a cursor anywhere; its ranges go. Raises InvalidInput for `__compaction` (A4), NotFound."""
        with self.database.write() as connection:
            return cursors.reset(connection, topic_id, name, position)

    def set_cursor_properties(self, topic_id: int, name: str, updates: Mapping[str, str]) -> CursorRecord:
        """Merge properties. Raises InvalidInput for a change of `CompactedTopicLedger` (A2), NotFound."""
        with self.database.write() as connection:
            return cursors.set_properties(connection, topic_id, name, updates)

    def delete_cursor(self, topic_id: int, name: str, force: bool = False) -> None:
        """Delete a cursor; `__compaction` takes compacted ledger and run along. Raises NotFound, Conflict (R8)."""
        with self.database.write() as connection:
            if not force:
                trimming.check_removal(connection, topic_id, name)
            cursors.remove(connection, topic_id, name, self._clock.now_ms())

    def cursor_floor(self, topic_id: int) -> int | None:
        """The least mark-delete offset of cursors with `readCompacted` = "true" (T1); -1: unset, None: no cursor."""
        with self.database.read() as connection:
            return cursors.compacted_floor(connection, topic_id)

    # Readers' pins, and garbage collection

    def pin_compacted(
        self, topic_id: int, holder: str, ttl_ms: int, ledger_id: int | None = None
    ) -> tuple[TopicSnapshot, Pin | None]:
        """The topic of one moment, with a pin on the compacted ledger that serves in it; None: never compacted.

        `ledger_id`: pin that compacted ledger instead, unless it is collected already; it need not serve any more.
        While the pin lives, nothing that the pinned compacted ledger refers to is deleted.
        """
        with self.database.write() as connection:
            # The pin locks the topic first, so what the snapshot's statements see cannot change between them.
            pin = pins.take(connection, topic_id, holder, ttl_ms, self._clock.now_ms(), ledger_id)
            return snapshots.of_topic(connection, topic_id), pin

    def renew_pin(self, pin: Pin, ttl_ms: int) -> Pin:
        """A new term from now on. Raises Fenced if the pin expired and its compacted ledger was collected."""
        with self.database.write() as connection:
            return pins.renew(connection, pin, ttl_ms, self._clock.now_ms())

    def release_pin(self, pin: Pin) -> None:
        """Give the pin back; nothing happens if it is gone."""
        with self.database.write() as connection:
            pins.release(connection, pin)

    def retired_compacted(self, topic_id: int) -> list[CompactedLedgerRecord]:
        """The compacted ledgers that serve no more and are not collected yet, the oldest first."""
        with self.database.read() as connection:
            return [one for one in pins.kept(connection, topic_id) if one.retired_at is not None]

    def collect_compacted(self, topic_id: int, ledger_id: int, grace_ms: int) -> bool:
        """Delete the row of a compacted ledger that retired at least `grace_ms` ago and that no live pin holds (A3).

        False if it must stay, or is gone already. Afterwards its objects may be deleted that nothing else refers to.
        """
        with self.database.write() as connection:
            return pins.collect(connection, topic_id, ledger_id, grace_ms, self._clock.now_ms())

    def referenced(self, topic_id: int) -> GcSnapshot:
        """What refers to objects of the topic, and who may still write some, all of one moment. List objects first."""
        with self.database.snapshot() as connection:
            return snapshots.of_references(connection, topic_id, self._clock.now_ms())

    # Compaction runs

    def claim_run(
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
            return runs.by_attempt(connection, claimed.attempt_id) is not None

        def claim(connection: Connection) -> RunRecord:
            now, requested = self._clock.now_ms(), leader is not None
            claimed = runs.claim(connection, topic_id, holder, policies, heartbeat_ttl_ms, now, requested=requested)
            if leader is not None:
                services.check_leader(connection, leader)
            return claimed

        return self.database.write_once(claim, happened, f"whether {holder} claimed a compaction run")

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

    def heartbeat_runs(
        self, beating: Sequence[RunRecord], progress: Mapping[int, Mapping[str, object]] = MappingProxyType({})
    ) -> list[int]:
        """A heartbeat of many runs at once; `progress`, by run id, goes into their statistics, its `phase` into phase.

        The ids of the runs that must stop: ended, of a past epoch, or given up. No error; the others were beaten.
        """
        with self.database.write() as connection:
            return heartbeats.beat(connection, beating, progress, self._clock.now_ms())

    def cancel_run(self, run_id: int, reason: str) -> RunRecord:
        """End a run as CANCELLED; from then on it can never publish, and its worker finds itself fenced.

        Raises NotFound, Conflict for a run that has ended.
        """
        with self.database.write() as connection:
            return runs.cancel(connection, run_id, reason, self._clock.now_ms())

    def publish(
        self,
        run: RunRecord,
        expected_generation: int,
        compacted: CompactedLedgerRecord,
        statistics: Mapping[str, object],
        retry: Retry | None = None,
    ) -> RunRecord:
        """The commit point (A1): let `compacted` serve, move the horizon, end the run.

        `retry`: the topic is to be tried again all the same.
        Raises Fenced if run, epoch or generation are not the topic's any more; nothing has changed then.
        """

        def happened(connection: Connection, _: RunRecord) -> bool:
            topics.locked(connection, run.topic_id)
            found = runs.get(connection, run.run_id)
            return found.state is RunState.SUCCESS and found.compacted_ledger_id == compacted.ledger_id

        failpoint(Failpoint.PUBLISH_BEFORE_TRANSACTION)
        published = self.database.write_once(
            lambda connection: publishing.publish(
                connection, run, expected_generation, compacted, statistics, retry, self._clock.now_ms()
            ),
            happened,
            f"whether run {run.run_id} published compacted ledger {compacted.ledger_id}",
        )
        failpoint(Failpoint.PUBLISH_AFTER_COMMIT)
        return published

    def finish_run(self, run: RunRecord, statistics: Mapping[str, object]) -> RunRecord:
        """End a run that had nothing to write: cursor and compacted ledger stay (P1). Raises Fenced."""

        def happened(connection: Connection, _: RunRecord) -> bool:
            topics.locked(connection, run.topic_id)
            found = runs.get(connection, run.run_id)
            return found.state is RunState.SUCCESS and found.compacted_ledger_id is None

        return self.database.write_once(
            lambda connection: runs.succeed_without_result(connection, run, statistics, self._clock.now_ms()),
            happened,
            f"whether run {run.run_id} has ended",
        )

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

    def has_had_compacted(self, topic_id: int, ledger_id: int) -> bool:
        """Whether the topic has, or once had, that compacted ledger."""
        with self.database.read() as connection:
            return runs.has_written(connection, topic_id, ledger_id)

    def all_runs(
        self, limit: int, *, topic_id: int | None = None, state: RunState | None = None
    ) -> list[tuple[TopicName, RunRecord]]:
        """The newest runs of all topics, or of one, or in one state, with their topics' names; the newest first."""
        with self.database.read() as connection:
            return runs.of_all_topics(connection, limit, topic_id, state)
