"""Limits of what may be before a topic's subscriptions: message time to live, and backlog quotas, as Pulsar has them.

    time to live   every subscription counts messages older than `message.ttl.seconds` as acknowledged
    quota          the slowest subscription has more than `backlog.quota.bytes` before it, or its oldest message is
                   older than `backlog.quota.seconds`; then messages are refused, for now (`producer_request_hold`) or
                   at all (`producer_exception`), or the oldest count as acknowledged until 90 % of the limit are left
                   (`consumer_backlog_eviction`)

Invariants: `__compaction` is exempt from all of it (S9): it holds back what no run has seen, and no consumer can move
it. A subscription never goes back, and never beyond the topic's end.

Bytes are those that producers sent; within a ledger every message counts alike, so a backlog that begins inside one is
an estimate, as a broker's is. The end of the topic must be local: this is for the process in whose log directory the
tail is. Of a rolled segment in another one, which waits to be sealed, only the row is known: limits then do less. May
go wrong: TopicNotFound, DataLoss, Unavailable. Must not know: who produces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from storage.cursor import Cursor
from storage.environment import Environment
from storage.errors import (
    CompactorError,
    Conflict,
    Fenced,
    NotFound,
    ObjectDamaged,
    ObjectMissing,
    SegmentNotLocal,
    Unavailable,
)
from storage.log.directory import LogDirectory
from storage.log.unsealed_counts import unsealed_end
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, SegmentRecord, TopicRecord, TopicSnapshot
from storage.model import LedgerRecord, LogPosition, TopicName
from storage.options.policies import EVICT, HOLD, TopicPolicies
from storage.positions import StartOffset
from storage.reading.snapshot_reader import SnapshotReader, last_of
from storage.topic import Topic

LEFT_AFTER_EVICTION = 0.9
"""The share of a limit that an eviction leaves (Pulsar's `BacklogQuotaManager`)."""


@dataclass(frozen=True)
class ExtentBytes:
    """A ledger or segment with its bytes; offsets are inclusive."""

    first_offset: int
    last_offset: int
    size: int

    def behind(self, offset: int) -> int:
        """About how many of its bytes are at this offset or behind it."""
        remaining = self.last_offset + 1 - max(offset, self.first_offset)
        return self.size * max(remaining, 0) // (self.last_offset + 1 - self.first_offset)


@dataclass(frozen=True)
class OverQuota:
    """A topic whose subscription `cursor` is farther behind than it may be. `unit`: bytes or seconds."""

    topic: TopicName
    cursor: str
    backlog: int
    limit: int
    unit: str
    action: str

    @property
    def error(self) -> CompactorError:
        """Why messages are refused."""
        kind = Unavailable if self.action == HOLD else Conflict
        return kind(
            f"{self.topic} takes no messages: its subscription {self.cursor} has a backlog of {self.backlog} "
            f"{self.unit}, and backlog.quota.{self.unit} is {self.limit}",
            f"have the subscription read on, skip its backlog, delete it, or raise backlog.quota.{self.unit}",
        )


def has_limits(policies: TopicPolicies) -> bool:
    """Whether any limit is set."""
    quotas = (policies.backlog_quota_bytes, policies.backlog_quota_seconds)
    return bool(policies.message_ttl_seconds) or max(quotas) >= 0


def extents(snapshot: TopicSnapshot, log: LogDirectory) -> list[ExtentBytes]:
    """The topic's ledgers and segments in order, as far as they hold something; an open one if it is in `log`."""
    found = []
    for extent in snapshot.extents:
        if isinstance(extent, LedgerRecord):
            found.append(ExtentBytes(extent.first_offset, extent.last_offset, extent.logical_bytes))
        elif extent.content is not None:
            found.append(ExtentBytes(extent.first_offset, extent.content.last_offset, extent.content.logical_bytes))
        elif (end := unsealed_end(log, snapshot.topic, extent)) and end.next_offset > extent.first_offset:
            found.append(ExtentBytes(extent.first_offset, end.next_offset - 1, end.size))
    return found


def bytes_behind(some: Sequence[ExtentBytes], offset: int) -> int:
    """About how many bytes are at this offset or behind it."""
    return sum(extent.behind(offset) for extent in some)


def first_of_last(some: Sequence[ExtentBytes], size: int) -> int:
    """The smallest offset behind which, itself included, are at most that many bytes."""
    end = 0
    for extent in reversed(some):
        end = end or extent.last_offset + 1
        if extent.size > size:
            kept = size * (extent.last_offset + 1 - extent.first_offset) // extent.size
            return extent.last_offset + 1 - kept
        size -= extent.size
        end = extent.first_offset
    return end


@dataclass(frozen=True)
class BacklogLimits:
    """Applies the limits of topics."""

    environment: Environment

    def apply(self, topic: TopicRecord, policies: TopicPolicies) -> OverQuota | None:
        """Move the topic's subscriptions as its policies say; why it is to take no messages, if it is not."""
        if policies.message_ttl_seconds:
            self._acknowledge_older(topic, self.environment.clock.now_ms() - policies.message_ttl_seconds * 1000)
        over = self.over_quota(topic, policies)
        for item in over:
            if item.action == EVICT:
                self._evict(topic, item)
        return next((item for item in over if item.action != EVICT), None)

    def check(self, topic: TopicRecord) -> None:
        """Raises Unavailable or Conflict if the topic is to take no messages now."""
        policies = self.environment.metadata.policies.effective(topic)
        for item in self.over_quota(topic, policies) if has_limits(policies) else ():
            if item.action != EVICT:
                raise item.error

    def over_quota(self, topic: TopicRecord, policies: TopicPolicies) -> list[OverQuota]:
        """The quotas that the topic is over."""
        slowest = min(self._cursors(topic), key=lambda cursor: cursor.mark, default=None)
        if slowest is None:
            return []
        found = []
        for unit, limit, action in (
            ("bytes", policies.backlog_quota_bytes, policies.backlog_quota_bytes_action),
            ("seconds", policies.backlog_quota_seconds, policies.backlog_quota_seconds_action),
        ):
            if limit < 0:
                continue
            if unit == "bytes":
                backlog = bytes_behind(
                    extents(self.environment.metadata.snapshot(topic.id), self.environment.log), slowest.mark + 1
                )
            else:
                backlog = self._age_seconds(topic, slowest.mark + 1, limit)
            if backlog > limit:
                found.append(OverQuota(topic.name, slowest.name, backlog, limit, unit, action))
        return found

    def _evict(self, topic: TopicRecord, over: OverQuota) -> None:
        """Let the subscriptions that are too far behind miss the oldest messages."""
        remaining = int(over.limit * LEFT_AFTER_EVICTION)
        if over.unit == "bytes":
            some = extents(self.environment.metadata.snapshot(topic.id), self.environment.log)
            self._acknowledge_below(self._opened(topic), self._cursors(topic), first_of_last(some, remaining))
        else:
            self._acknowledge_older(topic, self.environment.clock.now_ms() - remaining * 1000)

    def _acknowledge_older(self, topic: TopicRecord, publish_time: int) -> None:
        """Let every subscription continue at the first message that was published then or later."""
        waiting = self._cursors(topic)
        if not waiting:
            return
        opened = self._opened(topic)
        reader = opened.snapshot_reader()
        try:
            offset = self._first_since(reader, min(record.mark for record in waiting) + 1, publish_time)
        except (ObjectMissing, ObjectDamaged):
            if opened.snapshot().extents == reader.extents:
                raise
            return  # it was sealed or trimmed meanwhile: the next task checks again
        self._acknowledge_below(opened, waiting, offset)

    def _first_since(self, reader: SnapshotReader, offset: int, publish_time: int) -> int:
        """The first message at or behind an offset that was published then or later; the topic's end if none was.

        Rows of ledgers and segments say it but for the one extent in which messages of both kinds are. Of that, if it
        is in another log directory, all messages count as later.
        """
        end = reader.end  # read first: what is appended later is no older message
        for extent in _behind(reader, offset, end):
            first, (oldest, newest) = max(extent.first_offset, offset), _published(extent)
            if newest is not None and newest < publish_time:
                continue
            if (oldest is not None and oldest >= publish_time) or self._is_remote(extent):
                return first
            found = reader.first_since(extent, publish_time, first)
            if found is not None:
                return found
        return end

    def _acknowledge_below(self, opened: Topic, waiting: Sequence[CursorRecord], offset: int) -> None:
        """Let these subscriptions continue at an offset, or where they are if that is behind it."""
        moving = [record for record in waiting if record.mark + 1 < offset]
        lasts = {item.offset: item for item in map(last_of, opened.snapshot().extents) if item} if moving else {}

        def locate(wanted: int) -> LogPosition | None:
            try:
                return lasts.get(wanted) or opened.locate(wanted)
            except SegmentNotLocal:
                return None  # only its row is known here

        for record in moving:
            with suppress(Fenced, NotFound):  # another owner moved or deleted it: the next task checks again
                cursor = Cursor(
                    self.environment.metadata,
                    self.environment.clock,
                    opened.record,
                    record.name,
                    locate,
                    lambda: opened.snapshot_reader().end,
                )
                cursor.acknowledge_below(offset)
                cursor.close()

    def _age_seconds(self, topic: TopicRecord, offset: int, limit: int) -> int:
        """The age of the first message at or behind an offset; 0: there is none. One up to `limit` may be less.

        A message in another log directory counts as the newest of its segment.
        """
        opened, now = self._opened(topic), self.environment.clock.now_ms()
        reader = opened.snapshot_reader()
        extent = next(_behind(reader, offset, reader.end), None)
        if extent is None:
            return 0
        published, newest = _published(extent)
        if published is None or (now - published) // 1000 > limit:
            published = newest if self._is_remote(extent) else _first_published(opened, offset)
        return 0 if published is None else max(now - published, 0) // 1000

    def _is_remote(self, extent: LedgerRecord | SegmentRecord) -> bool:
        """Whether an extent's messages are in another log directory."""
        return isinstance(extent, SegmentRecord) and extent.log_uid != self.environment.log.known_uid

    def _opened(self, topic: TopicRecord) -> Topic:
        return Topic(self.environment, topic)

    def _cursors(self, topic: TopicRecord) -> list[CursorRecord]:
        """The subscriptions that limits are for."""
        return [item for item in self.environment.metadata.cursors.of_topic(topic.id) if item.name != COMPACTION_CURSOR]


def _behind(reader: SnapshotReader, offset: int, end: int) -> Iterator[LedgerRecord | SegmentRecord]:
    """The extents that hold messages from an offset on; `end`: of the topic."""
    for extent in reader.extents if offset < end else ():
        last = last_of(extent)
        if last is None or last.offset >= offset:
            yield extent


def _published(extent: LedgerRecord | SegmentRecord) -> tuple[int | None, int | None]:
    """The smallest and the largest publish time of an extent's messages, as its row says; None, None of an open one."""
    content = extent if isinstance(extent, LedgerRecord) else extent.content
    return (None, None) if content is None else (content.min_publish_time, content.max_publish_time)


def _first_published(topic: Topic, offset: int) -> int | None:
    """When the first raw message at or behind an offset was published; None: there is none."""
    for batch in topic.read(StartOffset(offset), max_messages=1):
        return int(batch.column("publish_time")[0].as_py())
    return None
