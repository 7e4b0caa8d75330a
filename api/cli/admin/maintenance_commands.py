"""`compactor-admin topics verify`, `trim` and `release-lease`, and `gc`.

A command that deletes is a dry run unless `--yes` is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from api.cli.admin.requests import Command
from api.cli.admin.session import session_of, topic_path
from api.cli.kit.exit_codes import DATA_LOSS
from api.cli.kit.quantity_parsers import duration_option
from api.cli.kit.reports import TRIM_COLUMNS, print_lines, trim_lines, verify_lines
from api.cli.kit.shared_arguments import TOPIC_HELP, TrimBefore, TrimForce, TypedTopic, Yes
from api.cli.kit.stderr import counted, say, size

LEAST_GRACE_MS = 60_000
"""That of `compactor.maintenance.grace`, which this program does not import (a test compares)."""


def verify_topic(context: typer.Context, topic: TypedTopic) -> None:
    """Derive the compacted ledger of a topic again, and list every difference. Changes nothing.

    Ends with exit code 7 if anything differs.
    """
    admin = session_of(context)
    reports = admin.service.request("POST", topic_path(topic, "compaction", "verify"))
    if admin.as_json:
        admin.show(reports)
    else:
        for report in reports:
            print_lines(verify_lines(report))
    if differences := sum(report["total"] for report in reports):
        say(f"compactor-admin: {counted(differences, 'difference')} in {topic}: restore the objects from a backup")
        raise typer.Exit(DATA_LOSS)


def trim_topic(
    context: typer.Context,
    topic: TypedTopic,
    before: TrimBefore = None,
    force: TrimForce = False,
    yes: Yes = False,
) -> None:
    """Trim old raw ledgers of a topic.

    Without --before, those that its cleanup policies allow now. Without --yes nothing is trimmed: they are only listed.
    """
    admin = session_of(context)
    body = {"before": before, "force": force}
    reports = admin.service.request("POST", topic_path(topic, "trim"), {"dryRun": not yes}, body)
    if admin.as_json:
        admin.show(reports)
        return
    ledgers = [{"topic": report["topic"], **ledger} for report in reports for ledger in report["ledgers"]]
    if ledgers:
        admin.show(ledgers, ("topic", *TRIM_COLUMNS))
    for line in (line for report in reports for line in trim_lines(report)):
        admin.report_change(line)
    if not yes:
        admin.report_change("nothing was trimmed: give --yes")


def release_lease(
    context: typer.Context,
    topic: TypedTopic,
    force: Annotated[bool, typer.Option("--force", help="Also if its owner is alive.")] = False,
    yes: Yes = False,
) -> None:
    """Release the writer's lease of a topic whose owner died on another machine.

    Without --yes nothing is released: the owner is only shown.
    """
    admin = session_of(context)
    body = {"force": force, "dryRun": not yes}
    reports = admin.service.request("POST", topic_path(topic, "release-lease"), body=body)
    admin.show(reports)
    held = sum(report["owner"] is not None for report in reports)
    admin.report_change(f"{counted(held, 'lease')} of {topic} {'released' if yes else 'would be released, with --yes'}")


def collect_garbage(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help=f"Only of this one; may be repeated. {TOPIC_HELP}")
    ] = None,
    unknown_topics: Annotated[
        bool, typer.Option("--unknown-topics", help="Also of topics that the database does not know.")
    ] = False,
    grace: Annotated[
        int | None, duration_option("--grace", "Age of garbage before it is deleted: 10m, 1h, 7d.", LEAST_GRACE_MS)
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete the objects that nothing refers to.

    Without --yes nothing is deleted: they are only counted. Ends with exit code 7 if a topic could not be checked; the
    others are collected.
    """
    admin = session_of(context)
    body: dict[str, Any] = {"dryRun": not yes, "unknownTopics": unknown_topics}
    if topic:
        body["topics"] = topic
    if grace is not None:
        body["graceMs"] = grace
    report = admin.service.request("POST", "/admin/v2/garbage", body=body)
    if admin.as_json:
        admin.show(report)
    else:
        admin.show([_garbage_row(entry) for entry in report["topics"] if not entry["error"]])
        verb = "deleted" if yes else "would be deleted, with --yes"
        admin.report_change(f"{counted(report['objects'], 'object')}, {size(report['bytes'])}, {verb}")
    failed = [entry for entry in report["topics"] if entry["error"]]
    for entry in failed:
        say(f"compactor-admin: {entry['topic'] or entry['topic_uid']}: {' '.join(entry['error'].split())}")
    if failed:
        raise typer.Exit(DATA_LOSS)


def _garbage_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topic": entry["topic"] or entry["topic_uid"],
        "objects": sum(kind["count"] for kind in entry["objects"].values()),
        "bytes": sum(kind["bytes"] for kind in entry["objects"].values()),
        "compacted_ledgers": entry["compacted_ledgers"],
        "trimmed_ledgers": entry["trimmed_ledgers"],
    }


OF_TOPICS: Mapping[str, Command] = {"verify": verify_topic, "trim": trim_topic, "release-lease": release_lease}
