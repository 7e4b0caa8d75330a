"""Truncating a topic: it is empty afterwards, raw and compacted, and continues with the next offset (C2).

The open segment is rolled first; what is appended from then on is kept. Then one transaction marks all ledgers as
deleted, lets rolled segments count as sealed, and takes horizon and compacted ledger, in a new epoch, so that a run
that was under way publishes nothing. Files and objects go later, as those of trimmed ledgers do (C3), so their readers
may finish. Nothing holds a truncation back, no cursor and no run: it is asked for by name.

May go wrong: TopicNotFound, LeaseHeld for a writer that does not roll when it is asked to, Misconfigured for an open
segment in another log directory, DataLoss for one that is damaged, Unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage.environment import Environment
from storage.log.log_manager import ROLL_WAIT_MS, LogManager
from storage.metadata.records import TopicRecord, TopicSnapshot


@dataclass(frozen=True)
class TruncationResult:
    """What went, or would: messages of ledgers and rolled segments, and the compacted ledger's, if there was one.

    A dry run does not know how many messages the open segment holds.
    """

    topic: TopicRecord
    messages: int
    compacted_messages: int | None
    truncated: bool


@dataclass(frozen=True)
class Truncation:
    """Truncates topics whose unsealed segments are in the log directory."""

    environment: Environment

    def truncate(self, topic: TopicRecord, *, dry_run: bool = False, wait_ms: int = ROLL_WAIT_MS) -> TruncationResult:
        """`wait_ms`: how long a writer may take to roll when it is asked to."""
        if dry_run:
            return _of(self.environment.metadata.snapshot(topic.id), truncated=False)
        return self.truncate_all([topic], wait_ms)[0]

    def truncate_all(self, topics: Sequence[TopicRecord], wait_ms: int = ROLL_WAIT_MS) -> list[TruncationResult]:
        """Each of these topics or none, such as the partitions of one: their open segments are rolled one by one."""
        for topic in topics:
            LogManager(self.environment).roll(topic, wait_ms)
        before = [_of(self.environment.metadata.snapshot(topic.id), truncated=True) for topic in topics]
        after = self.environment.metadata.trimming.truncate([topic.id for topic in topics])
        return [replace(one, topic=topic) for one, topic in zip(before, after, strict=True)]


def _of(snapshot: TopicSnapshot, *, truncated: bool) -> TruncationResult:
    messages = sum(ledger.messages for ledger in snapshot.ledgers)
    messages += sum(segment.content.messages for segment in snapshot.segments if segment.content)
    compacted = snapshot.compacted
    return TruncationResult(snapshot.topic, messages, compacted.messages if compacted else None, truncated)
