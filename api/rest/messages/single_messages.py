"""Single messages of a topic: the last, one by time, by id, by its place, the newest of a key.

A point read (T4) uses the key indexes of the compacted ledger and of what was appended since: a few small reads.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from api.broker import names
from api.broker.serving.key_routing import partition_of
from api.broker.threads import WaitsFor
from api.formats.jsonl import JsonLinesWriter
from api.formats.text_encoding import TextEncoding, to_bytes
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic, decoded
from api.http.problems import RestException, reported_as
from api.http.query_parameters import AUTHORITATIVE
from api.http.router import Routes
from api.rest.messages.entry_response import (
    ENTRY,
    MOST_ENTRIES,
    NOT_FOUND,
    entries,
    entry_of,
    entry_response,
    refuse_far,
)
from api.rest.models import INT, LONG, PulsarAnswer
from storage.errors import InvalidInput
from storage.ledger import rows
from storage.metadata.records import TopicRecord
from storage.model import Message, MessageId, TopicName
from storage.positions import StartOffset, StartTime
from storage.topic import Topic as OpenTopic

router = Routes("messages")

AGE = "X-Compactor-Age"
"""Of the newest message of a key, also of a tombstone: what partitions in several services are compared by."""
KeyEncoding = Annotated[TextEncoding, Query(alias="keyEncoding", description="How the key is given.")]
ValueEncoding = Annotated[TextEncoding, Query(alias="valueEncoding", description="How the value is shown.")]
_Id = Annotated[int, Path(ge=0, le=LONG)]


class MessageIdAnswer(PulsarAnswer):
    """A message id as Pulsar's clients read it. `batchSize` 0, `batchIndex` -1: not in a batch."""

    ledger_id: int
    entry_id: int
    partition_index: int
    batch_size: int = 0
    batch_index: int = -1


class KeyMessage(BaseModel):
    """A message, as `compactor get` shows it."""

    message_id: str
    offset: int
    key: str | None
    value: str | None
    publish_time: int
    event_time: int | None = None
    properties: dict[str, str] | None = None


@router.get(TOPIC_PATH + "/lastMessageId", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405,), waits_for=WaitsFor.STORE)
def get_last_message_id(
    broker: Broker,
    topic: Topic,
    read_compacted: Annotated[bool, Query(alias="readCompacted", description="Of a reader with the flag.")] = False,
) -> MessageIdAnswer:
    """The id of the last message that a reader gets; -1:-1 if there is none (R6)."""
    with reported_as(partitioned="GetLastMessageId is not allowed on partitioned-topic"):
        names.check_not_partitioned(broker.environment, topic)
    opened = _opened(broker, topic)
    last = opened.last_message_id(read_compacted)
    size = _batch_size(opened, last, read_compacted) if last.batch_index >= 0 else 0
    return _answer(last, topic, last.batch_index, size)


@router.get(
    TOPIC_PATH + "/messageid/{timestamp}", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405,), waits_for=WaitsFor.STORE
)
def get_message_id_by_timestamp(
    broker: Broker, topic: Topic, timestamp: Annotated[int, Path(ge=0, le=LONG)]
) -> MessageIdAnswer:
    """The first entry that was published at that time (ms) or later: of the compacted ledger, if it has one."""
    reason = (
        "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific topic "
        "partition"
    )
    with reported_as(partitioned=reason):
        names.check_not_partitioned(broker.environment, topic)
    opened = _opened(broker, topic)
    position = opened.first_at(StartTime(timestamp), read_compacted=True)
    if position is not None:
        return _answer(position.message_id, topic)
    last = opened.last_message_id()
    return _answer(MessageId(last.ledger_id, last.entry_id + 1) if last.ledger_id >= 0 else last, topic)


@router.get(TOPIC_PATH + "/ledger/{ledger}/entry/{entry}", AuthAction.CONSUME, AUTHORITATIVE, **ENTRY)
def get_message_by_id(broker: Broker, topic: Topic, ledger: _Id, entry: _Id) -> Response:
    """One raw entry, by its id."""
    with reported_as(partitioned="GetMessageById is not allowed on partitioned-topic"):
        names.check_not_partitioned(broker.environment, topic)
    return entry_of(_opened(broker, topic), ledger, entry)


@router.get(TOPIC_PATH + "/examinemessage", AuthAction.CONSUME, AUTHORITATIVE, **ENTRY)
def examine_message(
    broker: Broker,
    topic: Topic,
    initial_position: Annotated[Literal["earliest", "latest"], Query(alias="initialPosition")] = "latest",
    message_position: Annotated[
        int,
        Query(alias="messagePosition", ge=1, le=INT, description=f"From earliest at most {MOST_ENTRIES}."),
    ] = 1,
) -> Response:
    """The raw entry that is the n-th from the beginning, or that holds the n-th message from the end."""
    reason = (
        "Examine messages on a partitioned topic is not allowed, please try examine message on specific topic partition"
    )
    with reported_as(partitioned=reason):
        names.check_not_partitioned(broker.environment, topic)
    if initial_position == "earliest":
        refuse_far(message_position)
    opened = _opened(broker, topic)
    if initial_position == "earliest":
        entry = next(islice(entries(opened, StartOffset(0)), message_position - 1, None), None)
        if entry is None:
            raise RestException(404, NOT_FOUND)
        return entry_response(entry)
    reader = opened.snapshot_reader()
    place = opened.locate(max(reader.end - message_position, reader.first_offset))
    if place is None:
        raise RestException(404, NOT_FOUND)
    return entry_of(opened, place.message_id.ledger_id, place.message_id.entry_id)


