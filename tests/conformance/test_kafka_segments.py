"""Segments of real brokers: each record as Kafka's own tools and consumers read it, and the compacted topic.

../shared/data/kafka-segments: closed segments of a broker before and after cleaning, with all their records.
recorded_kafka: segments with every codec, transactions, headers and both kinds of timestamps, recorded from a broker
with what its Java consumer reads (RecordKafka.java), and files of the formats 0 and 1 by Kafka's own builder.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from api.formats.input_files import open_paths
from api.formats.inputs import EmptyValues
from api.formats.kafka_segments import PartitionReader, find_partitions
from storage.kafka.record_batch import read_batches
from tests.budgets import IN_CI
from tests.workbench import Workbench, compacted_only

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "kafka-segments"
RECORDED = Path(__file__).with_name("recorded_kafka")
FOLDERS = ["none/before", "none/after", "lz4/before", "lz4/after"]
PARTITIONS = ["codecs-0", "codecs-1", "transactions-0", "appended-0", "open-0", "legacy0-0", "legacy1-0"]


def messages_of(folder: Path, empty_values: EmptyValues = EmptyValues.DELETE) -> list[dict[str, Any]]:
    with open_paths([str(folder)], None) as files:
        (partition,) = find_partitions(files)
        reader = PartitionReader(partition, "kafka:p", empty_values)
        return [row for table in reader.tables() for row in table.to_pylist()]


def shared_records(name: str) -> list[dict[str, Any]]:
    if not DATA.exists():
        if IN_CI:
            pytest.fail("kafka-segments is missing: CI needs ../shared beside the clone")
        pytest.skip("kafka-segments is not beside this clone (../shared/data)")
    batches = json.loads((DATA / name / "records.json").read_text(encoding="utf-8"))
    return [record for batch in batches for record in batch["records"]]


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@pytest.mark.parametrize("name", FOLDERS)
def test_segments_before_and_after_cleaning(name: str) -> None:
    records = shared_records(name)
    assert messages_of(DATA / name) == [
        {
            "key": encoded(record["key"]),
            "payload": encoded(record["value"]),
            "publish_time": record["timestamp_ms"],
            "event_time": record["timestamp_ms"],
            "properties": [(key, value) for key, value in record.get("headers", ())] or None,
            "producer": "kafka:p",
            "sequence_id": record["offset"],
        }
        for record in records
    ]


@pytest.mark.parametrize("name", ["none", "lz4"])
def test_a_compacted_topic_is_what_the_cleaner_leaves(tmp_path: Path, name: str) -> None:
    """The records before cleaning, folded: the cleaner left the same, and what its active segment holds."""
    records = shared_records(f"{name}/before")
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    with open_paths([str(DATA / name / "before")], None) as files:
        (partition,) = find_partitions(files)
        reader = PartitionReader(partition, "kafka:users-0", EmptyValues.REFUSE)
        bench.append(topic, reader.tables())
    bench.compact(topic)
    newest = {record["key"]: record for record in records}
    result = [(message.key, message.payload, message.publish_time) for message in compacted_only(topic)]
    assert result == [
        (encoded(record["key"]), encoded(record["value"]), record["timestamp_ms"])
        for record in sorted(newest.values(), key=lambda record: int(record["offset"]))
        if record["value"] is not None
    ]
    sequences = [scanned.highest for scanned in topic.producer_sequences(0)]
    assert max(highest["kafka:users-0"] for highest in sequences)[0] == records[-1]["offset"]


def recorded(name: str) -> list[dict[str, Any]]:
    """The records that Kafka's consumer reads with read_committed, as messages."""
    return [
        {
            "key": from_hex(record["key"]),
            "payload": from_hex(record["value"]),
            "publish_time": record["timestamp"] if record["timestamp"] >= 0 else None,
            "event_time": record["timestamp"] if record["timestamp"] >= 0 else None,
            "properties": recorded_properties(record["headers"]),
            "producer": "kafka:p",
            "sequence_id": record["offset"],
        }
        for record in map(json.loads, (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    ]


def recorded_properties(headers: list[list[str | None]]) -> list[tuple[str, str]] | None:
    """The properties of the headers that RecordKafka.java sends: trace, trace again as bytes, none without a value."""
    names = {0: "trace", 1: "trace;base64", 2: "none;null"}
    values = [from_hex(value) for _, value in headers]
    texts = [base64.b64encode(value).decode() if value == b"\xff\x00" else (value or b"").decode() for value in values]
    return [(names[number], text) for number, text in enumerate(texts)] or None


def from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@pytest.mark.parametrize("name", PARTITIONS)
def test_recorded_segments_are_what_a_consumer_reads(name: str) -> None:
    expected = recorded(name)
    assert expected
    assert messages_of(RECORDED / name) == expected


def test_the_recording_has_every_codec_and_format_and_kind_of_batch() -> None:
    """A recording without them would prove less than it seems."""
    batches = [batch for file in sorted(RECORDED.glob("*/*.log")) for batch in read_batches(file.read_bytes())]
    assert {(batch.magic, batch.codec) for batch in batches} >= {
        *((2, codec) for codec in range(5)),
        *((1, codec) for codec in range(4)),
        *((0, codec) for codec in range(4)),
    }
    assert {(batch.is_transactional, batch.is_control) for batch in batches} == {
        (False, False),
        (True, False),
        (True, True),
    }
    assert any(batch.has_append_time for batch in batches)
    assert len(list((RECORDED / "transactions-0").glob("*.log"))) > 1
