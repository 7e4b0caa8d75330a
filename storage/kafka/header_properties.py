"""Headers of records as properties of messages.

A header has a name and bytes, or null; a name may occur more than once. A property is a text, and its name occurs once:

| header | property |
|---|---|
| `trace` = UTF-8 text | `trace` = the text |
| `trace` = other bytes | `trace;base64` = the bytes in base64 |
| `trace` = null | `trace;null` = an empty text |
| the second, third … of a name | the same with `;2`, `;3` … after the name: `trace;2`, `trace;3;base64` |

A property name that another header already has gets the next free number. So the first header of a name has the
name that a consumer looks for, no header is lost, and their order is kept.

Raises nothing. Must not know: batches.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.slices import I64, Spans, slices

NULL, BASE64 = ";null", ";base64"
_FEW = 16
"""Up to as many headers of a record are compared with each other; sorting costs more."""
TYPE = pa.map_(pa.string(), pa.string())


class LocatedHeaders(NamedTuple):
    """The places of record headers in a buffer, shape (headers,): the row of the record of each, ascending, and
    position and size of its name and value. A value of size -1 is null."""

    rows: I64
    names: I64
    name_sizes: I64
    values: I64
    value_sizes: I64


def properties_of(data: pa.Buffer, end: int, count: int, headers: LocatedHeaders) -> pa.Array:
    """Convert the headers of `count` Kafka records to a column of properties: null for a record without headers.

    `data`: the bytes of the headers, which are before its position `end`.
    """
    if not len(headers.rows):
        return pa.nulls(count, TYPE)
    names, values = slices(
        data,
        end,
        pa.binary(),
        Spans(headers.names, headers.name_sizes),
        Spans(headers.values, headers.value_sizes, headers.value_sizes < 0),
    )
    texts = None if _has_repeated_name(headers.rows, names) else _decode_utf8(names, values)
    having = np.bincount(headers.rows, minlength=count)
    if texts is None:
        pairs = zip(headers.rows.tolist(), names.to_pylist(), values.to_pylist(), strict=True)
        texts = _build_marked_properties(pairs)
    offsets = np.append(0, np.cumsum(having)).astype(np.int32)
    absent = np.append(having == 0, False)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=absent), *texts, TYPE)


def _has_repeated_name(rows: I64, names: pa.Array) -> bool:
    """Return whether any record has two headers of one name. `rows`: the record of each header."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy()
    together = int(np.bincount(rows).max())
    if together > _FEW:
        pairs = rows * len(encoded.dictionary) + codes
        return len(np.unique(pairs)) < len(pairs)
    same = ((rows[apart:] == rows[:-apart]) & (codes[apart:] == codes[:-apart]) for apart in range(1, together))
    return any(bool(equal.any()) for equal in same)


def _decode_utf8(names: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array] | None:
    """Return header names and values as texts; None: a value is null, or a name or value is not UTF-8."""
    if values.null_count:
        return None
    try:
        return names.cast(pa.string()), values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _build_marked_properties(headers: Iterable[tuple[int, bytes, bytes | None]]) -> tuple[pa.Array, pa.Array]:
    """Return the names and values of the properties of headers, each (row, name, value), in order. A mark in a name
    says that the value is null or base64; a number makes repeated names of a record unique."""
    names: list[str] = []
    values: list[str] = []
    present: set[str] = set()
    current = -1
    for row, name, value in headers:
        if row != current:
            current, present = row, set()
        text, mark = _encode_value(value)
        label = _unused_name(name.decode(errors="backslashreplace"), mark, present)
        present.add(label)
        names.append(label)
        values.append(text)
    return pa.array(names, pa.string()), pa.array(values, pa.string())


def _encode_value(value: bytes | None) -> tuple[str, str]:
    """Return the value of a header as text, in base64 unless it is UTF-8, and the mark for the name of its property."""
    if value is None:
        return "", NULL
    try:
        return value.decode(), ""
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), BASE64


def _unused_name(name: str, mark: str, present: set[str]) -> str:
    label, number = name + mark, 1
    while label in present:
        number += 1
        label = f"{name};{number}{mark}"
    return label
