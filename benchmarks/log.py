"""The log beside its disk: appends with and without a flush each, group commit, reading.

Appends take the path of a producer's: topic log, lease, policies, limits, checks of each entry.

The ways of a pair do the same work in turn, round after round, in the same run, so that other load of the machine
affects both. Figures are medians with their range; ratios are computed within rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks import machine
from storage.clock import SystemClock
from storage.entries.decode import StoredEntry
from storage.entries.encode import encode_batch
from storage.environment import Environment
from storage.ledger.rows import CompressionType
from storage.log.bulk_append import INPUT_SCHEMA
from storage.log.directory import LogDirectory
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.log.topic_log import TopicLog
from storage.metadata.policy_store import BROKER, topic_scope
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.registry import open_store

BATCH_MESSAGES = 1000
MESSAGE_BYTES = 100
TASKS = 64
PUBLISHED = 1_700_000_000_000
_MB = 1e6


@dataclass(eq=False)
class Figure:
    """Rates of one way, by round."""

    name: str
    unit: str
    rates: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"| {self.name} | {median(self.rates):,.0f} {self.unit} | {min(self.rates):,.0f}–{max(self.rates):,.0f} |"
        )


def batch_entry(messages: int, size: int) -> bytes:
    """Return an entry like a producer's: a batch of random payloads of that size."""
    rows = [{"key": b"key-%d" % n, "payload": os.urandom(size), "publish_time": PUBLISHED} for n in range(messages)]
    table = pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)
    return encode_batch(
        table, producer="benchmark", first_sequence_id=0, publish_time=PUBLISHED, codec=CompressionType.NONE
    )


