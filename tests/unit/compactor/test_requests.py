"""The requests of an incremental run to the store at scale: 8,192 parts, 1,000 dirty ledgers, every request counted.

The parts are objects without a meaning: a run that opened one that it does not write again would fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from compactor.run.plan import RunPolicies, Sizing
from storage.ledger import key_index, names
from storage.ledger.deletion_bitmap import encode_bitmaps, read_deleted_rows
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import HashRange, IndexRecords
from storage.ledger.manifest import Manifest, Part, read_manifest, write_manifest
from storage.metadata.records import AttemptKind, CompactedLedgerRecord
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, RowsObject, StoredObject
from storage.topic import Topic
from tests.counted import CountedStore
from tests.workbench import Workbench, content

pytestmark = pytest.mark.slow

PARTS = 8192
ROWS = 4
"""Rows of each part."""
LEDGERS = 1000
PART_BYTES = 300_000
DELETED_BEFORE = 1 << 10
"""So many parts, spread evenly, have lost their last row before."""


@dataclass(frozen=True)
class World:
    bench: Workbench
    store: CountedStore
    topic: Topic
    manifest: Manifest


def key(number: int) -> bytes:
    return b"key-%d" % number


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A compacted topic of 32,768 keys in 8,192 parts and two levels, and 1,000 ledgers of one message after it.

    Each of these supersedes the first row of another part.
    """
    store = CountedStore(monkeypatch)
    bench = Workbench.embedded(tmp_path)
    store.objects[names.STORE_UID] = bench.store.get(names.STORE_UID)
    bench = replace(bench, store=store)
    topic = bench.topic()
    manifest = publish_compacted(bench, store, topic)
    for number in range(0, LEDGERS, 100):
        tables = [content((key(ROWS * 8 * item), b"new")) for item in range(number, number + 100)]
        topic.bulk_append(ledger_bytes=1).append(tables)
    assert len(topic.snapshot().ledgers) == 1 + LEDGERS
    store.requests.clear()
    yield World(bench, store, topic, manifest)
    bench.metadata.close()


