"""`compactor gc`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.program import check_confirmation
from api.cli.kit.quantity_parsers import parse_duration
from api.cli.kit.stderr import counted, say, size
from api.cli.kit.terminal import put
from api.components import open_environment, open_for_writing
from compactor.maintenance.grace import LEAST_GRACE_MS
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compactor.maintenance.garbage import CollectionResult, GarbageCollector
    from storage.environment import Environment
    from storage.objects.interface import ObjectInfo


def collect_garbage(
    context: typer.Context,
    topic: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be repeated.")] = None,
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Age of garbage before it is deleted: 10m, 1h, 2d; at least a minute."),
    ] = "1h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be deleted; so does leaving out --yes.")
    ] = False,
    unknown_topics: Annotated[
        bool,
        typer.Option("--unknown-topics", help="Also delete the objects of topics that this database does not know."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete it; without this, only report what would be deleted.")
    ] = False,
) -> None:
    """Delete objects without references.

    These are objects of crashed or failed attempts, compacted ledgers that were replaced a grace time ago and that no
    reader has pinned, and ledgers that were trimmed file.delete.delay.ms ago. Files of sealed segments are deleted,
    too. Safe beside imports, compactions and readers. The names of the objects go to standard output.
    """
    grace_ms = parse_duration("--grace", grace, LEAST_GRACE_MS)
    names = [TopicName.parse(name) for name in dict.fromkeys(topic or ())]
    if names and unknown_topics:
        raise InvalidInput("--topic and --unknown-topics do not go together", "leave one of them out")
    check_confirmation(yes, dry_run)
    unconfirmed, dry_run = not yes and not dry_run, not yes
    with (open_environment if dry_run else open_for_writing)(context.obj) as environment:
        from compactor.maintenance.garbage import GarbageCollector

        collector = GarbageCollector(environment, grace_ms, on_object=_print_name)
        reports = (
            _of_topics(environment, collector, names, dry_run)
            if names
            else collector.collect_all(dry_run, unknown_topics)
        )
        if not names and not dry_run:
            _sweep(environment)
        _report(reports, dry_run)
    if unconfirmed:
        say("Nothing was deleted: give --yes" + (" if no other database has these topics" if unknown_topics else ""))


def _sweep(environment: Environment) -> None:
    """Remove the local files of segments that ledgers replaced long enough ago."""
    from storage.log.log_manager import LogManager

    removed = LogManager(environment).sweep()
    if removed:
        say(f"Removed the files of {counted(removed, 'sealed segment')}")


def _of_topics(
    environment: Environment, collector: GarbageCollector, names: list[TopicName], dry_run: bool
) -> Iterator[CollectionResult]:
    for record in [environment.metadata.topics.get(name) for name in names]:
        yield collector.collect(record, dry_run)


def _report(reports: Iterator[CollectionResult], dry_run: bool) -> None:
    """Report a line for each topic with garbage, and the sum. Raises the first error after the last topic."""
    from compactor.maintenance.garbage import ObjectTotals

    total, failed = ObjectTotals(), None
    for report in reports:
        failed = failed or report.error
        if report.error is not None:
            say(f"{report.topic}: {report.error.message}")
        elif line := summary(report):
            say(line)
        if report.topic is not None or report.deleted:
            total += report.total
    verb = "Would delete" if dry_run else "Deleted"
    say(f"{verb} {counted(total.count, 'object')}, {size(total.bytes)}")
    if failed is not None:
        raise failed


def summary(report: CollectionResult) -> str:
    """Return the line of a topic; empty if it has no garbage."""
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


def _print_name(info: ObjectInfo) -> None:
    put(info.name)
