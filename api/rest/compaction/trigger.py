"""Routes of compaction by hand: the request and its status, as Pulsar has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from api.broker import compaction, names, source_compaction
from api.broker.threads import WaitsFor
from api.documents import RunReport
from api.formats.position_text import parse_source_position
from api.http.access import ANY_USE, AuthAction, CallerName, CallerWording
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import reword_errors
from api.http.router import Routes
from api.reports import redacted_error_text, run_document
from api.rest.models import PulsarAnswer, no_content_response
from compactor.scheduling.status import CompactionStatus
from storage.model import TopicName

router = Routes("compaction")


class LongRunningProcessStatus(PulsarAnswer):
    """The status of the newest compaction of a topic."""

    status: CompactionStatus
    last_error: str = ""


class RequestedCompaction(BaseModel):
    """The state of a compaction up to a position of the source. `request`: the value with which to ask again. `run`:
    the newest run since the first call, as `compactor compactions show` has it. `error`: why the status is ERROR."""

    status: CompactionStatus
    request: str
    run: RunReport | None
    error: str | None


@router.put(
    TOPIC_PATH + "/compaction",
    AuthAction.COMPACT,
    refuses=(400, 405, 409, 507),
    response_model=RequestedCompaction,
    responses={204: {"description": "Requested, as `upto` was not given."}},
)
async def compact(
    broker: Broker,
    caller: CallerName,
    topic: Topic,
    wording: CallerWording,
    upto: Annotated[
        str | None,
        Query(description="All entries of the source cluster up to this position of it, `ledger:entry`, are here."),
    ] = None,
    request: Annotated[str | None, Query(description="With `upto`: that of the first answer, to ask again.")] = None,
    retain_null_key: Annotated[
        bool,
        Query(
            alias="retain-null-key",
            description="With `upto`: set the topic's policy `compaction.retain-null-key`; false: leave it as it is.",
        ),
    ] = False,
) -> Response:
    """Request a compaction of a topic, or of each partition. 409 while one of them is compacted or paused.

    Without new messages the request succeeds, and no run is made. With `upto`, of a replicated topic, the answer is the
    state of the request. A run that is under way is joined then. Ask again with `request` until it is not RUNNING.
    """
    pools = broker.pools
    if upto is None:
        await pools[WaitsFor.DATABASE].run(_trigger_compaction, broker, topic, caller)
        return no_content_response()
    position = parse_source_position(upto)
    state = await pools[WaitsFor.STORE].run(
        source_compaction.compact_up_to, broker, topic, position, request, caller, retain_null_key
    )
    run = None
    if state.run is not None:
        run = run_document(topic, state.run, broker.environment.clock.now_ms(), wording=wording)
    error = redacted_error_text(state.error, wording=wording)
    return JSONResponse({"status": state.status, "request": state.request, "run": run, "error": error or None})


def _trigger_compaction(broker: Broker, topic: TopicName, caller: str) -> None:
    """Request a compaction of a topic, or of each partition. Raise RestException (404) without its namespace."""
    with reword_errors("Namespace not found"):
        names.namespace(broker.environment, names.namespace_of(topic))
    compaction.trigger(broker, topic, caller)


@router.get(TOPIC_PATH + "/compaction", *ANY_USE)
def compaction_status(broker: Broker, topic: Topic, wording: CallerWording) -> LongRunningProcessStatus:
    """Return the status of the newest compaction of a topic.

    A partitioned topic has RUNNING if a partition has it, else ERROR, else NOT_RUN, else SUCCESS.
    """
    status, error = compaction.status(broker.environment, topic)
    return LongRunningProcessStatus(status=status, last_error=redacted_error_text(error, wording=wording) or "")
