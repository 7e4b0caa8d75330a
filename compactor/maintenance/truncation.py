"""Truncating topics: they are empty afterwards, raw and compacted, and continue with the next offset (C2).

The open segments are rolled first; what is appended from then on is kept. Then one transaction marks all ledgers as
deleted, lets rolled segments count as sealed, and takes horizon and compacted ledger, in a new epoch, so that a run
that was under way publishes nothing. Files and objects go later, as those of trimmed ledgers do (C3), so their readers
may finish. Nothing holds a truncation back, no cursor and no run: it is asked for by name. Sequence ids of producers
are stored first (sequence_ids.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from compactor.maintenance.sequence_ids import store_sequence_ids
from storage.environment import Environment
from storage.errors import Conflict
from storage.log.log_manager import LogManager
from storage.metadata.records import TopicRecord

_TRIES = 5
"""How often to begin again when a segment was rolled in between."""


def truncate(environment: Environment, topics: Sequence[TopicRecord]) -> list[TopicRecord]:
    """Each of these topics or none, such as the partitions of one; their records afterwards.

    Raises TopicNotFound, LeaseHeld for a writer that does not roll when it is asked to, Misconfigured for an open
    segment in another log directory, DataLoss for one that is damaged, Unavailable.
    """
    for tries_left in reversed(range(_TRIES)):
        for topic in topics:
            LogManager(environment).roll(topic)
        for topic in topics:
            store_sequence_ids(environment, topic, environment.metadata.topics.get(topic.name).next_offset)
        try:
            return environment.metadata.trimming.truncate([topic.id for topic in topics])
        except Conflict:  # a segment was rolled since
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
