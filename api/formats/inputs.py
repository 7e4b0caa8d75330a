"""Input formats of `compactor import`: the one place to add one.

A format turns a file into tables of `storage.log.bulk_append.INPUT_SCHEMA`, streaming, and raises InvalidRecord (file,
line or row, reason) at the first thing it cannot take: nothing of such a file is kept.
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


def read_messages(
    file: str, requested: InputFormat | None, key_encoding: TextEncoding, value_encoding: TextEncoding
) -> Iterator[pa.Table]:
    """The messages of a file; its format by name where none is given (`.parquet`, else JSON Lines).

    A reader is imported when it is needed: a command names formats in its help, which needs no Arrow.
    """
    if file != "-":
        check_file(file)
    chosen = requested or (InputFormat.PARQUET if file.endswith(".parquet") else InputFormat.JSONL)
    if chosen is InputFormat.PARQUET:
        from api.formats.parquet import read_parquet as read
    else:
        from api.formats.jsonl import read_jsonl as read
    return read(file, key_encoding, value_encoding)


def check_file(file: str) -> None:
    """Anything that can be read will do, pipes too (`<(…)` of a shell). Raises InvalidInput."""
    if Path(file).is_dir():
        raise InvalidInput(f"{file} is a directory, not a file", "name the files in it")
    if not Path(file).exists():
        raise InvalidInput(f"the file {file} does not exist", "name files to import, or - for standard input")
    if not os.access(file, os.R_OK):
        raise InvalidInput(f"the file {file} may not be read", "change its permissions, or run as another user")
