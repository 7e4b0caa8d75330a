"""Records of Kafka as entries: decoded again they are the records, and the entry names its offsets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from storage.entries.decode import StoredEntry, unpack
from storage.entries.entry import inspect, parse_metadata
from storage.entries.sequence_ids import sequence_id_of
from storage.kafka import record_entries
from storage.kafka.located_records import LocatedRecords
from storage.kafka.record_batch import read_batches
from storage.kafka.record_entries import RecordEntry, to_entries
from storage.kafka.records import locate_batches
from tests.kafka_batches import Batch, Record, encode

NOW = 1_800_000_000_000
PRODUCER = "kafka:c:t-0"
VALUES = st.one_of(st.none(), st.binary(max_size=40))
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.one_of(st.none(), st.integers(1, NOW + 5_000)),
        VALUES,
        VALUES,
        st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=40,
)


TIMES = st.one_of(st.none(), st.integers(1, NOW + 5_000))
TEXTS = st.one_of(st.none(), st.text(max_size=200).map(str.encode))
PLAIN = st.lists(st.tuples(st.integers(1, 200), TIMES, TEXTS, VALUES, st.none()), min_size=1, max_size=40)
"""Records without headers and with keys of UTF-8: they are encoded by columns."""
EVEN = st.builds(
    lambda count, key, value, time: [(1, time, key, value, None)] * count,
    st.integers(1, 200), st.one_of(st.none(), st.just(b"k" * 130)), VALUES, TIMES,
)  # fmt: skip
"""Records of one size."""


def located(rows: list[tuple[Any, ...]]) -> LocatedRecords:
    """Records of (gap to the offset before, timestamp, key, value, headers)."""
    offset, records = 0, []
    for gap, timestamp, key, value, headers in rows:
        offset += gap
        pairs = [(name.encode(), text.encode()) for name, text in headers or ()]
        records.append(Record(offset, -1 if timestamp is None else timestamp, key, value, pairs))
    (result,) = locate_batches(read_batches(encode(Batch(records))))
    return result


def decoded(entries: list[RecordEntry]) -> pa.Table:
    stored, offset = [], 0
    for number, entry in enumerate(entries):
        header = inspect(entry.data)
        assert header.messages == entry.messages
        stored.append(StoredEntry(number, offset, entry.data, header))
        offset += entry.messages
    return unpack(stored, 1)


@settings(max_examples=90)
@given(st.one_of(RECORDS, PLAIN, EVEN))
def test_entries_hold_the_records(rows: list[tuple[Any, ...]]) -> None:
    entries = list(to_entries(located(rows), PRODUCER, NOW))
    messages, records = decoded(entries), located(rows).table()
    assert messages.column("sequence_id").to_pylist() == records.column("offset").to_pylist()
    for name, column in (
        ("key", "key"),
        ("payload", "value"),
        ("event_time", "timestamp"),
        ("properties", "properties"),
    ):
        assert messages.column(name).to_pylist() == records.column(column).to_pylist()
    assert set(messages.column("producer").to_pylist()) == {PRODUCER}
    times = [time for time in records.column("timestamp").to_pylist() if time is not None]
    latest = NOW if len(times) < len(records) else min(NOW, max(times))
    assert set(messages.column("publish_time").to_pylist()) == {latest}, "the latest, never of the future"


@given(RECORDS, st.data())
def test_a_part_of_records_has_their_fields(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """A fetch begins before the offset that was asked for, and large records make several entries."""
    records, all_rows = located(rows), located(rows).table().to_pylist()
    first = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(first + 1, len(rows)))
    assert records.part(first, end).table().to_pylist() == all_rows[first:end]
    offset = data.draw(st.integers(0, records.offsets[-1] + 1))
    later, expected = records.since(offset), [row for row in all_rows if row["offset"] >= offset]
    assert later.count == len(expected)
    if expected:
        messages = decoded(list(to_entries(later, PRODUCER, NOW)))
        for name, column in (("sequence_id", "offset"), ("payload", "value"), ("properties", "properties")):
            assert messages.column(name).to_pylist() == [row[column] for row in expected]


def test_an_entry_states_its_highest_offset() -> None:
    """Deduplication and the mirror read the position from it."""
    (entry,) = to_entries(located([(7, NOW, b"k", b"v", None), (20, NOW, b"k", b"v", None)]), PRODUCER, NOW)
    assert (entry.first_offset, entry.last_offset, entry.messages) == (7, 27, 2)
    assert sequence_id_of(parse_metadata(entry.data)[0])[0] == 27


def test_entries_are_cut_by_messages_and_by_bytes() -> None:
    count = record_entries.ENTRY_MESSAGES
    many = located([(1, NOW, b"k", b"v", None)] * (2 * count + 1))
    assert [entry.messages for entry in to_entries(many, PRODUCER, NOW)] == [count, count, 1]
    half = record_entries.ENTRY_BYTES // 2
    large = located([(1, NOW, None, b"x" * size, None) for size in (half, half, 1, 4 * half, 1)])
    assert [entry.messages for entry in to_entries(large, PRODUCER, NOW)] == [2, 1, 1, 1]


def test_any_number_of_entries_is_in_order() -> None:
    value = b"x" * record_entries.ENTRY_BYTES
    entries = list(to_entries(located([(1, NOW, b"k", value, None)] * 70), PRODUCER, NOW))
    assert [entry.first_offset for entry in entries] == list(range(1, 71))


def test_entries_are_as_small_as_the_topic_takes() -> None:
    """Metadata of short records count, too; a single record may be larger."""
    records = located([(1, NOW, b"k", b"v", None)] * 300 + [(1, NOW, b"k", b"x" * 3_000, None)])
    entries = list(to_entries(records, PRODUCER, NOW, 1_000))
    assert decoded(entries).column("sequence_id").to_pylist() == list(range(1, 302))
    assert max(len(entry.data) for entry in entries[:-1]) <= 1_000 < len(entries[-1].data)
    assert entries[-1].messages == 1
    assert [entry.first_offset for entry in entries[1:]] == [entry.last_offset + 1 for entry in entries[:-1]]
