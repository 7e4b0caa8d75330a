"""`compactor-admin topics` and `namespaces`: compaction, its thresholds, and retention."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from api.broker.pulsar_policies import RETENTION, THRESHOLD
from api.cli.admin.requests import (
    NAMESPACE,
    TOPIC,
    Command,
    RequestOption,
    delete,
    flag,
    get,
    option,
    post,
    request_command,
)
from api.cli.admin.run_watch import follow_requests, newest_run_numbers
from api.cli.admin.session import session_of, topic_path
from api.cli.kit.exit_codes import RUN_FAILED
from api.cli.kit.quantity_parsers import parse_bytes, parse_duration
from api.cli.kit.shared_arguments import TypedTopic
from api.cli.kit.stderr import say
from storage.errors import InvalidInput
from storage.options.resolution import PolicyOrigin

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
_TIME_REMEDY = (
    "give --time in whole minutes with a unit, such as 90m, 3h or 30d, up to 36500d (a number without one is seconds); "
    "0 for none, -1 for no limit"
)
_SIZE_REMEDY = (
    "give --size in whole megabytes with a unit, such as 10M, 16G or 3T (a number without one is bytes); 0 for none, "
    "-1 for no limit"
)


def _parse_retention_limit(
    name: str, parse: Callable[[str, str], int], unit: int, units: str, remedy: str, text: str
) -> int:
    """Parse a retention limit to a whole number of units; -1: no limit. Raises InvalidInput with `remedy`."""
    if text == "-1":
        return -1
    try:
        value = parse(name, text)
    except InvalidInput as error:
        raise InvalidInput(error.message, remedy) from error
    if value % unit:
        raise InvalidInput(f"{text!r} is not a whole number of {units}", remedy)
    return value // unit


_THRESHOLD = option(
    str,
    "-t",
    "--threshold",
    metavar="BYTES",
    parse=partial(parse_bytes, "--threshold"),
    help="Bytes after the horizon that make a compaction due: 100M, 16G. 0: off.",
)
_APPLIED = flag("-a", "--applied", help="The effective value, of whichever scope.", query="applied")
_RETENTION_TIME = option(
    str,
    "-t",
    "--time",
    metavar="TIME",
    parse=partial(_parse_retention_limit, "--time", parse_duration, _MINUTE_MS, "minutes", _TIME_REMEDY),
    help="Whole minutes: 100m, 3h, 2d, 5w; a bare number is seconds. 0: none, -1: forever.",
    field="retentionTimeInMinutes",
)
_RETENTION_SIZE = option(
    str,
    "-s",
    "--size",
    metavar="BYTES",
    parse=partial(_parse_retention_limit, "--size", parse_bytes, _MIB, "megabytes", _SIZE_REMEDY),
    help="Whole megabytes: 10M, 16G, 3T; a bare number is bytes. 0: none, -1: any number.",
    field="retentionSizeInMB",
)


def request_compaction(
    context: typer.Context,
    topic: TypedTopic,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the request until its run has ended.")] = False,
) -> None:
    """Request a compaction of a topic; of a partitioned topic, of each partition.

    With --wait, show the run of the request when it has ended. Ends with exit code 9 if the run failed or was
    cancelled; without new messages there is no run.
    """
    admin = session_of(context)
    before = newest_run_numbers(admin, topic) if wait else {}
    admin.service.request("PUT", topic_path(topic, "compaction"))
    admin.report_change(f"Topic compaction requested for {topic}")
    if wait:
        follow_requests(admin, before)


def show_compaction_status(
    context: typer.Context,
    topic: TypedTopic,
    wait_complete: Annotated[bool, typer.Option("-w", "--wait-complete", help="Wait until none is running.")] = False,
) -> None:
    """Show the result of the last compaction of a topic, or that one is running.

    Ends with exit code 9 if it ended with an error or was cancelled.
    """
    admin = session_of(context)
    while True:
        answer = admin.service.get(topic_path(topic, "compaction"))
        if not wait_complete or answer["status"] != _RUNNING:
            break
        time.sleep(_POLL_SECONDS)
    admin.show(answer if admin.as_json else _WORDS.get(answer["status"], answer["status"]).format(topic=topic))
    if answer["status"] == "ERROR":
        say(f"compactor-admin: compaction of {topic} failed: {' '.join(str(answer.get('lastError')).split())}")
        raise typer.Exit(RUN_FAILED)


def _threshold_and_retention_commands(
    path: str, scope: PolicyOrigin, above: str, due: str, retained: str, applied: Mapping[str, RequestOption]
) -> Mapping[str, Command]:
    """Return the commands that set, show and remove compaction threshold and retention of a scope, by name.

    `above`: the scope whose values apply without them; `due`, `retained`: help texts.
    """
    name, endpoints = f"{{{scope}}}", THRESHOLD.endpoints[scope]
    threshold, retention = f"{path}/{endpoints.path}", f"{path}/{RETENTION.endpoints[scope].path}"
    return {
        "set-compaction-threshold": request_command(
            endpoints.verb,
            threshold,
            f"Set the threshold that makes {due} due.",
            f"compaction threshold of {name} set",
            {"threshold": _THRESHOLD},
        ),
        "get-compaction-threshold": get(
            threshold, f"Show the threshold in bytes that makes {due} due.", options=applied
        ),
        "remove-compaction-threshold": delete(
            threshold,
            f"Remove the threshold of a {scope}, so that the {above}'s applies.",
            f"compaction threshold of {name} removed",
        ),
        "set-retention": post(
            retention,
            f"Set {retained}.",
            f"retention of {name} set",
            {"duration": _RETENTION_TIME, "size": _RETENTION_SIZE},
        ),
        "get-retention": get(retention, f"Show {retained}.", options=applied),
        "remove-retention": delete(
            retention,
            f"Remove the retention of a {scope}, so that the {above}'s applies.",
            f"retention of {name} removed",
        ),
    }


OF_TOPICS: Mapping[str, Command] = {
    "compact": request_compaction,
    "compaction-status": show_compaction_status,
    **_threshold_and_retention_commands(
        TOPIC,
        PolicyOrigin.TOPIC,
        "namespace",
        "a compaction of a topic",
        "the retention of a topic by time and size",
        {"applied": _APPLIED},
    ),
}
OF_NAMESPACES = _threshold_and_retention_commands(
    NAMESPACE,
    PolicyOrigin.NAMESPACE,
    "broker",
    "a compaction of a topic of a namespace",
    "the retention by time and size of the topics of a namespace",
    {},
)
