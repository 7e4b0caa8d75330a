"""Compaction runs and what decides about them: history, cancelling, the scheduler, pausing and resuming (S5, S7)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import BaseModel

from api.admin import resolve
from api.http.access import Action, InFull, allowed_on
from api.http.paths import TOPIC_PATH, Topic
from api.http.routes import Routes
from api.reports import run_document, shown_error
from api.service import Parts, Service
from storage.errors import NotFound
from storage.metadata.records import CompactionState, RunRecord, RunState, TopicRecord
from storage.model import TopicName

router = Routes("compactions", known_query=True)

MOST_RUNS = 10_000
RunId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The run's number.")]
Limit = Annotated[int, Query(ge=1, le=MOST_RUNS, description="The number of newest runs.")]
State = Annotated[RunState | None, Query(description="Only in this state.")]


def topic_of_run(request: Request) -> TopicName | None:
    """The topic of the run that the path names; None: there is no such run."""
    number, metadata = request.path_params["run"], request.app.state.service.environment.metadata
    if not re.fullmatch(r"[0-9]{1,18}", number, re.ASCII):
        return None
    try:
        found: TopicName = metadata.snapshot(metadata.runs.get(int(number)).topic_id).topic.name
    except NotFound:
        return None
    return found


class Run(BaseModel):
    """A run as `compactor compactions show` has it; times in milliseconds since 1970."""

    run: int
    topic: str
    state: RunState
    cause: str | None
    phase: str
    tasks_done: int | None
    tasks_total: int | None
    bytes_done: int | None
    started_at: int
    heartbeat_at: int
    heartbeat_expired: bool | None
    finished_at: int | None
    error: str | None
    compacted_ledger: int | None
    horizon: str | None
    horizon_offset: int | None
    epoch: int
    attempt: str
    holder: str
    policies: dict[str, Any]
    statistics: dict[str, Any]


class Control(BaseModel):
    """Whether a topic's compaction is wanted, paused (and how many times), or fails; as of one moment."""

    topic: str
    state: str
    requested_at: int | None
    cause: str
    paused: int
    aborting: bool
    failures: int
    retry_at: int | None
    last_error: str


class ServiceState(BaseModel):
    """A service process that lives."""

    name: str
    url: str
    started_at: int
    heartbeat_at: int
    leads: bool


class Scheduler(BaseModel):
    """Who schedules, what waits, what runs, and what fails or is paused."""

    leader: str | None
    services: list[ServiceState]
    queue: list[Control]
    running: list[Run]
    failing: list[Control]
    paused: list[Control]


@router.get(TOPIC_PATH + "/compactions", Action.COMPACT, Action.ADMIN, Action.CONSUME, response_model=list[Run])
def get_topic_compactions(parts: Parts, topic: Topic, in_full: InFull, state: State = None, limit: Limit = 50) -> Any:
    """The runs of a topic, or of all partitions of one, the newest first."""
    records = resolve.topics(parts, topic)
    found: list[tuple[TopicName, RunRecord]] = []
    for record in records:
        found += parts.environment.metadata.runs.newest(limit, topic_id=record.id, state=state)
    found.sort(key=lambda item: -item[1].run_id)
    return _shown(parts, found[:limit], in_full)


@router.get("/compactions", Action.SUPERUSER, response_model=list[Run])
def get_compactions(parts: Parts, state: State = None, limit: Limit = 50) -> Any:
    """The runs of all topics, the newest first."""
    return _shown(parts, parts.environment.metadata.runs.newest(limit, state=state), True)


@router.get("/compactions/scheduler", Action.SUPERUSER)
def get_scheduler(parts: Parts) -> Scheduler:
    """The leader, the services, the queue, and the topics that fail, with their back-off, or are paused."""
    metadata = parts.environment.metadata
    leader = metadata.services.leader()
    names = {record.id: record for record in metadata.topics.all()}
    controls = [(names[one], control) for one, control in metadata.compaction_state.all().items() if one in names]
    running = metadata.runs.newest(MOST_RUNS, state=RunState.RUNNING)
    return Scheduler(
        leader=leader,
        services=[
            ServiceState(
                name=item.name,
                url=item.url,
                started_at=item.started_at,
                heartbeat_at=item.heartbeat_at,
                leads=item.name == leader,
            )
            for item in metadata.services.live()
        ],
        queue=[_control(record, control, True) for record, control in metadata.compaction_state.requests()],
        running=[Run(**item) for item in _shown(parts, running, True)],
        failing=[_control(record, control, True) for record, control in controls if control.failures],
        paused=[_control(record, control, True) for record, control in controls if control.paused],
    )


