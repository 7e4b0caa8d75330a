"""Random schedules of one subscription, compared delivery by delivery with a simple model of what a broker may send.

The model knows which consumer holds each entry, which entries are acknowledged and how often a consumer asked for each
one again. A delivery is right if the entry is neither acknowledged nor held, its consumer has permits and a socket that
accepts bytes, and the order of its type is kept: of all entries (exclusive, failover) or of each key (key-shared).
"""

from __future__ import annotations

import random

import pytest

from api.broker.serving import dispatcher as dispatcher_module, waiting
from api.broker.serving.consumer import SubscriptionType
from api.broker.serving.page_budget import PageBudget
from api.broker.serving.topic import PersistentTopic
from storage.entries.rebuild import DeliverableEntry
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import (
    ALL,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    NotingChannel,
    Reader,
    quiet,
    run,
)
from tests.unit.api.broker.serving.served_topic import opened, produce
from tests.workbench import Workbench

STEPS = 100
ACTIONS = ("produce", "join", "flow", "flow", "flow", "acknowledge", "acknowledge", "again", "leave", "pause", "memory")


class Model:
    """The state of one subscription: entries by their id, which is their offset."""

    def __init__(self, type_: SubscriptionType) -> None:
        self.type = type_
        self.keys: list[str] = []
        self.acked: set[int] = set()
        self.holders: dict[int, Reader] = {}
        self.asked_again: dict[int, int] = {}

    def deliver(self, reader: Reader, entry_id: int, redeliveries: int) -> None:
        """Check a delivery and note it."""
        assert entry_id not in self.acked
        assert entry_id not in self.holders
        assert reader.channel.is_writable
        assert reader.consumer.permits >= 0, "they are taken before the delivery"
        assert redeliveries == self.asked_again.get(entry_id, 0)
        key = self.keys[entry_id]
        before = [
            number
            for number in range(entry_id)
            if number not in self.acked and (self.type in (EXCLUSIVE, FAILOVER) or self.keys[number] == key)
        ]
        if self.type is not SHARED:
            assert all(self.holders.get(number) is reader for number in before)
        self.holders[entry_id] = reader

    def acknowledge(self, *entry_ids: int) -> None:
        self.acked.update(entry_ids)
        for entry_id in entry_ids:
            self.holders.pop(entry_id, None)

    def return_all(self, reader: Reader) -> list[int]:
        """Note that a reader holds nothing any more. Return its entries."""
        entries = self.held_by(reader)
        for entry_id in entries:
            del self.holders[entry_id]
        return entries

    def held_by(self, reader: Reader) -> list[int]:
        return sorted(entry_id for entry_id, holder in self.holders.items() if holder is reader)


class CheckingChannel(NotingChannel):
    """Shows each delivery to the model."""

    model: Model
    reader: Reader

    def deliver(self, entry: DeliverableEntry, live_mask: int, redeliveries: int) -> None:
        super().deliver(entry, live_mask, redeliveries)
        self.model.deliver(self.reader, entry.entry_id, redeliveries)


