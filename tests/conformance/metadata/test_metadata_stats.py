"""The statements of stats: sums, what is after each cursor, the last runs; as many for any topic."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from storage.errors import ErrorText, TopicNotFound
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.stats import TopicStatsRecord
from storage.metadata.store import MetadataStore
from storage.model import LogPosition, MessageId, TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import BIG, append, claim, end_of, publish_all
from tests.cursors import merge


def test_a_topic_without_messages(store: MetadataStore, topic: TopicRecord) -> None:
    stats = store.stats.of_topic(topic.name, with_ledgers=True)
    assert (stats.topic, stats.segments, stats.cursors, stats.ledgers) == (topic, (), (), ())
    assert (stats.sums.entries, stats.sums.logical_bytes, stats.sums.first_offset) == (0, 0, None)
    assert (stats.compacted, stats.succeeded, stats.failed) == (None, None, None)


def test_a_topic_that_does_not_exist(store: MetadataStore) -> None:
    with pytest.raises(TopicNotFound):
        store.stats.of_topic(TopicName.parse("nosuch"))


def test_sums_and_lines_are_those_of_the_topic_alone(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord
) -> None:
    append(store, other, 1000)
    created = append(store, topic, 5, 7)
    stats = store.stats.of_topic(topic.name, with_ledgers=True)
    assert (stats.sums.entries, stats.sums.logical_bytes, stats.sums.first_offset) == (12, 1200, 0)
    assert stats.sums.max_publish_time == BIG + 1
    assert [(line.ledger_id, line.entries, line.last_message_id) for line in stats.ledgers] == [
        (item.ledger_id, item.entries, item.last_message_id) for item in created
    ]
    assert store.stats.of_topic(topic.name).ledgers == ()


def test_what_lies_behind_each_cursor(store: MetadataStore, topic: TopicRecord) -> None:
    first, second = append(store, topic, 5, 7)
    for name, mark in (("at-start", None), ("in-between", end_of(first)), ("at-end", end_of(second))):
        store.cursors.create(topic.id, name, mark, {"who": name})
    cursors = {cursor.record.name: cursor for cursor in store.stats.of_topic(topic.name).cursors}
    assert {name: (cursor.record.mark_delete_offset, cursor.sealed_bytes) for name, cursor in cursors.items()} == {
        "at-start": (-1, 1200),
        "in-between": (4, 700),
        "at-end": (11, 0),
    }
    assert [cursors[name].oldest_publish_time for name in ("at-start", "in-between", "at-end")] == [BIG, BIG, 0]
    assert cursors["at-start"].record.properties == {"who": "at-start"}


@pytest.mark.parametrize(("mark", "size"), [(0, 1100), (3, 800), (5, 600), (10, 100)])
def test_a_ledger_that_straddles_a_cursor_counts_by_its_share(
    store: MetadataStore, topic: TopicRecord, mark: int, size: int
) -> None:
    first, second = append(store, topic, 5, 7)
    ledger = first if mark < 5 else second
    at = LogPosition(mark, MessageId(ledger.ledger_id, mark - ledger.first_offset))
    store.cursors.create(topic.id, "s", at, {})
    (cursor,) = store.stats.of_topic(topic.name).cursors
    assert cursor.sealed_bytes == size


def test_single_acknowledgements_are_counted(store: MetadataStore, topic: TopicRecord) -> None:
    from pyroaring import BitMap

    append(store, topic, 10)
    store.cursors.create(topic.id, "s", None, {})
    life = store.cursors.load(topic.id, "s", 1 << 20).incarnation
    merge(store, topic.id, "s", life, None, {0: BitMap([2, 3, 7])})
    (cursor,) = store.stats.of_topic(topic.name).cursors
    assert (cursor.acknowledged, cursor.ranges) == (3, 2)


def test_the_last_success_and_the_last_failure(store: MetadataStore, topic: TopicRecord, clock: ManualClock) -> None:
    append(store, topic, 5)
    published = publish_all(store, topic)
    clock.advance(1000)
    failed = store.runs.fail(claim(store, topic), ErrorText("the workers are away"))
    clock.advance(1000)
    cancelled = store.runs.cancel(claim(store, topic).run_id, "not now")
    stats = store.stats.of_topic(topic.name)
    assert (stats.succeeded, stats.failed) == (published, cancelled)
    assert failed.run_id < cancelled.run_id
    assert stats.compacted is not None
    assert stats.compacted.ledger_id == published.compacted_ledger_id
    assert [cursor.record.name for cursor in stats.cursors] == [COMPACTION_CURSOR]
    running = claim(store, topic)
    assert running.run_id > cancelled.run_id
    assert store.stats.of_topic(topic.name).failed == cancelled


def test_failures_do_not_hide_the_last_success(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 5)
    published = publish_all(store, topic)
    for _ in range(3):
        store.runs.fail(claim(store, topic), ErrorText("again"))
    assert store.stats.of_topic(topic.name).succeeded == published


def _statements(store: MetadataStore, topic: TopicRecord) -> tuple[list[str], TopicStatsRecord]:
    seen: list[str] = []

    def before(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", before)
    try:
        stats = store.stats.of_topic(topic.name, with_ledgers=True)
    finally:
        event.remove(store.database.engine, "before_cursor_execute", before)
    return [item for item in seen if item.startswith("SELECT")], stats


def test_statements_do_not_grow_with_the_topic_and_read_no_index(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 5)
    publish_all(store, topic)
    few, _ = _statements(store, topic)
    for _ in range(3):
        append(store, topic, 1, 2, 3)
        publish_all(store, topic)
    for number in range(5):
        store.cursors.ensure(topic.id, f"s{number}")
    many, stats = _statements(store, topic)
    assert stats.sums.entries == 23
    assert len(many) == len(few) <= 8
    assert not any("index_directory" in item for item in many)
