"""JSON Lines, input and output: one message per line.

Input: {"key": str|null, "value": str|null, "event_time": ms?, "publish_time": ms?, "properties": {str: str}?}, plain or
gzip, from a file or standard input. A wrong type, an unknown field or an empty line is an error with its line number,
because a partly understood message is a lost message. "message_id" and "offset", which the output has, are accepted and
ignored, so that an output can be an input.

Output: the same fields, "message_id" in Pulsar's form, and "offset".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import IO, Annotated, NamedTuple

import msgspec
import pyarrow as pa

from api.formats.field_values import field_list
from api.formats.input_stream import (
    MAX_LINE_BYTES,
    REMEDY,
    STREAM_ERRORS,
    open_input,
    source_name,
    stream_error_reason,
    without_byte_order_mark,
)
from api.formats.inputs import EmptyValues, InputOptions
from api.formats.json_events import ONE_A_LINE, top_and_nested_member_names
from api.formats.text_encoding import TextEncoding, to_bytes, to_text
from storage.advice import Advice, AdviceKind
from storage.errors import InvalidInput, InvalidRecord
from storage.log.bulk_append import INPUT_SCHEMA
from storage.model import Message

_ROWS_A_TABLE = 16_384
_BYTES_A_TABLE = 32 << 20
_KINDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a fraction",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
"""Kinds of JSON values in plain words, by their names in errors of msgspec."""
_MISMATCH = re.compile(
    r"Expected `(?P<kinds>[^`]+)`(?P<bound> [<>]= -?\d+)?(?:, got `(?P<received>[^`]+)`)?"
    r"(?: - at `\$\.(?P<place>[^`]+)`)?"
)
"""msgspec's error about the type of a value."""

Millis = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class OptionalKeyJsonLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message as a JSON line that may omit its key, because all such lines have one default key."""

    key: str | None = None
    value: str | None
    event_time: Millis | None = None
    publish_time: Millis | None = None
    properties: dict[str, str] | None = None
    message_id: str | None = None
    offset: int | None = None


class JsonLine(OptionalKeyJsonLine, forbid_unknown_fields=True, kw_only=True):
    """A message as a JSON line that must state its key; null: the message has no key."""

    key: str | None


class InputMessage(NamedTuple):
    """A message of a line; times are milliseconds since 1970. `payload` None: a tombstone. `line_bytes`: the
    length of the line."""

    key: bytes | None
    payload: bytes | None
    publish_time: int | None
    event_time: int | None
    properties: list[tuple[str, str]] | None
    line_bytes: int


Decode = Callable[[bytes], OptionalKeyJsonLine]


def read_json_lines(
    file: str,
    key_encoding: TextEncoding,
    value_encoding: TextEncoding,
    remedy: Callable[[bytes], str] = lambda _: REMEDY,
    key: bytes | None = None,
) -> Iterator[InputMessage]:
    """Yield the messages of a JSON Lines file, each as soon as its line has arrived. `file` `-`: standard input.

    `key`: the key of the lines without one; None: each line must have a key. Raises InvalidInput for a file that cannot
    be opened; InvalidRecord for a line, with what `remedy` returns for it.
    """
    decode: Decode = msgspec.json.Decoder(JsonLine if key is None else OptionalKeyJsonLine).decode
    source = source_name(file)
    with open_input(file) as stream:
        for number in count(1):
            text = b""
            try:
                text = stream.readline(MAX_LINE_BYTES + 1)
                if number == 1:
                    text = without_byte_order_mark(text)
                if not text:
                    return
                if len(text) > MAX_LINE_BYTES:
                    raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
                message = _parse_line(text, decode, key_encoding, value_encoding, key)
            except (msgspec.MsgspecError, ValueError, *STREAM_ERRORS) as error:
                raise InvalidRecord(f"{source}, line {number}: {_line_error_reason(error)}", remedy(text)) from error
            yield message


def parse_json_lines(data: bytes, key_encoding: TextEncoding, value_encoding: TextEncoding) -> Iterator[InputMessage]:
    """Yield the messages of JSON Lines in memory. Raises InvalidRecord, which names the line."""
    decode = msgspec.json.Decoder(JsonLine).decode
    for number, text in enumerate(without_byte_order_mark(data).removesuffix(b"\n").split(b"\n"), 1):
        try:
            message = _parse_line(text, decode, key_encoding, value_encoding)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidRecord(
                f"line {number}: {_line_error_reason(error)}", "correct it; nothing was appended"
            ) from error
        yield message


def read_import_jsonl(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the messages of a JSON Lines file as tables of INPUT_SCHEMA, while it is read. `file` `-`: standard input.

    Raises InvalidInput for a file that cannot be opened, InvalidRecord for a line.
    """
    rows: list[InputMessage] = []
    size = 0
    for number, row in enumerate(
        read_json_lines(file, options.key_encoding, options.value_encoding, _import_remedy), 1
    ):
        if options.empty_values is EmptyValues.REFUSE and row.key is not None and row.payload == b"":
            raise InvalidRecord(
                f"{source_name(file)}, line {number}: the value is empty, which deletes the key here",
                "import with --empty-values delete if it may delete its key; nothing of it was kept",
            )
        rows.append(row)
        size += row.line_bytes
        if len(rows) == _ROWS_A_TABLE or size >= _BYTES_A_TABLE:
            yield to_table(rows)
            rows, size = [], 0
    if rows:
        yield to_table(rows)


