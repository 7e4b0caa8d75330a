"""Trimming old raw ledgers on demand: as the topic's cleanup policies say, or all before a message (C1, C2, T3).

Without the query parameter `dryRun` this is Pulsar's call: the policies are applied, and the answer is empty, as
Pulsar's clients wait forever if a call that answers nothing answers a list. With it the answer reports what went, or
would. Ledgers are listed no more at once; their objects go with a later garbage collection, after
`file.delete.delay.ms`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query

from api.broker import names
from api.broker.threads import WaitsFor
from api.documents import TrimReport
from api.formats.position_text import parse_trim_place
from api.http.access import AuthAction, InFull
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, reported_as
from api.http.router import Routes
from api.reports import trim_document
from api.rest.models import StrictBody, done
from compactor.maintenance.retention import Retention

router = Routes("trim", known_query=True)


class TrimRequest(StrictBody):
    """The messages to trim. `before` (a message id or an offset): all messages before this one; without it, those that
    the cleanup policies no longer keep. `force`: also messages that cursors and compaction still need; with a deletion
    that no run has seen, new compacted readers get the deleted key back."""

    before: str | int | None = None
    force: bool = False


DryRun = Annotated[
    bool | None, Query(alias="dryRun", description="Report what would go (true), or let it go and report it (false).")
]


@router.post(
    TOPIC_PATH + "/trim",
    AuthAction.ADMIN,
    refuses=(405, 409),
    waits_for=WaitsFor.WORK,
    response_model=list[TrimReport],
    responses={204: {"description": "Trimmed, as `dryRun` was not given."}},
)
def trim_topic(
    broker: Broker,
    topic: Topic,
    in_full: InFull,
    trim: Annotated[TrimRequest | None, Body()] = None,
    dry_run: DryRun = None,
) -> Any:
    """Let raw ledgers of a topic, or of each partition, go; with `dryRun`, report them, or what would go."""
    if trim is not None and dry_run is None:
        raise RestException(400, "a body needs dryRun in the query: dryRun=true reports, dryRun=false trims")
    trim = trim or TrimRequest()
    place = None if trim.before is None else parse_trim_place(str(trim.before))
    if place is not None:
        with reported_as(
            partitioned="Trim before a message is not allowed for a partitioned topic: trim its partitions"
        ):
            names.check_not_partitioned(broker.environment, topic)
    records = names.local_topics(broker, topic)
    retention = Retention(broker.patient)
    reports = []
    for record in records:
        if place is None:
            trimmed = retention.apply(record, dry_run=bool(dry_run), force=trim.force)
        else:
            trimmed = retention.trim(record, place, dry_run=bool(dry_run), force=trim.force)
        reports.append(trim_document(trimmed, in_full=in_full))
    return done() if dry_run is None else reports
