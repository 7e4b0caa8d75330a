"""Group commit: flushes that are shared, answers for threads, tasks and callbacks, and a bound on what waits."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue

import pytest

from storage.errors import CompactorError, Fenced, Unavailable
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.committers import Committers
from storage.log.group_commit import AppendOutcome
from storage.log.segment import AppendResult, FlushPolicy, WriterOptions
from tests.held_kernel import HeldKernel
from tests.segments import EVERY_APPEND, NEVER, EndingQueues, OneSegment, SteppedWriter, message

TIMEOUT = 30.0


class HeldFlush:
    """A first fdatasync that begins, and ends when `go_on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.count = 0
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._flush)

    def _flush(self, descriptor: int) -> None:
        self.count += 1
        if self.count == 1:
            self.begun.set()
            assert self.go_on.wait(TIMEOUT)
        self._real(descriptor)


class ManySegments:
    """Segments that share their committing threads: at most one, which lets the kernel flush every file."""

    def __init__(self, segment: OneSegment) -> None:
        self._segment = segment
        self.kernel = HeldKernel()
        self._committers = Committers(1, self.kernel)

    @contextmanager
    def writing(self, number: int, policy: FlushPolicy = EVERY_APPEND) -> Iterator[SteppedWriter]:
        with self.writer(number, policy) as writer:
            yield writer

    def writer(self, number: int, policy: FlushPolicy = EVERY_APPEND) -> SteppedWriter:
        segment = replace(self._segment, first_offset=number * 1000)
        options = WriterOptions(policy)
        file = ActiveSegmentFile.create(segment.local, options)
        return SteppedWriter(file, segment.clock, options, self._committers)


@pytest.fixture
def many(segment: OneSegment) -> ManySegments:
    return ManySegments(segment)


def offsets(answers: Sequence[AppendOutcome]) -> list[int]:
    return [answer.first.offset for answer in answers if isinstance(answer, AppendResult)]


def test_many_segments_that_wait_for_the_disk_hold_one_thread(many: ManySegments) -> None:
    answered: SimpleQueue[AppendOutcome] = SimpleQueue()
    before = threading.active_count()
    writers = [many.writer(number) for number in range(200)]
    for writer in writers:
        writer.submit(message(0), answered.put)
    ends = [many.kernel.next() for _ in writers]
    assert threading.active_count() <= before + 1
    with many.writing(900, NEVER) as unflushed:
        unflushed.submit(message(0), answered.put)
        assert offsets([answered.get(timeout=TIMEOUT)]) == [900_000]
    assert answered.empty()
    for end in ends:
        end(None)
    assert sorted(offsets([answered.get(timeout=TIMEOUT) for _ in writers])) == [n * 1000 for n in range(200)]
    for writer in writers:
        writer.close()


def test_what_comes_while_the_kernel_flushes_shares_the_next(many: ManySegments) -> None:
    answers: list[AppendOutcome] = []
    with many.writing(1) as writer:
        writer.submit(message(0), answers.append)
        end = many.kernel.next()
        for n in range(1, 60):
            writer.submit(message(n), answers.append)
        waiting = writer.submit(message(60))
        assert answers == []
        end(None)
        assert offsets(answers) == [1000]
        many.kernel.next()(None)
        assert offsets(answers) == list(range(1000, 1060))
        assert waiting.result().first.offset == 1060


def test_a_flush_of_the_kernel_that_fails_ends_the_queue(many: ManySegments) -> None:
    answers: list[AppendOutcome] = []
    writer = many.writer(1)
    for n in (0, 1):
        writer.submit(message(n), answers.append)
        end = many.kernel.next()
        if n == 0:
            end(None)
    writer.submit(message(2), answers.append)
    end(OSError(errno.EIO, "the disk fails"))
    assert [type(answer) for answer in answers] == [AppendResult, Unavailable, Unavailable]
    with pytest.raises(Unavailable, match="the disk fails"):
        writer.submit(message(3), answers.append)
    assert writer.failed
    writer.close()
    assert len(answers) == 3


def test_an_end_waits_for_the_flush_and_commits_what_waits(many: ManySegments, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[AppendOutcome] = []
    queues = EndingQueues(monkeypatch)
    writer = many.writer(1)
    writer.submit(message(0), answers.append)
    end = many.kernel.next()
    many.kernel.take_no_more()  # a committing thread may take what waits before the end does
    writer.submit(message(1), answers.append)
    ending = threading.Thread(target=writer.close)
    ending.start()
    queues.wait_for_refusal()
    assert answers == []
    end(None)
    ending.join(TIMEOUT)
    assert offsets(answers) == [1000, 1001]
    with pytest.raises(CompactorError, match="is closed"):
        writer.submit(message(2), answers.append)


def test_a_caller_that_bounds_its_bytes_need_not_wait_for_room(segment: OneSegment) -> None:
    answered: SimpleQueue[AppendOutcome] = SimpleQueue()
    with segment.create(max_pending_bytes=1) as writer:
        for n in range(3):
            writer.submit(message(n), answered.put, waits=False)
        assert offsets([answered.get(timeout=TIMEOUT) for _ in range(3)]) == [1000, 1001, 1002]


def test_what_comes_while_a_flush_is_under_way_shares_the_next(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[AppendOutcome] = []
    with segment.create() as writer:
        held = HeldFlush(monkeypatch)
        writer.submit(message(0), answers.append)
        assert held.begun.wait(TIMEOUT)
        for n in range(1, 60):
            writer.submit(message(n), answers.append)
        assert answers == []
        assert segment.visible() == []  # written, not flushed: no reader may see it
        held.go_on.set()
        last = writer.append(message(60))
        assert held.count == 2
        assert [answer.first.offset for answer in answers if isinstance(answer, AppendResult)] == list(
            range(1000, 1060)
        )
        assert last.first.offset == 1060


def test_a_group_may_be_larger_than_one_call_of_the_system_takes(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with segment.create() as writer:
        held = HeldFlush(monkeypatch)
        writer.submit(message(0), lambda _: None)
        assert held.begun.wait(TIMEOUT)
        tickets = [writer.submit(message(n)) for n in range(1, 1500)]
        held.go_on.set()
        assert tickets[-1].result().first.offset == 2499
        assert held.count == 2
    assert segment.visible() == [message(n) for n in range(1500)]


def test_a_failing_callback_harms_no_other(segment: OneSegment, caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: AppendOutcome) -> None:
        raise RuntimeError("of the caller's making")

    with segment.create() as writer:
        writer.submit(message(0), fail)
        assert writer.append(message(1)).first.offset == 1001
    assert "a callback of an append failed; the entry 0 is answered" in caplog.text


def test_who_submits_too_much_waits(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(message(0, 1000))
    answers: list[AppendOutcome] = []
    submitted: list[int] = []
    with segment.create(max_pending_bytes=3 * size) as writer:
        held = HeldFlush(monkeypatch)

        def submit() -> None:
            for n in range(6):
                writer.submit(message(n, 1000), answers.append)
                submitted.append(n)

        thread = threading.Thread(target=submit)
        thread.start()
        assert held.begun.wait(TIMEOUT)
        while writer.messages < 4:
            os.sched_yield()
        assert submitted == [0, 1, 2]  # the fourth waits
        held.go_on.set()
        thread.join(TIMEOUT)
        assert submitted == list(range(6))
    assert len(answers) == 6


def test_abandon_fails_what_is_pending(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[AppendOutcome] = []
    writer = segment.create()
    held = HeldFlush(monkeypatch)
    writer.submit(message(0), answers.append)
    assert held.begun.wait(TIMEOUT)
    writer.submit(message(1), answers.append)
    ticket = writer.submit(message(2))
    fenced = Fenced("the lease went to another", "open the topic again")
    queues = EndingQueues(monkeypatch)
    ending = threading.Thread(target=writer.abandon, args=(fenced,))
    ending.start()
    queues.wait_for_refusal()
    held.go_on.set()
    ending.join(TIMEOUT)
    with pytest.raises(Fenced, match="the lease went to another"):
        ticket.result()
    with pytest.raises(Fenced):
        writer.append(message(3))
    # what was being flushed when it was called may still be acknowledged
    assert answers[-1] is fenced
    assert len(answers) == 2
    with segment.recover() as again:
        assert again.entries == 1


def test_a_thread_that_submits_much_commits_it_by_itself(many: ManySegments) -> None:
    answers: list[AppendOutcome] = []
    before = threading.active_count()
    with many.writing(1) as writer:
        for n in range(3):
            writer.submit(message(n), answers.append, commits_later=True)
        writer.commit_here()
        assert threading.active_count() == before
        writer.commit_here()  # nothing waits
        end = many.kernel.next()
        writer.submit(message(3), answers.append, commits_later=True)
        writer.commit_here()  # the flush is under way: its end commits this
        end(None)
        many.kernel.next()(None)
        assert offsets(answers) == [1000, 1001, 1002, 1003]
