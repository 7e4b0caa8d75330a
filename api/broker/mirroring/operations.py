"""Operations on mirrors: add, list, pause, resume and remove them. A service runs them (service.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from api.broker import names, partitioned_topics
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from storage.errors import Conflict, NotFound, SegmentNotLocal, Unavailable
from storage.metadata.mirrors import MirrorPartition, MirrorRecord
from storage.metadata.policy_store import topic_scope

if TYPE_CHECKING:
    from api.broker.mirroring.cluster import SourceTopic
    from storage.environment import Environment
    from storage.metadata.records import TopicRecord
    from storage.model import TopicName

DEDUPLICATION = "deduplication.enabled"
ANSWER_SECONDS = 30.0
"""The time in which a new mirror's source must answer, whatever its number of brokers."""


class MirrorWithPartitions(NamedTuple):
    """A mirror with the progress of its partitions, in the order of their numbers."""

    record: MirrorRecord
    partitions: Sequence[MirrorPartition]


def add(environment: Environment, source: MirrorSource, topic: TopicName) -> MirrorWithPartitions:
    """Store a mirror, which copies a topic of Kafka to `topic`. Services start it within seconds.

    Kafka must answer now. `topic` is created with as many partitions as the source, or gets the partitions that it
    lacks. Deduplication is switched on, since the sequence ids are the position in Kafka. Raise Conflict if a partition
    has messages of another origin, or of a source that was deleted in Kafka; InvalidInput, MissingNamespace,
    Unavailable, Misconfigured.
    """
    names.check_not_system_topic(topic)
    names.namespace(environment, names.namespace_of(topic))
    _check_not_mirrored(environment, topic)
    described = asyncio.run(_describe_source_topic(source))
    count = max(described.leaders, default=-1) + 1
    present = environment.metadata.partitions.find(topic)
    if present is None:
        partitioned_topics.create(environment, topic, count, {})
    else:
        if present.partitions > count:
            raise Conflict(
                f"{topic} has {present.partitions} partitions, and {source.topic} in Kafka has {count}",
                "name another topic, or one that does not exist: it is created",
            )
        removed_id = environment.metadata.mirrors.removed_source_topic_id(topic)
        for partition in names.topics(environment, topic):
            has_messages = _has_messages_of_source(environment, partition, described.cluster_id, source.topic)
            if has_messages and removed_id not in (None, described.uid):
                raise Conflict(
                    f"{topic} has messages of a topic {source.topic} that was deleted in Kafka and created again: its "
                    f"id was {removed_id} when the mirror was removed, and is {described.uid} now",
                    "name another topic, or delete this one: offsets of the new source say nothing about its messages",
                )
        if present.partitions < count:
            partitioned_topics.grow(environment, topic, count)
    scopes = [topic_scope(record) for record in names.topics(environment, topic)]
    environment.metadata.policies.change(scopes, {DEDUPLICATION: True})
    record = MirrorRecord(topic, source.url, source.options.to_json(), described.cluster_id, described.uid)
    environment.metadata.mirrors.add(record)
    return get(environment, topic)


def _check_not_mirrored(environment: Environment, topic: TopicName) -> None:
    """Raise Conflict if a mirror of this name exists."""
    try:
        mirror = environment.metadata.mirrors.get(topic)
    except NotFound:
        return
    raise Conflict(f"{topic} is a mirror of {mirror.source} already", "remove that mirror, or name another topic")


def _has_messages_of_source(environment: Environment, record: TopicRecord, cluster_id: str, source_topic: str) -> bool:
    """Return whether a partition had messages, or another machine has its log, which is not checked.

    Raise Conflict if neither its stored sequence ids nor its first or last messages are of the source.
    """
    from api.broker.mirroring.position import has_first_or_last_message_of, mirror_and_import_producer_names
    from storage.topic import Topic

    of_source = mirror_and_import_producer_names(cluster_id, source_topic, record.name.partition)
    stored = environment.metadata.producer_sequences.of_topic(record.id)
    if stored is not None and not (stored.highest or {}).keys().isdisjoint(of_source):
        return True
    with suppress(SegmentNotLocal):
        storage = Topic(environment, record)
        if not storage.snapshot_reader().end:
            return False
        if not has_first_or_last_message_of(storage, of_source):
            raise Conflict(
                f"{record.name} has messages, and neither the first nor the last ones say that they came from "
                f"{source_topic} of the Kafka cluster {cluster_id}",
                "name another topic, or one that does not exist: it is created",
            )
    return True


async def _describe_source_topic(source: MirrorSource) -> SourceTopic:
    """Ask Kafka for the source topic. Raises Unavailable if no broker answers in time, Misconfigured."""
    from api.broker.mirroring.cluster import KafkaCluster

    cluster = KafkaCluster(source)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await cluster.describe_topic()
    except TimeoutError as error:
        raise Unavailable(
            f"no broker of {source.url} has answered within {ANSWER_SECONDS:g} s",
            "check the addresses, and that the brokers run",
            is_public=True,
        ) from error
    except Unavailable as error:
        raise Unavailable(
            error.message, "no mirror was added: check the address, and add it when Kafka answers", is_public=True
        ) from error
    finally:
        await cluster.close()


def all_mirrors(environment: Environment) -> list[MirrorWithPartitions]:
    """Return all mirrors, with their partitions."""
    mirrors = environment.metadata.mirrors
    return [MirrorWithPartitions(record, mirrors.partitions(record.topic)) for record in mirrors.all()]


def get(environment: Environment, topic: TopicName) -> MirrorWithPartitions:
    """Return the mirror of a topic. Raise NotFound."""
    mirrors = environment.metadata.mirrors
    return MirrorWithPartitions(mirrors.get(topic), mirrors.partitions(topic))


def topic_partitions(environment: Environment, topic: TopicName) -> Sequence[TopicRecord]:
    """Return the records of the partitions to which a mirror copies, in order. Raise TopicNotFound."""
    return names.topics(environment, topic)


def pause(environment: Environment, topic: TopicName) -> None:
    """Store that a mirror is paused; services stop it within seconds. Idempotent. Raise NotFound."""
    environment.metadata.mirrors.pause(topic)


def resume(
    environment: Environment, topic: TopicName, options: Mapping[str, object], *, accept_gaps: bool = False
) -> None:
    """Store that a paused or failed mirror runs again; services start it within seconds. Idempotent.

    `options`: replace those of the mirror by name. `accept_gaps`: continue after the missing records that stopped the
    mirror. Raise NotFound, InvalidInput.
    """
    mirror = environment.metadata.mirrors.get(topic)
    MirrorOptions.from_json({**mirror.options, **options})
    environment.metadata.mirrors.resume(topic, options, accept_gaps)


def remove(environment: Environment, topic: TopicName) -> None:
    """Delete a mirror, but not its topic, which keeps all messages. Raise NotFound."""
    environment.metadata.mirrors.remove(topic)
