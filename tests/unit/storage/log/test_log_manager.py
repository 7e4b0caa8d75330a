"""Rolling, sealing and sweeping: the same messages before and after, whatever other processes do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.environment import Environment
from storage.errors import ErrorText, Fenced, LeaseHeld, Misconfigured, ObjectDamaged, SegmentNotLocal, Unavailable
from storage.failpoints import Failpoint
from storage.ledger.rows import CompressionType, RowType
from storage.log.directory import LogDirectory
from storage.log.log_manager import ROLL_WAIT_MS, SEALER_DEAD_MS, LogManager
from storage.metadata.policy_store import BROKER, topic_scope
from storage.metadata.records import MAX_SEALING_TRIES, Attempt, Lease
from storage.metadata.stores import LeaseStore
from storage.owner import new_owner_name
from storage.topic import Topic
from tests.entries import batch, produce, single
from tests.failpoint_listeners import observed
from tests.segments import flip
from tests.workbench import Workbench, content, raw


def test_sealing_changes_nothing_that_is_read(bench: Workbench, topic: Topic) -> None:
    """Ids, offsets, payloads, batches in every codec (P7: a null value does not drop its batch)."""
    produce(topic, [single(b"a", b"1", event_time=7), single(None, b"no key"), single(b"gone", None)])
    produce(topic, [batch((b"b", b"2"), (b"c", None), (b"", b"3"), codec=codec) for codec in CompressionType])
    before = raw(topic)
    assert len(before) == 3 + 3 * len(CompressionType)
    (ledger,) = topic.log_manager().roll_and_seal(topic.record)
    assert raw(topic) == before
    assert topic.snapshot().segments == ()
    assert (ledger.first_offset, ledger.last_offset, ledger.messages) == (0, len(before) - 1, len(before))
    assert ledger.entries == 3 + len(CompressionType)
    assert topic.newest_value(b"b") == before[-3]


def test_whole_entries_are_sealed_whole_and_pass_through_compaction(bench: Workbench, topic: Topic) -> None:
    """P8: a batch that cannot be decoded is one row, its other offsets are never delivered; so is an encrypted one."""
    good = batch((b"a", b"1"), (b"a", b"2"))
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, num_messages_in_batch=3)
    broken = _entry(metadata, b"\xff" * 40)
    metadata.encryption_keys.add(key="k", value=b"v")
    encrypted = _entry(metadata, b"secret")
    produce(topic, [good, broken, encrypted, single(b"a", b"3")])
    before = raw(topic)
    assert [m.offset for m in before] == [0, 1, 2, 5, 6]
    topic.log_manager().roll_and_seal(topic.record)
    assert raw(topic) == before
    table = [row for batch_ in topic.read() for row in batch_.to_pylist()]
    whole = [row["payload"] for row in table if row["slot"] == RowType.WHOLE_ENTRY]
    assert whole == [broken, encrypted]
    bench.compact(topic)
    assert [m.offset for m in topic.messages(read_compacted=True)] == [2, 5, 6]


def _entry(metadata: MessageMetadata, payload: bytes) -> bytes:
    from storage.checksums import crc32c

    described = metadata.SerializeToString()
    covered = len(described).to_bytes(4, "big") + described + payload
    return b"\x0e\x01" + crc32c(covered).to_bytes(4, "big") + covered


def test_an_import_behind_an_unsealed_segment_is_not_compacted_before_it(
    bench: Workbench, topic: Topic, tmp_path: Path
) -> None:
    """A horizon behind the segment would pass over what it holds."""
    produce(topic, [single(b"a", b"old"), single(b"only", b"here")])
    bench.append(topic, [content((b"a", b"new"))])
    elsewhere = replace(bench, log=LogDirectory(tmp_path / "another machine's"))
    with pytest.raises(SegmentNotLocal):
        elsewhere.compactor().compact(topic.name)
    assert topic.snapshot().horizon is None, "nothing may be compacted yet"
    bench.compact(topic)
    assert {m.key: m.payload for m in topic.messages(read_compacted=True)} == {b"only": b"here", b"a": b"new"}


def test_compaction_asks_a_writer_to_roll(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        log.append(single(b"a", b"2"))
        # its own thread looks as well, but when, this clock does not know
        monkeypatch.setattr(bench.clock, "wait", lambda _: log.roll_if_due())
        outcome = bench.compact(topic)
        assert outcome.compacted_ledger_id is not None
        log.append(single(b"b", b"3"))
        assert [m.payload for m in topic.messages(read_compacted=True)] == [b"2", b"3"]
    assert bench.segment_states(topic) == ["SEALED", "OPEN"]


def test_a_writer_that_does_not_answer_is_named(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.log.topic_log.POLL_SECONDS", 3600.0)
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        with pytest.raises(LeaseHeld, match="was asked to roll the segment"):
            bench.compact(topic)
        assert topic.snapshot().horizon is None
    bench.compact(topic)
    assert topic.snapshot().horizon is not None


@pytest.mark.parametrize("slow_call", [1, 2])
def test_a_slow_database_takes_nothing_of_the_time_to_roll(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, slow_call: int
) -> None:
    """Attempts to take the lease block for longer than a writer may take: before the request, or while it rolls."""
    monkeypatch.setattr("storage.log.topic_log.POLL_SECONDS", 3600.0)
    acquire, calls, waits = LeaseStore.acquire, 0, 0

    def slow(*arguments: Any) -> Lease:
        nonlocal calls
        calls += 1
        if calls == slow_call:
            bench.clock.advance(ROLL_WAIT_MS)
            if slow_call == 2:
                log.roll_if_due()
        return acquire(*arguments)

    def wait(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            log.roll_if_due()

    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        monkeypatch.setattr(LeaseStore, "acquire", slow)
        monkeypatch.setattr(bench.clock, "wait", wait)
        topic.log_manager().roll(topic.record)
        assert bench.segment_states(topic) == ["ROLLED"]


def test_what_lies_in_ledgers_is_compacted_though_the_tail_cannot_be_rolled(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.append(topic, [content((b"a", b"1"))])
    monkeypatch.setattr("storage.log.topic_log.POLL_SECONDS", 3600.0)
    with topic.append_log() as log:
        log.append(single(b"a", b"2"))
        run = bench.compact(topic).run
    assert run is not None
    assert "was asked to roll" in str(run.skipped_tail_error)
    assert [m.payload for m in topic.messages(read_compacted=True)] == [b"1", b"2"]


def test_settling_ends_though_the_writer_rolls_faster_than_it_seals(bench: Workbench, topic: Topic) -> None:
    """The segments that are rolled at its start are sealed; later ones are left to the next call."""
    rolled = 0
    with topic.append_log() as log:

        def roll_one_more(step: Failpoint) -> None:
            nonlocal rolled
            if step is Failpoint.SEGMENT_SEALED and rolled < 9:
                rolled += 1
                log.append(single(b"more", b"%d" % rolled))
                log.roll()

        for number in range(2):
            log.append(single(b"k", b"%d" % number))
            log.roll()
        with observed(roll_one_more):
            settled = topic.log_manager().roll_and_seal(topic.record)
    assert [ledger.first_offset for ledger in settled] == [0, 1]
    assert bench.segment_states(topic) == ["SEALED", "SEALED", "ROLLED", "ROLLED"]


def test_a_sealer_that_is_waited_for_in_vain_is_named(bench: Workbench, topic: Topic) -> None:
    """And only for what it has claimed: another segment is sealed meanwhile."""
    for number in range(2):
        produce(topic, [single(b"k", b"%d" % number)])
        topic.log_manager().roll(topic.record)
    claimed = bench.metadata.sealing.claim(topic.record.id, "the slow one", bench.log.uid, SEALER_DEAD_MS)
    assert claimed is not None
    with pytest.raises(
        LeaseHeld, match=r"segment 1 .* is being sealed by the slow one, .* last heard of 100\d\d ms ago"
    ):
        topic.log_manager().roll_and_seal(topic.record)
    assert bench.segment_states(topic) == ["ROLLED", "SEALED"]


def test_a_segment_that_its_sealer_let_go_at_the_last_moment_is_not_said_to_be_claimed(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)
    claimed = bench.metadata.sealing.claim(topic.record.id, "the slow one", bench.log.uid, SEALER_DEAD_MS)
    assert claimed is not None
    attempt_id = claimed[1].attempt_id
    attempts = bench.metadata.attempts.of_topic

    def after_release(topic_id: int) -> list[Attempt]:
        bench.metadata.attempts.finish(attempt_id)
        return attempts(topic_id)

    monkeypatch.setattr(bench.metadata.attempts, "of_topic", after_release)
    with pytest.raises(LeaseHeld, match="its sealer released it"):
        topic.log_manager().roll_and_seal(topic.record, wait_ms=0)


@pytest.mark.parametrize(
    "died_at", [Failpoint.SEAL_CLAIMED, Failpoint.IMPORT_ROWS_WRITTEN, Failpoint.SEAL_INSIDE_COMMIT]
)
def test_a_sealer_that_died_is_followed_by_another_when_its_claim_ends(
    bench: Workbench, topic: Topic, died_at: Failpoint
) -> None:
    class Died(BaseException):
        pass

    def die(step: Failpoint) -> None:
        if step is died_at:
            raise Died

    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)
    before = raw(topic)
    attempts = bench.metadata.attempts.of_topic(topic.record.id)
    with observed(die), pytest.raises(Died):
        list(LogManager(bench, "dying").seal(topic.record))
    assert raw(topic) == before
    for attempt in bench.metadata.attempts.of_topic(topic.record.id):
        if attempt not in attempts:  # a process that dies does not say so: take the word back
            _unfinish(bench, attempt.attempt_id)
    assert list(LogManager(bench, "next").seal(topic.record)) == [], "it may live"
    bench.clock.advance(SEALER_DEAD_MS + 1)
    (ledger,) = LogManager(bench, "next").seal(topic.record)
    assert raw(topic) == before
    assert [item.ledger_id for item in topic.snapshot().ledgers] == [ledger.ledger_id]


def test_a_segment_that_its_sealers_die_over_is_given_up(bench: Workbench, topic: Topic) -> None:
    """And tried again by hand; others are sealed all the same."""
    for number in range(2):
        produce(topic, [single(b"k", b"%d" % number)])
        topic.log_manager().roll(topic.record)
    before = raw(topic)
    for _ in range(MAX_SEALING_TRIES):
        claimed = bench.metadata.sealing.claim(topic.record.id, "killed", bench.log.uid, SEALER_DEAD_MS, 1)
        assert claimed is not None
        with pytest.raises(LeaseHeld, match="is being sealed by killed"):
            topic.log_manager().roll_and_seal(topic.record, wait_ms=0)
        bench.clock.advance(SEALER_DEAD_MS)
    given_up = r"segment 1 .*\(1 messages, \d+ bytes\) is not sealed any more: none of 5 tries finished"
    with pytest.raises(Misconfigured, match=given_up):
        list(topic.log_manager().seal(topic.record))
    with pytest.raises(Misconfigured, match=given_up):
        bench.compact(topic)
    assert bench.segment_states(topic) == ["ROLLED", "SEALED"]
    assert bench.metadata.metrics.counts().abandoned_segments == 1
    assert raw(topic) == before
    (ledger,) = topic.log_manager().seal(topic.record, retry_abandoned=True)
    assert (ledger.ledger_id, raw(topic)) == (1, before)
    assert bench.metadata.metrics.counts().abandoned_segments == 0


@pytest.mark.parametrize(
    ("error", "tries"), [(MemoryError("no memory"), 1), (Unavailable("the store is away", "try again"), 0)]
)
def test_a_try_counts_if_memory_runs_out_and_not_if_the_store_is_away(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("storage.log.log_manager.Sealer.seal", fail)
    for number in range(1, MAX_SEALING_TRIES + 1):
        with pytest.raises(type(error)):
            list(topic.log_manager().seal(topic.record))
        (segment,) = bench.metadata.segments.of_topic(topic.record.id)
        assert segment.sealing_tries == number * tries
    with pytest.raises(Misconfigured if tries else Unavailable):
        list(topic.log_manager().seal(topic.record))


def test_a_try_does_not_count_if_the_database_is_away_and_the_process_lives(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)

    def away(*_: object) -> None:
        raise Unavailable("the database is away", "try again")

    for _ in range(MAX_SEALING_TRIES + 1):
        with monkeypatch.context() as patch:
            for call in ("seal", "release"):
                patch.setattr(bench.metadata.sealing, call, away)
            with pytest.raises(Unavailable):
                list(topic.log_manager().seal(topic.record))
        (segment,) = bench.metadata.segments.of_topic(topic.record.id)
        assert segment.sealing_tries == 1
        bench.clock.advance(SEALER_DEAD_MS)
    assert [item.ledger_id for item in topic.log_manager().seal(topic.record)] == [1]


def test_a_last_try_that_stood_still_is_no_reason_to_give_up(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)
    for holder in [*["killed"] * (MAX_SEALING_TRIES - 1), new_owner_name()]:
        assert bench.metadata.sealing.claim(topic.record.id, holder, bench.log.uid, SEALER_DEAD_MS) is not None
        bench.clock.advance(SEALER_DEAD_MS)
    assert [item.ledger_id for item in topic.log_manager().seal(topic.record)] == [1]


@pytest.mark.slow
def test_what_is_large_or_killed_a_sealer_is_left_to_the_process_for_it(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that seals by itself could die of it, and the next one, too."""
    monkeypatch.setattr("storage.log.log_manager.SMALL_BYTES", 1000)
    for size in (1, 1, 2000):
        produce(topic, [single(b"k", b"x" * size)])
        topic.log_manager().roll(topic.record)
    assert bench.metadata.sealing.claim(topic.record.id, "killed", bench.log.uid, SEALER_DEAD_MS, 1) is not None
    bench.clock.advance(SEALER_DEAD_MS)
    woken: list[list[str]] = []

    def wake() -> None:
        woken.append(bench.segment_states(topic))
        if len(woken) == 2:
            list(topic.log_manager().seal(topic.record))

    service = replace(bench, log=replace(bench.log, wake_sealer=wake))
    with pytest.raises(LeaseHeld, match=r"segment 1 .* is being sealed by killed"):
        LogManager(service, "leader").roll_and_seal(topic.record)
    LogManager(service, "leader").roll_and_seal(topic.record)
    assert woken == [["ROLLED", "SEALED", "ROLLED"]] * 2
    assert bench.segment_states(topic) == ["SEALED"] * 3


