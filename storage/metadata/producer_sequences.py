"""What deduplication knows of a topic, as it was written down last: one row a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import select

from storage.metadata import queries, topics
from storage.metadata.queries import Store
from storage.metadata.tables import producer_sequences


@dataclass(frozen=True)
class ProducerSequences:
    """The highest sequence id of each producer, by name, among the entries before an offset."""

    end_offset: int = 0
    highest: Mapping[str, int] = field(default_factory=dict)


class ProducerSequenceStore(Store):
    """Sequence ids of producers, by topic."""

    def of_topic(self, topic_id: int) -> ProducerSequences:
        """What was stored last; nothing if nothing was."""
        wanted = select(producer_sequences).where(producer_sequences.c.topic_id == topic_id)
        with self._database.read() as connection:
            row = connection.execute(wanted).mappings().one_or_none()
        return ProducerSequences() if row is None else ProducerSequences(row["end_offset"], row["highest"])

    def store(self, topic_id: int, found: ProducerSequences) -> None:
        """Replace what was stored."""
        values = {"end_offset": found.end_offset, "highest": dict(found.highest)}
        with self._database.write() as connection:
            topics.locked(connection, topic_id)
            if not queries.change(connection, producer_sequences, topic_id, **values):
                queries.insert_new(connection, producer_sequences, topic_id=topic_id, **values)