class Schedule:
    """Random steps of consumers of one subscription."""

    def __init__(self, topic: PersistentTopic, type_: SubscriptionType, choices: random.Random) -> None:
        self.model = Model(type_)
        self.readers: list[Reader] = []
        self._topic = topic
        self._choices = choices
        self._names = 0

    async def step(self) -> None:
        choices = self._choices
        step = choices.choice(
            ["produce", "join", "flow", "flow", "acknowledge", "acknowledge", "again", "leave", "pause"]
        )
        if step == "produce":
            self.produce()
        elif step == "join" or not self.readers:
            await self.join(choices.choice([0, 1, 2, 10]))
        else:
            await self._act(step, choices.choice(self.readers))
        await quiet(50)

    def produce(self) -> None:
        keys = [f"k{self._choices.randrange(3)}" for _ in range(self._choices.choice([1, 3, 20]))]
        self.model.keys += keys
        produce(self._topic, keys)

    async def join(self, permits: int) -> None:
        if self.model.type is EXCLUSIVE and self.readers:
            return
        self._names += 1
        reader = Reader(self._topic, f"c{self._names}", self.model.type)
        channel = CheckingChannel()
        channel.model, channel.reader = self.model, reader
        reader.channel = reader.consumer.channel = channel
        subscription = await self._topic.find_or_create_subscription(reader.consumer, reader.request)
        reader.subscription, reader.consumer.permits = subscription, permits
        assert subscription.dispatcher is not None
        before = self.active
        self.readers.append(reader)
        subscription.dispatcher.add(reader.consumer)
        self._apply_active_change(before)

    async def _act(self, step: str, reader: Reader) -> None:
        held = self.model.held_by(reader)
        some = self._choices.sample(held, min(len(held), self._choices.choice([1, 3, 100])))
        if step == "flow":
            await reader.flow(self._choices.choice([1, 2, 10]))
        elif step == "acknowledge":
            self.model.acknowledge(*some)
            await reader.acknowledge(*some)
        elif step == "again":
            self._ask_again(reader, some)
        elif step == "leave":
            await self._leave(reader)
        elif step == "memory":  # another subscription needs it
            assert reader.subscription.dispatcher is not None
            reader.subscription.dispatcher.release_memory()
        else:
            reader.channel.is_writable = not reader.channel.is_writable
            reader.subscription.wake()

    def _ask_again(self, reader: Reader, entry_ids: list[int]) -> None:
        if self.model.type.is_individual:
            for entry_id in entry_ids:
                del self.model.holders[entry_id]
                self.model.asked_again[entry_id] = self.model.asked_again.get(entry_id, 0) + 1
            if not entry_ids:
                return
        elif reader is self.active:
            self.model.holders.clear()  # all is read again from the cursor on
        else:
            return
        reader.subscription.redeliver(reader.consumer, [(reader.ledger_id, entry_id) for entry_id in entry_ids])

    async def _leave(self, reader: Reader) -> None:
        before = self.active
        self.readers.remove(reader)
        self.model.return_all(reader)
        if not self.readers:
            self.model.asked_again.clear()  # the counts of a dispatcher end with it
        reader.subscription.remove_consumers(reader.consumer)
        self._apply_active_change(before)
        await reader.leave()

    @property
    def active(self) -> Reader | None:
        """The only consumer that receives messages, of a single active type."""
        dispatcher = self.readers[0].subscription.dispatcher if self.readers else None
        active = None if dispatcher is None else dispatcher.active
        return next((reader for reader in self.readers if reader.consumer is active), None)

    def _apply_active_change(self, before: Reader | None) -> None:
        if self.active is not before:
            self.model.holders.clear()

    async def finish(self) -> None:
        """Let consumers receive and acknowledge everything."""
        await self.join(ALL)
        for _ in range(len(self.model.keys) + 5):
            for reader in self.readers:
                reader.channel.is_writable = True
                await reader.flow(ALL)
                held = self.model.held_by(reader)
                self.model.acknowledge(*held)
                await reader.acknowledge(*held)
            if len(self.model.acked) == len(self.model.keys):
                break


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("type_", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_every_delivery_is_one_that_a_broker_may_make_and_none_is_missing(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, type_: SubscriptionType, seed: int
) -> None:
    choices = random.Random(f"{type_.name} {seed}")
    monkeypatch.setattr(dispatcher_module, "ROUND_ENTRIES", choices.choice([1, 3, 64]))
    monkeypatch.setattr(waiting, "MAX_HELD", choices.choice([2, 10, 2_000]))
    monkeypatch.setattr(waiting, "HELD_BYTES", choices.choice([0, 200, 4 << 20]))

    async def main() -> None:
        budget = PageBudget(choices.choice([0, 2_000, 1 << 30]))
        async with opened(bench, topic, page_budget=budget) as served:
            schedule = Schedule(served, type_, choices)
            for _ in range(STEPS):
                await schedule.step()
            await schedule.finish()
            assert schedule.model.acked == set(range(len(schedule.model.keys)))
            if schedule.model.keys:
                mark = served.subscriptions["s"].position.current.mark_delete
                assert mark is not None
                assert mark.offset == len(schedule.model.keys) - 1

    run(main())
