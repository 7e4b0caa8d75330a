"""Lines of JSON objects that are no messages of ours, as the input of an import: `--key-field`.

A field is a member of the object; dots lead into members of it (`user.id`), and `\\.` is a dot of a name. A text is its
content, as key and as value. Any other value is its JSON, as it is written in the line: `1.00` stays `1.00`. A key is
no object, list or null. As a value null is a deletion. Without `--value-field` the value is the whole line, byte by
byte.

Each line is decoded alone, and only the chosen fields of it: a schema that pyarrow's reader of JSON infers would change
texts to times, and large numbers to fractions. Memory: a block of lines.

Raises InvalidInput, InvalidRecord. Must not know: other formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from api.formats.field_values import RowPositions, decode_column, field_list, message_table, parse_times
from api.formats.input_stream import REMEDY, read_line_blocks
from api.formats.inputs import InputOptions
from storage.errors import InvalidInput

_DOT = re.compile(r"(?<!\\)\.")
ONE_A_LINE = "write one JSON object a line, as jq -c '.[]' does of a list, and jq -c . of objects"
_NO_RAW = msgspec.Raw(b"")


def read_json_events(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the JSON objects of a file as tables of messages (INPUT_SCHEMA). Raises InvalidInput, InvalidRecord."""
    assert options.key_field is not None
    key = JsonField(options.key_field)
    value = None if options.value_field is None else JsonField(options.value_field)
    time = None if options.timestamp_field is None else JsonField(options.timestamp_field)
    for first, lines in read_line_blocks(file):
        rows = RowPositions(file, "line", first)
        check_utf8(rows, lines)
        key_bytes = key_column(rows, key, lines, options)
        values = pa.array(lines, pa.binary()) if value is None else _value_column(rows, value, lines, options)
        times_of_events = None if time is None else event_time_column(rows, time, lines)
        yield message_table(rows, key_bytes, values, times_of_events, options.refuses_empty_values, key.name)


class JsonField:
    """A field of JSON objects, of which each line has one. `name`: as the user wrote it, with dots before nested
    members."""

    def __init__(self, name: str) -> None:
        self.name = name
        names = [part.replace("\\.", ".") for part in _DOT.split(name)]
        if not all(names):
            raise InvalidInput(f"the field {name!r} has an empty name", "write names with dots between them: user.id")
        kind: Any = msgspec.Raw
        default: Any = _NO_RAW
        for part in reversed(names):
            struct = msgspec.defstruct("Event", [("f", kind, default)], rename={"f": part}, frozen=True)
            kind, default = struct | None, struct()
        self._decode = msgspec.json.Decoder(struct).decode
        self._get: Callable[[object], msgspec.Raw] = attrgetter(".".join("f" for _ in names))

    def raw_values(self, rows: RowPositions, lines: Sequence[bytes]) -> pa.Array:
        """Return the JSON of the field in each line, as bytes; empty: the line has no such field.

        Raises InvalidRecord for a line that is no object.
        """
        decode, get = self._decode, self._get
        try:
            return pa.array([bytes(get(decode(line))) for line in lines], pa.binary())
        except (ValueError, AttributeError):
            return pa.array(
                [self._raw_value_of_line(rows, index, line) for index, line in enumerate(lines)], pa.binary()
            )

    def _raw_value_of_line(self, rows: RowPositions, index: int, line: bytes) -> bytes:
        try:
            return bytes(self._get(self._decode(line)))
        except AttributeError:  # a member on the way is null
            return b""
        except msgspec.MsgspecError as error:
            if not line.strip():
                raise rows.row_error(index, "the line is empty") from error
            if isinstance(error, msgspec.ValidationError):
                if not line.lstrip().startswith(b"{"):
                    raise rows.row_error(
                        index, "the line is no object", f"{ONE_A_LINE}; nothing of it was kept"
                    ) from error
                raise rows.row_error(
                    index, f"{self.name} is not in it, because a member on the way is no object"
                ) from error
            raise rows.row_error(index, f"not JSON ({error})", f"{ONE_A_LINE}; nothing of it was kept") from error


