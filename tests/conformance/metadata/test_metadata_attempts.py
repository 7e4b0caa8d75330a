"""Attempts that died: expired, ended and purged; and the view of garbage collection (property 9)."""

from __future__ import annotations

from functools import partial

import pytest

from storage.errors import ErrorText, Fenced, TopicNotFound
from storage.metadata import queries
from storage.metadata.records import RUN_DEAD_MS, AttemptKind, GcSnapshot, RunRecord, RunState, TopicRecord
from storage.metadata.store import MetadataStore
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, ledger, publish_all
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import check_all_or_nothing

UNKNOWN_TOPIC = 10**9


def test_attempts_are_listed_the_oldest_first(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    assert store.attempts.of_topic(topic.id) == []
    store.attempts.begin(other.id, AttemptKind.IMPORT, "elsewhere")
    created = []
    for number in range(3):
        created.append(store.attempts.begin(topic.id, AttemptKind.IMPORT, f"holder-{number}"))
        clock.advance(1)
    assert store.attempts.of_topic(topic.id) == created
    store.attempts.finish(created[1].attempt_id)
    assert [attempt.finished_at for attempt in store.attempts.of_topic(topic.id)] == [None, clock.now_ms(), None]


def test_attempts_that_stopped_beating_are_given_up(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    elsewhere = store.attempts.begin(other.id, AttemptKind.IMPORT, "elsewhere")
    dead = store.attempts.begin(topic.id, AttemptKind.IMPORT, "dead")
    result = store.attempts.begin(topic.id, AttemptKind.IMPORT, "done")
    store.attempts.finish(result.attempt_id)
    clock.advance(1)
    alive = store.attempts.begin(topic.id, AttemptKind.IMPORT, "alive")
    clock.advance(TTL - 1)
    ended_at = clock.now_ms()
    assert store.runs.expire_attempts(topic.id, TTL) == [dead.attempt_id]
    clock.advance(5)
    assert store.runs.expire_attempts(topic.id, 10 * TTL) == []
    ends = {attempt.owner: attempt.finished_at for attempt in store.attempts.of_topic(topic.id)}
    assert ends == {"dead": ended_at, "done": result.started_at, "alive": None}
    store.attempts.heartbeat(alive)
    store.attempts.heartbeat(elsewhere)
    with pytest.raises(Fenced, match="is finished or expired"):
        store.attempts.heartbeat(dead)
    with pytest.raises(TopicNotFound):
        store.runs.expire_attempts(UNKNOWN_TOPIC, TTL)


def test_an_import_that_was_given_up_appends_nothing(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    lease = store.leases.acquire(topic.id, "slow", TTL)
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "slow")
    record = ledger(store.ledgers.allocate_ids(1), 0, 3, attempt.attempt_id)
    clock.advance(TTL)
    assert store.runs.expire_attempts(topic.id, TTL) == [attempt.attempt_id]
    with pytest.raises(Fenced, match="objects may have been deleted"):
        store.ledgers.append(lease, [record])
    assert store.ledgers.of_topic(topic.id) == ()


def test_a_run_that_was_given_up_ends_and_never_publishes(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    created = append(store, topic, 3)
    run = claim(store, topic)
    clock.advance(TTL)
    assert store.runs.expire_attempts(topic.id, TTL) == [run.attempt_id]
    ended = store.runs.get(run.run_id)
    assert (ended.state, ended.finished_at) == (RunState.ERROR, clock.now_ms())
    assert str(ended.error) == "its worker stopped answering; expired by garbage collection"
    before = store.topic_snapshot(topic.id)
    for call in (
        lambda: store.runs.update(run),
        lambda: store.runs.succeed_unchanged(run, {}),
        lambda: store.publishing.publish(run, 0, compacted(store, run, 1, end_of(created[0])), {}),
    ):
        with pytest.raises(Fenced, match="ERROR already: its worker stopped answering; expired by garbage"):
            call()
    assert store.runs.heartbeat([run]) == [run.run_id]
    assert store.runs.fail(run, ErrorText("I was asleep")) == ended
    assert store.topic_snapshot(topic.id) == before
    # The next claim finds no attempt to take over from.
    assert claim(store, topic).run_id > run.run_id
    assert store.runs.get(run.run_id) == ended


@pytest.mark.parametrize(("requested", "meanwhile"), [(True, ""), (True, "paused"), (True, "requested"), (False, "")])
def test_a_requested_run_that_was_given_up_is_asked_for_again(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, requested: bool, meanwhile: str
) -> None:
    """All services were away for so long that the first to return collects what the run left. No caller waits for a run
    by hand."""
    if requested:
        store.compaction_control.request(topic.id, "manual", "ann")
    run = claim(store, topic)
    clock.advance(RUN_DEAD_MS)
    if meanwhile == "paused":
        store.compaction_control.pause([topic.id])
    elif meanwhile == "requested":
        store.compaction_control.request(topic.id, "manual", "bob")
    assert store.runs.expire_attempts(topic.id, TTL) == ([] if meanwhile == "paused" else [run.attempt_id])
    causes = [control.cause for _, control in store.compaction_control.requests()]
    assert causes == {"": ["interrupted"] if requested else [], "paused": [], "requested": ["manual"]}[meanwhile]


def test_only_what_was_given_up_ends(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    """Only the silent one of a topic's run and import expires. A run that has ended keeps its state."""
    append(store, topic, 3)
    published = publish_all(store, topic)
    silent = store.attempts.begin(topic.id, AttemptKind.IMPORT, "silent")
    run = claim(store, topic)
    clock.advance(TTL)
    run = store.runs.update(run)
    assert store.runs.expire_attempts(topic.id, TTL) == [silent.attempt_id]
    assert store.runs.update(run).state is RunState.RUNNING
    assert store.runs.get(published.run_id) == published


def test_giving_up_that_fails_in_the_middle_changes_nothing(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    run = claim(store, topic)
    clock.advance(TTL)
    check_all_or_nothing(
        store,
        lambda: (store.attempts.of_topic(topic.id), store.topic_snapshot(topic.id)),
        lambda: store.runs.expire_attempts(topic.id, TTL),
    )
    assert store.runs.get(run.run_id).state is RunState.ERROR


def test_a_beat_against_giving_up_is_one_or_the_other(
    open_stores: OpenStores, topic: TopicRecord, clock: ManualClock
) -> None:
    stores = open_stores(3)
    for _ in range(8):
        run = claim(stores[0], topic)
        clock.advance(TTL)
        fenced, expired, updated = at_once(
            partial(stores[0].runs.heartbeat, [run]),
            lambda: stores[1].runs.expire_attempts(topic.id, TTL),
            partial(stores[2].runs.update, run),
        )
        if expired == []:
            assert fenced == []
            assert isinstance(updated, RunRecord)
            assert stores[0].runs.get(run.run_id).state is RunState.RUNNING
            stores[0].runs.fail(run, ErrorText("enough"))
        else:
            # Beats before it would have kept the run, so none came before.
            assert expired == [run.attempt_id]
            assert fenced == [run.run_id]
            assert isinstance(updated, Fenced)
            assert stores[0].runs.get(run.run_id).state is RunState.ERROR


def test_publish_against_giving_up_is_one_or_the_other(
    open_stores: OpenStores, topic: TopicRecord, clock: ManualClock
) -> None:
    """Objects of an expired attempt may be deleted at once: no row may name them later."""
    stores = open_stores(2)
    created = append(stores[0], topic, 3)
    for _ in range(8):
        run = claim(stores[0], topic)
        generation = stores[0].topics.get(topic.name).generation
        new = compacted(stores[0], run, generation + 1, end_of(created[0]))
        clock.advance(TTL)
        published, expired = at_once(
            partial(stores[0].publishing.publish, run, generation, new, {}),
            lambda: stores[1].runs.expire_attempts(topic.id, TTL),
        )
        serving = stores[0].topic_snapshot(topic.id).compacted
        if expired == []:
            assert isinstance(published, RunRecord)
            assert serving == new
        else:
            assert expired == [run.attempt_id]
            assert isinstance(published, Fenced)
            assert serving != new


def test_attempts_are_forgotten_when_long_finished(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    created = append(store, topic, 3)
    append(store, other, 3)
    at_work = store.attempts.begin(topic.id, AttemptKind.IMPORT, "at work")
    clock.advance(10)
    run = publish_all(store, topic)
    assert store.attempts.purge(topic.id, clock.now_ms()) == 1
    assert store.attempts.purge(topic.id, clock.now_ms()) == 0
    assert [attempt.attempt_id for attempt in store.attempts.of_topic(topic.id)] == [at_work.attempt_id, run.attempt_id]
    assert len(store.attempts.of_topic(other.id)) == 1
    assert store.attempts.purge(topic.id, clock.now_ms() + 1) == 1
    # Their results stay; no process can continue under a purged name.
    assert store.ledgers.of_topic(topic.id) == tuple(created)
    assert store.runs.last(topic.id) == run
    with pytest.raises(Fenced):
        store.runs.update(run)
    with pytest.raises(TopicNotFound):
        store.attempts.purge(UNKNOWN_TOPIC, 0)


def test_attempts_that_have_objects_yet_are_not_forgotten(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    """However many there are: more than a statement takes ids."""
    created = [store.attempts.begin(topic.id, AttemptKind.IMPORT, f"{number}").attempt_id for number in range(5)]
    for attempt_id in created:
        store.attempts.finish(attempt_id)
    clock.advance(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "AT_ONCE", 2)
        assert store.attempts.purge(topic.id, clock.now_ms(), keep={created[3], "unknown"}) == 4
    assert [attempt.attempt_id for attempt in store.attempts.of_topic(topic.id)] == [created[3]]


def test_all_that_refers_to_objects(store: MetadataStore, topic: TopicRecord, other: TopicRecord) -> None:
    assert store.pins.gc_snapshot(topic.id) == GcSnapshot(topic, (), (), (), ())
    created = append(store, topic, 3, 4)
    first = publish_all(store, topic)
    pin = store.pins.take(topic.id, "reader", TTL)[1]
    second = publish_all(store, topic)
    run = claim(store, topic)
    append(store, other, 3)
    publish_all(store, other)
    snapshot = store.pins.gc_snapshot(topic.id)
    assert snapshot.topic == store.topics.get(topic.name)
    assert snapshot.ledgers == tuple(created)
    assert [item.ledger_id for item in snapshot.compacted] == [first.compacted_ledger_id, second.compacted_ledger_id]
    assert [item.retired_at is None for item in snapshot.compacted] == [False, True]
    assert snapshot.attempts == tuple(store.attempts.of_topic(topic.id))
    assert [attempt.attempt_id for attempt in snapshot.attempts if attempt.finished_at is None] == [run.attempt_id]
    assert snapshot.pins == (pin,)
    with pytest.raises(TopicNotFound):
        store.pins.gc_snapshot(UNKNOWN_TOPIC)


def test_what_refers_to_objects_is_of_one_moment(open_stores: OpenStores, topic: TopicRecord) -> None:
    """A finished attempt of a run without its compacted ledger would make live objects look like garbage."""
    stores = open_stores(2)
    append(stores[0], topic, 1)
    for _ in range(8):
        runs = [claim(stores[0], topic)]
        generation = stores[0].topics.get(topic.name).generation
        horizon = end_of(stores[0].ledgers.of_topic(topic.id)[-1])
        new = compacted(stores[0], runs[0], generation + 1, horizon)

        def publish(run: RunRecord = runs[0], generation: int = generation, new: object = new) -> object:
            return stores[0].publishing.publish(run, generation, new, {})  # type: ignore[arg-type]

        _, *seen = at_once(publish, lambda: [stores[1].pins.gc_snapshot(topic.id) for _ in range(3)])
        assert isinstance(seen[0], list)
        for snapshot in seen[0]:
            assert isinstance(snapshot, GcSnapshot)
            finished = {attempt.attempt_id for attempt in snapshot.attempts if attempt.finished_at is not None}
            published = {item.attempt_id for item in snapshot.compacted}
            assert (runs[0].attempt_id in finished) == (runs[0].attempt_id in published)
            assert len([item for item in snapshot.compacted if item.retired_at is None]) == (
                1 if snapshot.topic.generation else 0
            )
