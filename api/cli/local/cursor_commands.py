"""`compactor cursor`: create, list, show, reset, delete.

A cursor is moved to the first message that it shall deliver; what is kept is the message before that, as mark-delete.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.terminal import put
from api.cli.local.topics_commands import ListingName
from api.components import open_components, open_for_writing
from storage.model import TopicName
from storage.reading.positions import (
    PLACES,
    described,
    mark_delete_before,
    parse_place,
)

if TYPE_CHECKING:
    from storage.metadata.records import CursorRecord

_TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)]
_CursorArgument = Annotated[str, typer.Argument(metavar="CURSOR", help="Its name.")]
_Output = Annotated[ListingName, typer.Option(help="For people, or for scripts.")]


def create_cursor(
    context: typer.Context,
    topic: _TopicArgument,
    cursor: _CursorArgument,
    read_compacted: Annotated[
        bool, typer.Option("--read-compacted", help="Its reader reads compacted data: tombstones may wait for it.")
    ] = False,
    at: Annotated[str, typer.Option("--at", metavar=PLACES, help="The first message to deliver.")] = "latest",
) -> None:
    """Create a cursor: it holds its place, and what it has not acknowledged is not deleted."""
    from storage.metadata.records import READ_COMPACTED_PROPERTY

    name = TopicName.parse(topic)
    place = parse_place(at)
    properties = {READ_COMPACTED_PROPERTY: "true"} if read_compacted else {}
    with open_for_writing(context.obj) as components:
        opened = components.topic(name)
        position = mark_delete_before(opened, place)
        made = components.metadata.cursors.create(opened.record.id, cursor, position, properties)
    put(f"Cursor {cursor} of topic {name} created, {_told(made)}")


def list_cursors(context: typer.Context, topic: _TopicArgument, output: _Output = ListingName.TABLE) -> None:
    """List the cursors of a topic: where they stand, and how far they are behind."""
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        opened = components.topic(name)
        found = components.metadata.cursors.summaries(opened.record.id)
        reader = opened.snapshot_reader()
        documents = [described(reader, record, summary) for record, summary in found]
    if output is ListingName.JSON:
        print(json.dumps(documents, indent=2))  # noqa: T201
        return
    from api.cli.kit.tables import print_table

    print_table(
        ("cursor", "mark-delete", "offset", "backlog", "ranges", "properties"),
        (
            [
                document["cursor"],
                _cell(document["mark_delete"]),
                _cell(document["mark_delete_offset"]),
                _cell(document["backlog"]),
                str(document["ranges"]),
                _properties(document["properties"]),
            ]
            for document in documents
        ),
    )


def show_cursor(
    context: typer.Context, topic: _TopicArgument, cursor: _CursorArgument, output: _Output = ListingName.TABLE
) -> None:
    """Show one cursor."""
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        opened = components.topic(name)
        found = components.metadata.cursors.summary(opened.record.id, cursor)
        document = described(opened.snapshot_reader(), *found)
    if output is ListingName.JSON:
        print(json.dumps(document, indent=2))  # noqa: T201
        return
    from api.cli.kit.terminal import plain

    for field, content in document.items():
        value = _properties(content) if isinstance(content, dict) else _cell(content)
        put(f"{field:30} {plain(value)}")


def reset_cursor(
    context: typer.Context,
    topic: _TopicArgument,
    cursor: _CursorArgument,
    to: Annotated[str, typer.Option("--to", metavar=PLACES, help="The first message to deliver.")],
) -> None:
    """Move a cursor, back or forward.

    What it had acknowledged behind that place is forgotten. A reader that has it open must open it again.
    """
    name = TopicName.parse(topic)
    place = parse_place(to)
    with open_for_writing(context.obj) as components:
        opened = components.topic(name)
        position = mark_delete_before(opened, place)
        moved = components.metadata.cursors.reset(opened.record.id, cursor, position)
    put(f"Cursor {cursor} of topic {name} reset, {_told(moved)}")


def delete_cursor(
    context: typer.Context,
    topic: _TopicArgument,
    cursor: Annotated[str, typer.Argument(metavar="CURSOR", help="Its name; __compaction is the compaction cursor.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where raw below the horizon is trimmed: its keys are lost then.")
    ] = False,
) -> None:
    """Delete a cursor.

    Deleting __compaction clears the compacted ledger: reads are raw until the next run, which starts from raw. A run
    that is under way can no longer publish.
    """
    name = TopicName.parse(topic)
    with open_for_writing(context.obj) as components:
        components.metadata.cursors.delete(components.metadata.topics.get(name).id, cursor, force)
    put(f"Cursor {cursor} of topic {name} deleted")


def _told(cursor: CursorRecord) -> str:
    mark = cursor.mark_delete
    return "nothing acknowledged" if mark is None else f"mark-delete {mark.message_id} (offset {mark.offset})"


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _properties(properties: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(properties.items())) or "-"
