"""Compaction runs as the database shows them, for many that watch: those who look at one run at a time share a look.

A run executes in any process; what its worker says of it, every two seconds, is in its row.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from api.http.thread_pools import Pool
from api.reports import run_document
from storage.clock import Clock
from storage.metadata.store import MetadataStore

LOOK_MS = 500
"""How old a look may be."""
_MOST = 1000


@dataclass
class _Look:
    """What was seen of one run, when."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: int = -1
    document: dict[str, Any] | None = None


class RunSingleFlight:
    """Looks at runs, each at most every `LOOK_MS`. For the tasks of event loops."""

    def __init__(self, metadata: MetadataStore, clock: Clock, pool: Pool) -> None:
        """`pool`: whose threads look."""
        self._pool = pool
        self._metadata = metadata
        self._clock = clock
        self._looks: dict[tuple[asyncio.AbstractEventLoop, int], _Look] = {}
        self.made = 0
        """Looks at the database."""

    async def look(self, run_id: int) -> dict[str, Any]:
        """The run as it was at most `LOOK_MS` ago, as anyone may know it who may compact its topic. Raises NotFound."""
        place = (asyncio.get_running_loop(), run_id)
        if place not in self._looks and len(self._looks) >= _MOST:
            self._looks.clear()
        one = self._looks.setdefault(place, _Look())
        async with one.lock:
            # Older than that, or of a time that is still to come: the clock was set back.
            if one.document is None or not 0 <= self._clock.now_ms() - one.at < LOOK_MS:
                one.document = await self._pool.run(self._read, run_id)
                one.at = self._clock.now_ms()
            return one.document

    def _read(self, run_id: int) -> dict[str, Any]:
        self.made += 1
        run = self._metadata.runs.get(run_id)
        name = self._metadata.snapshot(run.topic_id).topic.name
        return run_document(name, run, self._clock.now_ms(), in_full=False)
