"""What must be true before the metadata may change, checked in the transaction that changes it.

Each check is a pure function of what is (read under the topic's row lock) and what is asked. Two kinds of failure:
Fenced, when somebody else moved the topic on since the caller looked, so that the caller must stop; AssertionError,
when no race can explain it: then the caller has a defect, and going on would lose data.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from storage.errors import Fenced
from storage.metadata.records import CompactedLedgerRecord, LedgerRecord, RunRecord, RunState, TopicRecord
from storage.model import Position

RERUN = "nothing was published and the previous compacted ledger still serves; trigger the compaction again"
REWRITE = "nothing was appended; start the append again"


def check_run_is_current(topic: TopicRecord, run: RunRecord) -> None:
    """A run may go on only while it is RUNNING in the epoch it claimed.

    Why: the epoch rises with each claim and each deletion of the `__compaction` cursor. A worker that slept through
    its takeover must not work on, still less publish, beside its successor or into a topic's new life (A1, S8).
    """
    if run.state is not RunState.RUNNING:
        why = f": {run.error}" if run.error else ""
        raise Fenced(f"run {run.run_id} of {topic.name} is {run.state.value} already{why}", RERUN)
    if topic.epoch != run.epoch:
        raise Fenced(
            f"run {run.run_id} of {topic.name} has epoch {run.epoch}, but the topic has gone on to {topic.epoch}", RERUN
        )


def check_publish(
    topic: TopicRecord,
    run: RunRecord,
    expected_generation: int,
    old_horizon: Position | None,
    new: CompactedLedgerRecord,
) -> None:
    """A new compacted ledger may serve only if it grew out of what serves now.

    - The run is current (see there), and the generation is the one that the run read. Otherwise survivors of a ledger
      that the run never saw would be missing (A1).
    - The horizon does not go back. Readers behind it have been given compacted data as complete up to there; and raw
      ledgers below it may be gone already (A4).
    - The horizon lies on a message that exists. One past the end would swallow messages that are still to come.
    - The new ledger is of the next generation and of the run's own attempt: garbage collection goes by both.
    """
    check_run_is_current(topic, run)
    if topic.generation != expected_generation:
        raise Fenced(
            f"run {run.run_id} read generation {expected_generation} of {topic.name}, but the topic is at "
            f"{topic.generation}",
            RERUN,
        )
    if old_horizon is not None and (
        new.horizon.offset < old_horizon.offset or new.horizon.message_id < old_horizon.message_id
    ):
        raise Fenced(
            f"run {run.run_id} would take the horizon of {topic.name} back from {_shown(old_horizon)} to "
            f"{_shown(new.horizon)}",
            RERUN,
        )
    if new.horizon.offset >= topic.next_offset:
        raise AssertionError(
            f"run {run.run_id}: the horizon {_shown(new.horizon)} lies past the end of {topic.name} "
            f"(offset {topic.next_offset}); take it from the run's snapshot"
        )
    if new.generation != expected_generation + 1:
        raise AssertionError(
            f"run {run.run_id}: the compacted ledger {new.ledger_id} of {topic.name} says generation "
            f"{new.generation}, not {expected_generation + 1}; build it for the generation after the one it read"
        )
    if new.attempt_id != run.attempt_id:
        raise AssertionError(
            f"run {run.run_id}: the compacted ledger {new.ledger_id} of {topic.name} is of attempt {new.attempt_id}, "
            f"not {run.attempt_id}; write objects under the run's own attempt"
        )


def check_append(topic: TopicRecord, last_ledger_id: int | None, new: Sequence[LedgerRecord]) -> None:
    """New ledgers go on exactly where the topic ends, and their ids are above all before them.

    Why: offsets are dense and never reused, and readers page by id; a gap, an overlap or a lower id after a higher
    one would hide messages from a reader that has passed it.
    """
    if not new:
        raise AssertionError(f"an append to {topic.name} brings no ledgers; call it only with some")
    if new[0].first_offset != topic.next_offset:
        raise Fenced(
            f"the ledgers for {topic.name} begin at offset {new[0].first_offset}, but the topic has gone on to "
            f"{topic.next_offset}",
            REWRITE,
        )
    if last_ledger_id is not None and new[0].ledger_id <= last_ledger_id:
        raise Fenced(
            f"ledger {new[0].ledger_id} cannot be appended to {topic.name}, which ends with ledger {last_ledger_id}",
            REWRITE,
        )
    for ledger in new:
        if ledger.last_offset < ledger.first_offset:
            raise AssertionError(
                f"ledger {ledger.ledger_id} for {topic.name} ends at offset {ledger.last_offset}, before its first "
                f"({ledger.first_offset}); an empty ledger is not appended at all"
            )
    for before, after in pairwise(new):
        if after.first_offset != before.last_offset + 1 or after.ledger_id <= before.ledger_id:
            raise AssertionError(
                f"ledger {after.ledger_id} (offset {after.first_offset}) for {topic.name} does not follow ledger "
                f"{before.ledger_id} (last offset {before.last_offset}); pass ledgers in the order of their offsets"
            )


def _shown(position: Position) -> str:
    return f"{position.message_id} (offset {position.offset})"
