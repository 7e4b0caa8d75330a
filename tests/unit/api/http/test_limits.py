"""Limits of the service's face, at their edges, by a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from fastapi import Request

from api.http.access import Caller
from api.http.limits import RequestLimitMiddleware, TokenBuckets
from api.http.problems import RestException
from api.settings.settings import Settings
from tests.asgi import TestClient, application
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop

Message = MutableMapping[str, Any]


def limited(clock: ManualClock, **settings: Any) -> TestClient:
    app = application()

    @app.get("/whole")
    @app.post("/whole")
    async def whole(request: Request) -> int:
        return len(await request.body())

    @app.post("/json")
    async def parsed(body: dict[str, str]) -> int:
        return len(body)

    @app.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(part) async for part in request.stream()])

    @app.get("/livez")
    async def livez() -> str:
        return "ok"

    limits = RequestLimitMiddleware(app, Settings(**settings), clock)

    async def named(scope: Message, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        role = headers.get(b"role", b"").decode() or None
        refused = headers.get(b"refused", b"").decode()
        scope.setdefault("state", {})["caller"] = Caller(headers.get(b"address", b"here").decode(), role, refused)
        await limits(scope, receive, send)

    return TestClient(named)


def chunks(total: int) -> Iterator[bytes]:
    """A body without a length."""
    for start in range(0, total, 100):
        yield b"x" * min(100, total - start)


@pytest.mark.parametrize("path", ["/whole", "/stream"])
def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(path: str) -> None:
    client = limited(ManualClock(), limits_body_bytes=2000)
    for fits, large in ((b"x" * 2000, b"x" * 2001), (chunks(2000), chunks(2001))):
        assert client.post(path, content=fits).json() == 2000
        answer = client.post(path, content=large)
        assert answer.status_code == 413
        assert "limits.body-bytes" in answer.json()["reason"]


def test_a_json_body_that_grows_too_large_is_told_as_that() -> None:
    """FastAPI reads it, and takes most errors while reading for bad JSON."""
    client = limited(ManualClock(), limits_body_bytes=2000)
    answer = client.post("/json", content=chunks(2001), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("length", ["9" * 30, "2001"])
def test_a_length_is_believed_when_it_is_too_large(length: str) -> None:
    client = limited(ManualClock(), limits_body_bytes=2000)
    assert client.post("/whole", content=b"", headers={"Content-Length": length}).status_code == 413


@pytest.mark.parametrize("path", ["/whole", "/json", "/nowhere"])
def test_the_body_of_a_stranger_is_not_read(path: str) -> None:
    def body() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    client = limited(ManualClock(), limits_body_bytes=2000, limits_requests_per_second=2.0)
    answer = client.post(path, content=body(), headers={"Refused": "no token", "Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (401, {"reason": "not authenticated: no token"})
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert client.post(path, content=b"x" * 2001, headers={"Refused": "no token"}).status_code == 401
    assert client.post(path, content=b"", headers={"Refused": "no token"}).status_code == 429
    assert client.get("/livez", headers={"Refused": "no token"}).status_code == 200


@pytest.mark.parametrize("verb", ["GET", "POST"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://testserver", 200),
        ("http://evil.example", 403),
        ("http://testserver:81", 403),
        ("null", 403),
    ],
)
def test_without_tokens_no_page_of_another_site_is_answered(origin: str, status: int, verb: str) -> None:
    """A browser on the machine reaches loopback for any page. A token it does not send by itself."""
    client = limited(ManualClock(), advertised_url="http://testserver")
    named = {"Origin": origin, "Host": "testserver"}
    assert client.request(verb, "/whole", headers=named).status_code == status
    assert client.get("/livez", headers=named).status_code == 200
    assert limited(ManualClock(), auth_enabled=True).request(verb, "/whole", headers=named).status_code == 200


@pytest.mark.parametrize("origin", [True, False])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("10.0.0.1:8080", 403),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("localhost:18080", 200),
        ("LB.example", 200),
        ("proxy.example", 200),
    ],
)
def test_a_name_that_a_page_lets_lead_here_is_not_ours(host: str, status: int, origin: bool) -> None:
    """The page's own name, which its owner lets stand for 127.0.0.1 once it is loaded (DNS rebinding): host and origin
    are equal, and a read of the page's own site has no origin at all."""
    client = limited(
        ManualClock(), advertised_url="https://lb.example:8443", allowed_hosts=("proxy.example", "other.example")
    )
    answer = client.get("/whole", headers={"Host": host} | ({"Origin": f"http://{host}"} if origin else {}))
    assert (answer.status_code, "allowed-hosts" in answer.text) == (status, status == 403)


def test_headers_are_no_larger_than_the_limit_however_they_arrive() -> None:
    client = limited(ManualClock(), limits_header_bytes=4096)
    assert client.get("/whole", headers={"X-Large": "x" * 3000}).status_code == 200
    for large in ({"X-Large": "x" * 4096}, {f"X-{number}": "x" * 100 for number in range(40)}):
        assert client.get("/whole", headers=large).status_code == 431
        assert client.get("/livez", headers=large).status_code == 431
    assert client.get(f"/whole?{'x' * 4096}").status_code == 431