def _unfinish(bench: Workbench, attempt_id: str) -> None:
    from sqlalchemy import text

    with bench.metadata.database.write() as connection:
        connection.execute(text("update attempts set finished_at = null where attempt_id = :id"), {"id": attempt_id})


def test_of_two_sealers_one_commits(bench: Workbench, topic: Topic) -> None:
    clock = bench.clock
    produce(topic, [single(b"a", b"1"), single(b"b", b"2")])
    topic.log_manager().roll(topic.record)
    before = raw(topic)
    other: list[int] = []

    def overtaken(step: Failpoint) -> None:
        if step is Failpoint.IMPORT_INDEX_WRITTEN and not other:
            other.append(0)
            clock.advance(SEALER_DEAD_MS + 1)  # asleep for that long
            other[0] = len(list(LogManager(bench, "other").seal(topic.record)))

    with observed(overtaken), pytest.raises(Fenced):
        list(LogManager(bench, "slow").seal(topic.record))
    assert other == [1]
    assert raw(topic) == before
    assert len(topic.snapshot().ledgers) == 1


def test_a_damaged_rolled_segment_is_named_and_stays(bench: Workbench, topic: Topic) -> None:
    """L2: never a silent gap."""
    produce(topic, [single(b"a", b"1"), single(b"b", b"2")])
    topic.log_manager().roll(topic.record)
    file = bench.files(topic).log
    good = file.read_bytes()
    file.write_bytes(good[:-3] + b"???")
    for reading in (
        lambda: raw(topic),
        lambda: list(topic.log_manager().seal(topic.record)),
        lambda: bench.compact(topic),
    ):
        with pytest.raises(ObjectDamaged, match=rf"{file}"):
            reading()
    assert bench.segment_states(topic) == ["ROLLED"]
    file.write_bytes(good)
    assert len(list(topic.log_manager().seal(topic.record))) == 1


