"""Formats of numbers, sizes and times on the dashboard's pages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NONE = "–"
"""Text for a missing value."""


def size(value: int | None) -> str:
    """Format a number of bytes in the largest unit that does not exceed it."""
    if value is None:
        return NONE
    number, unit = float(value), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.0f} {_UNITS[unit]}" if not unit or number >= 100 else f"{number:.1f} {_UNITS[unit]}"


def count(value: int | None) -> str:
    """Format a number with commas between thousands."""
    return NONE if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """Format a fraction of one in percent."""
    return NONE if value is None else f"{100 * value:.0f} %"


def time(value: int | None) -> str:
    """Format milliseconds since the Unix epoch as a time in UTC."""
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if value else NONE


def duration(value: int | None) -> str:
    """Format a duration in milliseconds."""
    if value is None:
        return NONE
    if value < 10_000:
        return f"{value / 1000:.1f} s"
    seconds = value // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60} s"


def text(data: bytes, limit: int = 200) -> str:
    """Format bytes as text, or as base64 if they are not UTF-8, cut after `limit` characters."""
    try:
        decoded = data[: 4 * limit].decode(errors="strict" if len(data) <= 4 * limit else "ignore")
    except UnicodeDecodeError:
        decoded = base64.b64encode(data[: 4 * limit]).decode()
    return decoded if len(decoded) <= limit else decoded[:limit] + "…"


FILTERS: Mapping[str, Callable[..., str]] = {
    function.__name__: function for function in (size, count, share, time, duration, text)
}
