"""Free space of a disk."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write to the disk of `folder`, which need not exist.

    Raises OSError.
    """
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    disk = os.statvfs(existing)
    return disk.f_bavail * disk.f_frsize
