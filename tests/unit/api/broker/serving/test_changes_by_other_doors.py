"""Connected consumers whose cursor another door, the maintenance or another process moves, resets or deletes."""

from __future__ import annotations

import asyncio

import pytest

from api.broker.serving.acknowledging import AckedEntry
from api.broker.serving.live_subscriptions import ServedSubscription
from api.broker.subscriptions import reset_cursor
from compactor.maintenance.backlog_limits import BacklogLimits
from storage.cursor import Cursor
from storage.errors import Conflict, Fenced, NotFound, Unavailable
from storage.model import EARLIEST
from storage.options.policies import TopicPolicies
from storage.topic import Topic
from tests.unit.api.broker.serving.consumers import ALL, EXCLUSIVE, SHARED, Reader, quiet, run
from tests.unit.api.broker.serving.served_topic import opened, produce
from tests.workbench import Workbench


def test_a_skip_by_another_door_is_seen_by_connected_consumers(bench: Workbench, topic: Topic) -> None:
    """G3."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 10) as served:
            reader = await Reader(served, "a", SHARED).join(permits=3)
            subscription = reader.subscription
            assert isinstance(subscription.position.current, Cursor)
            subscription.position.note_log_end(10)
            assert subscription.position.current.skip(6, 10) == 6
            subscription.remove_acknowledged_pending()
            assert reader.consumer.unacked == 0
            await reader.flow(ALL)
            assert reader.received == [0, 1, 2, 6, 7, 8, 9]

    run(main())


def test_a_time_to_live_moves_the_cursor_of_connected_consumers(bench: Workbench, topic: Topic) -> None:
    """G3: the maintenance moved a second cursor, and the expired messages were delivered."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 10) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join(permits=0)
            cursor = reader.subscription.position.cursor
            assert cursor is not None
            live = ServedSubscription(asyncio.get_running_loop(), served, reader.subscription, cursor)
            limits = BacklogLimits(bench, lambda _, name: live if name == "s" else None)
            await asyncio.to_thread(limits.enforce, topic.record, TopicPolicies(message_ttl_seconds=60))
            assert reader.subscription.position.backlog(10, 0) == 0
            await reader.flow(ALL)
            produce(served, ["k"])
            await quiet()
            assert reader.received == [10]

    run(main())


def test_a_cursor_that_another_process_moved_is_open_again_after_one_refusal(bench: Workbench, topic: Topic) -> None:
    """Without consumers nothing opened it again: each skip by REST was refused."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 10) as served:
            reader = await Reader(served, "a", SHARED).join()
            await reader.leave()
            subscription, loop = reader.subscription, asyncio.get_running_loop()
            reset_cursor(bench, topic.record, "s", EARLIEST)

            def skip(count: int) -> None:
                cursor = subscription.position.cursor
                assert cursor is not None
                live = ServedSubscription(loop, served, subscription, cursor)
                live.note_log_end(10)
                live.cursor.skip(count, 10)
                live.store_caller_acknowledgements()

            with pytest.raises(Fenced):
                await asyncio.to_thread(skip, 1)
            await asyncio.to_thread(skip, 4)
            mark = bench.metadata.cursors.get(topic.record.id, "s").mark_delete
            assert mark is not None
            assert mark.offset == 3

    run(main())


def test_a_cursor_that_could_not_be_reopened_is_opened_by_the_next_consumer(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each consumer was refused: the cursor that another process had moved was to be written first."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 4) as served:
            reader = await Reader(served, "a", SHARED).join()
            await reader.acknowledge(0)
            reset_cursor(bench, topic.record, "s", EARLIEST)

            async def fail() -> None:
                raise Unavailable("the database does not answer", "try again")

            with monkeypatch.context() as patch:
                patch.setattr(reader.subscription.position, "reload_cursor", fail)
                await reader.leave()
                await quiet()
            again = await Reader(served, "a", SHARED).join()
            assert again.received == [0, 1, 2, 3]

    run(main())


def test_a_reset_by_another_door_begins_there_at_once(bench: Workbench, topic: Topic) -> None:
    """G20: a consumer that had caught up got nothing until it acknowledged."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 5) as served:
            reader = await Reader(served, "a", EXCLUSIVE).join()
            await reader.acknowledge(*range(5))
            await reader.subscription.reset(None)
            assert reader.channel.is_closed
            await reader.leave()
            assert (await Reader(served, "a", EXCLUSIVE).join()).received == [0, 1, 2, 3, 4]

    run(main())


def test_a_subscription_with_consumers_is_deleted_by_force_only_and_stays_deleted(
    bench: Workbench, topic: Topic
) -> None:
    """G23: it came back with the next acknowledgement."""

    async def main() -> None:
        async with opened(bench, topic, ["k"] * 5) as served:
            reader = await Reader(served, "a", SHARED).join()
            with pytest.raises(Conflict, match="active connected consumers"):
                await served.unsubscribe(reader.subscription, force=False)
            await served.unsubscribe(reader.subscription, force=True)
            assert reader.channel.is_closed
            reader.subscription.acknowledge(reader.consumer, [AckedEntry(reader.ledger_id, 1)])
            served.cursor_writer.start_scheduled_writes()
            await quiet()
            with pytest.raises(NotFound):
                bench.metadata.cursors.get(topic.record.id, "s")

    run(main())
