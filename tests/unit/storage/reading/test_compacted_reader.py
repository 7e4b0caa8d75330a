"""Compacted reads hold a pin while they need one, and continue, rightly or not at all, where a generation is gone.

semantics.md R7, R8. What garbage collection has to do with it is in tests/faults/test_garbage_races.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from storage.entries.chunk_assembler import row_messages
from storage.entries.encode import encode_message
from storage.errors import Fenced, ObjectMissing, StateMayBeStale, Unavailable
from storage.failpoints import Failpoint
from storage.ledger.manifest import Manifest, read_manifest
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR, Pin
from storage.model import EARLIEST, LATEST, Message, MessageId
from storage.positions import ContinuationToken
from storage.reading.compacted_reader import PIN_TTL_MS
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic
from tests.failpoint_listeners import observed
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench, content, raw, view

KEYS = [b"key-%02d" % number for number in range(20)]


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Twenty keys in a compacted ledger of several parts, then two messages behind the horizon."""
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content(*((key, b"first" * 9) for key in KEYS))])
    bench.compact(topic)
    bench.append(topic, [content((b"tail", b"1"), (b"tail", b"2"))])
    assert len(manifest(bench, topic).parts) > 2
    return topic


def manifest(bench: Workbench, topic: Topic) -> Manifest:
    compacted = topic.snapshot().compacted
    assert compacted is not None
    return read_manifest(bench.store, compacted.manifest)


def pins(bench: Workbench, topic: Topic) -> tuple[Pin, ...]:
    return bench.metadata.pins.gc_snapshot(topic.record.id).pins


def take(reading: Iterator[Message], count: int) -> list[Message]:
    return [next(reading) for _ in range(count)]


def keys(messages: list[Message]) -> list[bytes | None]:
    return [message.key for message in messages]


def test_the_pin_lasts_as_long_as_the_compacted_part(bench: Workbench, topic: Topic) -> None:
    reading = topic.messages(read_compacted=True)
    assert pins(bench, topic) == ()
    take(reading, 1)
    (pin,) = pins(bench, topic)
    compacted = topic.snapshot().compacted
    assert compacted is not None
    assert pin.ledger_id == compacted.ledger_id
    take(reading, len(KEYS) - 1)
    assert pins(bench, topic) == (pin,)
    assert keys(take(reading, 1)) == [b"tail"]
    assert pins(bench, topic) == (), "behind the horizon nothing of the compacted ledger is needed"
    assert keys(list(reading)) == [b"tail"]


def test_a_pin_is_given_back_by_a_read_that_ends_early(bench: Workbench, topic: Topic) -> None:
    reading = topic.read(read_compacted=True)
    next(reading)
    assert len(pins(bench, topic)) == 1
    reading.close()  # type: ignore[attr-defined]
    assert pins(bench, topic) == ()
    assert len(list(topic.messages(read_compacted=True, max_messages=1))) == 1
    assert pins(bench, topic) == ()


def test_a_read_that_fails_gives_its_pin_back(bench: Workbench, topic: Topic) -> None:
    bench.store.delete(manifest(bench, topic).parts[-1].rows.stored.name)
    with pytest.raises(ObjectMissing):
        list(topic.read(read_compacted=True))
    assert pins(bench, topic) == ()


def test_nothing_is_pinned_for_what_is_not_compacted(bench: Workbench, topic: Topic) -> None:
    fresh = bench.topic("fresh")
    bench.append(fresh, [content((b"a", b"1"), (b"a", b"2"))])
    steps: list[Failpoint] = []
    with observed(steps.append):
        assert len(list(fresh.messages(read_compacted=True))) == 2
        assert len(list(topic.messages(read_compacted=False))) == len(KEYS) + 2
    assert steps == []
    behind = raw(topic)[-1].message_id
    assert keys(list(topic.messages(behind, read_compacted=True))) == [b"tail"]
    assert pins(bench, topic) == ()


