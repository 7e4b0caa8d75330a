"""Shared calls: requests that need the same answer at the same time share one call, so many cost as much as one.

`SingleFlight`: one call runs at a time; requests that arrive meanwhile wait for the next call and share it. So an
answer is never older than its request, and a flood of requests without tokens holds one thread. For the tasks of one
event loop.

`RunPoller`: reads of compaction runs, which all watchers of a run share. A run executes in any process; its worker
writes its progress to its row every two seconds.

`TopicsPoller`: reads of the sizes and compaction backlogs of all topics, which the viewers of the dashboard share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from api.broker.threads import Pool
from api.reports import run_document
from compactor.scheduling.backlog import Backlog, BacklogReader
from storage.clock import Clock
from storage.log.directory import LogDirectory
from storage.metadata.records import TopicSummary
from storage.metadata.store import MetadataStore

Answer = TypeVar("Answer")
MAX_AGE_MS = 500
"""The age up to which a report is shared."""
_MAX_REPORTS = 1000
FEW_TOPICS = 1000
"""The number of topics whose sizes are read for each request: some milliseconds."""
RENEW_AFTER_MS = 5_000
MAX_SIZES_AGE_MS = 60_000
"""The age up to which the sizes of more topics are shared."""


class SingleFlight(Generic[Answer]):
    """The waiting requests, and the call that answers them. All that share a call get its error."""

    def __init__(self, pool: Pool) -> None:
        """`pool`: its threads make the calls."""
        self._pool = pool
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[Answer] | None = None

    async def answer(self, make: Callable[[], Answer]) -> Answer:
        """Return what `make` returns in a thread; callers that wait for the same answer share one call."""
        if self._next is None:
            self._next = asyncio.create_task(self._call(make))
        return await asyncio.shield(self._next)

    async def _call(self, make: Callable[[], Answer]) -> Answer:
        async with self._lock:
            self._next = None  # a later request must not share a call that began before it
            return await self._pool.run(make)


@dataclass
class _Report:
    """The report of one run. `at`: the time of its read, in milliseconds."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: int = -1
    document: dict[str, Any] | None = None


class RunPoller:
    """Reads runs, each at most every `MAX_AGE_MS`. For the tasks of event loops."""

    def __init__(self, metadata: MetadataStore, clock: Clock, pool: Pool) -> None:
        """`pool`: its threads read."""
        self._pool = pool
        self._metadata = metadata
        self._clock = clock
        self._reports: dict[tuple[asyncio.AbstractEventLoop, int], _Report] = {}

    async def report(self, run_id: int) -> dict[str, Any]:
        """Return the document of a run in its public form, at most `MAX_AGE_MS` old. Raise NotFound."""
        place = (asyncio.get_running_loop(), run_id)
        if place not in self._reports and len(self._reports) >= _MAX_REPORTS:
            self._reports.clear()
        report = self._reports.setdefault(place, _Report())
        async with report.lock:
            # A report of the future is also read again: the clock was set back.
            if report.document is None or not 0 <= self._clock.now_ms() - report.at < MAX_AGE_MS:
                report.document = await self._pool.run(self._read, run_id)
                report.at = self._clock.now_ms()
            return report.document

    def _read(self, run_id: int) -> dict[str, Any]:
        name, run = self._metadata.runs.named(run_id)
        return run_document(name, run, self._clock.now_ms(), words=None)


@dataclass(frozen=True)
class TopicSizes:
    """Sizes and backlogs of topics at one moment. `summaries`: by name. `backlogs`: by topic id."""

    summaries: Sequence[TopicSummary] = ()
    backlogs: Mapping[int, Backlog] = field(default_factory=dict)
    at: int = 0


class TopicsPoller:
    """Reads the sizes of all topics; of more than `FEW_TOPICS`, requests share a recent read.

    A read that is older than `RENEW_AFTER_MS` is still shared while the next one runs, up to `MAX_SIZES_AGE_MS`.
    """

    def __init__(self, metadata: MetadataStore, log: LogDirectory, clock: Clock, pool: Pool) -> None:
        """`pool`: its threads read."""
        self._metadata = metadata
        self._backlogs = BacklogReader(metadata, log)
        self._clock = clock
        self._reads: SingleFlight[TopicSizes] = SingleFlight(pool)
        self._last = TopicSizes()
        self._renewal: asyncio.Task[TopicSizes] | None = None

    async def of_all(self) -> TopicSizes:
        """Return the sizes of all topics, also of topics without a trigger."""
        last, age = self._last, self._clock.now_ms() - self._last.at
        if len(last.summaries) <= FEW_TOPICS or not 0 <= age < MAX_SIZES_AGE_MS:
            return await self._reads.answer(self._read)
        if age >= RENEW_AFTER_MS and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._reads.answer(self._read))
            self._renewal.add_done_callback(_ignore_failure)
        return last

    def of(self, topic_ids: Collection[int]) -> TopicSizes:
        """Return the present sizes of a page of topics, without deleted ones. Waits for the database."""
        backlogs = {backlog.topic.id: backlog for backlog in self._backlogs.of(topic_ids)}
        return TopicSizes(self._metadata.topics.summaries(topic_ids), backlogs, self._clock.now_ms())

    def _read(self) -> TopicSizes:
        now = self._clock.now_ms()
        backlogs = {backlog.topic.id: backlog for backlog in self._backlogs.of_every_topic()}
        self._last = TopicSizes(self._metadata.topics.summaries(), backlogs, now)
        return self._last


def _ignore_failure(renewal: asyncio.Task[TopicSizes]) -> None:
    """Let a renewal fail: a request after `MAX_SIZES_AGE_MS` waits for its own read and reports the error."""
    if not renewal.cancelled():
        renewal.exception()
