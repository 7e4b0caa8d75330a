"""The part of an open topic that its subscriptions use."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from api.broker.serving.cursor_writer import CursorWriter
from api.broker.serving.page_budget import PageBudget
from api.broker.threads import Workers
from storage.clock import Clock
from storage.entries.rebuild import DeliverableEntry
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.topic import Topic


class NewestEntries(Protocol):
    """The newest entries of a topic, in memory."""

    def read(self, offset: int) -> Sequence[DeliverableEntry] | None:
        """Return some entries from an offset on, in order; empty: the offset is the end of the topic. None: the entries
        are not in memory."""


class ServedTopic(Protocol):
    """One open topic, as its subscriptions use it. `max_unacked_messages`: of one consumer; `max_consumers`: of one
    subscription; 0: any number."""

    storage: Topic
    metadata: MetadataStore
    clock: Clock
    cursor_writer: CursorWriter
    page_budget: PageBudget
    max_unacked_messages: int
    max_consumers: int
    stale_reader_count: int

    @property
    def record(self) -> TopicRecord: ...

    @property
    def name(self) -> TopicName: ...

    @property
    def tail(self) -> NewestEntries: ...

    @property
    def is_lost(self) -> bool:
        """True if another process may write the topic; before that every appended entry reaches the tail."""

    @property
    def store(self) -> Workers:
        """Threads that read the topic's messages, a few at a time for each topic."""

    @property
    def database(self) -> Workers:
        """Threads that call the database."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; its error is logged."""
