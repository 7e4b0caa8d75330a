"""A topic as its users have it: what reads give by flag, start and limit; who may write; what stays when it fails.

semantics.md R1–R4, R6, R8, R10, A2, A4.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from api.cli.local.opening import open_topic
from compactor.run.plan import RunPolicies
from storage.clock import SystemClock
from storage.entries.chunk_assembler import assemble_messages
from storage.environment import Environment
from storage.errors import (
    Fenced,
    InvalidRecord,
    LeaseHeld,
    ObjectDamaged,
    ObjectMissing,
    StorageFull,
    TopicNotFound,
    Unavailable,
)
from storage.ledger import rows
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.manifest import read_manifest
from storage.ledger.seek import SeekMessageId
from storage.log.bulk_append import INPUT_SCHEMA, BulkAppend, cut_into_ledgers
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, LATEST, LogPosition, Message, MessageId, TopicName
from storage.objects.interface import ObjectWriter
from storage.objects.local import LocalStore
from storage.reading.last_message import LastMessageFinder
from storage.reading.snapshot_reader import SnapshotReader
from storage.topic import Topic
from tests import chunked
from tests.segments import NO_LOG
from tests.workbench import TINY, Workbench, compacted_only, content, half_compacted, ids, raw, view


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    return half_compacted(bench)


def offsets(topic: Topic, start: MessageId = EARLIEST, read_compacted: bool = False) -> list[int]:
    return [message.offset for message in topic.messages(start, read_compacted)]


def test_flag_on_reads_compacted_then_raw(topic: Topic) -> None:
    assert offsets(topic, read_compacted=True) == [1, 2, 3, 4, 5, 6]
    assert offsets(topic) == [0, 1, 2, 3, 4, 5, 6]


def test_flag_on_from_inside_begins_with_the_first_compacted_at_or_after(topic: Topic) -> None:
    """R1: at a message that was compacted away, at one that lives, at the horizon, and behind it."""
    at = ids(raw(topic))
    assert offsets(topic, at[0], read_compacted=True) == [1, 2, 3, 4, 5, 6]
    assert offsets(topic, at[2], read_compacted=True) == [2, 3, 4, 5, 6]
    assert offsets(topic, at[3], read_compacted=True) == [3, 4, 5, 6]
    assert offsets(topic, at[4], read_compacted=True) == [4, 5, 6]
    assert offsets(topic, at[5], read_compacted=True) == [5, 6]


def test_an_id_between_messages_is_a_good_start(topic: Topic) -> None:
    last = ids(raw(topic))[3]
    beyond = MessageId(last.ledger_id, last.entry_id + 100)
    assert offsets(topic, beyond) == [4, 5, 6]
    assert offsets(topic, beyond, read_compacted=True) == [4, 5, 6]


def test_never_compacted_with_the_flag_reads_raw(bench: Workbench) -> None:
    """R3; and a `__compaction` made by hand has no horizon (A4)."""
    topic = bench.topic("fresh")
    bench.append(topic, [content((b"a", b"0"), (b"a", b"1"))])
    assert offsets(topic, read_compacted=True) == [0, 1]
    bench.metadata.cursors.ensure(topic.record.id, COMPACTION_CURSOR)
    assert offsets(topic, read_compacted=True) == [0, 1]
    assert topic.snapshot().horizon is None


def all_offsets(tables: Iterator[pa.Table]) -> list[int]:
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


def test_earliest_with_the_flag_is_the_compacted_start_without_any_raw(bench: Workbench, topic: Topic) -> None:
    """R4 (Pulsar #11287, #13629): a snapshot in which raw at or below the horizon is trimmed."""
    snapshot = topic.snapshot()
    trimmed = replace(snapshot, ledgers=snapshot.ledgers[1:])
    compacted = snapshot.compacted
    assert compacted is not None
    reader = SnapshotReader(bench.store, trimmed, NO_LOG)
    assert all_offsets(reader.compacted(SeekMessageId(EARLIEST), reader.manifest(compacted))) == [1, 2, 3]
    assert all_offsets(reader.raw(SeekMessageId(EARLIEST), compacted.horizon.offset)) == [4, 5, 6]
    assert all_offsets(reader.raw(SeekMessageId(EARLIEST))) == [4, 5, 6]
    bare = SnapshotReader(bench.store, replace(snapshot, ledgers=()), NO_LOG)
    assert all_offsets(bare.compacted(SeekMessageId(EARLIEST), bare.manifest(compacted))) == [1, 2, 3]
    assert all_offsets(bare.raw(SeekMessageId(EARLIEST), compacted.horizon.offset)) == []
    hasher = Xxh3KeyHasher(topic.record.hash_seed)
    assert LastMessageFinder(bench.store, bare, hasher).message_id(True) == ids(raw(topic))[3]


def test_latest_gives_nothing_that_is_there(topic: Topic) -> None:
    assert offsets(topic, LATEST) == []
    assert offsets(topic, LATEST, read_compacted=True) == []


@pytest.mark.parametrize("read_compacted", [False, True])
def test_limits(topic: Topic, read_compacted: bool) -> None:
    """R10: never more messages or bytes than asked; one message at least, however large (L3)."""
    everything = list(topic.messages(read_compacted=read_compacted))
    for limit in range(len(everything) + 2):
        assert list(topic.messages(read_compacted=read_compacted, max_messages=limit)) == everything[:limit]
    sizes = [len(m.key or b"") + len(m.payload or b"") for m in everything]
    for limit in range(1, sum(sizes) + 2):
        got = list(assemble_messages(topic.read(EARLIEST, read_compacted, max_bytes=limit), -1))
        assert got == everything[: len(got)]
        assert sum(sizes[: len(got)]) <= max(limit, sizes[0])
        assert got == everything or sum(sizes[: len(got) + 1]) > limit


@pytest.mark.parametrize("read_compacted", [False, True])
def test_a_chunked_message_counts_as_one(bench: Workbench, read_compacted: bool) -> None:
    topic = bench.topic("chunked")
    chunked.append(bench, topic, [*chunked.whole("u", b"a", b"1", b"2", b"3"), chunked.message(b"b", b"x")])
    bench.compact(topic)
    pages = [list(topic.messages(EARLIEST, read_compacted, limit)) for limit in range(4)]
    assert [[item.payload for item in some] for some in pages] == [[], [b"123"], [b"123", b"x"], [b"123", b"x"]]


def test_a_limit_of_bytes_counts_over_ledgers(bench: Workbench) -> None:
    topic = bench.topic("many-ledgers")
    bench.append(topic, [content(*((b"%d" % n, b"x" * 9) for n in range(10)))], ledger_bytes=10)
    assert len(topic.snapshot().ledgers) == 10
    assert [len(batch) for batch in topic.read(max_bytes=35)] == [1, 1, 1]


def test_a_limit_of_bytes_holds_after_messages_without_any(bench: Workbench) -> None:
    """R10: only the first message of a read may be larger than the limit, not the first that has bytes."""
    topic = bench.topic("empty-messages")
    bench.append(topic, [content((b"", None), (None, b""), (b"k", b"x" * 99))], ledger_bytes=1)
    assert len(topic.snapshot().ledgers) == 2
    assert [len(batch) for batch in topic.read(max_bytes=10)] == [2]


def test_a_reader_keeps_the_generation_it_began_with(bench: Workbench, topic: Topic) -> None:
    """R7: a compaction and an import beside it change nothing of what it sees."""
    reading = topic.messages(read_compacted=True)
    first = next(reading)
    bench.append(topic, [content((b"b", None), (b"e", b"8"))])
    bench.compact(topic)
    assert [first.offset, *(m.offset for m in reading)] == [1, 2, 3, 4, 5, 6]


def test_raw_is_the_same_before_and_after_compaction(bench: Workbench, topic: Topic) -> None:
    before = raw(topic)
    bench.compact(topic)
    assert raw(topic) == before


def test_a_damaged_part_is_named_and_raw_goes_on(bench: Workbench, topic: Topic) -> None:
    """R8: one flipped byte; the message names the compacted ledger, the object and the way out."""
    compacted = topic.snapshot().compacted
    assert compacted is not None
    assert isinstance(bench.store, LocalStore)
    name = read_manifest(bench.store, compacted.manifest).parts[0].rows.stored.name
    path = bench.store.root / name
    damaged = bytearray(path.read_bytes())
    damaged[10] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ObjectDamaged, match=f"compacted ledger {compacted.ledger_id} of {topic.name}") as caught:
        offsets(topic, read_compacted=True)
    assert name in caught.value.message
    assert "__compaction" in caught.value.remedy
    assert offsets(topic) == [0, 1, 2, 3, 4, 5, 6]


