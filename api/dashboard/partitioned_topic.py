"""A partitioned topic as its page shows it: its partitions together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.broker import names
from api.broker.broker import Broker
from api.dashboard.topics_table import TopicRow, rows_of
from storage.model import TopicName


@dataclass(frozen=True)
class PartitionedView:
    """Its partitions, in their order."""

    name: TopicName
    rows: Sequence[TopicRow]

    @property
    def is_busy(self) -> bool:
        """Whether a compaction of any is requested or under way."""
        return any(row.is_busy for row in self.rows)

    @property
    def messages(self) -> int:
        """The messages of all partitions, sealed or not."""
        return sum(row.summary.all_messages for row in self.rows)

    @property
    def logical_bytes(self) -> int:
        """The bytes that producers sent, sealed or not."""
        return sum(row.summary.all_bytes for row in self.rows)


def partitioned_view(broker: Broker, name: TopicName) -> PartitionedView | None:
    """None: it is not partitioned."""
    metadata = broker.environment.metadata
    whole = metadata.partitions.find(name)
    if whole is None:
        return None
    partitions = names.partition_names(whole)
    by_name = {row.summary.name: row for row in rows_of(metadata, broker.environment.log, set(partitions).__contains__)}
    return PartitionedView(name, [by_name[item] for item in partitions if item in by_name])
