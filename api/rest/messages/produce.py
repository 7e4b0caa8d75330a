"""Producing over REST: Pulsar's bodies (`ProducerMessages`), or JSON Lines as `compactor produce` reads them.

Each message is an entry of its own, and is acknowledged when it is flushed by the topic's policy. Of a partitioned
topic a message goes to the partition that its key's hash names, or to the next one in turn. The answer has a line a
message; an error of one message leaves the others. Payloads are taken as they are: the schemas STRING, JSON and
BYTES change nothing about them, any other is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Request
from starlette.responses import Response

from api.background.maintenance_loop import QUOTA_CHECK_MS
from api.broker import names
from api.broker.refusals import NotTheOwner
from api.broker.serving.key_routing import partition_of
from api.broker.threads import WaitsFor
from api.formats.text_encoding import TextEncoding, to_text
from api.http.access import AuthAction
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic, segment
from api.http.problems import RestException, log_for_operators, public_reason, status_of
from api.http.query_parameters import AUTHORITATIVE
from api.http.router import Routes
from api.observability.redaction import excerpt
from api.rest.messages.produce_models import JSON_LINES, NewMessage, ProducerAck, ProducerAcks, ProducerMessages, parsed
from api.rest.models import INT
from storage.entries.encode import encode_message
from storage.errors import CompactorError, Conflict, InvalidRecord, LeaseHeld, Unavailable
from storage.log.group_commit import Answer
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import MessageId, TopicName
from storage.options.policies import HOLD
from storage.topic import Topic as OpenTopic

router = Routes("produce", "/topics")

RETRY, REFUSED = 1, 2
"""Error codes of a message: the same may work later; it cannot be taken."""
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
    TOPIC_PATH,
    AuthAction.PRODUCE,
    AUTHORITATIVE,
    refuses=(409, 415, 507),
    response_model=ProducerAcks,
    openapi_extra=_BODY,
)
async def produce(
    broker: Broker,
    request: Request,
    topic: Topic,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> Response:
    """Append messages to a topic, or to the partitions of a partitioned one."""
    records = await broker.pools[WaitsFor.DATABASE].run(_records, broker, topic)
    return await _produced(broker, request, records, key_encoding, value_encoding)


@router.post(
    TOPIC_PATH + "/partitions/{partition}",
    AuthAction.PRODUCE,
    AUTHORITATIVE,
    refuses=(409, 415, 507),
    response_model=ProducerAcks,
    openapi_extra=_BODY,
)
async def produce_to_partition(
    broker: Broker,
    request: Request,
    topic: Topic,
    partition: Annotated[int, Path(ge=0, le=INT)],
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> Response:
    """Append messages to one partition, whatever their keys."""
    if topic.partition >= 0:
        raise RestException(400, "Topic name can't contain '-partition-' suffix.")
    records = await broker.pools[WaitsFor.DATABASE].run(_alone, broker, topic.of_partition(partition))
    return await _produced(broker, request, records, key_encoding, value_encoding)


def _records(broker: Broker, name: TopicName) -> list[TopicRecord | None]:
    """Return the topic, or its partitions by number; None: that partition was deleted. Raises RestException (404).

    Raises NotTheOwner for a topic that another service writes, before the body is read: it goes there as it comes. A
    key's partition is found by the number of all, or its messages would be in two.
    """
    whole = broker.environment.metadata.partitions.find(name)
    if whole is None:
        return _alone(broker, name)
    existing = {partition.name: partition for partition in names.partitions(broker.environment, whole)}
    if not existing:
        raise RestException(404, "Topic partitions were not yet created")
    return [existing.get(item) for item in names.partition_names(whole)]


def _alone(broker: Broker, name: TopicName) -> list[TopicRecord | None]:
    """Return the record of one topic or partition. Raises NotTheOwner, RestException."""
    record = names.topic(broker.environment, name)
    _check_here(broker, record)
    return [record]


async def _produced(
    broker: Broker, request: Request, records: Sequence[TopicRecord | None], key: TextEncoding, value: TextEncoding
) -> Response:
    parsing = broker.pools[WaitsFor.PARSING]
    kind, body = request.headers.get("content-type", ""), await request.body()
    messages = await parsing.run(parsed, kind, body, key, value, broker.settings.limits_messages)
    del body
    of_record = await parsing.run(_by_target, broker, messages, records)
    results: list[ProducerAck | None] = [None] * len(messages)
    for number, places in of_record.items():
        record, some = records[number], [messages[at] for at in places]
        try:
            if record is None:
                raise RestException(404, f"the partition {number} was deleted: createMissedPartitions brings it back")
            acks = await broker.pools[WaitsFor.LOG].run(_appended, broker, record, some)
        except NotTheOwner as other:
            if len(records) == 1 or record is None:
                raise
            acks = await _sent(broker, request, other.service, record, some)
        except (CompactorError, RestException) as error:
            if len(records) == 1:
                raise
            log_for_operators(request, error)
            acks = [_failed(item, error) for item in some]
        for at, ack in zip(places, acks, strict=True):
            results[at] = ack
    return await parsing.run(_answered, results)


def _by_target(
    broker: Broker, messages: Sequence[NewMessage], records: Sequence[TopicRecord | None]
) -> dict[int, list[int]]:
    """Return the places in the body of each record's messages, by the record's index in `records`, in order."""
    targets: dict[int, list[int]] = {}
    for at, message in enumerate(messages):
        targets.setdefault(_target(broker, message, records), []).append(at)
    return dict(sorted(targets.items()))


def _answered(results: Sequence[ProducerAck | None]) -> Response:
    acks = ProducerAcks(message_publish_results=[result for result in results if result is not None])
    return Response(acks.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")


def _check_here(broker: Broker, record: TopicRecord) -> None:
    """Raise NotTheOwner, RestException or StorageFull, unless this service writes the topic or may try to."""
    if not broker.logs.is_open(record):
        broker.ownership.check_for_writing(record)
    broker.environment.log.check_room()


def _check_quota(broker: Broker, record: TopicRecord) -> None:
    """Raise RestException (409, 503) while the topic's backlog is over a quota that keeps producers from it."""
    over = broker.maintenance.maintenance.over_quota.get(record.id)
    if over is not None:
        again = {"Retry-After": str(QUOTA_CHECK_MS // 1000)} if over.action == HOLD else None
        raise RestException(status_of(over.error), str(over.error), again)


def _appended(broker: Broker, record: TopicRecord, messages: Sequence[NewMessage]) -> list[ProducerAck]:
    _check_here(broker, record)
    _check_quota(broker, record)
    now = broker.environment.clock.now_ms()
    entries: list[bytes] = []
    refused: dict[int, CompactorError] = {}
    for number, message in enumerate(messages):
        try:
            entries.append(_entry(message, now))
        except InvalidRecord as error:
            refused[number] = error
    answers: Iterator[Answer] = iter(())
    if entries:
        try:
            answers = iter(broker.logs.append(OpenTopic(broker.environment, record), entries))
        except LeaseHeld as error:
            broker.ownership.check_for_writing(record)
            raise RestException(503, public_reason(error), {"Retry-After": "1"}) from error
    return [
        _ack(message, refused[number] if number in refused else next(answers), record.name.partition)
        for number, message in enumerate(messages)
    ]


async def _sent(
    broker: Broker, request: Request, service: ServiceRecord, record: TopicRecord, messages: Sequence[NewMessage]
) -> list[ProducerAck]:
    """Send the messages of one partition to the service that owns it, and return their results."""
    name, parsing = record.name, broker.pools[WaitsFor.PARSING]
    path = "/".join(("/topics/persistent", *map(segment, (name.tenant, name.namespace, name.topic))))
    target = f"{path}?keyEncoding=base64&valueEncoding=base64"
    body = await parsing.run(_forwarded_body, messages)
    json = {"content-type": "application/json"}
    try:
        answer = await context_of(request).proxy.send(request, service, "POST", target, body, json)
        if answer.status_code == 200:
            acks = await parsing.run(ProducerAcks.model_validate_json, answer.content)
            return acks.message_publish_results
        raise RestException(answer.status_code, str(answer.json().get("reason", "")))
    except (CompactorError, RestException, ValueError) as error:  # other messages of the request are appended already
        return [_failed(message, error) for message in messages]


def _forwarded_body(messages: Sequence[NewMessage]) -> bytes:
    """Encode the messages for another service: JSON, with keys and payloads in base64."""
    lines = [
        {
            "key": None if message.key is None else to_text(message.key, TextEncoding.BASE64),
            "payload": None if message.payload is None else to_text(message.payload, TextEncoding.BASE64),
            "properties": dict(message.properties),
            "eventTime": message.event_time,
            "sequenceId": message.sequence_id,
            "context": message.context,
        }
        for message in messages
    ]
    return msgspec.json.encode({"producerName": messages[0].producer, "messages": lines})


def _target(broker: Broker, message: NewMessage, records: Sequence[TopicRecord | None]) -> int:
    """Return the index in `records` for a message; without a key, partitions that exist take turns.

    Raises RestException (400).
    """
    partitions = len(records)
    if message.partition is not None:
        if message.partition >= partitions:
            raise RestException(400, f"there is no partition {message.partition}: there are {partitions}")
        return message.partition
    if partitions == 1:
        return 0
    if message.key is not None:
        return partition_of(message.key, partitions, 0)
    existing = [number for number, record in enumerate(records) if record is not None]
    return existing[partition_of(None, len(existing), broker.logs.turn())]


def _entry(message: NewMessage, now: int) -> bytes:
    return encode_message(
        message.key,
        message.payload,
        producer=message.producer,
        sequence_id=message.sequence_id,
        publish_time=now if message.publish_time is None else message.publish_time,
        event_time=message.event_time,
        properties=message.properties,
    )


def _ack(message: NewMessage, answer: Answer, partition: int) -> ProducerAck:
    if isinstance(answer, CompactorError):
        return _failed(message, answer)
    first = answer.first.message_id
    return ProducerAck(message_id=str(MessageId(first.ledger_id, first.entry_id, partition)), context=message.context)


def _failed(message: NewMessage, error: Exception) -> ProducerAck:
    retry = isinstance(error, Conflict | Unavailable) or (isinstance(error, RestException) and error.status_code >= 500)
    reason = public_reason(error) if isinstance(error, CompactorError) else str(error)
    return ProducerAck(error_code=RETRY if retry else REFUSED, error_msg=excerpt(reason), context=message.context)
