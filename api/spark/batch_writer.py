"""The writer of a data frame: an append by tasks (storage/log/task_append.py), which the driver begins and commits.

The driver has nothing per message; tasks write sealed ledgers to the object store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from api.spark.brief_errors import brief_errors
from api.spark.message_columns import WRITTEN_TYPES, message_tables
from api.spark.source_options import SourceOptions
from api.spark.topic_write import TopicWrite
from storage.errors import InvalidInput, Unavailable
from storage.model import LedgerRecord


def check_written_columns(schema: StructType) -> None:
    """Raise InvalidInput, which lists the allowed columns, unless rows of the schema can be written as messages."""
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
    """The result of a task of a write: its number, and the ledgers that it has written."""

    task_number: int
    ledgers: tuple[LedgerRecord, ...]


@brief_errors
class TopicWriter(DataSourceArrowWriter):
    """The writer of one Spark job to a topic. The driver has it, and each task a copy."""

    def __init__(self, options: SourceOptions, write: TopicWrite) -> None:
        self._options, self._write = options, write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskLedgers:
        """Write the rows of a partition as ledgers. Raises InvalidRecord, Unavailable, Misconfigured."""
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        return TaskLedgers(number, self._write.write_task(message_tables(iterator), number))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the ledgers of all tasks to the topic, in the order of the partitions.

        Raises LeaseHeld, Conflict, Fenced; Unavailable if the result of a task is missing.
        """
        written = [message for message in messages if isinstance(message, TaskLedgers)]
        if len(written) < len(messages):
            raise Unavailable("Spark has no result of a task", "nothing was appended; write again")
        in_order = sorted(written, key=lambda each: each.task_number)
        self._write.commit(self._options.load_settings(), [ledger for each in in_order for ledger in each.ledgers])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the ledgers that the tasks have written."""
        self._write.abort(self._options.load_settings())