@pytest.mark.parametrize("path", ["/whole", "/livez"])
def test_a_body_is_framed_in_one_way(path: str) -> None:
    """Two servers that disagree about the end of a body disagree about the next request."""
    client = limited(ManualClock())
    answer = client.post(path, content=b"x", headers={"Content-Length": "1", "Transfer-Encoding": "chunked"})
    assert (answer.status_code, answer.headers["Connection"]) == (400, "close")


def test_a_client_that_goes_away_is_no_error_of_the_service(caplog: pytest.LogCaptureFixture) -> None:
    app = application()
    statuses: list[int] = []

    @app.get("/whole")
    @app.post("/whole")
    async def whole(request: Request) -> int:
        return len(await request.body())

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "POST", "path": "/whole", "headers": [], "query_string": b"", "state": {}}
    asyncio.run(app(scope, receive, send))
    assert statuses[:1] == [400]
    assert caplog.records == []


def test_requests_a_second_are_counted_by_role_or_address() -> None:
    clock = ManualClock()
    client = limited(clock, limits_requests_per_second=2.0)

    def statuses(count: int, **headers: str) -> list[int]:
        return [client.post("/whole", headers=headers).status_code for _ in range(count)]

    assert statuses(3, role="a", address="1") == [200, 200, 429]
    assert statuses(1, role="a", address="2") == [429], "a role is one wherever it comes from"
    assert statuses(2, role="b", address="1") == [200, 200]
    assert statuses(3, address="1") == [200, 200, 429]
    assert statuses(2, address="2") == [200, 200]
    clock.advance(499)
    assert statuses(1, role="a") == [429]
    clock.advance(1)
    assert statuses(2, role="a") == [200, 429]
    clock.advance(3_600_000)
    assert statuses(3, role="a") == [200, 200, 429], "what was not used does not add up"


def test_who_is_refused_is_told_when_to_come_again() -> None:
    client = limited(ManualClock(), limits_requests_per_second=0.1)
    assert client.post("/whole").status_code == 200
    answer = client.post("/whole")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
    assert [client.get("/livez").status_code for _ in range(3)] == [200] * 3, "probes always pass"


def test_no_limit() -> None:
    client = limited(ManualClock(), limits_requests_per_second=0.0)
    assert {client.post("/whole").status_code for _ in range(50)} == {200}


def test_buckets_are_bounded_in_number() -> None:
    buckets = TokenBuckets(1, ManualClock(), buckets=2)
    assert [buckets.take_token(name) for name in ("a", "b", "b")] == [0, 0, 1]
    assert buckets.take_token("c") == 0
    assert buckets.take_token("b") == 1, "the one that was used longest ago was purged"
    assert buckets.take_token("a") == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(1, clock)
    assert buckets.take_token("a") == 0
    clock.advance(-10_000)
    assert buckets.take_token("a") == 1
    clock.advance(1_000)
    assert buckets.take_token("a") == 0


class UnderWay:
    """Requests to the middleware around an application; the statuses of their answers, in the order of their ends."""

    def __init__(self, answering: Any, body: bytes = b"", **settings: Any) -> None:
        self.statuses: list[int] = []
        self.leave = asyncio.Event()
        """Set: the application answers."""
        self._limits = RequestLimitMiddleware(
            lambda *arguments: answering(self, *arguments), Settings(**settings), ManualClock()
        )
        self._body = body

    async def ask(self, role: str = "", path: str = "/") -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": self._body}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])

        state = {"caller": Caller("here", role or None)}
        scope = {"type": "http", "path": path, "headers": [], "method": "POST", "state": state}
        await self._limits(scope, receive, send)

    async def begin(self, *arguments: str) -> asyncio.Task[None]:
        """A request that waits in the application, or has ended."""
        task = asyncio.create_task(self.ask(*arguments))
        await asyncio.sleep(0)
        return task

    async def slow(self, scope: Message, receive: Any, send: Any) -> None:
        """An application that answers when it may."""
        await self.leave.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def holding(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer as `slow` does, with the body in memory."""
        try:
            await receive()
        except RestException as refusal:
            self.statuses.append(refusal.status_code)
        else:
            await self.slow(scope, receive, send)


@in_event_loop
async def test_one_role_has_half_of_what_may_be_under_way() -> None:
    requests = UnderWay(UnderWay.slow, limits_requests_at_once=4)
    tasks = [await requests.begin("poller") for _ in range(2)]
    await requests.ask("poller")
    tasks.append(await requests.begin("other"))
    requests.leave.set()
    await asyncio.gather(*tasks)
    await requests.ask("poller")
    assert requests.statuses == [503, 200, 200, 200, 200]


@in_event_loop
async def test_bodies_together_are_bounded() -> None:
    requests = UnderWay(UnderWay.holding, b"x" * 1000, limits_body_bytes=1024, limits_bodies_bytes=2048)
    tasks = [await requests.begin() for _ in range(2)]
    await requests.ask()
    requests.leave.set()
    await asyncio.gather(*tasks)
    await requests.ask()
    assert requests.statuses == [503, 200, 200, 200]


@in_event_loop
async def test_only_so_many_requests_are_under_way_at_once() -> None:
    requests = UnderWay(UnderWay.slow, limits_requests_at_once=1)
    first = await requests.begin()
    await requests.ask()
    probe = await requests.begin("", "/readyz")
    requests.leave.set()
    await asyncio.gather(first, probe)
    await requests.ask()
    assert requests.statuses == [503, 200, 200, 200]
