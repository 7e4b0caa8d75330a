"""Defects to put into the code, one at a time: a simulation that does not find them checks nothing.

Each is a patch of one place, as if somebody had written that place wrongly; the table says what is wrong in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap
from sqlalchemy import Connection, delete, insert, update

from compactor import phase_two
from compactor.maintenance import retention_plan
from compactor.maintenance.garbage import GarbageCollector
from compactor.run import resolve, run_input
from compactor.run.plan import RunPlan
from compactor.two_phase import TwoPhaseCompactor
from storage.errors import ObjectMissing
from storage.failpoints import Failpoint, failpoint
from storage.ledger import names, rows
from storage.ledger.seek import SeekOffset
from storage.log import active_segment_file, recovery
from storage.log.bulk_append import BulkAppend
from storage.log.segment import SegmentPaths
from storage.log.sweep import LogSweep
from storage.log.topic_log import TopicLog
from storage.metadata import (
    attempts,
    compaction_control,
    compaction_control_rows,
    cursors,
    invariants,
    leases,
    pins,
    publishing,
    row_mapping,
    runs,
    sealing,
    topic_deletion,
    topics,
    trimming,
)
from storage.metadata.engine import Database
from storage.metadata.stores import PinStore, SealingStore, TrimmingStore
from storage.metadata.tables import (
    compacted_ledgers,
    cursors as cursors_table,
    deleted_topics,
    ledgers as ledgers_table,
    pins as pins_table,
    topics as topics_table,
)
from storage.metadata.transactions import Context, writes, writes_once
from storage.reading import snapshot_reader
from storage.reading.compacted_reader import CompactedReader
from storage.reading.raw_reader import RawReader
from storage.reading.snapshot_reader import SnapshotReader


@dataclass(frozen=True)
class Bug:
    """A seeded bug: its description, and its replacements as (owner, attribute, replacement)."""

    wrong: str
    patches: tuple[tuple[Any, str, Any], ...]


def _swap_blindly(connection: Connection, topic_id: int, expected_generation: int, epoch: int) -> bool:
    statement = update(topics_table).where(topics_table.c.id == topic_id)
    connection.execute(statement.values(generation=topics_table.c.generation + 1))
    return True


def _publish_over(connection: Connection, run: Any, expected: int, compacted: Any, *others: Any) -> Any:
    topic = topics.lock(connection, run.topic_id)
    return _publish_row(connection, run, expected, replace(compacted, generation=topic.generation + 1), *others)


_publish_row = publishing.publish


def _swap_generation(connection: Connection, topic_id: int, expected_generation: int, epoch: int) -> bool:
    same = (topics_table.c.id == topic_id) & (topics_table.c.generation == expected_generation)
    return connection.execute(update(topics_table).where(same).values(generation=expected_generation + 1)).rowcount == 1


def _check_without_epoch(topic: Any, run: Any) -> None:
    invariants_check_run(replace(topic, epoch=run.epoch), run)


invariants_check_run = invariants.check_run_is_current


def _remove_cursor(connection: Connection, topic_id: int, name: str, now: int) -> None:
    where = (cursors_table.c.topic_id == topic_id) & (cursors_table.c.name == name)
    if connection.execute(delete(cursors_table).where(where)).rowcount and name == "__compaction":
        cursors.retire_compacted_ledger(connection, topic_id, now)


def _collect_pinned(connection: Connection, context: Context, topic_id: int, ledger_id: int, grace_ms: int) -> bool:
    ledger = pins._find_ledger(connection, topic_id, ledger_id)
    if ledger is None or ledger.retired_at is None or context.now - ledger.retired_at < grace_ms:
        return False
    connection.execute(delete(pins_table).where(pins_table.c.ledger_id == ledger_id))
    connection.execute(delete(compacted_ledgers).where(compacted_ledgers.c.ledger_id == ledger_id))
    return True


def _garbage_of_anybody(self: GarbageCollector, listed: Any, referenced: Any, *_: Any) -> Iterator[Any]:
    for info in listed:
        parsed = names.parse(info.name)
        if parsed is not None and info.name not in referenced:
            yield info, parsed


def _references_of_serving(self: GarbageCollector, snapshot: Any, kept: Any) -> set[str]:
    return _referenced_names(self, snapshot, [item for item in kept if item.retired_at is None])


_referenced_names = GarbageCollector._referenced_names


def _dry_run_deletes(self: GarbageCollector, garbage: Any, dry_run: bool, tell: Any) -> Any:
    return _delete(self, garbage, False, tell)


_delete = GarbageCollector._delete_objects


def _merge_without_markers(new: Any, needed: Any, front: Any, merges_all: bool, rules: Any) -> Any:
    visible = new.offset & resolve.MARKER == 0
    return _merge_levels(new, visible | rules.mask_of_needed_markers(new.event_time, len(new)), front, True, rules)


_merge_levels = resolve._merge_levels


def _no_bitmaps(store: Any, places: list[Any]) -> list[BitMap]:
    return [BitMap() for _ in places]


def _bitmaps_anew(store: Any, plan: RunPlan, task: Any) -> Any:
    with mock.patch.object(phase_two, "read_deletion_bitmaps", _no_bitmaps):
        return _write_bitmaps(store, plan, task)


_write_bitmaps = phase_two._write_bitmaps


def _publish_short(self: TwoPhaseCompactor, snapshot: Any, run: Any, output: Any, manifest: Any, *others: Any) -> Any:
    last = manifest.parts[-1].last if manifest.parts else manifest.horizon
    return _publish(self, snapshot, run, output, replace(manifest, horizon=last), *others)


_publish = TwoPhaseCompactor._publish


def _raw_jumping(self: CompactedReader) -> Generator[pa.Table, None, None]:
    """A reader that is raw already looks after each table whether a newer compacted ledger has come."""
    snapshot = yield from self._read_to_horizon(None)
    while True:
        horizon = snapshot.compacted.horizon.offset if snapshot.compacted else -1
        for table in SnapshotReader(self._environment.store, snapshot, self._unsealed).raw(
            self._next or SeekOffset(0), horizon
        ):
            self._next = SeekOffset(table.column("offset")[-1].as_py() + 1)
            yield table
            now = self._take_snapshot()
            if now.compacted and snapshot.compacted and now.compacted.generation > snapshot.compacted.generation:
                snapshot = now
                manifest = SnapshotReader(self._environment.store, now, self._unsealed).manifest(now.compacted)
                yield from SnapshotReader(self._environment.store, now, self._unsealed).compacted(self._next, manifest)
                break
        else:
            return


def _first_kept_now(table: pa.Table, tombstone: Any, now: int) -> pa.Table:
    if not tombstone.any():
        return table
    times = pc.if_else(pa.array(tombstone), pa.scalar(now, pa.int64()), pa.scalar(None, pa.int64()))
    column = table.schema.get_field_index("retained_at")
    return table.set_column(column, rows.SCHEMA.field("retained_at"), times)


def _newest(times: Sequence[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _once_without_looking(self: Database, change: Callable[[Connection], Any], happened: Any, what: str) -> Any:
    with self.write() as connection:
        return change(connection)


def _from_the_start(self: CompactedReader, pinned: Any, compacted: Any) -> Any:
    if self._changes_ledger(compacted):
        self._next = SeekOffset(0)
    yield from _read_compacted_ledger(self, pinned, compacted)


_read_compacted_ledger = CompactedReader._read_compacted_ledger


def _no_marker_of_age(self: resolve.ResolutionRules, tombstones: Any) -> Any:
    return np.full(len(tombstones), self.policies.tombstone_retention_ms > 0)


def _scan_short(descriptor: int, size: int, *arguments: Any) -> Any:
    result = _scan(descriptor, size, *arguments)
    return _scan(descriptor, result.end - 1, *arguments) if result.tally.entries else result


_scan = recovery.scan_segment


def _seal_beside(connection: Connection, context: Context, attempt: Any, ledger: Any) -> None:
    topic = topics.lock(connection, attempt.topic_id)
    connection.execute(insert(ledgers_table).values(**row_mapping.ledger_values(topic.id, ledger)))
    attempts.finish(connection, context, attempt.attempt_id)
    failpoint(Failpoint.SEAL_INSIDE_COMMIT)


def _dirty_over_segments(snapshot: Any, *arguments: Any) -> Any:
    return _dirty_ledgers(replace(snapshot, segments=()), *arguments)


_dirty_ledgers = run_input.dirty_ledgers


def _remove_all_below(self: LogSweep, topic: Any, failed: dict[str, str]) -> int:
    folder = self.environment.log.topic_folder(topic.uid)
    firsts = [int(path.stem) for path in folder.glob("*.log")] if folder.is_dir() else []
    below = [first for first in firsts if first < topic.next_offset]
    for first in below:
        SegmentPaths(folder, first).remove()
    return len(below)


def _tables_again(self: RawReader, snapshot: Any = None) -> Generator[pa.Table, None, None]:
    self.is_gone = False
    snapshot = self._take_snapshot() if snapshot is None else snapshot
    bound, delivered_to = self.next, self._delivered_to
    while True:
        read = SnapshotReader(self._store, snapshot, self._unsealed)
        try:
            bound = bound or self._first_seek_position(read)
            for table in read.raw(bound, delivered_to):
                self.seek(SeekOffset(table.column("offset")[-1].as_py() + 1), table.column("offset")[-1].as_py())
                yield table
            return
        except ObjectMissing:
            before, snapshot = read.extents, self._take_snapshot()
            if SnapshotReader(self._store, snapshot, self._unsealed).extents[: len(before)] == before:
                raise


def _purge_at_once(self: TrimmingStore, topic_id: int, before_ms: int) -> int:
    return _purge(self, topic_id, 1 << 62)


_purge = TrimmingStore.purge


def _truncate_in_epoch(connection: Connection, topic_id: int, now: int) -> Any:
    epoch = topics.by_id(connection, topic_id).epoch
    truncated = _truncate(connection, topic_id, now)
    connection.execute(update(topics_table).where(topics_table.c.id == topic_id).values(epoch=epoch))
    return replace(truncated, epoch=epoch)


_truncate = trimming.truncate


def _truncate_raw_alone(connection: Connection, topic_id: int, now: int) -> Any:
    with mock.patch.object(cursors, "find", return_value=None):
        return _truncate(connection, topic_id, now)


def _delete_and_forget(connection: Connection, topic_id: int, now: int, *, force: bool) -> Any:
    deleted = _delete_topic(connection, topic_id, now, force=force)
    connection.execute(delete(deleted_topics).where(deleted_topics.c.uid == deleted.uid))
    return deleted


_delete_topic = topic_deletion.delete_topic


def _collect_deleted_at_once(self: GarbageCollector, deleted: Any, *arguments: Any) -> Any:
    return _collect_deleted(self, replace(deleted, deleted_at=0), *arguments)


_collect_deleted = GarbageCollector._collect_deleted


def _stop_no_run(connection: Connection, context: Context, topic_id: int, reason: str) -> Any:
    return compaction_control.get(connection, context, topic_id)


_NO_LOCKS = SimpleNamespace(flock=lambda *_: None, LOCK_EX=0, LOCK_NB=0)


BUGS: Mapping[str, Bug] = MappingProxyType(
    {
        "publish-unfenced": Bug(
            "A run publishes whatever generation and epoch the topic has come to: nothing is compared and swapped.",
            (
                (publishing, "publish", _publish_over),
                (publishing, "_compare_and_swap_generation", _swap_blindly),
                (publishing, "check_publish", lambda *_: None),
                (publishing.attempts, "lock_and_check_unfinished", lambda *_: None),
            ),
        ),
        "publish-any-epoch": Bug(
            "A run is held for current though the epoch has moved on.",
            (
                (publishing, "_compare_and_swap_generation", _swap_generation),
                (invariants, "check_run_is_current", _check_without_epoch),
                (runs, "check_run_is_current", _check_without_epoch),
            ),
        ),
        "delete-cursor-keeps-epoch": Bug(
            "Deleting `__compaction` does not raise the epoch.", ((cursors, "remove", _remove_cursor),)
        ),
        "gc-ignores-pins": Bug(
            "Garbage collection takes the row of a retired compacted ledger without a check pins.",
            ((PinStore, "delete_ledger_if_unpinned", writes(_collect_pinned)),),
        ),
        "gc-ignores-attempts": Bug(
            "Garbage collection deletes what nothing refers to, though its attempt continues.",
            ((GarbageCollector, "_find_garbage", _garbage_of_anybody),),
        ),
        "gc-ignores-retired": Bug(
            "Garbage collection asks only the manifest that serves for what it refers to.",
            ((GarbageCollector, "_referenced_names", _references_of_serving),),
        ),
        "gc-dry-run-deletes": Bug(
            "A dry run of garbage collection deletes.", ((GarbageCollector, "_delete_objects", _dry_run_deletes),)
        ),
        "marker-dropped": Bug(
            "A tombstone that leaves the data leaves no marker, though an older level still has its key.",
            ((resolve, "_merge_levels", _merge_without_markers),),
        ),
        "bitmaps-not-united": Bug(
            "The deleted rows of a kept part are those of this run alone, not with those from before.",
            ((phase_two, "_write_bitmaps", _bitmaps_anew),),
        ),
        "horizon-at-survivor": Bug(
            "The horizon is taken at the last survivor, not at the end of the snapshot.",
            ((TwoPhaseCompactor, "_publish", _publish_short),),
        ),
        "reader-jumps": Bug(
            "A reader that has got past its horizon goes into a newer compacted ledger while raw lasts.",
            ((CompactedReader, "tables", _raw_jumping),),
        ),
        "reader-ignores-deleted": Bug(
            "A reader gives rows of a part that its bitmap says are deleted.",
            ((snapshot_reader, "read_deleted_rows", lambda *_: BitMap()),),
        ),
        "reader-starts-again": Bug(
            "A reader whose generation is gone begins the newer one at its own start.",
            ((CompactedReader, "_read_compacted_ledger", _from_the_start),),
        ),
        "reader-silently-stale": Bug(
            "A reader continues in a newer generation that has dropped deletions which it has not seen.",
            ((CompactedReader, "_check_nothing_dropped", lambda *_: None),),
        ),
        "tombstone-kept-again": Bug(
            "A retained tombstone begins its retention again whenever its part is rewritten.",
            ((phase_two, "_stamp_new_tombstones", _first_kept_now),),
        ),
        "newest-for-oldest": Bug(
            "A part says when its newest value was published in place of its oldest, so expiry comes too late.",
            ((phase_two, "earliest", _newest),),
        ),
        "cursors-not-waited-for": Bug(
            "Tombstones that win do not wait for the slowest cursor.",
            ((resolve.ResolutionRules, "mask_of_retained", _no_marker_of_age),),
        ),
        "recovery-cuts-too-much": Bug(
            "Recovery cuts off the last whole frame, too, and does not ask how far flushes had come.",
            ((recovery, "scan_segment", _scan_short), (recovery, "check_no_flushed_loss", lambda *_: None)),
        ),
        "sealed-beside-its-segment": Bug(
            "The ledger of a segment is inserted, and the segment's row still says that it is rolled.",
            ((SealingStore, "seal", writes_once(_seal_beside, sealing.has_sealed, lambda *_: "")),),
        ),
        "dirty-over-segments": Bug(
            "A run takes ledgers behind a segment that is not sealed, and its horizon passes over that.",
            ((run_input, "dirty_ledgers", _dirty_over_segments),),
        ),
        "import-does-not-roll": Bug(
            "An import does not close the segment that is open.", ((BulkAppend, "_roll_open_segment", lambda *_: None),)
        ),
        "reader-repeats-after-sealing": Bug(
            "A reader whose segment has been sealed and swept continues from its own start.",
            ((RawReader, "tables", _tables_again),),
        ),
        "sweep-takes-unsealed": Bug(
            "Files below the topic's end are swept though a row names them.",
            ((LogSweep, "_sweep_files_without_row", _remove_all_below),),
        ),
        "commit-not-looked-for": Bug(
            "An import whose COMMIT lost its answer is reported as failed, though its messages are there.",
            ((Database, "write_once", _once_without_looking),),
        ),
        "trim-ignores-cursors": Bug(
            "A trim that is not forced takes what a cursor still has to read.",
            ((trimming, "_check_cursors", lambda *_: None), (retention_plan, "_slowest_cursor", lambda *_: None)),
        ),
        "trimmed-is-gone-at-once": Bug(
            "The rows of trimmed ledgers are purged before `file.delete.delay` is over, and their objects go.",
            ((TrimmingStore, "purge", _purge_at_once),),
        ),
        "truncate-keeps-epoch": Bug(
            "Truncating a topic does not raise its epoch, so a run that continues publishes what was cleared.",
            ((trimming, "truncate", _truncate_in_epoch),),
        ),
        "truncate-keeps-compacted": Bug(
            "Truncating a topic clears raw and leaves the compacted ledger.",
            ((trimming, "truncate", _truncate_raw_alone),),
        ),
        "delete-is-purged": Bug(
            "A topic is deleted and its uid is not remembered, so what it had is never collected.",
            ((topic_deletion, "delete_topic", _delete_and_forget),),
        ),
        "deleted-is-gone-at-once": Bug(
            "The objects of a deleted topic are collected before `file.delete.delay` is over.",
            ((GarbageCollector, "_collect_deleted", _collect_deleted_at_once),),
        ),
        "pause-leaves-the-run": Bug(
            "Pausing or aborting compaction leaves the run that is under way alone.",
            ((compaction_control, "_withdraw_request_and_cancel_run", _stop_no_run),),
        ),
        "claimed-while-paused": Bug(
            "A run is claimed although compaction of the topic is paused.",
            ((compaction_control_rows, "check_not_paused", lambda *_: None),),
        ),
        "lost-lease-unnoticed": Bug(
            "A writer that has lost its lease, and the lock of its segment, continues.",
            (
                (leases, "lock_and_check", lambda *_: None),
                (active_segment_file, "fcntl", _NO_LOCKS),
                (TopicLog, "_on_fenced", lambda _: None),
            ),
        ),
    }
)


@contextmanager
def seeded(bug: str | None) -> Iterator[None]:
    """Inside the context the code has the bug; None: it has none of these."""
    with ExitStack() as stack:
        for owner, attribute, instead in BUGS[bug].patches if bug else ():
            stack.enter_context(mock.patch.object(owner, attribute, instead))
        yield
