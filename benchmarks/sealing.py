"""Time of sealing on one core: entries of the log to rows, and rows to a ledger with its key index.

The entries are batches of 1,000 messages of 100 bytes with text keys. The time excludes the read of the segment.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks import machine
from storage.entries.decode import StoredEntry, unpack
from storage.entries.encode import encode_batch
from storage.entries.entry import inspect
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.rows import CompressionType
from storage.ledger.sealing import Sealer
from storage.log.bulk_append import INPUT_SCHEMA
from storage.objects.registry import open_store

BATCH_MESSAGES = 1_000
PAYLOAD_BYTES = 100
NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Unpacked:
    """Times of one segment's entries, in seconds."""

    codec: CompressionType
    messages: int
    unpack_seconds: float
    seal_seconds: float

    @property
    def messages_per_second(self) -> float:
        """The rate of both steps together."""
        return self.messages / (self.unpack_seconds + self.seal_seconds)


def run(
    messages: int = 500_000, codecs: tuple[CompressionType, ...] = (CompressionType.NONE, CompressionType.LZ4)
) -> list[Unpacked]:
    """Unpack and seal `messages` messages in each codec, once for warm-up and once for the result."""
    pa.set_cpu_count(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # polars has threads of its own
    results = []
    for codec in codecs:
        entries = make_entries(messages, codec)
        for counted in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                store = open_store(Path(folder).as_uri())
                sealer = Sealer(store, "0" * 32, -1, Xxh3KeyHasher(1), "1" * 32)
                started = time.perf_counter()
                table = unpack(entries, 1)
                unpacked = time.perf_counter()
                sealer.seal([table], 1, NOW)
                sealed = time.perf_counter()
                store.close()
            if counted:
                results.append(Unpacked(codec, len(table), unpacked - started, sealed - unpacked))
    return results


def make_entries(messages: int, codec: CompressionType) -> list[StoredEntry]:
    """Return batches of `messages` messages in all, with a tenth as many keys."""
    random = np.random.default_rng(7)
    entries = []
    for number in range(messages // BATCH_MESSAGES):
        keys = [b"key-%08d" % key for key in random.integers(0, messages // 10, BATCH_MESSAGES)]
        payloads = [random.bytes(PAYLOAD_BYTES // 2).hex().encode() for _ in keys]
        table = pa.table({"key": keys, "payload": payloads}).cast(pa.schema([INPUT_SCHEMA.field(i) for i in range(2)]))
        for field in list(INPUT_SCHEMA)[2:]:
            table = table.append_column(field, pa.nulls(len(keys), field.type))
        data = encode_batch(
            table, producer="benchmark", first_sequence_id=number * BATCH_MESSAGES, publish_time=NOW, codec=codec
        )
        entries.append(StoredEntry(number, number * BATCH_MESSAGES, data, inspect(data)))
    return entries


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sealing", description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    print(machine.summary(machine.describe(Path(tempfile.gettempdir()))), end="\n\n")
    rates: dict[CompressionType, list[float]] = {}
    for _ in range(chosen.rounds):
        for result in run(chosen.messages):
            rates.setdefault(result.codec, []).append(result.messages_per_second)
    print("| entries | messages/s on one core, median | min–max |\n|---|---:|---:|")
    for codec, values in rates.items():
        print(f"| {codec.name} | {median(values):,.0f} | {min(values):,.0f}–{max(values):,.0f} |")
    return 0
