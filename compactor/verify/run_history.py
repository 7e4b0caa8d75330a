"""History of a topic's runs: which removals they explain, and which they require.

The effect of a policy is no difference, even if the policy is no longer set: a time to live of years ago may have
removed a value. So a removal raises two questions, which different runs answer:

    may     could any run have removed it?          every published run, also of the topic's earlier incarnations;
                                                    with an incomplete history: yes
    must    has a run certainly removed it?         only runs since the compacted ledger last started from raw

The epoch shows where the compacted ledger last started from raw. It rises by one with each claim, each cancelled run,
and each deletion of the cursor `__compaction`. A larger step than the claims and cancellations explain is a restart.
A history is complete if it has a published run for each generation. A run applies its policies as of its `started_at`
(Manifest.frozen_at) to all rows at or below its horizon. The position of slow cursors (tombstones_wait_for_cursors) is
not recorded, so runs with that policy require nothing of tombstones.

Pure values; this module opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from compactor.run.plan import RunPolicies
from storage.ledger.key_index import I64
from storage.ledger.manifest import Manifest
from storage.metadata.records import RunRecord, RunState

NEVER = np.iinfo(np.int64).min
"""The limit that no time is at or below."""
ALWAYS = np.iinfo(np.int64).max
"""The limit that every time is at or below."""
EXPIRED = "the value had expired when a run read it, but was not removed"
OVERDUE = "the retention of the tombstone was over when a run read it, but it was not removed"
RETAINED = "retained_at is set on a value, or missing on a tombstone"


@dataclass(frozen=True)
class PublishedRun:
    """A run that published: its horizon (offset), its time in milliseconds, its policies.

    `certain`: the compacted ledger still holds its result. `raw_from`: start offset of the topic for this run; it
    read no raw row below that.
    """

    horizon: int
    now: int
    policies: RunPolicies
    certain: bool
    raw_from: int = 0

    @property
    def keeps_tombstones(self) -> bool:
        """True if the run retained some tombstones (T1)."""
        return self.policies.tombstone_retention_ms > 0 or self.policies.tombstones_wait_for_cursors


@dataclass(frozen=True)
class RunHistory:
    """The published runs, oldest first. The last run produced the compacted ledger that is verified.

    `complete`: there is a published run for each generation. Times are milliseconds. Limits are NEVER if nothing was
    removed, and ALWAYS if anything may have been.
    """

    runs: tuple[PublishedRun, ...]
    complete: bool

    @classmethod
    def of(cls, manifest: Manifest, records: Sequence[RunRecord]) -> RunHistory:
        """Return the history of the topic's runs (newest first) up to the manifest's run.

        The manifest has priority over the database row of its run.
        """
        before = sorted((run for run in records if run.run_id <= manifest.run_id), key=lambda run: run.run_id)
        first_certain = before[0].run_id if before else 0
        for older, newer in pairwise(before):
            if newer.epoch - older.epoch != (2 if older.state is RunState.CANCELLED else 1):
                first_certain = newer.run_id
        own_row = next((run for run in before if run.run_id == manifest.run_id), None)
        raw_from = 0 if own_row is None else _recorded_start_offset(own_row)
        own = PublishedRun(
            manifest.horizon.offset, manifest.frozen_at, _run_policies(manifest.policies), True, raw_from
        )
        earlier = tuple(
            PublishedRun(
                run.horizon.offset,
                run.started_at,
                _run_policies(run.policies),
                run.run_id >= first_certain,
                _recorded_start_offset(run),
            )
            for run in before
            if run.compacted_ledger_id is not None and run.horizon is not None and run.run_id != manifest.run_id
        )
        complete = len(earlier) + 1 == manifest.generation and bool(before) and before[-1].run_id == manifest.run_id
        return cls((*earlier, own), complete)

    @property
    def event_time_orders(self) -> frozenset[bool]:
        """The orders of the runs: True if the largest event time won, False if the newest offset won."""
        known = (run.policies.event_time_order for run in self.runs)
        return frozenset(known if self.complete else (False, True))

    @property
    def latest_purgeable_deletion_event_time(self) -> int:
        """The event time up to which deletions may be purged from the index (P9). Later deletions must be in it."""
        if not self.complete:
            return ALWAYS
        return max((run.now - run.policies.event_time_max_lateness_ms for run in self.runs), default=NEVER)

    @property
    def last_droppable_null_key_offset(self) -> int:
        """The offset up to which a run may have dropped messages without a key; −1: none."""
        if not self.complete:
            return self.runs[-1].horizon
        return max((run.horizon for run in self.runs if not run.policies.retain_null_key), default=-1)

    @property
    def last_removable_unkeyed_offset(self) -> int:
        """The last offset at which the topic's limits (C2) may have removed a row outside the key map; −1: none."""
        if not self.complete:
            return self.runs[-1].horizon
        limited = (run for run in self.runs if run.policies.retention_ms is not None or run.policies.start_offset)
        return max((run.horizon for run in limited), default=-1)

    def latest_removable_value_publish_time(self, offsets: I64) -> I64:
        """Return, per offset of a value, the publish time up to which a run may have removed the value (T2, C2)."""
        return self._largest_limits_of_any_run(offsets, _value_limit)

    def latest_droppable_chunk_publish_time(self, chunk_offset: int, end: int = ALWAYS) -> int:
        """Return the publish time up to which a run may have dropped the chunk at `chunk_offset` as incomplete (P10).

        Only runs whose horizon is in [`chunk_offset`, `end`) count.
        """
        if not self.complete:
            return ALWAYS
        limits = (run.policies.incomplete_removed_to(run.now) for run in self.runs if chunk_offset <= run.horizon < end)
        return max((limit for limit in limits if limit is not None), default=NEVER)

    def latest_removed_value_publish_time(self, offsets: I64) -> I64:
        """Return, per offset of a value, the publish time up to which a run has certainly removed values (T2, C2)."""
        return _largest_limits_with_topic_start(self._certain_runs, offsets, _value_limit)

    def latest_removable_row_publish_time(self, offsets: I64) -> I64:
        """Return, per offset of any row, the publish time up to which a run may have removed the row (C2)."""
        return self._largest_limits_of_any_run(offsets, _row_limit)

    def latest_removed_row_publish_time(self, offsets: I64) -> I64:
        """Return, per offset of any row, the publish time up to which a run has certainly removed the row (C2)."""
        return _largest_limits_with_topic_start(self._certain_runs, offsets, _row_limit)

    def latest_removed_tombstone_retained_at(self, offsets: I64) -> I64:
        """Return, per offset of a tombstone, the `retained_at` up to which a run has certainly removed those (T1)."""
        return _largest_limits(self._certain_runs, offsets, _tombstone_limit)

    def expected_retained_at(self, offsets: I64) -> I64 | None:
        """Return, per offset of a tombstone, the time of the first run that read it, which its row must have as
        `retained_at`; NEVER if that run kept no tombstones.

        None: unknown, because the history is incomplete.
        """
        return self._value_of_first_run(offsets, lambda run: run.now if run.keeps_tombstones else NEVER, NEVER)

    def topic_start_at_first_run(self, offsets: I64) -> I64 | None:
        """Return, per offset of a raw row, the topic's start when the first run read the row; None: the history
        is incomplete.

        A row below that start took no part in the run.
        """
        return self._value_of_first_run(offsets, lambda run: run.raw_from, 0)

    def _value_of_first_run(self, offsets: I64, value: Callable[[PublishedRun], int], otherwise: int) -> I64 | None:
        """Return, per offset, `value` of the first run that read the offset, or `otherwise` if no run did.

        None: unknown, because the history is incomplete.
        """
        if not self.complete:
            return None
        first = np.searchsorted([run.horizon for run in self._certain_runs], offsets, "left")
        return np.array([*map(value, self._certain_runs), otherwise], dtype=np.int64)[first]

    def _largest_limits_of_any_run(self, offsets: I64, limit: Callable[[PublishedRun], int]) -> I64:
        """Return, per offset, the largest limit of any run; ALWAYS if the history is incomplete."""
        return (
            _largest_limits_with_topic_start(self.runs, offsets, limit)
            if self.complete
            else np.full(len(offsets), ALWAYS)
        )

    @property
    def _certain_runs(self) -> tuple[PublishedRun, ...]:
        """The runs whose result the compacted ledger still holds; of an incomplete history the last run alone."""
        return tuple(run for run in self.runs if run.certain) if self.complete else self.runs[-1:]


