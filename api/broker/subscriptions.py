"""Operations on subscriptions: the durable cursors of a topic.

An operation on a partitioned topic applies to the subscription of each partition, unless it refuses partitioned
topics. Where this service serves a subscription to connected consumers, the operation uses the cursor on which they
acknowledge. No cursor moves backward but by a reset.

`__compaction` is the compaction horizon: storage refuses to move it (A4), and it never expires (S9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from api.broker import names
from api.broker.entries import MOST_ENTRIES, check_entry_number_limit, entries, entry_id_of, nth
from api.broker.positions import mark_delete_before
from compactor.maintenance.backlog_limits import bytes_from, extent_sizes
from storage.advice import Advice, AdviceKind
from storage.cursor import Cursor
from storage.errors import CompactionCursorProtected, CompactorError, Conflict, CursorExists, Fenced, NotFound
from storage.ledger.object_check import first_damaged_ledger
from storage.metadata.records import COMPACTION_CURSOR
from storage.model import EARLIEST, LATEST
from storage.positions import StartOffset, StartTime
from storage.topic import Topic

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from api.broker.entries import Entry
    from api.broker.positions import CursorPosition
    from storage.environment import Environment
    from storage.metadata.records import CursorRecord, TopicRecord
    from storage.model import MessageId, TopicName


NextOffsets = Sequence[int]
"""The offset that a subscription delivers next, in each partition."""


@dataclass
class BacklogCounts:
    """Counts of a subscription's backlog. `first_entry`, `last_entry`: the ledger id and entry id of its first and last
    entry; None: it is empty.

    `is_cut_off`: the backlog has more entries than were counted.
    """

    entries: int = 0
    messages: int = 0
    first_entry: tuple[int, int] | None = None
    last_entry: tuple[int, int] | None = None
    is_cut_off: bool = False


def of_topic(environment: Environment, name: TopicName) -> list[str]:
    """Return the sorted names of the subscriptions of a topic, or of all its partitions. Raise TopicNotFound."""
    cursors = environment.metadata.cursors
    return sorted({cursor.name for record in names.topics(environment, name) for cursor in cursors.of_topic(record.id)})


def names_without_compaction(environment: Environment, record: TopicRecord) -> list[str]:
    """Return the names of a topic's subscriptions, sorted, without `__compaction`."""
    return [
        cursor.name for cursor in environment.metadata.cursors.of_topic(record.id) if cursor.name != COMPACTION_CURSOR
    ]


def create(
    broker: Broker, name: TopicName, subscription: str, position: CursorPosition, properties: Mapping[str, str]
) -> None:
    """Create a durable subscription that delivers the first message at or after `position` next.

    An id after the end counts as the end. Messages that the subscription has not acknowledged are not trimmed.
    `__compaction` is created without a horizon, wherever `position` is. Raise TopicNotFound, NotTheOwner, InvalidInput
    for the name or the properties; CursorExists if each partition has it.
    """
    environment = broker.environment
    records = names.local_topics(broker, name)

    def create_in(record: TopicRecord) -> None:
        if subscription != COMPACTION_CURSOR:
            create_cursor(environment, record, subscription, position, properties)
            return
        if _has_cursor(environment, record, subscription):
            raise CursorExists(record.name, subscription)
        environment.metadata.cursors.ensure(record.id, subscription)
        if properties:
            environment.metadata.cursors.set_properties(record.id, subscription, properties)

    _apply_tolerating(create_in, records, CursorExists)


def create_cursor(
    environment: Environment,
    record: TopicRecord,
    subscription: str,
    position: CursorPosition,
    properties: Mapping[str, str],
) -> CursorRecord:
    """Create a cursor of one topic that delivers the first message at or after `position` next. Raise CursorExists,
    InvalidInput for `__compaction`, the name, the properties or an offset after the end."""
    mark = mark_delete_before(Topic(environment, record), position)
    return environment.metadata.cursors.create(record.id, subscription, mark, properties)


def delete(broker: Broker, name: TopicName, subscription: str, force: bool = False) -> None:
    """Delete a subscription. Deleting `__compaction` retires the compacted ledger and ends the active run.

    `force`: disconnect its consumers, and delete `__compaction` as `delete_cursor` does. Raise TopicNotFound,
    NotTheOwner, CursorNotFound; SubscriptionHasConsumers, Conflict and Unavailable unless forced.
    """

    def delete_from(record: TopicRecord) -> None:
        live = broker.clients.subscription(record, subscription)
        if live is not None:
            live.prepare_deletion(force)
        delete_cursor(broker.environment, record, subscription, force)

    _change_in_each_partition(broker, name, subscription, delete_from, needs_messages=False)


