"""Arguments and choices that several commands share. Choices repeat enums of heavier modules, to keep help quick."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api import version
from api.cli.kit.terminal import print_line
from api.formats.text_encoding import TextEncoding
from storage.model import TopicName

TOPIC_HELP = "persistent://tenant/namespace/topic; topic alone means persistent://public/default/topic."

_PARSED = typer.Argument(metavar="TOPIC", help=TOPIC_HELP, parser=TopicName.parse)
if TYPE_CHECKING:
    Topic = Annotated[TopicName, _PARSED]
else:
    Topic = Annotated[str, _PARSED]  # help shows the type of the typed text
TypedTopic = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)]
"""A topic's name in the form that the user typed."""
OnlyTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help=f"Only of this topic. {TOPIC_HELP}")]


def _show_version(requested: bool) -> None:
    """Print the version if it is requested, and raise Exit."""
    if requested:
        print_line(f"compactor {version()}")
        raise typer.Exit


VersionFlag = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
]


class OutputFormat(StrEnum):
    """Output formats of listings and reports."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[OutputFormat, typer.Option(help="For people, or for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", help="Execute it; without this, only report what would change.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would change; so does leaving out --yes.")]
Run = Annotated[int, typer.Argument(metavar="RUN", min=1, max=2**63 - 1, help="The run's number, from `list`.")]
TrimBefore = Annotated[
    str | None,
    typer.Option(
        metavar="MESSAGE_ID|OFFSET", help="All messages before this one; default: as the cleanup policies say."
    ),
]
TrimForce = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Also messages that cursors and compaction still need: they lose them. If a deletion is among them that "
        "no run has processed, new compacted readers get the deleted key back. Also while the compacted ledger cannot "
        "be read: then raw has the only copy.",
    ),
]
KeyEncoding = Annotated[TextEncoding, typer.Option(help="Encoding of keys.")]
ValueEncoding = Annotated[TextEncoding, typer.Option(help="Encoding of values.")]
ReadCompacted = Annotated[
    bool, typer.Option("--read-compacted", help="The compacted ledger first, then raw after its horizon.")
]
SealedOnly = Annotated[bool, typer.Option("--sealed-only", help="Omit the newest messages, which are not sealed yet.")]
START_PLACES = "earliest|latest|MESSAGE_ID|OFFSET|@TIME"
START_HELP = "Where to begin, inclusive; @TIME: milliseconds or an ISO time of publishing."


ResetName = Literal["earliest", "latest", "fail"]
"""Starts of a raw read whose own start was trimmed; `storage.positions.OffsetReset` has them (a test compares)."""
Reset = Annotated[ResetName, typer.Option(help="Where a raw read begins instead if its start was trimmed.")]
StateName = Literal["RUNNING", "SUCCESS", "ERROR", "CANCELLED"]
"""States of a run; `storage.metadata.records.RunState` has them (a test compares the two)."""
