"""A client of Pulsar's binary protocol that sends exactly what a probe says, and the entries that it publishes.

Frames that arrive stay in order until a probe takes them: `wait` takes the next of a type and leaves the others.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from api.pulsar.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from storage.entries.entry import U32, parse_metadata
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from tests.clients.behaviour.endpoint import PATIENCE, SUPERUSER, Endpoint, token_of
from tests.frames import encoded
from tests.pulsar_entries import batch_payload, entry, single

EXCLUSIVE, SHARED = CommandSubscribe.Exclusive, CommandSubscribe.Shared
FAILOVER, KEY_SHARED = CommandSubscribe.Failover, CommandSubscribe.KeyShared
EARLIEST = {"ledger_id": 2**64 - 1, "entry_id": 2**64 - 1}
LATEST = {"ledger_id": 2**63 - 1, "entry_id": 2**63 - 1}
QUIET = 0.7
"""Seconds without a frame after which a probe takes it that none follows."""
Id = dict[str, Any]
PROBE, CPP, JAVA = "probe", "Pulsar-CPP-v4.0.0", "Pulsar-Java-v4.2.4"
"""Versions that clients name: this service counts permits as they give them back."""
_ORIGINAL_PRINCIPAL = 7
"""The number of a field of CommandConnect that only proxies send."""


class Frame(NamedTuple):
    """A command, and the entry after it, if any."""

    command: BaseCommand
    entry: bytes


class Wire:
    """One connection. A context manager, which closes the connection."""

    def __init__(
        self, endpoint: Endpoint, role: str = SUPERUSER, original_principal: str = "", version: str = PROBE
    ) -> None:
        url = urlsplit(endpoint.broker_service_url)
        self.socket = socket.create_connection((str(url.hostname), int(url.port or 0)), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(None)
        self.closed = False
        self._frames = list[Frame]()
        self._arrived, self._sending = threading.Condition(), threading.Lock()
        threading.Thread(target=self._receive, name="wire", daemon=True).start()
        self._numbers = itertools.count(1)
        access = {"auth_method_name": "token", "auth_data": token_of(role).encode()}
        command = BaseCommand(
            type=BaseCommand.CONNECT, connect={"client_version": version, "protocol_version": 20} | access
        )
        if original_principal:
            text = original_principal.encode()
            command.connect.MergeFromString(bytes([_ORIGINAL_PRINCIPAL << 3 | 2, len(text)]) + text)
        self._send(command)
        self.connected = self.answer(BaseCommand.CONNECTED, BaseCommand.ERROR)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, as a client that dies does."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    # frames

    def send(self, stored: bytes = b"", **command: Any) -> None:
        """Send one frame."""
        self._send(BaseCommand(**command), stored)

    def _send(self, command: BaseCommand, stored: bytes = b"") -> None:
        with self._sending:
            self.socket.sendall(b"".join(encoded(command, stored)))

    def wait(self, *types: int, seconds: float = PATIENCE, consumer_id: int | None = None) -> Frame | None:
        """Take the next frame of these types; None: none came in time, or the connection ended."""

        def first() -> int | None:
            for index, frame in enumerate(self._frames):
                if frame.command.type in types and consumer_id in (None, _consumer_of(frame.command)):
                    return index
            return None

        with self._arrived:
            self._arrived.wait_for(lambda: self.closed or first() is not None, seconds)
            index = first()
            return None if index is None else self._frames.pop(index)

    def _receive(self) -> None:
        """Keep the frames that arrive, and answer each PING: brokers end connections that do not."""
        pending = bytearray()
        with suppress(OSError):
            while data := self.socket.recv(1 << 18):
                pending += data
                while (frame := _next(pending)) is not None:
                    if frame.command.type == BaseCommand.PING:
                        self.send(type=BaseCommand.PONG, pong={})
                        continue
                    with self._arrived:
                        self._frames.append(frame)
                        self._arrived.notify_all()
        with self._arrived:
            self.closed = True
            self._arrived.notify_all()

    def answer(self, *types: int) -> BaseCommand:
        """Take the next command of these types."""
        frame = self.wait(*types)
        assert frame is not None, f"no answer of {[BaseCommand.Type.Name(item) for item in types]}"
        return frame.command

    # requests

    def lookup(self, topic: str) -> BaseCommand:
        """Look a topic up, so that its owner has loaded it."""
        for attempt in range(40):
            lookup = {"topic": topic, "request_id": next(self._numbers), "authoritative": attempt > 0}
            self.send(type=BaseCommand.LOOKUP, lookup_topic=lookup)
            answer = self.answer(BaseCommand.LOOKUP_RESPONSE, BaseCommand.ERROR)
            response = answer.lookup_topic_response
            if response.response == CommandLookupTopicResponse.Connect:
                break
            if response.error not in (ServerError.ServiceNotReady, ServerError.MetadataError):
                break
            time.sleep(0.1)
        return answer

    def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> BaseCommand:
        """Create a producer."""
        self.lookup(topic)
        producer = {"topic": topic, "producer_id": producer_id, "request_id": next(self._numbers), **fields}
        self.send(type=BaseCommand.PRODUCER, producer=producer)
        return self.answer(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)

    def publish(self, stored: bytes, sequence_id: int = 0, count: int = 1, producer_id: int = 1, **fields: Any) -> Id:
        """Publish an entry and return its id."""
        send = {"producer_id": producer_id, "sequence_id": sequence_id, "num_messages": count, **fields}
        self.send(stored, type=BaseCommand.SEND, send=send)
        answer = self.answer(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)
        assert answer.type == BaseCommand.SEND_RECEIPT, answer
        return _id(answer.send_receipt.message_id)

    def subscribe(
        self, topic: str, name: str = "s", sub_type: int = EXCLUSIVE, consumer_id: int = 1, **fields: Any
    ) -> BaseCommand:
        """Subscribe, a durable subscription at the earliest message unless `fields` say otherwise."""
        self.lookup(topic)
        first = CommandSubscribe.Earliest if fields.get("durable", True) else CommandSubscribe.Latest
        subscribe = {
            "topic": topic, "subscription": name, "sub_type": sub_type, "consumer_id": consumer_id,
            "request_id": next(self._numbers), "initial_position": first, **fields,
        }  # fmt: skip
        self.send(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)
        return self.answer(BaseCommand.SUCCESS, BaseCommand.ERROR)

    def subscribe_again(self, topic: str, name: str = "s", sub_type: int = EXCLUSIVE, **fields: Any) -> None:
        """Subscribe after the consumer was closed, as often as a client would until it succeeds."""
        deadline = time.monotonic() + PATIENCE
        while (result := outcome(self.subscribe(topic, name, sub_type, **fields))) != "Success":
            assert time.monotonic() < deadline, result
            time.sleep(0.1)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.send(type=BaseCommand.FLOW, flow={"consumer_id": consumer_id, "message_permits": permits})

    def messages(self, expected: int, consumer_id: int | None = None, quiet: float = QUIET) -> list[Frame]:
        """Take messages: as many as are expected, then those that arrive before a quiet time."""
        frames: list[Frame] = []
        while True:
            seconds = PATIENCE if len(frames) < expected else quiet
            frame = self.wait(BaseCommand.MESSAGE, seconds=seconds, consumer_id=consumer_id)
            if frame is None:
                return frames
            frames.append(frame)

    def ack(self, ids: Sequence[Id], cumulative: bool = False, consumer_id: int = 1) -> str:
        """Acknowledge and wait for the receipt; its outcome."""
        kind = CommandAck.Cumulative if cumulative else CommandAck.Individual
        ack = {"consumer_id": consumer_id, "ack_type": kind, "message_id": ids, "request_id": next(self._numbers)}
        self.send(type=BaseCommand.ACK, ack=ack)
        response = self.answer(BaseCommand.ACK_RESPONSE).ack_response
        return ServerError.Name(response.error) if response.HasField("error") else "Success"

    def redeliver(self, ids: Sequence[Id] = (), consumer_id: int = 1, **fields: Any) -> None:
        """Ask for some messages again, or for all that are not acknowledged."""
        redeliver = {"consumer_id": consumer_id, "message_ids": ids, **fields}
        self.send(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliver_unacknowledged_messages=redeliver)

    def seek(self, consumer_id: int = 1, **fields: Any) -> str:
        """Seek; its outcome."""
        self.send(type=BaseCommand.SEEK, seek={"consumer_id": consumer_id, "request_id": next(self._numbers), **fields})
        return outcome(self.answer(BaseCommand.SUCCESS, BaseCommand.ERROR))

    def unsubscribe(self, consumer_id: int = 1, **fields: Any) -> str:
        """Unsubscribe; its outcome."""
        unsubscribe = {"consumer_id": consumer_id, "request_id": next(self._numbers), **fields}
        self.send(type=BaseCommand.UNSUBSCRIBE, unsubscribe=unsubscribe)
        return outcome(self.answer(BaseCommand.SUCCESS, BaseCommand.ERROR))

    def close_consumer(self, consumer_id: int = 1) -> str:
        """Close a consumer; its outcome."""
        closing = {"consumer_id": consumer_id, "request_id": next(self._numbers)}
        self.send(type=BaseCommand.CLOSE_CONSUMER, close_consumer=closing)
        return outcome(self.answer(BaseCommand.SUCCESS, BaseCommand.ERROR))

    def last_message_id(self, consumer_id: int = 1) -> BaseCommand:
        """Return the answer to GET_LAST_MESSAGE_ID."""
        asking = {"consumer_id": consumer_id, "request_id": next(self._numbers)}
        self.send(type=BaseCommand.GET_LAST_MESSAGE_ID, get_last_message_id=asking)
        return self.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, BaseCommand.ERROR)

    def partitions(self, topic: str, **fields: Any) -> Any:
        """Return the number of partitions, or the error's name."""
        asking = {"topic": topic, "request_id": next(self._numbers), **fields}
        self.send(type=BaseCommand.PARTITIONED_METADATA, partition_metadata=asking)
        answer = self.answer(BaseCommand.PARTITIONED_METADATA_RESPONSE, BaseCommand.ERROR)
        response = answer.partition_metadata_response
        if answer.type == BaseCommand.ERROR:
            return outcome(answer)
        return ServerError.Name(response.error) if response.HasField("error") else response.partitions

    def consumer_closed(self, consumer_id: int | None = None, seconds: float = PATIENCE) -> bool:
        """Wait for CLOSE_CONSUMER; return whether it came."""
        return self.wait(BaseCommand.CLOSE_CONSUMER, seconds=seconds, consumer_id=consumer_id) is not None

    def active_changes(self, expected: int, consumer_id: int | None = None) -> list[bool]:
        """Take notifications of the active consumer."""
        changes: list[bool] = []
        while True:
            seconds = PATIENCE if len(changes) < expected else QUIET
            frame = self.wait(BaseCommand.ACTIVE_CONSUMER_CHANGE, seconds=seconds, consumer_id=consumer_id)
            if frame is None:
                return changes
            changes.append(frame.command.active_consumer_change.is_active)


