"""The commit point: compare-and-swap, all or nothing, one winner, never back (A1, A2, A4, W3)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from storage.errors import ErrorText, Fenced
from storage.metadata.records import CompactedLedgerRecord, RunRecord, RunState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import compacted_ledgers
from storage.model import LogPosition, MessageId
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import (
    TTL,
    append,
    at_once,
    claim,
    compacted,
    emptied,
    end_of,
    finished_at,
    publish_all,
)
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import check_all_or_nothing


def test_publish(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    created = append(store, topic, 3, 4)
    run = claim(store, topic)
    new = compacted(store, run, 1, end_of(created[0]))
    clock.advance(9)
    ended = store.publishing.publish(run, 0, new, {"survivors": 2})
    assert (ended.state, ended.finished_at, ended.statistics, ended.compacted_ledger_id, str(ended.error)) == (
        RunState.SUCCESS,
        clock.now_ms(),
        {"survivors": 2},
        new.ledger_id,
        "",
    )
    after = store.topic_snapshot(topic.id)
    assert after.compacted == new
    assert after.horizon == end_of(created[0])
    assert after.topic.generation == 1
    assert after.cursor is not None
    assert after.cursor.mark_delete == end_of(created[0])
    assert after.cursor.properties == {"CompactedTopicLedger": str(new.ledger_id)}
    assert after.last_run == ended
    assert after.ledgers == tuple(created)
    assert finished_at(store, run.attempt_id) == clock.now_ms()


def test_the_next_generation_retires_the_one_before(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    old = store.topic_snapshot(topic.id).compacted
    assert old is not None
    created = append(store, topic, 4)
    clock.advance(9)
    run = claim(store, topic)
    new = emptied(compacted(store, run, 2, end_of(created[0])))
    store.publishing.publish(run, 1, new, {})
    assert store.topic_snapshot(topic.id).compacted == new
    with store.database.read() as connection:
        rows = connection.execute(
            select(compacted_ledgers.c.ledger_id, compacted_ledgers.c.retired_at).order_by("generation")
        ).all()
    assert [tuple(row) for row in rows] == [(old.ledger_id, clock.now_ms()), (new.ledger_id, None)]


def test_an_equal_horizon_may_be_published_again(store: MetadataStore, topic: TopicRecord) -> None:
    """A policy changed, or a retention is over, without new messages."""
    append(store, topic, 3)
    publish_all(store, topic)
    run = publish_all(store, topic)
    assert store.topics.get(topic.name).generation == 2
    assert run.state is RunState.SUCCESS


def test_a_stale_generation_never_publishes(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    publish_all(store, topic)
    run = claim(store, topic)
    before = store.topic_snapshot(topic.id)
    with pytest.raises(Fenced, match=r"read generation 0 of persistent://public/default/orders.*is at 1"):
        store.publishing.publish(run, 0, compacted(store, run, 1, end_of(created[0])), {})
    assert store.topic_snapshot(topic.id) == before


def test_a_stale_epoch_never_publishes(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    created = append(store, topic, 3)
    zombie = claim(store, topic)
    clock.advance(TTL)
    successor = claim(store, topic)
    before = store.topic_snapshot(topic.id)
    late = compacted(store, zombie, 1, end_of(created[0]))
    with pytest.raises(Fenced, match=f"taken over by run {successor.run_id}"):
        store.publishing.publish(zombie, 0, late, {})
    assert store.topic_snapshot(topic.id) == before
    store.publishing.publish(successor, 0, compacted(store, successor, 1, end_of(created[0])), {})
    with pytest.raises(Fenced):
        store.publishing.publish(zombie, 1, replace(late, generation=2), {})
    assert store.topics.get(topic.name).generation == 1


def test_a_run_publishes_once(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    run = publish_all(store, topic)
    before = store.topic_snapshot(topic.id)
    with pytest.raises(Fenced, match="SUCCESS already"):
        store.publishing.publish(run, 1, compacted(store, run, 2, end_of(created[0])), {})
    assert store.topic_snapshot(topic.id) == before


def test_the_horizon_never_goes_back(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    publish_all(store, topic)
    run = claim(store, topic)
    before = store.topic_snapshot(topic.id)
    for back in (
        end_of(created[0]),
        LogPosition(created[1].last_offset - 1, created[1].last_message_id),
        LogPosition(created[1].last_offset, MessageId(created[1].ledger_id, 0)),
    ):
        with pytest.raises(Fenced, match=r"horizon of persistent://public/default/orders back from .*offset 6"):
            store.publishing.publish(run, 1, compacted(store, run, 2, back), {})
    assert store.topic_snapshot(topic.id) == before


def test_a_compacted_ledger_that_cannot_be_right_is_refused(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    run = claim(store, topic)
    before = store.topic_snapshot(topic.id)
    right = compacted(store, run, 1, end_of(created[0]))
    for wrong, why in (
        (replace(right, horizon=LogPosition(3, MessageId(10**6, 0))), "past the end"),
        (replace(right, generation=2), "says generation 2, not 1"),
        (replace(right, attempt_id="f" * 32), "of attempt f"),
    ):
        with pytest.raises(AssertionError, match=why):
            store.publishing.publish(run, 0, wrong, {})
    assert store.topic_snapshot(topic.id) == before


@pytest.mark.parametrize("publishers", [2, 8])
def test_of_publishers_of_one_run_one_wins(open_stores: OpenStores, topic: TopicRecord, publishers: int) -> None:
    stores = open_stores(publishers)
    for generation in range(5):
        created = append(stores[0], topic, 2)
        run = claim(stores[0], topic)
        candidates = [compacted(store, run, generation + 1, end_of(created[0])) for store in stores]
        results = at_once(
            *(
                partial(store.publishing.publish, run, generation, new, {})
                for store, new in zip(stores, candidates, strict=True)
            )
        )
        check_one_winner(stores[0], topic, results, candidates, generation + 1)


@pytest.mark.parametrize("publishers", [2, 8])
def test_of_publishers_of_several_epochs_the_last_wins(
    open_stores: OpenStores, topic: TopicRecord, clock: ManualClock, publishers: int
) -> None:
    """Each worker was overtaken by the next; all but the last publish as zombies, at the same moment."""
    stores = open_stores(publishers)
    for generation in range(4):
        created = append(stores[0], topic, 2)
        claimed = []
        for store in stores:
            claimed.append(claim(store, topic))
            clock.advance(TTL)
        candidates = [
            compacted(store, run, generation + 1, end_of(created[0]))
            for store, run in zip(stores, claimed, strict=True)
        ]
        results = at_once(
            *(
                partial(store.publishing.publish, run, generation, new, {})
                for store, run, new in zip(stores, claimed, candidates, strict=True)
            )
        )
        assert isinstance(results[-1], RunRecord)
        check_one_winner(stores[0], topic, results, candidates, generation + 1)


def check_one_winner(
    store: MetadataStore,
    topic: TopicRecord,
    results: list[object],
    candidates: list[CompactedLedgerRecord],
    generation: int,
) -> None:
    won = [number for number, result in enumerate(results) if isinstance(result, RunRecord)]
    assert len(won) == 1
    assert [type(result) for number, result in enumerate(results) if number not in won] == [Fenced] * (len(results) - 1)
    after = store.topic_snapshot(topic.id)
    assert after.compacted == candidates[won[0]]
    assert after.topic.generation == generation
    assert after.cursor is not None
    assert after.cursor.properties["CompactedTopicLedger"] == str(candidates[won[0]].ledger_id)


def test_publish_against_deletion_of_the_cursor(open_stores: OpenStores, topic: TopicRecord) -> None:
    """Either the run published and its ledger went with the cursor, or it was fenced; nothing serves afterwards."""
    stores = open_stores(2)
    created = append(stores[0], topic, 2)
    for _ in range(8):
        stores[0].cursors.ensure(topic.id, "__compaction")
        run = claim(stores[0], topic)
        generation = stores[0].topics.get(topic.name).generation
        new = compacted(stores[0], run, generation + 1, end_of(created[0]))
        published, deleted = at_once(
            partial(stores[0].publishing.publish, run, generation, new, {}),
            lambda: stores[1].cursors.delete(topic.id, "__compaction"),
        )
        assert deleted is None
        assert isinstance(published, RunRecord | Fenced)
        after = stores[0].topic_snapshot(topic.id)
        assert (after.cursor, after.compacted, after.horizon) == (None, None, None)
        assert after.topic.generation == generation + isinstance(published, RunRecord)
        stores[0].runs.fail(run, ErrorText("fenced"))


def test_a_publish_that_fails_in_the_middle_changes_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    store.cursors.set_properties(topic.id, "__compaction", {"owner": "me"})
    created = append(store, topic, 4)
    run = claim(store, topic)
    new = compacted(store, run, 2, end_of(created[0]))
    check_all_or_nothing(store, topic, lambda: store.publishing.publish(run, 1, new, {}), at_least=9)
    after = store.topic_snapshot(topic.id)
    assert after.compacted == new
    assert after.cursor is not None
    assert after.cursor.properties == {"owner": "me", "CompactedTopicLedger": str(new.ledger_id)}


def test_no_property_and_no_pointer_is_lost_to_a_race(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(5)
    stores[0].cursors.ensure(topic.id, "__compaction")
    for generation in range(6):
        created = append(stores[0], topic, 1)
        run = claim(stores[0], topic)
        new = compacted(stores[0], run, generation + 1, end_of(created[0]))
        results = at_once(
            partial(stores[0].publishing.publish, run, generation, new, {}),
            *[
                partial(store.cursors.set_properties, topic.id, "__compaction", {f"writer-{n}-{generation}": "here"})
                for n, store in enumerate(stores[1:])
            ],
        )
        assert [result for result in results if isinstance(result, Exception)] == []
        cursor = stores[0].cursors.get(topic.id, "__compaction")
        assert cursor.properties["CompactedTopicLedger"] == str(new.ledger_id)
        assert len(cursor.properties) == 1 + 4 * (generation + 1)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE compacted_ledgers SET retired_at = NULL", "UPDATE runs SET state = 'RUNNING'"],
)
def test_the_database_itself_forbids_two(store: MetadataStore, topic: TopicRecord, statement: str) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    publish_all(store, topic)
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(text(statement))
