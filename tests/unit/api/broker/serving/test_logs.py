"""Open logs: shared, bounded, released; and what becomes of them when their topic or lease is gone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import NoReturn

import pytest

from api.broker.serving.logs import TopicLogs
from storage.entries.encode import encode_message
from storage.errors import Fenced, InvalidRecord, LeaseHeld, Unavailable
from storage.log.active_segment_file import ActiveSegmentFile, PlacedEntry
from storage.log.committers import Committers
from storage.log.group_commit import AppendOutcome, Done
from storage.log.segment import AppendResult
from storage.log.topic_log import TopicLog
from tests.held_kernel import HeldKernel
from tests.serving import append_to
from tests.workbench import Workbench


def entry(payload: bytes = b"v") -> bytes:
    return encode_message(b"k", payload, producer="p", sequence_id=0, publish_time=1)


@pytest.fixture
def producers(bench: Workbench) -> Iterator[TopicLogs]:
    created = TopicLogs(bench.clock, max_open=2, idle_ms=5_000)
    yield created
    created.drain_and_close()


def test_bytes_that_wait_for_a_disk_are_bounded(bench: Workbench) -> None:
    """Also those of requests that were abandoned."""
    kernel = HeldKernel()
    logged = replace(bench, log=replace(bench.log, committers=Committers(1, kernel)))
    topic, data, answered = logged.topic("t"), entry(b"v" * 100), SimpleQueue[list[AppendOutcome]]()
    logs = TopicLogs(bench.clock, max_open=2, idle_ms=5_000, max_pending_bytes=2 * len(data))
    for _ in range(2):
        logs.submit(topic, [data], answered.put)
    with pytest.raises(Unavailable, match="bytes of messages wait for the disk of the log, of at most"):
        logs.submit(topic, [data], answered.put)
    for _ in range(2):
        kernel.next()(None)
        assert isinstance(answered.get(timeout=30)[0], AppendResult)
    kernel.take_no_more()
    logs.submit(topic, [data], answered.put)
    assert isinstance(answered.get(timeout=30)[0], AppendResult)
    logs.drain_and_close()


def test_growth_is_noted_once_for_each_step(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = encode_message(b"k", b"v" * 100, producer="p", sequence_id=0, publish_time=1)
    monkeypatch.setattr("api.broker.serving.logs.PIECE_BYTES", 3 * len(entry))
    grown: list[int] = []
    logs = TopicLogs(bench.clock, max_open=2, idle_ms=5_000, on_grown=grown.append)
    topic = bench.topic("t")
    for _ in range(7):
        append_to(logs, topic, [entry])
    logs.drain_and_close()
    assert grown == [topic.record.id] * 2


def test_many_threads_share_one_log(bench: Workbench, producers: TopicLogs) -> None:
    topic = bench.topic()
    answers: list[object] = []

    def append() -> None:
        answers.extend(append_to(producers, topic, [entry(), entry()]))

    threads = [threading.Thread(target=append) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(item, AppendResult) for item in answers)
    assert [message.offset for message in topic.messages()] == list(range(16))
    assert [item.name for item in producers.topics] == [topic.name]


def test_behind_a_message_that_failed_none_of_its_request_is_taken(
    bench: Workbench, producers: TopicLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client that repeats what failed would turn the order of a key round."""
    topic = bench.topic()
    write, submit = ActiveSegmentFile.write, TopicLog.submit
    failures = [OSError(errno.EIO, "the disk fails once")]

    def failing_once(file: ActiveSegmentFile, entries: Sequence[PlacedEntry]) -> None:
        if entries[0].offset == 1 and failures:
            raise failures.pop()
        write(file, entries)

    def one_after_the_other(log: TopicLog, data: bytes, done: Done, check: Callable[[], object], **_: object) -> None:
        answered = threading.Event()
        submit(log, data, lambda answer: (done(answer), answered.set()), check, commits_later=False)
        assert answered.wait(60)

    monkeypatch.setattr(ActiveSegmentFile, "write", failing_once)
    monkeypatch.setattr(TopicLog, "submit", one_after_the_other)
    too_large = encode_message(b"k", bytes(6 << 20), producer="p", sequence_id=0, publish_time=1)
    answers = append_to(producers, topic, [entry(b"1"), entry(b"2"), too_large, entry(b"3"), entry(b"4")])
    kinds = [type(answer) for answer in answers]
    assert kinds == [AppendResult, Unavailable, Unavailable, Unavailable, Unavailable]
    assert "a message before it in the request failed: cannot write to" in str(answers[4])
    again = append_to(producers, topic, [entry(b"2"), too_large, entry(b"3"), entry(b"4")])
    assert [type(answer) for answer in again] == [AppendResult, InvalidRecord, AppendResult, AppendResult]
    assert [message.payload for message in topic.messages()] == [b"1", b"2", b"3", b"4"]


