"""The columns of a topic in Spark: their names and types, and the conversion of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from storage.errors import InvalidInput

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
_MILLISECONDS = pa.timestamp("ms", "UTC")


@dataclass(frozen=True)
class ReadColumns:
    """The columns that a query of Spark reads, in its order, as an Arrow schema."""

    arrow: pa.Schema

    @staticmethod
    def of(schema: StructType) -> ReadColumns:
        """Return the columns of a Spark schema. Raises InvalidInput for a column or type that topics do not have."""
        for field in schema.fields:
            if field.name not in SPARK_TYPES:
                raise InvalidInput(f"topics have no column {field.name}", f"use some of {', '.join(SPARK_TYPES)}")
            own = SPARK_TYPES[field.name].lower().replace(" ", "")
            if field.dataType.simpleString() != own:
                raise InvalidInput(
                    f"the column {field.name} is declared as {field.dataType.simpleString()}, and topics have {own}",
                    "declare it so, and cast it in the query",
                )
        return ReadColumns(to_arrow_schema(schema, timezone="UTC"))

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self.arrow.names)

    def batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Convert a table of a topic's rows to batches of the types that Spark expects."""
        for name in _TIMES:
            if name in table.schema.names:
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, table.column(name).cast(_MILLISECONDS))
        yield from table.cast(self.arrow).to_batches()
