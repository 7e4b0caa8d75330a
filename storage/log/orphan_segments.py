"""Segments' files that no row names: what is left of a writer that died, or what the database has lost.

A writer makes a file before its row, and appends after the row is there. So a file that has no row, and a header alone,
belongs to a writer that died in between. One that holds more had a row: the database is older than the log, because it
was restored, and what the file holds was acknowledged. Such a file is never written over and never removed:

    it begins where the topic ends     it is taken up again as the topic's open segment (segment_lifecycle.py)
    any other                          it is set aside: renamed, with the files that help, for an operator

Must not know: SQL, leases.
"""

from __future__ import annotations

import logging
import os
import re
from itertools import count
from pathlib import Path

from storage.log.directory import sync_folder
from storage.log.frames import HEADER_BYTES, SegmentHeader, read_header
from storage.log.segment import SegmentPaths, naming_file

_FILE = re.compile(r"(\d{20})\.(log|index|end)")
_SET_ASIDE = re.compile(r"\d{20}\.aside-\d+\.(log|index|end)")
_log = logging.getLogger(__name__)


def segments_in(folder: Path) -> dict[int, int]:
    """The size of each segment's `.log` by its first offset (0: there is none), in the order of offsets; {} without a
    folder."""
    sizes: dict[int, int] = {}
    try:
        for file in folder.iterdir():
            if match := _FILE.fullmatch(file.name):
                first = int(match[1])
                sizes[first] = max(sizes.get(first, 0), file.stat().st_size if match[2] == "log" else 0)
    except FileNotFoundError:  # another sweeper has removed the file, or the folder
        return segments_in(folder) if folder.is_dir() else {}
    return dict(sorted(sizes.items()))


def first_offsets_in(folder: Path) -> list[int]:
    """The first offsets of the `.log` files in a folder, ascending; [] without a folder. Asks for no file."""
    try:
        found = [_FILE.fullmatch(name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in found if match and match[2] == "log")


def holds_data(size: int) -> bool:
    """Whether a file of that size was ever appended to, and so had a row."""
    return size > HEADER_BYTES


def behind(folder: Path, end: int) -> list[int]:
    """The first offsets of the files that hold data and begin at the topic's end or behind it, in order."""
    return [first for first, size in segments_in(folder).items() if first >= end and holds_data(size)]


def header_in(files: SegmentPaths) -> SegmentHeader | str:
    """What the header of a file says, or what is wrong with it. Raises ObjectMissing, Misconfigured, Unavailable."""
    with naming_file(files.log, "read"), files.log.open("rb") as file:
        return read_header(file.read(HEADER_BYTES))


def set_aside(files: SegmentPaths) -> Path:
    """Rename the files of a segment, durably, so that nothing here touches them again; the new path of its `.log`.

    Raises OSError.
    """
    number = next(n for n in count(1) if not _aside(files.log, n).exists())
    size = files.log.stat().st_size
    for path in (files.end, files.index, files.log):  # the log last: cut off here, the next call continues
        if path.exists():
            path.rename(_aside(path, number))
    sync_folder(files.folder)
    kept = _aside(files.log, number)
    _log.warning("%s (%d bytes) has no row in the database, and was renamed to %s", files.log, size, kept.name)
    return kept


def files_set_aside(folder: Path) -> list[Path]:
    """What `set_aside` made in a folder."""
    return [file for file in folder.iterdir() if _SET_ASIDE.fullmatch(file.name)]


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.aside-{number}{path.suffix}")
