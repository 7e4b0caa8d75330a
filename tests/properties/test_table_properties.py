"""Any history of runs: after each, other programs read from the topic's Iceberg table what its own reader delivers.

Each life appends messages with and without keys, tombstones and event times, lets time go by, and compacts with
policies and sizes of its own, so that parts are kept with more superseded rows, merged, rewritten and dropped. Every
snapshot that the table lists is read again at the end, after garbage collection.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.run.plan import RunPolicies, Sizing
from storage.ledger.manifest import Manifest
from storage.log.bulk_append import INPUT_SCHEMA
from storage.topic import Topic
from tests.budgets import IN_CI, IN_SOAK
from tests.tables import READERS, Rows, expected, manifest_of, table_uri
from tests.workbench import Workbench

LIVES = 200 if IN_SOAK else 8 if IN_CI else 1
RUNS = 6


def append(bench: Workbench, topic: Topic, drawn: random.Random) -> None:
    """Append up to 40 messages, often of the same few keys."""
    now = bench.clock.now_ms()
    messages = [
        {
            "key": drawn.choice([None, *(b"%d" % number for number in range(drawn.choice([3, 12, 60])))]),
            "payload": drawn.choice([None, b"", *[b"\x00\xff" * drawn.randrange(1, 9)] * 6]),
            "publish_time": now - drawn.randrange(50),
            "event_time": drawn.choice([None, now + drawn.randrange(-90, 90)]),
            "properties": drawn.choice([None, [], [("a", "1"), ("b", "")]]),
        }
        for _ in range(drawn.choice([0, 1, 12, 40]))
    ]
    if messages:
        table = pa.Table.from_pylist(messages, schema=INPUT_SCHEMA)
        bench.append(topic, [table], ledger_bytes=drawn.choice([1, 100, 1 << 20]))


def draw_policies(drawn: random.Random, version: int) -> RunPolicies:
    return RunPolicies(
        retain_null_key=drawn.random() < 0.7,
        tombstone_retention_ms=drawn.choice([0, 60, 10_000]),
        key_ttl_ms=drawn.choice([None, None, 40, 120]),
        event_time_order=drawn.random() < 0.3,
        retention_ms=drawn.choice([None, None, None, 100]),
        table_format_version=version,
    )


def draw_sizing(drawn: random.Random) -> Sizing:
    part_bytes = drawn.choice([1, 3000, 8000, 1 << 20])
    return Sizing(2, 8, part_bytes, small_range_records=1, small_part_bytes=1, max_garbage_ratio=drawn.random())


def live(bench: Workbench, topic: Topic, seed: int, version: int) -> Iterator[Manifest]:
    """Append and compact some times; yield the manifest after each run."""
    drawn = random.Random(seed)
    policies = draw_policies(drawn, version)
    for _ in range(RUNS):
        append(bench, topic, drawn)
        bench.clock.advance(drawn.choice([0, 5, 50, 200]))
        if drawn.random() < 0.3:
            policies = draw_policies(drawn, version)
        outcome = bench.with_sizing(draw_sizing(drawn)).compactor().compact(topic.name, policies)
        if topic.snapshot().compacted is None or outcome.run is None:
            continue
        manifest = manifest_of(bench, topic)
        assert manifest.table is not None, outcome.run.iceberg_table_error
        assert manifest.table.ledger_id == manifest.ledger_id
        yield manifest


@pytest.mark.parametrize("seed", range(LIVES))
def test_the_table_is_the_compacted_ledger_after_any_runs(tmp_path: Path, seed: int) -> None:
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    snapshots: dict[int, Rows] = {}
    for manifest in live(bench, topic, seed, 2 if seed % 3 == 2 else 3):
        snapshots[manifest.ledger_id] = rows = expected(topic)
        for reader, read in READERS.items():
            assert read(table_uri(bench, topic)) == rows, reader
    bench.clock.advance(2 * GRACE_MS)
    GarbageCollector(bench).collect(topic.record)
    if snapshots:
        assert manifest_of(bench, topic).table is not None
        for snapshot_id, rows in snapshots.items():
            assert READERS["pyiceberg"](table_uri(bench, topic), snapshot_id) == rows
    bench.metadata.close()
