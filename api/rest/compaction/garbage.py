"""Garbage collection on demand: deleting objects that nothing refers to (A3). A dry run unless `dryRun` is false."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, Field

from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.problems import RestException
from api.http.router import Routes
from api.reports import document_of, shown_error
from api.rest.models import StrictBody
from compactor.maintenance.garbage import CollectionResult, GarbageCollector
from compactor.maintenance.grace import LEAST_GRACE_MS
from storage.model import TopicName

router = Routes("garbage", known_query=True)


class GarbageRequest(StrictBody):
    """The garbage to collect. `topics`: only these; `unknownTopics`: also objects of topics that this database does
    not know; `graceMs`: how long garbage stays, by default the setting gc.grace."""

    dry_run: bool = Field(default=True, description="Say what would be deleted, and change nothing.")
    topics: list[str] | None = Field(default=None, max_length=10_000)
    unknown_topics: bool = False
    grace_ms: int | None = Field(default=None, ge=LEAST_GRACE_MS, le=2**53)


class GarbageTotals(BaseModel):
    """Objects, and their bytes in the store."""

    count: int
    bytes: int


class TopicGarbage(BaseModel):
    """The deletions of one topic, or a dry run's; `topic` null: the database does not know it. `error`: why none took
    place."""

    topic: str | None
    topic_uid: str
    deleted: bool
    objects: dict[str, GarbageTotals]
    attempts_given_up: int
    compacted_ledgers: int
    trimmed_ledgers: int
    foreign: int
    error: str | None


class GarbageReport(BaseModel):
    """Sums, and the topics of which there was something to say."""

    dry_run: bool
    objects: int
    bytes: int
    topics: list[TopicGarbage]


@router.post(
    "/garbage", AuthAction.SUPERUSER, refuses=(404, 412), waits_for=WaitsFor.WORK, response_model=GarbageReport
)
def collect_garbage(broker: Broker, options: Annotated[GarbageRequest, Body()] = GarbageRequest()) -> Any:  # noqa: B008
    """Delete what nothing refers to. A dry run by default."""
    if options.topics is not None and options.unknown_topics:
        raise RestException(400, "topics and unknownTopics do not go together: leave one of them out")
    environment, settings = broker.environment, broker.settings
    grace = settings.gc_grace_ms if options.grace_ms is None else options.grace_ms
    collector = GarbageCollector(broker.patient, grace)
    if options.topics is None:
        results = list(collector.collect_all(options.dry_run, options.unknown_topics))
    else:
        names = [TopicName.parse(name) for name in dict.fromkeys(options.topics)]
        records = [environment.metadata.topics.get(name) for name in names]
        results = [collector.collect(record, options.dry_run) for record in records]
    counted = [item for item in results if item.topic is not None or item.deleted]
    return {
        "dry_run": options.dry_run,
        "objects": sum(item.total.count for item in counted),
        "bytes": sum(item.total.bytes for item in counted),
        "topics": [_shown(item) for item in results if _has_something(item)],
    }


def _has_something(item: CollectionResult) -> bool:
    counts = (item.total.count, item.attempts_given_up, item.compacted_ledgers, item.trimmed_ledgers, item.foreign)
    return any(counts) or item.error is not None


def _shown(item: CollectionResult) -> dict[str, Any]:
    return document_of(
        TopicGarbage,
        item,
        topic=None if item.topic is None else str(item.topic),
        objects={str(kind): {"count": of.count, "bytes": of.bytes} for kind, of in sorted(item.objects.items())},
        error=shown_error(item.error),
    )
