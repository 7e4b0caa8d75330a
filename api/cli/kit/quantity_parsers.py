"""Parsers of durations (`90`, `90s`, `10m`, `30d`: milliseconds), sizes (`4096`, `128M`: bytes) and pairs.

A bare duration is seconds, as in Pulsar's tools. All raise InvalidInput; for durations and sizes it names the option.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import typer

from storage.errors import InvalidInput
from storage.options.kinds import Size

_DURATIONS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATIONS |= {"w": 7 * _DURATIONS["d"], "y": 365 * _DURATIONS["d"]}
_LONGEST = 36_500 * _DURATIONS["d"]
"""A hundred years. A longer duration is a typing error, and its sum with the current time might exceed 64 bits."""


def parse_duration(option: str, text: str, least: int = 0, needs_unit: bool = False) -> int:
    """Return a duration in milliseconds, from `least` to a hundred years. `needs_unit`: refuse a bare number.

    A bare number is seconds. Raises InvalidInput.
    """
    match = re.fullmatch(r"([0-9]{1,18})(ms|s|m|h|d|w|y)?", text, re.ASCII)
    if not match or (needs_unit and not match[2]):
        raise InvalidInput(
            f"{text!r} is not a duration for {option}", "give a whole number with ms, s, m, h, d, w or y: 90s, 10m, 30d"
        )
    milliseconds = int(match[1]) * _DURATIONS[match[2] or ""]
    if milliseconds < least:
        raise InvalidInput(f"{text!r} is too short for {option}", f"give at least {least} ms")
    if milliseconds > _LONGEST:
        raise InvalidInput(f"{text!r} is too long for {option}", "give at most 36500d")
    return milliseconds


def parse_bytes(option: str, text: str, least: int = 0) -> int:
    """Return a size in bytes, at least `least`; K, M, G and T are powers of 1024. Raises InvalidInput."""
    return Size(least=least).parse(option, text)


def parse_pair(text: str, remedy: str) -> tuple[str, str]:
    """Return name and value of `name=value`; the value may be empty. Raises InvalidInput with `remedy`."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidInput(f"{text!r} is not NAME=VALUE", remedy)
    return name, value


def duration_option(option: str, help_text: str, least: int = 0, needs_unit: bool = False) -> Any:
    """Return an option for `Annotated[int | None, …]`, parsed to milliseconds by `parse_duration`."""
    parser = partial(parse_duration, option, least=least, needs_unit=needs_unit)
    return typer.Option(option, metavar="DURATION", help=help_text, parser=parser)


def size_option(option: str, help_text: str, least: int = 0) -> Any:
    """Return an option for `Annotated[int | None, …]`, parsed to bytes by `parse_bytes`."""
    return typer.Option(option, metavar="BYTES", help=help_text, parser=partial(parse_bytes, option, least=least))
