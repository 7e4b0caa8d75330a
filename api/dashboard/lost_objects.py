"""Loss of a topic's ledgers, as its pages know it without a run: from the manifest of the compacted ledger, which they
read, and from the lost objects that reads of this process have met.

A loss that was met is checked at each page of the topic: it is over once the store has the object in full length, or
the topic does not need it any more: it has another compacted ledger, or the raw ledger is trimmed. Objects
that are damaged are not kept, because only a read knows whether they were restored.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from typing import cast

from fastapi import Request

from api.dashboard.failure import LostObject, lost_object
from storage.errors import CompactorError, DataLoss, Misconfigured, Unavailable
from storage.ledger.manifest import Manifest
from storage.ledger.names import ObjectKind
from storage.metadata.records import TopicSnapshot
from storage.objects.interface import ObjectStore
from storage.reading.snapshot_reader import SnapshotReader
from storage.topic import Topic

MOST_TOPICS = 1_000
"""The topics of which a loss is kept, counted twice if both raw and compacted have one; those met last."""
_RAW_KINDS = (ObjectKind.LEDGER_ROWS, ObjectKind.LEDGER_INDEX)


class LossCache:
    """A cache of read errors that name a missing object: of each topic the last error of a compacted ledger, and the
    last one of a raw ledger. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: OrderedDict[tuple[int, bool], CompactorError] = OrderedDict()
        """The errors, by topic id and by whether the object is of a raw ledger."""

    def record_losses(self, topic_id: int, errors: Iterable[CompactorError]) -> None:
        """Cache the errors that name a missing object of the topic's compacted ledger, or of a raw ledger; ignore the
        others."""
        for error in errors:
            lost = lost_object(error)
            if lost is None or not lost.is_missing or lost.kind is ObjectKind.MANIFEST:
                continue
            key = (topic_id, lost.ledger_id is None)
            if lost.ledger_id is None and lost.kind not in _RAW_KINDS:
                continue
            with self._lock:
                # The traceback of the error itself would keep the manifest and the rows of that read in memory.
                self._errors[key] = copy.copy(error)
                self._errors.move_to_end(key)
                while len(self._errors) > MOST_TOPICS:
                    self._errors.popitem(last=False)

    def current_compacted_loss(
        self, store: ObjectStore, snapshot: TopicSnapshot, manifest: Manifest | None
    ) -> CompactorError | None:
        """Return the cached error of the compacted ledger if its object is still missing; else drop it, and return
        None.

        `manifest`: that of the compacted ledger; None: it cannot be read, or there is no compacted ledger.
        """
        error, lost = self._cached_loss((snapshot.topic.id, False))
        if error is None or lost is None or manifest is None:
            return None
        is_same = snapshot.compacted is not None and snapshot.compacted.ledger_id == lost.ledger_id
        size = stored_bytes(store, lost) if is_same else None
        if is_same and (size is None or size < needed_bytes(lost.name, snapshot, manifest)):
            return error
        self._drop_if_unchanged((snapshot.topic.id, False), error)
        return None

    def current_raw_loss(self, store: ObjectStore, snapshot: TopicSnapshot) -> CompactorError | None:
        """Return the cached error of a raw ledger if its object is still missing; else drop it, and return None."""
        error, lost = self._cached_loss((snapshot.topic.id, True))
        if error is None or lost is None:
            return None
        needed = needed_bytes(lost.name, snapshot, None)
        size = stored_bytes(store, lost) if needed else None
        if needed and (size is None or size < needed):
            return error
        self._drop_if_unchanged((snapshot.topic.id, True), error)
        return None

    def has_raw_loss(self, topic_id: int) -> bool:
        """Return whether the cache has an error of a raw ledger of the topic; the store is not asked."""
        return self._cached_loss((topic_id, True))[0] is not None

    def topic_ids(self) -> set[int]:
        """Return the ids of the topics with a cached error; the store is not asked, so the object may be there
        again."""
        with self._lock:
            return {topic_id for topic_id, _ in self._errors}

    def _cached_loss(self, key: tuple[int, bool]) -> tuple[CompactorError | None, LostObject | None]:
        with self._lock:
            error = self._errors.get(key)
        return error, lost_object(error)

    def _drop_if_unchanged(self, key: tuple[int, bool], error: CompactorError) -> None:
        """Drop an error from the cache, unless another one has replaced it."""
        with self._lock:
            if self._errors.get(key) is error:
                del self._errors[key]


