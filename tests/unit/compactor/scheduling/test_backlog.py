"""Backlogs of topics that were really written, and the thresholds that they are held against (S1; property 16)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.run.plan import RunPolicies
from compactor.scheduling.backlog import Backlog, BacklogReader
from compactor.scheduling.due import cause_of
from storage.entries.decode import StoredEntry
from storage.log.directory import LogDirectory
from storage.log.high_watermark import HighWatermark
from storage.log.open_segments import OpenSegmentContent
from storage.log.segment_reader import SegmentReader
from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope
from storage.topic import Topic
from tests.entries import batch, produce, single
from tests.workbench import Workbench, all_ids, content

BYTES, MESSAGES = "compaction.threshold.bytes", "compaction.threshold.messages"


def cause(bench: Workbench, topic: Topic) -> str | None:
    """Return why a service that has just been started takes the topic for due."""
    backlogs = {
        item.topic.id: item for item in BacklogReader(bench.metadata, bench.log).read_with_trigger(all_ids(bench))
    }
    backlog = backlogs.get(topic.record.id)
    return None if backlog is None else cause_of(backlog, bench.clock.now_ms())


def backlog(bench: Workbench, topic: Topic, backlogs: BacklogReader | None = None) -> Backlog:
    (item,) = (backlogs or BacklogReader(bench.metadata, bench.log)).read([topic.record.id])
    return item


def set_at(bench: Workbench, topic: Topic, name: str, value: int | None, scope: str = "topic") -> None:
    scopes = {"topic": topic_scope(topic.record), "namespace": namespace_scope("public/default"), "broker": BROKER}
    if value is None:
        bench.metadata.policies.change([scopes[scope]], {}, [name])
    else:
        bench.metadata.policies.change([scopes[scope]], {name: value})


def in_ledgers(bench: Workbench, topic: Topic) -> None:
    bench.append(topic, [content((b"a", b"1"), (b"b", b"2"))])


def in_a_rolled_segment(bench: Workbench, topic: Topic) -> None:
    in_an_open_segment(bench, topic)
    topic.log_manager().roll(topic.record)


def in_an_open_segment(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1"), batch((b"b", b"22"), (b"c", b"333"))])


def in_all_of_them(bench: Workbench, topic: Topic) -> None:
    in_ledgers(bench, topic)
    in_a_rolled_segment(bench, topic)
    in_an_open_segment(bench, topic)


WRITTEN = [in_ledgers, in_a_rolled_segment, in_an_open_segment, in_all_of_them]


@pytest.mark.parametrize("write", WRITTEN, ids=lambda write: write.__name__)
@pytest.mark.parametrize("compacted_before", [False, True])
def test_a_threshold_fires_when_it_is_exceeded_not_when_it_is_reached(
    bench: Workbench, write: object, compacted_before: bool
) -> None:
    assert callable(write)
    topic = bench.topic()
    if compacted_before:
        in_all_of_them(bench, topic)
        bench.compact(topic)
        assert backlog(bench, topic).messages == 0
    write(bench, topic)
    current = backlog(bench, topic)
    before = topic.snapshot().horizon
    messages = [message for message in topic.messages() if before is None or message.offset > before.offset]
    assert current.messages == len(messages) > 0
    assert current.bytes > sum(len(message.payload or b"") for message in messages) - 1
    for name, amount in ((BYTES, current.bytes), (MESSAGES, current.messages)):
        answer = name.removeprefix("compaction.")
        for limit, expected in ((amount + 1, None), (amount, None), (amount - 1, answer)):
            set_at(bench, topic, name, limit)
            assert cause(bench, topic) == expected, (name, limit)
        set_at(bench, topic, name, 0)
        assert cause(bench, topic) is None
    set_at(bench, topic, MESSAGES, 1)
    bench.compact(topic)
    assert backlog(bench, topic).bytes == 0
    assert cause(bench, topic) is None


def test_of_an_open_segment_the_row_says_the_same_once_it_is_rolled(bench: Workbench) -> None:
    topic = bench.topic()
    set_at(bench, topic, "min.compaction.lag.ms", 1)
    in_an_open_segment(bench, topic)
    opened = backlog(bench, topic)
    topic.log_manager().roll(topic.record)
    rolled = backlog(bench, topic)
    assert (opened.messages, opened.bytes, opened.oldest) == (rolled.messages, rolled.bytes, rolled.oldest)
    assert (opened.dirty_bytes, rolled.dirty_bytes) == (0, rolled.bytes), "the ratio is of what is closed"


def test_an_open_segment_is_counted_on_from_where_it_was(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries are read only where a lag needs their times."""
    topic = bench.topic()
    starts: list[int] = []
    entries = SegmentReader.entries

    def watched(self: SegmentReader, start_offset: int = 0) -> Iterator[StoredEntry]:
        starts.append(start_offset)
        return entries(self, start_offset)

    monkeypatch.setattr(SegmentReader, "entries", watched)
    backlogs = BacklogReader(bench.metadata, bench.log)
    with topic.append_log(0) as log:
        for number in range(5):
            log.append(single(b"k", b"%d" % number))
            set_at(bench, topic, "min.compaction.lag.ms", None)
            current = backlog(bench, topic, backlogs)
            assert (current.messages, current.bytes) == (number + 1, 2 * (number + 1))
            assert len(starts) == number
            set_at(bench, topic, "min.compaction.lag.ms", 1)
            current = backlog(bench, topic, backlogs)
            assert (current.messages, current.bytes) == (number + 1, 2 * (number + 1))
            assert backlog(bench, topic, backlogs) == current
    assert starts == [0, 1, 2, 3, 4], "only what is new is read, and nothing if there is nothing new"


