"""Rows to entries: what is decoded and rebuilt decodes to the same rows; dropped slots are stubs that are not live."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies

from storage.entries.decode import StoredEntry, unpack
from storage.entries.encode import encode_batch, encode_message
from storage.entries.entry import inspect, parse_metadata
from storage.entries.rebuild import DeliverableEntry, EntryBuilder
from storage.ledger.rows import CompressionType
from storage.log.bulk_append import INPUT_SCHEMA

KEYS = strategies.one_of(
    strategies.none(), strategies.sampled_from([b"", b"k", "grün".encode(), b"\xff\x00", b"x" * 300])
)
PAYLOADS = strategies.one_of(strategies.none(), strategies.binary(max_size=300))
TIMES = strategies.sampled_from([None, 1, 1_700_000_000_000])
PROPERTIES = strategies.sampled_from([None, None, [("a", "b"), ("ü", "")]])
MESSAGES = strategies.lists(strategies.tuples(KEYS, PAYLOADS, TIMES, PROPERTIES), min_size=1, max_size=12)
CONTENT = ("key", "key_base64", "payload", "publish_time", "event_time", "producer", "sequence_id")


def batch(messages: list[tuple[Any, ...]], number: int, codec: CompressionType) -> bytes:
    columns = [list(column) for column in zip(*messages, strict=True)]
    values = {"key": columns[0], "payload": columns[1], "event_time": columns[2], "properties": columns[3]}
    arrays = [pa.array(values.get(field.name, [0] * len(messages)), field.type) for field in INPUT_SCHEMA]
    table = pa.table(arrays, schema=INPUT_SCHEMA)
    return encode_batch(table, producer="p", first_sequence_id=number * 100, publish_time=5, codec=codec)


def stored(entries: list[bytes]) -> list[StoredEntry]:
    entries_, offset = [], 0
    for number, data in enumerate(entries):
        header = inspect(data)
        entries_.append(StoredEntry(number, offset, data, header))
        offset += header.messages
    return entries_


def rebuilt(table: pa.Table, cuts: list[int]) -> list[DeliverableEntry]:
    """The entries of a table that comes in pieces."""
    builder, entries = EntryBuilder(), []
    places = sorted({0, len(table), *(cut % (len(table) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        entries += builder.add(table.slice(start, end - start))
    return [*entries, *builder.remaining()]


@pytest.mark.slow
@given(strategies.data())
def test_decoding_what_was_rebuilt_gives_the_same_rows(data: strategies.DataObject) -> None:
    codec = data.draw(strategies.sampled_from(CompressionType))
    batches = data.draw(strategies.lists(MESSAGES, min_size=1, max_size=4))
    entries = [batch(messages, number, codec) for number, messages in enumerate(batches)]
    entries.append(
        encode_message(
            b"k", b"v" * 9, producer="q", sequence_id=3, publish_time=7, event_time=8, properties=[("x", "y")]
        )
    )
    table = unpack(stored(entries), 1)
    rebuilt_entries = rebuilt(table, data.draw(strategies.lists(strategies.integers(0, 50), max_size=4)))

    again = unpack(
        [StoredEntry(item.entry_id, item.offset, item.data, inspect(item.data)) for item in rebuilt_entries], 1
    )
    for name in (*CONTENT, "offset", "entry_id", "batch_index", "batch_size", "properties"):
        assert again.column(name).to_pylist() == table.column(name).to_pylist(), name
    assert all(item.live_mask == (1 << item.messages) - 1 for item in rebuilt_entries)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
@given(strategies.data())
def test_dropped_slots_are_stubs(plain: bool, data: strategies.DataObject) -> None:
    messages = data.draw(
        strategies.lists(strategies.tuples(KEYS, PAYLOADS, TIMES, PROPERTIES), min_size=2, max_size=20)
    )
    if plain:
        messages = [(b"k", payload, time, None) for _, payload, time, _ in messages]
    table = unpack(stored([batch(messages, 0, CompressionType.LZ4)]), 1)
    kept = sorted(data.draw(strategies.sets(strategies.integers(0, len(messages) - 1), min_size=1)))

    (entry,) = rebuilt(table.take(kept), [])

    assert entry.live_mask == sum(1 << slot for slot in kept)
    assert (entry.offset, entry.messages) == (0, len(messages))
    again = unpack([StoredEntry(0, 0, entry.data, inspect(entry.data))], 1)
    assert [slot for slot, kind in enumerate(again.column("slot").to_pylist()) if kind == 0] == kept
    for name in CONTENT:
        assert again.take(kept).column(name).to_pylist() == table.take(kept).column(name).to_pylist(), name


WITH_PROPERTIES = encode_message(b"k", b"v", producer="p", sequence_id=9, publish_time=5, properties=[("a", "b")])
"""An entry of a kind that makes all entries of its table be rebuilt message by message."""


def test_both_ways_make_the_same_bytes() -> None:
    """Column by column, as plain batches go, and message by message."""
    messages = [(b"key-%d" % number, b"v" * (number * 37 % 500), None, None) for number in range(50)]
    entries = [batch(messages, number, CompressionType.NONE) for number in range(3)]
    table = unpack(stored([*entries, WITH_PROPERTIES]), 1)
    table = table.take([*range(10), *range(60, 61), *range(100, 150, 3), 150])
    quick = rebuilt(table.slice(0, len(table) - 1), [])
    *slow, last = rebuilt(table, [])

    assert last.offset == 150
    assert slow == quick
    assert [item.data for item in slow] == [item.data for item in quick]


@pytest.mark.parametrize("quick", [True, False])
def test_a_batch_has_the_keys_of_its_first_message(quick: bool) -> None:
    """A key-shared subscription uses them in the form in which the client sent them."""
    messages = [(b"k", b"1", None, None), (b"k", b"2", None, None)]
    entries = [batch(messages, 0, CompressionType.NONE)]
    entry = rebuilt(unpack(stored(entries if quick else [*entries, WITH_PROPERTIES]), 1), [])[0]
    metadata, _ = parse_metadata(entry.data)
    assert metadata.partition_key == b"k"
    assert not metadata.partition_key_b64_encoded


LARGE = 200 << 10
"""Bytes of a message of which a hundred are more than a client's largest message, uncompressed."""


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec != CompressionType.NONE])
@pytest.mark.parametrize("plain", [True, False])
def test_a_rebuilt_batch_has_the_codec_of_its_producer(codec: CompressionType, plain: bool) -> None:
    properties = None if plain else [("a", "b")]
    sent = batch([(b"k%d" % number, bytes(LARGE), None, properties) for number in range(100)], 0, codec)
    table = unpack(stored([sent]), 1)

    whole, without_first = (rebuilt(rows, [])[0].data for rows in (table, table.slice(1)))

    assert parse_metadata(whole)[0].compression == parse_metadata(without_first)[0].compression == codec
    assert parse_metadata(whole)[0].uncompressed_size > 100 * LARGE
    assert len(whole) <= len(sent) * 6  # the fast level of ZLIB keeps more of zeros
    assert unpack(stored([whole]), 1).column("payload").to_pylist() == [bytes(LARGE)] * 100


@pytest.mark.parametrize("codec", list(CompressionType))
def test_a_rebuilt_message_has_the_codec_of_its_producer(codec: CompressionType) -> None:
    sent = encode_message(b"k", bytes(20 << 20), producer="q", sequence_id=3, publish_time=7, codec=codec)
    (entry,) = rebuilt(unpack(stored([sent]), 1), [])

    assert parse_metadata(entry.data)[0].compression == codec
    assert len(entry.data) <= len(sent) * 6
    assert unpack(stored([entry.data]), 1).column("payload").to_pylist() == [bytes(20 << 20)]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_a_rebuilt_tombstone_is_empty_with_every_codec(codec: CompressionType) -> None:
    sent = encode_message(b"k", None, producer="q", sequence_id=3, publish_time=7, codec=codec)
    (entry,) = rebuilt(unpack(stored([sent]), 1), [])
    metadata, payload_at = parse_metadata(entry.data)

    assert (metadata.null_value, metadata.uncompressed_size, len(entry.data) - payload_at) == (True, 0, 0)
