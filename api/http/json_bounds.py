"""Bounds of JSON texts, checked before a parser sees them: how many values, and how deep.

A parser holds Python's one lock from the first byte to the last, so what it would be given is counted first, in steps
that let other threads continue, and only up to the bound: a text of 16 MiB that is all brackets costs as much as the
bound allows. Counted are separators and brackets outside strings, so a text that is no JSON may pass: its parser says
what is wrong. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

DEPTH = 64
"""Arrays and objects within each other."""
VALUES = 20_000
"""Values in a body that is not produced: ten thousand topic names, and some more."""
_PIECE = re.compile(rb'(?:[^"\[\]{},]{1,65536}+|"[^"]*+"?+){0,64}+[\[\]{},]?+')
"""Up to the next sign outside strings, or some way towards it."""
_OPENING, _CLOSING, _BACKSLASH = b"[{", b"]}", 0x5C
_SLICE_BYTES = 1 << 20


class JsonBoundsError(ValueError):
    """A JSON text beyond the bounds; the message names which."""


def check_bounds(text: bytes, values: int = VALUES, depth: int = DEPTH) -> list[int]:
    """Return the number of arrays and objects that begin at each depth, from 0 on.

    Raises JsonBoundsError for more than `values` values, or more than `depth` levels.

    Several texts, one a line, count as one.
    """
    if b"\\" in text:
        text = b"".join(_without_escapes(text))
    count = within = 0
    begun = [0] * (depth + 1)
    for piece in _PIECE.finditer(text):
        sign = text[piece.end() - 1 : piece.end()]
        if sign and sign in _CLOSING:
            within -= 1
            if within < 0:
                break  # no JSON: a parser goes no further
            continue
        count += 1
        if count > values:
            raise JsonBoundsError(f"it holds more than {values} values")
        if sign and sign in _OPENING:
            if within >= depth:
                raise JsonBoundsError(f"it is nested more than {depth} deep")
            begun[within] += 1
            within += 1
    return begun


def load(text: bytes) -> Any:
    """The value of a JSON text within the bounds. Raises ValueError, JsonBoundsError."""
    check_bounds(text)
    return json.loads(text)


def _without_escapes(text: bytes) -> Iterator[bytes]:
    """The text without what follows a backslash and could count as the end of a string."""
    begin = 0
    while begin < len(text):
        end = min(begin + _SLICE_BYTES, len(text))
        while end < len(text) and text[end - 1] == _BACKSLASH:
            end += 1
        yield text[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        begin = end
