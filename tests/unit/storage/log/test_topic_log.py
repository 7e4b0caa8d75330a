"""The writer of a topic's tail: one at a time, segments that roll, and what a dead or failing writer leaves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from queue import SimpleQueue

import pytest

from storage.environment import Environment
from storage.errors import (
    CompactorError,
    Fenced,
    InvalidRecord,
    LeaseHeld,
    Misconfigured,
    ObjectDamaged,
    ObjectMissing,
    Unavailable,
)
from storage.failpoints import Failpoint
from storage.log import segment_lifecycle
from storage.log.directory import UID_FILE, LogDirectory
from storage.log.group_commit import AppendOutcome
from storage.log.lease_renewer import TICKS, LeaseRenewer
from storage.log.segment import AppendResult
from storage.log.segment_lifecycle import ENTRY_PADDING, roll_open_segment
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import SegmentState
from storage.topic import Topic
from tests.dying import dying_at
from tests.entries import batch, produce, single
from tests.segments import EndingQueues
from tests.workbench import Workbench, content, raw


def policy(bench: Workbench, topic: Topic, name: str, value: object) -> None:
    bench.metadata.policies.change([topic_scope(topic.record)], {name: value})


def segments(bench: Workbench, topic: Topic) -> list[tuple[int, str]]:
    return [(item.first_offset, item.state.value) for item in bench.metadata.segments.of_topic(topic.record.id)]


def test_what_is_appended_is_read_at_once_with_ids_and_offsets(topic: Topic) -> None:
    """L1. A batch takes an offset a message and one entry."""
    with topic.append_log() as log:
        first = log.append(single(b"a", b"1"))
        second = log.append(batch((b"b", b"2"), (b"c", None)))
        messages = raw(topic)
    assert [(m.offset, m.key, m.payload) for m in messages] == [(0, b"a", b"1"), (1, b"b", b"2"), (2, b"c", None)]
    assert [first.first.message_id, second.first.message_id] == [messages[0].message_id, messages[1].message_id]
    assert [(m.message_id.entry_id, m.message_id.batch_index) for m in messages] == [(0, -1), (1, 0), (1, 1)]
    assert (second.first.offset, second.messages) == (1, 2)
    assert topic.last_message_id() == messages[-1].message_id


def test_the_next_writer_goes_on_in_the_same_segment(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    produce(topic, [single(b"b", b"2")])
    assert [(m.offset, m.message_id.entry_id) for m in raw(topic)] == [(0, 0), (1, 1)]
    assert segments(bench, topic) == [(0, "OPEN")]


def test_one_writer_at_a_time(topic: Topic) -> None:
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        with pytest.raises(LeaseHeld, match="is writing to"), topic.append_log(0):
            pass
        waited_for: list[LeaseHeld] = []
        with pytest.raises(LeaseHeld), topic.append_log(2_000, on_held=waited_for.append):
            pass
        assert [str(os.getpid()) in held.message for held in waited_for] == [True], "said once"
        log.append(single(b"b", b"2"))
    assert len(raw(topic)) == 2


def test_a_writer_that_lost_its_lease_in_its_sleep_still_keeps_others_out(bench: Workbench, topic: Topic) -> None:
    """The lock on the file is the fence: no process may recover a segment to which another may still append."""
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        bench.clock.advance(10 * 60_000)
        with pytest.raises(LeaseHeld, match=str(os.getpid())), topic.append_log(0):
            pass
        with pytest.raises(LeaseHeld, match=str(os.getpid())):
            topic.bulk_append(wait_ms=0).append([content((b"x", b"1"))])
        log.append(single(b"b", b"2"))
    assert [m.key for m in raw(topic)] == [b"a", b"b"]


@pytest.fixture
def renewer(bench: Workbench) -> Iterator[LeaseRenewer]:
    """A renewer that renews and polls when a test calls it."""
    with LeaseRenewer(bench.metadata, poll_seconds=3600.0, renew_seconds=3600.0) as created:
        yield created


def lose_lease(bench: Workbench, topic: Topic, renewer: LeaseRenewer) -> list[Future[None]]:
    """Let another process hold the lease for a moment; return the work of the topic's writer that then begins."""
    bench.clock.advance(LEASE_TTL_MS + 1)
    bench.metadata.leases.release(bench.metadata.leases.acquire(topic.record.id, "other:1:ab", LEASE_TTL_MS))
    begun = [work for _ in range(TICKS) for work in renewer.renew_due_leases()]
    assert len(begun) == 1
    return begun


