"""Entries: what is encoded comes back as rows, and no bytes at all make the log fail or lose an offset.

The loop that reads batches by hand (batch.py) is held to protobuf's reading of the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from storage.entries import bulk_batch
from storage.entries.batch import Messages, split_batch
from storage.entries.bulk_batch import LEAST_MESSAGES, Batch, decode_batches
from storage.entries.compression import Undecodable, compress, decompress
from storage.entries.decode import StoredEntry, unpack, unpack_in_blocks
from storage.entries.encode import encode_batch, encode_message
from storage.entries.entry import U32, EntryHeader, inspect
from storage.entries.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata
from storage.errors import InvalidRecord
from storage.ledger.rows import SCHEMA, CompressionType, RowType, logical_sizes
from storage.log.bulk_append import INPUT_SCHEMA
from tests import strategies
from tests.pulsar_entries import batch_payload, brokers, encrypted, entry, metadata, single

codecs = st.sampled_from(CompressionType)
texts = strategies.texts | st.text(min_size=120, max_size=140)
keys = st.none() | strategies.keys | st.binary(min_size=120, max_size=140) | st.text(max_size=5).map(str.encode)
# a value may be longer than one byte of a length can say
payloads = strategies.payloads | st.binary(min_size=100, max_size=300) | st.just(b"x" * 20_000)
event_times = st.none() | strategies.int64
properties = st.none() | st.lists(st.tuples(texts, texts), min_size=1, max_size=3)
messages = st.fixed_dictionaries(
    {"key": keys, "payload": payloads, "event_time": event_times, "properties": properties}
)


def is_text(key: bytes | None) -> bool:
    try:
        (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def expected_row(message: dict[str, Any], sequence_id: int) -> dict[str, Any]:
    return message | {
        "event_time": message["event_time"] or None,
        "key_base64": not is_text(message["key"]),
        "sequence_id": (sequence_id + 2**63) % 2**64 - 2**63,
        "slot": RowType.MESSAGE,
    }


@given(st.lists(messages, min_size=1, max_size=8), codecs, strategies.int64, strategies.int64, strategies.texts)
def test_a_batch_comes_back(
    sent: list[dict[str, Any]], codec: CompressionType, sequence_id: int, publish_time: int, producer: str
) -> None:
    table = pa.Table.from_pylist([message | {"publish_time": None} for message in sent], schema=INPUT_SCHEMA)
    data = encode_batch(table, producer=producer, first_sequence_id=sequence_id, publish_time=publish_time, codec=codec)
    header = inspect(data)
    assert header.messages == len(sent)
    rows = unpack([StoredEntry(3, 40, data, header)], 2)
    rows.validate(full=True)
    names = [*sent[0], "key_base64", "sequence_id", "slot"]
    expected = [expected_row(message, sequence_id + number) for number, message in enumerate(sent)]
    assert rows.select(names).to_pylist() == [{name: row[name] for name in names} for row in expected]
    assert rows.column("offset").to_pylist() == [40 + number for number in range(len(sent))]
    assert rows.column("batch_index").to_pylist() == list(range(len(sent)))
    common = {"entry_id": 3, "ledger_id": 2, "batch_size": len(sent), "producer": producer, "codec": codec}
    for name, value in (common | {"publish_time": publish_time}).items():
        assert set(rows.column(name).to_pylist()) == {value}


@given(messages, codecs, strategies.int64, strategies.int64)
def test_a_message_comes_back(
    message: dict[str, Any], codec: CompressionType, sequence_id: int, publish_time: int
) -> None:
    given_properties = {"properties": message["properties"] or ()}
    data = encode_message(
        **message | given_properties, producer="p", sequence_id=sequence_id, publish_time=publish_time, codec=codec
    )
    header = inspect(data)
    assert header.key == message["key"]
    (row,) = unpack([StoredEntry(3, 40, data, header)], 2).to_pylist()
    expected = expected_row(message, sequence_id) | {"publish_time": publish_time, "codec": codec, "offset": 40}
    expected |= {"batch_index": -1, "batch_size": 0, "producer": "p", "metadata": None}
    assert {name: row[name] for name in expected} == expected


@given(st.lists(messages, max_size=6), st.data())
def test_a_flipped_byte_is_always_seen(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    singles = [single(message["payload"], partition_key=message["key"]) for message in sent]
    whole = bytearray(entry(metadata(num_messages_in_batch=len(sent)), batch_payload(singles)))
    # the magic itself says that there is a checksum; without it the entry begins with nonsense
    whole[data.draw(st.integers(0, len(whole) - 1), label="position")] ^= data.draw(st.integers(1, 255), label="flip")
    with pytest.raises(InvalidRecord):
        inspect(bytes(whole))


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


tags = st.sampled_from([0x0A, 0x12, 0x18, 0x20, 0x28, 0x30, 0x3A, 0x40, 0x48, 0x50]) | st.integers(0, 300)
numbers = st.sampled_from([0, 1, 127, 128, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 300)
overlong = st.integers(0, 12).map(lambda length: b"\x80" * length + b"\x00")


def delimited(content: bytes) -> bytes:
    return varint(len(content)) + content


property_bytes = st.one_of(
    st.tuples(texts, texts).map(
        lambda pair: b"\x0a" + delimited(b"\x0a" + delimited(pair[0].encode()) + b"\x12" + delimited(pair[1].encode()))
    ),
    st.binary(max_size=12).map(lambda content: b"\x0a" + delimited(content)),
    st.binary(max_size=3).map(lambda key: b"\x0a" + delimited(b"\x0a" + delimited(key) + b"\x12\x01v")),
)
key_bytes = (st.binary(max_size=9) | st.sampled_from([b"a2V5", b"x" * 127, b"x" * 128])).map(
    lambda key: b"\x12" + delimited(key)
)
size_bytes = st.integers(0, 5).map(lambda size: b"\x18" + varint(size))
number_bytes = st.tuples(tags, numbers.map(varint) | overlong).map(lambda pair: varint(pair[0]) + pair[1])
field_bytes = st.one_of(number_bytes, property_bytes, key_bytes, size_bytes, st.binary(max_size=6))


@st.composite
def described_singles(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw metadata as producers write it, as only protobuf accepts it, or nonsense; and a payload."""
    size = draw(st.integers(0, 200))
    usual = [
        draw(st.lists(property_bytes, max_size=2)),
        draw(st.lists(key_bytes, max_size=1)),
        [b"\x18" + varint(size)],
    ]
    unusual = draw(st.lists(field_bytes, max_size=4))
    fields = [*usual[0], *usual[1], *usual[2], *unusual]
    if draw(st.booleans()):
        fields = draw(st.permutations(fields))
    return b"".join(fields), b"p" * draw(st.just(size) | st.integers(0, 5))


