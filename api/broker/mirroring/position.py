"""The position of a mirrored partition in Kafka, as the topic here says it: the sequence ids of its producer.

The producer's name names cluster, topic and partition of the source, and the sequence id of a message is its offset in
Kafka. So what deduplication knows of that name is the position: of the log's last entry, or stored in SQL before raw
messages were removed. A partition that was imported (`compactor import`) goes on where the import ended.

Must not know: Kafka's protocol, the registry of topics.
"""

from __future__ import annotations

from itertools import chain, islice

from api.broker.serving.older_log import MIRROR_PREFIX
from storage.entries.sequence_ids import last_complete_number
from storage.errors import Conflict
from storage.topic import Topic

LAST_MESSAGES = 10_000
"""The last messages of a log that may say the position: more than an entry of a mirror has."""


def producer_name(cluster_id: str, topic: str, partition: int) -> str:
    """Return the name of the producer of a mirrored partition."""
    return f"{MIRROR_PREFIX}{cluster_id}:{topic}-{partition}"


def producer_names(cluster_id: str, topic: str, partition: int) -> tuple[str, str]:
    """Return the name of the producer of a mirrored partition, and that of an import of it."""
    return producer_name(cluster_id, topic, partition), f"{MIRROR_PREFIX}{topic}-{partition}"


class PositionLost(Conflict):
    """The topic here does not say up to which offset it has its partition of the source."""


def position_in_log(storage: Topic, names: tuple[str, str], start: int | None) -> int | None:
    """Return the last offset that the raw log has of a partition; None: the topic has had no message, or the log is
    whole and has none of the mirror that began at `start`. For threads.

    `names`: of its producers. Raises PositionLost.
    """
    reader = storage.snapshot_reader()
    if not reader.end:
        return None
    highest: dict[str, int] = {}
    for scanned in storage.producer_sequences(reader.first_offset):
        for name, sequence in scanned.highest.items():
            highest[name] = max(highest.get(name, -1), last_complete_number(sequence))
    for name in names:
        if name in highest:
            return highest[name]
    if start is not None and not reader.first_offset:
        return None
    raise PositionLost(
        f"{storage.name} has messages, and none says up to which offset it has its partition in Kafka: they came "
        "another way, or were trimmed while deduplication.enabled was off",
        "remove the mirror, and add it with another topic",
    )


def has_position(storage: Topic, names: tuple[str, str]) -> bool:
    """Return whether a topic can be the mirror of a partition: it has had no message, or its first or its last messages
    say its position. For threads. Raises SegmentNotLocal, DataLoss.

    A mirror's first entry begins a log, unless an import did; whatever others write after it, deduplication has stored
    its position. So the rest of a log need not be read.
    """
    reader = storage.snapshot_reader()
    if not reader.end:
        return True
    first = islice(storage.producer_sequences(reader.first_offset), 1)
    last = storage.producer_sequences(max(reader.first_offset, reader.end - LAST_MESSAGES))
    return any(not scanned.highest.keys().isdisjoint(names) for scanned in chain(first, last))
