"""Numbers, sizes and times as the dashboard's pages show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NONE = "–"
"""Where there is no value."""


def size(value: int | None) -> str:
    """Format bytes in the largest unit of which there is at least one."""
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


FILTERS: Mapping[str, Callable[..., str]] = {
    "size": size,
    "count": count,
    "share": share,
    "time": time,
    "duration": duration,
}
