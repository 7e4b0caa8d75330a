"""The threads that commit the appends of all open segments of a process: a bounded number, whatever waits for the disk.

A segment whose appends wait for a commit is put into one queue, first in, first out, and once: so segments take turns,
each with all that waits there. A thread takes some segments, writes the entries of each, and lets the kernel flush
their files at the same time (kernel_flushes.py), so no thread waits for a disk. A single file is flushed by the thread
itself, which is quicker, while few threads do that; so are all files where the kernel has no asynchronous flush.

A thread that appends many entries at once commits them by itself, in the same way, which saves the change of threads.
Threads start when they are needed and end when they are not. Must not know: entries, files.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from storage.log.kernel_flushes import FileDescriptor, FlushEnd, kernel_flushes

THREADS = 16
"""The default of the largest number of threads."""
AT_ONCE = 32
"""The segments that a thread takes together."""
IDLE_SECONDS = 5.0
"""The time without work after which a thread ends."""


class AppendQueue(Protocol):
    """A queue of appends to one file, for the committing threads."""

    def begin_commit(self) -> FileDescriptor | None:
        """Write the waiting appends. Return the descriptor of the file if it must be flushed now, otherwise None.

        After a descriptor the caller flushes the file and calls `complete_flush`; nothing else is written before.
        Raises nothing.
        """

    def complete_flush(self, error: BaseException | None) -> None:
        """Record that the flush has ended, with its error or None, and answer its appends. Must be quick. Raises
        nothing."""


class AsyncFlusher(Protocol):
    """A means to flush files without a waiting thread for each (kernel_flushes.py)."""

    @property
    def is_supported(self) -> bool:
        """True if `begin_flushes` can begin flushes on this system."""

    def begin_flushes(self, flushes: Sequence[tuple[FileDescriptor, FlushEnd]]) -> int:
        """Begin to flush files, each a descriptor and its callback; return the number that were begun, the first ones.
        The caller flushes the others."""


class Committers:
    """The threads of a process that commit the appends of all open segments. Thread-safe."""

    def __init__(self, threads: int = THREADS, flushes: AsyncFlusher | None = None) -> None:
        """Create the pool; it starts threads when they are needed. `threads`: the largest number. `flushes` None: the
        flushes of this process's kernel."""
        self._most = threads
        self._flushes = flushes
        self._reset_state()

    def _reset_state(self) -> None:
        """Reset to a pool without threads and queues: a process that was forked has none of them."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[AppendQueue | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, AppendQueue]] = []
        self._numbers = itertools.count()
        self._threads = self._free = self._flushing = 0

    def enqueue(self, appends: AppendQueue) -> None:
        """Let a thread commit the appends that wait in a queue, after the queues before it. A queue must not be
        enqueued twice at once."""
        self._reset_after_fork()
        self._ready.put(appends)
        with self._lock:
            self._start_thread_if_needed()

    def commit(self, appends: AppendQueue) -> None:
        """Commit the appends that wait in a queue in the calling thread, as a committing thread does."""
        self._reset_after_fork()
        self._commit_queues([appends])

    def enqueue_at(self, at: float, appends: AppendQueue) -> None:
        """Let a thread commit the appends of a queue at a time of `time.monotonic`."""
        self._reset_after_fork()
        with self._lock:
            heapq.heappush(self._timers, (at, next(self._numbers), appends))
            if self._timers[0][2] is appends:
                self._ready.put(None)  # a waiting thread waits no longer than until then
            self._start_thread_if_needed()

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset_state()

    def _start_thread_if_needed(self) -> None:
        """Start a thread if none is free and those that do not wait for a disk have much to do. The caller holds the
        lock."""
        working = max(0, self._threads - self._flushing)
        if not self._free and self._threads < self._most and self._ready.qsize() > working * AT_ONCE:
            try:
                threading.Thread(target=self._run_thread, name="commit", daemon=True).start()
            except RuntimeError:  # the limit of threads
                if not self._threads:
                    raise
            else:
                self._threads += 1

    def _run_thread(self) -> None:
        try:
            while taken := self._wait_for_queues():
                self._commit_queues(taken)
                del taken  # a queue that ended is not kept while the thread waits
        except BaseException:  # a defect: another thread takes this one's place
            with self._lock:
                self._threads -= 1
                self._start_thread_if_needed()
            raise

    def _wait_for_queues(self) -> list[AppendQueue]:
        """Wait for queues, and return those to commit next; an empty list: the calling thread must end."""
        at_once = AT_ONCE if self._async_flusher.is_supported else 1
        while True:
            with self._lock:
                self._free += 1
                seconds = IDLE_SECONDS
                if self._timers:
                    seconds = min(max(0.0, self._timers[0][0] - time.monotonic()), IDLE_SECONDS)
            try:
                first, is_idle = self._ready.get(timeout=seconds), False
            except queue.Empty:
                first, is_idle = None, True
            finally:
                with self._lock:
                    self._free -= 1
            with self._lock:
                while self._timers and self._timers[0][0] <= time.monotonic():
                    self._ready.put(heapq.heappop(self._timers)[2])
                    is_idle = False
                if is_idle and self._ready.empty() and (self._free or not self._timers):
                    self._threads -= 1
                    return []
                taken = [] if first is None else [first]
                with suppress(queue.Empty):
                    while len(taken) < at_once:
                        if (item := self._ready.get_nowait()) is not None:
                            taken.append(item)
                if taken:
                    self._start_thread_if_needed()
                    return taken

    @property
    def _async_flusher(self) -> AsyncFlusher:
        return self._flushes or kernel_flushes()

    def _commit_queues(self, taken: list[AppendQueue]) -> None:
        flushes = [
            (descriptor, item.complete_flush) for item in taken if (descriptor := item.begin_commit()) is not None
        ]
        begun = 0
        if len(flushes) > 1 or self._flushing >= self._most // 2:
            begun = self._async_flusher.begin_flushes(flushes)
        for descriptor, end in flushes[begun:]:
            with self._lock:
                self._flushing += 1
                self._start_thread_if_needed()
            error: BaseException | None = None
            try:
                os.fdatasync(descriptor)
            except BaseException as raised:
                error = raised
            finally:
                with self._lock:
                    self._flushing -= 1
            end(error)
