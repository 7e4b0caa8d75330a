"""A server without sockets: what it takes from the broker's policies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.broker.threads import WaitsFor
from api.pulsar.server import PulsarServer
from api.settings.settings import Settings
from storage.errors import Unavailable
from storage.metadata.policy_store import BROKER
from tests.unit.api.broker.serving.served_topic import AtOnce
from tests.workbench import Workbench


@pytest.mark.parametrize("size", [None, 8 << 20])
def test_clients_are_announced_the_brokers_limit_of_messages(bench: Workbench, size: int | None) -> None:
    """Also one that is in the database, not in the settings file."""
    if size is not None:
        bench.metadata.policies.change([BROKER], {"max.message.bytes": size})
    assert asyncio.run(_announced(bench)) == (size or 5 << 20)


async def _announced(bench: Workbench) -> int:
    """Start a server, and return the size of messages that it announces."""
    broker: Any = SimpleNamespace(
        environment=SimpleNamespace(clock=bench.clock, metadata=bench.metadata),
        pools=dict.fromkeys(WaitsFor, AtOnce()),
        logs=SimpleNamespace(),
        clients=SimpleNamespace(),
        mirrors=SimpleNamespace(),
        schemas=None,
        settings=Settings(),
    )
    server = PulsarServer(broker, cast(Any, None), [])

    await server.start()
    await server.close()
    return server.context.max_message_size


def test_a_database_that_is_away_keeps_no_service_from_its_start(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Any) -> Any:
        raise Unavailable("the database is away", "wait")

    monkeypatch.setattr(bench.metadata.policies, "policies_inherited_from", away)
    assert asyncio.run(_announced(bench)) == 5 << 20