DAMAGED = {
    # what is damaged: whether a compacted read, and a get of the key in question, fail
    "manifest": (True, True),
    "part": (True, True),
    "level": (False, True),
    "bitmaps": (True, False),
}
"""As docs/operations.md has it. A run may do without what it does not need; what it publishes is right all the same."""


KEYS = [b"key-%02d" % number for number in range(20)]


def _roomy(bench: Workbench) -> Workbench:
    return bench.with_sizing(replace(TINY, part_bytes=4000))


def _twice_compacted(bench: Workbench) -> Topic:
    """A topic of `KEYS`; a part of the first run has lost a row in the second."""
    topic = bench.topic("damage")
    bench.append(topic, [content(*((key, b"v") for key in KEYS))])
    _roomy(bench).compact(topic)
    bench.append(topic, [content((KEYS[0], b"2"))])
    _roomy(bench).compact(topic)
    return topic


def damage(bench: Workbench, name: str, kind: str) -> None:
    if kind == "lost":
        bench.store.delete(name)
        return
    assert isinstance(bench.store, LocalStore)
    path = bench.store.root / name
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


@pytest.mark.parametrize("kind", ["damaged", "lost"])
@pytest.mark.parametrize("what", DAMAGED)
def test_damage_of_each_kind_is_named_and_the_way_out_is_open(bench: Workbench, what: str, kind: str) -> None:
    """R8: an error that names the object in compacted reads and in runs, or no harm; raw continues; clearing helps."""
    topic, keys = bench.built(_twice_compacted), KEYS
    roomy = _roomy(bench)
    compacted = topic.snapshot().compacted
    assert compacted is not None
    manifest = read_manifest(bench.store, compacted.manifest)
    old = manifest.parts[0]
    assert old.deleted is not None
    names = {
        "manifest": compacted.manifest.name,
        "part": old.rows.stored.name,
        "level": manifest.index[-1][0].name,
        "bitmaps": old.deleted.name,
    }
    hashed = {location.name for level in manifest.index for location in level}
    lost = {names[what]} if what != "level" else hashed
    everything = raw(topic)
    for name in lost:
        damage(bench, name, kind)

    def must_fail_or_be_right(fails: bool, act: Callable[[], object]) -> None:
        if fails:
            with pytest.raises((ObjectDamaged, ObjectMissing)) as raised:
                act()
            assert any(name in raised.value.message for name in lost)
            assert f"compacted ledger {compacted.ledger_id} of {topic.name}" in raised.value.message
            assert "__compaction" in raised.value.remedy
        else:
            act()

    read_fails, get_fails = DAMAGED[what]
    must_fail_or_be_right(read_fails, lambda: list(topic.messages(read_compacted=True)))
    must_fail_or_be_right(get_fails, lambda: topic.newest_value(keys[3]))
    assert raw(topic) == everything
    bench.append(topic, [content((keys[1], b"3"), (keys[2], None))])
    if (what, kind) == ("part", "damaged"):  # the run has no need to open it, and it stays what it was
        roomy.compact(topic)
        with pytest.raises((ObjectDamaged, ObjectMissing)):
            list(topic.messages(read_compacted=True))
    else:
        with pytest.raises((ObjectDamaged, ObjectMissing)) as run:
            roomy.compact(topic)
        assert any(name in run.value.message for name in lost)

    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))
    roomy.compact(topic)
    assert view(compacted_only(topic)) == view(raw(topic))
    assert payload_of(topic.newest_value(keys[0])) == b"2"
    assert topic.newest_value(keys[2]) is None


