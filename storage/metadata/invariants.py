"""Preconditions of changes of the metadata, checked in the transaction of the change.

Each check is a pure function of the present rows (read under the topic's row lock) and of the requested change. Two
kinds of failure: Fenced, if another process moved the topic on since the caller read it, so that the caller must stop;
AssertionError, if no race can explain it: then the caller has a defect, and going on would lose data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from storage.errors import Conflict, Fenced, InvalidInput
from storage.metadata.records import (
    Attempt,
    CompactedLedgerRecord,
    RunRecord,
    RunState,
    SegmentContent,
    SegmentRecord,
    SegmentState,
    TopicRecord,
)
from storage.model import LedgerRecord, LogPosition

RERUN = "nothing was published; trigger the compaction again if it is still wanted"
REWRITE = "nothing was appended; start the append again"
REOPEN = "nothing was opened; read the topic's end again, and open a segment there"
RESEAL = "nothing was sealed; claim another segment if there is any"


def check_run_is_current(topic: TopicRecord, run: RunRecord) -> None:
    """Raise Fenced unless the run is RUNNING, and the topic still in the epoch that the run claimed.

    Why: the epoch rises with each claim and each deletion of the `__compaction` cursor. A worker that slept through its
    takeover must not continue, still less publish, beside its successor or into a topic's new incarnation (A1, S8).
    """
    if run.state is not RunState.RUNNING:
        reason = f": {run.error.summary}" if run.error else ""
        raise Fenced(f"run {run.run_id} of {topic.name} is {run.state.value} already{reason}", RERUN)
    if topic.epoch != run.epoch:
        raise Fenced(
            f"run {run.run_id} of {topic.name} has epoch {run.epoch}, but the topic has gone on to {topic.epoch}", RERUN
        )


def check_publish(
    topic: TopicRecord,
    run: RunRecord,
    expected_generation: int,
    old_horizon: LogPosition | None,
    new: CompactedLedgerRecord,
) -> None:
    """Raise unless a new compacted ledger was built from the one that serves now.

    - The run is current (`check_run_is_current`), and the generation is the one that the run read. Otherwise survivors
      of a ledger that the run never read would be missing (A1).
    - The horizon does not go back. Readers after it have received compacted data as complete up to there; and raw
      ledgers below it may be trimmed already (A4).
    - The horizon is on a message that exists. A horizon past the end would hide messages that are appended later.
    - The new ledger is of the next generation and of the run's own attempt: garbage collection relies on both.
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
            f"run {run.run_id} would take the horizon of {topic.name} back from {_position_text(old_horizon)} to "
            f"{_position_text(new.horizon)}",
            RERUN,
        )
    if new.horizon.offset >= topic.next_offset:
        raise AssertionError(
            f"run {run.run_id}: the horizon {_position_text(new.horizon)} is past the end of {topic.name} "
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


def check_append(
    topic: TopicRecord, last_ledger_id: int | None, open_segment: SegmentRecord | None, new: Sequence[LedgerRecord]
) -> None:
    """Raise unless new ledgers begin exactly at the topic's end, with ids above all ids before them.

    Why: offsets are dense and never reused, and readers page by id; a gap, an overlap or a lower id after a higher
    one would hide messages from a reader that has passed it. The end of an open segment is not known here, so no
    ledger can follow it.
    """
    if not new:
        raise AssertionError(f"an append to {topic.name} brings no ledgers; call it only with some")
    if open_segment is not None:
        raise AssertionError(
            f"ledgers cannot be appended to {topic.name}, whose segment of ledger {open_segment.ledger_id} (offset "
            f"{open_segment.first_offset}) is open; roll it first, under the same lease"
        )
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


def check_new_segment(
    topic: TopicRecord, last_ledger_id: int | None, open_segment: SegmentRecord | None, new: SegmentRecord
) -> None:
    """Raise unless the segment `new` begins at the topic's end, with the highest id, while no other segment is open.

    Why: as for ledgers that are appended. Only the owner of the lease opens, so a second open segment is its defect.
    """
    if open_segment is not None:
        raise AssertionError(
            f"a segment cannot be opened at offset {new.first_offset} of {topic.name}, whose segment of ledger "
            f"{open_segment.ledger_id} (offset {open_segment.first_offset}) is open; recover and roll that one first"
        )
    if new.state is not SegmentState.OPEN or new.content is not None or new.sealing_attempt_id is not None:
        raise AssertionError(
            f"the segment of ledger {new.ledger_id} for {topic.name} is not a new one; open it before it has content "
            "or an attempt"
        )
    if new.first_offset != topic.next_offset:
        raise Fenced(
            f"the segment for {topic.name} begins at offset {new.first_offset}, but the topic has gone on to "
            f"{topic.next_offset}",
            REOPEN,
        )
    if last_ledger_id is not None and new.ledger_id <= last_ledger_id:
        raise Fenced(
            f"the segment of ledger {new.ledger_id} cannot be opened in {topic.name}, which ends with ledger "
            f"{last_ledger_id}",
            REOPEN,
        )


def check_roll(topic: TopicRecord, segment: SegmentRecord, content: SegmentContent) -> None:
    """Raise unless a segment is rolled once, and its content has an offset for each message from first to last.

    Why: the topic continues after its last offset. If that is too low, two messages get one offset; if it is too high,
    it leaves a gap that no ledger ever fills.
    """
    what = f"the segment of ledger {segment.ledger_id} of {topic.name}"
    if segment.content is not None:
        if segment.content != content:
            raise AssertionError(
                f"{what} was rolled with {segment.content}, and cannot be rolled with {content}; nothing may be "
                "appended to a segment once it is rolled"
            )
        return
    if segment.first_offset != topic.next_offset:
        raise AssertionError(
            f"{what} begins at offset {segment.first_offset}, but the topic ends at {topic.next_offset}; restore the "
            "database from a backup"
        )
    if content.messages < 1 or not 1 <= content.entries <= content.messages:
        raise AssertionError(
            f"{what} holds {content.messages} messages in {content.entries} entries; drop a segment that holds nothing"
        )
    if content.last_offset != segment.first_offset + content.messages - 1:
        raise AssertionError(
            f"{what} would end at offset {content.last_offset} with {content.messages} messages from offset "
            f"{segment.first_offset} on; offsets are dense"
        )
    if content.last_message_id.ledger_id != segment.ledger_id:
        raise AssertionError(
            f"{what} would end with message {content.last_message_id}; ids in it bear its own ledger id"
        )


def check_seal(topic: TopicRecord, attempt: Attempt, segment: SegmentRecord | None, ledger: LedgerRecord) -> None:
    """Raise unless a ledger is of the attempt that claimed the rolled segment, and holds the same messages.

    Why: from then on the segment is not read any more, and its file is removed. Of two sealers one may be late, and its
    objects are garbage; a ledger with other messages would lose or change messages.
    """
    if segment is None or segment.state is SegmentState.SEALED:
        raise Fenced(f"ledger {ledger.ledger_id} of {topic.name} is sealed already", RESEAL)
    if segment.sealing_attempt_id != attempt.attempt_id:
        raise Fenced(
            f"attempt {attempt.attempt_id} has not claimed the segment of ledger {ledger.ledger_id} of {topic.name}: "
            f"attempt {segment.sealing_attempt_id} has",
            RESEAL,
        )
    content = segment.content
    if content is None:
        raise AssertionError(f"the segment of ledger {ledger.ledger_id} of {topic.name} is open; roll it first")
    held = (segment.first_offset, content.last_offset, content.messages, content.entries)
    sealed = (ledger.first_offset, ledger.last_offset, ledger.messages, ledger.entries)
    if sealed != held:
        raise AssertionError(
            f"ledger {ledger.ledger_id} for {topic.name} holds (first offset, last offset, messages, entries) "
            f"{sealed}, but its segment {held}; seal all of the segment and nothing else"
        )
    if ledger.attempt_id != attempt.attempt_id or ledger.deleted_at is not None:
        raise AssertionError(
            f"ledger {ledger.ledger_id} for {topic.name} is not a new one of attempt {attempt.attempt_id}; write "
            "objects under the sealer's own attempt"
        )


def check_trim(
    topic: TopicRecord,
    start_offset: int,
    ledger_ids: Collection[int],
    present: Sequence[LedgerRecord],
    horizon: LogPosition | None,
    keep_start: bool,
) -> None:
    """Raise unless the ledgers to mark are present and below the new start.

    `keep_start`: the start stays, so that reads begin at the first remaining ledger. Then only the oldest may be
    marked, none above the horizon, and their survivors are in the compacted ledger (C2). Raises InvalidInput for a
    start outside the topic, Conflict for ledgers that were trimmed already or are not compacted.
    """
    if not 0 <= start_offset <= topic.next_offset:
        raise InvalidInput(
            f"{topic.name} cannot begin at offset {start_offset}",
            f"choose an offset from 0 to {topic.next_offset}; the open segment is rolled before it can be trimmed",
        )
    missing = set(ledger_ids) - {ledger.ledger_id for ledger in present}
    if missing:
        raise Conflict(
            f"ledger {min(missing)} of {topic.name} was trimmed already",
            "nothing was changed; list the topic's ledgers again",
        )
    marked = [ledger for ledger in present if ledger.ledger_id in set(ledger_ids)]
    for ledger in marked:
        if ledger.last_offset >= start_offset:
            raise AssertionError(
                f"ledger {ledger.ledger_id} of {topic.name} ends at offset {ledger.last_offset}, not below "
                f"{start_offset}; trim whole ledgers only"
            )
    if not keep_start:
        return
    if marked and (horizon is None or marked[-1].last_offset > horizon.offset):
        raise Conflict(
            f"ledger {marked[-1].ledger_id} of {topic.name} ends at offset {marked[-1].last_offset}, which is not "
            f"compacted (horizon: {_position_text(horizon) if horizon else 'none'})",
            "nothing was changed; compact the topic first",
        )
    if marked != list(present[: len(marked)]):
        raise AssertionError(
            f"ledgers {[ledger.ledger_id for ledger in marked]} are not the oldest of {topic.name}; trim them in the "
            "order of their offsets"
        )


def _position_text(position: LogPosition) -> str:
    return f"{position.message_id} (offset {position.offset})"