def publish_compacted(bench: Workbench, store: CountedStore, topic: Topic) -> Manifest:
    """Publish what a run leaves, without the contents of its parts and without the raw ledger below the horizon."""
    record, metadata, count = topic.record, bench.metadata, PARTS * ROWS
    ledger_id = metadata.ledgers.allocate_ids(1)
    end = LogPosition(count - 1, MessageId(ledger_id, count - 1))
    attempt = metadata.attempts.begin(record.id, AttemptKind.IMPORT, "test")
    nowhere = StoredObject("nowhere", 1, 0)
    empty = IndexLocation("nowhere", 0, 0, key_index.encode_index(IndexRecords.empty(), HashRange())[1].encode())
    ledger = LedgerRecord(
        ledger_id, 0, count - 1, count, count, end.message_id, count, 0, 0, nowhere, 1, empty, attempt.attempt_id, 0
    )
    lease = metadata.leases.acquire(record.id, "test", 1000)
    metadata.ledgers.append(lease, [ledger])
    metadata.leases.release(lease)

    policies = asdict(RunPolicies())
    run = metadata.runs.claim(record.id, "test", policies, 1000)
    bitmaps = names.bitmaps(record.uid, run.attempt_id, 0)
    data, places = encode_bitmaps(bitmaps, [BitMap([ROWS - 1])] * DELETED_BEFORE)
    store.put(bitmaps, data)
    step = PARTS // DELETED_BEFORE
    content = bytes(PART_BYTES * 2 // 3)
    parts = []
    for number in range(PARTS):
        first, deleted = ROWS * number, places[number // step] if number % step == 0 else None
        live = list(range(first, first + ROWS - (deleted is not None)))
        rows = RowsObject(StoredObject(names.part(record.uid, run.attempt_id, number), len(content), 0), 1)
        store.objects[rows.stored.name] = content
        ends = [LogPosition(offset, MessageId(ledger_id, offset)) for offset in (first, first + ROWS - 1)]
        parts.append(Part(rows, ends[0], ends[1], ROWS, 100, 0, 0, deleted, sum(live)))
    levels = tuple(write_level(bench, topic, run.attempt_id, newer) for newer in (True, False))
    manifest = Manifest(
        str(topic.name),
        record.uid,
        metadata.ledgers.allocate_ids(1),
        1,
        run.run_id,
        0,
        end,
        tuple(parts),
        levels,
        policies=policies,
        keys=count - DELETED_BEFORE,
    )
    stored = write_manifest(store, names.manifest(record.uid, manifest.ledger_id, run.attempt_id), manifest)
    compacted = CompactedLedgerRecord(
        manifest.ledger_id, 1, end, stored, manifest.messages, 1, 1, end.message_id, run.attempt_id, 0
    )
    metadata.publishing.publish(run, 0, compacted, {})
    return manifest


def write_level(bench: Workbench, topic: Topic, attempt_id: str, newer: bool) -> tuple[IndexLocation, ...]:
    """A level with a third of the keys, or with the other two; each in two hash ranges."""
    step = ROWS * (PARTS // DELETED_BEFORE)
    alive = [n for n in range(PARTS * ROWS) if n % step != ROWS - 1 and (n % 3 == 0) == newer]
    hi, lo = Xxh3KeyHasher(topic.record.hash_seed)(pa.array(map(key, alive), pa.binary()))
    order = np.lexsort((lo, hi))
    records = IndexRecords(hi[order], lo[order], np.array(alive, dtype=np.uint64)[order])
    level = []
    for prefix in range(2):
        hash_range = HashRange(prefix, 1)
        data, directory = key_index.encode_index(records.take(hash_range.slice_of(records.hi)), hash_range)
        name = names.compacted_index(topic.record.uid, attempt_id, prefix)
        bench.store.put(name, data)
        level.append(IndexLocation(name, 0, len(data), directory.encode()))
    return tuple(level)


@pytest.mark.parametrize("bits", [pytest.param(0, marks=pytest.mark.soak), 2])
def test_an_incremental_run_asks_for_what_is_dirty_and_a_few_objects_more(world: World, bits: int) -> None:
    """Each dirty ledger: its index once a hash range, and its rows (footer and one row group). All the rest is by hash
    range, by level or by task, whatever the number of parts."""
    records = LEDGERS + PARTS * ROWS - DELETED_BEFORE
    sizing = Sizing(1, part_bytes=PART_BYTES, range_records=-(-records // 2**bits))
    world.bench.with_sizing(sizing).compact(world.topic)
    ranges, levels = 2**bits, 2
    snapshot = world.topic.snapshot()
    assert snapshot.last_run is not None
    assert snapshot.compacted is not None
    statistics = snapshot.last_run.statistics
    assert statistics["hash_ranges"] == ranges
    assert statistics["parts_kept"] == PARTS
    written = int(str(statistics["parts_written"]))
    tasks = written + 1  # one for bitmaps

    counted = world.store.requests
    assert counted["get", "ledger-index"] <= LEDGERS * ranges
    assert counted["get", "ledger-rows"] == 2 * LEDGERS
    assert counted["get", "index"] <= levels * max(2, ranges)
    assert counted["get", "row-sets"] <= tasks * ranges
    assert counted["get", "bitmaps"] == 1
    assert counted["get", "manifest"] == 1
    assert counted["get", "part"] == 0
    assert counted["list", "other"] == 2  # of the two runs that wrote what the manifest names
    assert counted["put", "part"] == written
    assert 1 < written < 30
    assert counted["put", "bitmaps"] == counted["put", "manifest"] == 1
    assert counted["put", "index"] == counted["put", "row-sets"] == counted["delete", "row-sets"] == ranges
    bound = LEDGERS * (ranges + 2) + levels * max(2, ranges) + tasks * (ranges + 1) + 3 * ranges + 5
    assert counted.total() <= bound

    manifest = read_manifest(world.store, snapshot.compacted.manifest)
    assert manifest.messages == world.manifest.messages
    assert manifest.index[1:] == world.manifest.index
    assert list(read_deleted_rows(world.store, manifest.parts[8])) == [0, ROWS - 1]

    # P11 costs nothing at any size
    counted.clear()
    assert world.bench.compact(world.topic).run is None
    assert counted.total() == 0
