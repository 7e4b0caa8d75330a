"""Commands of consumers, on a connection that only notes what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from api.broker.serving.consumer import ConsumerOptions, SubscriptionType
from api.broker.serving.position import SubscribeRequest
from api.pulsar.connection import Connection
from api.pulsar.consumer_channel import ConnectedConsumer
from api.pulsar.handlers import consumers
from api.pulsar.handlers.consumers import ACKS_AT_ONCE
from api.pulsar.pulsar_api_pb2 import BaseCommand
from storage.model import EARLIEST
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import entry
from tests.unit.api.broker.serving.served_topic import opened
from tests.workbench import Workbench


class NotingConnection:
    """Holds, and tasks that were begun; it begins none when `is_full` is set."""

    def __init__(self) -> None:
        self.consumers: dict[int, ConnectedConsumer] = {}
        self.holds: set[str] = set()
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_full = False

    def send(self, _command: BaseCommand, _entry: bytes = b"") -> None:
        pass

    def hold(self, reason: str) -> None:
        self.holds.add(reason)

    def go_on(self, reason: str) -> None:
        self.holds.discard(reason)

    def begin(self, _: int, work: Coroutine[Any, Any, Any]) -> bool:
        if self.is_full:
            work.close()
        else:
            self.tasks.append(asyncio.create_task(work))
        return not self.is_full


def test_many_acknowledgements_are_taken_in_pieces_and_nothing_overtakes_them(bench: Workbench, topic: Topic) -> None:
    """50,000 in one command held the event loop for 0.6 s."""

    async def main() -> None:
        async with opened(bench, topic, ["k"]) as served:
            connection = NotingConnection()
            options = ConsumerOptions("a", SubscriptionType.SHARED)
            connected = ConnectedConsumer(cast(Connection, connection), served, options, None)
            await connected.subscribe(SubscribeRequest("s", start=EARLIEST))
            connection.consumers[1] = connected
            reading, subscription = connected.consumer, connected.subscription
            count = 3 * ACKS_AT_ONCE + 1
            for offset in range(count):
                subscription.deliver(reading, entry(offset), 1, offset, None)
            command = BaseCommand(type=BaseCommand.ACK)
            command.ack.consumer_id = 1
            for offset in range(count):
                command.ack.message_id.add(ledger_id=1, entry_id=offset)
            connection.is_full = True
            consumers.ack(cast(Connection, connection), command, b"")
            assert (len(reading.pending), connection.holds) == (count - ACKS_AT_ONCE, set())
            connection.is_full = False
            consumers.ack(cast(Connection, connection), command, b"")
            assert (len(reading.pending), connection.holds) == (count - ACKS_AT_ONCE, {"acknowledging"})
            await asyncio.gather(*connection.tasks)
            assert (len(reading.pending), connection.holds) == (0, set())

    asyncio.run(main())
