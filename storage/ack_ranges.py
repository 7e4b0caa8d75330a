"""The offsets of a topic that one cursor has acknowledged: a mark, and Roaring bitmaps above it, in bounded memory.

Offsets are divided into ranges of 2^19; a range with acknowledged offsets above the mark is one bitmap of offsets
relative to its first, at most 64 KiB however many holes it has (8 Roaring containers of at most 8 KiB). All offsets at
or below the mark are acknowledged. `end` may be above the mark: all offsets between the two are acknowledged, too, but
the id of the last message is not known yet.

Invariants: every offset in here was acknowledged; `mark` and `acknowledged_to` never go back. Memory: the sizes of the
bitmaps together, with an overhead per object, stay below the bound; offsets that would exceed it are dropped, and
counted (`dropped`). Offsets that move the mark always fit. A bitmap is measured when it is taken for writing; between
two measurements each offset counts with its greatest possible cost.

Must not know: SQL, clocks, threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

RANGE_BITS = 19
RANGE_OFFSETS = 1 << RANGE_BITS
MAX_RANGE_BYTES = (RANGE_OFFSETS >> 3) + 128
"""The greatest size of a serialized bitmap of a range: its bits, and Roaring's few bytes per container."""
RANGE_OVERHEAD = 512
"""The approximate memory of the objects around a small bitmap."""

_ADDED_BYTES = 4
"""The greatest cost of one more offset: a run of its own in a container of runs."""


def range_number_of(offset: int) -> int:
    """Return the number of the range, of 2^19 offsets, that contains an offset."""
    return offset >> RANGE_BITS


def encode(bitmap: BitMap) -> bytes:
    """Return the bitmap of a range, serialized in Roaring's portable format: at most MAX_RANGE_BYTES bytes."""
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def decode(stored: bytes) -> BitMap:
    """Return a bitmap from its stored bytes. Raises ValueError for bytes that are no bitmap of a range."""
    if not stored:
        raise ValueError("it has no bytes")  # pyroaring would read its first byte
    bitmap = BitMap.deserialize(stored)
    if bitmap and bitmap.max() >= RANGE_OFFSETS:
        raise ValueError("the bitmap goes beyond its range")
    return bitmap


def remove_up_to_mark(range_number: int, bitmap: BitMap, mark: int) -> BitMap:
    """Remove the offsets at or below `mark` from the bitmap of range `range_number`, in place; return the bitmap."""
    low = mark + 1 - (range_number << RANGE_BITS)
    if low > 0:
        bitmap.remove_range(0, min(low, RANGE_OFFSETS))
    return bitmap


def ranges(bitmap: BitMap, first_offset: int = 0) -> Iterator[range]:
    """Yield the runs of consecutive values of a bitmap as ranges, with `first_offset` added to each value."""
    values = np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64)
    if not len(values):
        return
    breaks = np.flatnonzero(np.diff(values) != 1)
    firsts = values[np.concatenate(([0], breaks + 1))] + first_offset
    lasts = values[np.concatenate((breaks, [len(values) - 1]))] + first_offset
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield range(first, last + 1)


def mask_of(bitmap: BitMap) -> int:
    """Return an integer whose bit i is set for each value i of the bitmap."""
    if not bitmap:
        return 0
    bits = np.zeros(bitmap.max() + 1, dtype=np.uint8)
    bits[np.frombuffer(bitmap.to_array(), dtype=np.uint32)] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def bitmap_of(mask: int) -> BitMap:
    """Return a bitmap of the positions of the bits that are set in an integer; the inverse of `mask_of`.

    An integer of 262,144 bits takes 0.1 ms if the bits form a few runs, otherwise 2 ms.
    """
    borders = mask ^ mask << 1  # the first bit of each run, and the bit after its last
    if borders.bit_count() > mask.bit_count() >> 4:
        return BitMap(array("I", _set_bit_positions(mask).tobytes()))
    bitmap = BitMap()
    for first, end in _set_bit_positions(borders).reshape(-1, 2).tolist():
        bitmap.add_range(first, end)
    return bitmap


