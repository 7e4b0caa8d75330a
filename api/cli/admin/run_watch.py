"""A watch of a compaction from its request to its end: `topics compact --wait` and `compactions watch`.

A request waits in SQL until the leader executes it. Its run is the first run of the topic after the newest run that
existed when the request was made; so a topic and that run identify a request. A request may end without a run: nothing
is new, compaction was paused, or the run could not begin.

Progress goes to stderr. A broken connection is opened again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from time import sleep
from typing import Any

import typer

from api.cli.admin.session import Session, topic_path
from api.cli.kit.exit_codes import RUN_FAILED
from api.cli.kit.reports import print_lines, run_summary, show_run, show_runs
from api.cli.kit.stderr import say, size
from api.cli.kit.terminal import LiveLine
from storage.errors import CompactionPaused, NotFound, Unavailable

_CONNECTIONS = 5
"""The number of consecutive broken connections that end a watch."""
_AGAIN_SECONDS = 1.0
_POLL_SECONDS = 0.5
_SUCCESS = "SUCCESS"


def newest_run_numbers(admin: Session, topic: str) -> dict[str, int]:
    """Return the number of the newest run of the topic, or of each partition, by full name; 0 for a topic without a
    run."""
    names = [control["topic"] for control in admin.service.get(topic_path(topic, "compaction", "control"))]
    return {name: _newest_run_number(admin, name) for name in names}


def follow_requests(admin: Session, newest_before: Mapping[str, int]) -> None:
    """Follow the requests of topics whose newest runs were `newest_before`, and show the runs that execute them.

    Raises CompactionPaused; Exit (9) if a run failed, was cancelled or could not begin.
    """
    runs: list[dict[str, Any]] = []
    failed = False
    for topic, newest in newest_before.items():
        run = _wait_for_run_after(admin, topic, newest)
        if run is not None:
            runs.append(follow_run(admin, run))
            continue
        control = _compaction_control(admin, topic)
        if control["paused"]:
            raise CompactionPaused(
                f"compaction of {topic} was paused before a run began", "resume it, then request a compaction again"
            )
        failed = failed or bool(control["failures"])
        if control["failures"]:
            say(f"compactor-admin: compaction of {topic} could not begin: {' '.join(control['last_error'].split())}")
        else:
            say(f"compactor-admin: no run of {topic} began: nothing is new, or the request was withdrawn")
    show_ended_runs(admin, runs, as_one_object=len(newest_before) == 1, any_failed=failed)


def watch_topic(admin: Session, topic: str) -> None:
    """Follow the request of a topic, or of each partition; without a request, its newest run.

    Raises NotFound for a topic without a run or request, and as `follow_requests`.
    """
    before = newest_run_numbers(admin, topic)  # read before the requests, so that the run of a request is newer
    requested = {
        name: newest for name, newest in before.items() if _compaction_control(admin, name)["requested_at"] is not None
    }
    if requested:
        follow_requests(admin, requested)
        return
    runs = [run for name in before if (run := _newest_run_number(admin, name))]
    if not runs:
        raise NotFound(f"{topic} has no compaction run", "request one with `topics compact`")
    show_ended_runs(admin, [follow_run(admin, run) for run in runs], as_one_object=len(before) == 1)


def show_ended_runs(
    admin: Session, runs: list[dict[str, Any]], *, as_one_object: bool, any_failed: bool = False
) -> None:
    """Show runs that have ended, a line each. Raises Exit (9) if one did not succeed, or if `any_failed`.

    `as_one_object`: with JSON output, show the run itself, not a list.
    """
    if not admin.as_json:
        print_lines([run_summary(run) for run in runs])
    elif as_one_object:
        show_run(runs[0] if runs else None, admin.output)
    else:
        show_runs(runs, admin.output)
    for run in runs:
        if run["state"] != _SUCCESS:
            any_failed = True
            why = " ".join(str(run.get("error") or "no reason is known").split())
            say(f"compactor-admin: run {run['run']} of {run['topic']} ended with {run['state']}: {why}")
    if any_failed:
        raise typer.Exit(RUN_FAILED)


def follow_run(admin: Session, run: int) -> dict[str, Any]:
    """Follow a run to its end, with its progress on stderr, and return the run's document. A broken connection is
    opened again."""
    line = LiveLine(sys.stderr)
    failed, phase = 0, None
    while True:
        try:
            for kind, document in _stream_run_events(admin, run):
                failed = 0
                if kind == "end":
                    line.end()
                    if document["state"] == _SUCCESS:
                        return document
                    # Events are the same for all callers; only this answer has the reason in full.
                    return dict(admin.service.get(f"/admin/v2/compactions/{run}"))
                if line.is_live:
                    line.show(progress_line(document))
                elif document["phase"] != phase:  # a line a phase is enough for a log
                    phase = document["phase"]
                    say(progress_line(document))
            raise Unavailable(f"the service ended the events of run {run} before the run had ended", "watch it again")
        except Unavailable:
            failed += 1
            if failed == _CONNECTIONS:
                line.end()
                raise
            sleep(_AGAIN_SECONDS)


def _wait_for_run_after(admin: Session, topic: str, newest: int) -> int | None:
    """Wait for the first run after `newest`, and return its number; None: the request ended without a run."""
    reported = False
    failed = 0
    while True:
        try:
            control = _compaction_control(admin, topic)
            run = _newest_run_number(admin, topic)
            failed = 0
        except Unavailable:
            failed += 1
            if failed == _CONNECTIONS:
                raise
        else:
            if run > newest:
                return run
            if control["requested_at"] is None:
                return None
            if not reported:
                say(f"compactor-admin: compaction of {topic} is requested ({control['cause']}): waiting for its run")
                reported = True
        sleep(_POLL_SECONDS)


def _compaction_control(admin: Session, topic: str) -> dict[str, Any]:
    """Return the compaction state of a topic without partitions: its request, pauses and failures."""
    [control] = admin.service.get(topic_path(topic, "compaction", "control"))
    return dict(control)


def _newest_run_number(admin: Session, topic: str) -> int:
    """Return the number of a topic's newest run; 0: it has none."""
    runs = admin.service.get(topic_path(topic, "compactions"), limit=1)
    return int(runs[0]["run"]) if runs else 0


def _stream_run_events(admin: Session, run: int) -> Iterator[tuple[str, dict[str, Any]]]:
    events = f"/admin/v2/compactions/{run}/events"
    with admin.service.stream("GET", events, unlimited_read=True, Accept="text/event-stream") as answer:
        yield from parse_events(answer.iter_lines())


def parse_events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and the JSON data of each server-sent event. Comments and an incomplete last event are omitted."""
    kind = "message"
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield kind, json.loads("\n".join(data))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        if name == "event":
            kind = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))


def progress_line(run: dict[str, Any]) -> str:
    """Return the progress of a run in a line: `run 7 of persistent://… : phase two, 3/8 tasks, 1.5 MiB, 12 s`."""
    text = f"run {run['run']} of {run['topic']}: {run['phase'] or 'begins'}"
    if run.get("tasks_total"):
        text += f", {run['tasks_done'] or 0:,}/{run['tasks_total']:,} tasks"
    if run.get("bytes_done"):
        text += f", {size(run['bytes_done'])}"
    if run.get("heartbeat_at") and run.get("started_at"):
        text += f", {max(0, run['heartbeat_at'] - run['started_at']) // 1000} s"
    return text