class Bench:
    """Database and log directory below one folder. Each measurement has a new topic."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", SystemClock())
        self._metadata.upgrade()
        self._metadata.policies.change([BROKER], {"segment.bytes": (1 << 31) - 1})
        self._log = LogDirectory(folder / "log")
        store = open_store((folder / "objects").as_uri())
        self._environment = Environment(self._metadata, store, SystemClock(), self._log)
        self._next = 0

    @contextmanager
    def appending(self, flush: bool) -> Iterator[tuple[TopicLog, TopicRecord]]:
        """Open the log of a new topic, with its lease."""
        self._next += 1
        topic = self._metadata.tenancy.ensure_topic(TopicName.parse(f"t{self._next}"))
        self._metadata.policies.change([topic_scope(topic)], {"flush.messages": 1 if flush else 2**62})
        with TopicLog(self._environment, topic, f"benchmark-{self._next}") as log:
            yield log, topic

    def entries(self, topic: TopicRecord) -> Iterator[StoredEntry]:
        """Yield the entries of all segments of the topic."""
        for segment in self._metadata.segments.of_topic(topic.id):
            end = segment.content.size if segment.content else None
            yield from SegmentReader(LocalSegment.from_row(self._log, topic, segment), end).entries()

    def plain(self, blocks: list[bytes], flush: bool) -> float:
        """Return the seconds to write the blocks into a new file, one call each, with or without a flush after each."""
        path = self._folder / "plain"
        started = time.perf_counter()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        for block in blocks:
            os.write(descriptor, block)
            if flush:
                os.fdatasync(descriptor)
        os.close(descriptor)
        seconds = time.perf_counter() - started
        path.unlink()
        return seconds

    def appended(self, entries: list[bytes], flush: bool) -> float:
        """Return the seconds to append the entries to a new topic, each acknowledged before the next."""
        with self.appending(flush) as (log, topic):
            log.append(entries[0])  # creates the segment
            started = time.perf_counter()
            for entry in entries:
                log.append(entry)
            seconds = time.perf_counter() - started
        shutil.rmtree(self._log.topic_folder(topic.uid))
        return seconds

    def pipelined(self, entries: list[bytes]) -> float:
        """Return the seconds to append the entries without waiting, each acknowledged after its flush."""
        acknowledged = threading.Semaphore(0)
        with self.appending(flush=True) as (log, topic):
            log.append(entries[0])
            started = time.perf_counter()
            for entry in entries:
                log.submit(entry, lambda answer: acknowledged.release())
            for _ in entries:
                acknowledged.acquire()
            seconds = time.perf_counter() - started
        shutil.rmtree(self._log.topic_folder(topic.uid))
        return seconds

    def by_tasks(self, entry: bytes, appends: int) -> float:
        """Return the seconds for the appends of `TASKS` tasks in one event loop, each waiting for its last append."""

        async def main(log: TopicLog) -> float:
            loop = asyncio.get_running_loop()

            async def task() -> None:
                for _ in range(appends // TASKS):
                    acknowledged: asyncio.Future[object] = loop.create_future()

                    def done(result: object, future: asyncio.Future[object] = acknowledged) -> None:
                        loop.call_soon_threadsafe(future.set_result, result)

                    log.submit(entry, done)
                    await acknowledged

            started = time.perf_counter()
            await asyncio.gather(*(task() for _ in range(TASKS)))
            return time.perf_counter() - started

        with self.appending(flush=True) as (log, topic):
            log.append(entry)
            seconds = asyncio.run(main(log))
        shutil.rmtree(self._log.topic_folder(topic.uid))
        return seconds


def measure(rounds: int, ways: dict[Figure, Callable[[], float]]) -> None:
    """Run each way once per round, in turn. A way returns its rate. The first round is the warm-up."""
    for number in range(rounds + 1):
        os.sync()  # the next way must not pay for earlier writes
        for figure, way in ways.items():
            rate = way()
            if number:
                figure.rates.append(rate)


def ratio(figure: Figure, base: Figure) -> str:
    """Return the median and range of the ratio of two rates, round by round."""
    ratios = [rate / base_rate for rate, base_rate in zip(figure.rates, base.rates, strict=True)]
    return f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def run(folder: Path, rounds: int = 7, megabytes: int = 240) -> list[str]:
    """Run all measurements. Return lines of Markdown."""
    bench = Bench(folder)
    large = batch_entry(BATCH_MESSAGES, MESSAGE_BYTES)
    small = batch_entry(1, 1024)
    many = [large] * max(1, int(megabytes * _MB) // len(large))
    few = many[: max(1, len(many) // 4)]
    single = [small] * 2000

    def rate(entries: list[bytes], seconds: float) -> float:
        return len(entries) * len(entries[0]) / seconds / _MB

    size = f"{len(large) / 1000:.0f} kB"
    log_cached = Figure(f"append, batches of {BATCH_MESSAGES:,} × {MESSAGE_BYTES} B ({size}), not flushed", "MB/s")
    plain_cached = Figure(f"plain write of the same bytes, {size} a call", "MB/s")
    measure(
        rounds,
        {
            log_cached: lambda: rate(many, bench.appended(many, flush=False)),
            plain_cached: lambda: rate(many, bench.plain(many, flush=False)),
        },
    )
    log_flushed = Figure(f"append, the same batches, each flushed before it is acknowledged ({size})", "MB/s")
    log_pipelined = Figure("the same, sent without waiting for each acknowledgement", "MB/s")
    plain_flushed = Figure("plain write and fdatasync of the same bytes", "MB/s")
    measure(
        rounds,
        {
            log_pipelined: lambda: rate(few, bench.pipelined(few)),
            log_flushed: lambda: rate(few, bench.appended(few, flush=True)),
            plain_flushed: lambda: rate(few, bench.plain(few, flush=True)),
        },
    )
    grouped = Figure(f"append, 1 KiB, {TASKS} tasks, group commit", "entries/s")
    alone = Figure("append, 1 KiB, one after the other, each flushed", "entries/s")
    plain_alone = Figure("plain write and fdatasync, 1 KiB", "entries/s")
    appends = TASKS * 200
    measure(
        rounds,
        {
            grouped: lambda: appends / bench.by_tasks(small, appends),
            alone: lambda: len(single) / bench.appended(single, flush=True),
            plain_alone: lambda: len(single) / bench.plain(single, flush=True),
        },
    )
    reading = Figure(f"sequential read of the tail, {size} entries, checked", "MB/s")
    with bench.appending(flush=False) as (log, topic):
        for entry in many:
            log.append(entry)

        def read() -> float:
            started = time.perf_counter()
            total = sum(len(stored.data) for stored in bench.entries(topic))
            assert total == sum(map(len, many))
            return total / (time.perf_counter() - started) / _MB

        measure(rounds, {reading: read})
    figures = [
        log_cached,
        plain_cached,
        log_flushed,
        log_pipelined,
        plain_flushed,
        grouped,
        alone,
        plain_alone,
        reading,
    ]
    return [
        "| what | median | min–max |",
        "|---|---:|---:|",
        *map(str, figures),
        "",
        f"Without flushes, over the plain write: {ratio(log_cached, plain_cached)}. "
        f"With them, over write and fdatasync: {ratio(log_flushed, plain_flushed)} one by one, "
        f"{ratio(log_pipelined, plain_flushed)} without waiting.",
        f"Group commit over one flush each through the log: {ratio(grouped, alone)}; over the plain file's: "
        f"{ratio(grouped, plain_alone)}.",
    ]


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks log", description=__doc__)
    parser.add_argument("--folder", help="where to write; it should be on the disk to measure")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=200, help="written and read in each round")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="log-benchmark-", dir=chosen.folder))
    try:
        print(machine.summary(machine.describe(folder)), end="\n\n")
        print("\n".join(run(folder, chosen.rounds, chosen.megabytes)))
    finally:
        shutil.rmtree(folder)
    return 0
