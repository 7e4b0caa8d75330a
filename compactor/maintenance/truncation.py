"""Truncation of topics: all raw and compacted messages are removed, and the next offset stays (C2).

First the open segments are rolled; later messages are kept. Then one transaction marks all ledgers as deleted, counts
rolled segments as sealed, and removes horizon and compacted ledger in a new epoch, so that an active run publishes
nothing. Files and objects are deleted later, like those of trimmed ledgers (C3), so that readers may finish. No cursor
and no run blocks a truncation, because a user requests it by name. Sequence ids of producers are stored first
(sequence_ids.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from compactor.maintenance.sequence_ids import store_sequence_ids
from storage.environment import Environment
from storage.errors import Conflict
from storage.log.log_manager import LogManager
from storage.metadata.records import TopicRecord

_TRIES = 5
"""Number of tries, if segments are rolled between the steps."""


def truncate(environment: Environment, topics: Sequence[TopicRecord]) -> list[TopicRecord]:
    """Truncate all of these topics or none, such as the partitions of a topic. Return their new records, in order.

    Raises TopicNotFound, LeaseHeld (a writer ignores the request to roll), Misconfigured (an open segment is in another
    log directory), DataLoss (it is damaged), Unavailable.
    """
    for tries_left in reversed(range(_TRIES)):
        for topic in topics:
            LogManager(environment).roll(topic)
        for topic in topics:
            store_sequence_ids(environment, topic, environment.metadata.topics.get(topic.name).next_offset)
        try:
            return environment.metadata.trimming.truncate([topic.id for topic in topics])
        except Conflict:  # another segment was rolled
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
