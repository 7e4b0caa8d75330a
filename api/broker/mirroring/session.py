"""One connection's life of a mirror: it takes the partitions that this service may write, and fetches until something
changes.

A mirror's session ends, and the next begins, when the source has other partitions or leaders, when a partition here can
be taken or was lost, and after an error. So there is one way in which a mirror starts: ask Kafka what the topic is,
create partitions here that are new there, take those of no other service, read their positions from their logs.

Of each broker that leads partitions one request is under way at a time, for all of them, and while its answer waits the
answer before is appended: a broker answers the requests of a connection one after the other.

Raises MirrorStopped; Unavailable, Misconfigured and others after which a later session may succeed. For the event loop
of the mirrors' thread. Must not know: rows of mirrors, threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from api.broker.broker import Broker
from api.broker.mirroring import protocol
from api.broker.mirroring.cluster import KafkaCluster, SourceTopic
from api.broker.mirroring.partition import MirrorStopped, MirrorTotals, PartitionMirror
from api.broker.mirroring.protocol import FetchedPartition
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from api.broker.mirroring.target import PartitionTarget, PositionLost, producer_name
from api.broker.refusals import MissingTopic, NoLogOwner, TopicNotServed, WriterElsewhere
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import WaitsFor
from api.formats.inputs import EmptyValues
from storage.errors import Conflict, TopicNotFound
from storage.kafka.record_batch import RecordBatch
from storage.metadata.mirrors import MirrorRecord
from storage.model import TopicName

LOG = logging.getLogger(__name__)
FETCH_BYTES = 4 << 20
"""Bytes of one answer of a broker, or one batch."""
_WAIT_MS = 500
_REFRESH_SECONDS = 60.0
_TAKE_SECONDS = 5.0
"""The time between two tries to take partitions that another process has."""
Result = TypeVar("Result")
_OWNED_ELSEWHERE = (TopicNotServed, WriterElsewhere, NoLogOwner)


@dataclass(frozen=True)
class MirrorContext:
    """The parts that the sessions of a service share.

    `budget`: a turn for each answer of `FETCH_BYTES` that may be in memory.
    """

    broker: Broker
    registry: TopicRegistry
    service_loop: asyncio.AbstractEventLoop
    budget: asyncio.Semaphore

    async def in_service(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a coroutine of the service's event loop."""
        running: concurrent.futures.Future[Result] = asyncio.run_coroutine_threadsafe(work, self.service_loop)
        return await asyncio.wrap_future(running)

    async def in_database(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a call that waits for the database."""
        return await self.broker.pools[WaitsFor.DATABASE].run(work, *arguments)


class MirrorSession:
    """A session of one mirror. `partitions`: those that this service mirrors now, by number."""

    def __init__(self, context: MirrorContext, mirror: MirrorRecord, totals: MirrorTotals) -> None:
        """`totals`: counts what this service has mirrored."""
        self._totals = totals
        self._context = context
        self._mirror = mirror
        self._options = MirrorOptions.from_json(mirror.options)
        self._cluster = KafkaCluster(MirrorSource.parse(mirror.source, self._options))
        self._topic_name = self._cluster.source.topic
        self.partitions: dict[int, PartitionMirror] = {}
        self.is_complete = False
        """True if `partitions` are all of the source."""

    async def run(self, on_begun: Callable[[], Awaitable[None]]) -> None:
        """Mirror until something changes. `on_begun` is called when partitions are taken."""
        try:
            topic = await self._described()
            await self._create_partitions(max(topic.leaders, default=-1) + 1)
            self.is_complete = await self._take_all(topic)
            await on_begun()
            if not self.partitions:
                await asyncio.sleep(_TAKE_SECONDS)
                return
            by_leader: dict[int, list[PartitionMirror]] = {}
            for number, partition in self.partitions.items():
                by_leader.setdefault(topic.leaders[number], []).append(partition)
            work: list[Coroutine[Any, Any, None]] = [
                self._mirror_from(leader, topic, partitions) for leader, partitions in by_leader.items()
            ]
            await _until_first_ends([*work, self._until_changed(topic)])
        finally:
            await to_its_end(self._close())

    async def _close(self) -> None:
        partitions, self.partitions = self.partitions, {}
        for partition in partitions.values():
            try:
                await self._context.in_service(partition.target.close())
            except Exception:
                LOG.exception("%s: the producer of the mirror is not closed", partition.label)
        await self._cluster.close()

    # Beginning

    async def _described(self) -> SourceTopic:
        """Return the topic at the source. Raises MirrorStopped if it is another one than the mirror was added for."""
        topic = await self._cluster.topic()
        again = "remove the mirror, and add it with another topic: offsets of the new one say nothing about this"
        if topic.cluster_id != self._mirror.cluster_id:
            raise MirrorStopped(
                f"{self._mirror.topic} mirrors {self._topic_name} of the Kafka cluster {self._mirror.cluster_id}, and "
                f"{self._cluster.source.url} is the cluster {topic.cluster_id} now",
                again,
            )
        if topic.uid != self._mirror.source_topic_id:
            raise MirrorStopped(
                f"{self._topic_name} in Kafka was deleted and created again: its id was "
                f"{self._mirror.source_topic_id}, and is {topic.uid} now",
                again,
            )
        return topic

    async def _create_partitions(self, count: int) -> None:
        try:
            await self._context.in_database(create_missing_partitions, self._context.broker, self._mirror.topic, count)
        except TopicNotFound as error:
            raise MirrorStopped(
                f"{self._mirror.topic} was deleted", "remove the mirror, or create the topic"
            ) from error

    async def _take_all(self, topic: SourceTopic) -> bool:
        """Take the partitions that this service may write; return whether they are all."""
        starts = {
            item.number: item.start_offset
            for item in await self._context.in_database(
                self._context.broker.environment.metadata.mirrors.partitions, self._mirror.topic
            )
        }
        is_complete = True
        for number in topic.leaders:
            try:
                self.partitions[number] = await self._taken(topic, number, starts.get(number))
            except _OWNED_ELSEWHERE:
                is_complete = False
        return is_complete

    async def _taken(self, topic: SourceTopic, number: int, start: int | None) -> PartitionMirror:
        name = self._mirror.topic.of_partition(number)
        context = self._context
        identity = topic.cluster_id, self._topic_name
        target = PartitionTarget(
            context.registry, context.broker.pools, name, *identity, f"{self._cluster.source.url}/{number}"
        )
        try:
            last = await context.in_service(target.open())
            if last is None and start is None:
                offset = await self._cluster.offset(topic.leaders[number], number, protocol.EARLIEST)
            else:
                offset = max(0 if last is None else last + 1, start or 0)
        except PositionLost as error:
            raise MirrorStopped(error.message, error.remedy) from error
        except MissingTopic as error:
            raise MirrorStopped(f"{name} was deleted", "create it, or remove the mirror") from error
        except BaseException:  # it may be open, even if this task was cancelled before it knew
            await to_its_end(context.in_service(target.close()))
            raise
        return PartitionMirror(
            f"{self._topic_name}-{number}",
            producer_name(*identity, number),
            target,
            offset,
            EmptyValues(self._options.empty_values),
            context.service_loop,
            context.broker.environment.clock,
            self._totals,
        )

    # Fetching

    async def _mirror_from(self, leader: int, topic: SourceTopic, partitions: Sequence[PartitionMirror]) -> None:
        by_number = {number: item for number, item in self.partitions.items() if item in partitions}
        order = list(by_number)
        fetching: asyncio.Task[Sequence[FetchedPartition]] | None = None
        try:
            while not any(item.target.is_lost for item in partitions):
                if fetching is None:
                    fetching = asyncio.create_task(self._fetch(leader, topic, by_number, order))
                fetched = await fetching
                fetching = None
                with self._released():
                    batches = {part.number: await self._read(leader, by_number[part.number], part) for part in fetched}
                    order = [*order[1:], *order[:1]]  # an answer is filled in the order of the request
                    fetching = asyncio.create_task(self._fetch(leader, topic, by_number, order))
                    for part in fetched:
                        await by_number[part.number].append(batches[part.number], part)
        finally:
            if fetching is not None:
                fetching.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await fetching
                    self._context.budget.release()  # of an answer that is dropped

    async def _fetch(
        self, leader: int, topic: SourceTopic, partitions: Mapping[int, PartitionMirror], order: Sequence[int]
    ) -> Sequence[FetchedPartition]:
        """Return an answer, for which a turn of the budget is taken; the caller releases it."""
        async with _turn(self._context.budget):
            offsets = {number: partitions[number].fetch_offset for number in order}
            return await self._cluster.fetch(leader, topic.topic_id, offsets, FETCH_BYTES, _WAIT_MS)

    @contextmanager
    def _released(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._context.budget.release()

    async def _read(self, leader: int, partition: PartitionMirror, part: FetchedPartition) -> Sequence[RecordBatch]:
        """Return the batches of a partition in an answer. Raises MirrorStopped, Unavailable, Misconfigured."""
        if part.error_code == protocol.OFFSET_OUT_OF_RANGE:
            raise await self._gap(leader, partition, part.number)
        self._cluster.check_partition(part)
        return partition.read(part)

    async def _gap(self, leader: int, partition: PartitionMirror, number: int) -> MirrorStopped:
        """Return the error for a partition of which the source has not the next offset."""
        await self._described()
        offset = partition.fetch_offset
        earliest = await self._cluster.offset(leader, number, protocol.EARLIEST)
        latest = await self._cluster.offset(leader, number, protocol.LATEST)
        if offset < earliest:
            return MirrorStopped(
                f"{partition.label}: Kafka has removed the records from offset {offset} to {earliest - 1} before they "
                f"were mirrored; its earliest offset is {earliest}",
                f"resume the mirror with --accept-gaps (acceptGaps) to go on at offset {earliest} without them",
                (number, earliest),
            )
        return MirrorStopped(
            f"{partition.label}: the records up to offset {offset - 1} are here, and Kafka ends before offset "
            f"{latest}: it has lost records, as after an unclean election of a leader, and gives their offsets to "
            "others",
            "remove the mirror, and add it with another topic",
        )

    async def _until_changed(self, topic: SourceTopic) -> None:
        """Return when the source has other partitions or leaders, or partitions here may be free now."""
        if not self.is_complete:
            await asyncio.sleep(_TAKE_SECONDS)
            missing = [number for number in topic.leaders if number not in self.partitions]
            while not await self._context.in_database(self._any_free, missing):
                await asyncio.sleep(_TAKE_SECONDS)
                if await self._described() != topic:
                    return
            return
        while await self._described() == topic:
            await asyncio.sleep(_REFRESH_SECONDS)

    def _any_free(self, numbers: Sequence[int]) -> bool:
        """Return whether this service may try to take one of the partitions. For threads."""
        broker = self._context.broker
        names = [self._mirror.topic.of_partition(number) for number in numbers]
        for record in broker.environment.metadata.topics.by_names(names).values():
            with suppress(*_OWNED_ELSEWHERE, Exception):
                broker.ownership.check_for_writing(record)
                return True
        return False


def create_missing_partitions(broker: Broker, topic: TopicName, count: int) -> None:
    """Create the partitions of a topic that the source has and the topic here has not. For threads.

    Raises TopicNotFound, Conflict.
    """
    from api.broker import partitions

    present = broker.environment.metadata.partitions.find(topic)
    if present is None:
        raise TopicNotFound(f"the partitioned topic {topic} does not exist", "create it")
    if present.partitions < count:
        with suppress(Conflict):  # another service was first
            partitions.grow(broker.environment, topic, count)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for a coroutine to end, even if the caller is cancelled meanwhile: its cancellation follows."""
    task = asyncio.create_task(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    task.result()
    if is_cancelled:
        raise asyncio.CancelledError


async def _until_first_ends(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines until the first one ends; then end the others. Raises its error."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _turn(budget: asyncio.Semaphore) -> AsyncIterator[None]:
    """Take a turn, and keep it for the caller unless the block fails."""
    await budget.acquire()
    try:
        yield
    except BaseException:
        budget.release()
        raise