def _largest_limits(runs: Sequence[PublishedRun], offsets: I64, limit: Callable[[PublishedRun], int]) -> I64:
    """Return, per offset, the largest limit of the runs that read the offset. Horizons only rise (A4)."""
    ordered = sorted(runs, key=lambda run: run.horizon)
    limits = np.array([*(limit(run) for run in ordered), NEVER], dtype=np.int64)
    largest_from = np.maximum.accumulate(limits[::-1])[::-1]
    largest: I64 = largest_from[np.searchsorted([run.horizon for run in ordered], offsets, "left")]
    return largest


def _largest_limits_with_topic_start(
    runs: Sequence[PublishedRun], offsets: I64, limit: Callable[[PublishedRun], int]
) -> I64:
    """Return, per offset, the largest limit of the runs that read the offset.

    ALWAYS where the topic's start (C2) was above the offset when a run read it.
    """
    limits = _largest_limits(runs, offsets, limit)
    for run in runs:
        limits = np.where(offsets < min(run.policies.start_offset, run.horizon + 1), ALWAYS, limits)
    return limits


def _value_limit(run: PublishedRun) -> int:
    """Return the publish time up to which a run removes values (T2, C2); NEVER: none."""
    expired = NEVER if run.policies.key_ttl_ms is None else run.now - run.policies.key_ttl_ms
    return max(expired, _row_limit(run))


def _row_limit(run: PublishedRun) -> int:
    """Return the publish time up to which a run removes rows of any kind (C2); NEVER: none."""
    limit = run.policies.rows_removed_to(run.now)
    return NEVER if limit is None else limit


def _tombstone_limit(run: PublishedRun) -> int:
    """Return the `retained_at` up to which a run removes tombstones (T1); NEVER: unknown."""
    return NEVER if run.policies.tombstones_wait_for_cursors else run.now - run.policies.tombstone_retention_ms


def _recorded_start_offset(run: RunRecord) -> int:
    """Return the topic's start offset at the time of a run, as its statistics record it."""
    recorded: Any = run.statistics.get("raw_from", 0)
    return int(recorded)


def _run_policies(recorded: Any) -> RunPolicies:
    """Return the policies of a database row or manifest. Unknown names, of other versions, are ignored."""
    known = asdict(RunPolicies())
    return RunPolicies(**{name: value for name, value in dict(recorded).items() if name in known})
