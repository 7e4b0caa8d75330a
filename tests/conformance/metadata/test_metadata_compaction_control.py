"""Requests, pauses and failures, on every database (S4, S5, S6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import URL, Connection, text

from compactor.scheduling.status import CompactionStatus, compaction_status
from storage.errors import CompactionPaused, CompactionRunning, Conflict, ErrorText, Fenced, TopicNotFound, Unavailable
from storage.metadata import services, topics
from storage.metadata.records import (
    COMPACTION_CURSOR,
    RUN_DEAD_MS,
    CompactionControl,
    CompactionRetry,
    RunState,
    TopicRecord,
)
from storage.metadata.store import MetadataStore
from storage.metadata.transactions import Context
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, publish_all
from tests.conformance.metadata.conftest import OpenStore, OpenStores
from tests.conformance.metadata.log_builders import broken_link
from tests.servers.cut_link import Cut

TTL_MS = 10_000


def leading(store: MetadataStore, name: str = "host:1:a") -> int:
    token = store.services.acquire_leadership(name, TTL_MS)
    assert token is not None
    return token


def test_a_leader_claims_only_what_is_requested_and_while_it_leads(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    token = leading(store)
    with pytest.raises(Fenced, match="not requested any more"):
        store.runs.claim(topic.id, "worker", {}, TTL, leader_token=token)
    store.compaction_control.request(topic.id, "manual", "ann")
    clock.advance(TTL_MS)
    following = leading(store, "host:2:b")
    with pytest.raises(Fenced, match="host:2:b leads now"):
        store.runs.claim(topic.id, "worker", {}, TTL, leader_token=token)
    with pytest.raises(Fenced):
        store.compaction_control.withdraw(topic.id, leader_token=token)
    with pytest.raises(Fenced):
        store.compaction_control.record_failure(topic.id, ErrorText("no"), 5, leader_token=token)
    assert len(store.compaction_control.requests()) == 1
    assert store.runs.last(topic.id) is None
    assert store.runs.claim(topic.id, "worker", {}, TTL, leader_token=following).state is RunState.RUNNING


def test_a_leader_waits_for_no_topic(database_url: URL, open_stores: OpenStores, clock: ManualClock) -> None:
    """S6: a claim that must wait for a topic's row does not keep the leader from renewing meanwhile."""
    if database_url.get_backend_name() != "postgresql":
        pytest.skip("SQLite has one lock for everything")
    store, other = open_stores(2)
    topic = store.tenancy.ensure_topic(TopicName.parse("t"))
    token = leading(store)
    store.compaction_control.request(topic.id, "manual", "ann")
    with ThreadPoolExecutor(1) as pool:
        with other.database.write() as stuck:
            topics.lock(stuck, topic.id)
            claimed = pool.submit(store.runs.claim, topic.id, "worker", {}, TTL, leader_token=token)
            with other.database.read() as looking:
                while not looking.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one():
                    assert not claimed.done()
            with store.database.write() as renewing:
                renewing.execute(text("SET LOCAL lock_timeout = '1s'"))
                services.renew_leadership(renewing, Context(clock, {}, RUN_DEAD_MS), token, TTL)
        assert claimed.result().state is RunState.RUNNING


