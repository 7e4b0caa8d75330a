"""Reading the compacted ledger under a pin, and on from generation to generation when one is gone (R7, R8).

A pin keeps every object of the generation that is read. It has a term, which is renewed between two tables, so a
reader that is left alone for longer than that may find its generation collected. Then, as when an object of it is
missing or damaged, the topic is looked at again:

    the same generation still serves        the damage is real, and the error that names it is raised (R8)
    a newer one serves                      the read goes on in it, behind the last message that was given (R7)
    none serves: the cursor was deleted     the read goes on raw, behind the last message that was given

Invariants: no id is given twice; no key's newest value is passed over; behind the horizon the read is raw to its end
and never enters a newer compacted ledger. A deletion that may have been passed over, because its tombstone left the
compacted data meanwhile, is StateMayBeStale: never a deleted key that stays in a reader's state in silence.

One instance is one read. Nothing runs beside the reader; a pin that is never given back ends by itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from storage.clock import Clock
from storage.errors import CompactorError, DataLoss, Fenced, StateMayBeStale, Unavailable
from storage.lease import afterwards
from storage.metadata.records import CompactedLedgerRecord, Pin, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import MessageId
from storage.objects.interface import ObjectStore
from storage.reader import Limits, SnapshotReader, limited
from storage.steps import Step, reached

TERM_MS = 60_000
"""The term of a pin: it is renewed when a third of it is over."""


class PinnedRead:
    """One read with the flag on, from `start`, of the topic as it is when the first message is asked for."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        clock: Clock,
        topic_id: int,
        holder: str,
        start: MessageId,
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._topic_id = topic_id
        self._holder = holder
        self._next = start
        self._given: int | None = None
        """The offset of the last message that was given."""
        self._by_event: bool | None = None
        """Whether the generation that it came from is in event-time order."""

    def batches(self, limits: Limits) -> Iterator[pa.RecordBatch]:
        """As `SnapshotReader.batches`. Raises StateMayBeStale besides."""
        return limited(self._tables(), limits)

    def _tables(self) -> Generator[pa.Table, None, None]:
        snapshot = yield from self._compacted()
        horizon = snapshot.compacted.horizon.offset if snapshot.compacted else -1
        yield from SnapshotReader(self._store, snapshot).raw(self._next, horizon)

    def _compacted(self) -> Generator[pa.Table, None, TopicSnapshot]:
        """What is at or below the horizon; returns the snapshot in which to go on raw behind it."""
        lost: CompactorError | None = None
        lost_ledger: CompactedLedgerRecord | None = None
        while True:
            with self._pinned() as pinned:
                compacted = pinned.snapshot.compacted
                if lost is not None and self._must_have(lost_ledger, pinned.snapshot):
                    raise lost
                if compacted is None or self._next > compacted.horizon.message_id:
                    return pinned.snapshot
                try:
                    yield from self._generation(pinned, compacted)
                    return pinned.snapshot
                except (DataLoss, Fenced) as error:  # fenced: the pin expired and the generation was collected
                    lost, lost_ledger = error, compacted

    def _generation(self, pinned: _Pinned, compacted: CompactedLedgerRecord) -> Iterator[pa.Table]:
        reader = SnapshotReader(self._store, pinned.snapshot)
        manifest = reader.manifest(compacted)
        if self._given is not None and manifest.tombstones_dropped_to > self._given:
            raise StateMayBeStale(
                f"the generation of {manifest.topic} that was read up to offset {self._given} is gone, and generation "
                f"{manifest.generation} has lost deletions up to offset {manifest.tombstones_dropped_to}",
                "read again from earliest, into an empty state",
            )
        by_event = bool(manifest.policies.get("event_time_order"))
        if self._given is not None and by_event != self._by_event:
            # The key's value may now be a message that lies before what was given.
            raise StateMayBeStale(
                f"the generation of {manifest.topic} that was read up to offset {self._given} is gone, and generation "
                f"{manifest.generation} has another order",
                "read again from earliest, into an empty state",
            )
        self._by_event = by_event
        for table in reader.compacted(self._next, manifest):
            last = table.slice(len(table) - 1).select(["offset", "ledger_id", "entry_id", "batch_index"])
            offset, ledger, entry, index = (column[0].as_py() for column in last.columns)
            self._given, self._next = offset, MessageId(ledger, entry, -1, index + 1)
            yield table
            pinned.renew()

    def _must_have(self, lost: CompactedLedgerRecord | None, snapshot: TopicSnapshot) -> bool:
        """Whether nothing stands in for a compacted ledger that was lost: it still serves, or raw begins too late."""
        if snapshot.compacted is not None:
            return snapshot.compacted == lost
        first = snapshot.ledgers[0].first_offset if snapshot.ledgers else snapshot.topic.next_offset
        return self._given is not None and first > self._given + 1

    @contextmanager
    def _pinned(self) -> Iterator[_Pinned]:
        snapshot, pin = self._metadata.pin_compacted(self._topic_id, self._holder, TERM_MS)
        pinned = _Pinned(self._metadata, self._clock, snapshot, pin)
        if pin is None:
            yield pinned
            return
        reached(Step.PIN_TAKEN)
        with afterwards(lambda: self._metadata.release_pin(pin)):
            yield pinned
        reached(Step.PIN_RELEASED)


class _Pinned:
    """A snapshot, and the pin on its compacted ledger, if it has one."""

    def __init__(self, metadata: MetadataStore, clock: Clock, snapshot: TopicSnapshot, pin: Pin | None) -> None:
        self.snapshot = snapshot
        self._metadata = metadata
        self._clock = clock
        self._pin = pin

    def renew(self) -> None:
        """A new term if a third of this one is over. Raises Fenced if the generation was collected meanwhile."""
        if self._pin is not None and self._clock.now_ms() >= self._pin.expires_at - TERM_MS * 2 // 3:
            with suppress(Unavailable):  # the term lasts; if the database stays away for longer, so do collectors
                self._pin = self._metadata.renew_pin(self._pin, TERM_MS)
                reached(Step.PIN_RENEWED)