@pytest.mark.parametrize("lag", [None, 1])
def test_the_count_of_a_segment_replaces_that_of_the_one_before_it(bench: Workbench, lag: int | None) -> None:
    """A reader of one topic's pages never reads all topics, and must not keep a count of each segment for ever."""
    topic, backlogs = bench.topic(), BacklogReader(bench.metadata, bench.log)
    set_at(bench, topic, "max.compaction.lag.ms", lag)
    gc.collect()
    before = sum(isinstance(item, OpenSegmentContent) for item in gc.get_objects())
    for _ in range(5):
        produce(topic, [single(b"a", b"1")])
        assert backlog(bench, topic, backlogs).open_messages == 1
        topic.log_manager().roll(topic.record)
    gc.collect()
    kept = sum(isinstance(item, OpenSegmentContent) for item in gc.get_objects()) - before
    assert kept in (1, 2), "with times, without, or both"


def test_a_segment_elsewhere_counts_by_what_sql_knows(bench: Workbench, tmp_path: Path) -> None:
    topic = bench.topic()
    in_ledgers(bench, topic)
    known = backlog(bench, topic)
    in_an_open_segment(bench, topic)
    elsewhere = BacklogReader(bench.metadata, LogDirectory(tmp_path / "another"))
    assert backlog(bench, topic, elsewhere).bytes == known.bytes
    topic.log_manager().roll(topic.record)
    assert backlog(bench, topic, elsewhere).messages == known.messages + 3


def test_a_segment_that_cannot_be_read_stops_no_other(bench: Workbench) -> None:
    topics = [bench.topic(name) for name in ("bad", "good")]
    for topic in topics:
        in_an_open_segment(bench, topic)
    (end,) = (bench.log.topic_folder(topics[0].record.uid)).glob("*.end")
    end.unlink()
    end.mkdir()
    set_at(bench, topics[1], BYTES, 1, "broker")
    assert (cause(bench, topics[0]), cause(bench, topics[1])) == (None, "threshold.bytes")


@pytest.mark.parametrize("lag", [None, 1])
def test_a_segment_that_cannot_be_read_for_a_moment_keeps_its_last_count(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, lag: int | None
) -> None:
    topic = bench.topic()
    in_an_open_segment(bench, topic)
    set_at(bench, topic, "min.compaction.lag.ms", lag)
    backlogs = BacklogReader(bench.metadata, bench.log)
    current = backlog(bench, topic, backlogs)
    assert current.messages == 3

    def fail(_: SegmentReader) -> HighWatermark:
        raise OSError("the disk does not answer")

    monkeypatch.setattr(SegmentReader, "high_watermark", fail)
    assert backlog(bench, topic, backlogs) == current