def test_what_nobody_uses_is_given_back(bench: Workbench, producers: TopicLogs) -> None:
    topic = bench.topic()
    append_to(producers, topic, [entry()])
    assert bench.metadata.leases.current(topic.record.id) is not None
    assert producers.close_idle() == 0
    bench.clock.advance(5_000)
    assert producers.close_idle() == 1
    assert bench.metadata.leases.current(topic.record.id) is None
    append_to(producers, topic, [entry()])
    assert len(list(topic.messages())) == 2
    bench.clock.advance(-3_600_000)
    assert producers.close_idle() == 1, "the clock was set back"


def test_the_oldest_makes_room(bench: Workbench, producers: TopicLogs) -> None:
    for name in ("a", "b", "a", "c"):
        append_to(producers, bench.topic(name), [entry()])
        bench.clock.advance(1)
    assert {str(topic.name.topic) for topic in producers.topics} == {"a", "c"}


def test_one_that_does_not_end_as_it_should_holds_up_nobody(
    bench: Workbench, producers: TopicLogs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        append_to(producers, bench.topic(name), [entry()])
    ended = TopicLog.__exit__

    def fail(log: TopicLog, *_: object) -> None:
        ended(log, None, None, None)
        raise OSError("no more files")

    with monkeypatch.context() as patched:
        patched.setattr(TopicLog, "__exit__", fail)
        assert isinstance(append_to(producers, bench.topic("c"), [entry()])[0], AppendResult)
    assert "did not end as it should" in caplog.text


def test_a_lease_that_another_has(bench: Workbench, producers: TopicLogs) -> None:
    topic = bench.topic()
    lease = bench.metadata.leases.acquire(topic.record.id, "import:1:ab", 60_000)
    with pytest.raises(LeaseHeld, match="import:1:ab"):
        append_to(producers, topic, [entry()])
    assert producers.topics == []
    bench.metadata.leases.release(lease)
    assert isinstance(append_to(producers, topic, [entry()])[0], AppendResult)


def test_one_that_lost_its_lease_is_opened_anew(
    bench: Workbench, producers: TopicLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.topic()
    append_to(producers, topic, [entry()])

    def fail(*_: object, **__: object) -> NoReturn:
        raise Fenced("lost", "open it again")

    with monkeypatch.context() as patched:
        patched.setattr(TopicLog, "submit", fail)
        assert isinstance(append_to(producers, topic, [entry()])[0], Fenced)
    assert producers.topics == []
    assert isinstance(append_to(producers, topic, [entry()])[0], AppendResult)


def test_a_topic_that_was_deleted_and_made_again(bench: Workbench, producers: TopicLogs) -> None:
    old = bench.topic()
    append_to(producers, old, [entry(), entry()])
    bench.metadata.tenancy.delete_topic(old.record.id)
    new = bench.topic()
    assert isinstance(append_to(producers, new, [entry()])[0], AppendResult)
    assert [message.offset for message in new.messages()] == [0]


def test_a_topic_can_be_given_back_at_once(bench: Workbench, producers: TopicLogs) -> None:
    topic = bench.topic()
    append_to(producers, topic, [entry()])
    assert producers.is_open(topic.record)
    producers.close_topics(topic.record)
    assert not producers.is_open(topic.record)
    assert bench.metadata.leases.current(topic.record.id) is None


def test_nothing_is_taken_after_the_end(bench: Workbench) -> None:
    producers = TopicLogs(bench.clock, max_open=2, idle_ms=5_000)
    producers.start()
    topic = bench.topic()
    append_to(producers, topic, [entry()])
    producers.drain_and_close()
    assert bench.metadata.leases.current(topic.record.id) is None
    with pytest.raises(Unavailable):
        append_to(producers, topic, [entry()])
    assert len(list(topic.messages())) == 1


def test_what_is_submitted_is_answered_when_it_is_flushed_and_errors_are_their_own_answers(
    bench: Workbench, producers: TopicLogs
) -> None:
    topic, answered = bench.topic(), SimpleQueue[list[AppendOutcome]]()
    wrong = InvalidRecord("no entry holds this", "send another one")
    producers.submit(topic, [entry(b"1"), wrong, entry(b"2")], answered.put)
    assert [type(answer) for answer in answered.get(timeout=30)] == [AppendResult, InvalidRecord, AppendResult]
    producers.submit(topic, [], answered.put)
    assert answered.get(timeout=30) == []
    assert append_to(producers, topic, []) == []
    assert [message.payload for message in topic.messages()] == [b"1", b"2"]
    assert producers.appended_entries == 2


def test_a_log_that_is_dropped_is_closed_after_its_last_answer(
    bench: Workbench, producers: TopicLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the thread that answers: a close waits for the disk."""
    topic, answered = bench.topic(), SimpleQueue[list[AppendOutcome]]()
    append_to(producers, topic, [entry()])
    flushing, go_on, real = threading.Event(), threading.Event(), os.fdatasync

    def held(descriptor: int) -> None:
        flushing.set()
        assert go_on.wait(30)
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", held)
        submitting = threading.Thread(target=producers.submit, args=(topic, [entry()], answered.put))
        submitting.start()
        assert flushing.wait(30)
        producers.close_topics(topic.record)
        assert bench.metadata.leases.current(topic.record.id) is not None
        go_on.set()
        assert isinstance(answered.get(timeout=30)[0], AppendResult)
        submitting.join(30)
    for thread in threading.enumerate():
        if thread.name == "producers":
            thread.join(30)
    assert bench.metadata.leases.current(topic.record.id) is None


def test_a_log_that_cannot_be_opened_is_told_at_once(bench: Workbench, producers: TopicLogs) -> None:
    topic = bench.topic()
    lease = bench.metadata.leases.acquire(topic.record.id, "import:1:ab", 60_000)
    with pytest.raises(LeaseHeld, match="import:1:ab"):
        producers.submit(topic, [entry()], pytest.fail)
    bench.metadata.leases.release(lease)


def test_an_event_loop_begins_and_a_thread_finishes(bench: Workbench, producers: TopicLogs) -> None:
    topic, answered = bench.topic(), SimpleQueue[list[AppendOutcome]]()
    held = producers.hold(topic)
    append = held.new_append([entry(b"1"), entry(b"2")], ["a", "b"], answered.put)
    assert not append.submit_without_waiting(), "a segment must be opened"
    append.submit_remaining()
    assert len(answered.get(timeout=30)) == 2
    assert held.new_append([entry(b"3"), entry(b"4")], ["a", "b"], answered.put).submit_without_waiting()
    assert [type(answer) for answer in answered.get(timeout=30)] == [AppendResult, AppendResult]
    assert [message.payload for message in topic.messages()] == [b"1", b"2", b"3", b"4"]
    held.release()


def test_topics_that_wait_for_the_disk_hold_no_thread_of_their_callers(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread, that of the callers, submits for all; each topic is answered when its own flush has ended."""
    kernel = HeldKernel()
    logged = replace(bench, log=replace(bench.log, committers=Committers(1, kernel)))
    logs = TopicLogs(bench.clock, max_open=100, idle_ms=5_000)
    topics = [logged.topic(f"t{number}") for number in range(20)]
    answered = SimpleQueue[list[AppendOutcome]]()
    for topic in topics:
        logs.submit(topic, [entry(), entry()], answered.put)
    ends = [kernel.next() for _ in topics]
    assert answered.empty()
    ends[7](None)
    (first, _) = answered.get(timeout=30)
    assert isinstance(first, AppendResult)
    assert len(list(topics[7].messages())) == 2
    assert answered.empty()
    for number, end in enumerate(ends):
        if number != 7:
            end(None)
    assert all(isinstance(answer, AppendResult) for _ in topics[1:] for answer in answered.get(timeout=30))
    logs.drain_and_close()