def delete_cursor(environment: Environment, record: TopicRecord, subscription: str, force: bool = False) -> None:
    """Delete a cursor of one topic from the database. Deleting `__compaction` also retires the compacted ledger.

    `force`: also if raw messages that the next run needs are trimmed, or their objects are missing in the store or too
    short (R8). Raise CursorNotFound; Conflict and Unavailable unless forced.
    """
    if subscription == COMPACTION_CURSOR and not force:
        _check_raw_objects(environment, record)
    environment.metadata.cursors.delete(record.id, subscription, force)


def properties(environment: Environment, name: TopicName, subscription: str) -> dict[str, str]:
    """Return the properties of a subscription, of a partitioned topic those of all partitions together.

    Raise TopicNotFound, CursorNotFound.
    """
    merged: dict[str, str] = {}
    for record in names.topics(environment, name):
        merged |= environment.metadata.cursors.get(record.id, subscription).properties
    return merged


def replace_properties(broker: Broker, name: TopicName, subscription: str, properties: Mapping[str, str]) -> None:
    """Replace all properties of a subscription. Raise TopicNotFound, NotTheOwner, CursorNotFound, InvalidInput."""
    replace = broker.environment.metadata.cursors.replace_properties
    _change_in_each_partition(
        broker, name, subscription, lambda record: replace(record.id, subscription, properties), needs_messages=False
    )


def reset(broker: Broker, name: TopicName, subscription: str, position: CursorPosition) -> NextOffsets:
    """Move a subscription, so that it delivers the first message at or after `position` next.

    Connected consumers are disconnected, and subscribe again. Return the offset after the new mark-delete position, for
    a partitioned topic one for each partition. The messages there may be trimmed: EARLIEST is offset 0.

    For a partitioned topic only a publish time is a position. Raise PartitionedTopicRefused, TopicNotFound,
    NotTheOwner, CursorNotFound, CompactionCursorProtected, InvalidInput for an offset after the end.
    """
    if not isinstance(position, StartTime):
        names.check_not_partitioned(broker.environment, name)

    offsets: dict[int, int] = {}

    def reset_in(record: TopicRecord) -> None:
        live = broker.clients.subscription(record, subscription)
        if live is None:
            offsets[record.id] = reset_cursor(broker.environment, record, subscription, position).mark_delete_offset + 1
        else:
            mark = mark_delete_before(Topic(broker.environment, record), position)
            live.reset(mark)
            offsets[record.id] = 0 if mark is None else mark.offset + 1

    _change_in_each_partition(broker, name, subscription, reset_in)
    return list(offsets.values())


def reset_cursor(
    environment: Environment, record: TopicRecord, subscription: str, position: CursorPosition
) -> CursorRecord:
    """Move a cursor of one topic in the database to `position`; a process that has the cursor open is fenced. Raise
    NotFound, CompactionCursorProtected, InvalidInput for an offset after the end."""
    if subscription == COMPACTION_CURSOR:  # refused before the topic is read
        raise CompactionCursorProtected(record.name)
    mark = mark_delete_before(Topic(environment, record), position)
    return environment.metadata.cursors.reset(record.id, subscription, mark)


def skip(broker: Broker, name: TopicName, subscription: str, count: int) -> None:
    """Acknowledge the first `count` unacknowledged messages of a subscription. Raise PartitionedTopicRefused,
    TopicNotFound, NotTheOwner, CursorNotFound, CompactionCursorProtected."""
    names.check_not_partitioned(broker.environment, name)

    def skip_in(record: TopicRecord) -> None:
        with _open_cursor(broker, record, subscription) as (topic, cursor):
            reader = topic.snapshot_reader()
            # Where raw is trimmed, a compacted ledger may still hold messages for this cursor's reader.
            start = reader.snapshot.topic.start_offset if reader.snapshot.compacted else reader.first_offset
            cursor.skip(count, reader.end, start)

    _change_in_each_partition(broker, name, subscription, skip_in)


def clear_backlog(broker: Broker, name: TopicName, subscription: str) -> None:
    """Acknowledge all present messages of a subscription. Raise TopicNotFound, NotTheOwner, CursorNotFound,
    CompactionCursorProtected."""
    _change_in_each_partition(
        broker, name, subscription, lambda record: _acknowledge_before(broker, record, subscription, LATEST)
    )


def expire(broker: Broker, name: TopicName, subscription: str, seconds: int) -> None:
    """Acknowledge the messages of a subscription that are older than `seconds`. Raise TopicNotFound, NotTheOwner,
    CursorNotFound, CompactionCursorProtected."""
    oldest = _start_time_before_now(broker, seconds)
    _change_in_each_partition(
        broker, name, subscription, lambda record: _acknowledge_before(broker, record, subscription, oldest)
    )


