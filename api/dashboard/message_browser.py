"""A page of a topic's messages: raw, compacted, or both in one column, with what compaction does to each message.

A page begins at an offset and goes forward, or ends before one and goes backward; neither scans the topic. `order` is
that of the rows on the page alone. In the view of both, a message that a compacted read leaves out, or that a newer one
of its key supersedes, says so, and by which offset: the newest messages of the page's keys are searched in the key
indexes for at most `SEARCH_MS`. A chunk of a chunked message has a row of its own.

Errors of a read are shown on the page, beside what was read before them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from api.broker import names
from api.broker.broker import Broker
from api.dashboard.failure import Failure, failure_of_read, lost_object
from api.dashboard.fields import parse_time
from api.dashboard.lost_objects import LossCache, is_topic_unreadable, known_compacted_read_error, known_raw_read_error
from api.http.problems import public_reason
from api.observability.error_text import PAGE_WITH_STEPS_WORDING
from storage.clock import Clock
from storage.entries.stored_message import StoredMessage, stored_messages
from storage.errors import CompactorError, SegmentNotLocal
from storage.ledger.names import ObjectKind
from storage.ledger.rows import RowType
from storage.metadata.records import SegmentRecord
from storage.model import EARLIEST, TopicName
from storage.positions import StartOffset, StartPosition
from storage.reading.newest_offsets import NewestOffset
from storage.topic import Topic

PAGE_MESSAGES = 25
PAGE_BYTES = 1 << 20
"""The payload bytes after which a page takes no further message."""
PREVIEW_BYTES = 1 << 10
"""The bytes of a payload that a page shows at most."""
SEARCH_MS = 300
"""Milliseconds after which no further index is searched for newer messages of the page's keys."""
LOOKUP_MS = 5_000
"""Milliseconds after which the search for the newest message of one key ends."""
OFFSETS = 2**62
"""More than any offset."""


class View(StrEnum):
    """The messages that a page shows: raw, compacted, or both."""

    BOTH = "both"
    RAW = "raw"
    COMPACTED = "compacted"

    @property
    def read_compacted_flags(self) -> tuple[bool, ...]:
        """Return for each read of the view whether it is a compacted read."""
        return {View.BOTH: (False, True), View.RAW: (False,), View.COMPACTED: (True,)}[self]


