"""The calls of `pulsar-admin`: `python -m tests.clients.java.recorder` records pulsar-admin-calls.tsv again.

A line is a command, and a request that it makes: verb, path with its query, and body. The commands are run at a server
that has nothing but says that topics have no partitions, so of a command that asks twice only the first requests are
there. What this service answers to them is tested in process (tests/clients/rest/test_pulsar_admin_calls.py), without
Java. To add a command, add a line that begins with it, and run this.
"""

from __future__ import annotations

import re
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

FILE = Path(__file__).with_name("pulsar-admin-calls.tsv")
_COMMANDS_A_JVM = 50
"""Each leaves a client open."""


class Call(NamedTuple):
    """A request that a command makes."""

    command: str
    verb: str
    path: str
    body: str


def recorded() -> list[Call]:
    """All calls, those of a command together."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [Call(*(line.split("\t") + [""] * 3)[:4]) for line in lines if not line.startswith("#")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, str]]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        self.seen.append((self.command, self.path, body))
        is_metadata = self.command == "GET" and self.path.partition("?")[0].endswith("/partitions")
        answer = b'{"partitions": 0, "deleted": false}' if is_metadata else b'{"reason": "nothing is here"}'
        self.send_response(200 if is_metadata else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what was asked is in `seen`."""


@contextmanager
def _server() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Its URL, and what was asked of it so far."""
    seen: list[tuple[str, str, str]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"seen": seen})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", seen
        server.shutdown()


def main() -> int:
    """Record all commands again; 1 if one of them asks for nothing."""
    from tests.clients.java.jvm import PulsarAdmin, jvm
    from tests.clients.java.maven import class_path

    known = {command: list(calls) for command, calls in groupby(recorded(), lambda call: call.command)}
    commands = list(known)
    libraries = class_path(FILE.with_name("pulsar-tools.lock"))
    calls: list[Call] = []
    silent = []
    with _server() as (url, seen), TemporaryDirectory() as folder:
        config = Path(folder, "client.conf")
        config.write_text(f"webServiceUrl={url}\n")
        for first in range(0, len(commands), _COMMANDS_A_JVM):
            with jvm(libraries) as gateway:
                admin = PulsarAdmin(gateway, config)
                for command in commands[first : first + _COMMANDS_A_JVM]:
                    seen.clear()
                    admin(*shlex.split(command))
                    # One that does not wait for its answer may not have asked yet.
                    calls += [Call(command, *item) for item in seen] or [item for item in known[command] if item.verb]
                    silent += [] if calls and calls[-1].command == command else [command]
    head = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    lines = [re.sub(r"\t+$", "", "\t".join(call)) for call in calls]
    FILE.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    for command in silent:
        print(f"this command asks for nothing: {command}", file=sys.stderr)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
