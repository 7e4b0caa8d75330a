"""`compactor verify`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.kit import exit_codes
from api.cli.kit.output import show
from api.cli.kit.reports import print_lines, verify_lines
from api.cli.kit.shared_arguments import OutputFormat, Topic
from api.cli.kit.stderr import counted, say
from api.cli.local.engine import open_engine, progress_for
from api.cli.local.opening import open_topic
from api.components import open_for_reading
from api.reports import verify_document

if TYPE_CHECKING:
    from compactor.verify.findings import Report


def verify_topic(
    context: typer.Context,
    topic: Topic,
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for scripts.")] = "text",
) -> None:
    """Derive the compacted ledger again, and list every difference.

    Checks every object of the topic, and the compacted ledger against the raw messages that are still there. Changes
    nothing; safe beside imports and compactions. Ends with exit code 7 if anything differs.
    """
    with open_for_reading(context.obj) as environment:
        first = open_topic(environment, topic).snapshot_reader().first_offset  # an unknown topic: before Spark starts
        from compactor.verify.verify import Verifier
        from storage.store_identity import StoreIdentity

        # In another store every object would count as lost.
        StoreIdentity(environment.metadata, environment.store).check()
        with open_engine(context.obj) as engine:
            verified = Verifier(environment, engine, progress_for(sys.stderr)).verify(topic)
    report = verify_document(verified)
    if output == "json":
        show(report, OutputFormat.JSON)
    else:
        print_lines(verify_lines(report))
    if report["total"]:
        differences = f"{counted(report['total'], 'difference')} in {topic}"
        say(f"compactor: {differences}: restore the objects from a backup{_advice_without_backup(verified, first)}")
        raise typer.Exit(exit_codes.DATA_LOSS)


def _advice_without_backup(report: Report, first_offset: int) -> str:
    """Return the advice for objects without a backup. `first_offset`: of the first raw message."""
    if report.compacted_ledger is None:
        return ""
    if report.raw_differs:
        return (
            "; keep the cursor __compaction: raw messages are damaged, and the compacted ledger may have the only copy "
            "of their values"
        )
    if first_offset:
        return (
            f"; only without one, `compactor cursor delete {report.topic} __compaction --force`: the values whose raw "
            "messages are trimmed are then lost"
        )
    return f"; without one, `compactor cursor delete {report.topic} __compaction`: the next run starts from raw"
