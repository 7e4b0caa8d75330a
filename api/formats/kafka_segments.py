"""Kafka's segment files as the input of an import: `compactor import --input-format kafka-segments`.

The segments of a partition are read in the order of their names; each record becomes a message (docs/importing.md has
the table). The import gets what a consumer with `read_committed` gets: no control record, no aborted transaction,
nothing from the first open transaction on. What is omitted is reported after the last table.

A partition is all or nothing. A batch that is not whole is damage, except at the end of the newest segment: a broker
that runs, or was killed, leaves one there. Memory: some MiB, or one batch.

Raises InvalidInput for paths that are no segments of one topic; InvalidRecord, with file and position, for damage; the
errors of input_files.py. Must not know: topics here, ledgers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.formats.input_files import InputFile
from api.formats.inputs import EmptyValues
from storage.errors import InvalidInput, InvalidRecord
from storage.kafka.record_batch import (
    DAMAGED_REMEDY,
    PREFIX_BYTES,
    RecordBatch,
    batch_bytes,
    is_preallocated,
    read_batches,
)
from storage.kafka.records import decode_batches
from storage.kafka.transactions import CommittedBatchFilter, TransactionScan
from storage.log.bulk_append import SOURCE_SCHEMA

READ_BYTES = 16 << 20
"""Bytes of a segment that are read together."""
_SEGMENT = re.compile(r"(?P<offset>\d{20})\.log", re.ASCII)
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class KafkaPartition:
    """The segment files of one Kafka partition, in order. `topic`, `number`: by their folder's name; empty and -1: no
    name."""

    topic: str
    number: int
    segments: tuple[InputFile, ...]

    @property
    def label(self) -> str:
        """Return the partition's name for messages to the user."""
        return f"{self.topic}-{self.number}" if self.topic else self.segments[0].folder


def find_partitions(files: Sequence[InputFile]) -> list[KafkaPartition]:
    """Return the partitions to which segments among `files` belong, by number.

    Files of a folder that are no segments (indexes, checkpoints) are left out. Raises InvalidInput if there is no
    segment, or they are of several topics.
    """
    by_folder: dict[str, list[InputFile]] = {}
    for file in files:
        if _SEGMENT.fullmatch(file.base):
            by_folder.setdefault(file.name.removesuffix(file.base), []).append(file)
        elif file.is_named:
            raise InvalidInput(
                f"{file.name} is no segment of Kafka",
                "name files that are called as Kafka calls them, 20 digits and .log, or their folder",
            )
    if not by_folder:
        raise InvalidInput(
            "none of the paths has a segment of Kafka",
            "name segments (20 digits and .log), or the folder that has them",
        )
    partitions = sorted(map(_partition_of_files, by_folder.values()), key=lambda partition: partition.number)
    topics = sorted({partition.topic for partition in partitions})
    if len(partitions) > 1 and (len(topics) > 1 or not topics[0]):
        labels = ", ".join(sorted(partition.label for partition in partitions)[:4])
        raise InvalidInput(
            f"the paths have partitions of several topics, or folders without a partition's name: {labels}",
            "import one topic at a time; the folder of a partition is called TOPIC-NUMBER, as in Kafka's log directory",
        )
    for before, after in pairwise(partitions):
        if before.number == after.number:
            raise InvalidInput(
                f"the paths have {after.label} twice: {before.segments[0].name} and {after.segments[0].name}",
                "name the segments of one replica",
            )
    return partitions


def _partition_of_files(files: list[InputFile]) -> KafkaPartition:
    segments = tuple(sorted(files, key=lambda file: file.base))
    for before, after in pairwise(segments):
        if before.base == after.base:
            raise InvalidInput(f"the paths have {after.name} twice", "name it once")
    match = _PARTITION.fullmatch(segments[0].folder)
    return KafkaPartition(match["topic"] if match else "", int(match["partition"]) if match else -1, segments)


@dataclass
class OmittedRecords:
    """Records and bytes of a partition that an import has omitted, for its report.

    `open_from`: the first offset of the first open transaction, of `open_producer`; `unstable_records`: the records
    from that offset on; `torn_bytes`: at the end of the newest segment, from `torn_at` on.
    """

    aborted_records: int = 0
    unstable_records: int = 0
    open_from: int | None = None
    open_producer: int | None = None
    torn_at: int = 0
    torn_bytes: int = 0


