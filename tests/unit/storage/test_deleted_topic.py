"""Work on a topic that is deleted or truncated ends soon, with a clear error, and leaves nothing (S8, C2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.maintenance.truncation import truncate
from compactor.run.plan import RunPolicies
from storage.errors import CompactorError, Fenced, TopicNotFound
from storage.failpoints import Failpoint
from storage.log import topic_log
from storage.log.log_manager import LogManager
from storage.metadata.records import TopicRecord
from storage.model import EARLIEST
from storage.positions import ContinuationToken
from storage.reading.page_reader import PageReader, ReadLimits
from storage.topic import Topic
from tests.entries import single
from tests.failpoint_listeners import observed
from tests.workbench import Workbench, content, raw

DELETED = "the topic persistent://public/default/t was deleted"


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench.embedded(tmp_path)


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """With two ledgers, and a segment that is open."""
    topic = bench.topic()
    bench.append(topic, [content(*((b"k%d" % n, b"v") for n in range(4)))], ledger_bytes=6)
    with topic.append_log() as log:
        log.append(single(b"tail", b"v"))
    return topic


def delete(bench: Workbench) -> TopicRecord:
    """Delete it, and make it again under the same name."""
    bench.metadata.tenancy.delete_topic(bench.topic().record.id)
    return bench.topic().record


def untouched(bench: Workbench, again: TopicRecord) -> bool:
    return bench.metadata.topic_snapshot(again.id).extents == () and raw(bench.topic()) == []


def test_a_writer_is_told_when_it_looks(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "POLL_SECONDS", 0.001)
    with topic.append_log() as log:
        again = delete(bench)
        while not log.is_fenced:
            os.sched_yield()
        for call in (lambda: log.append(single(b"k", b"v")), log.roll):
            with pytest.raises(TopicNotFound, match=DELETED):
                call()
    assert untouched(bench, again)


def test_a_writer_that_rolls_is_told(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "POLL_SECONDS", 3600.0)
    with topic.append_log() as log:
        log.append(single(b"k", b"v"))
        again = delete(bench)
        log.append(single(b"k", b"v"))
        with pytest.raises(TopicNotFound, match=DELETED):
            log.roll()
    assert untouched(bench, again)


def test_an_import_ends_without_a_ledger(bench: Workbench, topic: Topic) -> None:
    again: list[TopicRecord] = []

    def tables() -> Iterator[pa.Table]:
        yield content((b"k", b"v"))
        again.append(delete(bench))
        yield content((b"l", b"v"))

    with pytest.raises(TopicNotFound, match=DELETED):
        topic.bulk_append().append(tables())
    assert untouched(bench, again[0])


def test_a_sealer_ends(bench: Workbench, topic: Topic) -> None:
    log_manager = topic.log_manager()
    log_manager.roll(topic.record)
    again: list[TopicRecord] = []

    def at(step: Failpoint) -> None:
        if step is Failpoint.SEAL_CLAIMED and not again:
            again.append(delete(bench))

    with observed(at), pytest.raises(TopicNotFound, match=DELETED):
        list(log_manager.seal(topic.record))
    assert untouched(bench, again[0])
    assert [*log_manager.seal(topic.record), *log_manager.roll_and_seal(topic.record)] == []


@pytest.mark.parametrize(
    "step",
    [
        Failpoint.RUN_SNAPSHOT_TAKEN,
        Failpoint.PHASE_ONE_DONE,
        Failpoint.PHASE_TWO_DONE,
        Failpoint.PUBLISH_BEFORE_TRANSACTION,
    ],
)
def test_a_run_never_publishes(bench: Workbench, topic: Topic, step: Failpoint) -> None:
    again: list[TopicRecord] = []

    def at(failpoint: Failpoint) -> None:
        if failpoint is step:
            again.append(delete(bench))

    with observed(at), pytest.raises(TopicNotFound, match=DELETED):
        bench.compactor().compact(topic.name, RunPolicies())
    assert untouched(bench, again[0])
    assert bench.metadata.runs.newest(9) == []


def read_on(reader: PageReader) -> None:
    for _ in range(9):
        reader.poll(ReadLimits(1))


@pytest.mark.parametrize("read_compacted", [False, True])
def test_a_reader_is_told_on_its_next_page(bench: Workbench, topic: Topic, read_compacted: bool) -> None:
    bench.compact(topic)
    with closing(topic.reader(read_compacted=read_compacted)) as reader:
        assert sum(batch.num_rows for batch in reader.poll(ReadLimits(1))) == 1
        delete(bench)
        with pytest.raises(TopicNotFound, match=DELETED):
            read_on(reader)


@pytest.mark.parametrize("read_compacted", [False, True])
def test_a_reader_whose_objects_go_is_told(bench: Workbench, topic: Topic, read_compacted: bool) -> None:
    """Not that something is lost: it was deleted."""
    bench.compact(topic)
    with closing(topic.reader(read_compacted=read_compacted)) as reader:
        reader.poll(ReadLimits(1))
        bench.metadata.tenancy.delete_topic(topic.record.id)
        for info in list(bench.store.list("topics/")):
            bench.store.delete(info.name)
        with pytest.raises(TopicNotFound, match=DELETED):
            read_on(reader)


def test_truncating_leaves_nothing_and_goes_on(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    with topic.append_log() as log:
        log.append(single(b"more", b"v"))
        log.roll()
    assert len(raw(topic)) == 6
    (truncated,) = truncate(bench, [topic.record])
    assert truncated.start_offset == 6
    assert raw(topic) == list(topic.messages(read_compacted=True)) == []
    assert topic.newest_value(b"k1") is None
    with topic.append_log() as log:
        log.append(single(b"k1", b"new"))
    assert [(message.offset, message.key) for message in raw(topic)] == [(6, b"k1")]
    bench.compact(topic)
    assert [message.offset for message in topic.messages(read_compacted=True)] == [6]
    bench.clock.advance(10**9)
    log_manager = LogManager(bench, "manager")
    assert log_manager.remove_sealed_files() >= 1
    assert [message.offset for message in raw(topic)] == [6]


def test_a_reader_under_way_may_finish_a_truncation(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    reading = topic.messages(read_compacted=True)
    first = next(reading)
    truncate(bench, [topic.record])
    assert [first.offset, *(message.offset for message in reading)] == [0, 1, 2, 3, 4]


def test_a_run_under_way_ends_when_its_topic_is_truncated(bench: Workbench, topic: Topic) -> None:
    def at(failpoint: Failpoint) -> None:
        if failpoint is Failpoint.PHASE_TWO_DONE:
            truncate(bench, [topic.record])

    with observed(at), pytest.raises(CompactorError) as answer:
        bench.compactor().compact(topic.name, RunPolicies())
    assert isinstance(answer.value, Fenced)
    assert topic.snapshot().compacted is None


def test_a_token_that_pins_a_generation_of_a_deleted_topic_says_so(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.compact(topic)
    state = topic.reader(ContinuationToken(EARLIEST), read_compacted=True).messages(ReadLimits(messages=1)).next
    bench.append(topic, [content((b"k0", b"newer"))])
    bench.compact(topic)
    retired = bench.metadata.pins.retired_ledgers

    def deleted_meanwhile(topic_id: int) -> object:
        delete(bench)
        return retired(topic_id)

    monkeypatch.setattr(bench.metadata.pins, "retired_ledgers", deleted_meanwhile)
    with pytest.raises(TopicNotFound, match=DELETED):
        topic.reader(state, read_compacted=True).messages(ReadLimits())
