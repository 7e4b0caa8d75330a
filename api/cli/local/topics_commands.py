"""`compactor topics list` and `compactor topics stats`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import say
from api.cli.kit.terminal import put
from api.components import open_components
from api.reports import shown_error
from storage.model import TopicName

if TYPE_CHECKING:
    from compactor.scheduling.backlog import Unsealed
    from storage.metadata.records import TopicSnapshot


T = TypeVar("T")


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
        from compactor.scheduling.backlog import unsealed
        from storage.metadata.records import SegmentState

        summaries = components.metadata.topics.summaries()
        with_tail = components.metadata.segments.topics_with([SegmentState.OPEN, SegmentState.ROLLED])
        tails = {one.name: unsealed(components.log, components.metadata.snapshot(one.id)).messages for one in with_tail}
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
    from api.cli.kit.tables import print_table

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
    from compactor.scheduling.backlog import unsealed

    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        opened = components.topic(name)
        reader = opened.snapshot_reader()
        snapshot, end = reader.snapshot, _if_here(lambda: reader.end)
        last = _if_here(lambda: str(opened.last_message_id(read_compacted=False)))
        last_compacted = _if_here(lambda: str(opened.last_message_id(read_compacted=True)))
        tail = unsealed(components.log, snapshot)
        away = {one.log_uid for one in snapshot.segments} - {components.log.known_uid}
    document = stats(snapshot, reader.first_offset, end, tail) | {
        "last_message_id": last,
        "last_compacted_message_id": last_compacted,
    }
    for log_uid in sorted(away):
        say(f"Messages of {name} that are not sealed yet are in the log directory {log_uid}, which is not here")
    if output is ListingName.JSON:
        print(json.dumps(document, indent=2))  # noqa: T201
        return
    for key, value in document.items():
        inner = value if isinstance(value, dict) else {"": value}
        for field, content in inner.items():
            put(f"{f'{key}.{field}'.rstrip('.'):40} {'-' if content is None else content}")


def _if_here(ask: Callable[[], T]) -> T | None:
    """What is asked; None where it depends on messages that are in a log directory that is not here."""
    from storage.errors import SegmentNotLocal

    try:
        return ask()
    except SegmentNotLocal:
        return None


def stats(snapshot: TopicSnapshot, first_offset: int, next_offset: int | None, tail: Unsealed) -> dict[str, Any]:
    """What one snapshot shows, as plain values; offsets of the first raw message, and of the next one to come.

    `tail`: what is in segments, which is part of the backlog: the next run seals it first.
    """
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
            "messages": tail.messages,
            "logical_bytes": tail.bytes,
            "given_up": sum(segment.tried_too_often for segment in snapshot.segments),
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
            "messages": sum(ledger.messages for ledger in backlog) + tail.messages,
            "logical_bytes": sum(ledger.logical_bytes for ledger in backlog) + tail.bytes,
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
