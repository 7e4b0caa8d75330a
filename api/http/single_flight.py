"""Shared calls: requests that need the same answer at the same time share one call, so many cost as much as one.

`SingleFlight`: one call runs at a time; requests that arrive meanwhile wait for the next call and share it. So an
answer is never older than its request, and a flood of requests without tokens holds one thread. For the tasks of one
event loop.

`RunReportCache`: reads of compaction runs, which all watchers of a run share. A run executes in any process; its worker
writes its progress to its row every two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from api.broker.threads import Pool
from api.reports import run_document
from storage.clock import Clock
from storage.metadata.store import MetadataStore

Answer = TypeVar("Answer")
MAX_AGE_MS = 500
"""The age up to which a report is shared."""
_MAX_REPORTS = 1000


class SingleFlight(Generic[Answer]):
    """A call that requests share: those that wait at the same time get the result, or the error, of one call."""

    def __init__(self, pool: Pool) -> None:
        """`pool`: its threads make the calls."""
        self._pool = pool
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[Answer] | None = None

    async def share_call(self, make: Callable[[], Answer]) -> Answer:
        """Call `make` in a thread of the pool, and return its result, or raise its error.

        Callers that arrive before the call begins share it: only the first caller's `make` is called.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._run_call(make))
        return await asyncio.shield(self._next)

    async def _run_call(self, make: Callable[[], Answer]) -> Answer:
        async with self._lock:
            self._next = None  # a later request must not share a call that began before it
            return await self._pool.run(make)


@dataclass
class _CachedReport:
    """The cached report of one run. `at`: the time of its read, in milliseconds; `document` None: not read yet."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: int = -1
    document: dict[str, Any] | None = None


class RunReportCache:
    """A cache of the reports of compaction runs, which reads each run at most every `MAX_AGE_MS`. For the tasks of
    event loops."""

    def __init__(self, metadata: MetadataStore, clock: Clock, pool: Pool) -> None:
        """`pool`: its threads read."""
        self._pool = pool
        self._metadata = metadata
        self._clock = clock
        self._reports: dict[tuple[asyncio.AbstractEventLoop, int], _CachedReport] = {}

    async def report(self, run_id: int) -> dict[str, Any]:
        """Return the report of a run in its public form, at most `MAX_AGE_MS` old. Raise NotFound."""
        place = (asyncio.get_running_loop(), run_id)
        if place not in self._reports and len(self._reports) >= _MAX_REPORTS:
            self._reports.clear()
        report = self._reports.setdefault(place, _CachedReport())
        async with report.lock:
            # A report of the future is also read again: the clock was set back.
            if report.document is None or not 0 <= self._clock.now_ms() - report.at < MAX_AGE_MS:
                report.document = await self._pool.run(self._read_report, run_id)
                report.at = self._clock.now_ms()
            return report.document

    def _read_report(self, run_id: int) -> dict[str, Any]:
        name, run = self._metadata.runs.get_with_topic_name(run_id)
        return run_document(name, run, self._clock.now_ms(), wording=None)
