"""`compactor cursor delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.names import TOPIC_HELP
from api.wiring import open_components
from storage.model import TopicName


def delete_cursor(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)],
    cursor: Annotated[str, typer.Argument(metavar="CURSOR", help="Its name; __compaction is the compaction cursor.")],
) -> None:
    """Delete a cursor.

    Deleting __compaction clears the compacted ledger: reads are raw until the next run, which starts from raw. A run
    that is under way can no longer publish.
    """
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        components.metadata.delete_cursor(components.metadata.topic(name).id, cursor)
    print(f"Cursor {cursor} of topic {name} deleted")  # noqa: T201
