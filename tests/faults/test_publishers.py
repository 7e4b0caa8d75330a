"""Two and eight publishers at once, ten rounds each, on each database: one winner a round (A1; property 8).

All publishers of a round hold the same claim, each with a compacted ledger and a horizon of its own, as if the worker
had been started twice. The same rounds are then played with the compare-and-swap taken out, and must find two winners:
what shows that they would.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, Connection, update

from storage.errors import Fenced
from storage.metadata import attempts, publishing, topics
from storage.metadata.records import CompactedLedgerRecord, RunRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import topics as topics_table
from storage.model import LogPosition, MessageId
from tests.budgets import IN_SOAK
from tests.conformance.metadata.builders import append, at_once, claim, compacted
from tests.conformance.metadata.conftest import OpenStore

ROUNDS = 100 if IN_SOAK else 10


def play(stores: list[MetadataStore], topic: TopicRecord, rounds: int) -> None:
    """Rounds of one publisher a store. AssertionError unless each has one winner, who serves."""
    (ledger,) = append(stores[0], topic, 10 * (rounds + 1))
    for round_number in range(rounds):
        run = claim(stores[0], topic)
        before = stores[0].topic_snapshot(topic.id)
        generation = before.topic.generation
        candidates = []
        for number in range(len(stores)):
            offset = 10 * round_number + number
            horizon = LogPosition(offset, MessageId(ledger.ledger_id, offset))
            candidates.append(compacted(stores[0], run, generation + 1, horizon))
        results = at_once(
            *(
                partial(store.publishing.publish, run, generation, new, {})
                for store, new in zip(stores, candidates, strict=True)
            )
        )
        winners = [new for new, result in zip(candidates, results, strict=True) if isinstance(result, RunRecord)]
        assert len(winners) == 1, f"round {round_number}: {len(winners)} winners"
        assert [type(result) for result in results if not isinstance(result, RunRecord)] == [Fenced] * (len(stores) - 1)
        check_serves(stores[0], topic, run, winners[0], before.horizon)
        if before.compacted is not None:
            assert stores[0].pins.delete_ledger_if_unpinned(topic.id, before.compacted.ledger_id, 0)


def check_serves(
    store: MetadataStore,
    topic: TopicRecord,
    run: RunRecord,
    winner: CompactedLedgerRecord,
    old_horizon: LogPosition | None,
) -> None:
    after = store.topic_snapshot(topic.id)
    assert after.compacted == winner
    assert after.topic.generation == winner.generation
    assert after.cursor is not None
    assert after.cursor.mark_delete == winner.horizon == after.horizon
    assert after.cursor.properties["CompactedTopicLedger"] == str(winner.ledger_id)
    assert after.last_run is not None
    assert (after.last_run.run_id, after.last_run.compacted_ledger_id) == (run.run_id, winner.ledger_id)
    assert old_horizon is None or winner.horizon > old_horizon


@pytest.mark.slow
@pytest.mark.budgeted
@pytest.mark.parametrize("publishers", [2, 8])
def test_of_publishers_at_once_one_wins(
    database_url: URL, open_store: OpenStore, topic: TopicRecord, publishers: int
) -> None:
    play([open_store(database_url) for _ in range(publishers)], topic, ROUNDS)


@pytest.mark.parametrize("publishers", [2, 8])
def test_without_the_compare_and_swap_there_are_two_winners(
    database_url: URL,
    open_store: OpenStore,
    topic: TopicRecord,
    monkeypatch: pytest.MonkeyPatch,
    publishers: int,
) -> None:
    stores = [open_store(database_url) for _ in range(publishers)]
    play(stores, topic, 1)
    take_out_the_compare_and_swap(monkeypatch)
    with pytest.raises(AssertionError, match=f"round 0: {publishers} winners"):
        play(stores, topic, 1)


def take_out_the_compare_and_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish that asks nothing: it takes the generation as it finds it, and so the last one to come serves."""
    publish = publishing.publish

    def careless(
        connection: Connection,
        run: RunRecord,
        _expected_generation: int,
        new: CompactedLedgerRecord,
        *others: Any,
    ) -> RunRecord:
        generation = topics.lock(connection, run.topic_id).generation
        return publish(connection, run, generation, replace(new, generation=generation + 1), *others)

    def swap_anything(connection: Connection, topic_id: int, *_expected: int) -> bool:
        connection.execute(
            update(topics_table).where(topics_table.c.id == topic_id).values(generation=topics_table.c.generation + 1)
        )
        return True

    monkeypatch.setattr(publishing, "publish", careless)
    monkeypatch.setattr(publishing, "check_publish", lambda *_arguments: None)
    monkeypatch.setattr(publishing, "_compare_and_swap_generation", swap_anything)
    # The attempt, finished by the first publish, would still stop the second.
    monkeypatch.setattr(attempts, "lock_and_check_unfinished", lambda *_arguments: None)


