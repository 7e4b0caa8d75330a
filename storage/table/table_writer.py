"""Writing a snapshot of a topic's table: the metadata of a new compacted ledger, beside its parts.

Everything derives from the manifest of the new compacted ledger and from the table as the previous one left it, so a
snapshot can be built again at any time. Nothing refers to the written objects until the manifest does that names them
(`Manifest.table`): a run that dies before leaves garbage of its attempt, and the table as it was.

A part is a data file; a part whose rows are all hidden is none. A kept part keeps its entry, its row ids, and its
delete file, unless more of its rows are superseded: then a new delete file with all its hidden rows replaces the old
one. Rows that a run copied into a new part get new row ids.

Memory: the entries of all parts, and the hidden rows of a few parts at a time.

A table whose earlier objects are lost or damaged is not continued: a new history begins.

Errors: Conflict for chunked messages, which no row holds whole; ObjectMissing, ObjectDamaged, any error of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
from pyroaring import BitMap

from storage.advice import damaged_object_advice
from storage.ahead import run_ahead
from storage.checksums import crc32c
from storage.errors import Conflict, DataLoss, ObjectDamaged
from storage.failpoints import Failpoint, failpoint
from storage.ledger import names
from storage.ledger.deletion_bitmap import read_deleted_rows
from storage.ledger.manifest import Manifest, Part, TableDeletes, TableSnapshot
from storage.ledger.rows_file import RowsReader
from storage.model import StoredObject
from storage.objects.interface import ObjectStore
from storage.table import deletes, hidden_rows
from storage.table.manifests import (
    EntryStatus,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    decode_live_entries,
    decode_manifest_list,
    encode_manifest,
    encode_manifest_list,
    manifest_file,
)
from storage.table.metadata import Snapshot, TableMetadata, initial_metadata, next_metadata

_log = logging.getLogger(__name__)
_MAPS = ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")


@dataclass(frozen=True)
class TablePolicies:
    """Policies of a table. `format_version`: Iceberg's: 3 with deletion vectors, 2 with position deletes.

    `max_age_ms`, `max_snapshots`: see `metadata.next_metadata`.
    """

    format_version: int
    max_age_ms: int
    max_snapshots: int


@dataclass(frozen=True)
class _PreviousTable:
    """The table before a snapshot: its metadata, and its live files by the URI of the part.

    `metadata_uri` None: there is no table yet. `recorded`: the delete files, by the name of the part.
    """

    metadata: TableMetadata
    metadata_uri: str | None = None
    data: Mapping[str, ManifestEntry] = field(default_factory=dict)
    deletes: Mapping[str, ManifestEntry] = field(default_factory=dict)
    recorded: Mapping[str, TableDeletes] = field(default_factory=dict)


@dataclass(frozen=True)
class _PartFiles:
    """The files of a part in the new snapshot. `deletes` None: no row is hidden, or all are."""

    uri: str
    data: ManifestEntry
    hidden: int
    deletes: tuple[ManifestEntry, TableDeletes] | None = None

    @property
    def shown_rows(self) -> int:
        """The number of rows that the table shows."""
        return self.data.record_count - self.hidden


def object_uri(store: ObjectStore, name: str) -> str:
    """Return the URI of an object, or of a prefix of names, as Iceberg's readers open it: not percent-encoded."""
    url = store.url.rstrip("/")
    return f"{unquote(url) if url.startswith('file:') else url}/{name}"


def read_table_metadata(store: ObjectStore, stored: StoredObject) -> TableMetadata:
    """Read a metadata file, and check its bytes. Raises ObjectMissing, ObjectDamaged."""
    with _DecodeErrorTranslation(stored.name):
        return TableMetadata.decode(_read_checked(store, stored))


def write_table(
    store: ObjectStore, manifest: Manifest, attempt_id: str, policies: TablePolicies, previous: TableSnapshot | None
) -> TableSnapshot:
    """Write a snapshot that shows a compacted ledger; return it for the ledger's manifest.

    `manifest`: of the compacted ledger, whose parts exist. `previous`: the table before; None: there is none. A table
    of another format version, or of a store that was at another place, is not continued: a new history begins.
    """
    if manifest.chunks:
        raise Conflict(
            f"the table of {manifest.topic} cannot show its chunked messages, of which each chunk is a row",
            "read the topic itself; the table follows again after a run that removes the last chunk",
        )
    return _TableWriter(store, manifest, attempt_id, policies, previous).write()


