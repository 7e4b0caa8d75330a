"""The client for threads."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from compactor.client import messages
from compactor.client.errors import connection_headers, convert_transport_errors, raise_for_status
from compactor.client.messages import Message

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

WAIT_MS = 20_000
"""The time that a request of `follow` waits for a message."""


def connect(
    url: str, *, token: str | None = None, timeout: float = 60.0, verify: bool | str = True, **options: Any
) -> Client:
    """Return a client of the service at `url`. It connects when it is used.

    `token`: of a role (docs/security.md). `timeout`: seconds for each wait. `verify`: False, or a file of authorities.
    `options`: of `httpx.Client`. Raises ValueError.
    """
    headers = connection_headers(url, token)
    return Client(
        httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=verify, follow_redirects=True, **options)
    )


class Client:
    """A client of one service, and a context manager. Threads may share it."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def topic(self, name: str) -> Topic:
        """Return a topic, which need not exist yet: `users`, `tenant/namespace/users` or a full name.

        Of a partitioned topic name a partition, `users-partition-0`, to read it; `get` takes the topic itself. Raises
        ValueError.
        """
        return Topic(self._http, messages.topic_path(name))


class Topic:
    """A topic of a service."""

    def __init__(self, http: httpx.Client, path: str) -> None:
        self._http, self._path = http, path

    def get(self, key: str | bytes) -> Message | None:
        """Return the newest message of a key; None: it has no value. Raises ClientError."""
        with convert_transport_errors(str(self._http.base_url)):
            answer = self._http.get(f"{self._path}/key", params=messages.key_query(key))
        return messages.message_of_key(answer)

    def read(self, *, compacted: bool = False, start: str | int = "earliest", limit: int | None = None) -> Read:
        """Return a read of the messages from `start` to the topic's present end, or of `limit` messages at most.

        `compacted`: the newest message of each key up to the horizon, then all after it. `start`: earliest, latest, a
        message id, an offset, `@` and a time, or `Read.next` of an earlier read. A raw read whose start was trimmed is
        refused.
        """
        return Read(self._http, self._path, messages.read_query(compacted=compacted, start=start, limit=limit))

    def follow(self, *, compacted: bool = False, start: str | int = "earliest") -> Iterator[Message]:
        """Yield messages, and wait for further ones, for ever. Raises ClientError."""
        query = messages.read_query(compacted=compacted, start=start) | {"waitMs": str(WAIT_MS)}
        while True:
            with convert_transport_errors(str(self._http.base_url)):
                answer = self._http.get(f"{self._path}/messages", params=query, headers={"Accept": messages.JSON_LINES})
            yield from messages.messages_of_page(answer)
            query["start"] = answer.headers[messages.NEXT]


class Read:
    """A read to the topic's present end: iterate it for messages, or take it as a table. Each use reads again."""

    def __init__(self, http: httpx.Client, path: str, query: dict[str, str]) -> None:
        self._http, self._path, self._query = http, path, query | {"stream": "true", "token": "true"}
        self.next: str | None = None
        """The start of the next read, after the whole of this one; None before."""

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; chunked ones are whole. Raises ClientError."""
        lines = messages.JsonLinesReader()
        with self._open_stream(messages.JSON_LINES) as answer:
            for piece in answer.iter_bytes():
                yield from lines.read_messages(piece)
        self.next = lines.require_next_start()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages as record batches, in bounded memory. Raises ClientError."""
        with self._open_stream(messages.ARROW) as answer:
            for batch, token in messages.batches_and_next_start(io.BufferedReader(_Body(answer), 1 << 20)):
                if batch is not None:
                    yield batch
                self.next = token

    def to_arrow(self) -> pa.Table:
        """Return the messages as a table. Raises ClientError."""
        return messages.table_of(list(self.batches()))

    def to_pandas(self) -> pd.DataFrame:
        """Return the messages as a frame of pandas, which must be installed. Raises ClientError."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return the messages as a frame of polars. Raises ClientError."""
        return messages.frame_of(self.to_arrow())

    def newest_values(self) -> dict[bytes, bytes]:
        """Return the newest value of each key. Raises ClientError."""
        values: dict[bytes, bytes] = {}
        for message in self:
            messages.update_newest_values(values, message)
        return values

    @contextmanager
    def _open_stream(self, media_type: str) -> Generator[httpx.Response, None, None]:
        """Request the messages, and yield the answer with an unread body. Raises ClientError."""
        with (
            convert_transport_errors(str(self._http.base_url)),
            self._http.stream(
                "GET", f"{self._path}/messages", params=self._query, headers={"Accept": media_type}
            ) as answer,
        ):
            if not answer.is_success:
                answer.read()
            raise_for_status(answer)
            yield answer


class _Body(io.RawIOBase):
    """The body of an HTTP answer as a readable binary file."""

    def __init__(self, answer: httpx.Response) -> None:
        self._pieces = answer.iter_bytes()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
