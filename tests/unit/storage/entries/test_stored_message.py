"""Rows as messages with all that their producers sent."""

from __future__ import annotations

from typing import Any

from storage.entries.decode import unpack
from storage.entries.stored_message import StoredMessage, stored_messages
from storage.ledger.rows import RowType
from tests.pulsar_entries import batch_payload, encrypted, entry, metadata, single, stored


def messages(*entries: bytes, payload_bytes: int = 100) -> list[StoredMessage]:
    table = unpack([stored(data, number, 10 + 5 * number) for number, data in enumerate(entries)], 12)
    (batch,) = table.combine_chunks().to_batches()
    return list(stored_messages(batch, 3, payload_bytes))


def plain(**fields: Any) -> bytes:
    return entry(metadata(**fields), b"0123456789")


def test_a_message_has_producer_schema_version_and_a_cut_payload() -> None:
    described = metadata(partition_key=b"k", event_time=9, schema_version=(5).to_bytes(8, "big"))
    described.properties.add(key="p", value="v")
    (message,) = messages(entry(described, b"0123456789"), payload_bytes=4)
    assert (message.producer, message.sequence_id, message.key) == ("p", 7, b"k")
    assert (message.event_time, message.properties) == (9, (("p", "v"),))
    assert message.schema_version == b"\0\0\0\0\0\0\0\5"
    assert (message.payload, message.payload_size, message.is_cut) == (b"0123", 10, True)
    assert str(message.message_id) == "12:0:3"


def test_a_batch_tells_its_size_and_the_place_in_it() -> None:
    payload = batch_payload([single(b"1", partition_key=b"a"), single(b"", partition_key=b"a")])
    first, second = messages(entry(metadata(num_messages_in_batch=2), payload))
    assert [(item.batch_size, item.message_id.batch_index) for item in (first, second)] == [(2, 0), (2, 1)]
    assert [item.payload_size for item in (first, second)] == [1, 0]


def test_an_encrypted_message_names_its_keys() -> None:
    (message,) = messages(entry(encrypted(), b"ciphertext"))
    assert message.encryption_keys == ("k1",)
    (whole,) = messages(entry(encrypted(num_messages_in_batch=1), b"ciphertext"))
    assert (whole.kind, whole.encryption_keys) == (RowType.WHOLE_ENTRY, ("k1",))


def test_a_chunk_is_a_message_by_itself() -> None:
    (message,) = messages(plain(uuid="u", chunk_id=1, num_chunks_from_msg=3, total_chunk_msg_size=30))
    assert (message.kind, message.chunk_uuid, message.chunk_index, message.chunk_count) == (RowType.CHUNK, "u", 1, 3)
