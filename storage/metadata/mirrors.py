"""Mirrors of Kafka's topics: what a user asked for, the identity of the source, the state, and reports of progress.

    RUNNING ── pause ──► PAUSED ── resume ──► RUNNING        a service that owns a partition's topic mirrors it
       └── fail ──► FAILED ── resume ──► RUNNING             only a user's decision lets it go on

No row has a position that counts: the log's last entry says where a partition of the source is, in its sequence ids. A
row of a partition has the offset at which the mirror began, or from which a user lets it go on after a gap; the epochs
of the leaders in Kafka, which are stored before their records are; and the last report of the service that mirrors it:
up to its offset all is durable here. The error of a mirror that runs is that of its last try.

Errors: NotFound for a topic without a mirror, Conflict. Must not know: Kafka's protocol, the meaning of the options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from storage.errors import NO_ERROR, Conflict, ErrorText, NotFound
from storage.metadata import queries
from storage.metadata.tables import mirror_partitions, mirrors, partitioned_topics
from storage.metadata.transactions import Context
from storage.model import TopicName


class MirrorState(StrEnum):
    """States of a mirror."""

    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"


@dataclass(frozen=True)
class MirrorRecord:
    """A mirror. `topic`: the partitioned topic here. `source`: the URL of the topic in Kafka, without a password.

    `options`: of the connection and of records, as JSON; a password is named in it, not contained. `cluster_id`,
    `source_topic_id`: the identity of the source.
    """

    topic: TopicName
    source: str
    options: Mapping[str, Any]
    cluster_id: str
    source_topic_id: str
    state: MirrorState = MirrorState.RUNNING
    created_at: int = 0
    changed_at: int = 0
    error: ErrorText = NO_ERROR


@dataclass(frozen=True)
class MirrorProgress:
    """The last reported progress of a partition.

    `next_offset`: the next offset to mirror; `end_offset`: the source's end.
    """

    next_offset: int
    end_offset: int
    records_per_second: int

    @property
    def lag(self) -> int:
        """The number of offsets that are not mirrored yet; those of transactions and cleaned records count, too."""
        return max(0, self.end_offset - self.next_offset)


class LeaderEpoch(NamedTuple):
    """An epoch of the leader of a partition in Kafka, and the first offset of its records."""

    first_offset: int
    epoch: int


@dataclass(frozen=True)
class MirrorPartition:
    """A partition of a mirror. `start_offset`: the first offset to mirror.

    `gap_end`: the offset before which records are missing at the source, where the mirror stopped; None: no gap.
    `progress` None: nothing was reported. `epochs`: of the last records, ascending.
    """

    number: int
    start_offset: int | None
    gap_end: int | None
    progress: MirrorProgress | None
    reported_at: int | None
    epochs: Sequence[LeaderEpoch] = ()


def add(connection: Connection, context: Context, mirror: MirrorRecord) -> None:
    """Insert a mirror that runs, and delete the partitions of an earlier one. Raises Conflict if the topic has one."""
    values = {
        "topic": str(mirror.topic),
        "source": mirror.source,
        "options": dict(mirror.options),
        "cluster_id": mirror.cluster_id,
        "source_topic_id": mirror.source_topic_id,
        "state": MirrorState.RUNNING.value,
        "created_at": context.now,
        "changed_at": context.now,
        **NO_ERROR.fields("error"),
    }
    if not queries.insert_new(connection, mirrors, **values):
        raise Conflict(
            f"{mirror.topic} is a mirror of {get(connection, mirror.topic).source} already",
            "remove that mirror, or name another topic",
        )
    connection.execute(delete(mirror_partitions).where(mirror_partitions.c.topic == str(mirror.topic)))


def all_mirrors(connection: Connection) -> list[MirrorRecord]:
    """Return all mirrors, by topic."""
    return queries.fetch(connection, select(mirrors).order_by(mirrors.c.topic), _mirror)


def get(connection: Connection, topic: TopicName) -> MirrorRecord:
    """Return the mirror of a topic. Raises NotFound."""
    mirror = queries.find(connection, select(mirrors).where(mirrors.c.topic == str(topic)), _mirror)
    if mirror is None:
        raise NotFound(f"{topic} is no mirror", "list the mirrors, or add it")
    return mirror


def counts(connection: Connection) -> dict[MirrorState, int]:
    """Return the number of mirrors in each state that some are in."""
    statement = select(mirrors.c.state, func.count()).group_by(mirrors.c.state)
    return {MirrorState(state): int(count) for state, count in connection.execute(statement).all()}


def partitions(connection: Connection, topic: TopicName) -> list[MirrorPartition]:
    """Return the known partitions of a mirror, in ascending order of number."""
    statement = select(mirror_partitions).where(mirror_partitions.c.topic == str(topic))
    return queries.fetch(connection, statement.order_by(mirror_partitions.c.partition), _partition)


def pause(connection: Connection, context: Context, topic: TopicName) -> None:
    """Pause a mirror; one that failed keeps its error. Idempotent. Raises NotFound."""
    get(connection, topic)
    _update(connection, context, topic, state=MirrorState.PAUSED.value)


def resume(
    connection: Connection, context: Context, topic: TopicName, options: Mapping[str, object], accept_gaps: bool
) -> None:
    """Set a mirror to RUNNING, without its error. Idempotent. Raises NotFound.

    `options`: those that replace stored ones. `accept_gaps`: continue after the gaps at which the mirror stopped;
    False: clear the gaps, and stop there again.
    """
    mirror = get(connection, topic)
    stopped = (mirror_partitions.c.topic == str(topic)) & mirror_partitions.c.gap_end.is_not(None)
    start = {"start_offset": mirror_partitions.c.gap_end} if accept_gaps else {}
    connection.execute(update(mirror_partitions).where(stopped).values(gap_end=None, **start))
    values = {"state": MirrorState.RUNNING.value, "options": {**mirror.options, **options}}
    _update(connection, context, topic, **values, **NO_ERROR.fields("error"))


def fail(
    connection: Connection,
    context: Context,
    topic: TopicName,
    error: ErrorText,
    gap: tuple[int, int] | None = None,
) -> None:
    """Set a mirror that runs to FAILED, with the error.

    `gap`: a partition's number, and the offset before which its records are missing.
    """
    running = (mirrors.c.topic == str(topic)) & (mirrors.c.state == MirrorState.RUNNING.value)
    values = {"state": MirrorState.FAILED.value, "changed_at": context.now, **error.fields("error")}
    if queries.change_where(connection, mirrors, running, **values) and gap is not None:
        partition, end = gap
        queries.put(connection, mirror_partitions, {"topic": str(topic), "partition": partition, "gap_end": end})


def set_start_offset(connection: Connection, topic: TopicName, partition: int, start_offset: int) -> None:
    """Store the first offset to mirror of a partition, if the topic is still a mirror."""
    if queries.exists(connection, mirrors, mirrors.c.topic == str(topic)):
        row = {"topic": str(topic), "partition": partition, "start_offset": start_offset}
        queries.put(connection, mirror_partitions, row)


def store_epochs(connection: Connection, mirror: MirrorRecord, partition: int, epochs: Sequence[LeaderEpoch]) -> None:
    """Store the leader epochs of the last records of a partition, if the mirror was not removed or added again."""
    topic = mirror.topic
    source, created_at = mirrors.c.source_topic_id, mirrors.c.created_at
    same = (mirrors.c.topic == str(topic)) & (source == mirror.source_topic_id) & (created_at == mirror.created_at)
    if queries.exists(connection, mirrors, same):
        row = {"topic": str(topic), "partition": partition, "epochs": [list(item) for item in epochs]}
        queries.put(connection, mirror_partitions, row)


def clear_progress(connection: Connection, topic: TopicName, partition: int) -> None:
    """Delete the last report of a partition's progress, if there is any: the partition's log has lost entries."""
    reported = (mirror_partitions.c.topic == str(topic)) & (mirror_partitions.c.partition == partition)
    queries.change_where(connection, mirror_partitions, reported, next_offset=None)


def store_error(connection: Connection, topic: TopicName, error: ErrorText) -> None:
    """Store the error of the last try of a mirror that runs and tries again; NO_ERROR: the try succeeded."""
    running = (mirrors.c.topic == str(topic)) & (mirrors.c.state == MirrorState.RUNNING.value)
    queries.change_where(connection, mirrors, running, **error.fields("error"))


def store_progress(
    connection: Connection, context: Context, topic: TopicName, progress: Mapping[int, MirrorProgress]
) -> None:
    """Store the progress of partitions, by their numbers, if the topic is still a mirror."""
    if not progress or not queries.exists(connection, mirrors, mirrors.c.topic == str(topic)):
        return
    rows = [
        {
            "topic": str(topic),
            "partition": number,
            "next_offset": item.next_offset,
            "end_offset": item.end_offset,
            "records_per_second": item.records_per_second,
            "reported_at": context.now,
        }
        for number, item in sorted(progress.items())
    ]
    queries.put(connection, mirror_partitions, *rows)


def remove(connection: Connection, topic: TopicName) -> None:
    """Delete a mirror; its topic stays, and keeps the id of the source. Raises NotFound."""
    mirror = get(connection, topic)
    of_topic = partitioned_topics.c.name == str(topic)
    queries.change_where(connection, partitioned_topics, of_topic, removed_source_topic_id=mirror.source_topic_id)
    connection.execute(delete(mirror_partitions).where(mirror_partitions.c.topic == str(topic)))
    connection.execute(delete(mirrors).where(mirrors.c.topic == str(topic)))


def removed_source_topic_id(connection: Connection, topic: TopicName) -> str | None:
    """Return the id in Kafka of the source of the topic's last removed mirror; None: no mirror of it was removed."""
    statement = select(partitioned_topics.c.removed_source_topic_id).where(partitioned_topics.c.name == str(topic))
    return connection.execute(statement).scalar_one_or_none()


def _update(connection: Connection, context: Context, topic: TopicName, **values: object) -> None:
    queries.change(connection, mirrors, str(topic), changed_at=context.now, **values)


def _mirror(row: RowMapping) -> MirrorRecord:
    return MirrorRecord(
        TopicName.parse(row["topic"]),
        row["source"],
        row["options"],
        row["cluster_id"],
        row["source_topic_id"],
        MirrorState(row["state"]),
        row["created_at"],
        row["changed_at"],
        ErrorText.from_fields("error", row),
    )


def _partition(row: RowMapping) -> MirrorPartition:
    reported = row["next_offset"], row["end_offset"], row["records_per_second"]
    known: Sequence[int] = [number for number in reported if number is not None]
    progress = MirrorProgress(*known) if len(known) == len(reported) else None
    epochs = tuple(LeaderEpoch(*item) for item in row["epochs"] or ())
    return MirrorPartition(row["partition"], row["start_offset"], row["gap_end"], progress, row["reported_at"], epochs)
