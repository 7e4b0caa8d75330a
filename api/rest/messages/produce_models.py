"""Bodies of produce requests: Pulsar's `ProducerMessages`, or JSON Lines as `compactor produce` reads them.

Bounds, before anything is made of a body: how many messages it may hold, and how many values in all. So a parser takes
milliseconds at a time, whatever was sent. All of this runs in a thread (`api/broker/threads.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ConfigDict, Field, ValidationError

from api.formats.jsonl import parse_rows
from api.formats.text_encoding import TextEncoding, to_bytes
from api.http import json_bounds
from api.http.problems import RestException, shown_errors
from api.rest.models import LONG, PulsarAnswer, PulsarBody

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
DEFAULT_PRODUCER = "RestProducer"
"""Pulsar's."""
VALUES_A_MESSAGE = 32
"""JSON values that a body holds at most, for each message that it may hold."""
_MESSAGE_DEPTH = 2
"""A message is an object in an array in an object."""
_PLAIN_SCHEMAS = ("STRING", "JSON", "BYTES", "NONE")
_SHOWN = 100
"""Characters that a refusal repeats of a name that the caller gave."""


class ProducerMessage(PulsarBody):
    """One message. `payload` null: its key's tombstone. `partition`: of a partitioned topic, instead of the key's."""

    model_config = ConfigDict(extra="forbid")  # a misspelled key would store a message without one

    payload: str | None
    key: str | None = None
    properties: dict[str, str] | None = None
    event_time: int | str | None = None
    sequence_id: int = Field(0, ge=-1, le=LONG)
    partition: int | None = Field(default=None, ge=0)
    context: str | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    deliver_at: int = 0
    deliver_after_ms: int = 0


class ProducerMessages(PulsarBody):
    """Messages to produce. Schemas are the JSON texts of Pulsar's SchemaInfo."""

    model_config = ConfigDict(extra="forbid")

    messages: list[ProducerMessage] = Field(min_length=1, fail_fast=True)
    producer_name: str | None = None
    key_schema: str | None = None
    value_schema: str | None = None
    schema_version: int = -1


class ProducerAck(PulsarAnswer):
    """The result of one message. `errorCode` 0: it is acknowledged; 1: try again; 2: it cannot be taken."""

    message_id: str | None = None
    error_code: int = 0
    error_msg: str | None = None
    context: str | None = None
    schema_version: int = 0


class ProducerAcks(PulsarAnswer):
    """In the order of the messages."""

    message_publish_results: list[ProducerAck]
    schema_version: int = 0


@dataclass(frozen=True)
class NewMessage:
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


def parsed(content_type: str, body: bytes, key: TextEncoding, value: TextEncoding, limit: int) -> list[NewMessage]:
    """Parse the messages of a body, at most `limit`. Raises RestException 400, 413 or 415, InvalidRecord; nothing is
    appended then.

    Runs in a thread.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in JSON_LINES:
        if not body.strip():
            return []
        if body.count(b"\n", 0, -1) >= limit:
            raise _too_many(limit)
        _check_bounds(body, limit)
        return [
            NewMessage(
                row.key, row.payload, row.properties or (), row.event_time, row.publish_time, number, DEFAULT_PRODUCER
            )
            for number, row in enumerate(parse_rows(body, key, value))
        ]
    if kind not in ("application/json", ""):
        raise RestException(
            415, f"the content type {kind[:_SHOWN]} is not known: send application/json or application/x-ndjson"
        )
    if _check_bounds(body, limit)[_MESSAGE_DEPTH] > limit:
        raise _too_many(limit)
    try:
        sent = ProducerMessages.model_validate_json(body)
    except ValidationError as error:
        raise RestException(400, f"the messages cannot be taken: {shown_errors(error)}") from error
    for schema in (sent.key_schema, sent.value_schema):
        _check_schema(schema)
    return [_message(message, sent.producer_name or DEFAULT_PRODUCER, key, value) for message in sent.messages]


def _check_bounds(body: bytes, limit: int) -> list[int]:
    try:
        return json_bounds.check_bounds(body, limit * VALUES_A_MESSAGE)
    except json_bounds.JsonBoundsError as error:
        raise RestException(413, f"the body cannot be taken, {error}: send less at once") from error


def _too_many(limit: int) -> RestException:
    return RestException(
        413, f"the body holds more than {limit} messages: send fewer at once, or raise limits.messages"
    )


def _message(sent: ProducerMessage, producer: str, key: TextEncoding, value: TextEncoding) -> NewMessage:
    if sent.deliver_at or sent.deliver_after_ms:
        raise RestException(
            400, "deliverAt and deliverAfterMs are not kept over REST: leave them out, or produce with a Pulsar client"
        )
    try:
        event_time = int(sent.event_time) if sent.event_time not in (None, "") else None
        if event_time is not None and not -LONG - 1 <= event_time <= LONG:
            raise ValueError("eventTime does not fit into 64 bits")
        return NewMessage(
            None if sent.key is None else to_bytes(sent.key, key),
            None if sent.payload is None else to_bytes(sent.payload, value),
            list((sent.properties or {}).items()),
            event_time,
            None,
            sent.sequence_id,
            producer,
            sent.partition,
            sent.context,
        )
    except (ValueError, TypeError) as error:
        raise RestException(400, f"the messages cannot be taken: {error}") from error


def _check_schema(text: str | None) -> None:
    if not text:
        return
    try:
        kind = json_bounds.load(text.encode())["type"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RestException(400, "a schema is the JSON text of a SchemaInfo, with its type") from error
    if kind not in _PLAIN_SCHEMAS:
        reason = f"messages of the schema {str(kind)[:_SHOWN]} cannot be encoded here"
        raise RestException(400, f"{reason}: encode them, and send valueEncoding=base64")
