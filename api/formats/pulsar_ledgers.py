"""Ledgers that Pulsar has offloaded, as the input of an import: `compactor import --input-format pulsar-offload`.

Entries come as Pulsar stored them: batches whole, with their producers, sequence ids, properties and times. Each
ledger is one ledger here, with the ids of its entries, and with its own ledger id where that is free (bulk_append.py).

A ledger needs its data object, `<uuid>-ledger-<id>`, and beside it its index object, `<uuid>-ledger-<id>-index`.
Memory: some MiB, or one entry.

Raises InvalidInput for paths that are no ledgers of one topic; InvalidRecord, with object and position, for damage; the
errors of input_files.py. Must not know: topics here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from api.formats.input_files import InputFile
from storage.entries.decode import StoredEntry
from storage.entries.entry import inspect, parse_metadata
from storage.entries.offloaded_ledger import (
    BLOCK_HEADER_BYTES,
    DAMAGED_REMEDY,
    OffloadedEntry,
    OffloadIndex,
    first_entry_bytes,
    read_block_header,
    read_entries,
    read_index,
)
from storage.errors import InvalidInput, InvalidRecord

READ_BYTES = 8 << 20
"""Bytes of a block that are read together."""
_DATA = re.compile(r".+-ledger-(?P<ledger>\d+)", re.ASCII | re.DOTALL)
_INDEX_SUFFIX = "-index"


@dataclass(frozen=True)
class OffloadedLedger:
    """An offloaded ledger of Pulsar: its data object, and the content of its index object."""

    ledger_id: int
    data: InputFile
    index: OffloadIndex

    def entries(self) -> Iterator[list[StoredEntry]]:
        """Yield all entries, in order, some at a time, with offsets from 0. Raises InvalidRecord, store errors."""
        entry_id = offset = 0
        for entries in self._read_entries():
            stored = []
            for entry in entries:
                if entry.entry_id != entry_id:
                    raise self._invalid_record(f"entry {entry.entry_id} follows entry {entry_id - 1}", DAMAGED_REMEDY)
                stored.append(self._stored_entry(entry, offset))
                offset += stored[-1].header.messages
                entry_id += 1
            yield stored
        if entry_id - 1 != self.index.last_entry_id:
            raise self._invalid_record(
                f"it ends with entry {entry_id - 1}, and its index states that the last one is "
                f"{self.index.last_entry_id}",
                DAMAGED_REMEDY,
            )

    def _stored_entry(self, entry: OffloadedEntry, offset: int) -> StoredEntry:
        place = f"entry {entry.entry_id}, before position {entry.end}"
        try:
            header = inspect(entry.data)
            metadata, _ = parse_metadata(entry.data, checksum_verified=True)
        except InvalidRecord as error:
            raise self._invalid_record(f"{place}: {error.message}", DAMAGED_REMEDY) from error
        if metadata.HasField("txnid_most_bits"):
            raise self._invalid_record(
                f"{place} was sent in a transaction, and whether that was committed is not in the ledger",
                "read the topic with a consumer of Pulsar and produce its messages here",
            )
        return StoredEntry(entry.entry_id, offset, entry.data, header)

    def _read_entries(self) -> Iterator[list[OffloadedEntry]]:
        """Yield the entries of all blocks of the data object, some at a time."""
        position, data = 0, self.data
        while position < data.size:
            header = data.read(position, min(BLOCK_HEADER_BYTES, data.size - position))
            try:
                block = read_block_header(header, position, data.size)
            except InvalidRecord as error:
                raise self._invalid_record(error.message, error.remedy) from error
            at = block.position
            while at < block.end:
                piece = data.read(at, min(READ_BYTES, block.end - at))
                size = first_entry_bytes(piece)
                if size is None:
                    break
                if size > block.end - at:
                    raise self._invalid_record(
                        f"the entry at position {at} claims {size} bytes, and its block ends at {block.end}",
                        DAMAGED_REMEDY,
                    )
                if size > len(piece):
                    piece = data.read(at, size)
                entries = list(read_entries(piece, at))
                at = entries[-1].end
                yield entries
            position = block.end

    def _invalid_record(self, message: str, remedy: str) -> InvalidRecord:
        return InvalidRecord(f"{self.data.name}: {message}", remedy)


def find_ledgers(files: Sequence[InputFile]) -> list[OffloadedLedger]:
    """Return the ledgers among `files`, by id. Files of a folder that are no objects of an offload are left out.

    Raises InvalidInput if there is none, if an index is missing, if a ledger is there twice, or if they are of several
    topics; InvalidRecord for a damaged index, and for a data object of another size than its index states.
    """
    by_name = {file.name: file for file in files}
    ledgers = []
    for file in files:
        match = _DATA.fullmatch(file.base)
        if match is not None:
            ledgers.append(_offloaded_ledger(int(match["ledger"]), file, by_name.get(file.name + _INDEX_SUFFIX)))
        elif file.is_named and not file.base.endswith(_INDEX_SUFFIX):
            raise InvalidInput(
                f"{file.name} is no ledger that Pulsar has offloaded",
                "name objects that are called as Pulsar calls them, UUID-ledger-NUMBER, or their folder",
            )
    if not ledgers:
        raise InvalidInput(
            "none of the paths has a ledger that Pulsar has offloaded",
            "name its data object (UUID-ledger-NUMBER), or the folder that has it",
        )
    ledgers.sort(key=lambda ledger: ledger.ledger_id)
    for before, after in pairwise(ledgers):
        if before.ledger_id == after.ledger_id:
            raise InvalidInput(
                f"the paths have ledger {before.ledger_id} twice: {before.data.name} and {after.data.name}",
                "name the object whose UUID the topic's internal stats have; another one is of a failed offload",
            )
    topics = sorted({ledger.index.managed_ledger for ledger in ledgers})
    if len(topics) > 1:
        raise InvalidInput(
            f"the paths have ledgers of several topics: {', '.join(topic or 'not stated' for topic in topics[:4])}",
            "name the ledgers of one topic; its internal stats list them",
        )
    return ledgers


def _offloaded_ledger(ledger_id: int, data: InputFile, index: InputFile | None) -> OffloadedLedger:
    if index is None:
        raise InvalidInput(
            f"{data.name} has no index object beside it among the paths", f"name {data.base}{_INDEX_SUFFIX}, too"
        )
    try:
        content = read_index(index.read_all())
    except InvalidRecord as error:
        raise InvalidRecord(f"{index.name}: {error.message}", error.remedy) from error
    if content.data_bytes != data.size:
        raise InvalidRecord(
            f"{data.name} has {data.size} bytes, and its index states {content.data_bytes}", DAMAGED_REMEDY
        )
    if content.last_entry_id < 0:
        raise InvalidRecord(f"{index.name} states that the ledger has no entry", DAMAGED_REMEDY)
    return OffloadedLedger(ledger_id, data, content)