def _import_remedy(line: bytes) -> str:
    """Return the remedy for an input line that is no message, by the content of the line."""
    try:
        document = msgspec.json.decode(line)
    except ValueError:
        return (
            f"{ONE_A_LINE}; a file of another format needs its --input-format: csv, kcat or key-value; nothing of it "
            "was kept"
        )
    if isinstance(document, list):
        return f"{ONE_A_LINE}; nothing of it was kept"
    if not isinstance(document, dict) or ("key" in document and ("value" in document or len(document) == 1)):
        return REMEDY
    if {"topic", "partition", "offset", "payload"} <= document.keys():
        return "it is a line of kcat -J: import it with --input-format kcat; nothing of it was kept"
    names = top_and_nested_member_names(line)
    return (
        f"its fields are {field_list(names)}: name the one with the key, as in --key-field {names[0]}; nothing of it "
        "was kept"
        if names
        else REMEDY
    )


def _parse_line(
    text: bytes,
    decode: Decode,
    key_encoding: TextEncoding,
    value_encoding: TextEncoding,
    default_key: bytes | None = None,
) -> InputMessage:
    """Parse a JSON line to a message. Raises MsgspecError, ValueError."""
    if not text or text.isspace():
        raise ValueError("the line is empty")
    line = decode(text)
    return InputMessage(
        default_key if line.key is None else to_bytes(line.key, key_encoding),
        None if line.value is None else to_bytes(line.value, value_encoding),
        line.publish_time,
        line.event_time,
        list(line.properties.items()) if line.properties else None,
        len(text),
    )


def to_table(rows: Sequence[InputMessage]) -> pa.Table:
    """Return messages as a table of INPUT_SCHEMA, in their order."""
    columns = {name: [getattr(row, name) for row in rows] for name in INPUT_SCHEMA.names}
    return pa.table(columns, schema=INPUT_SCHEMA)


def _line_error_reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text ({error.reason})"
    if isinstance(error, msgspec.ValidationError):
        return _plain_type_error(str(error)) + _line_error_advice(str(error))
    if isinstance(error, msgspec.DecodeError):
        return f"not JSON ({error})"
    return stream_error_reason(error)


def _plain_type_error(error: str) -> str:
    """Return an error of msgspec about the type of a value in plain words; any other text unchanged."""
    match = _MISMATCH.fullmatch(error)
    if match is None:
        return error
    place = match["place"] or "the line"
    if place.endswith("[...]"):
        place = f"a value of {place.removesuffix('[...]')}"
    kinds = " or ".join(_KINDS.get(kind, kind) for kind in match["kinds"].split(" | "))
    received = match["received"]
    return f"{place} must be {kinds}{match['bound'] or ''}" + (
        f", not {_KINDS.get(received, received)}" if received else ""
    )


def _line_error_advice(error: str) -> str:
    """Return the end of an error message: advice for a line that is JSON but no message; empty if there is none."""
    if "unknown field" in error:
        return f"; a line has {', '.join(field.name for field in msgspec.structs.fields(JsonLine))}"
    if "$.value" in error or "$.key" in error:
        return (
            '; keys and values are text: quote it, as in "{\\"a\\":1}", or encode it in base64 and name that encoding'
        )
    return ""


class JsonLinesWriter:
    """A writer of messages as JSON Lines. `write` raises InvalidInput for bytes that the encoding cannot represent."""

    def __init__(self, stream: IO[bytes], key_encoding: TextEncoding, value_encoding: TextEncoding) -> None:
        self._stream = stream
        self._encode = msgspec.json.Encoder().encode
        self._key_encoding = key_encoding
        self._value_encoding = value_encoding

    def write(self, message: Message) -> None:
        self._stream.write(self._encode(self._message_document(message)) + b"\n")

    def _message_document(self, message: Message) -> dict[str, object]:
        document: dict[str, object] = {
            "message_id": str(message.message_id),
            "offset": message.offset,
            "key": field_text(message.key, self._key_encoding, message, "key"),
            "value": field_text(message.payload, self._value_encoding, message, "value"),
            "publish_time": message.publish_time,
        }
        if message.event_time is not None:
            document["event_time"] = message.event_time
        if message.properties:
            document["properties"] = dict(message.properties)
        return document


def field_text(data: bytes | None, encoding: TextEncoding, message: Message, field: str) -> str | None:
    """Return a key or value as text; None stays None. Raises InvalidInput, which names `field` and message, if it is
    not UTF-8."""
    if data is None:
        return None
    try:
        return to_text(data, encoding)
    except ValueError as error:
        raise InvalidInput(
            f"the {field} of message {message.message_id} is not UTF-8 text",
            Advice(AdviceKind.READ_IN_BASE64, {"field": field}),
        ) from error
