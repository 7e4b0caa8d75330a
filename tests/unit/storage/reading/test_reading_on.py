"""Readers that continue: after an error, after a trim, behind a compaction that took what they had not read."""

from __future__ import annotations

import pytest

from compactor.maintenance.retention import Retention
from storage.entries.chunk_assembler import assemble_messages
from storage.environment import Environment
from storage.errors import ObjectMissing, OffsetOutOfRange, StateMayBeStale, Unavailable
from storage.ledger.manifest import read_manifest
from storage.metadata.policy_store import topic_scope
from storage.model import EARLIEST, LATEST, MessageId
from storage.positions import OffsetReset, StartOffset, StartTime
from storage.reading.page_reader import PageReader, ReadLimits
from storage.topic import Topic
from tests.entries import NOW, produce, single
from tests.faults.faulty_store import Fault, FaultyStore, Kind, Script
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench, content, raw, view


def imported(bench: Workbench, topic: Topic, count: int, first: int = 0) -> None:
    bench.append(topic, [content(*((b"k%d" % number, b"v%d" % number) for number in range(first, first + count)))])


def cleanup(bench: Workbench, topic: Topic, policy: str) -> Retention:
    bench.metadata.policies.change([topic_scope(topic.record)], {"cleanup.policy": policy})
    return Retention(bench)


def page(reader: PageReader, limits: ReadLimits = ReadLimits()) -> list[int]:  # noqa: B008
    return [message.offset for message in assemble_messages(iter(reader.poll(limits)), -1)]


def failing(bench: Workbench, topic: Topic, nth: int) -> Topic:
    """The topic over a store of which one read fails."""
    store = FaultyStore(bench.store, Script([Fault(Kind.FAIL, "get", nth=nth)]))
    return Topic(Environment(bench.metadata, store, bench.clock, bench.log), topic.record)


@pytest.mark.slow
@pytest.mark.parametrize("flag", [False, True])
def test_an_error_costs_a_reader_nothing(bench: Workbench, topic: Topic, flag: bool) -> None:
    """Whichever read fails, what was gathered is given, and the next page continues there."""
    imported(bench, topic, 3)
    imported(bench, topic, 3, 3)
    if flag:
        bench.compact(topic)
        cleanup(bench, topic, "compact").trim(topic.record)
        imported(bench, topic, 2, 6)
    expected = [m.offset for m in topic.messages(read_compacted=flag)]
    failures = 0
    for nth in range(1, 30):
        reader = failing(bench, topic, nth).reader(read_compacted=flag)
        offsets: list[int] = []
        for _ in range(2 * len(expected)):
            try:
                offsets += page(reader, ReadLimits(messages=2))
            except Unavailable:
                failures += 1
        assert offsets == expected, nth
        assert bench.metadata.pins.gc_snapshot(topic.record.id).pins == ()
    assert failures > 1


def test_an_error_makes_no_generation_another_one(bench: Workbench, topic: Topic) -> None:
    """R7: what deletions a compacted ledger had lost before it was entered, its reader has not missed."""
    keys = [b"key-%02d" % number for number in range(20)]
    bench.append(topic, [content(*((key, b"first" * 9) for key in keys), (b"gone", b"1"), (b"gone", None))])
    bench.compact(topic)
    compacted = topic.snapshot().compacted
    assert compacted is not None
    last = read_manifest(bench.store, compacted.manifest).parts[-1].rows.stored.name
    rows = bench.store.get(last)
    bench.store.delete(last)
    reader = topic.reader(read_compacted=True)
    offsets = page(reader)
    assert 0 < len(offsets) < len(keys)
    for _ in range(2):
        with pytest.raises(ObjectMissing, match=last):
            page(reader)
    bench.store.put(last, rows)
    assert offsets + page(reader) == list(range(len(keys)))


def test_a_page_before_an_error_is_given_and_the_error_comes_with_the_next(bench: Workbench, topic: Topic) -> None:
    imported(bench, topic, 3)
    imported(bench, topic, 3, 3)
    lost = topic.snapshot().ledgers[1].rows.name
    bench.store.delete(lost)
    reader = topic.reader()
    assert page(reader) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ObjectMissing, match=lost):
            page(reader)


