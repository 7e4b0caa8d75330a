"""A page of a topic's messages from an offset on: the raw read and the compacted read side by side."""

from __future__ import annotations

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


@dataclass(frozen=True)
class ReadSide:
    """The result of one read. `following`: the offset of the next page; None: this is the last page. `problem`: the
    error that ended the read; empty: none did."""

    messages: Sequence[Message]
    following: int | None
    problem: str


def raw_and_compacted(broker: Broker, name: TopicName, start: int) -> tuple[ReadSide, ReadSide]:
    """Read one page of both sides from offset `start` on. Waits for the store. Raise TopicNotFound, RestException (405)
    for a partitioned topic."""
    with reported_as(partitioned=f"{name} is a partitioned topic: look at its partitions"):
        names.check_not_partitioned(broker.environment, name)
    topic = Topic(broker.environment, names.topic(broker.environment, name))
    return _side(topic, start, False), _side(topic, start, True)


def _side(topic: Topic, start: int, read_compacted: bool) -> ReadSide:
    with closing(topic.reader(StartOffset(start) if start else EARLIEST, read_compacted)) as reader:
        try:
            messages = reader.messages(_LIMITS).messages
        except CompactorError as error:
            return ReadSide((), None, public_reason(error))
    following = messages[-1].offset + 1 if len(messages) == PAGE_MESSAGES else None
    return ReadSide(messages, following, "")
