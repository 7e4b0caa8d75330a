"""Durations as they are typed: `90`, `90s`, `10m`, `30d`; milliseconds everywhere else.

A bare number is seconds, as in Pulsar's tools. Zero is a duration; what must be longer says so by `least`.
"""

from __future__ import annotations

import re

from storage.errors import InvalidInput

_UNITS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MOST = 36_500 * _UNITS["d"]
"""A hundred years: more is a slip of the finger, and would not fit what is counted in milliseconds."""


def parse_duration(option: str, text: str, least: int = 0) -> int:
    """Milliseconds, at least `least`. Raises InvalidInput, which names the option."""
    match = re.fullmatch(r"([0-9]{1,18})(ms|s|m|h|d)?", text, re.ASCII)
    if not match:
        raise InvalidInput(
            f"{text!r} is not a duration for {option}", "give a whole number with ms, s, m, h or d: 90s, 10m, 30d"
        )
    milliseconds = int(match[1]) * _UNITS[match[2] or ""]
    if milliseconds < least:
        raise InvalidInput(f"{text!r} is too short for {option}", f"give at least {least} ms")
    if milliseconds > _MOST:
        raise InvalidInput(f"{text!r} is too long for {option}", "give at most 36500d")
    return milliseconds
