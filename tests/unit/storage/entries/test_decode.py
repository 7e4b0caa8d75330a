"""Entries to rows: a real broker's, and every kind that has a rule of its own (P5, P7, P8, P10, W2)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from storage.entries.compression import compress
from storage.entries.decode import StoredEntry, unpack
from storage.entries.encode import encode_batch, encode_message
from storage.entries.entry import inspect
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.source_position import with_position
from storage.ledger.rows import SCHEMA, CompressionType, RowType
from storage.ledger.sealing import keyed_mask
from storage.log.bulk_append import INPUT_SCHEMA
from storage.model import SourcePosition
from tests.pulsar_entries import (
    PUBLISHED,
    batch_payload,
    brokers,
    encrypted,
    entry,
    metadata,
    real_entries,
    single,
    stored,
)

LEDGER = 12


def rows_of(*data: bytes) -> list[dict[str, Any]]:
    """The rows of entries that follow each other, as a log would hand them out."""
    entries, offset = [], 100
    for number, stored_entry in enumerate(data):
        entries.append(stored(stored_entry, number, offset))
        offset += inspect(stored_entry).messages
    return unpacked(entries)


def unpacked(entries: list[StoredEntry]) -> list[dict[str, Any]]:
    table = unpack(entries, LEDGER)
    table.validate(full=True)
    assert table.schema == SCHEMA
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def rest_of(row: dict[str, Any]) -> MessageMetadata:
    return MessageMetadata.FromString(row["metadata"])


def real_messages(line: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            message["id"].partition(":")[2],
            message["batch_size"],
            message["key"].encode(),
            message["key_b64"],
            message["payload"].encode(),
            [*message["properties"].items(), ("#", str(message["index"]))],
            message["event_time"] or None,
        )
        for message in line["messages"]
    ]


def delivered(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    columns = ("batch_size", "key", "key_base64", "payload", "properties", "event_time")
    return [
        (f"{row['entry_id']}:{row['batch_index']}", *(row[name] for name in columns))
        for row in rows
        if row["slot"] == RowType.MESSAGE
    ]


def test_the_entries_of_a_real_broker() -> None:
    """The `#` property is the messages' number; the file's producer gave it, the list of messages leaves it out."""
    for line in real_entries():
        data = bytes.fromhex(line["entry"]["hex"])
        entry_id = int(line["entry"]["id"].partition(":")[2])
        rows = unpacked([stored(data, entry_id, offset=50)])
        assert delivered(rows) == real_messages(line)
        slots = line["entry"].get("slots", [{"compacted_out": False}])
        assert [row["slot"] == RowType.COMPACTED_OUT for row in rows] == [slot["compacted_out"] for slot in slots]
        assert [row["offset"] for row in rows] == list(range(50, 50 + len(slots)))
        assert {CompressionType(row["codec"]).name for row in rows} == {line["entry"]["compression"]}
        assert {row["producer"] for row in rows} == {inspect(data).producer}


def test_the_messages_of_a_real_broker_encoded_by_us() -> None:
    """Encoded again, in the codec that the broker stored them in, they are the same messages."""
    for line in real_entries():
        codec = CompressionType[line["entry"]["compression"]]
        messages = [
            {
                "key": message["key"].encode(),
                "payload": message["payload"].encode(),
                "publish_time": None,
                "event_time": message["event_time"] or None,
                "properties": [*message["properties"].items(), ("#", str(message["index"]))],
            }
            for message in line["messages"]
        ]
        if line["entry"]["has_num_messages_in_batch"]:
            table = pa.Table.from_pylist(messages, schema=INPUT_SCHEMA)
            data = encode_batch(table, producer="p", first_sequence_id=0, publish_time=PUBLISHED, codec=codec)
        else:
            (message,) = messages
            message.pop("publish_time")
            data = encode_message(**message, producer="p", sequence_id=0, publish_time=PUBLISHED, codec=codec)
        rows = rows_of(data)
        assert [message[2:] for message in delivered(rows)] == [message[2:] for message in real_messages(line)]
        assert {row["codec"] for row in rows} == {codec}


def test_every_column_of_a_message() -> None:
    described = metadata(partition_key=b"a2V5", partition_key_b64_encoded=True, event_time=5, compression=3)
    described.uncompressed_size = 7
    for name, value in (("b", "1"), ("a", "2"), ("b", "3")):
        described.properties.add(key=name, value=value)
    described.schema_version = b"\x01"
    (row,) = rows_of(entry(described, compress(CompressionType.ZSTD, b"payload")))
    assert row == {
        "offset": 100,
        "ledger_id": LEDGER,
        "entry_id": 0,
        "batch_index": -1,
        "batch_size": 0,
        "key": b"key",
        "key_base64": True,
        "payload": b"payload",
        "publish_time": PUBLISHED,
        "event_time": 5,
        "producer": "p",
        "sequence_id": 7,
        "properties": [("b", "1"), ("a", "2"), ("b", "3")],
        "chunk_uuid": None,
        "chunk_index": None,
        "chunk_count": None,
        "codec": CompressionType.ZSTD,
        "slot": RowType.MESSAGE,
        "metadata": MessageMetadata(schema_version=b"\x01").SerializePartialToString(),
        "retained_at": None,
        "source_ledger_id": None,
        "source_entry_id": None,
    }


def test_offsets_and_ids_follow_the_entries() -> None:
    batch = entry(metadata(num_messages_in_batch=2), batch_payload([single(b"1"), single(b"2")]))
    rows = rows_of(entry(metadata(), b"0"), batch, brokers(entry(metadata(), b"3", checksum=False)))
    places = [(row["offset"], row["entry_id"], row["batch_index"], row["batch_size"]) for row in rows]
    assert places == [(100, 0, -1, 0), (101, 1, 0, 2), (102, 1, 1, 2), (103, 2, -1, 0)]
    assert [row["payload"] for row in rows] == [b"0", b"1", b"2", b"3"]


def test_a_batch_of_one_is_a_batch() -> None:
    (row,) = rows_of(entry(metadata(num_messages_in_batch=1), batch_payload([single(b"1")])))
    assert (row["batch_index"], row["batch_size"]) == (0, 1)


def test_one_null_value_leaves_its_batch_alone() -> None:
    """P7: also where its flag stands at the batch."""
    singles = [single(b"1", partition_key=b"a"), single(None, partition_key=b"b"), single(b"", partition_key=b"c")]
    rows = rows_of(entry(metadata(num_messages_in_batch=3, null_value=True), batch_payload(singles)))
    assert [(row["key"], row["payload"]) for row in rows] == [(b"a", b"1"), (b"b", None), (b"c", b"")]


def test_a_message_without_a_value_is_null() -> None:
    (row,) = rows_of(entry(metadata(partition_key=b"k", null_value=True)))
    assert (row["key"], row["payload"], row["metadata"]) == (b"k", None, None)


@pytest.mark.parametrize("codec", CompressionType)
def test_an_empty_payload_is_empty_and_not_null(codec: CompressionType) -> None:
    (row,) = rows_of(entry(metadata(compression=int(codec), uncompressed_size=0), compress(codec, b"")))
    assert (row["payload"], row["slot"]) == (b"", RowType.MESSAGE)


def test_a_slot_that_was_compacted_out_is_not_a_message() -> None:
    singles = [single(b"1", partition_key=b"a"), single(b"", compacted_out=True, partition_key=b"b")]
    table = unpack([stored(entry(metadata(num_messages_in_batch=2), batch_payload(singles)))], LEDGER)
    assert table.column("slot").to_pylist() == [RowType.MESSAGE, RowType.COMPACTED_OUT]
    assert table.column("payload").to_pylist() == [b"1", None]
    assert keyed_mask(table).to_pylist() == [True, False]


def test_what_a_batch_says_holds_where_its_messages_are_silent() -> None:
    """Sequence id and event time; never a key, which a batch has of its first message only."""
    singles = [single(b"1"), single(b"2", sequence_id=70, event_time=9, partition_key=b"k"), single(b"3", event_time=0)]
    described = metadata(num_messages_in_batch=3, event_time=8, partition_key=b"first", ordering_key=b"first")
    rows = rows_of(entry(described, batch_payload(singles)))
    assert [row["sequence_id"] for row in rows] == [7, 70, 7]
    assert [row["event_time"] for row in rows] == [8, 9, None]
    assert [row["key"] for row in rows] == [None, b"k", None]
    assert {row["metadata"] for row in rows} == {None}


def test_what_a_message_of_a_batch_has_besides_its_columns_is_kept() -> None:
    own = single(b"2", ordering_key=b"o", null_partition_key=True)[0].SerializeToString() + b"\xa2\x1f\x03abc"
    singles = [single(b"1"), (own, b"2"), single(b"3")]
    described = metadata(num_messages_in_batch=3, highest_sequence_id=9).SerializeToString() + b"\xa2\x1f\x03xyz"
    _, *rows = rows_of(entry(metadata(), b"0"), entry(described, batch_payload(singles)))
    batch = MessageMetadata(highest_sequence_id=9).SerializePartialToString() + b"\xa2\x1f\x03xyz"
    assert rows[0]["metadata"] == rows[2]["metadata"] == batch
    kept = rest_of(rows[1])
    assert (kept.ordering_key, kept.null_partition_key, kept.highest_sequence_id) == (b"o", True, 9)
    assert kept.single_message_rest == b"\xa2\x1f\x03abc"
    assert b"\xa2\x1f\x03xyz" in rows[1]["metadata"]


def test_properties_are_those_of_their_message() -> None:
    pairs = [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    singles = [single(b"1"), single(b"2", properties=pairs), single(b"3", properties=pairs[:1])]
    batch = entry(metadata(num_messages_in_batch=3), batch_payload(singles))
    rows = rows_of(entry(metadata(properties=pairs[1:]), b"0"), batch, entry(metadata(), b"4"))
    assert [row["properties"] for row in rows] == [[("a", "2")], None, [("a", "1"), ("a", "2")], [("a", "1")], None]


def test_a_key_in_base64_is_its_bytes_in_a_batch_too() -> None:
    singles = [
        single(b"", partition_key=b"a2V5", partition_key_b64_encoded=True),
        single(b"", partition_key=b"a2V5", partition_key_b64_encoded=False),
        single(b"", partition_key_b64_encoded=True),
        single(b"", partition_key=b""),
    ]
    rows = rows_of(entry(metadata(num_messages_in_batch=4), batch_payload(singles)))
    keys = [(row["key"], row["key_base64"]) for row in rows]
    assert keys == [(b"key", True), (b"a2V5", False), (None, False), (b"", False)]


def test_chunks_keep_their_bytes_and_say_of_which_message_they_are() -> None:
    fields: dict[str, Any] = {"uuid": "p-7", "num_chunks_from_msg": 2, "total_chunk_msg_size": 9, "partition_key": b"k"}
    fields |= {"compression": 1, "uncompressed_size": 2000, "null_value": True}
    halves = [entry(metadata(chunk_id=number, **fields), piece) for number, piece in enumerate((b"first", b"last"))]
    rows = rows_of(*halves)
    assert [(row["slot"], row["payload"], row["codec"], row["key"]) for row in rows] == [
        (RowType.CHUNK, b"first", CompressionType.LZ4, b"k"),
        (RowType.CHUNK, b"last", CompressionType.LZ4, b"k"),
    ]
    assert [(row["chunk_uuid"], row["chunk_index"], row["chunk_count"]) for row in rows] == [
        ("p-7", 0, 2),
        ("p-7", 1, 2),
    ]
    rest = MessageMetadata(total_chunk_msg_size=9, uncompressed_size=2000)
    assert {row["metadata"] for row in rows} == {rest.SerializePartialToString()}


@pytest.mark.parametrize(
    "fields", [{"uuid": "u", "chunk_id": 2}, {"uuid": "u", "chunk_id": -1}, {"chunk_id": 0}], ids=str
)
def test_a_chunk_of_no_message_passes_whole(fields: dict[str, Any]) -> None:
    data = entry(metadata(num_chunks_from_msg=2, partition_key=b"k", **fields), b"piece")
    (row,) = rows_of(data)
    assert (row["slot"], row["payload"], row["key"], row["chunk_uuid"]) == (RowType.WHOLE_ENTRY, data, None, None)


def test_a_message_of_one_chunk_is_a_message() -> None:
    (row,) = rows_of(entry(metadata(uuid="u", num_chunks_from_msg=1, chunk_id=0), b"all"))
    assert (row["slot"], row["payload"], row["chunk_uuid"]) == (RowType.MESSAGE, b"all", None)
    assert rest_of(row).uuid == "u"


def test_an_encrypted_batch_passes_whole() -> None:
    looks_like_a_batch = batch_payload([single(b"1")])
    data = brokers(entry(encrypted(num_messages_in_batch=4, partition_key=b"k"), looks_like_a_batch))
    before, row, after = rows_of(entry(metadata(), b"1"), data, entry(metadata(), b"2"))
    assert [before["offset"], row["offset"], after["offset"]] == [100, 101, 102]
    assert (row["slot"], row["payload"], row["key"]) == (RowType.WHOLE_ENTRY, data, None)
    assert (row["batch_index"], row["batch_size"], row["codec"], row["metadata"]) == (-1, 0, CompressionType.NONE, None)
    assert (row["producer"], row["sequence_id"], row["publish_time"]) == ("p", 7, PUBLISHED)


def test_an_encrypted_message_is_its_ciphertext() -> None:
    described = encrypted(partition_key=b"k", compression=2, uncompressed_size=1000)
    (row,) = rows_of(entry(described, b"ciphertext"))
    assert (row["slot"], row["key"], row["payload"], row["codec"]) == (
        RowType.MESSAGE,
        b"k",
        b"ciphertext",
        CompressionType.ZLIB,
    )
    rest = rest_of(row)
    assert rest.encryption_keys == described.encryption_keys
    assert (rest.encryption_algo, rest.encryption_param, rest.uncompressed_size) == ("AES", b"iv", 1000)
    assert not rest.HasField("partition_key")


def test_the_flag_decides_whether_an_encrypted_message_is_a_tombstone() -> None:
    """P5; and its ciphertext is kept for those who can decrypt it."""
    (row,) = rows_of(entry(encrypted(partition_key=b"k", null_value=True), b"ciphertext"))
    assert (row["slot"], row["key"], row["payload"]) == (RowType.MESSAGE, b"k", None)
    assert rest_of(row).encrypted_null_value == b"ciphertext"


def test_an_encrypted_message_without_a_byte_is_no_tombstone() -> None:
    (row,) = rows_of(entry(encrypted(partition_key=b"k")))
    assert (row["slot"], row["key"]) == (RowType.WHOLE_ENTRY, None)


def test_a_producer_cannot_set_what_is_ours() -> None:
    (row,) = rows_of(entry(metadata(encrypted_null_value=b"x", single_message_rest=b"y"), b"1"))
    assert row["metadata"] is None


def test_a_marker_is_never_a_message() -> None:
    described = metadata(marker_type=20, txnid_least_bits=4, partition_key=b"k", compression=9)
    (row,) = rows_of(entry(described, b"marker"))
    assert (row["slot"], row["key"], row["payload"], row["codec"]) == (
        RowType.MARKER,
        None,
        b"marker",
        CompressionType.NONE,
    )
    rest = rest_of(row)
    assert (rest.marker_type, rest.txnid_least_bits, rest.partition_key, rest.compression) == (20, 4, b"k", 9)


def test_a_marker_that_says_to_be_a_batch_fills_its_offsets() -> None:
    rows = rows_of(entry(metadata(marker_type=20, num_messages_in_batch=2), b"x" * 12), entry(metadata(), b"1"))
    assert [row["slot"] for row in rows] == [RowType.MARKER, RowType.COMPACTED_OUT, RowType.MESSAGE]
    assert [row["offset"] for row in rows] == [100, 101, 102]


THREE = batch_payload([single(b"1"), single(b"22"), single(b"333")])
UNDECODABLE = {
    "bytes behind the last message": ({}, THREE + b"\x00"),
    "the last message cut": ({}, THREE[:-1]),
    "a message more than it says": ({}, THREE + batch_payload([single(b"4")])),
    "metadata longer than the batch": ({}, THREE[:-10] + b"\x00\x00\x00\xff" + THREE[-6:]),
    "a payload size below zero": (
        {},
        batch_payload([single(b"1"), single(b"2"), (b"\x18" + b"\xff" * 9 + b"\x01", b"")]),
    ),
    "a payload size that leads back into its own key": (
        {},
        batch_payload([single(b"1"), (b"\x12\x06\x00\x00\x00\x02\x18\x0b\x18\xef" + b"\xff" * 8 + b"\x01", b"")]),
    ),
    "no payload size": ({}, batch_payload([single(b"1"), single(b"2"), (b"\x40\x01", b"")])),
    "no payload size, and a field that is left to protobuf": (
        {},
        batch_payload([single(b"1"), single(b"2"), (b"\x3a\x01o", b"")]),
    ),
    "a property without a value": (
        {},
        batch_payload([single(b"1"), single(b"2"), (b"\x0a\x03\x0a\x01k\x18\x00", b"")]),
    ),
    "nonsense for metadata": ({}, batch_payload([single(b"1"), single(b"2"), (b"\x18\x00\x07", b"")])),
    "a key that is not base64": (
        {},
        batch_payload([single(b"1"), single(b"2"), single(b"3", partition_key=b"*", partition_key_b64_encoded=True)]),
    ),
    "a property that is not UTF-8": (
        {},
        batch_payload([single(b"1"), single(b"2"), (b"\x0a\x05\x0a\x01\xff\x12\x00\x18\x00", b"")]),
    ),
    "a compression that is not known": ({"compression": 5, "uncompressed_size": len(THREE)}, THREE),
    "compressed in another way": (
        {"compression": 3, "uncompressed_size": len(THREE)},
        compress(CompressionType.ZLIB, THREE),
    ),
    "a chunk at the same time, of whose size no limit knew": (
        {"uuid": "u", "num_chunks_from_msg": 2, "compression": 2, "uncompressed_size": len(THREE)},
        compress(CompressionType.ZLIB, THREE),
    ),
}


@pytest.mark.parametrize("name", UNDECODABLE)
def test_a_batch_that_cannot_be_decoded_passes_whole_and_takes_its_offsets(name: str) -> None:
    fields, payload = UNDECODABLE[name]
    data = entry(metadata(num_messages_in_batch=3, partition_key=b"k", **fields), payload)
    rows = rows_of(entry(metadata(), b"0"), data, entry(metadata(), b"4"))
    assert [row["slot"] for row in rows] == [0, RowType.WHOLE_ENTRY, RowType.COMPACTED_OUT, RowType.COMPACTED_OUT, 0]
    assert [row["payload"] for row in rows] == [b"0", data, None, None, b"4"]
    assert [row["offset"] for row in rows] == [100, 101, 102, 103, 104]
    assert [row["entry_id"] for row in rows] == [0, 1, 1, 1, 2]
    assert [row["batch_index"] for row in rows] == [-1, -1, 1, 2, -1]
    assert [row["batch_size"] for row in rows] == [0, 3, 3, 3, 0]
    assert {row["key"] for row in rows} == {None}
    assert {row["codec"] for row in rows} == {CompressionType.NONE}
    assert {row["publish_time"] for row in rows} == {PUBLISHED}


@pytest.mark.parametrize("lie", [-1, +1, 10_000_000], ids="{:+}".format)
@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_a_size_that_is_not_the_payloads_passes_whole(codec: CompressionType, lie: int) -> None:
    """Never a byte of memory that is not the message's, which Arrow would hand out (compression.py)."""
    payload = bytes(range(100)) * 10
    data = entry(metadata(compression=int(codec), uncompressed_size=1000 + lie), compress(codec, payload))
    honest = entry(metadata(compression=int(codec), uncompressed_size=1000), compress(codec, payload))
    assert [(row["slot"], row["payload"]) for row in rows_of(data, honest)] == [(2, data), (0, payload)]


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_a_size_of_nothing_for_something_passes_whole(codec: CompressionType) -> None:
    data = entry(metadata(compression=int(codec)), compress(codec, b"something"))
    assert [(row["slot"], row["payload"]) for row in rows_of(data)] == [(2, data)]


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_a_bomb_passes_whole(codec: CompressionType) -> None:
    """It says a kilobyte and holds 64 MiB: no more than the kilobyte is ever taken."""
    data = entry(metadata(compression=int(codec), uncompressed_size=1024), compress(codec, bytes(64 << 20)))
    tracemalloc.start()
    try:
        (row,) = rows_of(data)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert row["slot"] == RowType.WHOLE_ENTRY


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_nothing_at_all_is_not_a_payload(codec: CompressionType) -> None:
    (row,) = rows_of(entry(metadata(compression=int(codec), uncompressed_size=3)))
    assert row["slot"] == RowType.WHOLE_ENTRY


