"""The writer's lease, attempts, and that no process appends without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from storage.advice import Advice, AdviceKind
from storage.errors import Fenced, LeaseHeld, TopicNotFound
from storage.metadata import leases
from storage.metadata.engine import POSTGRESQL
from storage.metadata.records import SERVICE_DEAD_MS, AttemptKind, Lease, ServiceRecord, TopicRecord
from storage.metadata.segments import DELETED_MS
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord, TopicName
from storage.owner import is_alive_here, new_owner_name
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, finished_at, ledger
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import check_all_or_nothing


def prepared(store: MetadataStore, topic: TopicRecord, first_offset: int, messages: int = 1) -> LedgerRecord:
    """A ledger that could be appended, with its attempt."""
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "someone")
    return ledger(store.ledgers.allocate_ids(1), first_offset, messages, attempt.attempt_id)


def test_a_lease_has_one_holder(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    lease = store.leases.acquire(topic.id, "first:1", TTL)
    assert lease == Lease(topic.id, "first:1", 1, clock.now_ms() + TTL)
    with pytest.raises(LeaseHeld, match=r"first:1 .*persistent://public/default/orders.*2023-11-14T22:13:35"):
        store.leases.acquire(topic.id, "second", TTL)
    # Not even the same holder: it would not notice that it works twice.
    with pytest.raises(LeaseHeld):
        store.leases.acquire(topic.id, "first:1", TTL)
    assert store.leases.acquire(other.id, "second", TTL).token == 1


def test_a_holder_that_is_a_live_service_is_told_as_one(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    store.services.heartbeat(ServiceRecord("vm:7:aa", "http://there:8080", None, 0, 0))
    store.leases.acquire(topic.id, "vm:7:bb", 60_000)
    with pytest.raises(LeaseHeld, match=r"vm:7:bb is writing .*it is the service at http://there:8080") as held:
        store.leases.acquire(topic.id, "import", TTL)
    assert held.value.advice == Advice(AdviceKind.APPEND_THROUGH_OWNER)
    with pytest.raises(LeaseHeld, match="it is the service") as held:
        store.tenancy.delete_topic(topic.id, force=False)
    assert held.value.advice == Advice(AdviceKind.DELETE_THROUGH_OWNER)
    clock.advance(SERVICE_DEAD_MS)
    with pytest.raises(LeaseHeld) as held:
        store.leases.acquire(topic.id, "import", TTL)
    assert "serve" not in str(held.value)


def test_tokens_grow_also_after_release_and_expiry(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    first = store.leases.acquire(topic.id, "a", TTL)
    store.leases.release(first)
    second = store.leases.acquire(topic.id, "b", TTL)
    clock.advance(TTL - 1)
    with pytest.raises(LeaseHeld):
        store.leases.acquire(topic.id, "c", TTL)
    clock.advance(1)
    third = store.leases.acquire(topic.id, "c", TTL)
    assert [first.token, second.token, third.token] == [1, 2, 3]


def test_renewal(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    lease = store.leases.acquire(topic.id, "a", TTL)
    clock.advance(TTL - 1)
    lease = store.leases.renew(lease, TTL)
    assert lease.expires_at == clock.now_ms() + TTL
    clock.advance(TTL - 1)
    with pytest.raises(LeaseHeld):
        store.leases.acquire(topic.id, "b", TTL)
    clock.advance(10 * TTL)
    # Long over, but no other process took it.
    lease = store.leases.renew(lease, TTL)
    assert lease.token == 1
    clock.advance(TTL)
    store.leases.acquire(topic.id, "b", TTL)
    with pytest.raises(Fenced, match="b has it now"):
        store.leases.renew(lease, TTL)


def test_many_are_renewed_at_once(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    """One lease may be lost, released or deleted with its topic: the others are renewed."""
    names = ["kept", "taken", "released", "deleted", "kept-too"]
    topics = [store.tenancy.ensure_topic(TopicName.parse(name)) for name in names]
    held = [store.leases.acquire(item.id, "a", TTL) for item in topics]
    clock.advance(TTL)
    overtaking = store.leases.acquire(topics[1].id, "b", TTL)
    store.leases.release(held[2])
    store.tenancy.delete_topic(topics[3].id)
    clock.advance(1)
    assert store.leases.renew_many(held, TTL) == ([held[1], held[2], held[3]], [])
    for kept in (0, 4):
        assert store.leases.current(topics[kept].id) == replace(held[kept], expires_at=clock.now_ms() + TTL)
    assert store.leases.current(topics[1].id) == overtaking
    assert store.leases.current(topics[2].id) is None
    assert store.leases.renew_many([], TTL) == ([], [])
    store.leases.renew(held[0], TTL)


def test_a_lease_whose_row_is_locked_holds_up_no_other(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    """PostgreSQL; in SQLite all who write wait for each other."""
    if store.database.dialect != POSTGRESQL:
        pytest.skip("SQLite has one lock")
    held = [store.leases.acquire(item.id, "a", TTL) for item in (topic, other)]
    clock.advance(TTL - 1)
    with store.database.write() as rolling:
        leases.lock_and_check(rolling, held[0])
        assert store.leases.renew_many(held, TTL) == ([], [held[0]])
    assert store.leases.current(other.id) == replace(held[1], expires_at=clock.now_ms() + TTL)
    assert store.leases.renew_many(held, TTL) == ([], [])


def test_a_lease_is_ended_for_a_dead_owner(store: MetadataStore, topic: TopicRecord) -> None:
    assert store.leases.revoke(topic.id) is None
    lease = store.leases.acquire(topic.id, "elsewhere:7:aa", TTL)
    assert store.leases.revoke(topic.id, dry_run=True) == lease == store.leases.current(topic.id)
    assert store.leases.revoke(topic.id) == lease
    for late in (lambda: store.leases.renew(lease, TTL), lambda: store.ledgers.append(lease, [])):
        with pytest.raises(Fenced, match="released"):
            late()
    assert store.leases.acquire(topic.id, "next", TTL).token == lease.token + 1
    with pytest.raises(TopicNotFound):
        store.leases.revoke(topic.id + 1)


@pytest.mark.parametrize("alive", ["service:7:aa", new_owner_name()], ids=["a service", "a process of this machine"])
def test_a_lease_of_a_live_owner_is_ended_by_force_alone(store: MetadataStore, topic: TopicRecord, alive: str) -> None:
    if not is_alive_here(new_owner_name()) and alive != "service:7:aa":
        pytest.skip("the system does not tell which processes live")
    store.services.heartbeat(ServiceRecord("service:7:bb", "http://there", None, 0, 0))
    lease = store.leases.acquire(topic.id, alive, TTL)
    for dry_run in (True, False):
        with pytest.raises(LeaseHeld, match="its owner is alive"):
            store.leases.revoke(topic.id, dry_run=dry_run)
    assert store.leases.revoke(topic.id, force=True) == lease
    assert store.leases.current(topic.id) is None


def test_requests_to_roll_and_deletions_are_seen_by_all_writers(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    others = [store.tenancy.ensure_topic(TopicName.parse(f"other-{number}")) for number in range(3)]
    assert store.segments.roll_requests_and_deletions() == (frozenset(), frozenset())
    store.segments.request_roll(others[1].id)
    store.tenancy.delete_topic(others[2].id)
    clock.advance(DELETED_MS)
    assert store.segments.roll_requests_and_deletions() == ({others[1].id}, {others[2].id})
    clock.advance(1)
    assert store.segments.roll_requests_and_deletions() == ({others[1].id}, frozenset())
    store.tenancy.delete_topic(others[1].id)
    store.segments.request_roll(topic.id)
    assert store.segments.roll_requests_and_deletions() == ({topic.id}, {others[1].id})


def test_a_lost_lease_is_released_in_silence(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    lost = store.leases.acquire(topic.id, "a", TTL)
    clock.advance(TTL)
    store.leases.acquire(topic.id, "b", TTL)
    store.leases.release(lost)
    with pytest.raises(LeaseHeld, match=r"^b is writing"):
        store.leases.acquire(topic.id, "c", TTL)


def test_a_lease_given_back_is_not_renewed(store: MetadataStore, topic: TopicRecord) -> None:
    lease = store.leases.acquire(topic.id, "a", TTL)
    store.leases.release(lease)
    store.leases.release(lease)
    with pytest.raises(Fenced, match="released"):
        store.leases.renew(lease, TTL)
    with pytest.raises(Fenced, match="released"):
        store.ledgers.append(lease, [prepared(store, topic, 0)])


def test_of_many_one_gets_the_lease(open_stores: OpenStores, topic: TopicRecord, clock: ManualClock) -> None:
    stores = open_stores(4)
    for round_number in range(1, 6):
        results = at_once(
            *(
                partial(store.leases.acquire, topic.id, f"holder-{number}", TTL)
                for number, store in enumerate(stores * 2)
            )
        )
        won = [result for result in results if isinstance(result, Lease)]
        assert [lease.token for lease in won] == [round_number]
        assert [type(result) for result in results if result is not won[0]] == [LeaseHeld] * 7
        clock.advance(TTL)


def test_an_overtaken_lease_appends_nothing(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    late = store.leases.acquire(topic.id, "late", TTL)
    record = prepared(store, topic, 0)
    clock.advance(TTL)
    overtaking = store.leases.acquire(topic.id, "quick", TTL)
    before = store.topic_snapshot(topic.id)
    with pytest.raises(Fenced, match=r"late no longer holds the lease of persistent://public/default/orders.*quick"):
        store.ledgers.append(late, [record])
    assert store.topic_snapshot(topic.id) == before
    # Also when the overtaker is gone again.
    store.leases.release(overtaking)
    with pytest.raises(Fenced):
        store.ledgers.append(late, [record])
    assert store.ledgers.of_topic(topic.id) == ()


def test_an_expired_lease_that_nobody_took_appends(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    lease = store.leases.acquire(topic.id, "slow", TTL)
    record = prepared(store, topic, 0, 3)
    clock.advance(10 * TTL)
    store.ledgers.append(lease, [record])
    assert store.ledgers.of_topic(topic.id) == (record,)
    assert store.topics.get(topic.name).next_offset == 3


def test_append_against_takeover_is_one_or_the_other(
    open_stores: OpenStores, topic: TopicRecord, clock: ManualClock
) -> None:
    stores = open_stores(2)
    for _ in range(8):
        lease = stores[0].leases.acquire(topic.id, "old", TTL)
        offset = stores[0].topics.get(topic.name).next_offset
        record = prepared(stores[0], topic, offset)
        clock.advance(TTL)
        calls: list[Callable[[], object]] = [
            partial(stores[0].ledgers.append, lease, [record]),
            lambda: stores[1].leases.acquire(topic.id, "new", TTL),
        ]
        appended, taken = at_once(*calls)
        assert isinstance(taken, Lease)
        assert appended is None or isinstance(appended, Fenced)
        assert stores[0].topics.get(topic.name).next_offset == offset + (appended is None)
        stores[0].leases.release(taken)


def test_ledgers_must_go_on_where_the_topic_ends(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    stale = replace(prepared(store, topic, 3), ledger_id=0)
    lease = store.leases.acquire(topic.id, "me", TTL)
    before = store.topic_snapshot(topic.id)
    for wrong in (prepared(store, topic, 2), prepared(store, topic, 4)):
        with pytest.raises(Fenced, match="offset"):
            store.ledgers.append(lease, [wrong])
    with pytest.raises(Fenced, match="ledger 0 cannot be appended"):
        store.ledgers.append(lease, [stale])
    first, second, third = (prepared(store, topic, offset) for offset in (3, 4, 6))
    for wrong_list in ([first, third], [replace(first, ledger_id=10**6), second], []):
        with pytest.raises(AssertionError, match="orders"):
            store.ledgers.append(lease, wrong_list)
    with pytest.raises(AssertionError, match="before its first"):
        store.ledgers.append(lease, [replace(first, last_offset=2)])
    assert store.topic_snapshot(topic.id) == before
    store.ledgers.append(lease, [first, second])
    assert store.topics.get(topic.name).next_offset == 5


def test_an_append_that_fails_in_the_middle_changes_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    lease = store.leases.acquire(topic.id, "me", TTL)
    records = [prepared(store, topic, 3, 2), prepared(store, topic, 5)]
    before = store.ledgers.of_topic(topic.id)
    assert finished_at(store, records[0].attempt_id) is None
    check_all_or_nothing(store, topic, lambda: store.ledgers.append(lease, records), at_least=6)
    assert store.ledgers.of_topic(topic.id) == (*before, *records)


def test_an_attempt_from_beginning_to_end(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "me")
    assert store.attempts.find(attempt.attempt_id) == attempt
    begun = clock.now_ms()
    clock.advance(5)
    store.attempts.heartbeat(attempt)
    assert store.attempts.find(attempt.attempt_id) == replace(attempt, heartbeat_at=begun + 5)
    clock.advance(5)
    store.attempts.finish(attempt.attempt_id)
    ended = replace(attempt, heartbeat_at=begun + 5, finished_at=begun + 10)
    assert store.attempts.find(attempt.attempt_id) == ended
    clock.advance(5)
    store.attempts.finish(attempt.attempt_id)
    with pytest.raises(Fenced, match=attempt.attempt_id):
        store.attempts.heartbeat(attempt)
    assert store.attempts.find(attempt.attempt_id) == ended
    assert store.attempts.find("0" * 32) is None


def test_an_append_finishes_its_attempts(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    created = append(store, topic, 1, 1)
    assert finished_at(store, created[0].attempt_id) == clock.now_ms()


def test_an_attempt_that_was_given_up_appends_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    lease = store.leases.acquire(topic.id, "me", TTL)
    record = prepared(store, topic, 0)
    store.attempts.finish(record.attempt_id)
    with pytest.raises(Fenced, match=f"{record.attempt_id} is finished"):
        store.ledgers.append(lease, [record])
    with pytest.raises(Fenced, match="unheard-of"):
        store.ledgers.append(lease, [replace(record, attempt_id="unheard-of")])
    assert store.ledgers.of_topic(topic.id) == ()
