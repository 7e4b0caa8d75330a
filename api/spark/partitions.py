"""The tasks of a read: pieces of a scan as partitions of Spark, and the rows of one.

A task needs the object store, and for a segment the log directory, or a service (service_scan.py); it needs no
database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from api.settings.settings import Settings
from api.spark.read_columns import ReadColumns
from api.spark.service_scan import ServicePiece
from storage.log.directory import LogDirectory
from storage.log.segment_tables import SegmentTableReader
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store
from storage.reading.scan import ScanPiece


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


def partitions_of(pieces: Iterable[ScanPiece], settings: Settings) -> list[InputPartition]:
    """Return the partitions of a scan of database and store."""
    store = StoreLocation(settings.store_url, settings.s3_endpoint or None)
    return [_Partition(piece, store, settings.log_directory) for piece in pieces]


def service_partitions(pieces: Iterable[ServicePiece]) -> list[InputPartition]:
    """Return the partitions of a scan by a service."""
    return [_ServicePartition(piece) for piece in pieces]


def read_partition(partition: InputPartition, columns: ReadColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition. Raises the errors of its piece."""
    if isinstance(partition, _ServicePartition):
        for table in partition.piece.tables(columns.names):
            yield from columns.batches(table)
        return
    assert isinstance(partition, _Partition)
    with closing(open_store(partition.store)) as store:
        unsealed = SegmentTableReader(LogDirectory(partition.log_directory))
        for table in partition.piece.tables(store, unsealed, columns.names):
            yield from columns.batches(table)