def test_a_fenced_writer_appends_no_more(bench: Workbench, topic: Topic, renewer: LeaseRenewer) -> None:
    with topic.append_log(renewer=renewer) as log:
        log.append(single(b"a", b"1"))
        wait(lose_lease(bench, topic, renewer))
        with pytest.raises(Fenced, match="has lost the lease"):
            log.append(single(b"b", b"2"))
    assert [m.key for m in raw(topic)] == [b"a"]


def test_a_fenced_writer_that_lives_on_keeps_nobody_out(bench: Workbench, topic: Topic, renewer: LeaseRenewer) -> None:
    """It gives up the file when it learns that it lost the lease, and does not wait for its end."""
    with topic.append_log(renewer=renewer) as log:
        log.append(single(b"a", b"1"))
        bench.clock.advance(10 * 60_000)
        with pytest.raises(LeaseHeld, match="is writing to"):
            produce(topic, [single(b"b", b"2")])
        assert not wait(lose_lease(bench, topic, renewer), 30).not_done
        produce(topic, [single(b"b", b"2")])
        for late in (lambda: log.append(single(b"late", b"3")), log.roll):
            with pytest.raises(Fenced, match="has lost the lease"):
                late()
        produce(topic, [single(b"c", b"4")])
    assert [m.key for m in raw(topic)] == [b"a", b"b", b"c"]


