"""The service that is called, the role of the caller, errors without an answer, and the modules that are loaded."""

from __future__ import annotations

import http.server
import json
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from api.cli.admin.client_config import DEFAULT_URL, ClientConfig, load_client_config
from storage.errors import Misconfigured
from storage.model import TopicName
from tests.clients.rest.test_serve_tls import certificate
from tests.program import Program, loaded
from tests.serving import Served

HEAVY = ("pyspark", "sqlalchemy", "alembic", "pyarrow", "polars", "numpy", "boto3", "fastapi", "uvicorn")
OURS = ("compactor", "storage.metadata", "storage.objects", "storage.ledger", "storage.log", "api.app", "api.service")


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert load_client_config({}, None, home) == ClientConfig(DEFAULT_URL)
    write(tmp_path, ".config/compactor/admin.toml", 'admin-url = "https://file:1/"\ntoken = "in-file"\ntimeout = 5\n')
    assert load_client_config({}, None, home) == ClientConfig("https://file:1", "in-file", None, 5)
    environment = {**home, "COMPACTOR_ADMIN_URL": "http://environment:2", "COMPACTOR_TOKEN": "in-environment"}
    assert load_client_config({}, None, environment) == ClientConfig("http://environment:2", "in-environment", None, 5)
    token = write(tmp_path, "token", " of-a-file\n")
    flags = {"admin-url": "http://flag:3", "token-file": token, "token": None}
    assert load_client_config(flags, None, environment) == ClientConfig("http://flag:3", "of-a-file", None, 5)
    assert "of-a-file" not in repr(load_client_config(flags, None, environment))


