"""Routes of single messages: the last, by time, by id, by number, the newest of a key.

The newest message of a key (T4) is located by the key indexes of the compacted ledger and of later ledgers: a few small
reads.
"""

from __future__ import annotations

import io
import json
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from api.broker import messages
from api.broker.entries import MOST_ENTRIES
from api.broker.threads import WaitsFor
from api.formats.jsonl import JsonLinesWriter
from api.formats.text_encoding import to_bytes
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.partition_fan_out import AGE
from api.http.paths import TOPIC_PATH, Topic, decode_path_part
from api.http.problems import RestException, reword_errors
from api.http.query_parameters import AUTHORITATIVE
from api.http.router import Routes
from api.rest.messages.encodings import Encodings
from api.rest.messages.entry_response import ENTRY, entry_response
from api.rest.models import INT, LONG, PulsarAnswer
from storage.model import MessageId, TopicName

router = Routes("messages")

_Id = Annotated[int, Path(ge=0, le=LONG)]


class MessageIdAnswer(PulsarAnswer):
    """A message id, as Pulsar's clients read it. `batchSize` 0, `batchIndex` -1: the message is in no batch."""

    ledger_id: int
    entry_id: int
    partition_index: int
    batch_size: int = 0
    batch_index: int = -1


class KeyMessage(BaseModel):
    """The newest message of a key, as `compactor get` shows it; times are milliseconds since 1970."""

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
    read_compacted: Annotated[
        bool, Query(alias="readCompacted", description="The last message of a reader with this flag.")
    ] = False,
) -> MessageIdAnswer:
    """Return the id of the last message that a reader gets; -1:-1 if there is none (R6)."""
    with reword_errors(partitioned="GetLastMessageId is not allowed on partitioned-topic"):
        last, batch_size = messages.last_message(broker, topic, read_compacted)
    return _message_id_answer(last, topic, last.batch_index, batch_size)


@router.get(
    TOPIC_PATH + "/messageid/{timestamp}", AuthAction.CONSUME, AUTHORITATIVE, refuses=(405,), waits_for=WaitsFor.STORE
)
def get_message_id_by_timestamp(
    broker: Broker, topic: Topic, timestamp: Annotated[int, Path(ge=0, le=LONG)]
) -> MessageIdAnswer:
    """Return the id of the first entry, compacted or raw, that was published at a time (ms) or later."""
    reason = (
        "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific topic "
        "partition"
    )
    with reword_errors(partitioned=reason):
        return _message_id_answer(messages.first_id_since(broker, topic, timestamp), topic)


@router.get(TOPIC_PATH + "/ledger/{ledger}/entry/{entry}", AuthAction.CONSUME, AUTHORITATIVE, **ENTRY)
def get_message_by_id(broker: Broker, topic: Topic, ledger: _Id, entry: _Id) -> Response:
    """Return a raw entry by its ledger id and entry id. Payload and metadata are those of the stored entry."""
    with reword_errors(partitioned="GetMessageById is not allowed on partitioned-topic"):
        return entry_response(messages.entry(broker, topic, ledger, entry))


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
    """Return the raw entry that is the n-th from the beginning, or that holds the n-th message from the end."""
    reason = (
        "Examine messages on a partitioned topic is not allowed, please try examine message on specific topic partition"
    )
    find = messages.nth_entry if initial_position == "earliest" else messages.entry_of_nth_last_message
    with reword_errors(partitioned=reason):
        return entry_response(find(broker, topic, message_position))


SealedOnly = Annotated[
    bool,
    Query(
        alias="sealedOnly",
        description="Only messages that are sealed into the object store, without the newest ones: for a topic whose "
        "log is on a machine that is down.",
    ),
]


_KEY: dict[str, Any] = {"waits_for": WaitsFor.STORE, "response_model": KeyMessage, "response_model_exclude_unset": True}


@router.get(TOPIC_PATH + "/key", AuthAction.CONSUME, **_KEY, operation_id="getEmptyKey")
@router.get(TOPIC_PATH + "/key/{key}", AuthAction.CONSUME, **_KEY)
def get_key(
    broker: Broker,
    request: Request,
    response: Response,
    topic: Topic,
    encodings: Encodings,
    sealed_only: SealedOnly = False,
    key: str = "",
) -> Any:
    """Return the newest message of a key, compacted and raw together. 404 for a key without one, or with a tombstone.
    For a partitioned topic, return the newest message of its partitions. In a path, percent-encode all of a key but
    letters and digits; a query parameter names a key that no path can hold, for example the empty one."""
    text = decode_path_part(key) if "key" in request.path_params else key
    try:
        key_bytes = to_bytes(text, encodings.key)
    except ValueError as error:
        raise RestException(400, f"the key is not of the given encoding: {error}") from error
    newest = messages.newest_of_key(broker, topic, key_bytes, sealed_only=sealed_only)
    headers = {} if newest is None else {AGE: ":".join(map(str, newest.rank))}
    if newest is None or newest.message.is_tombstone:
        raise RestException(404, f"the key {text[:100]!r} of {topic} has no value", headers)
    buffer = io.BytesIO()
    JsonLinesWriter(buffer, *encodings).write(newest.message)
    response.headers.update(headers)
    return json.loads(buffer.getvalue())


def _message_id_answer(
    message_id: MessageId, topic: TopicName, batch_index: int = -1, batch_size: int = 0
) -> MessageIdAnswer:
    return MessageIdAnswer(
        ledger_id=message_id.ledger_id,
        entry_id=message_id.entry_id,
        partition_index=topic.partition,
        batch_size=batch_size,
        batch_index=batch_index,
    )
