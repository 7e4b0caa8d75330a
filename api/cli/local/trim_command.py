"""`compactor topics trim`: let raw ledgers go, as the cleanup policies say or up to a message."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit import exit_codes
from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import counted, say, size
from api.cli.local.topics_commands import ListingName
from api.components import open_components, open_for_writing
from api.reports import trim_document, trimmed_ledger
from storage.errors import Conflict, full_part
from storage.model import TopicName
from storage.reading.positions import parse_trim_place

if TYPE_CHECKING:
    from compactor.maintenance.retention import RetentionHold, TrimCandidate, Trimmed


def trim_topic(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)],
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    output: Annotated[ListingName, typer.Option(help="For people, or for scripts.")] = ListingName.TABLE,
) -> None:
    """Let old raw ledgers go.

    Without --before, those that the topic's cleanup policies let go now. They are listed no more at once; their
    objects go with a later `compactor gc`, after file.delete.delay.ms.
    """
    name = TopicName.parse(topic)
    place = None if before is None else parse_trim_place(before)
    with (open_components if dry_run else open_for_writing)(context.obj) as components:
        from compactor.maintenance.retention import Retention

        record = components.metadata.topics.get(name)
        retention = Retention(components.metadata, components.store, components.clock, components.log)
        if place is None:
            trimmed = retention.apply(record, dry_run=dry_run, force=force)
            resolved = components.metadata.policies.resolved(record)
            if (unreadable := resolved.unreadable.get("cleanup.policy")) is not None:
                say(f"Nothing of {name} goes: its cleanup.policy cannot be read ({unreadable.stored.reason})")
            elif not resolved.policies.cleanup_policy:
                say(f"The cleanup.policy of {name} is nothing: set one (`compactor topics policies`), or give --before")
        else:
            trimmed = retention.trim(record, place, dry_run=dry_run, force=force)
    _show(trimmed, output)
    for line in said(trimmed):
        say(line)
    if place is not None and trimmed.plan.hold is not None:
        raise typer.Exit(exit_codes.of(Conflict("", "")))


def said(trimmed: Trimmed) -> list[str]:
    """What happened, and what keeps the rest."""
    plan = trimmed.plan
    bytes_gone = sum(gone.piece.logical_bytes for gone in plan.going)
    verb = "Trimmed" if trimmed.trimmed else "Would trim"
    lines = [
        f"{verb} {counted(len(plan.going), 'ledger')}, {size(bytes_gone)}, of {trimmed.topic.name}; "
        f"its messages begin at offset {plan.start_offset}"
    ]
    if plan.hold is not None:
        lines.append(_told(plan.hold, plan.held, plan.wanted_start))
    if trimmed.tail_left:
        lines.append(f"What is not sealed yet was left: {full_part(trimmed.tail_left)}")
    return lines


def _told(hold: RetentionHold, held: tuple[TrimCandidate, ...], wanted_start: int) -> str:
    from storage.metadata.records import COMPACTION_CURSOR

    where = f"at {hold.mark_delete.message_id} (offset {hold.mark_delete.offset})" if hold.mark_delete else "at nothing"
    remedy = (
        "compact the topic first, or give --force"
        if hold.cursor == COMPACTION_CURSOR
        else "let its reader acknowledge, delete the cursor, or give --force"
    )
    what = counted(len(held), "more ledger") if held else f"the messages up to offset {wanted_start - 1}"
    return f"The cursor {hold.cursor}, {where}, holds {what} back: {remedy}"


def _show(trimmed: Trimmed, output: ListingName) -> None:
    if output is ListingName.JSON:
        print(json.dumps(trim_document(trimmed), indent=2))  # noqa: T201
        return
    if not trimmed.plan.going:
        return
    from api.cli.kit.tables import print_table

    columns = ("ledger", "first offset", "last offset", "messages", "logical bytes", "why")
    print_table(columns, ([str(value) for value in trimmed_ledger(gone).values()] for gone in trimmed.plan.going))