def test_the_pin_is_renewed_when_a_third_of_its_term_is_over(bench: Workbench, topic: Topic) -> None:
    steps: list[Failpoint] = []
    with observed(steps.append):
        reading = topic.read(read_compacted=True)
        next(reading)
        bench.advance(PIN_TTL_MS // 3 - 1)
        next(reading)
        assert Failpoint.PIN_RENEWED not in steps
        bench.advance(1)
        next(reading)
        assert steps.count(Failpoint.PIN_RENEWED) == 1
        next(reading)
        assert steps.count(Failpoint.PIN_RENEWED) == 1, "a new term has begun"
    (pin,) = pins(bench, topic)
    assert pin.expires_at == bench.clock.now_ms() + PIN_TTL_MS


def test_a_database_that_is_away_stops_no_read(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the database is away", "try again")

    expected = list(topic.messages(read_compacted=True))
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    for name in ("renew", "release"):
        monkeypatch.setattr(bench.metadata.pins, name, away)
    bench.advance(PIN_TTL_MS)
    assert got + list(reading) == expected


def replaced(
    bench: Workbench, topic: Topic, *changes: tuple[bytes | None, bytes | None], policies: RunPolicies | None = None
) -> None:
    """Publish a newer generation after these messages, and collect the old one."""
    bench.append(topic, [content(*changes)])
    bench.compactor().compact(topic.name, policies or RunPolicies())
    bench.advance(GRACE_MS + PIN_TTL_MS)
    assert GarbageCollector(bench).collect(topic.record).compacted_ledgers == 1


def trim_compacted(bench: Workbench, topic: Topic) -> None:
    """Trim as the cleanup policy `compact` does: remove raw messages up to the horizon, and keep the topic's start."""
    snapshot = topic.snapshot()
    assert snapshot.horizon is not None
    ledger_ids = [ledger.ledger_id for ledger in snapshot.ledgers if ledger.last_offset <= snapshot.horizon.offset]
    bench.metadata.trimming.trim(topic.record.id, snapshot.horizon.offset + 1, ledger_ids, force=True, keep_start=True)


EVERY_KEY = [(key, b"second" * 9) for key in KEYS]


def test_a_read_whose_generation_is_gone_goes_on_raw_while_raw_lasts(bench: Workbench, topic: Topic) -> None:
    """R7: whatever the newer generation has dropped, raw has it."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    replaced(bench, topic, *EVERY_KEY[1:], (KEYS[0], None))
    got += list(reading)
    assert [message.offset for message in got] == [0, *range(1, 42)]
    assert view(got) == view(raw(topic))


def test_a_read_goes_on_in_the_newer_generation_behind_what_it_has_given(bench: Workbench, topic: Topic) -> None:
    """R7: every part is replaced and raw is trimmed, so nothing of the old generation can be read on."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    replaced(bench, topic, *EVERY_KEY)
    everything = raw(topic)
    trim_compacted(bench, topic)
    got += list(reading)
    ids = [message.message_id for message in got]
    assert ids == sorted(set(ids))
    assert view(got) == view(everything)
    assert got[-1].offset == everything[-1].offset
    assert {message.payload for message in got if message.offset > len(KEYS) + 1} == {b"second" * 9}


def test_a_read_that_has_given_nothing_begins_with_what_serves(bench: Workbench, topic: Topic) -> None:
    """The generation goes between the check the database and the check the manifest."""
    reading = topic.messages(read_compacted=True)

    def first(step: Failpoint) -> None:
        if step is Failpoint.PIN_TAKEN and not result:
            result.append(step)
            replaced(bench, topic, *EVERY_KEY[1:], (KEYS[0], None))

    result: list[Failpoint] = []
    with observed(first):
        got = list(reading)
    assert view(got) == view(raw(topic))
    assert KEYS[0] not in keys(got)


def test_deletions_that_were_lost_meanwhile_are_said(bench: Workbench, topic: Topic) -> None:
    """R7: the reader has key-00, its tombstone came and went, and no newer generation can tell it."""
    reading = topic.messages(read_compacted=True)
    assert keys(take(reading, 1)) == [KEYS[0]]
    replaced(bench, topic, *EVERY_KEY[1:], (KEYS[0], None))
    everything = raw(topic)
    trim_compacted(bench, topic)
    with pytest.raises(StateMayBeStale, match=rf"a reader of {topic.name} read up to offset \d+ is gone") as e:
        list(reading)
    assert "earliest" in e.value.remedy
    assert view(list(topic.messages(read_compacted=True))) == view(everything)


@pytest.mark.parametrize("expires", [True, False])
def test_a_value_that_came_and_expired_meanwhile_is_said(bench: Workbench, topic: Topic, expires: bool) -> None:
    """R7, T2: the reader has an older value of key-00, which no other reader gets any more."""
    reading = topic.messages(read_compacted=True)
    assert keys(take(reading, 1)) == [KEYS[0]]
    bench.append(topic, [content((KEYS[0], b"second"))])
    bench.advance(10)
    policies = RunPolicies(key_ttl_ms=10) if expires else RunPolicies()
    replaced(bench, topic, (b"other", b"1"), policies=policies)
    trim_compacted(bench, topic)
    if expires:
        with pytest.raises(StateMayBeStale, match="values that expired, up to offset 22"):
            list(reading)
    else:
        assert [message.payload for message in reading if message.key == KEYS[0]] == [b"second"]


def test_what_left_from_before_the_horizon_that_was_read_is_not_missed(bench: Workbench) -> None:
    """A reader has one message of each key from the compacted ledger: one that it has not read yet replaces nothing."""
    topic = bench.topic()
    bench.append(topic, [content(*((key, b"first" * 9) for key in KEYS))])
    bench.compact(topic)
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    bench.advance(10)
    replaced(bench, topic, (b"other", b"1"), policies=RunPolicies(key_ttl_ms=10))
    assert manifest(bench, topic).dropped_to == len(KEYS) - 1
    trim_compacted(bench, topic)
    got += list(reading)
    assert keys(got)[-1] == b"other"


def test_a_later_value_that_retention_hides_is_said(bench: Workbench, topic: Topic) -> None:
    """C2: under `compact,delete` a value may be hidden though no run has taken it away yet."""
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    bench.append(topic, [content((KEYS[0], b"second"))])
    bench.advance(10)
    replaced(bench, topic, (b"other", b"1"))
    trim_compacted(bench, topic)
    scope = topic_scope(topic.record)
    bench.metadata.policies.change([scope], {"cleanup.policy": "compact,delete"})
    bench.metadata.policies.change([scope], {"retention.ms": GRACE_MS + PIN_TTL_MS + 5})
    with pytest.raises(StateMayBeStale, match="past the topic's retention"):
        list(reading)


def test_a_generation_in_another_order_cannot_be_gone_on_in(bench: Workbench, topic: Topic) -> None:
    """R7: by event time a key's value may be a message that is before what was given, so it would never be seen."""
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    lost_manifest = manifest(bench, topic)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    bench.compactor().compact(topic.name, RunPolicies(event_time_order=True))
    for name in lost_manifest.object_names:
        bench.store.delete(name)
    everything = raw(topic)
    trim_compacted(bench, topic)
    with pytest.raises(StateMayBeStale, match="has another order"):
        list(reading)
    assert view(list(topic.messages(read_compacted=True))) == view(everything)


def test_damage_of_the_generation_that_serves_is_damage(bench: Workbench, topic: Topic) -> None:
    """R8: it is checked again, and no other generation is there."""
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    lost = manifest(bench, topic).parts[-1].rows.stored.name
    bench.store.delete(lost)
    with pytest.raises(ObjectMissing, match=f"compacted ledger .* of {topic.name} .*{lost}"):
        list(reading)
    assert len(raw(topic)) == len(KEYS) + 2


def test_damage_in_the_newer_generation_is_damage_too(bench: Workbench, topic: Topic) -> None:
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    replaced(bench, topic, *EVERY_KEY)
    trim_compacted(bench, topic)
    compacted = topic.snapshot().compacted
    assert compacted is not None
    bench.store.delete(compacted.manifest.name)
    with pytest.raises(ObjectMissing, match=f"compacted ledger {compacted.ledger_id} .*{compacted.manifest.name}"):
        list(reading)


def test_a_read_goes_on_raw_where_the_compacted_ledger_was_cleared(bench: Workbench, topic: Topic) -> None:
    """R8: deleting the cursor clears; everything behind what was given is still there, raw."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    for part in manifest(bench, topic).parts:
        bench.store.delete(part.rows.stored.name)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    got += list(reading)
    assert [message.offset for message in got] == list(range(len(KEYS) + 2))


def test_a_cleared_ledger_that_raw_cannot_stand_in_for_is_said(bench: Workbench, topic: Topic) -> None:
    """Raw that does not reach back to what was given must not be taken for all there is."""
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    for part in manifest(bench, topic).parts:
        bench.store.delete(part.rows.stored.name)
    trim_compacted(bench, topic)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR, force=True)
    with pytest.raises(StateMayBeStale, match=rf"offsets \d+ to 19 of {topic.name}"):
        list(reading)
    assert keys(list(topic.messages(read_compacted=True))) == [b"tail", b"tail"]


def truncate(bench: Workbench, topic: Topic) -> None:
    bench.metadata.trimming.truncate([topic.record.id])


def trim_by_force(bench: Workbench, topic: Topic) -> None:
    end = topic.snapshot().topic.next_offset
    Retention(bench).trim(topic.record, end, force=True)


def trim_by_time(bench: Workbench, topic: Topic) -> None:
    scope = topic_scope(topic.record)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR, force=True)
    bench.metadata.policies.change([scope], {"cleanup.policy": "delete"})
    bench.metadata.policies.change([scope], {"retention.ms": 10})
    bench.advance(20)
    Retention(bench).trim(topic.record)


def trim_and_delete_the_cursor(bench: Workbench, topic: Topic) -> None:
    bench.compact(topic)
    trim_by_force(bench, topic)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR, force=True)


@pytest.mark.parametrize("compacts", [False, True], ids=["", "compacted since"])
@pytest.mark.parametrize("losing", [truncate, trim_by_force, trim_by_time, trim_and_delete_the_cursor])
def test_a_deletion_that_went_unread_with_its_raw_is_said(
    bench: Workbench, topic: Topic, losing: Callable[[Workbench, Topic], None], compacts: bool
) -> None:
    """R7: no compacted ledger replaces what a reader behind the horizon has not read."""
    reader = topic.reader(read_compacted=True)
    assert sum(map(len, reader.poll(ReadLimits()))) == len(KEYS) + 2
    bench.append(topic, [content((KEYS[0], None))])
    losing(bench, topic)
    bench.append(topic, [content((b"new", b"1"))])
    if compacts:
        bench.compact(topic)
    with pytest.raises(StateMayBeStale):
        reader.poll(ReadLimits())
    again = view(list(topic.messages(read_compacted=True)))
    assert (KEYS[0] in again) == (losing is trim_by_force), "what is lost to all readers, no read can know"
    assert b"new" in again


@pytest.mark.parametrize("start", [EARLIEST, LATEST])
def test_a_read_that_has_delivered_nothing_cannot_be_stale(bench: Workbench, start: MessageId) -> None:
    topic = bench.topic()
    reader = topic.reader(start, read_compacted=True)
    assert reader.poll(ReadLimits()) == []
    bench.append(topic, [content((b"k", None))])
    truncate(bench, topic)
    bench.append(topic, [content((b"new", b"1"))])
    assert [message.offset for message in row_messages(iter(reader.poll(ReadLimits())), -1)] == [1]


def test_a_reader_that_was_at_the_end_has_missed_nothing(bench: Workbench) -> None:
    """The last rows are slots without a message, which no reader gets."""
    topic = bench.topic()
    with topic.append_log() as log:
        log.append(encode_message(b"k", b"v", producer="p", sequence_id=1, publish_time=1))
        log.append(entry(metadata(publish_time=1, num_messages_in_batch=3), b"\xff" * 40))  # cannot be taken apart
    reader = topic.reader(read_compacted=True)
    assert sum(map(len, reader.poll(ReadLimits()))) == 2
    page = topic.reader(ContinuationToken(EARLIEST), read_compacted=True).rows(ReadLimits())
    assert page.next.to_token() == "4~r"
    topic.log_manager().roll_and_seal(topic.record)
    trim_by_force(bench, topic)
    bench.append(topic, [content((b"new", b"1"))])
    assert sum(map(len, reader.poll(ReadLimits()))) == 1
    assert len(topic.reader(page.next, read_compacted=True).messages(ReadLimits()).messages) == 1


def test_a_pin_that_was_lost_is_a_generation_that_is_gone(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects of a collected generation may go at any moment: it is not read on as long as they happen to last."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    first_part = manifest(bench, topic).parts[0].live
    bench.append(topic, [content(*EVERY_KEY)])
    bench.compact(topic)
    everything = raw(topic)
    trim_compacted(bench, topic)

    def fenced(*_: object) -> None:
        raise Fenced("the pin expired", "continue")

    monkeypatch.setattr(bench.metadata.pins, "renew", fenced)
    bench.advance(PIN_TTL_MS)
    got += list(reading)
    assert view(got) == view(everything)
    assert [m.payload for m in got].count(b"first" * 9) == first_part


def test_behind_the_horizon_a_read_stays_raw(bench: Workbench, topic: Topic) -> None:
    """R7: it does not jump into a newer compacted ledger while raw lasts."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, len(KEYS) + 1)
    assert got[-1].key == b"tail"
    replaced(bench, topic, *EVERY_KEY, (b"tail", b"3"))
    steps: list[Failpoint] = []
    with observed(steps.append):
        got += list(reading)
    assert steps == []
    assert [(m.key, m.payload) for m in got[-2:]] == [(b"tail", b"1"), (b"tail", b"2")]


def test_a_read_from_inside_goes_on_where_it_was(bench: Workbench, topic: Topic) -> None:
    start = raw(topic)[7].message_id
    reading = topic.messages(start, read_compacted=True)
    got = take(reading, 1)
    replaced(bench, topic, *EVERY_KEY[7:])
    got += list(reading)
    assert got[0].message_id == start
    ids = [message.message_id for message in got]
    assert ids == sorted(set(ids))
    assert view(got) == {key: value for key, value in view(raw(topic)).items() if key not in KEYS[:7]}
