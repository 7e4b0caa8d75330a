"""Worked examples of Kafka's log and its cleaner, on this project's: they must come out the same, to the offset.

The page (../shared/docs/worked-examples.md) has twelve; 7 to 10 are in
tests/unit/compactor/maintenance/test_retention.py, and 12 is in test_worked_log_examples.py. Messages are produced
through the log, one entry each, so that a topic's offsets are those of the page. Offsets of which an example says
nothing hold messages without a key, which no compaction keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from compactor.maintenance.retention import Retention
from compactor.run.layout import lay_out
from compactor.run.plan import (
    HashRangeStatistics,
    RangeTaskResult,
    RowSet,
    RunPlan,
    RunPolicies,
    Sizing,
    Source,
    expected_totals,
    row_sets_by_source,
)
from compactor.scheduling.backlog import Backlog, BacklogReader
from compactor.scheduling.due import cause_of, due_topics
from storage.entries.chunk_assembler import assemble_messages
from storage.ledger.hashing import Xxh3KeyHasher
from storage.log.directory import LogDirectory
from storage.metadata.policy_store import topic_scope
from storage.model import Message, RowsObject, StoredObject
from storage.objects.interface import StoreLocation
from storage.options.resolution import CompactionTriggers
from storage.positions import StartOffset
from storage.reading.page_reader import PageReader, ReadLimits
from storage.topic import Topic
from tests.entries import produce, single
from tests.workbench import Workbench, all_ids, compacted_only, raw, view

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
GB = 1 << 30
Content = tuple[bytes | None, bytes | None]


def say(topic: Topic, contents: Mapping[int, Content], end: int) -> None:
    """Produce up to offset `end`: the content of each offset, or a message without a key."""
    first = len(raw(topic))
    produce(topic, [single(*contents.get(offset, (None, b"-"))) for offset in range(first, end)])
    assert [message.offset for message in raw(topic)] == list(range(end))


def valued(keys: Mapping[int, bytes]) -> dict[int, Content]:
    """Values that say where they were written."""
    return {offset: (key, b"%d" % offset) for offset, key in keys.items()}


def roll_and_seal(topic: Topic) -> None:
    """A new open segment begins here; what is before it is in ledgers."""
    topic.log_manager().roll(topic.record)
    for _ in topic.log_manager().seal(topic.record):
        pass


def at(delivered: list[Message]) -> list[int]:
    return [message.offset for message in delivered]


def kept(topic: Topic) -> dict[bytes | None, int]:
    """The compacted ledger: the offset of each key's message."""
    survivors = compacted_only(topic)
    assert len({message.key for message in survivors}) == len(survivors)
    return {message.key: message.offset for message in survivors}


def page(reader: PageReader, number: int | None = None) -> list[Message]:
    return list(assemble_messages(iter(reader.poll(ReadLimits(number))), -1))


# --- 1


def test_worked_example_1_newest_per_key(bench: Workbench, topic: Topic) -> None:
    say(topic, valued({0: b"K1", 2: b"K1", 3: b"K1", 1: b"K2", 5: b"K2", 9: b"K2"}), 10)
    bench.compact(topic)
    assert kept(topic) == {b"K1": 3, b"K2": 9}
    assert [message.payload for message in compacted_only(topic)] == [b"3", b"9"]


@pytest.mark.parametrize("runs", [[], [16], [81], [100], [16, 81, 100, 101]], ids=str)
def test_worked_example_1_with_the_map(bench: Workbench, topic: Topic, runs: list[int]) -> None:
    """The map {K1→100, K2→110}: K1's records at 15, 80 and 99 are not copied, wherever runs have ended before."""
    answer = valued({15: b"K1", 80: b"K1", 99: b"K1", 100: b"K1", 110: b"K2"})
    for end in runs:
        say(topic, answer, end)
        bench.compact(topic)
        assert kept(topic) == {b"K1": max(offset for offset in answer if offset < end)}
    say(topic, answer, 111)
    bench.compact(topic)
    assert kept(topic) == {b"K1": 100, b"K2": 110}


# --- 2


