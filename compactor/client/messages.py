"""Messages as the service's JSON Lines have them, and Arrow streams as tables. No input or output."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

import httpx

from compactor.client.errors import ClientError, NotFound, Unavailable, raise_for_status

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
NEXT = "X-Compactor-Next"
NO_VALUE = "has no value"
"""A part of the service's reason for the status 404 of a key without a value."""
BASE64 = {"keyEncoding": "base64", "valueEncoding": "base64"}
COLUMNS = (
    "offset",
    "ledger_id",
    "entry_id",
    "batch_index",
    "key",
    "payload",
    "publish_time",
    "event_time",
    "producer",
    "sequence_id",
    "properties",
)
"""The columns of tables: those of a message (docs/format.md). Times are timestamps in UTC."""
_TIMES = ("publish_time", "event_time")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Message:
    """A message. `key` None: it has none. Times in milliseconds since the Unix epoch."""

    message_id: str
    offset: int
    key: bytes | None
    value: bytes | None
    publish_time_ms: int
    event_time_ms: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_tombstone(self) -> bool:
        """True if the message deletes its key: its value is missing or empty (P5)."""
        return self.key is not None and not self.value

    @property
    def publish_time(self) -> datetime:
        """The time in UTC. Raises OverflowError for a time that Python's datetime cannot hold."""
        return _EPOCH + timedelta(milliseconds=self.publish_time_ms)

    @property
    def event_time(self) -> datetime | None:
        """The time in UTC; None: there is none. Raises OverflowError."""
        return None if self.event_time_ms is None else _EPOCH + timedelta(milliseconds=self.event_time_ms)


def message_of(document: Mapping[str, object]) -> Message:
    """Convert a JSON document of the service, with key and value in base64, to a message."""
    event_time = document.get("event_time")
    properties = document.get("properties", {})
    assert isinstance(properties, dict)
    return Message(
        message_id=str(document["message_id"]),
        offset=int(str(document["offset"])),
        key=_decode_base64(document["key"]),
        value=_decode_base64(document["value"]),
        publish_time_ms=int(str(document["publish_time"])),
        event_time_ms=None if event_time is None else int(str(event_time)),
        properties=properties,
    )


def _decode_base64(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(str(text))


class JsonLinesReader:
    """Reader of a stream of JSON lines: one message a line; the last line has the start of the next read."""

    def __init__(self) -> None:
        self.next: str | None = None
        self._rest = b""

    def read_messages(self, piece: bytes) -> list[Message]:
        """Take the next piece of the stream. Return the messages whose lines end in that piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        messages = []
        for document in map(json.loads, lines):
            if set(document) == {"next"}:
                self.next = str(document["next"])
            else:
                messages.append(message_of(document))
        return messages

    def require_next_start(self) -> str:
        """Return the start of the next read. Raises Unavailable if the stream ended without its last line."""
        if self.next is None:
            raise Unavailable("the service broke off its answer: read again from the last message")
        return self.next


def messages_of_page(answer: httpx.Response) -> list[Message]:
    """Return the messages of an HTTP answer with one page. Raises ClientError for an error status."""
    raise_for_status(answer)
    return JsonLinesReader().read_messages(answer.content)


def message_of_key(answer: httpx.Response) -> Message | None:
    """Return the message of an HTTP answer about a key; None: the key has no value. Raises ClientError."""
    try:
        raise_for_status(answer)
    except NotFound:
        if NO_VALUE in answer.text:
            return None
        raise
    return message_of(answer.json())


def update_newest_values(values: dict[bytes, bytes], message: Message) -> None:
    """Apply the next message to the newest value of each key: set the value, or remove the key for a tombstone.

    A message without a key changes nothing.
    """
    if message.key is None:
        return
    if message.is_tombstone or message.value is None:
        values.pop(message.key, None)
    else:
        values[message.key] = message.value


def batches_and_next_start(source: IO[bytes]) -> Iterator[tuple[pa.RecordBatch | None, str | None]]:
    """Yield (batch, None) for each batch of an Arrow stream, with `COLUMNS`; last, (None, start of the next read).

    Raises ClientError for chunked or encrypted messages, and Unavailable for a stream that was cut off.
    """
    import pyarrow as pa

    token: str | None = None
    try:
        with pa.ipc.open_stream(source) as stream:
            while True:
                try:
                    batch, metadata = stream.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                if metadata is not None and NEXT.encode() in metadata:
                    token = metadata[NEXT.encode()].decode()
                elif batch.num_rows:
                    yield _with_public_columns(batch), None
    except pa.ArrowInvalid as error:
        raise Unavailable(f"the service broke off its answer ({error}): read again") from error
    if token is None:
        raise Unavailable("the service broke off its answer: read again")
    yield None, token


def _with_public_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with `COLUMNS`, and times as timestamps. Raises ClientError for chunked or encrypted messages."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.any(pc.not_equal(batch.column("slot"), 0)).as_py():
        raise ClientError(
            "the topic has chunked or encrypted messages, which a table cannot hold: read them as messages, "
            "`for message in topic.read(…)`"
        )
    milliseconds = pa.timestamp("ms", "UTC")
    columns = [batch.column(name).cast(milliseconds) if name in _TIMES else batch.column(name) for name in COLUMNS]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


def empty_table() -> pa.Table:
    """Return an Arrow table with `COLUMNS` and without rows."""
    import pyarrow as pa

    types = {
        "batch_index": pa.int32(),
        "key": pa.binary(),
        "payload": pa.binary(),
        "producer": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        **dict.fromkeys(_TIMES, pa.timestamp("ms", "UTC")),
    }
    return pa.schema([(name, types.get(name, pa.int64())) for name in COLUMNS]).empty_table()


def frame_of(table: pa.Table) -> pl.DataFrame:
    """Convert an Arrow table to a frame of polars."""
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def table_of(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return record batches as one Arrow table; an empty table for none."""
    import pyarrow as pa

    return pa.Table.from_batches(batches) if batches else empty_table()


def topic_path(name: str) -> str:
    """Return the URL path of a topic. Raise ValueError for a wrong name.

    `name`: `users`, `tenant/namespace/users` or `persistent://tenant/namespace/users`.
    """
    plain = name.removeprefix("persistent://")
    parts = plain.split("/")
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if len(parts) != 3 or not all(parts) or "://" in plain:
        raise ValueError(f"{name!r} names no topic: use users or persistent://tenant/namespace/users")
    return "/admin/v2/persistent/" + "/".join(quote(part, safe="") for part in parts)


def key_query(key: str | bytes) -> dict[str, str]:
    """Return the query parameters that ask for a key. A key of type str is sent as UTF-8."""
    data = key.encode() if isinstance(key, str) else key
    return {"key": base64.b64encode(data).decode(), **BASE64}


def read_query(*, compacted: bool, start: str | int, limit: int | None = None) -> dict[str, str]:
    """Return the query parameters of a read of messages."""
    query = {"readCompacted": str(compacted).lower(), "start": str(start), "reset": "fail", **BASE64}
    return query if limit is None else query | {"limit": str(limit)}
