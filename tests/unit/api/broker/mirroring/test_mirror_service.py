"""The service of mirrors, with a broker of Kafka in a thread: restores, pauses, shutdowns, and slow disks."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from api.broker import partitioned_topics
from api.broker.mirroring import operations, position, session
from api.broker.mirroring.session import AnswerBudget
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from api.broker.serving.producer import ProducerOptions
from api.broker.serving.publishing import PublishOutcome, PublishQueue, QueuedEntry
from api.broker.serving.topic import PersistentTopic
from storage.entries.encode import encode_message
from storage.errors import NO_ERROR, Conflict, Unavailable
from storage.log import segment_tables
from storage.metadata.mirrors import LeaderEpoch, MirrorRecord, MirrorState
from storage.model import TopicName
from storage.topic import Topic
from tests.entries import NOW, single
from tests.kafka_batches import TRANSACTIONAL, Batch, Record
from tests.kafka_server import FakeKafka, FakeTopic, Log
from tests.unit.api.broker.mirroring.mirrored import (
    TOPIC,
    Mirrored,
    hurry,
    kafka,
    mirrored,
    opened,
    records,
)  # fmt: skip

__all__ = ["kafka", "mirrored"]


def test_an_older_log_gets_what_it_lacks_from_kafka_again(
    tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database knows a later offset than the log, as after a restore of the log alone."""
    hurry(monkeypatch)
    data, older = tmp_path / "data", tmp_path / "older"
    kafka.topic.append(0, Batch(records(0, 5)))
    with opened(data, kafka) as mirror:
        asyncio.run(mirror.mirror_to_end())
    shutil.copytree(data / "log", older)
    kafka.topic.append(0, Batch(records(5, 5)))
    with opened(data, kafka, is_new=False) as mirror:
        asyncio.run(mirror.mirror_to_end())
    shutil.rmtree(data / "log")
    shutil.copytree(older, data / "log")
    kafka.topic.append(0, Batch(records(10, 5)))
    with opened(data, kafka, is_new=False) as mirror:
        asyncio.run(mirror.mirror_to_end())
        assert mirror.stored() == list(range(15))


class SlowDisk:
    """Appends that wait until they may end, from `begin` on. Make it before a topic is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_waiting = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        append = PersistentTopic.append

        async def slow(topic: PersistentTopic, group: Sequence[QueuedEntry]) -> Sequence[PublishOutcome]:
            if not self.may_end.is_set():
                self.is_waiting.set()
            await self.may_end.wait()
            return await append(topic, group)

        monkeypatch.setattr(PersistentTopic, "append", slow)

    def begin(self) -> None:
        """Let appends wait from now on."""
        self.may_end.clear()

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, *_: object) -> None:
        self.may_end.set()


def watch_drains(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event that the first wait for a queue sets."""
    draining = asyncio.Event()
    drain = PublishQueue.drain

    async def watched(queue: PublishQueue) -> None:
        draining.set()
        await drain(queue)

    monkeypatch.setattr(PublishQueue, "drain", watched)
    return draining


