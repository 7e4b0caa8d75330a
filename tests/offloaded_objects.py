"""Objects of an offloaded ledger, as Pulsar's offloader writes them: blocks of entries, and the index."""

from __future__ import annotations

import struct
from collections.abc import Sequence

HEADER_BYTES = 128
PADDING = b"\xfe\xdc\xde\xad"


def data_object(entries: Sequence[bytes], block_bytes: int) -> bytes:
    """The data object: blocks of `block_bytes`, an entry whole in one of them; the last block ends with its entry."""
    blocks: list[tuple[int, bytes]] = []
    for entry_id, entry in enumerate(entries):
        stored = struct.pack(">iq", len(entry), entry_id) + entry
        assert HEADER_BYTES + len(stored) <= block_bytes
        if not blocks or HEADER_BYTES + len(blocks[-1][1]) + len(stored) > block_bytes:
            blocks.append((entry_id, b""))
        first, content = blocks.pop()
        blocks.append((first, content + stored))
    data = b""
    for number, (first, content) in enumerate(blocks):
        size = block_bytes if number + 1 < len(blocks) else HEADER_BYTES + len(content)
        header = struct.pack(">Iqqq", 0xFBDBABCB, HEADER_BYTES, size, first).ljust(HEADER_BYTES, b"\0")
        missing = size - HEADER_BYTES - len(content)
        data += header + content + (PADDING * (missing // 4 + 1))[:missing]
    return data


def index_object(data_bytes: int, last_entry_id: int, managed_ledger: str) -> bytes:
    """The index object, without the places of blocks. `last_entry_id` is below 128."""
    name, value = b"pulsar/managed-ledger", managed_ledger.encode()
    pair = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(value)]) + value
    metadata = b"\x08\x01\x10\x01\x20" + bytes([last_entry_id]) + b"\x5a" + bytes([len(pair)]) + pair
    size = 32 + len(metadata)
    return struct.pack(">IIqqII", 0xDE47DE47, size, data_bytes, HEADER_BYTES, 0, len(metadata)) + metadata
