"""`compactor verify`."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit import exit_codes
from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import counted, number, say
from api.cli.kit.terminal import plain, put
from api.cli.local.progress import progress_for
from api.cli.local.spark_engine import spark_engine
from api.components import open_components
from api.reports import verify_document
from storage.model import TopicName

if TYPE_CHECKING:
    from compactor.verify.report import Report


class VerifyOutputName(StrEnum):
    """Output formats of a report."""

    TEXT = "text"
    JSON = "json"


def verify_topic(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)],
    output: Annotated[VerifyOutputName, typer.Option(help="For people, or for scripts.")] = VerifyOutputName.TEXT,
) -> None:
    """Derive the compacted ledger again, and name every difference.

    Checks every object of the topic, and the compacted ledger against the raw messages that are still there. Changes
    nothing; safe beside imports and compactions. Ends with exit code 7 if anything differs.
    """
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        components.metadata.topics.get(name)  # an unknown topic is known before Spark starts
        from compactor.verify.verify import Verifier

        with spark_engine(context.obj) as engine:
            found = Verifier(
                components.metadata, components.store, components.clock, engine, progress_for(sys.stderr)
            ).verify(name)
    if output is VerifyOutputName.JSON:
        print(json.dumps(verify_document(found), indent=2))  # noqa: T201
    else:
        for line in lines(found):
            put(plain(line))
    if found.total:
        say(
            f"compactor: {counted(found.total, 'difference')} in {name}: restore the objects from a backup, or delete "
            "the cursor __compaction and compact again from raw"
        )
        raise typer.Exit(exit_codes.DATA_LOSS)


def lines(report: Report) -> list[str]:
    """A report for a person: what was looked at, what could not be told, what differs."""
    found = [f"Topic {report.topic}"]
    if report.compacted_ledger is None:
        found.append("It has no compacted ledger; only its raw ledgers were checked.")
    else:
        found.append(f"Compacted ledger {report.compacted_ledger}, generation {report.generation}")
    found.append("Checked: " + ", ".join(f"{number(count)} {noun}" for noun, count in report.checked.items()))
    found += [f"Not checked: {reason}" for reason in report.unchecked]
    found += [str(one) for one in report.differences]
    if report.total > len(report.differences):
        found.append(f"… and {number(report.total - len(report.differences))} more")
    by_kind = ", ".join(f"{number(count)} {kind}" for kind, count in sorted(report.counts.items()))
    found.append(f"{counted(report.total, 'difference')}: {by_kind}" if report.total else "No differences")
    return found
