"""Routes of compaction by hand: the request and its status, as Pulsar has them."""

from __future__ import annotations

from api.broker import compaction, names
from api.http.access import ANY_USE, AuthAction, CallerName, CallerWording
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import reword_errors
from api.http.router import Routes
from api.reports import redacted_error_text
from api.rest.models import PulsarAnswer
from compactor.scheduling.status import CompactionStatus

router = Routes("compaction")


class LongRunningProcessStatus(PulsarAnswer):
    """The status of the newest compaction of a topic."""

    status: CompactionStatus
    last_error: str = ""


@router.put(TOPIC_PATH + "/compaction", AuthAction.COMPACT, refuses=(409,))
def compact(broker: Broker, caller: CallerName, topic: Topic) -> None:
    """Request a compaction of a topic, or of each partition. 409 while one of them is compacted or paused.

    Without new messages the request succeeds, and no run is made.
    """
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
