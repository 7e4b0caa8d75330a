"""The messages after the horizon, summed by SQL, on every database (S1)."""

from __future__ import annotations

from dataclasses import replace

from storage.metadata.records import CompactionBacklogRecord, SegmentRecord, SegmentState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, claim, publish_all
from tests.conformance.metadata.log_builders import content


def test_backlogs(store: MetadataStore, clock: ManualClock) -> None:
    """The topics: an empty one, one never compacted, and one compacted with later ledgers and a tail.

    What the rolled segment holds says to be from after the roll: it counts as published then.
    """
    empty, never, behind = (store.tenancy.ensure_topic(TopicName.parse(f"t{number}")) for number in range(3))
    created = append(store, never, 3, 4)
    append(store, behind, 5)
    publish_all(store, behind)
    append(store, behind, 7)
    lease = store.leases.acquire(behind.id, "writer", TTL)
    rolled = SegmentRecord(store.ledgers.allocate_ids(1), 12, "ab" * 16, SegmentState.OPEN, created_at=1)
    store.segments.open(lease, rolled)
    holds = content(rolled, 2)
    store.segments.roll(lease, rolled.ledger_id, holds)
    opened = SegmentRecord(store.ledgers.allocate_ids(1), 14, "ab" * 16, SegmentState.OPEN, created_at=2)
    store.segments.open(lease, opened)

    backlogs = store.backlogs.of_topics([empty.id, never.id, behind.id])
    now = {item.topic.name: store.topics.get(item.topic.name) for item in backlogs}
    assert backlogs == [
        CompactionBacklogRecord(now[empty.name]),
        CompactionBacklogRecord(
            now[never.name],
            closed_bytes=700,
            closed_messages=7,
            oldest=created[0].min_publish_time,
            first_extent_newest_time=created[0].max_publish_time,
        ),
        CompactionBacklogRecord(
            now[behind.name],
            horizon=4,
            clean_bytes=200,
            closed_bytes=700 + holds.logical_bytes,
            closed_messages=9,
            oldest=clock.now_ms(),
            first_extent_newest_time=created[0].max_publish_time,
            open_segment=opened,
        ),
    ]
    assert store.backlogs.of_all() == backlogs
    assert store.backlogs.of_topics([never.id, 10**6]) == [backlogs[1]]
    assert store.backlogs.of_topics([]) == []
    assert [[item.id for item in page] for page in store.topics.in_pages(1)] == [[empty.id], [never.id], [behind.id]]


def test_a_ledger_that_straddles_the_horizon_counts_by_its_share(store: MetadataStore, topic: TopicRecord) -> None:
    (first, *_) = append(store, topic, 4, 8)
    run = claim(store, topic)
    from tests.conformance.metadata.builders import compacted, end_of

    inside = replace(end_of(first), offset=5)
    store.publishing.publish(run, 0, compacted(store, run, 1, inside), {})
    (backlog,) = store.backlogs.of_topics([topic.id])
    assert (backlog.horizon, backlog.closed_messages, backlog.closed_bytes) == (5, 6, 600)
