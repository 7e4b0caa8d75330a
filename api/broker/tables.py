"""The Iceberg tables of topics: a table is what the topic's serving compacted ledger names (storage/table)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.broker import names
from storage.errors import NO_ERROR, ErrorText, NotFound

if TYPE_CHECKING:
    from storage.environment import Environment
    from storage.metadata.records import TopicRecord
    from storage.model import TopicName
    from storage.table.metadata import TableMetadata


class MissingTable(NotFound):
    """A topic has no Iceberg table. `topic`: its name."""

    def __init__(self, topic: TopicName, reason: str, remedy: str) -> None:
        super().__init__(f"the topic {topic} has no Iceberg table: {reason}", remedy)
        self.topic = topic


@dataclass(frozen=True)
class IcebergTable:
    """The Iceberg table of a topic. `uri`: of the metadata file. `ledger_id`: of the current compacted ledger.

    `error`: the reason why the table shows an earlier compacted ledger; empty: the table is current.
    """

    topic: TopicName
    uri: str
    metadata: TableMetadata
    ledger_id: int
    error: ErrorText = NO_ERROR

    @property
    def is_current(self) -> bool:
        """Return whether the table shows the current compacted ledger of the topic."""
        return self.metadata.snapshot_id == self.ledger_id


def iceberg_table_of(environment: Environment, name: TopicName) -> IcebergTable:
    """Read the metadata of the Iceberg table of a topic or partition.

    Raise MissingTable, TopicNotFound, PartitionedTopicRefused, ObjectMissing, ObjectDamaged.
    """
    from storage.table.table_writer import object_uri, read_table_metadata

    record = names.unpartitioned_topic(environment, name)
    compacted = environment.metadata.topic_snapshot(record.id).compacted
    # Not the last run, which may have failed after the one that published.
    run = None if compacted is None else environment.metadata.runs.run_that_published(record.id, compacted.ledger_id)
    error = NO_ERROR if run is None else run.iceberg_table_error
    if compacted is None or compacted.table_metadata is None:
        raise _missing_table(environment, record, is_compacted=compacted is not None, error=error)
    stored = compacted.table_metadata
    metadata = read_table_metadata(environment.store, stored)
    uri = object_uri(environment.store, stored.name)
    return IcebergTable(record.name, uri, metadata, compacted.ledger_id, error)


def _missing_table(
    environment: Environment, record: TopicRecord, *, is_compacted: bool, error: ErrorText
) -> MissingTable:
    """Return the error for a topic without an Iceberg table, with the reason and the remedy."""
    if not environment.metadata.policies.effective(record).table_enabled:
        return MissingTable(record.name, "its policy table.enabled is false", "set it to true, then compact the topic")
    if error:
        return MissingTable(record.name, f"the last compaction could not write it ({error.summary})", "see its error")
    reason = "no compaction has ended since table.enabled was set" if is_compacted else "it was never compacted"
    return MissingTable(record.name, reason, "compact the topic")
