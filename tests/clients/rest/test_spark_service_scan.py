"""Scans of the Spark data source through a service (`url`), against a service in this process and without a Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from api.spark import service_scan
from api.spark.batch_reader import TopicReader
from api.spark.service_scan import Service
from api.spark.source_options import SourceOptions
from compactor.client import Client, Read, Topic
from storage.errors import InvalidInput, Unavailable
from tests.clients.rest.conftest import RestTopic
from tests.serving import Served

pytestmark = pytest.mark.slow

SCHEMA = StructType(
    [
        StructField("offset", LongType()),
        StructField("key", BinaryType()),
        StructField("payload", BinaryType()),
        StructField("publish_time", TimestampType()),
    ]
)


def fill(topic: RestTopic) -> None:
    """30 messages of seven keys, the first 21 compacted."""
    messages = [{"key": f"k{number * 3 % 7}", "payload": str(number) if number % 5 else None} for number in range(30)]
    topic.produce(*messages[:21])
    topic.compact()
    topic.produce(*messages[21:])


@pytest.fixture(scope="module")
def filled(served: Served) -> RestTopic:
    """A topic that no test changes."""
    topic = RestTopic(served, "scanned")
    assert topic.ask("PUT").status_code == 204
    fill(topic)
    return topic


@pytest.fixture(autouse=True)
def client(served: Served, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client of all scans. Their pieces may have any number of offsets."""
    client = Client(served.client)
    monkeypatch.setattr(Service, "connect", lambda self: nullcontext(client))
    monkeypatch.setattr(service_scan, "LEAST_OFFSETS", 1)
    return client


@pytest.fixture
def users(filled: RestTopic, client: Client) -> Topic:
    return client.topic(filled.local)


def reading(topic: RestTopic, **options: str) -> TopicReader:
    """Return the reader of a query of a topic."""
    named = {"path": topic.local, "url": "http://service", **options}
    return TopicReader(SourceOptions.parse_for_read(named), SCHEMA)


def rows(reader: TopicReader) -> pa.Table:
    """The rows of all tasks, in the order of the tasks."""
    pieces = pickle.loads(pickle.dumps(reader.partitions()))
    batches = [batch for piece in pieces for batch in reader.read(piece)]
    return pa.Table.from_batches(batches) if batches else pa.table({"offset": pa.array([], pa.int64())})


def before_second_read(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """Do something between the first and the second request of the scans that follow."""
    read, reads = Topic.read, count()

    def read_after_step(topic: Topic, **options: Any) -> Read:
        if next(reads) == 1:
            step()
        return read(topic, **options)

    monkeypatch.setattr(Topic, "read", read_after_step)


@pytest.mark.parametrize(
    ("compacted", "partitions", "pieces"),
    [("true", 1, 2), ("true", 3, 6), ("true", 50, 7 + 9), ("false", 1, 1), ("false", 3, 3), ("false", 50, 30)],
)
def test_all_pieces_together_are_a_read(
    filled: RestTopic, users: Topic, compacted: str, partitions: int, pieces: int
) -> None:
    """The compacted messages begin at offset 14."""
    reader = reading(filled, readCompacted=compacted, partitions=str(partitions))
    expected = users.read(compacted=compacted == "true").to_arrow().select(["offset", "key", "payload"])
    assert rows(reader).select(["offset", "key", "payload"]).to_pylist() == expected.to_pylist()
    assert len(reader.partitions()) == pieces


@pytest.mark.parametrize("compacted", ["true", "false"])
def test_a_range_of_offsets_leaves_the_rest_out(filled: RestTopic, users: Topic, compacted: str) -> None:
    reader = reading(filled, readCompacted=compacted)
    list(reader.pushFilters([GreaterThanOrEqual(("offset",), 19), LessThan(("offset",), 23)]))
    whole = users.read(compacted=compacted == "true").to_arrow()["offset"].to_pylist()
    assert rows(reader)["offset"].to_pylist() == [offset for offset in whole if 19 <= offset < 23]


def test_a_compaction_after_the_plan_changes_nothing(
    rest_topic: RestTopic, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the compacted ledger is collected the query fails, also where no key of a task was superseded: at the end if
    it is collected after the first check, else before the first row, since Spark may take no more."""
    fill(rest_topic)
    reader = reading(rest_topic, readCompacted="true", partitions="3")
    pieces = reader.partitions()
    expected = [batch.to_pylist() for piece in pieces for batch in reader.read(piece)]
    rest_topic.put(k0="x", k3="y")
    rest_topic.compact()
    assert [batch.to_pylist() for piece in pieces for batch in reader.read(piece)] == expected
    environment, topic = served.broker.environment, served.topic(rest_topic.name).record
    (retired,) = environment.metadata.pins.retired_ledgers(topic.id)

    def collect() -> None:
        assert environment.metadata.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, 0)

    refused = partial(pytest.raises, Unavailable, match="replaced and collected since the query was planned: run the q")
    before_second_read(monkeypatch, collect)
    with refused():
        list(reader.read(pieces[0]))
    for piece in pieces[:3]:
        with refused():
            next(reader.read(piece))
    assert rows(reading(rest_topic, readCompacted="true"))["key"].to_pylist()[-2:] == [b"k0", b"k3"]


def test_a_compaction_while_the_query_is_planned_loses_no_key(
    rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first request of the plan and the next one, a key gets a value and the topic is compacted."""
    rest_topic.put(k="old", other="same")

    def supersede() -> None:
        rest_topic.put(k="new")
        rest_topic.compact()

    before_second_read(monkeypatch, supersede)
    newest = {row["key"]: row["payload"] for row in rows(reading(rest_topic, readCompacted="true")).to_pylist()}
    assert newest == {b"k": b"new", b"other": b"same"}


def test_the_last_compacted_message_may_be_at_the_horizon(rest_topic: RestTopic) -> None:
    """The raw messages of the plan begin after it, also when those before it are trimmed."""
    rest_topic.put(a="old", b="1", c="1")
    rest_topic.put(a="new")
    rest_topic.compact()
    offsets = [1, 2, 3]
    assert rows(reading(rest_topic, readCompacted="true"))["offset"].to_pylist() == offsets
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"before": 4}).status_code == 200
    assert rows(reading(rest_topic, readCompacted="true"))["offset"].to_pylist() == offsets


def test_messages_that_were_trimmed_after_the_plan_fail_the_query(rest_topic: RestTopic) -> None:
    fill(rest_topic)
    reader = reading(rest_topic)
    (piece, *_) = reader.partitions()
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"before": 20}).status_code == 200
    with pytest.raises(Unavailable, match="from offset 0 on were trimmed since the query was planned: run the query"):
        list(reader.read(piece))


def test_an_empty_topic_has_no_pieces(rest_topic: RestTopic) -> None:
    for compacted in ("true", "false"):
        assert reading(rest_topic, readCompacted=compacted).partitions() == []


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match="the option url or token is wrong: 'service' is no address"):
        Service("service").connect()
    assert "secret" not in repr(Service("http://service", "secret"))
