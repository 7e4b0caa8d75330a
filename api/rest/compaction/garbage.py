"""Route that collects garbage: objects without references (A3). A dry run unless `dryRun` is false."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, Field

from api.broker import compaction
from api.broker.threads import WaitsFor
from api.http.access import AuthAction, CallerWording
from api.http.dependencies import Broker
from api.http.problems import RestException
from api.http.router import Routes
from api.observability.redaction import redacted
from api.reports import document_of
from api.rest.models import StrictBody
from compactor.maintenance.garbage import CollectionResult
from compactor.maintenance.grace import LEAST_GRACE_MS
from storage.advice import NEUTRAL, AdviceWording
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
    """The number of objects, and their bytes in the store."""

    count: int
    bytes: int


class TopicGarbage(BaseModel):
    """The garbage of one topic, deleted or found by a dry run. `topic` null: the database does not know it. `deleted`
    false: nothing was deleted. `error`: the reason if the topic could not be checked."""

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
    """The number of garbage objects and their bytes, and the topics with garbage or an error. `dry_run`: nothing was
    deleted."""

    dry_run: bool
    objects: int
    bytes: int
    topics: list[TopicGarbage]


@router.post(
    "/garbage", AuthAction.SUPERUSER, refuses=(404, 412), waits_for=WaitsFor.WORK, response_model=GarbageReport
)
def collect_garbage(
    broker: Broker,
    wording: CallerWording,
    options: Annotated[GarbageRequest, Body()] = GarbageRequest(),  # noqa: B008
) -> Any:
    """Delete the objects that nothing refers to. A dry run by default."""
    if options.topics is not None and options.unknown_topics:
        raise RestException(400, "topics and unknownTopics do not go together: leave one of them out")
    results = list(
        compaction.collect_garbage(
            broker.long_work_environment,
            broker.settings.gc_grace_ms if options.grace_ms is None else options.grace_ms,
            None if options.topics is None else [TopicName.parse(name) for name in dict.fromkeys(options.topics)],
            unknown_topics=options.unknown_topics,
            dry_run=options.dry_run,
        )
    )
    counted = [item for item in results if item.topic is not None or item.deleted]
    return {
        "dry_run": options.dry_run,
        "objects": sum(item.total.count for item in counted),
        "bytes": sum(item.total.bytes for item in counted),
        "topics": [_garbage_document(item, wording or NEUTRAL) for item in results if _has_garbage_or_error(item)],
    }


def _has_garbage_or_error(item: CollectionResult) -> bool:
    """Return whether the result of a topic is reported: it has garbage, foreign objects or an error."""
    counts = (item.total.count, item.attempts_given_up, item.compacted_ledgers, item.trimmed_ledgers, item.foreign)
    return any(counts) or item.error is not None


def _garbage_document(item: CollectionResult, wording: AdviceWording) -> dict[str, Any]:
    return document_of(
        TopicGarbage,
        item,
        topic=None if item.topic is None else str(item.topic),
        objects={str(kind): document_of(GarbageTotals, totals) for kind, totals in sorted(item.objects.items())},
        error=None if item.error is None else redacted(item.error.worded(wording)),
    )
