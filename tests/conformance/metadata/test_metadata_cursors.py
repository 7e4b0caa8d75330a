"""Cursors, and the guard around `__compaction` (A2, A4, S8)."""

from __future__ import annotations

import pytest

from storage.errors import InvalidInput, NotFound
from storage.metadata.cursors import MAX_PROPERTIES_BYTES
from storage.metadata.records import READ_COMPACTED_PROPERTY, CursorRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LATEST, LogPosition, MessageId
from tests.conformance.metadata.builders import append, claim, compacted, end_of, publish_all


def test_cursors_from_making_to_deletion(store: MetadataStore, topic: TopicRecord) -> None:
    created = store.cursors.ensure(topic.id, "reader")
    assert created == CursorRecord("reader", None, {})
    position = LogPosition(2**62, MessageId(2**61, 5, 4, 3))
    moved = store.cursors.reset(topic.id, "reader", position)
    assert moved.mark_delete == position
    read = store.cursors.get(topic.id, "reader")
    assert read == moved
    assert read.mark_delete is not None
    assert read.mark_delete.message_id.partition == 4
    assert store.cursors.ensure(topic.id, "reader") == moved
    assert store.cursors.reset(topic.id, "reader", LogPosition(0, MessageId(0, 0))).mark_delete == LogPosition(
        0, MessageId(0, 0)
    )
    store.cursors.ensure(topic.id, "a")
    store.cursors.ensure(topic.id, "B")
    assert [cursor.name for cursor in store.cursors.of_topic(topic.id)] == ["B", "a", "reader"]
    store.cursors.delete(topic.id, "reader")
    with pytest.raises(NotFound, match="orders has no cursor 'reader'"):
        store.cursors.get(topic.id, "reader")
    for call in (
        lambda: store.cursors.delete(topic.id, "reader"),
        lambda: store.cursors.reset(topic.id, "reader", position),
        lambda: store.cursors.set_properties(topic.id, "reader", {}),
    ):
        with pytest.raises(NotFound, match="'reader'"):
            call()


def test_properties_are_merged(store: MetadataStore, topic: TopicRecord) -> None:
    store.cursors.ensure(topic.id, "reader")
    store.cursors.set_properties(topic.id, "reader", {"a": "1", "b": "2"})
    assert store.cursors.set_properties(topic.id, "reader", {"b": "3", "ç\ud800\x00": "4"}).properties == {
        "a": "1",
        "b": "3",
        "ç\ud800\x00": "4",
    }
    assert store.cursors.get(topic.id, "reader").properties["ç\ud800\x00"] == "4"
    # On another cursor the name means nothing.
    store.cursors.set_properties(topic.id, "reader", {"CompactedTopicLedger": "5"})


def test_properties_have_a_size(store: MetadataStore, topic: TopicRecord) -> None:
    """Statistics of a topic have the properties of all of its cursors."""
    large = {"k": "v" * MAX_PROPERTIES_BYTES}
    store.cursors.create(topic.id, "reader", None, {"k": large["k"][1:]})
    for attempt in (
        lambda: store.cursors.create(topic.id, "other", None, large),
        lambda: store.cursors.replace_properties(topic.id, "reader", large),
        lambda: store.cursors.set_properties(topic.id, "reader", {"more": "v"}),
    ):
        with pytest.raises(InvalidInput, match="at most 4096 are allowed"):
            attempt()
    store.cursors.set_properties(topic.id, "reader", {READ_COMPACTED_PROPERTY: "true"})


