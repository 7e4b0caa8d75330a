"""`compactor-admin topics` and `namespaces`: compaction, its thresholds, and retention."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

import typer

from api.cli.admin.arguments import Applied, RetentionSize, RetentionTime, Threshold, parse_megabytes, parse_minutes
from api.cli.admin.exit_codes import RUN_FAILED
from api.cli.admin.following import follow_requests, newest_runs
from api.cli.admin.requests import NAMESPACE, TOPIC, Command, Request, RequestOption, get
from api.cli.admin.session import session, topic_path
from api.cli.kit.names import TypedTopic
from api.cli.kit.quantities import parse_bytes
from api.cli.kit.stderr import say

_POLL_SECONDS = 0.5
_RUNNING = "RUNNING"
_WORDS = {
    "NOT_RUN": "Compaction has not been run for {topic}",
    "RUNNING": "Compaction is currently running",
    "SUCCESS": "Compaction was a success",
    "ERROR": "Error in compaction",
}
"""What Pulsar's tool prints."""


def compact(
    context: typer.Context,
    topic: TypedTopic,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the request until its run has ended.")] = False,
) -> None:
    """Have a topic compacted; of a partitioned topic, each partition.

    With --wait: show the run that took the request when it has ended. Ends with exit code 9 if it ended with an error
    or was cancelled; if nothing is new, there is none.
    """
    admin = session(context)
    before = newest_runs(admin, topic) if wait else {}
    admin.service.request("PUT", topic_path(topic, "compaction"))
    admin.done(f"Topic compaction requested for {topic}")
    if wait:
        follow_requests(admin, before)


def compaction_status(
    context: typer.Context,
    topic: TypedTopic,
    wait_complete: Annotated[bool, typer.Option("-w", "--wait-complete", help="Wait until none is running.")] = False,
) -> None:
    """Show how the last compaction of a topic ended, or that one is running.

    Ends with exit code 9 if it ended with an error or was cancelled.
    """
    admin = session(context)
    while True:
        answer = admin.service.get(topic_path(topic, "compaction"))
        if not wait_complete or answer["status"] != _RUNNING:
            break
        time.sleep(_POLL_SECONDS)
    admin.show(answer if admin.as_json else _WORDS.get(answer["status"], answer["status"]).format(topic=topic))
    if answer["status"] == "ERROR":
        say(f"compactor-admin: compaction of {topic} failed: {' '.join(str(answer.get('lastError')).split())}")
        raise typer.Exit(RUN_FAILED)


def _limits(
    path: str, scope: str, above: str, due: str, kept: str, set_threshold: str, applied: Mapping[str, RequestOption]
) -> Mapping[str, Request | Command]:
    """Threshold and retention of a scope. `above`: the scope that counts without them; `due`, `kept`: help texts;
    `set_threshold`: the method that Pulsar's API has for it."""
    threshold, retention, name = f"{path}/compactionThreshold", f"{path}/retention", f"{{{scope}}}"
    return {
        "set-compaction-threshold": Request(
            set_threshold,
            threshold,
            f"Set when {due}.",
            f"compaction threshold of {name} set",
            {"threshold": RequestOption(Threshold, parse=lambda text: parse_bytes("--threshold", text))},
        ),
        "get-compaction-threshold": get(threshold, f"Show when {due}, in bytes.", options=applied),
        "remove-compaction-threshold": Request(
            "DELETE",
            threshold,
            f"Let the {above}'s threshold count for a {scope} again.",
            f"compaction threshold of {name} removed",
        ),
        "set-retention": Request(
            "POST",
            retention,
            f"Set {kept}.",
            f"retention of {name} set",
            {
                "duration": RequestOption(RetentionTime, field="retentionTimeInMinutes", parse=parse_minutes),
                "size": RequestOption(RetentionSize, field="retentionSizeInMB", parse=parse_megabytes),
            },
        ),
        "get-retention": get(retention, f"Show {kept}.", options=applied),
        "remove-retention": Request(
            "DELETE",
            retention,
            f"Let the {above}'s retention count for a {scope} again.",
            f"retention of {name} removed",
        ),
    }


OF_TOPICS: Mapping[str, Request | Command] = {
    "compact": compact,
    "compaction-status": compaction_status,
    **_limits(
        TOPIC,
        "topic",
        "namespace",
        "a compaction of a topic is due",
        "how long, and how much of it, a topic is kept",
        "POST",
        {"applied": RequestOption(Applied, False, query="applied")},
    ),
}
OF_NAMESPACES = _limits(
    NAMESPACE,
    "namespace",
    "broker",
    "a compaction of a topic of a namespace is due",
    "how long, and how much of them, topics of a namespace are kept",
    "PUT",
    {},
)
