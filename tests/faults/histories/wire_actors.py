"""Actors on the raw protocol: producers whose connection ends with entries in flight, consumers that await receipts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.faults.engine.history import History, Sender, SentMessage, Subscription, slot
from tests.faults.engine.report import Kind, Report
from tests.faults.histories.rest_actors import draw
from tests.faults.histories.services import Service
from tests.faults.histories.subscribers import Subscriber
from tests.faults.histories.wire_client import ERRORS, WireClient, ack_set, slots

RECEIPTS, SHARED_RECEIPTS = "receipts", "shared-receipts"
_NAME = "breaking"
_PERMITS = 400
_NO_ID = 1 << 63
"""The service names no id, written as an unsigned -1, where it took a message for a duplicate."""


class BreakingProducer:
    """An application under deduplication whose connection breaks with entries in flight and that returns at once.

    It continues with new messages after the last sequence id that the service names, so none of them is a duplicate.
    """

    def __init__(
        self,
        topics: Sequence[History],
        services: Sequence[Service],
        chance: random.Random,
        report: Report,
        ended: threading.Event,
    ) -> None:
        self._topics = [topic for topic in topics if topic.traits.deduplicates]
        self._services = services
        self._chance = chance
        self._report = report
        self._ended = ended
        self._sender = Sender()

    def step(self) -> None:
        history, chance = self._chance.choice(self._topics), self._chance
        waiting: dict[int, SentMessage] = {}
        client: WireClient | None = None
        try:
            client = WireClient.at_owner([service.broker_port for service in self._services], chance, history.full_name)
            number = client.produce(history.full_name, _NAME)
            ends_at = time.monotonic() + chance.choice([0, 0.02, 0.3, 3])
            for _ in range(chance.choice([1, 3, 20])):
                number += 1
                message = waiting[number] = draw(history, chance, self._sender, number)
                payload = (message.value or "").encode()
                client.publish(_NAME, number, message.key, payload, {"n": message.serial})
                self._report.count("messages sent")
            self._await_receipts(history, client, waiting, ends_at)
        except ERRORS as error:
            self._report.count(f"raw connections ended: {type(error).__name__}")
            self._ended.wait(0.3)
        finally:
            if client is not None:
                client.reset()
                self._report.count("connections broken with entries in flight", bool(waiting))

    def _await_receipts(
        self, history: History, client: WireClient, waiting: dict[int, SentMessage], ends_at: float
    ) -> None:
        while waiting and (answer := client.read(max(0.0, ends_at - time.monotonic()))) is not None:
            if answer.type == BaseCommand.CLOSE_PRODUCER:
                return
            if answer.type != BaseCommand.SEND_RECEIPT:
                continue
            message = waiting.pop(answer.send_receipt.sequence_id, None)
            if message is None:
                continue
            at = answer.send_receipt.message_id
            is_stored = at.ledger_id < _NO_ID
            history.acknowledge(message, slot(at.ledger_id, at.entry_id, -1) if is_stored else None)
            self._report.count("messages acknowledged")
            if not is_stored:
                message.never = True
                text = f"{message} is new and was acknowledged as a duplicate of sequence id {message.number}"
                raise history.violation(Kind.NEW_AS_DUPLICATE, text, message.serial)


class ReceiptConsumer(Subscriber):
    """A consumer that acknowledges with receipts: an acknowledged slot is not delivered to a later consumer."""

    errors = ERRORS
    role = "raw connections"

    def __init__(
        self,
        topics: Sequence[History],
        services: Sequence[Service],
        chance: random.Random,
        report: Report,
        ended: threading.Event,
    ) -> None:
        super().__init__(topics, chance, report, ended, lambda item: item.name in (RECEIPTS, SHARED_RECEIPTS))
        self._services = services

    def consume(self, history: History, subscription: Subscription) -> None:
        ports = [service.broker_port for service in self._services]
        client = WireClient.at_owner(ports, self._chance, history.full_name)
        try:
            answer = client.subscribe(history.full_name, subscription.name, shared=subscription.name == SHARED_RECEIPTS)
            if answer.type == BaseCommand.SUCCESS:
                self._consume(history, subscription, client)
            else:
                self._report.count(f"raw subscriptions refused: {answer.error.error}")
                self.pause()
        finally:
            client.close()

    def _consume(self, history: History, subscription: Subscription, client: WireClient) -> None:
        chance = self._chance
        before = set(subscription.receipts)
        waiting: dict[int, list[tuple[int, int, int]]] = {}
        pending: list[tuple[int, int, int]] = []
        client.permit(_PERMITS)
        ends_at = time.monotonic() + chance.uniform(3, 10)
        while time.monotonic() < ends_at and not self._ended.is_set():
            command = client.read(0.5)
            if command is None:
                continue
            if command.type == BaseCommand.CLOSE_CONSUMER:
                return
            if command.type == BaseCommand.ACK_RESPONSE:
                acknowledged = waiting.pop(command.ack_response.request_id, [])
                if not command.ack_response.HasField("error"):
                    subscription.receipts.update(acknowledged)
                    self._report.count("acknowledgements with receipt", len(acknowledged))
            if command.type != BaseCommand.MESSAGE:
                continue
            delivered, count = slots(command, client.entry)
            again = [item for item in delivered if item in before]
            self._report.count("messages consumed raw", len(delivered))
            if again:
                subscription.receipts.difference_update(again)
                text = f"{subscription.name} delivered {again[:5]} again after the receipt of their acknowledgement"
                raise history.violation(Kind.RECEIPT, text, f"{subscription.name} {again[0]}")
            pending += delivered
            if delivered and chance.random() < 0.5:
                self._acknowledge(subscription, client, delivered, count, pending, waiting)
            client.permit(count)

    def _acknowledge(
        self,
        subscription: Subscription,
        client: WireClient,
        delivered: list[tuple[int, int, int]],
        count: int,
        pending: list[tuple[int, int, int]],
        waiting: dict[int, list[tuple[int, int, int]]],
    ) -> None:
        chance = self._chance
        ledger, entry, _ = delivered[0]
        if subscription.name != SHARED_RECEIPTS and chance.random() < 0.2:
            waiting[client.acknowledge(ledger, entry, cumulative=True)] = list(pending)
            pending.clear()
        elif count > 1 and chance.random() < 0.5:
            part = chance.sample(delivered, chance.randint(1, len(delivered)))
            remaining = ((1 << count) - 1) & ~sum(1 << index for _, _, index in part)
            waiting[client.acknowledge(ledger, entry, ack_set=ack_set(count, remaining))] = part
        else:
            waiting[client.acknowledge(ledger, entry)] = delivered
