"""CursorStore: what owners of cursors, and those who look at them, ask of SQL.

Reached as MetadataStore.acknowledgements. As there, each method is one transaction, may raise Unavailable,
Misconfigured and TopicNotFound, and may be called again, except that `create` then says Conflict if it had happened.
What a method does is said where it is done: cursors, cursor_ranges. Must not know: batching, message lookup, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap

from storage.metadata import cursor_ranges, cursors, topics
from storage.metadata.cursor_ranges import CursorState, Merged, RangesSummary
from storage.metadata.engine import Database
from storage.metadata.records import CursorRecord
from storage.model import Position


class CursorStore:
    """The cursors' part of the metadata, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, topic_id: int, name: str, mark_delete: Position | None, properties: Mapping[str, str]
    ) -> CursorRecord:
        """A new cursor. Raises Conflict if there is one of that name, InvalidInput for a name that cannot be."""
        with self._database.write() as connection:
            return cursors.create_at(connection, topic_id, CursorRecord(name, mark_delete, properties))

    def replace_properties(self, topic_id: int, name: str, properties: Mapping[str, str]) -> CursorRecord:
        """Set a cursor's properties instead of those that it has; `CompactedTopicLedger` stays (A2).

        Raises NotFound; InvalidInput for a change of it.
        """
        with self._database.write() as connection:
            return cursors.replace_properties(connection, topic_id, name, properties)

    def load(self, topic_id: int, name: str, max_bytes: int) -> CursorState:
        """A cursor with at most so many bytes of bitmaps, the lowest. Raises NotFound; InvalidInput: `__compaction`."""
        with self._database.snapshot() as connection:
            return cursor_ranges.load(connection, topics.by_id(connection, topic_id), name, max_bytes)

    def merge(
        self, topic_id: int, name: str, life: str, mark_delete: Position | None, changed: Mapping[int, BitMap]
    ) -> Merged:
        """Add what an owner acknowledged to what is stored: mark-delete never goes back, nothing is lost.

        Raises NotFound; Fenced if the cursor is not in the life that the owner opened.
        """
        with self._database.write() as connection:
            return cursor_ranges.merge(connection, topics.kept(connection, topic_id), name, life, mark_delete, changed)

    def summaries(self, topic_id: int) -> list[tuple[CursorRecord, RangesSummary]]:
        """All cursors of the topic, by name, with what is acknowledged above their mark-delete; all of one moment."""
        with self._database.snapshot() as connection:
            topic = topics.by_id(connection, topic_id)
            return [
                (record, cursor_ranges.summary(connection, topic, record))
                for record in cursors.of_topic(connection, topic_id)
            ]

    def summary(self, topic_id: int, name: str) -> tuple[CursorRecord, RangesSummary]:
        """Raises NotFound."""
        with self._database.snapshot() as connection:
            topic = topics.by_id(connection, topic_id)
            record = cursors.get(connection, topic, name)
            return record, cursor_ranges.summary(connection, topic, record)
