"""A compacted reader that connects again: what it has delivered is known by its start alone (semantics.md R7)."""

from __future__ import annotations

import pytest

from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from storage.errors import StateMayBeStale
from storage.model import MessageId
from storage.positions import StartOffset, StartPosition
from storage.topic import Topic
from tests.entries import one, produce
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench, content, ids, raw


def resumed(topic: Topic, start: StartPosition) -> list[int]:
    """Return the offsets that it receives."""
    reader = topic.entry_reader(start, read_compacted=True, resumes=True)
    try:
        offsets: list[int] = []
        while entries := reader.read():
            offsets += [entry.offset for entry in entries]
        return offsets
    finally:
        reader.close()


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """a@0 b@1 c@2 -a@3 d@4, of which a compaction has dropped the delete of a; then e@5."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"c", b"2"), (b"a", None), (b"d", b"4"))])
    bench.compact(topic)
    bench.append(topic, [content((b"e", b"5"))])
    assert bench.manifest(topic).dropped_to == 3
    return topic


def trim(bench: Workbench, topic: Topic) -> None:
    """Remove raw up to the horizon."""
    snapshot = topic.snapshot()
    assert snapshot.horizon is not None
    Retention(bench).trim(topic.record, snapshot.horizon.offset + 1, force=True)


def test_deletes_that_a_compaction_dropped_are_read_from_raw(bench: Workbench, topic: Topic) -> None:
    known = ids(raw(topic))
    assert resumed(topic, entry_id(known[2])) == [2, 3, 4, 5]
    assert resumed(topic, entry_id(known[4])) == [4, 5], "nothing was dropped after it: compacted"
    assert resumed(topic, StartOffset(1)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("resumes_at", ["after the horizon", "at the end", "before the first compaction"])
def test_a_compaction_between_the_opening_and_the_first_read_takes_no_delete(bench: Workbench, resumes_at: str) -> None:
    topic = bench.topic("raced")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"))])
    if resumes_at != "before the first compaction":
        bench.compact(topic)
    last = ids(raw(topic))[-1]
    start: StartPosition = StartOffset(2)
    if resumes_at == "at the end":
        start = MessageId(last.ledger_id, last.entry_id + 1)
    reader = topic.entry_reader(start, read_compacted=True, resumes=True)
    bench.append(topic, [content((b"a", None), (b"c", b"3"))])
    bench.compact(topic)
    assert bench.manifest(topic).dropped_to == 2
    assert [entry.offset for entry in reader.read()] == [2, 3]
    reader.close()


def test_a_compaction_and_a_trim_before_the_first_read_are_reported(bench: Workbench) -> None:
    topic = bench.topic("trimmed")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"))])
    bench.compact(topic)
    reader = topic.entry_reader(StartOffset(2), read_compacted=True, resumes=True)
    bench.append(topic, [content((b"a", None), (b"c", b"3"))])
    bench.compact(topic)
    trim(bench, topic)
    with pytest.raises(StateMayBeStale, match="generation 2 lacks deletions"):
        reader.read()
    reader.close()


def test_deletes_that_raw_has_lost_too_are_reported(bench: Workbench, topic: Topic) -> None:
    known = ids(raw(topic))
    trim(bench, topic)
    for start in (entry_id(known[1]), StartOffset(1)):
        with pytest.raises(StateMayBeStale, match="trimmed, and generation 1 lacks deletions"):
            resumed(topic, start)
    assert resumed(topic, StartOffset(4)) == [4, 5]
    assert resumed(topic, entry_id(known[4])) == [4, 5], "it is the last one of the compacted ledger"
    assert resumed(topic, entry_id(known[5])) == [5]


def test_a_compacted_ledger_that_dropped_nothing_is_read(bench: Workbench) -> None:
    topic = bench.topic("whole")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"a", b"2"))])
    bench.compact(topic)
    known = ids(raw(topic))
    trim(bench, topic)
    assert resumed(topic, entry_id(known[0])) == [1, 2]


def test_a_reader_that_has_read_up_to_the_horizon_misses_nothing(bench: Workbench) -> None:
    """Its last message is a delete, which is nowhere any more."""
    topic = bench.topic("ended")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"a", None))])
    bench.compact(topic)
    known = ids(raw(topic))
    trim(bench, topic)
    assert resumed(topic, entry_id(known[2])) == []


@pytest.mark.parametrize(("appended", "expected"), [("marker", []), ("marker and message", [5])])
def test_raw_that_begins_with_a_marker_hides_no_message_of_the_compacted_ledger(
    bench: Workbench, appended: str, expected: list[int]
) -> None:
    topic = bench.topic("marked")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"c", b"2"), (b"a", b"3"))])
    bench.compact(topic)
    second = entry_id(ids(raw(topic))[1])
    produce(topic, [entry(metadata(marker_type=10), b"m")])
    if appended != "marker":
        produce(topic, [one(b"e", b"5")])
    Retention(bench).trim(topic.record, 4, force=True)
    assert resumed(topic, second) == [1, 2, 3, *expected]


def test_the_order_of_the_compacted_ledger_is_known(bench: Workbench) -> None:
    topic = bench.topic("by-event")
    by_event = RunPolicies(event_time_order=True)
    produce(topic, [one(b"a", b"0", event_time=9), one(b"b", b"1", event_time=9)])
    bench.compactor().compact(topic.name, by_event)
    reader = topic.entry_reader(StartOffset(2), read_compacted=True, resumes=True)
    produce(topic, [one(b"c", b"2", event_time=9), one(b"d", b"3", event_time=9)])
    bench.compactor().compact(topic.name, by_event)
    trim(bench, topic)
    offsets = [each.offset for _ in range(2) for each in reader.read()]
    assert offsets == [2, 3]
    reader.close()


def test_a_start_after_the_end_waits_for_its_message(bench: Workbench) -> None:
    topic = bench.topic("ahead")
    produce(topic, [one(b"a", b"0"), one(b"b", b"1")])
    last = ids(raw(topic))[-1]
    start = MessageId(last.ledger_id, last.entry_id + 3)
    reader = topic.entry_reader(start, read_compacted=True, resumes=True)
    produce(topic, [one(b"c", b"2"), one(b"d", b"3"), one(b"e", b"4")])
    assert [each.offset for each in reader.read()] == [4]
    reader.close()


def entry_id(message_id: MessageId) -> MessageId:
    return MessageId(message_id.ledger_id, message_id.entry_id)
