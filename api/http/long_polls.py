"""Reads that wait for a first message: no thread waits with them, and all of them share one poll.

While any read waits, one task looks every `POLL_SECONDS` at all topics that are waited for: a statement or two for the
database, and a file of 256 bytes for each that is written here. A read is woken when its topic has changed since it
was checked last, and only then reads again. So a thousand reads that wait cost as much as one, as long as nothing
comes. How many may wait at once is bounded for each role, or address without one.

For the tasks of one event loop at a time. Must not know: how a topic is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from api.broker.threads import Pools, WaitsFor
from api.http.problems import RestException
from storage.clock import Clock
from storage.log.directory import LogDirectory
from storage.log.unsealed_counts import UnsealedEnd, unsealed_end
from storage.metadata.records import TopicActiveSegment
from storage.metadata.store import MetadataStore
from storage.reading.page_reader import POLL_SECONDS

_GONE_SECONDS = 1.0
"""How long a client that has gone away is waited for at most."""
_End = tuple[TopicActiveSegment, UnsealedEnd | None] | None
"""What of a topic changes when a message comes; None: the topic is gone."""


@dataclass(eq=False)
class _Waiting:
    """A read that waits. `seen`: what its topic was when it was woken last; empty: it was not polled yet."""

    topic_id: int
    seen: list[_End] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class LongPolls:
    """The reads that wait."""

    def __init__(self, metadata: MetadataStore, log: LogDirectory, clock: Clock, pools: Pools, limit: int) -> None:
        """`pools`: whose threads poll; `limit` reads of one caller wait at once."""
        self._metadata = metadata
        self._log = log
        self._clock = clock
        self._pools = pools
        self._most = limit
        self._of_caller: Counter[str] = Counter()
        self._waiting: set[_Waiting] = set()
        self._task: asyncio.Task[None] | None = None
        self._ends = False

    def end(self) -> None:
        """Let reads wait no more, as the service ends: their answers are empty, and soon. From any thread."""
        self._ends = True

    @contextmanager
    def turn(self, caller: str) -> Iterator[None]:
        """Inside it, a read of the caller waits. Raises RestException (503) if too many do."""
        if self._of_caller[caller] >= self._most:
            raise RestException(
                503,
                f"{self._most} reads of {caller} wait for messages already, as many as may: wait with fewer at once, "
                "or raise limits.waiting-polls",
                {"Retry-After": "1"},
            )
        self._of_caller[caller] += 1
        try:
            yield
        finally:
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]

    async def changes(
        self, topic_id: int, until_ms: int, is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[None, None]:
        """Something each time that the topic may have got messages since it was read last; first, soon, in any case.

        Ends at that time, when the client `is_gone`, or with the service.
        """
        waiting = _Waiting(topic_id)
        self._waiting.add(waiting)
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._poll_waiting())
        try:
            while (
                not self._ends and (remaining := (until_ms - self._clock.now_ms()) / 1000) > 0 and not await is_gone()
            ):
                try:
                    await asyncio.wait_for(waiting.woken.wait(), min(remaining, _GONE_SECONDS))
                except TimeoutError:
                    continue
                waiting.woken.clear()
                yield
        finally:
            self._waiting.discard(waiting)

    async def _poll_waiting(self) -> None:
        while self._waiting:
            waiting = list(self._waiting)
            try:
                ends = await self._ends_of(sorted({item.topic_id for item in waiting}))
            except Exception:  # each read finds out on its own, and reports it to its caller
                ends = None
            for item in waiting:
                seen = [] if ends is None else [ends.get(item.topic_id)]
                if not seen or seen != item.seen:
                    item.seen = seen
                    item.woken.set()
            await asyncio.sleep(POLL_SECONDS)

    async def _ends_of(self, topic_ids: Sequence[int]) -> dict[int, _End]:
        """Return the end of each topic. A log disk that hangs holds no thread of the database's."""
        segments = await self._pools[WaitsFor.DATABASE].run(self._metadata.segments.active_segments, topic_ids)
        if all(segment.open is None for segment in segments):
            return {segment.topic.id: (segment, None) for segment in segments}
        return await self._pools[WaitsFor.LOG].run(self._with_open_ends, segments)

    def _with_open_ends(self, segments: Sequence[TopicActiveSegment]) -> dict[int, _End]:
        return {
            segment.topic.id: (
                segment,
                None if segment.open is None else unsealed_end(self._log, segment.topic, segment.open),
            )
            for segment in segments
        }
