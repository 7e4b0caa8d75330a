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

from storage.log.kernel_flushes import FlushEnd, kernel_flushes

THREADS = 16
"""The default of the largest number of threads."""
AT_ONCE = 32
"""The segments that a thread takes together."""
IDLE_SECONDS = 5.0
"""The time without work after which a thread ends."""


class AppendQueue(Protocol):
    """A queue of appends to one file."""

    def begin(self) -> int | None:
        """Write what waits. Return the descriptor of the file if it must be flushed: then `end_flush` follows, and
        nothing else is written before. Raises nothing."""

    def end_flush(self, error: BaseException | None) -> None:
        """Note the end of the flush. Must be quick. Raises nothing."""


class Flushes(Protocol):
    """Flushes that end by themselves (kernel_flushes.py)."""

    @property
    def is_possible(self) -> bool:
        """True if `begin` may begin any."""

    def begin(self, flushes: Sequence[tuple[int, FlushEnd]]) -> int:
        """Begin to flush files; return how many were begun, the first ones. The others are left to the caller."""


class Committers:
    """The committing threads. Thread-safe."""

    def __init__(self, threads: int = THREADS, flushes: Flushes | None = None) -> None:
        """`threads`: the largest number. `flushes` None: those of this process."""
        self._most = threads
        self._flushes = flushes
        self._forget()

    def _forget(self) -> None:
        """Forget all: a process that was forked has none of the threads."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[AppendQueue | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, AppendQueue]] = []
        self._numbers = itertools.count()
        self._threads = self._free = self._flushing = 0

    def put(self, appends: AppendQueue) -> None:
        """Commit what waits in a queue, after the queues that were put before. The caller puts a queue once."""
        self._check_process()
        self._ready.put(appends)
        with self._lock:
            self._ensure_thread()

    def commit(self, appends: AppendQueue) -> None:
        """Commit what waits in a queue, in this thread, as one of the committing threads does."""
        self._check_process()
        self._commit([appends])

    def put_at(self, at: float, appends: AppendQueue) -> None:
        """Put a queue at a time of `time.monotonic`."""
        self._check_process()
        with self._lock:
            heapq.heappush(self._timers, (at, next(self._numbers), appends))
            if self._timers[0][2] is appends:
                self._ready.put(None)  # a waiting thread waits no longer than until then
            self._ensure_thread()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._forget()

    def _ensure_thread(self) -> None:
        """Start a thread if none is free and those that do not wait for a disk have much to do. For the holder of the
        lock."""
        working = max(0, self._threads - self._flushing)
        if not self._free and self._threads < self._most and self._ready.qsize() > working * AT_ONCE:
            try:
                threading.Thread(target=self._run, name="commit", daemon=True).start()
            except RuntimeError:  # the limit of threads
                if not self._threads:
                    raise
            else:
                self._threads += 1

    def _run(self) -> None:
        try:
            while taken := self._take():
                self._commit(taken)
                del taken  # a queue that ended is not kept while the thread waits
        except BaseException:  # a defect: another thread takes this one's place
            with self._lock:
                self._threads -= 1
                self._ensure_thread()
            raise

    def _take(self) -> list[AppendQueue]:
        """Return the queues to commit next; none: the thread ends."""
        at_once = AT_ONCE if self._kernel.is_possible else 1
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
                    self._ensure_thread()
                    return taken

    @property
    def _kernel(self) -> Flushes:
        return self._flushes or kernel_flushes()

    def _commit(self, taken: list[AppendQueue]) -> None:
        flushes = [(descriptor, item.end_flush) for item in taken if (descriptor := item.begin()) is not None]
        begun = 0
        if len(flushes) > 1 or self._flushing >= self._most // 2:
            begun = self._kernel.begin(flushes)
        for descriptor, end in flushes[begun:]:
            with self._lock:
                self._flushing += 1
                self._ensure_thread()
            error: BaseException | None = None
            try:
                os.fdatasync(descriptor)
            except BaseException as raised:
                error = raised
            finally:
                with self._lock:
                    self._flushing -= 1
            end(error)
