"""`compactor-admin topics verify` and `trim`, and `gc`: what is there, and letting go of what is not needed.

What deletes is a dry run unless `--execute` is given.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.admin import exit_codes
from api.cli.admin.arguments import Topic
from api.cli.admin.session import (
    OutputName,
    path,
    session,
    topic_path,
)
from api.cli.kit.durations import parse_duration
from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import (
    counted,
    number,
    say,
    size,
)

Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without it, only say what would go.")]


def verify(context: typer.Context, topic: Topic) -> None:
    """Have the compacted ledger of a topic derived again, and every difference named. Changes nothing.

    Ends with exit code 7 if anything differs.
    """
    admin = session(context)
    reports = admin.service.post(topic_path(topic, "compaction", "verify"))
    if admin.output is OutputName.JSON:
        admin.show(reports)
    else:
        for report in reports:
            checked = ", ".join(f"{number(count)} {noun}" for noun, count in report["checked"].items())
            admin.show(f"{report['topic']}: {counted(report['total'], 'difference')}; checked {checked}")
            for reason in report["unchecked"]:
                admin.show(f"  not checked: {reason}")
            for one in report["differences"]:
                admin.show(f"  {one['kind']}: {one['where']}: {one['what']}")
    if found := sum(report["total"] for report in reports):
        say(f"compactor-admin: {counted(found, 'difference')} in {topic}: restore the objects from a backup")
        raise typer.Exit(exit_codes.DATA_LOSS)


def trim(
    context: typer.Context,
    topic: Topic,
    before: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="All before this message id or offset; else what the policies let go."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also what cursors and compaction still need. With a deletion that no run has seen, new compacted "
            "readers get the deleted key back.",
        ),
    ] = False,
    execute: Execute = False,
) -> None:
    """Let old raw ledgers of a topic go."""
    admin = session(context)
    reports = admin.service.post(topic_path(topic, "trim"), {"before": before, "force": force}, dryRun=not execute)
    if admin.output is OutputName.JSON:
        admin.show(reports)
        return
    ledgers = [{"topic": report["topic"], **ledger} for report in reports for ledger in report["ledgers"]]
    admin.show(ledgers)
    verb = "go" if execute else "would go, with --execute"
    admin.done(f"{counted(len(ledgers), 'ledger')} of {topic} {verb}")
    for report in reports:
        begin = "begin" if execute else "would begin"
        admin.done(f"messages of {report['topic']} {begin} at offset {report['start_offset']}")
        if report["held"]:
            kept = counted(len(report["held"]["ledgers"]), "ledger")
            admin.done(f"{kept} of {report['topic']} stay for the cursor {report['held']['cursor']}")


def release_lease(
    context: typer.Context,
    topic: Topic,
    force: Annotated[bool, typer.Option("--force", help="Also if its owner is alive.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without it, only show who owns it.")] = False,
) -> None:
    """Release the writer's lease of a topic whose owner died on another machine."""
    admin = session(context)
    reports = admin.service.post(topic_path(topic, "release-lease"), {"force": force, "dryRun": not execute})
    admin.show(reports)
    held = sum(report["owner"] is not None for report in reports)
    admin.done(f"{counted(held, 'lease')} of {topic} {'released' if execute else 'would be released, with --execute'}")


def collect_garbage(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help=f"Only of this one; may be repeated. {TOPIC_HELP}")
    ] = None,
    unknown_topics: Annotated[
        bool, typer.Option("--unknown-topics", help="Also of topics that the database does not know.")
    ] = False,
    grace: Annotated[str | None, typer.Option(metavar="DURATION", help="How long garbage stays: 10m, 1h, 7d.")] = None,
    execute: Execute = False,
) -> None:
    """Delete the objects that nothing refers to.

    Ends with exit code 7 if a topic could not be looked at; the others are collected all the same.
    """
    admin = session(context)
    body: dict[str, Any] = {"dryRun": not execute, "unknownTopics": unknown_topics}
    if topic:
        body["topics"] = topic
    if grace is not None:
        body["graceMs"] = parse_duration("--grace", grace)
    report = admin.service.post(path("admin", "v2", "garbage"), body)
    failed = [one for one in report["topics"] if one["error"]]
    if admin.output is OutputName.JSON:
        admin.show(report)
    else:
        rows = [
            {
                "topic": one["topic"] or one["topic_uid"],
                "objects": sum(kind["count"] for kind in one["objects"].values()),
                "bytes": sum(kind["bytes"] for kind in one["objects"].values()),
                "compacted_ledgers": one["compacted_ledgers"],
                "trimmed_ledgers": one["trimmed_ledgers"],
            }
            for one in report["topics"]
            if not one["error"]
        ]
        admin.show(rows)
        verb = "deleted" if execute else "would be deleted, with --execute"
        admin.done(f"{counted(report['objects'], 'object')}, {size(report['bytes'])}, {verb}")
    for one in failed:
        say(f"compactor-admin: {one['topic'] or one['topic_uid']}: {' '.join(one['error'].split())}")
    if failed:
        raise typer.Exit(exit_codes.DATA_LOSS)