@router.get("/compactions/{run}", allowed_on(topic_of_run, Action.COMPACT), refuses=(404,), response_model=Run)
def get_compaction(parts: Parts, run: RunId, in_full: InFull) -> Any:
    """One run: how far it is, its policies, its numbers, and why it failed if it did."""
    record = parts.environment.metadata.runs.get(run)
    return _shown(parts, [(parts.environment.metadata.snapshot(record.topic_id).topic.name, record)], in_full)[0]


@router.delete("/compactions/{run}", allowed_on(topic_of_run, Action.COMPACT), refuses=(404, 409))
def cancel_compaction(
    parts: Parts,
    run: RunId,
    reason: Annotated[str, Query(max_length=1000, description="Kept with the run.")] = "cancelled by hand",
) -> None:
    """Cancel a run that is under way: it publishes nothing from now on, and its worker stops within seconds.

    A topic that is still due, because it is over a threshold, is compacted again soon: pause it to keep it from that.
    """
    parts.environment.metadata.runs.cancel(run, reason)


@router.get(TOPIC_PATH + "/compaction/control", Action.COMPACT, Action.ADMIN)
def get_compaction_control(parts: Parts, topic: Topic, in_full: InFull) -> list[Control]:
    """What is wanted of the compaction of a topic, or of each of its partitions."""
    return [_now(parts, record, in_full) for record in resolve.topics(parts, topic)]


@router.post(TOPIC_PATH + "/compaction/pause", Action.COMPACT, Action.ADMIN)
def pause_compaction(parts: Parts, topic: Topic, in_full: InFull) -> list[Control]:
    """Stop a run that is under way and make none until it is resumed, as many times as it was paused (S5).

    Of a partitioned topic all partitions are paused, or none.
    """
    records = resolve.topics(parts, topic)
    created = parts.environment.metadata.compaction_state.pause_all([record.id for record in records])
    return [_control(record, one, in_full) for record, one in zip(records, created, strict=True)]


@router.post(TOPIC_PATH + "/compaction/resume", Action.COMPACT, Action.ADMIN, refuses=(409,))
def resume_compaction(parts: Parts, topic: Topic, in_full: InFull) -> list[Control]:
    """Take back one pause of each partition that is paused, or of none. 409 for a topic that is not paused."""
    records = resolve.topics(parts, topic)
    created = parts.environment.metadata.compaction_state.resume_all([record.id for record in records])
    return [_control(record, one, in_full) for record, one in zip(records, created, strict=True)]


@router.post(TOPIC_PATH + "/compaction/abort", Action.COMPACT, Action.ADMIN, refuses=(409,))
def abort_compaction(parts: Parts, topic: Topic, in_full: InFull) -> list[Control]:
    """Stop a run that is under way, and drop the request for one; later ones are made as before."""
    records = resolve.topics(parts, topic)
    created = parts.environment.metadata.compaction_state.abort_all([record.id for record in records])
    return [_control(record, one, in_full) for record, one in zip(records, created, strict=True)]


def _shown(parts: Service, runs: list[tuple[TopicName, RunRecord]], in_full: bool) -> list[dict[str, Any]]:
    now = parts.environment.clock.now_ms()
    return [run_document(name, record, now, in_full=in_full) for name, record in runs]


def _now(parts: Service, topic: TopicRecord, in_full: bool) -> Control:
    found = parts.environment.metadata.compaction_state.activity(topic.id)
    return _control(topic, found.control, in_full, found.running)


def _control(topic: TopicRecord, control: CompactionState, in_full: bool, running: bool = False) -> Control:
    state = f"Paused({control.paused})" if control.paused else "None"
    if control.aborting:
        state = "Aborted"
    elif running or control.requested_at is not None:
        state = "InProgress"
    return Control(
        topic=str(topic.name),
        state=state,
        requested_at=control.requested_at,
        cause=control.cause,
        paused=control.paused,
        aborting=control.aborting,
        failures=control.failures,
        retry_at=control.retry_at,
        last_error=shown_error(control.last_error, in_full=in_full) or "",
    )
