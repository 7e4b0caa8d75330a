"""Pulsar's Python client as the scenarios of any client use it: producers, readers, consumers, in plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pulsar

from tests.clients.python.conftest import WAIT_MS, position, send_all
from tests.clients.read_compacted import Pair, Received

_CODECS = {"ZLIB": pulsar.CompressionType.ZLib}
_KINDS = {"Key_Shared": pulsar.ConsumerType.KeyShared}


def _received(message: pulsar.Message) -> Received:
    return Received(message.partition_key(), message.data(), position(message), message)


class PythonProducer:
    """A producer of bytes."""

    def __init__(self, native: pulsar.Producer) -> None:
        self._native = native

    def send(self, key: str | None, value: bytes | None) -> pulsar.MessageId:
        return self._native.send(value, partition_key=key)

    def send_together(self, messages: Iterable[Pair]) -> None:
        send_all(self._native, list(messages))


class PythonReader:
    """A reader of bytes."""

    def __init__(self, native: pulsar.Reader) -> None:
        self._native = native

    def has_message_available(self) -> bool:
        return bool(self._native.has_message_available())

    def next(self) -> Received:
        return _received(self._native.read_next(WAIT_MS))

    def all(self) -> list[Received]:
        messages = []
        while self.has_message_available():
            messages.append(self.next())
        return messages

    def seek(self, message_id: pulsar.MessageId) -> None:
        self._native.seek(message_id)


class PythonConsumer:
    """A consumer of bytes."""

    def __init__(self, native: pulsar.Consumer) -> None:
        self._native = native

    def receive(self) -> Received:
        return _received(self._native.receive(WAIT_MS))

    def acknowledge(self, message: Received) -> None:
        self._native.acknowledge(message.native)

    def close(self) -> None:
        self._native.close()


class PythonClient:
    """A client of one service."""

    refusals = pulsar.PulsarException
    latest = pulsar.MessageId.latest

    def __init__(self, native: pulsar.Client) -> None:
        self._native = native

    def producer(self, topic: str, *, batched: bool = False, compression: str = "NONE") -> PythonProducer:
        """Return a producer; batched: its messages go when they are flushed, all in one."""
        codec = _CODECS.get(compression) or getattr(pulsar.CompressionType, compression)
        return PythonProducer(
            self._native.create_producer(
                topic, compression_type=codec, batching_enabled=batched, batching_max_publish_delay_ms=3_600_000
            )
        )

    def reader(
        self, topic: str, start: Any = None, *, compacted: bool = False, inclusive: bool = False, queue: int = 1000
    ) -> PythonReader:
        """Return a reader from a message id, the first one by default."""
        return PythonReader(
            self._native.create_reader(
                topic,
                pulsar.MessageId.earliest if start is None else start,
                is_read_compacted=compacted,
                receiver_queue_size=queue,
                start_message_id_inclusive=inclusive,
            )
        )

    def consumer(
        self, topic: str, subscription: str, kind: str = "Exclusive", *, compacted: bool = False, by_index: bool = False
    ) -> PythonConsumer:
        """Return a consumer; a new subscription begins at the first message."""
        return PythonConsumer(
            self._native.subscribe(
                topic,
                subscription,
                _KINDS.get(kind) or getattr(pulsar.ConsumerType, kind),
                initial_position=pulsar.InitialPosition.Earliest,
                is_read_compacted=compacted,
                batch_index_ack_enabled=by_index,
            )
        )
