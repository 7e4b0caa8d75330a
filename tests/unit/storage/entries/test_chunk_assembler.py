"""Chunked messages for readers (P10): complete messages, their order, and discarded chunks."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from storage.entries import chunk_assembler
from storage.entries.chunk_assembler import ChunkAssembler, assemble_chunks, chunk_fields
from storage.entries.compression import compress
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger.rows import CompressionType, RowType
from storage.model import Message, MessageId


def chunk(
    offset: int, uuid: str, index: int, count: int, payload: bytes | None = b"x", key: bytes | None = b"k"
) -> Message:
    return Message(
        MessageId(3, offset), offset, key, payload, 100 + offset, 1000 + offset, {"at": str(offset)}, uuid, index, count
    )


def plain(offset: int) -> Message:
    return Message(MessageId(3, offset), offset, b"p", b"v", 100 + offset)


def test_a_message_comes_out_at_its_last_chunk_and_others_in_between() -> None:
    """Interleaved with another chunked message and a plain one."""
    entries = [
        chunk(1, "a", 0, 3, b"A0"),
        chunk(2, "b", 0, 2, b"B0"),
        plain(3),
        chunk(4, "a", 1, 3, b"A1"),
        chunk(5, "b", 1, 2, b"B1"),
        chunk(6, "a", 2, 3, b"A2"),
    ]
    assert list(assemble_chunks(entries)) == [
        plain(3),
        Message(MessageId(3, 5), 5, b"k", b"B0B1", 105, 1002, {"at": "2"}),
        Message(MessageId(3, 6), 6, b"k", b"A0A1A2", 106, 1001, {"at": "1"}),
    ]


@pytest.mark.parametrize(
    ("indexes", "whole"),
    [
        ([0, 1, 1, 2], [b"012"]),
        ([0, 1, 0, 1, 2], [b"012"]),
        ([0, 2, 1, 2], [b"012"]),
        ([1, 2, 0, 2], []),
        ([0, 1, 2, 0, 1, 2], [b"012", b"012"]),
        ([0, 1, 2, 2, 0, 1], [b"012"]),
    ],
)
def test_repeats_gaps_and_uuids_that_come_again(indexes: list[int], whole: list[bytes]) -> None:
    chunks = [chunk(n, "u", index, 3, str(index).encode()) for n, index in enumerate(indexes)]
    assert [message.payload for message in assemble_chunks(chunks)] == whole


def test_of_a_repeated_chunk_the_first_counts_but_chunk_0_begins_anew() -> None:
    """A producer that restarts may use a uuid again for another message."""
    chunks = [chunk(1, "u", 0, 2, b"old"), chunk(2, "u", 0, 2, b"new"), chunk(3, "u", 1, 2, b"!")]
    assert [message.payload for message in assemble_chunks(chunks)] == [b"new!"]
    chunks = [
        chunk(1, "u", 0, 3, b"a"),
        chunk(2, "u", 1, 3, b"b"),
        chunk(3, "u", 1, 3, b"X"),
        chunk(4, "u", 2, 3, b"c"),
    ]
    assert [message.payload for message in assemble_chunks(chunks)] == [b"abc"]


def test_chunks_of_another_key_or_count_are_of_another_message() -> None:
    chunks = [chunk(1, "u", 0, 2), chunk(2, "u", 1, 2, key=b"l"), chunk(3, "u", 1, 3), chunk(4, "u", 1, 2, key=None)]
    assert list(assemble_chunks(chunks)) == []


@pytest.mark.parametrize(("payloads", "whole"), [((None, None), None), ((None, b""), b""), ((None, b"x"), b"x")])
def test_payloads_that_are_null(payloads: tuple[bytes | None, ...], whole: bytes | None) -> None:
    chunks = [chunk(n, "u", n, 2, payload) for n, payload in enumerate(payloads)]
    (message,) = assemble_chunks(chunks)
    assert message.payload == whole
    assert message.is_tombstone is (not whole)
    assert not any(item.is_tombstone for item in chunks)


@pytest.mark.parametrize("limits", [{"max_messages": 2}, {"max_bytes": 2}])
def test_beyond_the_limits_the_oldest_is_given_up_and_said(
    limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    assembler = ChunkAssembler(**limits)
    chunks = [chunk(n, uuid, 0, 2) for n, uuid in enumerate("abc")]
    chunks += [chunk(n, uuid, 1, 2) for n, uuid in enumerate("abc", 3)]
    with caplog.at_level(logging.WARNING):
        assert [message.offset for message in assemble_chunks(chunks, assembler)] == [4, 5]
    assert assembler.dropped_messages == 1
    assert "dropped the chunked message a, which began at 3:0:-1" in caplog.text


def test_what_is_complete_no_longer_counts_against_the_limits() -> None:
    assembler = ChunkAssembler(1, 1)
    chunks = [chunk(2 * n + index, "u", index, 2) for n in range(5) for index in range(2)]
    assert len(list(assemble_chunks(chunks, assembler))) == 5
    assert assembler.dropped_messages == 0


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_payload_that_was_compressed_before_it_was_cut(encrypted: bool) -> None:
    payload = b"abc" * 1000
    stored = compress(CompressionType.ZSTD, payload)
    rest = MessageMetadata(uncompressed_size=len(payload))
    if encrypted:
        rest.encryption_keys.add(key="k", value=b"v")
    chunks = []
    for index, piece in enumerate((stored[:7], stored[7:])):
        row = {"slot": int(RowType.CHUNK), "chunk_uuid": "u", "chunk_index": index, "chunk_count": 2}
        row |= {"codec": int(CompressionType.ZSTD), "metadata": rest.SerializePartialToString()}
        chunks.append(Message(MessageId(3, index), index, b"k", piece, 0, **chunk_fields(row)))
    (message,) = assemble_chunks(chunks)
    assert message.payload == (stored if encrypted else payload)
    assert message == Message(MessageId(3, 1), 1, b"k", message.payload, 0)


def test_a_payload_that_cannot_be_decompressed_is_given_as_it_is_stored() -> None:
    chunks = [replace(chunk(n, "u", n, 2, b"?"), chunk_codec=int(CompressionType.LZ4), chunk_size=5) for n in range(2)]
    assert [message.payload for message in assemble_chunks(chunks)] == [b"??"]


def test_a_few_bytes_do_not_become_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_assembler, "MAX_PENDING_BYTES", 1000)
    for size in (1000, 1001):
        stored = compress(CompressionType.ZSTD, bytes(size))
        pieces = (stored[:5], stored[5:])
        chunks = [
            replace(chunk(n, "u", n, 2, piece), chunk_codec=int(CompressionType.ZSTD), chunk_size=size)
            for n, piece in enumerate(pieces)
        ]
        assert [message.payload for message in assemble_chunks(chunks)] == [bytes(size) if size == 1000 else stored]


def test_a_chunk_that_belongs_to_no_message_is_none() -> None:
    row = {"slot": int(RowType.CHUNK), "chunk_uuid": "u", "chunk_index": 1, "chunk_count": 2, "codec": 0}
    assert chunk_fields(row) == {"chunk_uuid": "u", "chunk_index": 1, "chunk_count": 2}
    for change in ({"slot": 0}, {"chunk_uuid": None}, {"chunk_index": None}, {"chunk_count": None}, {"chunk_index": 2},
                   {"chunk_index": -1}):  # fmt: skip
        assert chunk_fields(row | change) == {}
