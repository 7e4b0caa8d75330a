"""A writer whose disk fails, or that is interrupted: what is acknowledged stays, all that waits fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from storage.entries.entry import EntryHeader
from storage.errors import CompactorError, Misconfigured, StorageFull, Unavailable
from storage.failpoints import Failpoint
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.group_commit import AppendOutcome
from storage.log.segment import AppendResult, FlushPolicy, LocalSegment
from storage.model import LogPosition, MessageId
from tests.clocks import ManualClock
from tests.failpoint_listeners import observed
from tests.segments import EVERY_APPEND, NEVER, PARTITION, OneSegment, batch, message

TIMEOUT = 30.0


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@contextmanager
def fails(call: str, number: int) -> Iterator[None]:
    """Inside, a call of the system fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, failing(number))
        yield


def short_then_failing(number: int) -> Callable[..., Any]:
    """Writes some bytes, as a disk does that is nearly full, and fails at the next."""
    real, calls = os.pwritev, iter([True])

    def write(descriptor: int, buffers: list[bytes], position: int) -> int:
        if next(calls, False):
            return real(descriptor, [b"".join(buffers)[:25]], position)
        raise OSError(number, os.strerror(number))

    return write


@pytest.fixture(params=[(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, Unavailable)])
def fault(request: pytest.FixtureRequest) -> tuple[int, type[CompactorError]]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("call", ["fdatasync", "pwritev", "rest"])
def test_a_failure_fails_all_that_waits_and_cuts_it_off(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch, fault: tuple[int, type[CompactorError]], call: str
) -> None:
    number, kind = fault
    answers: list[AppendOutcome] = []
    writer = segment.create()
    for n in range(3):
        writer.append(message(n))
    size, end = segment.files.log.stat().st_size, segment.end()
    with monkeypatch.context() as patch:
        if call == "rest":
            patch.setattr(os, "pwritev", short_then_failing(number))
            patch.setattr(os, "pwrite", failing(number))
        else:
            patch.setattr(os, call, failing(number))
        tickets = [writer.submit(message(n)) for n in (3, 4)]
        tickets[1].done = answers.append
        for ticket in tickets:
            with pytest.raises(kind, match=f"cannot write to the segment {segment.files.log}"):
                ticket.result()
    assert [type(answer) for answer in answers] == [kind]
    assert writer.failed
    assert segment.files.log.stat().st_size == size
    assert segment.end() == end
    for late in (lambda: writer.append(message(5)), writer.finish):
        with pytest.raises(kind):
            late()
    writer.close()  # its appends have raised the error
    with segment.recover() as again:
        assert segment.files.log.stat().st_size == size
        assert again.append(message(6)).first == LogPosition(1003, MessageId(7, 3, PARTITION))
    assert segment.visible() == [*map(message, range(3)), message(6)]


