"""Pulsar's Go client, unmodified, at a real service. It is compiled without Athenz, a way to log in (`absent`)."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.clients.python.conftest import Admin, connected
from tests.clients.python.test_python_large_messages import COMPACTED_SIZES, RAW_SIZES, produce_large
from tests.servers.compactor_service import RunningService, compactor_service
from tests.servers.versitygw import CACHE, QUICK_BUILD, ToolMissing, find_go

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
            env={**os.environ, **QUICK_BUILD},
            check=True,
        )
    return PROGRAM


def run(program: Path, service: RunningService, command: str, topic: str, *arguments: str) -> list[list[str]]:
    """The fields of the lines that a command of main.go prints."""
    done = subprocess.run(
        [program, command, service.broker_service_url, topic, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_produce_consume_and_read_compacted(program: Path, service: RunningService) -> None:
    def go(command: str, *arguments: str) -> list[list[str]]:
        return run(program, service, command, TOPIC, *arguments)

    go("produce", "1000", "10")
    raw = go("read")
    assert [value for _, value, *_ in raw] == [str(number) for number in range(1000)]
    assert [value for _, value, *_ in go("consume", "400")] == [str(number) for number in range(400)]
    assert go("consume", "1")[0][1] in [str(number) for number in range(401)]
    Admin(service.url).compact(TOPIC)

    assert go("read-compacted") == raw[-10:]
    assert go("read") == raw


def test_what_is_small_once_compressed_is_read(program: Path, service: RunningService) -> None:
    """Messages and batches that are larger than a client's largest message before they are compressed."""
    topic = f"{TOPIC}-large"
    client = connected(service.broker_service_url)
    produce_large(client, topic, pulsar.CompressionType.ZSTD)
    client.close()

    def sizes(command: str) -> list[int]:
        values = [value for _, value, *_ in run(program, service, command, topic)]
        return [int(value) if value.isdigit() else len(value) for value in values]

    assert sizes("read") == sizes("read-compacted") == RAW_SIZES  # in the log
    Admin(service.url).compact(topic)
    assert sizes("read") == RAW_SIZES  # sealed
    assert sizes("read-compacted") == COMPACTED_SIZES
