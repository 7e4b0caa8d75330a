"""Scans of the Spark data source through a service (`url`), against a service in this process and without a Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from api.spark import service_scan
from api.spark.data_source import SourceOptions, TopicReader
from api.spark.service_scan import Service
from compactor.client import Client, Topic
from storage.errors import InvalidInput, Unavailable
from tests.clients.rest.conftest import RestTopic
from tests.serving import Served

SCHEMA = StructType(
    [
        StructField("offset", LongType()),
        StructField("key", BinaryType()),
        StructField("payload", BinaryType()),
        StructField("publish_time", TimestampType()),
    ]
)


@pytest.fixture
def users(rest_topic: RestTopic, served: Served, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """A topic of 30 messages of seven keys, the first 21 compacted. Pieces may have any number of offsets."""
    client = Client(served.client)
    monkeypatch.setattr(Service, "connect", lambda self: nullcontext(client))
    monkeypatch.setattr(service_scan, "LEAST_OFFSETS", 1)
    for number in range(30):
        rest_topic.put(**{f"k{number * 3 % 7}": str(number) if number % 5 else None})
        if number == 20:
            rest_topic.compact()
    return client.topic(rest_topic.local)


Reading = Callable[..., TopicReader]


@pytest.fixture
def reading(rest_topic: RestTopic) -> Reading:
    """Return the reader of a query of the topic."""

    def create(**options: str) -> TopicReader:
        named = {"path": rest_topic.local, "url": "http://service", **options}
        return TopicReader(SourceOptions.parse(named), SCHEMA)

    return create


def rows(reader: TopicReader) -> pa.Table:
    """The rows of all tasks, in the order of the tasks."""
    pieces = pickle.loads(pickle.dumps(reader.partitions()))
    batches = [batch for piece in pieces for batch in reader.read(piece)]
    return pa.Table.from_batches(batches) if batches else pa.table({"offset": pa.array([], pa.int64())})


@pytest.mark.parametrize(
    ("compacted", "partitions", "pieces"),
    [("true", 1, 2), ("true", 3, 6), ("true", 50, 7 + 9), ("false", 1, 1), ("false", 3, 3), ("false", 50, 30)],
)
def test_all_pieces_together_are_a_read(
    users: Topic, reading: Reading, compacted: str, partitions: int, pieces: int
) -> None:
    """The compacted messages begin at offset 14."""
    reader = reading(readCompacted=compacted, partitions=str(partitions))
    expected = users.read(compacted=compacted == "true").to_arrow().select(["offset", "key", "payload"])
    assert rows(reader).select(["offset", "key", "payload"]).to_pylist() == expected.to_pylist()
    assert len(reader.partitions()) == pieces


@pytest.mark.parametrize("compacted", ["true", "false"])
def test_a_range_of_offsets_leaves_the_rest_out(users: Topic, reading: Reading, compacted: str) -> None:
    reader = reading(readCompacted=compacted)
    list(reader.pushFilters([GreaterThanOrEqual(("offset",), 19), LessThan(("offset",), 23)]))
    whole = users.read(compacted=compacted == "true").to_arrow()["offset"].to_pylist()
    assert rows(reader)["offset"].to_pylist() == [offset for offset in whole if 19 <= offset < 23]


def test_a_compaction_after_the_plan_changes_nothing(
    users: Topic, reading: Reading, rest_topic: RestTopic, served: Served
) -> None:
    """Once the compacted ledger is collected the query fails, also where no key of a task was superseded."""
    reader = reading(readCompacted="true", partitions="3")
    pieces = reader.partitions()
    expected = [batch.to_pylist() for piece in pieces for batch in reader.read(piece)]
    rest_topic.put(k0="x", k3="y")
    rest_topic.compact()
    assert [batch.to_pylist() for piece in pieces for batch in reader.read(piece)] == expected
    environment, topic = served.broker.environment, served.topic(rest_topic.name).record
    (retired,) = environment.metadata.pins.retired_ledgers(topic.id)
    assert environment.metadata.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, 0)
    for piece in pieces[:3]:
        with pytest.raises(Unavailable, match="replaced and collected since the query was planned: run the query"):
            list(reader.read(piece))
    assert rows(reading(readCompacted="true"))["key"].to_pylist()[-2:] == [b"k0", b"k3"]


def test_an_empty_topic_has_no_pieces(rest_topic: RestTopic, reading: Reading, users: Topic) -> None:
    assert rest_topic.ask("DELETE", "/truncate").status_code == 204
    for compacted in ("true", "false"):
        assert reading(readCompacted=compacted).partitions() == []


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the option url or token is wrong: 'service' is no address"):
        Service("service").connect()
    assert "secret" not in repr(Service("http://service", "secret"))
