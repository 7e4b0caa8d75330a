"""Producers with Pulsar's Python client: any batching and compression, and applications that send again.

`PulsarProducer` leaves repetition to the client. `SequencedProducer` is an application under deduplication: it keeps
what it sent, continues after the last sequence id that the service names, and sends again what that id does not cover.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pulsar

from tests.faults.engine.history import Fate, History, Sender, SentMessage, slot
from tests.faults.engine.report import Kind, Report
from tests.faults.histories.pulsar_clients import ERRORS, ClientSource, close
from tests.faults.histories.rest_actors import draw

_ANSWERED_WITHIN_SECONDS = 240.0
"""After the end of a round every service runs again and answers what was sent."""


class OpenSends:
    """The messages of one producer that have no receipt yet."""

    def __init__(self, history: History, producer: pulsar.Producer, report: Report, ended: threading.Event) -> None:
        self.history = history
        self._producer = producer
        self._report = report
        self._ended = ended
        self._open: set[SentMessage] = set()
        self._lock = threading.Lock()
        self.failed = False

    def send(self, message: SentMessage, **options: Any) -> None:
        def answered(result: pulsar.Result, at: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                ledger, entry = at.ledger_id(), at.entry_id()
                known = slot(ledger, entry, at.batch_index(), at.partition()) if 0 <= ledger < 1 << 62 else None
                with self._report.collecting():
                    self.history.acknowledge(message, known)
                self._report.count("messages acknowledged")
            else:
                self.failed = True
                self._report.count(f"sends failed: {result}")
            with self._lock:
                self._open.discard(message)

        with self._lock:
            self._open.add(message)
        self._report.count("messages sent")
        self._producer.send_async(
            (message.value or "").encode(),
            answered,
            partition_key=message.key,
            properties={"n": message.serial},
            event_timestamp=message.event_time,
            **options,
        )

    def wait(self) -> None:
        """Wait for all receipts. Raises Violation if they do not come although the services run again."""
        deadline: float | None = None
        while True:
            with self._lock:
                first = next(iter(self._open), None)
            if first is None:
                return
            if self._ended.is_set():
                deadline = deadline or time.monotonic() + _ANSWERED_WITHIN_SECONDS
                if time.monotonic() > deadline:
                    raise self.history.violation(Kind.STUCK, f"{first} is never answered", "send")
            time.sleep(0.05)


class PulsarProducer:
    """A producer of a topic without deduplication, for one burst of messages."""

    def __init__(
        self,
        topics: Sequence[History],
        source: ClientSource,
        chance: random.Random,
        report: Report,
        ended: threading.Event,
    ) -> None:
        self._topics = [topic for topic in topics if not topic.traits.deduplicates]
        self._source = source
        self._chance = chance
        self._report = report
        self._ended = ended

    def step(self) -> None:
        history, chance = self._chance.choice(self._topics), self._chance
        by_key, options = self._options()
        try:
            producer = self._source.get().create_producer(
                history.full_name, send_timeout_millis=chance.choice([0, 0, 15_000]), **options
            )
        except ERRORS as error:
            self._report.count(f"producers not created: {type(error).__name__}")
            self._ended.wait(0.5)
            return
        sender = Sender(ordered=not by_key and not history.partitions, repeats=True)
        sends = OpenSends(history, producer, self._report, self._ended)
        try:
            slow = chance.random() < 0.5
            for number in range(chance.choice([20, 60, 200])):
                if self._ended.is_set():
                    break
                sends.send(draw(history, chance, sender, number))
                if slow or chance.random() < 0.1:
                    self._ended.wait(chance.random() * 0.06)
            if chance.random() < 0.8:
                sends.wait()
        finally:
            close(producer, self._report, "producer")

    def _options(self) -> tuple[bool, dict[str, Any]]:
        """Return whether batches are by key, and how the producer sends."""
        chance, kinds = self._chance, pulsar.CompressionType
        by_key, single = chance.random() < 0.2, chance.random() < 0.4
        compressions = [kinds.NONE, kinds.LZ4, kinds.ZSTD, kinds.SNAPPY]
        if by_key or not single:  # the C++ client cannot read an empty payload of its own in ZLib
            compressions.append(kinds.ZLib)
        options: dict[str, Any] = {
            "compression_type": chance.choice(compressions),
            "block_if_queue_full": True,
            "max_pending_messages": 2000,
            "batching_enabled": by_key or not single,
            "batching_max_messages": chance.choice([2, 10, 100]),
            "batching_max_publish_delay_ms": chance.choice([1, 10, 100]),
        }
        if by_key:
            options["batching_type"] = pulsar.BatchingType.KeyBased
        return by_key, options


class SequencedProducer:
    """An application under deduplication, which sends again what it does not know to be stored, by its sequence ids.

    With batches the C++ client names the broker the first sequence id of a batch alone; so with `batches` the
    application waits for all receipts before it closes, and the last id may be short by one batch.
    """

    _BATCH = 7

    def __init__(
        self,
        name: str,
        topics: Sequence[History],
        source: ClientSource,
        chance: random.Random,
        report: Report,
        ended: threading.Event,
        *,
        batches: bool,
    ) -> None:
        self._name = name
        self._topics = [topic for topic in topics if topic.traits.deduplicates]
        self._source = source
        self._chance = chance
        self._report = report
        self._ended = ended
        self._batches = batches
        self._sender = Sender()

    def step(self) -> None:
        history, chance = self._chance.choice(self._topics), self._chance
        items, began = history.sequences[self._name], history.now()
        try:
            producer = self._source.get().create_producer(
                history.full_name,
                producer_name=self._name,
                send_timeout_millis=0 if self._batches else chance.choice([0, 10_000]),
                block_if_queue_full=True,
                batching_enabled=self._batches,
                batching_max_messages=self._BATCH,
            )
        except ERRORS as error:
            self._report.count(f"producers not created: {type(error).__name__}")
            self._ended.wait(0.5)
            return
        sends = OpenSends(history, producer, self._report, self._ended)
        try:
            highest = self._resume(history, producer.last_sequence_id(), items, began)
            self._send(history, sends, items, highest)
            if self._batches or chance.random() < 0.6:
                sends.wait()
        finally:
            close(producer, self._report, "producer")

    def _resume(self, history: History, last: int, items: list[SentMessage], began: int) -> int:
        """Settle what the last sequence id covers; return the highest id that may not be sent again."""
        slack = (self._BATCH - 1) * self._batches
        with history.lock:
            stored = [item for item in items if item.known is not None and history.fate(item) is Fate.THERE]
            known = max((item.number for item in stored), default=-1)
            if last < known - slack and not history.was_cleared_since(began):
                text = f"the service names {last} as the last id of {self._name}; {known} was acknowledged"
                self._report.add(history.violation(Kind.SEQUENCE_FORGOTTEN, text, f"{self._name} {known}"))
            cleared = max((clearing.end or history.now() for clearing in history.clearings), default=-1)
            for item in items:
                if item.known is None and item.number <= last and item.sent_at > cleared:
                    history.acknowledge(item, None)
            return max([last + slack, *(item.number for item in items if item.known is not None)])

    def _send(self, history: History, sends: OpenSends, items: list[SentMessage], highest: int) -> None:
        again = [item for item in items if item.known is None and not item.never and item.number > highest]
        self._report.count("messages sent again by sequence id", len(again))
        for item in again:
            sends.send(item, sequence_id=item.number)
        for _ in range(self._chance.choice([10, 60, 150])):
            if self._ended.is_set() or sends.failed:
                return  # a message after a failed one would cover its sequence id
            item = draw(history, self._chance, self._sender, items[-1].number + 1 if items else 0)
            items.append(item)
            sends.send(item, sequence_id=item.number)
            if self._chance.random() < 0.3:
                self._ended.wait(self._chance.random() * 0.05)
