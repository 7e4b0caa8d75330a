"""A topic: append messages, read raw or compacted, find the last message.

Joins metadata, store, log directory and clock for one topic. Writers need the writer lease: they write to the active
segment (`storage/log/topic_log.py`), or sealed ledgers (`storage/log/bulk_append.py`). Reads are raw
(`storage/reading/raw_reader.py`), compacted under a pin (`storage/reading/compacted_reader.py`), page by page as
messages arrive (`storage/reading/page_reader.py`), or of one key through the key indexes
(`storage/reading/key_lookup.py`). The source cluster of a replicated topic reads the compacted ledger by its own
positions (`storage/reading/source_reader.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from storage.entries.chunk_assembler import assemble_messages
from storage.entries.sequence_ids import SEQUENCE_COLUMNS, ScannedSequences, scan_sequences
from storage.environment import Environment
from storage.errors import ObjectMissing, StateMayBeStale
from storage.ledger import rows
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.seek import seek_position_of
from storage.log.bulk_append import DEFAULT_LEDGER_BYTES, DEFAULT_WAIT_MS, BulkAppend
from storage.log.lease import OnHeld
from storage.log.lease_renewer import LeaseRenewer
from storage.log.log_manager import LogManager
from storage.log.segment_tables import SegmentEntryReader, SegmentTableReader
from storage.log.topic_log import TopicLog
from storage.metadata.records import TopicRecord, TopicSnapshot
from storage.model import EARLIEST, LATEST, LogPosition, Message, MessageId, SourcePosition, TopicName
from storage.owner import new_owner_name
from storage.positions import CompactedProgress, ContinuationToken, OffsetReset, StartOffset, StartPosition, StartTime
from storage.reading.compacted_reader import CompactedReader
from storage.reading.entry_reader import EntryReader
from storage.reading.key_lookup import point_read
from storage.reading.last_message import LastMessageFinder
from storage.reading.newest_offsets import NewestOffset, newest_offsets
from storage.reading.newest_scan import NewestScan, plan_newest_scan
from storage.reading.page_reader import PageBudget, PageReader, ReadLimits, RowsBefore, limit_tables, rows_before
from storage.reading.raw_reader import RawReader
from storage.reading.scan import ScanPiece, ScanRange, compacted_ledger_of_scan, plan_scan
from storage.reading.snapshot_reader import RetentionFilter, SnapshotReader, read_snapshot, retention_filter
from storage.reading.source_reader import SourceReader, first_entry_position, open_source_reader, source_position_before

Value = TypeVar("Value")


class Topic:
    """A topic, with its writers and readers. Cheap to create; it holds no connection.

    `hasher` None: the hash of the topic's seed.
    """

    def __init__(self, environment: Environment, record: TopicRecord, hasher: KeyHasher | None = None) -> None:
        self._environment = environment
        self.record = record
        self._hasher = hasher or Xxh3KeyHasher(record.hash_seed)
        self._unsealed = SegmentTableReader(environment.log)

    @property
    def name(self) -> TopicName:
        """The topic's full name."""
        return self.record.name

    def bulk_append(
        self,
        *,
        ledger_bytes: int = DEFAULT_LEDGER_BYTES,
        workers: int = 2,
        wait_ms: int = DEFAULT_WAIT_MS,
        on_held: OnHeld = lambda _: None,
    ) -> BulkAppend:
        """Return a bulk writer of sealed ledgers for the topic; each of its `append` calls is all or nothing.

        `on_held`: called once with the error that names the lease's owner, if the lease must be waited for. For the
        others see BulkAppend.
        """
        return BulkAppend(
            self._environment, self.record, self._hasher, new_owner_name(), ledger_bytes, workers, wait_ms, on_held
        )

    def append_log(
        self,
        wait_ms: int = DEFAULT_WAIT_MS,
        on_rolled: Callable[[], object] = lambda: None,
        renewer: LeaseRenewer | None = None,
        on_held: OnHeld = lambda _: None,
    ) -> TopicLog:
        """Return the writer of the active segment: a context manager, inside which this process may append.

        `wait_ms`: the time to wait for another writer. `on_rolled`: called when a segment waits to be sealed.
        `renewer`: of a process that has many logs open at once. `on_held`: as for `bulk_append`.
        """
        return TopicLog(self._environment, self.record, new_owner_name(), wait_ms, on_rolled, renewer, on_held)

    def log_manager(self) -> LogManager:
        """Return a log manager, which rolls and seals the segments of this and other topics."""
        return LogManager(self._environment)

    def snapshot(self) -> TopicSnapshot:
        """Return the topic as it is now, read in one transaction. Raises TopicNotFound."""
        return self._environment.metadata.topic_snapshot(self.record.id)

    def read(
        self,
        start: StartPosition = EARLIEST,
        read_compacted: bool = False,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        reset: OffsetReset = OffsetReset.EARLIEST,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield messages from `start` to the topic's present end, as record batches of `storage.ledger.rows.SCHEMA`.

        `LATEST` yields none: only messages appended after this call would count. `max_messages`, `max_bytes`: the most
        messages, where a chunk counts as one, and logical bytes (R10); None: no limit. `reset`: the behaviour of a raw
        read whose start was trimmed (L3). With `read_compacted` the read begins, and pins its generation, when the
        first batch is requested; the pin is released when the compacted part ends or the iterator is closed. Raises
        DataLoss (R8), StateMayBeStale (R7), OffsetOutOfRange, SegmentNotLocal.
        """
        budget = PageBudget(ReadLimits(max_messages, max_bytes))
        if read_compacted:
            return limit_tables(self._compacted_reader(ContinuationToken(start), reset).tables(), budget)
        return limit_tables(self._raw_reader(start, reset).tables(self.snapshot()), budget)

    def read_before(
        self, end: int, read_compacted: bool = False, max_messages: int | None = None, max_bytes: int | None = None
    ) -> RowsBefore:
        """Return the last messages before the offset `end`, in ascending order.

        The limits are those of `read`. No more is read than needed.
        Raises DataLoss (R8), SegmentNotLocal.
        """
        return self.read_snapshot(
            lambda reader: rows_before(reader, end, read_compacted, ReadLimits(max_messages, max_bytes))
        )

    def reader(
        self,
        start: StartPosition | ContinuationToken = EARLIEST,
        read_compacted: bool = False,
        reset: OffsetReset = OffsetReset.EARLIEST,
    ) -> PageReader:
        """Return a reader that continues page by page as messages arrive.

        `start`: a start, or the token after a page, also of another process. `reset`: as for `read`.
        """
        state = start if isinstance(start, ContinuationToken) else ContinuationToken(start)
        reader = self._compacted_reader(state, reset) if read_compacted else self._raw_reader(state.start, reset)
        return PageReader(self._environment.clock, reader, state, self.name.partition)

    def entry_reader(
        self, start: StartPosition = EARLIEST, read_compacted: bool = False, resumes: bool = False
    ) -> EntryReader:
        """Return a reader of entries, as Pulsar's consumers receive them, that continues as they arrive.

        `resumes`: the reader of a compacted read may have received messages before `start` already (R7). If a
        compaction has dropped deletions after them, the read is raw if raw still has them; otherwise this raises
        StateMayBeStale.
        """
        entries = SegmentEntryReader(self._environment.log)
        state = self._resume_read(start) if read_compacted and resumes else ContinuationToken(start)

        def open_source(state: ContinuationToken) -> RawReader | CompactedReader:
            if read_compacted:
                return self._compacted_reader(state, OffsetReset.EARLIEST, entries)
            return self._raw_reader(state.start, OffsetReset.EARLIEST, entries)

        return EntryReader(open_source, state, entries)

    def reader_by_source_position(self, generation: int | None = None) -> SourceReader | None:
        """Return a reader of a compacted ledger by the positions of the source cluster.

        None: the topic was never compacted. For `generation` and the errors see `open_source_reader`.
        """
        environment, unsealed = self._environment, self._unsealed

        def read(snapshot: TopicSnapshot) -> SnapshotReader:
            return SnapshotReader(environment.store, snapshot, unsealed, self._compacted_retention_filter(snapshot))

        return open_source_reader(environment, self.record.id, self._hasher, read, generation)

    def first_source_entry(self) -> SourcePosition | None:
        """Return the position at the source of the first entry that was ever stored; see `first_entry`."""
        return self.read_snapshot(first_entry_position)

    def source_position_before(self, end: int) -> SourcePosition | None:
        """Return the position at the source of the last raw message before an offset; see `source_position_before`."""
        return self.read_snapshot(lambda reader: source_position_before(reader, end))

    def _resume_read(self, start: StartPosition) -> ContinuationToken:
        """Return the token of a compacted read that has delivered the messages before `start`.

        The token names what the reader knows, since another compaction may publish before the first read. Raises
        StateMayBeStale.
        """
        if isinstance(start, StartTime) or start in (EARLIEST, LATEST):
            return ContinuationToken(start)
        return self.read_snapshot(lambda reader: self._resume_read_in(reader, start))

    def _resume_read_in(self, reader: SnapshotReader, start: MessageId | StartOffset) -> ContinuationToken:
        first = start.offset if isinstance(start, StartOffset) else self._offset_of(start, reader)
        compacted = reader.snapshot.compacted
        if first is None and (compacted is None or compacted.horizon.message_id <= start):
            if reader.is_start_after_end(start):
                return ContinuationToken(start)
            first = reader.first_offset if compacted is None else compacted.horizon.offset + 1
        if compacted is None:
            assert first is not None
            return _resumed_token(first, CompactedProgress())
        try:
            manifest = reader.manifest(compacted)
            if first is None:  # the next message that the compacted ledger still has
                table = next(reader.compacted(seek_position_of(start), manifest), None)
                first = compacted.horizon.offset + 1 if table is None else int(table.column("offset")[0].as_py())
        except ObjectMissing:
            if first is None:  # the read could not discover what it misses
                raise
            return _resumed_token(first, CompactedProgress())
        if min(manifest.dropped_to, compacted.horizon.offset) < first:
            by_event = bool(manifest.policies.get("event_time_order"))
            return _resumed_token(first, CompactedProgress(compacted.ledger_id, by_event))
        if first < reader.first_offset:
            raise StateMayBeStale(
                f"raw messages of {self.name} from {start} on are trimmed, and generation {manifest.generation} lacks "
                f"deletions, or values that expired, up to offset {manifest.dropped_to}",
                "read again from earliest, into an empty state",
            )
        return _resumed_token(first, CompactedProgress(is_raw=True))

    def _offset_of(self, start: MessageId, reader: SnapshotReader) -> int | None:
        """Return the offset of the first message at or after an id; None: it may have been trimmed, or does not exist.

        The first message that raw delivers is no proof that nothing before it was trimmed: raw may begin with rows that
        no reader gets. So the id is compared with raw's first row.
        """
        first_offset = reader.first_offset
        is_in_raw = not first_offset or not reader.is_before_first(seek_position_of(start))
        first = self.first_at(start, read_compacted=not is_in_raw)
        if first is None:
            return None if not is_in_raw or reader.is_start_after_end(start) else reader.end
        is_known = is_in_raw and self.snapshot_reader().first_offset == first_offset
        is_exact = (first.message_id.ledger_id, first.message_id.entry_id) == (start.ledger_id, start.entry_id)
        return first.offset if is_known or is_exact else None

    def producer_sequences(self, first_offset: int) -> Iterator[ScannedSequences]:
        """Yield the sequence ids of producers of the raw entries from `first_offset` on, up to the topic's present end.

        Raises DataLoss, SegmentNotLocal.
        """
        unsealed, start = SegmentEntryReader(self._environment.log), StartOffset(first_offset)
        source = RawReader(self._environment.store, unsealed, self.snapshot, start, columns=SEQUENCE_COLUMNS)
        return scan_sequences(source.tables(), unsealed.data)

    def _raw_reader(
        self, start: StartPosition, reset: OffsetReset, unsealed: SegmentTableReader | None = None
    ) -> RawReader:
        return RawReader(self._environment.store, unsealed or self._unsealed, self.snapshot, start, reset)

    def _compacted_reader(
        self, state: ContinuationToken, reset: OffsetReset, unsealed: SegmentTableReader | None = None
    ) -> CompactedReader:
        return CompactedReader(
            self._environment,
            self.record.id,
            new_owner_name(),
            state,
            unsealed or self._unsealed,
            reset,
            self._compacted_retention_filter,
        )

    def _compacted_retention_filter(self, snapshot: TopicSnapshot) -> RetentionFilter | None:
        """Return the present filter of the compacted ledger's messages; None: there is no compacted ledger."""
        if snapshot.compacted is None:
            return None
        policies = self._environment.metadata.policies.effective(snapshot.topic)
        return retention_filter(policies, snapshot.topic.start_offset, self._environment.clock.now_ms())

    def snapshot_reader(self) -> SnapshotReader:
        """Return a reader of the topic as it is now, raw and compacted. It does not follow later changes."""
        snapshot = self.snapshot()
        return SnapshotReader(
            self._environment.store, snapshot, self._unsealed, self._compacted_retention_filter(snapshot)
        )

    def scan(
        self,
        scan_range: ScanRange,
        *,
        read_compacted: bool = False,
        resumes: bool = False,
        known_ledger_id: int | None = None,
    ) -> list[ScanPiece]:
        """Plan a scan: return the pieces of the topic's messages in a range, for readers that work at the same time.

        For the arguments and errors see `storage.reading.scan.plan_scan`.
        """
        return self.read_snapshot(
            lambda reader: plan_scan(
                self._environment.store,
                reader,
                self._hasher,
                scan_range,
                read_compacted=read_compacted,
                resumes=resumes,
                known_ledger_id=known_ledger_id,
            )
        )

    def scan_newest(self) -> NewestScan:
        """Return the pieces of the newest value of each key, in one snapshot; see `plan_newest_scan`."""
        store, hasher, now = self._environment.store, self._hasher, self._environment.clock.now_ms()
        return self.read_snapshot(lambda reader: plan_newest_scan(store, reader, hasher, now))

    def tables(self, piece: ScanPiece, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the messages of a piece of a scan as tables of these columns; see `ScanPiece.tables`."""
        return piece.tables(self._environment.store, self._unsealed, columns)

    def compacted_ledger_of_scan(self, first_offset: int, *, resumes: bool, known_ledger_id: int | None) -> int | None:
        """Return the id of the compacted ledger from which `scan` reads; None: it reads raw alone."""
        return self.read_snapshot(
            lambda reader: compacted_ledger_of_scan(
                reader, first_offset, resumes=resumes, known_ledger_id=known_ledger_id
            )
        )

    def read_snapshot(self, read: Callable[[SnapshotReader], Value]) -> Value:
        """Call `read` with a reader of the topic as it is now, and return the result.

        If an object is lost, and the topic has changed since the snapshot, read again: the object was sealed, trimmed
        or collected.
        """
        store, retention = self._environment.store, self._compacted_retention_filter
        return read_snapshot(store, self.snapshot, self._unsealed, retention, read)

    def newest_message(
        self, key: bytes, *, sealed_only: bool = False, should_stop: Callable[[], bool] = lambda: False
    ) -> Message | None:
        """Return the newest message of one key, compacted part and tail together, which may be a tombstone (T4).

        None: the topic has no message of the key, or compaction has removed it. A value that has outlived its time to
        live but is not removed yet is returned. `sealed_only`: leave out messages that are not sealed. `should_stop`:
        called before each read; once it returns True the search ends. Raises DataLoss (R8); SegmentNotLocal, unless
        `sealed_only`; SearchStopped, if the search ended before the message is known.
        """
        take_snapshot = self._sealed_snapshot if sealed_only else self.snapshot
        now, retention = self._environment.clock.now_ms(), self._compacted_retention_filter
        store = self._environment.store
        return point_read(store, take_snapshot, self._hasher, key, now, self._unsealed, retention, should_stop)

    def newest_offsets(
        self, keys: Sequence[bytes], first_offset: int, should_stop: Callable[[], bool] = lambda: False
    ) -> Mapping[bytes, NewestOffset | None]:
        """Return the newest message, which may be a tombstone, of each key that a message from offset `first_offset` on
        has.

        None: compaction has removed the message and its index record. `should_stop`: called before each read; once it
        returns True the search ends, and keys whose newest message is not known then are missing. Raises DataLoss (R8),
        SegmentNotLocal.
        """
        now, distinct = self._environment.clock.now_ms(), list(dict.fromkeys(keys))
        return self.read_snapshot(
            lambda reader: newest_offsets(
                self._environment.store, reader, self._hasher, distinct, first_offset, now, should_stop
            )
        )

    def _sealed_snapshot(self) -> TopicSnapshot:
        return replace(self.snapshot(), segments=())

    def newest_value(self, key: bytes, *, sealed_only: bool = False) -> Message | None:
        """Return the newest message of one key if it is a value; None: the key has none, or it was deleted.

        For `sealed_only` and the errors see `newest_message`.
        """
        message = self.newest_message(key, sealed_only=sealed_only)
        return None if message is None or message.is_tombstone else message

    def messages(
        self,
        start: StartPosition = EARLIEST,
        read_compacted: bool = False,
        max_messages: int | None = None,
        reset: OffsetReset = OffsetReset.EARLIEST,
    ) -> Iterator[Message]:
        """Yield messages as `read` does, one at a time; a chunked message counts as one (P10)."""
        return self._first_messages(self.read(start, read_compacted, reset=reset), max_messages)

    def _first_messages(self, batches: Generator[pa.RecordBatch, None, None], limit: int | None) -> Iterator[Message]:
        with closing(batches):
            yield from islice(assemble_messages(batches, self.name.partition), limit)

    def last_message_id(self, read_compacted: bool = False) -> MessageId:
        """Return the id of the last message that a reader with this flag gets; EARLIEST (-1:-1) if there is none (R6).

        Raises DataLoss, SegmentNotLocal.
        """
        store, hasher = self._environment.store, self._hasher
        return self.read_snapshot(lambda reader: LastMessageFinder(store, reader, hasher).message_id(read_compacted))

    def first_at(self, start: StartPosition, read_compacted: bool = False) -> LogPosition | None:
        """Return the position of the first message or chunk at or after `start`; None: there is none yet.

        Raises as `read`.
        """
        for batch in self.read(start, read_compacted, max_messages=1):
            return LogPosition(batch.column("offset")[0].as_py(), rows.message_id(batch, 0, self.name.partition))
        return None

    def first_raw_at_or_after(self, offset: int) -> LogPosition | None:
        """Return the position of the first raw message at or after an offset; None: there is none yet.

        Raises as `read`.
        """
        return self.first_at(StartOffset(offset))


def _resumed_token(first: int, progress: CompactedProgress) -> ContinuationToken:
    """Return the token of a compacted read that has delivered all messages before the offset `first`."""
    return ContinuationToken(StartOffset(first), compacted=progress)
