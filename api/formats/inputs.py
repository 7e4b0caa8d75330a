"""Input formats of `compactor import`. A new format is added here.

The reader of a format is one module. It streams a file as tables of `storage.log.bulk_append.INPUT_SCHEMA`, or of
SOURCE_SCHEMA. At the first invalid line or row it raises InvalidRecord, which names file, line or row, reason, and the
option that would help. The import then keeps nothing of the file.

Files of other logs (`LOG_FORMATS`) have readers of their own, which take many files together: kafka_segments.py,
pulsar_ledgers.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa


class InputFormat(StrEnum):
    """Names of input formats."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    CSV = "csv"
    KCAT = "kcat"
    KEY_VALUE = "key-value"
    DEBEZIUM = "debezium"
    KAFKA_SEGMENTS = "kafka-segments"
    PULSAR_OFFLOAD = "pulsar-offload"


LOG_FORMATS = frozenset({InputFormat.KAFKA_SEGMENTS, InputFormat.PULSAR_OFFLOAD})


class EmptyValues(StrEnum):
    """Treatments of a record of another system that has a key and an empty value."""

    REFUSE = "refuse"
    DELETE = "delete"


@dataclass(frozen=True)
class InputOptions:
    """Options of an import. None: the user did not choose.

    `key_field`: of the key, in data that is no message. `value_field` None: the whole object or row is the value.
    `timestamp_field`: becomes the event time. `separator`: between key and value, or between cells.
    """

    key_field: str | None = None
    value_field: str | None = None
    timestamp_field: str | None = None
    separator: str | None = None
    empty_values: EmptyValues | None = None
    key_encoding: TextEncoding = TextEncoding.UTF8
    value_encoding: TextEncoding = TextEncoding.UTF8

    @property
    def refuses_empty_values(self) -> bool:
        """Return whether an empty value of a record with a key ends the import."""
        return self.empty_values is not EmptyValues.DELETE


_FIELDS = frozenset({"--key-field", "--value-field", "--timestamp-field"})
_ENCODINGS = frozenset({"--key-encoding", "--value-encoding"})
_APPLICABLE: Mapping[InputFormat, frozenset[str]] = {
    InputFormat.JSONL: _FIELDS | _ENCODINGS | {"--empty-values"},
    InputFormat.PARQUET: _FIELDS | {"--empty-values"},
    InputFormat.CSV: _FIELDS | _ENCODINGS | {"--empty-values", "--separator"},
    InputFormat.KCAT: frozenset({"--empty-values"}),
    InputFormat.KEY_VALUE: frozenset({"--empty-values", "--separator"}),
    InputFormat.DEBEZIUM: frozenset({"--key-field", "--timestamp-field"}),
    InputFormat.KAFKA_SEGMENTS: frozenset({"--empty-values"}),
    InputFormat.PULSAR_OFFLOAD: frozenset(),
}
"""The options that each format has."""
_READERS: Mapping[InputFormat, tuple[str, str]] = {
    InputFormat.JSONL: ("jsonl", "read_import_jsonl"),
    InputFormat.PARQUET: ("parquet", "read_import_parquet"),
    InputFormat.CSV: ("csv_rows", "read_csv_rows"),
    InputFormat.KCAT: ("kcat_lines", "read_kcat_lines"),
    InputFormat.KEY_VALUE: ("key_value_lines", "read_key_value_lines"),
    InputFormat.DEBEZIUM: ("debezium_events", "read_debezium_events"),
}
"""The reader of each format: its module here, and its function."""
_FIELD_READERS: Mapping[InputFormat, tuple[str, str]] = {
    InputFormat.JSONL: ("json_events", "read_json_events"),
    InputFormat.PARQUET: ("typed_parquet", "read_typed_parquet"),
}
"""The reader of a format with `--key-field`, if it is another one."""
_SUFFIXES = {".parquet": InputFormat.PARQUET, ".csv": InputFormat.CSV, ".csv.gz": InputFormat.CSV}
"""Ends of names that are certain."""


def format_of(file: str, input_format: InputFormat | None) -> InputFormat:
    """Return the format of a file: the chosen one, else by the end of its name, else JSON Lines."""
    if input_format is not None:
        return input_format
    return next((kind for suffix, kind in _SUFFIXES.items() if file.endswith(suffix)), InputFormat.JSONL)


def check_options(input_format: InputFormat, options: InputOptions) -> None:
    """Raise InvalidInput for an option that does not apply to the format, or lacks another one."""
    chosen = {
        "--key-field": options.key_field is not None,
        "--value-field": options.value_field is not None,
        "--timestamp-field": options.timestamp_field is not None,
        "--separator": options.separator is not None,
        "--empty-values": options.empty_values is not None,
        "--key-encoding": options.key_encoding is not TextEncoding.UTF8,
        "--value-encoding": options.value_encoding is not TextEncoding.UTF8,
    }
    for name in (name for name, is_chosen in chosen.items() if is_chosen):
        if name not in _APPLICABLE[input_format]:
            raise InvalidInput(f"{name} does not apply to the format {input_format}", "leave it out")
    if input_format is InputFormat.DEBEZIUM and not chosen["--key-field"]:
        raise InvalidInput(
            "events of Debezium do not say which column of a row is its key", "name the column with --key-field"
        )
    for name in ("--value-field", "--timestamp-field"):
        if chosen[name] and not chosen["--key-field"]:
            raise InvalidInput(f"{name} needs --key-field", "name the field or column of the key, too")
    if chosen["--value-encoding"] and chosen["--key-field"] and not chosen["--value-field"]:
        raise InvalidInput(
            "--value-encoding does not apply to a value that is a whole object or row", "name a --value-field"
        )


def read_messages(file: str, input_format: InputFormat | None, options: InputOptions) -> Iterator[pa.Table]:
    """Return the messages of a file as tables. `input_format` None: the format follows from the file's name.

    The reader is imported here, because the help of a command names the formats, and must not import Arrow. Raises
    InvalidInput, InvalidRecord.
    """
    if file != "-":
        check_file(file)
    chosen = format_of(file, input_format)
    check_options(chosen, options)
    readers = {**_READERS, **_FIELD_READERS} if options.key_field is not None else _READERS
    module, function = readers[chosen]
    read = cast(
        "Callable[[str, InputOptions], Iterator[pa.Table]]", getattr(import_module(f"api.formats.{module}"), function)
    )
    return read(file, options)


def check_file(file: str) -> None:
    """Raise InvalidInput unless the file can be read. A pipe is a file too, such as `<(…)` of a shell."""
    if Path(file).is_dir():
        raise InvalidInput(f"{file} is a directory, not a file", "name the files in it")
    if not Path(file).exists():
        raise InvalidInput(f"the file {file} does not exist", "check its name, or give - for standard input")
    if not os.access(file, os.R_OK):
        raise InvalidInput(f"the file {file} may not be read", "change its permissions, or run as another user")