batches = st.lists(described_singles(), min_size=1, max_size=3).map(batch_payload)


def split(data: bytes, count: int, by_hand: bool) -> Messages | None:
    try:
        return split_batch(data, count, 11, 12, MessageMetadata(schema_version=b"s"), protobuf_only=not by_hand)
    except Undecodable:
        return None


@pytest.mark.slow
@given(batches | st.binary(max_size=60), st.integers(1, 4))
def test_a_batch_read_by_hand_is_what_protobuf_reads(data: bytes, count: int) -> None:
    assert split(data, count, by_hand=True) == split(data, count, by_hand=False)


@given(described_singles())
def test_a_message_read_by_hand_is_what_protobuf_reads(message: tuple[bytes, bytes]) -> None:
    data = batch_payload([message])
    assert split(data, 1, by_hand=True) == split(data, 1, by_hand=False)


@st.composite
def described_entries(draw: st.DrawFn) -> bytes:
    """Entries that are nearly right: batches of anything, fields that contradict, some bytes changed."""
    fields = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "num_messages_in_batch": st.integers(-1, 4),
                "compression": st.integers(0, 5),
                "uncompressed_size": st.integers(0, 100),
                "event_time": st.integers(0, 2**64 - 1),
                "partition_key": st.binary(max_size=5),
                "partition_key_b64_encoded": st.booleans(),
                "null_value": st.booleans(),
                "marker_type": st.integers(0, 3),
                "uuid": st.text(max_size=3),
                "num_chunks_from_msg": st.integers(0, 3),
                "chunk_id": st.integers(-1, 3),
            },
        )
    )
    described = (encrypted if draw(st.integers(0, 3)) == 3 else metadata)(**fields)
    payload = draw(batches | st.binary(max_size=40))
    if draw(st.booleans()) and 0 < fields.get("compression", 0) < 5:
        described.uncompressed_size = len(payload)
        payload = compress(CompressionType(fields["compression"]), payload)
    extra = draw(st.just(b"") | field_bytes | property_bytes.map(lambda raw: b"\x22" + raw[1:]))
    whole = bytearray(entry(described.SerializeToString() + extra, payload, checksum=False))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    return brokers(bytes(whole)) if draw(st.booleans()) else bytes(whole)


