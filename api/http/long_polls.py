"""Reads that wait for a first message: they hold no thread, and share one poll.

While any read waits, one task checks every `POLL_SECONDS` all topics with waiting reads: it executes a statement or
two, and reads a file of 256 bytes for each topic that is written here. A read is woken when its topic has changed since
the last check, and only then reads again. So a thousand waiting reads cost as much as one until a message arrives. Each
role, or address without one, may wait with a limited number of reads.

For the tasks of one event loop at a time. Must not know: how a topic is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from api.broker.shares import Shares
from api.broker.threads import Pools, WaitsFor
from api.http.problems import RestException
from storage.clock import Clock
from storage.log.directory import LogDirectory
from storage.log.open_segments import OpenSegmentEnd, open_segment_end
from storage.metadata.records import TopicActiveSegment
from storage.metadata.store import MetadataStore
from storage.reading.page_reader import POLL_SECONDS

_DISCONNECT_SECONDS = 1.0
"""The time within which the disconnection of a client is noticed."""
_End = tuple[TopicActiveSegment, OpenSegmentEnd | None] | None
"""The part of a topic's state that a new message changes; None: the topic does not exist."""


@dataclass(eq=False)
class _WaitingRead:
    """A waiting read. `seen`: the state of its topic at the last wake-up; empty: it was not polled yet."""

    topic_id: int
    seen: list[_End] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class LongPolls:
    """The reads that wait for new messages, and the task that polls their topics and wakes them."""

    def __init__(self, metadata: MetadataStore, log: LogDirectory, clock: Clock, pools: Pools, limit: int) -> None:
        """`pools`: their threads poll. `limit`: the number of reads with which one caller may wait."""
        self._metadata = metadata
        self._log = log
        self._clock = clock
        self._pools = pools
        self._limit = limit
        self._of_caller = Shares[str]()
        self._waiting: set[_WaitingRead] = set()
        self._task: asyncio.Task[None] | None = None
        self._ends = False

    def end_waits(self) -> None:
        """End all waits, because the service ends: the reads answer soon, and empty. Callable from any thread."""
        self._ends = True

    @contextmanager
    def counted_wait(self, caller: str) -> Iterator[None]:
        """Count a read of the caller as waiting while the context is open. Raise RestException (503) beyond the
        limit."""
        if self._of_caller[caller] >= self._limit:
            raise RestException(
                503,
                f"{self._limit} reads of {caller} wait for messages already, as many as may: wait with fewer at once, "
                "or raise limits.waiting-polls",
                {"Retry-After": "1"},
            )
        with self._of_caller.counting(caller):
            yield

    async def topic_changes(
        self, topic_id: int, until_ms: int, is_disconnected: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[None, None]:
        """Yield each time that a topic may have new messages since the last time; the first time soon, in any case.

        The iteration ends at `until_ms`, when the client has disconnected (`is_disconnected`), or with the service.
        """
        waiting = _WaitingRead(topic_id)
        self._waiting.add(waiting)
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._poll_topics())
        try:
            while (
                not self._ends
                and (remaining := (until_ms - self._clock.now_ms()) / 1000) > 0
                and not await is_disconnected()
            ):
                try:
                    await asyncio.wait_for(waiting.woken.wait(), min(remaining, _DISCONNECT_SECONDS))
                except TimeoutError:
                    continue
                waiting.woken.clear()
                yield
        finally:
            self._waiting.discard(waiting)

    async def _poll_topics(self) -> None:
        """Poll the topics of all waiting reads, and wake the reads whose topic has changed, until no read waits."""
        while self._waiting:
            waiting = list(self._waiting)
            try:
                ends = await self._topic_ends(sorted({item.topic_id for item in waiting}))
            except Exception:  # each read meets the error itself, and reports it to its caller
                ends = None
            for item in waiting:
                seen = [] if ends is None else [ends.get(item.topic_id)]
                if not seen or seen != item.seen:
                    item.seen = seen
                    item.woken.set()
            await asyncio.sleep(POLL_SECONDS)

    async def _topic_ends(self, topic_ids: Sequence[int]) -> dict[int, _End]:
        """Return the end of each topic, by topic id. Threads of the log read files, so that a disk that hangs blocks no
        database thread."""
        segments = await self._pools[WaitsFor.DATABASE].run(self._metadata.segments.active_segments, topic_ids)
        if all(segment.open is None for segment in segments):
            return {segment.topic.id: (segment, None) for segment in segments}
        return await self._pools[WaitsFor.LOG].run(self._read_open_segment_ends, segments)

    def _read_open_segment_ends(self, segments: Sequence[TopicActiveSegment]) -> dict[int, _End]:
        """Return the end of each topic, by topic id, with the end of its open segment as the log's files have it."""
        return {
            segment.topic.id: (
                segment,
                None if segment.open is None else open_segment_end(self._log, segment.topic, segment.open),
            )
            for segment in segments
        }