def test_a_full_disk_takes_back_nothing_acknowledged(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was acknowledged before it was flushed."""
    writer = segment.create(NEVER)
    writer.append(message(0))
    with fails("pwritev", errno.ENOSPC), pytest.raises(StorageFull):
        writer.append(message(1))
    assert segment.visible() == [message(0)]
    writer.close()
    with segment.recover() as again:
        assert again.entries == 1


def test_a_flush_that_fails_leaves_what_was_flushed(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the other bytes in the kernel is unknown: it may drop them, and reports that only once."""
    with segment.create() as closed:
        closed.append(message(0))
    writer = segment.recover(NEVER)
    writer.append(batch(5))
    assert len(segment.visible()) == 2
    with fails("fdatasync", errno.EIO), pytest.raises(Unavailable):
        writer.finish()
    assert segment.visible() == [message(0)]
    assert segment.end().next_offset == 1001
    writer.close()
    with segment.recover() as again:
        assert again.next_offset == 1001


@pytest.mark.parametrize("policy", [EVERY_APPEND, NEVER])
def test_a_close_that_cannot_flush_says_so(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch, policy: FlushPolicy
) -> None:
    writer = segment.create(policy)
    ticket = writer.submit(message(0))
    with fails("fdatasync", errno.ENOSPC), pytest.raises(StorageFull):
        writer.close()
    if policy is EVERY_APPEND:
        with pytest.raises(StorageFull):
            ticket.result()
    with segment.recover() as again:  # the lock went all the same
        assert again.entries == 0


def test_a_flush_of_its_own_thread_that_fails_ends_the_writer(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = segment.clock
    assert isinstance(clock, ManualClock)
    times = count(clock.now_ms(), 100_000)
    monkeypatch.setattr(clock, "now_ms", lambda: next(times))
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    writer = segment.create(FlushPolicy(messages=None, ms=100_000))
    writer.append(message(0))
    while not writer.failed:
        os.sched_yield()
    with pytest.raises(Unavailable, match="cannot write to the segment"):
        writer.append(message(1))
    writer.close()


def test_an_interrupted_append_ends_the_writer_and_stays_an_interrupt(segment: OneSegment) -> None:
    def interrupt(step: Failpoint) -> None:
        if step is Failpoint.ENTRIES_WRITTEN:
            raise KeyboardInterrupt

    writer = segment.create()
    other = writer.submit(message(0))
    with observed(interrupt), pytest.raises(KeyboardInterrupt):
        writer.append(message(1))
    with pytest.raises(Unavailable, match="was cut off by KeyboardInterrupt"):
        other.result()
    assert segment.visible() == []
    writer.close()
    with segment.recover() as again:
        assert again.entries == 0


@pytest.mark.parametrize("where", ["answered", "delivered"])
def test_an_interrupt_after_the_flush_leaves_nobody_without_an_answer(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """An entry that was flushed without an answer may be reported as failed; an answer does not change."""

    def interrupt() -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt

    def placed(local: LocalSegment, entry_id: int, offset: int, header: EntryHeader) -> LogPosition:
        if entry_id == 1 and where == "answered":
            interrupt()
        return real(local, entry_id, offset, header)

    def done(answer: AppendOutcome) -> None:
        answers.append(answer)
        if where == "delivered":
            interrupt()

    interrupts, answers, real = iter([True]), [], LocalSegment.first_position
    monkeypatch.setattr(LocalSegment, "first_position", placed)
    writer = segment.create()
    tickets = [writer.submit(message(n)) for n in range(4)]
    for ticket in tickets[:3]:
        ticket.done = done
    with pytest.raises(KeyboardInterrupt):
        tickets[3].result()
    reported = [type(ticket.answer) for ticket in tickets]
    assert reported == ([AppendResult] * 4 if where == "delivered" else [AppendResult] + [Unavailable] * 3)
    assert [type(answer) for answer in answers] == reported[:3]
    with pytest.raises(Unavailable, match="was cut off by KeyboardInterrupt"):
        writer.append(message(9))
    writer.close()
    assert segment.visible() == [message(n) for n in range(4)]


def test_an_append_that_two_interrupts_took_out_of_the_queue_gets_an_answer(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committer is interrupted, and again while it cuts the file back."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with segment.create() as writer:
        ticket, interrupted = writer.submit(message(0)), writer.submit(message(1))
        with monkeypatch.context() as patch:
            patch.setattr(ActiveSegmentFile, "truncate_to_acknowledged", interrupt)
            patch.setattr(os, "fdatasync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                interrupted.result()
        with pytest.raises(Unavailable, match="an append was cut off"):
            ticket.result()


def test_an_index_that_cannot_be_written_is_done_without(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with segment.create(index_spacing=50) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(errno.ENOSPC))
            for n in range(5):
                writer.append(message(n))
        writer.append(message(5))
    assert segment.files.index.stat().st_size == 0
    assert "the index of" in caplog.text
    assert [stored.entry_id for stored in segment.reader().entries(1004)] == [4, 5]


def test_a_folder_that_may_not_be_written_is_told(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(Misconfigured, match="cannot create the segment"):
        segment.create()


@pytest.mark.parametrize("end", ["close", "abandon", "failed create"])
def test_the_lock_goes_with_the_writer(segment: OneSegment, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end == "failed create":
        with fails("fsync", errno.EIO), pytest.raises(Unavailable):
            segment.create()
    else:
        getattr(segment.create(), end)()
    before = len(os.listdir("/proc/self/fd"))
    with segment.create() as writer:
        writer.append(message(0))
    assert len(os.listdir("/proc/self/fd")) == before
