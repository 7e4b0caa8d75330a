"""Consumers with Pulsar's Python client, of every subscription type, and the check that a subscription misses nothing.

Subscriptions by name: `exclusive`, `failover` and `compacted` acknowledge cumulatively, `shared`, `key-shared` and
`batch-index` one by one, with negative acknowledgements between; `compacted` reads the compacted ledger.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import pulsar

from tests.faults.engine.history import Fate, History, ReadMessage, Subscription
from tests.faults.engine.report import Kind, Report
from tests.faults.histories.pulsar_clients import ERRORS, ClientSource, Delivery, close, received
from tests.faults.histories.subscribers import Subscriber

_QUEUE = 200
_TYPES: dict[str, tuple[pulsar.ConsumerType, int]] = {
    "exclusive": (pulsar.ConsumerType.Exclusive, 1),
    "batch-index": (pulsar.ConsumerType.Exclusive, 1),
    "compacted": (pulsar.ConsumerType.Exclusive, 1),
    "failover": (pulsar.ConsumerType.Failover, 2),
    "shared": (pulsar.ConsumerType.Shared, 2),
    "key-shared": (pulsar.ConsumerType.KeyShared, 2),
}
"""By subscription, its type and the largest number of consumers."""
_CUMULATIVE = ("exclusive", "failover", "compacted")
_BY_INDEX = ("batch-index", "shared", "compacted")
_DRAIN_SILENCE_SECONDS = 30
_DRAIN_TRIES = 8


def consumed_by_client(subscription: Subscription) -> bool:
    """Return whether consumers of the Python client work with the subscription."""
    return subscription.name in _TYPES


def _subscribe(source: ClientSource, history: History, subscription: Subscription) -> pulsar.Consumer:
    return source.get().subscribe(
        history.full_name,
        subscription.name,
        consumer_type=_TYPES[subscription.name][0],
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=_QUEUE,
        negative_ack_redelivery_delay_ms=1000,
        batch_index_ack_enabled=subscription.name in _BY_INDEX,
        is_read_compacted=subscription.name == "compacted",
    )


class PulsarConsumer(Subscriber):
    """An actor that connects consumers of the Python client."""

    errors = ERRORS
    role = "consumers"

    def __init__(
        self,
        topics: Sequence[History],
        source: ClientSource,
        chance: random.Random,
        report: Report,
        ended: threading.Event,
    ) -> None:
        super().__init__(topics, chance, report, ended, consumed_by_client)
        self._source = source

    def consume(self, history: History, subscription: Subscription) -> None:
        consumers: list[tuple[pulsar.Consumer, Delivery]] = []
        try:
            for _ in range(self._chance.randint(1, _TYPES[subscription.name][1])):
                delivery = Delivery(history, f"a consumer of {subscription.name}", _QUEUE)
                consumers.append((_subscribe(self._source, history, subscription), delivery))
            self._consume(history, subscription, consumers)
        finally:
            for consumer, _ in consumers:
                close(consumer, self._report, "consumer")

    def _consume(
        self, history: History, subscription: Subscription, consumers: list[tuple[pulsar.Consumer, Delivery]]
    ) -> None:
        chance = self._chance
        cumulative = subscription.name in _CUMULATIVE and not history.partitions
        ends_at = time.monotonic() + chance.uniform(3, 12)
        while time.monotonic() < ends_at and not self._ended.is_set():
            consumer, delivery = chance.choice(consumers)
            try:
                message = consumer.receive(300)
            except pulsar.Timeout:
                continue
            with self._report.collecting():
                delivery.take(received(message))
            subscription.delivered.add(received(message).serial)
            self._report.count("messages consumed")
            if cumulative:
                if chance.random() < 0.1:
                    consumer.acknowledge_cumulative(message)
            elif chance.random() < 0.8:
                consumer.acknowledge(message)
            elif chance.random() < 0.2:
                consumer.negative_acknowledge(message)


def drain(
    history: History, subscription: Subscription, views: Sequence[ReadMessage], source: ClientSource, report: Report
) -> None:
    """Receive to the end of a subscription: each message that must be stored was delivered, now or before.

    `views`: the compacted views of all logs. Raises Violation.
    """
    with history.lock:
        expected = {item.serial: item for item in history.must_be_stored() if not history.may_be_hidden(item)}
    if subscription.name == "compacted":
        visible = {item.serial for item in views if item.value}
        expected = {serial: item for serial, item in expected.items() if serial in visible}
    consumer = _connect(history, subscription, source, report)
    delivery = Delivery(history, f"a consumer of {subscription.name}", _QUEUE)
    try:
        silent_since = time.monotonic()
        while expected.keys() - subscription.delivered and time.monotonic() < silent_since + _DRAIN_SILENCE_SECONDS:
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                continue
            silent_since = time.monotonic()
            with report.collecting():
                delivery.take(received(message))
            subscription.delivered.add(received(message).serial)
            if subscription.name in _CUMULATIVE and not history.partitions:
                consumer.acknowledge_cumulative(message)
            else:
                consumer.acknowledge(message)
    except ERRORS as error:
        raise history.violation(Kind.STUCK, f"{subscription.name}: {error!r}, and nothing fails", "drain") from error
    finally:
        close(consumer, report, "consumer")
    with history.lock:
        missed = [item for serial, item in expected.items() if serial not in subscription.delivered]
        missed = [item for item in missed if history.fate(item) is Fate.THERE]
    report.count("subscriptions drained")
    if missed:
        text = f"{subscription.name} did not deliver {len(missed)} messages: {'; '.join(map(str, missed[:5]))}"
        subscription.delivered |= {item.serial for item in missed}  # the same loss is one violation
        raise history.violation(Kind.SUBSCRIPTION, text, f"{subscription.name} {missed[0].serial}")


def _connect(history: History, subscription: Subscription, source: ClientSource, report: Report) -> pulsar.Consumer:
    for _ in range(_DRAIN_TRIES):
        try:
            return _subscribe(source, history, subscription)
        except ERRORS as error:
            report.count(f"drain: {type(error).__name__}")
            time.sleep(1)
    raise history.violation(Kind.STUCK, f"nothing fails, and {subscription.name} takes no consumer", "subscribe")
