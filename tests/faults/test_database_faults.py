"""A database that drops the connection before or after COMMIT, or in the middle: the old state or the new, no third.

A caller that loses the answer to a COMMIT gets Unavailable, and may read or try again. Some calls must not be reported
as failed when they took effect, and determine that themselves: an append (it would be imported twice), a claim (the run
would block its topic), a publish (its objects would be taken for garbage), the end of a run that found nothing to do
(it succeeded, and its failure would be reported). On SQLite the same with a disk that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest
from sqlalchemy import URL, event

from storage.errors import CompactionRunning, Conflict, ErrorText, Unavailable
from storage.metadata.records import (
    AttemptKind,
    CompactedLedgerRecord,
    GcSnapshot,
    Lease,
    RunRecord,
    RunState,
    TopicRecord,
    TopicSnapshot,
)
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord, TopicName
from tests.conformance.metadata.builders import TTL, append, claim, compacted, end_of, ledger, publish_all
from tests.conformance.metadata.conftest import OpenStore
from tests.servers.cut_link import Cut, PostgresLink, SqliteLink

CUTS = [Cut.BEFORE, Cut.AFTER]


@dataclass(frozen=True)
class World:
    """A topic with some ledgers, a store whose link breaks on cue, and a witness who sees what is."""

    topic: TopicRecord
    store: MetadataStore
    link: PostgresLink | SqliteLink
    witness: MetadataStore

    def state(self) -> tuple[TopicSnapshot, GcSnapshot]:
        return self.witness.topic_snapshot(self.topic.id), self.witness.pins.gc_snapshot(self.topic.id)


@pytest.fixture
def world(database_url: URL, open_store: OpenStore) -> Iterator[World]:
    witness = open_store(database_url)
    topic = witness.tenancy.ensure_topic(TopicName.parse("orders"))
    append(witness, topic, 3)
    publish_all(witness, topic)
    append(witness, topic, 4)
    if database_url.drivername == "sqlite":
        store = open_store(database_url)
        yield World(topic, store, SqliteLink(store), witness)
        return
    link = PostgresLink(database_url)
    yield World(topic, open_store(link.url), link, witness)
    link.close()


def publication(world: World) -> tuple[RunRecord, int, CompactedLedgerRecord]:
    """A run that is about to publish, the generation it read, and what it publishes."""
    run = claim(world.witness, world.topic)
    snapshot = world.witness.topic_snapshot(world.topic.id)
    generation = snapshot.topic.generation
    return run, generation, compacted(world.witness, run, generation + 1, end_of(snapshot.ledgers[-1]))


def import_(world: World) -> tuple[Lease, list[LedgerRecord]]:
    """Two ledgers that are about to be appended, and the lease for it."""
    lease = world.witness.leases.acquire(world.topic.id, "importer", TTL)
    attempt = world.witness.attempts.begin(world.topic.id, AttemptKind.IMPORT, "importer")
    first = world.witness.ledgers.allocate_ids(2)
    return lease, [ledger(first, 7, 2, attempt.attempt_id), ledger(first + 1, 9, 2, attempt.attempt_id)]


def test_a_publish_that_was_not_committed_can_be_done_again(world: World) -> None:
    run, generation, new = publication(world)
    before = world.state()
    world.link.cut(Cut.BEFORE)
    with pytest.raises(Unavailable) as answer:
        world.store.publishing.publish(run, generation, new, {})
    assert world.link.cuts == 1
    assert "not known" not in answer.value.message
    assert world.state() == before
    assert world.store.publishing.publish(run, generation, new, {}).state is RunState.SUCCESS
    assert world.witness.topic_snapshot(world.topic.id).compacted == new


def test_a_publish_whose_answer_was_lost_is_a_success(world: World) -> None:
    run, generation, new = publication(world)
    world.link.cut(Cut.AFTER)
    ended = world.store.publishing.publish(run, generation, new, {"survivors": 2})
    assert world.link.cuts == 1
    assert (ended.state, ended.compacted_ledger_id) == (RunState.SUCCESS, new.ledger_id)
    after = world.witness.topic_snapshot(world.topic.id)
    assert (after.compacted, after.last_run, after.horizon) == (new, ended, new.horizon)


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_that_found_nothing_to_do_is_told_as_it_ended(world: World, cut: Cut) -> None:
    run = claim(world.witness, world.topic)
    world.link.cut(cut)
    if cut is Cut.BEFORE:
        with pytest.raises(Unavailable):
            world.store.runs.succeed_unchanged(run, {})
        assert world.witness.runs.get(run.run_id).state is RunState.RUNNING
    else:
        ended = world.store.runs.succeed_unchanged(run, {})
        assert (ended.state, ended) == (RunState.SUCCESS, world.witness.runs.get(run.run_id))
    assert world.link.cuts == 1


@pytest.mark.parametrize("cut", CUTS)
def test_a_publish_of_which_nothing_is_known_says_so(world: World, cut: Cut) -> None:
    run, generation, new = publication(world)
    before = world.state()
    world.link.cut(cut, stays_down=True)
    with pytest.raises(Unavailable) as answer:
        world.store.publishing.publish(run, generation, new, {})
    assert type(answer.value) is Unavailable
    assert answer.value.message.startswith(
        f"whether run {run.run_id} published compacted ledger {new.ledger_id} is not known: "
    )
    assert "before doing it again" in answer.value.remedy
    world.link.restore()
    # What the caller does next: it records its failure, which a run that has published does not take.
    ended = world.store.runs.fail(run, ErrorText.from_error(answer.value))
    if cut is Cut.BEFORE:
        assert ended.state is RunState.ERROR
        assert world.witness.topic_snapshot(world.topic.id).compacted == before[0].compacted
    else:
        assert (ended.state, str(ended.error)) == (RunState.SUCCESS, "")
        assert world.witness.topic_snapshot(world.topic.id).compacted == new


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_commit_that_is_still_under_way_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's connection is gone, the server's is not: a look without the topic's lock would say "not done".

    Not on SQLite, whose COMMIT is a call: nothing of it is under way once it has returned.
    """
    assert isinstance(world.link, PostgresLink)
    run, generation, new = publication(world)
    world.link.cut(Cut.HELD)
    monkeypatch.setattr("storage.metadata.engine.LOCK_WAIT_SECONDS", 0.001)
    with pytest.raises(Unavailable, match=f"whether run {run.run_id} published .* is not known"):
        world.store.publishing.publish(run, generation, new, {})
    assert world.link.cuts == 1
    assert world.witness.runs.get(run.run_id).state is RunState.RUNNING
    world.link.deliver()
    assert world.witness.runs.get(run.run_id).compacted_ledger_id == new.ledger_id


