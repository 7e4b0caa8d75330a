"""Limits of the backlogs of subscriptions: message time to live and backlog quotas, as in Pulsar.

    time to live   messages older than `message.ttl.seconds` count as acknowledged for every subscription
    quota          exceeded if the slowest subscription has a backlog of more than `backlog.quota.bytes`, or with a
                   message older than `backlog.quota.seconds`. Then new messages are refused, for a time
                   (`producer_request_hold`) or until the backlog shrinks (`producer_exception`), or the oldest messages
                   count as acknowledged until the backlog is 90 % of the limit (`consumer_backlog_eviction`)

Invariants: `__compaction` is exempt (S9), because it protects messages that no run has read, and no consumer moves it.
A subscription never moves back, and never beyond the topic's end.

Bytes are logical bytes. All messages of a ledger count as equal, so a backlog that begins inside a
ledger is an estimate, as at a broker. The end of the topic must be local: only the process whose log directory has the
active segment applies limits. Of a rolled segment in another log directory only the row is known, so limits then do
less. Errors: TopicNotFound, DataLoss, Unavailable. This module must not know producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

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
from storage.log.open_segments import OpenSegmentEnd, open_segment_end
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, SegmentRecord, TopicRecord, TopicSnapshot
from storage.model import LedgerRecord, LogPosition, TopicName
from storage.options.policies import EVICT, HOLD, TopicPolicies
from storage.positions import StartOffset
from storage.reading.snapshot_reader import SnapshotReader, last_position_of
from storage.topic import Topic

TARGET_AFTER_EVICTION = 0.9
"""Backlog after an eviction, relative to the limit (Pulsar's `BacklogQuotaManager`)."""


@dataclass(frozen=True)
class ExtentBytes:
    """Offsets and logical bytes of a ledger or segment. Offsets are inclusive."""

    first_offset: int
    last_offset: int
    size: int

    def size_from(self, offset: int) -> int:
        """Return the approximate number of bytes of the extent at or after this offset."""
        remaining = self.last_offset + 1 - max(offset, self.first_offset)
        return self.size * max(remaining, 0) // (self.last_offset + 1 - self.first_offset)


@dataclass(frozen=True)
class ExceededQuota:
    """A quota of a topic that the backlog of the subscription `cursor` exceeds.

    `backlog`, `limit`: in `unit`, which is bytes or seconds. `action`: the policy's action beyond the quota.
    """

    topic: TopicName
    cursor: str
    backlog: int
    limit: int
    unit: str
    action: str

    @property
    def error(self) -> CompactorError:
        """The error with which new messages are refused: Unavailable if producers wait, else Conflict."""
        kind = Unavailable if self.action == HOLD else Conflict
        return kind(
            f"{self.topic} accepts no messages: its subscription {self.cursor} has a backlog of {self.backlog} "
            f"{self.unit}, and backlog.quota.{self.unit} is {self.limit}",
            f"let the subscription consume or skip its backlog, delete it, or raise backlog.quota.{self.unit}",
        )


def has_limits(policies: TopicPolicies) -> bool:
    """Return whether the policies set a time to live or a quota."""
    quotas = (policies.backlog_quota_bytes, policies.backlog_quota_seconds)
    return bool(policies.message_ttl_seconds) or max(quotas) >= 0


def extent_bytes(extent: LedgerRecord | SegmentRecord, end: OpenSegmentEnd | None = None) -> ExtentBytes | None:
    """Return the size of an extent in logical bytes, with its offsets.

    `end`: the end of an open segment. None: the extent is empty, or an open segment whose end is not known.
    """
    if extent.content is not None:
        return ExtentBytes(extent.first_offset, extent.content.last_offset, extent.content.logical_bytes)
    if end is not None and end.next_offset > extent.first_offset:
        return ExtentBytes(extent.first_offset, end.next_offset - 1, end.logical_bytes)
    return None


def extent_sizes(snapshot: TopicSnapshot, log: LogDirectory) -> list[ExtentBytes]:
    """Return the sizes of the topic's non-empty ledgers and segments, in order; of an open segment only if it is in
    `log`."""
    sizes = (
        extent_bytes(extent, open_segment_end(log, snapshot.topic, extent) if extent.content is None else None)
        for extent in snapshot.extents
    )
    return [size for size in sizes if size is not None]


def bytes_from(sizes: Sequence[ExtentBytes], offset: int) -> int:
    """Return the approximate number of bytes of all extents at or after this offset."""
    return sum(extent.size_from(offset) for extent in sizes)


def start_of_last_bytes(sizes: Sequence[ExtentBytes], size: int) -> int:
    """Return the smallest offset from which at most `size` bytes remain."""
    end = 0
    for extent in reversed(sizes):
        end = end or extent.last_offset + 1
        if extent.size > size:
            kept = size * (extent.last_offset + 1 - extent.first_offset) // extent.size
            return extent.last_offset + 1 - kept
        size -= extent.size
        end = extent.first_offset
    return end


class ServedCursor(Protocol):
    """A cursor on which connected consumers acknowledge in this process. Calls come from a thread, and block."""

    @property
    def cursor(self) -> Cursor:
        """The cursor itself."""

    def note_log_end(self, end: int) -> None:
        """Note that all offsets before `end` exist, so the caller may acknowledge them."""

    def store_caller_acknowledgements(self) -> None:
        """Store what the caller has acknowledged on `cursor`; consumers get none of these messages. Raises Fenced,
        NotFound, Unavailable."""


@dataclass(frozen=True)
class BacklogLimits:
    """Enforcement of time to live and backlog quotas.

    `served`: returns the cursor of a topic's subscription whose state is in this process, since a cursor has one owner.
    """

    environment: Environment
    served: Callable[[TopicRecord, str], ServedCursor | None] = lambda _topic, _name: None

    def enforce(self, topic: TopicRecord, policies: TopicPolicies) -> ExceededQuota | None:
        """Acknowledge messages for the topic's subscriptions, as time to live and quotas require.

        Return the exceeded quota for which the topic accepts no messages now; None: it accepts them.
        """
        if policies.message_ttl_seconds:
            self._acknowledge_published_before(
                topic, self.environment.clock.now_ms() - policies.message_ttl_seconds * 1000
            )
        over = self.exceeded_quotas(topic, policies)
        for item in over:
            if item.action == EVICT:
                self._evict_backlog(topic, item)
        return next((item for item in over if item.action != EVICT), None)

    def check_accepts_messages(self, topic: TopicRecord) -> None:
        """Raise Unavailable or Conflict if the topic accepts no messages now."""
        policies = self.environment.metadata.policies.effective(topic)
        for item in self.exceeded_quotas(topic, policies) if has_limits(policies) else ():
            if item.action != EVICT:
                raise item.error

    def exceeded_quotas(self, topic: TopicRecord, policies: TopicPolicies) -> list[ExceededQuota]:
        """Return the exceeded quotas of the topic, by the backlog of its slowest subscription. Changes nothing."""
        slowest = min(self._consumer_cursors(topic), key=lambda cursor: cursor.mark_delete_offset, default=None)
        if slowest is None:
            return []
        over = []
        for unit, limit, action in (
            ("bytes", policies.backlog_quota_bytes, policies.backlog_quota_bytes_action),
            ("seconds", policies.backlog_quota_seconds, policies.backlog_quota_seconds_action),
        ):
            if limit < 0:
                continue
            if unit == "bytes":
                backlog = bytes_from(
                    extent_sizes(self.environment.metadata.topic_snapshot(topic.id), self.environment.log),
                    slowest.mark_delete_offset + 1,
                )
            else:
                backlog = self._message_age_seconds(topic, slowest.mark_delete_offset + 1, limit)
            if backlog > limit:
                over.append(ExceededQuota(topic.name, slowest.name, backlog, limit, unit, action))
        return over

    def _evict_backlog(self, topic: TopicRecord, over: ExceededQuota) -> None:
        """Acknowledge the oldest messages for the subscriptions whose backlog is too large."""
        remaining = int(over.limit * TARGET_AFTER_EVICTION)
        if over.unit == "bytes":
            sizes = extent_sizes(self.environment.metadata.topic_snapshot(topic.id), self.environment.log)
            self._acknowledge_below(
                Topic(self.environment, topic), self._consumer_cursors(topic), start_of_last_bytes(sizes, remaining)
            )
        else:
            self._acknowledge_published_before(topic, self.environment.clock.now_ms() - remaining * 1000)

    def _acknowledge_published_before(self, topic: TopicRecord, publish_time: int) -> None:
        """Acknowledge, for every subscription, all messages before the first one published at that time or later."""
        waiting = self._consumer_cursors(topic)
        if not waiting:
            return
        opened = Topic(self.environment, topic)
        reader = opened.snapshot_reader()
        try:
            offset = self._first_offset_since(
                reader, min(record.mark_delete_offset for record in waiting) + 1, publish_time
            )
        except (ObjectMissing, ObjectDamaged):
            if opened.snapshot().extents == reader.extents:
                raise
            return  # an extent was sealed or trimmed since: the next task checks again
        self._acknowledge_below(opened, waiting, offset)

    def _first_offset_since(self, reader: SnapshotReader, offset: int, publish_time: int) -> int:
        """Return the first offset from `offset` on whose message was published at that time or later, else the end.

        The database rows of most extents decide; only an extent with older and younger messages is read. If that is in
        another log directory, all its messages count as younger.
        """
        end = reader.end  # read first: messages that are appended later are younger
        for extent in _extents_from(reader, offset, end):
            first, (oldest, newest) = max(extent.first_offset, offset), _publish_time_bounds(extent)
            if newest is not None and newest < publish_time:
                continue
            if (oldest is not None and oldest >= publish_time) or self._is_in_other_log_directory(extent):
                return first
            since = reader.first_since(extent, publish_time, first)
            if since is not None:
                return since
        return end

    def _acknowledge_below(self, opened: Topic, waiting: Sequence[CursorRecord], offset: int) -> None:
        """Acknowledge, for these subscriptions, all messages below an offset."""
        moving = [record for record in waiting if record.mark_delete_offset + 1 < offset]
        lasts = (
            {item.offset: item for item in map(last_position_of, opened.snapshot().extents) if item} if moving else {}
        )

        def locate(target: int) -> LogPosition | None:
            try:
                return lasts.get(target) or opened.first_raw_at_or_after(target)
            except SegmentNotLocal:
                return None  # this process knows only the segment's row

        for record in moving:
            with suppress(Fenced, NotFound):  # another owner moved or deleted the cursor: the next task checks again
                if served := self.served(opened.record, record.name):
                    served.note_log_end(opened.snapshot_reader().end)
                    served.cursor.acknowledge_below(offset)
                    served.store_caller_acknowledgements()
                    continue
                cursor = Cursor(
                    self.environment.metadata,
                    opened.record,
                    record.name,
                    locate,
                    lambda: opened.snapshot_reader().end,
                )
                cursor.acknowledge_below(offset)
                cursor.close()

    def _message_age_seconds(self, topic: TopicRecord, offset: int, exact_above: int) -> int:
        """Return the age of the first message at or after an offset; 0: there is none.

        An age up to `exact_above` may be too large: it is that of the extent's oldest message. A message in another
        log directory counts as the newest of its segment.
        """
        opened, now = Topic(self.environment, topic), self.environment.clock.now_ms()
        reader = opened.snapshot_reader()
        extent = next(_extents_from(reader, offset, reader.end), None)
        if extent is None:
            return 0
        published, newest = _publish_time_bounds(extent)
        if published is None or (now - published) // 1000 > exact_above:
            if self._is_in_other_log_directory(extent):
                published = newest
            else:
                first = next(opened.read(StartOffset(offset), max_messages=1), None)
                published = None if first is None else int(first.column("publish_time")[0].as_py())
        return 0 if published is None else max(now - published, 0) // 1000

    def _is_in_other_log_directory(self, extent: LedgerRecord | SegmentRecord) -> bool:
        """Return whether an extent's messages are in another log directory."""
        return isinstance(extent, SegmentRecord) and extent.log_uid != self.environment.log.known_uid

    def _consumer_cursors(self, topic: TopicRecord) -> list[CursorRecord]:
        """Return the cursors of the topic except `__compaction`, which has no limits."""
        return [item for item in self.environment.metadata.cursors.of_topic(topic.id) if item.name != COMPACTION_CURSOR]


def _extents_from(reader: SnapshotReader, offset: int, end: int) -> Iterator[LedgerRecord | SegmentRecord]:
    """Yield the extents with messages from an offset on. `end`: end of the topic."""
    for extent in reader.extents if offset < end else ():
        last = last_position_of(extent)
        if last is None or last.offset >= offset:
            yield extent


def _publish_time_bounds(extent: LedgerRecord | SegmentRecord) -> tuple[int | None, int | None]:
    """Return the smallest and largest publish time in an extent's row; None, None for an open segment."""
    return (extent.content.min_publish_time, extent.content.max_publish_time) if extent.content else (None, None)
