"""Many topics that append at the same time, with a disk that takes a while for each flush.

Each topic has one producer with one message in flight, in one event loop, over open logs: the path of the gateway
without its connections. `--spread-ms` spreads the appends evenly over a time; 0: all begin at the same moment.
`--flush-ms` adds time to each flush of a file; the flushes of different files overlap, as on a
disk that takes many requests at once. 0: the disk as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from pathlib import Path
from queue import SimpleQueue
from unittest import mock

from api.broker.refusals import PoolBusy
from api.broker.serving.logs import HeldLog, TopicLogs
from api.broker.threads import LoopResult, Pool, WaitsFor
from benchmarks import machine
from benchmarks.log import batch_entry
from storage.clock import SystemClock
from storage.environment import Environment
from storage.errors import CompactorError
from storage.log.directory import LogDirectory
from storage.log.group_commit import AppendOutcome
from storage.log.kernel_flushes import FlushEnd, KernelFlushes
from storage.log.lease_renewer import LeaseRenewer
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.registry import open_store
from storage.topic import Topic

THREADS = 40


class SlowFlushes:
    """Time that is added to each flush, without a thread for each."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._ends: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._fdatasync, self._begin = os.fdatasync, KernelFlushes.begin_flushes
        threading.Thread(target=self._run, daemon=True).start()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Delay the flushes of this process inside the context."""
        begin = lambda flushes, files: self._begun(flushes, files)  # noqa: E731 - a method of the class
        with mock.patch.object(os, "fdatasync", self._flush), mock.patch.object(KernelFlushes, "begin_flushes", begin):
            yield

    def _flush(self, descriptor: int) -> None:
        self._fdatasync(descriptor)
        time.sleep(self._seconds)

    def _begun(self, flushes: KernelFlushes, files: Sequence[tuple[int, FlushEnd]]) -> int:
        return self._begin(flushes, [(descriptor, partial(self._end, end)) for descriptor, end in files])

    def _end(self, end: FlushEnd, error: OSError | None) -> None:
        with self._changed:
            self._count += 1
            later: Callable[[], object] = partial(end, error)
            heapq.heappush(self._ends, (time.monotonic() + self._seconds, self._count, later))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._ends or self._ends[0][0] > time.monotonic():
                    self._changed.wait(self._ends[0][0] - time.monotonic() if self._ends else None)
                _, _, end = heapq.heappop(self._ends)
            end()


class Bench:
    """Topics with open logs, below one folder."""

    def __init__(self, folder: Path, topics: int) -> None:
        clock = SystemClock()
        metadata = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", clock)
        metadata.upgrade()
        store = open_store((folder / "objects").as_uri())
        environment = Environment(metadata, store, clock, LogDirectory(folder / "log"))
        self._clock = clock
        self._entry = batch_entry(1, 1000)
        self._leases = LeaseRenewer(metadata)
        self._leases.__enter__()
        self._logs = TopicLogs(clock, topics + 1, 3_600_000, watch=self._leases)
        self._held: list[HeldLog] = []
        for number in range(topics):
            topic = Topic(environment, metadata.tenancy.ensure_topic(TopicName.parse(f"t-{number}")))
            self._held.append(self._logs.hold(topic))
            answered: SimpleQueue[list[AppendOutcome]] = SimpleQueue()
            self._held[-1].new_append([self._entry], [""], answered.put).submit_remaining()  # opens the segment
            answered.get()

    def close(self) -> None:
        """Close the logs."""
        for held in self._held:
            held.release()
        self._logs.drain_and_close()
        self._leases.__exit__(None, None, None)

    async def appended(self, spread_seconds: float) -> tuple[list[float], int, int]:
        """Append to all topics, evenly spread over a time. Return the sorted latencies in ms, the largest number of
        threads of the process, and the number of refusals."""
        pool = Pool(WaitsFor.LOG, THREADS, None, self._clock)
        latencies: list[float] = []
        threads = refusals = 0

        async def append(number: int, held: HeldLog) -> None:
            nonlocal threads, refusals
            if spread_seconds:
                await asyncio.sleep(spread_seconds * number / len(self._held))
            started = time.perf_counter()
            result = LoopResult[list[AppendOutcome]]()
            append = held.new_append([self._entry], [""], result.deliver)
            try:
                if not append.submit_without_waiting():
                    await pool.run_without_deadline_or_queue_limit(append.submit_remaining)
                (answer,) = await result.future
                refusals += isinstance(answer, CompactorError)
            except PoolBusy:
                refusals += 1
            latencies.append((time.perf_counter() - started) * 1000)
            if len(latencies) % 50 == 1:
                threads = max(threads, threading.active_count())

        await asyncio.gather(*(append(number, held) for number, held in enumerate(self._held)))
        pool.close()
        return sorted(latencies), threads, refusals


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code: 1 if an append was refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks appends", description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--flush-ms", type=float, nargs="+", default=[0, 80], help="added to each flush")
    parser.add_argument("--spread-ms", type=float, nargs="+", default=[0, 1000], help="time over which appends begin")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to write; it should be on the disk to measure")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="appends-benchmark-", dir=chosen.folder))
    refused = 0
    try:
        print(machine.summary(machine.describe(folder)), end="\n\n")
        print("| topics | spread, ms | flush, ms more | p50, ms | p99, ms (by round) | CPU, ms | threads | refused |")
        print("|---:|---:|---:|---:|---:|---:|---:|---:|")
        for number, topics in enumerate(chosen.topics):
            place = folder / str(number)
            place.mkdir()
            bench = Bench(place, topics)
            for spread_ms, flush_ms in product(chosen.spread_ms, chosen.flush_ms):
                slow = SlowFlushes(flush_ms / 1000) if flush_ms else None
                latencies = _measured(bench, spread_ms / 1000, slow, chosen.rounds)
                refused += latencies.refusals
                print(f"| {topics:,} | {spread_ms:g} | {flush_ms:g} | {latencies} |", flush=True)
            bench.close()
    finally:
        shutil.rmtree(folder)
    return int(refused > 0)


@dataclass
class Latencies:
    """The figures of one line, in ms. `by_round`: the sorted latencies of each round."""

    by_round: list[list[float]] = field(default_factory=list)
    cpu_ms: float = 0.0
    threads: int = 0
    refusals: int = 0

    def __str__(self) -> str:
        everything = sorted(chain(*self.by_round))
        p99s = [_share(latencies, 0.99) for latencies in self.by_round]
        return (
            f"{_share(everything, 0.5):.0f} | {_share(everything, 0.99):.0f} ({min(p99s):.0f}–{max(p99s):.0f}) "
            f"| {self.cpu_ms / len(self.by_round):.0f} | {self.threads} | {self.refusals}"
        )


def _share(ascending: Sequence[float], share: float) -> float:
    return ascending[int(len(ascending) * share)]


def _measured(bench: Bench, spread_seconds: float, slow: SlowFlushes | None, rounds: int) -> Latencies:
    """Append in `rounds` rounds, and return the figures."""
    result = Latencies()
    for _ in range(rounds):
        used = time.process_time()
        with slow.in_force() if slow else nullcontext():
            latencies, threads, refused = asyncio.run(bench.appended(spread_seconds))
        result.cpu_ms += (time.process_time() - used) * 1000
        result.by_round.append(latencies)
        result.threads, result.refusals = max(result.threads, threads), result.refusals + refused
    return result
