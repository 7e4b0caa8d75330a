"""The writer of a segment: ids, flush policies, group commit, limits, its lock, and a disk that fails."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage.errors import (
    CompactorError,
    Fenced,
    InvalidInput,
    InvalidRecord,
    LeaseHeld,
    Misconfigured,
    StorageFull,
    Unavailable,
)
from storage.failpoints import Failpoint, observed
from storage.ledger import rows
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.group_commit import Answer, PendingAppend
from storage.log.high_watermark import HighWatermark, read_visible_end
from storage.log.segment import AppendResult, FlushPolicy
from storage.log.segment_writer import SegmentWriter
from storage.metadata.records import SegmentContent
from storage.model import MessageId, Position
from tests.clocks import ManualClock
from tests.pulsar_entries import PUBLISHED, encrypted, entry
from tests.segments import EVERY_APPEND, NEVER, PARTITION, OneSegment, batch, message, placed

TIMEOUT = 30.0


@pytest.fixture
def segment(tmp_path: Path) -> OneSegment:
    return OneSegment(tmp_path, clock=ManualClock())


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the file at each fdatasync."""
    sizes: list[int] = []
    real = os.fdatasync

    def record(descriptor: int) -> None:
        real(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", record)
    return sizes


def end_of(segment: OneSegment) -> HighWatermark:
    found = read_visible_end(segment.files.end, segment.header.checksum)
    assert found is not None
    return found


# Ids and content


def test_ids_and_offsets_follow_the_entries(segment: OneSegment) -> None:
    entries = [message(0), batch(5), message(1), entry(encrypted(num_messages_in_batch=9), b"secret"), batch(1)]
    with segment.create() as writer:
        appended = [writer.append(one) for one in entries]
        assert appended == [
            AppendResult(Position(1000, MessageId(7, 0, PARTITION, -1)), 1),
            AppendResult(Position(1001, MessageId(7, 1, PARTITION, 0)), 5),
            AppendResult(Position(1006, MessageId(7, 2, PARTITION, -1)), 1),
            AppendResult(Position(1007, MessageId(7, 3, PARTITION, -1)), 1),
            AppendResult(Position(1008, MessageId(7, 4, PARTITION, 0)), 1),
        ]
        assert appended[1].first.message_id.batch_index == 0
        assert appended[3].first.message_id.batch_index == -1
        assert (writer.next_offset, writer.messages, writer.entries) == (1009, 9, 5)
    read = list(segment.reader().entries())
    assert [placed(one) for one in read] == list(zip(range(5), [1000, 1001, 1006, 1007, 1008], entries, strict=True))


def test_what_it_holds(segment: OneSegment) -> None:
    with segment.create() as writer:
        assert writer.content() is None
        writer.append(message(1, publish_time=PUBLISHED + 5))
        writer.append(batch(4, publish_time=PUBLISHED - 7))
        size = HEADER_BYTES + 2 * FRAME_BYTES + len(message(1)) + len(batch(4))
        expected = SegmentContent(
            last_offset=1004,
            last_message_id=MessageId(7, 1, PARTITION, 3),
            messages=5,
            entries=2,
            logical_bytes=1 + 24,
            min_publish_time=PUBLISHED - 7,
            max_publish_time=PUBLISHED + 5,
            size=size,
        )
        assert writer.content() == expected
        content = writer.content()
        assert content is not None
        assert content.last_message_id.batch_index == 3
        assert (writer.size, writer.logical_bytes) == (size, 25)
        writer.append(message(1))
        content = writer.content()
        assert content is not None
        assert content.last_message_id.batch_index == -1
    assert writer.content() == content
    with segment.recover() as again:
        assert again.content() == content
        assert (again.next_offset, again.entries, again.logical_bytes) == (1006, 3, 26)


def test_appends_of_many_threads_get_ids_once_and_in_their_own_order(segment: OneSegment) -> None:
    threads, each = 8, 40
    got: dict[int, list[AppendResult]] = {n: [] for n in range(threads)}
    with segment.create() as writer:

        def work(number: int) -> None:
            for n in range(each):
                got[number].append(writer.append(batch(1 + (number + n) % 3, number=number * 1000 + n)))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(TIMEOUT)
    read = {stored.entry_id: stored for stored in segment.reader().entries()}
    assert sorted(read) == list(range(threads * each))
    for number, appended in got.items():
        positions = [one.first for one in appended]
        assert positions == sorted(positions)
        for n, one in enumerate(appended):
            stored = read[one.first.message_id.entry_id]
            assert stored.offset == one.first.offset
            assert stored.header is not None
            assert (stored.header.sequence_id, stored.header.messages) == (number * 1000 + n, one.messages)


# Flush policies


def test_an_append_is_flushed_before_it_is_acknowledged(segment: OneSegment, flushes: list[int]) -> None:
    with segment.create() as writer:
        for n in range(3):
            writer.append(message(n))
            assert flushes[-1] == segment.files.log.stat().st_size
            assert end_of(segment) == HighWatermark(flushes[-1], flushes[-1], n + 1, 1001 + n)
    assert len(flushes) == 3  # nothing was left for the close


def test_flush_after_m_messages(segment: OneSegment, flushes: list[int]) -> None:
    with segment.create(FlushPolicy(messages=5)) as writer:
        for count, expected in [(2, 0), (2, 0), (1, 1), (4, 1), (7, 2), (1, 2)]:
            writer.append(batch(count))
            assert len(flushes) == expected
            end = end_of(segment)
            assert end.visible == segment.files.log.stat().st_size
            assert end.flushed == (flushes[-1] if flushes else HEADER_BYTES)
    assert len(flushes) == 3
    assert end_of(segment).flushed == segment.files.log.stat().st_size


def test_flush_after_a_time(segment: OneSegment, flushes: list[int]) -> None:
    clock = segment.clock
    assert isinstance(clock, ManualClock)
    with segment.create(FlushPolicy(messages=None, ms=100_000)) as writer:
        assert not writer.flush_due()
        writer.append(message(0))
        clock.advance(60_000)
        writer.append(message(1))  # counts from the first
        assert not writer.flush_due()
        clock.advance(39_999)
        assert not writer.flush_due()
        clock.advance(1)
        assert writer.flush_due()
        assert len(flushes) == 1
        assert not writer.flush_due()
        clock.advance(100_000)
        assert not writer.flush_due()
        writer.append(message(2))
        clock.advance(-1)
        assert writer.flush_due()  # the clock was set back: nobody knows how long it was
    assert len(flushes) == 2


def test_its_own_thread_flushes_when_it_is_time(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: flushed.set())

    class Later(ManualClock):
        """Each look is later."""

        def now_ms(self) -> int:
            self.advance(1)
            return super().now_ms()

    with OneSegment(segment.folder, clock=Later()).create(FlushPolicy(messages=None, ms=2)) as writer:
        writer.append(message(0))
        assert flushed.wait(TIMEOUT)


def test_without_messages_and_time_only_the_end_flushes(segment: OneSegment, flushes: list[int]) -> None:
    with segment.create(NEVER) as writer:
        for n in range(100):
            writer.append(message(n))
        assert flushes == []
        writer.flush()
        assert len(flushes) == 1
        writer.flush()
        assert len(flushes) == 1
        writer.append(message(100))
    assert flushes[1:] == [segment.files.log.stat().st_size]


@pytest.mark.parametrize("policy", [{"messages": 0}, {"messages": -1}, {"ms": 0}])
def test_a_policy_that_cannot_be_meant(policy: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="cannot be meant"):
        FlushPolicy(**policy)


# Group commit


class HeldFlush:
    """Lets the first fdatasync begin, and end when it is told to."""

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
    answers: list[Answer] = []
    with segment.create() as writer:
        held = HeldFlush(monkeypatch)
        writer.submit(message(0), answers.append)
        assert held.begun.wait(TIMEOUT)
        for n in range(1, 60):
            writer.submit(message(n), answers.append)
        assert answers == []
        assert segment.visible() == []  # written, not flushed: nobody may see it
        held.go_on.set()
        last = writer.append(message(60))
        assert held.count == 2
        assert [one.first.offset for one in answers if isinstance(one, AppendResult)] == list(range(1000, 1060))
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


def test_tasks_are_answered_in_one_call_a_group(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(writer: SegmentWriter) -> tuple[list[AppendResult], int]:
        loop = asyncio.get_running_loop()
        calls: list[Any] = []
        real = loop.call_soon_threadsafe

        def counted(callback: Any, *arguments: Any, **keywords: Any) -> Any:
            calls.append(callback)
            return real(callback, *arguments, **keywords)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        held = HeldFlush(monkeypatch)
        first = writer.append_async(message(0))
        assert held.begun.wait(TIMEOUT)
        others = [writer.append_async(message(n)) for n in range(1, 64)]
        held.go_on.set()
        return [await first, *(await asyncio.gather(*others))], len(calls)

    with segment.create() as writer:
        appended, calls = asyncio.run(main(writer))
    assert [one.first.offset for one in appended] == list(range(1000, 1064))
    assert calls == 2


def test_a_cancelled_task_harms_no_other(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(writer: SegmentWriter) -> AppendResult:
        held = HeldFlush(monkeypatch)
        gone = asyncio.ensure_future(writer.append_async(message(0)))
        other = writer.append_async(message(1))
        assert held.begun.wait(TIMEOUT)
        gone.cancel()
        held.go_on.set()
        return await other

    with segment.create() as writer:
        assert asyncio.run(main(writer)).first.offset == 1001
    assert segment.visible() == [message(0), message(1)]


def test_a_closed_loop_harms_no_other(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    with segment.create() as writer:
        held = HeldFlush(monkeypatch)

        async def leave() -> None:
            writer.append_async(message(0))
            assert held.begun.wait(TIMEOUT)

        asyncio.run(leave())
        held.go_on.set()
        assert writer.append(message(1)).first.offset == 1001


def test_a_failing_callback_harms_no_other(segment: OneSegment, caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: Answer) -> None:
        raise RuntimeError("of the caller's making")

    with segment.create() as writer:
        writer.submit(message(0), fail)
        assert writer.append(message(1)).first.offset == 1001
    assert "a callback of an append failed; the entry 0 is answered" in caplog.text


def test_who_submits_too_much_waits(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(message(0, 1000))
    answers: list[Answer] = []
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
        while writer.pending_bytes <= 3 * size:
            os.sched_yield()
        assert submitted == [0, 1, 2]  # the fourth waits
        assert writer.pending_bytes == 4 * size
        held.go_on.set()
        thread.join(TIMEOUT)
        assert submitted == list(range(6))
    assert len(answers) == 6
    assert writer.pending_bytes == 0


# Limits


def test_too_large_an_entry_is_refused_and_takes_nothing(segment: OneSegment) -> None:
    size = len(message(0, 100))
    with segment.create(max_entry_bytes=size) as writer:
        writer.append(message(0, 100))
        with pytest.raises(InvalidRecord, match=rf"of {size + 1} bytes is larger than the limit of {size}"):
            writer.append(message(0, 101))
        with pytest.raises(InvalidRecord):
            writer.append(b"nonsense")
        assert writer.append(message(1)).first == Position(1001, MessageId(7, 1, PARTITION))


def test_a_segment_has_no_more_offsets_than_a_ledger_rows(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 10)
    with segment.create() as writer:
        writer.append(batch(6))
        with pytest.raises(Unavailable, match="has no offsets left for 5 more messages"):
            writer.append(batch(5))
        assert writer.append(batch(4)).first.offset == 1006


# The lock


def test_a_file_that_is_removed_while_it_is_locked_is_not_written_to(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes old files may come between opening and locking."""
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            segment.files.log.unlink()
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with segment.create() as writer:
        writer.append(message(0))
    assert segment.visible() == [message(0)]
    assert len(calls) == 2


def test_a_second_writer_is_refused_by_name(segment: OneSegment) -> None:
    with segment.create() as writer:
        writer.append(message(0))
        for second in (segment.recover, segment.create):
            with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on .* is writing to the segment .*log: .* try"):
                second()
        assert writer.append(message(1)).first.offset == 1001
    with segment.recover() as again:
        assert again.entries == 2


def test_a_writer_in_another_process_holds_the_file_until_it_dies(segment: OneSegment) -> None:
    code = (
        "import pathlib, sys; from tests.segments import *\n"
        "writer = OneSegment(pathlib.Path(sys.argv[1])).create(); writer.append(message(0))\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(segment.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(LeaseHeld, match=f"process {child.pid} "):
            segment.recover()
        assert segment.visible() == [message(0)]
        child.kill()
    with segment.recover() as writer:
        assert writer.append(message(1)).first.offset == 1001


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


# Ends


def test_a_file_that_no_row_names_is_replaced(segment: OneSegment) -> None:
    with segment.create(index_spacing=100) as writer:
        for n in range(50):
            writer.append(message(n))
    other = OneSegment(segment.folder, ledger_id=8)
    with other.create() as writer:
        assert other.visible() == []
        assert other.files.log.stat().st_size == HEADER_BYTES
        assert writer.append(message(7)).first == Position(1000, MessageId(8, 0, PARTITION))
    assert other.visible() == [message(7)]
    assert other.files.index.stat().st_size == 0


def test_close_commits_what_was_submitted(segment: OneSegment) -> None:
    answers: list[Answer] = []
    writer = segment.create()
    for n in range(100):
        writer.submit(message(n), answers.append)
    writer.close()
    assert len(answers) == 100
    assert all(isinstance(answer, AppendResult) for answer in answers)
    assert len(segment.visible()) == 100
    for late in (lambda: writer.append(message(0)), lambda: writer.submit(message(0), answers.append)):
        with pytest.raises(Unavailable, match="is closed"):
            late()
    writer.close()
    writer.abandon()


def test_abandon_fails_what_is_pending(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = []
    writer = segment.create()
    held = HeldFlush(monkeypatch)
    writer.submit(message(0), answers.append)
    assert held.begun.wait(TIMEOUT)
    writer.submit(message(1), answers.append)
    ticket = writer.submit(message(2))
    fenced = Fenced("the lease went to another", "open the topic again")
    ending = threading.Thread(target=writer.abandon, args=(fenced,))
    ending.start()
    while writer._commits.refusal is None:
        os.sched_yield()
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


def test_the_steps_come_in_order(segment: OneSegment) -> None:
    steps: list[tuple[Failpoint, int]] = []
    with observed(lambda step: steps.append((step, len(segment.visible())))):
        writer = segment.create()
        writer.append(message(0))
        writer.append(message(1))
        writer.close()
    assert steps == [
        (Failpoint.SEGMENT_FILE_CREATED, 0),
        (Failpoint.ENTRIES_WRITTEN, 0),
        (Failpoint.ENTRIES_FLUSHED, 0),
        (Failpoint.ENTRIES_WRITTEN, 1),
        (Failpoint.ENTRIES_FLUSHED, 1),
    ]


# A disk that fails


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
    size, end = segment.files.log.stat().st_size, end_of(segment)
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
    assert end_of(segment) == end
    for late in (writer.flush, lambda: writer.append(message(5))):
        with pytest.raises(kind):
            late()
    writer.close()  # has told whom it concerns
    with segment.recover() as again:
        assert again.cut_bytes == 0
        assert again.append(message(6)).first == Position(1003, MessageId(7, 3, PARTITION))
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
    assert end_of(segment).next_offset == 1001
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
    told = [type(ticket.answer) for ticket in tickets]
    assert told == ([AppendResult] * 4 if where == "told" else [AppendResult] + [Unavailable] * 3)
    assert [type(answer) for answer in answers] == told[:3]
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
