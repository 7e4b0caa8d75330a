"""Group commit: flushes that are shared, answers for threads, tasks and callbacks, and a bound on what waits."""

from __future__ import annotations

import os
import threading

import pytest

from storage.errors import Fenced
from storage.log.group_commit import AppendOutcome
from storage.log.segment import AppendResult
from tests.segments import EndingQueues, OneSegment, message

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
