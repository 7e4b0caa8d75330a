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
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from api.broker.broker import Broker
from api.broker.mirroring import protocol
from api.broker.mirroring.cluster import KafkaCluster, SourceTopic
from api.broker.mirroring.partition import MirrorStopped, MirrorTotals, PartitionMirror
from api.broker.mirroring.position import PositionLost, producer_name
from api.broker.mirroring.protocol import FetchedPartition
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from api.broker.mirroring.target import PartitionTarget
from api.broker.refusals import MissingTopic, NoLogOwner, TopicNotServed, WriterElsewhere
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import WaitsFor
from api.formats.inputs import EmptyValues
from storage.errors import CompactorError, Conflict, Misconfigured, TopicNotFound, Unavailable
from storage.kafka.record_batch import RecordBatch
from storage.metadata.mirrors import LeaderEpoch, MirrorPartition, MirrorRecord
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


class AnswerBudget:
    """Turns of answers that are in memory at once."""

    def __init__(self, answers: int) -> None:
        self._free = asyncio.Semaphore(answers)
        self._half = answers // 2
        self._taken = 0

    @property
    def is_short(self) -> bool:
        """True if more than half of the turns are taken."""
        return self._taken > self._half

    async def acquire(self) -> None:
        """Wait for a turn."""
        await self._free.acquire()
        self._taken += 1

    def release(self) -> None:
        """Release a turn."""
        self._taken -= 1
        self._free.release()


