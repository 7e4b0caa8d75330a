"""Claims of compressed entries: what clients send passes, what a few bytes cannot hold does not."""

from __future__ import annotations

import pytest

from storage.entries.compression import compress
from storage.entries.entry import MAX_BATCH_MESSAGES, inspect
from storage.entries.expansion import FREE_MESSAGES, MOST_BYTES, check_expansion
from storage.errors import InvalidRecord
from storage.ledger.rows import CompressionType
from tests.pulsar_entries import batch_payload, encrypted, entry, metadata, single

LIMIT = 5 << 20
CODECS = [codec for codec in CompressionType if codec != CompressionType.NONE]


def batch(codec: CompressionType, payload: bytes, messages: int) -> bytes:
    described = metadata(compression=int(codec), uncompressed_size=len(payload), num_messages_in_batch=messages)
    return entry(described, compress(codec, payload))


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_clients_pass(codec: CompressionType) -> None:
    """Empty messages with a sequence id, of which the most fit into a byte; equal ones without; and large ones."""
    numbered = batch_payload(single(b"", sequence_id=number) for number in range(30_000))
    check_expansion(inspect(batch(codec, numbered, 30_000)), LIMIT)
    check_expansion(inspect(batch(codec, batch_payload([single(b"")] * FREE_MESSAGES), FREE_MESSAGES)), LIMIT)
    check_expansion(inspect(batch(codec, batch_payload([single(bytes(200 << 10))] * 100), 100)), LIMIT)


@pytest.mark.parametrize("codec", CODECS)
def test_one_message_may_have_20_mib(codec: CompressionType) -> None:
    data = entry(metadata(compression=int(codec), uncompressed_size=20 << 20), compress(codec, bytes(20 << 20)))
    check_expansion(inspect(data), LIMIT)


@pytest.mark.parametrize("codec", CODECS)
def test_a_few_bytes_hold_no_quarter_of_a_million_messages(codec: CompressionType) -> None:
    claim = metadata(
        compression=int(codec), uncompressed_size=6 * MAX_BATCH_MESSAGES, num_messages_in_batch=MAX_BATCH_MESSAGES
    )
    with pytest.raises(InvalidRecord, match="claims"):
        check_expansion(inspect(entry(claim, b"x")), LIMIT)


def test_nor_do_they_if_they_really_expand() -> None:
    data = batch(CompressionType.ZSTD, batch_payload([single(b"")] * MAX_BATCH_MESSAGES), MAX_BATCH_MESSAGES)
    with pytest.raises(InvalidRecord, match="262144 messages"):
        check_expansion(inspect(data), LIMIT)


@pytest.mark.parametrize(
    ("codec", "times"),
    [
        (CompressionType.LZ4, 255),
        (CompressionType.ZLIB, 1032),
        (CompressionType.SNAPPY, 22),
        (CompressionType.ZSTD, 32_768),
    ],
)
def test_no_codec_expands_further_than_it_can(codec: CompressionType, times: int) -> None:
    fits = metadata(compression=int(codec), uncompressed_size=100 * times)
    check_expansion(inspect(entry(fits, b"x" * 100)), LIMIT)
    with pytest.raises(InvalidRecord, match="times as many"):
        check_expansion(inspect(entry(fits, b"x" * 99)), LIMIT)


def test_what_a_reader_holds_is_bounded() -> None:
    large = metadata(compression=int(CompressionType.ZSTD), uncompressed_size=MOST_BYTES + 1)
    data = inspect(entry(large, b"x" * 10_000))
    with pytest.raises(InvalidRecord, match="uncompressed"):
        check_expansion(data, LIMIT)
    check_expansion(data, 2 * MOST_BYTES)  # the topic takes larger ones


def test_ciphertexts_and_chunks_claim_nothing() -> None:
    check_expansion(inspect(entry(encrypted(compression=1, uncompressed_size=2**31), b"ciphertext")), LIMIT)
    chunk = metadata(uuid="u", chunk_id=0, num_chunks_from_msg=3, compression=1, uncompressed_size=2**31)
    check_expansion(inspect(entry(chunk, b"piece")), LIMIT)
