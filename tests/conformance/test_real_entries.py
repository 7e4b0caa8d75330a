"""Entries as a real broker stores them, and chunked and encrypted ones made by hand, through a topic's whole life.

Appended to the log, read from the tail, sealed, compacted: the same messages all the way (P7, P8, P10, W1, W2).
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from storage.ledger.rows import RowType
from storage.model import Message
from tests.entries import produce, single
from tests.pulsar_entries import encrypted, entry, metadata, real_entries
from tests.workbench import Workbench, compacted_only, raw


def cases() -> dict[str, list[dict[str, Any]]]:
    """Return, by case of the file, its entries with their messages."""
    by_case: dict[str, list[dict[str, Any]]] = {}
    for line in real_entries():
        by_case.setdefault(line["case"], []).append(line)
    return by_case


def listed(line: dict[str, Any]) -> list[tuple[bytes | None, bytes]]:
    """Key and payload of the messages that a broker's client was given of an entry."""
    messages = []
    for message in line["messages"]:
        key = message["key"]
        if key is not None:
            key = base64.b64decode(key) if message["key_b64"] else key.encode()
        messages.append((key, message["payload"].encode()))
    return messages


def contents(messages: list[Message]) -> list[tuple[bytes | None, bytes]]:
    return [(message.key, message.payload or b"") for message in messages]


def newest(messages: list[Message]) -> list[Message]:
    """Return the messages that compaction keeps."""
    last = {message.key: message for message in messages if message.key is not None}
    return sorted((message for message in last.values() if message.payload), key=lambda message: message.offset)


@pytest.mark.slow
def test_the_entries_of_a_real_broker_live_a_whole_life(bench: Workbench) -> None:
    assert len(cases()) > 5
    for case, lines in cases().items():
        topic = bench.topic(case)
        produce(topic, [bytes.fromhex(line["entry"]["hex"]) for line in lines])
        before = raw(topic)
        assert contents(before) == [message for line in lines for message in listed(line)], case
        topic.log_manager().roll_and_seal(topic.record)
        assert raw(topic) == before, case
        bench.compact(topic)
        assert compacted_only(topic) == newest(before), case
        assert raw(topic) == before, case


def chunks(key: str, payload: bytes, uuid: str, count: int, *, compressed: bool = False) -> list[bytes]:
    """A message in `count` entries, as Pulsar's producers send it: compressed first, then cut."""
    data = zlib.compress(payload) if compressed else payload
    size = -(-len(data) // count)
    fields: dict[str, Any] = {
        "partition_key": key.encode(),
        "uuid": uuid,
        "num_chunks_from_msg": count,
        "total_chunk_msg_size": len(data),
        "uncompressed_size": len(payload),
        "compression": 2 if compressed else 0,
    }
    return [
        entry(metadata(chunk_id=number, **fields), data[number * size : (number + 1) * size]) for number in range(count)
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_chunked_message_is_one_message_all_its_life(bench: Workbench, compressed: bool) -> None:
    """P10: read whole from tail and ledgers, kept whole, and gone whole when a later message takes its place."""
    topic = bench.topic()
    first = chunks("a", b"first " * 50, "u-1", 3, compressed=compressed)
    second = chunks("b", b"second " * 50, "u-2", 4, compressed=compressed)
    torn = chunks("a", b"never whole " * 50, "u-3", 3, compressed=compressed)[:2]
    produce(topic, [first[0], single(b"x", b"between"), *second[:2], *first[1:], *torn])
    produce(topic, second[2:])
    expected = [(b"x", b"between"), (b"a", b"first " * 50), (b"b", b"second " * 50)]
    assert contents(raw(topic)) == expected
    assert topic.last_message_id() == raw(topic)[-1].message_id
    assert topic.newest_value(b"a") == raw(topic)[1]
    bench.compact(topic)
    assert contents(raw(topic)) == expected
    assert contents(compacted_only(topic)) == expected, "what is incomplete supersedes nothing"
    assert topic.newest_value(b"b") == raw(topic)[2]

    produce(topic, [single(b"b", b"small"), *chunks("x", b"large " * 50, "u-4", 2, compressed=compressed)])
    produce(topic, torn[:1])
    for _ in range(2):
        assert topic.last_message_id() == raw(topic)[-1].message_id, "R6: not of one that is never delivered"
        topic.log_manager().roll_and_seal(topic.record)
    bench.compact(topic)
    assert contents(compacted_only(topic)) == [(b"a", b"first " * 50), (b"b", b"small"), (b"x", b"large " * 50)]
    rows = [row for batch in topic.read(read_compacted=True) for row in batch.to_pylist()]
    remaining = {row["chunk_uuid"] for row in rows if row["slot"] == RowType.CHUNK}
    assert remaining == {"u-1", "u-3", "u-4"}, "all chunks of a message live or go together; incomplete ones wait"


def test_what_cannot_be_looked_into_passes_whole(bench: Workbench) -> None:
    """P8; and P5: a single encrypted message with a plain key is a message of that key, deleted if its flag says so."""
    topic = bench.topic()
    batch = entry(encrypted(num_messages_in_batch=3), b"ciphertext of a batch")
    message = encrypted(partition_key=b"k")
    tombstone = encrypted(partition_key=b"gone", null_value=True)
    produce(
        topic,
        [single(b"k", b"plain"), single(b"gone", b"plain"), batch, entry(message, b"cipher"), entry(tombstone, b"tag")],
    )
    for _ in range(2):
        bench.compact(topic)
        survivors = compacted_only(topic)
        assert [(m.offset, m.key, m.payload) for m in survivors] == [(2, None, batch), (3, b"k", b"cipher")]
        produce(topic, [single(b"other", None)])
