"""Pulsar's Python client in the histories: one client per actor, renewed now and then, that knows all services."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pulsar

from storage.model import MessageId
from tests.faults.engine.history import Fate, History, ReadMessage, SentMessage, slot
from tests.faults.engine.report import Kind, Report
from tests.faults.histories.services import Service

_LARGEST_BATCH = 100
ERRORS = (pulsar.PulsarException,)
"""What the client raises when services fail; the actor counts it and goes on."""


class ClientSource:
    """The client of one actor. `renews`: the probability that `get` closes it and makes another."""

    def __init__(
        self, services: Sequence[Service], chance: random.Random, report: Report, folder: Path, renews: float = 0.1
    ) -> None:
        self._services = services
        self._chance = chance
        self._report = report
        self._log = folder / "pulsar-client.log"
        self._renews = renews
        self._client: pulsar.Client | None = None

    def get(self) -> pulsar.Client:
        if self._client is None or self._chance.random() < self._renews:
            self.close()
            addresses = [f"127.0.0.1:{service.broker_port}" for service in self._services]
            self._chance.shuffle(addresses)
            self._client = pulsar.Client(
                "pulsar://" + ",".join(addresses),
                operation_timeout_seconds=20,
                connection_timeout_ms=4000,
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self._log)),
            )
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            close(client, self._report, "client")


def close(
    closable: pulsar.Client | pulsar.Producer | pulsar.Consumer | pulsar.Reader, report: Report, kind: str
) -> None:
    """Close a client's object; a failure is counted, for services may be down."""
    try:
        closable.close()
    except ERRORS as error:
        report.count(f"{kind} not closed: {type(error).__name__}")


def id_of_message(message: pulsar.Message) -> MessageId:
    at = message.message_id()
    return slot(at.ledger_id(), at.entry_id(), at.batch_index(), at.partition())


def received(message: pulsar.Message) -> ReadMessage:
    """Return a message of the client as the model compares it."""
    when = message.event_timestamp() or message.publish_timestamp()
    serial = message.properties().get("n", "?")
    value = message.data().decode() or None
    return ReadMessage(serial, id_of_message(message), message.partition_key() or None, value, time=when)


class Delivery:
    """The deliveries of one connected consumer or reader, compared with the model.

    A client holds messages in its queue, so it may hand over messages that were deleted since it received them; but no
    more of them than its queue and one batch hold.
    """

    def __init__(self, history: History, name: str, queue: int) -> None:
        self.history = history
        self.name = name
        self.since = history.now()
        self._late = 0
        self._bound = queue + _LARGEST_BATCH

    def take(self, message: ReadMessage) -> SentMessage:
        """Compare one message. Raises Violation."""
        sent = self.history.check_read(message, self.since)
        if self.history.fate(sent) is Fate.GONE:
            self._late += 1
            if self._late > self._bound:
                text = f"{self.name} still receives messages deleted before, {self._late} so far: {sent}"
                raise self.history.violation(Kind.STILL_DELIVERED, text, self.name)
        return sent


def is_timeout(error: BaseException) -> bool:
    return isinstance(error, pulsar.Timeout)


def quietly_closed(reader: pulsar.Reader | None) -> None:
    """Close a reader whose end is of no interest."""
    if reader is not None:
        with suppress(*ERRORS):
            reader.close()
