"""Messages of one size and one layout are read as a matrix, and no others."""

from __future__ import annotations

import pytest

from storage.entries.pulsar_metadata_pb2 import SingleMessageMetadata
from storage.entries.uniform_batches import WORD_BYTES, decode_uniform_messages
from tests.pulsar_entries import batch_payload, single

ONE = b"\x18\x01"
"""The field that states a payload of one byte."""


def read(*messages: tuple[SingleMessageMetadata | bytes, bytes]) -> tuple[list[object] | None, ...] | None:
    """Keys, payloads, sequence ids and event times of messages; None: they are left to another decoder."""
    data = batch_payload(messages)
    even = decode_uniform_messages(data + b"\xff" * WORD_BYTES, len(messages), len(data) // len(messages))
    if even is None:
        return None
    for column in (even.keys, even.payloads):
        column.validate(full=True)
    numbers = (None if values is None else values.tolist() for values in (even.sequence_ids, even.event_times))
    return even.keys.to_pylist(), even.payloads.to_pylist(), *numbers


def test_what_differs_between_messages_is_read_from_each() -> None:
    sent = [
        single(b"xyz", partition_key=b"ab", event_time=300, sequence_id=2**14),
        single(b"\0\0\0", partition_key=b"cd", event_time=301, sequence_id=2**21 - 1),
    ]
    assert read(*sent) == ([b"ab", b"cd"], [b"xyz", b"\0\0\0"], [2**14, 2**21 - 1], [300, 301])


def test_messages_without_key_payload_and_numbers() -> None:
    assert read(*[single(b"")] * 2) == ([None] * 2, [b""] * 2, None, None)
    assert read(*[single(b"", partition_key=b"")] * 2) == ([b""] * 2, [b""] * 2, None, None)


@pytest.mark.parametrize("fields", [b"\x30\x00" + ONE, ONE + b"\x20\x00\x48\x80\x00"])
def test_flags_that_are_not_set(fields: bytes) -> None:
    assert read((fields, b"v"), (fields, b"w")) == ([None] * 2, [b"v", b"w"], None, None)


def test_of_repeated_fields_the_last_counts() -> None:
    fields = b"\x40\x05\x48\x01" + ONE + b"\x40\x06\x48\x00"
    assert read((fields, b"v")) == ([None], [b"v"], [6], None)


def test_the_longest_number_has_63_bits() -> None:
    nine_bytes = b"\x40" + b"\xff" * 8 + b"\x7f"
    assert read((nine_bytes + ONE, b"v")) == ([None], [b"v"], [2**63 - 1], None)
    assert read((b"\x40" + b"\xff" * 9 + b"\x01" + ONE, b"v")) is None


DIFFERENT = {
    "a longer key and a shorter payload": [single(b"ab", partition_key=b"k"), single(b"a", partition_key=b"kk")],
    "a longer number and a shorter payload": [single(b"ab", sequence_id=1), single(b"a", sequence_id=128)],
    "numbers that end elsewhere": [
        (ONE + b"\x40\x01\x28\x02\x28\x83\x01", b"a"),
        (ONE + b"\x40\x80\x28\x28\x28\x28\x05", b"a"),
    ],
    "another field": [single(b"a", sequence_id=1), single(b"a", event_time=1)],
    "a flag of the second message": [(ONE + b"\x48\x00", b"a"), (ONE + b"\x48\x01", b"a")],
    "longer metadata and a shorter payload": [(ONE, b"a\x18"), (ONE + b"\x18\x00", b"")],
}


def test_a_message_that_states_another_size_is_left_out() -> None:
    data = bytearray(batch_payload([(ONE, b"v")] * 2))
    data[len(data) // 2 + 3] += 1
    assert decode_uniform_messages(bytes(data) + bytes(WORD_BYTES), 2, len(data) // 2) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_messages_of_one_size_but_different_layouts_are_left_out(name: str) -> None:
    assert read(*DIFFERENT[name]) is None


UNEXPECTED = {
    "no message": (b"", b""),
    "no size of the payload": (b"\x40\x01", b""),
    "another size of the payload": (ONE, b"ab"),
    "a key in base64": (b"\x12\x04a2V5" + ONE + b"\x30\x01", b"v"),
    "a key of 128 bytes": (b"\x12\x80\x01" + b"k" * 128 + ONE, b"v"),
    "a key beyond the metadata": (ONE + b"\x12\x05k", b"vwxy"),
    "a property": (b"\x0a\x06\x0a\x01k\x12\x01v" + ONE, b"v"),
    "an unknown field": (ONE + b"\x50\x00", b"v"),
    "null": (b"\x18\x00\x48\x01", b""),
    "compacted out": (b"\x18\x00\x20\x01", b""),
    "a last number that goes on in the payload": (ONE + b"\x40\x80", b"\x01"),
    "very long metadata": (ONE + b"\x40\x01" * 200, b"v"),
}


@pytest.mark.parametrize("name", UNEXPECTED)
def test_another_layout_is_left_out(name: str) -> None:
    assert read(*[UNEXPECTED[name]] * 2) is None


@pytest.mark.parametrize("data", [b"", b"\0\0\0\x02", b"\0\0\0\x09\x18\x00", b"\xff" * 8, b"\0\0\0\x03\x12\x01k"])
def test_messages_that_are_cut_off_are_left_out(data: bytes) -> None:
    assert decode_uniform_messages(data + bytes(WORD_BYTES), 1, len(data)) is None
