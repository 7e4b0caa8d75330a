"""`compactor topics list` and `compactor topics stats`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from api.cli.kit.names import Output, OutputName, Topic
from api.cli.kit.output import show
from api.cli.kit.stderr import say
from api.components import open_environment, open_topic
from api.reports import shown_error
from storage.model import TopicName

if TYPE_CHECKING:
    from compactor.scheduling.backlog import Unsealed
    from storage.metadata.records import TopicSnapshot


T = TypeVar("T")
_COLUMNS = ("topic", "ledgers", "messages", "logical_bytes", "tail_messages", "compacted_ledger")


def list_topics(context: typer.Context, output: Output = OutputName.TABLE) -> None:
    """List topics.

    Of each: raw ledgers, their messages and logical bytes, messages in the log's segments, and the compacted ledger.
    """
    with open_environment(context.obj) as environment:
        from compactor.scheduling.backlog import unsealed
        from storage.metadata.records import SegmentState

        summaries = environment.metadata.topics.summaries()
        written = environment.metadata.segments.topics_with([SegmentState.OPEN, SegmentState.ROLLED])
        tails = {
            topic.name: unsealed(environment.log, environment.metadata.snapshot(topic.id)).messages for topic in written
        }
    documents = [
        {
            "topic": str(summary.name),
            "ledgers": summary.ledgers,
            "messages": summary.messages,
            "logical_bytes": summary.logical_bytes,
            "tail_messages": tails.get(summary.name, 0),
            "compacted_ledger": summary.compacted_ledger_id,
        }
        for summary in summaries
    ]
    show(documents, output, _COLUMNS)


def show_stats(
    context: typer.Context,
    topic: Topic,
    output: Output = OutputName.TABLE,
) -> None:
    """Show one topic.

    Its raw ledgers, compacted ledger and horizon, what is not compacted yet, the last run, and the last message ids.
    """
    from compactor.scheduling.backlog import unsealed

    name = TopicName.parse(topic)
    with open_environment(context.obj) as environment:
        opened = open_topic(environment, name)
        reader = opened.snapshot_reader()
        snapshot, end = reader.snapshot, _if_local(lambda: reader.end)
        last = _if_local(lambda: str(opened.last_message_id(read_compacted=False)))
        last_compacted = _if_local(lambda: str(opened.last_message_id(read_compacted=True)))
        tail = unsealed(environment.log, snapshot)
        elsewhere = {segment.log_uid for segment in snapshot.segments} - {environment.log.known_uid}
    document = stats(snapshot, reader.first_offset, end, tail) | {
        "last_message_id": last,
        "last_compacted_message_id": last_compacted,
    }
    for log_uid in sorted(elsewhere):
        say(f"Messages of {name} that are not sealed yet are in the log directory {log_uid}, which is not here")
    show(document, output)


def _if_local(value: Callable[[], T]) -> T | None:
    """A value; None where it depends on messages that are in a log directory that is not here."""
    from storage.errors import SegmentNotLocal

    try:
        return value()
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
