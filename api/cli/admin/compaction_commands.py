"""`compactor-admin topics` and `namespaces`: compaction, its thresholds, and retention."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from api.cli.admin.exit_codes import RUN_FAILED
from api.cli.admin.requests import NAMESPACE, TOPIC, Command, RequestCommand, RequestOption, get
from api.cli.admin.run_watch import follow_requests, newest_runs
from api.cli.admin.session import session, topic_path
from api.cli.kit.quantity_parsers import parse_bytes, parse_duration
from api.cli.kit.shared_arguments import TypedTopic
from api.cli.kit.stderr import say
from storage.errors import InvalidInput

_POLL_SECONDS = 0.5
_RUNNING = "RUNNING"
_WORDS = {
    "NOT_RUN": "Compaction has not been run for {topic}",
    "RUNNING": "Compaction is currently running",
    "SUCCESS": "Compaction was a success",
    "ERROR": "Error in compaction",
}
"""The lines that Pulsar's tool prints."""


_MINUTE_MS = 60_000
_MIB = 1 << 20


def parse_minutes(text: str) -> int:
    """Return Pulsar's time of a retention in whole minutes; -1: forever. Raises InvalidInput."""
    if text == "-1":
        return -1
    weeks = re.fullmatch(r"([0-9]{1,4})w", text, re.ASCII)
    milliseconds = parse_duration("--time", f"{int(weeks[1]) * 7}d" if weeks else text)
    if milliseconds % _MINUTE_MS:
        raise InvalidInput(f"{text!r} is no whole number of minutes", "give --time in minutes, as 10m")
    return milliseconds // _MINUTE_MS


def parse_megabytes(text: str) -> int:
    """Return Pulsar's size of a retention in whole megabytes; -1: no limit. Raises InvalidInput."""
    if text == "-1":
        return -1
    size = parse_bytes("--size", text)
    if size % _MIB:
        raise InvalidInput(f"{text!r} is no whole number of megabytes", "give --size in megabytes, as 10M")
    return size // _MIB


Threshold = Annotated[
    int,
    typer.Option(
        "-t",
        "--threshold",
        metavar="BYTES",
        parser=partial(parse_bytes, "--threshold"),
        help="Bytes after the horizon that make a compaction due: 100M, 16G. 0: off.",
    ),
]
Applied = Annotated[bool, typer.Option("-a", "--applied", help="The effective value, of whichever scope.")]
RetentionTime = Annotated[
    int,
    typer.Option(
        "-t",
        "--time",
        metavar="TIME",
        parser=parse_minutes,
        help="Seconds, or 100m, 3h, 2d, 5w; 0: none, -1: forever.",
    ),
]
RetentionSize = Annotated[
    int,
    typer.Option(
        "-s",
        "--size",
        metavar="BYTES",
        parser=parse_megabytes,
        help="Bytes, or 10M, 16G, 3T; 0: none, -1: any number.",
    ),
]


def compact(
    context: typer.Context,
    topic: TypedTopic,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the request until its run has ended.")] = False,
) -> None:
    """Request a compaction of a topic; of a partitioned topic, of each partition.

    With --wait, show the run of the request when it has ended. Ends with exit code 9 if the run failed or was
    cancelled; without new messages there is no run.
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
    """Show the result of the last compaction of a topic, or that one is running.

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
    path: str, scope: str, above: str, due: str, retained: str, set_threshold: str, applied: Mapping[str, RequestOption]
) -> Mapping[str, RequestCommand | Command]:
    """Return the commands for threshold and retention of a scope.

    `above`: the scope whose values apply without them; `due`, `retained`: help texts; `set_threshold`: the method that
    Pulsar's API has for it.
    """
    threshold, retention, name = f"{path}/compactionThreshold", f"{path}/retention", f"{{{scope}}}"
    return {
        "set-compaction-threshold": RequestCommand(
            set_threshold,
            threshold,
            f"Set the threshold that makes {due} due.",
            f"compaction threshold of {name} set",
            {"threshold": RequestOption(Threshold)},
        ),
        "get-compaction-threshold": get(
            threshold, f"Show the threshold in bytes that makes {due} due.", options=applied
        ),
        "remove-compaction-threshold": RequestCommand(
            "DELETE",
            threshold,
            f"Remove the threshold of a {scope}, so that the {above}'s applies.",
            f"compaction threshold of {name} removed",
        ),
        "set-retention": RequestCommand(
            "POST",
            retention,
            f"Set {retained}.",
            f"retention of {name} set",
            {
                "duration": RequestOption(RetentionTime, field="retentionTimeInMinutes"),
                "size": RequestOption(RetentionSize, field="retentionSizeInMB"),
            },
        ),
        "get-retention": get(retention, f"Show {retained}.", options=applied),
        "remove-retention": RequestCommand(
            "DELETE",
            retention,
            f"Remove the retention of a {scope}, so that the {above}'s applies.",
            f"retention of {name} removed",
        ),
    }


OF_TOPICS: Mapping[str, RequestCommand | Command] = {
    "compact": compact,
    "compaction-status": compaction_status,
    **_limits(
        TOPIC,
        "topic",
        "namespace",
        "a compaction of a topic",
        "the retention of a topic by time and size",
        "POST",
        {"applied": RequestOption(Applied, False, query="applied")},
    ),
}
OF_NAMESPACES = _limits(
    NAMESPACE,
    "namespace",
    "broker",
    "a compaction of a topic of a namespace",
    "the retention by time and size of the topics of a namespace",
    "PUT",
    {},
)
