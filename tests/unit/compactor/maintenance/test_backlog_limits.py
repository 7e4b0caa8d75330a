"""Message time to live and backlog quotas: what they move, what they keep from being appended, what is exempt (S9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.maintenance.backlog_limits import BacklogLimits, ExtentBytes, bytes_from, start_of_last_bytes
from storage.errors import Conflict, Unavailable
from storage.log.segment_tables import SegmentTableReader
from storage.metadata.records import COMPACTION_CURSOR
from storage.options.policies import EVICT
from storage.topic import Topic
from tests.entries import produce, single
from tests.workbench import Workbench, content

SECOND = 1000
EXTENTS = [ExtentBytes(0, 9, 100), ExtentBytes(10, 14, 1000), ExtentBytes(15, 24, 40)]


@pytest.mark.parametrize(("offset", "size"), [(0, 1140), (5, 1090), (10, 1040), (14, 240), (15, 40), (24, 4), (25, 0)])
def test_bytes_from_an_offset(offset: int, size: int) -> None:
    assert bytes_from(EXTENTS, offset) == size
    assert start_of_last_bytes(EXTENTS, size) == offset


def test_the_first_of_the_last_bytes() -> None:
    assert [start_of_last_bytes(EXTENTS, size) for size in (2000, 1041, 239, 3)] == [0, 10, 15, 25]
    assert (start_of_last_bytes([], 5), bytes_from([], 0)) == (0, 0)


class Limited:
    """A topic with two subscriptions that have acknowledged nothing and a compaction cursor."""

    def __init__(self, folder: Path) -> None:
        self.workbench = Workbench.embedded(folder)
        self.clock = self.workbench.clock
        self.topic: Topic = self.workbench.topic()
        metadata = self.workbench.metadata
        self.limits = BacklogLimits(self.workbench)
        for name in ("slow", "fast"):
            metadata.cursors.create(self.topic.record.id, name, None, {})
        metadata.cursors.ensure(self.topic.record.id, COMPACTION_CURSOR)

    def policy(self, **values: object) -> None:
        self.workbench.set_policies(self.topic, **{name.replace("_", "."): value for name, value in values.items()})

    def produce(self, count: int, size: int = 1) -> None:
        """Messages of now, in the open segment."""
        produce(self.topic, [single(b"k", b"v" * size, publish_time=self.clock.now_ms()) for _ in range(count)])

    def seal(self, count: int, size: int = 1) -> None:
        """Messages of now, in a ledger of their own."""
        self.workbench.append(self.topic, [content(*[(b"k", b"v" * size)] * count)])

    def apply(self) -> str | None:
        """Return the error of a topic that exceeds its quota. None: messages are accepted."""
        record = self.topic.record
        over = self.limits.enforce(record, self.workbench.metadata.policies.effective(record))
        return None if over is None else str(over.error)

    def marks(self) -> dict[str, int | None]:
        cursors = self.workbench.metadata.cursors.of_topic(self.topic.record.id)
        return {cursor.name: None if cursor.mark_delete is None else cursor.mark_delete.offset for cursor in cursors}


@pytest.fixture
def limited(tmp_path: Path) -> Limited:
    return Limited(tmp_path)


def test_messages_older_than_their_time_to_live_count_as_acknowledged(limited: Limited) -> None:
    limited.seal(3)
    limited.clock.advance(5 * SECOND)
    limited.seal(2)
    limited.clock.advance(5 * SECOND)
    limited.produce(1)
    limited.policy(message_ttl_seconds=6)
    assert limited.apply() is None
    assert limited.marks() == {COMPACTION_CURSOR: None, "fast": 2, "slow": 2}, "the compaction cursor is exempt"
    limited.policy(message_ttl_seconds=1)
    limited.clock.advance(1 * SECOND)
    limited.apply()
    assert limited.marks()["slow"] == 4, "what is as old as its time to live is not older"
    limited.clock.advance(1)
    limited.apply()
    assert limited.marks() == {COMPACTION_CURSOR: None, "fast": 5, "slow": 5}
    limited.policy(message_ttl_seconds=0)
    limited.produce(1)
    limited.clock.advance(100 * SECOND)
    limited.apply()
    assert limited.marks()["slow"] == 5


@pytest.mark.parametrize(
    "policy",
    [
        {"message_ttl_seconds": 60},
        {"backlog_quota_bytes": 0, "backlog_quota_bytes_action": EVICT},
        {"backlog_quota_seconds": 0, "backlog_quota_seconds_action": EVICT},
    ],
    ids=["time to live", "quota of bytes", "quota of seconds"],
)
def test_what_is_appended_during_the_check_is_not_acknowledged(
    limited: Limited, monkeypatch: pytest.MonkeyPatch, policy: dict[str, object]
) -> None:
    limited.produce(1)
    limited.clock.advance(100 * SECOND)
    limited.policy(**policy)
    plain = SegmentTableReader.tables

    def tables(*arguments: Any) -> Iterator[Any]:
        yield from list(plain(*arguments))
        limited.produce(1)

    monkeypatch.setattr(SegmentTableReader, "tables", tables)
    assert limited.apply() is None
    assert limited.marks() == {COMPACTION_CURSOR: None, "fast": 0, "slow": 0}


def test_a_subscription_never_goes_back(limited: Limited) -> None:
    limited.seal(3)
    limited.clock.advance(5 * SECOND)
    limited.seal(3)
    metadata = limited.workbench.metadata
    metadata.cursors.reset(limited.topic.record.id, "fast", limited.topic.first_raw_at_or_after(4))
    limited.policy(message_ttl_seconds=3)
    limited.apply()
    assert limited.marks() == {COMPACTION_CURSOR: None, "fast": 4, "slow": 2}


@pytest.mark.parametrize(("action", "kind"), [("producer_request_hold", Unavailable), ("producer_exception", Conflict)])
def test_a_backlog_over_its_quota_keeps_messages_out(limited: Limited, action: str, kind: type[Exception]) -> None:
    limited.seal(4, size=100)
    limited.policy(backlog_quota_bytes=1000, backlog_quota_bytes_action=action)
    assert limited.apply() is None
    limited.produce(8, size=100)
    answer = limited.apply() or ""
    assert "subscription fast has a backlog of" in answer
    assert "backlog.quota.bytes is 1000" in answer
    assert limited.marks() == {COMPACTION_CURSOR: None, "fast": None, "slow": None}
    with pytest.raises(kind):
        limited.limits.check_accepts_messages(limited.topic.record)
    metadata = limited.workbench.metadata
    for name in ("slow", "fast"):
        metadata.cursors.reset(limited.topic.record.id, name, limited.topic.first_raw_at_or_after(5))
    assert limited.apply() is None, "they have read on; the compaction cursor has not"
    limited.limits.check_accepts_messages(limited.topic.record)


def test_the_oldest_of_a_backlog_that_is_too_large_count_as_acknowledged(limited: Limited) -> None:
    limited.seal(10, size=100)
    limited.produce(10, size=100)
    limited.policy(backlog_quota_bytes=1000, backlog_quota_bytes_action="consumer_backlog_eviction")
    assert limited.apply() is None
    marks = limited.marks()
    assert marks["slow"] == marks["fast"]
    assert marks["slow"] is not None
    assert 10 <= marks["slow"] <= 13, "90 % of the quota are left: some 7 messages of 126 bytes"
    assert marks[COMPACTION_CURSOR] is None
    limited.apply()
    assert limited.marks() == marks
    limited.limits.check_accepts_messages(limited.topic.record)


def test_a_check_of_what_is_young_reads_nothing_from_the_store(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited.seal(2)
    limited.clock.advance(100 * SECOND)
    limited.policy(message_ttl_seconds=60, backlog_quota_seconds=60)
    limited.apply()
    limited.seal(2)
    limited.produce(2)
    reads: list[object] = []
    store = type(limited.workbench.store)
    plain = store.get

    def get(*arguments: Any, **options: Any) -> Any:
        reads.append(arguments)
        return plain(*arguments, **options)

    monkeypatch.setattr(store, "get", get)
    for mark in (1, 3, 4, 5):  # behind what is expired, in the open segment, at the end
        for name in ("slow", "fast"):
            limited.workbench.metadata.cursors.reset(
                limited.topic.record.id, name, limited.topic.first_raw_at_or_after(mark)
            )
        reads.clear()
        assert limited.apply() is None
        assert (reads, limited.marks()["slow"]) == ([], mark)


def test_a_backlog_that_is_too_old(limited: Limited) -> None:
    limited.seal(2)
    limited.clock.advance(60 * SECOND)
    limited.seal(2)
    limited.policy(backlog_quota_seconds=60)
    assert limited.apply() is None
    limited.clock.advance(1 * SECOND)
    assert "a backlog of 61 seconds, and backlog.quota.seconds is 60" in (limited.apply() or "")
    limited.policy(backlog_quota_seconds_action="consumer_backlog_eviction")
    assert limited.apply() is None
    assert limited.marks() == {COMPACTION_CURSOR: None, "fast": 1, "slow": 1}


def test_nothing_is_limited_without_subscriptions(limited: Limited) -> None:
    limited.seal(2)
    for name in ("slow", "fast"):
        limited.workbench.metadata.cursors.delete(limited.topic.record.id, name)
    limited.policy(message_ttl_seconds=1, backlog_quota_bytes=0, backlog_quota_seconds=0)
    limited.clock.advance(60 * SECOND)
    assert limited.apply() is None
    assert limited.marks() == {COMPACTION_CURSOR: None}
