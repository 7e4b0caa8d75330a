"""Bounds of JSON texts, which are checked before they are parsed: the number of values, and the depth.

A parser holds Python's global lock from the first byte to the last. So the values are counted first, in steps that let
other threads continue, and only up to the bound: 16 MiB of brackets cost no more than the bound allows. Separators and
brackets outside strings are counted, so an invalid text may pass; its parser reports the fault. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from api.formats.validation_text import json_problem_text

DEPTH = 64
"""The number of arrays and objects within each other."""
VALUES = 20_000
"""The number of values in a body that is not produced: ten thousand topic names, and some more."""
_PIECE = re.compile(rb'(?:[^"\[\]{},]{1,65536}+|"[^"]*+"?+){0,64}+[\[\]{},]?+')
"""A piece of text up to the next sign outside strings, or a part of it."""
_OPENING, _CLOSING, _BACKSLASH = b"[{", b"]}", 0x5C
_SLICE_BYTES = 1 << 20


class JsonError(ValueError):
    """A text that is not JSON, or is beyond a bound; the message names the fault. `remedy`: what to do about it."""

    def __init__(self, message: str, remedy: str = "correct it") -> None:
        super().__init__(message)
        self.remedy = remedy


class JsonBoundsError(JsonError):
    """A JSON text beyond a bound, which the message names."""


def count_containers_by_depth(text: bytes, max_values: int = VALUES, max_depth: int = DEPTH) -> list[int]:
    """Return the number of arrays and objects that begin at each depth, from 0 on.

    The bounds hold for all texts of JSON Lines together. Raise JsonBoundsError for more than `max_values` values, or
    more than `max_depth` levels.
    """
    if b"\\" in text:
        text = b"".join(_without_escapes(text))
    count = within = 0
    begun = [0] * (max_depth + 1)
    for piece in _PIECE.finditer(text):
        sign = text[piece.end() - 1 : piece.end()]
        if sign and sign in _CLOSING:
            within -= 1
            if within < 0:
                break  # invalid: a parser ends here, too
            continue
        count += 1
        if count > max_values:
            raise JsonBoundsError(f"it holds more than {max_values} values", "send less at once")
        if sign and sign in _OPENING:
            if within >= max_depth:
                raise JsonBoundsError(f"it is nested more than {max_depth} deep", "nest it less")
            begun[within] += 1
            within += 1
    return begun


def parse_bounded_json(text: bytes) -> Any:
    """Return the value of a JSON text within the bounds. Raise JsonError."""
    count_containers_by_depth(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise JsonError(f"it {json_problem_text(error)}") from error


def _without_escapes(text: bytes) -> Iterator[bytes]:
    """Yield the text without escaped backslashes and quotes, which do not end a string."""
    begin = 0
    while begin < len(text):
        end = min(begin + _SLICE_BYTES, len(text))
        while end < len(text) and text[end - 1] == _BACKSLASH:
            end += 1
        yield text[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        begin = end
