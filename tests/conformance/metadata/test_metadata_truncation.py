"""Truncating: raw and compacted are gone at once, offsets continue, a run that was under way publishes nothing (C2)."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
from sqlalchemy import URL, Connection

from storage.errors import Fenced, TopicNotFound, Unavailable
from storage.failpoints import Failpoint
from storage.metadata.records import COMPACTION_CURSOR, SegmentState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import append, claim, compacted, end_of, publish_all
from tests.conformance.metadata.conftest import OpenStore
from tests.conformance.metadata.log_builders import (
    LOG_UID,
    broken_link,
    check_all_or_nothing,
    claimed,
    leased,
    ledger_of,
    opened,
    rolled,
    seal_all,
)
from tests.servers.cut_link import Cut


def test_all_goes_and_offsets_go_on(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 3, 4)
    publish_all(store, topic)
    store.cursors.set_properties(topic.id, COMPACTION_CURSOR, {"mine": "stays"})
    store.cursors.create(topic.id, "reader", None, {})
    (waiting,) = rolled(store, topic, 2)
    before = store.topic_snapshot(topic.id)
    clock.advance(5)

    (after,) = store.trimming.truncate([topic.id])
    snapshot = store.topic_snapshot(topic.id)
    assert snapshot.topic == after
    assert (after.start_offset, after.next_offset, after.generation) == (9, 9, before.topic.generation)
    assert after.epoch > before.topic.epoch
    assert (snapshot.extents, snapshot.compacted, snapshot.horizon) == ((), None, None)
    assert snapshot.cursor is not None
    assert (snapshot.cursor.mark_delete, snapshot.cursor.properties) == (None, {"mine": "stays"})
    assert {cursor.name for cursor in store.cursors.of_topic(topic.id)} == {COMPACTION_CURSOR, "reader"}

    trimmed = store.trimming.trimmed_ledgers(topic.id)
    assert [(item.first_offset, item.deleted_at) for item in trimmed] == [(0, clock.now_ms()), (3, clock.now_ms())]
    assert [item.retired_at for item in store.pins.retired_ledgers(topic.id)] == [clock.now_ms()]
    files = store.sealing.removable_segments(LOG_UID, clock.now_ms())
    assert [(owner.id, file.ledger_id, file.sealed_at) for owner, file in files] == [
        (topic.id, waiting.ledger_id, clock.now_ms())
    ]

    (new,) = append(store, topic, 2)
    assert new.first_offset == 9
    publish_all(store, topic)
    assert store.topics.get(topic.name).generation == before.topic.generation + 1


def test_an_open_segment_is_what_is_left(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
    store.trimming.truncate([topic.id])
    snapshot = store.topic_snapshot(topic.id)
    assert (snapshot.extents, snapshot.topic.start_offset) == ((segment,), 3)


def test_a_run_and_a_sealer_under_way_are_fenced(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    run = claim(store, topic)
    result = compacted(store, run, 1, end_of(store.ledgers.of_topic(topic.id)[-1]))
    rolled(store, topic, 2)
    segment, attempt = claimed(store, topic)
    store.trimming.truncate([topic.id])
    with pytest.raises(Fenced):
        store.publishing.publish(run, 0, result, {})
    assert store.runs.heartbeat([run]) == [run.run_id]
    with pytest.raises(Fenced):
        store.sealing.seal(attempt, ledger_of(segment, attempt))
    assert store.sealing.claim(topic.id, "other", LOG_UID, 0) is None
    assert store.ledgers.of_topic(topic.id) == ()


def test_one_that_was_never_compacted_has_no_cursor_then(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    store.trimming.truncate([topic.id])
    assert store.cursors.of_topic(topic.id) == []
    store.trimming.truncate([topic.id])
    assert store.topics.get(topic.name).start_offset == 3
    with pytest.raises(TopicNotFound):
        store.trimming.truncate([topic.id + 1])


def test_a_lost_truncation_is_not_taken_for_done_because_a_run_was_claimed(
    database_url: URL, open_store: OpenStore, store: MetadataStore, topic: TopicRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim raises the epoch as far as the truncation would have, before anybody looks what became of that."""
    append(store, topic, 3)
    with broken_link(database_url, open_store) as broken:
        write, calls = broken.store.database.write, []

        def writing() -> AbstractContextManager[Connection]:
            if len(calls) == 1:
                claim(store, topic)
            calls.append(write)
            return write()

        monkeypatch.setattr(broken.store.database, "write", writing)
        broken.link.cut(Cut.BEFORE)
        with pytest.raises(Unavailable):
            broken.store.trimming.truncate([topic.id])
        assert len(calls) == 2
    assert [ledger.first_offset for ledger in store.ledgers.of_topic(topic.id)] == [0]


def test_a_truncation_whose_answer_was_lost_is_found_out(
    database_url: URL, open_store: OpenStore, store: MetadataStore, topic: TopicRecord
) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    rolled(store, topic, 2)
    with broken_link(database_url, open_store) as broken:
        broken.link.cut(Cut.AFTER)
        assert broken.store.trimming.truncate([topic.id])[0].start_offset == 5
        assert broken.link.cuts == 1
    assert store.topic_snapshot(topic.id).extents == ()


def test_all_or_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    rolled(store, topic, 2)
    check_all_or_nothing(store, topic, lambda: store.trimming.truncate([topic.id]), Failpoint.TRUNCATE_INSIDE_COMMIT)


def test_what_was_sealed_before_stays_as_it_was(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    rolled(store, topic, 2)
    seal_all(store, topic)
    sealed_at = store.segments.of_topic(topic.id)[0].sealed_at
    clock.advance(9)
    store.trimming.truncate([topic.id])
    (segment,) = store.segments.of_topic(topic.id)
    assert (segment.state, segment.sealed_at) == (SegmentState.SEALED, sealed_at)


def test_topics_are_truncated_together_or_not_at_all(store: MetadataStore, topic: TopicRecord) -> None:
    second = store.tenancy.ensure_topic(TopicName.parse("second"))
    for item in (topic, second):
        append(store, item, 3)
    with pytest.raises(TopicNotFound):
        store.trimming.truncate([topic.id, second.id, 99_999])
    assert [len(store.ledgers.of_topic(item.id)) for item in (topic, second)] == [1, 1]
    check_all_or_nothing(
        store, topic, lambda: store.trimming.truncate([second.id, topic.id]), Failpoint.TRUNCATE_INSIDE_COMMIT
    )
    assert [store.ledgers.of_topic(item.id) for item in (topic, second)] == [(), ()]
