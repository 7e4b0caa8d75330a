"""`compactor-admin compactions`: runs, what decides about them, and watching one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.admin_cli import exit_codes
from api.admin_cli.arguments import Topic
from api.admin_cli.session import OutputName, Session, path, session, to_terminal, topic_path
from api.cli.names import TOPIC_HELP
from api.cli.talk import number, say
from storage.errors import InvalidInput, NotFound, Unavailable

_COMPACTIONS = ("admin", "v2", "compactions")
_RUN_COLUMNS = ("run", "topic", "state", "phase", "started_at", "finished_at", "compacted_ledger", "error")
_CONTROL_COLUMNS = ("topic", "state", "cause", "paused", "failures", "retry_at", "last_error")
_CONNECTIONS = 5
"""How often in a row a watch begins anew when its connection breaks."""
_AGAIN_SECONDS = 1.0


class StateName(StrEnum):
    """States of a run by name; `storage.metadata.records.RunState` has them (a test keeps the two equal)."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


Run = Annotated[int, typer.Argument(metavar="RUN", min=1, max=2**63 - 1, help="Its number, as `list` has it.")]


def list_runs(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help=f"Only of this topic. {TOPIC_HELP}")] = None,
    state: Annotated[StateName | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="The newest so many.")] = 50,
) -> None:
    """List compaction runs, the newest first."""
    admin = session(context)
    there = path(*_COMPACTIONS) if topic is None else topic_path(topic, "compactions")
    admin.show(admin.service.get(there, limit=limit, state=state and state.value), _RUN_COLUMNS)


def show_run(context: typer.Context, run: Run) -> None:
    """Show a run: how far it is, its policies, its numbers, and why it failed if it did."""
    admin = session(context)
    admin.show(admin.service.get(path(*_COMPACTIONS, str(run))))


def cancel_run(
    context: typer.Context,
    run: Run,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept with the run.")] = "cancelled by hand",
) -> None:
    """Cancel a run that is under way: it can publish nothing any more.

    A topic that is still due, because it is over a threshold, is compacted again soon: `compactions pause` keeps it
    from that.
    """
    admin = session(context)
    admin.service.delete(path(*_COMPACTIONS, str(run)), reason=reason)
    admin.done(f"run {run} cancelled")


def watch_run(
    context: typer.Context,
    run: Annotated[int | None, typer.Argument(metavar="[RUN]", min=1, max=2**63 - 1, help="Its number.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help=f"Its newest run. {TOPIC_HELP}")] = None,
) -> None:
    """Follow a run until it has ended, then show it.

    How far it is stands on stderr: in one live line on a terminal, otherwise a line whenever something has changed.
    Ends with exit code 9 if the run ends with an error or is cancelled.
    """
    if (run is None) == (topic is None):
        raise InvalidInput("watch takes one of a run and a topic", "give RUN or --topic")
    admin = session(context)
    if run is None:
        assert topic is not None
        newest = admin.service.get(topic_path(topic, "compactions"), limit=1)
        if not newest:
            raise NotFound(f"{topic} has no compaction run", "have it compacted with `topics compact`")
        run = newest[0]["run"]
    ended = _follow(admin, run)
    admin.show(ended)
    if ended["state"] != StateName.SUCCESS:
        why = " ".join(str(ended.get("error") or "no reason is known").split())
        say(f"compactor-admin: run {run} of {ended['topic']} ended with {ended['state']}: {why}")
        raise typer.Exit(exit_codes.RUN_FAILED)


def pause(context: typer.Context, topic: Topic) -> None:
    """Stop the run of a topic, and make none until it is resumed, as many times as it was paused."""
    _control(context, topic, "pause", "paused")


def resume(context: typer.Context, topic: Topic) -> None:
    """Take back one pause of a topic."""
    _control(context, topic, "resume", "resumed")


def abort(context: typer.Context, topic: Topic) -> None:
    """Stop the run of a topic, and drop the request for one; later ones are made as before."""
    _control(context, topic, "abort", "aborted")


def control(context: typer.Context, topic: Topic) -> None:
    """Show whether a compaction of a topic is wanted, paused or fails."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "compaction", "control")), _CONTROL_COLUMNS)


def scheduler(context: typer.Context) -> None:
    """Show who schedules, what waits, what runs, and which topics fail or are paused."""
    admin = session(context)
    answer = admin.service.get(path(*_COMPACTIONS, "scheduler"))
    if admin.output is OutputName.JSON:
        admin.show(answer)
        return
    print(f"leader: {answer['leader'] or 'none'}")  # noqa: T201
    for name, columns in (
        ("services", ("name", "url", "leads", "started_at", "heartbeat_at")),
        ("queue", ("topic", "cause", "requested_at")),
        ("running", _RUN_COLUMNS[:5]),
        ("failing", ("topic", "failures", "retry_at", "last_error")),
        ("paused", ("topic", "paused", "state")),
    ):
        print(f"{name}: {len(answer[name])}")  # noqa: T201
        admin.show(answer[name], columns)


def _control(context: typer.Context, topic: str, verb: str, done: str) -> None:
    admin = session(context)
    answer = admin.service.post(topic_path(topic, "compaction", verb))
    admin.done(f"compaction of {topic} {done}")
    admin.show(answer, _CONTROL_COLUMNS)


def _follow(admin: Session, run: int) -> dict[str, Any]:
    """The run when it has ended. A connection that breaks is made anew."""
    line = _ProgressLine()
    failed = 0
    while True:
        try:
            for kind, document in _events(admin, run):
                failed = 0
                if kind == "end":
                    line.end()
                    return document
                line.show(document)
            raise Unavailable(f"the service ended the events of run {run} before the run had ended", "watch it again")
        except Unavailable:
            failed += 1
            if failed == _CONNECTIONS:
                line.end()
                raise
            time.sleep(_AGAIN_SECONDS)


def _events(admin: Session, run: int) -> Iterator[tuple[str, dict[str, Any]]]:
    there = path(*_COMPACTIONS, str(run), "events")
    with admin.service.stream("GET", there, patient=True, Accept="text/event-stream") as answer:
        yield from parse_events(answer.iter_lines())


def parse_events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events: the kind of each, and its data as JSON. Comments and what is cut off are left out."""
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


class _ProgressLine:
    """How far a run is, on stderr."""

    def __init__(self) -> None:
        self._live = to_terminal()

    def show(self, run: dict[str, Any]) -> None:
        text = progress(run)
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        else:
            say(text)

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress(run: dict[str, Any]) -> str:
    """`run 7 of persistent://… : phase two, 3/8 tasks, 1.5 MiB, 12 s`."""
    from api.cli.talk import size

    text = f"run {run['run']} of {run['topic']}: {run['phase'] or 'begins'}"
    if run.get("tasks_total"):
        text += f", {number(run['tasks_done'] or 0)}/{number(run['tasks_total'])} tasks"
    if run.get("bytes_done"):
        text += f", {size(run['bytes_done'])}"
    if run.get("heartbeat_at") and run.get("started_at"):
        text += f", {max(0, run['heartbeat_at'] - run['started_at']) // 1000} s"
    return text
