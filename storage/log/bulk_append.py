"""Bulk append: messages, or whole ledgers of Pulsar, become sealed ledgers at once, and become visible together.

The active segment is rolled first, so ids and offsets continue in order. All or nothing: objects are written while the
topic's writer lease is held; one SQL transaction, fenced by the lease's token, makes them exist. A failure, or a crash,
leaves objects that no row names.

Memory: at most `workers` + 1 ledgers: `workers` that are sealed and one that is cut. Each has at most `ledger_bytes`
logical bytes and `rows.LEDGER_ROWS` rows, and takes about four times its logical size and 250 bytes a row. A ledger of
Pulsar is sealed while it is read.

A ledger of Pulsar keeps the ids of its entries and batches, and its ledger id if it and all ids above it are free in
this database: ids ascend in a topic, and one is used once over all topics. Otherwise it gets the next id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.decode import StoredEntry, unpack_in_blocks
from storage.environment import Environment
from storage.errors import InvalidRecord
from storage.failpoints import Failpoint, failpoint
from storage.heartbeat import Heartbeat
from storage.ledger import rows
from storage.ledger.hashing import KeyHasher
from storage.ledger.sealing import Sealer, placed_ledger
from storage.log.lease import OnHeld, release_ignoring_errors, writer_lease
from storage.log.ledger_id_recovery import reserve_lost_ids
from storage.log.orphan_segments import first_offsets_with_data
from storage.log.segment import ahead_of_time_error
from storage.log.segment_lifecycle import roll_open_segment
from storage.metadata.records import AttemptKind, Lease, TopicRecord
from storage.model import LedgerRecord
from storage.store_identity import StoreIdentity

DEFAULT_LEDGER_BYTES = 128 << 20
DEFAULT_WAIT_MS = 30_000
HEARTBEAT_SECONDS = 5.0

INPUT_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary()),
        pa.field("publish_time", pa.int64()),
        pa.field("event_time", pa.int64()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""The input of a bulk append; columns as in `rows.SCHEMA`. A null publish time stands for the time of the append."""

SOURCE_SCHEMA = pa.schema([*INPUT_SCHEMA, rows.SCHEMA.field("producer"), rows.SCHEMA.field("sequence_id")])
"""The same of messages that another log has: their producer, and their position there as their sequence id."""


@dataclass(frozen=True)
class SourceLedger:
    """A ledger of another log that is appended as it is: its id there, and its entries, some at a time, with ids and
    offsets from 0."""

    ledger_id: int
    entries: Iterable[list[StoredEntry]]


@dataclass(frozen=True)
class BulkAppendResult:
    """The ledgers that one append has added to a topic."""

    ledgers: tuple[LedgerRecord, ...]

    @property
    def messages(self) -> int:
        return sum(ledger.messages for ledger in self.ledgers)

    @property
    def logical_bytes(self) -> int:
        return sum(ledger.logical_bytes for ledger in self.ledgers)

    @property
    def stored_bytes(self) -> int:
        return sum(ledger.rows.size + ledger.index.length for ledger in self.ledgers)


