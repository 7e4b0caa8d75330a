"""The single writer of a topic's active segment: appends entries, and rolls segments by size, by age and on request.

It holds the topic's writer lease (SQL), so there is one writer, and the lock on the open segment's file, so that a
process that was suspended and lost its lease cannot write beside its successor. The process that gets that lock checks
lease and row again before it writes: while it was suspended, a successor may have written and ended. An append is
acknowledged as the topic's flush policy says, by default when it is flushed (L1). A segment that a dead process left
open is recovered first: its torn end is cut off, and appends continue in it (L2).

segment_lifecycle.py opens, recovers and rolls segments. After a disk failure the next append recovers the segment from
its file.

A writer learns within `POLL_SECONDS` that its topic was deleted (S8): TopicNotFound; the appended messages are deleted
with it.

Errors: LeaseHeld, Fenced, TopicNotFound, InvalidRecord (an entry that cannot be accepted), StorageFull, Unavailable,
ObjectMissing, ObjectDamaged, Misconfigured. Must not know: message semantics, objects, sealing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from storage.entries.entry import EntryHeader
from storage.environment import Environment
from storage.errors import CompactorError, Fenced, TopicNotFound
from storage.heartbeat import Heartbeat
from storage.log.group_commit import Done
from storage.log.lease import OnHeld, writer_lease
from storage.log.lease_renewer import POLL_SECONDS, LeaseRenewer
from storage.log.segment import AppendResult
from storage.log.segment_lifecycle import SegmentLifecycle
from storage.log.segment_writer import SegmentWriter
from storage.metadata.records import SegmentRecord, TopicRecord

DEFAULT_WAIT_MS = 30_000


class TopicLog:
    """The writer of one topic's log: a context manager, inside which it holds the topic's lease. Thread-safe."""

    def __init__(
        self,
        environment: Environment,
        topic: TopicRecord,
        owner: str,
        wait_ms: int = DEFAULT_WAIT_MS,
        on_rolled: Callable[[], object] = lambda: None,
        renewer: LeaseRenewer | None = None,
        on_held: OnHeld = lambda _: None,
    ) -> None:
        """Create a writer. `owner`: unique to one piece of work. `wait_ms`: the time to wait for another writer.

        `on_rolled`: called when a segment waits to be sealed; it must be quick. `renewer`: renews the lease and polls,
        for all logs of the process, and outlives this one; None: this log starts two threads. `on_held`: called once if
        the lease must be waited for (lease.py). Entering the context takes the lease; it raises the errors of the
        module docstring.
        """
        self._environment = environment
        self._metadata = environment.metadata
        self._topic = topic
        self._owner = owner
        self._wait_ms = wait_ms
        self._on_rolled = on_rolled
        self._renewer = renewer
        self._on_held = on_held
        self._open = ExitStack()
        self._lock = threading.RLock()
        self._segments: SegmentLifecycle | None = None
        self._writer: SegmentWriter | None = None
        self._fenced: CompactorError | None = None
        self._appended = 0

    def __enter__(self) -> TopicLog:
        with ExitStack() as opening:
            owned = self._environment, self._topic.id, self._owner, self._wait_ms
            lease = opening.enter_context(writer_lease(*owned, self._on_fenced, self._renewer, self._on_held))
            self._segments = SegmentLifecycle(self._environment, self._topic, lease)
            with self._lock:
                self._writer = self._segments.adopt_lost_segments(self._segments.recover())
            opening.enter_context(self._rolling_when_due())
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Flush the appended entries; the segment stays open for the next writer."""
        with self._open, self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()

    def append(self, entry: bytes) -> AppendResult:
        """Append one entry (Pulsar's encoding) and return when it is acknowledged. Concurrent appends share flushes.

        Raises InvalidRecord, Fenced, TopicNotFound, StorageFull, Unavailable. Then the entry is never read, unless a
        flush failed and the disk kept the bytes nevertheless.
        """
        with self._lock:
            pending = self._writer_for(entry).submit(entry)
            self._appended += 1
        return pending.result()

    def submit(
        self,
        entry: bytes,
        on_done: Done,
        check: Callable[[], object] = lambda: None,
        *,
        header: EntryHeader | None = None,
        commits_later: bool = False,
    ) -> None:
        """Append one entry without waiting: `on_done` is called, in order, with its position or with the error.

        Blocks while a segment is opened, recovered or rolled, and while too many bytes are pending. `on_done` must be
        quick and must not append. `header`: that of the entry; None: it is read. `commits_later`: the caller bounds the
        pending bytes, and calls `commit_here` after its last entry. Raises as `append`.

        After a failure the log is recovered and continues. `check` may refuse the entry because an earlier one failed:
        it is called after every failed entry was answered, and if it raises, nothing is appended.
        """
        with self._lock:
            writer = self._writer_for(entry)
            check()  # any failure from here on fails the writer, and with it this entry
            writer.submit(entry, on_done, header=header, waits=not commits_later, commits_later=commits_later)
            self._appended += 1

    def commit_here(self) -> None:
        """Write and flush in the calling thread the entries that were submitted to be committed later, if no other
        thread does.

        It waits for few flushes; the kernel does the others (committers.py).
        """
        writer = self._writer
        if writer is not None:
            writer.commit_here()

    def submit_at_once(
        self, entry: bytes, on_done: Done, check: Callable[[], object], *, header: EntryHeader | None = None
    ) -> bool:
        """Append an entry as `submit` does if that needs neither a disk, the database nor another thread; return False
        if it does, and append nothing.

        For an event loop. The caller bounds the pending bytes.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            writer = self._writer
            if (
                self._fenced is not None
                or writer is None
                or writer.failed
                or self._lifecycle.must_roll_before_append(writer)
            ):
                return False
            if not self._environment.log.is_known_to_have_space:
                return False
            check()
            writer.submit(entry, on_done, header=header, waits=False)
            self._appended += 1
            return True
        finally:
            self._lock.release()

    @property
    def is_fenced(self) -> bool:
        """True if the log's lease was lost, or its topic deleted."""
        return self._fenced is not None

    def roll(self) -> SegmentRecord | None:
        """Close the open segment; the next append opens another. Return its row; None: it was empty.

        Raises Fenced, TopicNotFound.
        """
        with self._lock:
            self._check_lease()
            return self._roll_writer(self._usable_writer() or self._lifecycle.recover())

    def _roll_writer(self, writer: SegmentWriter | None) -> SegmentRecord | None:
        """Close the segment of a writer, and report it to `on_rolled`; return its row, or None if it was empty."""
        self._writer = None
        rolled = self._lifecycle.roll(writer)
        if rolled is not None:
            self._on_rolled()
        return rolled

    def roll_if_due(self) -> None:
        """Roll the open segment if it is old, or a roll was requested. Raises as `roll`.

        The log's own thread calls it every `POLL_SECONDS` if it has no renewer.
        """
        with self._lock:
            old = self._is_old()
        if old or self._metadata.segments.is_roll_requested(self._topic.id):
            self.roll()

    def _rolling_when_due(self) -> AbstractContextManager[object]:
        """Return a context inside which the log is rolled when that is due, by its renewer or by a thread of its
        own."""
        if self._renewer is None:
            return Heartbeat(self.roll_if_due, POLL_SECONDS, self._on_fenced)
        return self._renewer.rolling_when_due(
            self._topic.id, self._is_old_without_wait, self.roll, self._on_fenced, lambda: self._appended
        )

    def _is_old(self) -> bool:
        return self._writer is not None and self._lifecycle.is_old(self._writer)

    def _is_old_without_wait(self) -> bool:
        """Return whether the open segment is old; False if another thread holds the lock: that thread checks the age
        itself."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._is_old()
        finally:
            self._lock.release()

    @property
    def _lifecycle(self) -> SegmentLifecycle:
        assert self._segments is not None, "a TopicLog is used inside its `with` statement"
        return self._segments

    def _writer_for(self, entry: bytes) -> SegmentWriter:
        """Return the writer of an open segment with room for an entry; roll the present one, and open another, if
        needed. Raises InvalidRecord before it opens a segment for a bad entry."""
        self._check_lease()
        self._environment.log.check_space()
        writer = self._usable_writer()
        if writer is not None and self._lifecycle.must_roll_before_append(writer):
            self._roll_writer(writer)
            writer = self._writer = self._lifecycle.create_segment_for(entry)
        elif writer is None:
            writer = self._writer = self._lifecycle.recover() or self._lifecycle.create_segment_for(entry)
        return writer

    def _usable_writer(self) -> SegmentWriter | None:
        """Return the writer of the open segment, recovered first if it failed; None: no segment is open."""
        writer = self._writer
        if writer is not None and writer.failed:
            self._writer = None
            writer.close()
            writer = self._writer = self._lifecycle.recover()
        return writer

    def _check_lease(self) -> None:
        if self._fenced is not None:
            raise self._fenced.copy()

    def _on_fenced(self) -> None:
        """Abandon the open segment at once, because the lease or the topic is lost: its lock blocks the lease's new
        owner for as long as this log lives.

        Called without the lock by the threads that renew the lease and poll, which `__exit__` waits for.
        """
        why = self._fenced_error()
        with self._lock:
            if self._fenced is None:
                self._fenced = why
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.abandon(self._fenced)

    def _fenced_error(self) -> CompactorError:
        try:
            self._metadata.segments.is_roll_requested(self._topic.id)
        except TopicNotFound as error:
            return error.copy()
        except CompactorError:
            pass  # the next writer reports it
        return Fenced(
            f"{self._owner} has lost the lease of {self._topic.name} to another writer",
            "what was acknowledged is kept; open the topic again to continue",
        )
