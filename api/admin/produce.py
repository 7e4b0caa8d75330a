"""Producing over REST: Pulsar's bodies (`ProducerMessages`), or JSON Lines as `compactor produce` reads them.

Each message is an entry of its own, and is acknowledged when it is flushed as the topic's policy says. Of a partitioned
topic a message goes to the partition that its key's hash names, or to the next one in turn. The answer has a line a
message; an error of one message does not undo the others. Payloads are taken as they are: the schemas STRING, JSON and
BYTES change nothing about them, any other is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from api.access import Action, allowed
from api.admin import existing
from api.admin.bodies import Strict
from api.formats.encoding import TextEncoding, to_bytes, to_text
from api.formats.jsonl import parse_rows
from api.forwarding import Elsewhere
from api.key_routing import partition_of
from api.paths import Topic
from api.problems import Problem, refusals, status_of
from api.service import Parts, Service
from api.upkeep import QUOTA_LOOK_MS
from storage.errors import CompactorError, Conflict, InvalidRecord, LeaseHeld, Unavailable
from storage.log.encode import encode_message
from storage.log.group_commit import Answer
from storage.metadata.control_records import ServiceRecord
from storage.metadata.records import TopicRecord
from storage.model import MessageId, TopicName
from storage.policies import HOLD
from storage.topic import Topic as OpenTopic

router = APIRouter(prefix="/topics", tags=["produce"])

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
DEFAULT_PRODUCER = "RestProducer"
"""Pulsar's."""
RETRY, REFUSED = 1, 2
"""Error codes of a message: the same may work later; it cannot be taken."""
_PLAIN_SCHEMAS = ("STRING", "JSON", "BYTES", "NONE")
_LONG = 2**63 - 1


class ProducerMessage(Strict):
    """One message. `payload` null: its key's tombstone. `partition`: of a partitioned topic, instead of the key's."""

    payload: str | None
    key: str | None = None
    properties: dict[str, str] | None = None
    eventTime: int | str | None = None  # noqa: N815
    sequenceId: int = Field(0, ge=-1, le=_LONG)  # noqa: N815
    partition: int | None = Field(default=None, ge=0)
    context: str | None = None
    replicationClusters: list[str] | None = None  # noqa: N815
    disableReplication: bool = False  # noqa: N815
    deliverAt: int = 0  # noqa: N815
    deliverAfterMs: int = 0  # noqa: N815


class ProducerMessages(Strict):
    """What is sent. Schemas are the JSON texts of Pulsar's SchemaInfo."""

    messages: list[ProducerMessage] = Field(min_length=1)
    producerName: str | None = None  # noqa: N815
    keySchema: str | None = None  # noqa: N815
    valueSchema: str | None = None  # noqa: N815
    schemaVersion: int = -1  # noqa: N815


class ProducerAck(BaseModel):
    """What came of one message. `errorCode` 0: it is acknowledged; 1: try again; 2: it cannot be taken."""

    messageId: str | None = None  # noqa: N815
    errorCode: int = 0  # noqa: N815
    errorMsg: str | None = None  # noqa: N815
    context: str | None = None
    schemaVersion: int = 0  # noqa: N815


class ProducerAcks(BaseModel):
    """In the order of the messages."""

    messagePublishResults: list[ProducerAck]  # noqa: N815
    schemaVersion: int = 0  # noqa: N815


@dataclass(frozen=True)
class _Message:
    """A message on its way. `publish_time` None: now."""

    key: bytes | None
    payload: bytes | None
    properties: Sequence[tuple[str, str]]
    event_time: int | None
    publish_time: int | None
    sequence_id: int
    producer: str
    partition: int | None = None
    context: str | None = None


KeyEncoding = Annotated[TextEncoding, Query(alias="keyEncoding", description="How keys stand in the body.")]
ValueEncoding = Annotated[TextEncoding, Query(alias="valueEncoding", description="How payloads stand in the body.")]


def _body_schema() -> dict[str, Any]:
    schema = ProducerMessages.model_json_schema()
    schema["properties"]["messages"]["items"] = schema.pop("$defs")["ProducerMessage"]
    return schema


_LINES = {"type": "string", "example": '{"key": "k", "value": "v"}\n'}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _body_schema()}, JSON_LINES[0]: {"schema": _LINES}},
    }
}


@router.post(
    "/persistent/{tenant}/{namespace}/{topic}",
    dependencies=[allowed(Action.PRODUCE)],
    operation_id="produce",
    response_model_exclude_none=True,
    openapi_extra=_BODY,
    responses=refusals(400, 404, 409, 412, 415, 507),
)
async def produce(
    parts: Parts,
    request: Request,
    topic: Topic,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    authoritative: bool = False,
) -> ProducerAcks:
    """Append messages to a topic, or to the partitions of a partitioned one."""
    records = await run_in_threadpool(_records, parts, topic)
    return await _produced(parts, request, records, key_encoding, value_encoding)