@dataclass(frozen=True)
class MirrorContext:
    """The parts that the sessions of a service share.

    `budget`: a turn for each answer of `FETCH_BYTES` that may be in memory.
    """

    broker: Broker
    registry: TopicRegistry
    service_loop: asyncio.AbstractEventLoop
    budget: AnswerBudget

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
        self.ended: Mapping[int, PartitionMirror] = {}
        """The partitions that it mirrored last, when it has ended."""
        self._without_leader: Sequence[int] = ()
        self._has_succeeded = False
        self.is_complete = False
        """True if `partitions` are all of the source."""

    async def run(
        self, on_success: Callable[[], Awaitable[None]], on_error: Callable[[CompactorError], Awaitable[None]]
    ) -> None:
        """Mirror until something changes. `on_success` is called when brokers have answered for all partitions that
        are mirrored here, `on_error` when a partition cannot be mirrored now, and the others can."""
        self._on_success, self._note_error = on_success, on_error
        try:
            topic = await self._described()
            await self._create_partitions(max(topic.leaders, default=-1) + 1)
            self.is_complete = await self._take_all(topic)
            if self._without_leader:
                await self._on_error(
                    Unavailable(
                        f"no broker leads partition {self._without_leader[0]} of {self._topic_name} now",
                        "the mirror tries again by itself",
                        is_public=True,
                    )
                )
            if not self.partitions:
                await asyncio.sleep(_TAKE_SECONDS)
                return
            by_leader: dict[int, dict[int, PartitionMirror]] = {}
            for number, partition in self.partitions.items():
                by_leader.setdefault(topic.leaders[number], {})[number] = partition
            work: list[Coroutine[Any, Any, None]] = [
                self._mirror_from(leader, topic, partitions) for leader, partitions in by_leader.items()
            ]
            await _until_first_ends([*work, self._until_changed(topic)])
        finally:
            await to_its_end(self._close())

    async def _close(self) -> None:
        self.ended, self.partitions = self.partitions, {}
        for partition in self.ended.values():
            try:
                await self._context.in_service(partition.target.close())
            except Exception:
                LOG.exception("%s: the producer of the mirror is not closed", partition.label)
        await self._cluster.close()

    # Beginning

    async def _described(self) -> SourceTopic:
        """Return the topic at the source. Raises MirrorStopped if it is another one than the mirror was added for."""
        topic = await self._cluster.describe_topic()
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
        rows = await self._rows()
        self._without_leader = [number for number, leader in topic.leaders.items() if leader < 0]
        is_complete = not self._without_leader
        for number in topic.leaders:
            if number in self._without_leader:
                continue
            try:
                self.partitions[number] = await self._taken(topic, number, rows.get(number))
            except _OWNED_ELSEWHERE:
                is_complete = False
        rows = await self._rows() if self.partitions else {}  # logs that have lost entries have changed them
        for number, partition in self.partitions.items():
            row = rows.get(number)
            if row is not None and row.progress is not None:
                partition.read_before = row.progress.next_offset
        return is_complete

    async def _rows(self) -> dict[int, MirrorPartition]:
        mirrors = self._context.broker.environment.metadata.mirrors
        return {item.number: item for item in await self._context.in_database(mirrors.partitions, self._mirror.topic)}

    async def _taken(self, topic: SourceTopic, number: int, row: MirrorPartition | None) -> PartitionMirror:
        start = None if row is None else row.start_offset
        name = self._mirror.topic.of_partition(number)
        context = self._context
        identity = topic.cluster_id, self._topic_name
        target = PartitionTarget(
            context.registry, context.broker.pools, name, *identity, f"{self._cluster.source.url}/{number}"
        )
        try:
            max_entry_bytes = await context.in_database(_max_entry_bytes, context.broker, name)
            last = await context.in_service(target.open(start))
            if last is None and start is None:
                offset = await self._cluster.offset(topic.leaders[number], number, protocol.EARLIEST)
                await context.in_database(
                    context.broker.environment.metadata.mirrors.begin, self._mirror.topic, number, offset
                )
            else:
                offset = max(0 if last is None else last + 1, start or 0)
        except PositionLost as error:
            raise MirrorStopped(error.message, error.remedy) from error
        except (MissingTopic, TopicNotFound) as error:
            raise MirrorStopped(f"{name} was deleted", "create it, or remove the mirror") from error
        except BaseException:  # it may be open, even if this task was cancelled before it knew
            await to_its_end(context.in_service(target.close()))
            raise

        async def store_epochs(epochs: Sequence[LeaderEpoch]) -> None:
            mirrors = context.broker.environment.metadata.mirrors
            await context.in_database(mirrors.note_epochs, self._mirror, number, epochs)

        return PartitionMirror(
            f"{self._topic_name}-{number}",
            producer_name(*identity, number),
            target,
            offset,
            row.epochs if row is not None and last is not None and offset == last + 1 else (),
            store_epochs,
            max_entry_bytes,
            EmptyValues(self._options.empty_values),
            context.service_loop,
            context.broker.environment.clock,
            self._totals,
        )

    # Fetching

    async def _mirror_from(self, leader: int, topic: SourceTopic, partitions: Mapping[int, PartitionMirror]) -> None:
        """Mirror the partitions that a broker leads until one of them is lost, or the source has changed.

        A partition that the broker refuses to return rests for `_TAKE_SECONDS`; the others go on.
        """
        order = list(partitions)
        resting: dict[int, float] = {}
        fetching: asyncio.Task[Sequence[FetchedPartition] | None] | None = None
        try:
            while True:
                if fetching is None:
                    fetching = asyncio.create_task(self._fetch(leader, topic, partitions, order, resting))
                fetched = await fetching
                fetching = None
                if fetched is None:
                    return
                with self._given_back():
                    batches, error = await self._read_all(leader, partitions, fetched, resting)
                    order = [*order[1:], *order[:1]]  # an answer is filled in the order of the request
                    if error is None:
                        fetching = asyncio.create_task(self._fetch(leader, topic, partitions, order, resting))
                    for part in fetched:
                        if part.number in batches:
                            await partitions[part.number].append(batches[part.number], part)
                    if isinstance(error, MirrorStopped):
                        raise error
                    if error is not None:
                        await self._on_error(error)
                        if await self._described() != topic:
                            return
                del fetched, batches, part  # the turn is given back, so their memory must be free
        finally:
            if fetching is not None:
                await to_its_end(self._dropped(fetching))

    async def _dropped(self, fetching: asyncio.Task[Sequence[FetchedPartition] | None]) -> None:
        """End a request, and give back the turn of its answer."""
        fetching.cancel()
        await asyncio.wait([fetching])
        if not fetching.cancelled() and fetching.exception() is None and fetching.result() is not None:
            self._context.budget.release()

    async def _fetch(
        self,
        leader: int,
        topic: SourceTopic,
        partitions: Mapping[int, PartitionMirror],
        order: Sequence[int],
        resting: dict[int, float],
    ) -> Sequence[FetchedPartition] | None:
        """Return an answer that is not empty, for which a turn of the budget is taken; the caller gives it back.

        None: a partition is lost here. While many turns are taken, none is kept for the time in which a broker waits
        for records. `resting`: partitions that are not asked for, and until when.
        """
        budget, loop = self._context.budget, asyncio.get_running_loop()
        while not any(item.target.is_lost for item in partitions.values()):
            due = [number for number in order if resting.get(number, 0) <= loop.time()]
            if not due:
                await asyncio.sleep(min(resting.values()) - loop.time())
                continue
            await budget.acquire()
            try:
                is_short = budget.is_short
                positions = {number: partitions[number].position for number in due}
                wait_ms = 0 if is_short else _WAIT_MS
                fetched = await self._cluster.fetch(leader, topic.topic_id, positions, FETCH_BYTES, wait_ms)
            except BaseException:
                budget.release()
                raise
            if any(part.records or part.error_code or part.common_end is not None for part in fetched):
                return fetched
            budget.release()
            for part in fetched:
                partitions[part.number].note_ends(part)
            await self._note_answers(fetched, resting)
            if is_short:
                await asyncio.sleep(_WAIT_MS / 1000)
        return None

    async def _note_answers(self, fetched: Sequence[FetchedPartition], resting: dict[int, float]) -> None:
        """Note the partitions that a broker has returned, and that the mirror has no error any more."""
        for part in fetched:
            resting.pop(part.number, None)
        if not resting and not self._has_succeeded and not self._without_leader:
            self._has_succeeded = True
            await self._on_success()

    async def _on_error(self, error: CompactorError) -> None:
        self._has_succeeded = False
        await self._note_error(error)

    @contextmanager
    def _given_back(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._context.budget.release()

    async def _read_all(
        self,
        leader: int,
        partitions: Mapping[int, PartitionMirror],
        fetched: Sequence[FetchedPartition],
        resting: dict[int, float],
    ) -> tuple[dict[int, Sequence[RecordBatch]], CompactorError | None]:
        """Return the batches of the partitions of an answer that are good, and the first error of the others."""
        batches: dict[int, Sequence[RecordBatch]] = {}
        first: CompactorError | None = None
        for part in fetched:
            try:
                batches[part.number] = await self._read(leader, partitions[part.number], part)
            except MirrorStopped as error:
                first = first if isinstance(first, MirrorStopped) else error
            except (Unavailable, Misconfigured) as error:
                resting[part.number] = asyncio.get_running_loop().time() + _TAKE_SECONDS
                first = first or error
        if first is None:
            await self._note_answers(fetched, resting)
        return batches, first

    async def _read(self, leader: int, partition: PartitionMirror, part: FetchedPartition) -> Sequence[RecordBatch]:
        """Return the batches of a partition in an answer. Raises MirrorStopped, Unavailable, Misconfigured."""
        if part.error_code == protocol.OFFSET_OUT_OF_RANGE:
            await self._pass_gap(leader, partition, part.number)
            return []
        self._cluster.check_partition(part)
        return partition.read(part)

    async def _pass_gap(self, leader: int, partition: PartitionMirror, number: int) -> None:
        """Go on with a partition of which the source has not the next offset, if all that it has removed was read
        before: a position does not count transactions' ends. Raises MirrorStopped."""
        await self._described()
        offset = partition.position.offset
        earliest = await self._cluster.offset(leader, number, protocol.EARLIEST)
        latest = await self._cluster.offset(leader, number, protocol.LATEST)
        if offset < earliest <= partition.read_before:
            partition.skip_to(earliest)
            return
        if offset < earliest:
            raise MirrorStopped(
                f"{partition.label}: Kafka has removed the records from offset {offset} to {earliest - 1} before they "
                f"were mirrored; its earliest offset is {earliest}",
                f"resume the mirror with --accept-gaps (acceptGaps) to go on at offset {earliest} without them",
                (number, earliest),
            )
        if offset <= latest and partition.stop_sending_epochs():
            LOG.warning("%s: Kafka keeps no epochs of it, so records that an election loses stay here", partition.label)
            return
        raise MirrorStopped(
            f"{partition.label}: the records up to offset {offset - 1} are here, and Kafka ends before offset "
            f"{latest}: it has lost records, as after an unclean election of a leader, and gives their offsets to "
            "others",
            "remove the mirror, and add it with another topic",
        )

    async def _until_changed(self, topic: SourceTopic) -> None:
        """Return when the source has other partitions or leaders, or partitions here may be free now."""
        if not self.is_complete:
            await asyncio.sleep(_TAKE_SECONDS)
            skipped = {*self.partitions, *self._without_leader}
            missing = [number for number in topic.leaders if number not in skipped]
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


def _max_entry_bytes(broker: Broker, name: TopicName) -> int:
    """Return the bytes that an entry of a partition may have. For threads. Raises TopicNotFound."""
    metadata = broker.environment.metadata
    return metadata.policies.effective(metadata.topics.get(name)).max_message_bytes


def create_missing_partitions(broker: Broker, topic: TopicName, count: int) -> None:
    """Create the partitions of a topic that the source has and the topic here has not, with the policies of the others.
    For threads.

    Raises TopicNotFound, Conflict.
    """
    from api.broker import names, partitions

    present = broker.environment.metadata.partitions.find(topic)
    if present is None:
        raise TopicNotFound(f"the partitioned topic {topic} does not exist", "create it")
    if present.partitions < count:
        with suppress(Conflict):  # another service was first
            partitions.grow(broker.environment, topic, count)
    else:  # a process that ended between creating partitions and copying policies
        names.copy_policies_to_partitions(broker.environment, present)


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
