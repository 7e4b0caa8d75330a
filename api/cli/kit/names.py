"""Arguments and choices that several commands share. Choices repeat enums of heavier modules: help is quick."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

TOPIC_HELP = "persistent://tenant/namespace/topic; topic alone means persistent://public/default/topic."

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)]
OnlyTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help=f"Only of this topic. {TOPIC_HELP}")]


class OutputName(StrEnum):
    """Output formats of listings and reports."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[OutputName, typer.Option(help="For people, or for scripts.")]


class EncodingName(StrEnum):
    """Text encodings; `api.formats.text_encoding` has them (a test compares the two)."""

    UTF8 = "utf8"
    BASE64 = "base64"


class ResetName(StrEnum):
    """Where a raw read begins if its start was trimmed; `storage.ledger.seek.Reset` has them (a test compares)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


class StateName(StrEnum):
    """States of a run; `storage.metadata.records.RunState` has them (a test compares the two)."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"
