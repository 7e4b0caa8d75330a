"""The writer of a segment: ids, flush policies, limits, its lock, its end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from storage.errors import InvalidInput, InvalidRecord, LeaseHeld, Unavailable
from storage.failpoints import Failpoint
from storage.ledger import rows
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.group_commit import AppendOutcome
from storage.log.high_watermark import HighWatermark
from storage.log.segment import AppendResult, FlushPolicy
from storage.metadata.records import SegmentContent
from storage.model import LogPosition, MessageId
from tests.clocks import ManualClock
from tests.failpoint_listeners import observed
from tests.pulsar_entries import PUBLISHED, encrypted, entry, metadata
from tests.segments import NEVER, PARTITION, OneSegment, batch, message, placed

TIMEOUT = 30.0


# Ids and content


def test_ids_and_offsets_follow_the_entries(segment: OneSegment) -> None:
    entries = [message(0), batch(5), message(1), entry(encrypted(num_messages_in_batch=9), b"secret"), batch(1)]
    with segment.create() as writer:
        appended = [writer.append(item) for item in entries]
        assert appended == [
            AppendResult(LogPosition(1000, MessageId(7, 0, PARTITION, -1)), 1),
            AppendResult(LogPosition(1001, MessageId(7, 1, PARTITION, 0)), 5),
            AppendResult(LogPosition(1006, MessageId(7, 2, PARTITION, -1)), 1),
            AppendResult(LogPosition(1007, MessageId(7, 3, PARTITION, -1)), 1),
            AppendResult(LogPosition(1008, MessageId(7, 4, PARTITION, 0)), 1),
        ]
        assert appended[1].first.message_id.batch_index == 0
        assert appended[3].first.message_id.batch_index == -1
        assert (writer.next_offset, writer.messages, writer.entries) == (1009, 9, 5)
    read = list(segment.reader().entries())
    assert [placed(item) for item in read] == list(zip(range(5), [1000, 1001, 1006, 1007, 1008], entries, strict=True))


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
            logical_bytes=1,
            min_publish_time=PUBLISHED - 7,
            max_publish_time=PUBLISHED + 5,
            size=size,
        )
        assert writer.content() == expected
        content = writer.content()
        assert content is not None
        assert content.last_message_id.batch_index == 3
        assert (writer.size, writer.logical_bytes) == (size, 1)
        writer.append(message(1))
        content = writer.content()
        assert content is not None
        assert content.last_message_id.batch_index == -1
    assert writer.content() == content
    with segment.recover() as again:
        assert again.content() == content
        assert (again.next_offset, again.entries, again.logical_bytes) == (1006, 3, 2)


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
        positions = [item.first for item in appended]
        assert positions == sorted(positions)
        for n, result in enumerate(appended):
            stored = read[result.first.message_id.entry_id]
            assert stored.offset == result.first.offset
            assert stored.header is not None
            assert (stored.header.sequence_id, stored.header.messages) == (number * 1000 + n, result.messages)


# Flush policies


def test_an_append_is_flushed_before_it_is_acknowledged(segment: OneSegment, flushes: list[int]) -> None:
    with segment.create() as writer:
        for n in range(3):
            writer.append(message(n))
            assert flushes[-1] == segment.files.log.stat().st_size
            assert segment.end() == HighWatermark(flushes[-1], flushes[-1], n + 1, 1001 + n, n + 1)
    assert len(flushes) == 3  # nothing was left for the close


def test_flush_after_m_messages(segment: OneSegment, flushes: list[int]) -> None:
    with segment.create(FlushPolicy(messages=5)) as writer:
        for count, expected in [(2, 0), (2, 0), (1, 1), (4, 1), (7, 2), (1, 2)]:
            writer.append(batch(count))
            assert len(flushes) == expected
            end = segment.end()
            assert end.visible_bytes == segment.files.log.stat().st_size
            assert end.flushed_bytes == (flushes[-1] if flushes else HEADER_BYTES)
    assert len(flushes) == 3
    assert segment.end().flushed_bytes == segment.files.log.stat().st_size


def test_flush_after_a_time(segment: OneSegment, flushes: list[int]) -> None:
    clock = segment.clock
    assert isinstance(clock, ManualClock)
    with segment.create(FlushPolicy(messages=None, ms=100_000)) as writer:
        assert not writer.flush_if_due()
        writer.append(message(0))
        clock.advance(60_000)
        writer.append(message(1))  # counts from the first
        assert not writer.flush_if_due()
        clock.advance(39_999)
        assert not writer.flush_if_due()
        clock.advance(1)
        assert writer.flush_if_due()
        assert len(flushes) == 1
        assert not writer.flush_if_due()
        clock.advance(100_000)
        assert not writer.flush_if_due()
        writer.append(message(2))
        clock.advance(-1)
        assert writer.flush_if_due()  # the clock was set back: the time that passed is unknown
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
        writer.finish()
        assert len(flushes) == 1
    assert flushes == [segment.files.log.stat().st_size]


@pytest.mark.parametrize("policy", [{"messages": 0}, {"messages": -1}, {"ms": 0}])
def test_a_policy_that_cannot_be_meant(policy: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="cannot be meant"):
        FlushPolicy(**policy)


# Limits


def test_too_large_an_entry_is_refused_and_takes_nothing(segment: OneSegment) -> None:
    size = len(message(0, 100))
    with segment.create(max_entry_bytes=size) as writer:
        writer.append(message(0, 100))
        with pytest.raises(InvalidRecord, match=rf"of {size + 1} bytes is larger than the limit of {size}"):
            writer.append(message(0, 101))
        with pytest.raises(InvalidRecord):
            writer.append(b"nonsense")
        assert writer.append(message(1)).first == LogPosition(1001, MessageId(7, 1, PARTITION))


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
    """A process that removes old files may come between opening and locking."""
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


# Ends


def test_a_file_that_no_row_names_is_replaced(segment: OneSegment) -> None:
    with segment.create(index_spacing=100) as writer:
        for n in range(50):
            writer.append(message(n))
    other = OneSegment(segment.folder, ledger_id=8)
    with other.create() as writer:
        assert other.visible() == []
        assert other.files.log.stat().st_size == HEADER_BYTES
        assert writer.append(message(7)).first == LogPosition(1000, MessageId(8, 0, PARTITION))
    assert other.visible() == [message(7)]
    assert other.files.index.stat().st_size == 0


def test_close_commits_what_was_submitted(segment: OneSegment) -> None:
    answers: list[AppendOutcome] = []
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


def test_an_entry_that_claims_more_than_its_bytes_hold_is_refused(segment: OneSegment) -> None:
    """33 bytes must not become a quarter of a million rows when they are sealed."""
    claims = metadata(compression=2, uncompressed_size=6 << 18, num_messages_in_batch=1 << 18)
    with segment.create() as writer:
        with pytest.raises(InvalidRecord, match="claims"):
            writer.append(entry(claims, b"x"))
        assert writer.append(message(0)).first.offset == 1000
