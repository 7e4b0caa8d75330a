"""One entry of a topic as Pulsar's admin clients expect it: payload as body, everything else in headers `X-Pulsar-…`.

The body of a batch is its uncompressed payload; clients split it by the count in `X-Pulsar-num-batch-message`. A header
holds printable ASCII only: another key is encoded in base64, and properties are one JSON object.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from api.broker.entries import Entry
from api.broker.threads import WaitsFor
from api.rest.models import pulsar_time
from storage.entries.encode import encode_batch
from storage.entries.entry import parse_metadata
from storage.ledger.rows import RowType
from storage.log.bulk_append import INPUT_SCHEMA

_PREFIX = "X-Pulsar-"
_LONGEST_HEADER = 8_000

ENTRY: dict[str, Any] = {
    "refuses": (405,),
    "waits_for": WaitsFor.STORE,
    "response_class": Response,
    "responses": {
        200: {
            "description": "The entry's payload; the rest in headers X-Pulsar-….",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
}
"""The options of a route that returns an entry: `@router.get(…, **ENTRY)`."""


def entry_response(entry: Entry) -> Response:
    """Return an entry as an answer: its payload as the body, its metadata in headers. `entry` has at least one row. A
    value that no HTTP header can hold is left out."""
    first = entry[0]
    batched = first["batch_index"] >= 0
    payload = _batch_payload(entry) if batched else first["payload"] or b""
    values: dict[str, object] = {
        "Message-ID": f"{first['ledger_id']}:{first['entry_id']}",
        "publish-time": pulsar_time(first["publish_time"]),
        "sequence-id": first["sequence_id"],
        "producer-name": first["producer"],
        "uncompressed-size": len(payload),
    }
    if batched:
        values |= {"num-batch-message": len(entry), "batch-size": len(payload)}
    else:
        values |= {
            "event-time": None if first["event_time"] is None else pulsar_time(first["event_time"]),
            "PROPERTY": json.dumps(dict(first["properties"])) if first["properties"] else None,
            "null-value": "true" if first["payload"] is None else None,
            "Is-Encrypted": "true" if first["slot"] == int(RowType.WHOLE_ENTRY) else None,
            "PROPERTY-TOTAL-CHUNKS": first["chunk_count"],
            "PROPERTY-CHUNK-ID": first["chunk_index"],
            **_key_headers(first["key"]),
        }
    headers = {_PREFIX + name: str(value) for name, value in values.items() if value is not None}
    fitting = {name: value for name, value in headers.items() if _fits_header(value)}
    return Response(payload, media_type="application/octet-stream", headers=fitting)


def _key_headers(key: bytes | None) -> dict[str, str]:
    """Return the headers of a message's key, in Base64 if a header cannot hold the key; empty without a key."""
    if key is None:
        return {}
    text = key.decode("latin-1")
    if text and _fits_header(text) and text == text.strip():
        return {"partition-key": text, "partition-key-b64-encoded": "false"}
    return {"partition-key": base64.b64encode(key).decode(), "partition-key-b64-encoded": "true"}


def _fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= _LONGEST_HEADER


def _batch_payload(rows: Entry) -> bytes:
    """Return the payload of a batch, encoded again from its rows."""
    table = pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)
    first = rows[0]
    encoded = encode_batch(
        table,
        producer=first["producer"] or "",
        first_sequence_id=first["sequence_id"] or 0,
        publish_time=first["publish_time"],
    )
    return encoded[parse_metadata(encoded, checksum_verified=True)[1] :]
