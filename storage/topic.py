"""A topic: append, read raw or compacted, know its last message.

The place that joins metadata, store and clock for one topic. Writing goes through the writer lease
(`storage/bulk_append.py`), reading raw through one snapshot (`storage/reader.py`), reading compacted through a pinned
one (`storage/pinned_read.py`), reading one key through the key indexes (`storage/point_read.py`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator

import pyarrow as pa

from storage.bulk_append import DEFAULT_LEDGER_BYTES, DEFAULT_WAIT_MS, BulkAppend
from storage.clock import Clock
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.metadata.records import TopicRecord, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, Message, MessageId, TopicName
from storage.objects.interface import ObjectStore
from storage.pinned_read import PinnedRead
from storage.point_read import point_read
from storage.reader import Limits, SnapshotReader, messages


def holder_name() -> str:
    """A name for this process at one piece of work: unique, and tells an operator where to look."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Topic:
    """One topic. Cheap to make; holds no connection of its own."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        clock: Clock,
        record: TopicRecord,
        hasher: KeyHasher | None = None,
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self.record = record
        self._hasher = hasher or Xxh3KeyHasher(record.hash_seed)

    @classmethod
    def open(cls, metadata: MetadataStore, store: ObjectStore, clock: Clock, name: TopicName) -> Topic:
        """The topic of that name. Raises TopicNotFound."""
        return cls(metadata, store, clock, metadata.topic(name))

    @classmethod
    def create(cls, metadata: MetadataStore, store: ObjectStore, clock: Clock, name: TopicName) -> Topic:
        """The topic of that name, made if it does not exist."""
        return cls(metadata, store, clock, metadata.create_topic(name))

    @property
    def name(self) -> TopicName:
        return self.record.name

    def bulk_append(
        self, *, ledger_bytes: int = DEFAULT_LEDGER_BYTES, workers: int = 2, wait_ms: int = DEFAULT_WAIT_MS
    ) -> BulkAppend:
        """A writer of sealed ledgers; each of its `append` calls is all or nothing."""
        return BulkAppend(
            self._metadata,
            self._store,
            self._clock,
            self.record,
            self._hasher,
            holder_name(),
            ledger_bytes,
            workers,
            wait_ms,
        )

    def snapshot(self) -> TopicSnapshot:
        """The topic as it is now, in one transaction."""
        return self._metadata.snapshot(self.record.id)

    def read(
        self,
        start: MessageId = EARLIEST,
        read_compacted: bool = False,
        max_messages: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Messages at or after `start`, as record batches of `storage.ledger.rows.SCHEMA`.

        `LATEST` gives none: only messages after this call would count. Limits: R10. With the flag the read begins, and
        pins its generation, when the first batch is asked for; the pin is given back when the compacted part is over
        or the iterator is closed. Raises DataLoss (R8), StateMayBeStale (R7).
        """
        limits = Limits(max_messages, max_bytes)
        if read_compacted:
            read = PinnedRead(self._metadata, self._store, self._clock, self.record.id, holder_name(), start)
            return read.batches(limits)
        return SnapshotReader(self._store, self.snapshot()).batches(start, read_compacted, limits)

    def get(self, key: bytes) -> Message | None:
        """The newest message of one key, compacted part and tail together (T4).

        None: the key has no value, because it never had, it was deleted, or compaction has removed it; a value that
        has outlived its time to live but is not removed yet is one. Raises DataLoss (R8).
        """
        return point_read(self._store, self.snapshot, self._hasher, key, self._clock.now_ms())

    def messages(
        self, start: MessageId = EARLIEST, read_compacted: bool = False, max_messages: int | None = None
    ) -> Iterator[Message]:
        """As `read`, a message at a time."""
        return messages(self.read(start, read_compacted, max_messages), self.name.partition)

    def last_message_id(self, read_compacted: bool = False) -> MessageId:
        """The id of the last message that such a reader gets; EARLIEST (-1:-1) if none (R6)."""
        return SnapshotReader(self._store, self.snapshot()).last_message_id(read_compacted)
