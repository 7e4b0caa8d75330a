"""The content of a disk after a power loss: only bytes that fsync made durable.

`PowerLoss` wraps `os.fsync` and `os.fdatasync` while it is entered, and remembers what each call made durable: of a
file its bytes, of a folder its entries, as POSIX promises and no more. `image` then writes the tree that a machine
would find when it comes back: a name whose folder was not synced is not there, a file that was not synced is empty.
(Real disks may keep more, which no program may count on, and which may be nonsense: a parameter of `image` is
what they keep.) Only the process's own calls are seen, not those that SQLite makes in C.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

Keeps = Callable[[Path, bytes | None, bytes], bytes | None]


class PowerLoss:
    """Records below `root`'s parent, which counts as durable. Use it in a `with` statement.

    `loses`: fsyncs to pretend of, that is to leave out: a mutation, to see that somebody notices.
    """

    def __init__(self, root: Path, loses: Callable[[os.stat_result], bool] = lambda status: False) -> None:
        self._root = root
        self._loses = loses
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._kept: list[int] = []
        self._patch = pytest.MonkeyPatch()
        self._fsync = os.fsync
        self._fdatasync = os.fdatasync

    def __enter__(self) -> Self:
        self._patch.setattr(os, "fsync", lambda descriptor: self._record(descriptor, self._fsync))
        self._patch.setattr(os, "fdatasync", lambda descriptor: self._record(descriptor, self._fdatasync))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._patch.undo()
        for descriptor in self._kept:
            os.close(descriptor)

    def _record(self, descriptor: int, sync: Callable[[int], None]) -> None:
        status = os.fstat(descriptor)
        if self._loses(status):
            return
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        # Kept open, so that no other file gets its inode while we remember it; no dup, which would share its lock.
        self._kept.append(os.open(path, os.O_RDONLY))
        if stat.S_ISDIR(status.st_mode):
            self._folders[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._files[status.st_ino] = path.read_bytes()

    def image(self, target: Path, keeps: Keeps = lambda _, durable, now: durable) -> Path:
        """Write what would be left of `root` into the new folder `target`, and return it.

        `keeps`: what a disk keeps of a file, by its path, its durable bytes (None: its name is not), and its bytes now.
        """
        target.mkdir()
        if self._root.exists() and self._root.name in self._folders.get(os.stat(self._root.parent).st_ino, {}):
            self._restore(os.stat(self._root).st_ino, self._root, target, keeps)
        return target

    def _restore(self, folder: int, now: Path, target: Path, keeps: Keeps) -> None:
        durable = self._folders.get(folder, {})
        for name, inode in durable.items():
            if inode in self._folders or (now / name).is_dir():
                (target / name).mkdir()
                self._restore(inode, now / name, target / name, keeps)
        present = {path.name for path in now.iterdir() if path.is_file()} if now.is_dir() else set()
        for name in {name for name in durable if not (target / name).is_dir()} | present:
            written = self._files.get(durable[name], b"") if name in durable else None
            path = now / name
            if (remaining := keeps(path, written, path.read_bytes() if name in present else b"")) is not None:
                (target / name).write_bytes(remaining)
