"""Framing and checksums of record batches: whole ones are read, anything else is an error that names the place."""

from __future__ import annotations

import pytest

from storage.errors import InvalidRecord
from storage.kafka.record_batch import batch_bytes, is_preallocated, read_batches
from tests.kafka_batches import APPEND_TIME, TRANSACTIONAL, Batch, Record, encode, legacy_message, marker

FIRST = encode(Batch([Record(5), Record(7)], attributes=TRANSACTIONAL | APPEND_TIME, producer_id=9))
SECOND = encode(Batch([Record(8, key=None)]))


def test_headers_of_batches() -> None:
    first, second, control = read_batches(FIRST + SECOND + marker(9, 9, 0), 100)
    assert (first.position, first.end_position) == (100, 100 + len(FIRST))
    assert (first.first_offset, first.last_offset, first.record_count, first.producer_id) == (5, 7, 2, 9)
    assert first.is_transactional
    assert first.has_append_time
    assert not first.is_control
    assert (second.position, second.first_offset) == (first.end_position, 8)
    assert not second.is_transactional
    assert control.is_control


def test_messages_of_old_formats_are_batches() -> None:
    data = legacy_message(0, Record(3)) + legacy_message(1, Record(4)) + SECOND
    assert [(batch.magic, batch.last_offset) for batch in read_batches(data)] == [(0, 3), (1, 4), (2, 8)]


@pytest.mark.parametrize("size", range(1, len(SECOND)))
def test_a_batch_that_is_not_whole_ends_the_batches(size: int) -> None:
    assert [batch.first_offset for batch in read_batches(FIRST + SECOND[:size])] == [5]


def test_zeros_end_the_batches() -> None:
    assert [batch.first_offset for batch in read_batches(FIRST + bytes(100))] == [5]
    assert is_preallocated(bytes(3))
    assert not is_preallocated(b"")
    assert batch_bytes(FIRST[:10], 0) is None


@pytest.mark.parametrize("data", [FIRST, legacy_message(0, Record(3)), legacy_message(1, Record(3))], ids="210")
def test_no_changed_bit_is_taken_for_the_data(data: bytes) -> None:
    """The checksum covers all but offset, size, epoch and magic."""
    (batch,) = read_batches(data)
    covered = 21 if batch.magic == 2 else 12
    for at in range(covered, len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(InvalidRecord):
            list(read_batches(bytes(changed), 1000))


def test_an_error_names_position_offset_and_remedy() -> None:
    changed = bytearray(SECOND)
    changed[-1] ^= 1
    with pytest.raises(
        InvalidRecord, match=rf"the batch at position {len(FIRST)}, offset 8, has the checksum"
    ) as error:
        list(read_batches(FIRST + bytes(changed)))
    assert "copy it again" in error.value.remedy
    assert [batch.first_offset for batch in read_batches(FIRST + bytes(changed), verify=False)] == [5, 8]


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (16, b"\x03", "has the format 3"),
        (8, b"\x00\x00\x00\x05", "claims 17 bytes"),
        (8, b"\xff\xff\xff\xff", "claims 11 bytes"),
        (8, b"\x7f\xff\xff\xff", "claims 2147483659 bytes"),
        (23, b"\xff\xff\xff\xff", "claims 1 records"),
        (57, b"\x00\x00\x00\x09", "claims 9 records"),
        (0, b"\x80", "claims 1 records from offset -"),
    ],
)
def test_impossible_headers(at: int, value: bytes, message: str) -> None:
    data = SECOND[:at] + value + SECOND[at + len(value) :]
    with pytest.raises(InvalidRecord, match=message):
        list(read_batches(data + bytes(100), verify=False))
