"""What every task of a verification gets, and how the sequence of offsets is covered by raw ledgers.

Raw at or below the horizon may be trimmed, in front or anywhere. What a task may then say depends on where: a newer
message of a key can only be in a gap behind, an event time that was larger in any gap.

A trim may also cut a ledger in two: it is still there whole, but rows below the topic's start take no part in later
runs. Each run records where the topic began for it; with an incomplete history, rows below the topic's start may have
taken part or not.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from compactor.verify.run_history import I64, RunHistory
from storage.errors import ObjectDamaged
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import HashRange, IndexDirectory
from storage.ledger.manifest import Manifest
from storage.model import IndexLocation, LedgerRecord
from storage.objects.interface import StoreLocation

Mask = npt.NDArray[np.bool_]
CHUNK_TABLES = "chunk tables"
"""The name of the fingerprint of all live chunks."""


class WinnerOrder(Enum):
    """By what the winner of a key is known: offset, event time, or only where both agree."""

    OFFSET = "offset"
    EVENT = "event time"
    EITHER = "either"


@dataclass(frozen=True)
class VerifyPlan:
    """`ledgers`: all raw ledgers, by offset. `manifest` None: there is no compacted ledger that could be read.

    `history`: of the topic's runs, as far as they are behind the manifest. `range_bits`: log2 of the hash ranges.
    `limit`: differences of a kind that a task names. `start_offset`: where the topic begins.
    """

    store: StoreLocation
    hasher: KeyHasher
    ledgers: tuple[LedgerRecord, ...]
    manifest: Manifest | None
    history: RunHistory
    range_bits: int
    limit: int
    start_offset: int = 0

    @property
    def serving(self) -> Manifest:
        """The manifest, for tasks that exist only with it."""
        assert self.manifest is not None
        return self.manifest

    @property
    def where(self) -> str:
        """The compacted ledger, as differences name it."""
        return f"compacted ledger {self.serving.ledger_id}"

    @staticmethod
    def range_name(number: int) -> str:
        """The name of the fingerprint of the keyed rows of a hash range."""
        return f"range {number}"

    @property
    def ranges(self) -> tuple[HashRange, ...]:
        """The hash ranges, one a task."""
        return tuple(HashRange(prefix, self.range_bits) for prefix in range(1 << self.range_bits))

    @property
    def locations(self) -> tuple[IndexLocation, ...]:
        """The indexes of all levels, the newest level first."""
        return tuple(location for level in (self.manifest.index if self.manifest else ()) for location in level)

    @property
    def by_event(self) -> bool:
        """Whether the index of the compacted ledger has event times."""
        return bool(self.manifest and self.manifest.policies.get("event_time_order"))

    @cached_property
    def below(self) -> tuple[LedgerRecord, ...]:
        """The raw ledgers at or below the horizon."""
        horizon = self.manifest.horizon.offset if self.manifest else -1
        return tuple(ledger for ledger in self.ledgers if ledger.last_offset <= horizon)

    @cached_property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Offsets at or below the horizon that no raw ledger has any more, inclusive."""
        if self.manifest is None:
            return ()
        found, following = [], 0
        for ledger in self.below:
            if ledger.first_offset > following:
                found.append((following, ledger.first_offset - 1))
            following = ledger.last_offset + 1
        if following <= self.manifest.horizon.offset:
            found.append((following, self.manifest.horizon.offset))
        return tuple(found)

    @cached_property
    def order(self) -> WinnerOrder:
        """What raw can say of winners. Where nothing has an event time the two orders are one."""
        orders = self.history.orders
        no_events = not self.gaps and not any(_has_events(ledger) for ledger in self.below)
        if orders == {False} or no_events:
            return WinnerOrder.OFFSET
        return WinnerOrder.EVENT if orders == {True} else WinnerOrder.EITHER

    def ledger_of(self, offset: int) -> int:
        """The number of the last raw ledger that begins at or before an offset, −1: none does."""
        return bisect_right(self.below, offset, key=lambda ledger: ledger.first_offset) - 1

    def covered(self, offsets: I64) -> Mask:
        """Which offsets are in a raw ledger at or below the horizon. Shape (n,)."""
        if not self.below:
            return np.zeros(len(offsets), dtype=np.bool_)
        firsts = np.array([ledger.first_offset for ledger in self.below], dtype=np.int64)
        lasts = np.array([ledger.last_offset for ledger in self.below], dtype=np.int64)
        at = np.searchsorted(firsts, offsets, "right") - 1
        inside: Mask = (at >= 0) & (offsets <= lasts[at])
        return inside

    def decided(self, offsets: I64) -> Mask:
        """Which winners, by offset, took part for certain, and no message in a gap can have beaten."""
        known = self.known(offsets)
        if self.order is WinnerOrder.OFFSET:
            return known & (offsets > max((last for _, last in self.gaps), default=-1))
        return known & (not self.gaps)

    def took_part(self, offsets: I64) -> Mask:
        """Which raw rows at or below the horizon, by offset, a run has read; with an incomplete history, may have."""
        begins = self.history.raw_from(offsets)
        return np.ones(len(offsets), dtype=np.bool_) if begins is None else offsets >= begins

    def known(self, offsets: I64) -> Mask:
        """Of which raw rows, by offset, it is known whether they took part."""
        if self.history.complete:
            return np.ones(len(offsets), dtype=np.bool_)
        return offsets >= self.start_offset


def _has_events(ledger: LedgerRecord) -> bool:
    """Whether messages of a ledger may have event times; those of chunks are in its chunk table only (P10)."""
    try:
        directory = IndexDirectory.decode(ledger.index.directory)
        return directory.has_events or directory.chunk_table is not None
    except ObjectDamaged:
        return True  # it is not known; a task names the damage
