"""A clock that jumps, by a year, forwards or back, and comes right again: leases, heartbeats, pins, grace times.

What must hold: time decides which process may begin, never whose work counts. So a wrong clock costs some waiting, a
run or a pin, and its owner gets an error; it never gives a topic two writers, two generations of one number, a horizon
that goes back, or a compacted ledger that serves and is gone. And nothing is held until the time of a clock that ran
ahead.
"""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from storage.errors import Fenced, LeaseHeld
from storage.metadata.liveness import LEASE_TTL_MS, LONGEST_TERMS
from storage.metadata.records import AttemptKind, RunState, ServiceRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, claim, compacted, end_of, ledger, publish_all
from tests.conformance.metadata.log_builders import LOG_UID, rolled

YEAR = 365 * 24 * 3_600_000
GRACE = 3_600_000


@pytest.fixture(params=[YEAR, -YEAR], ids=["forwards", "back"])
def jump(request: pytest.FixtureRequest) -> int:
    """Return the length of the clock's jump in milliseconds."""
    jump: int = request.param
    return jump


def test_two_writers_never_both_append(store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int) -> None:
    """The process that holds the lease by its token appends; another one is fenced."""
    holder = store.leases.acquire(topic.id, "holder", TTL)
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "holder")
    record = ledger(store.ledgers.allocate_ids(1), 0, 3, attempt.attempt_id)
    clock.advance(jump)
    other = store.leases.acquire(topic.id, "other", TTL)
    clock.advance(-jump)
    for late in (lambda: store.ledgers.append(holder, [record]), lambda: store.leases.renew(holder, TTL)):
        with pytest.raises(Fenced, match="other has it now"):
            late()
    assert store.ledgers.of_topic(topic.id) == ()
    store.leases.release(holder)  # not his any more
    theirs = store.attempts.begin(topic.id, AttemptKind.IMPORT, "other")
    store.ledgers.append(other, [ledger(store.ledgers.allocate_ids(1), 0, 1, theirs.attempt_id)])


def test_a_lease_from_a_fast_clock_is_set_right_by_its_holder(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    clock.advance(YEAR)
    lease = store.leases.acquire(topic.id, "holder", TTL)
    clock.advance(-YEAR)
    lease = store.leases.renew(lease, TTL)
    assert lease.expires_at == clock.now_ms() + TTL
    clock.advance(TTL)
    assert store.leases.acquire(topic.id, "next", TTL).token == lease.token + 1


def test_a_run_is_taken_over_and_one_publishes(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int
) -> None:
    """The claimant believes the worker dead, which lives: one of them publishes."""
    created = append(store, topic, 3)
    loser = claim(store, topic, "first")
    clock.advance(jump)
    winner = claim(store, topic, "second")
    clock.advance(-jump)
    assert store.runs.heartbeat([loser, winner]) == [loser.run_id]
    with pytest.raises(Fenced, match="taken over"):
        store.publishing.publish(loser, 0, compacted(store, loser, 1, end_of(created[0])), {})
    store.publishing.publish(winner, 0, compacted(store, winner, 1, end_of(created[0])), {})
    assert store.topics.get(topic.name).generation == 1
    assert [run.state for run in store.runs.of_topic(topic.id, 9)].count(RunState.SUCCESS) == 1


def test_a_beat_sets_a_run_right_after_a_jump(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int
) -> None:
    """Heartbeats are what the clock says now, also if that is less than before: a later death is seen in time."""
    run = claim(store, topic)
    clock.advance(jump)
    assert store.runs.heartbeat([run]) == []
    clock.advance(-jump)
    assert store.runs.heartbeat([run]) == []
    assert store.runs.get(run.run_id).heartbeat_at == clock.now_ms()
    attempt = store.attempts.find(run.attempt_id)
    assert attempt is not None
    assert attempt.heartbeat_at == clock.now_ms()
    clock.advance(TTL)
    assert store.runs.expire_attempts(topic.id, TTL) == [run.attempt_id]


def test_what_a_dead_process_holds_by_a_fast_clock_is_free_at_once(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    """Its lease, run, sealing claim, attempt, pin and service row all say that it lives, a year from now."""
    append(store, topic, 3)
    publish_all(store, topic)
    rolled(store, topic, 2)
    other = store.tenancy.ensure_topic(TopicName.parse("other"))
    clock.advance(YEAR)
    store.leases.acquire(topic.id, "dead", TTL)
    run = claim(store, other, "dead")
    claimed = store.sealing.claim(topic.id, "dead", LOG_UID, TTL)
    assert claimed is not None
    pin = store.pins.take(topic.id, "dead", TTL)[1]
    assert pin is not None
    store.services.heartbeat(ServiceRecord("dead:1:aa", "http://dead", LOG_UID, 0, 0))
    clock.advance(-YEAR)
    assert store.leases.current(topic.id) is None
    store.leases.release(store.leases.acquire(topic.id, "next", TTL))
    assert not store.compaction_control.activity(other.id).running
    assert claim(store, other, "next").epoch == run.epoch + 1
    again = store.sealing.claim(topic.id, "next", LOG_UID, TTL)
    assert again is not None
    assert again[0].ledger_id == claimed[0].ledger_id
    clock.advance(YEAR)
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "dead")
    clock.advance(-YEAR)
    assert store.runs.expire_attempts(topic.id, GRACE) == [attempt.attempt_id]
    publish_all(store, topic)
    clock.advance(GRACE)
    assert store.pins.gc_snapshot(topic.id).pins == ()
    assert store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, GRACE)
    assert store.services.live() == []
    assert store.services.purge_dead() == 1