def test_entries_in_flight_of_a_producer_that_was_disconnected_count(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disconnect it as a backlog beyond its quota does. The next session must wait: it would send the entries again."""
    mirrored.kafka.topic.append(0, Batch(records(0, 5)))

    async def run() -> None:
        disk, draining = SlowDisk(monkeypatch), watch_drains(monkeypatch)
        disk.begin()
        async with mirrored.serving() as serving, disk:
            await serving.until(disk.is_waiting.is_set)
            (topic,) = serving.registry
            for producer in list(topic.producers.active):
                producer.disconnect()
            mirrored.kafka.topic.append(0, Batch(records(5, 5)))
            await serving.until(lambda: draining.is_set() or len(topic.producers))
            disk.may_end.set()
            await serving.until(lambda: mirrored.kafka.fetches[-1] == {0: 10} and serving.mirroring.is_at_end(TOPIC))

    asyncio.run(run())
    assert mirrored.stored() == list(range(10))


def test_a_pause_while_the_disk_is_slow_leaves_no_producer(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        disk = SlowDisk(monkeypatch)
        async with mirrored.serving() as serving, disk:
            await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))
            draining = watch_drains(monkeypatch)
            disk.begin()
            mirrored.kafka.topic.append(0, Batch(records(0, 5)))
            await serving.until(disk.is_waiting.is_set)
            operations.pause(mirrored.broker.environment, TOPIC)
            await serving.until(draining.is_set)
            ticks = iter(range(5))
            await serving.until(lambda: next(ticks, None) is None)
            disk.may_end.set()
            (topic,) = serving.registry
            await serving.until(lambda: not len(topic.producers))
            operations.resume(mirrored.broker.environment, TOPIC, {})
            mirrored.kafka.topic.append(0, Batch(records(5, 5)))
            await serving.until(lambda: mirrored.kafka.fetches[-1] == {0: 10} and serving.mirroring.is_at_end(TOPIC))

    asyncio.run(run())
    assert mirrored.stored() == list(range(10))


def test_a_start_that_is_cancelled_or_fails_is_repeated(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored.kafka.topic.append(0, Batch(records(0, 5)))
    context = session.MirrorContext
    fails = [RuntimeError("no memory"), asyncio.CancelledError()]

    def failing(*arguments: Any) -> Any:
        if fails:
            raise fails.pop()
        return context(*arguments)

    monkeypatch.setattr(session, "MirrorContext", failing)

    async def run() -> None:
        async with mirrored.serving() as serving:
            with pytest.raises(asyncio.CancelledError):
                await serving.mirroring.tick()
            async with asyncio.timeout(10):
                await serving.mirroring.close()
            with pytest.raises(RuntimeError):
                await serving.mirroring.tick()
            await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))

    asyncio.run(run())


def test_an_error_before_a_session_is_in_the_row_until_a_try_succeeds(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if another service has removed it from the row meanwhile."""
    new_cluster = session.KafkaCluster

    def failing(_source: object) -> Any:
        raise TypeError("an option of a newer version")

    monkeypatch.setattr(session, "KafkaCluster", failing)

    async def run() -> None:
        async with mirrored.serving() as serving:
            await serving.until(lambda: mirrored.mirrors.get(TOPIC).error)
            mirrored.mirrors.store_error(TOPIC, NO_ERROR)
            await serving.until(lambda: mirrored.mirrors.get(TOPIC).error)
            assert "an option of a newer version" in str(mirrored.mirrors.get(TOPIC).error)
            monkeypatch.setattr(session, "KafkaCluster", new_cluster)
            await serving.until(lambda: not mirrored.mirrors.get(TOPIC).error)

    asyncio.run(run())


def test_records_that_kafka_has_lost_and_replaced_stop_it(mirrored: Mirrored) -> None:
    """An election of a leader that lacked them. The offsets alone look as if nothing had happened."""
    topic = mirrored.kafka.topic
    topic.append(0, Batch(records(0, 4)))
    topic.append(0, Batch(records(4, 6)))
    replaced = FakeTopic("users", [Log(topic.partitions[0].batches[:1], epoch=1)])
    replaced.append(0, Batch(records(4, 11)))

    async def run() -> None:
        async with mirrored.serving() as serving:
            await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))
            topic.partitions = replaced.partitions
            await serving.until(lambda: mirrored.mirrors.get(TOPIC).state is MirrorState.FAILED)

    asyncio.run(run())
    assert "up to offset 9 are here, and Kafka has others from offset 4 on" in str(mirrored.mirrors.get(TOPIC).error)
    assert mirrored.stored() == list(range(10))


