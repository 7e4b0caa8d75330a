"""Sequence ids of entries: they identify an entry that its producer sends again.

Of a batch the highest of its messages counts. The chunks of a message have one sequence id, so a chunk is identified by
its number, too: ids of one producer are in order as pairs.

`scan_sequences` reads them from the tables of a raw read. Of sealed ledgers only the columns that name producer and
sequence id are decoded; a million messages take about a second. Entries of unsealed segments are read whole. Messages
without a producer (a bulk import), and entries whose metadata cannot be read, have no sequence id.

Must not know: the ids that were stored before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.entry import parse_metadata, signed
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import InvalidRecord
from storage.ledger.rows import RowType

WHOLE = 2**31 - 1
"""Stands for the chunk of an entry that ends its message: it is not chunked, or its chunk is the last."""

SequenceId = tuple[int, int]
"""A sequence id, and the number of a chunk that is not the last one, or `WHOLE`."""

SEQUENCE_COLUMNS = (
    "offset",
    "batch_index",
    "payload",
    "producer",
    "sequence_id",
    "chunk_index",
    "chunk_count",
    "slot",
    "metadata",
)
"""Columns of a sealed ledger that are decoded. `payload`: of an entry that is kept whole."""


@dataclass(frozen=True)
class ScannedSequences:
    """The highest sequence id of each producer among some entries, by name.

    `highest` is in the order of the producers' last entries. `end`: the offset after the last of these entries.
    """

    highest: dict[str, SequenceId]
    end: int


def sequence_of(metadata: MessageMetadata, at_least: int = 0) -> SequenceId:
    """Return the sequence id of the entry that has this metadata; of a batch, the highest one.

    `at_least`: a lower bound of its number, where the producer's command stated the highest one.
    """
    number = max(at_least, signed(metadata.sequence_id), stated_highest(metadata))
    return number, chunk_or_whole(metadata.chunk_id, metadata.num_chunks_from_msg)


def stated_highest(metadata: MessageMetadata) -> int:
    """Return the highest sequence id of a batch as its metadata states it; 0: it states none."""
    return signed(metadata.highest_sequence_id)


def chunk_or_whole(chunk_index: int, chunk_count: int) -> int:
    """Return the second part of a `SequenceId`: of chunk number `chunk_index` (from 0) of `chunk_count`; 0 chunks: not
    chunked."""
    return chunk_index if chunk_count > 1 and chunk_index < chunk_count - 1 else WHOLE


def last_complete_number(sequence: SequenceId) -> int:
    """Return the number of the last complete message: of `sequence`, or one less if its chunks are incomplete."""
    number, chunk = sequence
    return number if chunk == WHOLE else number - 1


def scan_sequences(tables: Iterable[pa.Table], entries: Sequence[bytes]) -> Iterator[ScannedSequences]:
    """Yield the sequence ids of each table: of rows (SEQUENCE_COLUMNS of rows.SCHEMA), or of undecoded entries.

    `entries`: the undecoded entries of the last table that has some; its column `entry` holds positions in them.
    Entries without a producer or with unreadable metadata are left out.
    """
    for table in tables:
        of_table = _of_entries(table, entries) if "entry" in table.schema.names else _of_rows(table)
        highest: dict[str, SequenceId] = {}
        for _, name, sequence in sorted(of_table):
            highest[name] = max(sequence, highest.pop(name, sequence))
        yield ScannedSequences(highest, table.column("offset")[-1].as_py() + 1)


def _of_entries(table: pa.Table, entries: Sequence[bytes]) -> Iterator[tuple[int, str, SequenceId]]:
    for offset, number in zip(table.column("offset").to_pylist(), table.column("entry").to_pylist(), strict=True):
        try:
            metadata, _ = parse_metadata(entries[number], checksum_verified=True)
        except InvalidRecord:
            continue
        yield offset, metadata.producer_name, sequence_of(metadata)


def _of_rows(table: pa.Table) -> Iterator[tuple[int, str, SequenceId]]:
    first = pc.and_(pc.is_valid(table.column("producer")), pc.less_equal(table.column("batch_index"), 0))
    entries = table.filter(first)
    plain = pc.and_(pc.is_null(entries.column("metadata")), pc.equal(entries.column("slot"), int(RowType.MESSAGE)))
    grouped = entries.filter(plain).group_by("producer").aggregate([("sequence_id", "max"), ("offset", "max")])
    for row in grouped.to_pylist():
        yield row["offset_max"], row["producer"], (max(row["sequence_id_max"] or 0, 0), WHOLE)
    for row in entries.filter(pc.invert(plain)).to_pylist():
        try:
            yield row["offset"], row["producer"], _of_row(row)
        except InvalidRecord:
            continue


def _of_row(row: dict[str, Any]) -> SequenceId:
    if row["slot"] == RowType.WHOLE_ENTRY:
        return sequence_of(parse_metadata(row["payload"] or b"", checksum_verified=True)[0])
    rest = MessageMetadata()
    rest.MergeFromString(row["metadata"] or b"")
    number = max(row["sequence_id"] or 0, stated_highest(rest), 0)
    return number, chunk_or_whole(row["chunk_index"] or 0, row["chunk_count"] or 0)