def test_the_swap_alone_stops_a_stale_generation_and_a_stale_epoch(
    store: MetadataStore, topic: TopicRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1 does not lean on what was read before: with every check of it taken out, the swap still compares."""
    (ledger,) = append(store, topic, 10)
    horizon = LogPosition(5, MessageId(ledger.ledger_id, 5))
    monkeypatch.setattr(publishing, "check_publish", lambda *_arguments: None)
    monkeypatch.setattr(attempts, "lock_and_check_unfinished", lambda *_arguments: None)
    first = claim(store, topic)
    store.publishing.publish(first, 0, compacted(store, first, 1, horizon), {})

    second = claim(store, topic)
    before = store.topic_snapshot(topic.id)
    with pytest.raises(Fenced, match=r"generation or epoch of .*orders moved"):
        store.publishing.publish(second, 0, compacted(store, second, 2, horizon), {})
    with pytest.raises(Fenced, match=r"generation or epoch of .*orders moved"):
        store.publishing.publish(first, 1, compacted(store, first, 2, horizon), {})
    assert store.topic_snapshot(topic.id) == before
    store.publishing.publish(second, 1, compacted(store, second, 2, horizon), {})


@pytest.mark.slow
def test_a_stale_epoch_has_no_effect_whatever_it_tries(
    database_url: URL, open_store: OpenStore, topic: TopicRecord
) -> None:
    """Eight zombies of past epochs, and the one run that is current, all at once: only the last one moves anything."""
    stores = [open_store(database_url) for _ in range(9)]
    (ledger,) = append(stores[0], topic, 1_000)
    for round_number in range(10):
        claimed = [claim(store, topic, ttl_ms=0) for store in stores]
        *zombies, current = claimed
        generation = stores[0].topics.get(topic.name).generation
        horizon = LogPosition(10 * round_number, MessageId(ledger.ledger_id, 10 * round_number))
        candidates = [
            compacted(store, run, generation + 1, horizon) for store, run in zip(stores, claimed, strict=True)
        ]
        calls = [
            lambda store=store, run=run, new=new, generation=generation: (
                store.publishing.publish(run, generation, new, {})
                if run.run_id % 3 == 0
                else store.runs.succeed_unchanged(run, {})
                if run.run_id % 3 == 1
                else store.runs.update(run, phase="awake")
            )
            for store, run, new in zip(stores[:-1], zombies, candidates[:-1], strict=True)
        ]
        *late, won = at_once(*calls, partial(stores[-1].publishing.publish, current, generation, candidates[-1], {}))
        assert isinstance(won, RunRecord)
        assert [type(result) for result in late] == [Fenced] * len(zombies)
        assert stores[0].topic_snapshot(topic.id).compacted == candidates[-1]
        assert stores[0].runs.heartbeat(claimed) == [run.run_id for run in claimed]
    assert stores[0].topics.get(topic.name).generation == 10