@contextmanager
def wire_consumer(
    endpoint: Endpoint, topic: str, permits: int, name: str = "s", sub_type: int = EXCLUSIVE, **fields: Any
) -> Iterator[Wire]:
    """Connect and subscribe as `Wire.subscribe` does, with that many permits."""
    with Wire(endpoint) as wire:
        wire.subscribe(topic, name, sub_type, **fields)
        wire.flow(permits)
        yield wire


def _next(pending: bytearray) -> Frame | None:
    """Take the first frame of what arrived, if it is whole."""
    if len(pending) < 4 or len(pending) < (end := 4 + U32.unpack_from(pending)[0]):
        return None
    body = 8 + U32.unpack_from(pending, 4)[0]
    frame = Frame(BaseCommand.FromString(bytes(pending[8:body])), bytes(pending[body:end]))
    del pending[:end]
    return frame


def _consumer_of(command: BaseCommand) -> int | None:
    for name in ("message", "close_consumer", "active_consumer_change"):
        if command.HasField(name):
            return int(getattr(command, name).consumer_id)
    return None


def _id(message_id: MessageIdData) -> Id:
    return {"ledger_id": message_id.ledger_id, "entry_id": message_id.entry_id}


def spread(wires: Sequence[Wire], total: int) -> list[list[Frame]]:
    """Take the messages of several consumers: `total` together, then those that arrive before a quiet time."""
    frames: list[list[Frame]] = [[] for _ in wires]
    deadline = time.monotonic() + PATIENCE
    while sum(map(len, frames)) < total and time.monotonic() < deadline:
        for wire, taken in zip(wires, frames, strict=True):
            taken += wire.messages(0, quiet=0.05)
    for wire, taken in zip(wires, frames, strict=True):
        taken += wire.messages(0)
    return frames


