"""The client for asyncio: that of threads (synchronous.py), awaited."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from compactor.client import messages
from compactor.client.errors import connection_headers, convert_transport_errors, raise_for_status
from compactor.client.messages import Message
from compactor.client.synchronous import WAIT_MS

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


def connect_async(
    url: str, *, token: str | None = None, timeout: float = 60.0, verify: bool | str = True, **options: Any
) -> AsyncClient:
    """Return a client of the service at `url`, for `async with`. The arguments are those of `connect`."""
    headers = connection_headers(url, token)
    return AsyncClient(
        httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, verify=verify, follow_redirects=True, **options
        )
    )


class AsyncClient:
    """A client of one service, and an asynchronous context manager. Tasks of one event loop may share it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def topic(self, name: str) -> AsyncTopic:
        """Return a topic, as `Client.topic` does. Raises ValueError."""
        return AsyncTopic(self._http, messages.topic_path(name))


class AsyncTopic:
    """A topic of a service."""

    def __init__(self, http: httpx.AsyncClient, path: str) -> None:
        self._http, self._path = http, path

    async def get(self, key: str | bytes) -> Message | None:
        """Return the newest message of a key; None: it has no value. Raises ClientError."""
        with convert_transport_errors(str(self._http.base_url)):
            answer = await self._http.get(f"{self._path}/key", params=messages.key_query(key))
        return messages.message_of_key(answer)

    def read(self, *, compacted: bool = False, start: str | int = "earliest", limit: int | None = None) -> AsyncRead:
        """Return a read of the messages from `start` to the topic's present end, as `Topic.read` does."""
        return AsyncRead(self._http, self._path, messages.read_query(compacted=compacted, start=start, limit=limit))

    async def follow(self, *, compacted: bool = False, start: str | int = "earliest") -> AsyncIterator[Message]:
        """Yield messages, and wait for further ones, for ever. Raises ClientError."""
        query = messages.read_query(compacted=compacted, start=start) | {"waitMs": str(WAIT_MS)}
        while True:
            with convert_transport_errors(str(self._http.base_url)):
                answer = await self._http.get(
                    f"{self._path}/messages", params=query, headers={"Accept": messages.JSON_LINES}
                )
            for message in messages.messages_of_page(answer):
                yield message
            query["start"] = answer.headers[messages.NEXT]


class AsyncRead:
    """A read to the topic's present end: iterate it for messages, or take it as a table. Each use reads again."""

    def __init__(self, http: httpx.AsyncClient, path: str, query: dict[str, str]) -> None:
        self._http, self._path, self._query = http, path, query | {"stream": "true", "token": "true"}
        self.next: str | None = None
        """The start of the next read, after the whole of this one; None before."""

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the messages; chunked ones are whole. Raises ClientError."""
        lines = messages.JsonLinesReader()
        async with self._open_stream(messages.JSON_LINES) as answer:
            async for piece in answer.aiter_bytes():
                for message in lines.read_messages(piece):
                    yield message
        self.next = lines.require_next_start()

    async def to_arrow(self) -> pa.Table:
        """Return the messages as a table. Raises ClientError."""
        async with self._open_stream(messages.ARROW) as answer:
            body = await answer.aread()
        batches = []
        for batch, token in messages.batches_and_next_start(io.BytesIO(body)):
            if batch is not None:
                batches.append(batch)
            self.next = token
        return messages.table_of(batches)

    async def to_pandas(self) -> pd.DataFrame:
        """Return the messages as a frame of pandas, which must be installed. Raises ClientError."""
        return (await self.to_arrow()).to_pandas()

    async def to_polars(self) -> pl.DataFrame:
        """Return the messages as a frame of polars. Raises ClientError."""
        return messages.frame_of(await self.to_arrow())

    async def newest_values(self) -> dict[bytes, bytes]:
        """Return the newest value of each key. Raises ClientError."""
        values: dict[bytes, bytes] = {}
        async for message in self:
            messages.update_newest_values(values, message)
        return values

    @asynccontextmanager
    async def _open_stream(self, media_type: str) -> AsyncGenerator[httpx.Response, None]:
        """Request the messages, and yield the answer with an unread body. Raises ClientError."""
        with convert_transport_errors(str(self._http.base_url)):
            async with self._http.stream(
                "GET", f"{self._path}/messages", params=self._query, headers={"Accept": media_type}
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                raise_for_status(answer)
                yield answer
