"""Rules of phase one as pure functions of index records, without I/O.

`resolve` takes the winners of the dirty ledgers and the index levels of the previous compacted ledger, all of one hash
range. It decides which dirty rows survive, which older rows are superseded, and the content of the new index level. It
probes levels by the dirty keys; only merged levels are read whole.

The invariant that it needs and keeps: of all records of a key, the record of the newest level counts, and it has no
MARKER exactly if its row is alive in the parts. So a superseded offset was alive until now, and expected totals are
exact.

Rules: semantics.md P3–P5, P9, T1, T2. Oracle: compactor/reference.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactor.run.plan import RunPolicies
from storage.ledger import key_index
from storage.ledger.key_index import (
    MARKER,
    NO_EVENT_TIME,
    OFFSET_MASK,
    TOMBSTONE,
    U64,
    IndexRecords,
    concatenate_records,
)

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ResolutionRules:
    """Rules of a resolution: the policies, the run's time in milliseconds, and the offset that the slowest compacted
    cursor has passed (`cursor_floor`; None: tombstones wait for no cursor)."""

    policies: RunPolicies
    now: int
    cursor_floor: int | None = None

    def mask_of_retained(self, tombstones: U64) -> Mask:
        """Return a mask of the winning tombstones that are retained (T1). `tombstones`: their offsets, without
        flags."""
        kept = np.full(len(tombstones), self.policies.tombstone_retention_ms > 0)
        if self.cursor_floor is not None:
            kept |= tombstones.astype(np.int64) > self.cursor_floor
        return kept

    def mask_of_needed_markers(self, event_time: I64 | None, count: int) -> Mask:
        """Return a mask of the markers that event-time order still needs: a late value must not revive its key (P9).

        `event_time`: of each marker; None: they have none. `count`: number of markers.
        """
        if event_time is None or not self.policies.event_time_order:
            return np.zeros(count, dtype=np.bool_)
        lateness = self.policies.event_time_max_lateness_ms
        counts: Mask = (event_time != NO_EVENT_TIME) & (event_time > self.now - lateness)
        return counts


@dataclass(frozen=True)
class RangeResolution:
    """Decision about the rows of one hash range. `survivors`, `superseded`: offsets without order, shape (n,).

    `level`: the new index level in hash order. Numbers: see plan.HashRangeStatistics.
    """

    survivors: U64
    superseded: U64
    level: IndexRecords
    keys: int
    tombstones: int
    tombstones_removed: int
    tombstones_kept: int
    expired: int
    dropped_to: int


def winners_of(runs: Sequence[IndexRecords], by_event: bool) -> IndexRecords:
    """Return the winner of each key, in hash order. `runs`: oldest first, each in hash order, one record per key."""
    if by_event:
        records = [run.event_winners() for run in runs]
    else:
        records = [IndexRecords(run.hi, run.lo, run.offset) for run in runs]
    return concatenate_records([_block_winners(block, by_event) for block in key_index.split_by_hash(records)])


def _block_winners(runs: Sequence[IndexRecords], by_event: bool) -> IndexRecords:
    dirty = concatenate_records(runs)
    if not by_event:
        return dirty.take(key_index.latest_positions(dirty.hi, dirty.lo))
    if dirty.event_time is None:
        return dirty
    return dirty.take(key_index.latest_positions_by_event(dirty.hi, dirty.lo, dirty.event_time))


def mark_expired(winners: IndexRecords, expired: U64) -> IndexRecords:
    """Return the winners with values at offsets of `expired` (ascending) turned into markers (T2)."""
    return _set_markers(winners, _mask_at_offsets(winners, expired) & (winners.offset & TOMBSTONE == 0))


def mark_removed(winners: IndexRecords, removed: U64) -> IndexRecords:
    """Return the winners with values and tombstones at offsets of `removed` (ascending) turned into markers (C2)."""
    return _set_markers(winners, _mask_at_offsets(winners, removed))


def _mask_at_offsets(winners: IndexRecords, offsets: U64) -> Mask:
    """Return a mask of the winners at one of the ascending offsets."""
    if not len(offsets):
        return np.zeros(len(winners), dtype=np.bool_)
    plain = winners.offset & OFFSET_MASK
    among: Mask = offsets[np.minimum(np.searchsorted(offsets, plain), len(offsets) - 1)] == plain
    return among


def _set_markers(winners: IndexRecords, dead: Mask) -> IndexRecords:
    if not dead.any():
        return winners
    flagged = np.where(dead, winners.offset | MARKER, winners.offset)
    return IndexRecords(winners.hi, winners.lo, flagged, winners.event_offset, winners.event_time)


def resolve(
    winners: IndexRecords, levels: Sequence[IndexRecords], merged: int, rules: ResolutionRules
) -> RangeResolution:
    """Return the decision about one hash range. `levels`: newest first, each in hash order.

    `winners`: the winner of each dirty key, in hash order; a marker if the winner expired or is removed.

    The first `merged` levels have all their records, the others at least those of the dirty keys.
    """
    blocks = key_index.split_by_hash([winners, *levels])
    return _join_resolutions([_resolve_block(winners, levels, merged, rules) for winners, *levels in blocks])


def _join_resolutions(blocks: Sequence[RangeResolution]) -> RangeResolution:
    """Return the resolution of a hash range from those of its blocks, in hash order."""
    if len(blocks) == 1:
        return blocks[0]
    totals = {
        name: sum(getattr(block, name) for block in blocks)
        for name in ("keys", "tombstones", "tombstones_removed", "tombstones_kept", "expired")
    }
    return RangeResolution(
        survivors=np.concatenate([block.survivors for block in blocks]),
        superseded=np.concatenate([block.superseded for block in blocks]),
        level=concatenate_records([block.level for block in blocks]),
        dropped_to=max(block.dropped_to for block in blocks),
        **totals,
    )


def _resolve_block(
    winners: IndexRecords, levels: Sequence[IndexRecords], merged: int, rules: ResolutionRules
) -> RangeResolution:
    by_event = rules.policies.event_time_order
    front = _first_hits(levels[:merged], winners)
    behind = _first_hits(levels[merged:], winners)
    old = front.with_fallback(behind)
    if by_event:
        wins = ~_mask_of_winners_beaten_by_old(winners, old, rules)
        winners, behind, old = winners.take(wins), behind.take(wins), old.take(wins)

    marker = winners.offset & MARKER != 0
    tombstone = ~marker & (winners.offset & TOMBSTONE != 0)
    retained = tombstone.copy()
    retained[tombstone] = rules.mask_of_retained(winners.offset[tombstone] & OFFSET_MASK)
    dropped = tombstone & ~retained
    removed = marker | dropped
    flagged = np.where(removed, winners.offset | MARKER, winners.offset)
    needed = ~removed | behind.has_row | rules.mask_of_needed_markers(winners.event_time, len(winners))
    new = IndexRecords(winners.hi, winners.lo, flagged, flagged if by_event else None, winners.event_time)

    superseded = old.offset[old.has_row]
    replaced_tombstones = int(np.count_nonzero(superseded & TOMBSTONE))
    values = len(winners) - int(np.count_nonzero(removed)) - int(np.count_nonzero(retained))
    removed_offsets = winners.offset[removed] & OFFSET_MASK
    tombstones_removed = int(np.count_nonzero(winners.offset[removed] & TOMBSTONE))
    return RangeResolution(
        survivors=winners.offset[~removed] & OFFSET_MASK,
        superseded=superseded & OFFSET_MASK,
        level=_merge_levels(new, needed, levels[:merged], merged == len(levels), rules),
        keys=values - (len(superseded) - replaced_tombstones),
        tombstones=int(np.count_nonzero(retained)) - replaced_tombstones,
        tombstones_removed=tombstones_removed,
        tombstones_kept=int(np.count_nonzero(retained)),
        expired=len(removed_offsets) - tombstones_removed,
        dropped_to=int(removed_offsets.max()) if len(removed_offsets) else -1,
    )


@dataclass(frozen=True)
class _ProbeHits:
    """The newest index record of each probed key: flagged offset and event time, valid where `present`."""

    present: Mask
    offset: U64
    event_time: I64

    @property
    def has_row(self) -> Mask:
        """Mask of the keys whose record has a row."""
        rows: Mask = self.present & (self.offset & MARKER == 0)
        return rows

    def take(self, mask: Mask) -> _ProbeHits:
        return _ProbeHits(self.present[mask], self.offset[mask], self.event_time[mask])

    def with_fallback(self, older: _ProbeHits) -> _ProbeHits:
        return _ProbeHits(
            self.present | older.present,
            np.where(self.present, self.offset, older.offset),
            np.where(self.present, self.event_time, older.event_time),
        )


def _first_hits(levels: Sequence[IndexRecords], keys: IndexRecords) -> _ProbeHits:
    """Return, per key, the record of the first level that has one."""
    present = np.zeros(len(keys), dtype=np.bool_)
    offset = np.zeros(len(keys), dtype=np.uint64)
    event_time = np.full(len(keys), NO_EVENT_TIME, dtype=np.int64)
    open_keys = np.arange(len(keys))
    for level in levels:
        at = key_index.positions_of_hashes(level, keys.hi[open_keys], keys.lo[open_keys])
        hit = at >= 0
        keys_hit, at = open_keys[hit], at[hit]
        present[keys_hit] = True
        offset[keys_hit] = level.offset[at]
        if level.event_time is not None:
            event_time[keys_hit] = level.event_time[at]
        open_keys = open_keys[~hit]
    return _ProbeHits(present, offset, event_time)


def _mask_of_winners_beaten_by_old(winners: IndexRecords, old: _ProbeHits, rules: ResolutionRules) -> Mask:
    """Return a mask of the winners that the old record beats: larger event time, or equal and larger offset (P9)."""
    assert winners.event_time is not None or not len(winners)
    event_time = winners.event_time if winners.event_time is not None else np.empty(0, dtype=np.int64)
    counts = old.has_row | (old.present & rules.mask_of_needed_markers(old.event_time, len(winners)))
    later = (old.event_time == event_time) & (old.offset & OFFSET_MASK > winners.offset & OFFSET_MASK)
    beaten: Mask = counts & ((old.event_time > event_time) | later)
    return beaten


def _merge_levels(
    new: IndexRecords, needed: Mask, front: Sequence[IndexRecords], merges_all: bool, rules: ResolutionRules
) -> IndexRecords:
    """Return the new level: `new` merged with the levels of `front`, without markers that hide no older record."""
    if not front:
        return new.take(needed)
    older = [level.event_winners() for level in front] if rules.policies.event_time_order else list(front)
    together = concatenate_records([*reversed(older), new])
    needs = []
    for level in reversed(older):
        alive = level.offset & MARKER == 0
        hides = np.full(len(level), not merges_all)
        needs.append(alive | hides | rules.mask_of_needed_markers(level.event_time, len(level)))
    winners = key_index.latest_positions(together.hi, together.lo)
    kept = np.concatenate([*needs, needed])[winners]
    return together.take(winners[kept])
