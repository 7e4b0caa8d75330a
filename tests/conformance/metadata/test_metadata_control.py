"""Requests, pauses, failures, backlogs, services and their leader, on every database (S1, S4, S5, S6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import URL, Connection, text

from compactor.scheduling.status import CompactionStatus, compaction_status
from storage.errors import CompactionPaused, CompactionRunning, Conflict, Fenced, TopicNotFound, Unavailable
from storage.metadata import services, topics
from storage.metadata.compaction_state_records import (
    RUN_DEAD_MS,
    SERVICE_DEAD_MS,
    BacklogRecord,
    CompactionState,
    Retry,
    ServiceRecord,
)
from storage.metadata.records import COMPACTION_CURSOR, RunState, SegmentRecord, SegmentState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, publish_all
from tests.conformance.metadata.conftest import OpenStore
from tests.conformance.metadata.log_builders import broken_link, content
from tests.servers.cut_link import Cut

TERM = 10_000


def leading(store: MetadataStore, name: str = "host:1:a") -> int:
    token = store.services.lead(name, TERM)
    assert token is not None
    return token


def test_a_request_is_kept_until_its_run_is_claimed(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    assert store.control.control(topic.id) == CompactionState()
    made = store.control.request(topic.id, "manual", "ann")
    assert made == CompactionState(clock.now_ms(), "manual", requested_by="ann")
    assert store.control.requests() == [(topic, made)]
    assert [one.name for one in store.cursors(topic.id)] == [COMPACTION_CURSOR], "S9"
    with pytest.raises(CompactionRunning, match=r"is requested since .*\(manual, by ann\)"):
        store.control.request(topic.id, "manual", "bob")
    run = store.claim_run(topic.id, "worker", {}, TTL, leader=leading(store))
    assert run.cause == "manual"
    assert store.control.requests() == []
    with pytest.raises(CompactionRunning, match=f"run {run.run_id} by worker"):
        store.control.request(topic.id, "manual", "bob")
    store.finish_run(run, {})
    store.control.request(topic.id, "threshold.bytes", "bob")


def test_the_oldest_request_comes_first(store: MetadataStore, clock: ManualClock) -> None:
    topics = [store.create_topic(TopicName.parse(f"t{number}")) for number in range(3)]
    for number in (1, 2, 0):
        store.control.request(topics[number].id, "manual", "ann")
        clock.advance(1)
    assert [one.name for one, _ in store.control.requests()] == [topics[number].name for number in (1, 2, 0)]


def test_of_many_triggers_one_is_taken(database_url: URL, open_store: OpenStore) -> None:
    stores = [open_store(database_url) for _ in range(4)]
    topic = stores[0].create_topic(TopicName.parse("t"))
    asked = at_once([partial(one.control.request, topic.id, "manual", "ann") for one in stores])
    assert sorted(type(one).__name__ for one in asked) == ["CompactionRunning"] * 3 + ["CompactionState"]
    token = leading(stores[0])
    claimed = at_once([partial(one.claim_run, topic.id, "worker", {}, TTL, leader=token) for one in stores])
    assert sorted(type(one).__name__ for one in claimed) == ["Fenced"] * 3 + ["RunRecord"]


def test_a_leader_claims_only_what_is_requested_and_while_it_leads(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    token = leading(store)
    with pytest.raises(Fenced, match="not requested any more"):
        store.claim_run(topic.id, "worker", {}, TTL, leader=token)
    store.control.request(topic.id, "manual", "ann")
    clock.advance(TERM)
    following = leading(store, "host:2:b")
    with pytest.raises(Fenced, match="host:2:b leads now"):
        store.claim_run(topic.id, "worker", {}, TTL, leader=token)
    with pytest.raises(Fenced):
        store.control.withdraw(topic.id, leader=token)
    with pytest.raises(Fenced):
        store.control.failed(topic.id, "no", 5, leader=token)
    assert len(store.control.requests()) == 1
    assert store.last_run(topic.id) is None
    assert store.claim_run(topic.id, "worker", {}, TTL, leader=following).state is RunState.RUNNING


def test_a_leader_waits_for_no_topic(database_url: URL, open_store: OpenStore) -> None:
    """S6: a claim that must wait for a topic's row does not keep the leader from renewing meanwhile."""
    if database_url.get_backend_name() != "postgresql":
        pytest.skip("SQLite has one lock for everything")
    one, other = open_store(database_url), open_store(database_url)
    topic = one.create_topic(TopicName.parse("t"))
    token = leading(one)
    one.control.request(topic.id, "manual", "ann")
    with ThreadPoolExecutor(1) as pool:
        with other.database.write() as stuck:
            topics.locked(stuck, topic.id)
            claimed = pool.submit(one.claim_run, topic.id, "worker", {}, TTL, leader=token)
            with other.database.read() as looking:
                while not looking.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one():
                    assert not claimed.done()
            with one.database.write() as renewing:
                renewing.execute(text("SET LOCAL lock_timeout = '1s'"))
                services.renew(renewing, token, TERM, 0)
        assert claimed.result().state is RunState.RUNNING


