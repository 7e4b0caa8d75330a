"""A cursor of a topic that tests make up: its database, which ids there are, and where the topic ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap
from sqlalchemy import event

from storage.cursor import MAX_HELD_BYTES, Cursor
from storage.errors import CompactorError
from storage.metadata.cursor_ranges import CursorUpdate, MergeResult
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LogPosition, MessageId
from tests.clocks import ManualClock


def at(offset: int) -> LogPosition:
    """A topic of ledgers of ten messages, in batches of five."""
    return LogPosition(offset, MessageId(offset // 10, offset % 10 // 5, -1, offset % 5))


def merge(
    metadata: MetadataStore,
    topic_id: int,
    name: str,
    incarnation: str,
    mark_delete: LogPosition | None,
    changed: Mapping[int, BitMap],
) -> MergeResult:
    """Merge one owner's acknowledgements into the stored ones. Raises NotFound, Fenced, InvalidInput."""
    (result,) = metadata.cursors.merge([CursorUpdate(topic_id, name, incarnation, mark_delete, changed)])
    if isinstance(result, CompactorError):
        raise result
    return result


def to_deliver(cursor: Cursor, end: int) -> list[int]:
    """The offsets below `end` that are not acknowledged."""
    return [offset for gap in cursor.unacknowledged(end) for offset in gap]


@dataclass
class World:
    metadata: MetadataStore
    clock: ManualClock
    topic: TopicRecord
    located: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Offsets of messages that are gone."""
    locate_fails: Exception | None = None
    end: int = 1 << 40
    end_calls: int = 0
    """The number of calls of `ends`."""

    def locate(self, offset: int) -> LogPosition | None:
        self.located.append(offset)
        if self.locate_fails is not None:
            raise self.locate_fails
        while offset in self.lost:
            offset += 1
        return at(offset)

    def open(self, max_held_bytes: int = MAX_HELD_BYTES, name: str = "s") -> Cursor:
        return Cursor(self.metadata, self.topic, name, self.locate, self.ends, max_held_bytes)

    def ends(self) -> int:
        self.end_calls += 1
        return self.end

    def stored(self) -> LogPosition | None:
        return self.metadata.cursors.get(self.topic.id, "s").mark_delete

    def statements(self) -> list[tuple[str, int]]:
        """From now on: the beginning of each statement, and how many rows' parameters it has."""
        seen: list[tuple[str, int]] = []

        def before(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
            seen.append((" ".join(statement.split()[:3]), len(parameters) if many else 1))

        event.listen(self.metadata.database.engine, "before_cursor_execute", before)
        return seen
