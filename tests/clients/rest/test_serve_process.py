"""`compactor serve` as a process: it tells its URL, refuses what is no request and lives on, hides secrets, drains.

One process serves this module, with access control on and secrets planted wherever it gets some.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx
import pytest

from api.http.tokens import create_token

SECRET = b"planted-secret-key-of-32-bytes!!"
AWS = "planted+aws/secret+access+key+0000000000"
PLANTED = [AWS, base64.b64encode(SECRET).decode(), SECRET.decode(), "planted"]
ADMIN = "/admin/v2/persistent/public/default"
BODY_LIMIT = 1 << 20


@dataclass
class Process:
    """A service in a process of its own; `lines` grows with what it logs."""

    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    url: str = ""
    more: threading.Condition = field(default_factory=threading.Condition)

    def listen(self, stream: IO[str], answers: threading.Event) -> None:
        """Take every line, until the process ends."""
        for line in stream:
            with self.more:
                self.lines.append(line)
                self.more.notify_all()
            if '"serving"' in line:
                self.url = json.loads(line)["url"]
                answers.set()
        answers.set()

    def wait_for(self, text: str) -> dict[str, Any]:
        """The first line that holds this text, when it comes."""
        with self.more:
            assert self.more.wait_for(lambda: any(text in line for line in self.lines), 120), "".join(self.lines)
            return dict(json.loads(next(line for line in self.lines if text in line)))

    def client(self, role: str | None = "root") -> httpx.Client:
        """Asks as that role."""
        headers = {"Authorization": f"Bearer {create_token(SECRET, role, {})}"} if role else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def raw(self) -> socket.socket:
        """A connection that any bytes may be sent over."""
        address = urlsplit(self.url)
        assert address.hostname
        assert address.port
        return socket.create_connection((address.hostname, address.port), timeout=60)

    def end(self) -> int:
        """SIGTERM; how it ended."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(60)


