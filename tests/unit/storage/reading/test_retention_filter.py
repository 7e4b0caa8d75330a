"""The messages of a compacted ledger that readers may see under `compact,delete`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.manifest import Manifest, read_manifest
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata.policy_store import topic_scope
from storage.model import EARLIEST
from storage.options.policies import TopicPolicies
from storage.reading.last_message import LastMessageFinder
from storage.reading.snapshot_reader import BOTH, RetentionFilter, SnapshotReader, retention_filter
from storage.topic import Topic
from tests.segments import NO_LOG
from tests.workbench import Workbench

NOW = 1_700_000_000_000


def table(*rows: tuple[int, int]) -> pa.Table:
    return pa.table({"offset": [offset for offset, _ in rows], "publish_time": [time for _, time in rows]})


@pytest.mark.parametrize(
    ("retention_filter", "expected"),
    [
        (RetentionFilter(), [3, 5, 9]),
        (RetentionFilter(3), [3, 5, 9]),
        (RetentionFilter(4), [5, 9]),
        (RetentionFilter(10), []),
        (RetentionFilter(0, 100), [3, 5, 9]),
        (RetentionFilter(0, 101), [3, 9]),
        (RetentionFilter(0, 301), []),
        (RetentionFilter(4, 101), [9]),
    ],
    ids=str,
)
def test_rows_below_the_start_or_too_old_are_left_out(retention_filter: RetentionFilter, expected: list[int]) -> None:
    rows = ((3, 200), (5, 100), (9, 300))
    assert retention_filter.visible_rows(table(*rows)).column("offset").to_pylist() == expected
    assert [offset for offset, time in rows if retention_filter.shows(offset, time)] == expected
    assert (
        retention_filter.visible_rows(
            table().cast(pa.schema([("offset", pa.int64()), ("publish_time", pa.int64())]))
        ).num_rows
        == 0
    )


@pytest.mark.parametrize("cleanup", [frozenset(), {"delete"}, {"compact"}], ids=sorted)
def test_other_policies_hide_nothing(cleanup: set[str]) -> None:
    assert retention_filter(TopicPolicies(cleanup_policy=frozenset(cleanup), retention_ms=0), 25, NOW) is None


def test_both_policies_hide_by_time_and_start() -> None:
    assert retention_filter(TopicPolicies(cleanup_policy=BOTH, retention_ms=7), 25, NOW) == RetentionFilter(25, NOW - 7)
    assert retention_filter(TopicPolicies(cleanup_policy=BOTH, retention_ms=-1), 25, NOW) == RetentionFilter(25, None)
    assert retention_filter(TopicPolicies(cleanup_policy=BOTH, retention_ms=-1), 0, NOW) is None


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Compacted: offsets 0 to 19, the later the younger but for the last, a key each; 5, 18 are deleted since."""
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
    topic = bench.topic()
    now = bench.clock.now_ms()
    messages = [{"key": b"k%02d" % n, "payload": b"%d" % n, "publish_time": now - 100 + n} for n in range(19)]
    messages.append({"key": b"k19", "payload": b"late", "publish_time": now - 99})
    bench.append(topic, [pa.Table.from_pylist(messages, schema=INPUT_SCHEMA)])
    bench.compact(topic)
    tombstones = [{"key": key, "payload": None} for key in (b"k05", b"k18")]
    bench.append(topic, [pa.Table.from_pylist(tombstones, schema=INPUT_SCHEMA)])
    bench.compact(topic)
    return topic


def manifest_of(bench: Workbench, topic: Topic) -> Manifest:
    compacted = topic.snapshot().compacted
    assert compacted is not None
    return read_manifest(bench.store, compacted.manifest)


@pytest.mark.parametrize(
    ("start", "age", "expected"),
    [(0, 1000, b"late"), (19, 1000, b"late"), (20, 1000, None), (0, 99, b"late"), (0, 98, b"17"), (17, 98, b"17"),
     (18, 98, None), (0, 83, b"17"), (0, 82, None)],
)  # fmt: skip
def test_the_last_message_that_may_be_seen(
    bench: Workbench, topic: Topic, start: int, age: int, expected: bytes | None
) -> None:
    retention_filter = RetentionFilter(start, bench.clock.now_ms() - age)
    reader = SnapshotReader(bench.store, topic.snapshot(), NO_LOG, retention_filter)
    message_id = LastMessageFinder(bench.store, reader, Xxh3KeyHasher(topic.record.hash_seed)).message_id(True)
    payloads = {message.message_id: message.payload for message in topic.messages()}
    assert (None if message_id == EARLIEST else payloads[message_id]) == expected


def test_parts_that_are_hidden_or_seen_whole(bench: Workbench, topic: Topic) -> None:
    manifest = manifest_of(bench, topic)
    assert len(manifest.parts) > 1
    for row_filter in (
        RetentionFilter(),
        RetentionFilter(7),
        RetentionFilter(0, bench.clock.now_ms() - 92),
        RetentionFilter(40),
        RetentionFilter(0, 2**62),
    ):
        for part in manifest.parts:
            offsets = range(part.first.offset, part.last.offset + 1)
            seen = [m for m in topic.messages() if m.offset in offsets and row_filter.shows(m.offset, m.publish_time)]
            if row_filter.hides_all(part):
                assert seen == []
            if not row_filter.may_hide_after(part.first.offset - 1, [part]):
                assert len(seen) == len(offsets)


def test_only_what_lies_behind_an_offset_may_be_hidden_there(bench: Workbench, topic: Topic) -> None:
    parts = manifest_of(bench, topic).parts
    last = parts[-1].last.offset
    assert [RetentionFilter(start).may_hide_after(5, parts) for start in (0, 6, 7)] == [False, False, True]
    assert not RetentionFilter(40).may_hide_after(last, parts), "there is nothing"
    old = RetentionFilter(0, parts[0].min_publish_time + 1)
    assert old.may_hide_after(0, parts)
    assert not old.may_hide_after(parts[0].last.offset, parts[:2])
    assert not RetentionFilter().may_hide_after(0, parts)


def test_of_a_topic_by_its_policies_now(bench: Workbench, topic: Topic) -> None:
    now = bench.clock.now_ms()
    assert topic.snapshot_reader().retention is None
    scope = topic_scope(topic.record)
    bench.metadata.policies.change([scope], {"cleanup.policy": "delete,compact"})
    bench.metadata.policies.change([scope], {"retention.ms": 5})
    assert topic.snapshot_reader().retention == RetentionFilter(0, now - 5)
