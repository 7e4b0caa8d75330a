"""Pages of a read, each in a process of its own: places as text, chunked messages that lie across pages."""

from __future__ import annotations

import pytest

from api.places import parse_start
from storage.model import Message
from storage.paging import CHUNK_EXPIRY_MS, Place
from storage.reader import Limits
from storage.topic import Topic
from tests.chunked import Row, append, message, whole
from tests.workbench import Workbench

PLACES = [
    "earliest", "latest", "17", "3:4:-1", "3:4:-1:2", "@1700000000000",
    "17.29", "17~5", "17~5e", "17~5r", "17~5er", "17~r", "17.29~5e", "17~",
]  # fmt: skip


@pytest.mark.parametrize("text", PLACES)
def test_a_place_is_its_text(text: str) -> None:
    assert str(Place.parse(text, parse_start)) == text


def all_messages(topic: Topic, read_compacted: bool, messages: int) -> list[Message]:
    """All messages, by pages that know nothing of each other but the place's text."""
    place, found = Place.parse("earliest", parse_start), list[Message]()
    while True:
        page = topic.page_reader(place, read_compacted).messages(Limits(messages))
        if not page.messages:
            return found
        assert len(page.messages) <= messages
        found += page.messages
        place = Place.parse(str(page.next), parse_start)


def spread() -> list[Row]:
    """Two chunked messages whose chunks lie between each other's and those of plain messages."""
    long, short = whole("u", b"long", b"01", b"23", b"45"), whole("v", b"short", b"ab", b"cd")
    plain = [message(b"p%d" % number, b"x") for number in range(6)]
    return [plain[0], long[0], plain[1], short[0], plain[2], long[1], short[1], plain[3], long[2], *plain[4:]]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_chunked_message_is_whole_wherever_pages_end(bench: Workbench, size: int) -> None:
    topic = bench.topic()
    append(bench, topic, spread())
    expected = list(topic.messages())
    assert [one.payload for one in expected if one.key in (b"long", b"short")] == [b"abcd", b"012345"]
    assert all_messages(topic, False, size) == expected
    bench.compact(topic)
    append(bench, topic, [message(b"p0", b"y")])
    assert all_messages(topic, True, size) == list(topic.messages(read_compacted=True))


def test_bytes_of_a_page(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, spread())
    expected, place, found = list(topic.messages()), Place.parse("earliest", parse_start), list[Message]()
    while page := topic.page_reader(place).messages(Limits(bytes=7)).messages:
        assert len(page) == 1 or sum(len(one.key or b"") + len(one.payload or b"") for one in page) <= 7
        found += page
        place = topic.page_reader(place).messages(Limits(bytes=7)).next
    assert found == expected


def test_rows_are_as_they_are_stored(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, spread())
    page = topic.page_reader(Place.parse("earliest", parse_start)).rows(Limits(messages=2))
    assert [offset for batch in page.batches for offset in batch.column("offset").to_pylist()] == [0, 1]
    assert str(page.next) == "2"


@pytest.mark.parametrize(("late", "expected"), [(0, "0.2"), (CHUNK_EXPIRY_MS + 1, "3")])
def test_one_that_stays_incomplete_holds_pages_for_a_while(bench: Workbench, late: int, expected: str) -> None:
    topic = bench.topic()
    begun = whole("u", b"k", b"1", b"2")[0]
    times = (1_000, 1_000 + late, 1_000 + late)
    rows = [begun, message(b"a", b"x"), message(b"b", b"x")]
    append(bench, topic, [{**row, "publish_time": time} for row, time in zip(rows, times, strict=True)])
    page = topic.page_reader(Place.parse("earliest", parse_start)).messages(Limits(100))
    assert [one.key for one in page.messages] == [b"a", b"b"]
    assert str(page.next) == expected
    again = topic.page_reader(page.next).messages(Limits(100))
    assert again.messages == []
    append(bench, topic, [{**whole("u", b"k", b"1", b"2")[1], "publish_time": times[2]}])
    rest = topic.page_reader(again.next).messages(Limits(100)).messages
    assert [one.payload for one in rest] == ([] if late else [b"12"])
