"""Reading the compacted ledger under a pin, and on from generation to generation when one is gone (R7, R8).

A pin keeps every object of the generation that is read. It has a term, which is renewed between two tables, so a
reader that is left alone for longer than that may find its generation collected. Then, as when an object of it is
missing or damaged, the topic is looked at again:

    the same generation still serves        the damage is real, and the error that names it is raised (R8)
    a newer one serves                      the read goes on in it, behind the last message that was given (R7)
    none serves: the cursor was deleted     the read goes on raw, behind the last message that was given

Invariants: no id is given twice; no key's newest value is passed over; behind the horizon the read is raw, and enters a
newer compacted ledger only if raw that it has not read is trimmed, behind the last message that was given. A deletion
that may have been passed over, because its tombstone left the compacted data meanwhile, is StateMayBeStale: never a
deleted key that stays in a reader's state in silence.

One instance is one read, which may go on as messages come. Nothing runs beside the reader; a pin that is never given
back ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from storage.clock import Clock
from storage.errors import CompactorError, DataLoss, Fenced, ObjectMissing, StateMayBeStale, Unavailable
from storage.lease import afterwards
from storage.ledger.manifest import Manifest
from storage.log.tail import Tail
from storage.metadata.records import CompactedLedgerRecord, Pin, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import LATEST
from storage.objects.interface import ObjectStore
from storage.raw_read import RawRead, last_offset
from storage.reader import Limits, SnapshotReader, limited
from storage.start import NOWHERE, Bound, FromId, FromOffset, Reset, Start
from storage.steps import Step, reached
from storage.visible import Visible

TERM_MS = 60_000
"""The term of a pin: it is renewed when a third of it is over."""


@dataclass(frozen=True)
class Standing:
    """Where a read stands: what it gives next, and what must be known so that nothing is missed there (R7).

    `given`: all up to this offset was given; `entered`, `by_event`: the compacted ledger that it was in last, and
    whether that is in event-time order; `is_raw`: it has left the compacted ledger.
    """

    next: Bound
    given: int | None
    entered: int | None = None
    by_event: bool | None = None
    is_raw: bool = False


class PinnedRead:
    """One read with the flag on, from `start`, of the topic as it is when the first message is asked for."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        clock: Clock,
        topic_id: int,
        holder: str,
        start: Start,
        tail: Tail | None = None,
        reset: Reset = Reset.EARLIEST,
        shown: Callable[[TopicSnapshot], Visible | None] = lambda _: None,
    ) -> None:
        """`shown`: what of a compacted ledger may be seen (C2)."""
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._topic_id = topic_id
        self._holder = holder
        self._start = start
        self._tail = tail
        self._shown = shown
        self._next: Bound | None = None
        """Where to go on; None until a time is looked up, in the first generation that is pinned."""
        self._given: int | None = None
        """All up to this offset was given, or a compacted ledger that was given stands for it; None: nothing yet."""
        self._by_event: bool | None = None
        """Whether the generation that it came from is in event-time order; None: it was raw from the beginning."""
        self._entered: int | None = None
        """The compacted ledger that it was in last: whoever comes back to it after an error has missed nothing."""
        self._raw = RawRead(store, tail, self._look, start, reset, or_compacted=True)
        self._is_raw = False

    def go_on(self, standing: Standing) -> None:
        """Go on where another read stood, in this process or another; before the first message is asked for."""
        self._next, self._given, self._is_raw = standing.next, standing.given, standing.is_raw
        self._entered, self._by_event = standing.entered, standing.by_event
        if self._is_raw:
            self._raw.begin(standing.next, -1 if standing.given is None else standing.given)

    @property
    def standing(self) -> Standing | None:
        """Where the read stands, behind the last table that it gave; None: it has not found its start yet."""
        if self._next is None:
            return None
        return Standing(self._next, self._given, self._entered, self._by_event, self._is_raw)

    def batches(self, limits: Limits) -> Generator[pa.RecordBatch, None, None]:
        """As `SnapshotReader.batches`. Raises StateMayBeStale besides."""
        return limited(self.tables(), limits)

    def tables(self) -> Generator[pa.Table, None, None]:
        """All up to the topic's end of now, as tables of rows.SCHEMA, none empty; called again, what came since.

        After an error it goes on where it was.
        """
        snapshot: TopicSnapshot | None = None
        while True:
            if not self._is_raw:
                snapshot = yield from self._compacted()
                self._is_raw = True
                if self._next in (None, NOWHERE, FromId(LATEST)):  # it has not come yet
                    self._next = FromOffset(SnapshotReader(self._store, snapshot, self._tail).end)
                self._raw.begin(self._next, -1 if self._given is None else self._given)
            for table in self._raw.tables(snapshot):
                self._passed(last_offset(table))
                yield table
            if not self._raw.is_gone:
                return
            self._is_raw, snapshot = False, None

    def _look(self) -> TopicSnapshot:
        return self._metadata.snapshot(self._topic_id)

    def _passed(self, offset: int) -> None:
        self._given, self._next = offset, FromOffset(offset + 1)

    def _compacted(self) -> Generator[pa.Table, None, TopicSnapshot]:
        """What is at or below the horizon; returns the snapshot in which to go on raw behind it."""
        lost: CompactorError | None = None
        lost_ledger: CompactedLedgerRecord | None = None
        while True:
            with self._pinned() as pinned:
                compacted = pinned.snapshot.compacted
                if lost is not None and self._must_have(lost_ledger, pinned.snapshot):
                    raise lost
                if self._next is None:
                    self._next = self._first_bound(pinned.snapshot)
                if self._next is None:
                    continue
                if compacted is None or self._next.is_behind(compacted.horizon):
                    return pinned.snapshot
                try:
                    yield from self._generation(pinned, compacted)
                    return pinned.snapshot
                except (DataLoss, Fenced) as error:  # fenced: the pin expired and the generation was collected
                    lost, lost_ledger = error, compacted

    def _first_bound(self, snapshot: TopicSnapshot) -> Bound | None:
        """The bound of the start; None: what it was looked up in is gone, and the topic has changed since."""
        reader = self._reader(snapshot)
        try:
            return reader.bound(self._start, read_compacted=True)
        except ObjectMissing:
            if self._look().pieces == snapshot.pieces:
                raise
            return None

    def _generation(self, pinned: _Pinned, compacted: CompactedLedgerRecord) -> Iterator[pa.Table]:
        reader = self._reader(pinned.snapshot)
        manifest = reader.manifest(compacted)
        by_event = bool(manifest.policies.get("event_time_order"))
        if self._given is not None and compacted.ledger_id != self._entered:
            self._check_nothing_missed(manifest, self._given, by_event)
        self._by_event, self._entered = by_event, compacted.ledger_id
        assert self._next is not None
        for table in reader.compacted(self._next, manifest):
            self._passed(last_offset(table))
            yield table
            pinned.renew()
        self._passed(compacted.horizon.offset)

    def _check_nothing_missed(self, manifest: Manifest, given: int, by_event: bool) -> None:
        """Raises StateMayBeStale where going on in another generation, behind what was given, would not tell all."""
        gone = f"the generation of {manifest.topic} that was read up to offset {given} is gone, and generation"
        remedy = "read again from earliest, into an empty state"
        if manifest.dropped_to > given:
            raise StateMayBeStale(
                f"{gone} {manifest.generation} has lost deletions up to offset {manifest.dropped_to}", remedy
            )
        if by_event != bool(self._by_event):  # the key's value may now be a message that lies before what was given
            raise StateMayBeStale(f"{gone} {manifest.generation} has another order", remedy)

    def _reader(self, snapshot: TopicSnapshot) -> SnapshotReader:
        return SnapshotReader(self._store, snapshot, self._tail, self._shown(snapshot))

    def _must_have(self, lost: CompactedLedgerRecord | None, snapshot: TopicSnapshot) -> bool:
        """Whether nothing stands in for a compacted ledger that was lost: it still serves, or raw begins too late."""
        if snapshot.compacted is not None:
            return snapshot.compacted == lost
        first = SnapshotReader(self._store, snapshot, self._tail).first_offset
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
