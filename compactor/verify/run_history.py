"""What the runs of a topic, as the database remembers them, explain and demand of its compacted ledger.

Verify must not call a difference what a policy did, even one that is off by now: a value may have gone by a time to
live of long ago. So there are two questions, and they are answered from different runs:

    may     could any run have done it?     every run that published, of the topic's earlier lives too; with an
                                            incomplete history: yes
    must    has a run certainly done it?    only runs since the compacted ledger last began from raw, without a break

The epoch tells where that was: it rises by one with each claim, each cancelled run, and each deletion of the cursor
`__compaction`, so a larger step than the claims and cancellations explain is a new beginning. A history is complete
if it has a published run for each generation. A run decided by its `started_at` (Manifest.frozen_at) over all that is
at or below its horizon. Not recorded is how far slow cursors were (tombstones_wait_for_cursors): runs with that
policy demand nothing of tombstones.

Pure values; nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from compactor.run.plan import RunPolicies
from storage.ledger.manifest import Manifest
from storage.metadata.records import RunRecord, RunState

I64 = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).min
"""A limit that no time is below."""
ALWAYS = np.iinfo(np.int64).max
EXPIRED = "its value had expired when a run went over it, and is still there"
OVERDUE = "a tombstone is there whose retention was over when a run went over it"
RETAINED = "retained_at is set exactly where a tombstone is retained"


@dataclass(frozen=True)
class PublishedRun:
    """A run that published: up to where, by which time, by which policies. `certain`: its work is still in force.
    `raw_from`: where the topic began for it; what lay below was not there any more, but in the ledger before."""

    horizon: int
    now: int
    policies: RunPolicies
    certain: bool
    raw_from: int = 0


@dataclass(frozen=True)
class RunHistory:
    """Runs that published, the oldest first; the last is the one whose result is verified."""

    runs: tuple[PublishedRun, ...]
    complete: bool

    @classmethod
    def of(cls, manifest: Manifest, records: Sequence[RunRecord]) -> RunHistory:
        """From the topic's runs, newest first, of which those after the manifest's are left out.

        What the manifest says of its own run counts for more than the run's row.
        """
        before = sorted((run for run in records if run.run_id <= manifest.run_id), key=lambda run: run.run_id)
        begins = before[0].run_id if before else 0
        for older, newer in pairwise(before):
            if newer.epoch - older.epoch != (2 if older.state is RunState.CANCELLED else 1):
                begins = newer.run_id
        its_row = next((run for run in before if run.run_id == manifest.run_id), None)
        raw_from = 0 if its_row is None else _raw_from(its_row)
        own = PublishedRun(manifest.horizon.offset, manifest.frozen_at, _policies(manifest.policies), True, raw_from)
        earlier = tuple(
            PublishedRun(
                run.horizon.offset, run.started_at, _policies(run.policies), run.run_id >= begins, _raw_from(run)
            )
            for run in before
            if run.compacted_ledger_id is not None and run.horizon is not None and run.run_id != manifest.run_id
        )
        complete = len(earlier) + 1 == manifest.generation and bool(before) and before[-1].run_id == manifest.run_id
        return cls((*earlier, own), complete)

    @property
    def orders(self) -> frozenset[bool]:
        """Whether the largest event time won (True), the newest (False), or one then the other."""
        known = (run.policies.event_time_order for run in self.runs)
        return frozenset(known if self.complete else (False, True))

    @property
    def forgotten_to(self) -> int:
        """Deletions with event times up to this may be purged (P9), those above are remembered."""
        if not self.complete:
            return ALWAYS
        return max((run.now - run.policies.event_time_max_lateness_ms for run in self.runs), default=NEVER)

    @property
    def null_keys_dropped_to(self) -> int:
        """Null keys up to this offset may have been dropped; −1: none."""
        if not self.complete:
            return self.runs[-1].horizon
        return max((run.horizon for run in self.runs if not run.policies.retain_null_key), default=-1)

    @property
    def unkeyed_dropped_to(self) -> int:
        """Any row outside the key map up to this offset may be gone by the topic's limits (C2); −1: none."""
        if not self.complete:
            return self.runs[-1].horizon
        limited = (run for run in self.runs if run.policies.retention_ms is not None or run.policies.start_offset)
        return max((run.horizon for run in limited), default=-1)

    def may_expire(self, offsets: I64) -> I64:
        """By the offsets of values: the publish time up to which a run may have removed them (T2, C2). Shape (n,)."""
        if not self.complete:
            return np.full(len(offsets), ALWAYS)
        return _always_below_start(self.runs, offsets, _largest(self.runs, offsets, _values_to))

    def chunks_dropped(self, offset: int) -> int:
        """By the offset of a chunk: the publish time up to which a run may have dropped it as incomplete (P10)."""
        return self.chunks_dropped_between(offset, ALWAYS)

    def chunks_dropped_between(self, first: int, end: int) -> int:
        """As `chunks_dropped`, but by runs whose horizon is before `end`."""
        if not self.complete:
            return ALWAYS
        limits = (run.policies.incomplete_to(run.now) for run in self.runs if first <= run.horizon < end)
        return max((limit for limit in limits if limit is not None), default=NEVER)

    def must_expire(self, offsets: I64) -> I64:
        """As `may_expire`, but a run has certainly removed them."""
        return _always_below_start(self._certain, offsets, _largest(self._certain, offsets, _values_to))

    def may_go(self, offsets: I64) -> I64:
        """By the offsets of rows of any kind: the publish time up to which a run may have removed them (C2)."""
        if not self.complete:
            return np.full(len(offsets), ALWAYS)
        return _always_below_start(self.runs, offsets, _largest(self.runs, offsets, _rows_to))

    def must_go(self, offsets: I64) -> I64:
        """By the offsets of rows of any kind: the publish time up to which a run has certainly removed them (C2)."""
        return _always_below_start(self._certain, offsets, _largest(self._certain, offsets, _rows_to))

    def must_drop(self, offsets: I64) -> I64:
        """By the offsets of tombstones: the `retained_at` up to which a run has certainly removed them (T1)."""
        return _largest(self._certain, offsets, _tombstones_to)

    def first_kept(self, offsets: I64) -> I64 | None:
        """By the offsets of tombstones: when the run that first met them was, NEVER if it kept none; None: unknown."""
        return self._first_met(offsets, lambda run: run.now if _keeps_tombstones(run.policies) else NEVER, NEVER)

    def raw_from(self, offsets: I64) -> I64 | None:
        """By the offsets of raw rows: where the topic began for the run that first met them, so that a row below that
        took no part; None: unknown."""
        return self._first_met(offsets, lambda run: run.raw_from, 0)

    def _first_met(self, offsets: I64, value: Callable[[PublishedRun], int], otherwise: int) -> I64 | None:
        """A value of the first run that went over each offset, `otherwise` where none did; None: unknown."""
        if not self.complete:
            return None
        met = np.searchsorted([run.horizon for run in self._certain], offsets, "left")
        return np.array([*map(value, self._certain), otherwise], dtype=np.int64)[met]

    @property
    def _certain(self) -> tuple[PublishedRun, ...]:
        return tuple(run for run in self.runs if run.certain) if self.complete else self.runs[-1:]


