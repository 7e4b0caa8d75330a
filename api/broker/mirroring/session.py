"""A session of a mirror: it takes the partitions that this service may write, and fetches until something changes.

A mirror's session ends, and the next begins, when the source has other partitions or leaders, when a partition of the
topic can be taken or was lost, and after an error. So a mirror always starts in the same way: ask Kafka for the topic,
create new partitions, take those that no other service has, read their positions from their logs.

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
from typing import Any, NamedTuple, TypeVar

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
    """A limit of the Fetch responses that are in memory at the same time, as slots to acquire."""

    def __init__(self, answers: int) -> None:
        self._free = asyncio.Semaphore(answers)
        self._half = answers // 2
        self._acquired = 0

    @property
    def is_over_half_used(self) -> bool:
        """Return whether more than half of the slots are acquired."""
        return self._acquired > self._half

    async def acquire(self) -> None:
        """Wait for a free slot and take it."""
        await self._free.acquire()
        self._acquired += 1

    def release(self) -> None:
        """Make a slot free again."""
        self._acquired -= 1
        self._free.release()


@dataclass(frozen=True)
class MirrorContext:
    """The objects that all mirror sessions of a service share.

    `budget`: a slot for each Fetch response of `FETCH_BYTES` that may be in memory.
    """

    broker: Broker
    registry: TopicRegistry
    service_loop: asyncio.AbstractEventLoop
    budget: AnswerBudget

    async def run_in_service_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the service's event loop, and return its result."""
        running: concurrent.futures.Future[Result] = asyncio.run_coroutine_threadsafe(work, self.service_loop)
        return await asyncio.wrap_future(running)

    async def run_in_database_pool(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work(*arguments)` in a thread of the database pool, and return its result."""
        return await self.broker.pools[WaitsFor.DATABASE].run(work, *arguments)


class _ParsedAnswer(NamedTuple):
    """The batches of a Fetch response by partition number, and the first error of its other partitions."""

    batches: dict[int, Sequence[RecordBatch]]
    error: CompactorError | None


class MirrorSession:
    """A session of one mirror: it ends when the source or the partitions of this service change.

    `partitions`: those that this service mirrors now, by number.
    """

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
        """Take the free partitions and mirror them until the source or the ownership of a partition changes.

        `on_success` is called when brokers have answered for all partitions that this service mirrors, `on_error` when
        one partition cannot be mirrored now. Raises MirrorStopped, Unavailable, Misconfigured.
        """
        self._on_success, self._note_error = on_success, on_error
        try:
            topic = await self._describe_and_check_topic()
            await self._create_partitions(max(topic.leaders, default=-1) + 1)
            self.is_complete = await self._try_take_all_partitions(topic)
            if self._without_leader:
                await self._report_error(
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
                self._mirror_partitions_of_leader(leader, topic, partitions) for leader, partitions in by_leader.items()
            ]
            await _run_until_first_ends([*work, self._wait_for_change(topic)])
        finally:
            await run_to_completion(self._close())

    async def _close(self) -> None:
        self.ended, self.partitions = self.partitions, {}
        for partition in self.ended.values():
            try:
                await self._context.run_in_service_loop(partition.target.close())
            except Exception:
                LOG.exception("%s: the producer of the mirror is not closed", partition.label)
        await self._cluster.close()

    # Beginning

    async def _describe_and_check_topic(self) -> SourceTopic:
        """Ask Kafka for the source topic. Raises MirrorStopped if its cluster or topic id is not that of the mirror."""
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
            await self._context.run_in_database_pool(
                create_missing_partitions, self._context.broker, self._mirror.topic, count
            )
        except TopicNotFound as error:
            raise MirrorStopped(
                f"{self._mirror.topic} was deleted", "remove the mirror, or create the topic"
            ) from error

    async def _try_take_all_partitions(self, topic: SourceTopic) -> bool:
        """Take the partitions that have a leader and that no other service has. Return whether these are all."""
        rows = await self._load_partition_rows()
        self._without_leader = [number for number, leader in topic.leaders.items() if leader < 0]
        is_complete = not self._without_leader
        for number in topic.leaders:
            if number in self._without_leader:
                continue
            try:
                self.partitions[number] = await self._take_partition(topic, number, rows.get(number))
            except _OWNED_ELSEWHERE:
                is_complete = False
        # Logs that have lost entries have changed the rows.
        rows = await self._load_partition_rows() if self.partitions else {}
        for number, partition in self.partitions.items():
            row = rows.get(number)
            if row is not None and row.progress is not None:
                partition.read_before = row.progress.next_offset
        return is_complete

    async def _load_partition_rows(self) -> dict[int, MirrorPartition]:
        mirrors = self._context.broker.environment.metadata.mirrors
        return {
            item.number: item
            for item in await self._context.run_in_database_pool(mirrors.partitions, self._mirror.topic)
        }

    async def _take_partition(self, topic: SourceTopic, number: int, row: MirrorPartition | None) -> PartitionMirror:
        start = None if row is None else row.start_offset
        name = self._mirror.topic.of_partition(number)
        context = self._context
        identity = topic.cluster_id, self._topic_name
        target = PartitionTarget(
            context.registry, context.broker.pools, name, *identity, f"{self._cluster.source.url}/{number}"
        )
        try:
            max_entry_bytes = await context.run_in_database_pool(_max_entry_bytes, context.broker, name)
            last = await context.run_in_service_loop(target.open_and_return_last_offset(start))
            if last is None and start is None:
                offset = await self._cluster.earliest_or_latest_offset(topic.leaders[number], number, protocol.EARLIEST)
                await context.run_in_database_pool(
                    context.broker.environment.metadata.mirrors.set_start_offset, self._mirror.topic, number, offset
                )
            else:
                offset = max(0 if last is None else last + 1, start or 0)
        except PositionLost as error:
            raise MirrorStopped(error.message, error.remedy) from error
        except (MissingTopic, TopicNotFound) as error:
            raise MirrorStopped(f"{name} was deleted", "create it, or remove the mirror") from error
        except BaseException:  # it may be open, even if this task was cancelled before it knew
            await run_to_completion(context.run_in_service_loop(target.close()))
            raise

        async def store_epochs(epochs: Sequence[LeaderEpoch]) -> None:
            mirrors = context.broker.environment.metadata.mirrors
            await context.run_in_database_pool(mirrors.store_epochs, self._mirror, number, epochs)

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

    async def _mirror_partitions_of_leader(
        self, leader: int, topic: SourceTopic, partitions: Mapping[int, PartitionMirror]
    ) -> None:
        """Fetch and append the partitions that one broker leads, until one of them is lost or the source has changed.

        A partition for which the broker returns an error rests for `_TAKE_SECONDS`; the others continue.
        """
        order = list(partitions)
        resting: dict[int, float] = {}
        fetching: asyncio.Task[Sequence[FetchedPartition] | None] | None = None
        try:
            while True:
                if fetching is None:
                    fetching = asyncio.create_task(self._fetch_until_records(leader, topic, partitions, order, resting))
                fetched = await fetching
                fetching = None
                if fetched is None:
                    return
                with self._release_answer_after():
                    batches, error = await self._parse_answer(leader, partitions, fetched, resting)
                    order = [*order[1:], *order[:1]]  # an answer is filled in the order of the request
                    if error is None:
                        fetching = asyncio.create_task(
                            self._fetch_until_records(leader, topic, partitions, order, resting)
                        )
                    for part in fetched:
                        if part.number in batches:
                            await partitions[part.number].append(batches[part.number], part)
                    if isinstance(error, MirrorStopped):
                        raise error
                    if error is not None:
                        await self._report_error(error)
                        if await self._describe_and_check_topic() != topic:
                            return
                del fetched, batches, part  # the slot is free, so their memory must be free, too
        finally:
            if fetching is not None:
                await run_to_completion(self._cancel_fetch(fetching))

    async def _cancel_fetch(self, fetching: asyncio.Task[Sequence[FetchedPartition] | None]) -> None:
        """Cancel a fetch; if it has finished already, release the budget slot of its response."""
        fetching.cancel()
        await asyncio.wait([fetching])
        if not fetching.cancelled() and fetching.exception() is None and fetching.result() is not None:
            self._context.budget.release()

    async def _fetch_until_records(
        self,
        leader: int,
        topic: SourceTopic,
        partitions: Mapping[int, PartitionMirror],
        order: Sequence[int],
        resting: dict[int, float],
    ) -> Sequence[FetchedPartition] | None:
        """Fetch from a broker until a response has records or an error; return it. None: a partition is lost.

        The response occupies a slot of the budget, which the caller releases. While more than half of the slots are
        taken, no slot is held during the time in which a broker waits for records. `resting`: the time until which each
        of some partitions is not fetched.
        """
        budget, loop = self._context.budget, asyncio.get_running_loop()
        while not any(item.target.is_lost for item in partitions.values()):
            due = [number for number in order if resting.get(number, 0) <= loop.time()]
            if not due:
                await asyncio.sleep(min(resting.values()) - loop.time())
                continue
            await budget.acquire()
            try:
                is_over_half_used = budget.is_over_half_used
                positions = {number: partitions[number].position for number in due}
                wait_ms = 0 if is_over_half_used else _WAIT_MS
                fetched = await self._cluster.fetch(leader, topic.topic_id, positions, FETCH_BYTES, wait_ms)
            except BaseException:
                budget.release()
                raise
            if any(part.records or part.error_code or part.common_end is not None for part in fetched):
                return fetched
            budget.release()
            for part in fetched:
                partitions[part.number].update_source_ends(part)
            await self._end_rest_and_report_success(fetched, resting)
            if is_over_half_used:
                await asyncio.sleep(_WAIT_MS / 1000)
        return None

    async def _end_rest_and_report_success(
        self, fetched: Sequence[FetchedPartition], resting: dict[int, float]
    ) -> None:
        """Fetch the returned partitions again from now on. If none rests, call `on_success`, once after each error."""
        for part in fetched:
            resting.pop(part.number, None)
        if not resting and not self._has_succeeded and not self._without_leader:
            self._has_succeeded = True
            await self._on_success()

    async def _report_error(self, error: CompactorError) -> None:
        self._has_succeeded = False
        await self._note_error(error)

    @contextmanager
    def _release_answer_after(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._context.budget.release()

    async def _parse_answer(
        self,
        leader: int,
        partitions: Mapping[int, PartitionMirror],
        fetched: Sequence[FetchedPartition],
        resting: dict[int, float],
    ) -> _ParsedAnswer:
        """Return the batches of the partitions without an error, and the first error of the others, which rest.

        MirrorStopped has priority over other errors.
        """
        batches: dict[int, Sequence[RecordBatch]] = {}
        first: CompactorError | None = None
        for part in fetched:
            try:
                batches[part.number] = await self._parse_partition(leader, partitions[part.number], part)
            except MirrorStopped as error:
                first = first if isinstance(first, MirrorStopped) else error
            except (Unavailable, Misconfigured) as error:
                resting[part.number] = asyncio.get_running_loop().time() + _TAKE_SECONDS
                first = first or error
        if first is None:
            await self._end_rest_and_report_success(fetched, resting)
        return _ParsedAnswer(batches, first)

    async def _parse_partition(
        self, leader: int, partition: PartitionMirror, part: FetchedPartition
    ) -> Sequence[RecordBatch]:
        """Return the batches of one partition of a response. Raises MirrorStopped, Unavailable, Misconfigured."""
        if part.error_code == protocol.OFFSET_OUT_OF_RANGE:
            await self._recover_from_out_of_range(leader, partition, part.number)
            return []
        self._cluster.check_partition(part)
        return partition.parse_and_advance(part)

    async def _recover_from_out_of_range(self, leader: int, partition: PartitionMirror, number: int) -> None:
        """Continue a partition whose next offset the source does not have; raise MirrorStopped if records are missing.

        If the source has removed only records that were read before, skip to its first offset. If the offset exists,
        fetch without leader epochs.
        """
        await self._describe_and_check_topic()
        offset = partition.position.offset
        earliest = await self._cluster.earliest_or_latest_offset(leader, number, protocol.EARLIEST)
        latest = await self._cluster.earliest_or_latest_offset(leader, number, protocol.LATEST)
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

    async def _wait_for_change(self, topic: SourceTopic) -> None:
        """Wait until the source has other partitions or leaders, or this service may take a further partition."""
        if not self.is_complete:
            await asyncio.sleep(_TAKE_SECONDS)
            skipped = {*self.partitions, *self._without_leader}
            missing = [number for number in topic.leaders if number not in skipped]
            while not await self._context.run_in_database_pool(self._is_any_partition_free, missing):
                await asyncio.sleep(_TAKE_SECONDS)
                if await self._describe_and_check_topic() != topic:
                    return
            return
        while await self._describe_and_check_topic() == topic:
            await asyncio.sleep(_REFRESH_SECONDS)

    def _is_any_partition_free(self, numbers: Sequence[int]) -> bool:
        """Return whether no other service owns one of the partitions. Blocks."""
        broker = self._context.broker
        names = [self._mirror.topic.of_partition(number) for number in numbers]
        for record in broker.environment.metadata.topics.by_names(names).values():
            with suppress(*_OWNED_ELSEWHERE, Exception):
                broker.ownership.check_for_writing(record)
                return True
        return False


def _max_entry_bytes(broker: Broker, name: TopicName) -> int:
    """Return the maximum size of an entry of a partition, in bytes. Blocks. Raises TopicNotFound."""
    metadata = broker.environment.metadata
    return metadata.policies.effective(metadata.topics.get(name)).max_message_bytes


def create_missing_partitions(broker: Broker, topic: TopicName, count: int) -> None:
    """Increase the partitions of a topic to `count`, if it has fewer; new partitions get the policies of the others.

    Blocks. Raises TopicNotFound, Conflict.
    """
    from api.broker import names, partitioned_topics

    present = broker.environment.metadata.partitions.find(topic)
    if present is None:
        raise TopicNotFound(f"the partitioned topic {topic} does not exist", "create it")
    if present.partitions < count:
        with suppress(Conflict):  # another service was first
            partitioned_topics.grow(broker.environment, topic, count)
    else:  # a process that ended between creating partitions and copying policies
        names.copy_policies_to_partitions_without_any(broker.environment, present)


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end even if the caller is cancelled; raise CancelledError afterwards in that case."""
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


async def _run_until_first_ends(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines until the first one ends, and cancel the others. Raise the error of the first."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
