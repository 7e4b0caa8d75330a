"""Progress of a compaction run as server-sent events.

    event: progress     data: the run, as GET /admin/v2/compactions/{run} has it; whenever something of it has changed
    : still running     a comment, so that a quiet connection is not taken for a dead one
    event: end          data: the run as it ended; the stream ends behind it, and nowhere else

Events come from the database, so the run may execute in any process; all that watch one run share its reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from api.admin.compaction.runs import RunId, topic_of_run
from api.http.access import Action, allowed_on
from api.http.routes import Routes
from api.http.run_single_flight import MAX_AGE_MS
from api.service import Parts, Service
from storage.metadata.records import RunState

router = Routes("compactions", known_query=True)

KEEP_ALIVE_MS = 10_000
"""How often a quiet connection gets a comment."""
EVENTS = "text/event-stream"


@router.get(
    "/compactions/{run}/events",
    allowed_on(topic_of_run, Action.COMPACT),
    refuses=(404,),
    response_class=Response,
    responses={
        200: {"description": "Events, until the run has ended.", "content": {EVENTS: {"schema": {"type": "string"}}}}
    },
)
async def watch_compaction(parts: Parts, run: RunId) -> Response:
    """Follow a run until it has ended."""
    found = await parts.runs.report(run)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(parts, run, found), media_type=EVENTS, headers=headers)


async def _events(parts: Service, run: int, run_report: dict[str, Any]) -> AsyncIterator[str]:
    clock = parts.environment.clock
    sent: dict[str, Any] | None = None
    number, sent_at = 0, clock.now_ms()
    while run_report["state"] == RunState.RUNNING:
        report = {name: value for name, value in run_report.items() if name != "heartbeat_at"}
        if report != sent:
            sent, sent_at, number = report, clock.now_ms(), number + 1
            yield _event("progress", number, run_report)
        elif clock.now_ms() - sent_at >= KEEP_ALIVE_MS:
            sent_at = clock.now_ms()
            yield ": still running\n\n"
        await asyncio.sleep(MAX_AGE_MS / 1000)
        run_report = await parts.runs.report(run)
    yield _event("end", number + 1, run_report)


def _event(kind: str, number: int, run_report: dict[str, Any]) -> str:
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(run_report)}\n\n"
