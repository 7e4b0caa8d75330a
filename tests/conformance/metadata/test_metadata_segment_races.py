"""Segments and seals that race, fail in the middle, or whose COMMIT loses its answer: one wins, whole (L4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Semaphore

import pytest
from sqlalchemy import URL

from storage.errors import Fenced, Unavailable
from storage.failpoints import Failpoint
from storage.metadata.records import SegmentContent, SegmentRecord, TopicRecord, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once
from tests.conformance.metadata.conftest import OpenStore, OpenStores
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
SNAPSHOTS_PER_STEP = 5


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
        check_all_or_nothing(store, topic, lambda: store.segments.drop_empty(lease, empty.ledger_id))
    check_all_or_nothing(store, topic, lambda: store.sealing.claim(topic.id, "sealer", LOG_UID, TTL))
    store.runs.expire_attempts(topic.id, 0)
    waiting, attempt = claimed(store, topic)
    check_all_or_nothing(
        store, topic, lambda: store.sealing.seal(attempt, ledger_of(waiting, attempt)), Failpoint.SEAL_INSIDE_COMMIT
    )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("what", ["open", "roll", "seal", "trim", "begin later"])
def test_a_lost_answer_is_found_out(
    database_url: URL, open_store: OpenStore, store: MetadataStore, topic: TopicRecord, what: str, cut: Cut
) -> None:
    (waiting, *_), (raw,) = rolled(store, topic, 2), append(store, topic, 3)
    lease = store.leases.acquire(topic.id, "writer", TTL)
    segment = new_segment(store, topic)
    if what == "roll":
        store.segments.open(lease, segment)
    if what == "seal":
        waiting, attempt = claimed(store, topic)
    with broken_link(database_url, open_store) as broken:
        remote = broken.store
        calls: dict[str, Callable[[], object]] = {
            "open": lambda: remote.segments.open(lease, segment),
            "roll": lambda: remote.segments.roll(lease, segment.ledger_id, content(segment, 4)),
            "seal": lambda: remote.sealing.seal(attempt, ledger_of(waiting, attempt)),
            "trim": lambda: remote.trimming.trim(topic.id, 5, [raw.ledger_id], force=False),
            "begin later": lambda: remote.trimming.trim(topic.id, 5, [], force=False),
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


@pytest.mark.parametrize("threads", [2, 6])
def test_of_two_that_open_one_wins(open_stores: OpenStores, topic: TopicRecord, threads: int) -> None:
    stores = open_stores(threads)
    with leased(stores[0], topic) as lease:
        for _ in range(4):
            new = [new_segment(store, topic) for store in stores]
            results = at_once(
                *(partial(store.segments.open, lease, segment) for store, segment in zip(stores, new, strict=True))
            )
            won = [segment for segment, result in zip(new, results, strict=True) if result is None]
            assert len(won) == 1
            assert sorted({type(result) for result in results if result is not None}, key=str) == [AssertionError]
            assert stores[0].segments.find_open(topic.id) == won[0]
            stores[0].segments.roll(lease, won[0].ledger_id, content(won[0], 2))


def test_of_two_that_roll_one_wins(open_stores: OpenStores, topic: TopicRecord) -> None:
    """One segment, two contents: the topic continues behind the one that counts."""
    stores = open_stores(2)
    with leased(stores[0], topic) as lease:
        for _ in range(6):
            segment = opened(stores[0], lease, topic)
            held = [content(segment, count) for count in (3, 4)]
            results = at_once(
                *(
                    partial(store.segments.roll, lease, segment.ledger_id, candidate)
                    for store, candidate in zip(stores, held, strict=True)
                )
            )
            assert sorted(type(result).__name__ for result in results) == ["AssertionError", "SegmentRecord"]
            (won,) = [result for result in results if isinstance(result, SegmentRecord)]
            assert stores[0].segments.of_topic(topic.id)[-1] == won
            assert isinstance(won.content, SegmentContent)
            assert stores[0].topics.get(topic.name).next_offset == won.content.last_offset + 1


def test_sealers_never_claim_the_same_segment(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(6)
    rolled(stores[0], topic, 1, 1, 1, 1)
    results = at_once(*(partial(store.sealing.claim, topic.id, "sealer", LOG_UID, TTL) for store in stores))
    taken = [result for result in results if isinstance(result, tuple)]
    assert len({segment.ledger_id for segment, _ in taken}) == len(taken) == 4
    assert results.count(None) == 2
    sealed = at_once(
        *(partial(store.sealing.seal, pair[1], ledger_of(*pair)) for store, pair in zip(stores, taken, strict=False))
    )
    assert sealed == [None] * 4
    assert [created.first_offset for created in stores[0].ledgers.of_topic(topic.id)] == [0, 1, 2, 3]


def test_of_two_that_seal_one_segment_one_wins(open_stores: OpenStores, topic: TopicRecord, clock: ManualClock) -> None:
    """The first claimant slept past its time and commits at the moment in which the second one claims and commits."""
    stores = open_stores(2)
    for _ in range(6):
        rolled(stores[0], topic, 2)
        segment, slow = claimed(stores[0], topic)
        clock.advance(TTL)

        def overtake() -> LedgerRecord | None:
            pair = stores[1].sealing.claim(topic.id, "quick", LOG_UID, TTL)
            if pair is None:
                return None
            created = ledger_of(*pair)
            stores[1].sealing.seal(pair[1], created)
            return created

        first, second = at_once(partial(stores[0].sealing.seal, slow, ledger_of(segment, slow)), overtake)
        (ledger_made,) = [item for item in stores[0].ledgers.of_topic(topic.id) if item.ledger_id == segment.ledger_id]
        if first is None:
            assert second is None
            assert ledger_made.attempt_id == slow.attempt_id
        else:
            assert isinstance(first, Fenced)
            assert ledger_made == second
        assert stores[0].topic_snapshot(topic.id).segments == ()


def test_two_commits_of_one_sealer(open_stores: OpenStores, topic: TopicRecord) -> None:
    stores = open_stores(2)
    for _ in range(4):
        rolled(stores[0], topic, 2)
        segment, attempt = claimed(stores[0], topic)
        results = at_once(*(partial(store.sealing.seal, attempt, ledger_of(segment, attempt)) for store in stores))
        assert sorted(type(result).__name__ for result in results) == ["Fenced", "NoneType"]


def test_snapshots_never_miss_or_repeat_a_message(open_stores: OpenStores, topic: TopicRecord) -> None:
    """While segments roll, are sealed and purged: ledgers and tail are one row of offsets without a gap (L4).

    Each step of writer and sealer lets both readers take a few snapshots: readers without a bound starve the writer.
    """
    writer, sealer, reader = open_stores(3)
    over: list[str] = []
    rolls, reads, pins = Semaphore(0), Semaphore(0), Semaphore(0)

    def step() -> None:
        reads.release(SNAPSHOTS_PER_STEP)
        pins.release(SNAPSHOTS_PER_STEP)

    def write() -> None:
        try:
            for _ in range(12):
                step()
                rolled(writer, topic, 3)
                rolls.release()
        finally:
            over.append("write")
            rolls.release()

    def seal() -> None:
        try:
            written = False
            while not written:
                rolls.acquire()
                written = "write" in over
                for created in seal_all(sealer, topic):
                    step()
                    sealer.sealing.purge_segment(topic.id, created.ledger_id)
        finally:
            over.append("seal")
            step()

    def read() -> list[TopicSnapshot]:
        seen = []
        while len(over) < 2:
            reads.acquire()
            seen.append(reader.topic_snapshot(topic.id))
        return seen

    def pin() -> list[TopicSnapshot]:
        seen = []
        while len(over) < 2:
            pins.acquire()
            seen.append(reader.pins.take(topic.id, "reader", TTL)[0])
        return seen

    *errors, read_, pinned = at_once(write, seal, read, pin)
    assert errors == [None, None]
    assert isinstance(read_, list)
    assert isinstance(pinned, list)
    for snapshot in [*read_, *pinned]:
        end = 0
        pieces: list[LedgerRecord | SegmentRecord] = [*snapshot.ledgers, *snapshot.segments]
        for piece in sorted(pieces, key=lambda item: item.first_offset):
            assert piece.first_offset == end
            if isinstance(piece, LedgerRecord):
                end = piece.last_offset + 1
            elif piece.content is not None:
                end = piece.content.last_offset + 1
        assert end == snapshot.topic.next_offset
    after = reader.topic_snapshot(topic.id)
    assert (len(after.ledgers), after.segments, after.topic.next_offset) == (12, (), 36)
