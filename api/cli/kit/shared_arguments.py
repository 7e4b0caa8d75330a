"""Arguments and choices that several commands share. Choices repeat enums of heavier modules, to keep help quick."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api import DISTRIBUTION
from api.cli.kit.terminal import put
from storage.model import TopicName

TOPIC_HELP = "persistent://tenant/namespace/topic; topic alone means persistent://public/default/topic."

_PARSED = typer.Argument(metavar="TOPIC", help=TOPIC_HELP, parser=TopicName.parse)
if TYPE_CHECKING:
    Topic = Annotated[TopicName, _PARSED]
else:
    Topic = Annotated[str, _PARSED]  # help shows the type of the typed text
TypedTopic = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)]
"""The name in the form that the user typed."""
OnlyTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help=f"Only of this topic. {TOPIC_HELP}")]


def _show_version(requested: bool) -> None:
    """Print the version if it is requested, and raise Exit."""
    if requested:
        from importlib.metadata import version

        put(f"compactor {version(DISTRIBUTION)}")
        raise typer.Exit


VersionFlag = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
]


class OutputFormat(StrEnum):
    """Output formats of listings and reports."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[OutputFormat, typer.Option(help="For people, or for scripts.")]


ResetName = Literal["earliest", "latest", "fail"]
"""Starts of a raw read whose own start was trimmed; `storage.positions.OffsetReset` has them (a test compares)."""
StateName = Literal["RUNNING", "SUCCESS", "ERROR", "CANCELLED"]
"""States of a run; `storage.metadata.records.RunState` has them (a test compares the two)."""
