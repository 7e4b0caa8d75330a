"""A folder of exports of a topic, on a disk or in S3: files of messages, and a manifest beside each.

    users-00000001.parquet   the messages of the first export
    users-00000001.json      its manifest: the position after it, format, columns
    users-00000002.parquet   what was appended since, upserts and deletions, in order

The files of a topic, in the order of their names, are its messages. A file is created whole or not at all, under a name
that had none; its manifest is created after it, so an export without a manifest did not end. Exports are never
overwritten.

Raises InvalidInput and Conflict for a folder that cannot take the export, and the object store's errors. Must not know:
topics, formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlsplit

import msgspec

from storage.errors import Conflict, InvalidInput, ObjectExists

if TYPE_CHECKING:
    from storage.objects.interface import ObjectStore, ObjectWriter

LAST = "last"
_POSITION = re.compile(r"(.+)@([0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True)
class ExportPosition:
    """A position in a topic, as export manifests store it: the token of a read, and the topic's incarnation (None: not
    known)."""

    token: str
    incarnation: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a position: a token, or `TOKEN@INCARNATION`."""
        match = _POSITION.fullmatch(text)
        return cls(text, None) if match is None else cls(match[1], match[2])

    @property
    def text(self) -> str:
        return self.token if self.incarnation is None else f"{self.token}@{self.incarnation}"


class ExportManifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The manifest of a finished export. `since` None: it begins at the topic's start; `position`: where the next one
    begins.

    `incarnation`: of the topic, which differs after it was deleted and created again. `deletions`: the messages with a
    key and without a value.
    """

    version: int = 1
    number: int
    topic: str
    incarnation: str
    read_compacted: bool
    format: str
    key_encoding: str
    value_encoding: str
    columns: list[str]
    file: str
    bytes: int
    messages: int
    deletions: int
    since: str | None
    position: str


class ExportFolder:
    """A folder with the exports of one topic. `name`: the topic's, without tenant and namespace; `label`: the folder's
    name in errors."""

    def __init__(self, store: ObjectStore, name: str, label: str) -> None:
        self._store = store
        self.label = label
        base = quote(name, safe=" !$&'()+,;=@")
        self._base = f"%2E{base[1:]}" if base.startswith(".") else base

    def last_manifest(self) -> ExportManifest | None:
        """Return the manifest of the newest export in the folder; None: there is none."""
        pattern = re.compile(rf"{re.escape(self._base)}-\d{{8}}\.json", re.ASCII)
        names = [stored.name for stored in self._store.list(f"{self._base}-") if pattern.fullmatch(stored.name)]
        if not names:
            return None
        try:
            return msgspec.json.decode(self._store.get(names[-1]), type=ExportManifest)
        except ValueError as error:
            raise InvalidInput(
                f"{names[-1]} in {self.label} is no manifest of an export ({error})",
                "restore it, or export into another folder",
            ) from error

    def file_name(self, number: int, suffix: str) -> str:
        """Return the name of the file of the export `number`."""
        return f"{self._base}-{number:08d}.{suffix}"

    def check_number_is_free(self, number: int) -> None:
        """Raise Conflict if the folder has a file of the export `number` already, of any format."""
        for stored in self._store.list(self.file_name(number, "")):
            raise self._conflict_error(stored.name)

    @contextmanager
    def create_file(self, name: str) -> Iterator[ObjectWriter]:
        """Yield the writer of a new file, which exists after a clean exit. Raises Conflict if another export created it
        first."""
        try:
            with self._store.create(name) as writer:
                yield writer
        except ObjectExists as error:
            raise self._conflict_error(name) from error

    def publish_manifest(self, manifest: ExportManifest) -> None:
        """Create the manifest of an export, which completes the export.

        Raises Conflict if another export created it first, and then deletes the file of this export.
        """
        name = self.file_name(manifest.number, "json")
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        try:
            self._store.put(name, text + b"\n")
        except ObjectExists as error:
            self._store.delete(manifest.file)
            raise Conflict(
                f"another export into {self.label} was first: {name} exists",
                "try again, with --since last for what was appended since",
            ) from error

    def _conflict_error(self, name: str) -> Conflict:
        return Conflict(
            f"{name} exists in {self.label} without a manifest that names it",
            "another export runs, or one was killed before its last step: if none runs, delete the file and try again",
        )


def folder_url(text: str) -> str:
    """Convert a folder, a path or `s3://bucket/prefix`, to the URL of an object store. Raises InvalidInput."""
    if text.startswith("s3://"):
        if not urlsplit(text).netloc:
            raise InvalidInput(f"{text} names no bucket", "write s3://bucket/prefix")
        return text.rstrip("/")
    if "://" in text or not text:
        raise InvalidInput(f"{text!r} is no folder to export to", "name a folder, or s3://bucket/prefix")
    if Path(text).exists() and not Path(text).is_dir():
        raise InvalidInput(f"{text} is a file, not a folder", "name a folder: it gets the files of the export")
    return Path(text).resolve().as_uri()
