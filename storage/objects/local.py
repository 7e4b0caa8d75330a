"""Objects as files below one folder of a local, or POSIX-like mounted, file system.

An object is written to a file of a random name in the hidden folder `.tmp` of the same root, made durable, and then
hard-linked to its name: a link fails if the name is taken and shows a whole file or none, so it is create-if-absent and
atomic in one call. Then its folder is made durable. A process that dies leaves at most a file in `.tmp`; the process
that writes such a file locks it (flock), so the next store to write here recognizes dead ones and removes them.

Folders appear with the first object below them and stay when the last one is deleted: removing them would race with
writers, and would invalidate `_durable_folders`.

Errors: no space or quota (`StorageFull`), no permission or a file system without hard links (`Misconfigured`), a
failing disk (`Unavailable`). After any failure no object and no temporary file remains. A name cannot be both an object
and the folder of another (`InvalidInput`); names of storage/ledger never are.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from storage.advice import missing_object_advice, truncated_object_advice
from storage.errors import (
    CompactorError,
    InvalidInput,
    Misconfigured,
    ObjectDamaged,
    ObjectExists,
    ObjectMissing,
    StorageFull,
    Unavailable,
)
from storage.failpoints import Failpoint, failpoint
from storage.file_modes import create_folder_like_parent, create_private_folder, file_mode_in, sync_folder
from storage.objects.capability_check import CapabilityReport, check_capabilities
from storage.objects.interface import (
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    StoreLocation,
    check_object_name,
    check_range,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY_FOLDER = ".tmp"
WRITE_BACK_BYTES = 8 << 20
"""The bytes after which the kernel starts writing them to the disk.

Measured on ext4, 512 MiB written at 200 MiB/s: the final fsync takes 3 ms so, 150 ms otherwise; a call up to 2 ms.
"""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BAD_NAME = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP}
_REMEDIES: tuple[tuple[set[int], type[CompactorError], str], ...] = (
    (_FULL, StorageFull, "free space or raise the quota, then try again"),
    (_BAD_NAME, InvalidInput, "choose a name that is not a folder of other objects, nor below an object"),
    (_REFUSED, Misconfigured, "let this user write there, on a file system with hard links, or choose another folder"),
)
"""The kind of error, and the remedy, of the system's error numbers; all others are Unavailable."""


