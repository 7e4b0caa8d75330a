"""Context that the connections of a test's server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from api.pulsar.admission import Admission
from api.pulsar.connection import Connection
from api.pulsar.context import READ_BYTES
from api.pulsar.publish_budget import PublishBudget
from api.pulsar.receive_buffers import ReceiveBuffers
from api.pulsar.turns import TurnQueue
from storage.clock import Clock


def shared_state(
    clock: Clock,
    pools: Mapping[Any, Any] | None = None,
    call_soon: Callable[[Callable[[], None]], object] | None = None,
    now: Callable[[], float] = float,
) -> dict[str, Any]:
    """Return the attributes of a context that are the same for all of its connections.

    `now`: by default commands take no time, so that they are handled at once.
    """
    return {
        "turns": TurnQueue(call_soon or (lambda work: asyncio.get_running_loop().call_soon(work)), now),
        "read_buffer": memoryview(bytearray(READ_BYTES)),
        "receive_buffers": ReceiveBuffers(64 << 20, clock),
        "admission": Admission(pools or {}, 1_000, max_lookups=2),
        "publish_budget": PublishBudget(1 << 30),
    }


def receive(connection: Connection, data: bytes) -> None:
    """Let a connection receive bytes, as its transport does."""
    while data:
        buffer = connection.get_buffer(-1)
        piece, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))


class Owner:
    """A server that takes any connection."""

    def add_connection(self, _: object) -> bool:
        return True

    def mark_connected(self, _: object) -> None:
        pass

    def remove_connection(self, _: object) -> None:
        pass
