"""Sequence ids of producers are stored before the messages that have them are removed.

A topic that deduplicates knows the ids of its producers by SQL, up to an offset, and by its log from there on. The
process that serves the topic stores them now and then. Any process may remove messages, so it stores first what only
these have; the transaction that removes them checks it (storage/metadata/producer_sequences.py).

May go wrong: Unavailable, TopicNotFound, SegmentNotLocal. What is damaged or lost stops nothing: its ids are lost with
it, which is logged.
"""

from __future__ import annotations

import logging

from storage.entries.sequence_ids import SequenceId, last_whole
from storage.environment import Environment
from storage.errors import DataLoss, SegmentNotLocal
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.records import TopicRecord
from storage.reading.snapshot_reader import last_of
from storage.topic import Topic

LOG = logging.getLogger(__name__)
MOST_PRODUCERS = 10_000
"""Names that are stored, or as many as were: those that stored a message last. The process that serves the topic has a
bound of its own."""


def store_sequence_ids(environment: Environment, topic: TopicRecord, below: int) -> None:
    """Store the sequence ids of a topic's raw messages below an offset, which are about to be removed.

    Does nothing for a topic that does not deduplicate, or whose ids are stored as far.
    """
    sequences = environment.metadata.producer_sequences
    stored = sequences.of_topic(topic.id)
    if stored is None or stored.end_offset >= below:
        return
    highest: dict[str, SequenceId] = {}
    end = stored.end_offset
    while end < below:
        try:
            for scanned in Topic(environment, topic).sequences(end):
                for name, sequence in scanned.highest.items():
                    highest[name] = max(sequence, highest.pop(name, sequence))
                end = scanned.end
                if end >= below:
                    break
            else:
                end = below  # the rest has no messages
        except DataLoss as error:
            end = _after_damage(environment, topic, end, below, error)
        except SegmentNotLocal as error:
            raise SegmentNotLocal(
                f"the sequence ids of producers of {topic.name} are not stored: {error.message}",
                "do it where the log directory is, or switch the policy deduplication.enabled off and connect a "
                "producer or consumer, so that the ids are not needed",
                public=f"the sequence ids of producers of {topic.name} are not stored",
            ) from error
    known = {name: last_whole(sequence) for name, sequence in highest.items()}
    merged = dict(ProducerSequences(end, known).merged(stored).highest)
    for name in list(merged)[: max(0, len(merged) - max(MOST_PRODUCERS, len(stored.highest)))]:
        del merged[name]
    sequences.store(topic.id, ProducerSequences(end, merged))


def _after_damage(environment: Environment, topic: TopicRecord, offset: int, below: int, error: DataLoss) -> int:
    """Return the offset after the ledger or segment at an offset, which cannot be read."""
    lasts = (last_of(extent) for extent in environment.metadata.snapshot(topic.id).extents)
    end = next((last.offset + 1 for last in lasts if last is not None and last.offset >= offset), below)
    LOG.warning(
        "%s: the sequence ids of producers at offsets %d to %d are lost, and what these producers send again is stored "
        "again: %s",
        topic.name,
        offset,
        end - 1,
        error.message,
    )
    return end
