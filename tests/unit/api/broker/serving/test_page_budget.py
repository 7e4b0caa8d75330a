"""The memory of all subscriptions stays within a budget, and each receives everything once and in order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from api.broker.serving import dispatcher, page_budget, read_ahead
from api.broker.serving.consumer import SubscriptionType
from api.broker.serving.page_budget import PageBudget, PageHolder
from api.broker.serving.topic import PersistentTopic
from storage.log import segment_tables
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import EXCLUSIVE, KEY_SHARED, SHARED, Reader, quiet, run
from tests.unit.api.broker.serving.served_topic import opened, produce
from tests.workbench import Workbench, content

PAGE = 1_000
COUNT = 100
KEYS = [f"k{number % 7}" for number in range(COUNT)]


class WatchedBudget(PageBudget):
    """Notes the most bytes that were held at once, and how often a holder gave back its own or was refused a read."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.highest = self.given_back = self.refusals = 0

    def set_held_bytes(self, holder: PageHolder, size: int) -> None:
        before = len(self._held) - (holder in self._held)
        super().set_held_bytes(holder, size)
        self.given_back += before - (len(self._held) - (holder in self._held))
        self.highest = max(self.highest, self.held)

    def try_admit(self, holder: PageHolder) -> bool:
        is_admitted = super().try_admit(holder)
        self.refusals += not is_admitted
        return is_admitted


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> WatchedBudget:
    """A budget of two pages of some ten messages each; only their data counts."""
    monkeypatch.setattr(segment_tables, "ENTRIES_BYTES", PAGE)
    monkeypatch.setattr(page_budget, "PAGE_BYTES", PAGE)
    monkeypatch.setattr(page_budget, "ENTRY_BYTES", 0)
    monkeypatch.setattr(read_ahead, "READER_BYTES", 1)
    return WatchedBudget(2 * PAGE)


async def joined(
    topic: PersistentTopic,
    subscription: str,
    type_: SubscriptionType,
    consumer: str = "a",
    permits: int = 0,
    read_compacted: bool = False,
) -> Reader:
    reader = Reader(topic, consumer, type_, read_compacted=read_compacted)
    reader.request = replace(reader.request, name=subscription)
    return await reader.join(permits)