@router.post(
    "/persistent/{tenant}/{namespace}/{topic}/partitions/{partition}",
    dependencies=[allowed(Action.PRODUCE)],
    operation_id="produceToPartition",
    response_model_exclude_none=True,
    openapi_extra=_BODY,
    responses=refusals(400, 404, 409, 412, 415, 507),
)
async def produce_to_partition(
    parts: Parts,
    request: Request,
    topic: Topic,
    partition: Annotated[int, Path(ge=0, le=2**31 - 1)],
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    authoritative: bool = False,
) -> ProducerAcks:
    """Append messages to one partition, whatever their keys."""
    if topic.partition >= 0:
        raise Problem(400, "Topic name can't contain '-partition-' suffix.")
    name = type(topic)(topic.tenant, topic.namespace, f"{topic.topic}-partition-{partition}")
    record = await run_in_threadpool(existing.topic, parts, name)
    return await _produced(parts, request, [record], key_encoding, value_encoding)


def _records(parts: Service, name: TopicName) -> list[TopicRecord | None]:
    """The topic, or the partitions by their number; None: that one was deleted by itself. Raises Problem (404).

    A key's partition is found by the number of all, or its messages would lie in two.
    """
    whole = parts.components.metadata.tenancy.partitioned(name)
    if whole is None:
        return [existing.topic(parts, name)]
    there = {one.name: one for one in existing.partitions(parts, whole)}
    if not there:
        raise Problem(404, "Topic partitions were not yet created")
    return [there.get(one) for one in existing.partition_names(whole)]


async def _produced(
    parts: Service, request: Request, records: Sequence[TopicRecord | None], key: TextEncoding, value: TextEncoding
) -> ProducerAcks:
    if len(records) == 1 and records[0] is not None:  # before the body is read, so that it goes on as it comes
        await run_in_threadpool(_check_here, parts, records[0])
    messages = _parsed(request.headers.get("content-type", ""), await request.body(), key, value)
    targets = [_target(parts, one, records) for one in messages]
    results: list[ProducerAck | None] = [None] * len(messages)
    for number, record in enumerate(records):
        mine = [at for at, target in enumerate(targets) if target == number]
        if not mine:
            continue
        some = [messages[at] for at in mine]
        try:
            if record is None:
                raise Problem(404, f"the partition {number} was deleted: createMissedPartitions brings it back")
            acks = await run_in_threadpool(_appended, parts, record, some)
        except Elsewhere as other:
            if len(records) == 1 or record is None:
                raise
            acks = await _sent(parts, request, other.service, record, some)
        except (CompactorError, Problem) as error:
            if len(records) == 1:
                raise
            acks = [_failed(one, error) for one in some]
        for at, ack in zip(mine, acks, strict=True):
            results[at] = ack
    return ProducerAcks(messagePublishResults=[one for one in results if one is not None])


def _check_here(parts: Service, record: TopicRecord) -> None:
    """Raises Elsewhere, Problem or StorageFull, unless this service writes the topic or may try to."""
    if not parts.producers.is_open(record):
        parts.forwarding.for_writing(record)
    parts.components.log.check_room()


