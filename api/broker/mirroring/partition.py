"""The mirror of one partition: batches of Kafka become entries, in order, which the service's event loop appends.

Decoding and encoding run in the mirrors' thread, a block of records at a time (records.BLOCK_BYTES). While a block is
appended and flushed, the next one is decoded; never more than one waits.

A fetch begins with the batch that has its first offset, so earlier records are left out. Control batches and aborted
transactions are left out by the list that the broker sends. An offset without a record (a transaction's end, a cleaned
record) is passed over. So the log here has each record once, and its position is that of its last record.

Kafka gives an offset again after it has lost records, under a leader of a later epoch. The epochs of the last records
are stored before these records are appended, when there is a new one; so a later session, in any service, asks Kafka
with the epoch of the last record here.

Raises MirrorStopped for what only a user can decide; the errors of target.py. Must not know: connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from api.broker.mirroring.protocol import FetchedPartition, FetchPosition
from api.broker.mirroring.target import PartitionTarget, PendingEntries
from api.formats.inputs import EmptyValues
from storage.clock import Clock
from storage.errors import Conflict, InvalidRecord
from storage.kafka.located_records import LocatedRecords
from storage.kafka.record_batch import DAMAGED_REMEDY, RecordBatch, read_batches
from storage.kafka.record_entries import RecordEntry, to_entries
from storage.kafka.records import locate_batches
from storage.kafka.transactions import CommittedBatchFilter
from storage.metadata.mirrors import LeaderEpoch, MirrorProgress

_BATCH_BYTES = 128 << 20
"""The most bytes of a batch, uncompressed: it is in memory as a whole."""
_UNKNOWN_EPOCH = -1
_MOST_EPOCHS = 32
"""The epochs that are stored: more than the answers of which the records may be on their way have."""


_WAY_PAST = (
    "to go on without the record, delete the records up to it in Kafka (kafka-delete-records.sh), and resume the "
    "mirror with --accept-gaps (acceptGaps)"
)


class MirrorStopped(Conflict):
    """A mirror cannot continue without a decision of a user. `gap`: the partition, and the offset before which records
    are missing at the source; None: none are missing."""

    def __init__(self, message: str, remedy: str, gap: tuple[int, int] | None = None) -> None:
        super().__init__(message, remedy, is_public=True)
        self.gap = gap


@dataclass
class MirrorTotals:
    """Counts of a mirror since the start of the service: mirrored records, bytes of their entries, and errors."""

    records: int = 0
    bytes: int = 0
    errors: int = 0


class PartitionMirror:
    """The mirror of one partition: its position in Kafka, and the conversion of fetched batches to appended entries.

    `label`: topic and partition in Kafka, for messages. `producer`: the name of the producer of the entries.
    """

    def __init__(
        self,
        label: str,
        producer: str,
        target: PartitionTarget,
        start: int,
        epochs: Sequence[LeaderEpoch],
        store_epochs: Callable[[Sequence[LeaderEpoch]], Awaitable[None]],
        max_entry_bytes: int,
        empty_values: EmptyValues,
        service_loop: asyncio.AbstractEventLoop,
        clock: Clock,
        totals: MirrorTotals,
    ) -> None:
        """`start`: the first offset to fetch. `epochs`: the stored leader epochs, if the record before `start` was
        mirrored; `store_epochs` stores new ones."""
        self.label = label
        self.target = target
        self.next_offset = start
        """The offset after the last batch that is appended here."""
        self._epochs = [item for item in epochs if item.first_offset < start]
        self._store_epochs = store_epochs
        self.position = FetchPosition(start, self._epochs[-1].epoch if self._epochs else _UNKNOWN_EPOCH)
        """The position after the last batch that was fetched."""
        self.read_before = start
        """The offset before which all was read, and is durable, in earlier sessions: records and others."""
        self._has_epochs = True
        self._max_entry_bytes = max_entry_bytes
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

    def parse_and_advance(self, fetched: FetchedPartition) -> Sequence[RecordBatch]:
        """Return the complete batches of a fetch response, and move the fetch position after them.

        Raises MirrorStopped if a batch is damaged, or Kafka has lost records that were mirrored.
        """
        self.update_source_ends(fetched)
        if fetched.common_end is not None:
            raise MirrorStopped(
                f"{self.label}: the records up to offset {self.position.offset - 1} are here, and Kafka has others "
                f"from offset {fetched.common_end} on: it has lost records, as after an unclean election of a leader, "
                "and gives their offsets to others",
                "remove the mirror, and add it with another topic",
            )
        try:
            batches = list(read_batches(fetched.records))
        except InvalidRecord as error:
            raise MirrorStopped(
                f"{self.label}: Kafka sends a damaged batch from offset {self.position.offset} on: {error.message}",
                f"check the broker that leads the partition, and resume the mirror; {_WAY_PAST}",
            ) from error
        if batches:
            epoch = batches[-1].leader_epoch if self._has_epochs else _UNKNOWN_EPOCH
            self.position = FetchPosition(batches[-1].last_offset + 1, epoch)
        return batches

    def update_source_ends(self, fetched: FetchedPartition) -> None:
        """Keep the high watermark and the last stable offset of a fetch response as the ends of the source."""
        self.end_offset, self.stable_offset = fetched.high_watermark, fetched.last_stable_offset

    def skip_to(self, offset: int) -> None:
        """Set the next offset to fetch and to append to a later one. The caller knows that no record is missing."""
        self.position = FetchPosition(offset)
        self.next_offset = offset

    def stop_sending_epochs(self) -> bool:
        """Fetch without leader epochs from now on. Return whether the last fetch request had an epoch."""
        had, self._has_epochs = self.position.epoch != _UNKNOWN_EPOCH, False
        self.position = FetchPosition(self.position.offset)
        return had

    async def append(self, batches: Sequence[RecordBatch], fetched: FetchedPartition) -> None:
        """Append the committed records of fetched batches to the topic, and wait until they are durable.

        `batches`: as `parse_and_advance` returned them. Raises MirrorStopped, and the errors of the append.
        """
        if not batches:
            return
        await self._store_new_epochs(batches)
        committed = CommittedBatchFilter(fetched.aborted)
        waiting: asyncio.Future[None] | None = None
        try:
            accepted = (batch for batch in batches if committed.accepts(batch))
            for records in locate_batches(accepted, _BATCH_BYTES):
                new = records.since(self.next_offset)
                if not new.count:
                    continue
                self._check_empty_values(new)
                entries = list(to_entries(new, self._producer, self._clock.now_ms(), self._max_entry_bytes))
                if waiting is not None:
                    await waiting
                waiting = self._submit(entries)
                self._records += new.count
                self._totals.records += new.count
                self._totals.bytes += sum(len(entry.data) for entry in entries)
                await asyncio.sleep(0)  # other partitions, and the connection, have a turn
        except InvalidRecord as error:
            raise self._stopped_error(error) from error
        finally:
            if waiting is not None:
                await self._await_append(waiting)
        self.next_offset = batches[-1].last_offset + 1

    async def _store_new_epochs(self, batches: Sequence[RecordBatch]) -> None:
        """Store the leader epochs of batches in the database, if an epoch is new."""
        epochs = list(self._epochs)
        for batch in batches:
            epoch = batch.leader_epoch
            if epoch != _UNKNOWN_EPOCH and (not epochs or epochs[-1].epoch != epoch):
                epochs.append(LeaderEpoch(batch.first_offset, epoch))
        if len(epochs) > len(self._epochs):
            await self._store_epochs(epochs[-_MOST_EPOCHS:])
            self._epochs = epochs[-_MOST_EPOCHS:]

    def progress(self) -> MirrorProgress | None:
        """Return offsets and records per second since the last call; None: the source has not answered yet."""
        if self.end_offset is None:
            return None
        now = self._clock.now_ms()
        rate = (self._records - self._counted) * 1000 // max(1, now - self._counted_at)
        self._counted, self._counted_at = self._records, now
        read_before = max(self.next_offset, self.read_before)
        return MirrorProgress(read_before, max(read_before, self.end_offset), rate)

    @property
    def lag(self) -> int | None:
        """Return the number of offsets that are not mirrored yet; None: the source has not answered yet."""
        return None if self.end_offset is None else max(0, self.end_offset - self.next_offset)

    @property
    def is_at_end(self) -> bool:
        """Return whether all records before the last known stable offset of the source are appended."""
        return self.stable_offset is not None and self.next_offset >= self.stable_offset

    def _check_empty_values(self, records: LocatedRecords) -> None:
        """Raise MirrorStopped for a record with an empty value, unless the options treat it as a deletion."""
        if self._empty_values is EmptyValues.DELETE:
            return
        offset = records.first_empty_value_offset()
        if offset is not None:
            raise MirrorStopped(
                f"{self.label}: the record at offset {offset} has a key and an empty value: a value for Kafka, a "
                "deletion here",
                "resume the mirror with empty values as deletions (--empty-values delete) if they may delete their "
                "keys; nothing from this record on is here yet",
            )

    def _submit(self, entries: Sequence[RecordEntry]) -> asyncio.Future[None]:
        appended = PendingEntries(len(entries))
        self._service_loop.call_soon_threadsafe(self.target.submit, entries, appended)
        return asyncio.wrap_future(appended.future)

    async def _await_append(self, waiting: asyncio.Future[None]) -> None:
        """Wait until submitted entries are durable. Raises MirrorStopped for an entry that cannot be appended."""
        try:
            await waiting
        except InvalidRecord as error:
            raise self._stopped_error(error) from error

    def _stopped_error(self, error: InvalidRecord) -> MirrorStopped:
        remedy = "" if error.remedy == DAMAGED_REMEDY else f"{error.remedy}; "
        return MirrorStopped(f"{self.label}: {error.message}", f"{remedy}{_WAY_PAST}")