def test_a_claim_by_hand_takes_the_request_too(store: MetadataStore, topic: TopicRecord) -> None:
    store.control.request(topic.id, "manual", "ann")
    assert claim(store, topic).cause == "manual"
    assert store.control.requests() == []


def test_a_request_is_withdrawn(store: MetadataStore, topic: TopicRecord) -> None:
    assert not store.control.withdraw(topic.id)
    store.control.request(topic.id, "manual", "ann")
    assert store.control.withdraw(topic.id)
    assert store.control.control(topic.id) == CompactionState()


def test_a_newer_request_is_not_withdrawn(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    old = store.control.request(topic.id, "manual", "ann").requested_at
    store.control.abort(topic.id)
    clock.advance(1)
    new = store.control.request(topic.id, "manual", "ann").requested_at
    token = leading(store)
    assert not store.control.withdraw(topic.id, leader=token, requested_at=old)
    assert store.control.failed(topic.id, "no", 5, leader=token, requested_at=old).requested_at == new
    assert store.control.withdraw(topic.id, leader=token, requested_at=new)
    assert store.control.requests() == []


def test_statuses(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    def status() -> tuple[str, str]:
        return tuple(compaction_status(store, topic.id))  # type: ignore[return-value]

    assert status() == (CompactionStatus.NOT_RUN, "")
    store.control.request(topic.id, "manual", "ann")
    assert status() == (CompactionStatus.RUNNING, "")
    run = claim(store, topic)
    assert status() == (CompactionStatus.RUNNING, "")
    clock.advance(RUN_DEAD_MS)
    assert status() == (CompactionStatus.ERROR, "its worker worker stopped answering")
    store.control.request_interrupted("leader")
    assert status() == (CompactionStatus.RUNNING, "")
    run = claim(store, topic)
    store.finish_run(run, {})
    assert status() == (CompactionStatus.SUCCESS, "")
    store.fail_run(claim(store, topic), "boom")
    assert status() == (CompactionStatus.ERROR, "boom")
    store.cancel_run(claim(store, topic).run_id, "ann wanted it")
    assert status() == (CompactionStatus.ERROR, "ann wanted it")
    store.finish_run(claim(store, topic), {})
    store.control.failed(topic.id, "the tail cannot be sealed", 5)
    assert status() == (CompactionStatus.ERROR, "the tail cannot be sealed")


def test_an_interrupted_run_is_asked_for_once(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    dead = claim(store, topic)
    clock.advance(RUN_DEAD_MS - 1)
    assert store.control.request_interrupted("leader") == []
    clock.advance(1)
    asked = at_once([lambda: store.control.request_interrupted("leader") for _ in range(3)])
    assert sorted(len(one) for one in asked if isinstance(one, list)) == [0, 0, 1]
    assert store.control.control(topic.id).cause == "interrupted"
    run = store.claim_run(topic.id, "worker", {}, RUN_DEAD_MS, leader=leading(store))
    assert store.run(dead.run_id).state is RunState.ERROR
    assert store.control.request_interrupted("leader") == []
    assert run.cause == "interrupted"


def test_a_topic_that_is_deleted_meanwhile_stops_no_other(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = store.create_topic(TopicName.parse("other"))
    for one in (topic, other):
        claim(store, one)
    clock.advance(RUN_DEAD_MS)
    real = topics.locked

    def locked(connection: Connection, topic_id: int) -> TopicRecord:
        if topic_id == topic.id:
            raise TopicNotFound("it was deleted", "")
        return real(connection, topic_id)

    monkeypatch.setattr(topics, "locked", locked)
    assert [one.id for one in store.control.request_interrupted("me")] == [other.id]


def test_a_run_is_handed_over(store: MetadataStore, topic: TopicRecord) -> None:
    run = claim(store, topic)
    assert store.control.hand_over(run, "ending", "me")
    assert store.run(run.run_id).state is RunState.CANCELLED
    assert store.control.control(topic.id).cause == "interrupted"
    assert store.heartbeat_runs([run]) == [run.run_id]
    assert not store.control.hand_over(run, "ending", "me")
    assert store.claim_run(topic.id, "next", {}, TTL, leader=leading(store)).cause == "interrupted"


def test_a_run_whose_cursor_was_deleted_is_not_handed_over(store: MetadataStore, topic: TopicRecord) -> None:
    store.control.request(topic.id, "manual", "ann")
    run = claim(store, topic)
    store.delete_cursor(topic.id, COMPACTION_CURSOR, force=True)
    assert not store.control.hand_over(run, "ending", "me")
    assert store.control.requests() == []


def test_a_paused_topic_has_no_run_and_no_request(store: MetadataStore, topic: TopicRecord) -> None:
    store.control.request(topic.id, "manual", "ann")
    assert store.control.pause(topic.id).paused == 1
    assert store.control.requests() == []
    with pytest.raises(CompactionPaused, match="is paused: resume it"):
        store.control.request(topic.id, "manual", "ann")
    with pytest.raises(CompactionPaused):
        claim(store, topic)
    assert store.control.pause(topic.id).paused == 2
    with pytest.raises(CompactionPaused, match=r"paused \(2 times\)"):
        claim(store, topic)
    assert [store.control.resume(topic.id).paused for _ in range(2)] == [1, 0]
    with pytest.raises(Conflict, match="is not paused"):
        store.control.resume(topic.id)
    claim(store, topic)


def test_several_topics_are_paused_resumed_and_aborted_together_or_not_at_all(
    store: MetadataStore, topic: TopicRecord
) -> None:
    control = store.control
    ids = [topic.id, store.create_topic(TopicName.parse("second")).id]
    for change in (control.pause_all, control.resume_all, control.abort_all):
        with pytest.raises(TopicNotFound):
            change([*ids, 99_999])
    assert [control.control(one) for one in ids] == [CompactionState(), CompactionState()]
    assert [one.paused for one in control.pause_all(ids)] == [1, 1]
    control.pause(ids[0])  # as a pause left them that failed half way, when each had a transaction of its own
    assert [one.paused for one in control.resume_all(ids)] == [1, 0]
    assert [one.paused for one in control.resume_all(ids)] == [0, 0]
    with pytest.raises(Conflict, match="is not paused"):
        control.resume_all(ids)
    run = claim(store, topic)
    assert [one.aborting for one in control.pause_all(ids[::-1])] == [False, True]
    with pytest.raises(Conflict, match="has not stopped yet"):
        control.resume_all(ids)
    assert [control.control(one).paused for one in ids] == [1, 1]
    store.fail_run(run, "fenced")
    assert [one.paused for one in control.resume_all(ids)] == [0, 0]


def test_a_pause_whose_answer_was_lost_is_found_out(
    database_url: URL, open_store: OpenStore, store: MetadataStore, topic: TopicRecord
) -> None:
    """Repeated, it would count twice, and one resume would leave the topic paused."""
    with broken_link(database_url, open_store) as broken:
        broken.link.cut(Cut.AFTER)
        assert broken.store.control.pause(topic.id).paused == 1
        broken.link.cut(Cut.BEFORE)
        with pytest.raises(Unavailable):
            broken.store.control.pause(topic.id)
    assert store.control.resume(topic.id).paused == 0


def test_a_pause_ends_the_run_and_waits_for_its_worker(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    run = claim(store, topic)
    assert store.control.pause(topic.id).aborting
    assert store.run(run.run_id).state is RunState.CANCELLED
    with pytest.raises(Conflict, match="has not stopped yet"):
        store.control.resume(topic.id)
    store.fail_run(run, "fenced")
    assert not store.control.control(topic.id).aborting
    assert store.run(run.run_id).state is RunState.CANCELLED
    store.control.resume(topic.id)

    claim(store, topic)
    assert store.control.pause(topic.id).aborting
    clock.advance(RUN_DEAD_MS)
    assert not store.control.control(topic.id).aborting, "a worker that died is not waited for"


def test_how_long_a_stopped_worker_is_waited_for_is_a_setting(
    database_url: URL, open_store: OpenStore, topic: TopicRecord, clock: ManualClock
) -> None:
    store = open_store(database_url)
    for dead_ms in (10 * RUN_DEAD_MS, RUN_DEAD_MS // 10):
        patient = MetadataStore(database_url, clock, run_dead_ms=dead_ms)
        claim(patient, topic, ttl_ms=dead_ms)
        assert patient.control.abort(topic.id).aborting
        clock.advance(dead_ms - 1)
        assert patient.control.control(topic.id).aborting
        assert patient.control.controls()[topic.id].aborting
        with pytest.raises(CompactionRunning, match="has not stopped yet"):
            patient.claim_run(topic.id, "worker", {}, dead_ms)
        clock.advance(1)
        assert not patient.control.control(topic.id).aborting
        assert not patient.control.controls()[topic.id].aborting
        patient.close()
    store.claim_run(topic.id, "worker", {}, RUN_DEAD_MS // 10)


def test_an_aborted_topic_may_be_compacted_when_its_worker_has_stopped(
    store: MetadataStore, topic: TopicRecord
) -> None:
    run = claim(store, topic)
    store.control.failed(topic.id, "boom", 5)
    found = store.control.abort(topic.id)
    assert (found.aborting, found.paused, found.failures, found.retry_at) == (True, 0, 0, None)
    with pytest.raises(CompactionRunning, match="has not stopped yet"):
        claim(store, topic)
    store.fail_run(run, "fenced")
    claim(store, topic)


def test_failures_are_counted_until_a_success(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    now = clock.now_ms()
    assert store.control.failed(topic.id, "one\x00", now + 5).failures == 1
    found = store.control.failed(topic.id, "two", now + 9)
    assert (found.failures, found.retry_at, found.last_error) == (2, now + 9, "two")
    assert store.control.retries(3_600_000) == []
    clock.advance(9)
    assert store.control.retries(3_600_000) == [topic]
    store.control.request(topic.id, "manual", "ann")
    assert store.control.retries(3_600_000) == []
    run = claim(store, topic)
    store.fail_run(run, "three")
    assert store.control.control(topic.id).failures == 2
    store.finish_run(claim(store, topic), {})
    assert store.control.control(topic.id) == CompactionState()


def test_a_run_that_publishes_may_leave_something_to_be_tried_again(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    """The transaction that publishes says so: the next one may never come."""
    (made,) = append(store, topic, 5)
    store.control.failed(topic.id, "one", 5)
    run = claim(store, topic)
    retry = Retry("left\x00", clock.now_ms() + 5)
    ended = store.publish(run, 0, compacted(store, run, 1, end_of(made)), {}, retry)
    assert ended.state is RunState.SUCCESS
    control = store.control.control(topic.id)
    assert (control.failures, control.retry_at, control.last_error) == (1, retry.at, "left\\x00")
    clock.advance(5)
    assert store.control.retries(3_600_000) == [store.topic(topic.name)]
    with pytest.raises(Fenced):
        store.publish(run, 1, compacted(store, run, 2, end_of(made)), {}, Retry("late", 5))
    assert store.control.control(topic.id) == control
    publish_all(store, topic)
    assert store.control.control(topic.id) == CompactionState()


def test_a_failure_before_the_claim_takes_the_request_along(store: MetadataStore, topic: TopicRecord) -> None:
    token = leading(store)
    store.control.request(topic.id, "manual", "ann")
    store.control.failed(topic.id, "no", 5)
    assert len(store.control.requests()) == 1
    store.control.failed(topic.id, "no", 5, leader=token)
    assert store.control.requests() == []


def test_live_runs_are_counted(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    other = store.create_topic(TopicName.parse("other"))
    claim(store, topic)
    clock.advance(RUN_DEAD_MS - 1)
    claim(store, other)
    assert store.control.running() == 2
    clock.advance(1)
    assert store.control.running() == 1


def test_backlogs(store: MetadataStore, clock: ManualClock) -> None:
    """Of a topic with nothing, one never compacted, one compacted with ledgers behind, and with a tail.

    What the rolled segment holds says to be from after the roll: it counts as published then.
    """
    empty, never, behind = (store.create_topic(TopicName.parse(f"t{number}")) for number in range(3))
    made = append(store, never, 3, 4)
    append(store, behind, 5)
    publish_all(store, behind)
    append(store, behind, 7)
    lease = store.acquire_lease(behind.id, "writer", TTL)
    rolled = SegmentRecord(store.allocate_ledger_ids(1), 12, "ab" * 16, SegmentState.OPEN, created_at=1)
    store.log.open_segment(lease, rolled)
    holds = content(rolled, 2)
    store.log.roll_segment(lease, rolled.ledger_id, holds)
    opened = SegmentRecord(store.allocate_ledger_ids(1), 14, "ab" * 16, SegmentState.OPEN, created_at=2)
    store.log.open_segment(lease, opened)

    found = store.control.backlogs([empty.id, never.id, behind.id])
    now = {one.topic.name: store.topic(one.topic.name) for one in found}
    assert found == [
        BacklogRecord(now[empty.name]),
        BacklogRecord(
            now[never.name],
            closed_bytes=700,
            closed_messages=7,
            oldest=made[0].min_publish_time,
            soonest=made[0].max_publish_time,
        ),
        BacklogRecord(
            now[behind.name],
            horizon=4,
            clean_bytes=200,
            closed_bytes=700 + holds.logical_bytes,
            closed_messages=9,
            oldest=clock.now_ms(),
            soonest=made[0].max_publish_time,
            open_segment=opened,
        ),
    ]
    assert store.control.backlogs([never.id, 10**6]) == [found[1]]
    assert store.control.backlogs([]) == []
    assert list(store.control.backlogs_in_pages(2)) == [found[:2], found[2:]]
    assert [[one.id for one in page] for page in store.topics_in_pages(1)] == [[empty.id], [never.id], [behind.id]]


def test_a_ledger_that_straddles_the_horizon_counts_by_its_share(store: MetadataStore, topic: TopicRecord) -> None:
    (first, *_) = append(store, topic, 4, 8)
    run = claim(store, topic)
    from tests.conformance.metadata.builders import compacted, end_of

    inside = replace(end_of(first), offset=5)
    store.publish(run, 0, compacted(store, run, 1, inside), {})
    (found,) = store.control.backlogs([topic.id])
    assert (found.horizon, found.closed_messages, found.closed_bytes) == (5, 6, 600)


def test_services_beat_and_leave(store: MetadataStore, clock: ManualClock) -> None:
    began = clock.now_ms()
    first = ServiceRecord("host:1:a", "http://one", None, began, began)
    store.services.beat(first)
    clock.advance(SERVICE_DEAD_MS - 1)
    second = ServiceRecord("host:2:b", "http://two", "cd" * 16, began, clock.now_ms())
    store.services.beat(second)
    assert store.services.services() == [first, second]
    clock.advance(1)
    assert store.services.services() == [second]
    store.services.beat(replace(first, url="http://moved", log_uid="ef" * 16))
    moved = ServiceRecord("host:1:a", "http://moved", "ef" * 16, began, clock.now_ms())
    assert store.services.services() == [moved, second]
    store.services.leave(second.name)
    store.services.leave(second.name)
    assert store.services.services() == [moved]
    assert store.services.forget_dead() == 0
    clock.advance(100 * SERVICE_DEAD_MS)
    assert store.services.forget_dead() == 1
    assert store.services.services(10**9) == []


def test_of_many_candidates_one_leads(database_url: str, open_store: OpenStore, clock: ManualClock) -> None:
    stores = [open_store(database_url) for _ in range(4)]
    names = [f"host:{number}:x" for number in range(4)]
    tokens = at_once([partial(one.services.lead, name, TERM) for one, name in zip(stores, names, strict=True)])
    (token,) = [one for one in tokens if one is not None]
    assert token == 1
    leader = names[tokens.index(token)]
    assert stores[0].services.leader() == leader
    clock.advance(TERM)
    stores[0].services.renew(1, TERM)
    assert stores[0].services.leader() == leader, "late, but nobody took it"
    stores[0].services.resign(7)
    assert stores[0].services.leader() == leader
    stores[0].services.resign(1)
    assert stores[0].services.leader() is None
    with pytest.raises(Fenced, match="it was given back"):
        stores[0].services.renew(1, TERM)


def test_a_topic_that_is_deleted_takes_its_control_along(store: MetadataStore, topic: TopicRecord) -> None:
    store.control.request(topic.id, "manual", "ann")
    store.tenancy.delete_topic(topic.id, force=True)
    assert store.control.requests() == []
    assert store.control.controls() == {}
