"""One message with all that its producer sent: its payload in several views, its properties, its batch or chunk.

What is shown is bounded: `PAYLOAD_BYTES` of a payload are read, `PROPERTIES` properties listed, and `payload_views.py`
bounds each view. A payload that an encryption or a chunk makes unreadable is not decoded, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from api.broker import schema_values
from api.broker.broker import Broker
from api.broker.schema_values import NotDecoded
from api.broker.schemas import type_name
from api.dashboard.lost_objects import LossCache, is_topic_unreadable, present_loss, raw_loss
from api.dashboard.message_browser import MessageState, newest_by_key, open_topic, raw_offsets_text, state_of
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
        """The key, if it is a text."""
        with suppress(UnicodeDecodeError):
            return None if self.message.key is None else self.message.key.decode()
        return None

    @property
    def properties(self) -> Sequence[tuple[str, str]]:
        """The first properties."""
        return self.message.properties[:PROPERTIES]


def message_view(broker: Broker, name: TopicName, offset: int, losses: LossCache) -> MessageView:
    """Return the message at an offset, and note the losses that its reads meet. Waits for the store.

    Raise TopicNotFound, MessageNotFound, PartitionedTopicRefused.
    """
    topic = open_topic(broker, name)
    errors: list[CompactorError] = []
    raw, compacted = (_message_at(topic, offset, flag, errors) for flag in (False, True))
    message = raw or compacted
    losses.note(topic.record.id, errors)
    if message is None:
        if errors:
            raise errors[0]
        offsets = raw_offsets_text(topic)
        reason = f"{name} has no message at offset {offset:,}, raw or compacted"
        raise MessageNotFound(f"{reason}: {offsets}" if offsets else reason)
    state = MessageState()
    if not errors:
        newest = newest_by_key(broker, topic, [message], errors)
        state = state_of(message, raw is not None, compacted is not None, newest)
        losses.note(topic.record.id, errors)
    described, decoded, problem = _decoded(broker, name, message)
    payload = message.payload or b""
    undecoded = payload_views(payload, message.payload_size) if payload else []
    store = broker.environment.store
    unreadable = is_topic_unreadable(present_loss(topic, store, losses), raw_loss(topic, store, losses), errors)
    return MessageView(name, message, state, [*decoded, *undecoded], described, problem, errors, unreadable)


def _message_at(topic: Topic, offset: int, read_compacted: bool, errors: list[CompactorError]) -> StoredMessage | None:
    try:
        with closing(topic.read(StartOffset(offset), read_compacted, max_messages=1)) as batches:
            for batch in batches:
                message = next(stored_messages(batch, topic.name.partition, PAYLOAD_BYTES))
                return message if message.offset == offset else None
    except CompactorError as error:
        errors.append(error)
    return None


def _decoded(broker: Broker, name: TopicName, message: StoredMessage) -> tuple[str, list[PayloadView], str]:
    """Return the description of the message's schema, the payload decoded by it, and the reason if it is not."""
    schema = _schema_of(broker, name, message)
    if schema is None:
        sent = message.schema_version is not None
        return "", [], "The topic does not have the schema version that the message names." if sent else ""
    kind = type_name(schema.type)
    named = "" if message.schema_version is not None else ", the newest: the message names none"
    described = f"version {schema.version} ({kind}{named})"
    is_readable = message.kind is RowType.MESSAGE and not message.encryption_keys
    if kind in schema_values.SELF_DESCRIBED or not message.payload or not is_readable:
        return described, [], ""
    if message.is_cut:
        return described, [], f"Payloads of more than {PAYLOAD_BYTES:,} bytes are not decoded here."
    try:
        text = schema_values.decode(schema, message.payload, message.key)
    except NotDecoded as error:
        return described, [], f"The payload cannot be decoded by it: {error}."
    return described, [PayloadView("decoded", f"Decoded as {kind}", with_visible_controls(text))], ""


def _schema_of(broker: Broker, name: TopicName, message: StoredMessage) -> SchemaRecord | None:
    sent = message.schema_version
    if sent is None:
        return broker.schemas.find(name)
    if len(sent) != _SCHEMA_VERSION_BYTES or sent[0] >= 0x80:
        return None
    return broker.schemas.find(name, int.from_bytes(sent, "big"))