def known_compacted_read_error(topic: Topic, store: ObjectStore, losses: LossCache) -> CompactorError | None:
    """Return the error with which compacted reads of a topic fail; None: none is known. Reads the manifest and checks
    the store, but reads no messages. Raises TopicNotFound."""

    def read(reader: SnapshotReader) -> CompactorError | None:
        compacted = reader.snapshot.compacted
        manifest = None if compacted is None else reader.manifest(compacted)
        return losses.current_compacted_loss(store, reader.snapshot, manifest)

    try:
        return topic.read_snapshot(read)
    except (DataLoss, Misconfigured, Unavailable) as error:
        return error


def known_raw_read_error(topic: Topic, store: ObjectStore, losses: LossCache) -> CompactorError | None:
    """Return the cached error of a raw read of a topic, if its object is still missing; None: there is none. Waits for
    the store. Raises TopicNotFound."""
    return losses.current_raw_loss(store, topic.snapshot()) if losses.has_raw_loss(topic.record.id) else None


def breaks_raw_reads(error: CompactorError | None) -> bool:
    """Return whether the error names a lost object with messages of a raw ledger."""
    lost = lost_object(error)
    return lost is not None and lost.ledger_id is None and lost.kind is ObjectKind.LEDGER_ROWS


def breaks_compacted_reads(error: CompactorError | None) -> bool:
    """Return whether the error names a lost object that compacted reads need."""
    lost = lost_object(error)
    return lost is not None and lost.breaks_compacted_reads(lost.ledger_id)


def is_topic_unreadable(
    compacted: CompactorError | None, raw: CompactorError | None, errors: Iterable[CompactorError] = ()
) -> bool:
    """Return whether reads of a topic fail. `compacted`: the result of `known_compacted_read_error`; `raw`: that of
    `known_raw_read_error`; `errors`: of the reads of a page."""
    is_manifest = compacted is not None and lost_object(compacted) is None  # it cannot be read for another reason
    known = (compacted, raw, *errors)
    return is_manifest or any(breaks_compacted_reads(error) or breaks_raw_reads(error) for error in known)


def stored_bytes(store: ObjectStore, lost: LostObject) -> int | None:
    """Return the size of a lost object in the store; None: it is missing, or not known."""
    if not lost.name:
        return None
    try:
        return store.size(lost.name)
    except CompactorError:
        return None


def needed_bytes(name: str, snapshot: TopicSnapshot, manifest: Manifest | None) -> int:
    """Return the least size of an object by the metadata of its topic and the manifest; 0: they do not name it."""
    objects = [(ledger.rows.name, ledger.rows.size) for ledger in snapshot.ledgers]
    ranges = [ledger.index for ledger in snapshot.ledgers]
    if manifest is not None:
        objects += [(part.rows.stored.name, part.rows.stored.size) for part in manifest.parts]
        objects += [
            (part.deleted.name, part.deleted.offset + part.deleted.length) for part in manifest.parts if part.deleted
        ]
        objects += [(table.name, table.length) for table in manifest.chunks]
        ranges += chain.from_iterable(manifest.index)
    objects += [(location.name, location.offset + location.length) for location in ranges]
    return max((end for named, end in objects if named == name), default=0)


def loss_cache_of(request: Request) -> LossCache:
    """Return the loss cache of the application that received a request."""
    return cast(LossCache, request.app.state.loss_cache)
