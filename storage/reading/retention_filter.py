"""What of a compacted ledger may be seen under `compact,delete`: what is young enough, and not below the start (C2).

A run takes hidden messages out of the compacted ledger; until the next one does, readers leave them out. Raw messages
need no such look: they go by whole ledgers, and no read begins below the topic's start offset. Under any other cleanup
policy all of a compacted ledger may be seen, though raw be trimmed (R4).

Invariant: what is hidden stays hidden, as long as policies stay: the start only grows, and messages only get older.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.ledger.manifest import Part
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.options.policies import TopicPolicies

BOTH = frozenset({"compact", "delete"})


@dataclass(frozen=True)
class RetentionFilter:
    """Hides messages below `start_offset`, and those published before `not_before_ms`; None: none by time."""

    start_offset: int = 0
    not_before_ms: int | None = None

    def shows(self, offset: int, publish_time: int) -> bool:
        """Whether one compacted message may be seen."""
        return offset >= self.start_offset and (self.not_before_ms is None or publish_time >= self.not_before_ms)

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of a table (with `offset`, ascending, and `publish_time`) that may be seen; it may be empty."""
        if len(table) and table.column("offset")[0].as_py() < self.start_offset:
            offsets = table.column("offset").to_numpy()
            table = table.slice(int(np.searchsorted(offsets, self.start_offset, "left")))
        if self.not_before_ms is None or not len(table):
            return table
        if pc.min(table.column("publish_time")).as_py() >= self.not_before_ms:
            return table
        return table.filter(pc.greater_equal(table.column("publish_time"), self.not_before_ms))

    def hides_all(self, part: Part) -> bool:
        """Whether nothing of a part may be seen, so that it need not be read."""
        if part.last.offset < self.start_offset:
            return True
        return self.not_before_ms is not None and part.max_publish_time < self.not_before_ms

    def may_hide_behind(self, offset: int, parts: Sequence[Part]) -> bool:
        """Whether a row of `parts` that is behind `offset` may be hidden."""
        behind = [part for part in parts if part.last.offset > offset]
        if not behind or self.start_offset > offset + 1:
            return bool(behind)
        oldest = min(part.min_publish_time if part.oldest_row is None else part.oldest_row for part in behind)
        return self.not_before_ms is not None and oldest < self.not_before_ms


def filter_under(policies: TopicPolicies, start_offset: int, now: int) -> RetentionFilter | None:
    """What may be seen of a topic with these policies; None: everything."""
    if not policies.cleanup_policy >= BOTH:
        return None
    kept = policies.retention_ms_effective
    if kept is None and start_offset == 0:
        return None
    return RetentionFilter(start_offset, None if kept is None else now - kept)


def retention_filter(metadata: MetadataStore, topic: TopicRecord, now: int) -> RetentionFilter | None:
    """What may be seen of a topic's compacted ledger at this time; None: everything. Raises Unavailable."""
    return filter_under(metadata.policies.effective(topic), topic.start_offset, now)
