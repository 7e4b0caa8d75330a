"""A client for readers, over HTTP: topics as messages, Arrow tables, pandas or polars frames (docs/python.md).

    import compactor.client

    with compactor.client.connect("http://127.0.0.1:8080") as client:
        users = client.topic("users")
        users.get("user-1")
        users.read(compacted=True).to_polars()

Importing it loads httpx and nothing else of this project: no pyspark, no SQLAlchemy; pyarrow, pandas and polars only
when a result is asked for as theirs. `connect_async` is the same for asyncio.
"""

from __future__ import annotations

from compactor.client.asynchronous import AsyncClient, AsyncRead, AsyncTopic, connect_async
from compactor.client.errors import AccessRefused, ClientError, NotFound, StateMayBeStale, Unavailable
from compactor.client.messages import Message
from compactor.client.synchronous import Client, Read, Topic, connect

__all__ = [
    "AccessRefused",
    "AsyncClient",
    "AsyncRead",
    "AsyncTopic",
    "Client",
    "ClientError",
    "Message",
    "NotFound",
    "Read",
    "StateMayBeStale",
    "Topic",
    "Unavailable",
    "connect",
    "connect_async",
]