def test_a_reader_from_latest_gets_what_a_compacted_ledger_kept_of_what_came(bench: Workbench, topic: Topic) -> None:
    """It has its place once it has looked: what came behind it and was trimmed is not passed over."""
    reader = topic.reader(LATEST, read_compacted=True)
    assert page(reader) == []
    imported(bench, topic, 3)
    bench.compact(topic)
    imported(bench, topic, 2, 3)
    cleanup(bench, topic, "compact").trim(topic.record)
    assert [message.offset for message in topic.messages()] == [3, 4]
    assert page(reader) == [0, 1, 2, 3, 4]


def test_a_reader_that_is_reset_to_latest_goes_on_there(bench: Workbench, topic: Topic) -> None:
    imported(bench, topic, 10)
    cleanup(bench, topic, "delete").trim(topic.record, 5)
    reader = topic.reader(StartOffset(2), reset=OffsetReset.LATEST)
    assert page(reader) == []
    imported(bench, topic, 3, 10)
    assert page(reader) == [10, 11, 12]


def test_an_id_below_the_start_is_out_of_range_also_in_the_first_ledger(bench: Workbench, topic: Topic) -> None:
    imported(bench, topic, 10)
    ids = [m.message_id for m in raw(topic)]
    retention = cleanup(bench, topic, "delete")
    retention.trim(topic.record, 5)
    for lost in (ids[0], ids[4]):
        with pytest.raises(OffsetOutOfRange):
            list(topic.read(lost, reset=OffsetReset.FAIL))
    assert len(list(assemble_messages(topic.read(ids[5], reset=OffsetReset.FAIL), -1))) == 5
    retention.trim(topic.record, 10)
    for lost in (ids[0], ids[9]):
        with pytest.raises(OffsetOutOfRange):
            list(topic.read(lost, reset=OffsetReset.FAIL))
    assert list(topic.read(EARLIEST, reset=OffsetReset.FAIL)) == []


def test_a_key_below_the_start_has_no_value(bench: Workbench, topic: Topic) -> None:
    imported(bench, topic, 10)
    produce(topic, [single(b"tail", b"1"), single(b"tail-2", b"2")])
    cleanup(bench, topic, "delete").trim(topic.record, 5)
    assert [topic.newest_value(b"k%d" % number) is not None for number in range(10)] == [False] * 5 + [True] * 5
    assert topic.newest_value(b"tail") is not None


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("last", ["marker", "undecodable"])
def test_the_last_message_id_is_of_a_message_that_is_delivered(topic: Topic, last: str, sealed: bool) -> None:
    """R6 (Pulsar #16205, #18808, #21951): a reader that waits for it must not wait forever."""
    fields = {"marker_type": 10} if last == "marker" else {"num_messages_in_batch": 3}
    produce(topic, [single(b"a", b"1"), entry(metadata(**fields), b"\xff" * 40)])
    if sealed:
        topic.log_manager().roll_and_seal(topic.record)
    assert topic.last_message_id() == raw(topic)[-1].message_id
    produce(topic, [entry(metadata(marker_type=10), b"m")] * 2)
    assert topic.last_message_id() == raw(topic)[-1].message_id


def test_a_topic_of_markers_has_no_last_message(topic: Topic) -> None:
    produce(topic, [entry(metadata(marker_type=10), b"m")])
    assert topic.last_message_id() == EARLIEST == MessageId(-1, -1)


def test_what_was_sealed_and_swept_between_look_and_read_is_looked_for_again(bench: Workbench, topic: Topic) -> None:
    bench.metadata.policies.change([topic_scope(topic.record)], {"file.delete.delay.ms": 0})
    produce(topic, [single(b"a", b"1", NOW + 5)])
    stale = topic.snapshot()
    topic.log_manager().roll_and_seal(topic.record)
    topic.log_manager().remove_sealed_files()
    seen = [stale]
    now = topic.snapshot
    topic.snapshot = lambda: seen.pop() if seen else now()  # type: ignore[method-assign]
    assert topic.last_message_id() == MessageId(stale.segments[0].ledger_id, 0)
    for flag in (False, True):
        seen.append(stale)
        assert page(topic.reader(StartTime(NOW + 1), read_compacted=flag)) == [0]


