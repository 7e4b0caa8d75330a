"""An owner that is a dead process of this machine is dead at once, whatever its TTL or heartbeat says; a process of the
same host name and pid elsewhere is another one. (Clocks that run ahead: tests/faults/test_clock_jumps.py.)"""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import CompactionRunning, LeaseHeld
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.owner import Owner, new_owner_name
from tests.conformance.metadata.builders import TTL, append, claim
from tests.conformance.metadata.log_builders import LOG_UID, rolled

DEAD = replace(Owner.current(), start="0")
"""A process that had this one's pid before."""
TWIN = replace(Owner.current(), machine="0a0a0a0a")
"""A process of the same host name and pid in another container."""

pytestmark = pytest.mark.skipif(not DEAD.is_dead, reason="the system does not tell which processes live")


def test_the_lease_of_a_dead_process_is_free(store: MetadataStore, topic: TopicRecord) -> None:
    store.leases.acquire(topic.id, str(DEAD), TTL)
    assert store.leases.current(topic.id) is None
    store.tenancy.delete_topic(store.tenancy.ensure_topic(topic.name).id, force=False)
    again = store.tenancy.ensure_topic(topic.name)
    store.leases.acquire(again.id, str(DEAD), TTL)
    lease = store.leases.acquire(again.id, new_owner_name(), TTL)
    assert lease.token == 2
    with pytest.raises(LeaseHeld):
        store.leases.acquire(again.id, "next", TTL)


def test_the_lease_of_a_twin_is_its_own(store: MetadataStore, topic: TopicRecord) -> None:
    store.services.heartbeat(ServiceRecord(new_owner_name(), "http://here", None, 0, 0))
    store.leases.acquire(topic.id, str(TWIN), TTL)
    with pytest.raises(LeaseHeld) as answer:
        store.leases.acquire(topic.id, new_owner_name(), TTL)
    assert "it is the service" not in str(answer.value), "the service here is another process"
    assert store.services.of_owner(str(TWIN)) is None
    assert store.services.of_owner(new_owner_name()) is not None


def test_a_dead_process_holds_no_run_segment_service_or_leadership(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    run = claim(store, topic, str(DEAD))
    assert not store.compaction_control.activity(topic.id).running
    assert [item.id for item in store.compaction_control.request_dead_runs_again("here")] == [topic.id]
    assert claim(store, topic, new_owner_name()).epoch == run.epoch + 1
    with pytest.raises(CompactionRunning):
        claim(store, topic)
    rolled(store, topic, 2)
    assert store.sealing.claim(topic.id, str(DEAD), LOG_UID, TTL) is not None
    assert store.sealing.claim(topic.id, new_owner_name(), LOG_UID, TTL) is not None
    assert store.sealing.claim(topic.id, "next", LOG_UID, TTL) is None
    store.services.heartbeat(ServiceRecord(str(DEAD), "http://dead", LOG_UID, 0, 0))
    assert store.services.live() == []
    assert store.services.acquire_leadership(str(DEAD), TTL) == 1
    assert store.services.acquire_leadership(new_owner_name(), TTL) == 2
    assert store.services.acquire_leadership("next", TTL) is None
