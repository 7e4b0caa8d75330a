"""docs/log-format.md is enough to read a segment: a reader written from that page alone, against what is written.

The reader (the functions up to the line of dashes) imports nothing of ours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger.rows import CompressionType
from storage.log.sparse_index import SPACING_BYTES
from storage.metadata.policy_store import topic_scope
from storage.topic import Topic
from tests.entries import NOW, batch, single
from tests.workbench import Workbench, raw


def read_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header's fields, and the seed of all checksums behind it."""
    magic, version, uid, ledger_id, first_offset, checksum = struct.unpack_from(">8sI16sQQI", data)
    assert (magic, version) == (b"CMPCTLOG", 1)
    assert google_crc32c.value(data[:44]) == checksum
    assert data[48:64] == bytes(16)
    return {"uid": uid.hex(), "ledger_id": ledger_id, "first_offset": first_offset}, checksum


def messages_in(entry: bytes) -> int:
    """Return the number of offsets of an entry."""
    assert entry[:2] == b"\x0e\x01"
    assert google_crc32c.value(entry[6:]) == struct.unpack_from(">I", entry, 2)[0]
    (size,) = struct.unpack_from(">I", entry, 6)
    metadata = MessageMetadata.FromString(entry[10 : 10 + size])
    batched = metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys
    return metadata.num_messages_in_batch if batched else 1


def read_frames(data: bytes, seed: int, first_offset: int, end: int) -> Iterator[tuple[int, int, int, bytes]]:
    """(position, entry id, offset, entry) of each frame up to `end`."""
    position, entry_id, offset = 64, 0, first_offset
    while position < end:
        length, version, checksum = struct.unpack_from(">IBI", data, position)
        entry = data[position + 9 : position + 9 + length]
        covered = struct.pack(">QQ", entry_id, offset) + data[position : position + 5] + entry
        assert version == 1
        assert google_crc32c.extend(seed, covered) == checksum
        yield position, entry_id, offset, entry
        position, entry_id, offset = position + 9 + length, entry_id + 1, offset + messages_in(entry)
    assert position == end


def read_end(data: bytes, seed: int) -> dict[str, int]:
    """The newest whole copy in a `.end` file."""
    assert len(data) == 256
    by_offset = {}
    names = ("flushed", "visible", "entries", "next_offset", "logical_bytes")
    for at in (0, 64):
        *values, version, checksum = struct.unpack_from(">QQQQQQBI", data, at)
        if version == 3 and google_crc32c.extend(seed, data[at : at + 49]) == checksum:
            by_offset[values[0]] = dict(zip(names, values[1:], strict=True))
    return by_offset[max(by_offset)]


def read_index(data: bytes, seed: int) -> list[tuple[int, int, int, int]]:
    """(relative offset, entry id, position, largest publish time before) of each record of a `.index` file."""
    records = []
    for at in range(0, len(data) - len(data) % 28, 28):
        offset, entry_id, position, time, checksum = struct.unpack_from(">IIQqI", data, at)
        assert google_crc32c.extend(seed, data[at : at + 24]) == checksum
        records.append((offset, entry_id, position, time))
    return records


# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Topic, Path]]:
    """A topic, and its second segment's path without the suffix."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    bench.metadata.policies.change([topic_scope(topic.record)], {"segment.bytes": "1M"})
    with topic.append_log() as log:
        log.append(single(b"first", b"segment"))
        log.roll()
        for number in range(100):
            log.append(single(b"k", b"x" * 2000, NOW + number % 7))
            log.append(batch((b"a", b"1"), (b"b", None), codec=CompressionType.ZSTD))
    yield topic, bench.log.topic_folder(topic.record.uid) / f"{1:020d}"
    bench.metadata.close()


def test_a_segment_is_read_by_what_the_page_says(written: tuple[Topic, Path]) -> None:
    topic, path = written
    data = path.with_suffix(".log").read_bytes()
    header, seed = read_header(data)
    (segment,) = [item for item in topic.snapshot().segments if item.first_offset == 1]
    assert header == {"uid": topic.record.uid, "ledger_id": segment.ledger_id, "first_offset": 1}
    end = read_end(path.with_suffix(".end").read_bytes(), seed)
    frames = list(read_frames(data, seed, 1, end["visible"]))
    assert end.pop("logical_bytes") >= 100 * len(b"k" + b"x" * 2000 + b"a1b")
    assert end == {"flushed": len(data), "visible": len(data), "entries": 200, "next_offset": 301}
    entries = [(m.message_id.entry_id, m.offset) for m in raw(topic) if m.offset >= 1 and m.message_id.batch_index <= 0]
    assert [(entry_id, offset) for _, entry_id, offset, _ in frames] == entries


def test_its_index_points_to_frames_that_are_there(written: tuple[Topic, Path]) -> None:
    _, path = written
    data = path.with_suffix(".log").read_bytes()
    _, seed = read_header(data)
    frames = {
        position: (offset - 1, entry_id) for position, entry_id, offset, _ in read_frames(data, seed, 1, len(data))
    }
    records = read_index(path.with_suffix(".index").read_bytes(), seed)
    assert len(records) == (len(data) - 64) // SPACING_BYTES
    before = 64
    for offset, entry_id, position, _ in records:
        assert frames[position] == (offset, entry_id)
        assert position - before >= SPACING_BYTES
        before = position
