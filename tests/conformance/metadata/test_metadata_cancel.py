"""Runs as operators see them: cancelled, beaten many at once, listed over all topics (S7)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import insert

from storage.errors import CompactionRunning, Conflict, ErrorText, Fenced, NotFound
from storage.metadata.records import RunRecord, RunState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import attempts, runs, topics
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, finished_at, publish_all
from tests.conformance.metadata.conftest import OpenStores
from tests.counted import statements


def other_topics(store: MetadataStore, count: int) -> list[TopicRecord]:
    return [store.tenancy.ensure_topic(TopicName.parse(f"other-{number}")) for number in range(count)]


def test_cancel(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    created = append(store, topic, 3)
    run = store.runs.update(claim(store, topic), phase="phase one", statistics={"parts": 5})
    before = store.topic_snapshot(topic.id)
    clock.advance(7)
    ended = store.runs.cancel(run.run_id, "asked for by op\x00erator")
    assert ended == replace(
        run, state=RunState.CANCELLED, finished_at=clock.now_ms(), error=ErrorText("asked for by op\\x00erator")
    )
    assert store.runs.get(run.run_id) == ended
    after = store.topic_snapshot(topic.id)
    assert after == replace(before, topic=replace(before.topic, epoch=run.epoch + 1), last_run=ended)
    assert finished_at(store, run.attempt_id) == clock.now_ms()
    for call in (
        lambda: store.runs.update(run),
        lambda: store.runs.succeed_unchanged(run, {}),
        lambda: store.publishing.publish(run, 1, compacted(store, run, 2, end_of(created[0])), {}),
    ):
        with pytest.raises(Fenced, match=rf"run {run.run_id} of .*orders is CANCELLED already: asked for by"):
            call()
    assert store.runs.heartbeat([run]) == [run.run_id]
    assert store.runs.fail(run, ErrorText("the engine was cancelled")) == ended
    assert store.topic_snapshot(topic.id) == after
    # The next run need not wait for a heartbeat.
    assert claim(store, topic).epoch == run.epoch + 2


def test_a_run_that_has_ended_cannot_be_cancelled(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    ended = [publish_all(store, topic), store.runs.fail(claim(store, topic), ErrorText("broken"))]
    ended.append(store.runs.cancel(claim(store, topic).run_id, "once"))
    before = store.topic_snapshot(topic.id)
    for run in ended:
        with pytest.raises(
            Conflict, match=rf"run {run.run_id} of .*orders cannot.*ended as {run.state.value}"
        ) as answer:
            store.runs.cancel(run.run_id, "twice")
        assert type(answer.value) is Conflict
        assert store.runs.get(run.run_id) == run
    assert store.topic_snapshot(topic.id) == before
    with pytest.raises(NotFound, match="run 10000"):
        store.runs.cancel(10_000, "")


def test_cancel_against_publish_is_one_or_the_other(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(2)
    created = append(stores[0], topic, 3)
    for _ in range(10):
        run = claim(stores[0], topic)
        generation = stores[0].topics.get(topic.name).generation
        new = compacted(stores[0], run, generation + 1, end_of(created[0]))
        published, cancelled = at_once(
            partial(stores[0].publishing.publish, run, generation, new, {}),
            partial(stores[1].runs.cancel, run.run_id, "race"),
        )
        after = stores[0].topic_snapshot(topic.id)
        if isinstance(cancelled, RunRecord):
            assert isinstance(published, Fenced)
            assert "is CANCELLED already: race" in published.message
            assert (after.last_run, after.topic.generation) == (cancelled, generation)
        else:
            assert isinstance(published, RunRecord)
            assert isinstance(cancelled, Conflict)
            assert "ended as SUCCESS" in cancelled.message
            assert (after.last_run, after.compacted) == (published, new)


def test_of_many_one_cancels(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(4)
    for _ in range(5):
        run = claim(stores[0], topic)
        results = at_once(*(partial(store.runs.cancel, run.run_id, "race") for store in stores))
        assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 3 + ["RunRecord"]
        assert stores[0].topics.get(topic.name).epoch == run.epoch + 1


def test_many_runs_beat_at_once(store: MetadataStore, clock: ManualClock) -> None:
    claimed = [claim(store, topic) for topic in other_topics(store, 4)]
    store.runs.update(claimed[1], phase="phase two", statistics={"parts": 5, "bytes": 2**60})
    clock.advance(TTL - 1)
    assert store.runs.heartbeat(claimed, {claimed[1].run_id: {"parts": 6, "tasks": 1}, 10_000: {"parts": 1}}) == []
    for run in claimed:
        attempt = store.attempts.find(run.attempt_id)
        assert attempt is not None
        assert (store.runs.get(run.run_id).heartbeat_at, attempt.heartbeat_at) == (clock.now_ms(), clock.now_ms())
        assert store.runs.get(run.run_id).state is RunState.RUNNING
    assert store.runs.get(claimed[1].run_id).statistics == {"parts": 6, "bytes": 2**60, "tasks": 1}
    assert [store.runs.get(run.run_id).phase for run in claimed[:2]] == ["claimed", "phase two"]
    assert store.runs.heartbeat(claimed, {claimed[0].run_id: {"phase": "phase one", "tasks": 2}}) == []
    assert store.runs.get(claimed[0].run_id).phase == "phase one"
    assert store.runs.get(claimed[0].run_id).statistics == {"tasks": 2}
    assert store.runs.get(claimed[2].run_id).statistics == {}
    clock.advance(TTL - 1)
    with pytest.raises(CompactionRunning):
        store.runs.claim(claimed[0].topic_id, "impatient", {}, TTL)
    assert store.runs.heartbeat([]) == []


def test_runs_that_must_stop_are_named_and_the_others_beaten(store: MetadataStore, clock: ManualClock) -> None:
    created = other_topics(store, 8)
    claimed = [claim(store, topic) for topic in created]
    alive, taken_over, cancelled, failed, ended, old_epoch, given_up, also_alive = claimed
    store.runs.cancel(cancelled.run_id, "why not")
    store.runs.fail(failed, ErrorText("broken"))
    store.runs.succeed_unchanged(ended, {})
    store.cursors.ensure(old_epoch.topic_id, "__compaction")
    store.cursors.delete(old_epoch.topic_id, "__compaction")
    store.attempts.finish(given_up.attempt_id)
    unknown = replace(alive, run_id=10_000, attempt_id="f" * 32)
    clock.advance(TTL)
    successor = claim(store, created[1])
    before = [store.runs.get(run.run_id) for run in claimed]
    clock.advance(5)
    everybody = [*claimed, unknown, successor]
    progress = {run.run_id: {"parts": 1} for run in everybody}
    fenced = store.runs.heartbeat(everybody, progress)
    assert fenced == [run.run_id for run in (taken_over, cancelled, failed, ended, old_epoch, given_up, unknown)]
    for run in before:
        now = store.runs.get(run.run_id)
        if run.run_id in (alive.run_id, also_alive.run_id):
            assert now == replace(run, heartbeat_at=clock.now_ms(), statistics={"parts": 1})
        else:
            assert now == run
    assert store.runs.get(successor.run_id).heartbeat_at == clock.now_ms()


def test_a_thousand_runs_take_few_statements(store: MetadataStore, clock: ManualClock) -> None:
    few, many = seed_runs(store, 10, 0), seed_runs(store, 1_000, 10)
    clock.advance(9)
    counted = [
        len(statements(store, partial(store.runs.heartbeat, some, {run.run_id: {"parts": 1} for run in some})))
        for some in (few, many)
    ]
    assert counted[0] == counted[1]
    assert counted[1] <= 8
    by_id = {run.run_id: run for _, run in store.runs.newest(2_000)}
    assert len(by_id) == 1_010
    assert {run.heartbeat_at for run in by_id.values()} == {clock.now_ms()}
    assert {str(run.statistics) for run in by_id.values()} == {"{'parts': 1}"}
    assert {attempt.heartbeat_at for attempt in store.attempts.of_topic(many[500].topic_id)} == {clock.now_ms()}


def test_more_runs_than_fit_into_a_statement(
    store: MetadataStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.metadata.queries.AT_ONCE", 3)
    claimed = seed_runs(store, 10, 0)
    store.runs.cancel(claimed[4].run_id, "one")
    store.runs.cancel(claimed[9].run_id, "another")
    clock.advance(9)
    assert store.runs.heartbeat(claimed[::-1]) == [claimed[9].run_id, claimed[4].run_id]
    beaten = [run.run_id for _, run in store.runs.newest(100) if run.heartbeat_at == clock.now_ms()]
    assert sorted(beaten) == [run.run_id for number, run in enumerate(claimed) if number not in (4, 9)]


def seed_runs(store: MetadataStore, count: int, first: int) -> list[RunRecord]:
    """Running runs of as many new topics, straight into the tables: claiming a thousand would take long."""
    now = store.tenancy.ensure_topic(TopicName.parse("clock")).created_at
    numbers = range(first + 100, first + 100 + count)
    with store.database.write() as connection:
        connection.execute(
            insert(topics),
            [
                {"id": n, "uid": f"{n:032x}", "name": f"persistent://public/default/t{n}", "hash_seed": 1}
                | {"generation": 0, "epoch": 1, "next_offset": 0, "created_at": now}
                for n in numbers
            ],
        )
        connection.execute(
            insert(attempts),
            [
                {"attempt_id": f"{n:032x}", "topic_id": n, "kind": "run", "holder": "worker"}
                | {"started_at": now, "heartbeat_at": now}
                for n in numbers
            ],
        )
        connection.execute(
            insert(runs),
            [
                {"run_id": n, "topic_id": n, "attempt_id": f"{n:032x}", "holder": "worker", "epoch": 1}
                | {"state": "RUNNING", "phase": "claimed", "policies": {}, "started_at": now, "heartbeat_at": now}
                | {"error": "", "statistics": {}}
                for n in numbers
            ],
        )
    by_id = {run.run_id: run for _, run in store.runs.newest(10_000)}
    return [by_id[n] for n in numbers]


@pytest.mark.slow
def test_beats_and_all_that_ends_runs_never_wait_for_each_other(open_stores: OpenStores, clock: ManualClock) -> None:
    """Locks in another order would be a deadlock: PostgreSQL ends one of the two, as Unavailable."""
    stores = open_stores(7)
    created = other_topics(stores[0], 6)
    ledgers = [append(stores[0], topic, 3)[0] for topic in created]
    for _ in range(6):
        claimed = [claim(stores[0], topic) for topic in created]
        generation = stores[0].topics.get(created[0].name).generation
        new = compacted(stores[0], claimed[0], generation + 1, end_of(ledgers[0]))
        clock.advance(TTL)
        progress = {run.run_id: {"parts": 1} for run in claimed}
        results = at_once(
            partial(stores[0].runs.heartbeat, claimed, progress),
            partial(stores[1].runs.heartbeat, claimed[::-1], progress),
            partial(stores[2].publishing.publish, claimed[0], generation, new, {}),
            partial(stores[3].runs.cancel, claimed[1].run_id, "race"),
            lambda: stores[4].runs.expire_attempts(created[2].id, TTL),
            partial(stores[5].runs.update, claimed[3], statistics={"mine": 1}),
            partial(stores[6].runs.fail, claimed[4], ErrorText("broken")),
        )
        assert [result for result in results if isinstance(result, Exception)] == []
        last = stores[0].runs.get(claimed[5].run_id)
        assert (last.state, last.heartbeat_at) == (RunState.RUNNING, clock.now_ms())
        for run in claimed:
            stores[0].runs.fail(run, ErrorText("next round"))


def test_all_runs(store: MetadataStore, topic: TopicRecord) -> None:
    assert store.runs.newest(10) == []
    other = store.tenancy.ensure_topic(TopicName.parse("tenant/space/other"))
    first = store.runs.fail(claim(store, topic), ErrorText("broken"))
    second = claim(store, other)
    third = store.runs.cancel(claim(store, topic).run_id, "enough")
    fourth = claim(store, topic)
    everything = [(topic.name, fourth), (topic.name, third), (other.name, second), (topic.name, first)]
    assert store.runs.newest(10) == everything
    assert store.runs.newest(2) == everything[:2]
    assert store.runs.newest(10, topic_ids=[other.id]) == [everything[2]]
    assert store.runs.newest(10, state=RunState.RUNNING) == [everything[0], everything[2]]
    assert store.runs.newest(10, topic_ids=[topic.id], state=RunState.CANCELLED) == [everything[1]]
    assert store.runs.newest(10, state=RunState.SUCCESS) == []
