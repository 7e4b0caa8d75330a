"""Counts of a topic: the list, the stats and the compaction backlog have one definition of logical bytes."""

from __future__ import annotations

import pytest

from api.broker.serving.connected_clients import LiveTopicState
from api.broker.stats import stats_snapshot, topic_stats
from compactor.maintenance.backlog_limits import BacklogLimits
from compactor.scheduling.backlog import BacklogReader
from compactor.scheduling.due import cause_of
from storage.log.open_segments import add_open_segments
from storage.log.segment import LocalSegment
from storage.log.segment_reader import SegmentReader
from storage.metadata.policy_store import topic_scope
from storage.topic import Topic
from tests.entries import produce, single
from tests.segments import write_version_2
from tests.workbench import Workbench, all_ids

TOMBSTONES = [single(b"key %d" % number, None) for number in range(10)]
BYTES = 10 * len(b"key 0")


def counts(bench: Workbench, topic: Topic) -> tuple[int, int, int]:
    """Return the logical bytes of a topic by the list, by its stats and by its backlog."""
    (listed,) = add_open_segments(bench.metadata, bench.log, bench.metadata.topics.summaries())
    snapshot = stats_snapshot(bench, topic.name)
    assert snapshot is not None
    (backlog,) = BacklogReader(bench.metadata, bench.log).read([topic.record.id])
    return listed.all_bytes, snapshot.size, backlog.bytes


def test_tombstones_count_alike_whether_they_are_open_or_rolled_or_sealed(bench: Workbench) -> None:
    topic = bench.topic()
    bench.metadata.policies.change([topic_scope(topic.record)], {"compaction.threshold.bytes": BYTES - 1})
    with topic.append_log(0) as log:
        for entry in TOMBSTONES:
            log.append(entry)
        assert counts(bench, topic) == (BYTES, BYTES, BYTES)
        (backlog,) = BacklogReader(bench.metadata, bench.log).read_with_trigger(all_ids(bench))
        assert cause_of(backlog, bench.clock.now_ms()) == "threshold.bytes"
        log.roll()
    assert counts(bench, topic) == (BYTES, BYTES, BYTES)
    topic.log_manager().roll_and_seal(topic.record)
    assert not topic.snapshot().segments
    assert counts(bench, topic) == (BYTES, BYTES, BYTES)


def test_of_a_segment_whose_logical_bytes_are_not_known_the_stored_bytes_are_shown(bench: Workbench) -> None:
    """Its writer was of an older version, until it is opened again."""
    topic = bench.topic()
    with topic.append_log(0) as log:
        for entry in TOMBSTONES:
            log.append(entry)
    (row,) = bench.metadata.segments.of_topic(topic.record.id)
    segment = LocalSegment.from_row(bench.log, topic.record, row)
    write_version_2(segment.files.high_watermark, segment.header.checksum, SegmentReader(segment).high_watermark())
    stored = sum(map(len, TOMBSTONES))
    assert counts(bench, topic) == (stored, stored, BYTES)
    with topic.append_log(0):
        assert counts(bench, topic) == (BYTES, BYTES, BYTES)


@pytest.mark.parametrize("sealed", [0, 4, 10])
@pytest.mark.parametrize(("acknowledged", "size"), [(0, 10_000), (9, 1000), (10, 0)])
def test_the_backlog_of_a_subscription_is_that_of_its_quota(
    bench: Workbench, sealed: int, acknowledged: int, size: int
) -> None:
    """The first `sealed` of 10 messages are in a ledger, the others in the open segment."""
    topic = bench.topic()
    bench.set_policies(topic, **{"backlog.quota.bytes": 0})
    message = single(b"key", b"v" * 997)
    if sealed:
        produce(topic, [message] * sealed)
        topic.log_manager().roll_and_seal(topic.record)
    if sealed < 10:
        produce(topic, [message] * (10 - sealed))
    mark = topic.first_raw_at_or_after(acknowledged - 1) if acknowledged else None
    bench.metadata.cursors.create(topic.record.id, "s", mark, {})
    snapshot = stats_snapshot(bench, topic.name)
    assert snapshot is not None
    stats = topic_stats(snapshot, LiveTopicState())
    over = BacklogLimits(bench).exceeded_quotas(topic.record, bench.metadata.policies.effective(topic.record))
    assert (stats.backlog_size, stats.subscriptions["s"].backlog_size) == (size, size)
    assert sum(quota.backlog for quota in over) == size
