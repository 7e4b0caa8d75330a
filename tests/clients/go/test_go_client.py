"""Pulsar's Go client, unmodified, at a real service."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.python.conftest import Admin
from tests.servers.compactor_service import RunningService, compactor_service
from tests.servers.versitygw import CACHE, ToolMissing, find_go

pytestmark = pytest.mark.slow

_HERE = Path(__file__).resolve().parent
PROGRAM = CACHE / "bin" / "pulsar-go-client"
TOPIC = "persistent://public/default/go"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with compactor_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def program() -> Path:
    """main.go, compiled with the client that go.sum pins."""
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    try:
        go = find_go()
    except ToolMissing as error:
        pytest.skip(str(error))
    with (CACHE / "pulsar-go-client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [go, "build", "-o", str(PROGRAM), "."],
            cwd=_HERE,
            env={**os.environ, "GOTOOLCHAIN": "auto", "GOFLAGS": "-mod=readonly"},
            check=True,
        )
    return PROGRAM


def test_produce_consume_and_read_compacted(program: Path, service: RunningService) -> None:
    def run(command: str, *arguments: str) -> list[list[str]]:
        done = subprocess.run(
            [program, command, service.broker_service_url, TOPIC, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    run("produce", "1000", "10")
    raw = run("read")
    assert [value for _, value, *_ in raw] == [str(number) for number in range(1000)]
    assert [value for _, value, *_ in run("consume", "400")] == [str(number) for number in range(400)]
    assert run("consume", "1")[0][1] in [str(number) for number in range(401)]
    Admin(service.url).compact(TOPIC)

    assert run("read-compacted") == raw[-10:]
    assert run("read") == raw
