"""The image's health check speaks to the service as its settings say, with TLS and without."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from api.cli.healthcheck import liveness_fault, main
from api.settings.settings import Settings
from tests.certificates import certificate


class Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """One line a request would be printed."""


@contextmanager
def served(context: ssl.SSLContext | None = None) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_service_without_tls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with served() as port:
        assert liveness_fault(Settings(host="0.0.0.0", port=port)) is None
        monkeypatch.setenv("COMPACTOR_PORT", str(port))
        assert main() == 0
    assert main() == 1
    assert f"127.0.0.1:{port} does not answer" in capsys.readouterr().err


def test_a_service_with_tls(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    with served(context) as port:
        assert liveness_fault(Settings(port=port, tls_certificate=str(chain), tls_key=str(key))) is None