def id_of(frame: Frame) -> Id:
    """Return the id of a delivered entry."""
    return _id(frame.command.message.message_id)


def ids_of(frames: Sequence[Frame]) -> list[Id]:
    """Return the ids of delivered entries."""
    return [id_of(frame) for frame in frames]


def payload(frame: Frame) -> str:
    """Return the payload of a delivered entry that holds one message, as text."""
    return frame.entry[parse_metadata(frame.entry, checksum_verified=True)[1] :].decode()


def payloads(frames: Sequence[Frame]) -> list[str]:
    """Return the payloads of delivered entries that hold one message each."""
    return [payload(frame) for frame in frames]


def slots(frame: Frame) -> int:
    """Return how many messages a delivered entry counts, acknowledged and dropped ones with them."""
    return int(parse_metadata(frame.entry, checksum_verified=True)[0].num_messages_in_batch)


def counts(frames: Sequence[Frame]) -> list[int]:
    """Return the redelivery counts of delivered entries."""
    return [frame.command.message.redelivery_count for frame in frames]


def outcome(command: BaseCommand) -> str:
    """Return Success, or the name of the error."""
    return ServerError.Name(command.error.error) if command.type == BaseCommand.ERROR else "Success"


def plain(value: bytes | str, sequence_id: int = 0, key: str | None = None, **fields: Any) -> bytes:
    """Return an entry of one message."""
    if key is not None:
        fields["partition_key"] = key.encode()
    data = value.encode() if isinstance(value, str) else value
    return entry(_metadata(sequence_id, **fields), data)


