"""Files of other systems, on a disk or in S3, as the readers of an import need them: listed, and read by ranges.

A path is a file, a folder with files or with folders of files, or `s3://bucket/prefix` for one object or all objects of
a prefix. Only the first level of folders below a path is listed: a folder of a topic's partitions, not a whole disk.

Raises InvalidInput for a path that cannot be read, and the object store's errors. Must not know: formats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from api.formats.inputs import check_file
from storage.errors import InvalidInput, InvalidRecord

if TYPE_CHECKING:
    from storage.objects.interface import ObjectStore

_S3 = "s3://"


@dataclass(frozen=True)
class InputFile:
    """A file of an import, on a disk or in S3. `name`: as an error states it; `folder`, `base`: of its path;
    `read(start, length)` returns its bytes.

    `is_named`: a user named this file, not a folder that contains it.
    """

    name: str
    folder: str
    base: str
    size: int
    is_named: bool
    read: Callable[[int, int], bytes] = field(compare=False, repr=False)

    def read_all(self) -> bytes:
        """Return all bytes of the file. For small files."""
        return self.read(0, self.size)


@contextmanager
def open_paths(paths: list[str], s3_endpoint: str | None) -> Iterator[list[InputFile]]:
    """Yield the files of `paths`, in the order of the paths, and by name below a path.

    Raises InvalidInput for a path without a file; the store's errors.
    """
    stores: dict[str, ObjectStore] = {}
    try:
        files = []
        for path in paths:
            below = list(_object_files(path, s3_endpoint, stores) if path.startswith(_S3) else _local_files(path))
            if not below:
                raise InvalidInput(f"{path} has no files", "name a file, or a folder that has files")
            files += below
        yield files
    finally:
        for store in stores.values():
            store.close()


def _local_files(path: str) -> Iterator[InputFile]:
    root = Path(path)
    if not root.is_dir():
        check_file(path)
        yield _local_file(root, is_named=True)
        return
    try:
        for entry in sorted(root.iterdir()):
            if entry.is_file():
                yield _local_file(entry, is_named=False)
            elif entry.is_dir():
                yield from (_local_file(file, is_named=False) for file in sorted(entry.iterdir()) if file.is_file())
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be listed ({error.strerror})", "check its permissions, or name files"
        ) from error


def _local_file(path: Path, *, is_named: bool) -> InputFile:
    def read(start: int, length: int) -> bytes:
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                data = stream.read(length)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read ({error.strerror})", "check the file and its disk") from error
        if len(data) != length:
            raise InvalidRecord(
                f"{path} ends at byte {start + len(data)}, and had {size} bytes before",
                "a program changes it: import a copy of it",
            )
        return data

    size = path.stat().st_size
    return InputFile(str(path), os.path.basename(os.path.abspath(path.parent)), path.name, size, is_named, read)


def _object_files(path: str, s3_endpoint: str | None, stores: dict[str, ObjectStore]) -> Iterator[InputFile]:
    from storage.objects.interface import StoreLocation
    from storage.objects.registry import open_store

    parts = urlsplit(path)
    bucket = f"{_S3}{parts.netloc}"
    if bucket not in stores:
        stores[bucket] = open_store(StoreLocation(bucket, s3_endpoint))
    store = stores[bucket]
    name = parts.path.strip("/")
    below = f"{name}/" if name else ""
    for info in store.list(name):
        is_named = info.name == name
        inside = info.name.removeprefix(below)
        if is_named or (info.name.startswith(below) and inside.count("/") <= 1):
            folder, _, base = info.name.rpartition("/")
            yield InputFile(
                f"{bucket}/{info.name}",
                folder.rpartition("/")[2],
                base,
                info.size,
                is_named,
                partial(store.get, info.name),
            )
