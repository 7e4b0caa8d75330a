"""Sequence ids of producers outlive the messages that have them, also what can be read no more."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.maintenance import sequence_ids, truncation
from compactor.maintenance.retention import Retention
from compactor.maintenance.sequence_ids import store_sequence_ids
from compactor.maintenance.truncation import truncate
from storage.entries.encode import encode_message
from storage.entries.source_position import with_position
from storage.errors import Conflict, SegmentNotLocal
from storage.log.directory import LogDirectory
from storage.metadata.producer_sequences import ProducerSequences
from storage.model import SourcePosition, SourceProgress
from storage.topic import Topic
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench


def produce(topic: Topic, *names: str, first: int = 0) -> None:
    with topic.append_log() as log:
        for number, name in enumerate(names, first):
            log.append(encode_message(b"k", b"v", producer=name, sequence_id=number, publish_time=1))


def sealed(topic: Topic, *names: str, first: int = 0) -> None:
    produce(topic, *names, first=first)
    topic.log_manager().roll_and_seal(topic.record)


def stored(bench: Workbench, topic: Topic) -> ProducerSequences | None:
    return bench.metadata.producer_sequences.of_topic(topic.record.id)


def deduplicating(bench: Workbench, topic: Topic, end: int = 0, **highest: int) -> None:
    bench.metadata.producer_sequences.store(topic.record.id, ProducerSequences(end, highest))


def test_a_topic_that_does_not_deduplicate_has_none(bench: Workbench, topic: Topic) -> None:
    sealed(topic, "a")
    Retention(bench).trim(topic.record, 1, force=True)
    truncate(bench, [topic.record])
    assert stored(bench, topic) is None


def test_a_dry_run_stores_nothing(bench: Workbench, topic: Topic) -> None:
    deduplicating(bench, topic)
    sealed(topic, "a")
    Retention(bench).trim(topic.record, 1, dry_run=True, force=True)
    assert stored(bench, topic) == ProducerSequences(0, {})


def test_those_that_stored_last_are_kept_where_there_are_too_many(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_ids, "MAX_PRODUCERS", 2)
    deduplicating(bench, topic, x=9, y=9, z=9)
    sealed(topic, "a", "b", "a")
    store_sequence_ids(bench, topic.record, 3)
    known = stored(bench, topic)
    assert known is not None
    assert known.highest is not None
    assert list(known.highest.items()) == [("z", 9), ("b", 1), ("a", 2)], "as many as were stored"


def test_a_damaged_ledger_stops_no_trim(bench: Workbench, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    deduplicating(bench, topic)
    for number, name in enumerate("abc"):
        sealed(topic, name, first=number)
    bench.store.delete(topic.snapshot().ledgers[1].rows.name)
    with caplog.at_level(logging.WARNING):
        assert len(Retention(bench).trim(topic.record, 3, force=True).plan.candidates) == 3
    assert "at offsets 1 to 1 are lost" in caplog.text
    assert stored(bench, topic) == ProducerSequences(3, {"a": 0, "c": 2})


def test_a_segment_of_another_machine_is_not_truncated_unread(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    deduplicating(bench, topic)
    produce(topic, "a")
    topic.log_manager().roll(topic.record)
    elsewhere = replace(bench, log=LogDirectory(tmp_path / "elsewhere"))
    with pytest.raises(SegmentNotLocal, match=r"the sequence ids of producers of .* are not stored"):
        truncate(elsewhere, [topic.record])
    assert len(list(topic.messages())) == 1
    bench.metadata.producer_sequences.delete_sequence_ids(topic.record.id)
    truncate(elsewhere, [topic.record])
    assert not list(topic.messages())


def test_a_truncation_begins_again_when_a_segment_is_rolled_meanwhile(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    deduplicating(bench, topic)
    produce(topic, "a")
    late = ["b", "c"]

    def store_and_roll(*arguments: object) -> None:
        store_sequence_ids(*arguments)  # type: ignore[arg-type]
        if late:
            produce(topic, late.pop(0), first=5)
            topic.log_manager().roll(topic.record)

    monkeypatch.setattr(truncation, "store_sequence_ids", store_and_roll)
    truncate(bench, [topic.record])
    assert stored(bench, topic) == ProducerSequences(3, {"a": 0, "b": 5, "c": 5})
    late.extend("defghij")
    with pytest.raises(Conflict, match="cannot be removed"):
        truncate(bench, [topic.record])


def test_positions_outlive_their_messages(bench: Workbench, topic: Topic) -> None:
    """Also while producers are not deduplicated."""
    known = {"us": SourceProgress(SourcePosition(2, 9), 50), "eu": SourceProgress(SourcePosition(1, 0), 7)}
    bench.metadata.producer_sequences.store(topic.record.id, ProducerSequences(0, None, known))
    described = metadata(replicated_from="us", publish_time=40)
    with topic.append_log() as log:
        log.append(with_position(entry(described, b"v"), SourcePosition(3, 0)))
    truncate(bench, [topic.record])
    progress = SourceProgress(SourcePosition(3, 0), 50)
    assert stored(bench, topic) == ProducerSequences(1, None, {"us": progress, "eu": known["eu"]})
