"""One entry of a topic as Pulsar's admin clients get it: payload as body, everything else in headers `X-Pulsar-…`.

A batch comes as its payload, uncompressed, which clients take apart by the count in `X-Pulsar-num-batch-message`. A
header holds printable ASCII only: a key that is not goes in base64, properties go as one JSON object.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from api.broker.threads import WaitsFor
from api.http.problems import RestException
from api.rest.models import moment
from storage.entries.encode import encode_batch
from storage.entries.entry import parse
from storage.errors import OffsetOutOfRange, SegmentNotLocal
from storage.ledger.rows import RowType
from storage.log.bulk_append import INPUT_SCHEMA
from storage.model import MessageId
from storage.positions import OffsetReset, StartPosition
from storage.topic import Topic

NOT_FOUND = "Message not found"
MOST_ENTRIES = 10_000
"""How far from its beginning an entry may be asked for by its number: all before it are read."""
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
"""The options of a route that gives an entry: `@router.get(…, **ENTRY)`."""


def entries(
    topic: Topic, start: StartPosition, reset: OffsetReset = OffsetReset.EARLIEST
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each raw entry from `start` on; of the first entry only the rows from `start` on."""
    gathered: list[dict[str, Any]] = []
    try:
        for batch in topic.read(start, reset=reset):
            for row in batch.to_pylist():
                if gathered and (row["ledger_id"], row["entry_id"]) != _id_of(gathered):
                    yield gathered
                    gathered = []
                gathered.append(row)
    except SegmentNotLocal:  # an entry is in one ledger, so the last one is whole
        if gathered:
            yield gathered
        raise
    if gathered:
        yield gathered


def _id_of(entry: list[dict[str, Any]]) -> tuple[int, int]:
    return entry[0]["ledger_id"], entry[0]["entry_id"]


def refuse_far(number: int) -> None:
    """Raise RestException (412) for an entry's number that is too large to count to."""
    if number > MOST_ENTRIES:
        raise RestException(
            412, f"entries are counted to {MOST_ENTRIES} at most: read from a place, at …/messages?start="
        )


def entry_of(topic: Topic, ledger_id: int, entry_id: int) -> Response:
    """Return the answer for the entry of that id. Raises RestException (404)."""
    try:
        rows = next(entries(topic, MessageId(ledger_id, entry_id), OffsetReset.FAIL), None)
    except OffsetOutOfRange as error:
        raise RestException(404, NOT_FOUND) from error
    if rows is None or _id_of(rows) != (ledger_id, entry_id):
        raise RestException(404, NOT_FOUND)
    return entry_response(rows)


def entry_response(rows: list[dict[str, Any]]) -> Response:
    """Return the answer for an entry, given its rows."""
    first = rows[0]
    batched = first["batch_index"] >= 0
    payload = _batch_payload(rows) if batched else first["payload"] or b""
    values: dict[str, object] = {
        "Message-ID": f"{first['ledger_id']}:{first['entry_id']}",
        "publish-time": moment(first["publish_time"]),
        "sequence-id": first["sequence_id"],
        "producer-name": first["producer"],
        "uncompressed-size": len(payload),
    }
    if batched:
        values |= {"num-batch-message": len(rows), "batch-size": len(payload)}
    else:
        values |= {
            "event-time": None if first["event_time"] is None else moment(first["event_time"]),
            "PROPERTY": json.dumps(dict(first["properties"])) if first["properties"] else None,
            "null-value": "true" if first["payload"] is None else None,
            "Is-Encrypted": "true" if first["slot"] == int(RowType.WHOLE_ENTRY) else None,
            "PROPERTY-TOTAL-CHUNKS": first["chunk_count"],
            "PROPERTY-CHUNK-ID": first["chunk_index"],
            **_key(first["key"]),
        }
    headers = {_PREFIX + name: str(value) for name, value in values.items() if value is not None}
    fitting = {name: value for name, value in headers.items() if _fits(value)}
    return Response(payload, media_type="application/octet-stream", headers=fitting)


def _key(key: bytes | None) -> dict[str, str]:
    if key is None:
        return {}
    text = key.decode("latin-1")
    if text and _fits(text) and text == text.strip():
        return {"partition-key": text, "partition-key-b64-encoded": "false"}
    return {"partition-key": base64.b64encode(key).decode(), "partition-key-b64-encoded": "true"}


def _fits(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= _LONGEST_HEADER


def _batch_payload(rows: list[dict[str, Any]]) -> bytes:
    table = pa.Table.from_pylist(
        [{name: row[name] for name in ("key", "payload", "publish_time", "event_time", "properties")} for row in rows],
        schema=INPUT_SCHEMA,
    )
    first = rows[0]
    entry = encode_batch(
        table,
        producer=first["producer"] or "",
        first_sequence_id=first["sequence_id"] or 0,
        publish_time=first["publish_time"],
    )
    return entry[parse(entry, checked=True)[1] :]