def test_records_that_kafka_has_replaced_while_no_service_ran_stop_it(
    tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An election that loses nothing does not. A service that has died had stored an epoch before records of it."""
    hurry(monkeypatch)
    topic = kafka.topic
    for epoch, first, count in ((0, 0, 4), (1, 4, 6)):
        topic.partitions[0].epoch = epoch
        topic.append(0, Batch(records(first, count)))
    with opened(tmp_path / "data", kafka) as mirror:
        asyncio.run(mirror.mirror_to_end())
    topic.partitions[0].epoch = 2
    topic.append(0, Batch(records(10, 2)))
    with opened(tmp_path / "data", kafka, is_new=False) as mirror:
        asyncio.run(mirror.mirror_to_end())
        (row,) = mirror.mirrors.partitions(TOPIC)
        assert row.epochs == ((0, 0), (4, 1), (10, 2))
        mirror.mirrors.store_epochs(mirror.mirrors.get(TOPIC), 0, [*row.epochs, LeaderEpoch(12, 3)])
    topic.partitions[0] = Log(topic.partitions[0].batches[:2], epoch=4)
    topic.append(0, Batch(records(10, 5)))
    with opened(tmp_path / "data", kafka, is_new=False) as mirror:
        asyncio.run(fail(mirror))
        error = str(mirror.mirrors.get(TOPIC).error)
        assert "up to offset 11 are here, and Kafka has others from offset 10 on" in error
        assert mirror.stored() == list(range(12))


def test_the_epoch_of_records_is_stored_before_them(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored.kafka.topic.append(0, Batch(records(0, 5)))
    epochs: list[object] = []

    async def run() -> None:
        disk = SlowDisk(monkeypatch)
        disk.begin()
        async with mirrored.serving() as serving, disk:
            await serving.until(disk.is_waiting.is_set)
            epochs.extend(mirrored.mirrors.partitions(TOPIC)[0].epochs)

    asyncio.run(run())
    assert epochs == [(0, 0)]


def test_a_topic_of_others_is_refused_and_not_changed(mirrored: Mirrored) -> None:
    """One with messages of an import of the partition is taken."""
    environment, name = mirrored.broker.environment, TopicName.parse("others")
    partitioned_topics.create(environment, name, 1, {})
    topic = Topic(environment, environment.metadata.topics.get(name.of_partition(0)))
    with topic.append_log() as log:
        log.append(single(b"k", b"v"))
    mirrored.kafka.topic.partitions.append(Log())
    source = MirrorSource.parse(mirrored.kafka.url, MirrorOptions())
    with pytest.raises(
        Conflict, match=r"others-partition-0 has messages, and neither the first nor the last ones say .* from users of"
    ):
        operations.add(environment, source, name)
    assert [record.name.partition for record in operations.topic_partitions(environment, name)] == [0]
    assert not environment.metadata.policies.effective(topic.record).deduplication_enabled
    with topic.append_log() as log:
        log.append(encode_message(b"k", b"v", producer="kafka:users-0", sequence_id=4, publish_time=NOW))
    operations.add(environment, source, name)
    assert len(operations.topic_partitions(environment, name)) == 2
    assert environment.metadata.policies.effective(topic.record).deduplication_enabled


def test_a_source_that_was_made_again_is_refused_after_removal(mirrored: Mirrored) -> None:
    """Its first records would be taken for those that are here. The same source goes on, and a new topic takes any."""
    environment = mirrored.broker.environment
    source = MirrorSource.parse(mirrored.kafka.url, MirrorOptions())

    def make_again(count: int) -> str:
        topic = mirrored.kafka.topic = FakeTopic("users", [Log()], uuid4().bytes)
        topic.append(0, Batch(records(0, count)))
        return topic.topic_id.hex()

    first = mirrored.mirrors.get(TOPIC).source_topic_id
    operations.remove(environment, TOPIC)
    second = make_again(5)
    operations.add(environment, source, TOPIC)
    assert mirrored.mirrors.get(TOPIC).source_topic_id == second != first, "no message of the first one is here"
    asyncio.run(mirrored.mirror_to_end())
    operations.remove(environment, TOPIC)
    operations.add(environment, source, TOPIC)
    operations.remove(environment, TOPIC)
    third = make_again(9)
    with pytest.raises(
        Conflict,
        match=f"messages of a topic users that was deleted in Kafka and created again: its id was {second} .* {third}",
    ):
        operations.add(environment, source, TOPIC)
    partitioned_topics.delete(mirrored.broker, TOPIC, force=True)
    operations.add(environment, source, TOPIC)
    asyncio.run(mirrored.mirror_to_end())
    assert mirrored.stored() == list(range(9))


def test_a_long_log_of_others_is_not_read_whole(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first and its last messages count, whatever is between them."""
    monkeypatch.setattr(position, "LAST_MESSAGES", 2)
    monkeypatch.setattr(segment_tables, "ENTRIES_BYTES", 1)
    environment, name = mirrored.broker.environment, TopicName.parse("others")
    partitioned_topics.create(environment, name, 1, {})
    topic = Topic(environment, environment.metadata.topics.get(name.of_partition(0)))
    imported = encode_message(b"k", b"v", producer="kafka:users-0", sequence_id=4, publish_time=NOW)
    with topic.append_log() as log:
        for entry in (single(b"k", b"v"), imported, single(b"k", b"v"), single(b"k", b"v")):
            log.append(entry)
    source = MirrorSource.parse(mirrored.kafka.url, MirrorOptions())
    with pytest.raises(Conflict, match="neither the first nor the last ones say"):
        operations.add(environment, source, name)
    with topic.append_log() as log:
        log.append(imported)
        log.append(single(b"k", b"v"))
    operations.add(environment, source, name)


@pytest.mark.parametrize("failure", ["error_code", pytest.param("leader", marks=pytest.mark.slow)])
def test_a_partition_that_fails_leaves_the_others(
    tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    hurry(monkeypatch)
    bad = Log(**{failure: {"error_code": 56, "leader": -1}[failure]})
    kafka.topic.partitions.append(bad)
    kafka.topic.append(0, Batch(records(0, 5)))
    kafka.topic.append(1, Batch(records(0, 5)))
    with opened(tmp_path / "data", kafka) as mirror:
        notes = count_notes(mirror, monkeypatch)

        async def run() -> None:
            async with mirror.serving() as serving:
                await serving.until(lambda: mirror.mirrors.get(TOPIC).error and mirror.stored(0))
                kafka.topic.append(0, Batch(records(5, 5)))
                await serving.until(lambda: mirror.stored(0) == list(range(10)))
                assert len(notes) == 1, "the error is written once"
                bad.error_code, bad.leader = 0, 7
                await serving.until(lambda: mirror.stored(1) == list(range(5)))
                await serving.until(lambda: not mirror.mirrors.get(TOPIC).error)

        asyncio.run(run())


def test_an_error_is_written_once_even_if_rows_are_read_meanwhile(
    tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    with opened(tmp_path / "data", kafka) as mirror:
        notes = count_notes(mirror, monkeypatch)
        has_read, may_return = threading.Event(), threading.Event()
        read_all = mirror.mirrors.all

        def slow() -> list[MirrorRecord]:
            rows = read_all()
            has_read.set()
            assert may_return.wait(10)
            return rows

        async def run() -> None:
            async with mirror.serving() as serving:

                def errors() -> int:
                    return sum(item.errors for item in serving.mirroring.counts())

                await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))
                with monkeypatch.context() as patched:
                    patched.setattr(mirror.mirrors, "all", slow)
                    late = asyncio.create_task(serving.mirroring.tick())
                    await asyncio.to_thread(has_read.wait, 10)
                kafka.topic.partitions[0].error_code = 56
                await serving.until(lambda: errors() > 1)
                may_return.set()
                await late
                before = errors()
                async with asyncio.timeout(10):
                    while errors() < before + 2:
                        await asyncio.sleep(0.01)

        asyncio.run(run())
    assert len(notes) == 1


class ForgetfulLog(Log):
    """A partition of a broker that answers offset 0 for an epoch without records; Kafka gives the first one it has."""

    def end_of_epoch(self, epoch: int) -> int:
        is_known = any(int.from_bytes(data[12:16], "big") == epoch for _, _, data in self.batches)
        return super().end_of_epoch(epoch) if is_known else 0


def test_epochs_from_before_a_gap_say_nothing_of_the_records_after_it(mirrored: Mirrored) -> None:
    topic = mirrored.kafka.topic
    topic.append(0, Batch(records(0, 5)))
    asyncio.run(mirrored.mirror_to_end())
    topic.partitions[0] = ForgetfulLog(start=10, epoch=1)
    topic.append(0, Batch(records(10, 1)))
    asyncio.run(fail(mirrored))
    operations.resume(mirrored.broker.environment, TOPIC, {}, accept_gaps=True)
    asyncio.run(mirrored.mirror_to_end())
    assert mirrored.stored() == [0, 1, 2, 3, 4, 10]
    assert mirrored.mirrors.partitions(TOPIC)[0].epochs == ((10, 1),)


def count_notes(mirror: Mirrored, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the errors that are written from now on."""
    notes: list[object] = []
    store_error = mirror.mirrors.store_error

    def counted(topic: object, error: object) -> None:
        notes.append(error)
        store_error(topic, error)

    monkeypatch.setattr(mirror.mirrors, "store_error", counted)
    return notes


@pytest.mark.slow
def test_what_follows_the_last_record_is_no_gap(mirrored: Mirrored) -> None:
    """An aborted transaction and its marker, which retention removes; then records that it removes unread."""
    topic = mirror_removed_transaction(mirrored)
    topic.append(0, Batch(records(8, 1)))
    asyncio.run(mirrored.mirror_to_end())
    assert mirrored.stored() == [0, 1, 2, 3, 4, 8]
    topic.partitions[0].start = 11
    topic.partitions[0].batches.clear()
    asyncio.run(fail(mirrored))
    assert "from offset 9 to 10" in str(mirrored.mirrors.get(TOPIC).error)


@pytest.mark.slow
def test_the_end_of_a_transaction_stays_read_where_nothing_follows(mirrored: Mirrored) -> None:
    """Sessions that end before and after the source was found to have removed it, with no record to append."""
    mirror_removed_transaction(mirrored)
    for _ in range(2):
        asyncio.run(mirrored.mirror_to_end())
        (partition,) = mirrored.mirrors.partitions(TOPIC)
        assert partition.progress is not None
        assert partition.progress.next_offset == 8


def mirror_removed_transaction(mirrored: Mirrored) -> FakeTopic:
    """Mirror records and an aborted transaction, which retention then removes with all else before offset 8."""
    topic = mirrored.kafka.topic
    topic.append(0, Batch(records(0, 5)))
    topic.append(0, Batch(records(5, 2), attributes=TRANSACTIONAL, producer_id=3))
    topic.abort(0, 3, 5)
    asyncio.run(mirrored.mirror_to_end())
    topic.partitions[0].start = 8
    topic.partitions[0].batches.clear()
    return topic


async def fail(mirrored: Mirrored) -> None:
    async with mirrored.serving() as serving:
        await serving.until(lambda: mirrored.mirrors.get(TOPIC).state is MirrorState.FAILED)


@pytest.mark.slow
def test_a_gap_before_the_first_record_is_one(mirrored: Mirrored) -> None:
    topic = mirrored.kafka.topic
    topic.append(0, Batch([Record(0, value=b"")]))
    topic.append(0, Batch(records(1, 9)))
    asyncio.run(fail(mirrored))
    del topic.partitions[0].batches[:]
    topic.partitions[0].start = 10
    topic.append(0, Batch(records(10, 1)))
    operations.resume(mirrored.broker.environment, TOPIC, {"empty_values": "delete"})
    asyncio.run(fail(mirrored))
    assert "from offset 0 to 9" in str(mirrored.mirrors.get(TOPIC).error)
    operations.resume(mirrored.broker.environment, TOPIC, {}, accept_gaps=True)
    asyncio.run(mirrored.mirror_to_end())
    assert mirrored.stored() == [10]


@pytest.mark.slow
def test_messages_of_others_in_an_empty_partition_are_no_lost_position(mirrored: Mirrored) -> None:
    async def run() -> None:
        async with mirrored.serving() as serving:
            await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))
            (topic,) = serving.registry
            (producer,) = topic.producers.active
            other = topic.new_producer(producer.channel, ProducerOptions("other"))
            await topic.append([QueuedEntry(other, 7, 7, 1, single(b"k", b"v"))])

    asyncio.run(run())
    assert len(mirrored.stored()) == 1
    mirrored.kafka.topic.append(0, Batch(records(0, 2)))
    asyncio.run(mirrored.mirror_to_end())
    assert mirrored.stored()[1:] == [0, 1]


def test_idle_mirrors_leave_turns_to_a_busy_one() -> None:
    """They must not hold turns while their brokers wait for records."""

    async def run() -> None:
        budget = AnswerBudget(4)
        for _ in range(2):
            await budget.acquire()
        assert not budget.is_over_half_used
        await budget.acquire()
        assert budget.is_over_half_used
        budget.release()
        assert not budget.is_over_half_used

    asyncio.run(run())


@pytest.mark.slow
def test_a_request_with_the_last_turn_does_not_wait(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker answers it at once, and idle mirrors leave the turn to others."""
    monkeypatch.setattr(session, "AnswerBudget", lambda _answers: AnswerBudget(1))
    asyncio.run(mirrored.mirror_to_end())
    assert set(mirrored.kafka.waits) == {0}


@pytest.mark.slow
def test_the_position_after_an_import_is_remembered(mirrored: Mirrored) -> None:
    """The first start finds it in the log; later ones must not search the log."""
    last = encode_message(b"k", b"v", producer="kafka:users-0", sequence_id=4, publish_time=NOW)

    async def run() -> None:
        async with mirrored.serving() as serving:
            await serving.until(lambda: serving.mirroring.is_at_end(TOPIC))
            (topic,) = serving.registry
            (producer,) = topic.producers.active
            other = topic.new_producer(producer.channel, ProducerOptions("kafka:users-0"))
            await topic.append([QueuedEntry(other, 4, 4, 1, last)])
        mirrored.kafka.topic.append(0, Batch(records(0, 5)))
        await mirrored.mirror_to_end()

    asyncio.run(run())
    assert mirrored.stored() == [4]
    metadata = mirrored.broker.environment.metadata
    stored = metadata.producer_sequences.of_topic(metadata.topics.get(TOPIC.of_partition(0)).id)
    assert stored is not None
    assert stored.highest == {"kafka:users-0": 4, "kafka:a-cluster:users-0": 4}


def test_a_partition_that_a_crash_left_without_policies_gets_them(mirrored: Mirrored) -> None:
    metadata = mirrored.broker.environment.metadata
    metadata.partitions.increase_partitions_to(TOPIC, 2)
    partition = metadata.topics.get(TOPIC.of_partition(1))
    assert not metadata.policies.effective(partition).deduplication_enabled
    session.create_missing_partitions(mirrored.broker, TOPIC, 2)
    assert metadata.policies.effective(partition).deduplication_enabled


@pytest.mark.slow
def test_a_removed_mirror_is_counted_no_more(mirrored: Mirrored) -> None:
    async def run() -> None:
        async with mirrored.serving() as serving:
            await serving.until(lambda: [item.lag for item in serving.mirroring.counts()] == [0])
            operations.remove(mirrored.broker.environment, TOPIC)
            await serving.until(lambda: not serving.mirroring.counts())

    asyncio.run(run())


@pytest.mark.slow
def test_brokers_that_do_not_answer_have_one_deadline(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        source = MirrorSource.parse(f"kafka://{host},{host}/users", MirrorOptions())
        with pytest.raises(Unavailable, match="no broker of kafka"):
            operations.add(mirrored.broker.environment, source, TopicName.parse("others"))


def test_no_mirror_is_added_while_no_broker_runs(mirrored: Mirrored) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        source = MirrorSource.parse(f"kafka://127.0.0.1:{closed.getsockname()[1]}/users", MirrorOptions())
    with pytest.raises(Unavailable, match="does not answer") as refused:
        operations.add(mirrored.broker.environment, source, TopicName.parse("others"))
    assert refused.value.remedy == "no mirror was added: check the address, and add it when Kafka answers"
    assert [mirror.record.topic for mirror in operations.all_mirrors(mirrored.broker.environment)] == [TOPIC]