def test_worked_example_2_cleaner_point_head_and_tail(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    """A run on another machine than the open segment's takes what is sealed: as Kafka's, it ends where that begins."""
    a, b, c, d, e = b"a", b"b", b"c", b"d", b"e"
    answer = valued({0: a, 1: b, 2: a, 3: c, 4: b, 5: b, 6: d, 7: e, 9: c, 10: d, 11: e, 13: d, 14: d, 15: e, 17: e})
    answer |= valued({20: b"f", 22: a, 25: b"f", 27: e})
    cleaner = replace(bench, log=LogDirectory(tmp_path / "another machine's")).compactor()

    def run_with_open_segment_at(begin: int) -> None:
        say(topic, answer, begin)
        roll_and_seal(topic)
        say(topic, answer, begin + 2)
        (segment,) = topic.snapshot().segments
        assert segment.first_offset == begin
        before = raw(topic)
        cleaner.compact(topic.name, RunPolicies())
        horizon = topic.snapshot().horizon
        assert horizon is not None
        assert horizon.offset + 1 == begin, "the cleaner point"
        assert raw(topic) == before

    run_with_open_segment_at(13)
    assert at(compacted_only(topic)) == [2, 5, 9, 10, 11]
    run_with_open_segment_at(20)
    tail = [2, 5, 9, 14, 17]
    assert at(compacted_only(topic)) == tail, "sparse, offsets unchanged"
    assert at(list(topic.messages(read_compacted=True))) == [*tail, 20, 21], "and then the head"
    for start in (15, 16, 17):
        assert at(list(topic.messages(StartOffset(start), read_compacted=True))) == [17, 20, 21]
    run_with_open_segment_at(28)
    assert at(compacted_only(topic)) == [5, 9, 14, 22, 25, 27]


# --- 3


def behind_and_in_step(bench: Workbench, topic: Topic) -> dict[int, Content]:
    """`compact` in force: raw goes as soon as it is compacted. K at 4 is superseded by 8, at 5 nothing is."""
    bench.metadata.policies.change([topic_scope(topic.record)], {"cleanup.policy": "compact"})
    return valued({0: b"J", 3: b"L", 4: b"K", 5: b"M", 7: b"J", 8: b"K", 12: b"L", 13: b"K", 15: b"M", 16: b"N"})


def compact_and_trim(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    Retention(bench).trim(topic.record)
    assert topic.snapshot().ledgers == (), "raw is gone"


def test_worked_example_3_a_reader_behind(bench: Workbench, topic: Topic) -> None:
    """It asks for 4 and gets 5; what it misses was superseded, and it ends with the newest value of every key."""
    answer = behind_and_in_step(bench, topic)
    say(topic, answer, 13)
    everything = raw(topic)
    reader = topic.reader(read_compacted=True)
    read = page(reader, 4)
    assert at(read) == [0, 1, 2, 3]
    reader.close()
    compact_and_trim(bench, topic)

    reader = topic.reader(StartOffset(read[-1].offset + 1), read_compacted=True)
    after = page(reader)
    assert at(after) == [5, 7, 8, 12], "4 is gone, and so is all that has no key"
    assert view([*read, *after]) == view(everything)

    produce(topic, [single(*answer.get(offset, (None, b"-"))) for offset in range(13, 17)])
    head = raw(topic)
    assert at(head) == [13, 14, 15, 16]
    assert page(reader) == head
    assert view([*read, *after, *head]) == view([*everything, *head])


def test_worked_example_3_a_reader_in_step(bench: Workbench, topic: Topic) -> None:
    """It is past the new head's start before each run ends, and misses nothing, ever."""
    answer = behind_and_in_step(bench, topic)
    reader = topic.reader(read_compacted=True)
    read: list[Message] = []
    written: list[Message] = []
    for end in (4, 9, 13, 17):
        produce(topic, [single(*answer.get(offset, (None, b"-"))) for offset in range(len(written), end)])
        written += [message for message in raw(topic) if message.offset >= len(written)]
        read += page(reader)
        compact_and_trim(bench, topic)
        assert at(read) == list(range(end)), "also what the run has superseded"
    assert read == written
    assert view(read) == view(compacted_only(topic))


# --- 4


def clock_shows(bench: Workbench, time_of_day: str) -> None:
    """Let the clock continue to that time of day."""
    hours, minutes = map(int, time_of_day.split(":"))
    bench.advance((hours * HOUR + minutes * MINUTE - bench.clock.now_ms()) % DAY)


def one_hour_run(bench: Workbench, topic: Topic) -> list[Message]:
    """A run that keeps tombstones for one hour; the compacted ledger after it."""
    bench.compactor().compact(topic.name, RunPolicies(tombstone_retention_ms=HOUR))
    return compacted_only(topic)


def produced_at(bench: Workbench, topic: Topic, time_of_day: str, key: bytes, payload: bytes | None) -> None:
    clock_shows(bench, time_of_day)
    produce(topic, [single(key, payload, bench.clock.now_ms())])


@pytest.fixture
def kept_since_7_40(bench: Workbench, topic: Topic) -> Topic:
    """K has a value, at 6:35 a tombstone, at offset 1, and the run of 7:40 was the first to keep it."""
    produced_at(bench, topic, "6:00", b"K", b"value")
    produced_at(bench, topic, "6:35", b"K", None)
    produced_at(bench, topic, "6:35", b"L", b"value")
    clock_shows(bench, "7:40")
    assert at(one_hour_run(bench, topic)) == [1, 2]
    return topic


@pytest.mark.parametrize("busy", [False, True], ids=["nothing new", "new messages"])
def test_worked_example_4_tombstones(bench: Workbench, kept_since_7_40: Topic, busy: bool) -> None:
    """T1: its horizon is 8:40, an hour after the first run that kept it, not after it was written."""
    for time_of_day, stays in (("8:10", True), ("8:39", True), ("8:41", False)):
        clock_shows(bench, time_of_day)
        if busy:
            produce(kept_since_7_40, [single(b"other", time_of_day.encode())])
        assert (1 in at(one_hour_run(bench, kept_since_7_40))) is stays, time_of_day
    assert {message.key for message in compacted_only(kept_since_7_40)} >= {b"L"}


def test_worked_example_4_the_horizon_is_to_the_millisecond(bench: Workbench, kept_since_7_40: Topic) -> None:
    clock_shows(bench, "8:40")
    bench.advance(-1)
    assert at(one_hour_run(bench, kept_since_7_40)) == [1, 2]
    bench.advance(1)
    assert at(one_hour_run(bench, kept_since_7_40)) == [2]


def test_worked_example_4_a_reader_that_began_before_sees_the_delete(bench: Workbench, kept_since_7_40: Topic) -> None:
    topic = kept_since_7_40
    began = topic.messages(read_compacted=True)
    deleted = next(began)
    clock_shows(bench, "8:41")
    assert at(one_hour_run(bench, topic)) == [2]
    assert (deleted.key, deleted.payload) == (b"K", None)
    assert at(list(began)) == [2]
    assert at(list(topic.messages(read_compacted=True))) == [2], "one that begins now does not"


def test_worked_example_4_a_later_value_removes_the_tombstone_at_once(bench: Workbench, kept_since_7_40: Topic) -> None:
    produced_at(bench, kept_since_7_40, "7:41", b"K", b"again")
    assert at(one_hour_run(bench, kept_since_7_40)) == [2, 3]


def test_worked_example_4_without_retention_it_goes_with_the_first_run(bench: Workbench, topic: Topic) -> None:
    """Pulsar's way, and the default."""
    produced_at(bench, topic, "6:00", b"K", b"value")
    produced_at(bench, topic, "6:35", b"K", None)
    produced_at(bench, topic, "6:35", b"L", b"value")
    bench.compact(topic)
    assert at(compacted_only(topic)) == [2]


# --- 5


def test_worked_example_5_grouping() -> None:
    """Six pieces of which much is dead: fewer come out, in order, of neighbours only, none above the limit.

    Kafka fills one group after the other, to [0.4 0.4] [0.3 0.7] [0.3] [1]: 0.8, 1, 0.3 and 1 GB. Here all six are
    rewritten, so they are one stretch, which is cut into parts of equal cost
    (docs/decisions/0004-parts-stay-and-bitmaps-say-what-died.md): as many as the limit asks for, and as Kafka's here,
    but no small one is left over, which the next run would have to merge again, and no core waits for a large one.
    """
    live = [0.4, 0.4, 0.3, 0.7, 0.3, 1.0]
    rows = 1000
    sources = []
    for number, size in enumerate(live):
        stored = RowsObject(StoredObject(f"ledger-{number}", int(size * GB), 0), 1)
        sources.append(Source(stored, number * rows, number * rows + rows - 1, rows, None, 0))
    sets = tuple(RowSet(number, 4 * rows * number, rows, 0, 0) for number in range(len(live)))
    by_source = row_sets_by_source([RangeTaskResult("range-0", sets, None, HashRangeStatistics())])
    plan = RunPlan(
        StoreLocation("file:///nowhere"), "u", -1, "a", RunPolicies(), 0, Xxh3KeyHasher(0), tuple(sources), old_parts=0
    )
    layout = lay_out(plan, by_source, expected_totals(plan, by_source), Sizing(parallelism=1, part_bytes=GB))
    taken = [[(item.source, item.first_offset, item.last_offset) for item in part.slices] for part in layout.parts]
    sizes = [sum(live[which] * (last - first + 1) / rows for which, first, last in part) for part in taken]
    assert len(sizes) == 4 < len(live)
    assert max(sizes) <= 1.0
    assert max(sizes) < 1.05 * min(sizes), "equal: here 0.78 GB each, about"
    flat = [item for part in taken for item in part]
    assert sorted({which for which, _, _ in flat}) == list(range(len(live)))
    assert flat[0][1] == 0
    assert all(before[2] + 1 == after[1] for before, after in pairwise(flat)), "neighbours, in order, nothing twice"


# --- 6


@pytest.mark.parametrize(("dirty", "starts"), [(0, False), (499, False), (500, False), (501, True), (100_000, True)])
def test_worked_example_6_dirty_ratio(bench: Workbench, dirty: int, starts: bool) -> None:
    """With 500 clean bytes and the limit 0.5: as many dirty bytes do not start a run, one more does."""
    backlog = Backlog(bench.topic().record, CompactionTriggers(dirty_ratio=0.5), dirty, 1, dirty, 500)
    assert backlog.dirty_ratio == pytest.approx(dirty / (500 + dirty))
    assert cause_of(backlog, bench.clock.now_ms()) == ("dirty.ratio" if starts else None)


def test_worked_example_6_on_topics(bench: Workbench) -> None:
    """Sizes are of keys and values: 100 bytes a message. What is open does not count, nor what is too young."""

    def message(key: int) -> bytes:
        return single(b"%03d" % key, b"x" * 97, bench.clock.now_ms())

    def ratio(topic: Topic) -> float:
        (backlog,) = BacklogReader(bench.metadata, bench.log).read([topic.record.id])
        return backlog.dirty_ratio

    def names_of_due_topics() -> list[str]:
        backlogs = BacklogReader(bench.metadata, bench.log).read_with_trigger(all_ids(bench))
        return [backlog.topic.name.topic for backlog in due_topics(backlogs, {}, bench.clock.now_ms())]

    topics = {}
    for name, clean, dirty in (("half", 4, 4), ("more", 4, 5), ("most", 1, 9), ("clean", 4, 0)):
        topics[name] = topic = bench.topic(name)
        bench.metadata.policies.change([topic_scope(topic.record)], {"min.cleanable.dirty.ratio": 0.5})
        produce(topic, [message(key) for key in range(clean)])
        bench.compact(topic)
        produce(topic, [message(key) for key in range(dirty)])
        roll_and_seal(topic)
        produce(topic, [message(0)])
    assert {name: ratio(topic) for name, topic in topics.items()} == {
        "half": 0.5, "more": 5 / 9, "most": 0.9, "clean": 0.0
    }  # fmt: skip
    assert names_of_due_topics() == ["most", "more"]
    more = topics["more"]
    more.log_manager().roll(more.record)
    assert ratio(more) == 0.6, "a rolled segment counts as its ledger will"
    bench.metadata.policies.change([topic_scope(more.record)], {"min.compaction.lag.ms": 1})
    assert names_of_due_topics() == ["most"]
    bench.advance(1)
    assert names_of_due_topics() == ["most", "more"]
    roll_and_seal(more)
    assert ratio(more) == 0.6
    bench.compact(more)
    assert ratio(more) == 0.0
    assert ratio(bench.topic("never compacted")) == 0.0


# --- 11


def keys_of_a_map(memory: int) -> int:
    """Return the number of keys that Kafka's map holds: 16 bytes of MD5 and 8 of offset each, load factor 0.9."""
    return memory * 9 // 10 // (16 + 8)


def test_worked_example_11_memory_of_the_map(bench: Workbench, topic: Topic) -> None:
    """A run here takes every key there is: hash ranges, one after the other, each within the memory."""
    assert keys_of_a_map(128 << 20) == 5_033_164
    fits = keys_of_a_map(1 << 10)
    assert fits == 38
    keys = 8 * fits
    produce(topic, [single(b"key-%d" % (number % keys), b"%d" % number) for number in range(2 * keys)])
    sizing = Sizing(parallelism=1, range_records=fits)
    outcome = bench.with_sizing(sizing).compactor().compact(topic.name, RunPolicies())
    assert outcome.run is not None
    assert at(compacted_only(topic)) == list(range(keys, 2 * keys))
    horizon = topic.snapshot().horizon
    assert horizon is not None
    assert horizon.offset == 2 * keys - 1, "one run, to the end: Kafka's stops where its map is full"
    assert outcome.run.statistics["hash_ranges"] >= keys // fits  # type: ignore[operator]
