"""A data source of Spark for topics: `spark.read`, `spark.readStream` and `df.write` with the format `compactor`.

The driver plans the pieces of a scan from the database (storage/reading/scan.py): a part of the compacted ledger, a
sealed ledger or a segment each, one task a piece. Tasks read the object store, and segments on the machine that has
their log directory; they need no database. With the option `url` driver and tasks ask a service instead
(service_scan.py). Rows travel as Arrow batches. Filters on offset, publish time and key leave out parts, ledgers and
row groups; Spark filters the rows again.

A stream's position, which a checkpoint keeps, is the offset of the next message in one incarnation of the topic. A
batch of it is the messages between two offsets. With `readCompacted` these are the compacted ones at or below the
horizon: a message that a compaction has removed since was superseded by one with a larger offset, which is in a later
batch. A compacted ledger that may lack what superseded a message of an earlier batch is not read (R7).

A write is an append by tasks (storage/log/task_append.py): the driver begins and commits it, and has nothing per
message; tasks write sealed ledgers to the object store.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from api.components import open_for_reading
from api.settings.settings import Settings
from api.spark.message_columns import WRITTEN_TYPES, message_tables
from api.spark.service_scan import DEFAULT_PARTITIONS, Service, ServicePiece, plan_service_scan
from api.spark.topic_write import TopicWrite
from compactor.client.messages import COLUMNS
from storage.environment import Environment
from storage.errors import Conflict, InvalidInput, Unavailable
from storage.log.directory import LogDirectory
from storage.log.segment_tables import SegmentTableReader
from storage.model import LedgerRecord, TopicName
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store
from storage.reading.scan import END, ScanPiece, ScanRange
from storage.topic import Topic

NAME = "compactor"
SPARK_TYPES = {
    "offset": "BIGINT",
    "ledger_id": "BIGINT",
    "entry_id": "BIGINT",
    "batch_index": "INT",
    "key": "BINARY",
    "payload": "BINARY",
    "publish_time": "TIMESTAMP",
    "event_time": "TIMESTAMP",
    "producer": "STRING",
    "sequence_id": "BIGINT",
    "properties": "MAP<STRING, STRING>",
    "batch_size": "INT",
    "slot": "TINYINT",
    "chunk_uuid": "STRING",
    "chunk_index": "INT",
    "chunk_count": "INT",
    "codec": "TINYINT",
    "metadata": "BINARY",
    "source_ledger_id": "BIGINT",
    "source_entry_id": "BIGINT",
}
"""Columns that a schema may have, and their types; docs/format.md describes them."""
DEFAULT_COLUMNS = tuple(SPARK_TYPES)[:11]
"""The columns without a schema of the caller's: those of a message, and no other row is read then."""
_TIMES = ("publish_time", "event_time")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = pa.timestamp("ms", "UTC")
_COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_SETTINGS = {"data": "data", "database": "database", "store": "store", "s3endpoint": "s3_endpoint"}
_SERVICE = {"url", "token", "partitions"}
_OPTIONS = {"path", "readcompacted", "startingoffset", "maxmessagespertrigger", *_SETTINGS, *_SERVICE}


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read. `settings`: where database, store and log directory are; the environment has the others.

    `starting_offset`: of a stream: earliest, latest or a number. `max_messages`: the most of one batch of a stream.
    `service`: reads the topic, in `partitions` tasks at most for each of its compacted and raw messages; None: the
    driver and the tasks read database and store.
    """

    topic: TopicName
    read_compacted: bool
    settings: Mapping[str, str]
    starting_offset: str = "earliest"
    max_messages: int | None = None
    service: Service | None = None
    partitions: int = DEFAULT_PARTITIONS

    @staticmethod
    def parse_of_write(options: Mapping[str, str]) -> SourceOptions:
        """Return the options of a write. Raises InvalidInput, which names the option and its values."""
        if "url" in {name.lower() for name in options}:
            raise InvalidInput("a service does not take the ledgers of a write", "name database and store, not url")
        values = _checked_options(options, {"path", *_SETTINGS}, '.save("persistent://public/default/orders")')
        return SourceOptions(TopicName.parse(values["path"]), False, _settings_of(values))

    @staticmethod
    def parse(options: Mapping[str, str]) -> SourceOptions:
        """Return the options of a read. Raises InvalidInput, which names the option and its values."""
        values = _checked_options(options, _OPTIONS, '.load("persistent://public/default/orders")')
        flag = values.get("readcompacted", "false").lower()
        if flag not in ("true", "false"):
            raise InvalidInput(f"readCompacted is {flag!r}", "use true or false")
        start = values.get("startingoffset", "earliest").lower()
        if start not in ("earliest", "latest") and not start.isdecimal():
            raise InvalidInput(f"startingOffset is {start!r}", "use earliest, latest or an offset")
        limit = values.get("maxmessagespertrigger")
        if limit is not None and not (limit.isdecimal() and int(limit)):
            raise InvalidInput(f"maxMessagesPerTrigger is {limit!r}", "use a number above 0")
        partitions = values.get("partitions", str(DEFAULT_PARTITIONS))
        if not (partitions.isdecimal() and int(partitions)):
            raise InvalidInput(f"partitions is {partitions!r}", "use a number above 0")
        return SourceOptions(
            TopicName.parse(values["path"]),
            flag == "true",
            _settings_of(values),
            start,
            None if limit is None else int(limit),
            _service_of(values),
            int(partitions),
        )

    def load_settings(self) -> Settings:
        """Return the settings of the options, the environment and the defaults."""
        flags: dict[str, object] = dict(self.settings)
        return Settings.load(os.environ, None, **flags)


def _checked_options(options: Mapping[str, str], known: Collection[str], example: str) -> dict[str, str]:
    """Return the options by lower-case name. Raise InvalidInput for an unknown one, and without a topic."""
    values = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(set(values) - set(known)):
        raise InvalidInput(f"unknown option {unknown[0]}", f"use one of {', '.join(sorted(known))}")
    if not values.get("path"):
        raise InvalidInput("no topic is named", f"name it: {example}")
    return values


def _settings_of(values: Mapping[str, str]) -> dict[str, str]:
    return {attribute: values[option] for option, attribute in _SETTINGS.items() if option in values}


def _service_of(values: Mapping[str, str]) -> Service | None:
    """Return the service that reads. Raise InvalidInput for options that contradict each other."""
    url = values.get("url")
    if url is None:
        if others := sorted(_SERVICE & set(values)):
            raise InvalidInput(f"the option {others[0]} is of a read by a service", "name the service with url, too")
        return None
    if others := sorted(set(_SETTINGS) & set(values)):
        raise InvalidInput(f"the options url and {others[0]} contradict each other", "use one of them")
    return Service(url, values.get("token"))


class CompactorDataSource(DataSource):
    """Topics as tables. Needs Spark's setting of `register`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns of a message."""
        return ", ".join(f"`{name}` {SPARK_TYPES[name]}" for name in DEFAULT_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises InvalidInput."""
        return TopicReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. Raises InvalidInput."""
        options = SourceOptions.parse(self.options)
        if options.service is not None:
            raise InvalidInput("a stream does not read by a service", "leave out url, and name database and store")
        return TopicStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a write and return its writer. Raises InvalidInput, LeaseHeld."""
        if overwrite:
            raise InvalidInput(
                "a topic cannot be overwritten: it is a log, and its readers keep their positions in it",
                'append: .mode("append"); a newer message of a key supersedes the older ones, and one without payload '
                "deletes the key",
            )
        options = SourceOptions.parse_of_write(self.options)
        check_written_columns(schema)
        return TopicWriter(options, TopicWrite.begin(options.load_settings(), options.topic))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raise InvalidInput: Spark does not tell a writer what an interrupted batch has written already."""
        raise InvalidInput(
            "topics are not written by writeStream.format",
            'write each batch: .writeStream.foreachBatch(lambda frame, _: frame.write.format("compactor")'
            '.mode("append").save("orders")); a batch that Spark repeats after a crash is written again',
        )


def register(session: SparkSession) -> None:
    """Make the format `compactor` known to a Spark session, and let Spark push filters down to Python data sources."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(CompactorDataSource)


@dataclass(frozen=True)
class _Columns:
    """The columns of a query, in its order."""

    arrow: pa.Schema

    @staticmethod
    def of(schema: StructType) -> _Columns:
        for field in schema.fields:
            if field.name not in SPARK_TYPES:
                raise InvalidInput(f"topics have no column {field.name}", f"use some of {', '.join(SPARK_TYPES)}")
            own = SPARK_TYPES[field.name].lower().replace(" ", "")
            if field.dataType.simpleString() != own:
                raise InvalidInput(
                    f"the column {field.name} is declared as {field.dataType.simpleString()}, and topics have {own}",
                    "declare it so, and cast it in the query",
                )
        return _Columns(to_arrow_schema(schema, timezone="UTC"))

    @property
    def names(self) -> list[str]:
        return list(self.arrow.names)

    def batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table of rows.SCHEMA's columns as Spark takes them."""
        for name in _TIMES:
            if name in table.schema.names:
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, table.column(name).cast(_MILLISECONDS))
        yield from table.cast(self.arrow).to_batches()


