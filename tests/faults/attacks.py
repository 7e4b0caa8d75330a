"""Attacks on a service, each by the role that could make it, for a second or so. For a process of its own.

An attack ends by itself when its time is over, whatever the service does with it: it closes its connections, and
errors of its sockets are what it expects.
"""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from api.pulsar.pulsar_api_pb2 import BaseCommand
from storage.checksums import crc32c
from storage.entries.entry import MAGIC, U32
from storage.entries.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata
from tests.frames import FrameParser, encoded

SOCKET_SECONDS = 0.5
VICTIM = "persistent://acme/app/victim"
ATTACKING_HOST = "127.0.0.9"
"""The source of connections that an attack opens by the thousand: other clients of 127.0.0.1 keep their ports."""
_IP_BIND_ADDRESS_NO_PORT = 24
"""Linux's option: the port is chosen at the connect, so that each destination has all ports."""
_LARGE = 5 << 20


@dataclass(frozen=True)
class Target:
    """A service: its addresses, and tokens by role."""

    http: tuple[str, int]
    broker: tuple[str, int]
    tokens: Mapping[str, str]


def frame(entry: bytes = b"", **command: object) -> bytes:
    return b"".join(encoded(BaseCommand(**command), entry))


@contextmanager
def connected(target: Target, role: str | None, seconds: float = SOCKET_SECONDS) -> Iterator[socket.socket]:
    """A connection to the port of Pulsar's protocol; with a role it has sent CONNECT and has its answer."""
    with socket.create_connection(target.broker, 10) as connection:
        if role is not None:
            connection.sendall(connect_frame(target, role))
            connection.recv(1 << 16)
        connection.settimeout(seconds)
        yield connection


def connect_frame(target: Target, role: str) -> bytes:
    return frame(
        type=BaseCommand.CONNECT,
        connect={
            "client_version": "attack",
            "protocol_version": 20,
            "auth_method_name": "token",
            "auth_data": target.tokens[role].encode(),
        },
    )


def flood(target: Target, role: str, data: bytes, seconds: float, connections: int = 1) -> None:
    """Send the same frames as fast as the service takes them, and read what it answers."""
    block = data * max(1, (64 << 10) // len(data))
    ends = time.monotonic() + seconds
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(target, role, 0.01)) for _ in range(connections)]
        while time.monotonic() < ends:
            for connection in opened:
                with suppress(OSError):
                    connection.send(block)
                with suppress(OSError):
                    while connection.recv(1 << 20):
                        pass


