"""Ledgers as Pulsar's offloaders write them to object storage: a data object of blocks, and its index object.

    data     block, block, …; a block: magic, header size, block size, first entry id, zeros; entries; padding
    entry    size, entry id, bytes                          (padding: 0xFEDCDEAD, repeated to the end of the block)
    index    magic, size, data size, block header size, blocks, metadata size, metadata (BookKeeper's), blocks' places

Numbers are big-endian. Entries are the stored bytes, as `entry.py` reads them. No part has a checksum; an entry of
Pulsar has its own, and the index tells whether the data object is whole.

Raises InvalidRecord and nothing else, for any bytes; positions count from the first byte of the object. Must not know:
files, topics. Sources: Pulsar's DataBlockHeaderImpl, OffloadIndexBlockImpl, BookKeeper's DbLedgerMetadata.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from storage.errors import InvalidRecord
from storage.varints import read_unsigned_varint

BLOCK_HEADER_BYTES = 28
"""The bytes of a block's header that have a meaning; the rest is reserved."""
DAMAGED_REMEDY = "copy data and index object of the ledger again; without a whole copy it cannot be imported"

_DATA_MAGIC, _INDEX_MAGIC, _STREAMING_MAGIC, _PADDING = 0xFBDBABCB, 0xDE47DE47, 0x3D1FB0BC, 0xFEDCDEAD
_BLOCK = Struct(">Iqqq")
_INDEX = Struct(">IIqqII")
_ENTRY = Struct(">Iq")
_LAST_ENTRY_ID, _CUSTOM_METADATA = 4, 11
"""Fields of BookKeeper's LedgerMetadataFormat."""
_MANAGED_LEDGER = b"pulsar/managed-ledger"


class OffloadIndex(NamedTuple):
    """The content of the index object of an offloaded ledger. `data_bytes`: the size of its data object.
    `managed_ledger`: the ledger's topic as tenant/namespace/persistent/topic; empty: not stated."""

    data_bytes: int
    last_entry_id: int
    managed_ledger: str


class Block(NamedTuple):
    """A block of a data object: the positions of its first entry and of its end, and the id of that entry."""

    position: int
    end: int
    first_entry_id: int


class OffloadedEntry(NamedTuple):
    """An entry of an offloaded ledger. `end`: the position after it in the data object."""

    entry_id: int
    data: bytes
    end: int


def read_index(data: bytes) -> OffloadIndex:
    """Parse the index object of an offloaded ledger, and return its content. Raises InvalidRecord for any other
    object."""
    if len(data) < _INDEX.size:
        raise InvalidRecord(f"it has {len(data)} bytes, and an index has {_INDEX.size} and more", DAMAGED_REMEDY)
    magic, _, data_bytes, _, _, metadata_bytes = _INDEX.unpack_from(data)
    if magic == _STREAMING_MAGIC:
        raise InvalidRecord(
            "it is the index of a streaming offload, which holds parts of several ledgers",
            "offload the topic's ledgers as a whole, Pulsar's default, and import those objects",
        )
    if magic != _INDEX_MAGIC:
        raise InvalidRecord(f"it begins with {magic:#010x}, and an index with {_INDEX_MAGIC:#010x}", DAMAGED_REMEDY)
    metadata = data[_INDEX.size : _INDEX.size + metadata_bytes]
    last_entry_id, managed_ledger = -1, b""
    try:
        for field, value in _protobuf_fields(metadata):
            if field == _LAST_ENTRY_ID and isinstance(value, int):
                last_entry_id = value
            elif field == _CUSTOM_METADATA and isinstance(value, bytes):
                pair = dict(_protobuf_fields(value))
                if pair.get(1) == _MANAGED_LEDGER and isinstance(name := pair.get(2), bytes):
                    managed_ledger = name
    except IndexError as error:
        raise InvalidRecord("its ledger metadata cannot be read", DAMAGED_REMEDY) from error
    return OffloadIndex(data_bytes, last_entry_id, managed_ledger.decode(errors="backslashreplace"))


def read_block_header(data: bytes, position: int, size: int) -> Block:
    """Parse the header of a block; return the positions of the block. `data`: the header; `position`: its place in a
    data object of `size` bytes. Raises InvalidRecord for other bytes, and for a block that ends after the object."""
    if len(data) < _BLOCK.size:
        raise InvalidRecord(f"it ends inside the header of the block at position {position}", DAMAGED_REMEDY)
    magic, header_bytes, block_bytes, first_entry_id = _BLOCK.unpack_from(data)
    if magic != _DATA_MAGIC:
        raise InvalidRecord(
            f"it has {magic:#010x} at position {position}, where a block begins with {_DATA_MAGIC:#010x}",
            DAMAGED_REMEDY,
        )
    if not _BLOCK.size <= header_bytes <= block_bytes:
        raise InvalidRecord(
            f"the block at position {position} claims {block_bytes} bytes, {header_bytes} of them a header",
            DAMAGED_REMEDY,
        )
    if position + block_bytes > size:
        raise InvalidRecord(
            f"it ends at byte {size} inside the block at position {position}, which has {block_bytes} bytes",
            DAMAGED_REMEDY,
        )
    return Block(position + header_bytes, position + block_bytes, first_entry_id)


def read_entries(data: bytes, position: int) -> Iterator[OffloadedEntry]:
    """Yield the entries that are whole in `data`, up to padding or to an entry that is cut off. `position`: the place
    of `data` in the data object."""
    at = 0
    while at + _ENTRY.size <= len(data):
        size, entry_id = _ENTRY.unpack_from(data, at)
        end = at + _ENTRY.size + size
        if size == _PADDING or end > len(data):
            return
        yield OffloadedEntry(entry_id, data[at + _ENTRY.size : end], position + end)
        at = end


def first_entry_bytes(data: bytes) -> int | None:
    """Return the size of the entry at the start of `data`, with its header; None: `data` begins with padding, or is too
    short for the header of an entry."""
    if len(data) < _ENTRY.size:
        return None
    size = int(_ENTRY.unpack_from(data)[0])
    return None if size == _PADDING else _ENTRY.size + size


def _protobuf_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a protobuf message. Raises IndexError for bytes that are no such
    message."""
    at = 0
    while at < len(data):
        tag, at = read_unsigned_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_unsigned_varint(data, at)
            yield tag >> 3, value
            continue
        size, at = read_unsigned_varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, len(data) + 1), at)
        if at + size > len(data):
            raise IndexError("a field ends after its message")
        yield tag >> 3, data[at : at + size]
        at += size
