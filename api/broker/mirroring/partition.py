"""One partition on its way: batches of Kafka become entries, in order, and are appended by the service's event loop.

Decoding and encoding run in the mirrors' thread, a block of records at a time (records.BLOCK_BYTES). While a block is
appended and flushed, the next one is decoded; never more than one waits.

A fetch begins with the batch that has its first offset, so earlier records are left out. Control batches and aborted
transactions are left out by the list that the broker sends. An offset without a record (a transaction's end, a cleaned
record) is passed over. So the log here has each record once, and its position is that of its last record.

Raises MirrorStopped for what only a user can decide; the errors of target.py. Must not know: connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.broker.mirroring.protocol import FetchedPartition
from api.broker.mirroring.target import AppendedEntries, PartitionTarget
from api.formats.inputs import EmptyValues
from storage.clock import Clock
from storage.errors import Conflict, InvalidRecord
from storage.kafka.record_batch import RecordBatch, read_batches
from storage.kafka.record_entries import RecordEntry, to_entries
from storage.kafka.records import decode_batches
from storage.kafka.transactions import CommittedBatches
from storage.metadata.mirrors import MirrorProgress


class MirrorStopped(Conflict):
    """A mirror cannot go on unless a user decides something. `gap`: the partition, and the offset before which records
    are missing at the source; None: none are missing."""

    def __init__(self, message: str, remedy: str, gap: tuple[int, int] | None = None) -> None:
        super().__init__(message, remedy, is_public=True)
        self.gap = gap


@dataclass
class MirrorTotals:
    """Counts of a topic since its service began: mirrored records, bytes of their entries, and failed tries."""

    records: int = 0
    bytes: int = 0
    errors: int = 0


class PartitionMirror:
    """A partition that this service mirrors. `label`: topic and partition in Kafka; `producer`: its name here."""

    def __init__(
        self,
        label: str,
        producer: str,
        target: PartitionTarget,
        next_offset: int,
        empty_values: EmptyValues,
        service_loop: asyncio.AbstractEventLoop,
        clock: Clock,
        totals: MirrorTotals,
    ) -> None:
        self.label = label
        self.target = target
        self.next_offset = next_offset
        """The offset after the last record that is appended here."""
        self.fetch_offset = next_offset
        """The offset after the last batch that was fetched."""
        self.end_offset: int | None = None
        """The offset after the source's last record; None: not known yet."""
        self.stable_offset: int | None = None
        """The offset of the first record that no reader may get yet, because its transaction is open."""
        self._records = 0
        self._totals = totals
        self._producer = producer
        self._empty_values = empty_values
        self._service_loop = service_loop
        self._clock = clock
        self._counted = 0
        self._counted_at = clock.now_ms()

    def read(self, fetched: FetchedPartition) -> Sequence[RecordBatch]:
        """Return the whole batches of an answer, and move `fetch_offset` after them. Raises MirrorStopped."""
        self.end_offset, self.stable_offset = fetched.high_watermark, fetched.last_stable_offset
        try:
            batches = list(read_batches(fetched.records))
        except InvalidRecord as error:
            raise MirrorStopped(
                f"{self.label}: Kafka sends a damaged batch from offset {self.fetch_offset} on: {error.message}",
                "check the broker that leads the partition; then resume the mirror",
            ) from error
        if batches:
            self.fetch_offset = batches[-1].last_offset + 1
        return batches

    async def append(self, batches: Sequence[RecordBatch], fetched: FetchedPartition) -> None:
        """Append the records of batches that `read` returned, and wait until they are durable."""
        if not batches:
            return
        committed = CommittedBatches(fetched.aborted)
        waiting: asyncio.Future[None] | None = None
        try:
            for records in decode_batches(batch for batch in batches if committed.accepts(batch)):
                new = self._new(records)
                if not len(new):
                    continue
                self._check_empty_values(new)
                entries = list(to_entries(new, self._producer, self._clock.now_ms()))
                if waiting is not None:
                    await waiting
                waiting = self._submit(entries)
                self._records += len(new)
                self._totals.records += len(new)
                self._totals.bytes += sum(len(entry.data) for entry in entries)
                await asyncio.sleep(0)  # other partitions, and the connection, have a turn
        except InvalidRecord as error:
            raise MirrorStopped(f"{self.label}: {error.message}", error.remedy) from error
        finally:
            if waiting is not None:
                await self._ended(waiting)
        self.next_offset = batches[-1].last_offset + 1

    def progress(self) -> MirrorProgress:
        """Return the progress, with the rate since the last call."""
        now = self._clock.now_ms()
        rate = (self._records - self._counted) * 1000 // max(1, now - self._counted_at)
        self._counted, self._counted_at = self._records, now
        return MirrorProgress(self.next_offset, self.next_offset + (self.lag or 0), rate)

    @property
    def lag(self) -> int | None:
        """The offsets that the source is ahead; None: not known yet."""
        return None if self.end_offset is None else max(0, self.end_offset - self.next_offset)

    @property
    def is_at_end(self) -> bool:
        """True if everything is here that the source gave to readers when it answered last."""
        return self.stable_offset is not None and self.next_offset >= self.stable_offset

    def _new(self, records: pa.Table) -> pa.Table:
        if records.column("offset")[0].as_py() >= self.next_offset:
            return records
        return records.filter(pc.greater_equal(records.column("offset"), self.next_offset))

    def _check_empty_values(self, records: pa.Table) -> None:
        """Raise MirrorStopped for an empty value that must not become a deletion."""
        if self._empty_values is EmptyValues.DELETE:
            return
        offset = first_empty_value(records)
        if offset is not None:
            raise MirrorStopped(
                f"{self.label}: the record at offset {offset} has a key and an empty value: a value for Kafka, a "
                "deletion here",
                "resume the mirror with empty values as deletions (--empty-values delete) if they may delete their "
                "keys; nothing from this record on is here yet",
            )

    def _submit(self, entries: Sequence[RecordEntry]) -> asyncio.Future[None]:
        appended = AppendedEntries(len(entries))
        self._service_loop.call_soon_threadsafe(self.target.submit, entries, appended)
        return asyncio.wrap_future(appended.future)

    async def _ended(self, waiting: asyncio.Future[None]) -> None:
        """Wait for the last entries, or raise their error."""
        try:
            await waiting
        except InvalidRecord as error:
            raise MirrorStopped(f"{self.label}: {error.message}", error.remedy) from error


def first_empty_value(records: pa.Table) -> int | None:
    """Return the offset of the first record that has a key and an empty value; None: there is none."""
    values, keys = records.column("value"), records.column("key")
    empty = pc.and_(pc.fill_null(pc.equal(pc.binary_length(values), 0), False), pc.is_valid(keys)).to_numpy()
    return records.column("offset")[int(np.argmax(empty))].as_py() if empty.any() else None
