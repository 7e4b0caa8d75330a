"""What is to be compacted, in which order, and what goes together. Pure: values in, values out.

Due is a topic (its `cause`):
    threshold.bytes, threshold.messages   more than that is behind its horizon, not as much (S1)
    dirty.ratio                           a larger share of its closed bytes is dirty (S2)
    max.lag                               something behind its horizon is older than its maximum lag, and dirty (S3)
and then the dirtiest goes first. Not due is a topic that is paused or requested, whose last try failed and is not to
be repeated yet (S6), and of which nothing may be compacted yet by its minimum lag.

Requests go before what is due by itself, in their order. Small topics go together, as one job of the engine;
a large one goes alone, and never takes the last worker slot, so small ones never wait for large ones alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from compactor.scheduling.backlog import Backlog
from storage.metadata.records import CompactionControl, TopicRecord

CLEAN_FOR_DIRTY = 16
"""A topic is not small if its compacted ledger is that many times larger than the dirty bytes that a small one may
have.
"""


@dataclass(frozen=True)
class DueTopic:
    """A topic that is to be compacted, and why."""

    backlog: Backlog
    cause: str

    @property
    def topic(self) -> TopicRecord:
        return self.backlog.topic


@dataclass(frozen=True)
class WorkerSlots:
    """How much runs at once. `count`: jobs; a small topic has up to `small_bytes` dirty, and `batch` go together."""

    count: int
    small_bytes: int
    batch: int

    def is_small(self, backlog: Backlog) -> bool:
        """Whether the topic shares a job with others."""
        return backlog.bytes <= self.small_bytes and backlog.clean <= CLEAN_FOR_DIRTY * self.small_bytes


@dataclass(frozen=True)
class TopicsCheckResult:
    """What a check of all topics found, in the terms of Kafka's cleaner manager. Times in milliseconds.

    `topics`: those for which something can become due. `max_delay_ms`: by which the latest exceeds its maximum lag.
    `uncleanable`: topics whose last try failed, with what is behind their horizons. `unreadable_policies`: stored
    values that this version cannot read.
    """

    at: int
    topics: int
    due: int
    dirty_bytes: int
    max_dirty_ratio: float
    max_delay_ms: int
    uncleanable: int
    uncleanable_bytes: int
    unreadable_policies: int = 0

    @classmethod
    def of(
        cls,
        backlogs: Sequence[Backlog],
        controls: Mapping[int, CompactionControl],
        due: int,
        now: int,
        unreadable_policies: int = 0,
    ) -> TopicsCheckResult:
        """From what was measured at `now`."""
        late = [
            now - backlog.triggers.max_lag_ms - backlog.oldest
            for backlog in backlogs
            if backlog.triggers.max_lag_ms and backlog.oldest is not None
        ]
        failing = [backlog for backlog in backlogs if controls.get(backlog.topic.id, CompactionControl()).failures]
        return cls(
            now,
            len(backlogs),
            due,
            sum(backlog.bytes for backlog in backlogs),
            max((backlog.dirty_ratio for backlog in backlogs), default=0.0),
            max(0, *late, 0),
            len(failing),
            sum(item.bytes for item in failing),
            unreadable_policies,
        )


def cause_of(backlog: Backlog, now: int) -> str | None:
    """Why the topic is due at `now`, ms since the Unix epoch; None: it is not."""
    triggers = backlog.triggers
    if not backlog.messages:
        return None
    if triggers.min_lag_ms and (backlog.soonest is None or backlog.soonest > now - triggers.min_lag_ms):
        return None
    if triggers.threshold_bytes and backlog.bytes > triggers.threshold_bytes:
        return "threshold.bytes"
    if triggers.threshold_messages and backlog.messages > triggers.threshold_messages:
        return "threshold.messages"
    if triggers.dirty_ratio is not None and backlog.dirty_ratio > triggers.dirty_ratio:
        return "dirty.ratio"
    if triggers.max_lag_ms and backlog.oldest is not None and backlog.oldest < now - triggers.max_lag_ms:
        return "max.lag"
    return None


def due(backlogs: Sequence[Backlog], controls: Mapping[int, CompactionControl], now: int) -> list[DueTopic]:
    """The topics that are due at `now`, the dirtiest first; of equal ones the larger, then by name."""
    found = []
    for backlog in backlogs:
        cause = cause_of(backlog, now)
        if cause is not None and may_begin(controls.get(backlog.topic.id, CompactionControl()), now):
            found.append(DueTopic(backlog, cause))
    return sorted(found, key=lambda item: (-item.backlog.dirtiness, -item.backlog.bytes, str(item.topic.name)))


def may_begin(control: CompactionControl, now: int) -> bool:
    """Whether the topic is neither requested, paused, aborting, nor waiting after a failure."""
    waits = control.retry_at is not None and now < control.retry_at
    return control.requested_at is None and not control.paused and not control.aborting and not waits


def jobs(wanted: Sequence[Backlog], busy_large: int, busy_small: int, slots: WorkerSlots) -> list[list[TopicRecord]]:
    """What to begin now, the first first, as topics that go together; `busy_…`: worker slots that are taken.

    All small topics that wait go in one job, up to `WorkerSlots.batch`; large ones leave one slot to small ones, unless
    there is only one.
    """
    free = slots.count - busy_large - busy_small
    large_left = (slots.count if slots.count == 1 else slots.count - 1) - busy_large
    found: list[list[TopicRecord]] = []
    open_batch: list[TopicRecord] | None = None
    for backlog in wanted:
        if slots.is_small(backlog):
            if open_batch is None or len(open_batch) >= slots.batch:
                if len(found) >= free:
                    continue
                open_batch = []
                found.append(open_batch)
            open_batch.append(backlog.topic)
        elif len(found) < free and large_left > 0:
            large_left -= 1
            found.append([backlog.topic])
    return found


def retry_delay_ms(failures: int, first_ms: int, most_ms: int, chance: float) -> int:
    """How long to wait after that many failures in a row: doubling up to the most, from half of it on by `chance`
    (0…1).

    Topics that failed together are not tried again together.
    """
    whole = min(most_ms, first_ms << min(failures - 1, 40))
    return round(whole / 2 + whole / 2 * chance)


def without(wanted: Sequence[DueTopic], topic_ids: Collection[int]) -> list[DueTopic]:
    """Those of other topics."""
    return [item for item in wanted if item.topic.id not in topic_ids]
