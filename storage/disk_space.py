"""How much a disk still takes."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes(folder: Path) -> int:
    """What this user may still write to the disk on which a folder is, or will when it is made. Raises OSError."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    found = os.statvfs(there)
    return found.f_bavail * found.f_frsize