def test_a_request_is_kept_until_its_run_is_claimed(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    assert store.compaction_control.get(topic.id) == CompactionControl()
    created = store.compaction_control.request(topic.id, "manual", "ann")
    assert created == CompactionControl(clock.now_ms(), "manual", requested_by="ann")
    assert store.compaction_control.requests() == [(topic, created)]
    assert [item.name for item in store.cursors.of_topic(topic.id)] == [COMPACTION_CURSOR], "S9"
    with pytest.raises(CompactionRunning, match=r"is requested since .*\(manual, by ann\)"):
        store.compaction_control.request(topic.id, "manual", "bob")
    run = store.runs.claim(topic.id, "worker", {}, TTL, leader_token=leading(store))
    assert run.cause == "manual"
    assert store.compaction_control.requests() == []
    with pytest.raises(CompactionRunning, match=f"run {run.run_id} by worker"):
        store.compaction_control.request(topic.id, "manual", "bob")
    store.runs.succeed_unchanged(run, {})
    store.compaction_control.request(topic.id, "threshold.bytes", "bob")


def test_the_oldest_request_comes_first(store: MetadataStore, clock: ManualClock) -> None:
    topics = [store.tenancy.ensure_topic(TopicName.parse(f"t{number}")) for number in range(3)]
    for number in (1, 2, 0):
        store.compaction_control.request(topics[number].id, "manual", "ann")
        clock.advance(1)
    assert [topic.name for topic, _ in store.compaction_control.requests()] == [topics[n].name for n in (1, 2, 0)]


def test_of_many_triggers_one_is_taken(open_stores: OpenStores) -> None:
    stores = open_stores(4)
    topic = stores[0].tenancy.ensure_topic(TopicName.parse("t"))
    answers = at_once(*(partial(store.compaction_control.request, topic.id, "manual", "ann") for store in stores))
    assert sorted(type(item).__name__ for item in answers) == ["CompactionControl"] + ["CompactionRunning"] * 3
    token = leading(stores[0])
    claimed = at_once(*(partial(store.runs.claim, topic.id, "worker", {}, TTL, leader_token=token) for store in stores))
    assert sorted(type(item).__name__ for item in claimed) == ["Fenced"] * 3 + ["RunRecord"]


def test_a_claim_by_hand_takes_the_request_too(store: MetadataStore, topic: TopicRecord) -> None:
    store.compaction_control.request(topic.id, "manual", "ann")
    assert claim(store, topic).cause == "manual"
    assert store.compaction_control.requests() == []


def test_a_request_is_withdrawn(store: MetadataStore, topic: TopicRecord) -> None:
    assert not store.compaction_control.withdraw(topic.id)
    store.compaction_control.request(topic.id, "manual", "ann")
    assert store.compaction_control.withdraw(topic.id)
    assert store.compaction_control.get(topic.id) == CompactionControl()


def test_a_newer_request_is_not_withdrawn(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    old = store.compaction_control.request(topic.id, "manual", "ann").requested_at
    store.compaction_control.abort([topic.id])
    clock.advance(1)
    new = store.compaction_control.request(topic.id, "manual", "ann").requested_at
    token = leading(store)
    assert not store.compaction_control.withdraw(topic.id, leader_token=token, requested_at=old)
    assert (
        store.compaction_control.record_failure(
            topic.id, ErrorText("no"), 5, leader_token=token, requested_at=old
        ).requested_at
        == new
    )
    assert store.compaction_control.withdraw(topic.id, leader_token=token, requested_at=new)
    assert store.compaction_control.requests() == []


def test_statuses(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    def status() -> tuple[str, str]:
        return tuple(map(str, compaction_status(store, topic.id)))  # type: ignore[return-value]

    assert status() == (CompactionStatus.NOT_RUN, "")
    store.compaction_control.request(topic.id, "manual", "ann")
    assert status() == (CompactionStatus.RUNNING, "")
    run = claim(store, topic)
    assert status() == (CompactionStatus.RUNNING, "")
    clock.advance(RUN_DEAD_MS)
    assert status() == (CompactionStatus.ERROR, "its worker worker stopped answering")
    store.compaction_control.request_dead_runs_again("leader")
    assert status() == (CompactionStatus.RUNNING, "")
    run = claim(store, topic)
    store.runs.succeed_unchanged(run, {})
    assert status() == (CompactionStatus.SUCCESS, "")
    store.runs.fail(claim(store, topic), ErrorText("boom"))
    assert status() == (CompactionStatus.ERROR, "boom")
    store.runs.cancel(claim(store, topic).run_id, "ann wanted it")
    assert status() == (CompactionStatus.ERROR, "ann wanted it")
    store.runs.succeed_unchanged(claim(store, topic), {})
    store.compaction_control.record_failure(topic.id, ErrorText("the tail cannot be sealed"), 5)
    assert status() == (CompactionStatus.ERROR, "the tail cannot be sealed")


def test_an_interrupted_run_is_asked_for_once(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    dead = claim(store, topic)
    clock.advance(RUN_DEAD_MS - 1)
    assert store.compaction_control.request_dead_runs_again("leader") == []
    clock.advance(1)
    answers = at_once(*(lambda: store.compaction_control.request_dead_runs_again("leader") for _ in range(3)))
    assert sorted(len(item) for item in answers if isinstance(item, list)) == [0, 0, 1]
    assert store.compaction_control.get(topic.id).cause == "interrupted"
    run = store.runs.claim(topic.id, "worker", {}, RUN_DEAD_MS, leader_token=leading(store))
    assert store.runs.get(dead.run_id).state is RunState.ERROR
    assert store.compaction_control.request_dead_runs_again("leader") == []
    assert run.cause == "interrupted"


def test_a_topic_that_is_deleted_meanwhile_stops_no_other(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for item in (topic, other):
        claim(store, item)
    clock.advance(RUN_DEAD_MS)
    real = topics.lock

    def locked(connection: Connection, topic_id: int) -> TopicRecord:
        if topic_id == topic.id:
            raise TopicNotFound("it was deleted", "")
        return real(connection, topic_id)

    monkeypatch.setattr(topics, "lock", locked)
    assert [item.id for item in store.compaction_control.request_dead_runs_again("me")] == [other.id]


def test_a_run_is_handed_over(store: MetadataStore, topic: TopicRecord) -> None:
    run = claim(store, topic)
    assert store.compaction_control.cancel_and_request_again(run, "ending", "me")
    assert store.runs.get(run.run_id).state is RunState.CANCELLED
    assert store.compaction_control.get(topic.id).cause == "interrupted"
    assert store.runs.heartbeat([run]) == [run.run_id]
    assert not store.compaction_control.cancel_and_request_again(run, "ending", "me")
    assert store.runs.claim(topic.id, "next", {}, TTL, leader_token=leading(store)).cause == "interrupted"


def test_a_run_whose_cursor_was_deleted_is_not_handed_over(store: MetadataStore, topic: TopicRecord) -> None:
    store.compaction_control.request(topic.id, "manual", "ann")
    run = claim(store, topic)
    store.cursors.delete(topic.id, COMPACTION_CURSOR, force=True)
    assert not store.compaction_control.cancel_and_request_again(run, "ending", "me")
    assert store.compaction_control.requests() == []


def test_a_paused_topic_has_no_run_and_no_request(store: MetadataStore, topic: TopicRecord) -> None:
    store.compaction_control.request(topic.id, "manual", "ann")
    assert store.compaction_control.pause([topic.id])[0].paused == 1
    assert store.compaction_control.requests() == []
    with pytest.raises(CompactionPaused, match="is paused: resume it"):
        store.compaction_control.request(topic.id, "manual", "ann")
    with pytest.raises(CompactionPaused):
        claim(store, topic)
    assert store.compaction_control.pause([topic.id])[0].paused == 2
    with pytest.raises(CompactionPaused, match=r"paused \(2 times\)"):
        claim(store, topic)
    assert [store.compaction_control.resume([topic.id])[0].paused for _ in range(2)] == [1, 0]
    with pytest.raises(Conflict, match="is not paused"):
        store.compaction_control.resume([topic.id])
    claim(store, topic)


def test_several_topics_are_paused_resumed_and_aborted_together_or_not_at_all(
    store: MetadataStore, topic: TopicRecord
) -> None:
    control = store.compaction_control
    ids = [topic.id, store.tenancy.ensure_topic(TopicName.parse("second")).id]
    for change in (control.pause, control.resume, control.abort):
        with pytest.raises(TopicNotFound):
            change([*ids, 99_999])
    assert [control.get(item) for item in ids] == [CompactionControl(), CompactionControl()]
    assert [item.paused for item in control.pause(ids)] == [1, 1]
    control.pause([ids[0]])  # as a pause left them that failed half way, when each had a transaction of its own
    assert [item.paused for item in control.resume(ids)] == [1, 0]
    assert [item.paused for item in control.resume(ids)] == [0, 0]
    with pytest.raises(Conflict, match="is not paused"):
        control.resume(ids)
    run = claim(store, topic)
    assert [item.aborting for item in control.pause(ids[::-1])] == [False, True]
    with pytest.raises(Conflict, match="has not stopped yet"):
        control.resume(ids)
    assert [control.get(item).paused for item in ids] == [1, 1]
    store.runs.fail(run, ErrorText("fenced"))
    assert [item.paused for item in control.resume(ids)] == [0, 0]


def test_a_pause_whose_answer_was_lost_is_found_out(
    database_url: URL, open_store: OpenStore, store: MetadataStore, topic: TopicRecord
) -> None:
    """Repeated, it would count twice, and one resume would leave the topic paused."""
    with broken_link(database_url, open_store) as broken:
        broken.link.cut(Cut.AFTER)
        assert broken.store.compaction_control.pause([topic.id])[0].paused == 1
        broken.link.cut(Cut.BEFORE)
        with pytest.raises(Unavailable):
            broken.store.compaction_control.pause([topic.id])
    assert store.compaction_control.resume([topic.id])[0].paused == 0


def test_a_pause_ends_the_run_and_waits_for_its_worker(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    run = claim(store, topic)
    assert store.compaction_control.pause([topic.id])[0].aborting
    assert store.runs.get(run.run_id).state is RunState.CANCELLED
    with pytest.raises(Conflict, match="has not stopped yet"):
        store.compaction_control.resume([topic.id])
    store.runs.fail(run, ErrorText("fenced"))
    assert not store.compaction_control.get(topic.id).aborting
    assert store.runs.get(run.run_id).state is RunState.CANCELLED
    store.compaction_control.resume([topic.id])

    claim(store, topic)
    assert store.compaction_control.pause([topic.id])[0].aborting
    clock.advance(RUN_DEAD_MS)
    assert not store.compaction_control.get(topic.id).aborting, "a worker that died is not waited for"


def test_how_long_a_stopped_worker_is_waited_for_is_a_setting(
    database_url: URL, open_store: OpenStore, topic: TopicRecord, clock: ManualClock
) -> None:
    store = open_store(database_url)
    for dead_ms in (10 * RUN_DEAD_MS, RUN_DEAD_MS // 10):
        patient = MetadataStore(database_url, clock, run_dead_ms=dead_ms)
        claim(patient, topic, ttl_ms=dead_ms)
        assert patient.compaction_control.abort([topic.id])[0].aborting
        clock.advance(dead_ms - 1)
        assert patient.compaction_control.get(topic.id).aborting
        assert patient.compaction_control.all()[topic.id].aborting
        with pytest.raises(CompactionRunning, match="has not stopped yet"):
            patient.runs.claim(topic.id, "worker", {}, dead_ms)
        clock.advance(1)
        assert not patient.compaction_control.get(topic.id).aborting
        assert not patient.compaction_control.all()[topic.id].aborting
        patient.close()
    store.runs.claim(topic.id, "worker", {}, RUN_DEAD_MS // 10)


def test_an_aborted_topic_may_be_compacted_when_its_worker_has_stopped(
    store: MetadataStore, topic: TopicRecord
) -> None:
    run = claim(store, topic)
    store.compaction_control.record_failure(topic.id, ErrorText("boom"), 5)
    (control,) = store.compaction_control.abort([topic.id])
    assert (control.aborting, control.paused, control.failures, control.retry_at) == (True, 0, 0, None)
    with pytest.raises(CompactionRunning, match="has not stopped yet"):
        claim(store, topic)
    store.runs.fail(run, ErrorText("fenced"))
    claim(store, topic)


def test_failures_are_counted_until_a_success(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    now = clock.now_ms()
    assert store.compaction_control.record_failure(topic.id, ErrorText("one\x00"), now + 5).failures == 1
    control = store.compaction_control.record_failure(topic.id, ErrorText("two"), now + 9)
    assert (control.failures, control.retry_at, str(control.last_error)) == (2, now + 9, "two")
    assert store.compaction_control.topics_to_retry(3_600_000) == []
    clock.advance(9)
    assert store.compaction_control.topics_to_retry(3_600_000) == [topic]
    store.compaction_control.request(topic.id, "manual", "ann")
    assert store.compaction_control.topics_to_retry(3_600_000) == []
    run = claim(store, topic)
    store.runs.fail(run, ErrorText("three"))
    assert store.compaction_control.get(topic.id).failures == 2
    store.runs.succeed_unchanged(claim(store, topic), {})
    assert store.compaction_control.get(topic.id) == CompactionControl()


def test_a_run_that_publishes_may_leave_something_to_be_tried_again(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    """The transaction that publishes says so: the next one may never come."""
    (created,) = append(store, topic, 5)
    store.compaction_control.record_failure(topic.id, ErrorText("one"), 5)
    run = claim(store, topic)
    retry = CompactionRetry(ErrorText("left\x00"), clock.now_ms() + 5)
    ended = store.publishing.publish(run, 0, compacted(store, run, 1, end_of(created)), {}, retry)
    assert ended.state is RunState.SUCCESS
    control = store.compaction_control.get(topic.id)
    assert (control.failures, control.retry_at, str(control.last_error)) == (1, retry.at, "left\\x00")
    clock.advance(5)
    assert store.compaction_control.topics_to_retry(3_600_000) == [store.topics.get(topic.name)]
    with pytest.raises(Fenced):
        store.publishing.publish(
            run, 1, compacted(store, run, 2, end_of(created)), {}, CompactionRetry(ErrorText("late"), 5)
        )
    assert store.compaction_control.get(topic.id) == control
    publish_all(store, topic)
    assert store.compaction_control.get(topic.id) == CompactionControl()


def test_a_failure_before_the_claim_takes_the_request_along(store: MetadataStore, topic: TopicRecord) -> None:
    token = leading(store)
    store.compaction_control.request(topic.id, "manual", "ann")
    store.compaction_control.record_failure(topic.id, ErrorText("no"), 5)
    assert len(store.compaction_control.requests()) == 1
    store.compaction_control.record_failure(topic.id, ErrorText("no"), 5, leader_token=token)
    assert store.compaction_control.requests() == []


def test_a_topic_that_is_deleted_takes_its_control_along(store: MetadataStore, topic: TopicRecord) -> None:
    store.compaction_control.request(topic.id, "manual", "ann")
    store.tenancy.delete_topic(topic.id, force=True)
    assert store.compaction_control.requests() == []
    assert store.compaction_control.all() == {}