class Order(StrEnum):
    """The order of a page's rows, and the end of the topic with which the first page begins."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True)
class PageQuery:
    """The page that a browser requests. At most one of the last four: the first offset, the offset before which it
    ends, the first publish time, and the key whose newest message ends it."""

    view: View = View.BOTH
    order: Order = Order.NEWEST
    offset: int | None = None
    before: int | None = None
    time: str = ""
    key: str = ""


@dataclass(frozen=True)
class MessageState:
    """The effect of compaction on a message.

    `superseded_by`: the newest message of its key; None: this is it, or it is not known. `is_current`: this is it, and
    a compacted read returns it. `is_left_out`: a compacted read does not return it. `is_trimmed`: raw does not have it
    any more. `may_be_superseded`: it is not known whether a newer message of its key exists.
    """

    superseded_by: NewestOffset | None = None
    is_current: bool = False
    is_left_out: bool = False
    is_trimmed: bool = False
    may_be_superseded: bool = False


@dataclass(frozen=True)
class MessagePage:
    """A page. `messages`: with their states, in the order of the page. `older_before`, `newer_from`: the offsets of the
    neighbouring pages; None: there is none. `is_missing_key`: the key has no message; if there are errors, no sealed
    one. `errors`: of its reads. `problems`: their texts, but for the lost object that `failure` describes.
    `failure`: the first lost object among them. `is_unreadable`: reads of the topic fail. `horizon`: the last
    offset that a compaction has read; None: there is none. `raw_offsets`: the offsets that raw has, as a clause, of a
    page without messages. `is_cut_by_size`: it has fewer messages than others, because their values are large."""

    name: TopicName
    query: PageQuery
    messages: Sequence[tuple[StoredMessage, MessageState]]
    older_before: int | None = None
    newer_from: int | None = None
    is_missing_key: bool = False
    problems: Sequence[str] = ()
    horizon: int | None = None
    raw_offsets: str = ""
    failure: Failure | None = None
    errors: Sequence[CompactorError] = ()
    is_unreadable: bool = False
    is_cut_by_size: bool = False

    @property
    def maybe_superseded_count(self) -> int:
        """Return the number of messages of which it is not known whether they are superseded."""
        return sum(state.may_be_superseded for _, state in self.messages)

    @property
    def first_offset(self) -> int | None:
        """Return the lowest offset of the page; None: it has no messages."""
        return min((message.offset for message, _ in self.messages), default=None)

    @property
    def last_offset(self) -> int | None:
        """Return the highest offset of the page; None: it has no messages."""
        return max((message.offset for message, _ in self.messages), default=None)


@dataclass
class ReadResult:
    """The rows of one bounded read, by offset. `has_more`: it stopped at a limit; `error`: the one that ended it."""

    rows: list[StoredMessage] = field(default_factory=list)
    has_more: bool = False
    error: CompactorError | None = None


def open_topic(broker: Broker, name: TopicName) -> Topic:
    """Return a topic that is not partitioned. Raise TopicNotFound, PartitionedTopicRefused."""
    names.check_not_partitioned(broker.environment, name)
    return Topic(broker.environment, names.topic(broker.environment, name))


def message_page(broker: Broker, name: TopicName, query: PageQuery, losses: LossCache) -> MessagePage:
    """Read a page of a topic's messages, and cache the losses that its reads meet. Waits for the store.

    Raise TopicNotFound, InvalidInput for a time, PartitionedTopicRefused.
    """
    topic = open_topic(broker, name)
    errors: list[CompactorError] = []
    page = _page_of_key(broker, topic, query, errors) if query.key else _page_at_position(broker, topic, query, errors)
    losses.record_losses(topic.record.id, errors)
    present = known_compacted_read_error(topic, broker.environment.store, losses)
    raw = known_raw_read_error(topic, broker.environment.store, losses)
    page = replace(page, is_unreadable=is_topic_unreadable(present, raw, errors))
    if present is not None and True in query.view.read_compacted_flags and not _is_partial_loss(present):
        errors.append(present)  # the page may need no message of the compacted ledger
    return _with_errors(page, errors)


def _is_partial_loss(error: CompactorError) -> bool:
    """Return whether an error is the loss of an object other than the manifest, which only some pages need."""
    lost = lost_object(error)
    return lost is not None and lost.kind is not ObjectKind.MANIFEST


def _page_at_position(broker: Broker, topic: Topic, query: PageQuery, errors: list[CompactorError]) -> MessagePage:
    """Read the page that begins or ends at the offset or the time of the query."""
    start, end = 0, None
    if query.time:
        start = _first_offset_since(topic, query.view, parse_time(query.time), errors)
    elif query.offset is not None:
        start = min(max(query.offset, 0), OFFSETS)
    elif query.before is not None:
        end = min(max(query.before, 0), OFFSETS)
    elif query.order is Order.NEWEST:
        end = OFFSETS
    return _read_page(broker, topic, query, start, end, errors)


def _page_of_key(broker: Broker, topic: Topic, query: PageQuery, errors: list[CompactorError]) -> MessagePage:
    """Read the page that ends with the newest message of a key, and keep the messages of that key."""
    key = query.key.encode()
    should_stop = Deadline(broker.environment.clock, LOOKUP_MS)
    try:
        try:
            newest = topic.newest_message(key, should_stop=should_stop)
        except SegmentNotLocal as error:
            errors.append(error)
            newest = topic.newest_message(key, sealed_only=True, should_stop=should_stop)
    except CompactorError as error:
        errors.append(error)
        return MessagePage(topic.name, query, ())
    if newest is None:
        return MessagePage(topic.name, query, (), is_missing_key=True)
    page = _read_page(broker, topic, query, 0, newest.offset + 1, errors)
    return replace(page, messages=[item for item in page.messages if item[0].key == key])


def _with_errors(page: MessagePage, errors: Sequence[CompactorError]) -> MessagePage:
    """Return the page with errors, their texts, each once, and the steps after the first loss among them.

    The public text of the object that the failure describes says less, so it is left out.
    """
    failures = [failure for error in errors if (failure := failure_of_read(error)) is not None]
    described = [failure.lost for failure in failures[:1]]
    problems = dict.fromkeys(
        public_reason(error, PAGE_WITH_STEPS_WORDING)
        for error in errors
        if lost_object(error) is None or lost_object(error) not in described
    )
    failure = failures[0] if failures else None
    return replace(page, problems=list(problems), failure=failure, errors=errors)


def _read_page(
    broker: Broker, topic: Topic, query: PageQuery, start: int, end: int | None, errors: list[CompactorError]
) -> MessagePage:
    """Read the page that begins at `start`; if `end` is not None, the page that ends before it."""
    reads = {
        flag: _read_forward(topic, start, flag) if end is None else _read_backward(topic, end, flag)
        for flag in query.view.read_compacted_flags
    }
    errors += [read.error for read in reads.values() if read.error is not None]
    offsets, has_more = page_offsets(reads.values(), is_forward=end is None)
    first = offsets[0] if offsets else start if end is None else end
    after = offsets[-1] + 1 if offsets else first
    older = has_more if end is not None else first > 0 and _has_message_before(topic, first, query.view)
    newer = has_more if end is None else end < OFFSETS and _has_message_from(topic, after, query.view)
    messages = _messages_with_states(broker, topic, reads, offsets, errors)
    if query.order is Order.NEWEST:
        messages.reverse()
    horizon = topic.snapshot().horizon
    return MessagePage(
        topic.name,
        query,
        messages,
        first if older else None,
        after if newer else None,
        horizon=None if horizon is None else horizon.offset,
        raw_offsets="" if messages else raw_offsets_text(topic),
        is_cut_by_size=has_more and len(offsets) < PAGE_MESSAGES,
    )


class PageOffsets(NamedTuple):
    """The offsets of a page, ascending. `has_more`: more follow in its direction."""

    offsets: list[int]
    has_more: bool


def raw_offsets_text(topic: Topic) -> str:
    """Return the offsets of the topic's raw messages as a clause; empty: they are not known here."""
    reader = topic.snapshot_reader()
    try:
        first, end = reader.first_offset, reader.end
    except CompactorError:  # the end is in another log directory
        return ""
    return f"raw messages have the offsets {first:,} to {end - 1:,}" if first < end else "there are no raw messages"


