"""The threads that commit for all segments: their number, turns, failures, and what they do while a disk hangs."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from storage.log import committers
from storage.log.committers import Committers
from storage.log.kernel_flushes import FlushEnd
from tests.held_kernel import HeldKernel

TIMEOUT = 30.0


class NoKernel:
    """A system without asynchronous flushes."""

    is_supported = False

    def begin_flushes(self, flushes: Sequence[tuple[int, FlushEnd]]) -> int:
        return 0


class Files:
    """`os.fdatasync` of descriptors that need not exist: it ends when `go_on` is set, and fails for some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failing: int) -> None:
        self.begun: SimpleQueue[int] = SimpleQueue()
        self.go_on = threading.Event()
        self.highest = self._count = 0
        self._failing = failing
        self._lock = threading.Lock()
        monkeypatch.setattr(os, "fdatasync", self._flush)

    def _flush(self, descriptor: int) -> None:
        with self._lock:
            self._count += 1
            self.highest = max(self.highest, self._count)
        self.begun.put(descriptor)
        assert self.go_on.wait(TIMEOUT)
        with self._lock:
            self._count -= 1
        if descriptor in self._failing:
            raise OSError(errno.EIO, "the disk fails")


class Waiting:
    """A queue that notes its turns, and the ends of its flushes. `descriptor` None: it needs no flush."""

    def __init__(self, descriptor: int | None, turns: SimpleQueue[int | None], ends: SimpleQueue[object]) -> None:
        self._descriptor = descriptor
        self._turns = turns
        self._ends = ends

    def begin_commit(self) -> int | None:
        self._turns.put(self._descriptor)
        return self._descriptor

    def complete_flush(self, error: BaseException | None) -> None:
        self._ends.put((self._descriptor, error and str(error)))


class Queues:
    """Queues that share a record of turns and ends."""

    def __init__(self) -> None:
        self.turns: SimpleQueue[int | None] = SimpleQueue()
        self.ends: SimpleQueue[object] = SimpleQueue()

    def __getitem__(self, descriptor: int | None) -> Waiting:
        return Waiting(descriptor, self.turns, self.ends)

    def ended(self, count: int) -> list[object]:
        return sorted((self.ends.get(timeout=TIMEOUT) for _ in range(count)), key=str)


def taken(source: SimpleQueue[int | None], count: int) -> list[int | None]:
    return [source.get(timeout=TIMEOUT) for _ in range(count)]


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_a_timer_far_in_the_future_stops_nothing() -> None:
    """Kafka's default of `flush.ms` is 292 million years."""
    threads, turns, ends = Committers(1, NoKernel()), SimpleQueue[int | None](), SimpleQueue[object]()
    threads.enqueue_at(time.monotonic() + 9.2e15, Waiting(None, turns, ends))
    threads.enqueue(Waiting(None, turns, ends))
    assert turns.get(timeout=TIMEOUT) is None


def test_queues_take_turns_in_the_order_in_which_they_were_put(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    files, threads = Files(monkeypatch), Committers(1, NoKernel())
    threads.enqueue(queues[1])
    assert files.begun.get(timeout=TIMEOUT) == 1
    for descriptor in (2, 3, 1, 4):
        threads.enqueue(queues[descriptor])
    files.go_on.set()
    assert taken(queues.turns, 5) == [1, 2, 3, 1, 4]
    assert len(queues.ended(5)) == 5


def test_without_the_kernel_as_many_files_are_flushed_as_there_are_threads(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, threads = Files(monkeypatch), Committers(3, NoKernel())
    for descriptor in range(20):
        threads.enqueue(queues[descriptor])
    for _ in range(3):
        files.begun.get(timeout=TIMEOUT)
    files.go_on.set()
    assert len(set(queues.ended(20))) == 20
    assert files.highest == 3


def test_a_disk_that_hangs_holds_few_threads_and_the_others_go_on(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread of two flushes a file; the kernel has all others, and a queue without a flush has its turn."""
    kernel, files = HeldKernel(), Files(monkeypatch)
    threads = Committers(2, kernel)
    threads.enqueue(queues[0])
    assert files.begun.get(timeout=TIMEOUT) == 0
    before = threading.active_count()
    for descriptor in range(1, 301):
        threads.enqueue(queues[descriptor])
    threads.enqueue(queues[None])
    assert taken(queues.turns, 302)[-1] is None
    assert threading.active_count() <= before + 1
    assert files.highest == 1
    assert queues.ends.empty()
    files.go_on.set()
    for _ in range(300):
        kernel.next()(None)
    assert queues.ended(301) == sorted(((descriptor, None) for descriptor in range(301)), key=str)


def test_what_the_kernel_does_not_take_is_flushed_by_the_thread(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, files = HeldKernel(room=2), Files(monkeypatch)
    threads = Committers(1, kernel)
    for descriptor in range(4):
        threads.enqueue(queues[descriptor])
    files.go_on.set()
    assert [files.begun.get(timeout=TIMEOUT) for _ in range(2)] == [2, 3]
    for _ in range(2):
        kernel.next()(None)
    assert len(queues.ended(4)) == 4


def test_each_queue_learns_of_the_failure_of_its_own_file(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    files, threads = Files(monkeypatch, 1), Committers(1, NoKernel())
    files.go_on.set()
    for descriptor in (0, 1, 2):
        threads.enqueue(queues[descriptor])
    assert queues.ended(3) == [(0, None), (1, f"[Errno {errno.EIO}] the disk fails"), (2, None)]


def test_a_queue_has_its_turn_at_its_time(queues: Queues) -> None:
    threads = Committers(1, NoKernel())
    threads.enqueue_at(time.monotonic() + 3600, queues[None])  # must not hold up the next one
    threads.enqueue_at(time.monotonic() - 1, Waiting(None, queues.turns, queues.ends))
    assert taken(queues.turns, 1) == [None]
    assert queues.turns.empty()


def test_threads_end_when_nothing_comes_and_begin_again(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committers, "IDLE_SECONDS", 0.01)
    before = set(threading.enumerate())
    threads = Committers(1, NoKernel())
    for _ in range(3):
        threads.enqueue(queues[None])
        assert taken(queues.turns, 1) == [None]
        for thread in set(threading.enumerate()) - before:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_a_process_that_was_forked_has_threads_of_its_own(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    files, threads = Files(monkeypatch), Committers(1, NoKernel())
    threads.enqueue(queues[0])
    assert files.begun.get(timeout=TIMEOUT) == 0
    monkeypatch.setattr(os, "getpid", lambda: -1)
    threads.enqueue(queues[1])
    assert files.begun.get(timeout=TIMEOUT) == 1, "the thread of the other process would never take it"
    files.go_on.set()
    assert len(queues.ended(2)) == 2


def test_a_thread_that_cannot_start_leaves_the_work_to_the_others(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, threads = Files(monkeypatch), Committers(2, NoKernel())
    threads.enqueue(queues[0])
    assert files.begun.get(timeout=TIMEOUT) == 0

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", fail)
        threads.enqueue(queues[1])
        with pytest.raises(RuntimeError):
            Committers(1, NoKernel()).enqueue(queues[2])
    files.go_on.set()
    assert queues.ended(2) == [(0, None), (1, None)]
