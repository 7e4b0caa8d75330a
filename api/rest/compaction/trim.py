"""Route that trims old raw ledgers: those that the cleanup policies allow, or all before a message (C1, C2, T3).

Without the query parameter `dryRun` this is Pulsar's call: the policies are applied, and the answer is empty, because
Pulsar's clients wait forever for the end of a list where they expect no content. With it the answer reports the ledgers
that were trimmed, or would be.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query

from api.broker import compaction
from api.broker.threads import WaitsFor
from api.documents import TrimReport
from api.formats.position_text import parse_trim_position
from api.http.access import AuthAction, CallerWording
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, reword_errors
from api.http.router import Routes
from api.reports import trim_document
from api.rest.models import StrictBody, no_content_response

router = Routes("trim", known_query=True)


class TrimRequest(StrictBody):
    """The messages to trim. `before` (a message id or an offset): all messages before this one; without it, those that
    the cleanup policies no longer keep. `force`: also messages that cursors and compaction still need; with a deletion
    that no run has seen, new compacted readers get the deleted key back. Also while the compacted ledger cannot be
    read, when raw has the only copy; else that answers 507."""

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
    wording: CallerWording,
    trim: Annotated[TrimRequest | None, Body()] = None,
    dry_run: DryRun = None,
) -> Any:
    """Trim raw ledgers of a topic, or of each partition. With `dryRun` report them; `dryRun=true` trims nothing."""
    if trim is not None and dry_run is None:
        raise RestException(400, "a body needs dryRun in the query: dryRun=true reports, dryRun=false trims")
    trim = trim or TrimRequest()
    before = None if trim.before is None else parse_trim_position(str(trim.before))
    with reword_errors(partitioned="Trim before a message is not allowed for a partitioned topic: trim its partitions"):
        trimmed = compaction.trim(broker, topic, before, dry_run=bool(dry_run), force=trim.force)
    return no_content_response() if dry_run is None else [trim_document(result, wording=wording) for result in trimmed]
