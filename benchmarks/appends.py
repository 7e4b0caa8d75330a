"""Many topics that append at the same moment, with a disk that takes a while for each flush.

Each topic has one producer with one message in flight, in one event loop, over open logs: the path of the gateway
without its connections. `--flush-ms` adds time to each flush of a file; the flushes of different files overlap, as on a
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
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
GOAL_MS = 150.0


class SlowFlushes:
    """Time that is added to each flush, without a thread for each."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._ends: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._fdatasync, self._begin = os.fdatasync, KernelFlushes.begin
        threading.Thread(target=self._run, daemon=True).start()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Delay the flushes of this process inside the context."""
        begin = lambda flushes, files: self._begun(flushes, files)  # noqa: E731 - a method of the class
        with mock.patch.object(os, "fdatasync", self._flush), mock.patch.object(KernelFlushes, "begin", begin):
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
            self._logs.append(topic, [self._entry])  # opens the segment

    def close(self) -> None:
        """Close the logs."""
        for held in self._held:
            held.release()
        self._logs.drain_and_close()
        self._leases.__exit__(None, None, None)

    async def appended_at_once(self) -> tuple[list[float], int, int]:
        """Append to all topics at the same moment. Return the sorted latencies in ms, the largest number of threads of
        the process, and the number of refusals."""
        pool = Pool(WaitsFor.LOG, THREADS, None, self._clock)
        latencies: list[float] = []
        threads = refusals = 0

        async def append(held: HeldLog) -> None:
            nonlocal threads, refusals
            started = time.perf_counter()
            result = LoopResult[list[AppendOutcome]]()
            appending = held.appending([self._entry], [""], result.deliver)
            try:
                if not appending.begin():
                    await pool.run_queued(appending.finish)
                (answer,) = await result.future
                refusals += isinstance(answer, CompactorError)
            except PoolBusy:
                refusals += 1
            latencies.append((time.perf_counter() - started) * 1000)
            if len(latencies) % 50 == 1:
                threads = max(threads, threading.active_count())

        await asyncio.gather(*map(append, self._held))
        pool.close()
        return sorted(latencies), threads, refusals


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code: 1 if an append was refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks appends", description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--flush-ms", type=float, nargs="+", default=[0, 80], help="added to each flush")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to write; it should be on the disk to measure")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="appends-benchmark-", dir=chosen.folder))
    refused = 0
    try:
        print(machine.summary(machine.describe(folder)), end="\n\n")
        print("| topics at once | added to a flush, ms | p50, ms | p99, ms (by round) | CPU, ms | threads | refused |")
        print("|---:|---:|---:|---:|---:|---:|---:|")
        for number, topics in enumerate(chosen.topics):
            place = folder / str(number)
            place.mkdir()
            bench = Bench(place, topics)
            for flush_ms in chosen.flush_ms:
                slow = SlowFlushes(flush_ms / 1000)
                refused += _measured(bench, topics, flush_ms, slow if flush_ms else None, chosen.rounds)
            bench.close()
    finally:
        shutil.rmtree(folder)
    return int(refused > 0)


def _measured(bench: Bench, topics: int, flush_ms: float, slow: SlowFlushes | None, rounds: int) -> int:
    """Measure one line, and print it. Return the number of refusals."""
    all_latencies: list[float] = []
    last: list[float] = []
    cpu: list[float] = []
    threads = refusals = 0
    for _ in range(rounds):
        used = time.process_time()
        if slow is None:
            latencies, count, refused = asyncio.run(bench.appended_at_once())
        else:
            with slow.in_force():
                latencies, count, refused = asyncio.run(bench.appended_at_once())
        cpu.append((time.process_time() - used) * 1000)
        all_latencies += latencies
        last.append(latencies[int(len(latencies) * 0.99)])
        threads, refusals = max(threads, count), refusals + refused
    all_latencies.sort()
    p50, p99 = (all_latencies[int(len(all_latencies) * share)] for share in (0.5, 0.99))
    print(
        f"| {topics:,} | {flush_ms:g} | {p50:.0f} | {p99:.0f} ({min(last):.0f}–{max(last):.0f}) "
        f"| {sum(cpu) / rounds:.0f} | {threads} | {refusals} |",
        flush=True,
    )
    return refusals