class LocalStore(ObjectStore):
    """The objects below the folder `root`, an absolute path, which is created with the first object."""

    preferred_read_bytes = 0
    can_vanish = True

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise Misconfigured(f"folder {str(root)!r} of the object store is not absolute", "give an absolute path")
        self.root = root
        self._temporary = root / TEMPORARY_FOLDER
        self._durable_folders: set[Path] = set()
        self._swept = False

    @classmethod
    def at(cls, location: StoreLocation) -> LocalStore:
        """Return the store of a `file:///folder` URL. Raises Misconfigured for another URL."""
        parts = urlsplit(location.url)
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
            raise Misconfigured(f"store URL {location.url!r} names no local folder", "write file:///absolute/folder")
        return cls(Path(path))

    @property
    def location(self) -> StoreLocation:
        return StoreLocation(self.root.as_uri())

    def put(self, name: str, data: Buffer) -> None:
        with self.create(name) as writer:
            writer.write(data)

    def create(self, name: str) -> ObjectWriter:
        return _LocalWriter(self, check_object_name(name))

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(name, start, length)
        with self._open_object(name) as (descriptor, size):
            end = size if length is None else start + length
            pieces, position = [], start
            while position < end and (piece := os.pread(descriptor, end - position, position)):
                pieces.append(piece)
                position += len(piece)
        if position < end or start > size:
            raise self._too_short_error(name, size, start, length)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """Read into `target`, without newly allocated memory, whose pages the kernel would have to clear first."""
        check_range(name, start, len(target))
        with self._open_object(name) as (descriptor, size):
            filled = 0
            while filled < len(target) and (more := os.preadv(descriptor, [target[filled:]], start + filled)):
                filled += more
        if filled < len(target):
            raise self._too_short_error(name, size, start, len(target))

    @contextmanager
    def _open_object(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the open file of an object, and its size."""
        with self._translating_errors(name, "read"):
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield descriptor, _regular_size(os.fstat(descriptor), name, self.url)
            finally:
                os.close(descriptor)

    def _too_short_error(self, name: str, size: int, start: int, length: int | None) -> ObjectDamaged:
        return ObjectDamaged(
            f"object {name} in {self.url} has {size} bytes, too few for start={start} length={length}",
            truncated_object_advice(name, self.url),
        )

    def size(self, name: str) -> int:
        with self._translating_errors(name, "read"):
            return _regular_size(os.stat(self._path(name)), name, self.url)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._translating_errors(prefix + "*", "list"):
            yield from self._walk_objects("", prefix)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._translating_errors(name, "delete"), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    def check_capabilities(self) -> CapabilityReport:
        return check_capabilities(self, streamed=self)

    def _path(self, name: str) -> Path:
        return self.root / check_object_name(name)

    def _walk_objects(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yield objects depth first, a folder at the place of its name with the slash: the order of the whole names."""
        try:
            with os.scandir(self.root / folder) as scan:
                entries = [
                    (folder + entry.name + ("/" if entry.is_dir() else ""), entry)
                    for entry in scan
                    if not entry.name.startswith(".")
                ]
        except FileNotFoundError:
            return
        for name, entry in sorted(entries, key=lambda pair: pair[0]):
            if name.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk_objects(name, prefix)
            elif name.startswith(prefix):
                with suppress(FileNotFoundError):  # deleted since the folder was read
                    status = entry.stat()
                    yield ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def _open_temporary(self) -> tuple[int, Path]:
        """Return a new, locked file in the hidden folder."""
        self._make_durable_folder(self._temporary)
        if not self._swept:
            self._swept = True
            self._remove_dead_temporary_files()
        while True:
            path = self._temporary / uuid.uuid4().hex
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, file_mode_in(path.parent))
            with suppress(OSError):  # a file system without locks: no process can lock, so none sweeps
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)  # swept between its creation and its lock

    def _remove_dead_temporary_files(self) -> None:
        """Remove the temporary files of dead processes: those that no process has locked."""
        for leftover in os.listdir(self._temporary):
            path = self._temporary / leftover
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(descriptor)

    def _make_durable_folder(self, folder: Path) -> None:
        """Create the folder if needed, and make it durable, whichever process created it."""
        if folder in self._durable_folders:
            return
        if folder != self.root:
            self._make_durable_folder(folder.parent)
            with suppress(FileExistsError):
                create_folder_like_parent(folder)
            sync_folder(folder.parent)
        elif not folder.is_dir():
            create_private_folder(folder)
            for parent in folder.parents:
                with suppress(PermissionError):  # this user may not open folders far above
                    sync_folder(parent)
        self._durable_folders.add(folder)

    def publish(self, temporary: Path, name: str) -> None:
        """Give a durable temporary file the name `name`, durably. Raises ObjectExists if the name is taken; OSError."""
        path = self._path(name)
        self._make_durable_folder(path.parent)
        try:
            os.link(temporary, path)
        except FileExistsError:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is the folder of other objects", str(path)) from None
            raise ObjectExists(
                f"object {name} exists already in {self.url}", "read it, or write under another name"
            ) from None
        try:
            failpoint(Failpoint.LOCAL_LINKED)
            sync_folder(path.parent)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise
        failpoint(Failpoint.LOCAL_FOLDER_SYNCED)

    @contextmanager
    def _translating_errors(self, name: str, verb: str) -> Iterator[None]:
        """Turn the system's errors into the project's."""
        try:
            yield
        except OSError as error:
            if verb == "read" and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise ObjectMissing(
                    f"object {name} does not exist in {self.url}",
                    missing_object_advice(name, self.url),
                ) from error
            if isinstance(error, FileNotFoundError):
                self._durable_folders.clear()  # another process removed folders; create them again next time
            what = f"cannot {verb} object {name} in {self.url}, {error.strerror or error}"
            for numbers, kind, remedy in _REMEDIES:
                if error.errno in numbers:
                    raise kind(what, remedy) from error
            raise Unavailable(what, "check the disk and the mount, then try again") from error


class _LocalWriter(ObjectWriter):
    def __init__(self, store: LocalStore, name: str) -> None:
        super().__init__(name)
        self._store = store
        self._descriptor = -1
        self._path: Path | None = None
        self._written_back = 0

    def _open(self) -> None:
        with self._store._translating_errors(self.name, "write"):
            self._descriptor, self._path = self._store._open_temporary()

    def _append(self, view: memoryview) -> None:
        with self._store._translating_errors(self.name, "write"):
            written = 0
            while written < view.nbytes:
                written += os.write(self._descriptor, view[written : written + WRITE_BACK_BYTES])
                self._start_write_back(self._position + written)

    def _start_write_back(self, end: int) -> None:
        """Start writing dirty pages: Linux takes "not needed" for that, and neither waits nor drops them."""
        if end - self._written_back >= WRITE_BACK_BYTES and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, self._written_back, end - self._written_back, os.POSIX_FADV_DONTNEED)
            self._written_back = end

    def _commit(self) -> None:
        assert self._path is not None
        with self._store._translating_errors(self.name, "write"):
            failpoint(Failpoint.LOCAL_TEMPORARY_WRITTEN)
            os.fsync(self._descriptor)
            failpoint(Failpoint.LOCAL_FSYNCED)
            self._store.publish(self._path, self.name)

    def _discard(self) -> None:
        with suppress(OSError):
            if self._path is not None:
                os.unlink(self._path)
        with suppress(OSError):
            os.close(self._descriptor)


def _regular_size(status: os.stat_result, name: str, url: str) -> int:
    """Return the size of an object's file; a folder is no object."""
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    raise FileNotFoundError(errno.ENOENT, f"{name} in {url} is not a file")
