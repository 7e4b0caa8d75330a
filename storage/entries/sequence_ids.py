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
    """The highest sequence id of each producer among some entries, by name, and the progress of each source cluster.

    `highest` is in the order of the producers' last entries. `end`: the offset after the last of these entries.
    """

    highest: dict[str, SequenceId]
    end: int
    sources: dict[str, SourceProgress] = field(default_factory=dict)


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
    """Yield the ids and positions of each table: of rows (SEQUENCE_COLUMNS of rows.SCHEMA), or of undecoded entries.

    `entries`: the undecoded entries of the last table that has some; its column `entry` holds positions in them.
    Entries without a producer or with unreadable metadata are left out.
    """
    for table in tables:
        sources: dict[str, SourceProgress] = {}
        scan = _of_entries(table, entries, sources) if "entry" in table.schema.names else _of_rows(table, sources)
        highest: dict[str, SequenceId] = {}
        for _, name, sequence in sorted(scan):
            highest[name] = max(sequence, highest.pop(name, sequence))
        yield ScannedSequences(highest, table.column("offset")[-1].as_py() + 1, sources)


_Sources = dict[str, SourceProgress]
"""The progress of each source cluster, which the scan of a table adds to."""


def _of_entries(table: pa.Table, entries: Sequence[bytes], sources: _Sources) -> Iterator[tuple[int, str, SequenceId]]:
    for offset, number in zip(table.column("offset").to_pylist(), table.column("entry").to_pylist(), strict=True):
        try:
            metadata, _ = parse_metadata(entries[number], checksum_verified=True)
        except InvalidRecord:
            continue
        position = position_of(entries[number])
        if position is None:
            yield offset, metadata.producer_name, sequence_of(metadata)
        else:
            _note(sources, metadata, SourceProgress(position, signed(metadata.publish_time)))


def _note(sources: _Sources, metadata: MessageMetadata, progress: SourceProgress) -> None:
    cluster = metadata.replicated_from
    sources[cluster] = progress.merged(sources.get(cluster))


def _of_rows(table: pa.Table, sources: _Sources) -> Iterator[tuple[int, str, SequenceId]]:
    first = pc.and_(pc.is_valid(table.column("producer")), pc.less_equal(table.column("batch_index"), 0))
    entries = table.filter(first)
    if entries.column("source_ledger_id").null_count < len(entries):
        replicated = pc.is_valid(entries.column("source_ledger_id"))
        _note_rows(entries.filter(replicated), sources)
        entries = entries.filter(pc.invert(replicated))
    plain = pc.and_(pc.is_null(entries.column("metadata")), pc.equal(entries.column("slot"), int(RowType.MESSAGE)))
    grouped = entries.filter(plain).group_by("producer").aggregate([("sequence_id", "max"), ("offset", "max")])
    for row in grouped.to_pylist():
        yield row["offset_max"], row["producer"], (max(row["sequence_id_max"] or 0, 0), WHOLE)
    for row in entries.filter(pc.invert(plain)).to_pylist():
        try:
            yield row["offset"], row["producer"], _of_row(row)
        except InvalidRecord:
            continue


def _note_rows(entries: pa.Table, sources: _Sources) -> None:
    """Note the positions of the first rows of replicated entries."""
    is_whole = pc.equal(entries.column("slot"), int(RowType.WHOLE_ENTRY))
    for row in entries.filter(is_whole).to_pylist():
        _note(sources, parse_metadata(row["payload"], checksum_verified=True)[0], _progress(row, ""))
    same = entries.filter(pc.invert(is_whole)).group_by(["metadata", "source_ledger_id"])
    for row in same.aggregate([("source_entry_id", "max"), ("publish_time", "max")]).to_pylist():
        _note(sources, MessageMetadata.FromString(row["metadata"] or b""), _progress(row, "_max"))


def _progress(row: dict[str, Any], suffix: str) -> SourceProgress:
    position = SourcePosition(row["source_ledger_id"], row["source_entry_id" + suffix])
    return SourceProgress(position, row["publish_time" + suffix])


def _of_row(row: dict[str, Any]) -> SequenceId:
    if row["slot"] == RowType.WHOLE_ENTRY:
        return sequence_of(parse_metadata(row["payload"] or b"", checksum_verified=True)[0])
    rest = MessageMetadata()
    rest.MergeFromString(row["metadata"] or b"")
    number = max(row["sequence_id"] or 0, stated_highest(rest), 0)
    return number, chunk_or_whole(row["chunk_index"] or 0, row["chunk_count"] or 0)