def payload_of(message: Message | None) -> bytes | None:
    return message.payload if message else None


@pytest.mark.slow
@pytest.mark.parametrize("by_event", [False, True])
def test_get_is_the_newest_value_run_after_run(bench: Workbench, by_event: bool) -> None:
    """T4 beside what a reader folds, over index levels that pile up, and a tail (P9 with event-time order)."""
    topic = bench.topic("points")
    keys = [b"key-%02d" % number for number in range(12)]
    winners: dict[bytes, tuple[int, bytes | None]] = {}
    for turn in range(6):
        drawn = []
        for number, key in enumerate(keys):
            if turn and (number * 7 + turn) % 4:
                continue
            payload = None if (number + turn) % 5 == 0 else b"value-%d" % turn
            time = bench.clock.now_ms() + (number * 5 + turn * 3) % 7 if by_event else None
            drawn.append({"key": key, "payload": payload, "event_time": time})
            if not by_event or key not in winners or (time or 0) >= winners[key][0]:
                winners[key] = (time or 0, payload)
        bench.append(topic, [pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA)])
        if turn in (0, 1, 2, 4):
            bench.compactor().compact(topic.name, RunPolicies(event_time_order=by_event))
        if turn:  # before the first run it is offset order
            assert {key: payload_of(topic.newest_value(key)) for key in keys} == {key: winners[key][1] for key in keys}
    assert topic.newest_value(b"missing") is None