def behind(bench: Workbench, topic: Topic) -> tuple[PageReader, list[int]]:
    """A compacted reader that is raw and behind, while `compact` takes the raw messages that it has not read."""
    retention = cleanup(bench, topic, "compact")
    answer = {0: b"J", 3: b"L", 4: b"K", 5: b"M", 7: b"J", 8: b"K", 12: b"L"}
    entries = [single(answer.get(offset), b"%d" % offset) for offset in range(13)]
    produce(topic, entries[:4])
    bench.compact(topic)
    reader = topic.reader(read_compacted=True)
    offsets = page(reader)
    produce(topic, entries[4:])
    bench.compact(topic)
    retention.trim(topic.record)
    assert topic.snapshot_reader().first_offset == 13
    return reader, offsets


def test_a_compacted_reader_whose_raw_goes_loses_no_newest_value(bench: Workbench, topic: Topic) -> None:
    """R7, T3: it continues in the compacted ledger that stands for what it has not read."""
    reader, offsets = behind(bench, topic)
    produce(topic, [single(b"Z", b"13")])
    offsets += page(reader)
    assert offsets == [0, 3, 5, 7, 8, 12, 13]
    produce(topic, [single(b"Z", b"14")])
    bench.compact(topic)
    assert page(reader) == [14], "raw lasts: it does not jump"
    assert bench.metadata.pins.gc_snapshot(topic.record.id).pins == ()


@pytest.mark.parametrize("start", [EARLIEST, StartOffset(0)])
def test_a_compacted_reader_of_an_empty_topic_gets_what_was_compacted_and_trimmed_since(
    bench: Workbench, start: MessageId | StartOffset
) -> None:
    """R7: it has found nothing yet, so what serves now stands for all that came."""
    topic = bench.topic()
    retention = cleanup(bench, topic, "compact")
    reader = topic.reader(start, read_compacted=True)
    assert page(reader) == []
    produce(topic, [single(b"a", b"0"), single(b"b", b"1")])
    bench.compact(topic)
    retention.trim(topic.record)
    produce(topic, [single(b"c", b"2")])
    assert raw(topic)[0].offset == 2
    assert page(reader) == [0, 1, 2]


def test_a_deletion_that_went_with_the_raw_messages_is_told(bench: Workbench, topic: Topic) -> None:
    """R7: its tombstone is in neither of the two any more."""
    retention = cleanup(bench, topic, "compact")
    produce(topic, [single(b"a", b"1"), single(b"b", b"1")])
    bench.compact(topic)
    reader = topic.reader(read_compacted=True)
    assert page(reader) == [0, 1]
    produce(topic, [single(b"a", None), single(b"b", b"2")])
    bench.compact(topic)
    retention.trim(topic.record)
    for _ in range(2):
        with pytest.raises(StateMayBeStale, match="read again from earliest"):
            page(reader)


def test_one_read_goes_on_likewise(bench: Workbench, topic: Topic) -> None:
    retention = cleanup(bench, topic, "compact")
    imported(bench, topic, 3)
    bench.compact(topic)
    for first in (3, 6):
        bench.append(
            topic, [content(*((b"k%d" % (number % 4), b"w%d" % number) for number in range(first, first + 3)))]
        )
    everything = raw(topic)
    reading = topic.messages(read_compacted=True)
    messages = [next(reading) for _ in range(3)]
    bench.compact(topic)
    retention.trim(topic.record)
    for ledger in bench.metadata.trimming.trimmed_ledgers(topic.record.id):
        bench.store.delete(ledger.rows.name)  # long enough ago
    messages += reading
    assert view(messages) == view(everything)
    assert [m.offset for m in messages] == sorted({m.offset for m in messages})
