"""Retention on topics: what goes and stays, and that reads are as they must be afterwards (C1–C3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.retention import Retention, TrimResult
from compactor.maintenance.retention_plan import TrimPlan, TrimReason
from compactor.run.plan import RunPolicies
from storage.advice import AdviceKind
from storage.entries.encode import encode_message
from storage.environment import Environment
from storage.errors import Conflict, DataLoss, LeaseHeld, ObjectMissing, Unavailable
from storage.log.directory import LogDirectory
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, SegmentState
from storage.model import EARLIEST, LATEST
from storage.positions import OffsetReset, StartOffset
from storage.topic import Topic
from tests.workbench import Workbench, compacted_ledger, content, ids, raw, store_policy, two_generations

NOW = 1_700_000_000_000
HOUR = 3_600_000


def reasons(plan: TrimPlan) -> list[TrimReason]:
    return [candidate.reason for candidate in plan.candidates]


def ledgers(bench: Workbench, topic: Topic, *lengths: int, age: int = 0) -> None:
    time = bench.clock.now_ms() - age
    for number, length in enumerate(lengths):
        bench.append(topic, [content(*((b"k%d" % (number % 2), b"%d" % n, time) for n in range(length)))])


def cursor_at(bench: Workbench, topic: Topic, name: str, offset: int) -> None:
    bench.metadata.cursors.ensure(topic.record.id, name)
    bench.metadata.cursors.reset(topic.record.id, name, topic.first_raw_at_or_after(offset))


def produce(bench: Workbench, topic: Topic, *times: int) -> None:
    """One message at each time into the active segment, which stays open."""
    with topic.append_log() as log:
        for number, time in enumerate(times):
            log.append(encode_message(b"k", b"%d" % number, producer="p", sequence_id=number, publish_time=time))


def offsets(topic: Topic, read_compacted: bool = False) -> list[int]:
    return [message.offset for message in topic.messages(read_compacted=read_compacted)]


def first_offsets(trimmed: TrimResult) -> list[int]:
    return [item.extent.first_offset for item in trimmed.plan.candidates]


def states(bench: Workbench, topic: Topic) -> list[SegmentState]:
    return [segment.state for segment in topic.snapshot().segments]


def test_worked_example_7_on_a_topic(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 11, 12, 17)
    trimmed = Retention(bench).trim(topic.record, 25)
    assert first_offsets(trimmed) == [0, 11]
    assert [ledger.first_offset for ledger in topic.snapshot().ledgers] == [23]
    assert offsets(topic) == list(range(25, 40))
    assert [m.offset for m in topic.messages(StartOffset(11), max_messages=1)] == [25]
    assert [item.first_offset for item in bench.metadata.trimming.trimmed_ledgers(topic.record.id)] == [0, 11]


def test_a_message_id_is_as_good_as_its_offset(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 11, 12, 17)
    messages = raw(topic)
    trimmed = Retention(bench).trim(topic.record, messages[25].message_id)
    assert (first_offsets(trimmed), trimmed.plan.start_offset) == ([0, 11], 25)
    again = Retention(bench).trim(topic.record, messages[4].message_id)
    assert (first_offsets(again), again.plan.start_offset) == ([], 25)
    assert Retention(bench).trim(topic.record, EARLIEST).plan.start_offset == 25
    everything = Retention(bench).trim(topic.record, LATEST)
    assert (first_offsets(everything), everything.plan.start_offset) == ([23], 40)
    assert offsets(topic) == []


def test_a_dry_run_changes_nothing(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 2, 2)
    produce(bench, topic, NOW, NOW)
    dry = Retention(bench).trim(topic.record, 6, dry_run=True)
    assert not dry.trimmed
    assert first_offsets(dry) == [0, 2, 4]
    assert offsets(topic) == list(range(6))
    assert states(bench, topic) == [SegmentState.OPEN]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact,delete"),
        ("compaction.threshold.bytes", 1 << 30),
        ("compaction.threshold.messages", 10**6),
        ("compaction.threshold.bytes", "of a newer version"),
    ],
)
def test_a_topic_that_is_to_be_compacted_has_its_cursor_from_then_on(
    bench: Workbench, topic: Topic, name: str, value: object
) -> None:
    """S9, Pulsar #11672: also where the policy was set around it, and cannot be read; a dry run creates nothing."""
    ledgers(bench, topic, 3)
    bench.set_policies(topic, **{"retention.ms": 0})
    bench.metadata.policies.change(["namespace:public/default"], {"cleanup.policy": "delete"})
    bench.advance(HOUR)
    assert reasons(Retention(bench).trim(topic.record, dry_run=True).plan) == [TrimReason.TIME]
    bench.metadata.policies.change(["namespace:public/default"], {}, ["cleanup.policy"])
    bench.metadata.policies.change(["broker"], {"cleanup.policy": "delete"})
    store_policy(bench.metadata, "namespace:public/default", name, value)
    plan = Retention(bench).trim(topic.record, dry_run=True).plan
    assert (plan.candidates, plan.hold) == ((), CursorRecord(COMPACTION_CURSOR, None, {}))
    assert bench.metadata.cursors.of_topic(topic.record.id) == []
    for _ in range(2):
        Retention(bench).trim(topic.record)
        assert bench.metadata.cursors.of_topic(topic.record.id) == [CursorRecord(COMPACTION_CURSOR, None, {})]
    with pytest.raises(Conflict, match="its cursor '__compaction' is with nothing acknowledged"):
        bench.metadata.trimming.trim(topic.record.id, 3, [], force=False)
    bench.compact(topic)
    assert topic.snapshot().horizon is not None


