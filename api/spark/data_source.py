"""A data source of Spark for topics: `spark.read`, `spark.readStream` and `df.write` with the format `compactor`.

The driver plans the pieces of a scan from the database (storage/reading/scan.py): a part of the compacted ledger, a
sealed ledger or a segment each, one task a piece. Tasks read the object store, and segments on the machine that has
their log directory; they need no database. With the option `url` driver and tasks ask a service instead
(service_scan.py). Rows travel as Arrow batches. Filters on offset, publish time and key leave out parts, ledgers and
row groups; Spark filters the rows again.

Every Python worker of Spark imports this module, and pays for its imports in memory, in the time of its first task, and
in the garbage collection after each. So methods import what only a driver or a write needs.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from api.spark.batch_reader import TopicReader
from api.spark.brief_errors import brief_errors
from api.spark.read_columns import DEFAULT_COLUMNS, SPARK_TYPES
from api.spark.source_options import SourceOptions
from storage.errors import InvalidInput

NAME = "compactor"


@brief_errors
class CompactorDataSource(DataSource):
    """The data source `compactor` of Spark: topics as tables. `register` makes it known to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format: `compactor`."""
        return NAME

    def schema(self) -> str:
        """Return the default columns of a read with their Spark types, as DDL text."""
        return ", ".join(f"`{name}` {SPARK_TYPES[name]}" for name in DEFAULT_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises InvalidInput."""
        return TopicReader(SourceOptions.parse_for_read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. Raises InvalidInput."""
        from api.spark.stream_reader import TopicStreamReader

        options = SourceOptions.parse_for_read(self.options)
        if options.service is not None:
            raise InvalidInput("a stream does not read by a service", "leave out url, and name database and store")
        return TopicStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a write and return its writer. Raises InvalidInput, LeaseHeld."""
        from api.spark.batch_writer import TopicWriter, check_written_columns
        from api.spark.topic_write import TopicWrite

        if overwrite:
            raise InvalidInput(
                "a topic cannot be overwritten: it is a log, and its readers keep their positions in it",
                'append: .mode("append"); a newer message of a key supersedes the older ones, and one without payload '
                "deletes the key",
            )
        options = SourceOptions.parse_for_write(self.options)
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
