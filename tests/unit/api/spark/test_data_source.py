"""Options, columns and filters of the Spark data source, without a Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from api.spark.data_source import CompactorDataSource, SourceOptions, TopicReader, TopicStreamReader, narrowed
from storage.errors import Conflict, InvalidInput
from storage.reading.scan import ScanRange
from tests.workbench import Workbench, content

NOON = datetime(2026, 11, 28, 12, 0, 0, 1500, tzinfo=UTC)
NOON_MS = 1_795_867_200_001


def test_options_are_those_of_the_environment_and_of_the_read() -> None:
    options = SourceOptions.parse(
        {"path": "orders", "readCompacted": "True", "DATA": "/d", "maxMessagesPerTrigger": "5", "startingOffset": "17"}
    )
    assert str(options.topic) == "persistent://public/default/orders"
    assert (options.read_compacted, options.max_messages, options.starting_offset) == (True, 5, "17")
    assert options.load_settings().data == "/d"
    assert SourceOptions.parse({"path": "t"}) == SourceOptions(SourceOptions.parse({"path": "t"}).topic, False, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topic is named"),
        ({"path": "t", "compacted": "true"}, "unknown option compacted"),
        ({"path": "t", "readCompacted": "yes"}, "readCompacted is 'yes'"),
        ({"path": "t", "startingOffset": "-1"}, "startingOffset is '-1'"),
        ({"path": "t", "maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger is '0'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("value", StringType()), "topics have no column value"),
        (StructField("key", StringType()), "the column key is declared as string, and topics have binary"),
        (StructField("publish_time", LongType()), "declared as bigint, and topics have timestamp"),
    ],
)
def test_a_column_that_topics_lack_is_named(field: StructField, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TopicReader(SourceOptions.parse({"path": "t"}), StructType([field]))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("offset",), 7), ScanRange(7, 8)),
        (GreaterThan(("offset",), 7), ScanRange(8)),
        (GreaterThanOrEqual(("offset",), 7), ScanRange(7)),
        (LessThan(("offset",), 7), ScanRange(0, 7)),
        (LessThanOrEqual(("offset",), 7), ScanRange(0, 8)),
        (EqualTo(("publish_time",), NOON), ScanRange(first_time=NOON_MS, end_time=NOON_MS + 1)),
        (GreaterThan(("publish_time",), NOON), ScanRange(first_time=NOON_MS)),
        (LessThan(("publish_time",), NOON), ScanRange(end_time=NOON_MS + 1)),
        (EqualTo(("key",), b"a"), ScanRange(keys=frozenset([b"a"]))),
        (In(("key",), (b"a", b"b", None)), ScanRange(keys=frozenset([b"a", b"b"]))),
        (GreaterThan(("key",), b"a"), ScanRange()),
        (EqualTo(("payload",), b"a"), ScanRange()),
        (EqualTo(("offset",), None), ScanRange()),
        (IsNotNull(("key",)), ScanRange()),
    ],
)
def test_a_filter_narrows_the_scan_and_no_more(condition: Filter, expected: ScanRange) -> None:
    assert narrowed(ScanRange(), condition) == expected


def test_filters_hold_together_and_spark_applies_them_again() -> None:
    reader = TopicReader(SourceOptions.parse({"path": "t"}), StructType([StructField("offset", LongType())]))
    filters: list[Filter] = [GreaterThan(("offset",), 3), LessThan(("offset",), 9), EqualTo(("key",), b"a")]
    assert list(reader.pushFilters(filters)) == filters
    together = reduce(narrowed, filters, ScanRange())
    assert together == ScanRange(4, 9, keys=frozenset([b"a"]))
    assert narrowed(together, EqualTo(("key",), b"b")).keys == frozenset()


def test_the_columns_are_those_of_a_message() -> None:
    columns = CompactorDataSource({}).schema()
    assert columns.startswith("`offset` BIGINT, ")
    assert "slot" not in columns


@pytest.fixture
def stream(bench: Workbench, tmp_path: Path) -> Callable[..., TopicStreamReader]:
    """Return a reader of the topic `t`, as a query that begins, or begins again, has it."""

    def reading(**options: str) -> TopicStreamReader:
        places = {"database": f"sqlite:///{tmp_path / 'metadata.db'}", "store": (tmp_path / "objects").as_uri()}
        source = SourceOptions.parse({"path": "t", "data": str(tmp_path), **places, **options})
        return TopicStreamReader(source, StructType([StructField("offset", LongType())]))

    return reading


def batch(reader: TopicStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Read the next batch of a stream; return its offsets and its end."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    rows = [row for piece in reader.partitions(start, end) for table in reader.read(piece) for row in table["offset"]]
    return [offset.as_py() for offset in rows], end


Stream = Callable[..., TopicStreamReader]


def test_a_compacted_and_trimmed_topic_is_read_in_several_batches(bench: Workbench, stream: Stream) -> None:
    """Its compacted ledger lacks deletions, which a batch before cannot have missed in the same ledger."""
    topic = bench.topic()
    bench.append(topic, [content(*((b"%d" % number, b"v") for number in range(8)), (b"0", None))])
    bench.compact(topic)
    ledger_ids = [ledger.ledger_id for ledger in topic.snapshot().ledgers]
    bench.metadata.trimming.trim(topic.record.id, 9, ledger_ids, force=True, keep_start=True)
    position = stream().initialOffset()
    assert position["offset"] == 0
    offsets: list[int] = []
    for _ in range(3):
        read, position = batch(stream(readCompacted="true", maxMessagesPerTrigger="3"), position)
        offsets += read
    assert offsets == list(range(1, 8))
    read, again = batch(stream(readCompacted="true"), position)
    assert (read, again) == ([], position)
    bench.append(topic, [content((b"1", None), (b"2", b"w"))])
    bench.compact(topic)
    assert batch(stream(readCompacted="true"), position)[0] == [9, 10], "raw still has the deletion"


def test_another_incarnation_or_an_older_one_is_refused(bench: Workbench, stream: Stream) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"), (b"b", b"2"))])
    read, position = batch(stream(), stream().initialOffset())
    assert read == [0, 1]
    with pytest.raises(Conflict, match="ends at offset 2, before the position 5"):
        stream().latestOffset({**position, "offset": 5}, stream().getDefaultReadLimit())
    bench.metadata.tenancy.delete_topic(topic.record.id)
    bench.append(bench.topic(), [content((b"a", b"1"))])
    for step in (lambda: batch(stream(), position), lambda: stream().partitions(position, {**position, "offset": 9})):
        with pytest.raises(Conflict, match="was deleted and created again"):
            step()


def test_a_stream_may_begin_anywhere(bench: Workbench, stream: Stream) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"), (b"b", b"2"))])
    assert batch(stream(), stream(startingOffset="1").initialOffset())[0] == [1]
    latest = stream(startingOffset="latest").initialOffset()
    assert batch(stream(), latest) == ([], latest)
