"""The sequence ids of producers are the same in segments and in sealed ledgers, whatever entries they come in."""

from __future__ import annotations

from typing import Any

import pytest

from storage.entries.sequence_ids import WHOLE, SequenceId
from storage.entries.source_position import with_position
from storage.model import SourcePosition, SourceProgress
from storage.topic import Topic
from tests.entries import produce
from tests.pulsar_entries import batch_payload, encrypted, entry, metadata, single
from tests.workbench import Workbench, content


def _sent(name: str, sequence_id: int, **fields: Any) -> Any:
    return metadata(producer_name=name, sequence_id=sequence_id, **fields)


def _batch(name: str, sequence_id: int, singles: list[int | None], **fields: Any) -> bytes:
    """A batch; of each message its own sequence id, or None."""
    payload = batch_payload(single(b"v", **({} if number is None else {"sequence_id": number})) for number in singles)
    described = _sent(name, sequence_id, num_messages_in_batch=len(singles), uncompressed_size=len(payload), **fields)
    return entry(described, payload)


def _encrypted_batch(name: str, sequence_id: int, highest: int) -> bytes:
    described = encrypted(num_messages_in_batch=2, highest_sequence_id=highest)
    described.producer_name, described.sequence_id = name, sequence_id
    return entry(described, b"ciphertext")


def _chunk(name: str, sequence_id: int, chunk: int) -> bytes:
    fields = {"uuid": "u", "chunk_id": chunk, "num_chunks_from_msg": 3, "total_chunk_msg_size": 3}
    return entry(_sent(name, sequence_id, **fields), b"x")


ENTRIES = [
    (entry(_sent("single", 7, partition_key=b"k"), b"v"), ("single", (7, WHOLE))),
    (entry(_sent("single", 3), b"v"), ("single", (7, WHOLE))),  # the highest counts, not the last
    (_batch("java", 10, [10, 11, 12], highest_sequence_id=12), ("java", (12, WHOLE))),
    (_batch("c++", 20, [20, 21, 22]), ("c++", (20, WHOLE))),  # a broker knows the first, too, and no more
    (_batch("rust", 5, [None, None, None]), ("rust", (5, WHOLE))),
    (_encrypted_batch("encrypted", 40, 49), ("encrypted", (49, WHOLE))),
    (_chunk("chunked", 30, 0), ("chunked", (30, 0))),
    (_chunk("chunked", 30, 1), ("chunked", (30, 1))),
    (_chunk("whole", 31, 2), ("whole", (31, WHOLE))),
    (entry(_sent("marker", 9, marker_type=1), b"m"), None),
    (entry(_sent("huge", (1 << 64) - 5), b"v"), ("huge", (0, WHOLE))),  # negative for Java, as which a broker reads it
]


def scanned(topic: Topic, first_offset: int = 0) -> tuple[dict[str, SequenceId], int]:
    highest: dict[str, SequenceId] = {}
    end = first_offset
    for part in topic.producer_sequences(first_offset):
        assert part.end > end
        end = part.end
        for name, sequence in part.highest.items():
            highest[name] = max(sequence, highest.pop(name, sequence))
    return highest, end


@pytest.mark.parametrize("sealed", [False, True])
def test_of_each_producer_the_highest(bench: Workbench, topic: Topic, sealed: bool) -> None:
    produce(topic, [data for data, _ in ENTRIES])
    if sealed:
        topic.log_manager().roll_and_seal(topic.record)
        assert not topic.snapshot().segments
    highest, end = scanned(topic)
    expected = dict(sequence for _, sequence in ENTRIES if sequence is not None)
    assert {name: sequence for name, sequence in highest.items() if name != "marker"} == expected
    assert list(highest)[-1] == "huge", "those that stored last are at the end"
    assert end == topic.snapshot_reader().end


@pytest.mark.parametrize("sealed", [False, True])
def test_from_an_offset_on(bench: Workbench, topic: Topic, sealed: bool) -> None:
    produce(topic, [entry(_sent(name, number), b"v") for number, name in enumerate("abc")])
    if sealed:
        topic.log_manager().roll_and_seal(topic.record)
    produce(topic, [entry(_sent("d", 3), b"v")])
    assert scanned(topic, 2) == ({"c": (2, WHOLE), "d": (3, WHOLE)}, 4)
    assert scanned(topic, 4) == ({}, 4)


def test_messages_of_an_import_have_no_producer(bench: Workbench, topic: Topic) -> None:
    bench.append(topic, [content((b"k", b"v"), (b"l", None))])
    assert scanned(topic) == ({}, 2)


def _replicated(data: bytes, ledger_id: int, entry_id: int) -> bytes:
    return with_position(data, SourcePosition(ledger_id, entry_id))


@pytest.mark.parametrize("sealed", [False, True])
def test_of_each_source_the_last_position_and_the_newest_time(bench: Workbench, topic: Topic, sealed: bool) -> None:
    """Their producers are those of another cluster, and none of this one."""
    batch = _batch("java", 10, [10, 11], replicated_from="us")
    whole = _encrypted_batch("encrypted", 40, 49)
    described = encrypted(num_messages_in_batch=2, replicated_from="eu", schema_version=b"1")
    described.publish_time += 9
    entries = [
        _replicated(batch, 3, 8),
        _replicated(entry(_sent("single", 7, replicated_from="us", publish_time=1), b"v"), 3, 9),
        entry(_sent("here", 1), b"v"),
        _replicated(entry(described, b"ciphertext"), 6, 0),
        _replicated(entry(_sent("single", 7, replicated_from="us", ordering_key=b"o", publish_time=5), b"v"), 4, 2),
        whole,
    ]
    produce(topic, entries)
    if sealed:
        topic.log_manager().roll_and_seal(topic.record)
    sources: dict[str, SourceProgress] = {}
    for part in topic.producer_sequences(0):
        for cluster, progress in part.sources.items():
            sources[cluster] = progress.merged(sources.get(cluster))
    published = metadata().publish_time
    assert sources == {
        "us": SourceProgress(SourcePosition(4, 2), published),
        "eu": SourceProgress(SourcePosition(6, 0), published + 9),
    }
    assert scanned(topic)[0] == {"here": (1, WHOLE), "encrypted": (49, WHOLE)}
