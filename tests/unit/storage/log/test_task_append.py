"""Appends by tasks: their ledgers count from 0 until the commit, and read like those of an import afterwards."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.verify.verify import Verifier
from storage.errors import Conflict, Fenced, InvalidRecord, LeaseHeld, Misconfigured
from storage.failpoints import Failpoint
from storage.ledger import names, rows
from storage.log import task_append
from storage.log.bulk_append import SOURCE_SCHEMA
from storage.log.task_append import TaskAppend
from storage.metadata.records import TASKS_MS
from storage.model import EARLIEST, LedgerRecord
from storage.objects.interface import ObjectStore
from storage.topic import Topic
from tests.dying import dying_at
from tests.workbench import Workbench, content, raw, view


def table(*messages: tuple[bytes | None, bytes | None, int | None]) -> pa.Table:
    """Key, payload and event time of each message."""
    columns = ("key", "payload", "event_time")
    return pa.Table.from_pylist([dict(zip(columns, message, strict=True)) for message in messages], SOURCE_SCHEMA)


FIRST = table((b"a", b"1", 7), (None, b"2", None), (b"b", b"3", 9))
SECOND = table((b"c", b"4", 4), (b"a", None, 8), (b"b", b"6", 1))


def begin(bench: Workbench, topic: Topic) -> TaskAppend:
    """An append as its tasks get it."""
    append: TaskAppend = pickle.loads(pickle.dumps(task_append.begin(bench, topic.record)))
    return append


def written(bench: Workbench, append: TaskAppend) -> list[LedgerRecord]:
    """The ledgers of two tasks, the second of which ran first."""
    second = task_append.write_ledgers(bench.store, append, [SECOND.slice(0, 1), SECOND.slice(1)], 1)
    return [*task_append.write_ledgers(bench.store, append, [FIRST], 0), *second]


def objects(bench: Workbench, topic: Topic) -> list[str]:
    return [info.name for info in bench.store.list(names.ledgers_prefix(topic.record.uid))]


def test_messages_are_those_of_an_import_of_the_same(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw and compacted, with an import before and one after, in ledgers and row groups of one and two messages."""
    monkeypatch.setattr(rows, "GROUP_ROWS", 2)
    monkeypatch.setattr(rows, "LEDGER_ROWS", 2)
    topics = [bench.topic("by-tasks"), bench.topic("by-import")]
    by_tasks, by_import = topics
    for topic in topics:
        bench.append(topic, [content((b"b", b"0"), (b"d", b"0"))])
    append = begin(bench, by_tasks)
    task_append.commit(bench, append, written(bench, append))
    by_import.bulk_append().append([FIRST, SECOND])
    for topic in topics:
        bench.append(topic, [content((b"d", None))])
    assert [ledger.messages for ledger in by_tasks.snapshot().ledgers] == [2, 2, 1, 2, 1, 1]
    for _ in range(2):
        for compacted in (False, True):
            read = [
                [(m.offset, m.key, m.payload, m.event_time) for m in topic.messages(read_compacted=compacted)]
                for topic in topics
            ]
            assert read[0] == read[1]
        assert [by_tasks.newest_value(key) is None for key in (b"a", b"b", b"c", b"d")] == [True, False, False, True]
        assert by_tasks.first_raw_at_or_after(5) == by_tasks.first_at(raw(by_tasks)[5].message_id)
        ids = [message.message_id for message in raw(by_tasks)]
        assert ids == sorted(ids)
        assert len(set(ids)) == 9
        assert Verifier(bench, engine=bench.engine).verify(by_tasks.name).total == 0
        for topic in topics:
            bench.compact(topic, retain_null_key=True)
    assert view(list(by_tasks.messages(EARLIEST, read_compacted=True))) == {b"b": b"6", b"c": b"4"}


def test_only_the_ledgers_of_the_commit_count(bench: Workbench, topic: Topic) -> None:
    """A task that ran twice leaves objects, which garbage collection deletes; another writer was there meanwhile."""
    append = begin(bench, topic)
    task_append.write_ledgers(bench.store, append, [FIRST], 0)
    ledgers = written(bench, append)
    bench.append(topic, [content((b"x", b"0"))])
    task_append.commit(bench, append, ledgers)
    assert [message.payload for message in raw(topic)] == [b"0", b"1", b"2", b"3", b"4", None, b"6"]
    assert len(objects(bench, topic)) == 8
    with pytest.raises(Fenced, match="is finished or expired"):
        task_append.commit(bench, append, ledgers)
    task_append.abort(bench, append)
    assert len(raw(topic)) == 7
    assert len(objects(bench, topic)) == 6, "an abort after the commit deletes what is not appended"


def test_an_abort_leaves_nothing_and_fences_a_late_commit(bench: Workbench, topic: Topic) -> None:
    append = begin(bench, topic)
    ledgers = written(bench, append)
    task_append.abort(bench, append)
    assert objects(bench, topic) == []
    late = written(bench, append)
    with pytest.raises(Misconfigured, match="the task wrote to another store"):
        task_append.commit(bench, append, ledgers)
    with pytest.raises(Fenced, match="is finished or expired"):
        task_append.commit(bench, append, late)
    assert raw(topic) == []