def test_a_plan_creates_no_log_directory(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    """Nor does it where the segments are in another one, as on a machine without a service."""
    produce(bench, topic, NOW)
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.ms": 0})
    elsewhere = Retention(Environment(bench.metadata, bench.store, bench.clock, LogDirectory(tmp_path / "nowhere")))
    for dry_run in (True, False):
        assert elsewhere.trim(topic.record, dry_run=dry_run).plan.candidates == ()
    assert not (tmp_path / "nowhere").exists()


def test_worked_example_8_retention_by_time(bench: Workbench, topic: Topic) -> None:
    """A ledger outlives its messages by its own newest one; when all are expired, the open segment is rolled first."""
    now = bench.clock.now_ms()
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    bench.append(topic, [content((b"a", b"1", now - 5 * HOUR), (b"b", b"2", now))])
    produce(bench, topic, now - HOUR, now)
    trimming = Retention(bench)
    assert first_offsets(trimming.trim(topic.record)) == []
    bench.advance(HOUR)
    assert first_offsets(trimming.trim(topic.record)) == [], "an hour old is not older than an hour"
    assert states(bench, topic) == [SegmentState.OPEN]
    bench.advance(1)
    assert first_offsets(trimming.trim(topic.record)) == [0, 2]
    assert offsets(topic) == []
    assert topic.snapshot().topic.start_offset == 4
    produce(bench, topic, now)
    assert offsets(topic) == [4], "a new segment continues with the next offset"


def test_an_open_segment_with_a_young_message_stays(bench: Workbench, topic: Topic) -> None:
    now = bench.clock.now_ms()
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    ledgers(bench, topic, 2, age=2 * HOUR)
    produce(bench, topic, now - 2 * HOUR, now - HOUR, now - 3 * HOUR)
    assert first_offsets(Retention(bench).trim(topic.record)) == [0]
    assert states(bench, topic) == [SegmentState.OPEN]


def test_no_bytes_at_all(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, bench.clock.now_ms())
    assert first_offsets(Retention(bench).trim(topic.record)) == [0, 2]
    assert offsets(topic) == []


def test_a_start_inside_the_open_segment(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 2)
    produce(bench, topic, *[NOW] * 4)
    trimmed = Retention(bench).trim(topic.record, 4)
    assert (first_offsets(trimmed), trimmed.plan.start_offset) == ([0], 4)
    assert offsets(topic) == [4, 5]


def test_a_tail_that_a_cursor_needs_is_not_rolled(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, NOW)
    cursor_at(bench, topic, "reader", 1)
    trimmed = Retention(bench).trim(topic.record)
    assert first_offsets(trimmed) == [0]
    assert trimmed.plan.hold is not None
    assert trimmed.plan.hold.name == "reader"
    assert states(bench, topic) == [SegmentState.OPEN]


def test_a_tail_that_cannot_be_sealed_stays_and_the_result_says_why(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*_: object) -> None:
        raise LeaseHeld("the writer sleeps", "wake it")

    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.bytes": 0})
    ledgers(bench, topic, 2)
    produce(bench, topic, NOW)
    monkeypatch.setattr("compactor.maintenance.retention.LogManager.roll_and_seal", held)
    trimmed = Retention(bench).trim(topic.record)
    assert first_offsets(trimmed) == [0]
    assert str(trimmed.tail_error) == "the writer sleeps: wake it"
    assert offsets(topic) == [2]


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_an_open_segment_that_cannot_be_read_holds_up_no_ledger(bench: Workbench, topic: Topic, how: str) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    ledgers(bench, topic, 2, 2, age=2 * HOUR)
    produce(bench, topic, NOW, NOW)
    (file,) = bench.log.topic_folder(topic.record.uid).glob("*.log")
    if how == "gone":
        file.unlink()
    else:
        written = bytearray(file.read_bytes())
        written[100] ^= 1
        file.write_bytes(written)
    dry = Retention(bench).trim(topic.record, dry_run=True)
    trimmed = Retention(bench).trim(topic.record)
    assert first_offsets(trimmed) == first_offsets(dry) == [0, 2]
    assert trimmed.tail_damaged
    assert "with the loss of the rest accepted" in str(trimmed.tail_error)
    assert trimmed.tail_error == dry.tail_error
    assert topic.snapshot().ledgers == ()
    assert states(bench, topic) == [SegmentState.OPEN]


def test_compact_trims_what_is_compacted_and_compacted_reads_stay_whole(bench: Workbench, topic: Topic) -> None:
    """T3 and R4."""
    bench.set_policies(topic, **{"cleanup.policy": "compact"})
    ledgers(bench, topic, 3, 3)
    bench.compact(topic)
    ledgers(bench, topic, 2)
    before = ids(topic.messages(read_compacted=True))
    trimmed = Retention(bench).trim(topic.record)
    assert reasons(trimmed.plan) == [TrimReason.COMPACTED] * 2
    assert ids(topic.messages(read_compacted=True)) == before
    assert offsets(topic) == [6, 7]
    assert topic.snapshot().topic.start_offset == 0
    assert first_offsets(Retention(bench).trim(topic.record)) == []
    bench.compact(topic)
    assert offsets(topic, read_compacted=True) == [5, 7]


def test_a_reader_holds_what_is_compacted_too(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "compact"})
    ledgers(bench, topic, 3, 3)
    bench.compact(topic)
    cursor_at(bench, topic, "reader", 3)
    trimmed = Retention(bench).trim(topic.record)
    assert first_offsets(trimmed) == [0]
    assert trimmed.plan.hold is not None
    assert first_offsets(Retention(bench).trim(topic.record, force=True)) == [3]