def _check_quota(parts: Service, record: TopicRecord) -> None:
    """Raises Problem (409, 503) while the topic's backlog is over a quota that keeps producers from it."""
    over = parts.maintenance.maintenance.over_quota.get(record.id)
    if over is not None:
        again = {"Retry-After": str(QUOTA_LOOK_MS // 1000)} if over.action == HOLD else None
        raise Problem(status_of(over.error), str(over.error), again)


def _appended(parts: Service, record: TopicRecord, messages: Sequence[_Message]) -> list[ProducerAck]:
    _check_here(parts, record)
    _check_quota(parts, record)
    now = parts.components.clock.now_ms()
    entries: list[bytes] = []
    refused: dict[int, CompactorError] = {}
    for number, one in enumerate(messages):
        try:
            entries.append(_entry(one, now))
        except InvalidRecord as error:
            refused[number] = error
    answers: Iterator[Answer] = iter(())
    if entries:
        try:
            answers = iter(parts.producers.append(_opened(parts, record), entries))
        except LeaseHeld as error:
            parts.forwarding.for_writing(record)
            raise Problem(503, str(error), {"Retry-After": "1"}) from error
    return [
        _ack(one, refused[number] if number in refused else next(answers), record.name.partition)
        for number, one in enumerate(messages)
    ]


def _opened(parts: Service, record: TopicRecord) -> OpenTopic:
    """The topic, without another look at its row."""
    one = parts.components
    return OpenTopic(one.metadata, one.store, one.clock, record, log=one.log)


async def _sent(
    parts: Service, request: Request, service: ServiceRecord, record: TopicRecord, messages: Sequence[_Message]
) -> list[ProducerAck]:
    """The messages of one partition, sent to the service that has it."""
    lines = [
        {
            "key": None if one.key is None else to_text(one.key, TextEncoding.BASE64),
            "payload": None if one.payload is None else to_text(one.payload, TextEncoding.BASE64),
            "properties": dict(one.properties),
            "eventTime": one.event_time,
            "sequenceId": one.sequence_id,
            "context": one.context,
        }
        for one in messages
    ]
    name = record.name
    path = "/".join(
        ("/topics/persistent", *(quote(part, safe="") for part in (name.tenant, name.namespace, name.topic)))
    )
    document = {"producerName": messages[0].producer, "messages": lines}
    try:
        found = await parts.forwarding.post(
            request, service, f"{path}?keyEncoding=base64&valueEncoding=base64", document
        )
        if found.status_code == 200:
            return ProducerAcks.model_validate(found.json()).messagePublishResults
        raise Problem(found.status_code, str(found.json().get("reason", "")))
    except (Problem, ValueError, ValidationError) as error:
        return [_failed(one, error) for one in messages]


def _target(parts: Service, message: _Message, records: Sequence[TopicRecord | None]) -> int:
    """Which of `records`. Without a key it is the turn of those that are there. Raises Problem (400)."""
    partitions = len(records)
    if message.partition is not None:
        if message.partition >= partitions:
            raise Problem(400, f"there is no partition {message.partition}: there are {partitions}")
        return message.partition
    if partitions == 1:
        return 0
    if message.key is not None:
        return partition_of(message.key, partitions, 0)
    there = [number for number, record in enumerate(records) if record is not None]
    return there[partition_of(None, len(there), parts.producers.turn())]


def _entry(message: _Message, now: int) -> bytes:
    return encode_message(
        message.key,
        message.payload,
        producer=message.producer,
        sequence_id=message.sequence_id,
        publish_time=now if message.publish_time is None else message.publish_time,
        event_time=message.event_time,
        properties=message.properties,
    )


def _ack(message: _Message, answer: Answer, partition: int) -> ProducerAck:
    if isinstance(answer, CompactorError):
        return _failed(message, answer)
    first = answer.first.message_id
    return ProducerAck(messageId=str(MessageId(first.ledger_id, first.entry_id, partition)), context=message.context)


def _failed(message: _Message, error: Exception) -> ProducerAck:
    retry = isinstance(error, Conflict | Unavailable) or (isinstance(error, Problem) and error.status_code >= 500)
    told = error.detail if isinstance(error, Problem) else str(error)
    return ProducerAck(errorCode=RETRY if retry else REFUSED, errorMsg=str(told), context=message.context)


def _parsed(content_type: str, body: bytes, key: TextEncoding, value: TextEncoding) -> list[_Message]:
    """Raises Problem 400 or 415, InvalidRecord; then nothing was appended."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in JSON_LINES:
        if not body.strip():
            return []
        return [
            _Message(
                row.key, row.payload, row.properties or (), row.event_time, row.publish_time, number, DEFAULT_PRODUCER
            )
            for number, row in enumerate(parse_rows(body, key, value))
        ]
    if kind not in ("application/json", ""):
        raise Problem(415, f"the content type {kind} is not known: send application/json or application/x-ndjson")
    try:
        sent = ProducerMessages.model_validate_json(body)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10])
        raise Problem(400, f"the messages cannot be taken: {said}") from error
    for schema in (sent.keySchema, sent.valueSchema):
        _check_schema(schema)
    return [_message(one, sent.producerName or DEFAULT_PRODUCER, key, value) for one in sent.messages]


def _message(sent: ProducerMessage, producer: str, key: TextEncoding, value: TextEncoding) -> _Message:
    if sent.deliverAt or sent.deliverAfterMs:
        raise Problem(400, "deliverAt and deliverAfterMs cannot be kept: a log delivers in order, at once")
    try:
        event_time = int(sent.eventTime) if sent.eventTime not in (None, "") else None
        if event_time is not None and not -(2**63) <= event_time <= _LONG:
            raise ValueError("eventTime does not fit into 64 bits")
        return _Message(
            None if sent.key is None else to_bytes(sent.key, key),
            None if sent.payload is None else to_bytes(sent.payload, value),
            list((sent.properties or {}).items()),
            event_time,
            None,
            sent.sequenceId,
            producer,
            sent.partition,
            sent.context,
        )
    except (ValueError, TypeError) as error:
        raise Problem(400, f"the messages cannot be taken: {error}") from error


def _check_schema(text: str | None) -> None:
    if not text:
        return
    try:
        kind = json.loads(text)["type"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Problem(400, "a schema is the JSON text of a SchemaInfo, with its type") from error
    if kind not in _PLAIN_SCHEMAS:
        raise Problem(
            400, f"messages of the schema {kind} cannot be encoded here: encode them, and send valueEncoding=base64"
        )
