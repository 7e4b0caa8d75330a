"""A payload for people to read: as indented JSON, as text, and in hexadecimal.

Payloads come from anyone, and may be anything: each view is bounded, and says what it leaves out. Templates escape the
text; control characters become visible signs, so that none acts on a terminal that it is copied to. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

import msgspec

TEXT_BYTES = 64 << 10
"""The most bytes that are shown as text, or formatted as JSON."""
HEX_BYTES = 1 << 10
JSON_DEPTH = 64
"""Nested arrays and objects of JSON that is formatted: the indentation of deeper ones would outgrow their text."""
_HEX_COLUMNS = 8
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")
_DIRECTIONS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that change the direction of the text after them, which then reads as another; escaped as in JSON."""
_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421} | _DIRECTIONS


@dataclass(frozen=True)
class PayloadView:
    """A view of a payload. `name`: unique in a page. `cut_to`: the bytes that it shows; None: all of them."""

    name: str
    title: str
    text: str
    cut_to: int | None = None


def payload_views(first_bytes: bytes, payload_size: int) -> list[PayloadView]:
    """Return the views of the first bytes of a payload of `payload_size` bytes, the best one first."""
    candidates = (
        json_view(first_bytes, payload_size),
        text_view(first_bytes, payload_size),
        hex_view(first_bytes, payload_size),
    )
    return [view for view in candidates if view is not None]


def json_view(first_bytes: bytes, payload_size: int) -> PayloadView | None:
    """Return a view of a payload as indented JSON; numbers and texts stay as they are. None: it is no object or array,
    or too large."""
    if payload_size > min(TEXT_BYTES, len(first_bytes)) or first_bytes.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = first_bytes.decode()
        if _nesting_depth(text) > JSON_DEPTH:
            return None
        return PayloadView("json", "JSON", msgspec.json.format(text, indent=2).translate(_DIRECTIONS))
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None


def text_view(first_bytes: bytes, payload_size: int) -> PayloadView | None:
    """Return a view of a payload as text; None: it is not UTF-8, or has a NUL."""
    head = first_bytes[:TEXT_BYTES]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == payload_size or error.start < len(head) - 3:
            return None
        head = head[: error.start]  # the cut divides a character
        text = head.decode()
    return (
        None
        if "\0" in text
        else PayloadView("text", "Text", with_visible_controls(text), _length_if_cut(len(head), payload_size))
    )


def hex_view(first_bytes: bytes, payload_size: int) -> PayloadView:
    """Return a view of a payload in hexadecimal: lines of eight bytes with their offset, digits and ASCII
    characters."""
    head = first_bytes[:HEX_BYTES]
    lines = []
    for start in range(0, len(head), _HEX_COLUMNS):
        line = head[start : start + _HEX_COLUMNS]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        lines.append(f"{start:04x}  {line.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {characters}")
    return PayloadView("hex", "Hexadecimal", "\n".join(lines), _length_if_cut(len(head), payload_size))


def with_visible_controls(text: str) -> str:
    """Return a text with a visible sign for each control character, also for those that change the direction of
    text."""
    return text.translate(_SIGNS)


def _length_if_cut(length: int, size: int) -> int | None:
    return length if length < size else None


def _nesting_depth(text: str) -> int:
    """Return how deep arrays and objects are nested in a JSON text."""
    brackets = _BRACKETS.findall(_STRINGS.sub("", text))
    return max(accumulate((1 if bracket in "[{" else -1 for bracket in brackets), initial=0))
