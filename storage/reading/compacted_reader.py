"""Reads of the compacted ledger under a pin, which continue after the ledger was collected (R7, R8).

A pin keeps every object of the compacted ledger that is read. It has a TTL, which is renewed between two tables. A
reader that pauses for longer, or whose state travelled as a token, pins the same compacted ledger again: a replaced one
stays for the grace time of garbage collection. If it was collected, or an object of it is missing or damaged, the
reader takes a new snapshot and continues after the last message that it delivered:

    the same compacted ledger serves       the damage is real, and the error that names it is raised (R8)
    raw still begins at or before there    the read continues raw
    a newer compacted ledger serves        the read continues in it, unless it may have missed something:
                                           StateMayBeStale
    no ledger replaces what raw has lost   StateMayBeStale

After the horizon the read is raw; where raw messages are trimmed before they are read, the last two lines apply.

Invariants: no id is delivered twice; no key's newest value is passed over; no deletion of a delivered key is missed
silently, nor a later value of it that has expired since. The manifest of a newer compacted ledger says what it lacks
(`dropped_to`); `ContinuationToken` says what the reader knows: what it delivered is complete up to the horizon of its
first compacted ledger, and from there on up to the last offset that it delivered. A read that has delivered nothing
cannot be stale, and begins again with the ledger that serves.

One instance is one read, which may continue as messages arrive. It has no thread; a pin that is never released expires.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from storage.clock import Clock
from storage.environment import Environment
from storage.errors import CompactorError, DataLoss, Fenced, ObjectMissing, StateMayBeStale, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.ledger.manifest import Manifest
from storage.ledger.seek import NOWHERE, SeekMessageId, SeekOffset, SeekPosition, start_position_of
from storage.log.lease import release_ignoring_errors
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import CompactedLedgerRecord, Pin, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, LATEST
from storage.positions import CompactedProgress, ContinuationToken, OffsetReset, StartOffset
from storage.reading.raw_reader import RawReader, last_offset
from storage.reading.snapshot_reader import RetentionFilter, SnapshotReader

PIN_TTL_MS = 60_000
"""The TTL of a pin: it is renewed when a third of it is over."""
_REMEDY = "read again from earliest, into an empty state"


class CompactedReader:
    """A reader of a topic's compacted ledger and then of raw messages (`readCompacted`), of the topic as it is when the
    first message is requested."""

    def __init__(
        self,
        environment: Environment,
        topic_id: int,
        owner: str,
        state: ContinuationToken,
        unsealed: SegmentTableReader,
        reset: OffsetReset = OffsetReset.EARLIEST,
        retention: Callable[[TopicSnapshot], RetentionFilter | None] = lambda _: None,
    ) -> None:
        """Create a reader. `state`: a start, or the state of another read, in this process or another.

        `owner`: of the pins. `unsealed`: reads segments. `reset`: the behaviour of a raw read whose start was trimmed.
        `retention`: returns the filter of a compacted ledger's messages (C2); None: they are all visible.
        """
        self._environment = environment
        self._topic_id = topic_id
        self._owner = owner
        self._start = state.start
        self._unsealed = unsealed
        self._retention = retention
        self._next: SeekPosition | None = None
        """The seek position of the next message; None until the first pinned compacted ledger resolves a time."""
        self._known_to: int | None = None
        """The offset up to which the newest message of each delivered key was delivered; None: no key was delivered."""
        self._known_apart: int | None = None
        """The same, of the keys of any first part of the last table; None: up to the end of that part."""
        self._by_event: bool | None = None
        """True: the last compacted ledger of the read is in event-time order; None: it has read none."""
        self._ledger_id: int | None = None
        """The last compacted ledger of the read: a read that returns to it has missed nothing."""
        self._raw = RawReader(environment.store, unsealed, self._take_snapshot, state.start, reset, or_compacted=True)
        self._is_raw = False
        if state.compacted is not None and isinstance(state.start, StartOffset):
            self._restore_state(state.compacted, state.start.offset)

    def _restore_state(self, state: CompactedProgress, first: int) -> None:
        """Continue at the offset `first` with the progress of another read."""
        self._next = SeekOffset(first)
        self._known_to = first - 1 if state.complete_to is None else state.complete_to
        self._known_apart = state.complete_to
        self._ledger_id, self._by_event, self._is_raw = state.ledger_id, state.by_event, state.is_raw
        if self._is_raw:
            self._raw.seek(self._next, first - 1)

    @property
    def state(self) -> ContinuationToken | None:
        """The token to continue after the last table that was delivered; None: the start is not resolved yet.

        It is also valid after a first part of that table, with another start.
        """
        if self._next is None:
            return None
        if self._known_to is None:
            return ContinuationToken(start_position_of(self._next))
        last = _seek_offset(self._next) - 1
        known = self._known_to if self._known_to > last else self._known_apart
        complete_to = known if known is not None and known >= last else None
        compacted = CompactedProgress(self._ledger_id, bool(self._by_event), self._is_raw, complete_to)
        return ContinuationToken(start_position_of(self._next), compacted=compacted)

    def tables(self) -> Generator[pa.Table, None, None]:
        """Yield all messages up to the topic's present end, as tables of rows.SCHEMA, none empty.

        A later call yields the messages that were appended since, and continues after an error. Raises StateMayBeStale
        besides the errors of `RawReader.tables`. Close the iterator, or read it to its end, to release the pin.
        """
        snapshot: TopicSnapshot | None = None
        while True:
            if not self._is_raw or self._raw.is_gone:
                snapshot = yield from self._read_to_horizon(None if self._is_raw else self._ledger_id)
                reader = SnapshotReader(self._environment.store, snapshot, self._unsealed)
                if self._next in (None, NOWHERE, SeekMessageId(LATEST)):  # no message has reached it yet
                    self._next = SeekOffset(reader.end)
                elif self._next == SeekMessageId(EARLIEST):
                    # Before the next messages are read, they may be compacted and trimmed.
                    self._next = SeekOffset(reader.first_offset)
                assert self._next is not None
                self._is_raw = True
                self._raw.seek(self._next, -1 if self._known_to is None else _seek_offset(self._next) - 1)
            for table in self._raw.tables(snapshot):
                self._next, self._known_to = SeekOffset(last_offset(table) + 1), last_offset(table)
                self._known_apart = None
                yield table
            self._next = self._raw.next
            if not self._raw.is_gone:
                return

    def _take_snapshot(self) -> TopicSnapshot:
        return self._environment.metadata.topic_snapshot(self._topic_id)

    def _read_to_horizon(self, ledger_id: int | None) -> Generator[pa.Table, None, TopicSnapshot]:
        """Yield the messages of the compacted ledger that serves, up to its horizon; return the snapshot in which to
        continue raw after it.

        `ledger_id`: the compacted ledger to continue in, if it still exists.
        """
        lost: CompactorError | None = None
        lost_ledger: CompactedLedgerRecord | None = None
        while True:
            with self._pin_inside(ledger_id) as pinned:
                compacted = pinned.compacted
                if lost is not None and compacted == lost_ledger:
                    raise lost
                if self._next is None:
                    self._next = self._resolve_start(pinned.snapshot)
                if self._next is None:
                    continue
                is_read = compacted is None or self._next.surely_begins_after(compacted.horizon)
                if (
                    compacted is not None
                    and is_read
                    and self._known_to is not None
                    and not self._changes_ledger(compacted)
                ):
                    self._advance_past_horizon(compacted.horizon.offset)  # a page may end at its last message
                if (is_read or self._changes_ledger(compacted)) and self._raw_has_next(pinned.snapshot):
                    return pinned.snapshot
                if is_read and compacted == pinned.snapshot.compacted:
                    raise self._gap_error(pinned.snapshot)
                if compacted is None or is_read:  # the next messages may be in the one that serves
                    ledger_id = None
                    continue
                try:
                    yield from self._read_compacted_ledger(pinned, compacted)
                    return pinned.snapshot
                except (DataLoss, Fenced) as error:  # fenced: the pin expired and the compacted ledger was collected
                    lost, lost_ledger, ledger_id = error, compacted, None

    def _resolve_start(self, snapshot: TopicSnapshot) -> SeekPosition | None:
        """Return the seek position of the read's start, by the snapshot.

        None: an object that resolves it is missing, and the topic has changed since the snapshot.
        """
        reader = self._snapshot_reader(snapshot)
        try:
            return reader.seek_position(self._start, read_compacted=True)
        except ObjectMissing:
            if self._take_snapshot().extents == snapshot.extents:
                raise
            return None

    def _read_compacted_ledger(self, pinned: _PinnedSnapshot, compacted: CompactedLedgerRecord) -> Iterator[pa.Table]:
        """Yield the remaining messages of a pinned compacted ledger, renew the pin, and continue after its horizon.
        Raises StateMayBeStale."""
        assert self._next is not None
        reader = self._snapshot_reader(replace(pinned.snapshot, compacted=compacted))
        manifest = reader.manifest(compacted)
        by_event = bool(manifest.policies.get("event_time_order"))
        if self._changes_ledger(compacted):
            self._check_nothing_dropped(manifest, by_event)
        self._check_nothing_hidden(manifest, reader.retention)
        known_to, horizon = self._known_to, compacted.horizon.offset
        # No read can know what was trimmed after the horizon before the read began.
        first_known = max(horizon, reader.first_offset - 1)
        self._by_event, self._ledger_id, self._is_raw = by_event, compacted.ledger_id, False
        self._known_apart = known_apart = first_known if known_to is None else known_to
        for table in reader.compacted(self._next, manifest):
            last = last_offset(table)
            self._next = SeekOffset(last + 1)
            self._known_to = max(known_apart, last)
            yield table
            pinned.renew_if_due()
        self._advance_past_horizon(horizon)

    def _advance_past_horizon(self, horizon: int) -> None:
        """Move the read after the horizon, and after all that is known: the compacted ledger is read to its end."""
        if self._known_to is None:
            self._next = SeekOffset(horizon + 1)
        else:
            self._known_to = max(horizon, self._known_to)
            self._next = SeekOffset(max(_seek_offset(self._next), self._known_to + 1))

    def _changes_ledger(self, compacted: CompactedLedgerRecord | None) -> bool:
        """Return whether messages were delivered, and the last of them came from another compacted ledger than this
        one, or from raw."""
        same = compacted is not None and compacted.ledger_id == self._ledger_id and not self._is_raw
        return self._known_to is not None and not same

    def _check_nothing_dropped(self, manifest: Manifest, by_event: bool) -> None:
        """Raise StateMayBeStale if the newest message of a delivered key may be missing from a compacted ledger."""
        assert self._known_to is not None
        loss = f"what a reader of {manifest.topic} read up to offset {self._known_to} is gone, and generation"
        if manifest.dropped_to > self._known_to:
            raise StateMayBeStale(
                f"{loss} {manifest.generation} lacks deletions, or values that expired, up to offset "
                f"{manifest.dropped_to}",
                _REMEDY,
            )
        # In another order, a key's value may be a message before the last one that was delivered.
        if by_event != bool(self._by_event):
            raise StateMayBeStale(f"{loss} {manifest.generation} has another order", _REMEDY)

    def _check_nothing_hidden(self, manifest: Manifest, retention: RetentionFilter | None) -> None:
        """Raise StateMayBeStale if a later value of a delivered key may be hidden by now (C2)."""
        if self._known_to is None or retention is None or not retention.may_hide_after(self._known_to, manifest.parts):
            return
        raise StateMayBeStale(
            f"generation {manifest.generation} of {manifest.topic} has messages after offset {self._known_to} that "
            "are past the topic's retention or below its start",
            _REMEDY,
        )

    def _raw_has_next(self, snapshot: TopicSnapshot) -> bool:
        """Return whether raw still has the next message, or no message was delivered yet, so that raw may begin
        anywhere."""
        assert self._next is not None
        if self._known_to is None:
            return True
        return SnapshotReader(self._environment.store, snapshot, self._unsealed).first_offset <= _seek_offset(
            self._next
        )

    def _gap_error(self, snapshot: TopicSnapshot) -> StateMayBeStale:
        """Return the error for a next message that is trimmed and that no compacted ledger replaces."""
        assert self._next is not None
        first = SnapshotReader(self._environment.store, snapshot, self._unsealed).first_offset
        return StateMayBeStale(
            f"offsets {_seek_offset(self._next)} to {first - 1} of {snapshot.topic.name} are gone, perhaps before a "
            "reader has read them, and no compacted ledger replaces them",
            _REMEDY,
        )

    def _snapshot_reader(self, snapshot: TopicSnapshot) -> SnapshotReader:
        return SnapshotReader(self._environment.store, snapshot, self._unsealed, self._retention(snapshot))

    @contextmanager
    def _pin_inside(self, ledger_id: int | None) -> Iterator[_PinnedSnapshot]:
        """Pin a compacted ledger inside the context, and yield it with a snapshot. `ledger_id`: the preferred one, if
        it still exists; None: the one that serves."""
        snapshot, pin = self._environment.metadata.pins.take(self._topic_id, self._owner, PIN_TTL_MS, ledger_id)
        if pin is None:
            yield _PinnedSnapshot(self._environment.metadata, self._environment.clock, snapshot)
            return
        failpoint(Failpoint.PIN_TAKEN)
        with release_ignoring_errors(lambda: self._environment.metadata.pins.release(pin)):
            yield _PinnedSnapshot(
                self._environment.metadata, self._environment.clock, snapshot, pin, self._pinned_record(pin, snapshot)
            )
        failpoint(Failpoint.PIN_RELEASED)

    def _pinned_record(self, pin: Pin, snapshot: TopicSnapshot) -> CompactedLedgerRecord | None:
        """Return the pinned compacted ledger; None: the pin expired meanwhile, and the ledger was collected."""
        if snapshot.compacted is not None and snapshot.compacted.ledger_id == pin.ledger_id:
            return snapshot.compacted
        retired = self._environment.metadata.pins.retired_ledgers(self._topic_id)
        record = next((item for item in retired if item.ledger_id == pin.ledger_id), None)
        if record is None:
            self._take_snapshot()  # raises TopicNotFound: the row of a pinned ledger is deleted with its topic
        return record


@dataclass
class _PinnedSnapshot:
    """A snapshot, and the compacted ledger that is pinned, if any: the one that serves in the snapshot, or an older
    one."""

    metadata: MetadataStore
    clock: Clock
    snapshot: TopicSnapshot
    pin: Pin | None = None
    compacted: CompactedLedgerRecord | None = None

    def renew_if_due(self) -> None:
        """Renew the pin if a third of its TTL has passed. Raises Fenced if the compacted ledger was collected
        meanwhile."""
        if self.pin is not None and self.clock.now_ms() >= self.pin.expires_at - PIN_TTL_MS * 2 // 3:
            # The pin lasts: while the database is unreachable, collectors cannot run either.
            with suppress(Unavailable):
                self.pin = self.metadata.pins.renew(self.pin, PIN_TTL_MS)
                failpoint(Failpoint.PIN_RENEWED)


def _seek_offset(seek: SeekPosition | None) -> int:
    """Return the offset of a seek position, which must be a position by offset."""
    assert isinstance(seek, SeekOffset)
    return seek.offset