def page_offsets(reads: Collection[ReadResult], *, is_forward: bool) -> PageOffsets:
    """Merge the offsets of the reads of a page, and cut them to the size of a page.

    Where a read has stopped at a limit, a message beyond its last one may be in that read or not: it is left out.
    """
    offsets = sorted({row.offset for read in reads for row in read.rows})
    ends = [read.rows[-1 if is_forward else 0].offset for read in reads if read.has_more]
    if ends:
        offsets = [offset for offset in offsets if (offset <= min(ends) if is_forward else offset >= max(ends))]
    has_more = bool(ends) or len(offsets) > PAGE_MESSAGES
    return PageOffsets(offsets[:PAGE_MESSAGES] if is_forward else offsets[-PAGE_MESSAGES:], has_more)


def _read_forward(topic: Topic, start: int, read_compacted: bool) -> ReadResult:
    read, size = ReadResult(), 0
    batches = topic.read(StartOffset(start) if start else EARLIEST, read_compacted, PAGE_MESSAGES + 1)
    try:
        with closing(batches):
            for batch in batches:
                for row in stored_messages(batch, topic.name.partition, PREVIEW_BYTES):
                    if size >= PAGE_BYTES:
                        read.has_more = True
                        return read
                    read.rows.append(row)
                    size += row.payload_size
    except CompactorError as error:
        read.error = error
    read.has_more = len(read.rows) > PAGE_MESSAGES
    return read


def _read_backward(topic: Topic, end: int, read_compacted: bool) -> ReadResult:
    try:
        batches, has_more = topic.read_before(end, read_compacted, PAGE_MESSAGES + 1, PAGE_BYTES)
    except SegmentNotLocal as error:  # the messages that are sealed
        segments = [extent for extent in topic.snapshot().extents if isinstance(extent, SegmentRecord)]
        sealed_end = min((segment.first_offset for segment in segments), default=end)
        read = _read_backward(topic, sealed_end, read_compacted) if sealed_end < end else ReadResult()
        return replace(read, error=read.error or error)
    except CompactorError as error:
        return ReadResult(error=error)
    rows = [row for batch in batches for row in stored_messages(batch, topic.name.partition, PREVIEW_BYTES)]
    return ReadResult(rows, has_more)


