"""Bodies of produce requests: Pulsar's `ProducerMessages`, or JSON Lines as `compactor produce` reads them.

Before a body is parsed, the number of its messages and the number of its JSON values are checked. So a parser takes
milliseconds, whatever the body holds. All functions run in a thread (`api/broker/threads.py`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from api.broker.messages import NewMessage
from api.formats.jsonl import parse_json_lines
from api.formats.text_encoding import to_bytes
from api.http import json_bounds
from api.http.problems import RestException, validation_summary
from api.rest.messages.encodings import MessageEncodings
from api.rest.models import LONG, PulsarAnswer, PulsarBody

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
DEFAULT_PRODUCER = "RestProducer"
"""The name of a producer that the body does not name, as in Pulsar."""
VALUES_A_MESSAGE = 32
"""The largest number of JSON values in a body, for each message that it may hold."""
_MESSAGE_DEPTH = 2
"""The depth of a message in the body: an object in an array in an object."""
_PLAIN_SCHEMAS = ("STRING", "JSON", "BYTES", "NONE")
_SHOWN = 100
"""The number of characters of a caller's name that a refusal repeats."""


def _empty_text_to_none(value: object) -> object:
    """Return None for an empty text, which means an absent number, as in Jackson; any other value unchanged."""
    return None if value == "" else value


class ProducerMessage(PulsarBody):
    """A message to produce. `payload` null: the tombstone of its key. `partition`: instead of the partition of its key.

    `publishTime`: milliseconds since 1970, instead of the time of the append; an extension of Pulsar's body.
    """

    model_config = ConfigDict(extra="forbid")  # a misspelled key would store a message without one

    payload: str | None
    key: str | None = None
    properties: dict[str, str] | None = None
    event_time: Annotated[int | None, BeforeValidator(_empty_text_to_none)] = Field(None, ge=-LONG - 1, le=LONG)
    publish_time: int | None = Field(None, ge=-LONG - 1, le=LONG)
    sequence_id: int = Field(0, ge=-1, le=LONG)
    partition: int | None = Field(default=None, ge=0)
    context: str | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    deliver_at: int = 0
    deliver_after_ms: int = 0


class ProducerMessages(PulsarBody):
    """The body of a produce request. A schema is the JSON text of Pulsar's SchemaInfo."""

    model_config = ConfigDict(extra="forbid")

    messages: list[ProducerMessage] = Field(min_length=1, fail_fast=True)
    producer_name: str | None = None
    key_schema: str | None = None
    value_schema: str | None = None
    schema_version: int = -1


class ProducerAck(PulsarAnswer):
    """The result of one produced message. `errorCode` 0: it is acknowledged; 1: try again; 2: it is refused."""

    message_id: str | None = None
    error_code: int = 0
    error_msg: str | None = None
    context: str | None = None
    schema_version: int = 0


class ProducerAcks(PulsarAnswer):
    """The results of all messages of a produce request, in their order."""

    message_publish_results: list[ProducerAck]
    schema_version: int = 0


def parse_messages(content_type: str, body: bytes, encodings: MessageEncodings, limit: int) -> list[NewMessage]:
    """Return the messages in the body of a produce request. Raise RestException: 400 for an invalid body, 413 for more
    than `limit` messages, 415 for an unknown content type; InvalidRecord for an invalid line."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in JSON_LINES:
        if not body.strip():
            return []
        if body.count(b"\n", 0, -1) >= limit:
            raise _too_many_messages_error(limit)
        _count_containers(body, limit)
        return [
            NewMessage(
                row.key, row.payload, row.properties or (), row.event_time, row.publish_time, number, DEFAULT_PRODUCER
            )
            for number, row in enumerate(parse_json_lines(body, *encodings))
        ]
    if kind not in ("application/json", ""):
        raise RestException(
            415, f"the content type {kind[:_SHOWN]} is not known: send application/json or application/x-ndjson"
        )
    if _count_containers(body, limit)[_MESSAGE_DEPTH] > limit:
        raise _too_many_messages_error(limit)
    try:
        request = ProducerMessages.model_validate_json(body)
    except ValidationError as error:
        raise RestException(400, f"the messages cannot be taken: {validation_summary(error)}") from error
    for schema in (request.key_schema, request.value_schema):
        _check_plain_schema(schema)
    producer = request.producer_name or DEFAULT_PRODUCER
    return [_new_message(message, producer, encodings) for message in request.messages]


def _count_containers(body: bytes, limit: int) -> list[int]:
    """Return the number of JSON arrays and objects in a body at each depth. Raise RestException (413) for more values
    than `limit` messages may have."""
    try:
        return json_bounds.count_containers_by_depth(body, limit * VALUES_A_MESSAGE)
    except json_bounds.JsonBoundsError as error:
        raise RestException(413, f"the body cannot be taken, {error}: {error.remedy}") from error


def _too_many_messages_error(limit: int) -> RestException:
    return RestException(
        413, f"the body holds more than {limit} messages: send fewer at once, or raise limits.messages"
    )


def _new_message(message: ProducerMessage, producer: str, encodings: MessageEncodings) -> NewMessage:
    """Return a message of the body as a message to append. Raise RestException (400) for one that cannot be stored."""
    if message.deliver_at or message.deliver_after_ms:
        raise RestException(
            400, "deliverAt and deliverAfterMs are not kept over REST: leave them out, or produce with a Pulsar client"
        )
    try:
        return NewMessage(
            None if message.key is None else to_bytes(message.key, encodings.key),
            None if message.payload is None else to_bytes(message.payload, encodings.value),
            list((message.properties or {}).items()),
            message.event_time,
            message.publish_time,
            message.sequence_id,
            producer,
            message.partition,
            message.context,
        )
    except (ValueError, TypeError) as error:
        raise RestException(400, f"the messages cannot be taken: {error}") from error


def _check_plain_schema(text: str | None) -> None:
    """Raise RestException (400) for a schema whose messages this service would have to encode. `text`: a SchemaInfo."""
    if not text:
        return
    try:
        kind = json_bounds.parse_bounded_json(text.encode())["type"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RestException(400, "a schema is the JSON text of a SchemaInfo, with its type") from error
    if kind not in _PLAIN_SCHEMAS:
        reason = f"messages of the schema {str(kind)[:_SHOWN]} cannot be encoded here"
        raise RestException(400, f"{reason}: encode them, and send valueEncoding=base64")
