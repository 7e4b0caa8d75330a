"""Compacted reads hold a pin while they need one, and go on, rightly or not at all, where a generation is gone.

semantics.md R7, R8. What garbage collection has to do with it is in tests/faults/test_garbage_races.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from compactor.plan import Policies
from storage.errors import DataLoss, Fenced, ObjectMissing, StateMayBeStale, Unavailable
from storage.ledger.manifest import Manifest, read_manifest
from storage.metadata.records import COMPACTION_CURSOR, Pin
from storage.model import Message
from storage.pinned_read import TERM_MS
from storage.steps import Step, observed
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.workbench import Workbench, content, raw, view

KEYS = [b"key-%02d" % number for number in range(20)]


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Twenty keys in a compacted ledger of several parts, then two messages behind the horizon."""
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
    return bench.metadata.referenced(topic.record.id).pins


def advance(bench: Workbench, milliseconds: int) -> None:
    assert isinstance(bench.clock, ManualClock)
    bench.clock.advance(milliseconds)


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
    steps: list[Step] = []
    with observed(steps.append):
        assert len(list(fresh.messages(read_compacted=True))) == 2
        assert len(list(topic.messages(read_compacted=False))) == len(KEYS) + 2
    assert steps == []
    behind = raw(topic)[-1].message_id
    assert keys(list(topic.messages(behind, read_compacted=True))) == [b"tail"]
    assert pins(bench, topic) == ()


def test_the_pin_is_renewed_when_a_third_of_its_term_is_over(bench: Workbench, topic: Topic) -> None:
    steps: list[Step] = []
    with observed(steps.append):
        reading = topic.read(read_compacted=True)
        next(reading)
        advance(bench, TERM_MS // 3 - 1)
        next(reading)
        assert Step.PIN_RENEWED not in steps
        advance(bench, 1)
        next(reading)
        assert steps.count(Step.PIN_RENEWED) == 1
        next(reading)
        assert steps.count(Step.PIN_RENEWED) == 1, "a new term has begun"
    (pin,) = pins(bench, topic)
    assert pin.expires_at == bench.clock.now_ms() + TERM_MS


def test_a_database_that_is_away_stops_no_read(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the database is away", "try again")

    expected = list(topic.messages(read_compacted=True))
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    for name in ("renew_pin", "release_pin"):
        monkeypatch.setattr(bench.metadata, name, away)
    advance(bench, TERM_MS)
    assert got + list(reading) == expected


def replaced(bench: Workbench, topic: Topic, *changes: tuple[bytes | None, bytes | None]) -> None:
    """Publish a newer generation after these messages, and lose all objects that only the old one refers to."""
    old = topic.snapshot().compacted
    assert old is not None
    needed = manifest(bench, topic).objects | {old.manifest.name}
    bench.append(topic, [content(*changes)])
    bench.compact(topic)
    for name in needed - manifest(bench, topic).objects:
        bench.store.delete(name)


EVERY_KEY = [(key, b"second" * 9) for key in KEYS]


def test_a_read_goes_on_in_the_newer_generation_behind_what_it_has_given(bench: Workbench, topic: Topic) -> None:
    """R7: every part is replaced, so nothing of the old generation can be read on."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    replaced(bench, topic, *EVERY_KEY)
    got += list(reading)
    ids = [message.message_id for message in got]
    assert ids == sorted(set(ids))
    assert view(got) == view(raw(topic))
    assert got[-1].offset == raw(topic)[-1].offset
    assert {message.payload for message in got if message.offset > len(KEYS) + 1} == {b"second" * 9}


def test_a_read_that_has_given_nothing_begins_with_what_serves(bench: Workbench, topic: Topic) -> None:
    """The generation goes between the look at the database and the look at the manifest."""
    reading = topic.messages(read_compacted=True)

    def first(step: Step) -> None:
        if step is Step.PIN_TAKEN and not done:
            done.append(step)
            replaced(bench, topic, *EVERY_KEY[1:], (KEYS[0], None))

    done: list[Step] = []
    with observed(first):
        got = list(reading)
    assert view(got) == view(raw(topic))
    assert KEYS[0] not in keys(got)


def test_deletions_that_were_lost_meanwhile_are_said(bench: Workbench, topic: Topic) -> None:
    """R7: the reader has key-00, its tombstone came and went, and no newer generation can tell it."""
    reading = topic.messages(read_compacted=True)
    assert keys(take(reading, 1)) == [KEYS[0]]
    replaced(bench, topic, *EVERY_KEY[1:], (KEYS[0], None))
    with pytest.raises(
        StateMayBeStale, match=rf"generation of {topic.name} that was read up to offset \d+ is gone"
    ) as e:
        list(reading)
    assert "earliest" in e.value.remedy
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


def test_a_generation_in_another_order_cannot_be_gone_on_in(bench: Workbench, topic: Topic) -> None:
    """R7: by event time a key's value may be a message that lies before what was given, so it would never be seen."""
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    gone = manifest(bench, topic)
    bench.metadata.delete_cursor(topic.record.id, COMPACTION_CURSOR)
    bench.compactor().compact(topic.name, Policies(event_time_order=True))
    for name in gone.objects:
        bench.store.delete(name)
    with pytest.raises(StateMayBeStale, match="has another order"):
        list(reading)
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


def test_damage_of_the_generation_that_serves_is_damage(bench: Workbench, topic: Topic) -> None:
    """R8: it is looked at again, and no other generation is there."""
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
    bench.metadata.delete_cursor(topic.record.id, COMPACTION_CURSOR)
    got += list(reading)
    assert [message.offset for message in got] == list(range(len(KEYS) + 2))


def test_a_cleared_ledger_that_raw_cannot_stand_in_for_is_a_loss(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raw that does not reach back to what was given must not be taken for all there is."""
    reading = topic.messages(read_compacted=True)
    take(reading, 1)
    for part in manifest(bench, topic).parts:
        bench.store.delete(part.rows.stored.name)
    bench.metadata.delete_cursor(topic.record.id, COMPACTION_CURSOR)
    _trim_first_ledger(bench, monkeypatch)
    with pytest.raises(DataLoss):
        list(reading)


def _trim_first_ledger(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the oldest raw ledger had been trimmed."""
    real = bench.metadata.pin_compacted

    def trimmed(topic_id: int, holder: str, ttl_ms: int) -> object:
        snapshot, pin = real(topic_id, holder, ttl_ms)
        return replace(snapshot, ledgers=snapshot.ledgers[1:]), pin

    monkeypatch.setattr(bench.metadata, "pin_compacted", trimmed)


def test_a_pin_that_was_lost_is_a_generation_that_is_gone(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects of a collected generation may go at any moment: it is not read on as long as they happen to last."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, 1)
    first_part = manifest(bench, topic).parts[0].live
    bench.append(topic, [content(*EVERY_KEY)])
    bench.compact(topic)

    def fenced(*_: object) -> None:
        raise Fenced("the pin expired", "go on")

    monkeypatch.setattr(bench.metadata, "renew_pin", fenced)
    advance(bench, TERM_MS)
    got += list(reading)
    assert view(got) == view(raw(topic))
    assert [m.payload for m in got].count(b"first" * 9) == first_part


def test_behind_the_horizon_a_read_stays_raw(bench: Workbench, topic: Topic) -> None:
    """R7: it does not jump into a newer compacted ledger while raw lasts."""
    reading = topic.messages(read_compacted=True)
    got = take(reading, len(KEYS) + 1)
    assert got[-1].key == b"tail"
    replaced(bench, topic, *EVERY_KEY, (b"tail", b"3"))
    steps: list[Step] = []
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
