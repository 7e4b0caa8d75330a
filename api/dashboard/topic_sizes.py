"""Sizes and compaction backlogs of all topics, whose reads the viewers of the first page share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from fastapi import Request

from api.broker.threads import Pool
from api.dashboard.topics_table import TopicRow, topic_rows
from api.http.single_flight import SingleFlight
from compactor.scheduling.backlog import BacklogReader
from storage.clock import Clock
from storage.metadata.store import MetadataStore

FEW_TOPICS = 1000
"""The number of topics whose sizes are read for each request: some milliseconds."""
RENEW_AFTER_MS = 5_000
MAX_SIZES_AGE_MS = 60_000
"""The age up to which the sizes of more topics are shared."""


@dataclass(frozen=True)
class TopicSizes:
    """Rows of topics at one moment, by name, with sizes and backlogs, without states.

    Requests share the rows of many topics, and with them what a row has computed once.
    """

    rows: Sequence[TopicRow] = ()
    read_at: int = 0


class TopicSizesCache:
    """A cache of the sizes of all topics; of more than `FEW_TOPICS`, requests share a recent read.

    A read that is older than `RENEW_AFTER_MS` is still shared while the next one runs, up to `MAX_SIZES_AGE_MS`.
    """

    def __init__(self, metadata: MetadataStore, backlogs: BacklogReader, clock: Clock, pool: Pool) -> None:
        """`pool`: its threads read."""
        self._metadata = metadata
        self._backlogs = backlogs
        self._clock = clock
        self._reads: SingleFlight[TopicSizes] = SingleFlight(pool)
        self._last = TopicSizes()
        self._renewal: asyncio.Task[TopicSizes] | None = None

    async def all_sizes(self) -> TopicSizes:
        """Return the sizes of all topics, also of those without a trigger; of more than `FEW_TOPICS`, a recent read."""
        last, age = self._last, self._clock.now_ms() - self._last.read_at
        if len(last.rows) <= FEW_TOPICS or not 0 <= age < MAX_SIZES_AGE_MS:
            return await self._reads.share_call(self._read_all_sizes)
        if age >= RENEW_AFTER_MS and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._reads.share_call(self._read_all_sizes))
            self._renewal.add_done_callback(_ignore_renewal_error)
        return last

    def read_sizes(self, topic_ids: Collection[int]) -> TopicSizes:
        """Read the current sizes of some topics, without deleted ones. Waits for the database."""
        now = self._clock.now_ms()
        return TopicSizes(topic_rows(self._metadata.topics.summaries(topic_ids), self._backlogs.read(topic_ids)), now)

    def _read_all_sizes(self) -> TopicSizes:
        now = self._clock.now_ms()
        backlogs = self._backlogs.read_all()
        self._last = TopicSizes(topic_rows(self._metadata.topics.summaries(), backlogs), now)
        return self._last


def _ignore_renewal_error(renewal: asyncio.Task[TopicSizes]) -> None:
    """Ignore the error of a background renewal: a request after `MAX_SIZES_AGE_MS` waits for its own read and reports
    it."""
    if not renewal.cancelled():
        renewal.exception()


def sizes_cache_of(request: Request) -> TopicSizesCache:
    """Return the cache of topic sizes of the application that received a request."""
    return cast(TopicSizesCache, request.app.state.topic_sizes)