def test_a_clock_a_little_ahead_costs_waiting(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    ahead = (LONGEST_TERMS - 1) * LEASE_TTL_MS
    clock.advance(ahead)
    store.leases.acquire(topic.id, "ahead", LEASE_TTL_MS)
    clock.advance(-ahead)
    with pytest.raises(LeaseHeld, match="ahead"):
        store.leases.acquire(topic.id, "next", LEASE_TTL_MS)
    clock.advance(ahead + LEASE_TTL_MS)
    store.leases.acquire(topic.id, "next", LEASE_TTL_MS)


def test_an_attempt_that_was_given_up_too_early_leaves_nothing_half_done(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int
) -> None:
    """A collector whose clock is wrong gives up what is alive; then its objects may go, for it can never commit."""
    lease = store.leases.acquire(topic.id, "importer", TTL)
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "importer")
    record = ledger(store.ledgers.allocate_ids(1), 0, 3, attempt.attempt_id)
    clock.advance(jump)
    expired = store.runs.expire_attempts(topic.id, TTL)
    clock.advance(-jump)
    assert expired == [attempt.attempt_id]
    with pytest.raises(Fenced, match="is finished or expired"):
        store.ledgers.append(lease, [record])
    assert store.ledgers.of_topic(topic.id) == ()


def test_grace_is_not_over_in_the_past(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    publish_all(store, topic)
    (retired,) = store.pins.retired_ledgers(topic.id)
    clock.advance(-YEAR)
    for grace in (0, GRACE):
        assert not store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, grace)
    clock.advance(YEAR + GRACE)
    assert store.pins.delete_ledger_if_unpinned(topic.id, retired.ledger_id, GRACE)


def test_what_serves_stays_whatever_the_time(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    before = store.topic_snapshot(topic.id)
    assert before.compacted is not None
    clock.advance(jump)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, before.compacted.ledger_id, 0)
    store.runs.expire_attempts(topic.id, 0)
    store.attempts.purge(topic.id, clock.now_ms())
    clock.advance(-jump)
    assert store.topic_snapshot(topic.id) == before
    assert store.pins.take(topic.id, "reader", TTL)[0] == before


def test_a_reader_that_lost_its_pin_to_a_fast_clock_is_told(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int
) -> None:
    """Nothing can keep what a wrong clock says is long over; but the reader learns of it, and pins what serves."""
    append(store, topic, 3)
    publish_all(store, topic)
    pin = store.pins.take(topic.id, "reader", TTL)[1]
    assert pin is not None
    publish_all(store, topic)
    clock.advance(jump)
    collected = store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, GRACE)
    clock.advance(-jump)
    assert collected == (jump > 0)
    if collected:
        with pytest.raises(Fenced, match="was collected"):
            store.pins.renew(pin, TTL)
    else:
        assert store.pins.renew(pin, TTL).ledger_id == pin.ledger_id
    snapshot, newer = store.pins.take(topic.id, "reader", TTL)
    assert newer is not None
    assert snapshot.compacted is not None
    assert newer.ledger_id == snapshot.compacted.ledger_id != pin.ledger_id


def test_a_pin_outlives_a_jump_that_nobody_collects_in(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, jump: int
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    pin = store.pins.take(topic.id, "reader", TTL)[1]
    assert pin is not None
    publish_all(store, topic)
    clock.advance(jump)
    pin = store.pins.renew(pin, TTL)
    clock.advance(-jump)
    pin = store.pins.renew(pin, TTL)
    clock.advance(TTL - 1)
    assert not store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)
    clock.advance(1)
    assert store.pins.delete_ledger_if_unpinned(topic.id, pin.ledger_id, 0)


@pytest.mark.slow
def test_two_machines_a_year_apart_publish_one_after_the_other(database_url: URL) -> None:
    """Generation, epoch and horizon only grow, though the times in the rows go up and down."""
    clocks = [ManualClock(), ManualClock(1_700_000_000_000 + YEAR)]
    stores = [MetadataStore(database_url, clock) for clock in clocks]
    topic = stores[0].tenancy.ensure_topic(TopicName.parse("orders"))
    horizon = -1
    for number in range(6):
        worker = stores[number % 2]
        created = append(stores[1], topic, 2)
        run = claim(worker, topic)
        snapshot = worker.topic_snapshot(topic.id)
        assert (snapshot.topic.generation, snapshot.topic.epoch) == (number, number + 1)
        worker.publishing.publish(run, number, compacted(worker, run, number + 1, end_of(created[0])), {})
        after = stores[0].topic_snapshot(topic.id)
        assert after.horizon is not None
        assert after.horizon.offset > horizon
        horizon = after.horizon.offset
        assert stores[0].runs.last(topic.id) == stores[1].runs.get(run.run_id)
    assert [item.generation for item in stores[0].pins.retired_ledgers(topic.id)] == [1, 2, 3, 4, 5]
    for store in stores:
        store.close()
