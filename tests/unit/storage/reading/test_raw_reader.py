"""Reading over ledgers and tail as one sequence, from anywhere, page by page, and on as messages come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from storage.entries.chunk_assembler import assemble_messages
from storage.entries.decode import StoredEntry
from storage.environment import Environment
from storage.errors import ObjectMissing, OffsetOutOfRange
from storage.log import segment_tables
from storage.model import EARLIEST, LATEST, Message, MessageId
from storage.objects.interface import ObjectStore
from storage.positions import OffsetReset, StartOffset, StartPosition, StartTime
from storage.reading.page_reader import PageReader, ReadLimits
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.entries import NOW, batch, produce, single
from tests.workbench import Workbench, content, raw


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """A ledger (0–2), a sealed segment (3–5), a rolled one (6–7), a ledger (8), an open segment (9–11)."""
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"c", b"2"))])
    produce(topic, [single(b"d", b"3", NOW + 3), batch((b"e", b"4"), (b"f", b"5"), publish_time=NOW + 4)])
    topic.log_manager().roll_and_seal(topic.record)
    produce(topic, [single(b"g", b"6", NOW + 10), single(b"h", b"7", NOW + 5)])
    bench.append(topic, [content((b"i", b"8"))])
    produce(topic, [single(b"j", b"9", NOW + 20), batch((b"k", b"10"), (b"l", b"11"), publish_time=NOW + 6)])
    assert [len(topic.snapshot().ledgers), len(topic.snapshot().segments)] == [3, 2]
    return topic


def offsets(reading: Iterator[Message]) -> list[int]:
    return [message.offset for message in reading]


def page(reader: PageReader, limits: ReadLimits = ReadLimits(), wait_ms: int = 0) -> list[int]:  # noqa: B008
    return offsets(assemble_messages(iter(reader.poll(limits, wait_ms)), -1))


def trimmed(bench: Workbench, topic: Topic, start: int) -> None:
    ledger_ids = [ledger.ledger_id for ledger in topic.snapshot().ledgers if ledger.last_offset < start]
    bench.metadata.trimming.trim(topic.record.id, start, ledger_ids, force=True)


def test_every_start_begins_where_it_says(topic: Topic) -> None:
    everything = raw(topic)
    assert [m.offset for m in everything] == list(range(12))
    for message in everything:
        assert offsets(topic.messages(message.message_id)) == list(range(message.offset, 12))
        assert offsets(topic.messages(StartOffset(message.offset))) == list(range(message.offset, 12))
        assert topic.first_raw_at_or_after(message.offset) is not None
        assert topic.first_raw_at_or_after(message.offset).message_id == message.message_id  # type: ignore[union-attr]
    assert offsets(topic.messages(StartOffset(12))) == []
    assert topic.first_raw_at_or_after(12) is None
    assert offsets(topic.messages(LATEST)) == []


def test_ids_between_messages_begin_with_the_next(topic: Topic) -> None:
    everything = raw(topic)
    for message in everything:
        at = message.message_id
        behind = MessageId(at.ledger_id, at.entry_id, -1, at.batch_index + 1)
        following = [m.offset for m in everything if m.message_id >= behind]
        assert offsets(topic.messages(behind)) == following
        behind = MessageId(at.ledger_id, at.entry_id + 100)
        assert offsets(topic.messages(behind)) == [m.offset for m in everything if m.message_id >= behind]


@pytest.mark.parametrize("time", [0, NOW, NOW + 1, NOW + 3, NOW + 4, NOW + 5, NOW + 7, NOW + 10, NOW + 11, NOW + 20])
def test_a_time_begins_with_the_first_message_published_then_or_later(topic: Topic, time: int) -> None:
    """Producers' clocks differ: what comes behind may be older."""
    first = min(m.offset for m in raw(topic) if m.publish_time >= time)
    assert offsets(topic.messages(StartTime(time))) == list(range(first, 12))


def test_a_time_that_has_not_come_gives_nothing_yet(topic: Topic) -> None:
    assert offsets(topic.messages(StartTime(NOW + 21))) == []
    reader = topic.reader(StartTime(NOW + 21))
    assert page(reader) == []
    produce(topic, [single(b"m", b"12", NOW + 30)])
    assert page(reader) == [12]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_time_is_not_that_of_a_message_that_was_trimmed(bench: Workbench, sealed: bool) -> None:
    """A trim goes to an offset within a ledger: what is below it is not checked for a time either."""
    topic = bench.topic("trimmed")
    produce(topic, [single(b"a", b"%d" % n, NOW + time) for n, time in enumerate([9, 9, 1, 2, 8, 3])])
    with topic.append_log(0) as log:
        log.roll()
    if sealed:
        topic.log_manager().roll_and_seal(topic.record)
    bench.metadata.trimming.trim(topic.record.id, 2, [], force=True)
    for time, first in [(0, 2), (2, 3), (3, 4), (8, 4), (9, 6)]:
        assert offsets(topic.messages(StartTime(NOW + time))) == list(range(first, 6))


