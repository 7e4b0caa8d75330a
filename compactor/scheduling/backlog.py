"""Compaction backlog of topics, with their triggers (S1, S2, S3), page by page in a few statements.

    bytes, messages   after the horizon (of a topic that was never compacted: all): sealed ledgers, rolled segments,
                      and the open segment, counted from its file (storage/log/open_segments.py)
    dirty             sealed ledgers and rolled segments alone, in logical bytes: Kafka's cleaner skips the open segment
    clean             logical bytes of the current compacted ledger

Logical bytes are those of keys, payloads and properties (docs/scheduling.md), not the bytes in the store. An open
segment in another machine's log directory counts as empty until it is rolled. `read_with_trigger` counts only the open
segments of topics with a trigger, `read` and `read_all` all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from storage.log.directory import LogDirectory
from storage.log.open_segments import OpenSegmentCounter, open_segment_content
from storage.metadata.policy_store import PolicyResolver
from storage.metadata.records import CompactionBacklogRecord, TopicRecord, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.options.resolution import CompactionTriggers


@dataclass(frozen=True)
class Backlog:
    """Backlog of a topic after its horizon. `bytes`, `messages`, `dirty_bytes`, `clean_bytes`: see the module.

    `oldest`: earliest publish time in milliseconds; None: the backlog is empty, or is in the open segment alone and the
    triggers have no lag. `first_extent_newest_time`: latest publish time of its first ledger or segment. Runs take
    whole ledgers in order. So while `first_extent_newest_time` is younger than the minimum lag (S3), a run would
    compact nothing and only roll the tail. `open_messages`: those of the open segment, whose times count only if the
    triggers have a lag: entries are read for them. `engine_kind`: the policy compaction.topic-engine; None: not set.
    """

    topic: TopicRecord
    triggers: CompactionTriggers
    bytes: int = 0
    messages: int = 0
    dirty_bytes: int = 0
    clean_bytes: int = 0
    oldest: int | None = None
    first_extent_newest_time: int | None = None
    open_messages: int = 0
    engine_kind: str | None = None

    @property
    def open_bytes(self) -> int:
        """The logical bytes of the open segment."""
        return self.bytes - self.dirty_bytes

    @property
    def dirty_ratio(self) -> float:
        """Kafka's cleanable ratio, 0 to 1: dirty / (clean + dirty), without the open segment (S2)."""
        return _dirty_share(self.dirty_bytes, self.clean_bytes)

    @property
    def ratio_with_open(self) -> float:
        """The dirty ratio, 0 to 1, with the open segment, which a run also takes. It decides the order of topics."""
        return _dirty_share(self.bytes, self.clean_bytes)

    @property
    def threshold_share(self) -> float | None:
        """The bytes as a share of the threshold in bytes, 0 to 1 and more; None without a threshold."""
        threshold = self.triggers.threshold_bytes
        return self.bytes / threshold if threshold else None


@dataclass(frozen=True)
class UnsealedBacklog:
    """The part of a topic's backlog that is in segments, in messages and logical bytes. A run seals them first."""

    messages: int = 0
    bytes: int = 0


def unsealed_backlog(log: LogDirectory, snapshot: TopicSnapshot) -> UnsealedBacklog:
    """Return the backlog of a topic in segments, without an open segment in another log directory."""
    messages = size = 0
    for segment in snapshot.segments:
        if segment.content is not None:
            messages, size = messages + segment.content.messages, size + segment.content.logical_bytes
        else:
            counted = open_segment_content(log, snapshot.topic, segment)
            messages, size = messages + counted.messages, size + counted.logical_bytes
    return UnsealedBacklog(messages, size)


class BacklogReader:
    """Reader of topics' compaction backlogs, which caches counts of open segments. Thread-safe."""

    def __init__(self, metadata: MetadataStore, log: LogDirectory) -> None:
        self._metadata = metadata
        self._open = OpenSegmentCounter(log)
        self._measured_segments: set[int] = set()

    def read(self, topic_ids: Collection[int]) -> list[Backlog]:
        """Return the backlogs of these topics, also of those without a trigger; deleted topics are left out."""
        resolver = self._metadata.policies.resolver()
        return list(self._read_backlogs(self._metadata.backlogs.of_topics(topic_ids), resolver, all_open=True))

    def read_all(self) -> list[Backlog]:
        """Return the backlogs of all topics, also of those without a trigger, without a throttle."""
        records = self._metadata.backlogs.of_all()
        measured = list(self._read_backlogs(records, self._metadata.policies.resolver(), all_open=True))
        self._open.keep_only({record.open_segment.ledger_id for record in records if record.open_segment is not None})
        return measured

    def read_with_trigger(self, topic_ids: Collection[int]) -> list[Backlog]:
        """Return the backlogs of those of `topic_ids` that have a compaction trigger; deleted topics are left out."""
        page = self._metadata.backlogs.of_topics(topic_ids)
        self._measured_segments |= {record.open_segment.ledger_id for record in page if record.open_segment is not None}
        resolver = self._metadata.policies.resolver_of([record.topic for record in page])
        return list(self._read_backlogs(page, resolver, all_open=False))

    def read_with_trigger_without_open_segments(self, topic_ids: Collection[int]) -> list[Backlog]:
        """Return the backlogs, without the open segments, of those of `topic_ids` that have a compaction trigger."""
        page = [replace(record, open_segment=None) for record in self._metadata.backlogs.of_topics(topic_ids)]
        resolver = self._metadata.policies.resolver_of([record.topic for record in page])
        return list(self._read_backlogs(page, resolver, all_open=False))

    def drop_unused_segment_counts(self) -> None:
        """Drop the cached counts of open segments that `read_with_trigger` has not read since the last call."""
        self._open.keep_only(self._measured_segments)
        self._measured_segments = set()

    def _read_backlogs(
        self, records: list[CompactionBacklogRecord], resolver: PolicyResolver, *, all_open: bool
    ) -> Iterator[Backlog]:
        for record in records:
            resolved = resolver.resolve(record.topic)
            if resolved.triggers.has_any or all_open:
                yield replace(
                    self._backlog_with_open_segment(record, resolved.triggers),
                    engine_kind=resolved.policies.compaction_topic_engine,
                )

    def _backlog_with_open_segment(self, record: CompactionBacklogRecord, triggers: CompactionTriggers) -> Backlog:
        size, messages = record.closed_bytes, record.closed_messages
        oldest, soonest, open_messages = record.oldest, record.first_extent_newest_time, 0
        if record.open_segment is not None:
            has_lag = triggers.min_lag_ms or triggers.max_lag_ms  # only these need times, which entries have
            counted = (self._open.content_with_times if has_lag else self._open.content)(
                record.topic, record.open_segment
            )
            open_messages = counted.messages
            size, messages = size + counted.logical_bytes, messages + open_messages
            oldest = _earliest(oldest, counted.oldest)
            soonest = counted.newest if soonest is None else soonest
        dirty, clean = record.closed_bytes, record.clean_bytes
        return Backlog(record.topic, triggers, size, messages, dirty, clean, oldest, soonest, open_messages)


def _dirty_share(dirty: int, clean: int) -> float:
    return dirty / (clean + dirty) if dirty else 0.0


def _earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)
