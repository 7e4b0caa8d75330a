"""A listening socket: its limit, connections that make room, and connections that send nothing; on loopback."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import cast

import pytest

from api.http import listener
from api.http.listener import CONNECTED_AT_ONCE, Listener, RefusalBytes, connection_limit
from api.observability.logs import LogThrottle
from api.settings.settings import Settings
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop

DEFER_ACCEPT = getattr(socket, "TCP_DEFER_ACCEPT", 0)
REFUSALS = RefusalBytes(b"full", b"silent")


class Protocols(list["Recorder"]):
    """The protocols of the connections of a listener, in the order in which their first bytes arrived."""

    async def arrived(self, number: int) -> None:
        """Wait until connections have sent bytes."""
        while sum(bool(item.received) for item in self) < number:
            await asyncio.sleep(0)


class Recorder(asyncio.Protocol):
    """A connection that notes what it receives."""

    def __init__(self, protocols: Protocols) -> None:
        self.received = b""
        protocols.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data


class Clients:
    """Clients of a listener."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        """Connect a client, and let the listener accept it."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(sent)
        self.writers.append(writer)
        for _ in range(5):
            await asyncio.sleep(0)
        return reader


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel hand over connections without bytes at once, as others than Linux do."""
    monkeypatch.delattr(socket, "TCP_DEFER_ACCEPT", raising=False)


@asynccontextmanager
async def listening(
    limit: int, refusals: RefusalBytes = REFUSALS, silent_seconds: float = 60
) -> AsyncIterator[tuple[Listener, Protocols, Clients]]:
    """Yield a listener, its protocols and its clients."""
    log_throttle = LogThrottle(ManualClock(), logging.getLogger("test"))
    protocols = Protocols()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = Listener(bound, limit, "limits.connections", silent_seconds, log_throttle, refusals)
        server.start(lambda: Recorder(protocols))
        clients = Clients(bound.getsockname())
        try:
            yield server, protocols, clients
        finally:
            server.close()
            for transport in (*(item.transport for item in protocols), *(item.transport for item in clients.writers)):
                transport.abort()
            for writer in clients.writers:
                with suppress(ConnectionError):
                    await writer.wait_closed()


@pytest.mark.parametrize("refusals", [REFUSALS, RefusalBytes()])
@in_event_loop
async def test_a_connection_beyond_the_limit_is_closed_until_another_one_ends(
    refusals: RefusalBytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(2, refusals) as (server, protocols, clients):
        for number in (1, 2):
            await clients.connect(b"request")
            await protocols.arrived(number)
            server.mark_busy(protocols[-1].transport)
        for _ in range(2):
            assert await (await clients.connect(b"request")).read() == refusals.when_full
        protocols[0].transport.abort()
        await clients.connect(b"request")
        await protocols.arrived(3)
    assert [record.message.split(" and the limit of file")[0] for record in caplog.records] == [
        "2 connections are open, the limit: others are refused. Raise limits.connections"
    ], "once, not once a connection"


@in_event_loop
async def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
    async with listening(3) as (server, protocols, clients):
        readers = []
        for number in (1, 2, 3):
            readers.append(await clients.connect(b"request"))
            await protocols.arrived(number)
        server.mark_busy(protocols[0].transport)
        server.mark_busy(protocols[1].transport)
        server.mark_idle(protocols[1].transport)
        await clients.connect(b"request")
        assert await readers[2].read() == b"", "it was idle for longer than the second one"
        await protocols.arrived(4)
        server.mark_busy(protocols[3].transport)
        await clients.connect(b"request")
        assert await readers[1].read() == b""
        await protocols.arrived(5)
        assert not protocols[0].transport.is_closing(), "a request is under way on it"


@in_event_loop
async def test_a_full_listener_ends_no_connection_while_no_other_arrives() -> None:
    async with listening(1) as (_, protocols, clients):
        await clients.connect(b"request")
        await protocols.arrived(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not protocols[0].transport.is_closing()


@in_event_loop
async def test_a_connection_whose_request_has_arrived_does_not_make_room() -> None:
    async with listening(2) as (_, protocols, clients):
        await clients.connect(b"request")
        await protocols.arrived(1)
        protocols[0].transport.pause_reading()
        second = await clients.connect(b"request")
        await protocols.arrived(2)
        clients.writers[0].write(b"another request")
        await clients.connect(b"request")
        assert await second.read() == b"", "it has been idle for less time, and has sent no further request"
        assert not protocols[0].transport.is_closing()


@in_event_loop
async def test_a_connection_that_has_sent_nothing_makes_room_without_a_protocol() -> None:
    async with listening(2) as (server, protocols, clients):
        await clients.connect(b"request")
        await protocols.arrived(1)
        server.mark_busy(protocols[0].transport)
        silent = await clients.connect()
        await clients.connect(b"request")
        assert await silent.read() == b""
        await protocols.arrived(2)
        assert len(protocols) == 2


@in_event_loop
async def test_connections_without_a_request_are_answered_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(4, silent_seconds=0.01) as (_, protocols, clients):
        for _ in range(2):
            assert await (await clients.connect()).read() == b"silent"
        assert list(protocols) == []
    assert [record.message for record in caplog.records] == [
        "connections that send a request slower than limits.header-timeout (0.01 s) are closed"
    ]


@in_event_loop
async def test_a_client_that_leaves_without_a_byte_is_closed() -> None:
    async with listening(1) as (_, protocols, clients):
        reader = await clients.connect()
        clients.writers[0].write_eof()
        assert await reader.read() == b""
        assert list(protocols) == []


@in_event_loop
async def test_many_connections_that_send_at_once_leave_other_work_its_turns() -> None:
    count = 4 * CONNECTED_AT_ONCE
    async with listening(count) as (_, protocols, clients):
        for _ in range(count):
            await clients.connect()
        for writer in clients.writers:
            writer.write(b"request")
        in_turns = []
        while sum(in_turns) < count:
            before = len(protocols)
            await asyncio.sleep(0)
            in_turns.append(len(protocols) - before)
        assert max(in_turns) <= CONNECTED_AT_ONCE
        await protocols.arrived(count)


@in_event_loop
async def test_the_end_of_a_listener_closes_connections_without_a_request() -> None:
    async with listening(4) as (server, _, clients):
        reader = await clients.connect()
        server.close()
        assert await reader.read() == b""


@pytest.mark.skipif(not DEFER_ACCEPT, reason="only Linux defers")
@in_event_loop
async def test_the_kernel_keeps_connections_without_bytes_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TCP_DEFER_ACCEPT", DEFER_ACCEPT, raising=False)
    async with listening(1) as (server, protocols, clients):
        await clients.connect(b"request")
        await protocols.arrived(1)
        server.mark_busy(protocols[0].transport)
        silent = await clients.connect()
        refused = await clients.connect(b"request")
        assert await refused.read() == b"full"
        assert not silent.at_eof(), "the listener has not met it"


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Let the process open no further file inside."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@in_event_loop
async def test_without_descriptors_accepting_pauses_and_continues(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PAUSE_SECONDS", 0)
    async with listening(2) as (_, protocols, clients):
        with socket.create_connection(clients.address) as client:
            client.sendall(b"request")
            with without_descriptors():
                for _ in range(5):
                    await asyncio.sleep(0)
                assert list(protocols) == []
            await protocols.arrived(1)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "no file descriptor is left for a connection: raise their limit (ulimit -n, LimitNOFILE)"
    ]


@pytest.mark.parametrize(
    ("limit", "expected"), [(10_000, 1024), (200, 50), (1, 1), (resource.RLIM_INFINITY, 1024)], ids=str
)
def test_connections_of_a_protocol_take_a_quarter_of_the_descriptors(
    limit: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener.resource, "getrlimit", lambda _: (limit, limit))
    assert connection_limit(Settings().limits_connections) == expected
    assert connection_limit(1_000_000, 2) == (1_000_000 if limit == resource.RLIM_INFINITY else max(1, limit // 8))