STEPS = {
    Failpoint.IMPORT_LEASE_TAKEN: False,
    Failpoint.IMPORT_BEFORE_COMMIT: False,
    Failpoint.IMPORT_INSIDE_COMMIT: False,
    Failpoint.IMPORT_AFTER_COMMIT: True,
    Failpoint.IMPORT_LEASE_RELEASED: True,
}


@pytest.mark.parametrize(("step", "is_committed"), STEPS.items(), ids=lambda value: getattr(value, "name", None))
def test_a_commit_that_dies_has_appended_all_or_nothing(
    bench: Workbench, topic: Topic, step: Failpoint, is_committed: bool
) -> None:
    """Spark aborts a write whose commit has failed, whatever it has done."""
    append = begin(bench, topic)
    ledgers = written(bench, append)
    with dying_at(step):
        task_append.commit(bench, append, ledgers)
    assert len(raw(topic)) == 6 * is_committed
    task_append.abort(bench, append)
    assert len(raw(topic)) == 6 * is_committed
    assert len(objects(bench, topic)) == 4 * is_committed


@pytest.mark.parametrize("step", [Failpoint.IMPORT_ROWS_WRITTEN, Failpoint.IMPORT_INDEX_WRITTEN])
def test_a_task_that_dies_leaves_nothing_after_the_abort(bench: Workbench, topic: Topic, step: Failpoint) -> None:
    append = begin(bench, topic)
    with dying_at(step):
        written(bench, append)
    assert objects(bench, topic)
    task_append.abort(bench, append)
    assert objects(bench, topic) == []


def test_a_task_that_fails_deletes_its_ledgers(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LEDGER_ROWS", 1)
    bench.set_policies(topic, **{"message.timestamp.after.max.ms": 1000})
    append = begin(bench, topic)
    ahead = pa.Table.from_pylist([{"payload": b"1", "publish_time": bench.clock.now_ms() + 1001}], SOURCE_SCHEMA)
    with pytest.raises(InvalidRecord, match="in the future"):
        task_append.write_ledgers(bench.store, append, [FIRST, ahead], 0)
    assert objects(bench, topic) == []


def test_an_append_lasts_a_day_without_heartbeats(bench: Workbench, topic: Topic) -> None:
    append = begin(bench, topic)
    ledgers = written(bench, append)
    collector = GarbageCollector(bench)
    bench.advance(TASKS_MS - 1)
    assert collector.collect(topic.record, dry_run=True).attempts_given_up == 0
    assert collector.collect(topic.record).attempts_given_up == 0
    bench.advance(1)
    assert collector.collect(topic.record, dry_run=True).attempts_given_up == 1
    assert collector.collect(topic.record).attempts_given_up == 1
    with pytest.raises(Fenced, match="is finished or expired"):
        task_append.commit(bench, append, ledgers)
    bench.advance(collector.grace_ms + 1)
    collector.collect(topic.record)
    assert objects(bench, topic) == []


def test_a_topic_that_has_a_writer_is_refused_at_once(bench: Workbench, topic: Topic) -> None:
    append = begin(bench, topic)
    ledgers = written(bench, append)
    lease = bench.metadata.leases.acquire(topic.record.id, "another", 15_000)
    with pytest.raises(LeaseHeld, match="another is writing"):
        task_append.begin(bench, topic.record, wait_ms=0)
    with pytest.raises(LeaseHeld, match="another is writing"):
        task_append.commit(bench, append, ledgers, wait_ms=0)
    bench.metadata.leases.release(lease)
    task_append.commit(bench, append, ledgers)
    assert len(raw(topic)) == 6


def test_a_topic_that_was_created_again_is_refused(bench: Workbench, topic: Topic) -> None:
    append = begin(bench, topic)
    ledgers = written(bench, append)
    bench.metadata.tenancy.delete_topic(topic.record.id)
    bench.topic()
    with pytest.raises(Conflict, match="deleted and created again"):
        task_append.commit(bench, append, ledgers)
    task_append.abort(bench, append)


def test_a_task_with_another_store_is_found_by_the_commit(
    bench: Workbench, topic: Topic, object_store: ObjectStore
) -> None:
    append = begin(bench, topic)
    ledgers = task_append.write_ledgers(object_store, append, [FIRST], 0)
    with pytest.raises(Misconfigured, match="the task wrote to another store"):
        task_append.commit(bench, append, ledgers)
    assert raw(topic) == []


def test_no_messages_end_the_attempt(bench: Workbench, topic: Topic) -> None:
    append = begin(bench, topic)
    assert task_append.write_ledgers(bench.store, append, [FIRST.slice(0, 0)], 0) == ()
    assert task_append.commit(bench, append, []).ledgers == ()
    attempt = bench.metadata.attempts.find(append.attempt.attempt_id)
    assert attempt is not None
    assert attempt.finished_at == bench.clock.now_ms()