def _largest(runs: Sequence[PublishedRun], offsets: I64, limit: Callable[[PublishedRun], int]) -> I64:
    """For each offset the largest limit of the runs whose horizon reaches it. Horizons never go back (A4)."""
    ordered = sorted(runs, key=lambda run: run.horizon)
    limits = np.array([*(limit(run) for run in ordered), NEVER], dtype=np.int64)
    from_here = np.maximum.accumulate(limits[::-1])[::-1]
    found: I64 = from_here[np.searchsorted([run.horizon for run in ordered], offsets, "left")]
    return found


def _always_below_start(runs: Sequence[PublishedRun], offsets: I64, limits: I64) -> I64:
    """The limits, ALWAYS where a run went over the offset whose topic began above it."""
    for run in runs:
        limits = np.where(offsets < min(run.policies.start_offset, run.horizon + 1), ALWAYS, limits)
    return limits


def _values_to(run: PublishedRun) -> int:
    expired = NEVER if run.policies.key_ttl_ms is None else run.now - run.policies.key_ttl_ms
    return max(expired, _rows_to(run))


def _rows_to(run: PublishedRun) -> int:
    limit = run.policies.rows_to(run.now)
    return NEVER if limit is None else limit


def _tombstones_to(run: PublishedRun) -> int:
    return NEVER if run.policies.tombstones_wait_for_cursors else run.now - run.policies.tombstone_retention_ms


def _keeps_tombstones(policies: RunPolicies) -> bool:
    return policies.tombstone_retention_ms > 0 or policies.tombstones_wait_for_cursors


def _raw_from(run: RunRecord) -> int:
    recorded: Any = run.statistics.get("raw_from", 0)
    return int(recorded)


def _policies(named: Any) -> RunPolicies:
    """Policies as a row or manifest has them; names of other versions are left out."""
    known = asdict(RunPolicies())
    return RunPolicies(**{name: value for name, value in dict(named).items() if name in known})