def _set_bit_positions(mask: int) -> npt.NDArray[np.uint32]:
    """Return the positions of the bits that are set, ascending. Only words with such a bit are unpacked."""
    words = np.frombuffer(mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little"), dtype="<u8")
    numbers = np.flatnonzero(words).astype(np.uint32)
    bits = np.flatnonzero(np.unpackbits(words[numbers].view(np.uint8), bitorder="little").view(np.bool_))
    positions: npt.NDArray[np.uint32] = numbers[bits >> 6] * np.uint32(64) + (bits & 63).astype(np.uint32)
    return positions


def join_adjacent_ranges(parts: Iterable[range]) -> Iterator[range]:
    """Yield ascending ranges without overlap; a range that begins where the last one ends is joined to it."""
    before: range | None = None
    for part in parts:
        if before is not None and before.stop == part.start:
            before = range(before.start, part.stop)
            continue
        if before is not None:
            yield before
        before = part
    if before is not None:
        yield before


@dataclass
class _SizedBitmap:
    bitmap: BitMap = field(default_factory=BitMap)
    size: int = RANGE_OVERHEAD


class AcknowledgedOffsets:
    """The acknowledged offsets of one cursor. Not safe to share between threads."""

    def __init__(self, mark: int, max_bytes: int) -> None:
        """Begin with all offsets at or below `mark` acknowledged; -1: none."""
        self.mark = mark
        self.acknowledged_to = mark
        """The last offset up to which all are acknowledged."""
        self.dropped = 0
        """The number of acknowledged offsets that were dropped for lack of memory."""
        self.bitmap_bytes = 0
        """An upper bound of the memory of the bitmaps."""
        self._max_bytes = max_bytes
        self._ranges: dict[int, _SizedBitmap] = {}
        self._changed: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        if offset <= self.acknowledged_to:
            return offset >= 0
        ack_range = self._ranges.get(range_number_of(offset))
        return ack_range is not None and offset & (RANGE_OFFSETS - 1) in ack_range.bitmap

    @property
    def has_changes(self) -> bool:
        """True if a bitmap has changes that `take_changed` has not returned yet."""
        return bool(self._changed)

    def try_add(self, first: int, last: int) -> bool:
        """Acknowledge all offsets from `first` to `last`. Returns False if some were dropped for lack of memory."""
        kept = True
        start = max(first, self.mark + 1)
        while start <= last:
            stop = min(last, start | (RANGE_OFFSETS - 1))
            kept &= self._try_add_within_range(start, stop)
            start = stop + 1
        return kept

    def try_add_slots(self, base: int, slots: BitMap) -> bool:
        """Acknowledge the offset `base` + i for each i in `slots`. Costs one union per range.

        Returns False if some were dropped for lack of memory.
        """
        kept, last = True, base + slots.max() if slots else -1
        start = max(base, self.mark + 1)
        while start <= last:
            number = range_number_of(start)
            first, stop = number << RANGE_BITS, min(last, start | (RANGE_OFFSETS - 1))
            part = slots & BitMap(range(start - base, stop + 1 - base))
            if part:
                kept &= self._try_add_bitmap(number, part.shift(base - first))
            start = stop + 1
        return kept

    def acknowledged_mask(self, first: int, count: int) -> int:
        """Return which of `count` offsets from `first` on are acknowledged: bit i stands for `first` + i."""
        stop = first + count
        mask = (1 << max(0, min(self.acknowledged_to + 1, stop) - first)) - 1
        offset = max(first, self.acknowledged_to + 1)
        while offset < stop:
            number = range_number_of(offset)
            base = number << RANGE_BITS
            until = min(stop, base + RANGE_OFFSETS)
            ack_range = self._ranges.get(number)
            if ack_range is not None:
                if count == 1:
                    return int(offset - base in ack_range.bitmap)
                part = ack_range.bitmap & BitMap(range(offset - base, until - base))
                if part:
                    mask |= mask_of(part.shift(base - first))
            offset = until
        return mask

    def advance_mark(self, offset: int) -> None:
        """Acknowledge all offsets up to `offset`, and drop the bitmaps below it.

        An offset at or below the mark is ignored.
        """
        if offset <= self.mark:
            return
        before, first = range_number_of(self.mark + 1), range_number_of(offset + 1)
        self.mark = offset
        if first > before:
            for number in [number for number in self._ranges if number < first]:
                self.bitmap_bytes -= self._ranges.pop(number).size
                self._changed.discard(number)
        if offset >= self.acknowledged_to:
            self.acknowledged_to = self._last_consecutive(offset + 1)

    def try_merge_stored(self, range_number: int, bitmap: BitMap) -> bool:
        """Add the offsets of a stored bitmap to the bitmap of range `range_number` in memory.

        Returns False, and changes nothing, if the bitmap would exceed the bound of memory.
        """
        if range_number < range_number_of(self.mark + 1):
            return True
        held = self._ranges.get(range_number)
        union = bitmap if held is None else held.bitmap | bitmap
        if not union:
            return True
        size = RANGE_OVERHEAD + len(encode(union))
        if (
            size > (held.size if held else 0)
            and self.bitmap_bytes + size - (held.size if held else 0) > self._max_bytes
        ):
            return False
        self._set_bitmap(range_number, _SizedBitmap(union, size))
        if range_number_of(self.acknowledged_to + 1) == range_number:
            self.acknowledged_to = self._last_consecutive(self.acknowledged_to + 1)
        return True

    def take_changed(self) -> dict[int, BitMap]:
        """Return copies of the bitmaps that have changed since the last call, by range number.

        Offsets at or below the mark are left out. The bitmaps count as written from then on; after a failed write
        `mark_changed` undoes this.
        """
        changed = {}
        for number in sorted(self._changed):
            bitmap = remove_up_to_mark(number, self._ranges[number].bitmap, self.mark)
            self._set_bitmap(number, _SizedBitmap(bitmap, RANGE_OVERHEAD + len(encode(bitmap))))
            changed[number] = bitmap.copy()
        self._changed.clear()
        return changed

    def mark_changed(self, range_numbers: Iterable[int]) -> None:
        """Mark ranges as changed again after a failed write. `range_numbers`: of the ranges that `take_changed`
        returned."""
        self._changed.update(number for number in range_numbers if number in self._ranges)

    def gaps(self, start: int, end: int) -> Iterator[range]:
        """Yield the unacknowledged ranges from `start` to before `end`, in order; ranges that touch are joined."""
        return join_adjacent_ranges(self._gaps_by_range(start, end))

    def count_acknowledged_after(self, offset: int, end: int) -> int:
        """Return the number of acknowledged offsets after `offset` and before `end`."""
        count = max(min(self.mark + 1, end) - offset - 1, 0)
        low = max(offset, self.mark) + 1
        if low >= end:
            return count
        span = range(range_number_of(low), range_number_of(end - 1) + 1)
        for number in span if len(span) < len(self._ranges) else list(self._ranges):
            ack_range = self._ranges.get(number)
            if ack_range is None:
                continue
            first = number << RANGE_BITS
            inside = max(low - first, 0), min(end - first, RANGE_OFFSETS)
            if inside[0] < inside[1]:
                count += ack_range.bitmap.range_cardinality(*inside)
        return count

    def _try_add_within_range(self, first: int, last: int) -> bool:
        number, count = range_number_of(first), last - first + 1
        ack_range = self._ranges.get(number)
        low = first & (RANGE_OFFSETS - 1)
        if ack_range is not None and ack_range.bitmap.contains_range(low, low + count):
            return True
        before = ack_range.size if ack_range else 0
        size = min((before or RANGE_OVERHEAD) + _ADDED_BYTES * count, RANGE_OVERHEAD + MAX_RANGE_BYTES)
        if size > before and self.bitmap_bytes + size - before > self._max_bytes:
            self.dropped += count - (ack_range.bitmap.range_cardinality(low, low + count) if ack_range else 0)
            return False
        if ack_range is None:
            ack_range = self._ranges[number] = _SizedBitmap()
        if count == 1:
            ack_range.bitmap.add(low)
        else:
            ack_range.bitmap.add_range(low, low + count)
        self.bitmap_bytes += size - before
        ack_range.size = size
        self._changed.add(number)
        if first <= self.acknowledged_to + 1 <= last:
            self.acknowledged_to = self._last_consecutive(last + 1)
        return True

    def _try_add_bitmap(self, number: int, part: BitMap) -> bool:
        """Acknowledge the offsets of `part`, which are relative to the first offset of the range `number`.

        Returns False if they were dropped for lack of memory.
        """
        ack_range = self._ranges.get(number)
        added = len(part) if ack_range is None else len(part) - ack_range.bitmap.intersection_cardinality(part)
        if not added:
            return True
        before = ack_range.size if ack_range else 0
        size = min((before or RANGE_OVERHEAD) + _ADDED_BYTES * added, RANGE_OVERHEAD + MAX_RANGE_BYTES)
        if size > before and self.bitmap_bytes + size - before > self._max_bytes:
            self.dropped += added
            return False
        bitmap = part if ack_range is None else ack_range.bitmap | part
        self._set_bitmap(number, _SizedBitmap(bitmap, max(size, before)))
        self._changed.add(number)
        if (
            range_number_of(self.acknowledged_to + 1) == number
            and (self.acknowledged_to + 1) & (RANGE_OFFSETS - 1) in part
        ):
            self.acknowledged_to = self._last_consecutive(self.acknowledged_to + 1)
        return True

    def _set_bitmap(self, number: int, ack_range: _SizedBitmap) -> None:
        before = self._ranges.get(number)
        self.bitmap_bytes += ack_range.size - (before.size if before else 0)
        self._ranges[number] = ack_range

    def _last_consecutive(self, start: int) -> int:
        """Return the last of the acknowledged offsets that begin at `start`; `start` - 1: `start` is unacknowledged."""
        offset = start
        while True:
            ack_range = self._ranges.get(range_number_of(offset))
            low = offset & (RANGE_OFFSETS - 1)
            if ack_range is None or low not in ack_range.bitmap:
                return offset - 1
            if low + 1 < RANGE_OFFSETS and low + 1 not in ack_range.bitmap:
                return offset  # the usual case, which needs no other bitmap
            missing = BitMap(range(low, RANGE_OFFSETS)) - ack_range.bitmap
            if missing:
                return offset - low + missing.min() - 1
            offset += RANGE_OFFSETS - low

    def _gaps_by_range(self, start: int, end: int) -> Iterator[range]:
        offset = max(start, self.acknowledged_to + 1)
        while offset < end:
            number = range_number_of(offset)
            first = number << RANGE_BITS
            stop = min(end, first + RANGE_OFFSETS)
            ack_range = self._ranges.get(number)
            if ack_range is None:
                yield range(offset, stop)
            else:
                yield from ranges(BitMap(range(offset - first, stop - first)) - ack_range.bitmap, first)
            offset = max(stop, self.acknowledged_to + 1)
