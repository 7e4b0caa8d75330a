"""Durations and sizes as they are typed."""

from __future__ import annotations

import pytest

from api.cli.kit.quantity_parsers import parse_bytes, parse_duration
from storage.errors import InvalidInput

DAY = 86_400_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("90", 90_000),
        ("500ms", 500),
        ("90s", 90_000),
        ("10m", 600_000),
        ("1h", 3_600_000),
        ("30d", 30 * DAY),
        ("4w", 28 * DAY),
        ("1y", 365 * DAY),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration("--x", text) == milliseconds


@pytest.mark.parametrize("text", ["", "-1s", "1.5h", "1 s", "1x", "s", "1M", "1e3", "１s", "9" * 19, "1s\n"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration for --x"):
        parse_duration("--x", text)


def test_a_duration_that_needs_a_unit() -> None:
    assert parse_duration("--x", "1s", needs_unit=True) == 1000
    with pytest.raises(InvalidInput, match="'1' is not a duration for --x"):
        parse_duration("--x", "1", needs_unit=True)


def test_durations_out_of_range() -> None:
    with pytest.raises(InvalidInput, match="'59s' is too short for --x: give at least 60000 ms"):
        parse_duration("--x", "59s", least=60_000)
    with pytest.raises(InvalidInput, match="'36501d' is too long for --x"):
        parse_duration("--x", "36501d")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("128M", 128 << 20), ("2k", 2048), ("16G", 16 << 30), ("3T", 3 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("--x", text) == size


@pytest.mark.parametrize("text", ["", "-1", "-5", "1.5M", "12Q", "M", "1e6", "9" * 19, "１", "many", "9999999999999T"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a value of --x: give bytes of at least 0"):
        parse_bytes("--x", text)


def test_a_size_of_nothing_where_something_is_needed() -> None:
    with pytest.raises(InvalidInput, match="'0' is not a value of --x: give bytes of at least 1;"):
        parse_bytes("--x", "0", least=1)
