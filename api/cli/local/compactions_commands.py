"""`compactor compactions list`, `show` and `cancel`: runs as the database remembers them, forever.

A RUNNING row says what its worker said last, every two seconds. A worker that died says nothing any more; its run
stays RUNNING until the next trigger for the topic takes over, which it may as soon as the heartbeat is too old.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import number, size
from api.cli.kit.terminal import put
from api.cli.local.topics_commands import ListingName, Output
from api.components import open_components, open_for_writing
from api.reports import run_document
from storage.model import TopicName


class StateName(StrEnum):
    """States of a run by name; `storage.metadata.records.RunState` has them (a test keeps the two equal)."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


Run = Annotated[
    int, typer.Argument(metavar="RUN", min=1, max=2**63 - 1, help="Its number, as `compactor compactions list` has it.")
]


def list_compactions(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help=f"Only of this topic. {TOPIC_HELP}")] = None,
    state: Annotated[StateName | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="The newest so many.")] = 50,
    output: Output = ListingName.TABLE,
) -> None:
    """List compaction runs, the newest first."""
    name = None if topic is None else TopicName.parse(topic)
    with open_components(context.obj) as components:
        from storage.metadata.records import RunState

        metadata = components.metadata
        found = metadata.runs.newest(
            limit,
            topic_id=None if name is None else metadata.topics.get(name).id,
            state=None if state is None else RunState(state.value),
        )
        now = components.clock.now_ms()
    documents = [run_document(owner, run, now) for owner, run in found]
    if output is ListingName.JSON:
        print(json.dumps(documents, indent=2))  # noqa: T201
        return
    from api.cli.kit.tables import print_table

    print_table(
        ("run", "topic", "state", "phase", "tasks", "started", "last sign", "compacted ledger"),
        (_row(document) for document in documents),
    )


def show_compaction(context: typer.Context, run: Run, output: Output = ListingName.TABLE) -> None:
    """Show one compaction run.

    How far it is, its policies, its numbers and the time of each phase, and why it failed if it did.
    """
    with open_components(context.obj) as components:
        record = components.metadata.runs.get(run)
        name = components.metadata.snapshot(record.topic_id).topic.name
        document = run_document(name, record, components.clock.now_ms())
    if output is ListingName.JSON:
        print(json.dumps(document, indent=2))  # noqa: T201
        return
    for key, value in document.items():
        inner = value if isinstance(value, dict) else {"": value}
        for field, content in inner.items():
            put(f"{f'{key}.{field}'.rstrip('.'):40} {_shown(field or key, content)}")


def cancel_compaction(
    context: typer.Context,
    run: Run,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept with the run.")] = "cancelled by hand",
) -> None:
    """Cancel a run that is under way.

    From now on it can publish nothing; its worker hears of it within seconds, stops its Spark job and ends. A service
    compacts a topic again that is still due: `compactor-admin compactions pause` keeps it from that.
    """
    with open_for_writing(context.obj) as components:
        record = components.metadata.runs.cancel(run, reason)
        name = components.metadata.snapshot(record.topic_id).topic.name
    put(f"Compaction run {run} of topic {name} cancelled")


def _row(document: dict[str, Any]) -> list[str]:
    tasks = document["statistics"].get("tasks", "-")
    if document["tasks_total"] is not None:
        tasks = f"{document['tasks_done']}/{document['tasks_total']}"
    last = _time(document["finished_at"] or document["heartbeat_at"])
    return [
        str(document["run"]),
        document["topic"],
        document["state"],
        document["phase"],
        str(tasks),
        _time(document["started_at"]),
        f"{last}, expired" if document["heartbeat_expired"] else last,
        "-" if document["compacted_ledger"] is None else str(document["compacted_ledger"]),
    ]


def _shown(name: str, value: object) -> str:
    """A field for a person: times as times, bytes in a unit that fits."""
    from api.cli.kit.terminal import plain

    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_at"):
            return _time(value)
        if "bytes" in name:
            return f"{size(value)} ({number(value)} bytes)"
        if name.endswith("_ms"):
            return f"{number(value)} ms"
    return plain(str(value))


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
