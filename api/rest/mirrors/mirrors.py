"""Routes of mirrors of Kafka's topics: add, list, show, pause, resume and remove them.

All are for superusers: a mirror makes the service connect to any host, with a password from its environment or files.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field

from api.broker.mirroring import operations
from api.broker.mirroring.source import MirrorOptions, MirrorSource
from api.broker.threads import WaitsFor
from api.documents import MirrorReport
from api.formats.inputs import EmptyValues
from api.http.access import AuthAction, CallerWording
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.router import Routes
from api.reports import mirror_document
from api.rest.models import StrictBody

router = Routes("mirrors", known_query=True)


class NewMirror(StrictBody):
    """A mirror to add. `source`: kafka://host:9092/topic, with more brokers after commas. `tlsCa`: a PEM file; `sasl`:
    PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; `passwordFrom`: env:NAME or file:/path, of the services. `emptyValues`:
    refuse stops at an empty value of a key, delete lets it delete the key."""

    source: str = Field(max_length=2_000)
    tls: bool = False
    tls_ca: str = Field(default="", max_length=4_000)
    sasl: str = ""
    username: str = Field(default="", max_length=1_000)
    password_from: str = Field(default="", max_length=4_000)
    empty_values: str = EmptyValues.REFUSE.value


class ResumeMirror(StrictBody):
    """Options with which a mirror continues. `emptyValues`: as of a new one, from now on; `acceptGaps`: without the
    records that Kafka removed before they were mirrored."""

    empty_values: str | None = None
    accept_gaps: bool = False


@router.get("/mirrors", AuthAction.SUPERUSER, response_model=list[MirrorReport])
def list_mirrors(broker: Broker, wording: CallerWording) -> Any:
    """Return all mirrors of Kafka's topics."""
    return [mirror_document(mirror, wording=wording) for mirror in operations.all_mirrors(broker.environment)]


@router.put(
    TOPIC_PATH + "/mirror",
    AuthAction.SUPERUSER,
    refuses=(409,),
    waits_for=WaitsFor.WORK,
    response_model=MirrorReport,
)
def add_mirror(broker: Broker, topic: Topic, wording: CallerWording, mirror: Annotated[NewMirror, Body()]) -> Any:
    """Add a mirror of a topic in Kafka, which must answer now. The topic is created here with its partitions."""
    options = MirrorOptions(**mirror.model_dump(exclude={"source"}))
    added = operations.add(broker.environment, MirrorSource.parse(mirror.source, options), topic)
    return mirror_document(added, wording=wording)


@router.get(TOPIC_PATH + "/mirror", AuthAction.SUPERUSER, response_model=MirrorReport)
def get_mirror(broker: Broker, topic: Topic, wording: CallerWording) -> Any:
    """Return the mirror of a topic, and its partitions."""
    return mirror_document(operations.get(broker.environment, topic), wording=wording)


@router.post(TOPIC_PATH + "/mirror/pause", AuthAction.SUPERUSER)
def pause_mirror(broker: Broker, topic: Topic) -> None:
    """Pause the mirror of a topic."""
    operations.pause(broker.environment, topic)


@router.post(TOPIC_PATH + "/mirror/resume", AuthAction.SUPERUSER)
def resume_mirror(broker: Broker, topic: Topic, resume: Annotated[ResumeMirror | None, Body()] = None) -> None:
    """Resume the mirror of a topic that is paused or has stopped at an error."""
    request = resume or ResumeMirror()
    options = {} if request.empty_values is None else {"empty_values": request.empty_values}
    operations.resume(broker.environment, topic, options, accept_gaps=request.accept_gaps)


@router.delete(TOPIC_PATH + "/mirror", AuthAction.SUPERUSER)
def remove_mirror(broker: Broker, topic: Topic) -> None:
    """Remove the mirror of a topic; the topic stays."""
    operations.remove(broker.environment, topic)
