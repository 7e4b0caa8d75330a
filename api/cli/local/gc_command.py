"""`compactor gc`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.program import reject_yes_with_dry_run
from api.cli.kit.quantity_parsers import duration_option
from api.cli.kit.shared_arguments import DryRun, Yes
from api.cli.kit.stderr import counted, say, size
from api.cli.kit.terminal import print_line
from api.components import open_existing_for_writing
from compactor.maintenance.grace import LEAST_GRACE_MS
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compactor.maintenance.garbage import CollectionResult
    from storage.environment import Environment


def collect_garbage(
    context: typer.Context,
    topic: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be repeated.")] = None,
    grace: Annotated[
        int | None,
        duration_option("--grace", "Age of garbage before it is deleted: 10m, 2d. [default: gc.grace]", LEAST_GRACE_MS),
    ] = None,
    dry_run: DryRun = False,
    unknown_topics: Annotated[
        bool,
        typer.Option("--unknown-topics", help="Also delete the objects of topics that this database does not know."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete objects without references.

    These are objects of crashed or failed attempts, compacted ledgers that were replaced a grace time ago and that no
    reader has pinned, and ledgers that were trimmed file.delete.delay.ms ago. Files of sealed segments are deleted,
    too. Safe beside imports, compactions and readers. The names of the objects go to standard output. Without --yes
    nothing is deleted: the objects are only listed.
    """
    names = [TopicName.parse(name) for name in dict.fromkeys(topic or ())]
    if names and unknown_topics:
        raise InvalidInput("--topic and --unknown-topics do not go together", "leave one of them out")
    reject_yes_with_dry_run(yes, dry_run)
    with open_existing_for_writing(context.obj, dry_run=not yes) as environment:
        from api.broker import compaction

        reports = compaction.collect_garbage(
            environment,
            context.obj.gc_grace_ms if grace is None else grace,
            names or None,
            unknown_topics=unknown_topics,
            dry_run=not yes,
            on_object=lambda info: print_line(info.name),
        )
        if yes and not names:
            _remove_sealed_segment_files(environment)
        _report_collection(reports, "Deleted" if yes else "Would delete")
    if not yes and not dry_run:
        say("Nothing was deleted: give --yes" + (" if no other database has these topics" if unknown_topics else ""))


def _remove_sealed_segment_files(environment: Environment) -> None:
    """Remove the local files of segments that were sealed into ledgers long enough ago."""
    from storage.log.log_manager import LogManager

    removed = LogManager(environment).remove_sealed_files()
    if removed:
        say(f"Removed the files of {counted(removed, 'sealed segment')}")


def _report_collection(reports: Iterator[CollectionResult], verb: str) -> None:
    """Report a line for each topic with garbage, and the sum. The iteration collects the garbage. Raises the first
    error after the last topic."""
    from compactor.maintenance.garbage import ObjectTotals

    total, failed = ObjectTotals(), None
    for report in reports:
        failed = failed or report.error
        if report.error is not None:
            say(f"{report.topic or report.topic_uid}: {report.error.message}")
        elif line := garbage_line(report):
            say(line)
        if report.topic is not None or report.deleted:
            total += report.total
    say(f"{verb} {counted(total.count, 'object')}, {size(total.bytes)}")
    if failed is not None:
        raise failed


def garbage_line(report: CollectionResult) -> str:
    """Return the line about a topic's garbage; empty if it has none."""
    parts = [
        f"{counted(totals.count, kind.value.removesuffix('s'))} ({size(totals.bytes)})"
        for kind, totals in sorted(report.objects.items())
    ]
    if report.topic is None and parts and not report.deleted:
        parts.append("left: --unknown-topics deletes them, if no other database uses this store")
    if report.compacted_ledgers:
        parts.append(counted(report.compacted_ledgers, "replaced compacted ledger"))
    if report.trimmed_ledgers:
        parts.append(counted(report.trimmed_ledgers, "trimmed ledger") + " purged")
    if report.attempts_given_up:
        parts.append(counted(report.attempts_given_up, "dead attempt") + " abandoned")
    if report.foreign:
        parts.append(counted(report.foreign, "foreign object") + " left alone")
    name = f"unknown topic {report.topic_uid}" if report.topic is None else str(report.topic)
    if report.topic_deleted:
        name = f"deleted topic {name}"
    return f"{name}: {', '.join(parts)}" if parts else ""
