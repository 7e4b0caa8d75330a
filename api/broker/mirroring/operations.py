"""Operations on mirrors: add, list, pause, resume and remove them. A service runs them (service.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from api.broker import names, partitions
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


class ShownMirror(NamedTuple):
    """A mirror, and its partitions by number."""

    record: MirrorRecord
    partitions: Sequence[MirrorPartition]


def add(environment: Environment, source: MirrorSource, topic: TopicName) -> ShownMirror:
    """Add a mirror of a topic in Kafka, which must answer now. A service begins it within seconds.

    The topic here is partitioned as the source; it is created, and deduplicates: its sequence ids are the position.
    Each partition of an existing one has messages of this source, or none; of another topic nothing is changed. Raise
    InvalidInput, MissingNamespace, Conflict, Unavailable, Misconfigured.
    """
    names.check_no_system_topic(topic)
    names.namespace(environment, names.namespace_of(topic))
    _check_new(environment, topic)
    described = asyncio.run(_described(source))
    count = max(described.leaders, default=-1) + 1
    present = environment.metadata.partitions.find(topic)
    if present is None:
        partitions.create(environment, topic, count, {})
    else:
        if present.partitions > count:
            raise Conflict(
                f"{topic} has {present.partitions} partitions, and {source.topic} in Kafka has {count}",
                "name another topic, or one that does not exist: it is created",
            )
        for partition in names.topics(environment, topic):
            _check_position(environment, partition, described.cluster_id, source.topic)
        if present.partitions < count:
            partitions.grow(environment, topic, count)
    scopes = [topic_scope(record) for record in names.topics(environment, topic)]
    environment.metadata.policies.change(scopes, {DEDUPLICATION: True})
    record = MirrorRecord(topic, source.url, source.options.to_json(), described.cluster_id, described.uid)
    environment.metadata.mirrors.add(record)
    return get(environment, topic)


def _check_new(environment: Environment, topic: TopicName) -> None:
    """Raise Conflict if a topic is a mirror already."""
    try:
        mirror = environment.metadata.mirrors.get(topic)
    except NotFound:
        return
    raise Conflict(f"{topic} is a mirror of {mirror.source} already", "remove that mirror, or name another topic")


def _check_position(environment: Environment, record: TopicRecord, cluster_id: str, source_topic: str) -> None:
    """Raise Conflict if a partition has messages, and none that is known or read here is of the source. Messages that
    another machine has are not seen: the mirror stops there."""
    from api.broker.mirroring.position import has_position, producer_names
    from storage.topic import Topic

    of_source = producer_names(cluster_id, source_topic, record.name.partition)
    stored = environment.metadata.producer_sequences.of_topic(record.id)
    if stored is not None and not (stored.highest or {}).keys().isdisjoint(of_source):
        return
    with suppress(SegmentNotLocal):
        if not has_position(Topic(environment, record), of_source):
            raise Conflict(
                f"{record.name} has messages, and neither the first nor the last ones say that they came from "
                f"{source_topic} of the Kafka cluster {cluster_id}",
                "name another topic, or one that does not exist: it is created",
            )


async def _described(source: MirrorSource) -> SourceTopic:
    """Return the topic at the source."""
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


def all_mirrors(environment: Environment) -> list[ShownMirror]:
    """Return all mirrors, by topic."""
    mirrors = environment.metadata.mirrors
    return [ShownMirror(record, mirrors.partitions(record.topic)) for record in mirrors.all()]


def get(environment: Environment, topic: TopicName) -> ShownMirror:
    """Return the mirror of a topic. Raise NotFound."""
    mirrors = environment.metadata.mirrors
    return ShownMirror(mirrors.get(topic), mirrors.partitions(topic))


def partitions_here(environment: Environment, topic: TopicName) -> Sequence[TopicRecord]:
    """Return the partitions of a mirror's topic, in order. Raise TopicNotFound."""
    return names.topics(environment, topic)


def pause(environment: Environment, topic: TopicName) -> None:
    """Pause a mirror, within seconds. Idempotent. Raise NotFound."""
    environment.metadata.mirrors.pause(topic)


def resume(
    environment: Environment, topic: TopicName, options: Mapping[str, object], *, accept_gaps: bool = False
) -> None:
    """Let a mirror run that is paused or has failed. `options`: those to be changed; `accept_gaps`: go on after the
    gaps that stopped it. Idempotent. Raise NotFound, InvalidInput."""
    mirror = environment.metadata.mirrors.get(topic)
    MirrorOptions.from_json({**mirror.options, **options})
    environment.metadata.mirrors.resume(topic, options, accept_gaps)


def remove(environment: Environment, topic: TopicName) -> None:
    """Remove a mirror; its topic stays, with all messages. Raise NotFound."""
    environment.metadata.mirrors.remove(topic)
