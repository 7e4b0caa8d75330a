"""Compaction runs: one at a time, taken over when dead, ended once (S4, S7, W3, P1)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from storage.errors import CompactionRunning, ErrorText, Fenced, NotFound
from storage.metadata.records import AttemptKind, RunRecord, RunState, TopicRecord
from storage.metadata.store import MetadataStore
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, finished_at, publish_all
from tests.conformance.metadata.conftest import OpenStores


def test_a_claim(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    assert store.runs.last(topic.id) is None
    run = claim(store, topic)
    assert run.state is RunState.RUNNING
    assert run.epoch == store.topics.get(topic.name).epoch == 1
    assert run.policies == {"threshold": 5, "lag": None, "ratio": 0.5}
    assert (run.started_at, run.heartbeat_at, run.finished_at) == (clock.now_ms(), clock.now_ms(), None)
    assert (str(run.error), run.horizon, run.compacted_ledger_id, run.statistics) == ("", None, None, {})
    assert store.runs.get(run.run_id) == store.runs.last(topic.id) == store.topic_snapshot(topic.id).last_run == run
    attempt = store.attempts.find(run.attempt_id)
    assert attempt is not None
    assert (attempt.kind, attempt.owner, attempt.finished_at) == (AttemptKind.RUN, "worker", None)


def test_a_second_claim_names_the_run(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    run = claim(store, topic, "host-1:99")
    clock.advance(TTL - 1)
    before = store.topic_snapshot(topic.id)
    with pytest.raises(CompactionRunning, match=rf"run {run.run_id} by host-1:99 .*orders since 2023-11-14T22:13:20"):
        claim(store, topic)
    assert store.topic_snapshot(topic.id) == before
    assert claim(store, other).epoch == 1


def test_a_heartbeat_keeps_a_run(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    run = claim(store, topic)
    clock.advance(TTL - 1)
    run = store.runs.update(run)
    assert run.heartbeat_at == clock.now_ms()
    attempt = store.attempts.find(run.attempt_id)
    assert attempt is not None
    assert attempt.heartbeat_at == clock.now_ms()
    clock.advance(TTL - 1)
    with pytest.raises(CompactionRunning):
        claim(store, topic)


def test_progress(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    run = claim(store, topic)
    run = store.runs.update(run, phase="phase one", horizon=end_of(created[0]))
    run = store.runs.update(run, statistics={"rows": 2**60, "seconds": 0.25})
    assert (run.phase, run.horizon, run.statistics) == (
        "phase one",
        end_of(created[0]),
        {"rows": 2**60, "seconds": 0.25},
    )
    assert store.runs.get(run.run_id) == run
    # The horizon of a run is not the topic's, until it is published.
    assert store.topic_snapshot(topic.id).horizon is None


def test_a_dead_run_is_taken_over(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    dead = claim(store, topic, "dead")
    clock.advance(TTL)
    successor = claim(store, topic, "successor")
    assert successor.epoch == dead.epoch + 1
    ended = store.runs.get(dead.run_id)
    assert ended.state is RunState.ERROR
    assert ended.finished_at == clock.now_ms()
    assert str(ended.error) == f"its worker dead stopped answering; taken over by run {successor.run_id}"
    assert finished_at(store, dead.attempt_id) == clock.now_ms()
    # It wakes up, and can do nothing; not even spoil the record of its end.
    with pytest.raises(Fenced, match=f"taken over by run {successor.run_id}"):
        store.runs.update(dead)
    with pytest.raises(Fenced):
        store.runs.succeed_unchanged(dead, {})
    assert store.runs.fail(dead, ErrorText("I was asleep")) == ended
    assert store.runs.last(topic.id) == successor


def test_of_many_one_claims(open_stores: OpenStores, topic: TopicRecord, clock: ManualClock) -> None:
    stores = open_stores(4)
    for round_number in range(1, 6):
        results = at_once(*(partial(claim, store, topic, f"worker-{n}") for n, store in enumerate(stores * 2)))
        won = [result for result in results if isinstance(result, RunRecord)]
        # Each round but the first also takes over the run of the round before.
        assert [run.epoch for run in won] == [round_number]
        assert [type(result) for result in results if result is not won[0]] == [CompactionRunning] * 7
        clock.advance(TTL)
    states = [run.state for run in stores[0].runs.of_topic(topic.id, 100)]
    assert states == [RunState.RUNNING] + [RunState.ERROR] * 4


def test_nothing_to_do_changes_nothing_else(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    before = store.topic_snapshot(topic.id)
    run = claim(store, topic)
    clock.advance(7)
    run = store.runs.succeed_unchanged(run, {"messages": 0})
    assert (run.state, run.finished_at, run.statistics) == (RunState.SUCCESS, clock.now_ms(), {"messages": 0})
    assert run.compacted_ledger_id is None
    after = store.topic_snapshot(topic.id)
    assert (after.cursor, after.compacted, after.ledgers) == (before.cursor, before.compacted, before.ledgers)
    assert after.topic.generation == before.topic.generation
    with pytest.raises(Fenced, match="SUCCESS already"):
        store.runs.succeed_unchanged(run, {})


def test_a_failure_keeps_its_error_and_all_else(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    append(store, topic, 3)
    before = store.topic_snapshot(topic.id)
    run = claim(store, topic)
    clock.advance(7)
    text = "ObjectMissing: ledger 7\nTraceback… \ud800 nul \x00 ünï"
    failed = store.runs.fail(run, ErrorText(text))
    assert failed.state is RunState.ERROR
    assert failed.finished_at == clock.now_ms()
    assert str(failed.error) == "ObjectMissing: ledger 7\nTraceback… \\ud800 nul \\x00 ünï"
    after = store.topic_snapshot(topic.id)
    assert (after.cursor, after.compacted, after.ledgers) == (before.cursor, before.compacted, before.ledgers)
    assert store.runs.fail(run, ErrorText("something later")).error == failed.error
    assert finished_at(store, run.attempt_id) == clock.now_ms()
    assert claim(store, topic).epoch == run.epoch + 1


def test_a_published_run_does_not_fail_later(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    run = publish_all(store, topic)
    assert store.runs.fail(run, ErrorText("could not log")) == run
    assert store.runs.last(topic.id) == run


def test_a_run_of_a_past_epoch_fails_but_does_nothing_else(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    store.cursors.ensure(topic.id, "__compaction")
    run = claim(store, topic)
    store.cursors.delete(topic.id, "__compaction")
    for call in (
        lambda: store.runs.update(run),
        lambda: store.runs.succeed_unchanged(run, {}),
        lambda: store.publishing.publish(run, 0, compacted(store, run, 1, end_of(created[0])), {}),
    ):
        with pytest.raises(Fenced, match="epoch 1, but the topic has gone on to 2"):
            call()
    assert store.runs.fail(run, ErrorText("the cursor was deleted")).state is RunState.ERROR


def test_history(store: MetadataStore, topic: TopicRecord, other: TopicRecord) -> None:
    created = [store.runs.fail(claim(store, topic), ErrorText(f"error {number}")) for number in range(4)]
    store.runs.fail(claim(store, other), ErrorText("elsewhere"))
    assert store.runs.of_topic(topic.id, 10) == created[::-1]
    assert store.runs.of_topic(topic.id, 2) == created[:1:-1]
    assert store.runs.last(topic.id) == created[-1]
    with pytest.raises(NotFound, match="run 10000"):
        store.runs.get(10_000)
    with pytest.raises(NotFound, match="run 10000"):
        store.runs.update(replace(created[0], run_id=10_000))