@pytest.mark.parametrize("cut", CUTS)
def test_an_append_is_done_once(world: World, cut: Cut) -> None:
    lease, ledgers = import_(world)
    before = world.state()
    world.link.cut(cut)
    if cut is Cut.BEFORE:
        with pytest.raises(Unavailable):
            world.store.ledgers.append(lease, ledgers)
        assert world.state() == before
        world.store.ledgers.append(lease, ledgers)
    else:
        world.store.ledgers.append(lease, ledgers)
    assert world.link.cuts == 1
    assert world.witness.ledgers.of_topic(world.topic.id) == (*before[0].ledgers, *ledgers)
    attempt = world.witness.attempts.find(ledgers[0].attempt_id)
    assert attempt is not None
    assert attempt.finished_at is not None


@pytest.mark.parametrize("cut", CUTS)
def test_an_append_of_which_nothing_is_known_says_so(world: World, cut: Cut) -> None:
    lease, ledgers = import_(world)
    world.link.cut(cut, stays_down=True)
    with pytest.raises(Unavailable, match=rf"whether ledger {ledgers[1].ledger_id} and those with it .* is not known"):
        world.store.ledgers.append(lease, ledgers)
    world.link.restore()
    assert world.store.topics.get(world.topic.name).next_offset == (7 if cut is Cut.BEFORE else 11)


@pytest.mark.parametrize("cut", CUTS)
def test_a_claim_leaves_no_run_without_a_worker(world: World, cut: Cut) -> None:
    before = world.state()
    world.link.cut(cut)
    if cut is Cut.BEFORE:
        with pytest.raises(Unavailable):
            claim(world.store, world.topic)
        assert world.state() == before
        claim(world.store, world.topic)
    else:
        run = claim(world.store, world.topic)
        assert world.witness.runs.last(world.topic.id) == run
        assert world.store.runs.heartbeat([run]) == []
    assert world.link.cuts == 1
    with pytest.raises(CompactionRunning):
        claim(world.witness, world.topic)


