"""The position of a subscription: where it begins, how it is moved, and how its reads continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from api.broker.serving.position import ReaderPosition, SubscribeRequest, SubscriptionPosition, entry_id_of_message
from api.broker.serving.topic import PersistentTopic
from storage.cursor import Cursor
from storage.errors import Fenced, NotFound, StateMayBeStale, Unavailable
from storage.metadata.records import READ_COMPACTED_PROPERTY
from storage.model import EARLIEST, LATEST, LogPosition, MessageId
from storage.positions import StartOffset, StartPosition, StartTime
from storage.reading.entry_reader import EntryReader
from storage.topic import Topic
from tests.unit.api.broker.serving.served_topic import opened
from tests.workbench import Workbench

Run = Callable[[Callable[[PersistentTopic], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run(bench: Workbench, topic: Topic) -> Run:
    """Runs a test with the topic open; it has five messages."""

    def runs(test: Callable[[PersistentTopic], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with opened(bench, topic, ["k"] * 5) as served:
                await test(served)

        asyncio.run(main())

    return runs


def position_at(topic: PersistentTopic, entry_id: int) -> LogPosition:
    """Return the position of a message, whose offset is its entry id."""
    return LogPosition(entry_id, MessageId(topic.storage.snapshot().segments[0].ledger_id, entry_id))


async def opened_position(
    topic: PersistentTopic, start: StartPosition = EARLIEST, *, durable: bool = True, compacted: bool = False
) -> SubscriptionPosition:
    request = SubscribeRequest("s", durable, compacted, start)
    position = SubscriptionPosition(topic, request)
    await position.open(request)
    return position


@pytest.mark.parametrize(("start", "first"), [(EARLIEST, None), (LATEST, 5)])
def test_a_cursor_is_created_once_where_its_first_consumer_begins(
    run: Run, start: StartPosition, first: int | None
) -> None:
    async def test(topic: PersistentTopic) -> None:
        position = await opened_position(topic, start)
        assert position.is_new
        assert position.next_position == (EARLIEST if first is None else StartOffset(first))
        again = await opened_position(topic, EARLIEST if start == LATEST else LATEST)
        assert not again.is_new
        assert again.next_position == position.next_position

    run(test)


@pytest.mark.parametrize(
    ("start", "following"), [(EARLIEST, EARLIEST), (LATEST, StartOffset(5)), (StartOffset(3), StartOffset(3))]
)
def test_a_reader_begins_in_memory_and_counts_what_is_before_its_first_message_as_acknowledged(
    run: Run, start: StartPosition, following: StartPosition
) -> None:
    async def test(topic: PersistentTopic) -> None:
        position = await opened_position(topic, start, durable=False)
        assert position.next_position == following
        assert position.cursor is None
        assert position.backlog(5, 0) == {EARLIEST: 5, LATEST: 0}.get(start), "the offset of an id is not known yet"
        position.note_delivery(3)
        assert position.backlog(5, 0) == (2 if start != LATEST else 0)
        assert position.next_position == StartOffset(3 if start != LATEST else 5)
        position.current.acknowledge(position_at(topic, 4))
        assert position.current.acknowledged_mask(3, 3) == (0b010 if start != LATEST else 0b011)
        assert (position.backlog(6, 0), position.backlog(6, 4)) == ((2, 1) if start != LATEST else (1, 1))
        with pytest.raises(NotFound):
            topic.metadata.cursors.get(topic.record.id, "s")

    run(test)


def test_a_reader_acknowledges_any_number_of_messages_at_once() -> None:
    """Beyond 33 million, the bitmaps had no memory for them: they were delivered again."""
    position = ReaderPosition(None)
    position.acknowledge(LogPosition(1 << 30, MessageId(1, 7)))
    last = LogPosition(1 << 29, MessageId(1, 5))
    position.acknowledge_cumulative(last)
    assert (position.mark_delete, position.acknowledged_to) == (last, 1 << 29)
    position.acknowledge_cumulative(LogPosition((1 << 30) - 1, MessageId(1, 6)))
    position.acknowledge_cumulative(last)
    assert position.acknowledged_to == 1 << 30


def test_a_cursor_is_moved_and_nothing_counts_as_delivered_then(run: Run) -> None:
    async def test(topic: PersistentTopic) -> None:
        position = await opened_position(topic)
        position.delivered_end = 5
        position.current.acknowledge(position_at(topic, 4), 0)
        assert position.backlog(5, 0) == 0
        mark = await position.mark_delete_before(StartOffset(2))
        assert mark == position_at(topic, 1)
        await position.move(mark, StartOffset(2))
        position.restart()
        assert position.next_position == StartOffset(2)
        assert (position.delivered_end, position.backlog(5, 0), position.moves) == (2, 3, 1)
        assert await position.mark_delete_before(EARLIEST) is None

    run(test)


def test_a_cursor_that_another_process_moves_is_fenced_until_it_is_reopened(run: Run) -> None:
    async def test(topic: PersistentTopic) -> None:
        position, other = await opened_position(topic), await opened_position(topic)
        await other.move(position_at(topic, 2), StartOffset(3))
        position.delivered_end = 5
        assert isinstance(position.current, Cursor)
        position.current.acknowledge(position_at(topic, 0))
        with pytest.raises(Fenced):
            position.current.flush()
        await position.reload_cursor()
        assert position.next_position == StartOffset(3)
        topic.metadata.cursors.delete(topic.record.id, "s")
        with pytest.raises(NotFound):
            await position.reload_cursor()

    run(test)


def test_compacted_reads_are_noted_on_the_cursor(run: Run) -> None:
    """T1: a run waits for such a cursor."""

    async def test(topic: PersistentTopic) -> None:
        position = await opened_position(topic)
        assert READ_COMPACTED_PROPERTY not in topic.metadata.cursors.get(topic.record.id, "s").properties
        await position.store_read_compacted_property()
        assert topic.metadata.cursors.get(topic.record.id, "s").properties[READ_COMPACTED_PROPERTY] == "true"
        topic.metadata.cursors.delete(topic.record.id, "s")
        await opened_position(topic)
        await opened_position(topic, compacted=True)
        assert topic.metadata.cursors.get(topic.record.id, "s").properties[READ_COMPACTED_PROPERTY] == "true"

    run(test)


def test_a_reader_that_connects_again_still_does_so_after_its_read_could_not_be_opened(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: a store that fails once must not cost the deletes that a compaction has dropped."""

    async def test(served: PersistentTopic) -> None:
        request = SubscribeRequest("r", False, True, StartOffset(0), resumes=True)
        position = SubscriptionPosition(served, request)
        seen: list[bool] = []

        def entry_reader(_start: StartPosition, _compacted: bool, resumes: bool) -> EntryReader:
            seen.append(resumes)
            if len(seen) == 1:
                raise Unavailable("the store does not answer", "wait")
            if len(seen) == 3:
                raise StateMayBeStale("deletes are gone", "read again")
            return cast(EntryReader, None)

        monkeypatch.setattr(served.storage, "entry_reader", entry_reader)
        with pytest.raises(Unavailable):
            position.open_reader(StartOffset(0))
        position.open_reader(StartOffset(0))
        position.note_delivery(0)
        position.prepare_reread()
        with pytest.raises(StateMayBeStale):
            position.open_reader(StartOffset(0))
        position.open_reader(StartOffset(0))
        assert seen == [True, True, True, False]
        position.note_delivery(0)
        position.prepare_reread()
        await position.move(None, StartTime(0))
        position.restart()
        position.open_reader(StartOffset(0))
        assert seen[4:] == [False], "it asked for that place"

    run(test)


@pytest.mark.parametrize(
    ("start", "entry"),
    [
        (EARLIEST, EARLIEST),
        (LATEST, LATEST),
        (MessageId(3, 4, -1, 2), MessageId(3, 4)),
        (MessageId(3, -1), MessageId(3, 0)),
        (MessageId(-1, 5), EARLIEST),
        (MessageId(LATEST.ledger_id, 5), LATEST),
    ],
)
def test_a_reader_begins_at_the_entry_of_its_message(start: MessageId, entry: MessageId) -> None:
    assert entry_id_of_message(start) == entry
