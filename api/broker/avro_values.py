"""Values of Avro's binary encoding, read by their own schema, as Python's types for JSON.

A union's value is that of its branch, an enum's its symbol; bytes and fixed are texts with a character for each byte,
as in Avro's JSON encoding; logical types keep the value of the type below.

Payloads and definitions come from clients, and a few bytes may claim any number of values: `STEPS` bounds values and
the characters of field names together, `DEPTH` their nesting. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

STEPS = 100_000
DEPTH = 64
_LONGEST_NUMBER = 10
_FLOATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


class MalformedValue(ValueError):
    """Bytes that are no value of an Avro schema, or a value that exceeds a limit. The message names the reason."""


def decode(schema: Any, data: bytes, max_steps: int = STEPS) -> Any:
    """Decode bytes in Avro's binary encoding to a Python value. Raise MalformedValue, also for bytes after the value.

    `schema`: as `avro_resolution.parse` returns it. `max_steps`: the limit of values and characters of field names.
    """
    reader = _ValueReader(data, max_steps)
    value = reader.read_value(schema, 0)
    if reader.position != len(data):
        raise MalformedValue(f"{len(data) - reader.position} bytes follow the value")
    return value


class _ValueReader:
    """A reader of Avro values from bytes. It starts at the first byte; `position`: the next byte."""

    def __init__(self, data: bytes, max_steps: int) -> None:
        self._data = data
        self._steps_left = max_steps
        self.position = 0

    def read_value(self, schema: Any, depth: int) -> Any:
        self._spend_steps(1)
        if depth > DEPTH:
            raise MalformedValue(f"it is nested deeper than {DEPTH} values")
        match schema.type:
            case "null":
                return None
            case "boolean":
                return self._read_bytes(1) != b"\0"
            case "int" | "long":
                return self._read_varint()
            case "float" | "double":
                numbers = _FLOATS[schema.type]
                return numbers.unpack(self._read_bytes(numbers.size))[0]
            case "bytes":
                return self._read_bytes(self._read_varint()).decode("latin-1")
            case "fixed":
                return self._read_bytes(schema.size).decode("latin-1")
            case "string":
                return self._read_string()
            case "enum":
                return self._read_choice(schema.symbols)
            case "union" | "error_union":
                return self.read_value(self._read_choice(schema.schemas), depth + 1)
            case "array":
                return [self.read_value(schema.items, depth + 1) for _ in self._iterate_block_items()]
            case "map":
                return {
                    self._read_string(): self.read_value(schema.values, depth + 1) for _ in self._iterate_block_items()
                }
            case "record" | "error":
                return self._read_record(schema, depth)
        raise MalformedValue(f"its type {schema.type} is not known")

    def _read_record(self, schema: Any, depth: int) -> dict[str, Any]:
        fields = {}
        for field in schema.fields:
            self._spend_steps(len(field.name))
            fields[field.name] = self.read_value(field.type, depth + 1)
        return fields

    def _iterate_block_items(self) -> Iterator[None]:
        """Read the block counts of an array or a map, and yield None once before each item."""
        while count := self._read_varint():
            if count < 0:
                self._read_varint()  # the bytes of the block
            for _ in range(abs(count)):
                self._spend_steps(1)
                yield

    def _read_choice(self, choices: Any) -> Any:
        number = self._read_varint()
        if not 0 <= number < len(choices):
            raise MalformedValue(f"it names choice {number} of {len(choices)}")
        return choices[number]

    def _read_string(self) -> str:
        try:
            return self._read_bytes(self._read_varint()).decode()
        except UnicodeDecodeError as error:
            raise MalformedValue("a text is not UTF-8") from error

    def _read_varint(self) -> int:
        result = 0
        for place in range(_LONGEST_NUMBER):
            byte = self._read_bytes(1)[0]
            result |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
        raise MalformedValue(f"a number has more than {_LONGEST_NUMBER} bytes")

    def _read_bytes(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self.position:
            raise MalformedValue("it ends before the value does")
        start, self.position = self.position, self.position + length
        return self._data[start : self.position]

    def _spend_steps(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise MalformedValue("it has more values than are shown")
