"""Selection of the topics to compact, their order, and their grouping into jobs. Pure: values in, values out.

A topic is due (its `cause`) if
    threshold.bytes, threshold.messages   its backlog exceeds the threshold (S1)
    dirty.ratio                           its dirty ratio exceeds the trigger (S2)
    max.lag                               its backlog has a message older than the maximum lag (S3)
The topic with the largest dirty ratio comes first. A topic is not due while it is paused or requested, while it waits
after a failure (S6), and while its minimum lag excludes its whole backlog.

Requested topics precede due topics, in the order of their requests. Small topics of one engine share a job. A large
topic has its own job, and never takes the last worker slot, so small topics never wait for large ones alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from compactor.scheduling.backlog import Backlog
from storage.metadata.records import CompactionControl, TopicRecord

CLEAN_FOR_DIRTY = 16
"""Maximum size of a small topic's compacted ledger, relative to the maximum dirty bytes of a small topic."""


@dataclass(frozen=True)
class DueTopic:
    """A topic whose compaction is due, and the cause."""

    backlog: Backlog
    cause: str

    @property
    def topic(self) -> TopicRecord:
        return self.backlog.topic


@dataclass(frozen=True)
class WorkerSlots:
    """Worker slots: `count` concurrent jobs.

    `small_bytes`: maximum backlog in bytes of a small topic. `batch`: maximum number of small topics per job.
    """

    count: int
    small_bytes: int
    batch: int

    def is_small(self, backlog: Backlog) -> bool:
        """Return whether the topic is small: it may share a job with other small ones."""
        return backlog.bytes <= self.small_bytes and backlog.clean_bytes <= CLEAN_FOR_DIRTY * self.small_bytes


@dataclass(frozen=True)
class TopicsCheckResult:
    """Result of a check of all topics, in the terms of Kafka's cleaner manager. Times in milliseconds.

    `at`: time of the check. `topics`: number of topics with a trigger. `due`: number of due topics. `dirty_bytes`: sum
    of their backlogs, also of topics that are not due. `max_delay_ms`: maximum time by which a topic exceeds its
    maximum lag. `uncleanable`, `uncleanable_bytes`: topics whose last try failed, and their backlog.
    `unreadable_policies`: number of stored values that this version cannot read.
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
        """Return the result of a check of topics whose backlogs were read at `now`."""
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

    def plus(self, other: TopicsCheckResult) -> TopicsCheckResult:
        """Return the sum of two results about different topics, with the time of `other`."""
        return TopicsCheckResult(
            other.at,
            self.topics + other.topics,
            self.due + other.due,
            self.dirty_bytes + other.dirty_bytes,
            max(self.max_dirty_ratio, other.max_dirty_ratio),
            max(self.max_delay_ms, other.max_delay_ms),
            self.uncleanable + other.uncleanable,
            self.uncleanable_bytes + other.uncleanable_bytes,
            self.unreadable_policies + other.unreadable_policies,
        )


def cause_of(backlog: Backlog, now: int) -> str | None:
    """Return the cause for which the topic is due at `now` (ms since the Unix epoch); None: it is not due."""
    triggers = backlog.triggers
    if not backlog.messages:
        return None
    if triggers.min_lag_ms and (
        backlog.first_extent_newest_time is None or backlog.first_extent_newest_time > now - triggers.min_lag_ms
    ):
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


def next_due_at(backlog: Backlog, now: int) -> int | None:
    """Return the first time from `now` on (ms) at which the topic is due if its backlog stays as it is; None: never.

    At `now` itself: it is due now.
    """
    if cause_of(backlog, now) is not None:
        return now
    triggers = backlog.triggers
    times = [now]
    if triggers.min_lag_ms and backlog.first_extent_newest_time is not None:
        times.append(backlog.first_extent_newest_time + triggers.min_lag_ms)
    old_enough = max(times)
    if triggers.max_lag_ms and backlog.oldest is not None:
        times.append(backlog.oldest + triggers.max_lag_ms + 1)
    return next((time for time in (old_enough, max(times)) if cause_of(backlog, time) is not None), None)


def due_topics(backlogs: Sequence[Backlog], controls: Mapping[int, CompactionControl], now: int) -> list[DueTopic]:
    """Return the topics that are due at `now`: by dirty ratio with the open segment and backlog, largest first, and
    name.

    `controls`: by topic id.
    """
    topics = []
    for backlog in backlogs:
        cause = cause_of(backlog, now)
        if cause is not None and may_be_requested(controls.get(backlog.topic.id, CompactionControl()), now):
            topics.append(DueTopic(backlog, cause))
    return sorted(topics, key=priority)


def priority(item: DueTopic) -> tuple[float, int, str]:
    """Return the sort key of a due topic: the topic with the smallest key is compacted first."""
    return -item.backlog.ratio_with_open, -item.backlog.bytes, str(item.topic.name)


def may_be_requested(control: CompactionControl, now: int) -> bool:
    """Return whether a due compaction may be requested: it is not requested, paused, aborting, or waiting after a
    failure."""
    waits = control.retry_at is not None and now < control.retry_at
    return control.requested_at is None and not control.paused and not control.aborting and not waits


def jobs_to_begin(
    backlogs: Sequence[Backlog], busy_large: int, busy_small: int, slots: WorkerSlots
) -> list[list[TopicRecord]]:
    """Return the jobs to begin now, in order, each as its topics. `backlogs`: the candidates, in order of priority.

    `busy_large`, `busy_small`: worker slots that large and small topics use.

    A job has one large topic, or up to `WorkerSlots.batch` small topics of one engine. Large topics leave one slot free
    for small ones, unless there is only one slot.
    """
    free = slots.count - busy_large - busy_small
    free_large = (slots.count if slots.count == 1 else slots.count - 1) - busy_large
    result: list[list[TopicRecord]] = []
    open_batches: dict[str | None, list[TopicRecord]] = {}
    for backlog in backlogs:
        if slots.is_small(backlog):
            batch = open_batches.get(backlog.engine_kind)
            if batch is None or len(batch) >= slots.batch:
                if len(result) >= free:
                    continue
                batch = open_batches[backlog.engine_kind] = []
                result.append(batch)
            batch.append(backlog.topic)
        elif len(result) < free and free_large > 0:
            free_large -= 1
            result.append([backlog.topic])
    return result


def retry_delay_ms(failures: int, first_ms: int, max_ms: int, jitter: float) -> int:
    """Return the delay after `failures` consecutive failures, at least 1: doubled each time, at most `max_ms`.

    `jitter` (0…1) selects a point in the second half of the delay, so that topics that failed together are not retried
    together.
    """
    whole = min(max_ms, first_ms << min(failures - 1, 40))
    return round(whole / 2 + whole / 2 * jitter)


def without_topics(topics: Sequence[DueTopic], topic_ids: Collection[int]) -> list[DueTopic]:
    """Return the due topics whose ids are not in `topic_ids`."""
    return [item for item in topics if item.topic.id not in topic_ids]
