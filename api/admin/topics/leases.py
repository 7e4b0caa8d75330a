"""Releasing the writer's lease of a topic whose owner died on another machine, before its TTL is over.

It is a dry run unless `dryRun` is false. An owner that lives all the same is fenced.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, Field

from api.admin import resolve
from api.admin.models import Strict
from api.http.access import Action
from api.http.paths import TOPIC_PATH, Topic
from api.http.routes import Routes
from api.service import Parts

router = Routes("topics", known_query=True)


class ReleaseLease(Strict):
    """`force`: also the lease of an owner that is known to be alive."""

    force: bool = False
    dry_run: bool = Field(default=True, description="Say who owns it, and change nothing.")


class LeaseReport(BaseModel):
    """The lease that was, or would be, released. `owner` and `expires_at` (ms since 1970) null: no process owned it."""

    topic: str
    dry_run: bool
    owner: str | None
    expires_at: int | None


@router.post(TOPIC_PATH + "/release-lease", Action.ADMIN, refuses=(409,), response_model=list[LeaseReport])
def release_lease(parts: Parts, topic: Topic, wanted: Annotated[ReleaseLease, Body()] = ReleaseLease()) -> Any:  # noqa: B008
    """Release the writer's lease of a topic, or of each partition. A dry run by default."""
    found = []
    for record in resolve.topics(parts, topic):
        lease = parts.environment.metadata.leases.end(record.id, force=wanted.force, dry_run=wanted.dry_run)
        owner, until = (None, None) if lease is None else (lease.owner, lease.expires_at)
        found.append(LeaseReport(topic=str(record.name), dry_run=wanted.dry_run, owner=owner, expires_at=until))
    return found
