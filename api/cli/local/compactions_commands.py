"""`compactor compactions list`, `show` and `cancel`: the runs in the database, which keeps them forever.

A worker writes its progress into its RUNNING row every two seconds. The run of a worker that died stays RUNNING until
the next trigger for the topic takes over, which it may as soon as the heartbeat is too old.
"""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.kit.reports import show_run, show_runs
from api.cli.kit.shared_arguments import OnlyTopic, Output, OutputFormat, Run, StateName
from api.cli.kit.terminal import print_line
from api.components import open_existing_for_writing, open_for_reading
from api.reports import run_document
from storage.model import TopicName


def list_compactions(
    context: typer.Context,
    topic: OnlyTopic = None,
    state: Annotated[StateName | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="The number of newest runs.")] = 50,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List compaction runs, the newest first."""
    name = None if topic is None else TopicName.parse(topic)
    with open_for_reading(context.obj) as environment:
        from api.broker import compaction
        from storage.metadata.records import RunState

        runs = compaction.runs(environment, limit, None if state is None else RunState(state), name)
        now = environment.clock.now_ms()
    show_runs([run_document(owner, run, now) for owner, run in runs], output)


def show_compaction(context: typer.Context, run: Run, output: Output = OutputFormat.TABLE) -> None:
    """Show one compaction run.

    Its progress, policies, statistics and the time of each phase, and the reason if it failed.
    """
    with open_for_reading(context.obj) as environment:
        name, record = environment.metadata.runs.get_with_topic_name(run)
        document = run_document(name, record, environment.clock.now_ms())
    show_run(document, output)


def cancel_compaction(
    context: typer.Context,
    run: Run,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept with the run.")] = "cancelled by hand",
) -> None:
    """Cancel an active run.

    It can no longer publish; its worker stops its job within seconds and ends. If the topic is still due, a
    service compacts it again: `compactor-admin compactions pause` prevents that.
    """
    with open_existing_for_writing(context.obj) as environment:
        environment.metadata.runs.cancel(run, reason)
        name, _ = environment.metadata.runs.get_with_topic_name(run)
    print_line(f"Compaction run {run} of topic {name} cancelled")
