"""Compaction runs and what decides about them: history, cancelling, the scheduler, pausing and resuming (S5, S7).

The progress of a run comes as server-sent events:

    event: progress     data: the run, as GET /admin/v2/compactions/{run} has it; whenever something of it has changed
    : still running     a comment, so that a quiet connection is not taken for a dead one
    event: end          data: the run as it ended; the stream ends behind it, and nowhere else

Events come from the database, so the run may execute in any process; all that watch one run share its reads.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from api.broker import names
from api.documents import RunReport
from api.http.access import AuthAction, InFull, allowed_on
from api.http.context import Context
from api.http.dependencies import Broker, broker_of
from api.http.paths import TOPIC_PATH, Topic
from api.http.router import Routes
from api.http.single_flight import MAX_AGE_MS
from api.reports import document_of, run_document, shown_error
from api.rest.models import LONG
from storage.errors import NotFound
from storage.metadata.records import CompactionControl, RunRecord, RunState, TopicRecord
from storage.model import TopicName

router = Routes("compactions", known_query=True)

MOST_RUNS = 10_000
KEEP_ALIVE_MS = 10_000
"""How often a quiet connection gets a comment."""
EVENTS = "text/event-stream"
RunId = Annotated[int, Path(ge=1, le=LONG, description="The run's number.")]
Limit = Annotated[int, Query(ge=1, le=MOST_RUNS, description="The number of newest runs.")]
State = Annotated[RunState | None, Query(description="Only in this state.")]


def topic_of_run(request: Request) -> TopicName | None:
    """Return the topic of the run that the path names; None: the run does not exist."""
    number, metadata = request.path_params["run"], broker_of(request).environment.metadata
    if not re.fullmatch(r"[0-9]{1,18}", number, re.ASCII):
        return None
    try:
        topic: TopicName = metadata.runs.named(int(number))[0]
    except NotFound:
        return None
    return topic


class CompactionControlReport(BaseModel):
    """The control of a topic's compaction at one moment: requested, paused (and how many times), or failing."""

    topic: str
    state: str
    requested_at: int | None
    cause: str
    paused: int
    aborting: bool
    failures: int
    retry_at: int | None
    last_error: str


class LiveService(BaseModel):
    """A service process that lives."""

    name: str
    url: str
    started_at: int
    heartbeat_at: int
    leads: bool


class SchedulerStatus(BaseModel):
    """The scheduler: its leader, the queue, the runs, and the topics that fail or are paused."""

    leader: str | None
    services: list[LiveService]
    queue: list[CompactionControlReport]
    running: list[RunReport]
    failing: list[CompactionControlReport]
    paused: list[CompactionControlReport]


@router.get(
    TOPIC_PATH + "/compactions",
    AuthAction.COMPACT,
    AuthAction.ADMIN,
    AuthAction.CONSUME,
    response_model=list[RunReport],
)
def get_topic_compactions(broker: Broker, topic: Topic, in_full: InFull, state: State = None, limit: Limit = 50) -> Any:
    """The runs of a topic, or of all partitions of one, the newest first."""
    topic_ids = [record.id for record in names.topics(broker.environment, topic)]
    return _shown(broker, broker.environment.metadata.runs.newest(limit, topic_ids=topic_ids, state=state), in_full)


@router.get("/compactions", AuthAction.SUPERUSER, response_model=list[RunReport])
def get_compactions(broker: Broker, state: State = None, limit: Limit = 50) -> Any:
    """The runs of all topics, the newest first."""
    return _shown(broker, broker.environment.metadata.runs.newest(limit, state=state), True)


@router.get("/compactions/scheduler", AuthAction.SUPERUSER)
def get_scheduler(broker: Broker) -> SchedulerStatus:
    """The leader, the services, the queue, and the topics that fail, with their back-off, or are paused."""
    metadata = broker.environment.metadata
    leader = metadata.services.leader()
    names = {record.id: record for record in metadata.topics.all()}
    controls = [(names[key], control) for key, control in metadata.compaction_control.all().items() if key in names]
    running = metadata.runs.newest(MOST_RUNS, state=RunState.RUNNING)
    return SchedulerStatus(
        leader=leader,
        services=[
            LiveService(**document_of(LiveService, item, leads=item.name == leader))
            for item in metadata.services.live()
        ],
        queue=[_control(record, control, True) for record, control in metadata.compaction_control.requests()],
        running=[RunReport(**item) for item in _shown(broker, running, True)],
        failing=[_control(record, control, True) for record, control in controls if control.failures],
        paused=[_control(record, control, True) for record, control in controls if control.paused],
    )


