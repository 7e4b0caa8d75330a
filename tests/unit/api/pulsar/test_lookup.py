"""Lookup of topics that do not exist: as a broker answers, also for names of partitions and missing namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.broker.broker import Broker
from api.pulsar.errors import Refused, ServerError, refusal
from api.pulsar.lookup import LookupResult, find_or_create, look_up, partitions_of, topics_of
from storage.errors import InvalidInput
from storage.model import TopicName
from tests.serving import serving

HERE = LookupResult("pulsar://here", "")


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
        lambda: partitions_of(broker, topic, create),
        lambda: look_up(broker, topic, HERE, create),
        lambda: find_or_create(broker, topic, create),
    ):
        with pytest.raises(Refused) as refused:
            ask()
        assert refused.value.error == error


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
    with pytest.raises((Refused, InvalidInput)) as refused:
        find_or_create(broker, topic, create=True)
    assert refusal(refused.value).error == error


def test_a_topic_that_may_be_created_has_no_partitions(broker: Broker) -> None:
    assert partitions_of(broker, name("new"), create=True) == 0
    assert partitions_of(broker, name("other-partition-0"), create=True) == 0
    assert partitions_of(broker, name("whole"), create=False) == 2
    assert partitions_of(broker, name("whole-partition-1"), create=False) == 0
    assert look_up(broker, name("whole"), HERE, create=False) == HERE
    assert look_up(broker, name("new"), HERE, create=True) == HERE


def test_a_namespace_that_does_not_exist_has_no_topics(broker: Broker) -> None:
    assert topics_of(broker, "public/none") == []
    assert topics_of(broker, "public/default") != []
