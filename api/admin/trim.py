"""Letting old raw ledgers go on demand: as the topic's cleanup policies say, or all before a message (C1, C2, T3).

It is a dry run unless `dryRun` is false. Ledgers are listed no more at once; their objects go with a later garbage
collection, after `file.delete.delay.ms`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, Field

from api.access import Action, allowed
from api.admin import existing
from api.admin.bodies import Strict
from api.documents import trim_document
from api.paths import Topic
from api.places import parse_trim_place
from api.problems import Problem, refusals
from api.query_names import KNOWN_QUERY
from api.routes import Routes
from api.service import Parts
from api.waiting import WaitsFor, waits_for
from compactor.retention import Retention

router = Routes(prefix="/admin/v2", tags=["trim"])


class Trim(Strict):
    """What is to go. `before` (a message id or an offset): all messages before this one; without it, what the cleanup
    policies let go. `force`: also what cursors and compaction still need."""

    before: str | int | None = None
    force: bool = False
    dryRun: bool = Field(default=True, description="Say what would go, and change nothing.")  # noqa: N815


class TrimmedLedger(BaseModel):
    """A ledger that goes, or would."""

    ledger: int
    first_offset: int
    last_offset: int
    messages: int
    logical_bytes: int
    why: str


class Held(BaseModel):
    """The cursor that keeps more from going."""

    cursor: str
    mark_delete: str | None
    mark_delete_offset: int | None
    ledgers: list[TrimmedLedger]
    start_offset: int


class TrimReport(BaseModel):
    """What went, or would; as `compactor topics trim --output json` has it."""

    topic: str
    dry_run: bool
    start_offset: int
    ledgers: list[TrimmedLedger]
    held: Held | None
    tail_left: str | None


@router.post(
    "/persistent/{tenant}/{namespace}/{topic}/trim",
    dependencies=[allowed(Action.ADMIN), KNOWN_QUERY],
    operation_id="trimTopic",
    response_model=list[TrimReport],
    responses=refusals(400, 404, 405, 409, 412, 507),
)
@waits_for(WaitsFor.WORK)
def trim(parts: Parts, topic: Topic, wanted: Annotated[Trim, Body()] = Trim()) -> Any:  # noqa: B008
    """Let raw ledgers of a topic, or of each partition, go. A dry run by default."""
    place = None if wanted.before is None else parse_trim_place(str(wanted.before))
    records = existing.topics(parts, topic)
    components = parts.components
    if place is not None and components.metadata.tenancy.partitioned(topic) is not None:
        raise Problem(405, "Trim before a message is not allowed for a partitioned topic: trim its partitions")
    for record in records:
        parts.forwarding.for_reading(record)
    retention = Retention(components.metadata, parts.patient_store, components.clock, components.log)
    found = []
    for record in records:
        if place is None:
            done = retention.apply(record, dry_run=wanted.dryRun, force=wanted.force)
        else:
            done = retention.trim(record, place, dry_run=wanted.dryRun, force=wanted.force)
        found.append(trim_document(done))
    return found
