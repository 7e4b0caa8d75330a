"""What a connection allows a client, and what becomes of its producers and consumers when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.http.tokens import create
from api.observability.redaction import SHOWN
from api.pulsar.codec.limits import CONNECT_BYTES
from api.pulsar.connection import MOST_REQUEST_BYTES, MOST_UNREAD_BYTES, Connection
from api.pulsar.errors import Refused, failure
from api.pulsar.frames import encoded
from api.pulsar.producer_channel import ConnectedProducer
from api.pulsar.pulsar_api_pb2 import BaseCommand, ServerError
from api.pulsar.server import PulsarServer
from tests.asgi import access_of
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop
from tests.unit.api.pulsar.fairness import shared_limits

MESSAGE_BYTES = 5 << 20
SECRET = bytes(32)
KEEP_ALIVE_MS = 30_000
CONNECT_TIMEOUT_MS = 10_000
CONNECT = b"".join(
    encoded(BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": "t", "protocol_version": 20}))
)


class Transport(asyncio.Transport):
    """Takes what is written, and gives it to nobody while `reads` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.unread = 0
        self.ended = ""
        self.writes = 0
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.ended != ""

    def write(self, data: Any) -> None:
        self.writes += 1
        self.unread += 0 if self.reads else len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Peer:
    """A connection, and the transport under it."""

    def __init__(self, frame_seconds: float = 0.0, access: object = None) -> None:
        self.clock = ManualClock()
        self.seconds = 0.0
        self.frame_seconds = frame_seconds
        self.warnings: list[str] = []
        self.next_turns: list[Callable[[], None]] = []
        gateway = SimpleNamespace(
            broker=SimpleNamespace(pools={}),
            access=access or SimpleNamespace(verifier=None),
            settings=SimpleNamespace(
                max_message_size=MESSAGE_BYTES, keep_alive_ms=KEEP_ALIVE_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS
            ),
            clock=self.clock,
            **shared_limits(self.clock, call_soon=self.next_turns.append, now=self.now),
            server_version="test",
            log_throttle=SimpleNamespace(warn=lambda text, _: self.warnings.append(text)),
            take=lambda _: True,
            drop=lambda _: None,
        )
        self.gateway = gateway
        self.connection = Connection(cast(PulsarServer, gateway))
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def now(self) -> float:
        self.seconds += self.frame_seconds
        return self.seconds

    def says(self, data: bytes) -> Peer:
        self.connection.data_received(data)
        return self


def test_before_connect_frames_are_small() -> None:
    too_large = (CONNECT_BYTES + (64 << 10)).to_bytes(4, "big")
    assert Peer().says(too_large).connection.is_closed
    peer = Peer().says(CONNECT).says(too_large + (4).to_bytes(4, "big") + bytes((8, BaseCommand.SEND)))
    assert not peer.connection.is_closed


def test_a_client_that_never_connects_is_given_its_time_and_not_more() -> None:
    peer = Peer()
    peer.clock.advance(CONNECT_TIMEOUT_MS - 1)
    assert not peer.connection.is_late()
    peer.clock.advance(1)
    assert peer.connection.is_late()


def test_a_client_that_asks_and_never_reads_is_cut_off() -> None:
    peer = Peer().says(CONNECT)
    peer.transport.reads = False
    peer.connection.pause_writing()
    answer = failure(1, Refused(ServerError.MetadataError, ""))
    answer.error.message = "x" * (1 << 20)
    for _ in range(100):
        peer.connection.send(answer)
    assert peer.transport.ended == "aborted"
    assert MOST_UNREAD_BYTES <= peer.transport.unread <= MOST_UNREAD_BYTES + MESSAGE_BYTES + (1 << 20)
    assert "unread" in peer.warnings[0]


def test_nothing_is_written_to_a_client_that_has_left() -> None:
    """asyncio logs each write to a transport that has lost its client."""
    peer = Peer().says(CONNECT)
    peer.transport.ended = "lost"
    before = peer.transport.writes
    peer.connection.send(BaseCommand(type=BaseCommand.PONG, pong={}))
    assert peer.transport.writes == before


def test_a_flood_is_handled_in_turns_and_nothing_is_read_meanwhile() -> None:
    peer = Peer(frame_seconds=0.000_01).says(CONNECT)
    before = peer.transport.writes
    peer.says(frame(type=BaseCommand.PING, ping={}) * 20_000)
    assert peer.transport.writes - before < 100
    assert not peer.transport.reading
    turns = 0
    while peer.next_turns:
        peer.next_turns.pop(0)()
        turns += 1
    assert peer.transport.writes - before == 20_000
    assert turns > 100
    assert peer.transport.reading


def test_large_frames_that_arrive_wait_for_memory() -> None:
    peer = Peer().says(CONNECT)
    buffers = peer.gateway.receive_buffers
    others = [Peer().connection._incoming for _ in range(6)]
    for other in others:
        assert buffers.reserve(other, peer.connection.role, MESSAGE_BYTES)
    head = frame(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 1})[4:]
    peer.says((MESSAGE_BYTES).to_bytes(4, "big") + head + bytes(1_000))
    assert not peer.transport.reading
    buffers.release(others[0])
    assert peer.transport.reading
    peer.says(bytes(MESSAGE_BYTES - 1_000 - len(head)))
    assert buffers.reserved_bytes == 5 * MESSAGE_BYTES
    assert not peer.connection.is_closed


