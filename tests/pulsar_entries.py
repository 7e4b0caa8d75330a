"""Entries for tests: those of a real broker (../shared/data/pulsar-entries.jsonl), and ones made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from storage.checksums import crc32c
from storage.entries.decode import StoredEntry
from storage.entries.entry import BROKER_MAGIC, MAGIC, U32, inspect
from storage.entries.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata
from tests.budgets import IN_CI

REAL_ENTRIES = Path(__file__).parents[1].parent / "shared" / "data" / "pulsar-entries.jsonl"
PUBLISHED = 1_700_000_000_000


def real_entries() -> list[dict[str, Any]]:
    """Each line of the file; the test is skipped where the file is not."""
    if not REAL_ENTRIES.exists():
        if IN_CI:
            pytest.fail(f"{REAL_ENTRIES.name} is missing: CI needs ../shared beside the clone")
        pytest.skip(f"{REAL_ENTRIES.name} is not beside this clone (../shared/data)")
    return [json.loads(line) for line in REAL_ENTRIES.read_text().splitlines()]


def metadata(**fields: Any) -> MessageMetadata:
    """A MessageMetadata with all that it must have."""
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 7, "publish_time": PUBLISHED} | fields)


def encrypted(**fields: Any) -> MessageMetadata:
    """The same of an encrypted entry."""
    described = metadata(encryption_algo="AES", encryption_param=b"iv", **fields)
    described.encryption_keys.add(key="k1", value=b"data key")
    return described


def entry(described: MessageMetadata | bytes, payload: bytes = b"", *, checksum: bool = True) -> bytes:
    """An entry's bytes."""
    if isinstance(described, MessageMetadata):
        described = described.SerializePartialToString()
    body = U32.pack(len(described)) + described + payload
    return MAGIC + U32.pack(crc32c(body)) + body if checksum else body


def brokers(stored: bytes, broker_metadata: bytes = b"\x08\x01\x10\x02") -> bytes:
    """`stored` with a broker's own metadata in front."""
    return BROKER_MAGIC + U32.pack(len(broker_metadata)) + broker_metadata + stored


def batch_payload(singles: Iterable[tuple[SingleMessageMetadata | bytes, bytes]]) -> bytes:
    """The uncompressed bytes of a batch: metadata and payload of each message."""
    pieces = []
    for single, payload in singles:
        described = single if isinstance(single, bytes) else single.SerializePartialToString()
        pieces.append(U32.pack(len(described)) + described + payload)
    return b"".join(pieces)


def single(payload: bytes | None = b"", **fields: Any) -> tuple[SingleMessageMetadata, bytes]:
    """A message for `batch_payload`; a payload of None sets its flag."""
    if payload is None:
        fields["null_value"] = True
    return SingleMessageMetadata(payload_size=len(payload or b""), **fields), payload or b""


def stored(data: bytes, entry_id: int = 0, offset: int = 0) -> StoredEntry:
    """An entry of the log that was inspected when it was appended."""
    return StoredEntry(entry_id, offset, data, inspect(data))
