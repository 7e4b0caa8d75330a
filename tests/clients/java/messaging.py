"""Pulsar's Java client, driven from Python through Py4J: producers, readers, consumers, in plain Python values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from tests.clients.read_compacted import Pair, Received

WAIT_SECONDS = 20
"""How long a message may take that is expected."""
_API = "org.apache.pulsar.client.api."


class JavaProducer:
    """A producer of bytes."""

    def __init__(self, java: Any) -> None:
        self.java = java

    def send(self, key: str | None, value: bytes | None, **options: Any) -> Any:
        """Send a message and wait for it; its id."""
        return self._message(key, value, options).send()

    def send_together(self, messages: Iterable[Pair]) -> None:
        """Send messages, batched if the producer batches, and wait for all."""
        for key, value in messages:
            sent = self.send_async(key, value)
        self.java.flush()
        sent.get()

    def send_async(self, key: str | None, value: bytes | None, **options: Any) -> Any:
        """Send a message; a future of its id."""
        return self._message(key, value, options).sendAsync()

    def _message(self, key: str | None, value: bytes | None, options: dict[str, Any]) -> Any:
        message = self.java.newMessage().value(value)
        if key is not None:
            message.key(key)
        for name, option in options.items():
            getattr(message, name)(option)
        return message


class JavaReader:
    """A reader, or a consumer, of bytes."""

    def __init__(self, java: Any, seconds: Any) -> None:
        self.java = java
        self._seconds = seconds

    def has_message_available(self) -> bool:
        return bool(self.java.hasMessageAvailable())

    def next(self) -> Received:
        """The next message, which is expected."""
        message = self.java.readNext(WAIT_SECONDS, self._seconds)
        assert message is not None, f"no message in {WAIT_SECONDS} s"
        return received(message)

    def all(self) -> list[Received]:
        """All that are available."""
        messages = []
        while self.has_message_available():
            messages.append(self.next())
        return messages

    def seek(self, message_id: Any) -> None:
        self.java.seek(message_id)


class JavaConsumer:
    """A consumer of bytes."""

    def __init__(self, java: Any, seconds: Any) -> None:
        self.java = java
        self._seconds = seconds

    def receive(self) -> Received:
        """The next message, which is expected."""
        message = self.java.receive(WAIT_SECONDS, self._seconds)
        assert message is not None, f"no message in {WAIT_SECONDS} s"
        return received(message)

    def receive_now(self, milliseconds: int) -> Received | None:
        """The next message, if it comes soon."""
        message = self.java.receive(milliseconds, self._seconds.getClass().getField("MILLISECONDS").get(None))
        return None if message is None else received(message)

    def acknowledge(self, message: Received) -> None:
        self.java.acknowledge(message.native)

    def close(self) -> None:
        self.java.close()


class JavaClient:
    """A client of one service."""

    refusals = Py4JJavaError

    def __init__(self, gateway: JavaGateway, url: str) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self.seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
        self.java = self._of("PulsarClient").builder().serviceUrl(url).build()

    def _of(self, name: str) -> Any:
        return getattr(self._jvm, _API + name)

    @property
    def earliest(self) -> Any:
        return self._of("MessageId").earliest

    @property
    def latest(self) -> Any:
        return self._of("MessageId").latest

    def producer(self, topic: str, *, batched: bool = False, compression: str = "NONE", **options: Any) -> JavaProducer:
        """A producer; batched: its messages go when they are flushed, all in one."""
        builder = self.java.newProducer().topic(topic).enableBatching(batched)
        builder.compressionType(getattr(self._of("CompressionType"), compression))
        if batched:
            builder.batchingMaxMessages(1000).batchingMaxPublishDelay(1, self._jvm.java.util.concurrent.TimeUnit.HOURS)
        for name, option in options.items():
            getattr(builder, name)(option)
        return JavaProducer(builder.create())

    def reader(
        self, topic: str, start: Any = None, *, compacted: bool = False, inclusive: bool = False, queue: int = 1000,
        **options: Any,
    ) -> JavaReader:  # fmt: skip
        """A reader from a message id, the first one by default."""
        builder = self.java.newReader().topic(topic).startMessageId(self.earliest if start is None else start)
        builder.readCompacted(compacted).receiverQueueSize(queue)
        if inclusive:
            builder.startMessageIdInclusive()
        for name, option in options.items():
            getattr(builder, name)(option)
        return JavaReader(builder.create(), self.seconds)

    def consumer(
        self, topic: str, subscription: str, kind: str = "Exclusive", *, compacted: bool = False,
        by_index: bool = False, **options: Any,
    ) -> JavaConsumer:  # fmt: skip
        """A consumer; a new subscription begins at the first message."""
        builder = self.java.newConsumer().topic(self.strings(topic)).subscriptionName(subscription)
        builder.subscriptionType(getattr(self._of("SubscriptionType"), kind)).readCompacted(compacted)
        builder.subscriptionInitialPosition(self._of("SubscriptionInitialPosition").Earliest)
        builder.enableBatchIndexAcknowledgment(by_index)
        for name, option in options.items():
            getattr(builder, name)(option)
        return JavaConsumer(builder.subscribe(), self.seconds)

    def strings(self, *values: str) -> Any:
        """A Java array."""
        array = self._gateway.new_array(self._jvm.java.lang.String, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


@contextmanager
def java_client(gateway: JavaGateway, url: str) -> Iterator[JavaClient]:
    """A client, closed at the end."""
    client = JavaClient(gateway, url)
    try:
        yield client
    finally:
        client.java.close()


def received(java: Any) -> Received:
    """A Java message as plain values."""
    message_id = java.getMessageId()
    while hasattr(message_id, "getInnerMessageId") and "TopicMessageId" in str(message_id.getClass()):
        message_id = message_id.getInnerMessageId()
    key = java.getKey() if java.hasKey() else None
    return Received(key, bytes(java.getData() or b""), place(message_id), java)


def place(message_id: Any) -> tuple[int, int, int]:
    """Ledger, entry and batch index of a Java message id; -1: not in a batch."""
    return message_id.getLedgerId(), message_id.getEntryId(), message_id.getBatchIndex()
