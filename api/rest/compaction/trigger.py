"""Compaction by hand and its status; of a partitioned topic that of each of its partitions.

A trigger is a request in SQL, so it survives the process that took it; the service that leads executes it. The status
comes from the runs in SQL, and survives as well (S7).
"""

from __future__ import annotations

from api.broker import names
from api.http.access import ANY_USE, AuthAction, CallerName, InFull
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, reported_as
from api.http.router import Routes
from api.reports import shown_error
from api.rest.models import PulsarAnswer
from compactor.scheduling import status
from compactor.scheduling.status import CompactionStatus, StatusAndError
from storage.errors import CompactionRunning, TopicNotFound
from storage.metadata.records import MANUAL
from storage.model import TopicName

router = Routes("compaction")

RUNNING = "Compaction already in progress"


class LongRunningProcessStatus(PulsarAnswer):
    """The status of the newest compaction of a topic."""

    status: CompactionStatus
    last_error: str = ""


@router.put(TOPIC_PATH + "/compaction", AuthAction.COMPACT, refuses=(409,))
def compact(broker: Broker, caller: CallerName, topic: Topic) -> None:
    """Compact a topic, or every partition of one. 409 while it, or any of them, is compacted or paused."""
    with reported_as("Namespace not found"):
        names.namespace(broker.environment, names.namespace_of(topic))
    records = names.topics(broker.environment, topic)
    if len(records) > 1:
        now = {item.id: broker.environment.metadata.compaction_control.activity(item.id) for item in records}
        if any(item.running for item in now.values()):
            raise RestException(409, RUNNING)
        # What refuses does it before anything is triggered.
        records.sort(key=lambda item: not now[item.id].control.paused)
    for record in records:
        try:
            broker.control.trigger(record, MANUAL, caller)
        except CompactionRunning as error:
            raise RestException(409, RUNNING) from error
        except TopicNotFound as error:
            raise names.missing(broker.environment, record.name) from error


@router.get(TOPIC_PATH + "/compaction", *ANY_USE)
def compaction_status(broker: Broker, topic: Topic, in_full: InFull) -> LongRunningProcessStatus:
    """Return the status of compaction; of a partitioned topic RUNNING if any partition is, then ERROR, then NOT_RUN."""
    states = {}
    for record in names.topics(broker.environment, topic):
        state = status.compaction_status(broker.environment.metadata, record.id)
        states[record.name] = StatusAndError(state.status, shown_error(state.last_error, in_full=in_full) or "")
    whole = summed(states)
    return LongRunningProcessStatus(status=whole.status, last_error=whole.last_error)


def summed(states: dict[TopicName, StatusAndError]) -> StatusAndError:
    """Return the status of several topics as one; with several, the error names the topic."""
    if len(states) == 1:
        return next(iter(states.values()))
    for worst in (CompactionStatus.RUNNING, CompactionStatus.ERROR, CompactionStatus.NOT_RUN):
        of_it = {name: state for name, state in states.items() if state.status is worst}
        if of_it:
            errors = [f"{name}: {state.last_error}" for name, state in of_it.items() if state.last_error]
            return StatusAndError(worst, "; ".join(errors))
    return StatusAndError(CompactionStatus.SUCCESS, "")
