"""Options, columns and filters of the Spark data source, without a Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce

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

from api.spark.data_source import CompactorDataSource, SourceOptions, TopicReader, narrowed
from storage.errors import InvalidInput
from storage.reading.scan import ScanRange

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