def test_times_in_a_compacted_view(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    produce(topic, [single(b"a", b"12", NOW + 40)])
    view = list(topic.messages(read_compacted=True))
    for time in (0, NOW + 4, NOW + 7, NOW + 20, NOW + 21, NOW + 40, NOW + 41):
        first = min((m.offset for m in view if m.publish_time >= time), default=99)
        assert offsets(topic.messages(StartTime(time), read_compacted=True)) == [
            m.offset for m in view if m.offset >= first
        ]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_pages_are_the_sequence(bench: Workbench, topic: Topic, flag: bool, size: int) -> None:
    """R10: never more than was asked for; nothing twice, nothing left out, with a compaction in between."""
    if flag:
        bench.compact(topic)
        produce(topic, [single(b"a", b"12")])
    expected = offsets(topic.messages(read_compacted=flag))
    reader = topic.reader(read_compacted=flag)
    offsets_read: list[int] = []
    while page_offsets := page(reader, ReadLimits(size)):
        assert len(page_offsets) <= size
        offsets_read += page_offsets
        if len(offsets_read) < 4:
            bench.compact(topic)
    assert offsets_read == expected
    assert bench.metadata.pins.gc_snapshot(topic.record.id).pins == (), "the pin is released"


def test_a_page_of_bytes_grows_for_a_message_that_is_larger(topic: Topic) -> None:
    """L3."""
    produce(topic, [single(b"big", b"x" * 10_000), single(b"z", b"1")])
    reader = topic.reader(StartOffset(11))
    assert page(reader, ReadLimits(bytes=100)) == [11]
    assert page(reader, ReadLimits(bytes=100)) == [12]
    assert page(reader, ReadLimits(bytes=100)) == [13]
    assert page(reader, ReadLimits(bytes=100)) == []


class CallingClock(ManualClock):
    """A clock that does something else while others wait."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._then()


def test_a_read_of_few_unsealed_messages_unpacks_few_entries(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else to open one message takes as long as to read megabytes of small ones. A long read still has large tables."""
    topic = bench.topic()
    produce(topic, [single(b"a", b"%d" % n) for n in range(3000)])
    unpacked: list[int] = []
    real = segment_tables.unpack

    def record(entries: list[StoredEntry], ledger_id: int) -> pa.Table:
        unpacked.append(len(entries))
        return real(entries, ledger_id)

    monkeypatch.setattr(segment_tables, "unpack", record)
    (rows,) = topic.read(StartOffset(1000), max_messages=1)
    assert (rows.column("offset").to_pylist(), unpacked) == ([1000], [16])
    unpacked.clear()
    assert sum(len(rows) for rows in topic.read()) == 3000
    assert unpacked == [16, 128, 1024, 1832]


def test_a_reader_waits_for_what_comes(bench: Workbench, topic: Topic) -> None:
    """Long polling, through rolls, seals, imports and a new segment."""
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: produce(topic, [single(b"m", b"12")]),
        lambda: topic.log_manager().roll_and_seal(topic.record),
        lambda: bench.append(topic, [content((b"n", b"13"))]),
    ]
    clock = CallingClock(lambda: steps.pop(0)() if steps else None)
    waiting = Topic(Environment(bench.metadata, bench.store, clock, bench.log), topic.record)
    reader = waiting.reader(LATEST)
    assert page(reader, wait_ms=60_000) == [12]
    assert page(reader, wait_ms=60_000) == [13]
    before = clock.now_ms()
    assert page(reader, wait_ms=5_000) == []
    assert clock.now_ms() - before >= 5_000


def test_latest_is_where_the_topic_ended_when_the_reader_first_looked(bench: Workbench, topic: Topic) -> None:
    for flag in (False, True):
        reader = topic.reader(LATEST, read_compacted=flag)
        assert page(reader) == []
        produce(topic, [single(b"m", b"x")])
        bench.compact(topic)
        assert len(page(reader)) == 1


