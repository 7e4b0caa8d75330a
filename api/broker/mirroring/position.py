"""The position of a mirrored partition in Kafka: the sequence ids of the mirror's producer in the topic.

The producer's name names cluster, topic and partition of the source, and the sequence id of a message is its offset in
Kafka. So what deduplication knows of that name is the position: of the log's last entry, or stored in SQL before raw
messages were removed. A partition that was imported (`compactor import`) goes on where the import ended.

Must not know: Kafka's protocol, the registry of topics.
"""

from __future__ import annotations

from itertools import chain, islice

from api.broker.serving.older_log import MIRROR_PREFIX
from storage.entries.sequence_ids import last_complete_sequence_number
from storage.errors import Conflict
from storage.topic import Topic

LAST_MESSAGES = 10_000
"""The number of last messages that are searched for the position: more than an entry of a mirror has."""


def producer_name(cluster_id: str, topic: str, partition: int) -> str:
    """Return the name of the producer that a mirror uses for a partition of Kafka."""
    return f"{MIRROR_PREFIX}{cluster_id}:{topic}-{partition}"


def mirror_and_import_producer_names(cluster_id: str, topic: str, partition: int) -> tuple[str, str]:
    """Return the producer names of a partition of Kafka: that of a mirror, and that of `compactor import`."""
    return producer_name(cluster_id, topic, partition), f"{MIRROR_PREFIX}{topic}-{partition}"


class PositionLost(Conflict):
    """The messages of a topic do not show up to which offset of Kafka they were mirrored."""


def last_mirrored_offset(storage: Topic, producers: tuple[str, str], start: int | None) -> int | None:
    """Return the last Kafka offset that the raw log holds, by the producer `producers[0]` (the mirror), else
    `producers[1]` (an import).

    None: the topic never had a message; or `start` is given, the log is whole (nothing was trimmed), and no message is
    of these producers. Raise PositionLost otherwise.
    """
    reader = storage.snapshot_reader()
    if not reader.end:
        return None
    highest: dict[str, int] = {}
    for scanned in storage.producer_sequences(reader.first_offset):
        for name, sequence in scanned.highest.items():
            highest[name] = max(highest.get(name, -1), last_complete_sequence_number(sequence))
    for name in producers:
        if name in highest:
            return highest[name]
    if start is not None and not reader.first_offset:
        return None
    raise PositionLost(
        f"{storage.name} has messages, and none says up to which offset it has its partition in Kafka: they came "
        "another way, or were trimmed while deduplication.enabled was off",
        "remove the mirror, and add it with another topic",
    )


def has_first_or_last_message_of(storage: Topic, producers: tuple[str, str]) -> bool:
    """Return whether one of the producers, by name, wrote the first or last messages of a topic that had some.

    Reads the log. Raises SegmentNotLocal, DataLoss.

    A mirror writes the first entry of a log, or continues an import. Deduplication stores its position even if other
    producers write later. So the rest of the log need not be read.
    """
    reader = storage.snapshot_reader()
    first = islice(storage.producer_sequences(reader.first_offset), 1)
    last = storage.producer_sequences(max(reader.first_offset, reader.end - LAST_MESSAGES))
    return any(not scanned.highest.keys().isdisjoint(producers) for scanned in chain(first, last))