def batch(values: Sequence[str], sequence_id: int = 0, keys: Sequence[str] | None = None, **fields: Any) -> bytes:
    """Return an entry of a batch."""
    keyed = [{"partition_key": key.encode()} for key in keys] if keys is not None else [{} for _ in values]
    body = batch_payload(
        single(value.encode(), sequence_id=sequence_id + index, **fields_of)
        for index, (value, fields_of) in enumerate(zip(values, keyed, strict=True))
    )
    first = {"partition_key": keys[0].encode()} if keys else {}
    sizes = {"num_messages_in_batch": len(values), "uncompressed_size": len(body)}
    described = _metadata(sequence_id, highest_sequence_id=sequence_id + len(values) - 1, **sizes, **first, **fields)
    return entry(described, body)


def _metadata(sequence_id: int, **fields: Any) -> MessageMetadata:
    now = int(time.time() * 1000)
    return MessageMetadata(**{"producer_name": "p", "sequence_id": sequence_id, "publish_time": now} | fields)


def produced(endpoint: Endpoint, topic: str, count: int, first: int = 0, **fields: Any) -> list[Id]:
    """Publish messages with the payloads "0", "1", … and return their ids."""
    with Wire(endpoint) as wire:
        assert outcome(wire.producer(topic)) == "Success"
        numbers = range(first, first + count)
        return [wire.publish(plain(str(number), number, **fields), number) for number in numbers]


def produced_batches(endpoint: Endpoint, topic: str, batches: int, size: int, key: str | None = None) -> list[Id]:
    """Publish batches with payloads of consecutive numbers; return the ids of the entries."""
    with Wire(endpoint) as wire:
        assert outcome(wire.producer(topic)) == "Success"
        ids = []
        for first in range(0, batches * size, size):
            numbers = [str(number) for number in range(first, first + size)]
            keys = None if key is None else [key + number for number in numbers]
            ids.append(wire.publish(batch(numbers, first, keys), first, size))
        return ids