class _TableWriter:
    """The writer of one snapshot."""

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        attempt_id: str,
        policies: TablePolicies,
        previous: TableSnapshot | None,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._attempt_id = attempt_id
        self._policies = policies
        self._version = policies.format_version
        location = object_uri(store, names.topic_prefix(manifest.topic_uid)).rstrip("/")
        self._previous = _PreviousTable(initial_metadata(self._version, manifest.topic, manifest.topic_uid, location))
        if previous is not None and previous.format_version == self._version:
            try:
                metadata = read_table_metadata(store, previous.metadata)
                if metadata.document["location"] == location:
                    self._previous = self._read_previous_table(previous, metadata)
            except DataLoss as error:
                _log.warning("the table of %s begins a new history: %s", manifest.topic, error)

    def _read_previous_table(self, table: TableSnapshot, metadata: TableMetadata) -> _PreviousTable:
        with _DecodeErrorTranslation(table.manifest_list.name):
            listed = {each.uri: each for each in decode_manifest_list(_read_checked(self._store, table.manifest_list))}
        files: dict[ManifestContent, dict[str, ManifestEntry]] = {ManifestContent.DATA: {}, ManifestContent.DELETES: {}}
        for stored in table.manifests:
            with _DecodeErrorTranslation(stored.name):
                record = listed[object_uri(self._store, stored.name)]
                for entry in decode_live_entries(_read_checked(self._store, stored), record):
                    part = "file_path" if record.content is ManifestContent.DATA else "referenced_data_file"
                    files[record.content][entry.file[part]] = entry
        recorded = {each.part: each for each in table.deletes}
        if not {object_uri(self._store, part) for part in recorded} <= files[ManifestContent.DELETES].keys():
            name = table.manifest_list.name
            raise ObjectDamaged(f"{name} of a table lacks a file of hidden rows", damaged_object_advice(name))
        uri = object_uri(self._store, table.metadata.name)
        return _PreviousTable(metadata, uri, files[ManifestContent.DATA], files[ManifestContent.DELETES], recorded)

    def write(self) -> TableSnapshot:
        failpoint(Failpoint.TABLE_BEFORE_PUTS)
        calls = (partial(self._write_part_files, number, part) for number, part in enumerate(self._manifest.parts))
        files = [each for each in run_ahead(calls, self._store.concurrent_requests) if each.shown_rows]
        data, delete_entries = self._data_entries(files), self._delete_entries(files)
        first_row_id = self._previous.metadata.next_row_id
        stored_manifests, listed = [], []
        for content, entries in ((ManifestContent.DATA, data), (ManifestContent.DELETES, delete_entries)):
            if entries:
                stored, record = self._put_manifest(content, entries, first_row_id)
                stored_manifests.append(stored)
                listed.append(record)
        stored_list = self._put_manifest_list(listed, first_row_id)
        metadata = self._next_metadata(stored_list, files, data, delete_entries, first_row_id)
        name = names.table_metadata(self._manifest.topic_uid, self._attempt_id, self._manifest.generation)
        stored_metadata = self._put_object(name, metadata.encode())
        failpoint(Failpoint.TABLE_PUT)
        return TableSnapshot(
            ledger_id=self._manifest.ledger_id,
            format_version=self._version,
            snapshots=tuple(each["snapshot-id"] for each in metadata.snapshots),
            metadata=stored_metadata,
            manifest_list=stored_list,
            manifests=tuple(stored_manifests),
            deletes=tuple(each.deletes[1] for each in files if each.deletes is not None),
        )

    def _write_part_files(self, number: int, part: Part) -> _PartFiles:
        """Return the files of a part. Write its delete file, if it needs a new one."""
        uri = object_uri(self._store, part.rows.stored.name)
        data, recorded = self._previous.data.get(uri), self._previous.recorded.get(part.rows.stored.name)
        superseded, hidden_before = (recorded.superseded, recorded.cardinality) if recorded is not None else (0, 0)
        if data is not None and superseded == part.dead:
            kept = None if recorded is None else (self._previous.deletes[uri], recorded)
            return _PartFiles(uri, data, hidden_before, kept)
        reader = RowsReader(self._store, part.rows)
        if data is None:
            hidden = hidden_rows.positions_of_unshown_rows(self._store, reader)
        else:
            hidden = BitMap() if recorded is None else self._previous_hidden_rows(uri, recorded, reader)
        if part.deleted is not None:
            relative = np.frombuffer(read_deleted_rows(self._store, part).to_array(), dtype=np.uint32)
            offsets = relative.astype(np.int64) + part.first.offset
            hidden |= hidden_rows.positions_of_offsets(self._store, reader, offsets)
        data = data or ManifestEntry(
            EntryStatus.ADDED, self._manifest.ledger_id, None, self._data_file_record(uri, part, reader)
        )
        if not hidden or len(hidden) == part.messages:
            return _PartFiles(uri, data, len(hidden))
        return _PartFiles(uri, data, len(hidden), self._put_delete_file(number, uri, part, hidden))

    def _data_file_record(self, uri: str, part: Part, reader: RowsReader) -> dict[str, Any]:
        return {
            "content": int(ManifestContent.DATA),
            "file_path": uri,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": part.messages,
            "file_size_in_bytes": part.rows.stored.size,
            "sort_order_id": 0,
            "first_row_id": None,
            **hidden_rows.part_statistics(reader),
        }

    def _previous_hidden_rows(self, uri: str, recorded: TableDeletes, reader: RowsReader) -> BitMap:
        """Return the hidden rows of a part in the table before.

        If the delete file is lost, return those that no deletion bitmap has: the caller adds the others.
        """
        try:
            return self._read_delete_file(self._previous.deletes[uri], recorded)
        except DataLoss as error:
            _log.warning("the hidden rows of a part of %s are found again: %s", self._manifest.topic, error)
            return hidden_rows.positions_of_unshown_rows(self._store, reader)

    def _read_delete_file(self, entry: ManifestEntry, recorded: TableDeletes) -> BitMap:
        data = _read_checked(self._store, recorded.stored)
        with _DecodeErrorTranslation(recorded.stored.name):
            if self._version < 3:
                return deletes.decode_position_deletes(data)
            start, length = entry.file["content_offset"], entry.file["content_size_in_bytes"]
            return deletes.decode_deletion_vector(data[start : start + length])

    def _put_delete_file(self, number: int, uri: str, part: Part, hidden: BitMap) -> tuple[ManifestEntry, TableDeletes]:
        """Write the delete file of a part; return its entry, and its member of the manifest."""
        file: dict[str, Any] = {
            "content": int(ManifestContent.DELETES),
            "partition": {},
            "record_count": len(hidden),
            # pyiceberg shows no manifest in which these are null
            **{name: [] for name in _MAPS},
            "referenced_data_file": uri,
        }
        if self._version >= 3:
            data, start, length = deletes.encode_puffin(uri, hidden)
            file |= {"file_format": "PUFFIN", "content_offset": start, "content_size_in_bytes": length}
        else:
            data = deletes.encode_position_deletes(uri, hidden)
            bound = [{"key": deletes.FILE_PATH_ID, "value": uri.encode()}]
            file |= {"file_format": "PARQUET", "lower_bounds": bound, "upper_bounds": bound}
        suffix = "puffin" if self._version >= 3 else "parquet"
        name = names.table_deletes(self._manifest.topic_uid, self._attempt_id, number, suffix)
        stored = self._put_object(name, data)
        file |= {"file_path": object_uri(self._store, name), "file_size_in_bytes": stored.size}
        entry = ManifestEntry(EntryStatus.ADDED, self._manifest.ledger_id, None, file)
        return entry, TableDeletes(part.rows.stored.name, stored, len(hidden), part.dead)

    def _data_entries(self, files: Sequence[_PartFiles]) -> list[ManifestEntry]:
        present = {each.uri for each in files}
        removed = [self._as_deleted(entry) for uri, entry in self._previous.data.items() if uri not in present]
        return [*(each.data for each in files), *removed]

    def _delete_entries(self, files: Sequence[_PartFiles]) -> list[ManifestEntry]:
        present = {each.uri: each.deletes[0] for each in files if each.deletes is not None}
        removed = [self._as_deleted(old) for uri, old in self._previous.deletes.items() if present.get(uri) is not old]
        return [*present.values(), *removed]

    def _as_deleted(self, entry: ManifestEntry) -> ManifestEntry:
        return replace(entry, status=EntryStatus.DELETED, snapshot_id=self._manifest.ledger_id)

    def _put_manifest(
        self, content: ManifestContent, entries: Sequence[ManifestEntry], first_row_id: int
    ) -> tuple[StoredObject, ManifestFile]:
        topic_uid, ledger_id = self._manifest.topic_uid, self._manifest.ledger_id
        name = names.table_manifest(topic_uid, self._attempt_id, content.name.lower(), ledger_id)
        stored = self._put_object(name, encode_manifest(self._version, content, entries))
        has_row_ids = self._version >= 3 and content is ManifestContent.DATA
        record = manifest_file(
            object_uri(self._store, name),
            stored.size,
            content,
            ledger_id,
            self._manifest.generation,
            first_row_id if has_row_ids else None,
            entries,
        )
        return stored, record

    def _put_manifest_list(self, listed: Sequence[ManifestFile], first_row_id: int) -> StoredObject:
        before, ledger_id = self._previous.metadata, self._manifest.ledger_id
        parent = before.snapshot_id if before.snapshots else None
        data = encode_manifest_list(self._version, ledger_id, parent, self._manifest.generation, first_row_id, listed)
        return self._put_object(names.table_snapshot(self._manifest.topic_uid, self._attempt_id, ledger_id), data)

    def _next_metadata(
        self,
        stored_list: StoredObject,
        files: Sequence[_PartFiles],
        data: Sequence[ManifestEntry],
        delete_entries: Sequence[ManifestEntry],
        first_row_id: int,
    ) -> TableMetadata:
        added = [entry for entry in data if entry.status is EntryStatus.ADDED]
        changed = [entry for entry in (*data, *delete_entries) if entry.status is EntryStatus.DELETED]
        changed += [entry for entry in delete_entries if entry.status is EntryStatus.ADDED]
        snapshot = Snapshot(
            snapshot_id=self._manifest.ledger_id,
            sequence_number=self._manifest.generation,
            created_at=self._manifest.created_at,
            manifest_list=object_uri(self._store, stored_list.name),
            operation="overwrite" if changed else "append",
            summary=self._snapshot_summary(files, added),
            first_row_id=first_row_id,
            added_rows=sum(entry.record_count for entry in added),
        )
        return next_metadata(
            self._previous.metadata,
            self._previous.metadata_uri,
            snapshot,
            self._policies.max_age_ms,
            self._policies.max_snapshots,
        )

    def _snapshot_summary(self, files: Sequence[_PartFiles], added: Sequence[ManifestEntry]) -> dict[str, str]:
        manifest = self._manifest
        superseded = sum(part.dead for part in manifest.parts)
        visible = sum(each.shown_rows for each in files)
        numbers = {
            "added-data-files": len(added),
            "added-records": sum(entry.record_count for entry in added),
            "total-data-files": len(files),
            "total-records": sum(each.data.record_count for each in files),
            "total-delete-files": sum(each.deletes is not None for each in files),
            "total-position-deletes": sum(each.hidden for each in files),
            "total-equality-deletes": 0,
            "compactor.horizon-offset": manifest.horizon.offset,
            "compactor.run-id": manifest.run_id,
            "compactor.generation": manifest.generation,
            "compactor.hidden-superseded": superseded,
            "compactor.hidden-tombstones": manifest.tombstones,
            "compactor.hidden-not-messages": manifest.messages - manifest.tombstones - visible,
        }
        return {name: str(number) for name, number in numbers.items()}

    def _put_object(self, name: str, data: bytes) -> StoredObject:
        self._store.put(name, data)
        return StoredObject(name, len(data), crc32c(data))


class _DecodeErrorTranslation:
    """A context in which an error in the bytes of an object is ObjectDamaged."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | OSError):
            raise ObjectDamaged(
                f"{self._name} of a table cannot be read ({error})", damaged_object_advice(self._name)
            ) from error


def _read_checked(store: ObjectStore, stored: StoredObject) -> bytes:
    data = store.get(stored.name, 0, stored.size)
    if crc32c(data) != stored.crc32c:
        raise ObjectDamaged(
            f"{stored.name} of a table does not match its checksum", damaged_object_advice(stored.name), is_public=True
        )
    return data
