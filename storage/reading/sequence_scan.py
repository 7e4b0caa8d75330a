"""The sequence ids of producers, as a topic's raw entries have them: what deduplication knows, found in the log itself.

Of sealed ledgers only the columns that name producer and sequence id are decoded; a million messages take about a
second. Entries of unsealed segments are read whole. Messages without a producer (a bulk import), and entries whose
metadata cannot be read, have no sequence id.

May go wrong: what a raw read may (raw_reader.py). Must not know: which ids are stored in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.entry import parse
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.sequence_ids import WHOLE, SequenceId, chunk_or_whole, highest_of, sequence_of, sequence_of_entry
from storage.errors import InvalidRecord
from storage.ledger.rows import RowType

COLUMNS = (
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
    """The highest sequence id of each producer among some entries, those that stored last at the end.

    `end`: the offset after the last of these entries.
    """

    highest: dict[str, SequenceId]
    end: int


def scan(tables: Iterable[pa.Table], entries: Sequence[bytes]) -> Iterator[ScannedSequences]:
    """Yield the sequence ids of each table: of rows (COLUMNS of rows.SCHEMA), or of undecoded entries.

    `entries`: those of the last table that has undecoded ones, by their number in it.
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
            metadata, _ = parse(entries[number], checked=True)
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
        return sequence_of_entry(row["payload"] or b"")
    rest = MessageMetadata()
    rest.MergeFromString(row["metadata"] or b"")
    number = max(row["sequence_id"] or 0, highest_of(rest), 0)
    return number, chunk_or_whole(row["chunk_index"] or 0, row["chunk_count"] or 0)
