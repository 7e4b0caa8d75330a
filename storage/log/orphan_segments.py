"""Files of segments that no row names: the remains of a writer that died, or files that the database has lost.

A writer creates a file before its row, and appends after the row exists. So a file without a row that holds only a
header belongs to a writer that died in between. A file that holds more had a row: the database is older than the log,
because it was restored, and the messages in the file were acknowledged. Such a file is never overwritten and never
removed:

    it begins at the topic's end     the topic adopts it again as its open segment (segment_lifecycle.py)
    any other                        it is set aside: renamed, with its side files, for an operator

Must not know: SQL, leases.
"""

from __future__ import annotations

import logging
import os
import re
from itertools import count
from pathlib import Path

from storage.file_modes import sync_folder
from storage.log.frames import HEADER_BYTES, SegmentHeader, read_header
from storage.log.segment import SegmentPaths, translating_os_errors

_FILE = re.compile(r"(\d{20})\.(log|index|end)")
_SET_ASIDE = re.compile(r"\d{20}\.aside-\d+\.(log|index|end)")
_log = logging.getLogger(__name__)


def segment_sizes_by_offset(folder: Path) -> dict[int, int]:
    """Return the size of each segment's `.log` by its first offset, in the order of offsets; 0: only side files exist.

    Empty if the folder does not exist.
    """
    sizes: dict[int, int] = {}
    try:
        for file in folder.iterdir():
            if match := _FILE.fullmatch(file.name):
                first = int(match[1])
                sizes[first] = max(sizes.get(first, 0), file.stat().st_size if match[2] == "log" else 0)
    except FileNotFoundError:  # another sweeper has removed the file, or the folder
        return segment_sizes_by_offset(folder) if folder.is_dir() else {}
    return dict(sorted(sizes.items()))


def first_offsets_in(folder: Path) -> list[int]:
    """Return the first offsets of the `.log` files in a folder, ascending; empty without a folder. Opens no file."""
    try:
        matches = [_FILE.fullmatch(name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in matches if match and match[2] == "log")


def holds_data(size: int) -> bool:
    """Return whether a segment file of `size` bytes was ever appended to, and so had a row in the database."""
    return size > HEADER_BYTES


def first_offsets_with_data(folder: Path) -> list[int]:
    """Return the first offsets, ascending, of the segments in a folder whose files hold data (`holds_data`)."""
    return [first for first, size in segment_sizes_by_offset(folder).items() if holds_data(size)]


def read_segment_header(files: SegmentPaths) -> SegmentHeader | str:
    """Read the header of a segment's file; return a text, its defect, if it is invalid.

    Raises ObjectMissing, Misconfigured, Unavailable.
    """
    with translating_os_errors(files.log, "read"), files.log.open("rb") as file:
        return read_header(file.read(HEADER_BYTES))


def set_aside_files(files: SegmentPaths) -> Path:
    """Rename the files of a segment, durably, so that no process touches them again; return the new path of `.log`.

    Raises OSError.
    """
    number = next(n for n in count(1) if not _aside_path(files.log, n).exists())
    size = files.log.stat().st_size
    # The log last: if interrupted, the next call continues.
    for path in (files.high_watermark, files.index, files.log):
        if path.exists():
            path.rename(_aside_path(path, number))
    sync_folder(files.folder)
    kept = _aside_path(files.log, number)
    _log.warning("%s (%d bytes) has no row in the database, and was renamed to %s", files.log, size, kept.name)
    return kept


def files_set_aside(folder: Path) -> list[Path]:
    """Return the files in a folder that `set_aside_files` renamed. Raises FileNotFoundError if there is no folder."""
    return [file for file in folder.iterdir() if _SET_ASIDE.fullmatch(file.name)]


def _aside_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.aside-{number}{path.suffix}")
