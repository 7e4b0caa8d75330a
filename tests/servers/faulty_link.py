"""An HTTP proxy in front of a service that fails on cue, and remembers the requests."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

_PASSED = ("authorization", "content-type", "accept")
_RETURNED = "x-compactor-"
"""The headers of answers that are passed on begin with it."""


class FaultyLink:
    """A proxy at `url`. Tests set the fields; `requests`: verb, path and query of each request, in order."""

    def __init__(self, target: str, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate`: a file of it and of its key, with which the proxy speaks TLS."""
        self.target = target
        self.requests: list[str] = []
        self.failures = 0
        """The number of next requests that are answered 503."""
        self.is_away = False
        """True: connections are closed without an answer."""
        self.is_cut = False
        """True: pages of entries lack their last byte."""
        self.foreign: tuple[int, bytes] | None = None
        """Status and body of all answers, as of a proxy whose service is away; None: the service answers."""
        self.authorization: str | None = None
        """The header of the last request."""
        self._client = httpx.Client(timeout=60)
        link = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                link.answer(self)

            do_GET = do_PUT = do_DELETE = answer  # noqa: N815  names of the base class

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            # The thread of a connection shakes hands, when it reads first.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._server.server_port}"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """Pass a request on, or fail."""
        self.requests.append(f"{handler.command} {handler.path}")
        self.authorization = handler.headers.get("authorization")
        if self.is_away:
            handler.close_connection = True
            return
        if self.failures:
            self.failures -= 1
            self._send(handler, 503, b'{"reason":"on cue"}', {})
            return
        if self.foreign:
            self._send(handler, *self.foreign, {})
            return
        passed = {name: value for name, value in handler.headers.items() if name.lower() in _PASSED}
        try:
            answer = self._client.request(handler.command, self.target + handler.path, headers=passed)
        except httpx.TransportError:  # the service is away
            handler.close_connection = True
            return
        content = answer.content
        if self.is_cut and "/compacted/entries" in handler.path:
            content = content[:-1]
        returned = {name: value for name, value in answer.headers.items() if name.lower().startswith(_RETURNED)}
        self._send(handler, answer.status_code, content, returned)

    @staticmethod
    def _send(
        handler: http.server.BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str]
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    @contextmanager
    def running(self) -> Iterator[FaultyLink]:
        """Serve until the context ends."""
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
            self._client.close()
