"""Input of every task of a verification: manifest, raw ledgers, run history, and the gaps between raw ledgers.

Raw ledgers at or below the horizon may be trimmed, at the start or anywhere. A gap limits what raw proves: a newer
message of a key can only have been in a later gap, a message with a larger event time in any gap.

A trim may also end inside a ledger. The ledger then keeps all its rows, but rows below the topic's start take no part
in later runs. Each run records the topic's start at that time. With an incomplete history it is unknown whether rows
below the topic's start took part.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from compactor.verify.run_history import RunHistory
from storage.errors import ObjectDamaged
from storage.ledger.chunk_table import Mask
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import I64, HashRange, IndexDirectory
from storage.ledger.manifest import Manifest
from storage.model import IndexLocation, LedgerRecord, StoredObject
from storage.objects.interface import StoreLocation

CHUNK_TABLES = "chunk tables"
"""Name of the fingerprint of all live chunks."""


class WinnerOrder(Enum):
    """The order that decides the winner of a key: offset, event time, or EITHER: only where both agree."""

    OFFSET = "offset"
    EVENT = "event time"
    EITHER = "either"


@dataclass(frozen=True)
class VerifyPlan:
    """Input of every task. `ledgers`: all raw ledgers, by offset. `manifest` None: no compacted ledger is readable.

    `history`: the topic's runs up to the manifest's own. `range_bits`: log2 of the number of hash ranges.
    `limit`: differences per kind that a task names. `start_offset`: first offset of the topic.
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
    def readable_manifest(self) -> Manifest:
        """The manifest of the compacted ledger, for tasks that exist only if it is readable."""
        assert self.manifest is not None
        return self.manifest

    @property
    def compacted_ledger_label(self) -> str:
        """The name of the compacted ledger in differences."""
        return f"compacted ledger {self.readable_manifest.ledger_id}"

    @staticmethod
    def fingerprint_name(range_number: int) -> str:
        """Return the name of the fingerprint of the keyed rows of a hash range."""
        return f"range {range_number}"

    @property
    def hash_ranges(self) -> tuple[HashRange, ...]:
        """The hash ranges of keys, one per task of the keys stage."""
        return tuple(HashRange(prefix, self.range_bits) for prefix in range(1 << self.range_bits))

    @property
    def index_locations(self) -> tuple[IndexLocation, ...]:
        """The key indexes of all levels of the compacted ledger, the newest level first."""
        return tuple(location for level in (self.manifest.index if self.manifest else ()) for location in level)

    @property
    def table_objects(self) -> tuple[StoredObject, ...]:
        """The objects of the topic's Iceberg table besides the parts."""
        table = self.manifest.table if self.manifest else None
        return () if table is None else tuple(table.objects.values())

    @property
    def index_has_event_times(self) -> bool:
        """True if the index of the compacted ledger has event times."""
        return bool(self.manifest and self.manifest.policies.get("event_time_order"))

    @cached_property
    def ledgers_to_horizon(self) -> tuple[LedgerRecord, ...]:
        """The raw ledgers at or below the horizon."""
        horizon = self.manifest.horizon.offset if self.manifest else -1
        return tuple(ledger for ledger in self.ledgers if ledger.last_offset <= horizon)

    @cached_property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The (first, last) offsets at or below the horizon that no raw ledger holds, both inclusive, ascending."""
        if self.manifest is None:
            return ()
        gaps, following = [], 0
        for ledger in self.ledgers_to_horizon:
            if ledger.first_offset > following:
                gaps.append((following, ledger.first_offset - 1))
            following = ledger.last_offset + 1
        if following <= self.manifest.horizon.offset:
            gaps.append((following, self.manifest.horizon.offset))
        return tuple(gaps)

    @cached_property
    def winner_order(self) -> WinnerOrder:
        """The order in which raw decides winners. Without any event time both orders are the same."""
        orders = self.history.event_time_orders
        no_events = not self.gaps and not any(_may_have_event_times(ledger) for ledger in self.ledgers_to_horizon)
        if orders == {False} or no_events:
            return WinnerOrder.OFFSET
        return WinnerOrder.EVENT if orders == {True} else WinnerOrder.EITHER

    def ledger_position(self, offset: int) -> int:
        """Return the index in `ledgers_to_horizon` of the last ledger that begins at or before an offset; −1: none."""
        return bisect_right(self.ledgers_to_horizon, offset, key=lambda ledger: ledger.first_offset) - 1

    def covered_by_ledger(self, offsets: I64) -> Mask:
        """Return a mask of the offsets that a raw ledger at or below the horizon holds. Shape (n,)."""
        if not self.ledgers_to_horizon:
            return np.zeros(len(offsets), dtype=np.bool_)
        firsts = np.array([ledger.first_offset for ledger in self.ledgers_to_horizon], dtype=np.int64)
        lasts = np.array([ledger.last_offset for ledger in self.ledgers_to_horizon], dtype=np.int64)
        at = np.searchsorted(firsts, offsets, "right") - 1
        inside: Mask = (at >= 0) & (offsets <= lasts[at])
        return inside

    def proven_winners(self, offsets: I64) -> Mask:
        """Return a mask of the winners, by offset, that raw proves: a run has read them, and no message in a gap can
        win."""
        known = self.is_read_state_known(offsets)
        if self.winner_order is WinnerOrder.OFFSET:
            return known & (offsets > max((last for _, last in self.gaps), default=-1))
        return known & (not self.gaps)

    def read_by_run(self, offsets: I64) -> Mask:
        """Return a mask of the raw rows, by offset, that a run has read; with an incomplete history, of all rows."""
        begins = self.history.topic_start_at_first_run(offsets)
        return np.ones(len(offsets), dtype=np.bool_) if begins is None else offsets >= begins

    def is_read_state_known(self, offsets: I64) -> Mask:
        """Return a mask of the raw rows, by offset, for which it is known whether a run has read them."""
        if self.history.complete:
            return np.ones(len(offsets), dtype=np.bool_)
        return offsets >= self.start_offset


def _may_have_event_times(ledger: LedgerRecord) -> bool:
    """Return whether messages of a ledger may have event times. Those of chunks are only in its chunk table (P10)."""
    try:
        directory = IndexDirectory.decode(ledger.index.directory, ledger.index.name)
        return directory.has_events or directory.chunk_table is not None
    except ObjectDamaged:
        return True  # unknown; a task names the damage
