"""Deadlines of HTTP connections: requests that arrive too slowly, answers that are not received; on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.http import connections
from api.http.connections import deadline_protocol_class, http_refusal_bytes
from api.http.listener import Listener
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


def test_what_is_logged_seldom_says_how_often_it_was(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log_throttle = seldom_of(clock)
    for _ in range(3):
        log_throttle.warn("this of %s", "a")
    log_throttle.warn("that")
    clock.advance(SELDOM_MS)
    log_throttle.warn("this of %s", "b")
    assert [record.message for record in caplog.records] == [
        "this of a",
        "that",
        "this of b (2 times more since this was logged last)",
    ]


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
        echo, http=deadline_protocol_class(settings, log_throttle, listener), log_config=None, ws="none", lifespan="off"
    )
    config.load()
    state = ServerState()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        seconds = settings.limits_header_timeout_ms / 1000
        server = Listener(listening, 10, "limits.connections", seconds, log_throttle, http_refusal_bytes(settings))
        server.start(lambda: config.http_protocol_class(config=config, server_state=state, app_state={}))  # type: ignore[call-arg]
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        yield reader, writer
        writer.close()
        server.close()


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
async def test_each_time_out_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log_throttle = seldom_of(ManualClock())
    settings = Settings(limits_header_timeout_ms=300, limits_body_timeout_ms=300)
    for sent in (b"", HEAD):
        async with served(settings, log_throttle) as (reader, writer):
            writer.write(sent)
            await reader.read()
    assert ["header-timeout" in item for item in caplog.messages] == [True, False]
    assert ["body-timeout" in item for item in caplog.messages] == [False, True]


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
    with caplog.filtering(type("F", (logging.Filter,), {"filter": staticmethod(connections.keep_uvicorn_record)})()):
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
    kind = deadline_protocol_class(Settings(limits_header_timeout_ms=10**9), seldom_of(ManualClock()))
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