def check_utf8(rows: RowPositions, lines: Sequence[bytes], remedy: str = REMEDY) -> None:
    """Raise InvalidRecord for a line that is not UTF-8."""
    try:
        pa.array(lines, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        for index, line in enumerate(lines):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise rows.row_error(index, f"not UTF-8 text ({error.reason})", remedy) from error


def top_and_nested_member_names(line: bytes) -> list[str]:
    """Return the names of the members of a JSON object, and `name.member` for the members of an object in it.

    Empty if the line is no object.
    """
    try:
        document = msgspec.json.decode(line)
    except ValueError:
        return []
    names = []
    for name, value in document.items() if isinstance(document, dict) else ():
        nested = value if isinstance(value, dict) else {}
        names += [f"{name}.{inner}" for inner in nested] or [name]
    return names


def json_values_as_text(rows: RowPositions, name: str, documents: pa.Array) -> pa.Array:
    """Convert JSON values to bytes: the content of strings, the JSON of other values. Null stays null."""
    is_text = pc.starts_with(documents, b'"')
    plain = pc.if_else(is_text, pc.binary_slice(documents, 1, -1), documents)
    texts = pc.if_else(pc.equal(documents, b"null"), pa.scalar(None, pa.binary()), plain)
    escaped = pc.and_(is_text, pc.match_substring(documents, b"\\"))
    if not pc.any(escaped).as_py():
        return texts
    indices = pc.indices_nonzero(escaped)
    contents = []
    for index, document in zip(indices.to_pylist(), documents.take(indices).to_pylist(), strict=True):
        try:
            contents.append(msgspec.json.decode(document, type=str).encode())
        except ValueError as error:
            raise rows.row_error(index, f"{name} is no text ({error})") from error
    return pc.replace_with_mask(texts, escaped, pa.array(contents, pa.binary()))


def _check_field_present(
    rows: RowPositions, field: JsonField, lines: Sequence[bytes], documents: pa.Array, option: str
) -> None:
    missing = pc.equal(pc.binary_length(documents), 0)
    if pc.any(missing).as_py():
        index = pc.index(missing, True).as_py()
        names = top_and_nested_member_names(lines[index])
        raise rows.row_error(
            index,
            f"it has no field {field.name}; it has {field_list(names) or 'none'}",
            f"name another one with {option}, or correct the line; nothing of it was kept",
        )


def key_column(rows: RowPositions, field: JsonField, lines: Sequence[bytes], options: InputOptions) -> pa.Array:
    """Return the keys, as bytes, that a field has in each line. Raises InvalidRecord for a line without the field, or
    with an object or a list in it."""
    documents = field.raw_values(rows, lines)
    _check_field_present(rows, field, lines, documents, "--key-field")
    is_nested = pc.or_(pc.starts_with(documents, b"{"), pc.starts_with(documents, b"["))
    rows.raise_for_first(
        is_nested,
        f"{field.name} is an object or a list, and a key is a text, a number or true or false",
        f"name a member of it: --key-field {field.name}.NAME",
    )
    return decode_column(rows, json_values_as_text(rows, field.name, documents), options.key_encoding, field.name)


def _value_column(rows: RowPositions, field: JsonField, lines: Sequence[bytes], options: InputOptions) -> pa.Array:
    documents = field.raw_values(rows, lines)
    _check_field_present(rows, field, lines, documents, "--value-field")
    return decode_column(rows, json_values_as_text(rows, field.name, documents), options.value_encoding, field.name)


def event_time_column(rows: RowPositions, field: JsonField, lines: Sequence[bytes]) -> pa.Array:
    """Return the event times, in milliseconds, that a field has in each line; null: the line does not have it. Raises
    InvalidRecord."""
    documents = field.raw_values(rows, lines)
    empty = pc.equal(pc.binary_length(documents), 0)
    texts = pc.if_else(empty, pa.scalar(None, pa.binary()), json_values_as_text(rows, field.name, documents))
    return parse_times(rows, texts.cast(pa.string()), field.name)
