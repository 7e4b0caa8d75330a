"""Sequence ids of producers, as deduplication has stored them last: one row per topic.

The row means that the topic deduplicates: raw messages at or above `end_offset` must not be removed, because only they
have the sequence ids of their producers. `check_stored` refuses it, in the transaction that removes them. The row is
deleted when the topic is served without deduplication, so that deduplication begins at the topic's end when it is
switched on again.

`end_offset` only grows. Two processes may write: the one that serves the topic, and one that removes messages. Must not
know: entries, objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, delete, select

from storage.errors import Conflict
from storage.metadata import queries, topics
from storage.metadata.records import TopicRecord
from storage.metadata.tables import producer_sequences


@dataclass(frozen=True)
class ProducerSequences:
    """The highest sequence id of each producer, by name, among the entries before `end_offset`.

    `highest` is in the order of the producers' last entries.
    """

    end_offset: int = 0
    highest: Mapping[str, int] = field(default_factory=dict)

    def merged(self, older: ProducerSequences) -> ProducerSequences:
        """Return the highest sequence id of each producer over both ranges of entries.

        `older`: the range that begins first. Producers that only `older` has come first.
        """
        highest = {name: number for name, number in older.highest.items() if name not in self.highest}
        for name, number in self.highest.items():
            highest[name] = max(number, older.highest.get(name, number))
        return ProducerSequences(max(self.end_offset, older.end_offset), highest)


def of_topic(connection: Connection, topic_id: int) -> ProducerSequences | None:
    """Return the stored sequence ids; None: the topic does not deduplicate, or begins to with the next message."""
    statement = select(producer_sequences).where(producer_sequences.c.topic_id == topic_id)
    return queries.find(connection, statement, lambda row: ProducerSequences(row["end_offset"], row["highest"]))


def store(connection: Connection, topic_id: int, sequences: ProducerSequences) -> None:
    """Store sequence ids. If those of later entries are stored, both are merged. Raises TopicNotFound."""
    topics.lock(connection, topic_id)
    stored = of_topic(connection, topic_id)
    if stored is not None and stored.end_offset > sequences.end_offset:
        sequences = stored.merged(sequences)
    values = {"topic_id": topic_id, "end_offset": sequences.end_offset, "highest": dict(sequences.highest)}
    queries.put(connection, producer_sequences, values)


def remove(connection: Connection, topic_id: int) -> None:
    """Delete the sequence ids: the topic does not deduplicate any more. Idempotent. Raises TopicNotFound."""
    topics.lock(connection, topic_id)
    connection.execute(delete(producer_sequences).where(producer_sequences.c.topic_id == topic_id))


def check_stored(connection: Connection, topic: TopicRecord, below: int) -> None:
    """Raise Conflict if sequence ids of entries below the offset `below` are not stored yet.

    They would be lost with the messages. A topic that does not deduplicate has none.
    """
    statement = select(producer_sequences.c.end_offset).where(producer_sequences.c.topic_id == topic.id)
    end = connection.execute(statement).scalar_one_or_none()
    if end is not None and end < below:
        raise Conflict(
            f"messages of {topic.name} up to offset {below} cannot be removed: the sequence ids of their producers are "
            f"stored up to offset {end}",
            "try again: they are stored first",
        )
