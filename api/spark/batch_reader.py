"""The reader of a batch query: it narrows the scan by the filters of the query, and plans one task a piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from api.components import open_for_reading
from api.spark.brief_errors import brief_errors
from api.spark.partitions import partitions_of, read_partition, service_partitions
from api.spark.read_columns import ReadColumns
from api.spark.service_scan import plan_service_scan
from api.spark.source_options import SourceOptions
from storage.errors import InvalidInput
from storage.reading.scan import END, ScanRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@brief_errors
class TopicReader(DataSourceReader):
    """The reader of a batch query of a topic: it plans the pieces of the scan and reads their rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises InvalidInput for a column that topics do not have."""
        self._options, self._columns, self._range = options, ReadColumns.of(schema), ScanRange()
        if options.service is not None:
            from compactor.client.messages import COLUMNS

            if others := [name for name in self._columns.names if name not in COLUMNS]:
                raise InvalidInput(
                    f"a service has no column {others[0]} of a topic",
                    f"use some of {', '.join(COLUMNS)}, or leave out url",
                )

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the scan by filters on offset, publish time and key. Return all filters: Spark applies them again."""
        for each in filters:
            self._range = narrow_scan_range(self._range, each)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the scan of the topic as it is now: return its pieces, each of which one task reads.

        Raises NotFound, DataLoss, SegmentNotLocal, Unavailable.
        """
        options = self._options
        if options.service is None:
            from storage.topic import Topic

            settings = options.load_settings()
            with open_for_reading(settings) as environment:
                topic = Topic(environment, environment.metadata.topics.get(options.topic))
                pieces = topic.scan(self._range, read_compacted=options.read_compacted)
            return partitions_of(pieces, settings)
        return service_partitions(
            plan_service_scan(
                options.service, options.topic, self._range, options.partitions, read_compacted=options.read_compacted
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece of the scan. Called in a task."""
        return read_partition(partition, self._columns)


def narrow_scan_range(scan_range: ScanRange, condition: Filter) -> ScanRange:
    """Return a scan range narrowed by a filter of Spark; unchanged, if the filter cannot narrow it."""
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
        return narrow_scan_range(scan_range, In(("key",), (value,))) if is_equal else scan_range
    if name not in ("offset", "publish_time"):
        return scan_range
    number = int(value) if name == "offset" else _epoch_milliseconds(value)
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


def _epoch_milliseconds(value: datetime) -> int:
    """Return a time as milliseconds since the Unix epoch. A time without a zone is of this machine's zone."""
    return (value.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
