"""An entry of a replicator, as Pulsar's geo-replication sends it ("repl V2"), and the form in which it is stored.

The sender adds two things to the metadata: `replicated_from`, the name of its cluster, and a property with the entry's
position there. The property would be shown to readers, and would make the metadata of each entry a different one, so
the position is stored in front of the entry instead (source_position.py), and the checksum is computed again.

A marker of a replicated subscription is a broker's own entry: it has a position, and nothing to store.

Must not know: the positions that were stored before. Source: Pulsar's GeoPersistentReplicator, MessageDeduplication.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage.entries.encode import encode_entry
from storage.entries.entry import parse_metadata, signed
from storage.entries.source_position import with_position
from storage.errors import InvalidRecord
from storage.model import SourcePosition

POSITION_PROPERTY = "__MSG_PROP_REPL_SOURCE_POSITION"
"""The property with the position at the source, `ledger:entry`."""
_POSITION = re.compile(r"([0-9]{1,19}):([0-9]{1,19})", re.ASCII)
_LARGEST = (1 << 63) - 1
_REMEDY = "replicate to this service from a broker of Pulsar 4.0 or newer; nothing of it was kept"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a replicated entry: the source cluster, and the entry's position there. `publish_time`: of the
    entry, ms. `is_marker`: it is not stored."""

    cluster: str
    position: SourcePosition
    publish_time: int
    is_marker: bool = False


def split_source(entry: bytes) -> tuple[Source, bytes]:
    """Separate the origin of an entry that a replicator sent from the entry as it is stored; return both. The entry of
    a marker is empty bytes.

    Raises InvalidRecord for an entry without position or `replicated_from`, and for one that cannot be parsed;
    ChecksumMismatch for a wrong checksum.
    """
    metadata, payload_at = parse_metadata(entry)
    cluster = metadata.replicated_from
    if not isinstance(cluster, str) or not cluster:
        raise InvalidRecord("an entry of a replicator does not name the cluster that it comes from", _REMEDY)
    numbers = [number for number, item in enumerate(metadata.properties) if item.key == POSITION_PROPERTY]
    value = metadata.properties[numbers[-1]].value if numbers else ""
    position = _parse_position(value)
    if position is None:
        what = f"gives its position there as {value[:64]!r}" if numbers else "does not have its position there"
        raise InvalidRecord(f"an entry that a replicator sent from the cluster {cluster!r} {what}", _REMEDY)
    if metadata.HasField("marker_type"):
        return Source(cluster, position, signed(metadata.publish_time), is_marker=True), b""
    for number in reversed(numbers):
        del metadata.properties[number]
    stored = with_position(encode_entry(metadata, memoryview(entry)[payload_at:]), position)
    return Source(cluster, position, signed(metadata.publish_time)), stored


def _parse_position(text: str) -> SourcePosition | None:
    match = _POSITION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    position = SourcePosition(int(match[1]), int(match[2]))
    return position if max(position) <= _LARGEST else None


def directly_follows(position: SourcePosition, before: SourcePosition) -> bool:
    """Return whether a position comes directly after `before`: no entry of the source can be between the two."""
    if position.ledger_id == before.ledger_id:
        return position.entry_id == before.entry_id + 1
    return position.ledger_id > before.ledger_id and position.entry_id == 0