class _Partition(InputPartition):
    """A piece of a scan, and where its files are."""

    def __init__(self, piece: ScanPiece, store: StoreLocation, log_directory: Path) -> None:
        super().__init__(None)
        self.piece, self.store, self.log_directory = piece, store, log_directory


class _ServicePartition(InputPartition):
    """A range of offsets, which a service reads."""

    def __init__(self, piece: ServicePiece) -> None:
        super().__init__(None)
        self.piece = piece


def _read(partition: InputPartition, columns: _Columns) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _ServicePartition):
        for table in partition.piece.tables(columns.names):
            yield from columns.batches(table)
        return
    assert isinstance(partition, _Partition)
    with closing(open_store(partition.store)) as store:
        unsealed = SegmentTableReader(LogDirectory(partition.log_directory))
        for table in partition.piece.tables(store, unsealed, columns.names):
            yield from columns.batches(table)


def _partitions(
    options: SourceOptions, scan_range: ScanRange, begin: StreamPosition | None = None
) -> list[InputPartition]:
    settings = options.load_settings()
    with open_for_reading(settings) as environment:
        topic = _open(environment, options)
        if begin is not None:
            begin.check(topic)
            scan_range = replace(scan_range, first_offset=begin.offset)
        pieces = topic.scan(
            scan_range,
            read_compacted=options.read_compacted,
            resumes=begin is not None and begin.resumes,
            known_ledger_id=None if begin is None else begin.ledger_id,
        )
    store = StoreLocation(settings.store_url, settings.s3_endpoint or None)
    return [_Partition(piece, store, settings.log_directory) for piece in pieces]


