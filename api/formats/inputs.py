"""Input formats of `compactor import`. A new format is added here.

The reader of a format streams a file as tables of `storage.log.bulk_append.INPUT_SCHEMA`. At the first invalid line or
row it raises InvalidRecord, which names file, line or row, and reason. The import then keeps nothing of the file.

Files of other logs (`LOG_FORMATS`) have readers of their own, which take many files together: kafka_segments.py,
pulsar_ledgers.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa


class InputFormat(StrEnum):
    """Names of input formats."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    KAFKA_SEGMENTS = "kafka-segments"
    PULSAR_OFFLOAD = "pulsar-offload"


LOG_FORMATS = frozenset({InputFormat.KAFKA_SEGMENTS, InputFormat.PULSAR_OFFLOAD})


class EmptyValues(StrEnum):
    """Treatments of a record of Kafka that has a key and an empty value."""

    REFUSE = "refuse"
    DELETE = "delete"


def read_messages(
    file: str, input_format: InputFormat | None, key_encoding: TextEncoding, value_encoding: TextEncoding
) -> Iterator[pa.Table]:
    """Return the messages of a file as tables. `input_format` None: the format follows from the file's name.

    A name that ends in `.parquet` is Parquet, any other JSON Lines. The reader is imported here, because the help of a
    command names the formats, and must not import Arrow. Raises InvalidInput, InvalidRecord.
    """
    if file != "-":
        check_file(file)
    chosen = input_format or (InputFormat.PARQUET if file.endswith(".parquet") else InputFormat.JSONL)
    if chosen is InputFormat.PARQUET:
        from api.formats.parquet import read_import_parquet as read
    else:
        from api.formats.jsonl import read_import_jsonl as read
    return read(file, key_encoding, value_encoding)


def check_file(file: str) -> None:
    """Raise InvalidInput unless the file can be read. A pipe is a file too, such as `<(…)` of a shell."""
    if Path(file).is_dir():
        raise InvalidInput(f"{file} is a directory, not a file", "name the files in it")
    if not Path(file).exists():
        raise InvalidInput(f"the file {file} does not exist", "check its name, or give - for standard input")
    if not os.access(file, os.R_OK):
        raise InvalidInput(f"the file {file} may not be read", "change its permissions, or run as another user")