def test_a_lost_raw_ledger_is_named(bench: Workbench, topic: Topic) -> None:
    lost = topic.snapshot().ledgers[1].rows.name
    bench.store.delete(lost)
    with pytest.raises(ObjectMissing, match=lost):
        offsets(topic)


def test_other_metadata_writes_keep_the_pointer(bench: Workbench, topic: Topic) -> None:
    """A2 (Pulsar #12698): new properties, other cursors, more messages."""
    before = topic.snapshot().compacted
    bench.metadata.cursors.set_properties(topic.record.id, COMPACTION_CURSOR, {"note": "x"})
    bench.metadata.cursors.ensure(topic.record.id, "reader")
    bench.metadata.cursors.reset(topic.record.id, "reader", LogPosition(0, ids(raw(topic))[0]))
    bench.append(topic, [content((b"z", b"7"))])
    after = topic.snapshot()
    assert after.compacted == before
    assert before is not None
    assert after.cursor is not None
    assert after.cursor.properties == {COMPACTED_LEDGER_PROPERTY: str(before.ledger_id), "note": "x"}


def test_an_unknown_topic(bench: Workbench) -> None:
    with pytest.raises(TopicNotFound, match="nosuch"):
        open_topic(Environment(bench.metadata, bench.store, bench.clock, bench.log), TopicName.parse("nosuch"))


def test_an_append_that_fails_half_way_leaves_nothing(bench: Workbench, topic: Topic) -> None:
    """One file = all or nothing: ledgers that were sealed before the bad message are not there, and ids continue."""

    def tables() -> Iterator[pa.Table]:
        yield content(*((b"k%d" % n, b"v") for n in range(50)))
        raise InvalidRecord("line 51 is bad", "correct it")

    before = topic.snapshot()
    with pytest.raises(InvalidRecord):
        topic.bulk_append(ledger_bytes=30).append(tables())
    assert topic.snapshot() == before
    (added,) = bench.append(topic, [content((b"after", b"1"))])
    assert added.offset == 7
    assert added.message_id > ids(raw(topic))[6]