def test_an_open_segment_that_no_writer_has_is_rolled_by_age(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the messages of an idle topic stay on one disk forever."""
    monkeypatch.setattr("storage.log.topic_log.POLL_SECONDS", 3600.0)
    slower, damaged, written, empty = map(bench.topic, ("slower", "damaged", "written", "empty"))
    bench.metadata.policies.change([BROKER], {"segment.ms": 1000})
    bench.metadata.policies.change([topic_scope(slower.record)], {"segment.ms": 5000})
    for one_topic in (topic, slower, damaged):
        produce(one_topic, [single(b"a", b"1")])
    flip(bench.files(damaged).log, 70)
    failing: dict[str, ErrorText] = {}
    with written.append_log() as log:
        log.append(single(b"a", b"1"))
        bench.clock.advance(999)
        assert topic.log_manager().roll_old_segments(failing) == 0
        bench.clock.advance(1)
        assert topic.log_manager().roll_old_segments(failing) == 1
    states = [bench.segment_states(one_topic) for one_topic in (topic, slower, damaged, written, empty)]
    assert states == [["ROLLED"], ["OPEN"], ["OPEN"], ["OPEN"], []]
    assert list(failing) == [str(damaged.name)]
    bench.clock.advance(4000)
    assert slower.log_manager().roll_old_segments({}) == 2
    assert (bench.segment_states(slower), bench.segment_states(written)) == (["ROLLED"], ["ROLLED"])


def test_a_lease_from_a_clock_that_ran_ahead_keeps_no_idle_segment_open(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    bench.metadata.leases.acquire(topic.record.id, "elsewhere", 10**9)
    bench.clock.advance(1000)
    bench.metadata.policies.change([BROKER], {"segment.ms": 1000})
    assert topic.log_manager().roll_old_segments({}) == 1


def test_a_segment_in_another_directory_is_left_to_those_who_have_it(
    bench: Workbench, topic: Topic, tmp_path: Path
) -> None:
    """It is named at once where no service lives that would seal it; no claim of ours keeps its sealer from it."""
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)
    nowhere = tmp_path / "nowhere"
    other = LogManager(Environment(bench.metadata, bench.store, bench.clock, LogDirectory(nowhere)), "other")
    started = bench.clock.now_ms()
    with pytest.raises(SegmentNotLocal, match="is in the log directory"):
        other.roll_and_seal(topic.record)
    assert bench.clock.now_ms() == started
    assert len(list(topic.log_manager().seal(topic.record))) == 1
    assert other.roll_and_seal(topic.record) == ()
    assert other.remove_sealed_files() == 0
