"""The newest messages of several keys at once: the same messages as point reads (T4)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from compactor.run.plan import RunPolicies
from storage.errors import ObjectMissing
from storage.ledger import key_index
from storage.log import segment_tables
from storage.reading.key_lookup import SearchStopped
from storage.reading.newest_offsets import NewestOffset
from storage.topic import Topic
from tests import chunked
from tests.entries import batch, produce, single
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench, content

KEYS = [b"a", b"b", b"c", b"d"]


def check(topic: Topic, first: int = 0) -> None:
    """Compare with a point read of each key; of a deleted key only a deletion, or nothing, may be known."""
    newest = topic.newest_offsets([*KEYS, b"a", b"missing"], first)
    assert newest.keys() == {*KEYS, b"missing"}
    assert newest[b"missing"] is None
    for key in KEYS:
        message, record = topic.newest_message(key), newest[key]
        if message is None:
            assert record is None or record.is_tombstone, key
        elif message.offset >= first:
            assert record == NewestOffset(message.offset, message.is_tombstone), key


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_they_are_the_messages_of_point_reads(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, seed: int, by_event: bool
) -> None:
    """In sealed ledgers and unsealed segments, with deletions and chunks, in offset and in event-time order (P9)."""
    monkeypatch.setattr(key_index, "FENCE_RECORDS", 2)
    draw, topic, chunks = random.Random(seed), bench.topic(), 0
    for _ in range(8):
        keys = draw.choices(KEYS, k=draw.randint(1, 5))
        values = [(key, draw.choice([None, b"1", b"22"])) for key in keys]
        times = [draw.choice([None, draw.randint(1, 9)]) for _ in keys]
        step = draw.randrange(5)
        if step == 0:
            bench.compactor().compact(topic.name, RunPolicies(event_time_order=by_event))
        elif step == 1:
            produce(topic, [batch(*values), single(keys[0], b"3", event_time=times[0])])
        elif step == 2:
            produce(
                topic, [single(key, value, event_time=time) for (key, value), time in zip(values, times, strict=True)]
            )
        elif step == 3:
            topic.log_manager().roll_and_seal(topic.record)
            chunks += 1
            chunked.append(bench, topic, chunked.whole(f"u{chunks}", keys[0], b"1", b"2")[: draw.randint(1, 2)])
        else:
            rows = [(key, value, time) for (key, value), time in zip(values, times, strict=True)]
            bench.append(topic, [content(*rows, time="event_time")])
    for first in range(0, topic.snapshot_reader().end + 1, 3):
        check(topic, first)


def test_a_search_that_ends_early_knows_less_and_nothing_wrong(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"))])
    bench.append(topic, [content((b"b", b"2"))])
    for reads in range(4):
        left = iter([False] * reads)
        newest = topic.newest_offsets([b"a", b"b"], 0, lambda left=left: next(left, True))
        expected = {b"b": NewestOffset(2, False), b"a": NewestOffset(0, False)}
        assert newest == dict(list(expected.items())[: min(reads, 2)])


def test_the_mark_of_a_removed_deletion_still_names_it(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"))])
    bench.compact(topic)
    bench.append(topic, [content((b"a", None))])
    bench.compact(topic)
    assert topic.newest_offsets([b"a", b"b"], 0) == {b"a": NewestOffset(2, True), b"b": NewestOffset(1, False)}


def stop_after(checks: int) -> Callable[[], bool]:
    """Return a deadline that is over after some checks."""
    left = iter(range(checks))
    return lambda: next(left, None) is None


def test_a_search_that_stops_within_a_segment_knows_none_of_its_keys(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a segment ascend: a later one of the key may be newer."""
    monkeypatch.setattr(segment_tables, "TABLE_BYTES", 1)
    topic = bench.topic()
    produce(topic, [single(b"a", b"1"), single(b"b", b"1"), single(b"a", b"2")])
    answers = []
    for checks in range(5):
        newest = topic.newest_offsets([b"a"], 0, stop_after(checks))
        try:
            message = topic.newest_message(b"a", should_stop=stop_after(checks))
        except SearchStopped:
            assert newest == {}
            continue
        assert message is not None
        answers.append((message.payload, newest))
    assert answers == [(b"2", {b"a": NewestOffset(2, False)})]


def test_a_search_for_the_begin_of_a_chunked_message_stops_within_a_segment(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older segment is read only for chunks: the newer one has a message of the key."""
    monkeypatch.setattr(segment_tables, "TABLE_BYTES", 1)
    topic = bench.topic()
    first, last = (
        entry(metadata(publish_time=1, partition_key=b"a", uuid="u", num_chunks_from_msg=2, chunk_id=number), b"x")
        for number in range(2)
    )
    produce(topic, [first, *(single(b"b", b"1") for _ in range(20))])
    topic.log_manager().roll(topic.record)
    produce(topic, [last, single(b"a", b"1")])
    assert topic.newest_offsets([b"a"], 0, stop_after(20)) == {}, "a check before each table of the older segment"
    assert topic.newest_offsets([b"a"], 0) == {b"a": NewestOffset(22, False)}


def test_a_search_that_is_stopped_after_a_loss_names_it(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic changes while an object is missing: the second search has the time that the first one left."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"))])
    bench.store.delete(topic.snapshot().ledgers[0].index.name)

    def stop() -> bool:
        stopped = len(topic.snapshot().ledgers) > 1
        if not stopped:
            bench.append(topic, [content((b"b", b"0"))])
        return stopped

    with pytest.raises(SearchStopped, match="before, it met an object that is lost or was replaced") as raised:
        topic.newest_message(b"a", should_stop=stop)
    assert isinstance(raised.value.__cause__, ObjectMissing)
    with pytest.raises(SearchStopped) as raised:
        topic.newest_message(b"a", should_stop=lambda: True)
    assert raised.value.__cause__ is None
