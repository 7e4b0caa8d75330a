"""`compactor-admin` as a user has it, without the cost of a process: its requests go to a service in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import api.cli.admin.main
from api.cli.admin import connection
from api.cli.admin.client_config import CONFIG_VARIABLE, VARIABLES, ClientConfig
from tests.program import Program
from tests.serving import Served, serving

_NUMBERS = itertools.count()


class ToTheService(httpx.BaseTransport):
    """Requests as they would go over a socket, answered by the application."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        request.read()
        headers = {name: value for name, value in request.headers.items() if name != "transfer-encoding"}  # it is whole
        answer = self._served.client.request(request.method, path, content=request.content, headers=headers)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content, request=request)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service in this process; nothing is compacted by itself."""
    with serving(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting in the environment, and no file in the user's home."""
    for variable in (*VARIABLES.values(), CONFIG_VARIABLE, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """The program, with whatever service its options name."""
    return Program("compactor-admin", api.cli.admin.main.main, tmp_path, monkeypatch)


@pytest.fixture
def admin(served: Served, outside: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program, at the service of this module."""
    created = connection.Connection

    def inside(target: ClientConfig) -> connection.Connection:
        return created(target, ToTheService(served))

    monkeypatch.setattr(connection, "Connection", inside)
    return outside


@pytest.fixture
def topic(admin: Program) -> str:
    """A topic of its own, without messages."""
    name = f"t{next(_NUMBERS)}"
    admin("topics", "create", name).done()
    return name