def test_topic_counts_before_namespace_before_broker(bench: Workbench) -> None:
    topic = bench.topic()
    in_ledgers(bench, topic)
    size = backlog(bench, topic).bytes
    set_at(bench, topic, BYTES, size - 1, "broker")
    assert cause(bench, topic) == "threshold.bytes"
    set_at(bench, topic, BYTES, size, "namespace")
    assert cause(bench, topic) is None
    set_at(bench, topic, BYTES, size - 1, "topic")
    assert cause(bench, topic) == "threshold.bytes"
    set_at(bench, topic, BYTES, 0, "topic")
    assert cause(bench, topic) is None, "0 is off, whatever is set around it"
    set_at(bench, topic, BYTES, size - 1, "namespace")
    assert cause(bench, topic) is None
    set_at(bench, topic, BYTES, None, "topic")
    assert cause(bench, topic) == "threshold.bytes"
    set_at(bench, topic, BYTES, 0, "namespace")
    assert cause(bench, topic) is None


def test_only_topics_for_which_something_is_set_are_looked_at(bench: Workbench) -> None:
    for name in ("a", "b"):
        in_ledgers(bench, bench.topic(name))
    assert BacklogReader(bench.metadata, bench.log).read_with_trigger(all_ids(bench)) == []
    set_at(bench, bench.topic("b"), MESSAGES, 1)
    (measured,) = BacklogReader(bench.metadata, bench.log).read_with_trigger(all_ids(bench))
    assert measured.topic.name.topic == "b"


def test_every_topic_is_measured_with_its_open_segment(bench: Workbench) -> None:
    topics = [bench.topic(name) for name in ("a", "b")]
    in_ledgers(bench, topics[0])
    in_an_open_segment(bench, topics[0])
    set_at(bench, topics[1], MESSAGES, 1)
    reader = BacklogReader(bench.metadata, bench.log)
    measured = reader.read_all()
    assert measured == reader.read([topic.record.id for topic in topics])
    assert (measured[0].open_messages, measured[0].open_bytes) == (3, measured[0].bytes - measured[0].dirty_bytes)
    assert (measured[1].messages, measured[1].open_messages) == (0, 0)


def test_kafkas_ratio_and_lag_on_a_topic_that_is_cleaned_by_compaction(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content(*((b"%d" % number, b"x" * 10) for number in range(20)))])
    bench.set_policies(topic, **{"cleanup.policy": "compact"})
    assert cause(bench, topic) == "dirty.ratio"
    bench.compact(topic)
    bench.append(topic, [content((b"1", b"y"))])
    assert cause(bench, topic) is None
    bench.set_policies(topic, **{"max.compaction.lag.ms": 1000})
    assert cause(bench, topic) is None
    bench.advance(1001)
    assert cause(bench, topic) == "max.lag"


def test_a_topic_with_a_minimum_lag_is_due_when_something_whole_is_old_enough(bench: Workbench) -> None:
    topic = bench.topic()
    bench.set_policies(topic, **{MESSAGES: 1, "min.compaction.lag.ms": 1000})
    now = bench.clock.now_ms()
    produce(topic, [single(b"a", b"1", now - 1000), single(b"b", b"2", now - 500)])
    assert cause(bench, topic) is None, "the open segment holds a young one"
    topic.log_manager().roll(topic.record)
    assert cause(bench, topic) is None, "and so it does when it is rolled"
    assert bench.compactor().compact(topic.name, RunPolicies(min_lag_ms=1000)).compacted_ledger_id is None
    bench.clock.wait(0.5)
    assert cause(bench, topic) == "threshold.messages"
    produce(topic, [single(b"c", b"3", bench.clock.now_ms())])
    assert cause(bench, topic) == "threshold.messages", "the older ledger may go"


@pytest.mark.parametrize("is_open", [False, True], ids=["rolled", "open"])
def test_what_is_old_behind_something_young_makes_nothing_due(bench: Workbench, is_open: bool) -> None:
    """Producers' clocks differ. A run ends before the first ledger that is too young (P2), so it would find nothing,
    and only roll the tail, at each check again."""
    topic = bench.topic()
    bench.set_policies(topic, **{MESSAGES: 1, "min.compaction.lag.ms": 1000})
    now = bench.clock.now_ms()
    produce(topic, [single(b"a", b"1", now), single(b"b", b"2", now)])
    topic.log_manager().roll_and_seal(topic.record)
    produce(topic, [single(b"c", b"3", now - 5000)])
    if not is_open:
        topic.log_manager().roll(topic.record)
    assert cause(bench, topic) is None
    assert bench.compactor().compact(topic.name, RunPolicies(min_lag_ms=1000)).compacted_ledger_id is None
    bench.clock.wait(1)
    assert cause(bench, topic) == "threshold.messages"
    assert bench.compactor().compact(topic.name, RunPolicies(min_lag_ms=1000)).compacted_ledger_id is not None