def frames_before_connect(target: Target, seconds: float) -> None:
    """X4: without a token, commands full of small fields: 74 KiB each, up to 7 MB a second."""
    required = b"\x0a\x01t\x12\x01s\x18\x00\x20\x01\x28\x01"
    fields = required + b"\x52\x04\x0a\x00\x12\x00" * 12_000
    command = b"\x08\x04\x22" + _varint(len(fields)) + fields
    data = (4 + len(command)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    ends = time.monotonic() + seconds
    with ExitStack() as stack:
        while time.monotonic() < ends:
            with suppress(OSError):
                stack.enter_context(connected(target, None)).sendall(data)
            time.sleep(0.01)


def pings(target: Target, seconds: float) -> None:
    """X5: by any role."""
    flood(target, "eve", frame(type=BaseCommand.PING, ping={}), seconds)


def lookups(target: Target, seconds: float) -> None:
    """X5: by a role without permission, on several connections."""
    lookup = frame(type=BaseCommand.LOOKUP, lookup_topic={"topic": VICTIM, "request_id": 1})
    flood(target, "eve", lookup, seconds, connections=4)


def large_names(target: Target, seconds: float) -> None:
    """X10: names of 5 MiB."""
    lookup = frame(type=BaseCommand.LOOKUP, lookup_topic={"topic": "a/" * (_LARGE // 2), "request_id": 1})
    flood(target, "eve", lookup, seconds)


def patterns(target: Target, seconds: float) -> None:
    """X6: patterns that are short and take long to compile."""
    data = b"".join(
        frame(
            type=BaseCommand.WATCH_TOPIC_LIST,
            watch_topic_list={
                "request_id": number,
                "watcher_id": number,
                "namespace": "evil/app",
                "topics_pattern": rf"(?i)\pL{{{300 - number}}}",
            },
        )
        for number in range(50)
    )
    flood(target, "mallory", data, seconds)


def sticky_ranges(target: Target, seconds: float) -> None:
    """X6: a consumer with 2,000 ranges of hashes, and 4 MiB of metadata."""
    ranges = [{"start": 2 * number, "end": 2 * number} for number in range(2_000)]
    data = frame(
        type=BaseCommand.SUBSCRIBE,
        subscribe={
            "topic": "persistent://evil/app/sticky",
            "subscription": "s",
            "sub_type": 3,
            "consumer_id": 1,
            "request_id": 1,
            "key_shared_meta": {"mode": 1, "hash_ranges": ranges},
            "metadata": [{"key": "k", "value": "v" * (4 << 20)}],
        },
    )
    flood(target, "mallory", data, seconds)


def watchers(target: Target, seconds: float) -> None:
    """X12: more watchers than are allowed, all at once."""
    data = b"".join(
        frame(
            type=BaseCommand.WATCH_TOPIC_LIST,
            watch_topic_list={
                "request_id": number,
                "watcher_id": number,
                "namespace": "evil/app",
                "topics_pattern": "persistent://evil/app/.*x",
            },
        )
        for number in range(2_000)
    )
    parser, accepted = FrameParser(), 0
    ends = time.monotonic() + seconds
    with connected(target, "mallory") as connection, suppress(OSError):
        connection.sendall(data)
        while time.monotonic() < ends:
            answers = [answer.command.type for answer in parser.feed(connection.recv(1 << 20))]
            accepted += answers.count(BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    assert accepted <= 100, f"{accepted} watchers of one connection"


def half_frames(target: Target, seconds: float) -> None:
    """X10: 100 frames of 5 MiB, each but for its last byte, by a role without permission."""
    send = BaseCommand(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 1}).SerializeToString()
    head = (_LARGE).to_bytes(4, "big") + len(send).to_bytes(4, "big") + send
    data = head + bytes(_LARGE + 4 - len(head) - 1)
    ends = time.monotonic() + seconds
    with ExitStack() as stack:
        waiting = {stack.enter_context(connected(target, "eve", 0.001)): 0 for _ in range(100)}
        while time.monotonic() < ends:
            for connection, sent in waiting.items():
                with suppress(OSError):
                    waiting[connection] += connection.send(data[sent : sent + (256 << 10)])


def idle_connections(target: Target, seconds: float) -> None:
    """X11: more connections than either port takes, without a token and without a request.

    They have a source address of their own, and are reset when the service has closed them: they leave nothing in
    TIME_WAIT, and search no port among those of other programs' connections.
    """
    ends = time.monotonic() + seconds
    with ExitStack() as stack:
        while time.monotonic() < ends:
            for address in (target.http, target.broker):
                with suppress(OSError):
                    stack.enter_context(connect_from(ATTACKING_HOST, address))


def connect_from(host: str, address: tuple[str, int], seconds: float = 1) -> socket.socket:
    """Connect from a source address, by a connection that a close resets. Raises OSError."""
    connection = socket.socket()
    try:
        connection.settimeout(seconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((host, 0))
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def login_bodies(target: Target, seconds: float) -> None:
    """X3: bodies of which one byte comes, without a token."""
    head = b"POST /dashboard/login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
    head += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nt"
    ends = time.monotonic() + seconds
    with ExitStack() as stack:
        while time.monotonic() < ends:
            with suppress(OSError):
                stack.enter_context(socket.create_connection(target.http, 1)).sendall(head)
            time.sleep(0.01)


def long_ack_sets(target: Target, seconds: float) -> None:
    """X1: an acknowledgement of 195 KiB."""
    subscribe = {
        "topic": VICTIM,
        "subscription": "attack",
        "sub_type": 1,
        "consumer_id": 1,
        "request_id": 1,
        "initial_position": 1,
    }
    words = [1] * 20_000
    ack = {"consumer_id": 1, "ack_type": 0, "message_id": [{"ledger_id": 1, "entry_id": 0, "ack_set": words}]}
    data = frame(type=BaseCommand.SUBSCRIBE, subscribe=subscribe) + frame(type=BaseCommand.ACK, ack=ack) * 20
    flood(target, "carol", data, seconds)


def large_schemas(target: Target, seconds: float) -> None:
    """X2: Avro schemas of many fields, each for the same topic."""
    fields = ",".join(f'{{"name":"f{number}","type":["null","int"],"default":null}}' for number in range(15_000))
    data = b"".join(
        frame(
            type=BaseCommand.GET_OR_CREATE_SCHEMA,
            get_or_create_schema={
                "topic": "persistent://evil/app/schemas",
                "request_id": number,
                "schema": {
                    "name": "s",
                    "type": 4,
                    "schema_data": f'{{"type":"record","name":"r{number}","fields":[{fields}]}}'.encode(),
                },
            },
        )
        for number in range(4)
    )
    flood(target, "mallory", data, seconds)


def claimed_messages(target: Target, seconds: float) -> None:
    """X7: entries of some 30 bytes that claim 262,144 messages."""
    entry = _entry(b"", num_messages_in_batch=262_144)
    send = {"producer_id": 1, "sequence_id": 1, "num_messages": 262_144}
    data = _producer("persistent://evil/app/claims") + frame(entry, type=BaseCommand.SEND, send=send) * 100
    flood(target, "mallory", data, seconds)


def inflating_batches(target: Target, seconds: float) -> None:
    """X8: batches of some KiB that inflate to 90 MiB."""
    payload = zlib.compress(bytes(90 << 20), 9)
    entry = _entry(payload, num_messages_in_batch=2, compression=2, uncompressed_size=90 << 20)
    send = {"producer_id": 1, "sequence_id": 1, "num_messages": 2}
    data = _producer("persistent://evil/app/bombs") + frame(entry, type=BaseCommand.SEND, send=send)
    flood(target, "mallory", data, seconds)


def large_keys(target: Target, seconds: float) -> None:
    """X6: ordering keys of 4 MiB on a key-shared subscription, delivered again and again."""
    topic = "persistent://evil/app/keys"
    subscribe = {"topic": topic, "subscription": "s", "sub_type": 3, "consumer_id": 1, "request_id": 1}
    send = {"producer_id": 1, "sequence_id": 1}
    with connected(target, "mallory") as connection, suppress(OSError):
        connection.sendall(
            _producer(topic)
            + frame(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)
            + frame(type=BaseCommand.FLOW, flow={"consumer_id": 1, "message_permits": 1_000})
        )
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            again = {"consumer_id": 1}
            connection.sendall(
                frame(_entry(b"v", ordering_key=bytes(4 << 20)), type=BaseCommand.SEND, send=send)
                + frame(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliver_unacknowledged_messages=again)
            )
            with suppress(TimeoutError):
                while connection.recv(1 << 20):
                    pass


def partial_acks(target: Target, seconds: float) -> None:
    """X6: acknowledgements of parts of a large batch, cumulative and of every other message."""
    topic = "persistent://evil/app/acks"
    single = SingleMessageMetadata(payload_size=0).SerializeToString()
    entry = _entry((len(single).to_bytes(4, "big") + single) * 5_000, num_messages_in_batch=5_000)
    subscribe = {
        "topic": topic,
        "subscription": f"s{time.monotonic_ns()}",
        "consumer_id": 1,
        "request_id": 1,
        "sub_type": 0,
        "initial_position": 1,
    }
    parser = FrameParser()
    with connected(target, "mallory", 5) as connection, suppress(OSError):
        connection.sendall(
            _producer(topic)
            + frame(entry, type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 1, "num_messages": 5_000})
            + frame(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)
            + frame(type=BaseCommand.FLOW, flow={"consumer_id": 1, "message_permits": 1})
        )
        message = None
        while message is None and (data := connection.recv(1 << 20)):
            answers = [answer.command for answer in parser.feed(data)]
            message = next((item.message for item in answers if item.type == BaseCommand.MESSAGE), None)
        assert message is not None, "the batch was not delivered"
        message_id = {"ledger_id": message.message_id.ledger_id, "entry_id": message.message_id.entry_id}
        every_other = {**message_id, "ack_set": [0x5555555555555555] * 78}
        acks = frame(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 1, "message_id": [every_other]})
        acks += frame(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": [every_other] * 50})
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            connection.sendall(acks * 50)


def _producer(topic: str) -> bytes:
    return frame(type=BaseCommand.PRODUCER, producer={"topic": topic, "producer_id": 1, "request_id": 1})


def _entry(payload: bytes, **fields: object) -> bytes:
    metadata = MessageMetadata(producer_name="attack", sequence_id=1, publish_time=1, **fields).SerializeToString()
    body = U32.pack(len(metadata)) + metadata + payload
    return MAGIC + U32.pack(crc32c(body)) + body


def _varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return data + bytes((number,))


ATTACKS: Mapping[str, Callable[[Target, float], None]] = {
    attack.__name__: attack
    for attack in (
        frames_before_connect,
        pings,
        lookups,
        large_names,
        patterns,
        sticky_ranges,
        watchers,
        half_frames,
        idle_connections,
        login_bodies,
        long_ack_sets,
        large_schemas,
        claimed_messages,
        inflating_batches,
        large_keys,
        partial_acks,
    )
}
"""A new attack is a function in this list."""


def run(name: str, target: Target, seconds: float) -> None:
    """Make an attack."""
    ATTACKS[name](target, seconds)