def _open(environment: Environment, options: SourceOptions) -> Topic:
    return Topic(environment, environment.metadata.topics.get(options.topic))


class TopicReader(DataSourceReader):
    """The reader of a batch query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises InvalidInput for a column that topics do not have."""
        self._options, self._columns, self._range = options, _Columns.of(schema), ScanRange()
        if options.service is not None and (others := [name for name in self._columns.names if name not in COLUMNS]):
            raise InvalidInput(
                f"a service has no column {others[0]} of a topic", f"use some of {', '.join(COLUMNS)}, or leave out url"
            )

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the scan by the filters that it understands; return all, since the scan is coarser than they are."""
        for each in filters:
            self._range = narrowed(self._range, each)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the pieces of the topic as it is now. Raises NotFound, DataLoss, SegmentNotLocal, Unavailable."""
        options = self._options
        if options.service is None:
            return _partitions(options, self._range)
        pieces = plan_service_scan(
            options.service, options.topic, self._range, options.partitions, read_compacted=options.read_compacted
        )
        return [_ServicePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece."""
        return _read(partition, self._columns)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises InvalidInput for a column that topics do not have."""
        self._options, self._columns = options, _Columns.of(schema)
        self._last_end = END

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the topic's present end, in as many batches as the limit makes."""
        with self._opened() as topic:
            self._last_end = topic.snapshot_reader().end

    def initialOffset(self) -> dict[str, Any]:
        """Return the position of a new query."""
        start = self._options.starting_offset
        with self._opened() as topic:
            first = topic.snapshot_reader().end if start == "latest" else 0
            return StreamPosition(int(start) if start.isdecimal() else first, topic.record.uid).document()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch: the topic's end, or as many offsets further as the limit allows.

        Offsets of messages that compaction has removed count, too. Raises Conflict if the topic is another one, or
        ends before the start.
        """
        begin = StreamPosition.of(start)
        with self._opened() as topic:
            end = min(begin.check(topic), self._last_end)
            if isinstance(limit, ReadMaxRows):
                end = min(end, begin.offset + limit.max_rows)
            ledger_id = None
            if self._options.read_compacted and end > begin.offset:
                ledger_id = topic.compacted_ledger_of_scan(
                    begin.offset, resumes=begin.resumes, known_ledger_id=begin.ledger_id
                )
            if end <= begin.offset:
                return start
            return StreamPosition(end, topic.record.uid, ledger_id, resumes=True).document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that maxMessagesPerTrigger sets."""
        limit = self._options.max_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the pieces of a batch. Raises OffsetOutOfRange, StateMayBeStale where messages of it are gone."""
        begin, stop = StreamPosition.of(start), StreamPosition.of(end)
        return [] if begin.offset >= stop.offset else _partitions(self._options, ScanRange(0, stop.offset), begin)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece."""
        return _read(partition, self._columns)

    @contextmanager
    def _opened(self) -> Iterator[Topic]:
        with open_for_reading(self._options.load_settings()) as environment:
            yield _open(environment, self._options)


@dataclass(frozen=True)
class StreamPosition:
    """The position of a stream, as its checkpoint has it.

    `offset`: of the next message. `topic_uid`: of the incarnation of the topic. `ledger_id`: the compacted ledger from
    which the batch before was read; None: raw. `resumes`: there was a batch before.
    """

    offset: int
    topic_uid: str
    ledger_id: int | None = None
    resumes: bool = False

    def document(self) -> dict[str, Any]:
        """Return the position as Spark stores it."""
        ledger_id = -1 if self.ledger_id is None else self.ledger_id
        return {"offset": self.offset, "topic": self.topic_uid, "ledger": ledger_id, "resumes": self.resumes}

    @staticmethod
    def of(document: Mapping[str, Any]) -> StreamPosition:
        """Return the position that Spark has stored."""
        ledger_id = document["ledger"]
        return StreamPosition(
            document["offset"], document["topic"], None if ledger_id < 0 else ledger_id, document["resumes"]
        )

    def check(self, topic: Topic) -> int:
        """Return the end of the topic. Raise Conflict if it was created again, or ends before the position."""
        advice = "begin with a new checkpoint, and an empty state of what is made of the stream"
        if topic.record.uid != self.topic_uid:
            raise Conflict(f"{topic.name} was deleted and created again since the stream began", advice)
        end = topic.snapshot_reader().end
        if self.resumes and end < self.offset:
            raise Conflict(
                f"{topic.name} ends at offset {end}, before the position {self.offset} of the stream: it was restored "
                "from an older backup",
                advice,
            )
        return end


def check_written_columns(schema: StructType) -> None:
    """Raise InvalidInput, with the columns that a message has, unless rows of the schema are messages."""
    accepted = "; ".join(f"{name} {' or '.join(types)}" for name, types in WRITTEN_TYPES.items())
    advice = f"select and cast the columns of messages: {accepted}"
    for field in schema.fields:
        if field.name not in WRITTEN_TYPES:
            raise InvalidInput(f"messages have no column {field.name} that can be written", advice)
        kind = field.dataType.simpleString().upper().replace(",", ", ")
        if kind not in WRITTEN_TYPES[field.name]:
            raise InvalidInput(f"the column {field.name} is {kind}", advice)
    if "payload" not in schema.fieldNames():
        raise InvalidInput("the rows have no column payload", advice)


@dataclass(frozen=True)
class TaskLedgers(WriterCommitMessage):
    """The ledgers that a task has written."""

    task_number: int
    ledgers: tuple[LedgerRecord, ...]


class TopicWriter(DataSourceArrowWriter):
    """The writer of one job. The driver has it, and each task a copy."""

    def __init__(self, options: SourceOptions, write: TopicWrite) -> None:
        self._options, self._write = options, write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskLedgers:
        """Write the rows of a partition as ledgers. Raises InvalidRecord, Unavailable, Misconfigured."""
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        return TaskLedgers(number, self._write.write_task(message_tables(iterator), number))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the ledgers of all partitions, in the order of the partitions. Raises LeaseHeld, Conflict, Fenced."""
        written = [message for message in messages if isinstance(message, TaskLedgers)]
        if len(written) < len(messages):
            raise Unavailable("Spark has no result of a task", "nothing was appended; write again")
        in_order = sorted(written, key=lambda each: each.task_number)
        self._write.commit(self._options.load_settings(), [ledger for each in in_order for ledger in each.ledgers])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have written."""
        self._write.abort(self._options.load_settings())


def narrowed(scan_range: ScanRange, condition: Filter) -> ScanRange:
    """Return the range of a scan that must also hold a condition; the range as it is, if it says nothing about one."""
    if isinstance(condition, In) and condition.attribute == ("key",):
        keys = frozenset(bytes(value) for value in condition.value if value is not None)
        return replace(scan_range, keys=keys if scan_range.keys is None else scan_range.keys & keys)
    if not isinstance(condition, _COMPARISONS):
        return scan_range
    (name, *nested), value = condition.attribute, condition.value
    if nested or value is None:
        return scan_range
    is_equal = isinstance(condition, EqualTo | EqualNullSafe)
    if name == "key":
        return narrowed(scan_range, In(("key",), (value,))) if is_equal else scan_range
    if name not in ("offset", "publish_time"):
        return scan_range
    number = int(value) if name == "offset" else _milliseconds(value)
    first = number + isinstance(condition, GreaterThan) if name == "offset" else number
    first = first if is_equal or isinstance(condition, GreaterThan | GreaterThanOrEqual) else 0
    # A time is compared in whole milliseconds, and Spark has microseconds.
    end = END if isinstance(condition, GreaterThan | GreaterThanOrEqual) else number + 1
    if name == "offset":
        end = end - isinstance(condition, LessThan)
        return replace(
            scan_range,
            first_offset=max(scan_range.first_offset, first),
            end_offset=min(scan_range.end_offset, end),
        )
    return replace(scan_range, first_time=max(scan_range.first_time, first), end_time=min(scan_range.end_time, end))


def _milliseconds(value: datetime) -> int:
    """Return a time as Spark gives it: with a zone, or of this machine's zone without one."""
    return (value.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