@pytest.mark.parametrize("cannot", ["leases.release", "attempts.finish"])
def test_what_cannot_be_given_back_afterwards_is_no_failure_of_the_append(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, cannot: str
) -> None:
    """An append that is committed is not reported as failed (it would be repeated), and no first error is hidden."""

    def full(*_: object) -> None:
        raise StorageFull("the database is full", "free some space")

    def bad() -> Iterator[pa.Table]:
        yield content((b"k", b"v"))
        raise InvalidRecord("line 2 is bad", "correct it")

    store, method = cannot.split(".")
    monkeypatch.setattr(getattr(bench.metadata, store), method, full)
    assert topic.bulk_append().append([content((b"k", b"v"))]).messages == 1
    bench.clock.wait(3600)
    with pytest.raises(InvalidRecord, match="line 2") as raised:
        topic.bulk_append().append(bad())
    assert "the database is full" in raised.value.__notes__[0]


class FullAfter(LocalStore):
    """A store whose disk is full after some objects."""

    def __init__(self, root: Path, objects: int) -> None:
        super().__init__(root)
        self._left = objects

    def create(self, name: str) -> ObjectWriter:
        self._left -= 1
        if self._left < 0:
            raise Unavailable(f"no space left for object {name}", "free some")
        return super().create(name)


def test_a_full_disk_while_sealing_leaves_the_topic_as_it_was(bench: Workbench, topic: Topic) -> None:
    assert isinstance(bench.store, LocalStore)
    before = topic.snapshot()
    full = replace(bench, store=FullAfter(bench.store.root, 3))
    with pytest.raises(Unavailable, match="no space"):
        full.topic().bulk_append(ledger_bytes=10).append([content(*((b"k", b"%d" % n) for n in range(40)))])
    assert topic.snapshot() == before


def test_an_append_while_another_holds_the_lease_waits_and_then_names_it(bench: Workbench, topic: Topic) -> None:
    lease = bench.metadata.leases.acquire(topic.record.id, "other-host:42", 60_000)
    with pytest.raises(LeaseHeld, match="other-host:42"):
        topic.bulk_append(wait_ms=10_000).append([content((b"k", b"v"))])
    # the clock that is waited on moves: a holder that dies is outlived
    assert topic.bulk_append(wait_ms=60_000).append([content((b"k", b"v"))]).messages == 1
    bench.metadata.leases.release(lease)


def test_a_writer_that_was_overtaken_appends_nothing(bench: Workbench, topic: Topic) -> None:
    """The lease is checked where it counts: in the commit."""

    def tables() -> Iterator[pa.Table]:
        yield content((b"zombie", b"1"))
        bench.clock.wait(3600)
        bench.metadata.leases.acquire(topic.record.id, "the new one", 60_000)

    before = topic.snapshot().ledgers
    with pytest.raises(Fenced):
        topic.bulk_append().append(tables())
    assert topic.snapshot().ledgers == before


def test_two_imports_at_once_keep_ids_in_order(bench: Workbench) -> None:
    """Both are there, each whole, one behind the other, ids and offsets ascending. On the real clock: one waits."""
    clock = SystemClock()
    metadata = MetadataStore(bench.metadata.url, clock)
    topic = replace(bench, metadata=metadata, clock=clock).topic("racing")
    barrier = threading.Barrier(2)
    failures: list[BaseException] = []

    def append(name: bytes) -> None:
        try:
            barrier.wait()
            writer: BulkAppend = topic.bulk_append(ledger_bytes=60, wait_ms=3_600_000)
            writer.append([content(*((name, b"%d" % n) for n in range(30)))])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(name,)) for name in (b"x", b"y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    metadata.close()
    assert failures == []
    got = raw(topic)
    assert [m.offset for m in got] == list(range(60))
    assert ids(got) == sorted(set(ids(got)))
    assert [m.key for m in got] in ([b"x"] * 30 + [b"y"] * 30, [b"y"] * 30 + [b"x"] * 30)


def test_a_message_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(InvalidRecord, match="message 3 has 11 bytes"):
        list(cut_into_ledgers([content((b"k", b"v" * 9)), content((b"k", b""), (b"k", b"v" * 10))], 100))
