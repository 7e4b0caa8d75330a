"""A page of messages from two reads, and the effect of compaction on a message."""

from __future__ import annotations

from dataclasses import replace

from api.dashboard.message_browser import PAGE_MESSAGES, MessageState, ReadResult, message_state, page_offsets
from storage.entries.stored_message import StoredMessage
from storage.ledger.rows import CompressionType, RowType
from storage.model import MessageId
from storage.reading.newest_offsets import NewestOffset


def message(offset: int, key: bytes | None = b"k", payload: bytes | None = b"v") -> StoredMessage:
    size = len(payload or b"")
    return StoredMessage(
        offset, MessageId(1, offset), RowType.MESSAGE, key, payload, size, 1, None, "p", 0, (), 0, None, None, None,
        CompressionType.NONE,
    )  # fmt: skip


def side(*offsets: int, has_more: bool = False) -> ReadResult:
    return ReadResult([message(offset) for offset in offsets], has_more)


def test_a_page_has_the_first_messages_of_both_reads() -> None:
    reads = [side(*range(30)), side(*range(0, 90, 3))]
    assert page_offsets(reads, is_forward=True) == (list(range(PAGE_MESSAGES)), True)
    offsets, has_more = page_offsets(reads, is_forward=False)
    assert (offsets[-1], len(offsets), has_more) == (87, PAGE_MESSAGES, True)
    assert page_offsets([side(1, 2), side(2, 5)], is_forward=True) == ([1, 2, 5], False)
    assert page_offsets([side(), side()], is_forward=False) == ([], False)


def test_a_page_ends_where_a_read_has_stopped() -> None:
    """Beyond that it is not known whether the read has a message."""
    assert page_offsets([side(1, 4, has_more=True), side(2, 4, 5)], is_forward=True) == ([1, 2, 4], True)
    assert page_offsets([side(3, 4, has_more=True), side(1, 4)], is_forward=False) == ([3, 4], True)


def test_the_state_of_a_message() -> None:
    newest = {b"k": NewestOffset(9, False), b"gone": None}
    assert message_state(message(9), True, True, newest) == MessageState(is_current=True)
    assert message_state(message(3), True, False, newest) == MessageState(NewestOffset(9, False), is_left_out=True)
    pending = message_state(message(3), True, True, newest)
    assert pending == MessageState(NewestOffset(9, False))
    assert message_state(message(3, b"gone", None), True, False, newest) == MessageState(is_left_out=True)
    assert message_state(message(3, None), True, True, newest) == MessageState()
    assert message_state(message(9), False, True, newest) == MessageState(is_current=True, is_trimmed=True)
    assert message_state(message(3, b"other"), True, True, newest) == MessageState(may_be_superseded=True)


def test_chunks_of_the_newest_message_are_not_superseded_by_its_last_one() -> None:
    chunk = replace(message(8), kind=RowType.CHUNK)
    newest = {b"k": NewestOffset(9, False)}
    assert message_state(chunk, True, True, newest) == MessageState(is_current=True)
    assert message_state(chunk, True, False, newest) == MessageState(NewestOffset(9, False), is_left_out=True)
