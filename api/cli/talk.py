"""What is said to a person: on stderr, numbers readable."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line for the user, on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def number(value: int) -> str:
    """1,234,567."""
    return f"{value:,}"


def size(value: float) -> str:
    """Bytes in a unit that fits: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
