"""Deleted rows of parts: bitmaps of the rows of a part that no longer count.

A later run supersedes rows of a part without writing the part again: it writes a bitmap, and its manifest names that
beside the part. The bitmap holds *offsets relative to the part's first*, not row numbers, so phase one, which knows
only offsets, builds it without reading the part. Bitmaps of several parts share an object; each is a ranged read with a
checksum of its own.

Errors: ObjectMissing, ObjectDamaged; an unreadable bitmap never counts as an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from storage.advice import damaged_object_advice
from storage.checksums import crc32c
from storage.errors import ObjectDamaged
from storage.ledger.manifest import DeletedRows, Part
from storage.objects.interface import ObjectStore
from storage.objects.ranges import ByteRange, read_ranges


def encode_bitmaps(object_name: str, bitmaps: Iterable[BitMap]) -> tuple[bytes, list[DeletedRows]]:
    """Return the bytes of one object that holds `bitmaps`, and the place of each in it, in order.

    `object_name`: the object's name.
    """
    blocks: list[bytes] = []
    places: list[DeletedRows] = []
    start = 0
    for bitmap in bitmaps:
        bitmap.run_optimize()
        block = bytes(bitmap.serialize())
        places.append(DeletedRows(object_name, start, len(block), len(bitmap), crc32c(block)))
        blocks.append(block)
        start += len(block)
    return b"".join(blocks), places


def read_deleted_rows(store: ObjectStore, part: Part) -> BitMap:
    """Return the deleted rows of a part, as offsets relative to its first; empty if it has none.

    Raises ObjectMissing, ObjectDamaged.
    """
    (bitmap,) = read_deletion_bitmaps(store, [part.deleted])
    return bitmap


def read_deletion_bitmaps(store: ObjectStore, locations: list[DeletedRows | None]) -> list[BitMap]:
    """Return the bitmap at each of `locations`, empty for None; neighbours in one object are read in one ranged read.

    Raises ObjectMissing, ObjectDamaged.
    """
    bitmaps = [BitMap() for _ in locations]
    numbered = [(number, place) for number, place in enumerate(locations) if place is not None]
    blocks = read_ranges(store, [ByteRange(place.name, place.offset, place.length) for _, place in numbered])
    for (number, place), block in zip(numbered, blocks, strict=True):
        if crc32c(block) != place.crc32c:
            raise ObjectDamaged(
                f"bytes {place.offset} to {place.offset + place.length} of the bitmaps {place.name} do not match "
                "their checksum",
                damaged_object_advice(place.name),
                is_public=True,
            )
        bitmaps[number] = BitMap.deserialize(bytes(block))
    return bitmaps


def live_mask(deleted: BitMap, first_offset: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask of `offsets`: True for a row that is not deleted. Shape (n,).

    `deleted`: the deleted rows of the part; `first_offset`: the part's first offset; `offsets`: of rows of the part,
    ascending.
    """
    if not deleted or not len(offsets):
        return np.ones(len(offsets), dtype=np.bool_)
    low, high = int(offsets[0]) - first_offset, int(offsets[-1]) - first_offset
    inside = deleted & BitMap(range(low, high + 1)) if high - low + 1 < len(deleted) else deleted
    dead = np.frombuffer(inside.to_array(), dtype=np.uint32).astype(np.int64) + first_offset
    return np.isin(offsets, dead, assume_unique=True, invert=True)