class PartitionReader:
    """A reader of the messages of one Kafka partition, for one pass. `producer`: the name of their producer here.

    `omitted` is complete after the last table.
    """

    def __init__(self, partition: KafkaPartition, producer: str, empty_values: EmptyValues) -> None:
        self._segments = partition.segments
        self._producer = producer
        self._empty_values = empty_values
        self._next_offset = 0
        self._committed: CommittedBatchFilter | None = None
        self.omitted = OmittedRecords()

    def tables(self) -> Iterator[pa.Table]:
        """Yield the messages (SOURCE_SCHEMA), in order. Raises InvalidRecord, InvalidInput, store errors."""
        for number in range(len(self._segments)):
            with self._add_segment_name_to_errors(number):
                for records in decode_batches(self._read_committed_batches(number)):
                    yield self._message_table(records)
        if self._committed is not None:
            self.omitted.aborted_records = self._committed.aborted_records

    def _read_committed_batches(self, number: int) -> Iterator[RecordBatch]:
        """Yield the batches of a segment whose records a consumer with `read_committed` gets.

        At the first transactional batch the segments are scanned for the outcomes of transactions, from it on.
        """
        for batch in self._read_batches(number, 0, verify=True):
            if batch.first_offset < self._next_offset:
                raise InvalidRecord(
                    f"the batch at position {batch.position} begins with offset {batch.first_offset}, and batches up "
                    f"to offset {self._next_offset - 1} come before it",
                    "name the segments of one replica's log, as the broker has them",
                )
            self._next_offset = batch.last_offset + 1
            if batch.is_transactional and self._committed is None:
                self._committed = self._scan_transactions(number, batch.position)
            end = self.omitted.open_from
            if end is not None and batch.first_offset >= end:
                self.omitted.unstable_records += 0 if batch.is_control else max(batch.record_count, 1)
            elif self._committed.accepts(batch) if self._committed is not None else not batch.is_control:
                yield batch

    def _scan_transactions(self, number: int, position: int) -> CommittedBatchFilter:
        """Scan the segments from a batch on for the outcome of each transaction. Return the filter that accepts
        committed batches."""
        scan = TransactionScan()
        for later in range(number, len(self._segments)):
            with self._add_segment_name_to_errors(later):
                for batch in self._read_batches(later, position if later == number else 0, verify=False):
                    scan.add(batch)
        self.omitted.open_from, self.omitted.open_producer = scan.last_stable_offset, scan.oldest_open_producer
        return CommittedBatchFilter(scan.aborted)

    def _read_batches(self, number: int, position: int, *, verify: bool) -> Iterator[RecordBatch]:
        """Yield the batches of a segment from a position on. Raises InvalidRecord for damage, except at the end of the
        newest segment."""
        segment = self._segments[number]
        while position < segment.size:
            data = segment.read(position, min(READ_BYTES, segment.size - position))
            first = batch_bytes(data, position) if not is_preallocated(data) else None
            if first is not None and len(data) < first <= segment.size - position:
                data = segment.read(position, first)
            end = position
            for batch in read_batches(data, position, verify=verify):
                yield batch
                end = batch.end_position
            if end == position:
                self._record_torn_end(number, position)
                return
            position = end

    def _record_torn_end(self, number: int, position: int) -> None:
        """Record an incomplete batch at the end of the newest segment in `omitted`. Raises InvalidRecord in any other
        place."""
        segment = self._segments[number]
        remaining = segment.size - position
        is_reserved = is_preallocated(segment.read(position, min(PREFIX_BYTES, remaining)))
        if number + 1 < len(self._segments):
            raise InvalidRecord(
                f"it ends at byte {segment.size} inside the batch at position {position}", DAMAGED_REMEDY
            )
        if is_reserved and not _has_only_zeros(segment, position):
            raise InvalidRecord(f"it has zeros at position {position} instead of a batch", DAMAGED_REMEDY)
        self.omitted.torn_at, self.omitted.torn_bytes = position, remaining

    @contextmanager
    def _add_segment_name_to_errors(self, number: int) -> Iterator[None]:
        """Prefix the message of an InvalidRecord with the segment's name, unless it names a segment."""
        try:
            yield
        except InvalidRecord as error:
            if error.message.startswith(tuple(segment.name for segment in self._segments)):
                raise
            raise InvalidRecord(f"{self._segments[number].name}: {error.message}", error.remedy) from error

    def _message_table(self, records: pa.Table) -> pa.Table:
        """Convert Kafka records to a table of messages (SOURCE_SCHEMA). Raises InvalidRecord for an empty value that is
        not allowed."""
        values, keys = records.column("value"), records.column("key")
        if self._empty_values is EmptyValues.REFUSE:
            empty = pc.and_(pc.fill_null(pc.equal(pc.binary_length(values), 0), False), pc.is_valid(keys)).to_numpy()
            if empty.any():
                offset = records.column("offset")[int(np.argmax(empty))].as_py()
                raise InvalidRecord(
                    f"the record at offset {offset} has a key and an empty value: a value for Kafka, a deletion here",
                    "import with --empty-values delete if it may delete its key; nothing of the partition was kept",
                )
        columns = {
            "key": keys,
            "payload": values,
            "publish_time": records.column("timestamp"),
            "event_time": records.column("timestamp"),
            "properties": records.column("properties"),
            "producer": pa.repeat(pa.scalar(self._producer), len(records)),
            "sequence_id": records.column("offset"),
        }
        return pa.table([columns[name] for name in SOURCE_SCHEMA.names], schema=SOURCE_SCHEMA)


def _has_only_zeros(segment: InputFile, position: int) -> bool:
    """Return whether all bytes of a segment are zero from a position on."""
    while position < segment.size:
        data = segment.read(position, min(READ_BYTES, segment.size - position))
        if data.strip(b"\0"):
            return False
        position += len(data)
    return True