def inspected(data: bytes) -> EntryHeader:
    """The header of an entry; of bytes that are none, that of a message that they were before."""
    try:
        return inspect(data)
    except InvalidRecord:
        return inspect(encode_message(None, b"", producer="p", sequence_id=0, publish_time=1))


def stored_entries(data: Iterable[bytes]) -> list[StoredEntry]:
    entries, offset = [], 10
    for number, whole in enumerate(data):
        header = inspected(whole)
        entries.append(StoredEntry(number, offset, whole, header))
        offset += header.messages
    return entries


def assert_decoded_as_alone(data: Sequence[bytes]) -> None:
    """Compare the rows of entries, which are decoded together, with those of each entry, decoded alone."""
    entries = stored_entries(data)
    with mock.patch.object(bulk_batch, "LEAST_MESSAGES", 0):
        together = unpack(entries, 1)
    together.validate(full=True)
    assert together == pa.concat_tables(unpack([entry], 1) for entry in entries)


@st.composite
def encoded_batches(draw: st.DrawFn) -> bytes:
    sent = draw(st.lists(messages, min_size=1, max_size=4))
    table = pa.Table.from_pylist([message | {"publish_time": None} for message in sent], schema=INPUT_SCHEMA)
    return encode_batch(
        table, producer="p", first_sequence_id=draw(strategies.int64), publish_time=1, codec=draw(codecs)
    )


@pytest.mark.slow
@given(st.lists(encoded_batches(), min_size=1, max_size=4))
def test_batches_are_decoded_together_as_alone(data: list[bytes]) -> None:
    assert_decoded_as_alone(data)


@pytest.mark.slow
@given(st.lists(described_entries() | encoded_batches(), min_size=1, max_size=4))
def test_any_entries_are_decoded_together_as_alone(data: list[bytes]) -> None:
    assert_decoded_as_alone(data)


@st.composite
def even_entries(draw: st.DrawFn) -> list[bytes]:
    """Draw batches of messages that have one layout, but for two numbers of other lengths or another byte."""
    key_size = draw(st.none() | st.sampled_from([0, 3, 127, 128]))
    payload_size = draw(st.integers(0, 9))
    tags = draw(
        st.permutations([0x18, *draw(st.lists(st.sampled_from([0x20, 0x28, 0x30, 0x40, 0x40, 0x48]), max_size=3))])
    )
    widths = [draw(st.integers(1, 10)) for _ in tags]

    def message() -> bytes:
        fields = b"" if key_size is None else b"\x12" + delimited(draw(st.binary(min_size=key_size, max_size=key_size)))
        own_widths = draw(st.just(widths) | st.permutations(widths))
        for tag, width in zip(tags, own_widths, strict=True):
            value = payload_size if tag == 0x18 else draw(st.just(0) | st.integers(0, 2**64 - 1))
            digits = [value >> 7 * place & 0x7F for place in range(width)]
            fields += bytes([tag, *(digit | 0x80 for digit in digits[:-1]), digits[-1]])
        whole = batch_payload([(fields, draw(st.binary(min_size=payload_size, max_size=payload_size)))])
        at, other = draw(st.integers(0, 200)), draw(st.integers(0, 20))
        return whole[:at] + bytes([other]) + whole[at + 1 :] if at < len(whole) else whole

    entries = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 4))
        described = metadata(num_messages_in_batch=count, sequence_id=draw(numbers), event_time=draw(numbers))
        entries.append(entry(described, b"".join(message() for _ in range(count))))
    return entries