def expire_all(broker: Broker, name: TopicName, seconds: int) -> None:
    """Acknowledge the messages of a topic that are older than `seconds`, for all its subscriptions but `__compaction`.

    Raise TopicNotFound, NotTheOwner.
    """
    oldest = _start_time_before_now(broker, seconds)
    records = names.local_topics(broker, name)
    broker.ownership.check_not_owned_elsewhere(*records)
    for record in records:
        for subscription in names_without_compaction(broker.environment, record):
            _acknowledge_before(broker, record, subscription, oldest)


def expire_before(broker: Broker, name: TopicName, subscription: str, position: CursorPosition) -> None:
    """Acknowledge the messages of a subscription before `position`. Raise PartitionedTopicRefused, TopicNotFound,
    NotTheOwner, CursorNotFound, CompactionCursorProtected, InvalidInput for an offset after the end."""
    names.check_not_partitioned(broker.environment, name)
    _change_in_each_partition(
        broker, name, subscription, lambda record: _acknowledge_before(broker, record, subscription, position)
    )


def peek(broker: Broker, name: TopicName, subscription: str, entry_number: int) -> Entry:
    """Return the n-th raw entry that a subscription delivers next, counted from 1, without acknowledging it.

    A missing subscription is created at the earliest message, as in Pulsar. Raise EntryTooFar,
    PartitionedTopicRefused, TopicNotFound, NotTheOwner, MissingEntry; CursorNotFound for a missing `__compaction`.
    """
    check_entry_number_limit(entry_number)
    record = names.local_topic(broker, name)
    if subscription != COMPACTION_CURSOR and not _has_cursor(broker.environment, record, subscription):
        with suppress(CursorExists):  # another caller was first
            create_cursor(broker.environment, record, subscription, EARLIEST, {})
    topic = Topic(broker.environment, record)
    source = _entries_with_unacknowledged_rows(broker, topic, subscription)
    return nth((entry for entry, rows in source if rows), entry_number, topic)


def analyze(broker: Broker, name: TopicName, subscription: str, start: MessageId | None = None) -> BacklogCounts:
    """Count the entries and messages of a subscription's backlog by reading at most `MOST_ENTRIES` + 1 entries.

    `start`: the first message to read; None: the position of the subscription.
    Raise PartitionedTopicRefused, TopicNotFound, NotTheOwner, CursorNotFound.
    """
    topic = Topic(broker.environment, names.local_topic(broker, name))
    content = BacklogCounts()
    source = _entries_with_unacknowledged_rows(broker, topic, subscription, start)
    for entry, rows in islice(source, MOST_ENTRIES + 1):
        if not rows:
            continue
        if content.entries == MOST_ENTRIES:
            content.is_cut_off = True
            break
        content.entries += 1
        content.messages += len(rows)
        content.last_entry = entry_id_of(entry[0])
        content.first_entry = content.first_entry or content.last_entry
    return content


def backlog_size(broker: Broker, name: TopicName, start: MessageId) -> int:
    """Return the approximate number of logical bytes of a topic at or after a message. Raise PartitionedTopicRefused,
    TopicNotFound, NotTheOwner."""
    environment = broker.environment
    record = names.local_topic(broker, name)
    sizes = extent_sizes(environment.metadata.topic_snapshot(record.id), environment.log)
    if start == EARLIEST:
        return bytes_from(sizes, 0)
    first = Topic(environment, record).first_at(start)
    return 0 if first is None else bytes_from(sizes, first.offset)


def _check_raw_objects(environment: Environment, record: TopicRecord) -> None:
    """Raise Conflict if the topic has a compacted ledger, and the store lacks a raw object that the next run needs to
    build it again. A topic with trimmed raw messages is not checked: the deletion of the cursor refuses it."""
    snapshot = environment.metadata.topic_snapshot(record.id)
    compacted = snapshot.compacted
    if compacted is None or snapshot.first_offset > 0:
        return
    damaged = first_damaged_ledger(environment.store, record.uid, snapshot.ledgers)
    if damaged is None:
        return
    ledger, error = damaged
    if all(item.ledger_id != ledger.ledger_id for item in environment.metadata.ledgers.of_topic(record.id)):
        return  # trimmed meanwhile
    raise Conflict(
        f"raw messages of {record.name} from offset {ledger.first_offset} to {ledger.last_offset} cannot be read: "
        f"{error.message}. The next run would need it, and the compacted ledger {compacted.ledger_id} "
        f"({compacted.messages} messages up to offset {compacted.horizon.offset}) goes with the cursor "
        f"{COMPACTION_CURSOR}",
        Advice(AdviceKind.RESTORE_RAW, {"ledger_id": compacted.ledger_id}),
    )


