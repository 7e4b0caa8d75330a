"""A plan to read the newest value of each key in a few passes over one snapshot, as queries do.

The pieces are those of a scan (scan.py) with the compacted ledger. One that a later message can supersede has to be
compared with what follows: a row of the compacted ledger with the keys of the tail, a message of the tail with the
other messages of its key. So the two are apart here. The pieces of a compacted ledger with chunked messages are of the
tail, because a chunked message may begin before the horizon and end after it (P10).

In event-time order (P9) a message of the tail may be older than what the compacted ledger has, or has removed: then
`newest_of` answers for the keys of the tail, from the same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from storage.ledger.hashing import KeyHasher
from storage.objects.interface import ObjectStore
from storage.reading.newest_offsets import NewestOffset, newest_offsets
from storage.reading.scan import ScanPiece, ScanRange, plan_scan
from storage.reading.snapshot_reader import SnapshotReader


@dataclass(frozen=True)
class NewestScan:
    """A plan to read the newest value of each key: pieces to scan, in order.

    `compacted`: has each key at most once. `tail`: has the messages after those, and may have a key often. `newest_of`:
    returns the newest message of each of some keys of the tail; None: that is the last one in the tail.
    """

    compacted: Sequence[ScanPiece]
    tail: Sequence[ScanPiece]
    newest_of: Callable[[Sequence[bytes]], Mapping[bytes, NewestOffset | None]] | None


def plan_newest_scan(store: ObjectStore, reader: SnapshotReader, hasher: KeyHasher, now: int) -> NewestScan:
    """Return the plan to read the newest value of each key, for the topic that `reader` reads. `now`: the time (ms) of
    the query.

    Raises DataLoss, SegmentNotLocal.
    """
    pieces = plan_scan(store, reader, hasher, ScanRange(), read_compacted=True)
    compacted = reader.snapshot.compacted
    if compacted is None:
        return NewestScan((), pieces, None)
    manifest = reader.manifest(compacted)

    def newest_of(keys: Sequence[bytes]) -> Mapping[bytes, NewestOffset | None]:
        return newest_offsets(store, reader, hasher, keys, 0, now)

    by_event = bool(manifest.policies.get("event_time_order"))
    if manifest.chunks:
        return NewestScan((), pieces, newest_of if by_event else None)
    parts = [piece for piece in pieces if piece.part is not None]
    return NewestScan(parts, pieces[len(parts) :], newest_of if by_event else None)
