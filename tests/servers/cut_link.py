"""Database links that break at a COMMIT, on cue: before it is done, after it, or with its answer still to come.

`PostgresLink` is a real TCP proxy in front of a real server: client and server each see the connection close.
`SqliteLink` raises SQLite's own error around the COMMIT of one store. Both break once for each `cut`, count how often
(`cuts`, so that a test can say that it happened), and can stay down until `restore`.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from sqlalchemy import URL

from storage.metadata.store import MetadataStore

_COMMIT = b"COMMIT\x00"


class Cut(Enum):
    """When the link breaks; HELD (PostgreSQL alone): as BEFORE for the client, while the server continues waiting."""

    BEFORE = auto()
    AFTER = auto()
    HELD = auto()


class PostgresLink:
    """A proxy; `url` leads through it. Close it at the end."""

    def __init__(self, url: URL) -> None:
        self._server = (url.host, url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        self.cuts = 0
        self._armed: Cut | None = None
        self._stays_down = self._down = False
        self._held: list[tuple[socket.socket, bytes, _Answers]] = []
        self._sockets: list[socket.socket] = [self._listener]
        self._start(self._accept)

    def cut(self, when: Cut, *, stays_down: bool = False) -> None:
        """Break at the next COMMIT; with `stays_down`, refuse all connections from then on."""
        self._armed, self._stays_down = when, stays_down

    def disarm(self) -> None:
        """Do not break at the next COMMIT after all."""
        self._armed = None

    def sever(self) -> None:
        """Break every connection now, and refuse all until `restore`."""
        self._down = True
        broken, self._sockets = self._sockets[1:], self._sockets[:1]
        for item in broken:
            _close(item)

    def restore(self) -> None:
        """Let clients connect again."""
        self._down = False

    def deliver(self) -> None:
        """Let the COMMITs that were held reach the server; returns when it has answered them."""
        for server, message, answers in self._held:
            server.sendall(message)
            answers.answered.wait()
            _close(server)
        self._held.clear()

    def close(self) -> None:
        for item in self._sockets:
            _close(item)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                _close(client)
                continue
            server = socket.create_connection(self._server)
            self._sockets += [client, server]
            answers = _Answers()
            self._start(self._to_server, client, server, answers)
            self._start(self._to_client, client, server, answers)

    def _to_server(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        while message := _receive(client):
            if _COMMIT in message and self._armed is not None:
                when, self._armed = self._armed, None
                self._down = self._stays_down
                answers.dropped = True
                if when is Cut.AFTER:
                    server.sendall(message)
                    answers.answered.wait()
                self.cuts += 1
                if when is Cut.HELD:
                    self._held.append((server, message, answers))
                    _close(client)
                    return
                break
            with suppress(OSError):
                server.sendall(message)
        _close(client)
        _close(server)

    def _to_client(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        while not answers.dropped and (message := _receive(server)):
            if answers.dropped:
                break  # it answers the COMMIT
            with suppress(OSError):
                client.sendall(message)
        answers.answered.set()
        if not answers.dropped:
            _close(client)
            _close(server)

    def _start(self, work: Any, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()


class _Answers:
    """The state that the two directions of one connection share."""

    def __init__(self) -> None:
        self.dropped = False
        self.answered = threading.Event()


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""


def _close(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()


class SqliteLink:
    """The same for one store's SQLite database: what it sees of a disk that fails."""

    def __init__(self, store: MetadataStore) -> None:
        self.cuts = 0
        self._armed: Cut | None = None
        self._stays_down = self._down = False
        self._dialect: Any = store.database.engine.dialect
        self._commit, self._execute = self._dialect.do_commit, self._dialect.do_execute
        self._dialect.do_commit, self._dialect.do_execute = self._do_commit, self._do_execute

    def cut(self, when: Cut, *, stays_down: bool = False) -> None:
        """Fail at the next COMMIT; with `stays_down`, fail everything from then on."""
        self._armed, self._stays_down = when, stays_down

    def disarm(self) -> None:
        """Do not fail at the next COMMIT after all."""
        self._armed = None

    def restore(self) -> None:
        self._down = False

    def close(self) -> None:
        """Let the store's engine, which others may have then, do as it did."""
        self._dialect.do_commit, self._dialect.do_execute = self._commit, self._execute

    def _do_commit(self, connection: Any) -> None:
        when, self._armed = self._armed, None
        if when is not Cut.BEFORE:
            self._commit(connection)
        if when is not None:
            self.cuts += 1
            self._down = self._stays_down
            raise _disk_error()

    def _do_execute(self, *arguments: Any) -> None:
        if self._down:
            raise _disk_error()
        self._execute(*arguments)


def _disk_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    return error
