"""Sequence ids of producers and progress of source clusters, as deduplication has stored them last: one row per topic.

The row means that entries of the topic are deduplicated: raw messages at or above `end_offset` must not be removed,
because only they have the sequence ids of their producers and the positions at their source. `check_stored` refuses it,
in the transaction that removes them.

`highest` is null while the policy is off; when the topic is served so, `delete_sequence_ids` removes the ids, and
deduplication begins at the topic's end when it is switched on again. `sources` is null until the first replicator
connects. From then on the row stays: a source sends entries again after any time.

`end_offset` only grows, but for a log that was restored (`replace`). Two processes may write: the one that serves the
topic, and one that removes messages. Must not know: entries, objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, RowMapping, delete, select, update

from storage.errors import Conflict
from storage.metadata import queries, topics
from storage.metadata.records import TopicRecord
from storage.metadata.tables import producer_sequences
from storage.model import SourcePosition, SourceProgress, merged_progress


@dataclass(frozen=True)
class ProducerSequences:
    """The highest sequence id of each producer, by name, and the progress of each source cluster, among the entries
    before `end_offset`.

    `highest` is in the order of the producers' last entries; None: their entries are not deduplicated. `sources` None:
    no replicator has connected. `missing`: the source clusters of which the log has lost entries, and the position of
    the last one.
    """

    end_offset: int = 0
    highest: Mapping[str, int] | None = field(default_factory=dict)
    sources: Mapping[str, SourceProgress] | None = None
    missing: Mapping[str, SourcePosition] = field(default_factory=dict)

    def merged(self, older: ProducerSequences) -> ProducerSequences:
        """Return the highest sequence ids and the furthest progress over the entries of both values.

        `older`: the range that begins first. Producers that only `older` has come first.
        """
        return ProducerSequences(
            max(self.end_offset, older.end_offset),
            _merged_highest(self.highest, older.highest),
            _merged_sources(self.sources, older.sources),
        )


def _merged_highest(newer: Mapping[str, int] | None, older: Mapping[str, int] | None) -> Mapping[str, int] | None:
    if newer is None or older is None:
        return older if newer is None else newer
    highest = {name: number for name, number in older.items() if name not in newer}
    for name, number in newer.items():
        highest[name] = max(number, older.get(name, number))
    return highest


def _merged_sources(
    newer: Mapping[str, SourceProgress] | None, older: Mapping[str, SourceProgress] | None
) -> Mapping[str, SourceProgress] | None:
    if newer is None or older is None:
        return older if newer is None else newer
    return merged_progress(newer, older)


def of_topic(connection: Connection, topic_id: int) -> ProducerSequences | None:
    """Return the stored sequence ids of producers and positions of source clusters of a topic.

    None: the topic does not deduplicate, or begins to with the next message.
    """
    statement = select(producer_sequences).where(producer_sequences.c.topic_id == topic_id)
    return queries.find(connection, statement, _record)


def _record(row: RowMapping) -> ProducerSequences:
    sources = row["sources"]
    if sources is not None:
        sources = {name: SourceProgress(SourcePosition(*place), time) for name, (*place, time) in sources.items()}
    missing = {name: SourcePosition(*place) for name, place in (row["missing"] or {}).items()}
    return ProducerSequences(row["end_offset"], row["highest"], sources, missing)


def store(
    connection: Connection, topic_id: int, sequences: ProducerSequences, without_missing: Collection[str] = frozenset()
) -> None:
    """Store the sequence ids of producers and positions of source clusters of a topic.

    Positions are merged with the stored ones; sequence ids are, if those of later entries are stored.
    `without_missing`: source clusters without missing entries from now on; the stored missing positions of the others
    stay. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    stored = of_topic(connection, topic_id)
    if stored is not None and stored.end_offset > sequences.end_offset:
        sequences = stored.merged(sequences)
    elif stored is not None:
        sequences = dataclasses.replace(sequences, sources=_merged_sources(sequences.sources, stored.sources))
    _put_row(connection, topic_id, sequences)
    if stored is not None and not stored.missing.keys().isdisjoint(without_missing):
        missing = {name: position for name, position in stored.missing.items() if name not in without_missing}
        _replace_positions_of_missing_entries(connection, topic_id, missing)


def replace(connection: Connection, topic_id: int, sequences: ProducerSequences) -> None:
    """Replace the stored sequence ids, positions and missing positions of a topic. Raises TopicNotFound.

    For a log that has lost the entries to which the stored ones belong.
    """
    topics.lock(connection, topic_id)
    _put_row(connection, topic_id, sequences)
    _replace_positions_of_missing_entries(connection, topic_id, sequences.missing)


def _replace_positions_of_missing_entries(
    connection: Connection, topic_id: int, missing: Mapping[str, SourcePosition]
) -> None:
    values = {name: list(position) for name, position in missing.items()} or None
    at_topic = producer_sequences.c.topic_id == topic_id
    connection.execute(update(producer_sequences).where(at_topic).values(missing=values))


def _put_row(connection: Connection, topic_id: int, sequences: ProducerSequences) -> None:
    highest, sources = sequences.highest, sequences.sources
    values = {
        "topic_id": topic_id,
        "end_offset": sequences.end_offset,
        "highest": None if highest is None else dict(highest),
        "sources": None
        if sources is None
        else {name: [*progress.position, progress.publish_time] for name, progress in sources.items()},
    }
    queries.put(connection, producer_sequences, values)


def delete_sequence_ids(connection: Connection, topic_id: int) -> None:
    """Delete the stored sequence ids of a topic's producers, whose entries are not deduplicated any more.

    The positions of source clusters stay. Idempotent. Raises TopicNotFound.
    """
    topics.lock(connection, topic_id)
    stored = of_topic(connection, topic_id)
    at_topic = producer_sequences.c.topic_id == topic_id
    if stored is not None and stored.sources is None:
        connection.execute(delete(producer_sequences).where(at_topic))
    elif stored is not None and stored.highest is not None:
        connection.execute(update(producer_sequences).where(at_topic).values(highest=None))


def check_stored(connection: Connection, topic: TopicRecord, below: int) -> None:
    """Raise Conflict if sequence ids or positions of entries below the offset `below` are not stored yet.

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
