"""Relative times and names on the dashboard's pages."""

from __future__ import annotations

import pytest

from api.dashboard.formats import ago, breakable, duration, exact_duration, is_binary, text, time

NOW = 1_780_000_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (0, "just now"),
        (4_999, "just now"),
        (-4_999, "now"),
        (5 * SECOND, "5 seconds ago"),
        (59 * SECOND + 999, "59 seconds ago"),
        (MINUTE, "1 minute ago"),
        (HOUR - 1, "59 minutes ago"),
        (HOUR, "1 hour ago"),
        (2 * DAY - 1, "47 hours ago"),
        (2 * DAY, "2 days ago"),
        (60 * DAY, "1 month ago"),
        (731 * DAY, "2 years ago"),
        (-3 * MINUTE, "in 3 minutes"),
    ],
)
def test_a_time_is_relative_and_has_the_exact_one(before: int, words: str) -> None:
    assert f">{words}</time>" in ago(NOW - before, NOW)


def test_the_exact_time_is_the_title() -> None:
    assert ago(NOW, NOW) == (
        '<time datetime="2026-05-28T20:26:40+00:00" title="2026-05-28 20:26:40 UTC">just now</time>'
    )


def test_a_missing_time_is_a_dash() -> None:
    assert ago(None, NOW) == "–"


@pytest.mark.parametrize(
    ("name", "html"),
    [
        ("orders", "orders"),
        ("stock-levels_of.all/x", "stock-<wbr>levels_<wbr>of.<wbr>all/<wbr>x"),
        ("a--b-", "a--<wbr>b-"),
        ("<b>-&", "&lt;b&gt;-<wbr>&amp;"),
    ],
)
def test_a_name_breaks_after_its_separators_alone(name: str, html: str) -> None:
    assert breakable(name) == html


@pytest.mark.parametrize(("value", "words"), [(None, "–"), (0, "under 1 ms"), (1, "1 ms"), (1_500, "1.5 s")])
def test_a_duration_is_never_nothing(value: int | None, words: str) -> None:
    assert duration(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(7 * DAY, "7 days"), (DAY, "1 day"), (4 * HOUR, "4 hours"), (90 * MINUTE, "90 minutes"), (1_500, "1.5 s")],
)
def test_a_time_span_has_the_largest_unit_that_divides_it(value: int, words: str) -> None:
    assert exact_duration(value) == words


@pytest.mark.parametrize("value", [253_402_300_800_000, 2**63 - 1, -(2**63)])
def test_a_time_of_no_calendar_is_a_number(value: int) -> None:
    assert time(value) == ago(value, NOW) == f"{value:,} ms since 1970"


@pytest.mark.parametrize(
    ("data", "is_cut", "words"),
    [
        (b"\xd1\x8f\xd1", False, "d1 8f d1"),
        (b"\xd1\x8f\xd1", True, "я"),
        (b"\xff" * 9, True, "ff ff ff…"),
        (b"\xff" * 99, False, "ff ff ff…"),
        (b"a\0b", False, "61 00 62"),
        ("яя".encode() * 99, False, "яяяяяяяя…"),
        (b"x" + "я".encode() * 99, False, "xяяяяяяя…"),
    ],
)
def test_bytes_are_a_text_if_they_are_utf_8(data: bytes, is_cut: bool, words: str) -> None:
    assert text(data, 8, is_cut) == words


def test_bytes_that_are_no_text_are_binary() -> None:
    assert [is_binary(data) for data in (None, b"", b"a\n", b"a\0", b"\xd1")] == [False, False, False, True, True]
    assert not is_binary(b"\xd1", is_cut=True)
