"""A writer whose disk fails, or that is interrupted: what is acknowledged stays, all that waits fails."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from storage.errors import CompactorError, Misconfigured, StorageFull, Unavailable
from storage.failpoints import Failpoint, observed
from storage.log.group_commit import Answer, PendingAppend
from storage.log.segment import AppendResult, FlushPolicy
from storage.log.segment_writer import SegmentWriter
from storage.model import LogPosition, MessageId
from tests.clocks import ManualClock
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
    answers: list[Answer] = []
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
        writer._commits._pending[1].done = answers.append
        for ticket in tickets:
            with pytest.raises(kind, match=f"cannot write to the segment {segment.files.log}"):
                ticket.result()
    assert [type(answer) for answer in answers] == [kind]
    assert writer.failed
    assert segment.files.log.stat().st_size == size
    assert segment.end() == end
    for late in (writer.flush, lambda: writer.append(message(5))):
        with pytest.raises(kind):
            late()
    writer.close()  # has told whom it concerns
    with segment.recover() as again:
        assert again.cut_bytes == 0
        assert again.append(message(6)).first == LogPosition(1003, MessageId(7, 3, PARTITION))
    assert segment.visible() == [*map(message, range(3)), message(6)]


def test_tasks_are_told_of_a_failure(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(writer: SegmentWriter) -> list[BaseException | AppendResult]:
        submitted = threading.Event()

        def fail(_: int) -> None:
            assert submitted.wait(TIMEOUT)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fdatasync", fail)
        appends = [writer.append_async(message(n)) for n in range(3)]
        submitted.set()
        return await asyncio.gather(*appends, return_exceptions=True)

    writer = segment.create()
    failures = asyncio.run(main(writer))
    assert [type(failure) for failure in failures] == [StorageFull] * 3
    assert len(set(map(id, failures))) == 3  # each has a traceback of its own
    writer.close()


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
    """What the kernel holds of the rest cannot be known: it may drop it, and it says so only once."""
    writer = segment.create(NEVER)
    writer.append(message(0))
    writer.flush()
    writer.append(batch(5))
    assert len(segment.visible()) == 2
    with fails("fdatasync", errno.EIO), pytest.raises(Unavailable):
        writer.flush()
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
    writer = segment.create(FlushPolicy(messages=None, ms=100_000))
    writer.append(message(0))
    clock.advance(100_000)
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    writer._commits.wake()
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


@pytest.mark.parametrize("where", ["answered", "told"])
def test_an_interrupt_after_the_flush_leaves_nobody_without_an_answer(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """What was flushed and not answered yet may be told as failed; what was answered stays so."""

    def interrupt() -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt

    def answered(writer: SegmentWriter, ticket: PendingAppend) -> AppendResult:
        if ticket.entry_id == 1 and where == "answered":
            interrupt()
        return real(writer, ticket)

    def done(answer: Answer) -> None:
        answers.append(answer)
        if where == "told":
            interrupt()

    interrupts, answers, real = iter([True]), [], SegmentWriter._appended
    monkeypatch.setattr(SegmentWriter, "_appended", answered)
    writer = segment.create()
    tickets = [writer.submit(message(n)) for n in range(4)]
    for ticket in tickets[:3]:
        ticket.done = done
    with pytest.raises(KeyboardInterrupt):
        tickets[3].result()
    reported = [type(ticket.answer) for ticket in tickets]
    assert reported == ([AppendResult] * 4 if where == "told" else [AppendResult] + [Unavailable] * 3)
    assert [type(answer) for answer in answers] == reported[:3]
    with pytest.raises(Unavailable, match="was cut off by KeyboardInterrupt"):
        writer.append(message(9))
    assert writer.pending_bytes == 0
    writer.close()
    assert segment.visible() == [message(n) for n in range(4)]


def test_an_append_that_an_interrupt_took_out_of_the_queue_ends_all_the_same(segment: OneSegment) -> None:
    with segment.create() as writer:
        ticket = writer.submit(message(0))
        writer._commits._pending.clear()
        with pytest.raises(Unavailable, match="cut off"):
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
