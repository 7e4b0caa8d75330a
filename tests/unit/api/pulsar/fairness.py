"""What a connection shares with others of its service, for a gateway that a test makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from api.pulsar.admission import Admission
from api.pulsar.receive_buffers import ReceiveBuffers
from api.pulsar.turns import Turns
from storage.clock import Clock


def shared_limits(
    clock: Clock,
    pools: Mapping[Any, Any] | None = None,
    call_soon: Callable[[Callable[[], None]], object] | None = None,
    now: Callable[[], float] = float,
) -> dict[str, Any]:
    """The attributes of a gateway that are the same for all of its connections.

    `now`: by default commands take no time, so that they are handled at once.
    """
    return {
        "connected": lambda _: None,
        "turns": Turns(call_soon or (lambda work: asyncio.get_running_loop().call_soon(work)), now),
        "receive_buffers": ReceiveBuffers(64 << 20, clock),
        "admission": Admission(pools or {}, 1_000, max_lookups=2),
    }
