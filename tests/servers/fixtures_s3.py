"""S3 servers as session-scoped pytest fixtures; import the ones you use into your conftest.py.

Each is an `S3Server`: `endpoint`, `access_key`, `secret_key`, `make_bucket()`. Stores find credentials in the
environment only: hand them over with `use_credentials(monkeypatch, server)`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.budgets import IN_CI
from tests.servers.versitygw import ToolMissing, Versitygw, new_bucket, versitygw_binary


class S3Server(Protocol):
    """An S3 server as tests use it."""

    @property
    def endpoint(self) -> str: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    def make_bucket(self) -> str:
        """A new, empty bucket; its name."""
        ...


class MotoServer:
    """moto over HTTP, in a thread of this process. It takes any credentials.

    moto checks whether an object exists and then makes it, with nothing to keep two requests apart: conditional
    multipart uploads of some MiB all win their race. Real servers do better, so conditional requests take turns here,
    unless `atomic` is False: then moto is a bad store to try the capability probe on.
    """

    access_key = "testing"
    secret_key = "testing"

    def __init__(self, *, atomic: bool = True) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()
        self._atomic = atomic
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="moto", daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Any:
        if self._atomic and "HTTP_IF_NONE_MATCH" in environ:
            with self._turn:
                return self._app(environ, start_response)
        return self._app(environ, start_response)

    def make_bucket(self) -> str:
        return new_bucket(self.endpoint, self.access_key, self.secret_key)


class _QuietHandler(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """One line a request would bury what a failed test has to say."""


def use_credentials(monkeypatch: pytest.MonkeyPatch, server: S3Server) -> None:
    """Put the server's credentials, and none of this machine's, into the environment."""
    for variable in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    server = Versitygw(tmp_path_factory.mktemp("versitygw"))
    try:
        versitygw_binary()
    except ToolMissing as missing:
        if IN_CI:
            raise
        pytest.skip(str(missing))
    with server:
        yield server
