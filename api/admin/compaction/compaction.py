"""Compaction by hand and its status; of a partitioned topic that of each of its partitions.

A trigger is a request in SQL, so it survives whatever process took it; the service that leads executes it. The status
comes from the runs in SQL, and survives as well (S7).
"""

from __future__ import annotations

from pydantic import BaseModel
from starlette.responses import Response

from api.admin import resolve
from api.admin.models import done
from api.http.access import (
    Action,
    CallerName,
    InFull,
    allowed,
)
from api.http.paths import Topic
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.reports import shown_error
from api.service import Parts, Service
from compactor.scheduling.status import CompactionStatus, StatusAndError, compaction_status
from storage.errors import CompactionRunning, TopicNotFound
from storage.metadata.records import TopicRecord
from storage.model import TopicName

router = Routes(prefix="/admin/v2", tags=["compaction"])

RUNNING = "Compaction already in progress"
MANUAL = "manual"
"""The cause of a run that somebody asked for."""


class LongRunningProcessStatus(BaseModel):
    """How the newest compaction of a topic stands."""

    status: CompactionStatus
    lastError: str = ""  # noqa: N815


@router.put(
    "/persistent/{tenant}/{namespace}/{topic}/compaction",
    dependencies=[allowed(Action.COMPACT)],
    operation_id="compact",
    status_code=204,
    responses=refusals(404, 409, 412),
)
def compact(parts: Parts, caller: CallerName, topic: Topic) -> Response:
    """Compact a topic, or every partition of one. 409 while it, or any of them, is compacted or paused."""
    resolve.namespace(parts, resolve.namespace_of(topic), "Namespace not found")
    records = resolve.topics(parts, topic)
    if len(records) > 1:
        now = {one.id: parts.components.metadata.compaction_state.activity(one.id) for one in records}
        if any(one.running for one in now.values()):
            raise Problem(409, RUNNING)
        # What refuses does it before anything is triggered.
        records.sort(key=lambda one: not now[one.id].control.paused)
    for record in records:
        try:
            parts.control.trigger(record, MANUAL, caller)
        except CompactionRunning as error:
            raise Problem(409, RUNNING) from error
        except TopicNotFound as error:
            raise resolve.not_found(parts, record.name) from error
    return done()


@router.get(
    "/persistent/{tenant}/{namespace}/{topic}/compaction",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="compactionStatus",
    responses=refusals(404, 412),
)
def status(parts: Parts, topic: Topic, in_full: InFull) -> LongRunningProcessStatus:
    """How compaction stands; of a partitioned topic: RUNNING if any partition is, then ERROR, then NOT_RUN."""
    found = {}
    for record in resolve.topics(parts, topic):
        one = _status(parts, record)
        found[record.name] = StatusAndError(one.status, shown_error(one.last_error, in_full=in_full) or "")
    whole = summed(found)
    return LongRunningProcessStatus(status=whole.status, lastError=whole.last_error)


def summed(found: dict[TopicName, StatusAndError]) -> StatusAndError:
    """The status of several topics as one; with several, the error says whose it is."""
    if len(found) == 1:
        return next(iter(found.values()))
    for worst in (CompactionStatus.RUNNING, CompactionStatus.ERROR, CompactionStatus.NOT_RUN):
        of_it = {name: one for name, one in found.items() if one.status is worst}
        if of_it:
            errors = [f"{name}: {one.last_error}" for name, one in of_it.items() if one.last_error]
            return StatusAndError(worst, "; ".join(errors))
    return StatusAndError(CompactionStatus.SUCCESS, "")


def _status(parts: Service, record: TopicRecord) -> StatusAndError:
    return compaction_status(parts.components.metadata, record.id)
