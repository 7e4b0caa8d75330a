"""The position of a replicated entry in the cluster that it comes from, in front of the entry in the log.

    0x0e02, size 20, field 100: ledger id, field 101: entry id

It is a broker entry metadata, whose two fields are numbers of eight bytes and those of no broker. So the position is in
the same frame as the entry, under one checksum, and one flush stores both. Readers of entries skip this part
(entry.py); it leaves the service with no entry. Rows have the position in the columns `source_ledger_id` and
`source_entry_id`.

Must not know: the metadata of entries.
"""

from __future__ import annotations

from struct import Struct

from storage.model import SourcePosition

_HEAD = b"\x0e\x02\x00\x00\x00\x14\xa1\x06"
_ENTRY_TAG = b"\xa9\x06"
_POSITION = Struct("<8sq2sq")


def with_position(entry: bytes, position: SourcePosition) -> bytes:
    """Return an entry with its position at the source cluster in front. `entry` has no broker entry metadata."""
    return _POSITION.pack(_HEAD, position.ledger_id, _ENTRY_TAG, position.entry_id) + entry


def position_of(entry: bytes) -> SourcePosition | None:
    """Return the position at the source cluster that is in front of an entry; None: it has none."""
    if not entry.startswith(_HEAD) or len(entry) < _POSITION.size:
        return None
    _, ledger_id, tag, entry_id = _POSITION.unpack_from(entry)
    return SourcePosition(ledger_id, entry_id) if tag == _ENTRY_TAG else None


def without_position(entry: bytes) -> bytes:
    """Return an entry without the source position in front of it, if it has one."""
    return entry[_POSITION.size :] if entry.startswith(_HEAD) and position_of(entry) is not None else entry
