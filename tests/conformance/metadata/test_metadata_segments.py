"""Segments: opened, rolled and dropped by the owner of the lease, and listed (L4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from storage.errors import Fenced, TopicNotFound
from storage.metadata.records import AttemptKind, SegmentState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import MessageId, TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, finished_at, ledger
from tests.conformance.metadata.log_builders import (
    LOG_UID,
    claimed,
    content,
    leased,
    ledger_of,
    new_segment,
    opened,
    rolled,
    seal_all,
    state,
)


def test_the_life_of_a_segment(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        assert store.segments.find_open(topic.id) == segment
        assert store.topic_snapshot(topic.id).segments == (segment,)
        assert store.topics.get(topic.name).next_offset == 0

        clock.advance(5)
        held = content(segment, 7, entries=2)
        closed = store.segments.roll(lease, segment.ledger_id, held)
    assert closed == replace(segment, state=SegmentState.ROLLED, rolled_at=clock.now_ms(), content=held)
    assert store.segments.find_open(topic.id) is None
    assert store.topic_snapshot(topic.id).segments == (closed,)
    assert store.topics.get(topic.name).next_offset == 7

    clock.advance(5)
    claimed_segment, attempt = claimed(store, topic)
    assert claimed_segment == replace(closed, sealing_attempt_id=attempt.attempt_id, sealing_tries=1)
    assert (attempt.kind, attempt.owner, attempt.finished_at) == (AttemptKind.SEAL, "sealer", None)
    created = ledger_of(claimed_segment, attempt)
    store.sealing.seal(attempt, created)
    after = store.topic_snapshot(topic.id)
    assert (after.ledgers, after.segments, after.topic.next_offset) == ((created,), (), 7)
    sealed = replace(claimed_segment, state=SegmentState.SEALED, sealed_at=clock.now_ms())
    assert store.segments.of_topic(topic.id) == [sealed]
    assert finished_at(store, attempt.attempt_id) == clock.now_ms()

    assert store.sealing.removable_segments(LOG_UID, clock.now_ms()) == [(store.topics.get(topic.name), sealed)]
    store.sealing.purge_segment(topic.id, sealed.ledger_id)
    store.sealing.purge_segment(topic.id, sealed.ledger_id)
    assert store.segments.of_topic(topic.id) == []
    assert store.topic_snapshot(topic.id) == after


def test_segments_follow_each_other(store: MetadataStore, topic: TopicRecord) -> None:
    first, second = rolled(store, topic, 3, 4)
    with leased(store, topic) as lease:
        third = opened(store, lease, topic)
    assert [item.first_offset for item in (first, second, third)] == [0, 3, 7]
    assert store.topic_snapshot(topic.id).segments == (first, second, third)


def test_who_lost_the_lease_opens_rolls_and_drops_nothing(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    zombie = store.leases.acquire(topic.id, "zombie", TTL)
    segment = opened(store, zombie, topic)
    clock.advance(TTL)
    with leased(store, topic, "successor"):
        before = state(store, topic)
        for call in (
            lambda: store.segments.open(zombie, new_segment(store, topic)),
            lambda: store.segments.roll(zombie, segment.ledger_id, content(segment, 1)),
            lambda: store.segments.drop_empty(zombie, segment.ledger_id),
            lambda: store.segments.clear_roll_request(zombie),
        ):
            with pytest.raises(Fenced, match="zombie no longer holds the lease"):
                call()
        assert state(store, topic) == before


def test_a_segment_is_opened_where_the_topic_ends(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 3)
    with leased(store, topic) as lease:
        for wrong in (2, 4):
            with pytest.raises(Fenced, match=f"begins at offset {wrong}, but the topic has gone on to 3"):
                store.segments.open(lease, replace(new_segment(store, topic), first_offset=wrong))
        assert store.segments.find_open(topic.id) is None


@pytest.mark.parametrize("last", ["ledger", "segment", "trimmed ledger"])
def test_a_segment_has_an_id_above_all_before_it(store: MetadataStore, topic: TopicRecord, last: str) -> None:
    early = store.ledgers.allocate_ids(1)
    highest = (rolled(store, topic, 2) if last == "segment" else append(store, topic, 2))[0].ledger_id
    if last == "trimmed ledger":
        store.trimming.trim(topic.id, 2, [highest], force=False)
    with leased(store, topic) as lease:
        for low in (early, highest):
            with pytest.raises(Fenced, match=f"which ends with ledger {highest}"):
                store.segments.open(lease, replace(new_segment(store, topic), ledger_id=low))
        opened(store, lease, topic)


def test_a_second_segment_is_never_open(store: MetadataStore, topic: TopicRecord) -> None:
    with leased(store, topic) as lease:
        first = opened(store, lease, topic)
        with pytest.raises(AssertionError, match=f"ledger {first.ledger_id} .*recover and roll that one first"):
            store.segments.open(lease, new_segment(store, topic))
        assert store.segments.of_topic(topic.id) == [first]


def test_the_database_itself_forbids_two_open_segments(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 1, 1)
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(text("UPDATE segments SET state = 'OPEN'"))


def test_only_a_new_segment_is_opened(store: MetadataStore, topic: TopicRecord) -> None:
    with leased(store, topic) as lease:
        new = new_segment(store, topic)
        for wrong in (
            replace(new, state=SegmentState.ROLLED),
            replace(new, content=content(new, 1)),
            replace(new, sealing_attempt_id="cd" * 16),
        ):
            with pytest.raises(AssertionError, match="is not a new one"):
                store.segments.open(lease, wrong)
    assert store.segments.of_topic(topic.id) == []


def test_rolling_again_with_the_same_content_changes_nothing(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        first = store.segments.roll(lease, segment.ledger_id, content(segment, 3))
        clock.advance(1)
        assert store.segments.roll(lease, segment.ledger_id, content(segment, 3)) == first
        opened(store, lease, topic)
        assert store.segments.roll(lease, segment.ledger_id, content(segment, 3)) == first
        before = state(store, topic)
        with pytest.raises(AssertionError, match="nothing may be appended to a segment once it is rolled"):
            store.segments.roll(lease, segment.ledger_id, content(segment, 4))
        assert state(store, topic) == before


def test_a_segment_is_rolled_with_what_it_can_hold(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 5)
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        before = state(store, topic)
        right = content(segment, 4, entries=2)
        for wrong, why in (
            (content(segment, 0, entries=0), "drop a segment that holds nothing"),
            (replace(right, entries=5), "4 messages in 5 entries"),
            (replace(right, last_offset=9), "offsets are dense"),
            (replace(right, last_offset=7), "offsets are dense"),
            (replace(right, last_message_id=MessageId(segment.ledger_id + 1, 1)), "its own ledger id"),
        ):
            with pytest.raises(AssertionError, match=why):
                store.segments.roll(lease, segment.ledger_id, wrong)
        assert state(store, topic) == before


def test_a_segment_that_is_gone_is_not_rolled(store: MetadataStore, topic: TopicRecord) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        store.segments.drop_empty(lease, segment.ledger_id)
        with pytest.raises(Fenced, match="does not exist"):
            store.segments.roll(lease, segment.ledger_id, content(segment, 1))


def test_an_open_segment_that_holds_nothing_is_dropped(store: MetadataStore, topic: TopicRecord) -> None:
    (before,) = rolled(store, topic, 1)
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        store.segments.request_roll(topic.id)
        store.segments.drop_empty(lease, segment.ledger_id)
        store.segments.drop_empty(lease, segment.ledger_id)
        assert store.segments.of_topic(topic.id) == [before]
        assert not store.segments.is_roll_requested(topic.id)
        with pytest.raises(AssertionError, match="is ROLLED; only an open segment"):
            store.segments.drop_empty(lease, before.ledger_id)
        assert opened(store, lease, topic).first_offset == 1


def test_a_wish_to_roll_is_as_old_as_when_it_was_said_first(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    store.segments.request_roll(topic.id)
    answer = clock.now_ms()
    clock.advance(5)
    store.segments.request_roll(topic.id)
    with store.database.read() as connection:
        assert connection.execute(text("SELECT roll_requested_at FROM topics")).scalars().all() == [answer]


def test_a_wish_to_roll_lasts_until_it_is_fulfilled(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord
) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        assert not store.segments.is_roll_requested(topic.id)
        store.segments.request_roll(topic.id)
        store.segments.request_roll(topic.id)
        assert store.segments.is_roll_requested(topic.id)
        assert not store.segments.is_roll_requested(other.id)
        store.segments.roll(lease, segment.ledger_id, content(segment, 1))
        assert not store.segments.is_roll_requested(topic.id)
        store.segments.request_roll(topic.id)
        store.segments.roll(lease, segment.ledger_id, content(segment, 1))
        assert store.segments.is_roll_requested(topic.id), "a roll of before fulfils no wish of after"
        store.segments.clear_roll_request(lease)
        assert not store.segments.is_roll_requested(topic.id)


def test_a_topic_that_is_not_there(store: MetadataStore, topic: TopicRecord) -> None:
    nowhere = topic.id + 1
    for call in (
        lambda: store.segments.request_roll(nowhere),
        lambda: store.segments.is_roll_requested(nowhere),
        lambda: store.sealing.claim(nowhere, "sealer", LOG_UID, TTL),
        lambda: store.sealing.purge_segment(nowhere, 1),
        lambda: store.trimming.trim(nowhere, 0, [], force=True),
        lambda: store.trimming.purge(nowhere, 0),
    ):
        with pytest.raises(TopicNotFound):
            call()


def test_topics_by_the_states_of_their_segments(store: MetadataStore, topic: TopicRecord) -> None:
    second, third, _ = (store.tenancy.ensure_topic(TopicName.parse(name)) for name in ("b", "a", "none"))
    rolled(store, second, 1, 1)
    seal_all(store, second)
    rolled(store, second, 1)
    rolled(store, topic, 1)
    with leased(store, third) as lease:
        opened(store, lease, third)

    def names(*states: SegmentState) -> list[str]:
        return [topic.name.topic for topic in store.segments.topics_with_segments(states)]

    assert names(SegmentState.OPEN) == ["a"]
    assert names(SegmentState.ROLLED) == ["b", "orders"]
    assert names(SegmentState.SEALED) == ["b"]
    assert names(SegmentState.OPEN, SegmentState.ROLLED) == ["a", "b", "orders"]
    assert store.segments.topics_unsealed_outside([]) == {LOG_UID: [third.name, second.name, topic.name]}
    assert store.segments.topics_unsealed_outside([LOG_UID]) == {}


def test_an_import_needs_the_tail_rolled(store: MetadataStore, topic: TopicRecord) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "importer")
        before = state(store, topic)
        imported = ledger(store.ledgers.allocate_ids(1), 0, 2, attempt.attempt_id)
        with pytest.raises(AssertionError, match=f"ledger {segment.ledger_id} .* is open; roll it first"):
            store.ledgers.append(lease, [imported])
        assert state(store, topic) == before
        store.segments.roll(lease, segment.ledger_id, content(segment, 3))
        low = replace(imported, ledger_id=segment.ledger_id, first_offset=3, last_offset=4)
        with pytest.raises(Fenced, match=f"which ends with ledger {segment.ledger_id}"):
            store.ledgers.append(lease, [low])
        store.ledgers.append(lease, [replace(imported, first_offset=3, last_offset=4)])
    assert store.topics.get(topic.name).next_offset == 5
