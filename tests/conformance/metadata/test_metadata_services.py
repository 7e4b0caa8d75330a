"""Services and their leader, on every database (S6)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from storage.errors import Fenced
from storage.metadata.records import SERVICE_DEAD_MS, ServiceRecord
from storage.metadata.store import MetadataStore
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import at_once
from tests.conformance.metadata.conftest import OpenStores

TTL_MS = 10_000


def test_services_beat_and_leave(store: MetadataStore, clock: ManualClock) -> None:
    began = clock.now_ms()
    first = ServiceRecord("host:1:a", "http://one", None, began, began)
    store.services.heartbeat(first)
    clock.advance(SERVICE_DEAD_MS - 1)
    second = ServiceRecord("host:2:b", "http://two", "cd" * 16, began, clock.now_ms())
    store.services.heartbeat(second)
    assert store.services.live() == [first, second]
    clock.advance(1)
    assert store.services.live() == [second]
    store.services.heartbeat(replace(first, url="http://moved", log_uid="ef" * 16))
    moved = ServiceRecord("host:1:a", "http://moved", "ef" * 16, began, clock.now_ms())
    assert store.services.live() == [moved, second]
    store.services.leave(second.name)
    store.services.leave(second.name)
    assert store.services.live() == [moved]
    assert store.services.purge_dead() == 0
    clock.advance(100 * SERVICE_DEAD_MS)
    assert store.services.purge_dead() == 1
    assert store.services.live(10**9) == []


def test_a_service_that_ends_without_leaving_is_lost_until_it_is_purged(
    store: MetadataStore, clock: ManualClock
) -> None:
    began = clock.now_ms()
    killed, stopped, living = (ServiceRecord(f"host:{n}:x", "", None, began, began) for n in range(3))
    for record in (killed, stopped, living):
        store.services.heartbeat(record)
    assert store.services.lost() == []
    store.services.leave(stopped.name)
    clock.advance(SERVICE_DEAD_MS)
    store.services.heartbeat(living)
    assert store.services.lost() == [killed]
    clock.advance(20 * SERVICE_DEAD_MS)
    store.services.purge_dead()
    assert store.services.lost() == []


def test_of_many_candidates_one_leads(open_stores: OpenStores, clock: ManualClock) -> None:
    stores = open_stores(4)
    names = [f"host:{number}:x" for number in range(4)]
    tokens = at_once(
        *(partial(store.services.acquire_leadership, name, TTL_MS) for store, name in zip(stores, names, strict=True))
    )
    (token,) = [item for item in tokens if item is not None]
    assert token == 1
    leader = names[tokens.index(token)]
    assert stores[0].services.leader() == leader
    clock.advance(TTL_MS)
    stores[0].services.renew_leadership(1, TTL_MS)
    assert stores[0].services.leader() == leader, "late, but no other service took it"
    stores[0].services.resign(7)
    assert stores[0].services.leader() == leader
    stores[0].services.resign(1)
    assert stores[0].services.leader() is None
    with pytest.raises(Fenced, match="it was released"):
        stores[0].services.renew_leadership(1, TTL_MS)
