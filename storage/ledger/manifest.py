"""The manifest of a compacted ledger: the one object that says which parts and indexes it is made of.

JSON, written create-if-absent, never changed. `CompactedLedgerRecord` in SQL names it and vouches for its bytes; it
vouches for the footers of its parts and the fences of its indexes.

Invariants, checked whenever one is made or read: parts ascend by offset and do not overlap; nothing lies above the
horizon (P2, W1); counts add up. An empty list of parts is a valid compacted ledger.

The format has a place for what a later writer may use: `deleted` of a part is a bitmap of superseded rows inside a
shared object, `levels` of the index may be more than one, the newest first.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger.rows_file import RowsObject
from storage.metadata.records import IndexLocation, StoredObject
from storage.model import MessageId, Position
from storage.objects.interface import ObjectStore

FORMAT_VERSION = 1
_REMEDY = "restore the object from a backup, or see docs/operations.md on damaged ledgers"


@dataclass(frozen=True)
class DeletedRows:
    """A Roaring bitmap of the superseded rows of a part (row numbers), inside an object."""

    name: str
    offset: int
    length: int
    cardinality: int
    crc32c: int


@dataclass(frozen=True)
class Part:
    """A Parquet object of survivors, with what a reader needs to choose it. Positions are inclusive."""

    rows: RowsObject
    first: Position
    last: Position
    messages: int
    logical_bytes: int
    min_publish_time: int
    max_publish_time: int
    deleted: DeletedRows | None = None


@dataclass(frozen=True)
class Manifest:
    """A compacted ledger. `index`: levels, newest first; each a tuple of objects in hash order."""

    topic: str
    topic_uid: str
    ledger_id: int
    generation: int
    run_id: int
    created_at: int
    horizon: Position
    parts: tuple[Part, ...]
    index: tuple[tuple[IndexLocation, ...], ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            deleted = part.deleted.cardinality if part.deleted else 0
            # totals are added up from the parts, and readers are told them as the truth
            if not (0 <= deleted <= part.messages and 0 < part.messages <= part.last.offset - part.first.offset + 1):
                raise ValueError(
                    f"a part of compacted ledger {self.ledger_id} counts {part.messages} messages, {deleted} of them "
                    f"deleted, between offsets {part.first.offset} and {part.last.offset}"
                )
        for part, following in zip(self.parts, self.parts[1:], strict=False):
            # a reader walks parts in list order and stops at the first that lies past its position
            if part.last.offset >= following.first.offset:
                raise ValueError(f"parts of compacted ledger {self.ledger_id} overlap at offset {part.last.offset}")
        # a survivor above the horizon would be delivered twice: from here, then raw
        if self.parts and self.parts[-1].last.offset > self.horizon.offset:
            raise ValueError(f"compacted ledger {self.ledger_id} reaches past its horizon {self.horizon.offset}")

    @property
    def messages(self) -> int:
        """Messages that a reader of the compacted ledger gets."""
        return sum(part.messages - (part.deleted.cardinality if part.deleted else 0) for part in self.parts)

    @property
    def logical_bytes(self) -> int:
        """Logical bytes of all parts (S1)."""
        return sum(part.logical_bytes for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the parts and indexes in the store."""
        return sum(part.rows.stored.size for part in self.parts) + sum(
            location.length for level in self.index for location in level
        )

    def encode(self) -> bytes:
        """The manifest's bytes: JSON with sorted keys."""
        document = {
            "format_version": FORMAT_VERSION,
            "topic": self.topic,
            "topic_uid": self.topic_uid,
            "ledger_id": self.ledger_id,
            "generation": self.generation,
            "run_id": self.run_id,
            "created_at": self.created_at,
            "horizon": _position(self.horizon),
            "parts": [_part(part) for part in self.parts],
            "index": {"levels": [[_index(location) for location in level] for level in self.index]},
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        """The inverse of `encode`; `name` is for errors. Raises ObjectDamaged."""
        try:
            document = json.loads(data)
            if document["format_version"] != FORMAT_VERSION:
                raise ObjectDamaged(
                    f"the manifest {name} is of format version {document['format_version']}",
                    "use a newer compactor to read it",
                )
            return cls(
                topic=document["topic"],
                topic_uid=document["topic_uid"],
                ledger_id=document["ledger_id"],
                generation=document["generation"],
                run_id=document["run_id"],
                created_at=document["created_at"],
                horizon=_parse_position(document["horizon"]),
                parts=tuple(_parse_part(part) for part in document["parts"]),
                index=tuple(tuple(_parse_index(one) for one in level) for level in document["index"]["levels"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ObjectDamaged(f"the manifest {name} cannot be read ({error})", _REMEDY) from error


def write_manifest(store: ObjectStore, name: str, manifest: Manifest) -> StoredObject:
    """Write the manifest create-if-absent; what SQL must record of it."""
    data = manifest.encode()
    store.put(name, data)
    return StoredObject(name, len(data), crc32c(data))


def read_manifest(store: ObjectStore, stored: StoredObject) -> Manifest:
    """The manifest that a row names, checked. Raises ObjectMissing, ObjectDamaged."""
    data = store.get(stored.name, 0, stored.size)
    if crc32c(data) != stored.crc32c:
        raise ObjectDamaged(f"the manifest {stored.name} does not match its checksum", _REMEDY)
    return Manifest.decode(data, stored.name)


def _position(position: Position) -> dict[str, Any]:
    message_id = position.message_id
    return {
        "offset": position.offset,
        "ledger_id": message_id.ledger_id,
        "entry_id": message_id.entry_id,
        "partition": message_id.partition,
        "batch_index": message_id.batch_index,
    }


def _parse_position(value: dict[str, Any]) -> Position:
    message_id = MessageId(value["ledger_id"], value["entry_id"], value["partition"], value["batch_index"])
    return Position(value["offset"], message_id)


def _part(part: Part) -> dict[str, Any]:
    deleted = part.deleted
    return {
        "name": part.rows.stored.name,
        "size": part.rows.stored.size,
        "footer_size": part.rows.footer_size,
        "footer_crc32c": part.rows.stored.crc32c,
        "first": _position(part.first),
        "last": _position(part.last),
        "messages": part.messages,
        "logical_bytes": part.logical_bytes,
        "min_publish_time": part.min_publish_time,
        "max_publish_time": part.max_publish_time,
        "deleted": None
        if deleted is None
        else {
            "name": deleted.name,
            "offset": deleted.offset,
            "length": deleted.length,
            "cardinality": deleted.cardinality,
            "crc32c": deleted.crc32c,
        },
    }


def _parse_part(value: dict[str, Any]) -> Part:
    return Part(
        rows=RowsObject(StoredObject(value["name"], value["size"], value["footer_crc32c"]), value["footer_size"]),
        first=_parse_position(value["first"]),
        last=_parse_position(value["last"]),
        messages=value["messages"],
        logical_bytes=value["logical_bytes"],
        min_publish_time=value["min_publish_time"],
        max_publish_time=value["max_publish_time"],
        deleted=None if value["deleted"] is None else DeletedRows(**value["deleted"]),
    )


def _index(location: IndexLocation) -> dict[str, Any]:
    return {
        "name": location.name,
        "offset": location.offset,
        "length": location.length,
        "directory": base64.b64encode(location.directory).decode(),
    }


def _parse_index(value: dict[str, Any]) -> IndexLocation:
    directory = base64.b64decode(value["directory"], validate=True)
    return IndexLocation(value["name"], value["offset"], value["length"], directory)
