"""How dirty a topic is: the share of its bytes that no run has looked at yet (S2; Kafka's LogToClean).

    clean   logical bytes of the compacted ledger that serves
    dirty   logical bytes behind the horizon that may be compacted: sealed ledgers and rolled segments, up to the first
            that holds a message younger than the minimum lag. What is open is not counted, as Kafka's active segment

A topic is due when its ratio is greater than the limit, not when it is equal; of several the dirtiest goes first.
Pure functions over a topic's snapshot, and a few numbers: nothing is opened. Must not know: when to look, what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import TypeVar

from compactor.run.plan import Policies
from storage.metadata.records import SegmentRecord, TopicSnapshot
from storage.model import LedgerRecord

_Topic = TypeVar("_Topic")


def dirty_bytes(snapshot: TopicSnapshot, policies: Policies, now: int) -> int:
    """Logical bytes behind the horizon that a run could take at `now`, milliseconds since the Unix epoch.

    A ledger that straddles the horizon counts whole, as a run reads it.
    """
    horizon = snapshot.horizon.offset if snapshot.horizon else -1
    pieces: list[LedgerRecord | SegmentRecord] = [*snapshot.ledgers, *snapshot.segments]
    pieces.sort(key=lambda piece: piece.first_offset)
    old_enough = now - policies.min_lag_ms
    closed = [(piece if isinstance(piece, LedgerRecord) else piece.content, piece.newest) for piece in pieces]
    behind = [(one, newest) for one, newest in closed if one is not None and one.last_offset > horizon]
    may_go = takewhile(lambda one: not policies.min_lag_ms or (one[1] or 0) <= old_enough, behind)
    return sum(one.logical_bytes for one, _ in may_go)


def dirty_ratio(snapshot: TopicSnapshot, policies: Policies = Policies(), now: int = 0) -> float:  # noqa: B008
    """dirty / (clean + dirty), from 0 to 1; 0 of a topic in which nothing is dirty. `now`: for the minimum lag."""
    dirty = dirty_bytes(snapshot, policies, now)
    clean = snapshot.compacted.logical_bytes if snapshot.compacted else 0
    return ratio(clean, dirty)


def ratio(clean: int, dirty: int) -> float:
    """The dirty share of so many bytes."""
    return dirty / (clean + dirty) if dirty else 0.0


def is_due(dirty: float, limit: float) -> bool:
    """Whether a topic of that ratio is to be compacted, by the policy `min.cleanable.dirty.ratio`."""
    return dirty > limit


def dirtiest_first(ratios: Mapping[_Topic, float], limit: float) -> list[_Topic]:
    """The topics that are due, in the order in which they are to be compacted; equal ones as they were given."""
    due = [topic for topic, dirty in ratios.items() if is_due(dirty, limit)]
    return sorted(due, key=lambda topic: -ratios[topic])
