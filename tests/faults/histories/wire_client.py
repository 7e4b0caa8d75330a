"""A client of Pulsar's binary protocol that does what the Python client does not offer.

It receives receipts of acknowledgements, acknowledges some slots of a batch, and ends its connection at any moment with
entries in flight. It uses the project's generated messages only.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Self

from api.pulsar.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse
from storage.entries.entry import parse_metadata
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from tests.frames import encoded

_ANSWERS = {BaseCommand.LOOKUP_RESPONSE: "lookup_topic_response"}
_ANSWER_SECONDS = 20.0
_LOOKUPS = 5
_PROTOCOL_VERSION = 20
_U32 = struct.Struct(">I")
_WORD = (1 << 64) - 1

ERRORS = (OSError,)
"""What a connection raises when services fail."""


class WireClient:
    """One connection to one service. `entry`: that of the command that `read` returned last."""

    def __init__(self, port: int) -> None:
        """Connect. Raises OSError."""
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._socket.settimeout(8)
        self._buffer = b""
        self._request = 0
        self.entry = b""
        connect = {"client_version": "histories", "protocol_version": _PROTOCOL_VERSION}
        try:
            self.send(BaseCommand(type=BaseCommand.CONNECT, connect=connect))
            answer = self.read(_ANSWER_SECONDS)
            if answer is None or answer.type != BaseCommand.CONNECTED:
                raise ConnectionError("the service did not answer CONNECT")
        except OSError:
            self.close()
            raise

    @classmethod
    def at_owner(cls, ports: Sequence[int], chance: random.Random, topic: str) -> Self:
        """Connect to the service that owns the topic. Raises OSError."""
        port, authoritative = chance.choice(ports), False
        for _ in range(_LOOKUPS):
            client = cls(port)
            lookup = {"topic": topic, "authoritative": authoritative}
            try:
                answer = client.ask(BaseCommand.LOOKUP, lookup_topic=lookup).lookup_topic_response
            except OSError:
                client.close()
                raise
            owner = int(answer.broker_service_url.rsplit(":", 1)[1]) if answer.broker_service_url else port
            if answer.response == CommandLookupTopicResponse.Connect and owner == port:
                return client
            client.close()
            if answer.response == CommandLookupTopicResponse.Failed:
                raise ConnectionError(answer.message)
            port, authoritative = owner, True
        raise ConnectionError(f"{_LOOKUPS} lookups did not lead to the owner of {topic}")

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        self._socket.sendall(b"".join(encoded(command, entry)))

    def ask(self, kind: BaseCommand.Type, **fields: dict[str, Any]) -> BaseCommand:
        """Send a command with one field, and return the answer with its request id. Raises OSError."""
        ((name, content),) = fields.items()
        request = self.next_request()
        self.send(BaseCommand(type=kind, **{name: {**content, "request_id": request}}))
        deadline = time.monotonic() + _ANSWER_SECONDS
        while (answer := self.read(deadline - time.monotonic())) is not None:
            field = _ANSWERS.get(answer.type, BaseCommand.Type.Name(answer.type).lower())
            if getattr(getattr(answer, field, None), "request_id", None) == request:
                return answer
        raise ConnectionError(f"no answer to {name}")

    def next_request(self) -> int:
        self._request += 1
        return self._request

    def read(self, seconds: float) -> BaseCommand | None:
        """Return the next command; None: none came in that time. Raises OSError."""
        deadline = time.monotonic() + seconds
        while True:
            if len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := _U32.unpack_from(self._buffer)[0]):
                frame, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
                end = 4 + _U32.unpack_from(frame)[0]
                command, self.entry = BaseCommand.FromString(frame[4:end]), frame[end:]
                if command.type != BaseCommand.PING:
                    return command
                self.send(BaseCommand(type=BaseCommand.PONG, pong={}))
                continue
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._socket], [], [], remaining)[0]:
                return None
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the service closed the connection")
            self._buffer += data

    def produce(self, topic: str, name: str) -> int:
        """Create producer 1; return the last sequence id that the service names. Raises OSError."""
        answer = self.ask(BaseCommand.PRODUCER, producer={"topic": topic, "producer_id": 1, "producer_name": name})
        if answer.type != BaseCommand.PRODUCER_SUCCESS:
            raise ConnectionError(answer.error.message)
        return answer.producer_success.last_sequence_id

    def publish(
        self, producer: str, sequence: int, key: str | None, payload: bytes, properties: dict[str, str]
    ) -> None:
        """Send one entry with one message; its receipt comes by `read`."""
        described = MessageMetadata(
            producer_name=producer,
            sequence_id=sequence,
            publish_time=int(time.time() * 1000),
            partition_key=None if key is None else key.encode(),
            properties=[{"key": name, "value": value} for name, value in properties.items()],
        ).SerializeToString()
        sent = {"producer_id": 1, "sequence_id": sequence, "num_messages": 1}
        self.send(BaseCommand(type=BaseCommand.SEND, send=sent), _U32.pack(len(described)) + described + payload)

    def subscribe(self, topic: str, subscription: str, *, shared: bool) -> BaseCommand:
        """Create consumer 1 at the earliest message; return the answer. Raises OSError."""
        subscribe = {
            "topic": topic,
            "subscription": subscription,
            "consumer_id": 1,
            "initial_position": 1,
            "sub_type": 1 if shared else 0,
        }
        return self.ask(BaseCommand.SUBSCRIBE, subscribe=subscribe)

    def permit(self, messages: int) -> None:
        """Let the service send so many messages more to consumer 1."""
        self.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "message_permits": messages}))

    def acknowledge(self, ledger: int, entry: int, *, cumulative: bool = False, ack_set: Sequence[int] = ()) -> int:
        """Acknowledge an entry, or the slots of it that `ack_set` clears; return the request id of the receipt."""
        request = self.next_request()
        at = {"ledger_id": ledger, "entry_id": entry, "ack_set": list(ack_set)}
        ack = {"consumer_id": 1, "ack_type": int(cumulative), "message_id": [at], "request_id": request}
        self.send(BaseCommand(type=BaseCommand.ACK, ack=ack))
        return request

    def reset(self) -> None:
        """End the connection at once, with whatever is in flight."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


def slots(command: BaseCommand, entry: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Return the delivered slots (ledger, entry, index) of a MESSAGE, and the number of slots of its entry."""
    described, _ = parse_metadata(entry)
    count = described.num_messages_in_batch if described.HasField("num_messages_in_batch") else 1
    message = command.message
    live = (1 << count) - 1
    if message.ack_set:
        live &= sum((word & _WORD) << 64 * number for number, word in enumerate(message.ack_set))
    at = message.message_id
    return [(at.ledger_id, at.entry_id, index) for index in range(count) if live >> index & 1], count


def ack_set(count: int, remaining: int) -> list[int]:
    """Return the words of an acknowledgement set of so many slots, from a number with a bit per remaining slot."""
    words = (remaining >> 64 * number & _WORD for number in range((count + 63) // 64))
    return [struct.unpack("<q", struct.pack("<Q", word))[0] for word in words]
