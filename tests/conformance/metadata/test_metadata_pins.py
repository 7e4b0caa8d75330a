"""Pins, and the collection of compacted ledgers that serve no more (A3; property 9)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError

from storage.errors import Fenced, TopicNotFound
from storage.metadata.records import CompactedLedgerRecord, Pin, RunRecord, TopicRecord, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.metadata.tables import compacted_ledgers, pins
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, publish_all
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import check_all_or_nothing

GRACE = 3_600_000
UNKNOWN_ID = 10**9
"""The id of no ledger and of no topic."""


def serving(store: MetadataStore, topic: TopicRecord) -> CompactedLedgerRecord:
    current = store.topic_snapshot(topic.id).compacted
    assert current is not None
    return current


def pinned(store: MetadataStore, topic: TopicRecord, holder: str = "reader", ttl_ms: int = TTL) -> Pin:
    pin = store.pins.take(topic.id, holder, ttl_ms)[1]
    assert pin is not None
    return pin


def kept(store: MetadataStore, topic: TopicRecord) -> list[int]:
    return [item.ledger_id for item in store.pins.gc_snapshot(topic.id).compacted]


@pytest.fixture
def retired(store: MetadataStore, topic: TopicRecord) -> CompactedLedgerRecord:
    """A compacted ledger that retired just now, with its successor serving."""
    append(store, topic, 3)
    publish_all(store, topic)
    publish_all(store, topic)
    return store.pins.retired_ledgers(topic.id)[0]


def test_a_pin_comes_with_its_snapshot(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    assert store.pins.take(topic.id, "reader", TTL) == (store.topic_snapshot(topic.id), None)
    append(store, topic, 3)
    publish_all(store, topic)
    snapshot, pin = store.pins.take(topic.id, "host-1:99", TTL)
    assert snapshot == store.topic_snapshot(topic.id)
    assert snapshot.compacted is not None
    assert pin is not None
    assert pin == Pin(pin.pin_id, topic.id, snapshot.compacted.ledger_id, "host-1:99", clock.now_ms() + TTL)
    assert len(pin.pin_id) == 32
    assert store.pins.gc_snapshot(topic.id).pins == (pin,)
    with pytest.raises(TopicNotFound):
        store.pins.take(UNKNOWN_ID, "reader", TTL)


def test_a_retired_ledger_is_pinned_by_its_id_until_it_is_collected(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, retired: CompactedLedgerRecord
) -> None:
    snapshot, pin = store.pins.take(topic.id, "reader", TTL, retired.ledger_id)
    assert pin is not None
    assert pin.ledger_id == retired.ledger_id
    assert snapshot == store.topic_snapshot(topic.id), "what serves is what it was"
    assert not store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, 0)
    store.pins.release(pin)
    assert store.pins.take(other.id, "reader", TTL, retired.ledger_id)[1] is None
    assert store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, 0)
    pin = store.pins.take(topic.id, "reader", TTL, retired.ledger_id)[1]
    assert pin is not None
    assert pin.ledger_id == serving(store, topic).ledger_id


def test_two_pins_of_one_holder_are_two(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    first, second = pinned(store, topic), pinned(store, topic)
    publish_all(store, topic)
    store.pins.release(first)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, first.ledger_id, 0)
    store.pins.release(second)
    store.pins.release(second)
    assert store.pins.delete_ledger_if_unpinned(topic.id, first.ledger_id, 0)


def test_a_retired_ledger_goes_after_its_grace_time(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, retired: CompactedLedgerRecord
) -> None:
    assert retired.retired_at == clock.now_ms()
    clock.advance(GRACE - 1)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, GRACE)
    assert store.pins.retired_ledgers(topic.id) == [retired]
    before = store.topic_snapshot(topic.id)
    clock.advance(1)
    assert store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, GRACE)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, GRACE)
    assert store.pins.retired_ledgers(topic.id) == []
    assert store.topic_snapshot(topic.id) == before


def test_what_serves_is_never_collected(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    clock.advance(10 * GRACE)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, serving(store, topic).ledger_id, 0)
    assert store.pins.retired_ledgers(topic.id) == []
    assert store.topic_snapshot(topic.id).compacted is not None


def test_nor_is_what_another_topic_has(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock, retired: CompactedLedgerRecord
) -> None:
    clock.advance(GRACE)
    assert not store.pins.delete_ledger_if_unpinned(other.id, retired.ledger_id, 0)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, UNKNOWN_ID, 0)
    assert store.pins.retired_ledgers(topic.id) == [retired]
    assert store.pins.retired_ledgers(other.id) == []
    with pytest.raises(TopicNotFound):
        store.pins.delete_ledger_if_unpinned(UNKNOWN_ID, retired.ledger_id, 0)


def test_retired_ledgers_are_listed_the_oldest_first(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    created = [publish_all(store, topic).compacted_ledger_id for _ in range(4)]
    assert [item.ledger_id for item in store.pins.retired_ledgers(topic.id)] == created[:3]
    assert kept(store, topic) == created
    # With the cursor the last one retires too.
    store.cursors.delete(topic.id, "__compaction")
    assert [item.ledger_id for item in store.pins.retired_ledgers(topic.id)] == created
    assert store.pins.take(topic.id, "reader", TTL)[1] is None
    assert [store.pins.delete_ledger_if_unpinned(topic.id, int(ledger or 0), 0) for ledger in created] == [True] * 4
    # The generation continues, though no row remembers where it was.
    publish_all(store, topic)
    assert serving(store, topic).generation == 5


def test_a_pin_holds_its_ledger_until_it_expires(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = pinned(store, topic, ttl_ms=TTL)
    publish_all(store, topic)
    newer = pinned(store, topic, "another", ttl_ms=2 * TTL)
    assert newer.ledger_id == serving(store, topic).ledger_id != pin.ledger_id
    clock.advance(TTL - 1)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)
    assert kept(store, topic) == [pin.ledger_id, newer.ledger_id]
    clock.advance(1)
    assert store.pins.gc_snapshot(topic.id).pins == (newer,)
    assert store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)
    assert kept(store, topic) == [newer.ledger_id]


def test_a_renewed_pin_holds_on(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = pinned(store, topic)
    publish_all(store, topic)
    for _ in range(3):
        clock.advance(TTL - 1)
        renewed = store.pins.renew(pin, TTL)
        assert renewed == replace(pin, expires_at=clock.now_ms() + TTL)
        assert not store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)
        pin = renewed
    assert store.pins.gc_snapshot(topic.id).pins == (pin,)


@pytest.mark.slow
def test_an_expired_pin_is_renewed_while_its_ledger_is_there(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = pinned(store, topic)
    publish_all(store, topic)
    clock.advance(10 * TTL)
    newer = pinned(store, topic, "another")  # sweeps what has expired
    assert store.pins.gc_snapshot(topic.id).pins == (newer,)
    renewed = store.pins.renew(pin, TTL)
    assert set(store.pins.gc_snapshot(topic.id).pins) == {newer, renewed}
    assert not store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)


def test_a_pin_whose_ledger_was_collected_is_fenced(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = pinned(store, topic, "slow")
    publish_all(store, topic)
    clock.advance(TTL)
    assert store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)
    with pytest.raises(Fenced, match=rf"pin of slow on compacted ledger {pin.ledger_id} of persistent:.*collected"):
        store.pins.renew(pin, TTL)
    assert store.pins.gc_snapshot(topic.id).pins == ()
    store.pins.release(pin)
    assert pinned(store, topic).ledger_id == serving(store, topic).ledger_id


def test_pins_of_dead_readers_do_not_pile_up(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    for number in range(5):
        pinned(store, topic, f"dies-{number}")
        clock.advance(TTL)
    with store.database.read() as connection:
        assert connection.execute(select(func.count()).select_from(pins)).scalar_one() == 1


def test_the_database_itself_keeps_what_is_pinned(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = pinned(store, topic)
    publish_all(store, topic)
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(delete(compacted_ledgers).where(compacted_ledgers.c.ledger_id == pin.ledger_id))
    assert pin.ledger_id in kept(store, topic)


def test_a_collection_that_fails_in_the_middle_changes_nothing(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = pinned(store, topic)
    publish_all(store, topic)
    clock.advance(TTL)
    check_all_or_nothing(
        store, topic, lambda: store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0), at_least=5
    )
    assert pin.ledger_id not in kept(store, topic)


@pytest.mark.slow
def test_a_pin_in_the_moment_of_collection_keeps_its_ledger(open_stores: OpenStores, topic: TopicRecord) -> None:
    """Readers pin while a run publishes and two collectors, without a grace time, take all that has retired."""
    stores = open_stores(6)
    append(stores[0], topic, 3)
    publish_all(stores[0], topic)
    for _ in range(12):
        old = serving(stores[0], topic)
        run = claim(stores[0], topic)
        new = compacted(stores[0], run, old.generation + 1, old.horizon)

        def collect(store: MetadataStore, old: CompactedLedgerRecord = old) -> bool:
            return any(store.pins.delete_ledger_if_unpinned(topic.id, old.ledger_id, 0) for _ in range(4))

        def publish(run: RunRecord = run, old: CompactedLedgerRecord = old, new: object = new) -> bool:
            assert isinstance(new, CompactedLedgerRecord)
            stores[0].publishing.publish(run, old.generation, new, {})
            return collect(stores[0])

        first, second, *taken = at_once(
            publish,
            lambda: collect(stores[1]),
            *(partial(store.pins.take, topic.id, "reader", TTL) for store in stores[2:]),
        )
        assert isinstance(first, bool)
        assert isinstance(second, bool)
        assert not (first and second)
        remaining = kept(stores[0], topic)
        assert remaining in ([old.ledger_id, new.ledger_id], [new.ledger_id])
        for answer in taken:
            assert isinstance(answer, tuple)
            snapshot, pin = answer
            assert isinstance(snapshot, TopicSnapshot)
            assert isinstance(pin, Pin)
            assert snapshot.compacted is not None
            assert snapshot.compacted.ledger_id == pin.ledger_id
            assert pin.ledger_id in remaining
            stores[0].pins.release(pin)
        stores[0].pins.delete_ledger_if_unpinned(topic.id, old.ledger_id, 0)


def test_renewal_against_collection_is_one_or_the_other(
    open_stores: OpenStores, topic: TopicRecord, clock: ManualClock
) -> None:
    stores = open_stores(2)
    append(stores[0], topic, 3)
    publish_all(stores[0], topic)
    for _ in range(8):
        pin = pinned(stores[0], topic)
        publish_all(stores[0], topic)
        clock.advance(TTL)
        renewed, collected = at_once(
            partial(stores[0].pins.renew, pin, TTL),
            partial(stores[1].pins.delete_ledger_if_unpinned, topic.id, pin.ledger_id, 0),
        )
        if collected is True:
            assert isinstance(renewed, Fenced)
        else:
            assert collected is False
            assert isinstance(renewed, Pin)
            assert pin.ledger_id in kept(stores[0], topic)
            stores[0].pins.release(renewed)


def test_of_many_collectors_one_collects(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(4)
    append(stores[0], topic, 3)
    publish_all(stores[0], topic)
    for _ in range(6):
        old = serving(stores[0], topic)
        publish_all(stores[0], topic)
        results = at_once(
            *(partial(store.pins.delete_ledger_if_unpinned, topic.id, old.ledger_id, 0) for store in stores)
        )
        assert sorted(map(repr, results)) == ["False"] * 3 + ["True"]


def test_a_run_reads_on_what_it_began_with(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    """A run needs no pin: what it builds on serves until it publishes, or the run is fenced."""
    created = append(store, topic, 3)
    publish_all(store, topic)
    run = claim(store, topic)
    base = serving(store, topic)
    clock.advance(10 * GRACE)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, base.ledger_id, 0)
    store.publishing.publish(run, base.generation, compacted(store, run, base.generation + 1, end_of(created[0])), {})
    assert store.pins.delete_ledger_if_unpinned(topic.id, base.ledger_id, 0)