@given(even_entries())
def test_batches_of_one_layout_are_decoded_together_as_alone(data: list[bytes]) -> None:
    assert_decoded_as_alone(data)


@given(st.lists(described_entries() | st.binary(max_size=40), min_size=1, max_size=4))
def test_no_entry_fails_and_every_offset_has_its_row(stored: list[bytes]) -> None:
    entries, offsets, offset = [], [], 10
    for number, data in enumerate(stored):
        header = inspected(data)
        entries.append(StoredEntry(number, offset, data, header))
        offsets += range(offset, offset + header.messages)
        offset += header.messages
    table = unpack(entries, 1)
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table.column("offset").to_pylist() == offsets
    ids = list(zip(table.column("entry_id").to_pylist(), table.column("batch_index").to_pylist(), strict=True))
    assert ids == sorted(set(ids))
    # what cannot be decoded is there, every byte of it
    rows = table.to_pylist()
    for row in rows:
        if row["slot"] == RowType.WHOLE_ENTRY:
            assert row["payload"] == stored[row["entry_id"]]
            assert row["batch_index"] == -1


@pytest.mark.slow
@given(described_entries())
def test_logical_bytes_are_those_of_the_rows_and_of_a_batch_no_fewer(data: bytes) -> None:
    with contextlib.suppress(InvalidRecord):
        header = inspect(data)
        table = unpack([StoredEntry(0, 0, data, header)], 1)
        sealed = int(logical_sizes(table).sum())
        if header.batched and not header.encrypted and not header.marker:
            assert header.logical_bytes >= sealed or is_kept_whole(table)
        else:
            assert header.logical_bytes == sealed or is_kept_whole(table)


def is_kept_whole(table: pa.Table) -> bool:
    return RowType.WHOLE_ENTRY in table.column("slot").to_pylist()


@given(codecs, st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=40))
def test_what_is_decompressed_is_just_what_was_compressed(
    codec: CompressionType, data: bytes, size: int, nonsense: bytes
) -> None:
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    if codec and size != len(data):
        with pytest.raises(Undecodable):
            decompress(codec, compressed, size)
    if codec and size:
        with contextlib.suppress(Undecodable):
            assert len(decompress(codec, nonsense, size)) == size


UNUSUAL = {
    "a number of twelve bytes": (b"\x18\x00\x40" + b"\x80" * 11 + b"\x00", b""),
    "a number of ten bytes": (b"\x18\x00\x28" + b"\xff" * 9 + b"\x01", b""),
    "a long key that looks like a short one and fields": (
        b"\x12\x80\x02" + b"a" * 127 + b"\x40\x80\x01" + b"\x30\x00" * 63 + b"\x18\x00",
        b"",
    ),
    "a size beyond 32 bits, of which protobuf takes 32": (b"\x18" + varint(2**32 + 5), b"12345"),
    "a fixed number that looks like one without end": (b"\x18\x00\x45\xff\xff\xff\xff", b""),
    "a last field that continues in the payload": (b"\x18\x02\x40", b"\x05\x06"),
    "a property with a third field": (b"\x0a\x09\x0a\x01k\x12\x01v\x1a\x01z\x18\x00", b""),
    "a property with another second field": (b"\x0a\x06\x0a\x01k\x1a\x01v\x18\x00", b""),
    "properties read by hand before protobuf was asked": (b"\x0a\x06\x0a\x01k\x12\x01v\x18\x00\x3a\x01o", b""),
    "fields twice": (b"\x12\x01a\x18\x05\x18\x01\x12\x01b\x40\x01\x40\x02", b"1"),
    "a size that leads back": (b"\x12\x06\x00\x00\x00\x02\x18\x0b\x18\xef" + b"\xff" * 8 + b"\x01", b""),
}


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("count", [1, 2])
def test_what_only_looks_like_the_common_layout_is_left_to_protobuf(name: str, count: int) -> None:
    data = batch_payload([UNUSUAL[name]])
    assert split(data, count, by_hand=True) == split(data, count, by_hand=False)


