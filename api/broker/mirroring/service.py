"""The mirrors of a service: rows become tasks, in a thread of their own with its own event loop.

Each service reads the rows every `POLL_SECONDS` and runs all mirrors that are to run; of their partitions each service
takes those that no other one has, by the writer's lease, as for a producer of Pulsar's protocol. So a partition is
mirrored by the service that owns its topic, and by another one when that ends.

A task repeats sessions (session.py). After an error it waits, longer each time; the row has the error of the last try.
What only a user can decide stops the mirror: its row says so to all services. The thread is started with the first
mirror; it decodes and encodes, so the service's event loop never waits for that.

`start`, `tick` and `close` are for the service's event loop. Must not know: Kafka's protocol.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from api.broker.broker import Broker
from api.broker.mirroring.view import MirrorCounts
from api.broker.refusals import NoLogOwner, TopicNotServed, WriterElsewhere
from api.broker.serving.topic_registry import TopicRegistry
from api.broker.threads import WaitsFor
from api.observability.error_text import one_line
from storage.errors import NO_ERROR, CompactorError, ErrorText
from storage.metadata.mirrors import MirrorProgress, MirrorRecord, MirrorState
from storage.model import TopicName

if TYPE_CHECKING:
    from api.broker.mirroring.partition import MirrorStopped, MirrorTotals, PartitionMirror
    from api.broker.mirroring.session import MirrorContext, MirrorSession

LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
REPORT_SECONDS = 5.0
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 1.0, 30.0
_OWNED_ELSEWHERE = (TopicNotServed, WriterElsewhere, NoLogOwner)
_Revision = tuple[int, int]


class MirrorService:
    """The mirrors that one service runs: one task for each, in a thread with an event loop of its own."""

    def __init__(self, broker: Broker, registry: TopicRegistry, only: TopicName | None = None) -> None:
        """`only`: the topic of the single mirror to run, for a command; None: all mirrors."""
        self._broker = broker
        self._registry = registry
        self._only = only
        self._mirrors = broker.environment.metadata.mirrors
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[TopicName, tuple[_Revision, asyncio.Task[None]]] = {}
        self._sessions: dict[TopicName, MirrorSession] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """The tasks that were cancelled: a second time would end what they do at their end."""
        self._errors: dict[TopicName, ErrorText] = {}
        """The error in the row of each mirror that runs."""
        self._stored_errors = 0
        """The number of errors that were stored."""
        self._totals: dict[TopicName, MirrorTotals] = {}
        broker.mirrors.counts = self.counts

    async def tick(self) -> None:
        """Read the mirrors from the database; start those that are to run and stop the others.

        Raises CompactorError.
        """
        stored_errors = self._stored_errors
        records = await self._broker.pools[WaitsFor.DATABASE].run(self._mirrors.all)
        running = [
            record
            for record in records
            if record.state is MirrorState.RUNNING and (self._only is None or record.topic == self._only)
        ]
        for topic in self._totals.keys() - {record.topic for record in records}:
            self._totals.pop(topic, None)
        if running and self._thread is None:
            await self._start_thread()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._reconcile_tasks, running, stored_errors)

    async def close(self) -> None:
        """Stop all mirrors and the thread. Entries that were submitted are appended."""
        if self._loop is None or self._thread is None:
            return
        ended = asyncio.run_coroutine_threadsafe(self._cancel_all_tasks(), self._loop)
        await asyncio.wrap_future(ended)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._thread = self._loop = None

    def counts(self) -> Sequence[MirrorCounts]:
        """Return lag, records, bytes and errors of each mirror since the service started. For any thread."""
        result = []
        for topic, totals in list(self._totals.items()):
            session = self._sessions.get(topic)
            parts = [] if session is None else list(session.partitions.values())
            lags = [part.lag for part in parts if part.lag is not None]
            lag = sum(lags) if lags else None
            result.append(MirrorCounts(topic, lag, totals.records, totals.bytes, totals.errors))
        return result

    def is_at_end(self, topic: TopicName) -> bool:
        """Return whether this service mirrors all partitions of a topic, and has appended all records of the source.
        For any thread."""
        session = self._sessions.get(topic)
        if session is None or not session.is_complete:
            return False
        return all(partition.is_at_end for partition in list(session.partitions.values()))

    # The thread

    async def _start_thread(self) -> None:
        self._context = await asyncio.to_thread(self._new_context, asyncio.get_running_loop())
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=partial(_run_event_loop, loop), name="mirrors", daemon=True)
        thread.start()
        self._thread, self._loop = thread, loop

    def _new_context(self, service_loop: asyncio.AbstractEventLoop) -> MirrorContext:
        """Return the objects that all sessions share. Imports the client of Kafka, which takes a while."""
        from api.broker.mirroring.session import FETCH_BYTES, AnswerBudget, MirrorContext

        answers = max(1, self._broker.settings.mirrors_buffer_bytes // FETCH_BYTES)
        return MirrorContext(self._broker, self._registry, service_loop, AnswerBudget(answers))

    def _reconcile_tasks(self, running: Sequence[MirrorRecord], stored_errors_before_read: int) -> None:
        """Start a task for each mirror of `running` that has none; cancel the tasks of changed or removed mirrors.

        For the mirrors' thread, as all later methods. `stored_errors_before_read`: the number of stored errors before
        the rows were read: rows may lack later errors.
        """
        due = {record.topic: record for record in running}
        later = {} if stored_errors_before_read == self._stored_errors else self._errors
        self._errors = {record.topic: later.get(record.topic, record.error) for record in running}
        for topic, (key, task) in list(self._tasks.items()):
            record = due.get(topic)
            if task.done():
                del self._tasks[topic]
                if record is not None and _revision(record) == key:
                    del due[topic]  # the row may be older than what the task stored at its end
            elif record is None or _revision(record) != key:
                self._cancel_once(task)
        for topic, record in due.items():
            if topic not in self._tasks:
                self._tasks[topic] = (
                    _revision(record),
                    asyncio.get_running_loop().create_task(self._run_sessions(record)),
                )

    def _cancel_once(self, task: asyncio.Task[None]) -> None:
        if task not in self._ending:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def _cancel_all_tasks(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            self._cancel_once(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_sessions(self, record: MirrorRecord) -> None:
        """Run one session of a mirror after the other until the task is cancelled or a user must decide."""
        from api.broker.mirroring.partition import MirrorStopped, MirrorTotals
        from api.broker.mirroring.session import MirrorSession, run_to_completion

        totals = self._totals.setdefault(record.topic, MirrorTotals())
        delay = _FIRST_RETRY_SECONDS
        while True:

            async def succeeded() -> None:
                nonlocal delay
                delay = _FIRST_RETRY_SECONDS
                await self._store_error(record, NO_ERROR)

            async def failed(error: CompactorError) -> None:
                totals.errors += 1
                await self._store_error(record, ErrorText.from_error(error))

            session: MirrorSession | None = None
            reporting: asyncio.Task[None] | None = None
            try:
                session = self._sessions[record.topic] = MirrorSession(self._context, record, totals)
                reporting = asyncio.create_task(self._store_progress_periodically(record, session))
                await session.run(succeeded, failed)
                delay = _FIRST_RETRY_SECONDS
            except MirrorStopped as error:
                totals.errors += 1
                await self._store_failure(record, error)
                return
            except _OWNED_ELSEWHERE as error:
                LOG.info("%s: a partition is not mirrored here any more: %s", record.topic, one_line(error))
            except Exception as error:
                totals.errors += 1
                if not isinstance(error, CompactorError):
                    LOG.exception("the mirror %s failed in an unexpected way", record.topic)
                await self._store_error(record, ErrorText.from_error(error))
            finally:
                self._sessions.pop(record.topic, None)
                if reporting is not None and session is not None:
                    await run_to_completion(self._store_last_progress(record, session, reporting))
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_RETRY_SECONDS)

    async def _store_error(self, record: MirrorRecord, error: ErrorText) -> None:
        """Store the error of the last session in the mirror's row, unless the row has it already."""
        if error == self._errors.get(record.topic):
            return
        if error:
            LOG.warning("the mirror %s tries again: %s", record.topic, error)
        try:
            await self._run_in_database_pool(self._mirrors.store_error, record.topic, error)
        except CompactorError as failure:
            LOG.warning("the state of the mirror %s is not stored: %s", record.topic, one_line(failure))
            return
        self._errors[record.topic] = error
        self._stored_errors += 1

    async def _store_failure(self, record: MirrorRecord, error: MirrorStopped) -> None:
        """Store that a mirror has failed; repeat until the database accepts it."""
        LOG.error("the mirror %s stops: %s", record.topic, one_line(error))
        while True:
            try:
                await self._run_in_database_pool(
                    self._mirrors.fail, record.topic, ErrorText.from_error(error), error.gap
                )
                return
            except CompactorError as failure:
                LOG.warning("the state of the mirror %s is not stored: %s", record.topic, one_line(failure))
                await asyncio.sleep(_FIRST_RETRY_SECONDS)

    async def _store_progress_periodically(self, record: MirrorRecord, session: MirrorSession) -> None:
        """Store the progress of a running session every `REPORT_SECONDS`, if it has changed. Runs until cancelled."""
        reported: dict[int, tuple[int, int]] = {}
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            progress = _progress_by_partition(session.partitions)
            changed = {
                number: item
                for number, item in progress.items()
                if item.records_per_second or reported.get(number) != (item.next_offset, item.end_offset)
            }
            try:
                if changed:
                    await self._run_in_database_pool(self._mirrors.store_progress, record.topic, changed)
            except CompactorError as error:
                LOG.debug("the progress of the mirror %s is not stored: %s", record.topic, one_line(error))
                continue
            except Exception:
                LOG.exception("the progress of the mirror %s is not stored", record.topic)
                continue
            reported |= {number: (item.next_offset, item.end_offset) for number, item in changed.items()}

    async def _store_last_progress(
        self, record: MirrorRecord, session: MirrorSession, reporting: asyncio.Task[None]
    ) -> None:
        """Cancel the periodic report, and store the last progress of an ended session for the next one."""
        reporting.cancel()
        await asyncio.wait([reporting])
        progress = _progress_by_partition(session.ended)
        try:
            if progress:
                await self._run_in_database_pool(self._mirrors.store_progress, record.topic, progress)
        except CompactorError as error:
            LOG.debug("the progress of the mirror %s is not stored: %s", record.topic, one_line(error))

    async def _run_in_database_pool(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._broker.pools[WaitsFor.DATABASE].run(work, *arguments)


def _progress_by_partition(partitions: Mapping[int, PartitionMirror]) -> dict[int, MirrorProgress]:
    """Return the progress by partition number, for the partitions for which the source has answered."""
    known = ((number, partition.progress()) for number, partition in partitions.items())
    return {number: progress for number, progress in known if progress is not None}


def _revision(record: MirrorRecord) -> _Revision:
    """Return a value that differs after a user has changed or recreated the mirror."""
    return record.created_at, record.changed_at


def _run_event_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
