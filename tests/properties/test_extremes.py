"""Shapes at the edge: huge messages, one message, one key, a million null keys. On Spark, as users run them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.engines.engine import Engine
from storage.log.bulk_append import INPUT_SCHEMA
from tests.workbench import Workbench, compacted_only, content, ids, raw

MIB = 1 << 20


@pytest.fixture
def bench(tmp_path: Path, spark_engine: Engine) -> Iterator[Workbench]:
    bench = Workbench.embedded(tmp_path, spark_engine, sizing=None)
    yield bench
    bench.metadata.close()


def huge(number: int) -> bytes:
    """5 MiB that differ for each number; compressible, so that the test is about memory and not about the disk."""
    return number.to_bytes(8, "big") * (5 * MIB // 8)


@pytest.mark.slow
def test_440_messages_of_5_mib(bench: Workbench) -> None:
    """More bytes than a binary Arrow column can hold, in the import, in phase two and in a reader."""
    topic = bench.topic()
    messages = ((b"key-%d" % (number % 420), huge(number)) for number in range(440))
    appended = topic.bulk_append().append(content(message) for message in messages)
    assert appended.messages == 440
    assert appended.logical_bytes > 440 * 5 * MIB > 420 * 5 * MIB > 1 << 31
    assert max(ledger.logical_bytes for ledger in appended.ledgers) <= 128 * MIB

    bench.compact(topic)

    seen = []
    for message in topic.messages(read_compacted=True):
        assert message.payload == huge(message.offset)
        assert message.key == b"key-%d" % (message.offset % 420)
        seen.append(message.offset)
    assert seen == list(range(20, 440))


def test_a_topic_of_one_message(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"k", b"v"))])
    bench.compact(topic)
    assert compacted_only(topic) == raw(topic)


def test_a_topic_with_one_key(bench: Workbench) -> None:
    """100,000 updates of one key in many ledgers: one survives."""
    topic = bench.topic()
    updates = [content(*((b"k", b"%d" % (n * 1000 + i)) for i in range(1000))) for n in range(100)]
    topic.bulk_append(ledger_bytes=50_000).append(updates)
    bench.compact(topic)
    (survivor,) = compacted_only(topic)
    assert survivor.payload == b"99999"
    assert survivor.offset == 99_999


@pytest.mark.parametrize("retain_null_key", [False, True])
def test_a_million_null_keys(bench: Workbench, retain_null_key: bool) -> None:
    """P6: all of them go, or all of them stay, around one key that is updated; also in the run after."""
    topic = bench.topic()
    million = pa.table(
        {
            "key": pa.array([b"k" if n % 250_000 == 0 else None for n in range(1_000_000)], pa.binary()),
            "payload": pa.array([b"x"] * 1_000_000, pa.binary()),
            **{name: pa.nulls(1_000_000, INPUT_SCHEMA.field(name).type) for name in INPUT_SCHEMA.names[2:]},
        },
        schema=INPUT_SCHEMA,
    )
    topic.bulk_append(ledger_bytes=300_000).append([million])
    bench.compact(topic, retain_null_key)
    expected = [n for n in range(1_000_000) if n == 750_000 or (retain_null_key and n % 250_000)]
    assert offsets(bench, topic.name.topic) == expected

    topic.bulk_append().append([content((b"k", b"newer"), (None, b"y"))])
    bench.compact(topic, retain_null_key)
    later = [1_000_000, 1_000_001] if retain_null_key else [1_000_000]
    assert offsets(bench, topic.name.topic) == [n for n in expected if n != 750_000] + later


def offsets(bench: Workbench, name: str) -> list[int]:
    batches = bench.topic(name).read(read_compacted=True)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_partitioned_name_gives_ids_with_its_partition(bench: Workbench) -> None:
    topic = bench.topic("tenant/ns/events-partition-3")
    bench.append(topic, [content((b"a", b"1"), (b"a", b"2"))])
    bench.compact(topic)
    assert [str(i) for i in ids(topic.messages(read_compacted=True))] == ["1:1:3"]
    assert str(topic.last_message_id(read_compacted=True)) == "1:1:3"
    assert str(topic.last_message_id()) == "1:1:3"
