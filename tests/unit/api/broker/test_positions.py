"""The mark-delete position of a cursor that begins at a position (A4, R4)."""

from __future__ import annotations

from typing import Any

import pytest

from api.broker.positions import mark_delete_before
from api.formats.position_text import parse_cursor_position
from storage.errors import InvalidInput
from storage.model import LATEST, LogPosition, MessageId
from storage.positions import StartTime
from storage.topic import Topic
from tests.entries import produce, single
from tests.workbench import Workbench, content, raw


@pytest.fixture
def filled(bench: Workbench, topic: Topic) -> Topic:
    """Offsets 0 to 5 in one ledger, 6 to 8 in another."""
    for count in (6, 3):
        bench.append(topic, [content(*((b"k", b"%d" % number) for number in range(count)))])
    return topic


def offset_before(topic: Topic, text: str) -> int | None:
    mark = mark_delete_before(topic, parse_cursor_position(text))
    return None if mark is None else mark.offset


def test_the_mark_is_the_message_before_by_its_exact_id(filled: Topic) -> None:
    ids = [str(message.message_id) for message in raw(filled)]
    last = MessageId.parse(ids[5])
    marks = {
        "earliest": None,
        "latest": 8,
        "0": None,
        "1": 0,
        "6": 5,
        "9": 8,
        ids[0]: None,
        ids[3]: 2,
        ids[6]: 5,
        ids[8]: 7,
        f"{last.ledger_id}:{last.entry_id + 100}": 5,
        "999999999:0": 8,
    }
    for text, offset in marks.items():
        mark = mark_delete_before(filled, parse_cursor_position(text))
        assert (None if mark is None else mark.offset) == offset, text
        assert mark is None or str(mark.message_id) == ids[mark.offset]


def test_an_empty_topic_has_no_mark(topic: Topic) -> None:
    assert [offset_before(topic, text) for text in ("earliest", "latest", "0", "5:0")] == [None] * 4
    with pytest.raises(InvalidInput, match=r"the offset 1 of .* is after its end, which is 0"):
        offset_before(topic, "1")


def test_behind_the_end_is_refused(filled: Topic) -> None:
    with pytest.raises(InvalidInput, match=r"the offset 10 of .* is after its end, which is 9"):
        offset_before(filled, "10")


def test_where_raw_is_trimmed(bench: Workbench, filled: Topic) -> None:
    """R4: earliest is the start of the compacted ledger."""
    bench.compact(filled)
    ids = [message.message_id for message in raw(filled)]
    first, second = bench.metadata.ledgers.of_topic(filled.record.id)
    bench.metadata.trimming.trim(filled.record.id, 6, [first.ledger_id], force=False, keep_start=True)
    marks = [mark_delete_before(filled, parse_cursor_position(text)) for text in ("2", str(ids[2]), "6", str(ids[7]))]
    assert [mark and (str(mark.message_id), mark.offset) for mark in marks] == [
        None,
        None,
        (f"{second.ledger_id}:-1:-1", 5),
        (str(ids[6]), 6),
    ]
    bench.metadata.trimming.trim(filled.record.id, 9, [second.ledger_id], force=True, keep_start=True)
    assert offset_before(filled, "earliest") is None
    latest = mark_delete_before(filled, LATEST)
    assert latest is not None
    assert latest.message_id == ids[8], "nothing of the compacted ledger either"


def test_a_message_that_is_appended_during_the_search_is_not_before_a_time(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Topic.first_at
    produce(topic, [single(b"k", b"old", publish_time=1)])

    def first_at(topic: Topic, *arguments: Any) -> LogPosition | None:
        first = search(topic, *arguments)
        produce(topic, [single(b"k", b"new", publish_time=3)])
        return first

    monkeypatch.setattr(Topic, "first_at", first_at)
    mark = mark_delete_before(topic, StartTime(2))
    assert mark is not None
    assert mark.offset == 0
