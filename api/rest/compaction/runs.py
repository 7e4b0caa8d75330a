"""Routes of compaction runs: history, cancelling, events, the scheduler; pauses (S5, S7) and verification."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from api.broker import compaction
from api.broker.compaction import MOST_RUNS, TopicControl
from api.broker.threads import WaitsFor
from api.documents import CompactionControlReport, RunReport, SchedulerStatus, VerifyReport
from api.http.access import AuthAction, CallerWording, topic_permission_check
from api.http.context import Context
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.router import Routes
from api.http.run_events import EVENTS, RunId, run_events, topic_of_run
from api.reports import compaction_control_document, run_document, scheduler_document, verify_document
from storage.advice import AdviceWording
from storage.metadata.records import RunRecord, RunState
from storage.model import TopicName

router = Routes("compactions", known_query=True)

CONTROL = (AuthAction.COMPACT, AuthAction.ADMIN)
Controls = list[CompactionControlReport]
Limit = Annotated[int, Query(ge=1, le=MOST_RUNS, description="The number of newest runs.")]
State = Annotated[RunState | None, Query(description="Only in this state.")]


@router.get(TOPIC_PATH + "/compactions", *CONTROL, AuthAction.CONSUME, response_model=list[RunReport])
def get_topic_compactions(
    broker: Broker, topic: Topic, wording: CallerWording, state: State = None, limit: Limit = 50
) -> Any:
    """Return the compaction runs of a topic, or of all partitions of a partitioned topic, the newest first."""
    return _run_documents(broker, compaction.runs(broker.environment, limit, state, topic), wording)


@router.get("/compactions", AuthAction.SUPERUSER, response_model=list[RunReport])
def get_compactions(broker: Broker, wording: CallerWording, state: State = None, limit: Limit = 50) -> Any:
    """Return the compaction runs of all topics, the newest first."""
    return _run_documents(broker, compaction.runs(broker.environment, limit, state), wording)


@router.get("/compactions/scheduler", AuthAction.SUPERUSER, response_model=SchedulerStatus)
def get_scheduler(broker: Broker, wording: CallerWording) -> Any:
    """Return the state of the scheduler of compactions: the leader, the services, the queue, the topics that fail, with
    their back-off, and those that are paused."""
    return scheduler_document(
        compaction.scheduler_state(broker.environment), broker.environment.clock.now_ms(), wording
    )


@router.get(
    "/compactions/{run}",
    topic_permission_check(topic_of_run, AuthAction.COMPACT),
    refuses=(404,),
    response_model=RunReport,
)
def get_compaction(broker: Broker, run: RunId, wording: CallerWording) -> Any:
    """Return one compaction run: its progress, its policies, its statistics, and the reason if it failed."""
    return _run_documents(broker, [broker.environment.metadata.runs.get_with_topic_name(run)], wording)[0]


@router.delete("/compactions/{run}", topic_permission_check(topic_of_run, AuthAction.COMPACT), refuses=(404, 409))
def cancel_compaction(
    broker: Broker,
    run: RunId,
    reason: Annotated[str, Query(max_length=1000, description="Kept with the run.")] = "cancelled by hand",
) -> None:
    """Cancel an active compaction run: it publishes nothing from now on, and its worker stops within seconds.

    A topic that is still due, because it is over a threshold, is compacted again soon: a pause prevents that.
    """
    broker.environment.metadata.runs.cancel(run, reason)


@router.get(TOPIC_PATH + "/compaction/control", *CONTROL, response_model=Controls)
def get_compaction_control(broker: Broker, topic: Topic, wording: CallerWording) -> Any:
    """Return the state of compaction of a topic, or of each partition: pauses, request, active run, failures."""
    return _control_documents(compaction.controls(broker.environment, topic), wording)


@router.post(TOPIC_PATH + "/compaction/pause", *CONTROL, response_model=Controls)
def pause_compaction(broker: Broker, topic: Topic, wording: CallerWording) -> Any:
    """Pause compaction: end the active run, and start none until each pause is undone (S5).

    All partitions are paused, or none. Pauses are counted.
    """
    return _control_documents(compaction.pause(broker.environment, topic), wording)


@router.post(TOPIC_PATH + "/compaction/resume", *CONTROL, refuses=(409,), response_model=Controls)
def resume_compaction(broker: Broker, topic: Topic, wording: CallerWording) -> Any:
    """Undo one pause of each paused partition, all or nothing.

    409 if none is paused, or if a run that was aborted has not stopped yet.
    """
    return _control_documents(compaction.resume(broker.environment, topic), wording)


@router.post(TOPIC_PATH + "/compaction/abort", *CONTROL, refuses=(409,), response_model=Controls)
def abort_compaction(broker: Broker, topic: Topic, wording: CallerWording) -> Any:
    """End the active run of a topic, or of each partition, and withdraw its request. Later requests are executed."""
    return _control_documents(compaction.abort(broker.environment, topic), wording)


@router.get(
    "/compactions/{run}/events",
    topic_permission_check(topic_of_run, AuthAction.COMPACT),
    refuses=(404,),
    response_class=Response,
    responses={
        200: {"description": "Events, until the run has ended.", "content": {EVENTS: {"schema": {"type": "string"}}}}
    },
)
async def watch_compaction(context: Context, run: RunId) -> Response:
    """Return the progress of a compaction run as server-sent events until it has ended."""
    return await run_events(context, run)


@router.post(
    TOPIC_PATH + "/compaction/verify",
    *CONTROL,
    refuses=(409,),
    waits_for=WaitsFor.WORK,
    response_model=list[VerifyReport],
)
def verify_topic(broker: Broker, topic: Topic, wording: CallerWording) -> Any:
    """Verify a topic, or each partition, and return a report of the findings. 409 while this service verifies another
    topic.

    Reads all objects of the topic, and changes nothing. The report is that of `compactor verify --output json`.
    """
    return [verify_document(report, wording=wording) for report in compaction.verify(broker, topic)]


def _run_documents(
    broker: Broker, runs: list[tuple[TopicName, RunRecord]], wording: AdviceWording | None
) -> list[dict[str, Any]]:
    now = broker.environment.clock.now_ms()
    return [run_document(name, record, now, wording=wording) for name, record in runs]


def _control_documents(states: list[TopicControl], wording: AdviceWording | None) -> list[dict[str, Any]]:
    return [compaction_control_document(item, wording=wording) for item in states]
