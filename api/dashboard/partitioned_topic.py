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
    """A partitioned topic with its partitions, in their order."""

    name: TopicName
    rows: Sequence[TopicRow]

    @property
    def is_busy(self) -> bool:
        """Return whether a compaction of any partition is requested or under way."""
        return any(row.is_busy for row in self.rows)

    @property
    def messages(self) -> int:
        """Return the number of messages in all partitions, sealed or not."""
        return sum(row.summary.all_messages for row in self.rows)

    @property
    def logical_bytes(self) -> int:
        """Return the number of bytes that producers sent, sealed or not."""
        return sum(row.summary.all_bytes for row in self.rows)


def partitioned_view(broker: Broker, name: TopicName) -> PartitionedView | None:
    """Return the view of a partitioned topic; None: it is not partitioned."""
    metadata = broker.environment.metadata
    whole = metadata.partitions.find(name)
    if whole is None:
        return None
    partitions = names.partition_names(whole)
    by_name = {row.summary.name: row for row in rows_of(metadata, broker.environment.log, set(partitions).__contains__)}
    return PartitionedView(name, [by_name[item] for item in partitions if item in by_name])
