"""Positions in a topic as they are typed."""

from __future__ import annotations

import re
import time

import pytest

from api.formats.position_text import parse_cursor_position, parse_start
from storage.errors import InvalidInput, InvalidMessageId
from storage.model import EARLIEST, LATEST, MessageId
from storage.positions import StartOffset, StartTime

NOON = 1_763_726_400_000
"""2025-11-21T12:00:00Z"""


@pytest.mark.parametrize(
    ("text", "start"),
    [("earliest", EARLIEST), ("latest", LATEST), ("7", StartOffset(7)), ("1:3", MessageId(1, 3)), ("-1:-1", EARLIEST)],
)
def test_starts_of_reads(text: str, start: object) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("@0", 0),
        (f"@{NOON}", NOON),
        ("@2025-11-21", NOON - 43_200_000),
        ("@2025-11-21T12:00:02", NOON + 2000),
        ("@2025-11-21T12:00:02Z", NOON + 2000),
        ("@@2025-11-21T12:00:02Z", NOON + 2000),  # a field for a time alone, filled in as the error shows
        ("@2025-11-21T13:00:03.5+01:00", NOON + 3500),
    ],
)
def test_times_are_starts_of_reads(text: str, milliseconds: int) -> None:
    """A time without a zone is UTC, wherever it is typed."""
    try:
        with pytest.MonkeyPatch.context() as place:
            place.setenv("TZ", "America/New_York")
            time.tzset()
            assert parse_start(text) == StartTime(milliseconds)
    finally:
        time.tzset()


@pytest.mark.parametrize("text", ["@", "@noon", "@-5", "@2025-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time: give milliseconds since 1970"):
        parse_start(text)


@pytest.mark.parametrize("text", ["", "first", "1;2", "-5", "²"])
def test_what_is_no_start(text: str) -> None:
    with pytest.raises(InvalidMessageId, match="is not a start of a read: use earliest, latest"):
        parse_start(text)


@pytest.mark.parametrize("text", ["yesterday", "-5", "1:2:3:4:5", "²", "1:-2", "1:2:x", "9223372036854775808:0"])
def test_what_is_no_position_of_a_cursor(text: str) -> None:
    with pytest.raises(InvalidMessageId, match=re.escape(text)):
        parse_cursor_position(text)
