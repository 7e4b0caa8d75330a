"""A store with a limit on the bytes per second of background work (C4).

Each byte takes its share of a second, and a call waits for its own bytes before it moves them. Unused time is not
saved, so a pause is not followed by a burst, and a thousand tasks of one request each keep the limit, too. A run
divides its limit among its concurrent tasks: their sum keeps it, and a task that runs alone gets its share.

A task that cannot be killed, because it runs in the process of its caller, is stopped here: once `stop` is set, every
read and write, also one that waits for its turn, raises Fenced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from storage.clock import Clock
from storage.errors import Fenced
from storage.objects.interface import ObjectInfo, ObjectStore, ObjectWriter, StoreLocation

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from storage.objects.capability_check import CapabilityReport


_HEARS_SECONDS = 0.5
"""The interval at which a waiting task checks whether it is stopped."""


@dataclass(frozen=True)
class RateLimits:
    """The most bytes per second to read and to write; None: no limit."""

    read: int | None = None
    write: int | None = None

    def shared_by(self, tasks: int) -> RateLimits:
        """Return the share of one of `tasks` concurrent tasks, at least 1 byte per second."""
        return RateLimits(*(None if rate is None else max(1, rate // tasks) for rate in (self.read, self.write)))


class RateLimiter:
    """A limiter of the bytes per second of reads, or of writes. `bytes_per_second` None: no limit. Thread-safe.

    Once `stop` is set, no more bytes may be spent.
    """

    def __init__(self, clock: Clock, bytes_per_second: int | None, stop: threading.Event | None = None) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._stop = stop
        self._free_at = 0.0
        self._lock = threading.Lock()

    def spend(self, size: int) -> None:
        """Wait until `size` more bytes are within the rate. Raises Fenced once `stop` is set."""
        if self._stop is not None and self._stop.is_set():
            raise stopped_error()
        if self._rate is None:
            return
        with self._lock:
            now = float(self._clock.now_ms())
            self._free_at = max(self._free_at, now) + 1000.0 * size / self._rate
            seconds = (self._free_at - now) / 1000
        while self._stop is not None and seconds > _HEARS_SECONDS:
            self._clock.wait(_HEARS_SECONDS)
            seconds -= _HEARS_SECONDS
            if self._stop.is_set():
                raise stopped_error()
        self._clock.wait(seconds)


def stopped_error() -> Fenced:
    """Return the error of a task of a cancelled compaction."""
    return Fenced("the compaction was cancelled", "start it again if it is still wanted")


def throttled(store: ObjectStore, rates: RateLimits, clock: Clock, stop: threading.Event | None = None) -> ObjectStore:
    """Return `store` with the limits `rates`, until `stop` is set; `store` itself without limits and without `stop`."""
    return store if rates == RateLimits() and stop is None else ThrottledStore(store, rates, clock, stop)


class ThrottledStore(ObjectStore):
    """An object store that waits as its rates require, for one task and the requests that it sends ahead.

    Reads and writes raise Fenced once `stop` is set, besides the errors of the wrapped store.
    """

    def __init__(
        self, store: ObjectStore, rates: RateLimits, clock: Clock, stop: threading.Event | None = None
    ) -> None:
        self._store = store
        self._reads = RateLimiter(clock, rates.read, stop)
        self._writes = RateLimiter(clock, rates.write, stop)
        self.preferred_read_bytes = store.preferred_read_bytes
        self.concurrent_requests = store.concurrent_requests
        self.can_vanish = store.can_vanish

    @property
    def location(self) -> StoreLocation:
        return self._store.location

    def put(self, name: str, data: Buffer) -> None:
        self._writes.spend(memoryview(data).nbytes)
        self._store.put(name, data)

    def create(self, name: str) -> ObjectWriter:
        return _ThrottledWriter(self._store.create(name), self._writes)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            length = self._store.size(name) - start
        self._reads.spend(length)
        return self._store.get(name, start, length)

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        self._reads.spend(target.nbytes)
        self._store.read_into(name, start, target)

    def size(self, name: str) -> int:
        return self._store.size(name)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def check_capabilities(self) -> CapabilityReport:
        return self._store.check_capabilities()

    def close(self) -> None:
        self._store.close()


class _ThrottledWriter(ObjectWriter):
    """A writer that passes its bytes on to another writer, as fast as the rate limit allows."""

    def __init__(self, target: ObjectWriter, pace: RateLimiter) -> None:
        super().__init__(target.name)
        self._target = target
        self._pace = pace

    def __enter__(self) -> Self:
        self._target.__enter__()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed = True
        self._target.__exit__(kind, error, at)

    def _open(self) -> None:
        return

    def _append(self, view: memoryview) -> None:
        self._pace.spend(view.nbytes)
        self._target.write(view)

    def _commit(self) -> None:
        return

    def _discard(self) -> None:
        return
