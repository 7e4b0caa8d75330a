"""The header of an entry: what it says of the entries of a real broker, and what it refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from storage.entries import encode
from storage.entries.decode import unpack
from storage.entries.encode import encode_batch, encode_message
from storage.entries.entry import MAX_BATCH_MESSAGES, EntryHeader, claimed_metadata_bytes, inspect
from storage.errors import InvalidRecord
from storage.ledger import rows
from storage.ledger.rows import CompressionType
from storage.log.bulk_append import INPUT_SCHEMA
from tests.pulsar_entries import PUBLISHED, brokers, encrypted, entry, metadata, real_entries, stored


def test_the_entries_of_a_real_broker() -> None:
    lines = real_entries()
    assert len(lines) == 13
    for line in lines:
        expected, data = line["entry"], bytes.fromhex(line["entry"]["hex"])
        header = inspect(data)
        assert header.messages == expected["num_messages_in_batch"]
        assert header.batched == expected["has_num_messages_in_batch"]
        assert header.payload_bytes == expected["uncompressed_size"]
        assert header.key == (None if header.batched else expected["partition_key"].encode())
        assert header.producer.startswith("standalone-0-")
        assert not header.encrypted


def test_every_field_of_a_header() -> None:
    data = encode_message(b"k", b"payload", producer="p", sequence_id=3, publish_time=PUBLISHED)
    assert inspect(data) == EntryHeader(
        messages=1,
        batched=False,
        publish_time=PUBLISHED,
        logical_bytes=8,
        encrypted=False,
        producer="p",
        sequence_id=3,
        key=b"k",
        payload_bytes=7,
        stored_bytes=7,
    )


@pytest.mark.parametrize("codec", CompressionType)
def test_logical_bytes_are_those_before_compression(codec: CompressionType) -> None:
    data = encode_message(b"k", b"x" * 5000, producer="p", sequence_id=0, publish_time=0, codec=codec)
    header = inspect(data)
    assert (header.logical_bytes, header.payload_bytes) == (5001, 5000)


TEXTS = [("property", "value"), ("clé", "Überschrift" * 20)]
ALONE = {
    "a value": (b"k", b"payload", ()),
    "without a key": (None, b"payload", ()),
    "a tombstone": (b"key", None, ()),
    "an empty value": (b"key", b"", ()),
    "a key that is no text": (b"\xff" * 9, b"payload", ()),
    "properties": (b"k", b"payload", TEXTS),
    "a tombstone with properties": (b"k", None, TEXTS),
}


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
@pytest.mark.parametrize("name", ALONE)
def test_logical_bytes_of_a_single_message_are_those_of_its_row(name: str, codec: CompressionType) -> None:
    key, payload, properties = ALONE[name]
    common: dict[str, Any] = {"producer": "p", "sequence_id": 0, "publish_time": 0}
    data = encode_message(key, payload, properties=properties, codec=codec, **common)
    assert inspect(data).logical_bytes == sealed_bytes(data) > 0


def test_logical_bytes_of_entries_that_are_kept_as_they_are() -> None:
    fields: dict[str, Any] = {"partition_key": b"key", "properties": [{"key": "a", "value": "b"}]}
    for data in (
        entry(encrypted(num_messages_in_batch=5, **fields), b"ciphertext"),
        entry(encrypted(**fields), b"ciphertext"),
        entry(encrypted(null_value=True, **fields), b"ciphertext"),
        entry(metadata(uuid="u", num_chunks_from_msg=3, chunk_id=1, null_value=True, **fields), b"piece"),
        entry(metadata(marker_type=1, num_messages_in_batch=1, **fields), b"marker"),
    ):
        assert inspect(data).logical_bytes == sealed_bytes(data)


def test_logical_bytes_of_a_batch_are_near_those_of_its_rows() -> None:
    messages = [{"key": b"key %d" % number, "payload": b"v" * 20 if number % 2 else None} for number in range(100)]
    table = pa.Table.from_pylist(messages, INPUT_SCHEMA)
    data = encode_batch(table, producer="p", first_sequence_id=0, publish_time=0)
    assert sealed_bytes(data) <= inspect(data).logical_bytes <= sealed_bytes(data) + 8 * len(messages)


def sealed_bytes(data: bytes) -> int:
    """The logical bytes that the entry has in a ledger."""
    return int(rows.logical_sizes(unpack([stored(data)], 1)).sum())


def test_a_checksum_may_be_left_out_and_a_brokers_metadata_is_skipped() -> None:
    plain = entry(metadata(partition_key=b"k"), b"1", checksum=False)
    checked = entry(metadata(partition_key=b"k"), b"1")
    assert inspect(plain) == inspect(checked) == inspect(brokers(plain)) == inspect(brokers(checked))


def test_the_size_of_metadata_is_known_before_they_are_read() -> None:
    described = metadata(partition_key=b"k")
    size = described.ByteSize()
    plain = entry(described, b"1", checksum=False)
    for data in (plain, entry(described, b"1"), brokers(plain)):
        assert claimed_metadata_bytes(data) == size
    assert [claimed_metadata_bytes(data) for data in (b"", plain[:3], b"\x0e\x02\xff\xff\xff\xff\0\0\0\x01")] == [0] * 3


def test_any_byte_changed_is_seen() -> None:
    data = bytes.fromhex(real_entries()[1]["entry"]["hex"])
    for position in range(2, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x20
        with pytest.raises(InvalidRecord, match="checksum"):
            inspect(bytes(damaged))


def test_cut_anywhere_it_is_refused() -> None:
    data = brokers(entry(metadata(partition_key=b"k"), b"123"))
    for length in range(len(data)):
        with pytest.raises(InvalidRecord):
            inspect(data[:length])


def test_without_a_checksum_metadata_that_is_cut_between_its_fields_is_refused() -> None:
    data = entry(metadata(partition_key=b"key"), checksum=False)
    with pytest.raises(InvalidRecord, match="its metadata ends at byte"):
        inspect(data[:-5])


def test_numbers_beyond_63_bits_are_read_as_java_does() -> None:
    header = inspect(entry(metadata(sequence_id=2**64 - 1, publish_time=2**63)))
    assert (header.sequence_id, header.publish_time) == (-1, -(2**63))


@pytest.mark.parametrize(
    ("key", "in_base64", "expected"),
    [
        (b"a2V5", False, b"a2V5"),
        (b"a2V5", True, b"key"),
        (b"/w", True, b"\xff"),
        (b"/w==", True, b"\xff"),
        (b"", False, b""),
        (b"", True, b""),
        (b"\xff", False, b"\xff"),
    ],
)
def test_the_key_is_its_bytes(key: bytes, in_base64: bool, expected: bytes) -> None:
    data = entry(metadata(partition_key=key, partition_key_b64_encoded=in_base64))
    assert inspect(data).key == expected


def test_an_encrypted_entry_takes_one_offset() -> None:
    batch = inspect(entry(encrypted(num_messages_in_batch=5, partition_key=b"k"), b"ciphertext"))
    assert (batch.messages, batch.batched, batch.encrypted, batch.key) == (1, True, True, None)
    message = inspect(entry(encrypted(partition_key=b"k", compression=1, uncompressed_size=2**31), b"ciphertext"))
    assert (message.messages, message.batched, message.encrypted, message.key) == (1, False, True, b"k")
    assert message.payload_bytes == len(b"ciphertext")


def test_a_chunk_counts_its_own_bytes() -> None:
    chunk = metadata(uuid="u", num_chunks_from_msg=3, chunk_id=1, compression=1, uncompressed_size=2**31)
    assert inspect(entry(chunk, b"piece")).payload_bytes == 5


@pytest.mark.parametrize(
    ("fields", "payload", "reason"),
    [
        ({"num_messages_in_batch": 0}, b"", "0 messages"),
        ({"num_messages_in_batch": -1}, b"", "-1 messages"),
        ({"num_messages_in_batch": 3}, b"x" * 17, "3 messages in 17 bytes"),
        ({"num_messages_in_batch": 3, "compression": 1, "uncompressed_size": 17}, b"x" * 18, "in 17 bytes"),
        (
            {"num_messages_in_batch": MAX_BATCH_MESSAGES + 1, "compression": 1, "uncompressed_size": 2**28},
            b"x",
            "claims",
        ),
        ({"compression": 2, "uncompressed_size": rows.MAX_MESSAGE_BYTES + 1}, b"x", "at most"),
        ({"partition_key": b"a*bc", "partition_key_b64_encoded": True}, b"x", "base64"),
        ({"partition_key": b"a", "partition_key_b64_encoded": True}, b"x", "base64"),
    ],
)
def test_what_is_implausible_is_refused(fields: dict[str, Any], payload: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        inspect(entry(metadata(**fields), payload))


def test_the_largest_counts_that_are_plausible() -> None:
    assert inspect(entry(metadata(num_messages_in_batch=3), b"x" * 18)).messages == 3
    largest = metadata(num_messages_in_batch=MAX_BATCH_MESSAGES, compression=1, uncompressed_size=2**28)
    assert inspect(entry(largest)).messages == MAX_BATCH_MESSAGES


@pytest.mark.parametrize("left_out", ["producer_name", "sequence_id", "publish_time"])
def test_what_it_must_hold_is_asked_for(left_out: str) -> None:
    described = metadata()
    described.ClearField(left_out)
    with pytest.raises(InvalidRecord, match="leaves out"):
        inspect(entry(described))


def test_a_producer_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="not UTF-8"):
        inspect(entry(b"\x0a\x01\xff\x10\x00\x18\x00"))


def batch_of(count: int, payload: bytes | None = b"1") -> pa.Table:
    empty = {"publish_time": None, "event_time": None, "properties": None}
    return pa.Table.from_pylist([{"key": b"k", "payload": payload, **empty}] * count, schema=INPUT_SCHEMA)


def test_the_header_of_a_batch() -> None:
    header = inspect(encode_batch(batch_of(3), producer="p", first_sequence_id=5, publish_time=PUBLISHED))
    assert (header.messages, header.batched, header.sequence_id, header.key) == (3, True, 5, None)


def test_what_is_too_large_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRecord, match="cut it"):
        encode_batch(batch_of(MAX_BATCH_MESSAGES + 1), producer="p", first_sequence_id=0, publish_time=0)
    monkeypatch.setattr(encode, "MAX_MESSAGE_BYTES", 99)
    encode_message(None, b"x" * 99, producer="p", sequence_id=0, publish_time=0)
    with pytest.raises(InvalidRecord, match="at most 99 bytes"):
        encode_message(None, b"x" * 100, producer="p", sequence_id=0, publish_time=0)
