"""The backlog of topics, and the policies that it is held against, page by page in a few statements (S1, S2, S3).

    bytes, messages   behind the horizon (of a topic that was never compacted: all): sealed ledgers, rolled segments,
                      and the open segment, which is counted from its file (storage/log/unsealed_counts.py)
    dirty             the closed ones of them alone, in logical bytes: Kafka's cleaner does not check what is open
    clean             logical bytes of the compacted ledger that serves

Logical bytes are what producers sent, not what the store holds. Of segments they are what the entries' metadata says;
a ledger knows exactly. The open segment of a topic in another machine's log directory counts by what SQL knows of it:
nothing, until it is rolled. Only topics for which something is set are counted by file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE, Rest, paced
from storage.clock import Clock
from storage.log.directory import LogDirectory
from storage.log.unsealed_counts import UnsealedCounter
from storage.metadata.policy_store import PolicyResolver
from storage.metadata.records import CompactionBacklogRecord, TopicRecord, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.options.resolution import CompactionTriggers


@dataclass(frozen=True)
class Backlog:
    """What is behind a topic's horizon. `oldest`: the earliest publish time of it; None: there is nothing.

    `soonest`: by when the first ledger or segment of it was published whole. Runs take whole ledgers, in order, so
    before that is older than the minimum lag (S3) a run would find nothing, and only have rolled the tail.
    """

    topic: TopicRecord
    triggers: CompactionTriggers
    bytes: int = 0
    messages: int = 0
    dirty: int = 0
    clean: int = 0
    oldest: int | None = None
    soonest: int | None = None

    @property
    def dirty_ratio(self) -> float:
        """Kafka's cleanable ratio, 0 to 1: dirty / (clean + dirty) of what is closed (S2)."""
        return _share(self.dirty, self.clean)

    @property
    def dirtiness(self) -> float:
        """The same of all that a run would take; topics go in its order."""
        return _share(self.bytes, self.clean)


@dataclass(frozen=True)
class UnsealedBacklog:
    """What is in segments: a run seals it first, so that it belongs to what the run compacts."""

    messages: int = 0
    bytes: int = 0


def unsealed(log: LogDirectory, snapshot: TopicSnapshot) -> UnsealedBacklog:
    """What a topic has in segments, as far as it can be seen from here: not an open one in another log directory."""
    opened = UnsealedCounter(log)
    messages = size = 0
    for segment in snapshot.segments:
        if segment.content is not None:
            messages, size = messages + segment.content.messages, size + segment.content.logical_bytes
        else:
            counted = opened.count(snapshot.topic, segment)
            messages, size = messages + counted.messages, size + counted.logical_bytes
    return UnsealedBacklog(messages, size)


class BacklogReader:
    """Measures backlogs. Remembers what it has read of open segments; safe to share between threads."""

    def __init__(self, metadata: MetadataStore, log: LogDirectory) -> None:
        self._metadata = metadata
        self._open = UnsealedCounter(log)

    def of(self, topic_ids: Collection[int]) -> list[Backlog]:
        """Of these topics; those that are gone are left out."""
        resolver = self._metadata.policies.resolver()
        return list(self._measured(self._metadata.backlogs.of(topic_ids), resolver, all_open=True))

    def of_all(self, clock: Clock, rest: Rest = lambda _: None) -> list[Backlog]:
        """Of all topics for which something can become due. `rest` waits between pages of them (scan_throttle.py)."""
        measured: list[Backlog] = []
        opened: set[int] = set()
        resolver = self._metadata.policies.resolver()
        for page in paced(self._metadata.backlogs.in_pages(TOPICS_AT_ONCE), clock, rest):
            opened |= {record.open_segment.ledger_id for record in page if record.open_segment is not None}
            measured += self._measured(page, resolver, all_open=False)
        self._open.keep_only(opened)
        return measured

    def _measured(
        self, records: list[CompactionBacklogRecord], resolver: PolicyResolver, *, all_open: bool
    ) -> Iterator[Backlog]:
        for record in records:
            triggers = resolver.resolved(record.topic).triggers
            if triggers.any or all_open:
                yield self._with_open(record, triggers)

    def _with_open(self, record: CompactionBacklogRecord, triggers: CompactionTriggers) -> Backlog:
        size, messages = record.closed_bytes, record.closed_messages
        oldest, soonest = record.oldest, record.soonest
        if record.open_segment is not None:
            counted = self._open.count(record.topic, record.open_segment)
            size, messages = size + counted.logical_bytes, messages + counted.messages
            oldest = _earlier(oldest, counted.oldest)
            soonest = counted.newest if soonest is None else soonest
        dirty, clean = record.closed_bytes, record.clean_bytes
        return Backlog(record.topic, triggers, size, messages, dirty, clean, oldest, soonest)


def _share(dirty: int, clean: int) -> float:
    return dirty / (clean + dirty) if dirty else 0.0


def _earlier(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)