@pytest.mark.parametrize("template", ["token:secret", "file://{folder}/secret", "secret"])
def test_pulsars_client_conf(tmp_path: Path, template: str) -> None:
    write(tmp_path, "secret", "secret\n")
    params = template.format(folder=tmp_path)
    text = f"# a comment\nwebServiceUrl=http://a:8080,b:8080/\nbrokerServiceUrl=pulsar://a:6650/\nauthParams={params}\n"
    assert load_client_config({}, write(tmp_path, "client.conf", text), {}) == ClientConfig("http://a:8080", "secret")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "nosuch = 1\n", "unknown key 'nosuch'"),
        ("a.toml", "admin-url = ", "is not TOML"),
        ("a.toml", "token = true\n", "token in .* is not a text"),
        ("a.toml", 'admin-url = "ftp://x"\n', "'ftp://x' is not the URL"),
        ("a.toml", 'admin-url = "http://x:99999"\n', "is not the URL"),
        ("a.toml", 'token = "a"\ntoken-file = "b"\n', "both a token and a token file"),
        ("a.toml", 'token-file = "/nosuch"\n', "token file /nosuch does not exist: name another with --token-file"),
        ("a.toml", 'token-file = "/"\n', r"token file / cannot be read \(Is a directory\)"),
        ("a.toml", 'token = "a b"\n', "characters that no token has"),
        ("a.toml", "timeout = 0\n", "'0' is not a time limit"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(Misconfigured, match=says) as answer:
        load_client_config({}, write(tmp_path, name, text), {})
    assert "a b" not in str(answer.value)


def test_no_service_there(outside: Program, tmp_path: Path) -> None:
    unreachable = ("--admin-url", "http://127.0.0.1:1")
    outside("tenants", "list", *unreachable).refused(6, "http://127.0.0.1:1", "compactor serve", "--admin-url")
    outside("tenants", "list", "--config", "/nosuch.toml").refused(5, "does not exist")
    bad = write(tmp_path, "bad.pem", "no certificate")
    outside("tenants", "list", *unreachable, "--ca-cert", bad).refused(5, f"{bad} is not a file of certificates")
    outside("tenants", "list", *unreachable, "--ca-cert", "/no.pem").refused(5, "certificates /no.pem does not exist")
    outside("tenants", "list", "--token").refused(2, "needs a value")
    outside("tenants", "nosuch").refused(2, "see `compactor-admin")


@dataclass
class Answering:
    """A server that answers every request alike, and notes the tokens."""

    url: str = ""
    answer: tuple[int, str, str] = (200, "", "")
    tokens: list[str] = field(default_factory=list)


@pytest.fixture
def answering() -> Iterator[Answering]:
    answering = Answering()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = answering.answer
            answering.tokens.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status in (429, 503):
                self.send_header("Retry-After", "7")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        answering.url = f"http://127.0.0.1:{server.server_port}"
        yield answering
        server.shutdown()
        thread.join()


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    """A port where TLS alone is spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path))

    class Nothing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                context.wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, 5, "--token-file"),
        (403, 5, "permission"),
        (405, 2, "correct the request"),
        (409, 4, "try again"),
        (416, 2, "correct"),
        (429, 6, "in 7 s"),
        (500, 1, "the service's log"),
        (503, 6, "try again later"),
        (507, 7, "backup"),
    ],
)
def test_what_the_service_refuses(outside: Program, answering: Answering, status: int, code: int, says: str) -> None:
    answering.answer = (status, "application/json", '{"reason": "of its own"}')
    token = ("--token", "sesame")
    answer = outside("tenants", "list", "--admin-url", answering.url, *token).refused(code, "of its own", says)
    assert "sesame" not in answer
    assert answering.tokens == ["Bearer sesame"]


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        ((200, "text/html", "<html>hello"), 5, ["is it a compactor service?"]),
        ((404, "text/html", "<html>nothing here"), 5, ["no compactor service answers at http://127.0.0.1", "404"]),
        ((404, "text/plain", "404 page not found"), 5, ["no compactor service answers at http://127.0.0.1", "404"]),
        ((404, "application/json", '{"detail": "Not Found"}'), 5, ["no compactor service answers at", "status 404"]),
        ((501, "text/html", "<html>"), 5, ["no compactor service answers at", "status 501", "check --admin-url"]),
        ((502, "text/html", "<html>a proxy"), 6, ["status 502", "try again later"]),
    ],
)
def test_a_server_that_is_another(
    outside: Program, answering: Answering, answer: tuple[int, str, str], code: int, says: list[str]
) -> None:
    answering.answer = answer
    line = outside("tenants", "list", "--admin-url", answering.url).refused(code, *says)
    if "no compactor service" in says[0]:
        assert f"at {answering.url}: " in line
        assert line.endswith("check --admin-url")


def test_a_conflict_that_a_broker_answers_by_412_has_the_exit_code_of_one(
    admin: Program, served: Served, topic: str
) -> None:
    record = served.broker.environment.metadata.topics.get(TopicName.parse(topic))
    lease = served.broker.environment.metadata.leases.acquire(record.id, "there:4711:cafe", 60_000)
    admin("topics", "delete", topic).refused(4, "another process writes the topic", "with --force")
    served.broker.environment.metadata.leases.release(lease)
    admin("topics", "delete", topic).done()


@pytest.mark.parametrize(
    ("status", "reason", "code", "line"),
    [
        (400, "it is wrong: correct it", 2, "it is wrong: correct it"),
        (429, "too many: try again", 6, "too many: try again (in 7 s)"),
        (503, "it takes none: have it read on", 6, "it takes none: have it read on; try again in 7 s"),
    ],
)
def test_advice_is_given_once(
    outside: Program, answering: Answering, status: int, reason: str, code: int, line: str
) -> None:
    answering.answer = (status, "application/json", json.dumps({"reason": reason}))
    assert outside("tenants", "list", "--admin-url", answering.url).refused(code) == f"compactor-admin: {line}"


def test_http_and_https_taken_for_each_other(outside: Program, answering: Answering, tls_port: int) -> None:
    plain = answering.url.replace("http://", "https://")
    outside("tenants", "list", "--admin-url", plain).refused(5, "does not speak TLS", "http://")
    answer = outside("tenants", "list", "--admin-url", f"http://127.0.0.1:{tls_port}")
    answer.refused(5, "speaks TLS", f"https://127.0.0.1:{tls_port}")


@pytest.mark.parametrize("answer", [b"", b"\x00\x00\x00\x0a of another protocol"])
def test_a_port_of_another_protocol(outside: Program, answer: bytes) -> None:
    """A broker service port, for example, closes the connection."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            line = outside("tenants", "list", "--admin-url", url).refused(6, f"{url} does not answer as HTTP")
            assert "HTTP port of a service, not the broker service port" in line
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("arguments", [["--help"], ["topics", "stats", "t", "--admin-url", "http://127.0.0.1:1"]])
def test_it_loads_nothing_heavy(arguments: list[str]) -> None:
    assert loaded("api.cli.admin.main", arguments, HEAVY + OURS) == []


def test_the_installed_script_is_the_program_and_completes() -> None:
    script = Path(sys.executable).parent / "compactor-admin"
    assert "pulsar-admin" in subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    environment = {
        "_COMPACTOR_ADMIN_COMPLETE": "complete_bash",
        "COMP_WORDS": "compactor-admin topics comp",
        "COMP_CWORD": "2",
    }
    result = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["compact", "compaction-status"]


@pytest.mark.parametrize("host", ["ä..b", "a" * 64 + ".test"])
def test_a_host_that_cannot_exist(outside: Program, host: str) -> None:
    outside("tenants", "list", "--admin-url", f"http://{host}").refused(5, "is not the URL", "check --admin-url")
