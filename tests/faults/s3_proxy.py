"""A proxy in front of an S3 server that spoils answers on cue, on the wire.

Clients sign the host to which they talk, and servers check the host of the request: requests continue as they came,
so signatures hold. One connection a request; whatever a fault does not concern passes through.

    Answer      the proxy answers itself (500, 503 SlowDown …), the server hears nothing
    CutBody     the answer's headers, and half of its body; then the connection ends
    NoAnswer    the server does what it is asked, and its answer never comes: the connection ends
    Silence     as NoAnswer, but the connection stays open until the client has hung up
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """An error of the proxy's own."""

    status: int
    code: str


@dataclass(frozen=True)
class CutBody:
    """Half of the answer's body."""


@dataclass(frozen=True)
class NoAnswer:
    """No answer to a request that took effect."""


@dataclass(frozen=True)
class Silence:
    """No answer for longer than the client waits."""


What = Answer | CutBody | NoAnswer | Silence


@dataclass(frozen=True)
class WireFault:
    """The requests of `method` whose path and query match `path`: from the `nth` on, `times` of them meet `what`."""

    what: What
    method: str
    path: str = ""
    nth: int = 1
    times: int = 1


class S3Proxy:
    """A proxy on loopback, as long as its `with` block; `faults` may be set at any time, `met` counts what was met."""

    def __init__(self, server: str) -> None:
        upstream = urlsplit(server)
        assert upstream.hostname is not None
        assert upstream.port is not None
        self.upstream = (upstream.hostname, upstream.port)
        self._faults: Sequence[WireFault] = ()
        self._seen: list[int] = []
        self._met = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            of = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3-proxy", daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spoil(self, *faults: WireFault) -> None:
        """From now on these faults, counted from here."""
        with self._lock:
            self._faults, self._seen, self._met = faults, [0] * len(faults), 0

    @property
    def met(self) -> int:
        """Return the number of requests that met a fault since the last `spoil`."""
        with self._lock:
            return self._met

    def fault_for(self, method: str, path: str) -> What | None:
        """Return the fault that this request meets."""
        with self._lock:
            for number, fault in enumerate(self._faults):
                if fault.method == method and re.search(fault.path, path):
                    self._seen[number] += 1
                    if fault.nth <= self._seen[number] < fault.nth + fault.times:
                        self._met += 1
                        return fault.what
        return None


class _Handler(BaseHTTPRequestHandler):
    of: S3Proxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        self.close_connection = True
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        what = self.of.fault_for(self.command, self.path)
        if isinstance(what, Answer):
            text = f"<Error><Code>{what.code}</Code><Message>as the test wants it</Message></Error>".encode()
            self._answer(what.status, [("Content-Type", "application/xml")], text, len(text))
            return
        status, headers, content = self._forward(body)
        if isinstance(what, NoAnswer):
            return
        if isinstance(what, Silence):
            self.rfile.read(1)  # ends when the client hangs up
            return
        sent = content[: len(content) // 2] if isinstance(what, CutBody) else content
        self._answer(status, headers, sent, len(content))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.of.upstream)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            headers = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in ("connection", "transfer-encoding")
                and (name.lower() != "content-length" or self.command == "HEAD")
            ]
            return answer.status, headers, answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], sent: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """One line a request would bury what a failed test has to say."""
