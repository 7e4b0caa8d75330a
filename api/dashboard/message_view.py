"""One message with all that its producer sent: its payload in several views, its properties, its batch or chunk.

What is shown is bounded: `PAYLOAD_BYTES` of a payload are read, `PROPERTIES` properties listed, and `payload_views.py`
bounds each view. A payload that an encryption or a chunk makes unreadable is not decoded, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from api.broker import schema_values
from api.broker.broker import Broker
from api.broker.schema_values import NotDecoded
from api.broker.schemas import type_name
from api.dashboard.lost_objects import LossCache, is_topic_unreadable, known_compacted_read_error, known_raw_read_error
from api.dashboard.message_browser import MessageState, message_state, newest_by_key, open_topic, raw_offsets_text
from api.dashboard.payload_views import PayloadView, payload_views, with_visible_controls
from api.dashboard.rendering import MessageNotFound
from storage.entries.stored_message import StoredMessage, stored_messages
from storage.errors import CompactorError
from storage.ledger.rows import RowType
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName
from storage.positions import StartOffset
from storage.topic import Topic

PAYLOAD_BYTES = 64 << 10
"""The bytes of a payload that are decoded or shown."""
PROPERTIES = 100
_SCHEMA_VERSION_BYTES = 8


@dataclass(frozen=True)
class MessageView:
    """A message and its views, the best one first. `schema`: the description of its payload, of its own version or the
    topic's newest; empty: there is none. `schema_problem`: the reason why the payload is not decoded by it. `errors`:
    of its reads. `is_unreadable`: reads of the topic fail."""

    name: TopicName
    message: StoredMessage
    state: MessageState
    views: Sequence[PayloadView]
    schema: str = ""
    schema_problem: str = ""
    errors: Sequence[CompactorError] = ()
    is_unreadable: bool = False

    @property
    def key(self) -> str | None:
        """Return the key as text; None: there is none, or it is not UTF-8."""
        with suppress(UnicodeDecodeError):
            return None if self.message.key is None else self.message.key.decode()
        return None

    @property
    def properties(self) -> Sequence[tuple[str, str]]:
        """Return the first `PROPERTIES` properties."""
        return self.message.properties[:PROPERTIES]


def message_view(broker: Broker, name: TopicName, offset: int, losses: LossCache) -> MessageView:
    """Read the message at an offset, and cache the losses that its reads meet. Waits for the store.

    Raise TopicNotFound, MessageNotFound, PartitionedTopicRefused.
    """
    topic = open_topic(broker, name)
    errors: list[CompactorError] = []
    raw, compacted = (_message_at(topic, offset, flag, errors) for flag in (False, True))
    message = raw or compacted
    losses.record_losses(topic.record.id, errors)
    if message is None:
        if errors:
            raise errors[0]
        offsets = raw_offsets_text(topic)
        reason = f"{name} has no message at offset {offset:,}, raw or compacted"
        raise MessageNotFound(f"{reason}: {offsets}" if offsets else reason)
    state = MessageState()
    if not errors:
        newest = newest_by_key(broker, topic, [message], errors)
        state = message_state(message, raw is not None, compacted is not None, newest)
        losses.record_losses(topic.record.id, errors)
    described, decoded, problem = _decode_payload(broker, name, message)
    payload = message.payload or b""
    undecoded = payload_views(payload, message.payload_size) if payload else []
    store = broker.environment.store
    unreadable = is_topic_unreadable(
        known_compacted_read_error(topic, store, losses), known_raw_read_error(topic, store, losses), errors
    )
    return MessageView(name, message, state, [*decoded, *undecoded], described, problem, errors, unreadable)


class _DecodedPayload(NamedTuple):
    """The description of a message's schema, the views of the payload that it decodes, and the reason if there is none.

    An empty description: there is no schema. An empty `problem`: nothing needs an explanation.
    """

    schema: str
    views: list[PayloadView]
    problem: str


def _message_at(topic: Topic, offset: int, read_compacted: bool, errors: list[CompactorError]) -> StoredMessage | None:
    try:
        with closing(topic.read(StartOffset(offset), read_compacted, max_messages=1)) as batches:
            for batch in batches:
                message = next(stored_messages(batch, topic.name.partition, PAYLOAD_BYTES))
                return message if message.offset == offset else None
    except CompactorError as error:
        errors.append(error)
    return None


def _decode_payload(broker: Broker, name: TopicName, message: StoredMessage) -> _DecodedPayload:
    """Decode the payload of a message by its own schema version, or else by the topic's newest."""
    schema = _schema_of(broker, name, message)
    if schema is None:
        sent = message.schema_version is not None
        problem = "The topic does not have the schema version that the message names." if sent else ""
        return _DecodedPayload("", [], problem)
    kind = type_name(schema.type)
    named = "" if message.schema_version is not None else ", the newest: the message names none"
    described = f"version {schema.version} ({kind}{named})"
    is_readable = message.kind is RowType.MESSAGE and not message.encryption_keys
    if kind in schema_values.SELF_DESCRIBED or not message.payload or not is_readable:
        return _DecodedPayload(described, [], "")
    if message.is_cut:
        return _DecodedPayload(described, [], f"Payloads of more than {PAYLOAD_BYTES:,} bytes are not decoded here.")
    try:
        text = schema_values.decode_to_text(schema, message.payload, message.key)
    except NotDecoded as error:
        return _DecodedPayload(described, [], f"The payload cannot be decoded by it: {error}.")
    view = PayloadView("decoded", f"Decoded as {kind}", with_visible_controls(text))
    return _DecodedPayload(described, [view], "")


def _schema_of(broker: Broker, name: TopicName, message: StoredMessage) -> SchemaRecord | None:
    sent = message.schema_version
    if sent is None:
        return broker.schemas.find(name)
    if len(sent) != _SCHEMA_VERSION_BYTES or sent[0] >= 0x80:
        return None
    return broker.schemas.find(name, int.from_bytes(sent, "big"))
