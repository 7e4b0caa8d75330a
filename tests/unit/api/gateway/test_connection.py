"""What a connection allows a client, and what becomes of its producers and consumers when it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.gateway.commands import Refused, failure
from api.gateway.connection import CONNECT_BYTES, MOST_UNREAD_BYTES, Connection
from api.gateway.frames import encoded
from api.gateway.gateway import Gateway
from api.gateway.lookup import matching, pattern_of
from api.gateway.producers import Producer
from api.gateway.pulsar_api_pb2 import BaseCommand, ServerError
from tests.clocks import ManualClock

MESSAGE_BYTES = 5 << 20
KEEP_ALIVE_MS = 30_000
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

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.unread += 0 if self.reads else len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Peer:
    """A connection, and the transport under it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.warnings: list[str] = []
        gateway = SimpleNamespace(
            parts=SimpleNamespace(pools={}, access=SimpleNamespace(verifier=None)),
            settings=SimpleNamespace(max_message_size=MESSAGE_BYTES, keep_alive_ms=KEEP_ALIVE_MS),
            clock=self.clock,
            server_version="test",
            log_throttle=SimpleNamespace(warn=lambda text, _: self.warnings.append(text)),
            take=lambda _: True,
            drop=lambda _: None,
        )
        self.connection = Connection(cast(Gateway, gateway))
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def says(self, data: bytes) -> Peer:
        self.connection.data_received(data)
        return self


def test_before_connect_frames_are_small() -> None:
    too_large = (CONNECT_BYTES + (64 << 10)).to_bytes(4, "big")
    assert Peer().says(too_large).connection.is_closed
    peer = Peer().says(CONNECT).says(too_large)
    assert not peer.connection.is_closed
    assert peer.says(b"\0" * CONNECT_BYTES).connection.is_closed is False


def test_a_client_that_never_connects_is_given_its_time_and_not_more() -> None:
    peer = Peer()
    peer.clock.advance(KEEP_ALIVE_MS - 1)
    peer.connection.keep_alive()
    assert not peer.connection.is_closed
    peer.clock.advance(1)
    peer.connection.keep_alive()
    assert peer.connection.is_closed


def test_a_client_that_asks_and_never_reads_is_cut_off() -> None:
    peer = Peer().says(CONNECT)
    peer.transport.reads = False
    peer.connection.pause_writing()
    answer = failure(1, Refused(ServerError.MetadataError, "x" * (1 << 20)))
    for _ in range(100):
        peer.connection.send(answer)
    assert peer.transport.ended == "aborted"
    assert MOST_UNREAD_BYTES <= peer.transport.unread <= MOST_UNREAD_BYTES + MESSAGE_BYTES + (1 << 20)
    assert "unread" in peer.warnings[0]


def test_its_producers_are_gone_at_once_whatever_its_client_has_not_read() -> None:
    peer = Peer().says(CONNECT)
    removed: list[Producer] = []
    producer = cast(Producer, SimpleNamespace(topic=SimpleNamespace(remove_producer=removed.append)))
    peer.connection.producers[1] = producer
    peer.transport.reads = False
    peer.connection.pong()
    peer.connection.send(BaseCommand(type=BaseCommand.PONG, pong={}))
    peer.connection.close()
    assert removed == [producer]
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


def test_no_pattern_can_stop_the_service() -> None:
    names = [f"persistent://a/b/{'a' * 200}c", "persistent://a/b/aab"]
    assert matching(pattern_of("persistent://a/b/(a+)+b"), names) == names[1:]


@pytest.mark.parametrize("text", ["(", "a{2000}" * 200, r"(a)\1", "x" * 1_001])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is no pattern"):
        pattern_of(text)
