"""Files and folders: only their owner may read messages, unless a folder's mode is wider; and durable folders.

A folder that is created for segments, objects or the database is open to its owner only (0700). An existing folder
keeps its mode, and files and folders inside it are as open as it is: so an operator shares a store with a group by the
mode of its folder alone, and a folder of an older version keeps its mode. The process's umask may restrict further.
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


def create_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may open, unless it exists; its parents get the process's usual mode.

    Raises NotADirectoryError if the path is something else, and other OSErrors.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(OWNER_ONLY)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def create_folder_like_parent(folder: Path) -> None:
    """Create a folder that is as open as its parent, which must exist. Raises FileExistsError and other OSErrors."""
    folder.mkdir(_mode(folder.parent))


def file_mode_in(folder: Path) -> int:
    """Return the permissions of a new file in `folder`: read and write for its owner; for others as in the folder."""
    return _OWNER_READ_WRITE | (_mode(folder) & _READ_WRITE)


def is_open_to_others(folder: Path) -> bool:
    """Return whether users outside a folder's owner and group may list it; False if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return bool(_mode(folder) & OTHERS)
    return False


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk (fsync), so that files created, linked or removed in it stay so. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode(folder: Path) -> int:
    return stat.S_IMODE(os.stat(folder).st_mode) & 0o777
