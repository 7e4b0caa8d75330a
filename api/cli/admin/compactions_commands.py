"""`compactor-admin compactions`: list, show, watch and cancel runs; pause and resume the compaction of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from api.cli.admin.requests import TOPIC, Command, delete, get, option, post
from api.cli.admin.run_watch import follow_run, show_ended_runs, watch_topic
from api.cli.admin.session import expand_path, session_of, topic_path
from api.cli.kit.reports import show_run, show_runs
from api.cli.kit.shared_arguments import TOPIC_HELP, OnlyTopic, Run, StateName
from storage.errors import InvalidInput

_COMPACTIONS = "/admin/v2/compactions"
_RUN = f"{_COMPACTIONS}/{{run}}"
_CONTROL_COLUMNS = ("topic", "state", "cause", "paused", "failures", "retry_at", "last_error")


def list_runs(
    context: typer.Context,
    topic: OnlyTopic = None,
    state: Annotated[StateName | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="The number of newest runs.")] = 50,
) -> None:
    """List compaction runs, the newest first."""
    admin = session_of(context)
    path = _COMPACTIONS if topic is None else topic_path(topic, "compactions")
    show_runs(admin.service.get(path, limit=limit, state=state), admin.output)


def show_one_run(context: typer.Context, run: Run) -> None:
    """Show a run: its progress, policies and statistics, and the reason if it failed."""
    admin = session_of(context)
    show_run(admin.service.get(expand_path(_RUN, run=run)), admin.output)


def watch_run(
    context: typer.Context,
    run: Annotated[int | None, typer.Argument(metavar="[RUN]", min=1, max=2**63 - 1, help="Its number.")] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help=f"Follow its request, or its newest run. {TOPIC_HELP}")
    ] = None,
) -> None:
    """Follow a run until it has ended, then show it.

    With --topic it follows the run of the topic's request, if one waits, else its newest run; of a partitioned topic
    the runs of its partitions. Progress goes to stderr: in one live line on a terminal, otherwise a line for each
    phase. Ends with exit code 9 if a run ends with an error or is cancelled.
    """
    if (run is None) == (topic is None):
        raise InvalidInput("watch takes one of a run and a topic", "give RUN or --topic")
    admin = session_of(context)
    if run is None:
        assert topic is not None
        watch_topic(admin, topic)
    else:
        show_ended_runs(admin, [follow_run(admin, run)], as_one_object=True)


def show_scheduler(context: typer.Context) -> None:
    """Show the leader, the waiting requests, the active runs, and the topics that fail or are paused."""
    admin = session_of(context)
    answer = admin.service.get(f"{_COMPACTIONS}/scheduler")
    if admin.as_json:
        admin.show(answer)
        return
    admin.show(f"leader: {answer['leader'] or 'none'}")
    for name, columns in (
        ("services", ("name", "url", "leads", "started_at", "heartbeat_at")),
        ("queue", ("topic", "cause", "requested_at")),
        ("running", ("run", "topic", "state", "phase", "started_at")),
        ("failing", ("topic", "failures", "retry_at", "last_error")),
        ("paused", ("topic", "paused", "state")),
    ):
        admin.show(f"{name}: {len(answer[name])}")
        if answer[name]:
            admin.show(answer[name], columns)


def _compaction_control_command(verb: str, result: str, help_text: str) -> Command:
    """Return a command that pauses, resumes or aborts a topic's compaction. `verb`: the end of its REST path; `result`:
    the participle in its report."""
    path, report = f"{TOPIC}/compaction/{verb}", f"compaction of {{topic}} {result}"
    return post(path, help_text, report, columns=_CONTROL_COLUMNS)


COMMANDS: Mapping[str, Command] = {
    "list": list_runs,
    "show": show_one_run,
    "watch": watch_run,
    "cancel": delete(
        _RUN,
        "Cancel an active run: it can no longer publish.\n\n"
        "A topic that is still due, because it is over a threshold, is compacted again soon: `compactions pause` "
        "prevents that.",
        "run {run} cancelled",
        {"reason": option(str, metavar="TEXT", help="Kept with the run.", default="cancelled by hand", query="reason")},
    ),
    "pause": _compaction_control_command(
        "pause", "paused", "Stop the run of a topic, and start none until it is resumed as many times as it was paused."
    ),
    "resume": _compaction_control_command("resume", "resumed", "Undo one pause of a topic."),
    "abort": _compaction_control_command(
        "abort", "aborted", "Stop the run of a topic, and drop its request; later requests are executed as before."
    ),
    "control": get(
        f"{TOPIC}/compaction/control",
        "Show whether a compaction of a topic is requested, paused or failing.",
        columns=_CONTROL_COLUMNS,
    ),
    "scheduler": show_scheduler,
}
