"""Change events of Debezium, lines of JSON, as the input of an import: `--input-format debezium --key-field id`.

A line is an event, or an object whose member `payload` is one, beside its `schema`. The key is a column of the row, in
`after`, or in `before` of a deletion. The value is the row after the change, byte by byte; a deletion deletes the key.
A line `null`, or one whose `payload` is null, is the tombstone that Debezium writes after a deletion: it names no row,
and the deletion before it has deleted the key already, so it is left out.

An event that changes no row (a truncation, a message), or does not say which, is an error. Memory: a block of lines.

Raises InvalidInput, InvalidRecord. Must not know: other formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import pyarrow as pa

from api.formats.field_values import RowPositions, ScatteredRowPositions, message_table
from api.formats.input_stream import read_line_blocks
from api.formats.inputs import InputOptions
from api.formats.json_events import ONE_A_LINE, JsonField, check_utf8, event_time_column, key_column

_Decoded = TypeVar("_Decoded")
_ABSENT = msgspec.Raw(b"")
_NULL = b"null"
_STORES, _DELETES = ("c", "r", "u"), "d"
_FLATTENED = (
    "import rows of flattened events (ExtractNewRecordState) with --input-format jsonl and the same --key-field; leave "
    "other lines out, as jq does with select(.op) or select(.payload.op); nothing of it was kept"
)
_REMEDY = "leave it out, as jq does with select(.op) or select(.payload.op); nothing of it was kept"


class DebeziumLine(msgspec.Struct, kw_only=True):
    """A line of JSON from Debezium. `payload`: has the event beside its schema; otherwise the line is the event."""

    op: msgspec.Raw = _ABSENT
    payload: msgspec.Raw = _ABSENT


class DebeziumEvent(msgspec.Struct, kw_only=True):
    """A change event of a row. `op`: c (create), r (read for a snapshot), u (update), d (delete), or no change of a
    row."""

    op: str | None = None
    before: msgspec.Raw = _ABSENT
    after: msgspec.Raw = _ABSENT


_LINES = msgspec.json.Decoder(DebeziumLine)
_EVENTS = msgspec.json.Decoder(DebeziumEvent)


def read_debezium_events(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the change events of a file as tables of messages (INPUT_SCHEMA). Raises InvalidInput, InvalidRecord."""
    assert options.key_field is not None
    key = JsonField(options.key_field)
    time = None if options.timestamp_field is None else JsonField(options.timestamp_field)
    for first, lines in read_line_blocks(file):
        rows = RowPositions(file, "line", first)
        check_utf8(rows, lines)
        events = {
            index: event for index, line in enumerate(lines) if (event := _event_of_line(rows, index, line)) is not None
        }
        changes = [_row_and_value(rows, index, event) for index, event in events.items()]
        placed = ScatteredRowPositions(file, "line", first, list(events))
        key_bytes = key_column(placed, key, [row for row, _ in changes], options)
        values = pa.array([value for _, value in changes], pa.binary())
        times = None if time is None else event_time_column(placed, time, list(events.values()))
        yield message_table(placed, key_bytes, values, times, options.refuses_empty_values, key.name)


def _event_of_line(rows: RowPositions, index: int, line: bytes) -> bytes | None:
    """Return the change event of a line of JSON; None: the line is a tombstone."""
    if line.strip() == _NULL:
        return None
    decoded = _decode(_LINES, rows, index, line)
    payload = bytes(decoded.payload)
    if bytes(decoded.op) or not payload:
        return line
    return None if payload == _NULL else payload


def _row_and_value(rows: RowPositions, index: int, event: bytes) -> tuple[bytes, bytes | None]:
    """Return the JSON of the row that has the key, and the value of the message; None as value: the change deletes the
    key. Raises InvalidRecord for an event that changes no row."""
    decoded = _decode(_EVENTS, rows, index, event)
    if decoded.op == _DELETES:
        row, name, value = bytes(decoded.before), "before", None
    elif decoded.op in _STORES:
        row = value = bytes(decoded.after)
        name = "after"
    else:
        if decoded.op is None:
            raise rows.row_error(index, "the event has no op", _FLATTENED)
        raise rows.row_error(index, f"the event has the op {decoded.op!r}, which changes no row", _REMEDY)
    if not row.startswith(b"{"):
        raise rows.row_error(
            index,
            f"the op is {decoded.op!r}, and {name} is no row",
            "let the connector write whole rows as objects, which that of MongoDB does not, or correct the line; "
            "nothing of it was kept",
        )
    return row, value


def _decode(decoder: msgspec.json.Decoder[_Decoded], rows: RowPositions, index: int, text: bytes) -> _Decoded:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise rows.row_error(
            index, f"no event of Debezium ({error})", f"{ONE_A_LINE}; nothing of it was kept"
        ) from error
    except msgspec.MsgspecError as error:
        reason = f"not JSON ({error})" if text.strip() else "the line is empty"
        raise rows.row_error(index, reason, f"{ONE_A_LINE}; nothing of it was kept") from error
