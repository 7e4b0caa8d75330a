"""`compactor cursor`: create, list, show, reset, delete.

A user names the first message that a cursor delivers; the cursor stores the message before it, as mark-delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.kit.output import show
from api.cli.kit.shared_arguments import Output, OutputFormat, Topic
from api.cli.kit.terminal import print_line
from api.cli.local.opening import open_topic
from api.components import open_existing_for_writing, open_for_reading
from api.formats.position_text import PLACES, parse_cursor_position
from storage.errors import SegmentNotLocal

if TYPE_CHECKING:
    from storage.metadata.cursor_ranges import RangesSummary
    from storage.metadata.records import CursorRecord
    from storage.reading.snapshot_reader import SnapshotReader

Cursor = Annotated[str, typer.Argument(metavar="CURSOR", help="Name of the cursor.")]
_COLUMNS = ("cursor", "mark_delete", "mark_delete_offset", "backlog", "ranges", "properties")


def create_cursor(
    context: typer.Context,
    topic: Topic,
    cursor: Cursor,
    read_compacted: Annotated[
        bool, typer.Option("--read-compacted", help="For a reader of compacted data: tombstones may wait for it.")
    ] = False,
    at: Annotated[str, typer.Option("--at", metavar=PLACES, help="The first message to deliver.")] = "latest",
) -> None:
    """Create a cursor. Messages that it has not acknowledged are not deleted."""
    from api.broker import subscriptions
    from storage.metadata.records import READ_COMPACTED_PROPERTY

    position = parse_cursor_position(at)
    properties = {READ_COMPACTED_PROPERTY: "true"} if read_compacted else {}
    with open_existing_for_writing(context.obj) as environment:
        record = open_topic(environment, topic).record
        created = subscriptions.create_cursor(environment, record, cursor, position, properties)
    print_line(f"Cursor {cursor} of topic {topic} created, {_mark_delete_text(created)}")


def list_cursors(context: typer.Context, topic: Topic, output: Output = OutputFormat.TABLE) -> None:
    """List the cursors of a topic with their positions and backlogs."""
    with open_for_reading(context.obj) as environment:
        opened = open_topic(environment, topic)
        summaries = environment.metadata.cursors.summaries(opened.record.id)
        reader = opened.snapshot_reader()
        documents = [_cursor_document(reader, record, summary) for record, summary in summaries]
    show(documents if output is OutputFormat.JSON else list(map(_with_properties_as_text, documents)), output, _COLUMNS)


def show_cursor(context: typer.Context, topic: Topic, cursor: Cursor, output: Output = OutputFormat.TABLE) -> None:
    """Show one cursor."""
    with open_for_reading(context.obj) as environment:
        opened = open_topic(environment, topic)
        record_and_summary = environment.metadata.cursors.summary(opened.record.id, cursor)
        document = _cursor_document(opened.snapshot_reader(), *record_and_summary)
    show(document if output is OutputFormat.JSON else _with_properties_as_text(document), output)


def reset_cursor(
    context: typer.Context,
    topic: Topic,
    cursor: Cursor,
    to: Annotated[str, typer.Option("--to", metavar=PLACES, help="The first message to deliver.")],
) -> None:
    """Move a cursor, back or forward.

    Acknowledgements after that message are removed. A reader that has the cursor open must open it again.
    """
    from api.broker import subscriptions

    position = parse_cursor_position(to)
    with open_existing_for_writing(context.obj) as environment:
        moved = subscriptions.reset_cursor(environment, open_topic(environment, topic).record, cursor, position)
    print_line(f"Cursor {cursor} of topic {topic} reset, {_mark_delete_text(moved)}")


def delete_cursor(
    context: typer.Context,
    topic: Topic,
    cursor: Annotated[
        str, typer.Argument(metavar="CURSOR", help="Name of the cursor; __compaction is the compaction cursor.")
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete __compaction also where raw messages below the horizon are trimmed, or an object of raw "
            "messages is missing in the store: their keys are lost.",
        ),
    ] = False,
) -> None:
    """Delete a cursor.

    Deleting __compaction clears the compacted ledger: reads are raw until the next run, which starts from raw. An
    active run can no longer publish.
    """
    from api.broker import subscriptions

    with open_existing_for_writing(context.obj) as environment:
        subscriptions.delete_cursor(environment, open_topic(environment, topic).record, cursor, force)
    print_line(f"Cursor {cursor} of topic {topic} deleted")


def _cursor_document(reader: SnapshotReader, record: CursorRecord, summary: RangesSummary) -> dict[str, Any]:
    """Return a cursor as a document of plain values, for JSON or a table.

    `backlog`: the number of unacknowledged messages after the mark-delete position; None: unsealed messages are in a
    log directory of another machine, so the end of the topic is not known.
    """
    mark = record.mark_delete
    begin = max(mark.offset + 1 if mark else 0, reader.first_offset)
    try:
        backlog = max(reader.end - begin - summary.messages, 0)
    except SegmentNotLocal:
        backlog = None
    return {
        "cursor": record.name,
        "mark_delete": str(mark.message_id) if mark else None,
        "mark_delete_offset": mark.offset if mark else None,
        "backlog": backlog,
        "ranges": summary.ranges,
        "acknowledged_above": summary.messages,
        "stored_bytes": summary.stored_bytes,
        "properties": dict(record.properties),
    }


def _mark_delete_text(cursor: CursorRecord) -> str:
    mark = cursor.mark_delete
    return "nothing acknowledged" if mark is None else f"mark-delete {mark.message_id} (offset {mark.offset})"


def _with_properties_as_text(document: Mapping[str, Any]) -> dict[str, Any]:
    properties = ", ".join(f"{key}={value}" for key, value in sorted(document["properties"].items()))
    return {**document, "properties": properties or None}
