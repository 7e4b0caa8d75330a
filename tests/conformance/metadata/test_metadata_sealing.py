"""Sealing: a rolled segment is sealed once, by its last claimant; a message is in a segment or in a ledger (L4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import delete, text

from storage.errors import Fenced
from storage.metadata import sealing
from storage.metadata.records import MAX_SEALING_TRIES, Attempt, AttemptKind, TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import attempts as attempts_table
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, ledger
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


def test_a_segment_below_imported_ledgers_is_sealed_in_its_place(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 3)
    (imported,) = append(store, topic, 2)
    (late,) = seal_all(store, topic)
    assert store.ledgers.of_topic(topic.id) == (late, imported)
    assert store.topics.get(topic.name).next_offset == 5


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
        pair = store.sealing.claim(topic.id, "sealer", LOG_UID, TTL, below, but)
        if pair is not None:
            store.attempts.finish(pair[1].attempt_id)
        return pair and pair[0].ledger_id

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
    assert tries() == 2, "it counts as dead"
    for _ in range(2):
        store.sealing.release(living)
        assert tries() == 1
    for number in range(1, MAX_SEALING_TRIES):
        _, attempt = claimed(store, topic)
        store.attempts.finish(attempt.attempt_id)
        assert tries() == number + 1
    assert store.sealing.claim(topic.id, "next", LOG_UID, TTL) is None
    assert store.sealing.claim(topic.id, "by hand", LOG_UID, TTL, retry_abandoned=True) is not None


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
        # How the outcome of a lost answer is determined: the success of another attempt does not count.
        assert sealing.has_sealed(connection, None, living, ledger_of(again, living))
        assert not sealing.has_sealed(connection, None, dead, ledger_of(segment, dead))


@pytest.mark.parametrize("ended", ["finished", "expired", "purged"])
def test_a_claim_whose_attempt_has_ended_is_free(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock, ended: str
) -> None:
    rolled(store, topic, 1)
    segment, attempt = claimed(store, topic)
    if ended == "finished":
        store.attempts.finish(attempt.attempt_id)
    elif ended == "expired":
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


def test_only_the_claimant_seals(store: MetadataStore, topic: TopicRecord) -> None:
    rolled(store, topic, 2, 2)
    first, attempt = claimed(store, topic)
    second, other = claimed(store, topic, "other")
    before = state(store, topic)
    with pytest.raises(Fenced, match=f"{attempt.attempt_id} has not claimed .*: attempt {other.attempt_id} has"):
        store.sealing.seal(attempt, ledger_of(second, attempt))
    assert state(store, topic) == before
    store.sealing.seal(attempt, ledger_of(first, attempt))
    with pytest.raises(Fenced, match="is finished"):
        store.sealing.seal(attempt, ledger_of(first, attempt))


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_sealed_is_not_sealed_again(store: MetadataStore, topic: TopicRecord, forgotten: bool) -> None:
    rolled(store, topic, 2)
    (created,) = seal_all(store, topic)
    if forgotten:
        store.sealing.purge_segment(topic.id, created.ledger_id)
    late = store.attempts.begin(topic.id, AttemptKind.SEAL, "late")
    before = state(store, topic)
    with pytest.raises(Fenced, match=f"ledger {created.ledger_id} .* is sealed already"):
        store.sealing.seal(late, replace(created, attempt_id=late.attempt_id))
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
    assert store.sealing.removable_segments(LOG_UID, clock.now_ms()) == []
    for log_uid in (LOG_UID, LOG_UID, "cd" * 16):
        clock.advance(10)
        segment, attempt = claimed(store, topic, log_uid=log_uid)
        assert segment.log_uid == log_uid
        store.sealing.seal(attempt, ledger_of(segment, attempt))
    assert store.sealing.claim(topic.id, "sealer", LOG_UID, TTL) is None

    def ids(log_uid: str, until: int) -> list[int]:
        return [segment.ledger_id for _, segment in store.sealing.removable_segments(log_uid, until)]

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
            store.sealing.purge_segment(topic.id, segment.ledger_id)
    assert state(store, topic) == before


def test_an_attempt_of_another_topic_seals_nothing(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord
) -> None:
    rolled(store, topic, 1)
    segment, attempt = claimed(store, topic)
    foreign: Attempt = replace(attempt, topic_id=other.id)
    with pytest.raises(Fenced):
        store.sealing.seal(foreign, ledger_of(segment, attempt))
    assert store.ledgers.of_topic(other.id) == ()
