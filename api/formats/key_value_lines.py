"""Lines of a key, a separator and a value, as the input of an import: `--input-format key-value`.

The separator is `:`, or that of `--separator`, of any length. The first one of a line ends the key; the value has the
rest, with further separators. Bytes are taken as they are. Memory: a block of lines.

Raises InvalidInput, InvalidRecord. Must not know: other formats.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from api.formats.field_values import RowPositions, message_table
from api.formats.input_stream import read_line_blocks
from api.formats.inputs import InputOptions
from storage.errors import InvalidInput

DEFAULT_SEPARATOR = ":"


def read_key_value_lines(file: str, options: InputOptions) -> Iterator[pa.Table]:
    """Yield the lines of a file as tables of messages (INPUT_SCHEMA). Raises InvalidInput, InvalidRecord."""
    separator = unescape_separator(options.separator or DEFAULT_SEPARATOR).encode()
    if options.separator == "" or b"\n" in separator:
        raise InvalidInput("the separator is empty, or has an end of a line", "give other characters: --separator ':'")
    for first, lines in read_line_blocks(file):
        rows, texts = RowPositions(file, "line", first), pa.array(lines, pa.binary())
        pairs = pc.split_pattern(texts, separator, max_splits=1)
        rows.raise_for_first(
            pc.not_equal(pc.list_value_length(pairs), 2),
            f"it has no separator {separator.decode()!r}",
            "name the separator of the file: --separator; nothing of it was kept",
        )
        keys, values = pc.list_element(pairs, 0), pc.list_element(pairs, 1)
        yield message_table(rows, keys, values, None, options.refuses_empty_values)


def unescape_separator(separator: str) -> str:
    """Return a separator as the file has it: `\\t` becomes a tab."""
    return separator.replace("\\t", "\t")
