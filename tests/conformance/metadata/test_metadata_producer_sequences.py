"""Sequence ids of producers: what is stored only grows, and messages whose ids are not stored are not removed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from storage.errors import Conflict, TopicNotFound
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import SourcePosition, SourceProgress
from tests.conformance.metadata.builders import append, at_once
from tests.conformance.metadata.conftest import OpenStores
from tests.conformance.metadata.log_builders import rolled, state


def test_they_are_stored_and_deleted(store: MetadataStore, topic: TopicRecord, other: TopicRecord) -> None:
    sequences = store.producer_sequences
    assert sequences.of_topic(topic.id) is None
    sequences.delete_sequence_ids(topic.id)
    sequences.store(topic.id, ProducerSequences(7, {"ä": 1 << 62, "b": -1}))
    sequences.store(other.id, ProducerSequences(3, {}))
    assert sequences.of_topic(topic.id) == ProducerSequences(7, {"ä": 1 << 62, "b": -1})
    sequences.store(topic.id, ProducerSequences(9, {"b": 5}))
    assert sequences.of_topic(topic.id) == ProducerSequences(9, {"b": 5}), "who is not known any more is forgotten"
    sequences.delete_sequence_ids(topic.id)
    assert sequences.of_topic(topic.id) is None
    assert sequences.of_topic(other.id) == ProducerSequences(3, {})
    with pytest.raises(TopicNotFound):
        sequences.store(77, ProducerSequences(1, {}))


def test_what_is_known_of_later_entries_is_kept_in_order(store: MetadataStore, topic: TopicRecord) -> None:
    sequences = store.producer_sequences
    sequences.store(topic.id, ProducerSequences(9, {"a": 4, "c": 8}))
    sequences.store(topic.id, ProducerSequences(5, {"b": 2, "a": 6}))
    stored = sequences.of_topic(topic.id)
    assert stored is not None
    assert (stored.end_offset, list((stored.highest or {}).items())) == (9, [("b", 2), ("a", 6), ("c", 8)])


def test_several_that_store_lose_nothing(store: MetadataStore, open_stores: OpenStores, topic: TopicRecord) -> None:
    sequences = [
        partial(other.producer_sequences.store, topic.id, ProducerSequences(end, {f"p{number}": end}))
        for number, other in enumerate(open_stores(4))
        for end in (3, 9)
    ]
    at_once(*sequences)
    stored = store.producer_sequences.of_topic(topic.id)
    assert stored is not None
    assert stored.end_offset == 9


def test_messages_whose_ids_are_not_stored_are_not_trimmed(store: MetadataStore, topic: TopicRecord) -> None:
    created = append(store, topic, 3, 4)
    first = [created[0].ledger_id]
    store.producer_sequences.store(topic.id, ProducerSequences(2, {"a": 1}))
    before = state(store, topic)
    for start, ledgers in ((3, first), (5, [])):
        with pytest.raises(Conflict, match=f"up to offset {start} cannot be removed: .* stored up to offset 2"):
            store.trimming.trim(topic.id, start, ledgers, force=True)
    assert state(store, topic) == before
    store.trimming.trim(topic.id, 2, [], force=True)
    store.producer_sequences.store(topic.id, ProducerSequences(3, {"a": 2}))
    store.trimming.trim(topic.id, 3, first, force=True)
    assert store.ledgers.of_topic(topic.id) == (created[1],)


def test_messages_whose_ids_are_not_stored_are_not_truncated(
    store: MetadataStore, topic: TopicRecord, other: TopicRecord
) -> None:
    append(store, topic, 3)
    append(store, other, 3)
    rolled(store, topic, 2)
    store.producer_sequences.store(topic.id, ProducerSequences(4, {}))
    before = state(store, other)
    with pytest.raises(Conflict, match="up to offset 5 cannot be removed"):
        store.trimming.truncate([other.id, topic.id])
    assert state(store, other) == before
    store.producer_sequences.store(topic.id, ProducerSequences(5, {}))
    store.trimming.truncate([other.id, topic.id])
    assert store.topics.get(topic.name).start_offset == 5


US, EU = SourceProgress(SourcePosition(1 << 62, 5), 100), SourceProgress(SourcePosition(0, 0), -1)


def test_sources_are_kept_with_the_furthest_progress(store: MetadataStore, topic: TopicRecord) -> None:
    sequences = store.producer_sequences
    sequences.store(topic.id, ProducerSequences(9, {"a": 4}, {"us": US}))
    assert sequences.of_topic(topic.id) == ProducerSequences(9, {"a": 4}, {"us": US})
    older = SourceProgress(SourcePosition(7, 9), 101)
    sequences.store(topic.id, ProducerSequences(5, None, {"us": older, "eu": EU}))
    merged = {"us": SourceProgress(US.position, 101), "eu": EU}
    assert sequences.of_topic(topic.id) == ProducerSequences(9, {"a": 4}, merged)
    for end, highest in ((3, {"b": 1, "a": 4}), (9, {"b": 1})):
        sequences.store(topic.id, ProducerSequences(end, {"b": 1}))
        assert sequences.of_topic(topic.id) == ProducerSequences(9, highest, merged), "no source is lost"


def test_sources_outlive_the_deduplication_of_producers(store: MetadataStore, topic: TopicRecord) -> None:
    sequences = store.producer_sequences
    sequences.store(topic.id, ProducerSequences(9, {"a": 4}, {}))
    sequences.delete_sequence_ids(topic.id)
    assert sequences.of_topic(topic.id) == ProducerSequences(9, None, {}), "a replicator has connected"
    sequences.store(topic.id, ProducerSequences(10, None, {"us": US}))
    sequences.delete_sequence_ids(topic.id)
    assert sequences.of_topic(topic.id) == ProducerSequences(10, None, {"us": US})
    sequences.store(topic.id, ProducerSequences(11, {"a": 0}, {"us": US}))
    assert sequences.of_topic(topic.id) == ProducerSequences(11, {"a": 0}, {"us": US})


def test_a_log_that_was_restored_replaces_what_is_stored(store: MetadataStore, topic: TopicRecord) -> None:
    sequences = store.producer_sequences
    sequences.store(topic.id, ProducerSequences(9, None, {"us": US}))
    sequences.replace(topic.id, ProducerSequences(4, None, {"us": EU}))
    assert sequences.of_topic(topic.id) == ProducerSequences(4, None, {"us": EU})
    with pytest.raises(TopicNotFound):
        sequences.replace(77, ProducerSequences(1, None, {}))


def test_what_is_missing_stays_until_it_ends(store: MetadataStore, topic: TopicRecord) -> None:
    sequences = store.producer_sequences
    missing = {"us": SourcePosition(1 << 62, 5), "eu": SourcePosition(0, 1)}
    sequences.replace(topic.id, ProducerSequences(7, None, {"us": US}, missing))
    sequences.store(topic.id, ProducerSequences(9, {}, {"eu": EU}))
    stored = sequences.of_topic(topic.id)
    assert stored == ProducerSequences(9, {}, {"us": US, "eu": EU}, missing)
    sequences.store(topic.id, stored, ["us", "another"])
    assert sequences.of_topic(topic.id) == replace(stored, missing={"eu": SourcePosition(0, 1)})
    older = ProducerSequences(3, None, {})
    sequences.store(topic.id, older, ["eu"])
    assert sequences.of_topic(topic.id) == replace(stored, missing={}), "by entries before the stored ones, too"
