"""A write of one Spark job to a topic: begun and ended by the driver, with a part in each task. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from api.broker import names
from api.components import open_for_changing, open_for_writing
from api.settings.settings import Settings
from compactor.maintenance.backlog_limits import BacklogLimits
from storage.log import task_append
from storage.log.task_append import TaskAppend
from storage.model import LedgerRecord, TopicName
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store


@dataclass(frozen=True)
class TopicWrite:
    """A write as its tasks get it. `is_new`: the write has created the topic, and deletes it again if it fails."""

    append: TaskAppend
    store: StoreLocation
    is_new: bool

    @staticmethod
    def begin(settings: Settings, name: TopicName) -> TopicWrite:
        """Begin a write; a missing topic is created. Raises LeaseHeld for a topic that another writer has, Conflict for
        a partitioned topic, and the errors of a topic whose backlog exceeds a quota."""
        with open_for_writing(settings) as environment:
            existing = environment.metadata.topics.by_names([name]).get(name)
            topic = existing or names.ensure_with_namespace(environment, name)
            try:
                BacklogLimits(environment).check(topic)
                append = task_append.begin(environment, topic)
            except BaseException:
                if existing is None:
                    environment.metadata.tenancy.delete_unused_topic(topic.id)
                raise
        return TopicWrite(append, StoreLocation(settings.store_url, settings.s3_endpoint or None), existing is None)

    def write_task(self, tables: Iterable[pa.Table], task_number: int) -> tuple[LedgerRecord, ...]:
        """Write the messages of a task, and return their ledgers. It needs the object store alone."""
        with closing(open_store(self.store)) as store:
            return task_append.write_ledgers(store, self.append, tables, task_number)

    def commit(self, settings: Settings, ledgers: Sequence[LedgerRecord]) -> None:
        """Append the ledgers of all tasks. A topic that was created for no message is deleted. Raises as
        task_append.commit."""
        with open_for_changing(settings) as environment:
            task_append.commit(environment, self.append, ledgers)
            if self.is_new and not ledgers:
                environment.metadata.tenancy.delete_unused_topic(self.append.topic.id)

    def abort(self, settings: Settings) -> None:
        """Delete what the tasks have written, and the topic if this write has created it and it is not used."""
        with open_for_changing(settings) as environment:
            task_append.abort(environment, self.append)
            if self.is_new:
                environment.metadata.tenancy.delete_unused_topic(self.append.topic.id)
