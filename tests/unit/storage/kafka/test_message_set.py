"""Messages of magic 0 and 1: single and in wrappers, with offsets and timestamps as each format has them."""

from __future__ import annotations

import pytest

from storage.errors import InvalidRecord
from storage.kafka.message_set import read_message_set
from storage.kafka.record_batch import read_batches
from tests.kafka_batches import (
    APPEND_TIME,
    GZIP,
    LZ4,
    SNAPPY,
    XERIAL,
    Batch,
    Record,
    compress,
    expected,
    legacy_message,
    legacy_wrapper,
)
from tests.kafka_records import as_decoded, decoded

ROWS = [Record(40, 7, b"a", b"1"), Record(41, 8, None, None), Record(43, -1, b"", b"")]


@pytest.mark.parametrize("magic", [0, 1])
def test_single_messages(magic: int) -> None:
    data = b"".join(legacy_message(magic, row) for row in ROWS)
    assert decoded(data) == as_decoded(expected(Batch(ROWS), magic))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, XERIAL, LZ4])
@pytest.mark.parametrize("attributes", [0, APPEND_TIME])
def test_wrappers(magic: int, codec: int, attributes: int) -> None:
    batch = Batch(ROWS, codec, attributes)
    following = Record(44, 9)
    data = legacy_wrapper(magic, batch) + legacy_message(magic, following)
    assert decoded(data) == as_decoded([*expected(batch, magic), *expected(Batch([following]), magic)])


def test_offsets_that_do_not_ascend_are_an_error() -> None:
    with pytest.raises(InvalidRecord, match="offsets do not ascend"):
        decoded(legacy_wrapper(0, Batch([Record(3), Record(2), Record(4)], GZIP)))


def test_a_wrapper_that_ends_inside_a_message_is_an_error() -> None:
    inside = legacy_message(1, Record(0))[:-1]
    data = legacy_message(1, Record(5, 1, None, compress(GZIP, inside)), GZIP)
    with pytest.raises(InvalidRecord, match="position 0, offset 5, ends inside a message"):
        decoded(data)


def test_a_damaged_message_in_a_wrapper_is_an_error() -> None:
    inside = bytearray(legacy_message(1, Record(0)))
    inside[-1] ^= 1
    data = legacy_message(1, Record(5, 1, None, compress(GZIP, bytes(inside))), GZIP)
    with pytest.raises(InvalidRecord, match="offset 5, holds a damaged message"):
        decoded(data)


def test_a_value_that_ends_elsewhere_is_an_error() -> None:
    data = bytearray(legacy_message(0, Record(1, value=b"abc")))
    data[-4] = 9
    batch = next(iter(read_batches(bytes(data), verify=False)))
    with pytest.raises(InvalidRecord, match="ends elsewhere"):
        read_message_set(batch)
