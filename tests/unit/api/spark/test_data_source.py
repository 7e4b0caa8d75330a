"""Options, columns and filters of the Spark data source, without a Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark import TaskContext
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
from pyspark.sql.types import BinaryType, ByteType, LongType, StringType, StructField, StructType

from api.spark import message_columns, partitions
from api.spark.batch_reader import TopicReader, narrow_scan_range
from api.spark.batch_writer import TaskLedgers, TopicWriter
from api.spark.data_source import CompactorDataSource
from api.spark.message_columns import message_tables
from api.spark.source_options import SourceOptions
from api.spark.stream_reader import TopicStreamReader
from storage.errors import Conflict, InvalidInput, InvalidRecord, TopicNotFound, Unavailable
from storage.model import TopicName
from storage.reading.scan import ScanRange
from storage.reading.snapshot_reader import SnapshotReader
from tests.workbench import Workbench, content

REPOSITORY = Path(__file__).parents[4]
NOON = datetime(2026, 11, 28, 12, 0, 0, 1500, tzinfo=UTC)
NOON_MS = 1_795_867_200_001


def test_options_are_those_of_the_environment_and_of_the_read() -> None:
    options = SourceOptions.parse_for_read(
        {"path": "orders", "readCompacted": "True", "DATA": "/d", "maxMessagesPerTrigger": "5", "startingOffset": "17"}
    )
    assert str(options.topic) == "persistent://public/default/orders"
    assert (options.read_compacted, options.max_messages, options.starting_offset) == (True, 5, "17")
    assert options.load_settings().data == "/d"
    assert SourceOptions.parse_for_read({"path": "t"}) == SourceOptions(
        SourceOptions.parse_for_read({"path": "t"}).topic, False, {}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topic is named"),
        ({"path": "t", "compacted": "true"}, "unknown option compacted"),
        ({"path": "t", "readCompacted": "yes"}, "readCompacted is 'yes'"),
        ({"path": "t", "startingOffset": "-1"}, "startingOffset is '-1'"),
        ({"path": "t", "maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger is '0'"),
        ({"path": "t", "token": "x"}, "the option token is of a read by a service"),
        ({"path": "t", "url": "http://h", "data": "/d"}, "the options url and data contradict each other"),
        ({"path": "t", "url": "http://h", "partitions": "0"}, "partitions is '0'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SourceOptions.parse_for_read(options)


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
        TopicReader(SourceOptions.parse_for_read({"path": "t"}), StructType([field]))


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
    assert narrow_scan_range(ScanRange(), condition) == expected


def test_filters_hold_together_and_spark_applies_them_again() -> None:
    reader = TopicReader(SourceOptions.parse_for_read({"path": "t"}), StructType([StructField("offset", LongType())]))
    filters: list[Filter] = [GreaterThan(("offset",), 3), LessThan(("offset",), 9), EqualTo(("key",), b"a")]
    assert list(reader.pushFilters(filters)) == filters
    together = reduce(narrow_scan_range, filters, ScanRange())
    assert together == ScanRange(4, 9, keys=frozenset([b"a"]))
    assert narrow_scan_range(together, EqualTo(("key",), b"b")).keys == frozenset()


TASK = """
import gc, pickle, sys
source, reader, piece = pickle.load(sys.stdin.buffer)
rows = sum(map(len, reader.read(piece)))
print(rows, gc.get_freeze_count() > 0, *sorted({"sqlalchemy", "httpx", "boto3"} & set(sys.modules)))
"""


def test_a_task_needs_no_libraries_of_databases_or_http(bench: Workbench, tmp_path: Path) -> None:
    """Spark's Python workers collect garbage after each task: few modules are loaded, and those are exempt."""
    bench.append(bench.topic(), [content((b"a", b"1"))])
    places = {"database": f"sqlite:///{tmp_path / 'metadata.db'}", "store": (tmp_path / "objects").as_uri()}
    source = CompactorDataSource({"path": "t", "data": str(tmp_path), **places})
    reader = source.reader(StructType([StructField("offset", LongType())]))
    task = pickle.dumps((source, reader, *reader.partitions()))
    ended = subprocess.run([sys.executable, "-c", TASK], input=task, cwd=REPOSITORY, capture_output=True, check=True)
    assert ended.stdout.decode() == "1 True\n"