@dataclass(frozen=True)
class BulkAppend:
    """A writer that appends sealed ledgers to one topic; each call of an `append…` method is one transaction.

    `owner`: the name of the lease's owner, unique to one piece of work. `ledger_bytes`: the logical bytes after which a
    new ledger begins. `workers`: the ledgers that are sealed at the same time. `wait_ms`: the time to wait for the
    lease. `on_held`: called once with the LeaseHeld that names the present owner, if the lease must be waited for
    (lease.py).
    """

    environment: Environment
    topic: TopicRecord
    hasher: KeyHasher
    owner: str
    ledger_bytes: int = DEFAULT_LEDGER_BYTES
    workers: int = 2
    wait_ms: int = DEFAULT_WAIT_MS
    on_held: OnHeld = lambda _: None

    def append(self, tables: Iterable[pa.Table]) -> BulkAppendResult:
        """Take the topic's lease, append every message of `tables` as `append_under` does, and release the lease."""
        with self.lease() as lease:
            return self.append_under(lease, tables)

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Hold the topic's writer lease inside the context, for any number of `append_under` calls.

        Raises LeaseHeld, TopicNotFound, any store error, Misconfigured for a store of another database.
        """
        StoreIdentity(self.environment.metadata, self.environment.store).check_or_bind()
        with writer_lease(self.environment, self.topic.id, self.owner, self.wait_ms, on_held=self.on_held) as lease:
            failpoint(Failpoint.IMPORT_LEASE_TAKEN)
            yield lease
        failpoint(Failpoint.IMPORT_LEASE_RELEASED)

    def append_under(self, lease: Lease, tables: Iterable[pa.Table]) -> BulkAppendResult:
        """Append every message of `tables`, in order, as unbatched entries of new ledgers.

        `tables`: of INPUT_SCHEMA or SOURCE_SCHEMA. `lease`: from `lease`. Without messages, nothing is committed.
        Raises Fenced, InvalidRecord, TopicNotFound, any store error, and any error of `tables`; then nothing was
        appended.
        """
        return self._append(lease, lambda sealer, first_offset: self._seal_tables(sealer, first_offset, tables))

    def append_ledgers_under(self, lease: Lease, ledgers: Iterable[SourceLedger]) -> BulkAppendResult:
        """Append ledgers of another log as they are, in order; each becomes one ledger with the same entries. For the
        rest see `append_under`."""
        return self._append(lease, lambda sealer, first_offset: self._seal_ledgers(sealer, first_offset, ledgers))

    def append_sealed_under(self, lease: Lease, sealed: Sequence[LedgerRecord]) -> BulkAppendResult:
        """Append ledgers whose objects other processes have written (`Sealer.seal_unplaced`), in order; they get their
        ids and offsets now. For the rest see `append_under`."""
        self._roll_open_segment(lease)
        metadata = self.environment.metadata
        now, next_offset = self.environment.clock.now_ms(), metadata.topics.get(self.topic.name).next_offset
        ledgers = []
        for ledger_id, ledger in enumerate(sealed, metadata.ledgers.allocate_ids(len(sealed))):
            ledgers.append(placed_ledger(ledger, ledger_id, next_offset, now))
            next_offset += ledger.messages
        failpoint(Failpoint.IMPORT_BEFORE_COMMIT)
        metadata.ledgers.append(lease, ledgers)
        failpoint(Failpoint.IMPORT_AFTER_COMMIT)
        return BulkAppendResult(tuple(ledgers))

    def _append(self, lease: Lease, seal: Callable[[Sealer, int], Iterator[LedgerRecord]]) -> BulkAppendResult:
        """Append the ledgers that `seal` writes, in one transaction. `seal`: gets the sealer, and the offset of the
        first message."""
        self._roll_open_segment(lease)
        attempt = self.environment.metadata.attempts.begin(self.topic.id, AttemptKind.IMPORT, self.owner)
        failpoint(Failpoint.IMPORT_ATTEMPT_BEGUN)
        with release_ignoring_errors(lambda: self.environment.metadata.attempts.finish(attempt.attempt_id)):
            sealer = Sealer(
                self.environment.store, self.topic.uid, self.topic.name.partition, self.hasher, attempt.attempt_id
            )
            with Heartbeat(lambda: self.environment.metadata.attempts.heartbeat(attempt), HEARTBEAT_SECONDS):
                # No other process moves it while this one holds the lease: read after taking it, not before.
                next_offset = self.environment.metadata.topics.get(self.topic.name).next_offset
                ledgers = tuple(seal(sealer, next_offset))
            if ledgers:
                failpoint(Failpoint.IMPORT_BEFORE_COMMIT)
                self.environment.metadata.ledgers.append(lease, ledgers)
                failpoint(Failpoint.IMPORT_AFTER_COMMIT)
        failpoint(Failpoint.IMPORT_ATTEMPT_FINISHED)
        return BulkAppendResult(ledgers)

    def _roll_open_segment(self, lease: Lease) -> None:
        """Close the open segment, if there is one, and those that the database has lost: imported messages follow
        them."""
        metadata, log = self.environment.metadata, self.environment.log
        reserve_lost_ids(metadata, log)
        if metadata.segments.find_open(self.topic.id) is not None or first_offsets_with_data(
            log.topic_folder(self.topic.uid)
        ):
            roll_open_segment(self.environment, self.topic, lease)

    def _seal_tables(self, sealer: Sealer, next_offset: int, tables: Iterable[pa.Table]) -> Iterator[LedgerRecord]:
        now = self.environment.clock.now_ms()
        max_ahead_ms = self._max_ahead_ms()
        running: deque[Future[LedgerRecord]] = deque()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sealer") as pool:
            try:
                for content in cut_into_ledgers(tables, self.ledger_bytes):
                    check_publish_times(content, now, max_ahead_ms)
                    if len(running) >= self.workers:
                        yield running.popleft().result()
                    ledger_id = self.environment.metadata.ledgers.allocate_ids(1)
                    table = to_ledger_rows(content, ledger_id, next_offset, now)
                    next_offset += len(table)
                    running.append(pool.submit(sealer.seal, [table], ledger_id, now))
                while running:
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def _seal_ledgers(
        self, sealer: Sealer, next_offset: int, ledgers: Iterable[SourceLedger]
    ) -> Iterator[LedgerRecord]:
        now = self.environment.clock.now_ms()
        check = partial(check_publish_times, now=now, max_ahead_ms=self._max_ahead_ms())
        for source in ledgers:
            ids = self.environment.metadata.ledgers
            ledger_id = source.ledger_id if ids.claim_id(source.ledger_id) else ids.allocate_ids(1)
            record = sealer.seal(_source_rows(source, ledger_id, next_offset, check), ledger_id, now)
            next_offset = record.last_offset + 1
            yield record

    def _max_ahead_ms(self) -> int | None:
        return self.environment.metadata.policies.effective(self.topic).message_timestamp_after_max_ms


def _source_rows(
    source: SourceLedger, ledger_id: int, first_offset: int, check: Callable[[pa.Table], None]
) -> Iterator[pa.Table]:
    """Yield the rows (rows.SCHEMA) of a ledger of another log, with a new ledger id, and offsets from `first_offset`
    on. `check`: called with each table, may raise."""
    field = rows.SCHEMA.field("offset")
    for entries in source.entries:
        for table in unpack_in_blocks(entries, ledger_id) if entries else ():
            check(table)
            yield table.set_column(0, field, pc.add(table.column("offset"), first_offset))


def check_publish_times(content: pa.Table, now: int, max_ahead_ms: int | None) -> None:
    """Raise InvalidRecord for a message whose publish time is more than `max_ahead_ms` after `now` (ms); None: any time
    is allowed."""
    newest = pc.max(content.column("publish_time")).as_py()
    if max_ahead_ms is not None and newest is not None and newest > now + max_ahead_ms:
        raise ahead_of_time_error(newest, now, max_ahead_ms)


def cut_into_ledgers(tables: Iterable[pa.Table], ledger_bytes: int) -> Iterator[pa.Table]:
    """Cut a stream of tables (INPUT_SCHEMA or SOURCE_SCHEMA) into ledgers of at most `ledger_bytes` logical bytes.

    A ledger has at least one message, and at most `rows.LEDGER_ROWS`. Raises InvalidRecord for a message that is too
    large.
    """
    cutter = rows.TableCutter(rows.LEDGER_ROWS, ledger_bytes)
    counted = 0
    for table in tables:
        sizes = rows.logical_sizes(table)
        check_message_sizes(sizes, counted)
        counted += len(table)
        yield from cutter.add(table, sizes)
    yield from cutter.remaining()


def check_message_sizes(sizes: npt.NDArray[np.int64], before: int) -> None:
    """Raise InvalidRecord for a message that is too large. `sizes`: logical bytes; `before`: the number of messages
    before these, for the error."""
    if len(sizes) and sizes.max() > rows.MAX_MESSAGE_BYTES:
        raise InvalidRecord(
            f"message {before + int(sizes.argmax()) + 1} has {int(sizes.max())} bytes",
            f"a message holds at most {rows.MAX_MESSAGE_BYTES} bytes; nothing was kept",
        )


def to_ledger_rows(content: pa.Table, ledger_id: int, first_offset: int, now: int, first_entry: int = 0) -> pa.Table:
    """Return `content` (INPUT_SCHEMA, SOURCE_SCHEMA) as `rows.SCHEMA`, with ids, offsets and defaults of a bulk import.

    Entry ids count from `first_entry`, offsets from `first_offset`. `now` (ms): the publish time of messages without
    one.
    """
    count = len(content)
    values = {
        "offset": pa.array(np.arange(first_offset, first_offset + count)),
        "entry_id": pa.array(np.arange(first_entry, first_entry + count)),
        "ledger_id": rows.constant_column(ledger_id, "ledger_id", count),
        "publish_time": content.column("publish_time").fill_null(now),
        **{name: content.column(name) for name in content.column_names if name != "publish_time"},
    }
    defaults = {"batch_index": -1, "batch_size": 0, "key_base64": False, "codec": 0, "slot": 0}
    columns = [
        values[name] if name in values else rows.constant_column(defaults.get(name), name, count)
        for name in rows.SCHEMA.names
    ]
    return pa.table(columns, schema=rows.SCHEMA)
