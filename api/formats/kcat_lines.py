"""The output of `kcat -J`, lines of JSON, as the input of an import: `--input-format kcat`.

Records become messages as those of Kafka's segments do (docs/importing.md has the table): key, value, timestamp,
headers, and the offset as sequence id. A key or payload that kcat has decoded (`-s avro`) is its JSON. kcat writes
bytes that are no UTF-8 as they are, which is not JSON: such a line is refused. Memory: a block of lines.

Raises InvalidInput, InvalidRecord. Must not know: other formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from api.formats.field_values import RowPositions, refuse_keys_with_empty_value
from api.formats.input_stream import read_line_blocks
from api.formats.inputs import InputOptions
from api.formats.json_events import check_utf8, json_values_as_text
from storage.errors import InvalidRecord
from storage.kafka.header_properties import LocatedHeaders, properties_of
from storage.log.bulk_append import SOURCE_SCHEMA

_REMEDY = "give the output of kcat -J, one JSON object a line; nothing of it was kept"
_BINARY_REMEDY = (
    "bytes that are no text cannot be in JSON: import the segments, with --input-format kafka-segments; nothing of it "
    "was kept"
)
_NO_TIME = -1


class KcatLine(msgspec.Struct, kw_only=True):
    """A line of `kcat -J`. `headers`: names and values in turn, or lists of values by name."""

    topic: str
    partition: int
    offset: int
    key: msgspec.Raw
    payload: msgspec.Raw
    ts: int = _NO_TIME
    headers: list[str | None] | dict[str, list[str | None]] | None = None
    key_error: str | None = None
    payload_error: str | None = None


def read_kcat_lines(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the records of a file as tables of messages (SOURCE_SCHEMA). Raises InvalidInput, InvalidRecord."""
    decode = msgspec.json.Decoder(KcatLine).decode
    for first, lines in read_line_blocks(file):
        rows = RowPositions(file, "line", first)
        check_utf8(rows, lines, _BINARY_REMEDY)
        try:
            records = [decode(line) for line in lines]
        except ValueError as failure:
            raise _first_line_error(rows, lines, decode) or failure from failure
        yield _message_table(rows, records, options)


def _first_line_error(rows: RowPositions, lines: Sequence[bytes], decode: object) -> InvalidRecord | None:
    for index, line in enumerate(lines):
        try:
            decode(line)  # type: ignore[operator]
        except msgspec.ValidationError as error:
            return rows.row_error(index, f"no line of kcat -J ({error})", _REMEDY)
        except msgspec.MsgspecError as error:
            return rows.row_error(index, f"not JSON ({error})" if line.strip() else "the line is empty", _REMEDY)
    return None


def _message_table(rows: RowPositions, records: Sequence[KcatLine], options: InputOptions) -> pa.Table:
    for index, record in enumerate(records):
        if record.key_error is not None or record.payload_error is not None:
            reason = record.key_error or record.payload_error
            raise rows.row_error(index, f"kcat could not decode the record ({reason})", "let kcat write it without -s")
    keys = json_values_as_text(rows, "key", pa.array([bytes(record.key) for record in records], pa.binary()))
    payloads = json_values_as_text(
        rows, "payload", pa.array([bytes(record.payload) for record in records], pa.binary())
    )
    if options.refuses_empty_values:
        refuse_keys_with_empty_value(rows, keys, payloads)
    stamps = np.array([record.ts for record in records], np.int64)
    times = pa.array(stamps, mask=stamps < 0)
    columns = {
        "key": keys,
        "payload": payloads,
        "publish_time": times,
        "event_time": times,
        "properties": _properties_column(rows, records),
        "producer": pa.array([f"kafka:{record.topic}-{record.partition}" for record in records]),
        "sequence_id": pa.array([record.offset for record in records], pa.int64()),
    }
    return pa.table([columns[name].cast(SOURCE_SCHEMA.field(name).type) for name in SOURCE_SCHEMA.names], SOURCE_SCHEMA)


def _properties_column(rows: RowPositions, records: Sequence[KcatLine]) -> pa.Array:
    numbers: list[int] = []
    pieces: list[bytes] = []
    absent: list[bool] = []
    for number, record in enumerate(records):
        for name, value in _header_pairs(rows, number, record) if record.headers else ():
            numbers.append(number)
            pieces += [name.encode(), b"" if value is None else value.encode()]
            absent.append(value is None)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.cumsum(sizes) - sizes
    value_sizes = np.where(np.array(absent, bool), -1, sizes[1::2])
    located = LocatedHeaders(np.array(numbers, np.int64), starts[::2], sizes[::2], starts[1::2], value_sizes)
    data = b"".join(pieces)
    return properties_of(pa.py_buffer(data), len(data), len(records), located)


def _header_pairs(rows: RowPositions, index: int, record: KcatLine) -> list[tuple[str, str | None]]:
    if isinstance(record.headers, dict):
        return [(name, value) for name, values in record.headers.items() for value in values]
    headers = record.headers or []
    pairs = list(pairwise(headers))[::2]
    names = [name for name, _ in pairs if name is not None]
    if len(headers) % 2 or len(names) < len(pairs):
        raise rows.row_error(index, "headers are not names and values in turn", _REMEDY)
    return list(zip(names, (value for _, value in pairs), strict=True))
