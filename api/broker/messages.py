"""Operations on messages: append them, and find single ones: the last, by id, by number, by time, the newest of a key.

Appending has three steps, since a request may hold messages for several partitions, which other services may own:
`topic_or_partitions` finds them, `assign_to_partitions` assigns the messages, `append` appends those of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from api.broker import names
from api.broker.entries import check_entry_number_limit, entries, nth, with_id
from api.broker.key_hashes import partition_of
from api.broker.refusals import BacklogQuotaExceeded, MissingEntry, MissingPartition
from storage.entries.encode import encode_message
from storage.errors import CompactorError, InvalidInput, InvalidRecord, LeaseHeld, OffsetOutOfRange
from storage.ledger import rows
from storage.model import MessageId
from storage.positions import StartOffset, StartTime
from storage.topic import Topic

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from api.broker.entries import Entry
    from storage.log.group_commit import AppendOutcome, OnAnswered
    from storage.metadata.records import TopicRecord
    from storage.model import Message, TopicName
    from storage.positions import ContinuationToken

MessageRank = tuple[int, int, int]
"""A sort key for the messages of one key in several partitions: the newest message has the largest one."""


class RankedMessage(NamedTuple):
    """The newest message of a key in a partition, and a rank by which it is compared with those of other partitions."""

    rank: MessageRank
    message: Message


@dataclass(frozen=True)
class NewMessage:
    """A message to append.

    `event_time`, `publish_time`: milliseconds since the Unix epoch; None: no event time; published now. `partition`:
    the number of a partition, instead of the one that the key selects. `context`: the caller's own text for the result.
    """

    key: bytes | None
    payload: bytes | None
    properties: Sequence[tuple[str, str]]
    event_time: int | None
    publish_time: int | None
    sequence_id: int
    producer: str
    partition: int | None = None
    context: str | None = None


def topic_or_partitions(broker: Broker, name: TopicName) -> list[TopicRecord | None]:
    """Return the record of a topic, or of each partition by number; None in place of a deleted partition.

    A deleted partition keeps its number, since the number of all partitions decides on the partition of a key. Raise
    MissingPartition if all partitions are deleted; the errors of `writable_topic` for a topic without partitions.
    """
    partitioned = broker.environment.metadata.partitions.find(name)
    if partitioned is None:
        return [writable_topic(broker, name)]
    existing = {partition.name: partition for partition in names.partitions(broker.environment, partitioned)}
    if not existing:
        raise MissingPartition(name)
    return [existing.get(item) for item in names.partition_names(partitioned)]


def writable_topic(broker: Broker, name: TopicName) -> TopicRecord:
    """Return the record of a topic or partition if this service may append to it.

    Raise TopicNotFound, NotTheOwner, WriterElsewhere, NoLogOwner, StorageFull.
    """
    record = names.topic(broker.environment, name)
    _check_writable(broker, record)
    return record


def assign_to_partitions(
    broker: Broker, messages: Sequence[NewMessage], records: Sequence[TopicRecord | None]
) -> Mapping[int, Sequence[int]]:
    """Assign each message to a topic of `records`; return indexes in `messages`, ascending, by index in `records`.

    `records`: as `topic_or_partitions` returns them. Messages without a key go to the existing partitions in turn.
    Raise InvalidInput for a partition that the topic never had.
    """
    existing = [number for number, record in enumerate(records) if record is not None]
    places: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        if message.partition is not None:
            number = message.partition
            if number >= len(records):
                count = "1 partition, 0" if len(records) == 1 else f"the partitions 0 to {len(records) - 1}"
                raise InvalidInput(f"there is no partition {number}", f"the topic has {count}")
        elif message.key is not None:
            number = partition_of(message.key, len(records))
        else:
            number = existing[broker.logs.next_round_robin_number() % len(existing)] if len(records) > 1 else 0
        places.setdefault(number, []).append(place)
    return dict(sorted(places.items()))


def append(broker: Broker, record: TopicRecord, messages: Sequence[NewMessage]) -> list[AppendOutcome]:
    """Append messages to a topic, each as an entry of its own; return an AppendResult or an error for each, in order.

    Raise NotTheOwner, WriterElsewhere, NoLogOwner, LeaseHeld, StorageFull, Unavailable, BacklogQuotaExceeded; then
    nothing was appended.
    """
    answered: SimpleQueue[list[AppendOutcome]] = SimpleQueue()
    submit(broker, record, messages, answered.put)
    return answered.get()


def submit(broker: Broker, record: TopicRecord, messages: Sequence[NewMessage], on_answered: OnAnswered) -> None:
    """Append messages to a topic without waiting for the disk: a thread calls `on_answered` with the outcomes later.

    `on_answered` must be quick. Raise the errors of `append`; then `on_answered` is not called.
    """
    _check_writable(broker, record)
    over = broker.maintenance.maintenance.over_quota.get(record.id)
    if over is not None:
        raise BacklogQuotaExceeded(over)
    now = broker.environment.clock.now_ms()
    encoded = [_encode_or_error(message, now) for message in messages]
    errors = [entry for entry in encoded if isinstance(entry, CompactorError)]
    if len(errors) == len(encoded):
        on_answered([*errors])
        return
    try:
        broker.logs.submit(Topic(broker.environment, record), encoded, on_answered)
    except LeaseHeld:
        broker.ownership.check_for_writing(record)
        raise


def _check_writable(broker: Broker, record: TopicRecord) -> None:
    """Raise an error if another process writes the topic, or if the disk of the log is full."""
    broker.ownership.check_for_writing(record)
    broker.environment.log.check_space()


def _encode_or_error(message: NewMessage, now: int) -> bytes | CompactorError:
    """Encode a message as an entry; return the error of a message that cannot be encoded."""
    try:
        return encode_message(
            message.key,
            message.payload,
            producer=message.producer,
            sequence_id=message.sequence_id,
            publish_time=now if message.publish_time is None else message.publish_time,
            event_time=message.event_time,
            properties=message.properties,
        )
    except InvalidRecord as error:
        return error


def open_for_reading(broker: Broker, name: TopicName, continuation: ContinuationToken) -> Topic:
    """Return a topic for reads from a position on; raise an error if this service cannot read from there.

    `continuation`: the position. Raise PartitionedTopicRefused, TopicNotFound, NotTheOwner; OffsetOutOfRange if
    `continuation` names a compacted ledger that the topic never had.
    """
    environment = broker.environment
    record = names.unpartitioned_topic(environment, name)
    broker.ownership.check_for_reading(record, continuation.start)
    ledger_id = None if continuation.compacted is None else continuation.compacted.ledger_id
    if ledger_id is not None and not environment.metadata.runs.has_published(record.id, ledger_id):
        raise OffsetOutOfRange(
            f"the start {continuation.to_token()} names the compacted ledger {ledger_id}, which {name} has never had",
            "read again from earliest, into an empty state",
        )
    return Topic(environment, record)


class LastMessage(NamedTuple):
    """The last message of a topic. `batch_size`: the messages of its batch; 0: it is in no batch."""

    message_id: MessageId
    batch_size: int


def last_message(broker: Broker, name: TopicName, read_compacted: bool) -> LastMessage:
    """Return the id of the last message that a reader gets, and the size of its batch.

    `read_compacted`: of a compacted read. The id is EARLIEST if the topic has no message (R6). Raise
    PartitionedTopicRefused, TopicNotFound, NotTheOwner.
    """
    topic = _open_local_topic(broker, name)
    last = topic.last_message_id(read_compacted)
    if last.batch_index >= 0:
        for batch in topic.read(last, read_compacted, max_messages=1):
            if rows.message_id(batch, 0) == last:
                return LastMessage(last, int(batch.column("batch_size")[0].as_py()))
    return LastMessage(last, 0)


def first_id_since(broker: Broker, name: TopicName, publish_time_ms: int) -> MessageId:
    """Return the id of the first message, compacted or raw, that was published at `publish_time_ms` (Unix epoch) or
    later.

    Without such a message, return the id of the entry after the last one; EARLIEST if the topic has no message. Raise
    PartitionedTopicRefused, TopicNotFound, NotTheOwner.
    """
    topic = _open_local_topic(broker, name)
    position = topic.first_at(StartTime(publish_time_ms), read_compacted=True)
    if position is not None:
        return position.message_id
    last = topic.last_message_id()
    return MessageId(last.ledger_id, last.entry_id + 1) if last.ledger_id >= 0 else last


def entry(broker: Broker, name: TopicName, ledger_id: int, entry_id: int) -> Entry:
    """Read one raw entry of a topic by its id. Raise PartitionedTopicRefused, TopicNotFound, NotTheOwner,
    MissingEntry."""
    return with_id(_open_local_topic(broker, name), ledger_id, entry_id)


def nth_entry(broker: Broker, name: TopicName, entry_number: int) -> Entry:
    """Read one raw entry of a topic by its number, counted from 1 at the first entry. Raise PartitionedTopicRefused,
    EntryTooFar, TopicNotFound, NotTheOwner, MissingEntry."""
    names.check_not_partitioned(broker.environment, name)
    check_entry_number_limit(entry_number)
    topic = _open_local_topic(broker, name)
    return nth(entries(topic, StartOffset(0)), entry_number, topic)


def entry_of_nth_last_message(broker: Broker, name: TopicName, message_number: int) -> Entry:
    """Return the raw entry that holds message number `message_number`, counted from 1 at the last message backward.

    If the topic has fewer messages, return its first entry. Raise PartitionedTopicRefused, TopicNotFound, NotTheOwner,
    MissingEntry.
    """
    topic = _open_local_topic(broker, name)
    reader = topic.snapshot_reader()
    position = topic.first_raw_at_or_after(max(reader.end - message_number, reader.first_offset))
    if position is None:
        raise MissingEntry(name, "message")
    return with_id(topic, position.message_id.ledger_id, position.message_id.entry_id)


def newest_of_key(broker: Broker, name: TopicName, key: bytes, *, sealed_only: bool = False) -> RankedMessage | None:
    """Return the newest message of a key, which may be a tombstone, with its rank; None: the key has no message.

    For a partitioned topic, return the newest one of its partitions. `sealed_only`: leave out messages that are not
    sealed. Raise TopicNotFound; NotTheOwner unless `sealed_only`.
    """
    records = names.topics(broker.environment, name) if sealed_only else names.local_topics(broker, name)
    candidates = []
    for record in records:
        message = Topic(broker.environment, record).newest_message(key, sealed_only=sealed_only)
        if message is not None:
            candidates.append(RankedMessage(_rank(broker, record, key, message), message))
    return max(candidates, key=attrgetter("rank"), default=None)


def _rank(broker: Broker, record: TopicRecord, key: bytes, message: Message) -> MessageRank:
    """Return a sort key for the messages of one key in several partitions: the newest message has the largest.

    Partitions number their messages independently. If event time decides in each partition (P9), it decides between
    them; then the publish time; then whether the partition is the one to which the key belongs now.
    """
    metadata = broker.environment.metadata
    by_event = metadata.policies.effective(record).compaction_event_time_order
    event_time = message.event_time if by_event and message.event_time is not None else -(2**63)
    partitioned = (
        metadata.partitions.find(record.name.partitioned_topic) if record.name.partitioned_topic is not None else None
    )
    belongs = partitioned is not None and partition_of(key, partitioned.partitions) == record.name.partition
    return event_time, message.publish_time, int(belongs)


def _open_local_topic(broker: Broker, name: TopicName) -> Topic:
    """Return a topic for reading, if this service can read its newest messages. Raise PartitionedTopicRefused,
    TopicNotFound, NotTheOwner."""
    return Topic(broker.environment, names.local_topic(broker, name))
