"""A compacted reader that connects again: what it has delivered is known by its start alone (semantics.md R7)."""

from __future__ import annotations

import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from storage.errors import ObjectMissing, StateMayBeStale
from storage.ledger.manifest import Manifest
from storage.metadata.records import CompactedLedgerRecord
from storage.model import MessageId
from storage.positions import StartOffset, StartPosition
from storage.reading.compacted_reader import PIN_TTL_MS
from storage.reading.snapshot_reader import SnapshotReader
from storage.topic import Topic
from tests.entries import produce, single
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench, compacted_ledger, content, ids, raw


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
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
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


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("has_polled", [True, False])
def test_deletes_after_an_overwritten_message_are_not_missed(bench: Workbench, trims: bool, has_polled: bool) -> None:
    """Its last message was replaced in a compacted ledger that dropped nothing; a later one drops a delete."""
    topic = bench.topic("replaced")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"a", b"2"))])
    bench.compact(topic)
    first = ids(raw(topic))[0]
    trim(bench, topic)
    reader = topic.entry_reader(entry_id(first), read_compacted=True, resumes=True)
    offsets: list[int] = []

    def read_on() -> None:
        while entries := reader.read():
            offsets.extend(entry.offset for entry in entries)

    if has_polled:
        read_on()
    bench.append(topic, [content((b"a", None), (b"c", b"4"))])
    bench.compact(topic)
    if trims:
        trim(bench, topic)
        with pytest.raises(StateMayBeStale, match="generation 2 lacks deletions"):
            read_on()
    else:
        read_on()
    assert offsets == ([1, 2] if trims else [1, 2, 3, 4])
    reader.close()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_compacted_ledger_that_is_gone_when_the_reader_opens_hides_no_delete(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """Its last message was replaced and trimmed, so only the compacted ledger knows where it continues."""
    topic = bench.topic("replaced")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"a", b"2"))])
    bench.compact(topic)
    first = ids(raw(topic))[0]
    trim(bench, topic)

    def replace_or_lose() -> None:
        if not is_replaced:
            bench.store.delete(compacted_ledger(topic).manifest.name)
            return
        bench.append(topic, [content((b"a", None), (b"c", b"4"))])
        bench.compact(topic)
        trim(bench, topic)
        bench.advance(GRACE_MS + PIN_TTL_MS)
        assert GarbageCollector(bench).collect(topic.record).compacted_ledgers == 1

    before_reads = iter([lambda: None, replace_or_lose])  # the first read searches for the start
    manifest = SnapshotReader.manifest

    def interrupted(reader: SnapshotReader, record: CompactedLedgerRecord) -> Manifest:
        next(before_reads, lambda: None)()
        return manifest(reader, record)

    monkeypatch.setattr(SnapshotReader, "manifest", interrupted)
    error = StateMayBeStale if is_replaced else ObjectMissing
    with pytest.raises(error):
        topic.entry_reader(entry_id(first), read_compacted=True, resumes=True)


@pytest.mark.parametrize("has_polled", [True, False])
def test_deletes_that_were_dropped_while_a_resumed_reader_waited_are_reported(
    bench: Workbench, has_polled: bool
) -> None:
    """Its last message was a delete, and no raw message was left when it connected again."""
    topic = bench.topic("waiting")
    bench.append(topic, [content((b"a", b"0"), (b"b", b"1"), (b"a", None))])
    bench.compact(topic)
    last = ids(raw(topic))[-1]
    trim(bench, topic)
    reader = topic.entry_reader(entry_id(last), read_compacted=True, resumes=True)
    if has_polled:
        assert reader.read() == []
    bench.append(topic, [content((b"b", None), (b"c", b"4"))])
    bench.compact(topic)
    trim(bench, topic)
    with pytest.raises(StateMayBeStale, match="generation 2 lacks deletions"):
        reader.read()
    reader.close()


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
        produce(topic, [single(b"e", b"5")])
    Retention(bench).trim(topic.record, 4, force=True)
    assert resumed(topic, second) == [1, 2, 3, *expected]


def test_the_order_of_the_compacted_ledger_is_known(bench: Workbench) -> None:
    topic = bench.topic("by-event")
    by_event = RunPolicies(event_time_order=True)
    produce(topic, [single(b"a", b"0", event_time=9), single(b"b", b"1", event_time=9)])
    bench.compactor().compact(topic.name, by_event)
    reader = topic.entry_reader(StartOffset(2), read_compacted=True, resumes=True)
    produce(topic, [single(b"c", b"2", event_time=9), single(b"d", b"3", event_time=9)])
    bench.compactor().compact(topic.name, by_event)
    trim(bench, topic)
    offsets = [each.offset for _ in range(2) for each in reader.read()]
    assert offsets == [2, 3]
    reader.close()


def test_a_start_after_the_end_waits_for_its_message(bench: Workbench) -> None:
    topic = bench.topic("ahead")
    produce(topic, [single(b"a", b"0"), single(b"b", b"1")])
    last = ids(raw(topic))[-1]
    start = MessageId(last.ledger_id, last.entry_id + 3)
    reader = topic.entry_reader(start, read_compacted=True, resumes=True)
    produce(topic, [single(b"c", b"2"), single(b"d", b"3"), single(b"e", b"4")])
    assert [each.offset for each in reader.read()] == [4]
    reader.close()


def entry_id(message_id: MessageId) -> MessageId:
    return MessageId(message_id.ledger_id, message_id.entry_id)
