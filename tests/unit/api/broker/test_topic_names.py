"""Topics that do not exist: found or created as by a broker, also with names of partitions, and without a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from api.broker import partitioned_topics, topics
from api.broker.broker import Broker
from api.broker.names import find_or_create, find_partitioned, other_owner
from api.pulsar.errors import ServerError, refusal
from storage.errors import CompactorError
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import ServiceRecord
from storage.model import TopicName
from tests.counted import statements
from tests.serving import serving


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("lookup")
    with serving(folder) as served:
        metadata = served.broker.environment.metadata
        metadata.partitions.create(name("whole"), 2, {})
        yield served.broker


def name(topic: str, namespace: str = "public/default") -> TopicName:
    return TopicName.parse(f"persistent://{namespace}/{topic}")


@pytest.mark.parametrize(
    ("topic", "create", "error"),
    [
        (name("new"), False, ServerError.TopicNotFound),
        (name("new", "public/none"), True, ServerError.TopicNotFound),
        (name("new", "none/none"), True, ServerError.TopicNotFound),
    ],
    ids=str,
)
def test_a_topic_that_cannot_be_created_is_refused_by_each_command(
    broker: Broker, topic: TopicName, create: bool, error: ServerError
) -> None:
    for ask in (
        lambda: find_partitioned(broker.environment, topic, create),
        lambda: other_owner(broker, topic, create),
        lambda: find_or_create(broker.environment, topic, create),
    ):
        with pytest.raises(CompactorError) as refused:
            ask()
        assert refusal(refused.value).error == error


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (name("other-partition-0"), ServerError.NotAllowedError),
        (name("whole-partition-2"), ServerError.TopicNotFound),
        (name("whole"), ServerError.NotAllowedError),
    ],
    ids=str,
)
def test_a_partition_is_created_for_its_partitioned_topic_alone(
    broker: Broker, topic: TopicName, error: ServerError
) -> None:
    with pytest.raises(CompactorError) as refused:
        find_or_create(broker.environment, topic, allow_creation=True)
    assert refusal(refused.value).error == error


def test_a_topic_that_may_be_created_has_no_partitions(broker: Broker) -> None:
    def number(topic: TopicName, create: bool) -> int | None:
        partitioned = find_partitioned(broker.environment, topic, create)
        return partitioned.partitions if partitioned else None

    assert number(name("new"), create=True) is None
    assert number(name("other-partition-0"), create=True) is None
    assert number(name("whole"), create=False) == 2
    assert number(name("whole-partition-1"), create=False) is None
    assert other_owner(broker, name("whole"), allow_missing=False) is None
    assert other_owner(broker, name("new"), allow_missing=True) is None


def test_a_partition_that_a_client_creates_again_has_the_policies_of_the_others(broker: Broker) -> None:
    metadata = broker.environment.metadata
    metadata.partitions.create(name("again"), 2, {})
    first, second = (metadata.topics.get(name(f"again-partition-{number}")) for number in range(2))
    metadata.policies.change([topic_scope(first)], {"max.message.bytes": 5})
    metadata.tenancy.delete_topic(second.id)
    created, is_new = find_or_create(broker.environment, second.name, allow_creation=True)
    assert is_new
    assert metadata.policies.readable_of_scope(topic_scope(created)) == {"max.message.bytes": 5}


def test_operations_on_a_partitioned_topic_take_as_many_statements_for_any_number(broker: Broker) -> None:
    metadata, many = broker.environment.metadata, name("many")
    metadata.services.heartbeat(ServiceRecord("other:1:aa", "http://other", "other", 0, 0))
    counts = []
    for count in (2, 200):
        partitioned_topics.create(broker.environment, many, 1, {})
        first = metadata.topics.get(many.of_partition(0))
        metadata.policies.change([topic_scope(first)], {"max.message.bytes": 5})
        calls = (
            partial(partitioned_topics.grow, broker.environment, many, count),
            partial(partitioned_topics.recreate_deleted_partitions, broker.environment, many),
            partial(topics.unload, broker, many),
        )
        counts.append([len(statements(metadata, call)) for call in calls])
        leases = [
            metadata.leases.acquire(record.id, "other:1:aa", 60_000)
            for record in metadata.topics.in_namespace("public/default")
            if record.name.partitioned_topic == many
        ]
        counts[-1].append(len(statements(metadata, partial(partitioned_topics.owned_elsewhere, broker, many))))
        assert len(partitioned_topics.owned_elsewhere(broker, many)) == count
        for lease in leases:
            metadata.leases.release(lease)
        counts[-1].append(len(statements(metadata, partial(partitioned_topics.delete, broker, many))))
    assert counts[0] == counts[1]
