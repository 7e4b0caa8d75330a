"""Messages of a topic from an offset on, raw and compacted side by side: as readers get them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from api.broker import names
from api.broker.broker import Broker
from api.http.problems import public_reason, reported_as
from storage.errors import CompactorError
from storage.model import EARLIEST, Message, TopicName
from storage.positions import StartOffset
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic

PAGE_MESSAGES = 25
_LIMITS = ReadLimits(PAGE_MESSAGES, 1 << 20)
_CHARACTERS = 200


@dataclass(frozen=True)
class BrowsedMessage:
    """A message as a row shows it. `value` None: it deletes its key, or is a null."""

    offset: int
    message_id: str
    key: str | None
    value: str | None
    publish_time: int


@dataclass(frozen=True)
class ReadSide:
    """The result of one read. `following`: the offset of the next page; None: this is the last one. `problem`: why it
    ended before its page was full."""

    messages: Sequence[BrowsedMessage]
    following: int | None
    problem: str


@dataclass(frozen=True)
class MessagesView:
    """Both reads from one offset."""

    name: TopicName
    start: int
    raw: ReadSide
    compacted: ReadSide


def messages_view(broker: Broker, name: TopicName, start: int) -> MessagesView:
    """Read one page of both sides from offset `start`, in a thread that may wait for the store.

    Raises RestException (404, 405).
    """
    with reported_as(partitioned=f"{name} is a partitioned topic: look at its partitions"):
        names.check_not_partitioned(broker.environment, name)
    topic = Topic(broker.environment, names.topic(broker.environment, name))
    return MessagesView(name, start, _side(topic, start, False), _side(topic, start, True))


def _side(topic: Topic, start: int, read_compacted: bool) -> ReadSide:
    with closing(topic.reader(StartOffset(start) if start else EARLIEST, read_compacted)) as reader:
        try:
            messages = reader.messages(_LIMITS).messages
        except CompactorError as error:
            return ReadSide((), None, public_reason(error))
    following = messages[-1].offset + 1 if len(messages) == PAGE_MESSAGES else None
    return ReadSide([_row(message) for message in messages], following, "")


def _row(message: Message) -> BrowsedMessage:
    key = None if message.key is None else text_of(message.key)
    value = None if message.payload is None else text_of(message.payload)
    return BrowsedMessage(message.offset, str(message.message_id), key, value, message.publish_time)


def text_of(data: bytes, limit: int = _CHARACTERS) -> str:
    """Return the bytes as text, or as base64 if they are not UTF-8, cut after `limit` characters."""
    try:
        text = data[: 4 * limit].decode(errors="strict" if len(data) <= 4 * limit else "ignore")
    except UnicodeDecodeError:
        text = base64.b64encode(data[: 4 * limit]).decode()
    return text if len(text) <= limit else text[:limit] + "…"