@in_event_loop
async def test_large_requests_under_way_are_bounded() -> None:
    peer = Peer().says(CONNECT)
    answered = asyncio.Event()

    async def work() -> None:
        await answered.wait()

    peer.connection._command_bytes = MOST_REQUEST_BYTES // 2
    peer.connection.begin(1, work())
    assert peer.transport.reading
    peer.connection.begin(2, work())
    assert not peer.transport.reading
    answered.set()
    while not peer.transport.reading:
        await asyncio.sleep(0)


def frame(**command: Any) -> bytes:
    return b"".join(encoded(BaseCommand(**command)))


def test_before_connect_only_connect_is_read() -> None:
    """The type decides before the content has arrived."""
    subscribe = frame(
        type=BaseCommand.SUBSCRIBE,
        subscribe={"topic": "t", "subscription": "s", "sub_type": 0, "consumer_id": 1, "request_id": 1},
    )
    peer = Peer().says(subscribe[:12])
    assert peer.connection.is_closed
    assert "before CONNECT" in peer.warnings[0]


def test_a_command_beyond_a_bound_is_refused_by_name_and_the_connection_stays() -> None:
    peer = Peer().says(CONNECT)
    sent: list[BaseCommand] = []
    peer.connection.send = lambda command, _entry=b"": sent.append(command)  # type: ignore[method-assign]
    lookup = {"topic": "x" * 2_000, "request_id": 7}
    peer.says(frame(type=BaseCommand.LOOKUP, lookup_topic=lookup))
    producer = {"topic": "t", "producer_id": 1, "request_id": 8, "metadata": [{"key": "k", "value": "v" * 5_000_000}]}
    peer.says(frame(type=BaseCommand.PRODUCER, producer=producer))
    response = sent[0].lookup_topic_response
    assert (response.request_id, response.error) == (7, ServerError.NotAllowedError)
    assert response.message == "LOOKUP: topic has 2000 bytes, and at most 1024 are allowed"
    error = sent[1].error
    assert (error.request_id, error.error) == (8, ServerError.MetadataError)
    assert "PRODUCER: metadata has 50000" in error.message
    assert not peer.connection.is_closed


def test_an_error_repeats_no_more_than_the_ends_of_a_long_name() -> None:
    assert len(Refused(ServerError.InvalidTopicName, f"Topic {'x' * (5 << 20)} not found").message) <= SHOWN


def test_its_producers_are_gone_at_once_whatever_its_client_has_not_read() -> None:
    peer = Peer().says(CONNECT)
    removed: list[object] = []
    connected = SimpleNamespace(topic=SimpleNamespace(remove_producer=removed.append), producer="producer")
    peer.connection.producers[1] = cast(ConnectedProducer, connected)
    peer.transport.reads = False
    peer.connection.pong()
    peer.connection.send(BaseCommand(type=BaseCommand.PONG, pong={}))
    peer.connection.close()
    assert removed == ["producer"]
    assert peer.transport.ended == "aborted"


def test_what_is_closed_while_it_is_made_is_not_wanted() -> None:
    connection = Peer().connection
    with connection.creating("producer", 1, request_id=5) as is_wanted:
        with pytest.raises(Refused) as refused, connection.creating("producer", 1, request_id=6):
            pass
        assert refused.value.error == ServerError.ServiceNotReady
        assert is_wanted()
        connection.not_wanted("producer", 1)
        assert not is_wanted()
        with connection.creating("producer", 1, request_id=7) as is_second_wanted:
            assert is_second_wanted()
            assert not is_wanted()


@pytest.mark.parametrize(
    ("role", "original", "caller"),
    [
        ("proxy", "client", ("client", "proxy")),
        ("proxy", "", None),
        ("proxy", "proxy", None),
        ("client", "", ("client", None)),
        ("client", "root", None),
    ],
)
def test_a_proxy_names_its_client_and_no_other_role_may(
    role: str, original: str, caller: tuple[str, str | None] | None
) -> None:
    access = replace(access_of(SECRET, "root"), proxy_roles=frozenset({"proxy"}))
    peer = Peer(access=access)
    sent: list[BaseCommand] = []
    peer.connection.send = lambda command, _entry=b"": sent.append(command)  # type: ignore[method-assign]
    token = {"auth_method_name": "token", "auth_data": create(SECRET, role, {}).encode()}
    connect = {"client_version": "t", "protocol_version": 20, "original_principal": original, **token}
    peer.says(frame(type=BaseCommand.CONNECT, connect=connect))
    if caller is None:
        assert sent[0].error.error == ServerError.AuthorizationError
        assert peer.connection.is_closed
    else:
        assert (peer.connection._caller.role, peer.connection._caller.proxy) == caller
        assert peer.connection._holds_token()
        with pytest.raises(Refused, match="another original principal"):
            peer.connection.check_original_principal("root")
