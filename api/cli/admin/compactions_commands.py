"""`compactor-admin compactions`: runs, what decides about them, and watching one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from api.cli.admin.arguments import Topic
from api.cli.admin.following import (
    RUN_COLUMNS,
    follow,
    show_ended,
    watch_topic,
)
from api.cli.admin.session import (
    OutputName,
    path,
    session,
    topic_path,
)
from api.cli.kit.names import TOPIC_HELP
from storage.errors import InvalidInput

_COMPACTIONS = ("admin", "v2", "compactions")
_CONTROL_COLUMNS = ("topic", "state", "cause", "paused", "failures", "retry_at", "last_error")


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
    admin.show(admin.service.get(there, limit=limit, state=state and state.value), RUN_COLUMNS)


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
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help=f"What is requested of it, or its newest run. {TOPIC_HELP}")
    ] = None,
) -> None:
    """Follow a run until it has ended, then show it.

    With --topic the run that takes the topic's request, if one waits, else its newest one; of a partitioned topic those
    of its partitions. How far a run is stands on stderr: in one live line on a terminal, otherwise a line whenever
    something has changed. Ends with exit code 9 if a run ends with an error or is cancelled.
    """
    if (run is None) == (topic is None):
        raise InvalidInput("watch takes one of a run and a topic", "give RUN or --topic")
    admin = session(context)
    if run is None:
        assert topic is not None
        watch_topic(admin, topic)
    else:
        show_ended(admin, [follow(admin, run)], alone=True)


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
        ("running", RUN_COLUMNS[:5]),
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
