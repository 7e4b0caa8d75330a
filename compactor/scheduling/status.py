"""The status of a topic's compaction, as Pulsar's clients know it (S7): NOT_RUN, RUNNING, SUCCESS, ERROR.

It comes from SQL, so it survives restarts, which a broker's does not. RUNNING: a run is requested, or under way with
a heartbeat. ERROR: the last try failed, was cancelled, or died; the error says which. A topic that keeps failing
is in ERROR until it succeeds, also where it failed before a run was claimed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from storage.metadata.records import CompactionActivity, RunState
from storage.metadata.store import MetadataStore


class CompactionStatus(StrEnum):
    """Pulsar's `LongRunningProcessStatus`."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class StatusAndError(NamedTuple):
    """`last_error` is empty unless the status is ERROR."""

    status: CompactionStatus
    last_error: str


def compaction_status(metadata: MetadataStore, topic_id: int) -> StatusAndError:
    """The status of a topic's compaction now. Raises Unavailable."""
    return status_of(metadata.compaction_control.activity(topic_id))


def status_of(activity: CompactionActivity) -> StatusAndError:
    """The status of what was read of a topic at one moment."""
    last, control = activity.last_run, activity.control
    if activity.running:
        return StatusAndError(CompactionStatus.RUNNING, "")
    if control.failures:
        return StatusAndError(CompactionStatus.ERROR, control.last_error)
    if last is None:
        return StatusAndError(CompactionStatus.NOT_RUN, "")
    if last.state is RunState.SUCCESS:
        return StatusAndError(CompactionStatus.SUCCESS, "")
    if last.state is RunState.RUNNING:
        return StatusAndError(CompactionStatus.ERROR, f"its worker {last.owner} stopped answering")
    return StatusAndError(CompactionStatus.ERROR, last.error)
