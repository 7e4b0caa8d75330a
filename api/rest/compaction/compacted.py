"""Routes of the compacted ledger of replicated topics, by positions of the source cluster: for brokers there (PIP-278).

A broker that keeps a topic and replicates it here reads its compacted entries, which it delivers in place of its own
(integrations/pulsar-compaction). A page of entries is binary: of each entry its ledger id (8 bytes, big-endian), its
entry id (8), the length of its bytes (4), and its bytes, as a producer sends them. The header `X-Compactor-Generation`
names the generation that was read. `X-Compactor-Last: true`, or an empty page, means that no entry is left after it up
to the horizon.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel
from starlette.responses import Response

from api.broker import source_compaction
from api.broker.source_compaction import PAGE_BYTES, PAGE_ENTRIES
from api.broker.threads import WaitsFor
from api.formats.position_text import parse_source_position
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.router import Routes
from api.rest.models import LONG
from storage.model import SourcePosition
from storage.reading.source_reader import SourceMessage

router = Routes("compacted", known_query=True)

GENERATION = "X-Compactor-Generation"
LAST = "X-Compactor-Last"
_ENTRIES = "application/octet-stream"
Horizon = Annotated[
    str | None, Query(description="The caller's horizon, `ledger:entry`; entries end there. 409 if it is not known.")
]
Generation = Annotated[
    int | None,
    Query(ge=1, le=LONG, description="The caller's generation: it is read while it exists. 409 if it is not known."),
]


class LastMessage(BaseModel):
    """The last message of a compacted ledger. `position`: of its entry at the source. `batch_index` -1: in no batch, or
    alone in one."""

    position: str
    batch_index: int
    publish_time: int


class CompactedView(BaseModel):
    """The compacted ledger of a replicated topic. `horizon`: the last entry of the source that it covers. `generation`
    0, `horizon` null: the topic was never compacted. `last_message` null: it has no message. `first`: the first entry
    of the source that was ever stored here; null: raw messages were trimmed, or there is none."""

    generation: int
    horizon: str | None
    last_message: LastMessage | None
    first: str | None
    messages: int
    logical_bytes: int
    stored_bytes: int


class EntryPosition(BaseModel):
    """The position of an entry at the source; null: there is none."""

    position: str | None


@router.get(TOPIC_PATH + "/compacted", AuthAction.CONSUME, refuses=(405, 409), waits_for=WaitsFor.STORE)
def get_compacted(broker: Broker, topic: Topic) -> CompactedView:
    """Return the horizon and the last message of a topic's compacted ledger, in positions of the source. 409 for a
    topic whose messages do not all come from one source."""
    view = source_compaction.compacted_view(broker, topic)
    return CompactedView(
        generation=view.generation,
        horizon=_position_text(view.horizon),
        last_message=None if view.last is None else _last_message(view.last),
        first=_position_text(view.first),
        messages=view.messages,
        logical_bytes=view.logical_bytes,
        stored_bytes=view.stored_bytes,
    )


_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The entries, one after the other.",
        "content": {_ENTRIES: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            GENERATION: {"description": "The generation that was read.", "schema": {"type": "integer"}},
            LAST: {"description": "true: no entry is left up to the horizon.", "schema": {"type": "string"}},
        },
    }
}


@router.get(
    TOPIC_PATH + "/compacted/entries",
    AuthAction.CONSUME,
    refuses=(405, 409),
    waits_for=WaitsFor.STORE,
    response_class=Response,
    responses=_ANSWER,
)
def get_compacted_entries(
    broker: Broker,
    topic: Topic,
    ledger: Annotated[int, Query(ge=-1, le=LONG, description="The first position: ledger id at the source.")] = -1,
    entry: Annotated[int, Query(ge=-1, le=LONG, description="The first position: entry id at the source.")] = -1,
    limit: Annotated[int, Query(ge=1, le=PAGE_ENTRIES, description="At most this many entries.")] = PAGE_ENTRIES,
    max_bytes: Annotated[
        int, Query(alias="bytes", ge=1, le=PAGE_BYTES, description="At most this many bytes, or one entry.")
    ] = PAGE_BYTES,
    generation: Generation = None,
    horizon: Horizon = None,
) -> Response:
    """Return entries of the compacted ledger as the source has them, from a position of the source on, ascending.

    409 if less is known here than the caller knows: a database that was restored must not look like a topic without
    messages.
    """
    page = source_compaction.compacted_entries(
        broker, topic, SourcePosition(ledger, entry), _parse_position(horizon), generation, limit, max_bytes
    )
    headers = {GENERATION: str(page.generation)} | ({LAST: "true"} if page.is_last else {})
    return Response(page.frames, media_type=_ENTRIES, headers=headers)


@router.get(TOPIC_PATH + "/compacted/position", AuthAction.CONSUME, refuses=(405, 409), waits_for=WaitsFor.STORE)
def get_compacted_position(
    broker: Broker,
    topic: Topic,
    publish_time: Annotated[int, Query(alias="publish-time", ge=0, le=LONG, description="Milliseconds since 1970.")],
    generation: Generation = None,
    horizon: Horizon = None,
) -> EntryPosition:
    """Return the position at the source of the first compacted entry that was published at a time or later."""
    position = source_compaction.first_position_since(broker, topic, publish_time, _parse_position(horizon), generation)
    return EntryPosition(position=_position_text(position))


def _last_message(last: SourceMessage) -> LastMessage:
    return LastMessage(position=str(last.position), batch_index=last.batch_index, publish_time=last.publish_time)


def _parse_position(text: str | None) -> SourcePosition | None:
    """Return the position that a text `ledger:entry` names; None without a text."""
    return None if text is None else parse_source_position(text)


def _position_text(position: SourcePosition | None) -> str | None:
    return None if position is None else str(position)
