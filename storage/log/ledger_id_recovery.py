"""The ledger ids of segments that the database has lost: they stay reserved for their files.

After a database was restored it assigns ids again that segments of the log already have. If another topic got such an
id first, its file could not be adopted again (orphan_segments.py). So before a process allocates an id, it scans its
log directory once, and raises the sequence above the ids in files that no row names.

Costs one listing of each topic's folder, one statement, and 64 bytes read of each file that no row names. A file that
cannot be read, or whose header is damaged, reserves no id; it is logged, and refused when its topic is opened. Services
of other machines have files of their own: each scans when it starts.

Errors: Unavailable, Misconfigured. Must not know: the adoption of segments.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from pathlib import Path

from storage.errors import CompactorError, ObjectMissing
from storage.log.directory import LogDirectory
from storage.log.frames import SegmentHeader
from storage.log.orphan_segments import first_offsets_in, read_segment_header
from storage.log.segment import SegmentPaths
from storage.metadata.store import MetadataStore

_log = logging.getLogger(__name__)


def reserve_lost_ids(metadata: MetadataStore, log: LogDirectory) -> None:
    """Reserve the ledger ids of segment files in `log` that no database row names: they are never allocated again.

    The directory is scanned once in a process. Raises Unavailable, Misconfigured.
    """
    uid = log.known_uid
    if uid is None or log.lost_ids_reserved.is_set():
        return
    named = metadata.segments.first_offsets(uid)
    ids = [
        header.ledger_id
        for folder in log.topic_folders()
        for header in _headers_without_row(folder, named.get(folder.name, ()))
    ]
    if ids:
        metadata.ledgers.skip_ids(max(ids))
    log.lost_ids_reserved.set()


def _headers_without_row(folder: Path, known_first_offsets: Collection[int]) -> Iterator[SegmentHeader]:
    """Yield the headers of the segment files in a topic's folder that no database row names.

    `known_first_offsets`: those of the segments that have a row. An unreadable header is logged.
    """
    for first in first_offsets_in(folder):
        if first in known_first_offsets:
            continue
        files = SegmentPaths(folder, first)
        try:
            header = read_segment_header(files)
        except ObjectMissing:  # a sweeper removed it
            continue
        except CompactorError as error:
            header = str(error)
        if isinstance(header, str):
            _log.warning("the ledger id of %s, which has no row in the database, is not known: %s", files.log, header)
        elif header.topic_uid == folder.name:
            yield header