def _change_in_each_partition(
    broker: Broker,
    name: TopicName,
    subscription: str,
    change: Callable[[TopicRecord], object],
    needs_messages: bool = True,
) -> None:
    """Call `change` for a topic, or for each partition, to change a subscription; repeat a call that raises Fenced.

    `needs_messages`: the newest messages must be local. A partition may lack the subscription because an earlier
    deletion failed after it: a repeated call changes the others. Raise TopicNotFound, NotTheOwner; CursorNotFound if no
    partition has the subscription.
    """
    records = names.local_topics(broker, name) if needs_messages else names.topics(broker.environment, name)
    broker.ownership.check_not_owned_elsewhere(*records)  # the cursor of connected consumers is in their service

    def change_again_if_fenced(record: TopicRecord) -> None:
        try:
            change(record)
        except Fenced:  # another process moved the cursor, which is open again
            change(record)

    _apply_tolerating(change_again_if_fenced, records, NotFound)


def _apply_tolerating(
    operation: Callable[[TopicRecord], object], records: Sequence[TopicRecord], tolerated: type[CompactorError]
) -> None:
    """Call an operation for each topic. Raise the first error of the tolerated type only if all topics have one."""
    errors = []
    for record in records:
        try:
            operation(record)
        except tolerated as error:
            errors.append(error)
    if len(errors) == len(records):
        raise errors[0]


def _has_cursor(environment: Environment, record: TopicRecord, subscription: str) -> bool:
    return any(cursor.name == subscription for cursor in environment.metadata.cursors.of_topic(record.id))


def _start_time_before_now(broker: Broker, seconds: int) -> StartTime:
    """Return the position of the first message that is at most `seconds` old."""
    return StartTime(max(broker.environment.clock.now_ms() - seconds * 1000, 0))


def _acknowledge_before(broker: Broker, record: TopicRecord, subscription: str, position: CursorPosition) -> None:
    """Acknowledge all messages of a subscription before a position, even if the last of them is trimmed."""
    with _open_cursor(broker, record, subscription) as (topic, cursor):
        mark = mark_delete_before(topic, position)
        if mark is not None:
            cursor.acknowledge_cumulative(mark)


@contextmanager
def _open_cursor(broker: Broker, record: TopicRecord, subscription: str) -> Iterator[tuple[Topic, Cursor]]:
    """Yield a topic and the cursor of a subscription; store its acknowledgements at the end of the context.

    Connected consumers share the cursor, and get none of the acknowledged messages. Raise NotFound,
    CompactionCursorProtected.
    """
    if subscription == COMPACTION_CURSOR:
        raise CompactionCursorProtected(record.name)
    topic = Topic(broker.environment, record)
    live = broker.clients.subscription(record, subscription)
    if live is None:
        cursor = _open_stored_cursor(broker, topic, subscription)
        yield topic, cursor
        cursor.close()
    else:
        live.note_log_end(topic.snapshot_reader().end)
        yield topic, live.cursor
        live.store_caller_acknowledgements()


def _open_stored_cursor(broker: Broker, topic: Topic, subscription: str) -> Cursor:
    """Open the cursor of a subscription from the database. Raise CursorNotFound, CompactionCursorProtected."""
    metadata, end = broker.environment.metadata, lambda: topic.snapshot_reader().end
    return Cursor(metadata, topic.record, subscription, topic.first_raw_at_or_after, end)


def _entries_with_unacknowledged_rows(
    broker: Broker, topic: Topic, subscription: str, start: MessageId | None = None
) -> Iterator[tuple[Entry, Entry]]:
    """Yield each raw entry of a topic with the rows of it that a subscription has not acknowledged.

    `start`: the first message; None: the message after the mark-delete position. Raise CursorNotFound.
    """
    cursor: Cursor | None = None
    if subscription == COMPACTION_CURSOR:
        mark = broker.environment.metadata.cursors.get(topic.record.id, subscription).mark_delete
    else:
        live = broker.clients.subscription(topic.record, subscription)
        cursor = _open_stored_cursor(broker, topic, subscription) if live is None else live.cursor
        mark = cursor.mark_delete
    first = StartOffset(mark.offset + 1 if mark else 0) if start is None else start
    for entry in entries(topic, first):
        yield entry, [row for row in entry if cursor is None or not cursor.is_acknowledged(row["offset"])]
