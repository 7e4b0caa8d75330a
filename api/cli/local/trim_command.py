"""`compactor topics trim`: let raw ledgers go, as the cleanup policies say or up to a message."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.kit import exit_codes
from api.cli.kit.names import Output, OutputName, Topic
from api.cli.kit.output import show
from api.cli.kit.reports import TRIM_COLUMNS, trim_lines
from api.cli.kit.stderr import say
from api.components import open_environment, open_for_writing
from api.reports import trim_document
from storage.model import TopicName
from storage.reading.positions import parse_trim_place


def trim_topic(
    context: typer.Context,
    topic: Topic,
    before: Annotated[
        str | None, typer.Option(metavar="MESSAGE_ID|OFFSET", help="Let all messages before this one go.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also what cursors and compaction still need: it is lost to them. With a deletion that no run has "
            "seen, new compacted readers get the deleted key back.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would go, and change nothing.")] = False,
    output: Output = OutputName.TABLE,
) -> None:
    """Let old raw ledgers go.

    Without --before, those that the topic's cleanup policies let go now. They are listed no more at once; their
    objects go with a later `compactor gc`, after file.delete.delay.ms.
    """
    name = TopicName.parse(topic)
    position = None if before is None else parse_trim_place(before)
    with (open_environment if dry_run else open_for_writing)(context.obj) as environment:
        from compactor.maintenance.retention import Retention

        record = environment.metadata.topics.get(name)
        retention = Retention(environment)
        if position is None:
            trimmed = retention.apply(record, dry_run=dry_run, force=force)
            resolved = environment.metadata.policies.resolved(record)
            if (unreadable := resolved.unreadable.get("cleanup.policy")) is not None:
                say(f"Nothing of {name} goes: its cleanup.policy cannot be read ({unreadable.stored.reason})")
            elif not resolved.policies.cleanup_policy:
                say(f"The cleanup.policy of {name} is nothing: set one (`compactor topics policies`), or give --before")
        else:
            trimmed = retention.trim(record, position, dry_run=dry_run, force=force)
    report = trim_document(trimmed)
    if output is OutputName.JSON:
        show(report, output)
    elif report["ledgers"]:
        show(report["ledgers"], output, TRIM_COLUMNS)
    for line in trim_lines(report):
        say(line)
    if position is not None and report["held"] is not None:
        raise typer.Exit(exit_codes.CONFLICT)