def test_force_goes_past_compaction(bench: Workbench, topic: Topic) -> None:
    ledgers(bench, topic, 3)
    bench.compact(topic)
    ledgers(bench, topic, 3)
    held = Retention(bench).trim(topic.record, 6)
    assert (first_offsets(held), held.plan.start_offset) == ([0], 3)
    forced = Retention(bench).trim(topic.record, 6, force=True)
    assert (first_offsets(forced), forced.plan.start_offset) == ([3], 6)
    assert offsets(topic) == []


def test_a_cursor_that_is_created_meanwhile_is_seen(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers(bench, topic, 3, 3)
    check: list[list[CursorRecord]] = [[]]
    real = bench.metadata.cursors.of_topic
    bench.metadata.cursors.ensure(topic.record.id, "new")

    def cursors(topic_id: int) -> list[CursorRecord]:
        return check.pop() if check else real(topic_id)

    monkeypatch.setattr(bench.metadata.cursors, "of_topic", cursors)
    trimmed = Retention(bench).trim(topic.record, 6)
    assert first_offsets(trimmed) == []
    assert trimmed.plan.hold is not None
    assert offsets(topic) == list(range(6))


def test_a_trim_that_is_always_overtaken_is_a_conflict(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers(bench, topic, 3)
    bench.metadata.cursors.ensure(topic.record.id, "new")
    monkeypatch.setattr(bench.metadata.cursors, "of_topic", lambda _: [])
    with pytest.raises(Conflict, match="'new'"):
        Retention(bench).trim(topic.record, 3)


# --- afterwards ----------------------------------------------------------------------------------------------------


def test_a_reader_that_is_under_way_goes_on_until_the_objects_go(bench: Workbench, topic: Topic) -> None:
    """C3: objects are marked, then removed after the delay. A reader of marked objects may finish until then."""
    bench.set_policies(topic, **{"file.delete.delay.ms": 60_000})
    ledgers(bench, topic, 3, 3, 3)
    bench.advance(2 * HOUR)
    reading = topic.messages()
    assert [next(reading).offset for _ in range(2)] == [0, 1]
    Retention(bench).trim(topic.record, 7)
    collector = GarbageCollector(bench, skew_ms=0)
    bench.advance(59_999)
    assert collector.collect(topic.record).trimmed_ledgers == 0
    assert [next(reading).offset for _ in range(3)] == [2, 3, 4]
    bench.advance(1)
    dry = collector.collect(topic.record, dry_run=True)
    assert dry.trimmed_ledgers == 2
    assert bench.metadata.trimming.trimmed_ledgers(topic.record.id) != []
    wet = collector.collect(topic.record)
    assert (wet.trimmed_ledgers, wet.objects) == (2, dry.objects)
    assert sum(stored.count for stored in wet.objects.values()) == 4
    assert collector.collect(topic.record).trimmed_ledgers == 0
    assert offsets(topic) == [7, 8]
    late = topic.read(StartOffset(0), reset=OffsetReset.EARLIEST)
    assert [row for batch in late for row in batch.column("offset").to_pylist()] == [7, 8]


def test_trimmed_objects_that_are_gone_do_not_hurt_a_compacted_read(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"cleanup.policy": "compact", "file.delete.delay.ms": 0})
    ledgers(bench, topic, 3, 3)
    bench.compactor().compact(topic.name, RunPolicies())
    before = ids(topic.messages(read_compacted=True))
    Retention(bench).trim(topic.record)
    rows = bench.metadata.trimming.trimmed_ledgers(topic.record.id)[0].rows.name
    bench.advance(2 * HOUR)
    GarbageCollector(bench).collect(topic.record)
    with pytest.raises(ObjectMissing):
        bench.store.get(rows)
    assert ids(topic.messages(read_compacted=True)) == before


# --- while the compacted ledger cannot be read


@pytest.mark.parametrize("lost", ["manifest", "part", "index", "short manifest", "short part", "short index"])
def test_nothing_goes_while_the_compacted_ledger_cannot_be_read(bench: Workbench, lost: str) -> None:
    """R8: raw has the only copy then. The dry run is refused, too; by force it goes all the same."""
    topic = two_generations(bench)
    bench.compact(topic)
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete"})
    record = compacted_ledger(topic)
    manifest = bench.manifest(topic)
    name = {
        "manifest": record.manifest.name,
        "part": manifest.parts[0].rows.stored.name,
        "index": manifest.index[0][0].name,
    }[lost.removeprefix("short ")]
    data = bench.store.get(name)
    bench.store.delete(name)
    if lost.startswith("short "):
        bench.store.put(name, data[:-1])
    for before in (None, 4, 2, raw(topic)[4].message_id):  # the third is within a ledger
        for dry_run in (True, False):
            with pytest.raises(
                DataLoss, match=f"^the compacted ledger {record.ledger_id} of {topic.name} .*{name}"
            ) as it:
                Retention(bench).trim(topic.record, before, dry_run=dry_run)
            assert it.value.advice is not None
            assert it.value.advice.kind is AdviceKind.REBUILD_COMPACTED
    assert offsets(topic) == list(range(6))
    assert topic.snapshot().topic.start_offset == 0
    assert first_offsets(Retention(bench).trim(topic.record, 4, force=True)) == [0]
    with pytest.raises(DataLoss) as it:
        Retention(bench).trim(topic.record)
    assert it.value.advice is not None
    assert it.value.advice.kind is AdviceKind.GIVE_UP_COMPACTED


def test_a_trim_that_removes_nothing_reads_no_object(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = two_generations(bench)
    bench.set_policies(topic, **{"cleanup.policy": "delete"})
    for call in ("get", "list", "size"):
        monkeypatch.setattr(type(bench.store), call, lambda *_: pytest.fail("the store was asked"))
    for before in (None, 0):
        for dry_run in (True, False):
            assert first_offsets(Retention(bench).trim(topic.record, before, dry_run=dry_run)) == []


def test_nothing_goes_while_the_store_is_silent(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = two_generations(bench)

    def silent(*_: object) -> None:
        raise Unavailable("the store does not answer", "try again")

    monkeypatch.setattr(type(bench.store), "list", silent)
    for dry_run in (True, False):
        with pytest.raises(Unavailable):
            Retention(bench).trim(topic.record, 4, dry_run=dry_run)
    assert offsets(topic) == list(range(6))


def test_a_compacted_ledger_that_was_replaced_meanwhile_is_no_loss(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: the generation is read again before its loss is reported."""
    topic = two_generations(bench)
    old = topic.snapshot()
    bench.compact(topic)
    bench.store.delete(old.compacted.manifest.name if old.compacted else "")
    snapshots = iter([old, old])
    current = bench.metadata.topic_snapshot
    monkeypatch.setattr(bench.metadata, "topic_snapshot", lambda topic_id: next(snapshots, None) or current(topic_id))
    assert first_offsets(Retention(bench).trim(topic.record, 4)) == [0]
