"""A write of one Spark job to a topic: the driver begins and ends it, and each task has a part. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from api.broker import names
from api.components import open_existing_for_writing, open_for_writing
from api.settings.settings import Settings
from compactor.maintenance.backlog_limits import BacklogLimits
from storage.log import task_append
from storage.log.task_append import TaskAppend
from storage.model import LedgerRecord, TopicName
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store


@dataclass(frozen=True)
class TopicWrite:
    """An append of one Spark job to a topic, which is sent to the tasks. `is_new`: the write has created the topic, and
    deletes it if it fails."""

    append: TaskAppend
    store: StoreLocation
    is_new: bool

    @staticmethod
    def begin(settings: Settings, name: TopicName) -> TopicWrite:
        """Begin an append to a topic, which is created if it is missing.

        Raises LeaseHeld if another process writes the topic, Conflict for a partitioned topic, and the errors of a
        topic whose backlog exceeds a quota.
        """
        with open_for_writing(settings) as environment:
            existing = environment.metadata.topics.by_names([name]).get(name)
            topic = existing or names.ensure_with_namespace(environment, name)
            try:
                BacklogLimits(environment).check_accepts_messages(topic)
                append = task_append.begin(environment, topic)
            except BaseException:
                if existing is None:
                    environment.metadata.tenancy.delete_unused_topic(topic.id)
                raise
        return TopicWrite(append, StoreLocation(settings.store_url, settings.s3_endpoint or None), existing is None)

    def write_task(self, tables: Iterable[pa.Table], task_number: int) -> tuple[LedgerRecord, ...]:
        """Write the messages of one task as sealed ledgers to the object store, and return the ledgers."""
        with closing(open_store(self.store)) as store:
            return task_append.write_ledgers(store, self.append, tables, task_number)

    def commit(self, settings: Settings, ledgers: Sequence[LedgerRecord]) -> None:
        """Append the ledgers of all tasks to the topic. Without ledgers, delete a topic that this write created.

        Raises the errors of `task_append.commit`.
        """
        with open_existing_for_writing(settings) as environment:
            task_append.commit(environment, self.append, ledgers)
            if self.is_new and not ledgers:
                environment.metadata.tenancy.delete_unused_topic(self.append.topic.id)

    def abort(self, settings: Settings) -> None:
        """Delete the ledgers that the tasks have written, and the topic if this write created it and it is unused."""
        with open_existing_for_writing(settings) as environment:
            task_append.abort(environment, self.append)
            if self.is_new:
                environment.metadata.tenancy.delete_unused_topic(self.append.topic.id)
