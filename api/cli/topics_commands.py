"""`compactor topics list` and `compactor topics stats`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.names import TOPIC_HELP
from api.cli.terminal import put
from api.documents import shown_error
from api.wiring import open_components
from storage.errors import CompactorError
from storage.model import TopicName

if TYPE_CHECKING:
    from storage.metadata.records import TopicSnapshot
    from storage.reader import SnapshotReader


class ListingName(StrEnum):
    """Output formats of listings."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[ListingName, typer.Option(help="For people, or for scripts.")]


def list_topics(context: typer.Context, output: Output = ListingName.TABLE) -> None:
    """List topics.

    Of each: raw ledgers, their messages and logical bytes, messages in the log's segments, and the compacted ledger.
    """
    with open_components(context.obj) as components:
        from storage.metadata.records import SegmentState

        summaries = components.metadata.topic_summaries()
        unsealed = components.metadata.log.topics_with_segments([SegmentState.OPEN, SegmentState.ROLLED])
        tails = {record.name: _tail_messages(components.topic(record.name).snapshot_reader()) for record in unsealed}
    documents = [
        {
            "topic": str(one.name),
            "ledgers": one.ledgers,
            "messages": one.messages,
            "logical_bytes": one.logical_bytes,
            "tail_messages": tails.get(one.name, 0),
            "compacted_ledger": one.compacted_ledger_id,
        }
        for one in summaries
    ]
    if output is ListingName.JSON:
        print(json.dumps(documents, indent=2))  # noqa: T201
        return
    from api.cli.tables import print_table

    print_table(
        ("topic", "ledgers", "messages", "logical bytes", "tail messages", "compacted ledger"),
        (["-" if value is None else str(value) for value in document.values()] for document in documents),
    )


def show_stats(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)],
    output: Output = ListingName.TABLE,
) -> None:
    """Show one topic.

    Its raw ledgers, compacted ledger and horizon, what is not compacted yet, the last run, and the last message ids.
    """
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        reader = components.topic(name).snapshot_reader()
        snapshot, end = reader.snapshot, reader.end
        last = {flag: str(reader.last_message_id(flag)) for flag in (False, True)}
        tail_messages = _tail_messages(reader)
    document = stats(snapshot, reader.first_offset, end, tail_messages) | {
        "last_message_id": last[False],
        "last_compacted_message_id": last[True],
    }
    if output is ListingName.JSON:
        print(json.dumps(document, indent=2))  # noqa: T201
        return
    for key, value in document.items():
        inner = value if isinstance(value, dict) else {"": value}
        for field, content in inner.items():
            put(f"{f'{key}.{field}'.rstrip('.'):40} {'-' if content is None else content}")


def _tail_messages(reader: SnapshotReader) -> int:
    """Messages in segments that no ledger stands for yet, as far as those can be read."""
    segments = reader.snapshot.segments
    rolled = sum(segment.content.messages for segment in segments if segment.content)
    is_open = bool(segments) and segments[-1].content is None
    try:
        return rolled + (reader.end - segments[-1].first_offset if is_open else 0)
    except CompactorError:
        return rolled


def stats(snapshot: TopicSnapshot, first_offset: int, next_offset: int, tail_messages: int) -> dict[str, Any]:
    """What one snapshot shows, as plain values; offsets of the first raw message, and of the next one to come."""
    horizon = snapshot.horizon
    backlog = [ledger for ledger in snapshot.ledgers if horizon is None or ledger.last_offset > horizon.offset]
    compacted, run = snapshot.compacted, snapshot.last_run
    return {
        "topic": str(snapshot.topic.name),
        "raw": {
            "ledgers": len(snapshot.ledgers),
            "messages": sum(ledger.messages for ledger in snapshot.ledgers),
            "logical_bytes": sum(ledger.logical_bytes for ledger in snapshot.ledgers),
            "stored_bytes": sum(ledger.rows.size + ledger.index.length for ledger in snapshot.ledgers),
            "start_offset": snapshot.topic.start_offset,
            "first_offset": first_offset,
            "next_offset": next_offset,
        },
        "tail": {
            "segments": len(snapshot.segments),
            "messages": tail_messages,
        },
        "compacted": None
        if compacted is None
        else {
            "ledger": compacted.ledger_id,
            "generation": compacted.generation,
            "messages": compacted.messages,
            "logical_bytes": compacted.logical_bytes,
            "stored_bytes": compacted.stored_bytes,
            "horizon": None if horizon is None else str(horizon.message_id),
            "horizon_offset": None if horizon is None else horizon.offset,
        },
        "backlog": {
            "ledgers": len(backlog),
            "messages": sum(ledger.messages for ledger in backlog),
            "logical_bytes": sum(ledger.logical_bytes for ledger in backlog),
        },
        "last_run": None
        if run is None
        else {
            "run": run.run_id,
            "status": run.state.value,
            "phase": run.phase,
            "error": shown_error(run.error),
            **run.statistics,
        },
    }
