"""The compacted ledger of a replicated topic as the source cluster sees it: by the positions of entries there.

A broker of the source reads compacted entries here, and raw ones from its own ledgers (PIP-278). So a read ends at a
horizon, a position of the source, and never continues raw. The horizon is the caller's: that of a run that it knows. A
newer compacted ledger serves an older horizon, too: what it lacks below that horizon was replaced or deleted by
messages after it, which the caller reads raw.

    entries of the caller's generation exist    they are read (R7)
    the generation was collected                the one that serves is read, up to the caller's horizon
    the one that serves is older                Conflict: the database was restored; fewer entries would look like
                                                deletions

Every row has a position, and all are of one source: otherwise there is no such view, and the read is a Conflict. The
horizon of a compacted ledger is the position of the last entry before its end; its run stores it. One that an older
version has published has none stored: if raw is trimmed there, its horizon is the position before the next entry, or
the last position that is stored of the source.

A reader takes no pin: it is used for one page, which takes less time than a replaced ledger stays (`gc.grace`).

Errors: those of `SnapshotReader.compacted`; Conflict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from storage.entries.entry import parse_metadata
from storage.entries.original import has_source_positions, with_source_ids
from storage.entries.rebuild import DeliverableEntry, EntryBuilder
from storage.environment import Environment
from storage.errors import Conflict, InvalidRecord
from storage.ledger import rows
from storage.ledger.hashing import KeyHasher
from storage.ledger.manifest import Part
from storage.ledger.rows_file import RowsReader
from storage.ledger.seek import SeekMessageId, SeekOffset, SeekPosition, SeekSource, SeekTime
from storage.metadata.records import CompactedLedgerRecord, TopicSnapshot
from storage.model import EARLIEST, SourcePosition, SourceProgress
from storage.reading.last_message import LastMessageFinder
from storage.reading.snapshot_reader import SnapshotReader

_PLACES = ("offset", "ledger_id", "entry_id", "batch_index", "slot", "publish_time", *rows.SOURCE_COLUMNS)
"""The columns that tell where a message is, and whether a reader gets it."""
_ROWS = 8_192
"""The rows that become entries together: a caller may stop after any entry, and a row group has many pages."""


@dataclass(frozen=True)
class SourceMessage:
    """A message by its position at the source cluster. `publish_time`: milliseconds since 1970.

    `batch_index` -1: it is in no batch, or alone in one; a broker makes no difference. An encrypted batch counts as its
    last message.
    """

    position: SourcePosition
    batch_index: int
    publish_time: int


class SourceReader:
    """A reader of one compacted ledger of a replicated topic by the positions of the source cluster;
    `open_source_reader` returns it."""

    def __init__(
        self, environment: Environment, reader: SnapshotReader, compacted: CompactedLedgerRecord, hasher: KeyHasher
    ) -> None:
        self._environment = environment
        self._reader = reader
        self._places = reader.with_columns(_PLACES)
        self._hasher = hasher
        self.compacted = compacted

    def horizon(self) -> SourcePosition:
        """Return the position at the source of the last entry that the compacted ledger covers. Raises
        SegmentNotLocal."""
        if self.compacted.source_horizon is not None:
            return self.compacted.source_horizon
        end = self.compacted.horizon.offset + 1
        if self._reader.first_offset < end:
            for table in self._places.raw_before(end):
                return self._position_of_row(table, len(table) - 1)
        for table in self._places.raw(SeekOffset(end)):
            next_entry = self._position_of_row(table, 0)
            return SourcePosition(next_entry.ledger_id, next_entry.entry_id - 1)
        stored = self._stored_sources()
        if len(stored) != 1:
            self._raise_not_replicated()
        (progress,) = stored.values()
        return progress.position

    def last_message(self) -> SourceMessage | None:
        """Return the last message that a reader of the compacted ledger gets, by its position at the source; None: it
        gets none."""
        finder = LastMessageFinder(self._environment.store, self._reader, self._hasher)
        last = finder.compacted_message_id(self.compacted)
        if last == EARLIEST:
            return None
        columns = (*_PLACES, "batch_size")
        table = next(self._tables(self._reader.with_columns(columns), SeekMessageId(last))).slice(0, 1)
        (row,) = table.to_pylist()
        if row["slot"] == rows.RowType.WHOLE_ENTRY:
            whole = next(self._tables(self._reader.with_columns((*columns, "payload")), SeekMessageId(last))).slice(
                0, 1
            )
            row["payload"] = whole.column("payload")[0].as_py()
        return SourceMessage(self._position_of_row(table, 0), _last_batch_index(row), row["publish_time"])

    def entries(self, start: SourcePosition, horizon: SourcePosition) -> Iterator[DeliverableEntry]:
        """Yield the entries from `start` to `horizon`, both inclusive, with the ids and metadata of the source."""
        builder = EntryBuilder()
        clusters: frozenset[str] = frozenset()
        for table in self._tables(self._reader, SeekSource(start)):
            self._check_positions(table)
            count = _count_rows_up_to(horizon, table)
            for first in range(0, count, _ROWS):
                rows_of_source, sources = with_source_ids(table.slice(first, min(_ROWS, count - first)))
                clusters |= sources
                if len(clusters) > 1:
                    raise self._several_sources_error(clusters)
                yield from builder.add(rows_of_source)
            if count < len(table):
                break
        yield from builder.remaining()

    def first_since(self, publish_time: int, horizon: SourcePosition) -> SourcePosition | None:
        """Return the position of the first entry up to `horizon` that has a message published at `publish_time` (ms) or
        later; None: there is none."""
        for table in self._tables(self._places, SeekTime(publish_time)):
            self._check_positions(table)
            return self._position_of_row(table, 0) if _count_rows_up_to(horizon, table) else None
        return None

    def _tables(self, reader: SnapshotReader, seek: SeekPosition) -> Iterator[pa.Table]:
        """Yield the messages of the compacted ledger from a seek position on, as tables with the columns of
        `reader`."""
        manifest = reader.manifest(self.compacted)
        if isinstance(seek, SeekSource):
            first = bisect_left(manifest.parts, True, key=lambda part: not self._ends_before(part, seek))
            manifest = replace(manifest, parts=manifest.parts[first:])
        return reader.compacted(seek, manifest)

    def _ends_before(self, part: Part, seek: SeekSource) -> bool:
        """Return whether a part of the compacted ledger ends before a source position, by its footer."""
        reader = RowsReader(self._environment.store, part.rows)
        return seek.skips_row_group(reader, len(reader.groups) - 1)

    def _position_of_row(self, table: pa.Table, row: int) -> SourcePosition:
        """Return the position at the source of a row of a table. Raises Conflict if a row has none."""
        self._check_positions(table)
        return SourcePosition(*(table.column(name)[row].as_py() for name in rows.SOURCE_COLUMNS))

    def _check_positions(self, table: pa.Table) -> None:
        """Raise Conflict unless every row of a table has a position at the source."""
        if not has_source_positions(table):
            self._raise_not_replicated()

    def _raise_not_replicated(self) -> NoReturn:
        raise Conflict(
            f"{self._reader.snapshot.topic.name} has messages that no replicator sent, so it has no positions of a "
            "source cluster",
            "let only one cluster replicate into the topic, and no other producer write to it",
        )

    def check_one_source(self) -> None:
        """Raise Conflict if several clusters are known to replicate into the topic."""
        sources = self._stored_sources()
        if len(sources) > 1:
            raise self._several_sources_error(sources)

    def _stored_sources(self) -> Mapping[str, SourceProgress]:
        stored = self._environment.metadata.producer_sequences.of_topic(self._reader.snapshot.topic.id)
        return {} if stored is None or stored.sources is None else stored.sources

    def _several_sources_error(self, clusters: Iterable[str]) -> Conflict:
        return Conflict(
            f"the clusters {', '.join(sorted(clusters))} replicate into {self._reader.snapshot.topic.name}, and a view "
            "by positions of the source is of one",
            "replicate each cluster into a namespace or service of its own",
        )


def _last_batch_index(row: Mapping[str, Any]) -> int:
    """Return the batch index of the last message of an entry, from the row of that message; see `SourceMessage`."""
    if row["slot"] != rows.RowType.WHOLE_ENTRY:
        return int(row["batch_index"]) if row["batch_size"] > 1 else -1
    try:
        size = parse_metadata(row["payload"], checksum_verified=True).metadata.num_messages_in_batch
    except InvalidRecord:
        return -1
    return size - 1 if size > 1 else -1


def first_entry_position(reader: SnapshotReader) -> SourcePosition | None:
    """Return the position at the source of the first entry that was ever stored; None: raw was trimmed, or there is
    none.

    Entries of the source before it never arrived. Raises SegmentNotLocal.
    """
    if reader.first_offset:
        return None
    table = next(reader.with_columns(_PLACES).raw(SeekOffset(0)), None)
    if table is None or not has_source_positions(table.slice(0, 1)):
        return None
    return SourcePosition(*(table.column(name)[0].as_py() for name in rows.SOURCE_COLUMNS))


def source_position_before(reader: SnapshotReader, end: int) -> SourcePosition | None:
    """Return the position at the source of the last raw message before the offset `end`; None: it is trimmed, or no
    replicator sent it."""
    if reader.first_offset >= end:
        return None
    table = next(reader.with_columns(_PLACES).raw_before(end), None)
    if table is None or not has_source_positions(table):
        return None
    return SourcePosition(*(table.column(name)[-1].as_py() for name in rows.SOURCE_COLUMNS))


def _count_rows_up_to(horizon: SourcePosition, table: pa.Table) -> int:
    """Return the number of rows of a table up to a source position, inclusive. The positions ascend."""
    return SeekSource(SourcePosition(horizon.ledger_id, horizon.entry_id + 1)).first_row(table)


def open_source_reader(
    environment: Environment,
    topic_id: int,
    hasher: KeyHasher,
    read: Callable[[TopicSnapshot], SnapshotReader],
    generation: int | None = None,
) -> SourceReader | None:
    """Return a reader of a topic's compacted ledger by source positions; None: the topic was never compacted.

    `read`: returns a reader of a snapshot. `generation`: the caller's. Its compacted ledger is read if it was not
    collected yet, otherwise the one that serves. Raises Conflict if that is older; TopicNotFound.
    """
    snapshot = environment.metadata.topic_snapshot(topic_id)
    compacted = snapshot.compacted
    _check_generation(snapshot, 0 if compacted is None else compacted.generation, generation)
    if compacted is None:
        return None
    if generation is not None and generation != compacted.generation:
        retired = environment.metadata.pins.retired_ledgers(topic_id)
        compacted = next((record for record in retired if record.generation == generation), compacted)
    return SourceReader(environment, read(replace(snapshot, compacted=compacted)), compacted, hasher)


def _check_generation(snapshot: TopicSnapshot, serving: int, generation: int | None) -> None:
    if generation is not None and serving < generation:
        raise Conflict(
            f"{snapshot.topic.name} has generation {serving} of its compacted ledger, and the caller knows generation "
            f"{generation}: the database was restored from a backup, or is another one",
            "restore a newer backup; or, if the source still has all raw messages, reset the caller's horizon and "
            "compact again",
        )
