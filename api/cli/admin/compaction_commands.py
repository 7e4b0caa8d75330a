"""`compactor-admin topics` and `namespaces`: compaction, its thresholds, and retention."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from api.cli.admin import exit_codes
from api.cli.admin.arguments import (
    Applied,
    Namespace,
    RetentionSize,
    RetentionTime,
    Threshold,
    Topic,
    parse_bytes,
    retention,
)
from api.cli.admin.following import follow_requests, newest_runs
from api.cli.admin.session import (
    OutputName,
    Session,
    namespace_path,
    session,
    topic_path,
)
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
    topic: Topic,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the request until its run has ended.")] = False,
) -> None:
    """Have a topic compacted; of a partitioned topic, each partition.

    With --wait: show the run that took the request when it has ended. Ends with exit code 9 if it ended with an error
    or was cancelled; if nothing is new, there is none.
    """
    admin = session(context)
    before = newest_runs(admin, topic) if wait else {}
    admin.service.put(topic_path(topic, "compaction"))
    admin.done(f"Topic compaction requested for {topic}")
    if wait:
        follow_requests(admin, before)


def compaction_status(
    context: typer.Context,
    topic: Topic,
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
    if admin.output is OutputName.JSON:
        admin.show(answer)
    else:
        admin.show(_WORDS.get(answer["status"], answer["status"]).format(topic=topic))
    if answer["status"] == "ERROR":
        say(f"compactor-admin: compaction of {topic} failed: {' '.join(str(answer.get('lastError')).split())}")
        raise typer.Exit(exit_codes.RUN_FAILED)


def set_topic_threshold(context: typer.Context, topic: Topic, threshold: Threshold) -> None:
    """Set when a compaction of a topic is due."""
    admin = session(context)
    admin.service.post(topic_path(topic, "compactionThreshold"), parse_bytes("--threshold", threshold))
    admin.done(f"compaction threshold of {topic} set")


def get_topic_threshold(context: typer.Context, topic: Topic, applied: Applied = False) -> None:
    """Show when a compaction of a topic is due, in bytes."""
    admin = session(context)
    _show_set(admin, admin.service.get(topic_path(topic, "compactionThreshold"), applied=applied or None))


def remove_topic_threshold(context: typer.Context, topic: Topic) -> None:
    """Let the namespace's threshold count for a topic again."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "compactionThreshold"))
    admin.done(f"compaction threshold of {topic} removed")


def set_topic_retention(context: typer.Context, topic: Topic, duration: RetentionTime, size: RetentionSize) -> None:
    """Set how long, and how much of it, a topic is kept."""
    admin = session(context)
    admin.service.post(topic_path(topic, "retention"), retention(duration, size))
    admin.done(f"retention of {topic} set")


def get_topic_retention(context: typer.Context, topic: Topic, applied: Applied = False) -> None:
    """Show how long, and how much of it, a topic is kept."""
    admin = session(context)
    _show_set(admin, admin.service.get(topic_path(topic, "retention"), applied=applied or None))


def remove_topic_retention(context: typer.Context, topic: Topic) -> None:
    """Let the namespace's retention count for a topic again."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "retention"))
    admin.done(f"retention of {topic} removed")


def set_namespace_threshold(context: typer.Context, namespace: Namespace, threshold: Threshold) -> None:
    """Set when a compaction of a topic of a namespace is due."""
    admin = session(context)
    admin.service.put(namespace_path(namespace, "compactionThreshold"), parse_bytes("--threshold", threshold))
    admin.done(f"compaction threshold of {namespace} set")


def get_namespace_threshold(context: typer.Context, namespace: Namespace) -> None:
    """Show when a compaction of a topic of a namespace is due, in bytes."""
    admin = session(context)
    _show_set(admin, admin.service.get(namespace_path(namespace, "compactionThreshold")))


def remove_namespace_threshold(context: typer.Context, namespace: Namespace) -> None:
    """Let the broker's threshold count for a namespace again."""
    admin = session(context)
    admin.service.delete(namespace_path(namespace, "compactionThreshold"))
    admin.done(f"compaction threshold of {namespace} removed")


def set_namespace_retention(
    context: typer.Context, namespace: Namespace, duration: RetentionTime, size: RetentionSize
) -> None:
    """Set how long, and how much of them, topics of a namespace are kept."""
    admin = session(context)
    admin.service.post(namespace_path(namespace, "retention"), retention(duration, size))
    admin.done(f"retention of {namespace} set")


def get_namespace_retention(context: typer.Context, namespace: Namespace) -> None:
    """Show how long, and how much of them, topics of a namespace are kept."""
    admin = session(context)
    _show_set(admin, admin.service.get(namespace_path(namespace, "retention")))


def remove_namespace_retention(context: typer.Context, namespace: Namespace) -> None:
    """Let the broker's retention count for a namespace again."""
    admin = session(context)
    admin.service.delete(namespace_path(namespace, "retention"))
    admin.done(f"retention of {namespace} removed")


def _show_set(admin: Session, answer: Any) -> None:
    """Show a value that may not be set: JSON `null`, or nothing on stdout."""
    if answer is None and admin.output is OutputName.TABLE:
        say("compactor-admin: none is set here")
        return
    admin.show(answer)
