"""Trimming: in two steps, never what a cursor or the horizon still holds, unless forced (C1, C2, C3, R8, S9)."""

from __future__ import annotations

from functools import partial

import pytest

from storage.errors import Conflict, InvalidInput, NotFound
from storage.failpoints import Failpoint
from storage.metadata.records import COMPACTION_CURSOR, CompactedLedgerRecord, RunRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord, LogPosition, TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import append, at_once, claim, compacted, emptied, end_of, publish_all
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import check_all_or_nothing, leased, opened, state


def compact_up_to(store: MetadataStore, topic: TopicRecord, end: LogPosition) -> RunRecord:
    generation = store.topics.get(topic.name).generation
    run = claim(store, topic)
    return store.publishing.publish(run, generation, compacted(store, run, generation + 1, end), {})


def ids(ledgers: list[LedgerRecord]) -> list[int]:
    return [ledger.ledger_id for ledger in ledgers]


def test_trimming_is_in_two_steps(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    created = append(store, topic, 3, 4, 5)
    clock.advance(9)
    store.trimming.trim(topic.id, 7, ids(created[:2]), force=False)
    snapshot = store.topic_snapshot(topic.id)
    assert (snapshot.ledgers, snapshot.topic.start_offset, snapshot.topic.next_offset) == ((created[2],), 7, 12)
    assert store.ledgers.of_topic(topic.id) == (created[2],)
    (summary,) = store.topics.summaries()
    assert (summary.ledgers, summary.messages, summary.logical_bytes) == (1, 5, 500)

    trimmed = store.trimming.trimmed_ledgers(topic.id)
    assert ids(trimmed) == ids(created[:2])
    assert {ledger.deleted_at for ledger in trimmed} == {clock.now_ms()}
    assert store.pins.gc_snapshot(topic.id).ledgers == (*trimmed, created[2]), "their objects are not garbage yet"

    clock.advance(5)
    store.trimming.trim(topic.id, 12, ids(created[2:]), force=False)
    assert store.trimming.purge(topic.id, clock.now_ms() - 6) == 0
    assert store.trimming.purge(topic.id, clock.now_ms() - 5) == 2
    assert ids(list(store.pins.gc_snapshot(topic.id).ledgers)) == ids(created[2:])
    assert store.trimming.purge(topic.id, clock.now_ms()) == 1
    assert store.pins.gc_snapshot(topic.id).ledgers == ()
    assert store.trimming.trimmed_ledgers(topic.id) == []


def test_a_topic_that_lost_all_goes_on_at_its_end(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    created = append(store, topic, 3)
    store.trimming.trim(topic.id, 3, ids(created), force=False)
    store.trimming.purge(topic.id, clock.now_ms())
    (after,) = append(store, topic, 2)
    assert (after.first_offset, store.topics.get(topic.name).start_offset) == (3, 3)


def test_other_topics_keep_theirs(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord, clock: ManualClock
) -> None:
    own, theirs = append(store, topic, 3), append(store, other, 3)
    with pytest.raises(Conflict, match=f"ledger {theirs[0].ledger_id} of .*orders was trimmed already"):
        store.trimming.trim(topic.id, 3, ids(theirs), force=False)
    store.trimming.trim(topic.id, 3, ids(own), force=False)
    store.trimming.trim(other.id, 3, ids(theirs), force=False)
    assert store.trimming.purge(topic.id, clock.now_ms()) == 1
    assert ids(store.trimming.trimmed_ledgers(other.id)) == ids(theirs)


def test_a_start_inside_a_ledger_keeps_the_ledger(store: MetadataStore, topic: TopicRecord) -> None:
    """Worked example 7: ledgers begin at 0, 11 and 23; the start is moved to 25."""
    created = append(store, topic, 11, 12, 10)
    before = state(store, topic)
    for start in (25, 32):
        with pytest.raises(
            AssertionError, match=f"ledger {created[2].ledger_id} .* ends at offset 32, not below {start}"
        ):
            store.trimming.trim(topic.id, start, ids(created), force=False)
    assert state(store, topic) == before
    store.trimming.trim(topic.id, 25, ids(created[:2]), force=False)
    assert store.ledgers.of_topic(topic.id) == (created[2],)
    assert store.topics.get(topic.name).start_offset == 25


def test_the_start_never_goes_back(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    store.trimming.trim(topic.id, 5, [], force=False)
    assert store.ledgers.of_topic(topic.id) == tuple(created)
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    assert store.topics.get(topic.name).start_offset == 5
    assert store.ledgers.of_topic(topic.id) == (created[1],)


def test_a_start_beyond_the_end_is_refused(store: MetadataStore, topic: TopicRecord) -> None:
    """The open segment continues behind the topic's end; it is rolled before it may go (C1)."""
    append(store, topic, 3)
    with leased(store, topic) as lease:
        opened(store, lease, topic)
    for wrong in (4, -1):
        with pytest.raises(InvalidInput, match=f"cannot begin at offset {wrong}") as answer:
            store.trimming.trim(topic.id, wrong, [], force=True)
        assert answer.value.remedy.startswith("choose an offset from 0 to 3")
    store.trimming.trim(topic.id, 3, [], force=True)


def test_a_ledger_is_trimmed_once(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 3)
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    before = state(store, topic)
    with pytest.raises(Conflict, match=f"ledger {created[0].ledger_id} .* was trimmed already"):
        store.trimming.trim(topic.id, 6, ids(created), force=False)
    assert state(store, topic) == before


def test_trimming_changes_all_or_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    store.cursors.ensure(topic.id, "reader")
    store.cursors.reset(topic.id, "reader", end_of(created[1]))
    check_all_or_nothing(
        store, topic, lambda: store.trimming.trim(topic.id, 7, ids(created), force=False), Failpoint.TRIM_INSIDE_COMMIT
    )


# What holds data back


@pytest.mark.parametrize("acknowledged", [None, 0, 2, 4])
def test_a_cursor_holds_back_what_it_has_not_acknowledged(
    store: MetadataStore, topic: TopicRecord, acknowledged: int | None
) -> None:
    created = append(store, topic, 3, 4)
    for name in ("quick", "slow"):
        store.cursors.ensure(topic.id, name)
    store.cursors.reset(topic.id, "quick", end_of(created[1]))
    if acknowledged is not None:
        store.cursors.reset(topic.id, "slow", LogPosition(acknowledged, created[0].last_message_id))
    needs = 0 if acknowledged is None else acknowledged + 1
    before = state(store, topic)
    message = "with nothing acknowledged" if acknowledged is None else f"at offset {needs}"
    with pytest.raises(Conflict, match=f"up to offset {needs + 1}: its cursor 'slow' is {message}"):
        store.trimming.trim(topic.id, needs + 1, [], force=False)
    assert state(store, topic) == before
    store.trimming.trim(topic.id, needs, [], force=False)
    assert store.topics.get(topic.name).start_offset == needs


@pytest.mark.parametrize("how", ["force", "deleted"])
def test_a_cursor_may_be_passed_over(store: MetadataStore, topic: TopicRecord, how: str) -> None:
    created = append(store, topic, 3)
    store.cursors.ensure(topic.id, "slow")
    if how == "deleted":
        store.cursors.delete(topic.id, "slow")
    store.trimming.trim(topic.id, 3, ids(created), force=how == "force")
    assert store.ledgers.of_topic(topic.id) == ()


def test_a_cursor_of_another_topic_holds_nothing_back(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    store.cursors.ensure(store.tenancy.ensure_topic(TopicName.parse("other")).id, "slow")
    store.trimming.trim(topic.id, 3, ids(created), force=False)


def test_a_new_cursor_needs_nothing_below_the_start(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    store.trimming.trim(topic.id, 3, [], force=False)
    store.cursors.ensure(topic.id, "new")
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    with pytest.raises(Conflict, match="'new'"):
        store.trimming.trim(topic.id, 4, [], force=False)


def test_the_horizon_holds_raw_data_back(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    store.cursors.ensure(topic.id, COMPACTION_CURSOR)
    with pytest.raises(Conflict, match="its cursor '__compaction' is with nothing acknowledged") as answer:
        store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    assert answer.value.remedy == "compact the topic first, or force it"
    compact_up_to(store, topic, end_of(created[0]))
    with pytest.raises(Conflict, match="up to offset 4: its cursor '__compaction' is at offset 3"):
        store.trimming.trim(topic.id, 4, [], force=False)
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    store.trimming.trim(topic.id, 7, ids(created[1:]), force=True)
    assert store.ledgers.of_topic(topic.id) == ()


def test_a_topic_that_is_never_compacted_is_trimmed_freely(store: MetadataStore, topic: TopicRecord) -> None:
    """S9: with policy `delete` alone there is no `__compaction` cursor."""
    created = append(store, topic, 3)
    store.trimming.trim(topic.id, 3, ids(created), force=False)
    assert store.ledgers.of_topic(topic.id) == ()


# Policy `compact`: the start stays


def test_what_is_compacted_goes_and_the_start_stays(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4, 5)
    compact_up_to(store, topic, end_of(created[1]))
    store.trimming.trim(topic.id, 7, ids(created[:2]), force=False, keep_start=True)
    snapshot = store.topic_snapshot(topic.id)
    assert (snapshot.topic.start_offset, snapshot.ledgers, snapshot.horizon) == (0, (created[2],), end_of(created[1]))


def test_what_is_not_compacted_stays(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    before = state(store, topic)
    with pytest.raises(Conflict, match=r"not compacted \(horizon: none"):
        store.trimming.trim(topic.id, 3, ids(created[:1]), force=True, keep_start=True)
    assert state(store, topic) == before
    compact_up_to(store, topic, LogPosition(5, created[1].last_message_id))
    before = state(store, topic)
    with pytest.raises(Conflict, match=r"ends at offset 6, which is not compacted \(horizon: .*offset 5"):
        store.trimming.trim(topic.id, 7, ids(created), force=True, keep_start=True)
    assert state(store, topic) == before
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False, keep_start=True)


def test_only_the_oldest_go_if_the_start_stays(store: MetadataStore, topic: TopicRecord) -> None:
    """Raw reads begin at the first ledger that is left: a hole behind it would be a gap in silence."""
    created = append(store, topic, 3, 4, 5)
    publish_all(store, topic)
    before = state(store, topic)
    with pytest.raises(AssertionError, match="are not the oldest"):
        store.trimming.trim(topic.id, 12, ids([created[0], created[2]]), force=True, keep_start=True)
    assert state(store, topic) == before


def test_a_cursor_holds_compacted_raw_data_back_too(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    publish_all(store, topic)
    store.cursors.ensure(topic.id, "slow")
    with pytest.raises(Conflict, match="up to offset 3: its cursor 'slow' is with nothing"):
        store.trimming.trim(topic.id, 7, ids(created[:1]), force=False, keep_start=True)
    store.cursors.reset(topic.id, "slow", end_of(created[0]))
    store.trimming.trim(topic.id, 7, ids(created[:1]), force=False, keep_start=True)
    store.trimming.trim(topic.id, 7, ids(created[1:]), force=True, keep_start=True)


# R8: what only the compacted ledger holds


def test_what_only_the_compacted_ledger_holds_is_not_given_up_by_the_way(
    store: MetadataStore, topic: TopicRecord
) -> None:
    created = append(store, topic, 3, 4)
    run = compact_up_to(store, topic, end_of(created[1]))
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False, keep_start=True)
    before = state(store, topic)
    with pytest.raises(Conflict) as answer:
        store.cursors.delete(topic.id, COMPACTION_CURSOR)
    assert "gone up to offset 2: what is left of offsets 0 to 2 is only" in answer.value.message
    assert f"compacted ledger {run.compacted_ledger_id} (2 messages up to offset 6)" in answer.value.message
    assert "force" in answer.value.remedy
    assert state(store, topic) == before
    store.cursors.delete(topic.id, COMPACTION_CURSOR, force=True)
    assert store.topic_snapshot(topic.id).compacted is None


def test_all_raw_is_gone(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    publish_all(store, topic)
    store.trimming.trim(topic.id, 7, ids(created), force=False, keep_start=True)
    with pytest.raises(Conflict, match="offsets 0 to 6 is only"):
        store.cursors.delete(topic.id, COMPACTION_CURSOR)


def test_raw_is_gone_beyond_the_horizon(store: MetadataStore, topic: TopicRecord) -> None:
    """Messages that were trimmed by force after the horizon are in no compacted ledger either."""
    created = append(store, topic, 3, 4)
    compact_up_to(store, topic, end_of(created[0]))
    store.trimming.trim(topic.id, 7, ids(created), force=True)
    with pytest.raises(Conflict, match="offsets 0 to 2 is only"):
        store.cursors.delete(topic.id, COMPACTION_CURSOR)


def test_raw_is_gone_up_to_the_middle_of_a_ledger(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3, 4)
    publish_all(store, topic)
    store.trimming.trim(topic.id, 2, [], force=False)
    with pytest.raises(Conflict, match="offsets 0 to 1 is only"):
        store.cursors.delete(topic.id, COMPACTION_CURSOR)


def test_a_compacted_ledger_without_messages_still_remembers_deletions(
    store: MetadataStore, topic: TopicRecord
) -> None:
    created = append(store, topic, 3, 4)
    run = claim(store, topic)
    store.publishing.publish(run, 0, emptied(compacted(store, run, 1, end_of(created[1]))), {})
    store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    with pytest.raises(Conflict, match="with what it remembers of deleted keys"):
        store.cursors.delete(topic.id, COMPACTION_CURSOR)


@pytest.mark.parametrize("why", ["raw is whole", "by hand", "another cursor"])
def test_a_cursor_that_takes_nothing_with_it_is_deleted(store: MetadataStore, topic: TopicRecord, why: str) -> None:
    created = append(store, topic, 3, 4)
    if why == "raw is whole":
        publish_all(store, topic)
    elif why == "by hand":
        store.cursors.ensure(topic.id, COMPACTION_CURSOR)
        store.trimming.trim(topic.id, 3, ids(created[:1]), force=True)
    else:
        run = claim(store, topic)
        new = compacted(store, run, 1, end_of(created[1]))
        store.publishing.publish(run, 0, new, {})
        store.trimming.trim(topic.id, 3, ids(created[:1]), force=False)
    name = COMPACTION_CURSOR
    if why == "another cursor":
        store.cursors.ensure(topic.id, "reader")
        name = "reader"
    store.cursors.delete(topic.id, name)
    with pytest.raises(NotFound):
        store.cursors.delete(topic.id, name)


# Races


def test_of_two_that_trim_one_wins(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(2)
    for _ in range(6):
        ledgers = append(stores[0], topic, 2)
        end = ledgers[0].last_offset + 1
        results = at_once(*(partial(store.trimming.trim, topic.id, end, ids(ledgers), force=False) for store in stores))
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "NoneType"]
        assert stores[0].topics.get(topic.name).start_offset == end


def test_trim_against_publish(open_stores: OpenStores, topic: TopicRecord) -> None:
    """Raw data goes only if the horizon has passed it, in whatever order the two commit."""
    stores = open_stores(2)
    stores[0].cursors.ensure(topic.id, COMPACTION_CURSOR)
    for generation in range(8):
        ledgers = append(stores[0], topic, 2)
        run = claim(stores[0], topic)
        new: CompactedLedgerRecord = compacted(stores[0], run, generation + 1, end_of(ledgers[0]))
        keep_start = generation % 2 == 0
        published, trimmed = at_once(
            partial(stores[0].publishing.publish, run, generation, new, {}),
            partial(
                stores[1].trimming.trim,
                topic.id,
                ledgers[0].last_offset + 1,
                ids(ledgers),
                force=False,
                keep_start=keep_start,
            ),
        )
        assert isinstance(published, RunRecord)
        after = stores[0].topic_snapshot(topic.id)
        assert after.compacted == new
        if trimmed is None:
            assert after.ledgers == ()
        else:
            assert isinstance(trimmed, Conflict)
            assert after.ledgers == tuple(ledgers)
            stores[0].trimming.trim(topic.id, ledgers[0].last_offset + 1, ids(ledgers), force=False)


def test_trim_against_a_reset_of_a_cursor(open_stores: OpenStores, topic: TopicRecord) -> None:
    """Either the cursor holds the data, or it comes too late for it."""
    stores = open_stores(2)
    stores[0].cursors.ensure(topic.id, "reader")
    for _ in range(8):
        ledgers = append(stores[0], topic, 2, 2)
        stores[0].cursors.reset(topic.id, "reader", end_of(ledgers[1]))
        reset, trimmed = at_once(
            lambda ledgers=ledgers: stores[0].cursors.reset(topic.id, "reader", end_of(ledgers[0])),
            partial(stores[1].trimming.trim, topic.id, ledgers[1].last_offset + 1, ids(ledgers), force=False),
        )
        assert not isinstance(reset, Exception)
        if trimmed is not None:
            assert isinstance(trimmed, Conflict)
            assert stores[0].ledgers.of_topic(topic.id) == tuple(ledgers)
            stores[0].trimming.trim(topic.id, ledgers[1].last_offset + 1, ids(ledgers), force=True)
        assert stores[0].ledgers.of_topic(topic.id) == ()


def test_trim_against_deletion_of_the_cursor(open_stores: OpenStores, topic: TopicRecord) -> None:
    """Not both: raw data goes, and the compacted ledger that holds what is left of it."""
    stores = open_stores(2)
    created = append(stores[0], topic, 2, 2)
    for _ in range(8):
        publish_all(stores[0], topic)
        trimmed, deleted = at_once(
            lambda: stores[0].trimming.trim(topic.id, 2, ids(created[:1]), force=False, keep_start=True),
            lambda: stores[1].cursors.delete(topic.id, COMPACTION_CURSOR),
        )
        assert sorted(type(result).__name__ for result in (trimmed, deleted)) == ["Conflict", "NoneType"]
        after = stores[0].topic_snapshot(topic.id)
        assert (after.compacted is None, after.ledgers) in ((True, tuple(created)), (False, (created[1],)))
        if trimmed is None:
            break