def test_an_entry_that_was_damaged_since_it_was_inspected_keeps_its_count() -> None:
    whole = entry(metadata(num_messages_in_batch=3), THREE)
    rows = unpacked([StoredEntry(0, 5, whole[:9], inspect(whole)), stored(entry(metadata(), b"1"), 1, 8)])
    assert [row["offset"] for row in rows] == [5, 6, 7, 8]
    assert rows[0]["payload"] == whole[:9]


def test_no_entries_are_no_rows() -> None:
    assert unpacked([]) == []


def positions(rows: list[dict[str, Any]]) -> list[tuple[int | None, int | None]]:
    return [(row["source_ledger_id"], row["source_entry_id"]) for row in rows]


def test_the_positions_of_replicated_entries_beside_others() -> None:
    pair = batch_payload([single(b"a", partition_key=b"k"), single(b"b", partition_key=b"k")])
    batch = entry(metadata(num_messages_in_batch=2, uncompressed_size=len(pair), replicated_from="us"), pair)
    whole = entry(encrypted(num_messages_in_batch=2, replicated_from="us"), b"ciphertext")
    plain = entry(metadata(partition_key=b"k"), b"v")
    replicated = [with_position(data, SourcePosition(5, number)) for number, data in enumerate((batch, whole, plain))]
    rows = rows_of(plain, *replicated, brokers(plain))
    assert positions(rows) == [(None, None), (5, 0), (5, 0), (5, 1), (5, 2), (None, None)]
    assert rows[3]["payload"] == whole, "it leaves the service without the position"


@pytest.mark.parametrize("count", [3, 40])
def test_the_positions_of_batches(count: int) -> None:
    """Few are decoded message by message, many together."""
    data = []
    for number in range(count):
        payload = batch_payload(single(b"v", partition_key=b"k") for _ in range(3))
        described = metadata(num_messages_in_batch=3, uncompressed_size=len(payload), replicated_from="us")
        data.append(with_position(entry(described, payload), SourcePosition(2**62, number)))
    assert positions(rows_of(*data)) == [(2**62, number) for number in range(count) for _ in range(3)]