def test_what_a_fenced_writer_has_not_written_yet_fails(
    bench: Workbench, topic: Topic, renewer: LeaseRenewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that is being written then is still acknowledged: no other process can have the file before."""
    answers: list[AppendOutcome] = []
    begun, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def held(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(30)
        real(descriptor)

    queues = EndingQueues(monkeypatch)
    with topic.append_log(renewer=renewer) as log:
        monkeypatch.setattr(os, "fdatasync", held)
        log.submit(single(b"a", b"1"), answers.append)
        assert begun.wait(30)
        log.submit(single(b"b", b"2"), answers.append)
        begun_fence = lose_lease(bench, topic, renewer)
        queues.wait_for_refusal()
        go_on.set()
        wait(begun_fence, 30)
        assert [type(answer) for answer in answers] == [AppendResult, Fenced]
    assert [m.key for m in raw(topic)] == [b"a"]


def test_the_look_under_the_lock_tells_lease_and_segment(bench: Workbench, topic: Topic) -> None:
    """Lost leases, and a segment that was rolled by this very lease: a COMMIT whose answer was late."""
    segments, topic_id = bench.metadata.segments, topic.record.id
    produce(topic, [single(b"a", b"1")])
    (segment,) = segments.of_topic(topic_id)
    lease = bench.metadata.leases.acquire(topic_id, "holder", 1000)
    segments.check_open(lease, segment.ledger_id)
    for other in (None, segment.ledger_id + 1):
        with pytest.raises(Fenced, match=f"the segment of ledger {segment.ledger_id} is open"):
            segments.check_open(lease, other)
    roll_open_segment(bench, topic.record, lease)
    segments.check_open(lease, None)
    with pytest.raises(Fenced, match="no segment is open"):
        segments.check_open(lease, segment.ledger_id)
    bench.metadata.leases.release(lease)
    bench.metadata.leases.acquire(topic_id, "other", 1000)
    with pytest.raises(Fenced, match="no longer holds the lease"):
        segments.check_open(lease, None)


def test_segments_roll_by_size(bench: Workbench, topic: Topic) -> None:
    policy(bench, topic, "segment.bytes", 1 << 14)
    produce(topic, [single(b"k%d" % number, b"x" * 6000) for number in range(7)])
    assert segments(bench, topic) == [(0, "ROLLED"), (3, "ROLLED"), (6, "OPEN")]
    assert [m.offset for m in raw(topic)] == list(range(7))
    assert bench.metadata.topics.get(topic.name).next_offset == 6


def test_segments_roll_by_what_they_are_uncompressed(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing holds a segment's messages in memory."""
    from storage.ledger.rows import CompressionType

    policy(bench, topic, "segment.bytes", 1 << 14)
    monkeypatch.setattr(segment_lifecycle, "INFLATION", 2)
    produce(topic, [batch((b"k", b"x" * 40_000), codec=CompressionType.ZSTD) for _ in range(2)])
    assert segments(bench, topic) == [(0, "ROLLED"), (1, "OPEN")]


def test_segments_roll_by_age_also_when_nothing_comes(bench: Workbench, topic: Topic) -> None:
    policy(bench, topic, "segment.ms", 60_000)
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        log.roll_if_due()
        assert segments(bench, topic) == [(0, "OPEN")]
        bench.clock.advance(60_000)
        log.roll_if_due()
        assert segments(bench, topic) == [(0, "ROLLED")]
        log.roll_if_due()
        log.append(single(b"b", b"2"))
    assert segments(bench, topic) == [(0, "ROLLED"), (1, "OPEN")]


def test_a_writer_rolls_when_it_is_asked_to(bench: Workbench, topic: Topic) -> None:
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        bench.metadata.segments.request_roll(topic.record.id)
        log.roll_if_due()
        assert segments(bench, topic) == [(0, "ROLLED")]
        assert not bench.metadata.segments.is_roll_requested(topic.record.id)
        bench.metadata.segments.request_roll(topic.record.id)
        log.roll_if_due()
        assert not bench.metadata.segments.is_roll_requested(topic.record.id), (
            "there was nothing to roll: said all the same"
        )


def test_rolling_an_empty_segment_leaves_nothing(bench: Workbench, topic: Topic) -> None:
    with dying_at(Failpoint.SEGMENT_OPENED):
        produce(topic, [single(b"a", b"1")])
    assert segments(bench, topic) == [(0, "OPEN")]
    with topic.append_log() as log:
        assert log.roll() is None
        assert segments(bench, topic) == []
        assert log.roll() is None
    assert segments(bench, topic) == []
    assert raw(topic) == []


def test_no_segment_is_opened_for_an_entry_that_cannot_be_taken(bench: Workbench, topic: Topic) -> None:
    """Else the next reader and the next writer find an empty one."""
    policy(bench, topic, "max.message.bytes", 1000)
    too_large = single(b"a", b"x" * (1000 + ENTRY_PADDING))
    with topic.append_log() as log:
        for refused in (b"no entry", too_large):
            with pytest.raises(InvalidRecord):
                log.append(refused)
            with pytest.raises(InvalidRecord):
                log.submit(refused, lambda _: None)
    assert segments(bench, topic) == []
    assert not bench.files(topic).log.exists()
    produce(topic, [single(b"a", b"1")])
    assert [m.offset for m in raw(topic)] == [0]


def test_an_import_rolls_the_open_segment_and_goes_on_behind_it(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    bench.append(topic, [content((b"b", b"2"))])
    produce(topic, [single(b"c", b"3")])
    assert [(m.offset, m.key) for m in raw(topic)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    ids = [m.message_id for m in raw(topic)]
    assert ids == sorted(ids)
    assert segments(bench, topic) == [(0, "ROLLED"), (2, "OPEN")]


def test_an_entry_that_is_too_large_is_refused_and_nothing_else_is_harmed(bench: Workbench, topic: Topic) -> None:
    policy(bench, topic, "max.message.bytes", 1000)
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        with pytest.raises(InvalidRecord, match="larger than the limit"):
            log.append(single(b"a", b"x" * (1000 + ENTRY_PADDING)))
        log.append(single(b"b", b"x" * 1000))
    assert [m.offset for m in raw(topic)] == [0, 1]


def test_a_failing_disk_fails_the_append_and_the_next_one_recovers(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _no_disk)
            with pytest.raises(Unavailable):
                log.append(single(b"lost", b"2"))
        third = log.append(single(b"c", b"3"))
    assert [(m.offset, m.key) for m in raw(topic)] == [(0, b"a"), (1, b"c")]
    assert third.first.offset == 1


def test_what_must_not_come_behind_a_failure_is_not_appended(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry fails when the second one is on its way already, and its answer has not been delivered."""
    answers: list[AppendOutcome] = []
    flushing, reported = threading.Event(), threading.Event()

    def failing(descriptor: int) -> None:
        flushing.wait()
        _no_disk(descriptor)

    def answered(answer: AppendOutcome) -> None:
        answers.append(answer)
        reported.set()

    def check() -> None:
        for answer in answers:
            if isinstance(answer, CompactorError):
                raise answer

    def late() -> None:
        assert answers == []
        flushing.set()
        reported.wait()
        broken.undo()

    with topic.append_log() as log:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", failing)
            log.submit(single(b"first", b"1"), answered, check)
            broken.setattr(LogDirectory, "check_space", lambda _: late())
            with pytest.raises(Unavailable):
                log.submit(single(b"second", b"2"), answered, check)
        assert raw(topic) == []
        log.append(single(b"third", b"3"))
    assert [m.key for m in raw(topic)] == [b"third"]
    assert len(answers) == 1


def test_an_event_loop_appends_only_what_need_not_wait(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the first entry, which opens a segment; none while another thread has the log, or rolls, or recovers it."""
    answered: SimpleQueue[AppendOutcome] = SimpleQueue()

    def appends(payload: bytes) -> bool:
        return log.submit_at_once(single(b"k", payload), answered.put, lambda: None)

    policy(bench, topic, "segment.bytes", 16 << 10)
    with topic.append_log() as log:
        assert not appends(b"not yet")
        log.append(single(b"k", b"1"))
        assert appends(b"2")
        assert isinstance(answered.get(timeout=30), AppendResult)
        with monkeypatch.context() as patched:
            patched.setattr(LogDirectory, "is_known_to_have_space", False)
            assert not appends(b"the disk must be measured")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _no_disk)
            with pytest.raises(Unavailable):
                log.append(single(b"k", b"lost"))
        assert not appends(b"the segment must be recovered")
        log.append(single(b"k", b"3"))
        with pytest.raises(Unavailable, match="an entry before it failed"):
            log.submit_at_once(single(b"k", b"refused"), answered.put, _refuse)
        log.append(single(b"k", b"4" * (16 << 10)))
        assert not appends(b"the segment is full")
    assert answered.empty()
    assert [m.payload[:1] for m in raw(topic)] == [b"1", b"2", b"3", b"4"]


def test_an_event_loop_does_not_wait_for_a_thread_that_has_the_log(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    answered: SimpleQueue[AppendOutcome] = SimpleQueue()

    def hold(_: LogDirectory) -> None:
        entered.set()
        assert leave.wait(30)

    with topic.append_log() as log:
        log.append(single(b"k", b"1"))
        with monkeypatch.context() as patched:
            patched.setattr(LogDirectory, "check_space", hold)
            thread = threading.Thread(target=log.append, args=(single(b"k", b"2"),))
            thread.start()
            assert entered.wait(30)
            assert not log.submit_at_once(single(b"k", b"3"), answered.put, lambda: None)
            leave.set()
            thread.join(30)
        assert log.submit_at_once(single(b"k", b"3"), answered.put, lambda: None)
        assert isinstance(answered.get(timeout=30), AppendResult)
    assert [m.payload for m in raw(topic)] == [b"1", b"2", b"3"]


def _refuse() -> None:
    raise Unavailable("an entry before it failed", "send both again")


def _no_disk(_: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_segment_whose_append_failed_is_recovered_before_it_is_rolled(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _no_disk)
            with pytest.raises(Unavailable):
                log.append(single(b"lost", b"2"))
        rolled = log.roll()
        assert rolled is not None
        assert rolled.content is not None
        assert rolled.content.messages == 1
        log.append(single(b"c", b"3"))
    assert segments(bench, topic) == [(0, "ROLLED"), (1, "OPEN")]
    assert [m.key for m in raw(topic)] == [b"a", b"c"]


def test_a_roll_that_cannot_flush_leaves_the_segment_open(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(bench, topic, "flush.messages", 100)
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _no_disk)
            with pytest.raises(Unavailable):
                log.roll()
        assert segments(bench, topic) == [(0, "OPEN")]
        log.append(single(b"b", b"2"))
        assert log.roll() is not None
    assert [m.key for m in raw(topic)] == [b"b"], "what was acknowledged before its flush is lost with the flush"


def test_a_file_without_a_row_is_replaced(bench: Workbench, topic: Topic) -> None:
    """The writer died between the two; nothing in the file was acknowledged."""

    with dying_at(Failpoint.SEGMENT_FILE_CREATED):
        produce(topic, [single(b"a", b"1")])
    assert bench.files(topic).log.exists()
    assert segments(bench, topic) == []
    produce(topic, [single(b"b", b"2")])
    assert [(m.offset, m.key) for m in raw(topic)] == [(0, b"b")]


def test_a_row_without_a_file_is_a_loss_and_named(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    bench.files(topic).log.unlink()
    with pytest.raises(ObjectMissing, match=r"00000000000000000000\.log"):
        produce(topic, [single(b"b", b"2")])
    with pytest.raises(ObjectMissing, match=r"00000000000000000000\.log"):
        raw(topic)


def test_damage_in_what_was_flushed_is_named_and_costs_what_is_damaged_if_that_is_accepted(
    bench: Workbench, topic: Topic
) -> None:
    """No offset and no id is given again, and what is behind the damage is kept."""
    produce(topic, [single(b"a", b"1"), single(b"b", b"2"), batch((b"c", b"3"), (b"d", b"4"))])
    before = raw(topic)
    file = bench.files(topic).log
    data = bytearray(file.read_bytes())
    data[data.index(b"b", 64 + 60)] ^= 1
    file.write_bytes(data)
    with pytest.raises(ObjectDamaged, match=r"00000000000000000000\.log"):
        produce(topic, [single(b"c", b"3")])
    topic.log_manager().roll(topic.record, accept_loss=True)
    produce(topic, [single(b"e", b"5")])
    (remains,) = topic.log_manager().seal_accepting_loss(topic.record)
    assert remains.lost == 1
    messages = raw(topic)
    assert [m.offset for m in messages] == [0, 2, 3, 4]
    assert messages[:-1] == [before[0], *before[2:]]
    assert messages[-1].message_id.ledger_id > before[-1].message_id.ledger_id


def test_another_log_directory_is_told_and_nothing_is_taken_for_empty(
    bench: Workbench, topic: Topic, tmp_path: Path
) -> None:
    produce(topic, [single(b"a", b"1")])
    elsewhere = Topic(
        Environment(bench.metadata, bench.store, bench.clock, LogDirectory(tmp_path / "elsewhere")), topic.record
    )
    with pytest.raises(Misconfigured, match="not one that was written to"):
        list(elsewhere.read())
    with pytest.raises(Misconfigured, match="COMPACTOR_LOG"):
        produce(elsewhere, [single(b"b", b"2")])
    with pytest.raises(Misconfigured, match="COMPACTOR_LOG"):
        elsewhere.bulk_append(wait_ms=0).append([content((b"x", b"1"))])
    assert [m.key for m in raw(topic)] == [b"a"]


def test_a_log_directory_keeps_its_name_and_a_broken_one_is_told(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path / "log")
    assert LogDirectory(tmp_path / "log").uid == directory.uid
    assert LogDirectory(tmp_path / "other").uid != directory.uid
    assert [file.name for file in (tmp_path / "log").iterdir()] == [UID_FILE]
    (tmp_path / "log" / UID_FILE).write_text("nonsense")
    with pytest.raises(Misconfigured, match="32 hex digits"):
        _ = LogDirectory(tmp_path / "log").uid
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="COMPACTOR_LOG"):
        _ = LogDirectory(tmp_path / "file" / "log").uid


def test_states_follow_each_other(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll_and_seal(topic.record)
    (sealed,) = bench.metadata.segments.of_topic(topic.record.id)
    assert sealed.state is SegmentState.SEALED
    assert segments(bench, topic) == [(0, "SEALED")]
