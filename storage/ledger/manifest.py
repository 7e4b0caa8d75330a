"""The manifest of a compacted ledger: the one object that lists its parts and indexes.

JSON, written create-if-absent, never changed. `CompactedLedgerRecord` in SQL names it and vouches for its bytes; it
vouches for the footers of its parts and the fences of its indexes.

Invariants, checked whenever one is created or read: parts ascend by offset and do not overlap; nothing is above the
horizon (P2, W1); counts add up, and no part is without a live row. An empty list of parts is a valid compacted ledger.

A run leaves most parts as they are: `deleted` of a part lists the rows that no longer count (storage/ledger/
deletion_bitmap.py). The key index is a list of levels, as in an LSM tree: each run adds one in front, and merges some.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.advice import damaged_object_advice
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger.chunk_table import ChunkTable
from storage.ledger.key_index import HashRange
from storage.model import IndexLocation, LogPosition, MessageId, RowsObject, StoredObject
from storage.objects.interface import ObjectStore

FORMAT_VERSION = 4
OLDER_VERSIONS = (2, 3)
"""Versions without `dropped_to`: of what such a generation has dropped, only tombstones are known."""

# The fields of each value that are numbers or texts, and are stored under their own names.
_PLAIN = ("topic", "topic_uid", "ledger_id", "generation", "run_id", "created_at", "frozen_at", "keys", "tombstones")
_PART_NUMBERS = (
    "messages",
    "logical_bytes",
    "min_publish_time",
    "max_publish_time",
    "offset_sum",
    "oldest_value",
    "oldest_tombstone",
    "first_tombstone",
)
_CHUNK_NUMBERS = ("pending", "oldest_value", "oldest_tombstone", "first_tombstone", "oldest_pending")


@dataclass(frozen=True)
class DeletedRows:
    """A Roaring bitmap of the superseded rows of a part (offsets less the part's first), inside an object."""

    name: str
    offset: int
    length: int
    cardinality: int
    crc32c: int


@dataclass(frozen=True)
class TableDeletes:
    """The delete file of a part in the topic's table. `part`: the name of the part; `cardinality`: of the hidden rows.

    `superseded`: the number of superseded rows among them.
    """

    part: str
    stored: StoredObject
    cardinality: int
    superseded: int


@dataclass(frozen=True)
class TableSnapshot:
    """The topic's Iceberg table, as of a snapshot (storage/table), whose id is `ledger_id`, and all objects of it.

    `ledger_id`: of the compacted ledger that the snapshot shows: an earlier one, if the table could not follow.
    `snapshots`: the compacted ledgers that `metadata` lists. `manifests`: the data manifest, then that of deletes, if
    there are any.
    """

    ledger_id: int
    format_version: int
    snapshots: tuple[int, ...]
    metadata: StoredObject
    manifest_list: StoredObject
    manifests: tuple[StoredObject, ...]
    deletes: tuple[TableDeletes, ...]

    @property
    def objects(self) -> Mapping[str, StoredObject]:
        """All objects of the snapshot besides the parts, by name."""
        deletes = (each.stored for each in self.deletes)
        return {each.name: each for each in (self.metadata, self.manifest_list, *self.manifests, *deletes)}


@dataclass(frozen=True)
class Part:
    """A Parquet object of survivors, with the facts by which a reader chooses it. Positions are inclusive.

    `messages`, `logical_bytes` and the times are of all its rows; `offset_sum` is the sum of the offsets of its live
    rows modulo 2⁶⁴. No live value was published before `oldest_value`, no live tombstone was first kept before
    `oldest_tombstone` or has a lower offset than `first_tombstone`; None: there is none of the kind. No live row at all
    was published before `oldest_row`; None: not computed, so it is `min_publish_time`.
    """

    rows: RowsObject
    first: LogPosition
    last: LogPosition
    messages: int
    logical_bytes: int
    min_publish_time: int
    max_publish_time: int
    deleted: DeletedRows | None = None
    offset_sum: int = 0
    oldest_value: int | None = None
    oldest_tombstone: int | None = None
    first_tombstone: int | None = None
    oldest_row: int | None = None

    @property
    def dead(self) -> int:
        """The number of rows that no longer count."""
        return self.deleted.cardinality if self.deleted else 0

    @property
    def live(self) -> int:
        """The number of rows that a reader gets."""
        return self.messages - self.dead


@dataclass(frozen=True)
class Manifest:
    """A compacted ledger. Raises ValueError if its parts overlap, pass the horizon, or have no live row. Times in ms.

    `index`: levels, newest first; each a tuple of objects in hash order. `frozen_at`: the time by which the run's
    policies were applied; `policies`: those policies. `dropped_to`: the highest offset of a message that a reader may
    miss in this generation: a tombstone or value that was the newest of its key and was removed, in this run or an
    earlier one, or a message that was trimmed before any run read it; -1: none. A reader that has read no further than
    `dropped_to` may hold a stale value. `keys`, `tombstones`: the numbers of live values with a key, and of retained
    tombstones. `chunks`: tables of all live chunks (P10). `table`: the topic's Iceberg table; None: it has
    none.
    """

    topic: str
    topic_uid: str
    ledger_id: int
    generation: int
    run_id: int
    created_at: int
    horizon: LogPosition
    parts: tuple[Part, ...]
    index: tuple[tuple[IndexLocation, ...], ...]
    frozen_at: int = 0
    policies: Mapping[str, Any] = field(default_factory=dict)
    dropped_to: int = -1
    keys: int = 0
    tombstones: int = 0
    chunks: tuple[ChunkTable, ...] = ()
    table: TableSnapshot | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            # totals are added up from the parts, and readers rely on them
            if not (0 <= part.dead < part.messages <= part.last.offset - part.first.offset + 1):
                raise ValueError(
                    f"a part of compacted ledger {self.ledger_id} counts {part.messages} messages, {part.dead} of them "
                    f"deleted, between offsets {part.first.offset} and {part.last.offset}"
                )
        for part, following in zip(self.parts, self.parts[1:], strict=False):
            # a reader walks parts in list order and stops at the first that is past its position
            if part.last.offset >= following.first.offset:
                raise ValueError(f"parts of compacted ledger {self.ledger_id} overlap at offset {part.last.offset}")
        # a survivor above the horizon would be delivered twice: from here, then raw
        if self.parts and self.parts[-1].last.offset > self.horizon.offset:
            raise ValueError(f"compacted ledger {self.ledger_id} reaches past its horizon {self.horizon.offset}")

    @property
    def messages(self) -> int:
        """The number of messages that a reader of the compacted ledger gets."""
        return sum(part.live for part in self.parts)

    @property
    def logical_bytes(self) -> int:
        """Logical bytes of all parts (S1)."""
        return sum(part.logical_bytes for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the parts, bitmaps, indexes and chunk tables in the store."""
        parts = sum(part.rows.stored.size + (part.deleted.length if part.deleted else 0) for part in self.parts)
        tables: int = sum(table.length for table in self.chunks)
        return parts + tables + sum(location.length for level in self.index for location in level)

    @property
    def object_names(self) -> set[str]:
        """The names of all objects that this manifest refers to."""
        names = {part.rows.stored.name for part in self.parts}
        names |= {part.deleted.name for part in self.parts if part.deleted}
        names |= {table.name for table in self.chunks}
        names |= set(self.table.objects) if self.table else set()
        return names | {location.name for level in self.index for location in level}

    def encode(self) -> bytes:
        """Return the manifest's bytes: JSON with sorted keys."""
        document: dict[str, Any] = {
            **{name: getattr(self, name) for name in _PLAIN},
            "format_version": FORMAT_VERSION,
            "horizon": _encode_position(self.horizon),
            "policies": dict(self.policies),
            "dropped_to": self.dropped_to,
            "parts": [_encode_part(part) for part in self.parts],
            "index": {"levels": [[_encode_index(location) for location in level] for level in self.index]},
        }
        if self.chunks:
            document["chunks"] = [_encode_chunk_table(table) for table in self.chunks]
        if self.table is not None:
            document["table"] = _encode_table(self.table)
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        """Parse a manifest, the inverse of `encode`. `name`: of its object, for the error. Raises ObjectDamaged."""
        try:
            document = json.loads(data)
            version = document["format_version"]
            if version not in (*OLDER_VERSIONS, FORMAT_VERSION):
                raise ObjectDamaged(
                    f"the manifest {name} is of format version {version}, not {OLDER_VERSIONS[0]} to {FORMAT_VERSION}",
                    "read it with the compactor that wrote it",
                    is_public=True,
                )
            horizon = _parse_position(document["horizon"])
            return cls(
                **{name: document[name] for name in _PLAIN},
                horizon=horizon,
                parts=tuple(_parse_part(part) for part in document["parts"]),
                index=tuple(tuple(_parse_index(item) for item in level) for level in document["index"]["levels"]),
                policies=document["policies"],
                dropped_to=horizon.offset if version in OLDER_VERSIONS else document["dropped_to"],
                chunks=tuple(_parse_chunk_table(item) for item in document.get("chunks", ())),
                table=_parse_table(document["table"]) if "table" in document else None,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ObjectDamaged(f"the manifest {name} cannot be read ({error})", damaged_object_advice(name)) from error


def write_manifest(store: ObjectStore, name: str, manifest: Manifest) -> StoredObject:
    """Write the manifest; return the object that SQL must record. Raises ObjectExists if there is one of that name."""
    data = manifest.encode()
    store.put(name, data)
    return StoredObject(name, len(data), crc32c(data))


def read_manifest(store: ObjectStore, stored: StoredObject) -> Manifest:
    """Read the manifest that a row names, and check its bytes. Raises ObjectMissing, ObjectDamaged."""
    data = store.get(stored.name, 0, stored.size)
    if crc32c(data) != stored.crc32c:
        raise ObjectDamaged(
            f"the manifest {stored.name} does not match its checksum",
            damaged_object_advice(stored.name),
            is_public=True,
        )
    return Manifest.decode(data, stored.name)


def _encode_position(position: LogPosition) -> dict[str, Any]:
    return {"offset": position.offset, **asdict(position.message_id)}


def _parse_position(value: dict[str, Any]) -> LogPosition:
    message_id = MessageId(value["ledger_id"], value["entry_id"], value["partition"], value["batch_index"])
    return LogPosition(value["offset"], message_id)


def _encode_part(part: Part) -> dict[str, Any]:
    check = {} if part.oldest_row is None else {"oldest_row": part.oldest_row}
    return {
        **check,
        **{name: getattr(part, name) for name in _PART_NUMBERS},
        "name": part.rows.stored.name,
        "size": part.rows.stored.size,
        "footer_size": part.rows.footer_size,
        "footer_crc32c": part.rows.stored.crc32c,
        "first": _encode_position(part.first),
        "last": _encode_position(part.last),
        "deleted": None if part.deleted is None else asdict(part.deleted),
    }


def _parse_part(value: dict[str, Any]) -> Part:
    return Part(
        rows=RowsObject(StoredObject(value["name"], value["size"], value["footer_crc32c"]), value["footer_size"]),
        first=_parse_position(value["first"]),
        last=_parse_position(value["last"]),
        deleted=None if value["deleted"] is None else DeletedRows(**value["deleted"]),
        oldest_row=value.get("oldest_row"),
        **{name: value[name] for name in _PART_NUMBERS},
    )


def _encode_index(location: IndexLocation) -> dict[str, Any]:
    return {
        "name": location.name,
        "offset": location.offset,
        "length": location.length,
        "directory": base64.b64encode(location.directory).decode(),
    }


def _parse_index(value: dict[str, Any]) -> IndexLocation:
    directory = base64.b64decode(value["directory"], validate=True)
    return IndexLocation(value["name"], value["offset"], value["length"], directory)


def _encode_chunk_table(table: ChunkTable) -> dict[str, Any]:
    named = {name: getattr(table, name) for name in ("name", "length", "crc32c", *_CHUNK_NUMBERS)}
    return named | {"bits": table.hash_range.bits, "prefix": table.hash_range.prefix}


def _parse_chunk_table(value: dict[str, Any]) -> ChunkTable:
    hash_range = HashRange(value["prefix"], value["bits"])
    numbers = {name: value[name] for name in _CHUNK_NUMBERS}
    return ChunkTable(value["name"], value["length"], value["crc32c"], hash_range, **numbers)


def _encode_table(table: TableSnapshot) -> dict[str, Any]:
    return {
        "ledger_id": table.ledger_id,
        "format_version": table.format_version,
        "snapshots": list(table.snapshots),
        "metadata": asdict(table.metadata),
        "list": asdict(table.manifest_list),
        "manifests": [asdict(manifest) for manifest in table.manifests],
        "deletes": [
            asdict(each.stored) | {"part": each.part, "cardinality": each.cardinality, "superseded": each.superseded}
            for each in table.deletes
        ],
    }


def _parse_table(value: dict[str, Any]) -> TableSnapshot:
    return TableSnapshot(
        ledger_id=value["ledger_id"],
        format_version=value["format_version"],
        snapshots=tuple(value["snapshots"]),
        metadata=_parse_stored(value["metadata"]),
        manifest_list=_parse_stored(value["list"]),
        manifests=tuple(_parse_stored(item) for item in value["manifests"]),
        deletes=tuple(
            TableDeletes(item["part"], _parse_stored(item), item["cardinality"], item["superseded"])
            for item in value["deletes"]
        ),
    )


def _parse_stored(value: dict[str, Any]) -> StoredObject:
    return StoredObject(value["name"], value["size"], value["crc32c"])
