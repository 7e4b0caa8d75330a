"""Connections that come too many, or say too slowly what they want; on loopback, in this process."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.http import connections
from api.http.connections import Listener, deadline_protocol, loop_errors, most_connections
from api.observability.logs import SELDOM_MS, LogThrottle
from api.settings.settings import Settings
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop

SOON = {
    "limits.header-timeout": Settings(limits_header_timeout_ms=300),
    "limits.body-timeout": Settings(limits_body_timeout_ms=300),
}
"""One time-out each that is soon over, and late enough for what a test sends at once to arrive before."""
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"


def seldom_of(clock: ManualClock) -> LogThrottle:
    return LogThrottle(clock, logging.getLogger("test"))


def listening(most: int, *, plain: bool = True) -> Listener:
    listener = Listener(socket.AF_INET, socket.SOCK_STREAM, 0)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.limit(most, seldom_of(ManualClock()), plain=plain)
    return listener


class AcceptedTransport(asyncio.BaseTransport):
    """The transport of an accepted socket."""

    def __init__(self, accepted: socket.socket) -> None:
        super().__init__({"socket": accepted})


def everything(client: socket.socket) -> bytes:
    found = b""
    while part := client.recv(4096):
        found += part
    return found


@pytest.mark.parametrize("plain", [True, False])
def test_a_connection_beyond_the_limit_is_closed_until_another_one_ends(
    plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(2, plain=plain) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        first, second = (listener.accept()[0] for _ in range(2))
        for item in (first, second):
            listener.mark_busy(AcceptedTransport(item))
        for client in clients[2:4]:
            with pytest.raises(ConnectionAbortedError):
                listener.accept()
            assert everything(client).startswith(b"HTTP/1.1 503 " if plain else b"")
        first.close()
        third, _ = listener.accept()
        assert third.fileno() >= 0
        for item in (*clients, second, third):
            item.close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["2 connections are open, as many as may"], (
        "once, not once a connection"
    )


@in_event_loop
async def test_where_no_descriptor_is_left_accepting_rests_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    loop = asyncio.get_running_loop()
    handle = loop_errors(seldom_of(ManualClock()))
    loop.set_exception_handler(handle)
    with listening(2) as listener, socket.create_connection(listener.getsockname()):
        server = await loop.create_server(asyncio.Protocol, sock=listener, backlog=1000)
        monkeypatch.setattr(Listener, "_accept", none_left, raising=False)
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()
    handle(loop, {"message": "socket.accept() out of system resource"})
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "no file descriptor is left for a connection: raise their limit (ulimit -n, LimitNOFILE)"
    ]


def test_what_is_logged_seldom_says_how_often_it_was(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log_throttle = seldom_of(clock)
    for _ in range(3):
        log_throttle.warn("this")
    log_throttle.warn("that")
    clock.advance(SELDOM_MS)
    log_throttle.warn("this")
    assert [record.message for record in caplog.records] == [
        "this",
        "that",
        "this (2 times more since this was logged last)",
    ]


@pytest.mark.parametrize(
    ("limit", "most"), [(10_000, 1024), (200, 50), (1, 1), (resource.RLIM_INFINITY, 1024)], ids=str
)
def test_connections_of_a_protocol_take_a_quarter_of_the_descriptors(
    limit: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (limit, limit))
    assert most_connections(Settings().limits_connections) == most
    assert most_connections(1_000_000, 2) == (1_000_000 if limit == resource.RLIM_INFINITY else max(1, limit // 8))


def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
    with listening(3) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(4)]
        accepted = [listener.accept()[0] for _ in range(3)]
        listener.mark_busy(AcceptedTransport(accepted[0]))
        listener.mark_busy(AcceptedTransport(accepted[1]))
        listener.mark_idle(AcceptedTransport(accepted[1]))
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert accepted[2].recv(1) == everything(clients[2]) == b"", "its transport reads the end"
        accepted[2].close()
        fourth, _ = listener.accept()
        fifth = socket.create_connection(listener.getsockname())
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert accepted[1].recv(1) == b""
        for item in (*clients, fifth, fourth, *accepted):
            item.close()


def test_a_connection_whose_request_has_arrived_does_not_make_room() -> None:
    with listening(2) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        accepted = [listener.accept()[0] for _ in range(2)]
        clients[0].sendall(b"GET")
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert accepted[1].recv(1) == b""
        assert accepted[0].recv(3) == b"GET"
        for item in (*clients, *accepted):
            item.close()


def test_busy_connections_make_no_room() -> None:
    with listening(1) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        first, _ = listener.accept()
        listener.mark_busy(AcceptedTransport(first))
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert everything(clients[1]).startswith(b"HTTP/1.1 503 ")
        for item in (*clients, first):
            item.close()


@in_event_loop
async def test_a_connection_is_idle_before_a_request_and_between_requests() -> None:
    states: list[str] = []
    observed = type(
        "Observed",
        (),
        {"mark_idle": lambda _, __: states.append("idle"), "mark_busy": lambda _, __: states.append("busy")},
    )()
    async with served(Settings(), seldom_of(ManualClock()), observed) as (reader, writer):
        writer.write(HEAD[:20])
        await writer.drain()
        writer.write(HEAD[20:] + b"1234567890")
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        while states[-1:] != ["idle"]:
            await asyncio.sleep(0)
    assert states == ["busy", "idle"]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body's length; 400 if the client goes away."""
    length, status = 0, 200
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            status = 400
            break
        length += len(message["body"])
        if not message["more_body"]:
            break
    body = str(length).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(
    settings: Settings, log_throttle: LogThrottle, listener: Any = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of `echo`."""
    config = uvicorn.Config(
        echo, http=deadline_protocol(settings, log_throttle, listener), log_config=None, ws="none", lifespan="off"
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
        "127.0.0.1",
        0,
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer
        writer.close()


@pytest.mark.parametrize(
    ("sent", "setting"),
    [
        (b"", "limits.header-timeout"),
        (b"GET / HTTP/1.1\r\nHost:", "limits.header-timeout"),
        (HEAD + b"12345", "limits.body-timeout"),
        (HEAD + b"1234567890GET /", "limits.header-timeout"),
    ],
    ids=["nothing", "half a head", "half a body", "half of a second one"],
)
@in_event_loop
async def test_a_request_that_comes_too_slowly_is_answered_and_its_connection_closed(
    sent: bytes, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(SOON[setting], seldom_of(ManualClock())) as (reader, writer):
        writer.write(sent)
        answer = (await reader.read()).decode()
    assert answer.rpartition("HTTP/1.1")[2].startswith(" 408 ")
    assert setting in answer
    assert setting in caplog.text


@in_event_loop
async def test_a_request_in_time_is_answered_and_so_is_the_next_one() -> None:
    async with served(Settings(), seldom_of(ManualClock())) as (reader, writer):
        for _ in range(2):
            writer.write(HEAD)
            await writer.drain()
            writer.write(b"1234567890")
            head = await reader.readuntil(b"\r\n\r\n")
            assert (head.partition(b"\r\n")[0], await reader.readexactly(2)) == (b"HTTP/1.1 200 OK", b"10")


@in_event_loop
async def test_what_is_no_http_is_refused_in_words_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.filtering(type("F", (logging.Filter,), {"filter": staticmethod(connections.without_repeats)})()):
        log_throttle = seldom_of(ManualClock())
        for _ in range(3):
            async with served(Settings(), log_throttle) as (reader, writer):
                writer.write(b"\x16\x03\x01\r\n\r\n")
                answer = await reader.read()
                assert (answer.startswith(b"HTTP/1.1 400 "), b'{"reason": "this is no HTTP' in answer) == (True, True)
    assert len(caplog.records) == 1


class Unread:
    """A transport whose client takes what a test says; and a loop whose timers the test fires."""

    def __init__(self) -> None:
        self.waits = 0
        self.is_aborted = False
        self.timers: list[tuple[asyncio.TimerHandle, Any]] = []

    def call_later(self, seconds: float, call: Any, *arguments: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(seconds, call, arguments, cast(Any, self))
        self.timers.append((handle, lambda: call(*arguments)))
        return handle

    def pass_time(self) -> None:
        """All timers that still run end."""
        due, self.timers = self.timers, []
        for handle, call in due:
            if not handle.cancelled():
                call()

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _: object) -> None:
        """Nothing."""

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return self.waits

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize(
    ("taken", "closed"), [([], True), ([1], True), ([100_000], True), ([100_000, 100_000, None], False)], ids=str
)
def test_a_client_that_does_not_take_its_answer_is_cut_off(
    taken: list[int | None], closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A number: what the client takes in the time that it has; None: the rest."""
    fake = Unread()
    config = uvicorn.Config(echo, log_config=None, ws="none", lifespan="off")
    kind = deadline_protocol(Settings(limits_header_timeout_ms=10**9), seldom_of(ManualClock()))
    protocol = kind(config, ServerState(), {}, cast(Any, fake))
    protocol.connection_made(cast(Any, fake))
    fake.timers.clear()  # of the request's head
    fake.waits = 1_000_000
    protocol.pause_writing()
    for item in taken:
        if item is None:
            protocol.resume_writing()
        else:
            fake.waits -= item
        fake.pass_time()
        if item != 1:
            assert not fake.is_aborted
    fake.pass_time()
    assert fake.is_aborted == closed
    assert ("limits.answer-timeout" in caplog.text) == closed
