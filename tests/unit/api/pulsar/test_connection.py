"""The bounds of a connection, and the end of its producers and consumers with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.observability.redaction import SHOWN
from api.pulsar import session
from api.pulsar.codec import requests
from api.pulsar.codec.limits import CONNECT_BYTES
from api.pulsar.codec.responses import Failure, Response
from api.pulsar.connection import MAX_UNREAD_BYTES, Connection
from api.pulsar.context import ServerContext
from api.pulsar.errors import Refused, ServerError
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.pulsar_api_pb2 import BaseCommand
from api.pulsar.session import ConnectedProducer
from api.settings.settings import Settings
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop
from tests.frames import encoded
from tests.unit.api.pulsar.fairness import Owner, receive, shared_state

MESSAGE_BYTES = 5 << 20
SECRET = bytes(32)
KEEP_ALIVE_MS = 30_000
CONNECT_TIMEOUT_MS = 10_000
CONNECT = b"".join(
    encoded(BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": "t", "protocol_version": 20}))
)


class Transport(asyncio.Transport):
    """A transport that takes all bytes, and delivers none while `reads` is cleared."""

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

    def __init__(self, frame_seconds: float = 0.0) -> None:
        self.clock = ManualClock()
        self.seconds = 0.0
        self.frame_seconds = frame_seconds
        self.warnings: list[str] = []
        self.next_turns: list[Callable[[], None]] = []
        context = SimpleNamespace(
            access=SimpleNamespace(verifier=None),
            settings=replace(
                Settings(),
                broker_keep_alive_interval_ms=KEEP_ALIVE_MS,
                limits_header_timeout_ms=CONNECT_TIMEOUT_MS,
                broker_max_pending_publishes=1_000,
                broker_publish_buffer_bytes=1 << 20,
            ),
            max_message_size=MESSAGE_BYTES,
            clock=self.clock,
            **shared_state(self.clock, call_soon=self.next_turns.append, now=self.now),
            server_version="test",
            log_throttle=SimpleNamespace(warn=lambda text, *arguments: self.warnings.append(text % arguments)),
        )
        self.context = context
        self.connection = Connection(Owner(), cast(ServerContext, context), HANDLERS)
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def now(self) -> float:
        self.seconds += self.frame_seconds
        return self.seconds

    def says(self, data: bytes) -> Peer:
        receive(self.connection, data)
        return self


def test_before_connect_frames_are_small() -> None:
    too_large = (CONNECT_BYTES + (64 << 10)).to_bytes(4, "big")
    assert Peer().says(too_large).connection.is_closed
    peer = Peer().says(CONNECT).says(too_large + (4).to_bytes(4, "big") + bytes((8, BaseCommand.SEND)))
    assert not peer.connection.is_closed


def test_a_client_that_never_connects_is_given_its_time_and_not_more() -> None:
    peer = Peer()
    peer.clock.advance(CONNECT_TIMEOUT_MS - 1)
    assert not peer.connection.is_connect_time_over()
    peer.clock.advance(1)
    assert peer.connection.is_connect_time_over()


def test_a_client_that_asks_and_never_reads_is_cut_off() -> None:
    peer = Peer().says(CONNECT)
    peer.transport.reads = False
    peer.connection.pause_writing()
    answer = Failure(1, ServerError.MetadataError, "x" * (1 << 20))
    for _ in range(100):
        peer.connection.send(answer)
    assert peer.transport.ended == "aborted"
    assert MAX_UNREAD_BYTES <= peer.transport.unread <= MAX_UNREAD_BYTES + MESSAGE_BYTES + (1 << 20)
    assert "unread" in peer.warnings[0]


def test_nothing_is_written_to_a_client_that_has_left() -> None:
    """asyncio logs each write to a transport that has lost its client."""
    peer = Peer().says(CONNECT)
    peer.transport.ended = "lost"
    before = peer.transport.writes
    peer.connection.send(requests.Pong())
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
    buffers = peer.context.receive_buffers
    others = [cast(Any, object()) for _ in range(6)]
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
    sent: list[Response] = []
    peer.connection.send = sent.append  # type: ignore[method-assign,assignment]
    lookup = {"topic": "x" * 2_000, "request_id": 7}
    peer.says(frame(type=BaseCommand.LOOKUP, lookup_topic=lookup))
    producer = {"topic": "t", "producer_id": 1, "request_id": 8, "metadata": [{"key": "k", "value": "v" * 5_000_000}]}
    peer.says(frame(type=BaseCommand.PRODUCER, producer=producer))
    reason = "LOOKUP: topic has 2000 bytes, and at most 1024 are allowed"
    refused = Failure(7, ServerError.NotAllowedError, reason, requests.Lookup)
    assert sent[0] == refused
    assert isinstance(sent[1], Failure)
    assert (sent[1].request_id, sent[1].error) == (8, ServerError.MetadataError)
    assert "PRODUCER: metadata has 50000" in sent[1].message
    assert not peer.connection.is_closed


def test_an_error_repeats_no_more_than_the_ends_of_a_long_name() -> None:
    assert len(Refused(ServerError.InvalidTopicName, f"Topic {'x' * (5 << 20)} not found").message) <= SHOWN


@pytest.mark.parametrize(("is_held", "sends"), [(True, False), (False, False), (False, True)])
@in_event_loop
async def test_a_client_is_alive_while_it_sends_or_its_bytes_are_not_read(
    monkeypatch: pytest.MonkeyPatch, is_held: bool, sends: bool
) -> None:
    """Another client asks for the place of its producer."""
    monkeypatch.setattr(session, "LIVENESS_SECONDS", 60 if sends else 0)
    peer = Peer().says(CONNECT)
    if is_held:
        peer.connection.hold_requests("publishing")
    asking = asyncio.ensure_future(peer.connection.session.close_unless_alive())
    await asyncio.sleep(0)
    if sends:
        peer.says(frame(type=BaseCommand.PING, ping={}))
    is_alive = await asking
    assert (is_alive, peer.transport.ended) == ((True, "") if is_held or sends else (False, "closed"))


def test_its_producers_are_gone_at_once_whatever_its_client_has_not_read() -> None:
    peer = Peer().says(CONNECT)
    removed: list[object] = []
    connected = SimpleNamespace(topic=SimpleNamespace(remove_producer=removed.append), producer="producer")
    peer.connection.session.producers[1] = cast(ConnectedProducer, connected)
    peer.transport.reads = False
    peer.connection.send(requests.Pong())
    peer.connection.close()
    assert removed == ["producer"]
    assert peer.transport.ended == "aborted"
