"""Mirrors on every database: states change as a user and a service decide, and reports are kept by partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import NO_ERROR, Conflict, ErrorText, NotFound
from storage.metadata.mirrors import LeaderEpoch, MirrorPartition, MirrorProgress, MirrorRecord, MirrorState
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock

TOPIC = TopicName.parse("users")
ERROR = ErrorText("it stopped", "it stopped at a host")
NEW = MirrorRecord(TOPIC, "kafka://a:9092/users", {"tls": True, "empty_values": "refuse"}, "cluster", "ab" * 16)


def test_a_mirror_is_added_once_and_removed(store: MetadataStore, clock: ManualClock) -> None:
    mirrors = store.mirrors
    added = replace(NEW, created_at=clock.now_ms(), changed_at=clock.now_ms())
    mirrors.add(NEW)
    with pytest.raises(Conflict, match="is a mirror of kafka://a:9092/users already"):
        mirrors.add(replace(NEW, source="kafka://b:9092/users"))
    other = replace(added, topic=TopicName.parse("a"))
    mirrors.add(other)
    assert mirrors.all() == [other, added]
    mirrors.store_progress(TOPIC, {0: MirrorProgress(1, 2, 3)})
    mirrors.remove(TOPIC)
    assert mirrors.all() == [other]
    assert mirrors.partitions(TOPIC) == []
    mirrors.store_progress(TOPIC, {0: MirrorProgress(1, 2, 3)})
    assert mirrors.partitions(TOPIC) == [], "a late report leaves no row"
    for call in (mirrors.get, mirrors.pause, mirrors.remove, lambda topic: mirrors.resume(topic, {}, False)):
        with pytest.raises(NotFound, match="users is no mirror"):
            call(TOPIC)


def test_the_topic_keeps_the_id_of_the_removed_source(store: MetadataStore) -> None:
    mirrors = store.mirrors
    store.tenancy.ensure_namespace(TOPIC)
    store.partitions.create(TOPIC, 1, {})
    mirrors.add(NEW)
    assert mirrors.removed_source_topic_id(TOPIC) is None
    mirrors.remove(TOPIC)
    assert mirrors.removed_source_topic_id(TOPIC) == NEW.source_topic_id
    mirrors.add(replace(NEW, source_topic_id="cd" * 16))
    mirrors.remove(TOPIC)
    assert mirrors.removed_source_topic_id(TOPIC) == "cd" * 16
    mirrors.add(NEW)
    store.partitions.delete(TOPIC, False)
    mirrors.remove(TOPIC)
    assert mirrors.removed_source_topic_id(TOPIC) is None
    store.partitions.create(TOPIC, 1, {})
    assert mirrors.removed_source_topic_id(TOPIC) is None, "a new topic has no messages of the source"


def test_it_stops_pauses_and_goes_on(store: MetadataStore, clock: ManualClock) -> None:
    mirrors = store.mirrors
    mirrors.add(NEW)
    mirrors.store_error(TOPIC, ERROR)
    assert (mirrors.get(TOPIC).state, mirrors.get(TOPIC).error) == (MirrorState.RUNNING, ERROR)
    changed = mirrors.get(TOPIC).changed_at
    clock.advance(5)
    mirrors.store_error(TOPIC, NO_ERROR)
    assert mirrors.get(TOPIC).changed_at == changed, "an error of a try changes no decision"
    mirrors.fail(TOPIC, ERROR, (3, 70))
    failed = mirrors.get(TOPIC)
    assert (failed.state, failed.error, failed.changed_at) == (MirrorState.FAILED, ERROR, changed + 5)
    assert mirrors.counts() == {MirrorState.FAILED: 1}
    mirrors.store_error(TOPIC, NO_ERROR)
    mirrors.fail(TOPIC, ErrorText("another"))
    assert mirrors.get(TOPIC).error == ERROR, "a service that is late changes nothing"
    mirrors.resume(TOPIC, {"empty_values": "delete"}, False)
    running = mirrors.get(TOPIC)
    assert (running.state, running.error) == (MirrorState.RUNNING, NO_ERROR)
    assert running.options == {"tls": True, "empty_values": "delete"}
    assert mirrors.partitions(TOPIC) == [MirrorPartition(3, None, None, None, None)], "no gap is accepted later"
    mirrors.fail(TOPIC, ERROR, (3, 71))
    mirrors.pause(TOPIC)
    assert mirrors.get(TOPIC).state is MirrorState.PAUSED
    mirrors.fail(TOPIC, ERROR, (3, 72))
    mirrors.resume(TOPIC, {}, True)
    assert mirrors.partitions(TOPIC) == [MirrorPartition(3, 71, None, None, None)]
    removed = mirrors.get(TOPIC)
    mirrors.remove(TOPIC)
    mirrors.fail(TOPIC, ERROR, (3, 73))
    mirrors.set_start_offset(TOPIC, 3, 73)
    mirrors.store_epochs(removed, 3, [LeaderEpoch(0, 1)])
    mirrors.add(NEW)
    mirrors.store_epochs(removed, 3, [LeaderEpoch(0, 1)])
    mirrors.store_epochs(replace(mirrors.get(TOPIC), source_topic_id="cd" * 16), 3, [LeaderEpoch(0, 1)])
    assert mirrors.partitions(TOPIC) == [], "a late service leaves no row"
    mirrors.set_start_offset(TOPIC, 3, 74)
    assert mirrors.partitions(TOPIC) == [MirrorPartition(3, 74, None, None, None)]


def test_reports_keep_decisions(store: MetadataStore, clock: ManualClock) -> None:
    mirrors = store.mirrors
    mirrors.add(NEW)
    mirrors.fail(TOPIC, ERROR, (1, 9))
    mirrors.resume(TOPIC, {}, True)
    first, second = MirrorProgress(5, 1 << 40, 7), MirrorProgress(10, 8, 0)
    mirrors.store_progress(TOPIC, {1: first, 0: second})
    now = clock.now_ms()
    assert mirrors.partitions(TOPIC) == [
        MirrorPartition(0, None, None, second, now),
        MirrorPartition(1, 9, None, first, now),
    ]
    epochs = (LeaderEpoch(0, 3), LeaderEpoch(1 << 40, 4))
    mirrors.store_epochs(mirrors.get(TOPIC), 1, epochs)
    mirrors.clear_progress(TOPIC, 1)
    assert mirrors.partitions(TOPIC)[1] == MirrorPartition(1, 9, None, None, now, epochs)
    assert (first.lag, second.lag) == ((1 << 40) - 5, 0)