def test_the_horizon_cannot_be_reset(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    before = store.topic_snapshot(topic.id)
    for position in (LogPosition(0, MessageId(0, 0)), LogPosition(2**62, LATEST)):
        with pytest.raises(InvalidInput, match="__compaction of persistent://public/default/orders") as caught:
            store.cursors.reset(topic.id, "__compaction", position)
        assert "compact the topic" in caught.value.remedy
    assert store.topic_snapshot(topic.id) == before


def test_the_pointer_cannot_be_set(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    store.cursors.ensure(topic.id, "__compaction")
    with pytest.raises(InvalidInput, match="CompactedTopicLedger"):
        store.cursors.set_properties(topic.id, "__compaction", {"CompactedTopicLedger": "1"})
    run = publish_all(store, topic)
    before = store.cursors.get(topic.id, "__compaction")
    with pytest.raises(InvalidInput, match="CompactedTopicLedger"):
        store.cursors.set_properties(topic.id, "__compaction", {"owner": "me", "CompactedTopicLedger": ""})
    assert store.cursors.get(topic.id, "__compaction") == before
    same = {"owner": "me", "CompactedTopicLedger": str(run.compacted_ledger_id)}
    assert store.cursors.set_properties(topic.id, "__compaction", same).properties == same


def test_made_by_hand_it_has_no_horizon(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3)
    store.cursors.ensure(topic.id, "__compaction")
    snapshot = store.topic_snapshot(topic.id)
    assert snapshot.cursor == CursorRecord("__compaction", None, {})
    assert (snapshot.compacted, snapshot.horizon) == (None, None)
    store.cursors.set_properties(topic.id, "__compaction", {"owner": "me"})
    publish_all(store, topic)
    after = store.topic_snapshot(topic.id)
    assert after.horizon == end_of(created[0])
    assert after.cursor is not None
    assert after.cursor.properties["owner"] == "me"


def test_deleting_it_ends_the_compacted_ledger(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    publish_all(store, topic)
    before = store.topic_snapshot(topic.id)
    store.cursors.delete(topic.id, "__compaction")
    after = store.topic_snapshot(topic.id)
    assert (after.cursor, after.compacted, after.horizon) == (None, None, None)
    assert after.topic.epoch == before.topic.epoch + 1
    assert after.topic.generation == before.topic.generation
    assert after.ledgers == tuple(created)
    # A new life: the horizon may begin anywhere, the generation continues.
    run = claim(store, topic)
    new = compacted(store, run, 2, end_of(created[0]))
    store.publishing.publish(run, 1, new, {})
    assert store.topic_snapshot(topic.id).compacted == new


def test_deleting_another_cursor_leaves_compaction_alone(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    store.cursors.ensure(topic.id, "reader")
    before = store.topic_snapshot(topic.id)
    store.cursors.delete(topic.id, "reader")
    assert store.topic_snapshot(topic.id) == before


def test_the_slowest_compacted_reader(store: MetadataStore, topic: TopicRecord, other: TopicRecord) -> None:
    """T1: tombstones may wait for cursors of compacted readers, and for no others."""
    assert store.cursors.slowest_compacted_reader_offset(topic.id) is None
    created = append(store, topic, 3, 4, 5)
    publish_all(store, topic)
    store.cursors.ensure(topic.id, "raw")
    store.cursors.ensure(topic.id, "not any more")
    store.cursors.set_properties(topic.id, "not any more", {"readCompacted": "false"})
    store.cursors.set_properties(topic.id, "__compaction", {"readCompacted": "true"})
    assert store.cursors.slowest_compacted_reader_offset(topic.id) is None
    for name, record in (("slow", created[0]), ("quick", created[2])):
        store.cursors.ensure(topic.id, name)
        store.cursors.set_properties(topic.id, name, {"readCompacted": "true"})
        store.cursors.reset(topic.id, name, end_of(record))
    assert store.cursors.slowest_compacted_reader_offset(topic.id) == 2
    store.cursors.reset(topic.id, "slow", end_of(created[1]))
    assert store.cursors.slowest_compacted_reader_offset(topic.id) == 6
    store.cursors.ensure(topic.id, "new")
    store.cursors.set_properties(topic.id, "new", {"readCompacted": "true"})
    assert store.cursors.slowest_compacted_reader_offset(topic.id) == -1
    assert store.cursors.slowest_compacted_reader_offset(other.id) is None
    store.cursors.delete(topic.id, "new")
    store.cursors.delete(topic.id, "slow")
    assert store.cursors.slowest_compacted_reader_offset(topic.id) == 11
