"""Segments: opened, rolled and sealed once, by who may; a message is in a segment or in a ledger, never both (L4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import URL, delete, text
from sqlalchemy.exc import IntegrityError

from storage.errors import Fenced, TopicNotFound, Unavailable
from storage.failpoints import Failpoint
from storage.metadata import sealing
from storage.metadata.records import (
    MAX_SEALING_TRIES,
    Attempt,
    AttemptKind,
    SegmentContent,
    SegmentRecord,
    SegmentState,
    TopicRecord,
    TopicSnapshot,
)
from storage.metadata.store import MetadataStore
from storage.metadata.tables import attempts as attempts_table
from storage.model import LedgerRecord, MessageId, TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, ledger
from tests.conformance.metadata.conftest import OpenStore
from tests.conformance.metadata.log_builders import (
    LOG_UID,
    broken_link,
    check_all_or_nothing,
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
from tests.servers.cut_link import Cut

CUTS = [Cut.BEFORE, Cut.AFTER]


def test_the_life_of_a_segment(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        assert store.segments.find_open(topic.id) == segment
        assert store.snapshot(topic.id).segments == (segment,)
        assert store.topics.get(topic.name).next_offset == 0

        clock.advance(5)
        held = content(segment, 7, entries=2)
        closed = store.segments.roll(lease, segment.ledger_id, held)
    assert closed == replace(segment, state=SegmentState.ROLLED, rolled_at=clock.now_ms(), content=held)
    assert store.segments.find_open(topic.id) is None
    assert store.snapshot(topic.id).segments == (closed,)
    assert store.topics.get(topic.name).next_offset == 7

    clock.advance(5)
    mine, attempt = claimed(store, topic)
    assert mine == replace(closed, sealing_attempt_id=attempt.attempt_id, sealing_tries=1)
    assert (attempt.kind, attempt.owner, attempt.finished_at) == (AttemptKind.SEAL, "sealer", None)
    made = ledger_of(mine, attempt)
    store.sealing.seal(attempt, made)
    after = store.snapshot(topic.id)
    assert (after.ledgers, after.segments, after.topic.next_offset) == ((made,), (), 7)
    sealed = replace(mine, state=SegmentState.SEALED, sealed_at=clock.now_ms())
    assert store.segments.of_topic(topic.id) == [sealed]
    finished = store.attempts.find(attempt.attempt_id)
    assert finished is not None
    assert finished.finished_at == clock.now_ms()

    assert store.sealing.files(LOG_UID, clock.now_ms()) == [(store.topics.get(topic.name), sealed)]
    store.sealing.purge(topic.id, sealed.ledger_id)
    store.sealing.purge(topic.id, sealed.ledger_id)
    assert store.segments.of_topic(topic.id) == []
    assert store.snapshot(topic.id) == after


def test_segments_follow_each_other(store: MetadataStore, topic: TopicRecord) -> None:
    first, second = rolled(store, topic, 3, 4)
    with leased(store, topic) as lease:
        third = opened(store, lease, topic)
    assert [one.first_offset for one in (first, second, third)] == [0, 3, 7]
    assert store.snapshot(topic.id).segments == (first, second, third)


# What may not be opened


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
            lambda: store.segments.drop(zombie, segment.ledger_id),
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


# Rolling


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
        store.segments.drop(lease, segment.ledger_id)
        with pytest.raises(Fenced, match="does not exist"):
            store.segments.roll(lease, segment.ledger_id, content(segment, 1))


def test_an_open_segment_that_holds_nothing_is_dropped(store: MetadataStore, topic: TopicRecord) -> None:
    (before,) = rolled(store, topic, 1)
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        store.segments.request_roll(topic.id)
        store.segments.drop(lease, segment.ledger_id)
        store.segments.drop(lease, segment.ledger_id)
        assert store.segments.of_topic(topic.id) == [before]
        assert not store.segments.roll_requested(topic.id)
        with pytest.raises(AssertionError, match="is ROLLED; only an open segment"):
            store.segments.drop(lease, before.ledger_id)
        assert opened(store, lease, topic).first_offset == 1


def test_a_wish_to_roll_is_as_old_as_when_it_was_said_first(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    store.segments.request_roll(topic.id)
    said = clock.now_ms()
    clock.advance(5)
    store.segments.request_roll(topic.id)
    with store.database.read() as connection:
        assert connection.execute(text("SELECT roll_requested_at FROM topics")).scalars().all() == [said]


def test_a_wish_to_roll_lasts_until_it_is_fulfilled(store: MetadataStore, topic: TopicRecord) -> None:
    other = store.tenancy.ensure_topic(TopicName.parse("other"))
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        assert not store.segments.roll_requested(topic.id)
        store.segments.request_roll(topic.id)
        store.segments.request_roll(topic.id)
        assert store.segments.roll_requested(topic.id)
        assert not store.segments.roll_requested(other.id)
        store.segments.roll(lease, segment.ledger_id, content(segment, 1))
        assert not store.segments.roll_requested(topic.id)
        store.segments.request_roll(topic.id)
        store.segments.roll(lease, segment.ledger_id, content(segment, 1))
        assert store.segments.roll_requested(topic.id), "a roll of before fulfils no wish of after"
        store.segments.clear_roll_request(lease)
        assert not store.segments.roll_requested(topic.id)


def test_a_topic_that_is_not_there(store: MetadataStore, topic: TopicRecord) -> None:
    nowhere = topic.id + 1
    for call in (
        lambda: store.segments.request_roll(nowhere),
        lambda: store.segments.roll_requested(nowhere),
        lambda: store.sealing.claim(nowhere, "sealer", LOG_UID, TTL),
        lambda: store.sealing.purge(nowhere, 1),
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
        return [found.name.topic for found in store.segments.topics_with(states)]

    assert names(SegmentState.OPEN) == ["a"]
    assert names(SegmentState.ROLLED) == ["b", "orders"]
    assert names(SegmentState.SEALED) == ["b"]
    assert names(SegmentState.OPEN, SegmentState.ROLLED) == ["a", "b", "orders"]


# Imports beside the tail


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


def test_a_segment_below_imported_ledgers_is_sealed_in_its_place(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 3)
    (imported,) = append(store, topic, 2)
    (late,) = seal_all(store, topic)
    assert store.ledgers.of_topic(topic.id) == (late, imported)
    assert store.topics.get(topic.name).next_offset == 5


# Claims


def test_each_claim_takes_the_oldest_that_nobody_seals(store: MetadataStore, topic: TopicRecord) -> None:
    segments = rolled(store, topic, 1, 1, 1)
    with leased(store, topic) as lease:
        opened(store, lease, topic)
    taken = [claimed(store, topic, f"sealer-{number}")[0].ledger_id for number in range(3)]
    assert taken == [segment.ledger_id for segment in segments]
    assert store.sealing.claim(topic.id, "one too many", LOG_UID, TTL) is None


def test_a_claim_may_leave_out_what_lies_behind_an_offset_and_what_was_tried_before(
    store: MetadataStore, topic: TopicRecord
) -> None:
    first, second, third = rolled(store, topic, 2, 2, 2)

    def claim(below: int | None, *but: int) -> int | None:
        found = store.sealing.claim(topic.id, "sealer", LOG_UID, TTL, below, but)
        if found is not None:
            store.attempts.finish(found[1].attempt_id)
        return found and found[0].ledger_id

    assert claim(0) is None
    assert claim(2, first.ledger_id) is None
    assert claim(3, first.ledger_id) == second.ledger_id
    assert claim(None, first.ledger_id, second.ledger_id) == third.ledger_id
    assert claim(1) == first.ledger_id


def test_a_sealer_that_lets_go_has_not_tried(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    rolled(store, topic, 1)

    def tries() -> int:
        return store.segments.of_topic(topic.id)[0].sealing_tries

    _, dead = claimed(store, topic)
    clock.advance(TTL)
    _, living = claimed(store, topic)
    assert tries() == 2
    store.sealing.release(dead)
    assert tries() == 2, "it was given up as dead"
    for _ in range(2):
        store.sealing.release(living)
        assert tries() == 1
    for number in range(1, MAX_SEALING_TRIES):
        _, attempt = claimed(store, topic)
        store.attempts.finish(attempt.attempt_id)
        assert tries() == number + 1
    assert store.sealing.claim(topic.id, "next", LOG_UID, TTL) is None
    assert store.sealing.claim(topic.id, "by hand", LOG_UID, TTL, again=True) is not None


def test_a_sealer_that_stopped_answering_is_fenced_by_the_next(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    rolled(store, topic, 1)
    segment, dead = claimed(store, topic)
    clock.advance(TTL - 1)
    assert store.sealing.claim(topic.id, "next", LOG_UID, TTL) is None
    store.attempts.heartbeat(dead)
    clock.advance(TTL - 1)
    assert store.sealing.claim(topic.id, "next", LOG_UID, TTL) is None
    clock.advance(1)
    again, living = claimed(store, topic, "next")
    assert again == replace(segment, sealing_attempt_id=living.attempt_id, sealing_tries=2)
    before = state(store, topic)
    with pytest.raises(Fenced, match=f"attempt {dead.attempt_id} is finished"):
        store.sealing.seal(dead, ledger_of(segment, dead))
    with pytest.raises(Fenced):
        store.attempts.heartbeat(dead)
    assert state(store, topic) == before
    store.sealing.seal(living, ledger_of(again, living))
    with store.database.read() as connection:
        # What a lost answer is found out by: the other's success is not its own.
        assert sealing.sealed_by(connection, living, segment.ledger_id)
        assert not sealing.sealed_by(connection, dead, segment.ledger_id)


@pytest.mark.parametrize("ended", ["finished", "given up", "forgotten"])
def test_a_claim_whose_attempt_has_ended_is_free(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, ended: str
) -> None:
    rolled(store, topic, 1)
    segment, attempt = claimed(store, topic)
    if ended == "finished":
        store.attempts.finish(attempt.attempt_id)
    elif ended == "given up":
        clock.advance(1)
        assert store.runs.expire_attempts(topic.id, 1) == [attempt.attempt_id]
    else:
        with store.database.write() as connection:
            connection.execute(delete(attempts_table))
    again, next_ = claimed(store, topic, "next")
    assert (again.ledger_id, again.sealing_attempt_id) == (segment.ledger_id, next_.attempt_id)
    with pytest.raises(Fenced):
        store.sealing.seal(attempt, ledger_of(segment, attempt))
    store.sealing.seal(next_, ledger_of(again, next_))


# Sealing


def test_only_the_claimant_seals(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 2, 2)
    first, mine = claimed(store, topic)
    second, other = claimed(store, topic, "other")
    before = state(store, topic)
    with pytest.raises(Fenced, match=f"{mine.attempt_id} has not claimed .*: attempt {other.attempt_id} has"):
        store.sealing.seal(mine, ledger_of(second, mine))
    assert state(store, topic) == before
    store.sealing.seal(mine, ledger_of(first, mine))
    with pytest.raises(Fenced, match="is finished"):
        store.sealing.seal(mine, ledger_of(first, mine))


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_sealed_is_not_sealed_again(store: MetadataStore, topic: TopicRecord, forgotten: bool) -> None:
    rolled(store, topic, 2)
    (made,) = seal_all(store, topic)
    if forgotten:
        store.sealing.purge(topic.id, made.ledger_id)
    late = store.attempts.begin(topic.id, AttemptKind.SEAL, "late")
    before = state(store, topic)
    with pytest.raises(Fenced, match=f"ledger {made.ledger_id} .* is sealed already"):
        store.sealing.seal(late, replace(made, attempt_id=late.attempt_id))
    assert state(store, topic) == before


def test_a_ledger_holds_what_its_segment_holds(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 5)
    append(store, topic, 2)
    segment, attempt = claimed(store, topic)
    right = ledger_of(segment, attempt)
    before = state(store, topic)
    for wrong, why in (
        (replace(right, first_offset=1), "nothing else"),
        (replace(right, last_offset=5), "nothing else"),
        (replace(right, messages=4), "nothing else"),
        (replace(right, entries=2), "nothing else"),
        (replace(right, attempt_id="f" * 32), "under the sealer's own attempt"),
        (replace(right, deleted_at=1), "under the sealer's own attempt"),
    ):
        with pytest.raises(AssertionError, match=why):
            store.sealing.seal(attempt, wrong)
    assert state(store, topic) == before
    store.sealing.seal(attempt, right)


def test_an_open_segment_is_not_sealed(store: MetadataStore, topic: TopicRecord) -> None:
    """No claim leads here; somebody has written into the database."""
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
    attempt = store.attempts.begin(topic.id, AttemptKind.SEAL, "sealer")
    with store.database.write() as connection:
        connection.execute(text(f"UPDATE segments SET sealing_attempt_id = '{attempt.attempt_id}'"))
    with pytest.raises(AssertionError, match="is open; roll it first"):
        store.sealing.seal(attempt, ledger(segment.ledger_id, 0, 1, attempt.attempt_id))


def test_files_of_sealed_segments(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    first, second = rolled(store, topic, 1, 1)
    with leased(store, topic) as lease:
        elsewhere = new_segment(store, topic, log_uid="cd" * 16)
        store.segments.open(lease, elsewhere)
        store.segments.roll(lease, elsewhere.ledger_id, content(elsewhere, 1))
    assert store.sealing.files(LOG_UID, clock.now_ms()) == []
    for log_uid in (LOG_UID, LOG_UID, "cd" * 16):
        clock.advance(10)
        segment, attempt = claimed(store, topic, log_uid=log_uid)
        assert segment.log_uid == log_uid
        store.sealing.seal(attempt, ledger_of(segment, attempt))
    assert store.sealing.claim(topic.id, "sealer", LOG_UID, TTL) is None

    def ids(log_uid: str, until: int) -> list[int]:
        return [segment.ledger_id for _, segment in store.sealing.files(log_uid, until)]

    now = clock.now_ms()
    assert ids(LOG_UID, now) == [first.ledger_id, second.ledger_id]
    assert ids(LOG_UID, now - 20) == [first.ledger_id]
    assert ids(LOG_UID, now - 21) == []
    assert ids("cd" * 16, now) == [elsewhere.ledger_id]


def test_only_a_sealed_segment_is_forgotten(store: MetadataStore, topic: TopicRecord) -> None:
    (closed,) = rolled(store, topic, 1)
    with leased(store, topic) as lease:
        open_ = opened(store, lease, topic)
    before = state(store, topic)
    for segment in (closed, open_):
        with pytest.raises(AssertionError, match="seal it before its row is purged"):
            store.sealing.purge(topic.id, segment.ledger_id)
    assert state(store, topic) == before


# All or nothing, and lost answers


def test_what_fails_in_the_middle_changes_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    with leased(store, topic) as lease:
        segment = new_segment(store, topic)
        check_all_or_nothing(store, topic, lambda: store.segments.open(lease, segment))
        store.segments.request_roll(topic.id)
        check_all_or_nothing(
            store,
            topic,
            lambda: store.segments.roll(lease, segment.ledger_id, content(segment, 4)),
            Failpoint.ROLL_INSIDE_COMMIT,
        )
        empty = opened(store, lease, topic)
        check_all_or_nothing(store, topic, lambda: store.segments.drop(lease, empty.ledger_id))
    check_all_or_nothing(store, topic, lambda: store.sealing.claim(topic.id, "sealer", LOG_UID, TTL))
    store.runs.expire_attempts(topic.id, 0)
    mine, attempt = claimed(store, topic)
    check_all_or_nothing(
        store, topic, lambda: store.sealing.seal(attempt, ledger_of(mine, attempt)), Failpoint.SEAL_INSIDE_COMMIT
    )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("what", ["open", "roll", "seal", "trim", "begin later"])
def test_a_lost_answer_is_found_out(
    database_url: URL, open_store: OpenStore, store: MetadataStore, topic: TopicRecord, what: str, cut: Cut
) -> None:
    (mine, *_), (raw,) = rolled(store, topic, 2), append(store, topic, 3)
    lease = store.leases.acquire(topic.id, "writer", TTL)
    segment = new_segment(store, topic)
    if what == "roll":
        store.segments.open(lease, segment)
    if what == "seal":
        mine, attempt = claimed(store, topic)
    with broken_link(database_url, open_store) as broken:
        there = broken.store
        calls: dict[str, Callable[[], object]] = {
            "open": lambda: there.segments.open(lease, segment),
            "roll": lambda: there.segments.roll(lease, segment.ledger_id, content(segment, 4)),
            "seal": lambda: there.sealing.seal(attempt, ledger_of(mine, attempt)),
            "trim": lambda: there.trimming.trim(topic.id, 5, [raw.ledger_id], force=False),
            "begin later": lambda: there.trimming.trim(topic.id, 5, [], force=False),
        }
        before = state(store, topic)
        broken.link.cut(cut)
        if cut is Cut.BEFORE:
            with pytest.raises(Unavailable):
                calls[what]()
            assert state(store, topic) == before
        calls_again = calls[what]()
        assert broken.link.cuts == 1
        assert state(store, topic) != before
        if what == "roll":
            assert calls_again == store.segments.of_topic(topic.id)[-1]


# Races


@pytest.mark.parametrize("threads", [2, 6])
def test_of_two_that_open_one_wins(database_url: URL, open_store: OpenStore, topic: TopicRecord, threads: int) -> None:
    stores = [open_store(database_url) for _ in range(threads)]
    with leased(stores[0], topic) as lease:
        for _ in range(4):
            new = [new_segment(one, topic) for one in stores]
            results = at_once(
                [
                    lambda one=one, segment=segment: one.segments.open(lease, segment)
                    for one, segment in zip(stores, new, strict=True)
                ]
            )
            won = [segment for segment, result in zip(new, results, strict=True) if result is None]
            assert len(won) == 1
            assert sorted({type(result) for result in results if result is not None}, key=str) == [AssertionError]
            assert stores[0].segments.find_open(topic.id) == won[0]
            stores[0].segments.roll(lease, won[0].ledger_id, content(won[0], 2))


def test_of_two_that_roll_one_wins(database_url: URL, open_store: OpenStore, topic: TopicRecord) -> None:
    """One segment, two contents: the topic goes on behind the one that counts."""
    stores = [open_store(database_url) for _ in range(2)]
    with leased(stores[0], topic) as lease:
        for _ in range(6):
            segment = opened(stores[0], lease, topic)
            held = [content(segment, count) for count in (3, 4)]
            results = at_once(
                [
                    lambda one=one, mine=mine, segment=segment: one.segments.roll(lease, segment.ledger_id, mine)
                    for one, mine in zip(stores, held, strict=True)
                ]
            )
            assert sorted(type(result).__name__ for result in results) == ["AssertionError", "SegmentRecord"]
            (won,) = [result for result in results if isinstance(result, SegmentRecord)]
            assert stores[0].segments.of_topic(topic.id)[-1] == won
            assert isinstance(won.content, SegmentContent)
            assert stores[0].topics.get(topic.name).next_offset == won.content.last_offset + 1


def test_sealers_never_claim_the_same_segment(database_url: URL, open_store: OpenStore, topic: TopicRecord) -> None:
    stores = [open_store(database_url) for _ in range(6)]
    rolled(stores[0], topic, 1, 1, 1, 1)
    results = at_once([lambda one=one: one.sealing.claim(topic.id, "sealer", LOG_UID, TTL) for one in stores])
    taken = [result for result in results if isinstance(result, tuple)]
    assert len({segment.ledger_id for segment, _ in taken}) == len(taken) == 4
    assert results.count(None) == 2
    sealed = at_once(
        [
            lambda one=one, pair=pair: one.sealing.seal(pair[1], ledger_of(*pair))
            for one, pair in zip(stores, taken, strict=False)
        ]
    )
    assert sealed == [None] * 4
    assert [made.first_offset for made in stores[0].ledgers.of_topic(topic.id)] == [0, 1, 2, 3]


def test_of_two_that_seal_one_segment_one_wins(
    database_url: URL, open_store: OpenStore, topic: TopicRecord, clock: ManualClock
) -> None:
    """The first claimant slept past its time and commits at the moment in which the second one claims and commits."""
    stores = [open_store(database_url) for _ in range(2)]
    for _ in range(6):
        rolled(stores[0], topic, 2)
        segment, slow = claimed(stores[0], topic)
        clock.advance(TTL)

        def overtake() -> LedgerRecord | None:
            found = stores[1].sealing.claim(topic.id, "quick", LOG_UID, TTL)
            if found is None:
                return None
            made = ledger_of(*found)
            stores[1].sealing.seal(found[1], made)
            return made

        first, second = at_once(
            [
                lambda segment=segment, slow=slow: stores[0].sealing.seal(slow, ledger_of(segment, slow)),
                overtake,
            ]
        )
        (ledger_made,) = [one for one in stores[0].ledgers.of_topic(topic.id) if one.ledger_id == segment.ledger_id]
        if first is None:
            assert second is None
            assert ledger_made.attempt_id == slow.attempt_id
        else:
            assert isinstance(first, Fenced)
            assert ledger_made == second
        assert stores[0].snapshot(topic.id).segments == ()


def test_two_commits_of_one_sealer(database_url: URL, open_store: OpenStore, topic: TopicRecord) -> None:
    stores = [open_store(database_url) for _ in range(2)]
    for _ in range(4):
        rolled(stores[0], topic, 2)
        segment, attempt = claimed(stores[0], topic)
        results = at_once(
            [
                lambda one=one, segment=segment, attempt=attempt: one.sealing.seal(attempt, ledger_of(segment, attempt))
                for one in stores
            ]
        )
        assert sorted(type(result).__name__ for result in results) == ["Fenced", "NoneType"]


def test_snapshots_never_miss_or_repeat_a_message(database_url: URL, open_store: OpenStore, topic: TopicRecord) -> None:
    """While segments roll, are sealed and forgotten: ledgers and tail are one row of offsets without a gap (L4)."""
    writer, sealer, reader = (open_store(database_url) for _ in range(3))
    over: list[str] = []

    def write() -> None:
        try:
            for _ in range(12):
                rolled(writer, topic, 3)
        finally:
            over.append("write")

    def seal() -> None:
        try:
            written = False
            while not written:
                written = "write" in over
                for made in seal_all(sealer, topic):
                    sealer.sealing.purge(topic.id, made.ledger_id)
        finally:
            over.append("seal")

    def read() -> list[TopicSnapshot]:
        seen = []
        while len(over) < 2:
            seen.append(reader.snapshot(topic.id))
        return seen

    def pin() -> list[TopicSnapshot]:
        seen = []
        while len(over) < 2:
            seen.append(reader.pins.take(topic.id, "reader", TTL)[0])
        return seen

    *errors, read_, pinned = at_once([write, seal, read, pin])
    assert errors == [None, None]
    assert isinstance(read_, list)
    assert isinstance(pinned, list)
    for snapshot in [*read_, *pinned]:
        end = 0
        pieces: list[LedgerRecord | SegmentRecord] = [*snapshot.ledgers, *snapshot.segments]
        for piece in sorted(pieces, key=lambda one: one.first_offset):
            assert piece.first_offset == end
            if isinstance(piece, LedgerRecord):
                end = piece.last_offset + 1
            elif piece.content is not None:
                end = piece.content.last_offset + 1
        assert end == snapshot.topic.next_offset
    after = reader.snapshot(topic.id)
    assert (len(after.ledgers), after.segments, after.topic.next_offset) == (12, (), 36)


def test_an_attempt_of_another_topic_seals_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    other = store.tenancy.ensure_topic(TopicName.parse("other"))
    rolled(store, topic, 1)
    segment, attempt = claimed(store, topic)
    foreign: Attempt = replace(attempt, topic_id=other.id)
    with pytest.raises(Fenced):
        store.sealing.seal(foreign, ledger_of(segment, attempt))
    assert store.ledgers.of_topic(other.id) == ()
