"""Parsers of durations (`90`, `90s`, `10m`, `30d`: milliseconds), sizes (`4096`, `128M`: bytes) and pairs.

A bare duration is seconds, as in Pulsar's tools. All raise InvalidInput; for durations and sizes it names the option.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import typer

from storage.errors import InvalidInput

_DURATIONS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST = 36_500 * _DURATIONS["d"]
"""A hundred years: more is a typing error, and the sum with a time of now would not fit 64 bits."""
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LARGEST = (1 << 63) - 1


def parse_duration(option: str, text: str, least: int = 0) -> int:
    """Return a duration in milliseconds, at least `least`. Raises InvalidInput."""
    match = re.fullmatch(r"([0-9]{1,18})(ms|s|m|h|d)?", text, re.ASCII)
    if not match:
        raise InvalidInput(
            f"{text!r} is not a duration for {option}", "give a whole number with ms, s, m, h or d: 90s, 10m, 30d"
        )
    milliseconds = int(match[1]) * _DURATIONS[match[2] or ""]
    if milliseconds < least:
        raise InvalidInput(f"{text!r} is too short for {option}", f"give at least {least} ms")
    if milliseconds > _LONGEST:
        raise InvalidInput(f"{text!r} is too long for {option}", "give at most 36500d")
    return milliseconds


def parse_bytes(option: str, text: str, least: int = 0) -> int:
    """Return a size in bytes, at least `least`; K, M, G and T are powers of 1024. Raises InvalidInput."""
    match = re.fullmatch(r"([0-9]{1,18})([KMGTkmgt]?)", text, re.ASCII)
    size = int(match[1]) * _SIZES[match[2].upper()] if match else -1
    if not least <= size <= _LARGEST:
        number = "positive number" if least else "number"
        raise InvalidInput(f"{text!r} is not a size in bytes for {option}", f"give a {number}, as 4096, 128M or 3T")
    return size


def parse_pair(text: str, remedy: str) -> tuple[str, str]:
    """Return name and value of `name=value`; the value may be empty. Raises InvalidInput."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidInput(f"{text!r} is not NAME=VALUE", remedy)
    return name, value


def duration(option: str, help_text: str, least: int = 0) -> Any:
    """Return an option for `Annotated[int | None, …]`, parsed to milliseconds."""
    return typer.Option(option, metavar="DURATION", help=help_text, parser=partial(parse_duration, option, least=least))


def size_in_bytes(option: str, help_text: str, least: int = 0) -> Any:
    """Return an option for `Annotated[int | None, …]`, parsed to bytes."""
    return typer.Option(option, metavar="BYTES", help=help_text, parser=partial(parse_bytes, option, least=least))
