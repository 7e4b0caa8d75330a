"""Producing over REST: Pulsar's bodies (`ProducerMessages`), or JSON Lines as `compactor produce` reads them.

Each message is an entry of its own, and is acknowledged as the topic's flush policy says. On a partitioned topic the
hash of its key decides on its partition; messages without a key go to the partitions in turn. The answer has a result
for each message; an error of one message does not affect the others. Payloads are appended unchanged: the schemas
STRING, JSON and BYTES do not alter them, and any other schema is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Path, Request
from starlette.responses import Response

from api.background.maintenance_loop import QUOTA_CHECK_MS
from api.broker import messages
from api.broker.messages import NewMessage
from api.broker.refusals import BacklogQuotaExceeded, NotTheOwner
from api.broker.threads import WaitsFor
from api.formats.text_encoding import TextEncoding, to_text
from api.http.access import AuthAction
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic, encode_path_segment
from api.http.problems import RestException, log_for_operators, public_reason
from api.http.query_parameters import AUTHORITATIVE
from api.http.router import Routes
from api.observability.redaction import redacted_excerpt
from api.rest.messages.encodings import Encodings, MessageEncodings
from api.rest.messages.produce_models import JSON_LINES, ProducerAck, ProducerAcks, ProducerMessages, parse_messages
from api.rest.models import INT
from storage.errors import CompactorError, Conflict, LeaseHeld, Unavailable
from storage.log.group_commit import AppendOutcome, OnAnswered
from storage.metadata.records import TopicRecord
from storage.model import MessageId

router = Routes("produce", "/topics")

RETRY, REFUSED = 1, 2
"""Error codes of a message: try again later; the message is refused."""


def _body_schema() -> dict[str, Any]:
    schema = ProducerMessages.model_json_schema()
    schema["properties"]["messages"]["items"] = schema.pop("$defs")["ProducerMessage"]
    return schema


_LINES = {"type": "string", "example": '{"key": "k", "value": "v"}\n'}
_BODY = {
    "required": True,
    "content": {"application/json": {"schema": _body_schema()}, JSON_LINES[0]: {"schema": _LINES}},
}
_PRODUCE: dict[str, Any] = {
    "refuses": (409, 415, 507),
    "response_model": ProducerAcks,
    "openapi_extra": {"requestBody": _BODY},
}


@router.post(TOPIC_PATH, AuthAction.PRODUCE, AUTHORITATIVE, **_PRODUCE)
async def produce(broker: Broker, request: Request, topic: Topic, encodings: Encodings) -> Response:
    """Append messages to a topic, or to the partitions of a partitioned topic."""
    records = await broker.pools[WaitsFor.DATABASE].run(messages.topic_or_partitions, broker, topic)
    return await _produce_messages(broker, request, records, encodings)


@router.post(TOPIC_PATH + "/partitions/{partition}", AuthAction.PRODUCE, AUTHORITATIVE, **_PRODUCE)
async def produce_to_partition(
    broker: Broker,
    request: Request,
    topic: Topic,
    partition: Annotated[int, Path(ge=0, le=INT)],
    encodings: Encodings,
) -> Response:
    """Append messages to one partition, whatever their keys."""
    if topic.partition >= 0:
        raise RestException(400, "Topic name can't contain '-partition-' suffix.")
    record = await broker.pools[WaitsFor.DATABASE].run(messages.writable_topic, broker, topic.of_partition(partition))
    return await _produce_messages(broker, request, [record], encodings)


async def _produce_messages(
    broker: Broker, request: Request, records: Sequence[TopicRecord | None], encodings: MessageEncodings
) -> Response:
    """Append the messages of a request, and return the answer with their results.

    `records`: the topic, or its partitions by number; None: a deleted partition. An error of one partition is the
    result of its messages; the error of a single topic is raised.
    """
    parsing = broker.pools[WaitsFor.PARSING]
    kind, body = request.headers.get("content-type", ""), await request.body()
    produced = await parsing.run(parse_messages, kind, body, encodings, broker.settings.limits_messages)
    del body
    acks: dict[int, ProducerAck] = {}
    for number, places in (await parsing.run(messages.assign_to_partitions, broker, produced, records)).items():
        record, part = records[number], [produced[place] for place in places]
        try:
            if record is None:
                raise RestException(404, f"the partition {number} was deleted: createMissedPartitions brings it back")
            answers = await broker.pools[WaitsFor.LOG].run_with_callback(_submit_messages, broker, record, part)
            part_acks = await parsing.run(_acks_of_outcomes, record, part, answers)
        except NotTheOwner as other:
            if len(records) == 1:
                raise
            part_acks = await _forward_messages(broker, request, other, part)
        except (CompactorError, RestException) as error:
            if len(records) == 1:
                raise
            log_for_operators(request, error)
            part_acks = [_failed_ack(message, error) for message in part]
        acks.update(zip(places, part_acks, strict=True))
    return await parsing.run(_acks_response, [acks[place] for place in sorted(acks)])


def _acks_response(acks: Sequence[ProducerAck]) -> Response:
    content = ProducerAcks(message_publish_results=list(acks))
    return Response(content.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")


def _submit_messages(broker: Broker, record: TopicRecord, part: Sequence[NewMessage], on_answered: OnAnswered) -> None:
    """Submit messages to the log of a topic; `on_answered` is called with their outcomes. Raise RestException over a
    backlog quota (409, 503), or while another process opens the log (503)."""
    try:
        messages.submit(broker, record, part, on_answered)
    except BacklogQuotaExceeded as error:
        retry = {"Retry-After": str(QUOTA_CHECK_MS // 1000)} if error.holds else None
        raise RestException(503 if error.holds else 409, str(error), retry) from error
    except LeaseHeld as error:
        raise RestException(503, public_reason(error), {"Retry-After": "1"}) from error


def _acks_of_outcomes(
    record: TopicRecord, part: Sequence[NewMessage], answers: Sequence[AppendOutcome]
) -> list[ProducerAck]:
    return [
        _ack_of_outcome(message, answer, record.name.partition) for message, answer in zip(part, answers, strict=True)
    ]


async def _forward_messages(
    broker: Broker, request: Request, other: NotTheOwner, part: Sequence[NewMessage]
) -> list[ProducerAck]:
    """Send the messages of one partition to the service that owns it, and return their results. An error is the result
    of each message."""
    name, parsing = other.topic.name, broker.pools[WaitsFor.PARSING]
    path = "/".join(("/topics/persistent", *map(encode_path_segment, (name.tenant, name.namespace, name.topic))))
    target = f"{path}?keyEncoding=base64&valueEncoding=base64"
    body = await parsing.run(_forwarded_body, part)
    json = {"content-type": "application/json"}
    try:
        answer = await context_of(request).proxy.send(request, other.service, "POST", target, body, json)
        if answer.status_code == 200:
            acks = await parsing.run(ProducerAcks.model_validate_json, answer.content)
            return acks.message_publish_results
        raise RestException(answer.status_code, str(answer.json().get("reason", "")))
    except (CompactorError, RestException, ValueError) as error:  # other messages of the request are appended already
        return [_failed_ack(message, error) for message in part]


def _forwarded_body(part: Sequence[NewMessage]) -> bytes:
    """Return the JSON body of a produce request that sends the messages to another service, with keys and payloads in
    Base64."""
    lines = [
        {
            "key": None if message.key is None else to_text(message.key, TextEncoding.BASE64),
            "payload": None if message.payload is None else to_text(message.payload, TextEncoding.BASE64),
            "properties": dict(message.properties),
            "eventTime": message.event_time,
            "sequenceId": message.sequence_id,
            "context": message.context,
        }
        | ({} if message.publish_time is None else {"publishTime": message.publish_time})
        for message in part
    ]
    return msgspec.json.encode({"producerName": part[0].producer, "messages": lines})


def _ack_of_outcome(message: NewMessage, answer: AppendOutcome, partition: int) -> ProducerAck:
    if isinstance(answer, CompactorError):
        return _failed_ack(message, answer)
    first = answer.first.message_id
    return ProducerAck(message_id=str(MessageId(first.ledger_id, first.entry_id, partition)), context=message.context)


def _failed_ack(message: NewMessage, error: Exception) -> ProducerAck:
    """Return the result of a message that an error refused: try again, or refused for good."""
    retry = isinstance(error, Conflict | Unavailable) or (isinstance(error, RestException) and error.status_code >= 500)
    reason = public_reason(error) if isinstance(error, CompactorError) else str(error)
    return ProducerAck(
        error_code=RETRY if retry else REFUSED, error_msg=redacted_excerpt(reason), context=message.context
    )
