"""The tasks of a read: pieces of a scan as partitions of Spark, and the rows of a partition.

A task needs the object store, and for a segment the log directory, or a service (service_scan.py); it needs no
database.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from api.settings.settings import Settings
from api.spark.read_columns import ReadColumns
from storage.log.directory import LogDirectory
from storage.log.segment_tables import SegmentTableReader
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store
from storage.reading.scan import ScanPiece

if TYPE_CHECKING:
    from api.spark.service_scan import ServicePiece


class _Partition(InputPartition):
    """A piece of a scan that a task reads itself, with the locations of the object store and the log directory."""

    def __init__(self, piece: ScanPiece, store: StoreLocation, log_directory: Path) -> None:
        super().__init__(None)
        self.piece, self.store, self.log_directory = piece, store, log_directory


class _ServicePartition(InputPartition):
    """A piece of a scan that a task reads through a service."""

    def __init__(self, piece: ServicePiece) -> None:
        super().__init__(None)
        self.piece = piece


def partitions_of(pieces: Iterable[ScanPiece], settings: Settings) -> list[InputPartition]:
    """Return a Spark partition for each piece of a scan that tasks read from the object store and the log directory."""
    store = StoreLocation(settings.store_url, settings.s3_endpoint or None)
    return [_Partition(piece, store, settings.log_directory) for piece in pieces]


def service_partitions(pieces: Iterable[ServicePiece]) -> list[InputPartition]:
    """Return a Spark partition for each piece of a scan that tasks read through a service."""
    return [_ServicePartition(piece) for piece in pieces]


def read_partition(partition: InputPartition, columns: ReadColumns) -> Iterator[pa.RecordBatch]:
    """Read the rows of a Spark partition in a task, and yield them in batches. Raises the errors of the piece."""
    if isinstance(partition, _ServicePartition):
        for table in partition.piece.tables(columns.names):
            yield from columns.batches(table)
        return
    assert isinstance(partition, _Partition)
    with closing(open_store(partition.store)) as store:
        _exempt_modules_from_collection()
        unsealed = SegmentTableReader(LogDirectory(partition.log_directory))
        for table in partition.piece.tables(store, unsealed, columns.names):
            yield from columns.batches(table)


@cache
def _exempt_modules_from_collection() -> None:
    """Exempt the present objects from garbage collection, which are mostly those of modules. Once in a process.

    PySpark's daemon collects after each task, before the worker takes the next one: 60,000 objects took 30 ms. The
    first task's store is exempt, too: it stays until the process ends.
    """
    gc.freeze()
