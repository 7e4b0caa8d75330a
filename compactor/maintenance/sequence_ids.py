"""Storage of the sequence ids of producers, and the positions at their source, before the removal of their messages.

A topic with deduplication has the ids of its producers in SQL up to an offset, and in its log from that offset on. So
has a topic that replicators write to the positions of their entries. The process that serves the topic stores them from
time to time. Any process that removes messages first stores what only these messages have; the removing transaction
checks that (storage/metadata/producer_sequences.py).

Errors: Unavailable, TopicNotFound, SegmentNotLocal. Damaged or lost ledgers raise nothing: their ids are lost, which
is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from storage.entries.sequence_ids import SequenceId, last_complete_sequence_number
from storage.environment import Environment
from storage.errors import DataLoss, SegmentNotLocal
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.records import TopicRecord
from storage.model import SourceProgress, merged_progress
from storage.reading.snapshot_reader import last_position_of
from storage.topic import Topic

LOG = logging.getLogger(__name__)
MAX_PRODUCERS = 10_000
"""Maximum number of stored producers, unless more are stored already: those with the latest messages. The process that
serves the topic has its own limit."""


def store_sequence_ids(environment: Environment, topic: TopicRecord, below: int) -> None:
    """Store the sequence ids and positions of a topic's raw messages below an offset, before these are removed.

    Does nothing for a topic without deduplication, or if the ids are stored up to that offset. Idempotent. For errors
    see the module.
    """
    sequences = environment.metadata.producer_sequences
    stored = sequences.of_topic(topic.id)
    if stored is None or stored.end_offset >= below:
        return
    highest: dict[str, SequenceId] = {}
    sources: dict[str, SourceProgress] = {}
    end = stored.end_offset
    while end < below:
        try:
            for scanned in Topic(environment, topic).producer_sequences(end):
                for name, sequence in scanned.highest.items():
                    highest[name] = max(sequence, highest.pop(name, sequence))
                sources = merged_progress(scanned.sources, sources)
                end = scanned.end
                if end >= below:
                    break
            else:
                end = below  # the rest has no messages
        except DataLoss as error:
            end = _offset_after_damage(environment, topic, end, below, error)
        except SegmentNotLocal as error:
            remedy = "repeat it on the machine of the log directory"
            if stored.sources is None:
                remedy += (
                    ", or switch the policy deduplication.enabled off and connect a producer or consumer, so that the "
                    "ids are not needed"
                )
            raise SegmentNotLocal(
                f"the sequence ids of producers of {topic.name} are not stored: {error.message}",
                remedy,
                public=f"the sequence ids of producers of {topic.name} are not stored",
            ) from error
    known = {name: last_complete_sequence_number(sequence) for name, sequence in highest.items()}
    merged = ProducerSequences(end, None if stored.highest is None else known, sources or None).merged(stored)
    sequences.store(topic.id, replace(merged, highest=_limit_producers(merged.highest, len(stored.highest or ()))))


def _limit_producers(highest: Mapping[str, int] | None, present: int) -> Mapping[str, int] | None:
    """Return the last producers of `highest`: at most MAX_PRODUCERS, or `present` (the number stored already)."""
    if highest is None:
        return None
    return dict(list(highest.items())[max(0, len(highest) - max(MAX_PRODUCERS, present)) :])


def _offset_after_damage(environment: Environment, topic: TopicRecord, offset: int, below: int, error: DataLoss) -> int:
    """Log the loss of the ids in the unreadable ledger or segment at an offset, and return the offset after it."""
    lasts = (last_position_of(extent) for extent in environment.metadata.topic_snapshot(topic.id).extents)
    end = next((last.offset + 1 for last in lasts if last is not None and last.offset >= offset), below)
    LOG.warning(
        "%s: the sequence ids of producers, and the positions of replicated entries, at offsets %d to %d are lost, so "
        "messages that these producers or a source cluster repeat are stored twice: %s",
        topic.name,
        offset,
        end - 1,
        error,
    )
    return end
