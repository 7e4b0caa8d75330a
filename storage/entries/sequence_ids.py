"""Sequence ids of entries: they identify an entry that its producer sends again.

Of a batch the highest of its messages counts. The chunks of a message have one sequence id, so a chunk is identified by
its number, too: ids of one producer are in order as pairs.

An entry that a replicator sent has its producer's sequence id of another cluster, which says nothing here. Its position
at its source identifies it (source_position.py), and positions of one source cluster ascend.

`scan_sequences` reads them from the tables of a raw read. Of sealed ledgers only the columns that name producer and
sequence id are decoded; a million messages take about a second. Entries of unsealed segments are read whole. Messages
without a producer (a bulk import), and entries whose metadata cannot be read, have no sequence id. Replicated entries
that differ in their metadata (a schema, an ordering key) are decoded one by one.

Must not know: the ids and positions that were stored before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.entry import parse_metadata, signed
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.source_position import position_of
from storage.errors import InvalidRecord
from storage.ledger.rows import RowType
from storage.model import SourcePosition, SourceProgress

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
    "publish_time",
    "source_ledger_id",
    "source_entry_id",
)
"""Columns of a sealed ledger that are decoded. `payload`: of an entry that is kept whole."""


@dataclass(frozen=True)
class ScannedSequences:
    """The highest sequence id of each producer, by name, and the progress of each source cluster, among some scanned
    entries.

    `highest` is in the order of the producers' last entries. `end`: the offset after the last of these entries.
    """

    highest: dict[str, SequenceId]
    end: int
    sources: dict[str, SourceProgress] = field(default_factory=dict)


def sequence_id_of(metadata: MessageMetadata, at_least: int = 0) -> SequenceId:
    """Return the sequence id of an entry from its metadata; of a batch, the highest one.

    `at_least`: a lower bound of its number, where the producer's command stated the highest one.
    """
    number = max(at_least, signed(metadata.sequence_id), stated_highest_sequence_id(metadata))
    return number, sequence_chunk(metadata.chunk_id, metadata.num_chunks_from_msg)


def stated_highest_sequence_id(metadata: MessageMetadata) -> int:
    """Return the highest sequence id of a batch as its metadata states it; 0: it states none."""
    return signed(metadata.highest_sequence_id)


def sequence_chunk(chunk_index: int, chunk_count: int) -> int:
    """Return the second part of a `SequenceId`: the index of a chunk that is not the last of its message; otherwise
    WHOLE.

    `chunk_index` counts from 0; `chunk_count` 0: the message is not chunked.
    """
    return chunk_index if chunk_count > 1 and chunk_index < chunk_count - 1 else WHOLE


def last_complete_sequence_number(sequence: SequenceId) -> int:
    """Return the sequence number of the last complete message: that of `sequence`, or one less if the chunks of its
    message are incomplete."""
    number, chunk = sequence
    return number if chunk == WHOLE else number - 1


def scan_sequences(tables: Iterable[pa.Table], entries: Sequence[bytes]) -> Iterator[ScannedSequences]:
    """Yield the highest sequence ids of producers, and the positions at source clusters, of each table: of rows
    (SEQUENCE_COLUMNS of rows.SCHEMA), or of undecoded entries.

    `entries`: the undecoded entries of the last table that has some; its column `entry` holds positions in them.
    Entries without a producer or with unreadable metadata are left out.
    """
    for table in tables:
        sources: dict[str, SourceProgress] = {}
        scan = (
            _sequences_of_entries(table, entries, sources)
            if "entry" in table.schema.names
            else _sequences_of_rows(table, sources)
        )
        highest: dict[str, SequenceId] = {}
        for _, name, sequence in sorted(scan):
            highest[name] = max(sequence, highest.pop(name, sequence))
        yield ScannedSequences(highest, table.column("offset")[-1].as_py() + 1, sources)


_Sources = dict[str, SourceProgress]
"""The progress of each source cluster, which the scan of a table adds to."""


def _sequences_of_entries(
    table: pa.Table, entries: Sequence[bytes], sources: _Sources
) -> Iterator[tuple[int, str, SequenceId]]:
    for offset, number in zip(table.column("offset").to_pylist(), table.column("entry").to_pylist(), strict=True):
        try:
            metadata, _ = parse_metadata(entries[number], checksum_verified=True)
        except InvalidRecord:
            continue
        position = position_of(entries[number])
        if position is None:
            yield offset, metadata.producer_name, sequence_id_of(metadata)
        else:
            _merge_source_progress(sources, metadata, SourceProgress(position, signed(metadata.publish_time)))


def _merge_source_progress(sources: _Sources, metadata: MessageMetadata, progress: SourceProgress) -> None:
    cluster = metadata.replicated_from
    sources[cluster] = progress.merged(sources.get(cluster))


def _sequences_of_rows(table: pa.Table, sources: _Sources) -> Iterator[tuple[int, str, SequenceId]]:
    first = pc.and_(pc.is_valid(table.column("producer")), pc.less_equal(table.column("batch_index"), 0))
    entries = table.filter(first)
    if entries.column("source_ledger_id").null_count < len(entries):
        replicated = pc.is_valid(entries.column("source_ledger_id"))
        _merge_progress_of_rows(entries.filter(replicated), sources)
        entries = entries.filter(pc.invert(replicated))
    plain = pc.and_(pc.is_null(entries.column("metadata")), pc.equal(entries.column("slot"), int(RowType.MESSAGE)))
    grouped = entries.filter(plain).group_by("producer").aggregate([("sequence_id", "max"), ("offset", "max")])
    for row in grouped.to_pylist():
        yield row["offset_max"], row["producer"], (max(row["sequence_id_max"] or 0, 0), WHOLE)
    for row in entries.filter(pc.invert(plain)).to_pylist():
        try:
            yield row["offset"], row["producer"], _sequence_id_of_row(row)
        except InvalidRecord:
            continue


def _merge_progress_of_rows(entries: pa.Table, sources: _Sources) -> None:
    """Merge the source positions of replicated entries into `sources`, by source cluster. `entries`: their first
    rows."""
    is_whole = pc.equal(entries.column("slot"), int(RowType.WHOLE_ENTRY))
    for row in entries.filter(is_whole).to_pylist():
        _merge_source_progress(
            sources, parse_metadata(row["payload"], checksum_verified=True)[0], _progress_of_row(row, "")
        )
    same = entries.filter(pc.invert(is_whole)).group_by(["metadata", "source_ledger_id"])
    for row in same.aggregate([("source_entry_id", "max"), ("publish_time", "max")]).to_pylist():
        _merge_source_progress(
            sources, MessageMetadata.FromString(row["metadata"] or b""), _progress_of_row(row, "_max")
        )


def _progress_of_row(row: dict[str, Any], suffix: str) -> SourceProgress:
    position = SourcePosition(row["source_ledger_id"], row["source_entry_id" + suffix])
    return SourceProgress(position, row["publish_time" + suffix])


def _sequence_id_of_row(row: dict[str, Any]) -> SequenceId:
    if row["slot"] == RowType.WHOLE_ENTRY:
        return sequence_id_of(parse_metadata(row["payload"] or b"", checksum_verified=True)[0])
    rest = MessageMetadata()
    rest.MergeFromString(row["metadata"] or b"")
    number = max(row["sequence_id"] or 0, stated_highest_sequence_id(rest), 0)
    return number, sequence_chunk(row["chunk_index"] or 0, row["chunk_count"] or 0)