def test_the_columns_are_those_of_a_message() -> None:
    columns = CompactorDataSource({}).schema()
    assert columns.startswith("`offset` BIGINT, ")
    assert "slot" not in columns


@pytest.fixture
def stream(bench: Workbench, tmp_path: Path) -> Callable[..., TopicStreamReader]:
    """Return a reader of the topic `t`, as a query that begins, or begins again, has it."""

    def reading(**options: str) -> TopicStreamReader:
        places = {"database": f"sqlite:///{tmp_path / 'metadata.db'}", "store": (tmp_path / "objects").as_uri()}
        source = SourceOptions.parse_for_read({"path": "t", "data": str(tmp_path), **places, **options})
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


def test_the_end_of_a_topic_is_taken_once_for_a_batch(
    bench: Workbench, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    reader = stream()
    position = reader.initialOffset()
    taken = []
    end = SnapshotReader.end
    monkeypatch.setattr(SnapshotReader, "end", property(lambda self: (taken.append(1), end.fget(self))[1]))
    assert reader.latestOffset(position, reader.getDefaultReadLimit())["offset"] == 1
    assert len(taken) == 1


KEYED = StructType([StructField("key", StringType()), StructField("payload", BinaryType())])


@pytest.fixture
def begin(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[StructType], TopicWriter]:
    """Return the writer of a job to the topic `t`, as the driver has it."""
    monkeypatch.setattr(bench.clock, "wait", lambda seconds: None)
    places = {"database": f"sqlite:///{tmp_path / 'metadata.db'}", "store": (tmp_path / "objects").as_uri()}
    source = CompactorDataSource({"path": "t", "data": str(tmp_path), **places})

    def beginning(schema: StructType = KEYED) -> TopicWriter:
        writer = source.writer(schema, overwrite=False)
        assert isinstance(writer, TopicWriter)
        return writer

    return beginning


def task(monkeypatch: pytest.MonkeyPatch, writer: TopicWriter, number: int, *rows: tuple[str, bytes]) -> TaskLedgers:
    """Run the task of a partition, whose batches have one row."""
    context = SimpleNamespace(partitionId=lambda: number)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    columns = [({"key": [key], "payload": [payload]}) for key, payload in rows]
    return writer.write(pa.RecordBatch.from_pydict(each) for each in columns)


def test_a_write_appends_the_partitions_in_their_order(
    bench: Workbench, begin: Callable[..., TopicWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begin()
    second = task(monkeypatch, writer, 1, ("c", b"3"))
    first = task(monkeypatch, writer, 0, ("a", b"1"), ("ä", b"2"))
    empty = task(monkeypatch, writer, 2)
    topic = bench.topic()
    assert list(topic.messages()) == []
    writer.commit([second, first, empty])
    read = [(message.key, message.payload) for message in topic.messages()]
    assert read == [(b"a", b"1"), ("ä".encode(), b"2"), (b"c", b"3")]


def test_an_aborted_write_leaves_nothing_not_even_its_topic(
    bench: Workbench, begin: Callable[..., TopicWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begin()
    topic = bench.metadata.topics.get(TopicName.parse("t"))
    done = task(monkeypatch, writer, 0, ("a", b"1"))
    with pytest.raises(Unavailable, match="Spark has no result of a task"):
        writer.commit([done, None])
    assert list(bench.store.list(f"topics/{topic.uid}/"))
    writer.abort([done, None])
    assert list(bench.store.list(f"topics/{topic.uid}/")) == []
    with pytest.raises(TopicNotFound):
        bench.metadata.topics.get(topic.name)


def test_a_write_without_rows_creates_no_topic(
    bench: Workbench, begin: Callable[..., TopicWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begin()
    writer.commit([task(monkeypatch, writer, 0)])
    with pytest.raises(TopicNotFound):
        bench.metadata.topics.get(TopicName.parse("t"))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("value", StringType()), "messages have no column value that can be written: .* payload BINARY or"),
        (StructField("key", LongType()), "the column key is BIGINT"),
        (StructField("event_time", StringType()), "the column event_time is STRING"),
        (StructField("key", StringType()), "the rows have no column payload"),
    ],
)
def test_columns_that_no_message_has_are_refused_before_the_topic_is_created(
    bench: Workbench, begin: Callable[..., TopicWriter], field: StructField, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        begin(StructType([field]))
    assert bench.metadata.topics.all() == []


def test_what_a_topic_cannot_do_is_refused() -> None:
    source = CompactorDataSource({"path": "t", "url": "http://h"})
    with pytest.raises(InvalidInput, match="a topic cannot be overwritten: it is a log"):
        source.writer(KEYED, overwrite=True)
    with pytest.raises(InvalidInput, match=r"topics are not written by writeStream\.format"):
        source.streamWriter(KEYED, overwrite=False)
    with pytest.raises(InvalidInput, match="a service does not take the ledgers of a write"):
        source.writer(KEYED, overwrite=False)
    with pytest.raises(InvalidInput, match="a stream does not read by a service"):
        source.streamReader(KEYED)
    with pytest.raises(InvalidInput, match="unknown option readcompacted: use one of data, database"):
        CompactorDataSource({"path": "t", "readCompacted": "true"}).writer(KEYED, overwrite=False)
    with pytest.raises(InvalidInput, match="a service has no column slot"):
        source.reader(StructType([StructField("slot", ByteType())]))


def test_errors_that_say_what_to_do_have_no_traceback_of_this_project(
    bench: Workbench, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark prints it above the message; that of a fault stays."""

    def frames_of(call: Callable[[], object], kind: type[Exception]) -> list[str]:
        with pytest.raises(kind) as raised:
            call()
        assert raised.value.__cause__ is None
        names = [Path(entry.path).name for entry in raised.traceback]
        return [name for name in names if name != Path(__file__).name]

    reader = stream()
    assert frames_of(reader.initialOffset, TopicNotFound) == ["brief_errors.py"]
    bench.append(bench.topic(), [content((b"a", b"1"))])
    start = reader.initialOffset()
    (piece,) = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    monkeypatch.setattr(partitions, "open_store", Mock(side_effect=Unavailable("away", "wait")))
    assert frames_of(lambda: list(reader.read(piece)), Unavailable) == ["brief_errors.py"]
    monkeypatch.setattr(partitions, "open_store", Mock(side_effect=KeyError))
    assert "partitions.py" in frames_of(lambda: list(reader.read(piece)), KeyError)


def test_batches_become_messages_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_columns, "TABLE_ROWS", 3)
    time = pa.array([1_500_999], pa.timestamp("us", "UTC"))
    properties = pa.array([[("p", "q")]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["v"]), time, pa.array([5]), properties], ["payload", "event_time", "publish_time", "properties"]
    )
    tables = list(message_tables([batch] * 4))
    assert [len(table) for table in tables] == [3, 1]
    assert tables[1].to_pylist() == [
        {
            "key": None,
            "payload": b"v",
            "publish_time": 5,
            "event_time": 1500,
            "properties": [("p", "q")],
            "producer": None,
            "sequence_id": None,
        }
    ]
    nothing = pa.RecordBatch.from_pydict({"payload": [b"v"], "properties": pa.array([[("p", None)]], properties.type)})
    with pytest.raises(InvalidRecord, match=r"the column properties of a row holds .*a property without a value"):
        list(message_tables([nothing]))
