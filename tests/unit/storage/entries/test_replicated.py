"""Entries as Pulsar's replicators send them, and the form in which they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from storage.entries.entry import inspect, parse_metadata
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.entries.replicated import POSITION_PROPERTY, Source, directly_follows, split_source
from storage.entries.source_position import without_position
from storage.errors import ChecksumMismatch, InvalidRecord
from storage.model import SourcePosition
from tests.pulsar_entries import PUBLISHED, batch_payload, brokers, encrypted, entry, metadata, single


def sent(position: str | None = "7:3", **fields: Any) -> MessageMetadata:
    """The metadata of an entry as a replicator sends it."""
    described = metadata(**{"replicated_from": "us-east"} | fields)
    described.properties.add(key="a", value="1")
    if position is not None:
        described.properties.add(key=POSITION_PROPERTY, value=position)
    return described


def test_the_position_leaves_the_properties() -> None:
    source, stored = split_source(entry(sent(schema_version=b"\0\1"), b"payload"))
    assert source == Source("us-east", SourcePosition(7, 3), PUBLISHED)
    header = inspect(stored)
    assert header.source == source.position
    kept, payload_at = parse_metadata(stored)
    assert stored[payload_at:] == b"payload"
    assert kept == sent(position=None, schema_version=b"\0\1"), "nothing else changes"


def test_unknown_fields_and_a_brokers_metadata() -> None:
    described = sent().SerializeToString() + b"\xf8\x07\x05"  # field 127, which no version has
    _, stored = split_source(brokers(entry(described, b"payload")))
    assert without_position(stored) != stored
    assert parse_metadata(stored).metadata.SerializeToString().endswith(b"\xf8\x07\x05")


def test_a_batch_keeps_its_messages() -> None:
    payload = batch_payload([single(b"a", partition_key=b"k"), single(None)])
    described = sent(num_messages_in_batch=2, uncompressed_size=len(payload))
    _, stored = split_source(entry(described, payload))
    assert (inspect(stored).messages, stored[-len(payload) :]) == (2, payload)


def test_an_encrypted_entry_without_a_checksum() -> None:
    described = encrypted(replicated_from="us-east", num_messages_in_batch=2)
    described.properties.add(key=POSITION_PROPERTY, value="0:0")
    source, stored = split_source(entry(described, b"ciphertext", checksum=False))
    assert source.position == (0, 0)
    assert inspect(stored).encrypted


def test_a_marker_is_not_stored() -> None:
    source, stored = split_source(entry(sent(marker_type=10), b"snapshot"))
    assert source == Source("us-east", SourcePosition(7, 3), PUBLISHED, is_marker=True)
    assert not stored


@pytest.mark.parametrize(
    "position",
    [None, "", "7", "7:", ":3", "7:3:0", "-1:3", "7:-1", "7: 3", "a:b", "\u0667:\u0663", f"{2**63}:0", "9" * 70 + ":1"],
)
def test_an_entry_without_a_position(position: str | None) -> None:
    with pytest.raises(InvalidRecord, match="position") as caught:
        split_source(entry(sent(position), b"payload"))
    assert "us-east" in caught.value.message
    assert len(caught.value.message) < 250


def test_an_entry_of_no_cluster() -> None:
    described = sent()
    described.ClearField("replicated_from")
    with pytest.raises(InvalidRecord, match="does not name the cluster"):
        split_source(entry(described, b"payload"))


def test_a_damaged_entry() -> None:
    data = bytearray(entry(sent(), b"payload"))
    data[-1] ^= 1
    with pytest.raises(ChecksumMismatch):
        split_source(bytes(data))


@pytest.mark.parametrize(
    ("position", "before", "expected"),
    [((7, 4), (7, 3), True), ((9, 0), (7, 3), True), ((7, 5), (7, 3), False), ((9, 1), (7, 3), False)],
)
def test_positions_with_nothing_between(position: tuple[int, int], before: tuple[int, int], expected: bool) -> None:
    assert directly_follows(SourcePosition(*position), SourcePosition(*before)) is expected