def test_numbers_of_one_two_and_three_bytes_are_read_by_hand() -> None:
    sent = [single(b"x" * size, partition_key=b"k", sequence_id=size) for size in (0, 127, 128, 16_383, 16_384, 70_000)]
    data = batch_payload(sent)
    result = split(data, len(sent), by_hand=True)
    assert result is not None
    assert [len(payload or b"") for payload in result.payloads] == [0, 127, 128, 16_383, 16_384, 70_000]
    assert result.sequence_ids == [0, 127, 128, 16_383, 16_384, 70_000]


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_only_looks_like_the_common_layout_is_decoded_together_as_alone(name: str) -> None:
    batches = [entry(metadata(num_messages_in_batch=count), batch_payload([UNUSUAL[name]] * 2)) for count in (1, 2)]
    usual = entry(metadata(num_messages_in_batch=1), batch_payload([single(b"v", partition_key=b"k")]))
    assert_decoded_as_alone([*batches, usual])


LONG_PROPERTY = SingleMessageMetadata(properties=[{"key": "k" * 60, "value": "v" * 60}]).properties[0]
"""Three of them make metadata of more than 255 bytes."""


def decoded_payloads(*batches: Sequence[tuple[SingleMessageMetadata | bytes, bytes]]) -> list[list[bytes] | None]:
    """The payloads of each batch as they are decoded together; None: they are not. A batch is added to have enough."""
    filler = [single(b"v", partition_key=b"k")] * LEAST_MESSAGES
    sent = [Batch(batch_payload(batch), len(batch), 0, 0) for batch in [*batches, filler]]
    (block,) = decode_batches(sent)
    assert block.columns is not None
    payloads = iter(block.columns.payloads.to_pylist())
    return [
        [next(payloads) for _ in batch] if decoded else None
        for batch, decoded in zip(batches, block.decoded, strict=False)
    ]


def test_messages_are_located_whatever_their_sizes() -> None:
    """Also where a payload looks like the begin of a message, and where the size of the metadata has two bytes."""
    batches = [
        [single(b"v" * size, partition_key=b"k") for size in (5, 4, 6, 0, 5)],
        [single(bytes(size), partition_key=b"k") for size in (8, 1, 9)],
        [single(b"\0\0\0\7\x12" * 3, partition_key=b"k"), single(b"\0\0\0\0\x18\0", partition_key=b"k" * 10)],
        [single(b"\0" * n, partition_key=b"k" * 10, properties=[LONG_PROPERTY] * 3) for n in (1, 3)],
        [single(b"\0", partition_key=b"k" * size) for size in (4, 10, 18, 24, 8, 12)],
        [single(b"alone")],
    ]
    assert decoded_payloads(*batches) == [[payload for _, payload in batch] for batch in batches]


@pytest.mark.parametrize("fields", [b"\x18\x00", b"\x12\x01k\x18\x00"])
def test_metadata_that_ends_after_the_last_batch_is_left_out(fields: bytes) -> None:
    """Otherwise a message that was cut off would delete its key."""
    usual = [single(b"v", partition_key=b"k")] * LEAST_MESSAGES
    cut = batch_payload(usual) + U32.pack(len(fields) + 5) + fields
    batches = [Batch(batch_payload(usual), len(usual), 0, 0), Batch(cut, len(usual) + 1, 0, 0)]
    (block,) = decode_batches(batches)
    assert block.decoded.tolist() == [True, False]