def test_below_the_first_offset_a_read_does_as_it_was_told(bench: Workbench, topic: Topic) -> None:
    """L3: out of range, with reset to earliest or latest, or fail."""
    first_id = raw(topic)[0].message_id
    trimmed(bench, topic, 4)
    assert offsets(topic.messages()) == list(range(4, 12))
    for start in (StartOffset(0), StartOffset(3), first_id):
        answers = {reset: _read(topic, start, reset) for reset in (OffsetReset.EARLIEST, OffsetReset.LATEST)}
        assert answers == {OffsetReset.EARLIEST: list(range(4, 12)), OffsetReset.LATEST: []}
        with pytest.raises(OffsetOutOfRange, match="offset 4"):
            _read(topic, start, OffsetReset.FAIL)
    for start in (EARLIEST, StartOffset(4), StartOffset(7), LATEST):
        for reset in OffsetReset:
            assert _read(topic, start, reset) == _read(topic, start, OffsetReset.EARLIEST)


def _read(topic: Topic, start: StartPosition, reset: OffsetReset) -> list[int]:
    return offsets(assemble_messages(topic.read(start, reset=reset), -1))


@pytest.mark.parametrize("reset", list(OffsetReset))
def test_a_reader_whose_messages_are_trimmed_under_it(bench: Workbench, topic: Topic, reset: OffsetReset) -> None:
    reader = topic.reader(reset=reset)
    assert page(reader, ReadLimits(3)) == [0, 1, 2]  # the whole ledger: no row of it remains in memory
    reader.close()
    trimmed(bench, topic, 4)
    if reset is OffsetReset.FAIL:
        with pytest.raises(OffsetOutOfRange):
            page(reader)
    else:
        assert page(reader) == (list(range(4, 12)) if reset is OffsetReset.EARLIEST else [])


def test_a_lost_ledger_is_an_error_that_names_it_and_no_gap(bench: Workbench, topic: Topic) -> None:
    lost = topic.snapshot().ledgers[1]
    store: ObjectStore = bench.store
    store.delete(lost.rows.name)
    reading = topic.messages()
    assert [next(reading).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ObjectMissing, match=lost.rows.name):
        next(reading)


def test_a_lost_segment_likewise(bench: Workbench, topic: Topic) -> None:
    file = bench.files(topic, 6).log
    os.unlink(file)
    reading = topic.messages()
    assert [next(reading).offset for _ in range(6)] == list(range(6))
    with pytest.raises(ObjectMissing, match=file.name):
        next(reading)


def test_the_last_message_is_the_tails(bench: Workbench, topic: Topic) -> None:
    """R6."""
    assert topic.last_message_id() == raw(topic)[-1].message_id
    assert topic.last_message_id(read_compacted=True) == raw(topic)[-1].message_id
    produce(topic, [single(b"l", None)])
    bench.compact(topic)
    live = list(topic.messages(read_compacted=True))[-1]
    assert topic.last_message_id(read_compacted=True) == live.message_id
    assert topic.last_message_id() == raw(topic)[-1].message_id


def test_a_page_is_empty_only_if_there_is_nothing(topic: Topic) -> None:
    """Also when the check the topic that it was read from ended just with the page before."""
    reader = topic.reader(StartOffset(9))
    assert page(reader, ReadLimits(3)) == [9, 10, 11]
    produce(topic, [single(b"m", b"12")])
    assert page(reader) == [12]
    assert page(reader) == []


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(("start", "first"), [("end", 12), ("beyond", 14), ("id", 12), ("time", 12)])
def test_a_start_that_has_not_come_yet_is_waited_for(
    bench: Workbench, topic: Topic, flag: bool, compacted: bool, start: str, first: int
) -> None:
    """With the flag too: what is before it is not given instead."""
    last = raw(topic)[-1].message_id
    behind = MessageId(last.ledger_id, last.entry_id + 1)
    starts: dict[str, StartPosition] = {
        "end": StartOffset(12),
        "beyond": StartOffset(14),
        "id": behind,
        "time": StartTime(NOW + 100),
    }
    if compacted:
        bench.compact(topic)
    reader = topic.reader(starts[start], read_compacted=flag)
    assert page(reader) == page(reader) == []
    produce(topic, [single(b"m", b"new") for _ in range(3)])
    assert page(reader) == list(range(first, 15))
    assert page(reader) == []


def test_a_time_that_the_compacted_view_has_not_reached_begins_at_the_end(bench: Workbench, topic: Topic) -> None:
    """Not behind the horizon, with messages that are older; nor where raw has it, which is superseded."""
    produce(topic, [single(None, b"dropped", NOW + 50)])
    bench.compact(topic)
    produce(topic, [single(b"x", b"13", NOW + 1)])
    reader = topic.reader(StartTime(NOW + 40), read_compacted=True)
    assert page(reader) == []
    produce(topic, [single(b"y", b"14", NOW + 2)])
    assert page(reader) == [14]