def test_a_claim_that_was_refused_is_not_looked_for(world: World) -> None:
    """The link breaks at a COMMIT, and there is none: what was raised inside is what happened."""
    claim(world.witness, world.topic)
    world.link.cut(Cut.BEFORE)
    with pytest.raises(CompactionRunning):
        claim(world.store, world.topic)
    assert world.link.cuts == 0


def cancelled(store: MetadataStore, run: RunRecord) -> object:
    try:
        return store.runs.cancel(run.run_id, "enough")
    except Conflict as ended:
        return ended


Change = Callable[[MetadataStore, TopicRecord, RunRecord], object]

CHANGES: dict[str, Change] = {
    "begin an attempt": lambda store, topic, run: store.attempts.begin(topic.id, AttemptKind.IMPORT, "me"),
    "beat": lambda store, topic, run: store.runs.heartbeat([run], {run.run_id: {"parts": 1}}),
    "cancel": lambda store, topic, run: cancelled(store, run),
    "collect": lambda store, topic, run: store.pins.delete_ledger_if_unpinned(
        topic.id, store.pins.gc_snapshot(topic.id).compacted[0].ledger_id, 0
    ),
    "delete the cursor": lambda store, topic, run: store.cursors.delete(topic.id, "__compaction"),
    "fail": lambda store, topic, run: store.runs.fail(run, ErrorText("broken")),
    "give up": lambda store, topic, run: store.runs.expire_attempts(topic.id, 0),
    "pin": lambda store, topic, run: store.pins.take(topic.id, "reader", TTL),
    "set a property": lambda store, topic, run: store.cursors.set_properties(topic.id, "__compaction", {"a": "b"}),
    "update": lambda store, topic, run: store.runs.update(run, phase="phase one"),
}
"""Other changes of a topic, each in one transaction: reported as Unavailable, whether or not they took effect."""


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("change", CHANGES)
def test_any_other_change_is_old_or_new(world: World, change: str, cut: Cut) -> None:
    publish_all(world.witness, world.topic)  # so that one has retired
    run = claim(world.witness, world.topic)
    before = world.state()
    world.link.cut(cut)
    with pytest.raises(Unavailable) as answer:
        CHANGES[change](world.store, world.topic, run)
    assert world.link.cuts == 1
    assert answer.value.remedy
    assert (world.state() == before) == (cut is Cut.BEFORE)
    if cut is Cut.BEFORE:
        CHANGES[change](world.store, world.topic, run)  # the link is there again, and so is everything else
        assert world.state() != before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("what", ["publish", "append", "claim"])
def test_a_connection_lost_in_the_middle_changes_nothing(world: World, what: str) -> None:
    """Before each statement of the transaction in turn: the whole of it, or nothing. SQLite has none to lose."""
    if what == "publish":
        run, generation, new = publication(world)
        call: Callable[[], object] = lambda: world.store.publishing.publish(run, generation, new, {})  # noqa: E731
    elif what == "append":
        lease, ledgers = import_(world)
        call = lambda: world.store.ledgers.append(lease, ledgers)  # noqa: E731
    else:
        call = lambda: claim(world.store, world.topic)  # noqa: E731
    before = world.state()
    for statement in range(1, 100):
        died = dies_at(world, statement, call)
        if not died:
            break
        assert world.state() == before
    assert statement > 5
    assert world.state() != before


def dies_at(world: World, statement: int, call: Callable[[], object]) -> bool:
    """Make the call, with its session ended by the server before that statement; False if it has fewer."""
    seen = 0

    def before(_connection: object, cursor: psycopg.Cursor[object], *_others: object) -> None:
        nonlocal seen
        seen += 1
        if seen == statement:
            with world.witness.database.write() as connection:
                connection.exec_driver_sql(f"SELECT pg_terminate_backend({cursor.connection.info.backend_pid}, 10000)")

    event.listen(world.store.database.engine, "before_cursor_execute", before)
    try:
        call()
    except Unavailable:
        assert seen == statement
        return True
    finally:
        event.remove(world.store.database.engine, "before_cursor_execute", before)
    assert seen < statement
    return False