@router.get(
    "/compactions/{run}", allowed_on(topic_of_run, AuthAction.COMPACT), refuses=(404,), response_model=RunReport
)
def get_compaction(broker: Broker, run: RunId, in_full: InFull) -> Any:
    """One run: how far it is, its policies, its numbers, and why it failed if it did."""
    return _shown(broker, [broker.environment.metadata.runs.named(run)], in_full)[0]


@router.delete("/compactions/{run}", allowed_on(topic_of_run, AuthAction.COMPACT), refuses=(404, 409))
def cancel_compaction(
    broker: Broker,
    run: RunId,
    reason: Annotated[str, Query(max_length=1000, description="Kept with the run.")] = "cancelled by hand",
) -> None:
    """Cancel a run that is under way: it publishes nothing from now on, and its worker stops within seconds.

    A topic that is still due, because it is over a threshold, is compacted again soon: pause it to keep it from that.
    """
    broker.environment.metadata.runs.cancel(run, reason)


@router.get(TOPIC_PATH + "/compaction/control", AuthAction.COMPACT, AuthAction.ADMIN)
def get_compaction_control(broker: Broker, topic: Topic, in_full: InFull) -> list[CompactionControlReport]:
    """Return the control of the compaction of a topic, or of each of its partitions."""
    return [_now(broker, record, in_full) for record in names.topics(broker.environment, topic)]


@router.post(TOPIC_PATH + "/compaction/pause", AuthAction.COMPACT, AuthAction.ADMIN)
def pause_compaction(broker: Broker, topic: Topic, in_full: InFull) -> list[CompactionControlReport]:
    """Stop a run that is under way and make none until it is resumed, as many times as it was paused (S5).

    Of a partitioned topic all partitions are paused, or none.
    """
    records = names.topics(broker.environment, topic)
    controls = broker.environment.metadata.compaction_control.pause([record.id for record in records])
    return [_control(record, control, in_full) for record, control in zip(records, controls, strict=True)]


@router.post(TOPIC_PATH + "/compaction/resume", AuthAction.COMPACT, AuthAction.ADMIN, refuses=(409,))
def resume_compaction(broker: Broker, topic: Topic, in_full: InFull) -> list[CompactionControlReport]:
    """Take back one pause of each partition that is paused, or of none. 409 for a topic that is not paused."""
    records = names.topics(broker.environment, topic)
    controls = broker.environment.metadata.compaction_control.resume([record.id for record in records])
    return [_control(record, control, in_full) for record, control in zip(records, controls, strict=True)]


@router.post(TOPIC_PATH + "/compaction/abort", AuthAction.COMPACT, AuthAction.ADMIN, refuses=(409,))
def abort_compaction(broker: Broker, topic: Topic, in_full: InFull) -> list[CompactionControlReport]:
    """Stop a run that is under way, and drop the request for one; later ones are made as before."""
    records = names.topics(broker.environment, topic)
    controls = broker.environment.metadata.compaction_control.abort([record.id for record in records])
    return [_control(record, control, in_full) for record, control in zip(records, controls, strict=True)]


@router.get(
    "/compactions/{run}/events",
    allowed_on(topic_of_run, AuthAction.COMPACT),
    refuses=(404,),
    response_class=Response,
    responses={
        200: {"description": "Events, until the run has ended.", "content": {EVENTS: {"schema": {"type": "string"}}}}
    },
)
async def watch_compaction(context: Context, run: RunId) -> Response:
    """Follow a run until it has ended."""
    report = await context.runs.report(run)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(context, run, report), media_type=EVENTS, headers=headers)


def _shown(broker: Broker, runs: list[tuple[TopicName, RunRecord]], in_full: bool) -> list[dict[str, Any]]:
    now = broker.environment.clock.now_ms()
    return [run_document(name, record, now, in_full=in_full) for name, record in runs]


def _now(broker: Broker, topic: TopicRecord, in_full: bool) -> CompactionControlReport:
    activity = broker.environment.metadata.compaction_control.activity(topic.id)
    return _control(topic, activity.control, in_full, activity.running)


def _control(
    topic: TopicRecord, control: CompactionControl, in_full: bool, running: bool = False
) -> CompactionControlReport:
    state = f"Paused({control.paused})" if control.paused else "None"
    if control.aborting:
        state = "Aborted"
    elif running or control.requested_at is not None:
        state = "InProgress"
    error = shown_error(control.last_error, in_full=in_full) or ""
    return CompactionControlReport(
        **document_of(CompactionControlReport, control, topic=str(topic.name), state=state, last_error=error)
    )


async def _events(context: Context, run: int, run_report: dict[str, Any]) -> AsyncIterator[str]:
    clock = context.broker.environment.clock
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
        run_report = await context.runs.report(run)
    yield _event("end", number + 1, run_report)


def _event(kind: str, number: int, run_report: dict[str, Any]) -> str:
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(run_report)}\n\n"
