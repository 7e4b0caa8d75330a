"""The reader of a streaming query, and its position.

The position, which a checkpoint keeps, is the offset of the next message in one incarnation of the topic. A batch is
the messages between two offsets. With `readCompacted` these are the compacted ones at or below the horizon: a message
that a compaction has removed since was superseded by one with a larger offset, which is in a later batch. A compacted
ledger that may lack what superseded a message of an earlier batch is not read (R7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from api.components import open_for_reading
from api.spark.brief_errors import brief_errors
from api.spark.partitions import partitions_of, read_partition
from api.spark.read_columns import ReadColumns
from api.spark.source_options import SourceOptions
from storage.errors import Conflict
from storage.reading.scan import END, ScanRange

if TYPE_CHECKING:
    from storage.topic import Topic


@brief_errors
class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query of a topic: it plans the batches and reads their rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises InvalidInput for a column that topics do not have."""
        self._options, self._columns = options, ReadColumns.of(schema)
        self._last_end = END

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the topic's present end, in as many batches as the limit makes."""
        with self._open_topic() as topic:
            self._last_end = topic.snapshot_reader().end

    def initialOffset(self) -> dict[str, Any]:
        """Return the position at which a new query starts, as a document for the checkpoint."""
        start = self._options.starting_offset
        with self._open_topic() as topic:
            first = topic.snapshot_reader().end if start == "latest" else 0
            return StreamPosition(int(start) if start.isdecimal() else first, topic.record.uid).to_document()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch: the topic's end, or as many offsets further as the limit allows.

        Offsets of messages that compaction has removed count, too. Raises Conflict if the topic is another one, or
        ends before the start.
        """
        begin = StreamPosition.from_document(start)
        with self._open_topic() as topic:
            end = min(begin.check_and_return_end(topic), self._last_end)
            if isinstance(limit, ReadMaxRows):
                end = min(end, begin.offset + limit.max_rows)
            ledger_id = None
            if self._options.read_compacted and end > begin.offset:
                ledger_id = topic.compacted_ledger_of_scan(
                    begin.offset, resumes=begin.resumes, known_ledger_id=begin.ledger_id
                )
            if end <= begin.offset:
                return start
            return StreamPosition(end, topic.record.uid, ledger_id, resumes=True).to_document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that maxMessagesPerTrigger sets."""
        limit = self._options.max_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the pieces of a batch between two positions, each of which one task reads.

        Raises OffsetOutOfRange or StateMayBeStale if messages of the batch are removed.
        """
        begin, stop = StreamPosition.from_document(start), StreamPosition.from_document(end)
        if begin.offset >= stop.offset:
            return []
        with self._open_topic() as topic:
            begin.check_and_return_end(topic)
            pieces = topic.scan(
                ScanRange(begin.offset, stop.offset),
                read_compacted=self._options.read_compacted,
                resumes=begin.resumes,
                known_ledger_id=begin.ledger_id,
            )
        return partitions_of(pieces, self._options.load_settings())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece of a batch. Called in a task."""
        return read_partition(partition, self._columns)

    @contextmanager
    def _open_topic(self) -> Iterator[Topic]:
        from storage.topic import Topic

        with open_for_reading(self._options.load_settings()) as environment:
            yield Topic(environment, environment.metadata.topics.get(self._options.topic))


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

    def to_document(self) -> dict[str, Any]:
        """Return the position as the JSON document that Spark stores in its checkpoint."""
        ledger_id = -1 if self.ledger_id is None else self.ledger_id
        return {"offset": self.offset, "topic": self.topic_uid, "ledger": ledger_id, "resumes": self.resumes}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> StreamPosition:
        """Return the position of a JSON document from a checkpoint of Spark."""
        ledger_id = document["ledger"]
        return StreamPosition(
            document["offset"], document["topic"], None if ledger_id < 0 else ledger_id, document["resumes"]
        )

    def check_and_return_end(self, topic: Topic) -> int:
        """Return the end offset of the topic. Raise Conflict if the topic was created again since this position, or
        ends before it."""
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