def _first_offset_since(topic: Topic, view: View, start: StartPosition, errors: list[CompactorError]) -> int:
    """Return the offset of the first message that was published at a time or later; without one, OFFSETS. Errors are
    added to `errors`."""
    offsets = [OFFSETS]
    for flag in view.read_compacted_flags:
        try:
            position = topic.first_at(start, read_compacted=flag)
        except CompactorError as error:
            errors.append(error)
            continue
        if position is not None:
            offsets.append(position.offset)
    return min(offsets)


def _has_message_before(topic: Topic, offset: int, view: View) -> bool:
    with suppress(CompactorError):
        return any(topic.read_before(offset, flag, max_messages=1)[0] for flag in view.read_compacted_flags)
    return False


def _has_message_from(topic: Topic, offset: int, view: View) -> bool:
    with suppress(CompactorError):
        for flag in view.read_compacted_flags:
            with closing(topic.read(StartOffset(offset), flag, max_messages=1)) as batches:
                if next(batches, None) is not None:
                    return True
    return False


def _messages_with_states(
    broker: Broker,
    topic: Topic,
    reads: Mapping[bool, ReadResult],
    offsets: Sequence[int],
    errors: list[CompactorError],
) -> list[tuple[StoredMessage, MessageState]]:
    """Return the messages of a page with their states, which are empty unless both reads succeeded. An error of the
    search for newer messages is added to `errors`."""
    rows_by_read = {flag: {row.offset: row for row in read.rows} for flag, read in reads.items()}
    messages = [next(rows[offset] for rows in rows_by_read.values() if offset in rows) for offset in offsets]
    if len(reads) == 1 or any(read.error is not None for read in reads.values()):
        return [(message, MessageState()) for message in messages]
    newest = newest_by_key(broker, topic, messages, errors)
    return [
        (
            message,
            message_state(message, message.offset in rows_by_read[False], message.offset in rows_by_read[True], newest),
        )
        for message in messages
    ]


@dataclass
class Deadline:
    """A function that returns whether a search must end: `allowed_ms` after the first call, since what a first search
    loads does not count."""

    clock: Clock
    allowed_ms: int = SEARCH_MS
    end_ms: int | None = None

    def __call__(self) -> bool:
        now = self.clock.now_ms()
        self.end_ms = now + self.allowed_ms if self.end_ms is None else self.end_ms
        return now > self.end_ms


def newest_by_key(
    broker: Broker, topic: Topic, messages: Sequence[StoredMessage], errors: list[CompactorError]
) -> Mapping[bytes, NewestOffset | None] | None:
    """Return the newest message of each key of some messages, as far as it is known in time.

    `messages`: in ascending order. None for a key: compaction removed its newest message. None: an error ended the
    search, and was added to `errors`.
    """
    keys = [message.key for message in messages if message.key is not None]
    try:
        return topic.newest_offsets(keys, messages[0].offset, Deadline(broker.environment.clock)) if keys else {}
    except CompactorError as error:
        errors.append(error)
        return None


def message_state(
    message: StoredMessage, is_in_raw: bool, is_in_compacted: bool, newest: Mapping[bytes, NewestOffset | None] | None
) -> MessageState:
    """Return the effect of compaction on a message. `newest`: the newest message of each key that is known; None: the
    search for them failed."""
    record = None if message.key is None or newest is None else newest.get(message.key)
    is_part = message.kind is RowType.CHUNK and is_in_compacted  # of the newest message, which ends at its last chunk
    is_superseded = record is not None and record.offset != message.offset and not is_part
    return MessageState(
        record if is_superseded else None,
        record is not None and not is_superseded and is_in_compacted,
        not is_in_compacted,
        not is_in_raw,
        message.kind is RowType.MESSAGE
        and message.key is not None
        and newest is not None
        and message.key not in newest,
    )
