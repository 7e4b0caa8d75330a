"""Shared parts of calls on subscriptions: places as Pulsar's clients send them, a cursor's owner during a request.

A call on a subscription of a partitioned topic applies to that of each partition. `__compaction` is never moved
(A4), and never expires (S9).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import Body, Path, Request
from pydantic import Field

from api.broker import names
from api.broker.broker import Broker
from api.broker.positions import After, CursorPosition
from api.broker.threads import WaitsFor
from api.http.access import AuthAction, require_here
from api.http.dependencies import broker_of
from api.http.paths import TOPIC_PATH, decoded
from api.http.problems import RestException, reported_as
from api.rest.models import INT, LONG, PulsarBody, TextByName
from storage.cursor import Cursor
from storage.errors import Conflict, NotFound
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import EARLIEST, LATEST, LogPosition, MessageId, TopicName
from storage.positions import StartOffset
from storage.topic import Topic as OpenTopic

ONE = TOPIC_PATH + "/subscription/{subscription}"

Subscription = Annotated[str, Path(description="Its name; __compaction is the compaction cursor.")]


class ResetCursorData(PulsarBody):
    """A place: a message id, as Pulsar's clients send it. `excluded`: the message behind it. `properties`: of a new
    subscription."""

    ledger_id: int = Field(ge=-1, le=LONG)
    entry_id: int = Field(ge=-1, le=LONG)
    partition_index: int = -1
    batch_index: int = Field(-1, ge=-1, le=INT)
    batch_size: int = 0
    excluded: bool = False
    is_excluded: bool = False
    properties: TextByName | None = None
    first_chunk_message_id: dict[str, Any] | None = None
    ack_set: dict[str, Any] | None = None

    @property
    def message_id(self) -> MessageId:
        """Return the message id; -1 for an entry: the ledger's first."""
        if self.ledger_id == -1:
            return EARLIEST
        if self.ledger_id == LONG:
            return LATEST
        return MessageId(self.ledger_id, self.entry_id, self.partition_index, self.batch_index)

    @property
    def position(self) -> CursorPosition:
        """Return the position of the first message to deliver: the message with the id, or the next one."""
        excluded = (self.excluded or self.is_excluded) and self.message_id not in (EARLIEST, LATEST)
        return After(self.message_id) if excluded else self.message_id


PlaceBody = Annotated[ResetCursorData | str | None, Body(description='A message id, "earliest" or "latest".')]


class OwnedCursor:
    """A cursor with its topic, for the time of a request: the one that connected consumers share, if there are any."""

    def __init__(self, broker: Broker, record: TopicRecord, name: str) -> None:
        refuse_compaction(name)
        self.topic = opened(broker, record)
        reader = self.topic.snapshot_reader()
        # where raw is trimmed, a compacted ledger may still hold what this cursor's reader gets
        self.begin = reader.snapshot.topic.start_offset if reader.snapshot.compacted else reader.first_offset
        environment = broker.environment
        self._live = broker.clients.subscription(record, name)
        if self._live is not None:
            self._live.extend(self.end)
            self.cursor = self._live.cursor
        else:
            self.cursor = Cursor(
                environment.metadata, environment.clock, record, name, self.topic.locate, lambda: self.end
            )

    @property
    def end(self) -> int:
        """Return the offset of the next message. Raises SegmentNotLocal where it is not known here."""
        return self.topic.snapshot_reader().end

    def __enter__(self) -> OwnedCursor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if self._live is not None:
            self._live.acknowledged()
        else:
            self.cursor.close()

    def acknowledge_to(self, position: LogPosition | None) -> None:
        """All up to a message, whose id need not exist any more."""
        if position is not None:
            self.cursor.acknowledge_cumulative(position)


def subscription_of(record: TopicRecord, name: str) -> AbstractContextManager[None]:
    """Inside it, NotFound becomes a RestException (404) in a broker's words."""
    return reported_as(f"Subscription {name} not found for topic {record.name}")


def each(
    broker: Broker, topic: TopicName, subscription: str, do: Callable[[TopicRecord, str], object], reads: bool = True
) -> None:
    """Do it to the subscription of the topic, or of each partition that has it. `reads`: it needs messages.

    A partition may lack it because the same request failed behind it: asked again, it is done to the others.
    """
    name = decoded(subscription)
    records = names.local_topics(broker, topic) if reads else names.topics(broker.environment, topic)
    for record in records:  # the cursor of connected consumers is where they are
        broker.ownership.check_for_clients(record)
    missing = 0
    for record in records:
        try:
            do(record, name)
        except NotFound:
            missing += 1
    if missing == len(records):
        raise RestException(404, f"Subscription {name} not found for topic {records[0].name}")


def reset_cursor_to(broker: Broker, record: TopicRecord, name: str, mark: LogPosition | None) -> None:
    """Move a cursor; connected consumers subscribe again and begin there. Raises NotFound."""
    refuse_compaction(name)
    live = broker.clients.subscription(record, name)
    if live is not None:
        live.reset(mark)
    else:
        broker.environment.metadata.cursors.reset(record.id, name, mark)


def delete_cursor(broker: Broker, record: TopicRecord, name: str, force: bool) -> None:
    """Delete a cursor; connected consumers are disconnected if forced. Raises NotFound, RestException (412)."""
    live = broker.clients.subscription(record, name)
    if live is not None:
        try:
            live.end(force)
        except Conflict as error:
            raise RestException(412, str(error)) from error
    broker.environment.metadata.cursors.delete(record.id, name, force)


def opened(broker: Broker, record: TopicRecord) -> OpenTopic:
    return OpenTopic(broker.environment, record)


def next_of(mark: LogPosition | None) -> StartOffset:
    """Return the position from which a cursor with this mark-delete position continues."""
    return StartOffset(mark.offset + 1 if mark else 0)


def position_of(body: ResetCursorData | str | None) -> CursorPosition:
    """Return the position that the body of a request names; latest without a body. Raises RestException (400)."""
    if body is None:
        return LATEST
    if isinstance(body, ResetCursorData):
        return body.position
    named = {"earliest": EARLIEST, "latest": LATEST}.get(body)
    if named is None:
        raise RestException(400, f"{body[:40]!r} is no place: give a message id, earliest or latest")
    return named


async def changes_it(request: Request, subscription: Subscription, force: bool = False) -> None:
    """A route's dependency, behind `allowed(Action.CONSUME)`: `__compaction` is no consumer's. With it goes the
    compacted ledger, and what is trimmed of raw is lost with that, if forced. Raises RestException (403)."""
    if decoded(subscription) == COMPACTION_CURSOR:
        action = AuthAction.ADMIN if force else AuthAction.COMPACT
        await broker_of(request).pools[WaitsFor.DATABASE].run(require_here, request, action)


def refuse_compaction(name: str) -> None:
    """A4."""
    if name == COMPACTION_CURSOR:
        raise RestException(
            412,
            f"the cursor {COMPACTION_CURSOR} cannot be reset or skipped: it is the compaction horizon; compact the "
            "topic to move it on, or delete the cursor to give up the compacted ledger",
        )
