"""Who may read what is written here: messages are their owner's alone, unless a folder's mode is wider.

A folder that is made for segments, objects or the database is open to its owner only (0700). One that is there keeps
its mode, and what is made inside a folder is as open as that folder: so an operator who shares a store with a group
says it once, by the mode of its folder, and a folder of an older version keeps its mode. The process's umask may
take more away.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o700
OTHERS = 0o007
_READ_WRITE = 0o666
_OWNER_READ_WRITE = 0o600


def make_private(folder: Path) -> None:
    """A folder of ours, if there is none; the folders above it are made as the process makes any."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(OWNER_ONLY)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def make_inside(folder: Path) -> None:
    """A folder in another one, as open as that one. Raises FileExistsError."""
    folder.mkdir(_mode(folder.parent))


def file_mode(folder: Path) -> int:
    """The mode of a file that is made in a folder."""
    return _OWNER_READ_WRITE | (_mode(folder) & _READ_WRITE)


def is_open_to_others(folder: Path) -> bool:
    """Whether people who are neither its owner nor of its group may list a folder; False if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return bool(_mode(folder) & OTHERS)
    return False


def _mode(folder: Path) -> int:
    return stat.S_IMODE(os.stat(folder).st_mode) & 0o777
