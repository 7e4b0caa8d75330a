"""Arguments and choices that several commands share. Choices repeat enums of heavier modules: help is quick."""

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
    Topic = Annotated[str, _PARSED]  # help shows the type of what is typed
TypedTopic = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)]
"""The name as it was typed."""
OnlyTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help=f"Only of this topic. {TOPIC_HELP}")]


def _show_version(wanted: bool) -> None:
    """Raises Exit."""
    if wanted:
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
"""Where a raw read begins if its start was trimmed; `storage.positions.OffsetReset` has them (a test compares)."""
StateName = Literal["RUNNING", "SUCCESS", "ERROR", "CANCELLED"]
"""States of a run; `storage.metadata.records.RunState` has them (a test compares the two)."""
