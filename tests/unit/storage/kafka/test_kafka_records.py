"""Records become columns: as a reader that goes byte by byte has them, in blocks of any size, from every codec."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, strategies as st

from storage.errors import InvalidRecord
from storage.kafka import compression, records
from storage.kafka.record_batch import read_batches
from storage.kafka.records import decode_batches
from tests.kafka_batches import (
    APPEND_TIME,
    DELETE_HORIZON,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    XERIAL,
    ZSTD,
    Batch,
    Record,
    encode,
    expected,
    read_slowly,
)
from tests.kafka_records import as_decoded, decoded, rows_of

CODECS = [NONE, GZIP, SNAPPY, XERIAL, LZ4, ZSTD]
BYTES = st.none() | st.binary(max_size=20) | st.sampled_from([b"", b"x" * 63, b"x" * 64, b"y" * 200, b"z" * 9000])
NAMES = st.text(max_size=5).map(str.encode)
TEXT_HEADERS = st.dictionaries(NAMES, st.text(max_size=5).map(str.encode), max_size=3).map(lambda all_: [*all_.items()])
DELTAS = st.integers(1, 3) | st.sampled_from([63, 64, 5000])
TIMES = st.sampled_from([-1, 0, 1, 1_700_000_000_000, 2**62]) | st.integers(1_699_999_999_000, 1_700_000_001_000)


@st.composite
def batches(draw: st.DrawFn, at_most: int = 12) -> list[Batch]:
    """Batches whose offsets ascend."""
    offset, result = draw(st.integers(0, 2**40)), []
    for _ in range(draw(st.integers(1, at_most))):
        rows = []
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(DELTAS)
            rows.append(Record(offset, draw(TIMES), draw(BYTES), draw(BYTES), draw(TEXT_HEADERS)))
        attributes = draw(st.sampled_from([0, 0, APPEND_TIME, DELETE_HORIZON]))
        result.append(Batch(rows, draw(st.sampled_from(CODECS)), attributes, first_offset=rows[0].offset - 1))
    return result


@pytest.mark.slow
@given(batches(), st.integers(1, 3000))
def test_records_are_those_that_were_written(drawn: list[Batch], block_bytes: int) -> None:
    data = b"".join(map(encode, drawn))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_BYTES", block_bytes)
        assert decoded(data) == as_decoded(row for batch in drawn for row in expected(batch))


@pytest.mark.slow
@given(batches(at_most=30))
def test_many_small_batches_decode_as_a_slow_reader_has_them(drawn: list[Batch]) -> None:
    data = b"".join(encode(Batch(batch.records, NONE, batch.attributes)) for batch in drawn)
    assert decoded(data) == as_decoded(read_slowly(data))


def test_batches_of_very_different_lengths() -> None:
    offset, drawn = 0, []
    for number in range(30):
        rows = [Record(offset + k, key=b"%d" % k, value=b"v" * (k % 150)) for k in range(1 + number * number % 97)]
        offset += len(rows)
        drawn.append(Batch(rows, CODECS[number % len(CODECS)]))
    data = b"".join(map(encode, drawn))
    assert decoded(data) == as_decoded(row for batch in drawn for row in expected(batch))


@pytest.mark.slow
@given(batches(at_most=4), st.data())
def test_any_changed_bytes_are_an_error_or_the_same_shape(drawn: list[Batch], data: st.DataObject) -> None:
    """Checksums are left out, so that damage reaches the decoder: it raises InvalidRecord, and nothing else."""
    content = bytearray(b"".join(map(encode, drawn)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    message = "the batch at position "
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "MAX_BYTES", 1 << 20)
        try:
            rows_of(decode_batches(list(read_batches(bytes(content), verify=False))))
        except InvalidRecord as error:
            message = error.message
    assert message.startswith("the batch at position ")


def test_a_record_that_ends_elsewhere_is_named_by_its_batch() -> None:
    good, bad = encode(Batch([Record(1)])), bytearray(encode(Batch([Record(2)])))
    bad[61] += 2
    with pytest.raises(InvalidRecord, match=rf"position {len(good)}, offset 2, has records that are not where it says"):
        rows_of(decode_batches(read_batches(good + bytes(bad), verify=False)))


def test_a_batch_that_claims_more_records_than_its_bytes_can_hold_takes_no_memory_for_them() -> None:
    data = bytearray(encode(Batch([Record(2)])))
    largest = (2**31 - 1).to_bytes(4, "big")
    data[23:27] = largest  # the last record's offset, from the first one
    data[57:61] = largest  # the number of records
    with pytest.raises(InvalidRecord, match="position 0, offset 2, claims 2147483647 records in 9 bytes"):
        rows_of(decode_batches(read_batches(bytes(data), verify=False)))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, XERIAL, LZ4, ZSTD])
def test_damaged_compression_is_an_error(codec: int) -> None:
    data = encode(Batch([Record(3, value=b"abc" * 300)], codec))
    cut = bytearray(data[:-5])
    cut[8:12] = (len(cut) - 12).to_bytes(4, "big")
    with pytest.raises(InvalidRecord, match="the batch at position 0, offset 3, cannot be decompressed"):
        rows_of(decode_batches(read_batches(bytes(cut), verify=False)))


def test_an_empty_batch_that_a_cleaner_kept_has_no_records() -> None:
    assert decoded(encode(Batch([], first_offset=4, last_offset=9, producer_id=3))) == []


def test_null_and_empty_stay_apart() -> None:
    rows = [Record(0, key=None, value=None), Record(1, key=b"", value=b""), Record(2, key=b"", value=None)]
    assert [row[2:4] for row in decoded(encode(Batch(rows)))] == [(None, None), (b"", b""), (b"", None)]


def test_records_of_one_size_in_a_row_are_located_as_others_are() -> None:
    """Sizes of one, two and three bytes, in runs of any length; the largest offsets of a batch make records longer."""
    sizes = [5] * 40 + [6, 7, 8] * 5 + [5] * 20 + [90] * 60 + [91] + [90] * 17 + [9_000] * 3 + [5] * 200 + [0] * 33
    rows = [Record(offset, value=bytes([offset % 251]) * size) for offset, size in enumerate(sizes)]
    data = encode(Batch(rows)) + encode(Batch([Record(len(sizes), value=b"x")]))
    assert [(row[0], row[3]) for row in decoded(data)] == [
        *((record.offset, record.value) for record in rows),
        (len(sizes), b"x"),
    ]


def test_runs_of_one_size_in_many_batches_are_located_as_others_are() -> None:
    """Batches of which each has other runs: some end in the same round, some are located alone."""
    offset, drawn = 0, []
    for number in range(24):
        sizes = [5] * (number * 37 % 300) + [90] * (number * 11 % 130) + [9_000] * (number % 3) + [7] * (number % 20)
        sizes += [k % 50 for k in range(40 if number % 4 == 0 else 1)]
        rows = [Record(offset + k, value=bytes([k % 251]) * size) for k, size in enumerate(sizes)]
        offset += len(rows)
        drawn.append(Batch(rows))
    data = b"".join(map(encode, drawn))
    assert decoded(data) == as_decoded(row for batch in drawn for row in expected(batch))


def test_values_with_many_zeros_take_no_more_memory_than_others() -> None:
    """A search for the zeros between records would find those in the values."""
    values = [b"\0" * (100 + k % 100) for k in range(2_000)], [b"\0a" * (50 + k % 50) for k in range(2_000)]
    for drawn in values:
        rows = [Record(offset, value=value) for offset, value in enumerate(drawn)]
        batches = list(read_batches(encode(Batch(rows))))
        tracemalloc.start()
        (block,) = records.locate_batches(batches)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert block.table().column("value").to_pylist() == drawn
        assert peak < 10 * sum(map(len, drawn))