SealedOnly = Annotated[
    bool,
    Query(
        alias="sealedOnly",
        description="Only what is sealed into the object store, without the newest messages: for a topic whose log "
        "is on a machine that is away.",
    ),
]


@router.get(
    TOPIC_PATH + "/key/{key}",
    AuthAction.CONSUME,
    waits_for=WaitsFor.STORE,
    response_model=KeyMessage,
    response_model_exclude_none=False,
)
def get_key(
    broker: Broker,
    response: Response,
    topic: Topic,
    key: Annotated[str, Path(description="The key; percent-encode what is not letters and digits.")],
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    sealed_only: SealedOnly = False,
) -> Any:
    """The newest message of a key, compacted and raw together; of a partitioned topic, of its partitions."""
    return _of_key(broker, response, topic, decoded(key), key_encoding, value_encoding, sealed_only)


@router.get(TOPIC_PATH + "/key", AuthAction.CONSUME, waits_for=WaitsFor.STORE, response_model=KeyMessage)
def get_empty_key(
    broker: Broker,
    response: Response,
    topic: Topic,
    key: Annotated[str, Query(description='The key; "" is a key like any other.')] = "",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    sealed_only: SealedOnly = False,
) -> Any:
    """Return the same as `…/key/{key}`, with the key as a query parameter: for keys that no path can hold."""
    return _of_key(broker, response, topic, key, key_encoding, value_encoding, sealed_only)


def _of_key(
    broker: Broker,
    response: Response,
    topic: TopicName,
    key: str,
    encoding: TextEncoding,
    value: TextEncoding,
    sealed_only: bool,
) -> Any:
    try:
        key_bytes = to_bytes(key, encoding)
    except ValueError as error:
        raise RestException(400, f"the key is not of the given encoding: {error}") from error
    records = names.topics(broker.environment, topic) if sealed_only else names.local_topics(broker, topic)
    of_partitions = _newest(broker, records, key_bytes, sealed_only)
    candidates = [(_age(broker, record, message), message) for record, message in of_partitions]
    age, newest = max(candidates, key=lambda item: item[0], default=(None, None))
    headers = {} if age is None else {AGE: ":".join(map(str, age))}
    if newest is None or newest.is_tombstone:
        raise RestException(404, f"the key {key[:100]!r} of {topic} has no value", headers)
    buffer = io.BytesIO()
    try:
        JsonLinesWriter(buffer, encoding, value).write(newest)
    except InvalidInput as error:
        raise InvalidInput(error.message, "ask with keyEncoding=base64 or valueEncoding=base64") from error
    response.headers.update(headers)
    return json.loads(buffer.getvalue())


def _newest(
    broker: Broker, records: Sequence[TopicRecord], key: bytes, sealed_only: bool
) -> Iterator[tuple[TopicRecord, Message]]:
    """Yield the newest message of a key in each partition that has one, tombstones too."""
    for record in records:
        message = OpenTopic(broker.environment, record).newest(key, sealed_only=sealed_only)
        if message is not None:
            yield record, message


def _age(broker: Broker, record: TopicRecord, message: Message) -> tuple[int, int, int]:
    """Return the order of a message among those of one key in several partitions: the largest is the newest.

    Where event time decides in each partition (P9), it decides between them; then the publish time; then whether the
    partition is the one that the key goes to now. Partitions number their messages each for itself.
    """
    by_event = broker.environment.metadata.policies.effective(record).compaction_event_time_order
    event_time = message.event_time if by_event and message.event_time is not None else -(2**63)
    whole = record.name.whole
    partitioned = broker.environment.metadata.partitions.find(whole) if whole is not None else None
    is_there = partitioned is not None and (
        partition_of(message.key, partitioned.partitions, 0) == record.name.partition
    )
    return event_time, message.publish_time, int(is_there)


def _opened(broker: Broker, name: TopicName) -> OpenTopic:
    return OpenTopic(broker.environment, names.local_topic(broker, name))


def _answer(message_id: MessageId, topic: TopicName, batch_index: int = -1, batch_size: int = 0) -> MessageIdAnswer:
    return MessageIdAnswer(
        ledger_id=message_id.ledger_id,
        entry_id=message_id.entry_id,
        partition_index=topic.partition,
        batch_size=batch_size,
        batch_index=batch_index,
    )


def _batch_size(topic: OpenTopic, last: MessageId, read_compacted: bool) -> int:
    for batch in topic.read(last, read_compacted, max_messages=1):
        if rows.message_id(batch, 0) == last:
            return int(batch.column("batch_size")[0].as_py())
    return 0