def start(folder: Path, **environment: str) -> tuple[Process, threading.Thread]:
    """Returns when the process answers, or has ended."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTOR_")}
    variables |= {"COMPACTOR_DATA": str(folder / "data"), "COMPACTOR_SPARK_MASTER": "in-process", **environment}
    command = [sys.executable, "-m", "api.cli.main", "serve", "--port", "0"]
    popen = subprocess.Popen(command, env=variables, cwd=folder, text=True, stderr=subprocess.PIPE)
    process = Process(popen)
    answers = threading.Event()
    assert popen.stderr
    reader = threading.Thread(target=process.listen, args=(popen.stderr, answers))
    reader.start()
    assert answers.wait(120), "it neither answers nor ends"
    return process, reader


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("service")
    process, reader = start(
        folder,
        PYTHONPATH=str(Path(__file__).resolve().parents[3]),
        COMPACTOR_AUTH_TOKEN_SECRET_KEY="data:;base64," + base64.b64encode(SECRET).decode(),
        COMPACTOR_AUTH_SUPERUSER_ROLES="root",
        COMPACTOR_LIMITS_BODY_BYTES=str(BODY_LIMIT),
        COMPACTOR_LIMITS_REQUESTS_PER_SECOND="0",
        COMPACTOR_LOGGING_LEVEL="DEBUG",
        AWS_ACCESS_KEY_ID="AKIAPLANTED000000000",
        AWS_SECRET_ACCESS_KEY=AWS,
    )
    assert process.url, "".join(process.lines)
    yield process
    ended = process.end()
    reader.join()
    assert process.popen.stderr
    process.popen.stderr.close()
    log = "".join(process.lines)
    assert ended == 0, log
    assert [word for word in PLANTED if word.lower() in log.lower()] == []
    assert "eyJ" not in log, "a token is in the log"
    for line in process.lines:
        json.loads(line)


def test_it_answers_where_it_says_and_wants_a_token(served: Process) -> None:
    with served.client(None) as anonymous, served.client() as root, served.client("stranger") as stranger:
        assert anonymous.get("/livez").text == "ok\n"
        assert anonymous.get("/readyz").json()["reason"] == ""
        assert anonymous.get("/metrics").status_code == 200
        for verb, path in (("GET", "/admin/v2/tenants"), ("PUT", f"{ADMIN}/t"), ("GET", f"{ADMIN}/t/stats")):
            assert anonymous.request(verb, path).status_code == 401
            assert stranger.request(verb, path).status_code == 403
        assert root.put(f"{ADMIN}/t").status_code == 204
        assert root.get("/admin/v2/tenants").json() == ["public"]


def test_pages_are_served_without_a_network(served: Process) -> None:
    with served.client(None) as anonymous:
        page = anonymous.get("/docs").text
        assert "swagger" in page.lower()
        assert "https://" not in page
        parts = [part.split('"')[0] for part in page.split('"/docs-static/')[1:]]
        assert parts
        for part in parts:
            assert anonymous.get(f"/docs-static/{part}").status_code == 200


def test_bytes_that_are_no_request_are_refused(served: Process) -> None:
    draw = random.Random(7)
    sent = [draw.randbytes(draw.randrange(1, 4000)) for _ in range(30)]
    sent += [
        b"\x16\x03\x01\x02\x00",
        b"\0" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 200_000 + b" HTTP/1.1\r\n",
    ]
    sent += [
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 50_000,
        b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    ]
    sent += [b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]
    for garbage in sent:
        with served.raw() as connection:
            try:
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(1000)
            except OSError as error:
                if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                    raise
                continue  # refused before all of it was taken
            assert not answer or answer.split()[1] in (b"303", b"400", b"401", b"404", b"405"), (garbage[:50], answer)
    with served.client(None) as anonymous:
        assert anonymous.get("/livez").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [True, False])
def test_huge_bodies_are_refused_when_they_are_too_large_and_not_before_memory_is(
    chunked: bool, served: Process
) -> None:
    """A gigabyte is announced, or sent in chunks that never end; the answer comes soon after the limit."""
    with served.client() as root:  # a body for a topic that does not exist is not read
        assert root.put("/admin/v2/persistent/public/default/t").status_code in (204, 409)
    token = create_token(SECRET, "root", {})
    head = f"POST /topics/persistent/public/default/t HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
    head += "content-type: application/json\r\n"
    head += "transfer-encoding: chunked\r\n\r\n" if chunked else f"content-length: {1 << 30}\r\n\r\n"
    part = b"10000\r\n" + b" " * 65536 + b"\r\n" if chunked else b" " * 65536
    sent = 0
    with served.raw() as connection:
        connection.sendall(head.encode())
        connection.setblocking(False)
        answer = b""
        while not answer:
            connection.settimeout(60 if sent > 64 * BODY_LIMIT else 0.01)
            try:
                answer = connection.recv(2000)
                break
            except TimeoutError:
                pass
            connection.settimeout(60)
            try:
                connection.sendall(part)
            except (ConnectionResetError, BrokenPipeError):
                break
            sent += len(part)
            assert sent < 1 << 30, "it took all of it"
    assert not answer or answer.startswith(b"HTTP/1.1 413"), answer
    with served.client(None) as anonymous:
        assert anonymous.get("/livez").status_code == 200


def test_secrets_are_in_no_answer_and_no_error(served: Process) -> None:
    bad = create_token(bytes([1] * 32), "root", {})
    with served.client(None) as anonymous:
        answers = [
            anonymous.get("/admin/v2/tenants", headers={"Authorization": f"Bearer {bad}"}),
            anonymous.put(f"{ADMIN}/x?token={bad}", headers={"Authorization": "Basic cGxhbnRlZDpwbGFudGVk"}),
            anonymous.put(f"{ADMIN}/t/compactionThreshold", content=b'{"password": "planted"'),
            anonymous.get("/readyz"),
            anonymous.get("/metrics"),
            anonymous.get("/openapi.json"),
        ]
    with served.client() as root:
        answers += [root.get("/admin/v2/brokers/configuration/runtime"), root.get("/admin/v2/tenants/nothing")]
    for answer in answers:
        assert [word for word in [*PLANTED, bad] if word in answer.text] == []


def test_changes_are_written_down(served: Process) -> None:
    with served.client() as root:
        request = root.put(f"{ADMIN}/audited").headers["x-request-id"]
    line = served.wait_for(f'"event": "change", "request_id": "{request}"')
    assert (line["who"], line["method"], line["target"], line["status"]) == ("root", "PUT", f"{ADMIN}/audited", 204)


@pytest.mark.slow
def test_a_run_is_in_the_log_with_its_topic_and_its_number(served: Process) -> None:
    with served.client() as root:
        assert root.put(f"{ADMIN}/logged").status_code == 204
        message = {"messages": [{"key": "k", "payload": "v"}]}
        assert root.post("/topics/persistent/public/default/logged", json=message).status_code == 200
        assert root.put(f"{ADMIN}/logged/compaction").status_code == 204
    logged = served.wait_for('"compaction succeeded"')
    assert logged["topic"] == "persistent://public/default/logged"
    begun = [line for line in map(json.loads, list(served.lines)) if line["event"] == "compaction begun"]
    assert logged["run"] in [line["run"] for line in begun if line["topic"] == logged["topic"]]
