"""The progress of a compaction run as server-sent events, for REST and the dashboard:

    event: progress     data: the run, as GET /admin/v2/compactions/{run} has it; sent after each change
    : still running     a comment, so that no proxy closes a quiet connection
    event: end          data: the run as it ended; the stream ends after it

Events come from the database, so the run may execute in any process. All watchers of a run share its reads.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response, StreamingResponse

from api.http.context import HttpContext
from api.http.dependencies import broker_of
from api.http.single_flight import MAX_AGE_MS
from storage.errors import NotFound
from storage.metadata.records import RunState
from storage.model import TopicName

KEEP_ALIVE_MS = 10_000
"""Interval of comments on a quiet connection."""
EVENTS = "text/event-stream"
_GREATEST_RUN = (1 << 63) - 1
RunId = Annotated[int, Path(ge=1, le=_GREATEST_RUN, description="The run's number.")]


def topic_of_run(request: Request) -> TopicName | None:
    """Return the topic of the compaction run that a request's path names; None if no run has this number."""
    number, metadata = request.path_params["run"], broker_of(request).environment.metadata
    if not re.fullmatch(r"[0-9]{1,18}", number, re.ASCII):
        return None
    try:
        topic: TopicName = metadata.runs.get_with_topic_name(int(number))[0]
    except NotFound:
        return None
    return topic


async def run_events(context: HttpContext, run: int) -> Response:
    """Return a response that streams the progress of a compaction run as server-sent events until the run has ended.
    Raise NotFound."""
    report = await context.runs.report(run)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_event_stream(context, run, report), media_type=EVENTS, headers=headers)


async def _event_stream(context: HttpContext, run: int, run_report: dict[str, Any]) -> AsyncIterator[str]:
    """Yield the events of a run, and comments on a quiet connection, until the run has ended. `run_report`: the
    first."""
    clock = context.broker.environment.clock
    sent: dict[str, Any] | None = None
    number, sent_at = 0, clock.now_ms()
    while run_report["state"] == RunState.RUNNING:
        report = {name: value for name, value in run_report.items() if name != "heartbeat_at"}
        if report != sent:
            sent, sent_at, number = report, clock.now_ms(), number + 1
            yield _event_text("progress", number, run_report)
        elif clock.now_ms() - sent_at >= KEEP_ALIVE_MS:
            sent_at = clock.now_ms()
            yield ": still running\n\n"
        await asyncio.sleep(MAX_AGE_MS / 1000)
        run_report = await context.runs.report(run)
    yield _event_text("end", number + 1, run_report)


def _event_text(kind: str, number: int, run_report: dict[str, Any]) -> str:
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(run_report)}\n\n"
