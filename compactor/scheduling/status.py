"""Status of a topic's compaction, in the terms of Pulsar's clients (S7): NOT_RUN, RUNNING, SUCCESS, ERROR.

It comes from SQL, so unlike a broker's status it survives restarts. RUNNING: a run is requested, or active with a
heartbeat. ERROR: the last try failed, was cancelled, or lost its heartbeat; the error has the reason. A failing topic
is in ERROR until it succeeds, even if it failed before a run was claimed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from storage.errors import NO_ERROR, ErrorText
from storage.metadata.records import RunState
from storage.metadata.store import MetadataStore


class CompactionStatus(StrEnum):
    """Pulsar's `LongRunningProcessStatus`."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class StatusAndError(NamedTuple):
    """A status and its error. `last_error` is empty unless the status is ERROR."""

    status: CompactionStatus
    last_error: ErrorText = NO_ERROR


def compaction_status(metadata: MetadataStore, topic_id: int) -> StatusAndError:
    """Return the current status of a topic's compaction. Raises Unavailable."""
    activity = metadata.compaction_control.activity(topic_id)
    last, control = activity.last_run, activity.control
    if activity.running:
        return StatusAndError(CompactionStatus.RUNNING)
    if control.failures:
        return StatusAndError(CompactionStatus.ERROR, control.last_error)
    if last is None:
        return StatusAndError(CompactionStatus.NOT_RUN)
    if last.state is RunState.SUCCESS:
        return StatusAndError(CompactionStatus.SUCCESS)
    if last.state is RunState.RUNNING:
        return StatusAndError(CompactionStatus.ERROR, ErrorText(f"its worker {last.owner} stopped answering"))
    return StatusAndError(CompactionStatus.ERROR, last.error)