@pytest.mark.slow
def test_slow_consumers_beside_a_fast_one(bench: Workbench, topic: Topic, budget: WatchedBudget) -> None:
    async def main() -> None:
        async with opened(bench, topic, KEYS, page_budget=budget) as served:
            slow = [await joined(served, f"s{number}", EXCLUSIVE, permits=3) for number in range(5)]
            fast = await joined(served, "fast", EXCLUSIVE, permits=2 * COUNT)
            assert fast.received == list(range(COUNT))
            produce(served, KEYS)
            for _ in range(2 * COUNT // 7 + 1):
                for reader in slow:
                    await reader.flow(7)
            for reader in [*slow, fast]:
                assert reader.received == list(range(2 * COUNT))
            assert budget.given_back > 10

    run(main())
    assert 2 * PAGE - PAGE // 2 < budget.highest <= 2 * PAGE
    assert budget.held == 0


@pytest.mark.slow
@pytest.mark.parametrize("type_", [SHARED, KEY_SHARED])
def test_redeliveries_and_order_beside_pages_that_go(
    bench: Workbench, topic: Topic, budget: WatchedBudget, type_: SubscriptionType
) -> None:
    """Each consumer returns every eleventh message once, and acknowledges the others."""

    async def main() -> None:
        async with opened(bench, topic, KEYS, page_budget=budget) as served:
            readers = [await joined(served, f"s{number}", type_, name) for number in range(4) for name in "ab"]
            settled: dict[str, Counter[int]] = {f"s{number}": Counter() for number in range(4)}
            returned: set[tuple[str, int]] = set()
            handled = Counter[Reader]()
            for _ in range(COUNT):
                if all(len(counts) == COUNT for counts in settled.values()):
                    break
                for reader in readers:
                    await reader.flow(5)
                    while handled[reader] < len(reader.received):
                        entry_id = reader.received[handled[reader]]
                        handled[reader] += 1
                        name = reader.subscription.name
                        if entry_id % 11 == 0 and (name, entry_id) not in returned:
                            returned.add((name, entry_id))
                            await reader.nack(entry_id)
                        elif entry_id not in settled[name]:
                            settled[name][entry_id] += 1
                            await reader.acknowledge(entry_id)
            for number in range(4):
                of_subscription = [reader for reader in readers if reader.subscription.name == f"s{number}"]
                counts = Counter(entry_id for reader in of_subscription for entry_id in reader.received)
                assert counts == {entry_id: 1 + (entry_id % 11 == 0) for entry_id in range(COUNT)}
                for reader in of_subscription:
                    for key in set(KEYS) if type_ is KEY_SHARED else ():
                        firsts = list(dict.fromkeys(entry_id for entry_id in reader.received if KEYS[entry_id] == key))
                        assert firsts == sorted(firsts)
                position = of_subscription[0].subscription.position.current
                assert position.mark_delete is not None
                assert position.mark_delete.offset == COUNT - 1
            assert budget.given_back > 10

    run(main())
    assert budget.highest <= 3 * PAGE
    assert budget.held == 0


def test_compacted_reads_give_back_their_pages_and_keep_their_generation(
    bench: Workbench, topic: Topic, budget: WatchedBudget
) -> None:
    """R7: a compaction removes the deletions of keys that the readers have received, while they hold no page."""
    small = WatchedBudget(PAGE // 4)
    keys = [b"key-%02d" % number for number in range(COUNT)]
    bench.append(topic, [content(*((key, b"v" * 30) for key in keys))])
    bench.compact(topic)

    async def main() -> None:
        async with opened(bench, topic, page_budget=small) as served:
            slow = [
                await joined(served, f"s{number}", EXCLUSIVE, permits=2, read_compacted=True) for number in range(4)
            ]
            assert small.given_back
            bench.append(topic, [content(*((key, None) for key in keys))])
            bench.compact(topic)
            for _ in range(2 * COUNT // 5):
                for reader in slow:
                    await reader.flow(5)
            offsets = [reader.channel.offsets for reader in slow]
            assert offsets == [list(range(2 * COUNT))] * 4

    run(main())


def test_one_page_that_is_larger_than_all_may_have_is_delivered(
    bench: Workbench, topic: Topic, budget: WatchedBudget
) -> None:
    async def main() -> None:
        async with opened(bench, topic, KEYS, page_budget=PageBudget(0)) as served:
            readers = [await joined(served, f"s{number}", EXCLUSIVE, permits=5) for number in range(3)]
            for _ in range(COUNT // 5):
                for reader in readers:
                    await reader.flow(5)
            assert [reader.received for reader in readers] == [list(range(COUNT))] * 3

    run(main())


class Holder:
    """Notes that it gave back what it held, and that it was woken."""

    def __init__(self, is_delivering: bool = False) -> None:
        self.is_delivering = is_delivering
        self.times = self.wakes = 0

    def release_memory(self) -> None:
        self.times += 1

    def wake(self) -> None:
        self.wakes += 1


def test_readers_whose_pages_do_not_fit_together_end_without_more_permits(
    bench: Workbench, topic: Topic, budget: WatchedBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "ROUND_ENTRIES", 2)

    async def main() -> None:
        async with opened(bench, topic, KEYS, page_budget=budget) as served:
            readers = [await joined(served, f"s{number}", EXCLUSIVE) for number in range(6)]
            for reader in readers:
                reader.subscription.add_permits(reader.consumer, COUNT)
            await quiet(2_000)
            assert [reader.received for reader in readers] == [list(range(COUNT))] * 6

    run(main())
    assert budget.refusals
    assert budget.held == 0


@pytest.mark.parametrize("type_", [EXCLUSIVE, SHARED])
def test_a_refused_read_waits_until_others_have_delivered(
    bench: Workbench, topic: Topic, budget: WatchedBudget, type_: SubscriptionType
) -> None:
    """A shared consumer has received all and returns some; an exclusive one has received nothing."""
    busy = Holder(is_delivering=True)

    async def main() -> None:
        async with opened(bench, topic, KEYS, page_budget=budget) as served:
            reader = await joined(served, "s", type_, permits=0 if type_ is EXCLUSIVE else 2 * COUNT)
            budget.set_held_bytes(busy, 2 * PAGE)
            if type_ is EXCLUSIVE:
                await reader.flow(COUNT)
            else:
                reader.received.clear()
                await reader.nack(*range(COUNT))
            assert (reader.received, budget.refusals > 0, budget.refusals < 5) == ([], True, True)
            budget.remove_holder(busy)
            await quiet()
            assert reader.received == list(range(COUNT))

    run(main())


def test_the_holder_that_delivered_least_recently_gives_back_and_one_that_continues_comes_last() -> None:
    budget = PageBudget(100)
    first, second, busy, last = Holder(), Holder(), Holder(is_delivering=True), Holder()
    for holder in (busy, first, second):
        budget.set_held_bytes(holder, 30)
    budget.set_held_bytes(first, 25)
    budget.set_held_bytes(last, 40)
    assert [holder.times for holder in (first, second, busy, last)] == [0, 1, 0, 0]
    budget.set_held_bytes(second, 90)
    assert [holder.times for holder in (first, second, busy, last)] == [1, 1, 1, 1]
    assert budget.held == 90
    budget.remove_holder(second)
    assert budget.held == 0


def test_no_read_begins_while_others_that_continue_hold_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_budget, "PAGE_BYTES", 20)
    budget = PageBudget(100)
    first, second = Holder(), Holder(is_delivering=True)
    budget.set_held_bytes(first, 40)
    budget.set_held_bytes(second, 60)
    assert budget.try_admit(first)
    second.is_delivering = False
    assert budget.try_admit(first)
    first.is_delivering = second.is_delivering = True
    budget.set_held_bytes(second, 85)
    assert not budget.try_admit(Holder())
    assert budget.try_admit(second)


def test_a_refused_holder_is_woken_when_another_one_has_delivered_waits_reads_or_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_budget, "PAGE_BYTES", 20)
    budget = PageBudget(100)
    busy, refused, closed = Holder(is_delivering=True), Holder(), Holder()

    def refuse() -> None:
        busy.is_delivering = True
        budget.set_held_bytes(busy, 90)
        for holder in (refused, closed):
            assert not budget.try_admit(holder)
        budget.remove_holder(closed)

    refuse()
    busy.is_delivering = False  # during a step of its own
    budget.set_held_bytes(busy, 85)
    assert refused.wakes == 0, "it continues to deliver"
    budget.set_held_bytes(busy, 80)
    assert refused.wakes == 1
    budget.set_held_bytes(busy, 75)
    assert refused.wakes == 1, "it asks again first"
    refuse()
    busy.is_delivering = False
    budget.wake_refused()
    assert refused.wakes == 2
    refuse()
    busy.is_delivering = False
    assert budget.try_admit(busy)
    assert refused.wakes == 3
    refuse()
    budget.remove_holder(busy)
    assert (refused.wakes, closed.wakes) == (4, 0)