def test_messages_with_very_many_fields_take_no_step_for_each_of_them() -> None:
    """They are left out; a payload that looks like them is decoded."""
    properties = SingleMessageMetadata(properties=[{"key": "", "value": ""}] * 65).properties
    numbers = b"\x18\x01" + b"\x40\x00" * 16
    batches = [
        [single(b"v", partition_key=b"k", properties=properties)],
        [(numbers, b"v")],
        [single(b"\0\0\0\2\x0a\0" + b"\x0a\0" * 100, partition_key=b"k", properties=properties[:64])],
        [(numbers[:-2], b"v")],
    ]
    assert decoded_payloads(*batches) == [None, None, [batches[2][0][1]], [b"v"]]


def test_a_batch_that_does_not_begin_or_end_with_a_message_is_left_out() -> None:
    usual = [single(b"v", partition_key=b"k")] * LEAST_MESSAGES
    data = batch_payload(usual)
    batches = [
        Batch(b"x" + data, len(usual), 0, 0),
        Batch(data + b"x", len(usual), 0, 0),
        Batch(data, len(usual) + 1, 0, 0),
        Batch(data, len(usual) - 1, 0, 0),
        Batch(data, len(usual), 0, 0),
    ]
    (block,) = decode_batches(batches)
    assert block.decoded.tolist() == [False, False, False, False, True]


def test_batches_of_many_blocks_and_what_stands_between_them_stay_in_order() -> None:
    usual = entry(metadata(num_messages_in_batch=9000), batch_payload([single(b"v", partition_key=b"k")] * 9000))
    alone = entry(metadata(partition_key=b"k"), b"alone")
    unusual = entry(metadata(num_messages_in_batch=2), batch_payload([UNUSUAL["a property with a third field"]] * 2))
    data = [alone, *[usual, alone] * 12, unusual, usual, alone, alone]
    entries = stored_entries(data)
    tables = list(unpack_in_blocks(entries, 1))
    assert len(tables) > 1
    assert pa.concat_tables(tables) == pa.concat_tables(unpack([stored], 1) for stored in entries)


def test_many_messages_of_one_size_stay_apart_from_their_neighbours() -> None:
    """So that another size among them costs the messages of one block only."""
    usual = batch_payload([single(b"v", partition_key=b"k")] * 1000)
    longer = batch_payload([single(b"w" * 2, partition_key=b"k")] * 1000)
    mixed = batch_payload([single(b"v" * size, partition_key=b"k") for size in (1, 2, 2)])
    batches = [Batch(data, 1000, 0, 0) for data in [usual] * 5 + [longer] * 2 + [usual] * 5]
    batches += [Batch(mixed, 3, 0, 0), *batches[:5], *batches[5:7]]
    blocks = list(decode_batches(batches))
    assert [block.end for block in blocks] == [5, len(batches)]
    assert all(block.decoded.all() for block in blocks)
    payloads = [payload for block in blocks if block.columns for payload in block.columns.payloads.to_pylist()]
    expected = [payload for batch in batches for payload in split_payloads(batch)]
    assert payloads == expected


def split_payloads(batch: Batch) -> list[bytes | None]:
    """The payloads of a batch, read message by message."""
    return split_batch(bytes(batch.data), batch.count, 0, 0, MessageMetadata()).payloads


def test_only_other_layouts_are_left_out() -> None:
    """A batch that is left out takes no other with it."""
    sizes = range(1, 41)
    usual = [batch_payload([single(b"v" * (1 + n % 2), partition_key=b"k") for n in range(size)]) for size in sizes]
    not_utf8 = batch_payload([(b"\x0a\x06\x0a\x01\xff\x12\x01v\x18\x00", b"")])
    batches = [Batch(data, size, 0, 0) for data, size in zip([*usual, not_utf8], [*sizes, 1], strict=True)]
    (block,) = decode_batches(batches)
    assert block.decoded.tolist() == [True] * 40 + [False]
    columns = block.columns
    assert columns is not None
    assert len(columns.keys) == sum(range(41))
    entries = [entry(metadata(num_messages_in_batch=batch.count), bytes(batch.data)) for batch in batches]
    assert_decoded_as_alone(entries)
