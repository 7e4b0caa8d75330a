"""Chunked messages in phase one: the complete ones, the live ones, and the chunk table of the run (P10).

All chunks of a chunked message stay or are removed together. A task reads the chunk tables of the dirty ledgers and of
the previous compacted ledger, keeps the chunks of its hash range, and assembles messages. A message that this run
completes takes part in `resolve` as a message of its key at the offset of its last chunk; its other chunks follow it.
An incomplete message supersedes nothing. Its chunks stay until it is complete, or until its newest chunk was published
`RunPolicies.incomplete_chunk_max_age_ms` ago. Stale chunks (storage/ledger/chunk_table.py) are removed at once.

Complete messages of old parts that are due by time (T1, T2), or need event times (P9), need no scan: the table has
their times. A topic without chunks costs nothing here.

Memory: one table at a time, 72 bytes per chunk; about 300 bytes per chunk of the range (run_input.py counts a chunk as
`CHUNK_WEIGHT` records). Rules: semantics.md P6, P9, P10, T1, T2, C2. Oracle: compactor/reference.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from compactor.run.plan import RunPlan
from compactor.run.resolve import RangeResolution
from storage.checksums import crc32c
from storage.ledger import chunk_table, key_index, names
from storage.ledger.chunk_table import (
    PENDING,
    ChunkAssembly,
    Chunks,
    ChunkTable,
    Mask,
    assemble_chunk_records,
    chunk_offsets,
    chunks_in_range,
)
from storage.ledger.key_index import MARKER, NO_EVENT_TIME, U64, HashRange, IndexRecords, concatenate_records
from storage.objects.interface import ObjectStore


@dataclass(frozen=True)
class ChunkDecision:
    """Decision about the chunks of a hash range.

    `table`: the live chunks, by offset. `row_set_offsets`: offsets for the row sets (survivors of dirty ledgers,
    removed rows of old parts), without last chunks with a key, which `resolve` names. `pending`, `expired`: numbers of
    kept and of removed chunks of incomplete messages. `null_keys`: number of messages without a key that this run
    completes and keeps. `oldest_…`, `first_tombstone`: as in ChunkTable (storage/ledger/chunk_table.py).
    """

    table: Chunks = field(default_factory=chunk_table.empty_chunks)
    row_set_offsets: U64 = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    pending: int = 0
    expired: int = 0
    null_keys: int = 0
    oldest_value: int | None = None
    oldest_tombstone: int | None = None
    first_tombstone: int | None = None
    oldest_pending: int | None = None


class RangeChunks:
    """The chunks of one hash range, dirty and old, assembled into messages."""

    def __init__(self, plan: RunPlan, chunks: Chunks) -> None:
        self._plan = plan
        self._assembled: ChunkAssembly = assemble_chunk_records(chunks)
        dirty = plan.sources[plan.old_parts :]
        self._dirty_from = np.uint64(dirty[0].first_offset if dirty else 2**62)
        self._new = self._assembled.message_offsets >= self._dirty_from
        self._removed_chunks = self._chunks_removed_by_limits()
        self._removed = np.zeros(len(self._assembled.last_chunks), dtype=np.bool_)
        self._removed[
            self._assembled.message_numbers[self._removed_chunks & (self._assembled.message_numbers >= 0)]
        ] = True

    def completed_winners(self) -> IndexRecords:
        """Return the winner of each key among the messages that this run completes, in hash order."""
        records = self._assembled.index_records(self._assembled.keyed_mask & self._new)
        if not self._plan.policies.event_time_order:
            return records.take(key_index.latest_positions(records.hi, records.lo))
        assert records.event_time is not None
        return records.take(key_index.latest_positions_by_event(records.hi, records.lo, records.event_time))

    def _chunks_removed_by_limits(self) -> Mask:
        """Return a mask of the chunks that the topic's limits remove (C2). A message is removed with any of them."""
        rows_to = self._plan.policies.rows_removed_to(self._plan.now)
        below: Mask = chunk_offsets(self._assembled.chunks) < np.uint64(self._plan.policies.start_offset)
        return below if rows_to is None else below | (self._assembled.chunks["publish_time"] <= rows_to)

    def completed_but_removed_offsets(self) -> U64:
        """Return the offsets, ascending, of keyed messages that this run completes but the limits remove (C2)."""
        return np.sort(self._assembled.message_offsets[self._removed & self._new & self._assembled.keyed_mask])

    def old_part_removal_markers(self) -> IndexRecords:
        """Return markers, in hash order, for messages of old parts that time or limits remove (T1, T2, C2)."""
        records = self._assembled.index_records(self._assembled.keyed_mask & ~self._new & self._due_messages())
        marked = records.offset | MARKER
        return IndexRecords(records.hi, records.lo, marked, marked, records.event_time)

    def old_part_records(self) -> IndexRecords:
        """Return records, in hash order, of the messages of old parts, for an index that is rebuilt from rows."""
        return self._assembled.index_records(self._assembled.keyed_mask & ~self._new)

    def _due_messages(self) -> Mask:
        policies, now = self._plan.policies, self._plan.now
        last = self._assembled.chunks[self._assembled.last_chunks]
        values = np.zeros(len(last), dtype=np.bool_)
        if policies.key_ttl_ms is not None:
            values = last["publish_time"] <= now - policies.key_ttl_ms
        tombstones = last["retained_at"] <= now - policies.tombstone_retention_ms
        if self._plan.cursor_floor is not None:
            tombstones &= chunk_offsets(last).astype(np.int64) <= self._plan.cursor_floor
        due: Mask = np.where(self._assembled.empty, tombstones, values) | self._removed
        return due

    def decide(self, resolved: RangeResolution) -> ChunkDecision:
        """Return which chunks stay. `resolved`: the decision about the messages of the hash range."""
        assembled = self._assembled
        live_messages = np.where(
            self._new,
            _mask_of_members(assembled.message_offsets, resolved.survivors),
            ~_mask_of_members(assembled.message_offsets, resolved.superseded),
        )
        live_messages[~assembled.keyed_mask] = (
            self._plan.policies.retain_null_key & ~self._removed[~assembled.keyed_mask]
        )
        newest = assembled.newest_pending_times(~self._removed_chunks)  # as the next run will read them
        too_old = self._plan.policies.incomplete_removed_to(self._plan.now)
        fresh = newest > (np.iinfo(np.int64).min if too_old is None else too_old)

        pending = assembled.message_numbers == PENDING
        live = pending & fresh[assembled.group_numbers] & ~self._removed_chunks
        complete = assembled.message_numbers >= 0
        live[complete] = live_messages[assembled.message_numbers[complete]]
        old = chunk_offsets(assembled.chunks) < self._dirty_from
        named = live ^ old
        named[assembled.last_chunks[assembled.keyed_mask]] = False

        kept = assembled.last_chunks[live_messages & assembled.keyed_mask]
        empty = assembled.empty[live_messages & assembled.keyed_mask]
        table = assembled.chunks.copy()
        fresh_tombstones = kept[empty & (table["retained_at"][kept] == NO_EVENT_TIME)]
        table["retained_at"][fresh_tombstones] = self._plan.now
        values, tombstones = table[kept[~empty]], table[kept[empty]]
        carried = assembled.newest_pending_times(live)[np.unique(assembled.group_numbers[live & pending])]
        table = table[live]
        return ChunkDecision(
            table[np.argsort(chunk_offsets(table))],
            chunk_offsets(assembled.chunks[named]),
            pending=int(np.count_nonzero(live & pending)),
            expired=int(np.count_nonzero(~live & pending)),
            null_keys=int(np.count_nonzero(live_messages & ~assembled.keyed_mask & self._new)),
            oldest_value=_minimum(values["publish_time"]),
            oldest_tombstone=_minimum(tombstones["retained_at"]),
            first_tombstone=_minimum(chunk_offsets(tombstones)),
            oldest_pending=_minimum(carried),
        )


def read_chunks(store: ObjectStore, plan: RunPlan, hash_range: HashRange) -> RangeChunks | None:
    """Return the chunks of a hash range, None if it has none."""
    tables = chunk_table.read_chunk_tables(store, plan.chunk_tables, hash_range)
    tables += [
        chunks_in_range(chunk_table.read_ledger_chunks(store, location), hash_range) for location in plan.indexes
    ]
    chunks = np.concatenate([chunk_table.empty_chunks(), *tables])
    return RangeChunks(plan, chunks) if len(chunks) else None


def write_chunks(store: ObjectStore, plan: RunPlan, range_number: int, decision: ChunkDecision) -> ChunkTable | None:
    """Write the chunk table of hash range `range_number` and return its record; None: no chunk stays, so none is
    written."""
    if not len(decision.table):
        return None
    data = decision.table.tobytes()
    name = names.chunks(plan.topic_uid, plan.attempt_id, range_number)
    store.put(name, data)
    return ChunkTable(
        name,
        len(data),
        crc32c(data),
        plan.ranges[range_number],
        decision.pending,
        decision.oldest_value,
        decision.oldest_tombstone,
        decision.first_tombstone,
        decision.oldest_pending,
    )


def merge_winners(winners: IndexRecords, chunked_winners: IndexRecords, by_event: bool) -> IndexRecords:
    """Return the winner of each key among both sides, in hash order. Each side is in hash order, one record per key.

    `by_event`: the largest event time wins (P9), otherwise the largest offset.
    """
    at = key_index.positions_of_hashes(winners, chunked_winners.hi, chunked_winners.lo)
    both = at >= 0
    others = winners.take(np.where(both, at, 0)) if len(winners) else chunked_winners
    later = chunked_winners.offset & key_index.OFFSET_MASK > others.offset & key_index.OFFSET_MASK
    if by_event:
        assert chunked_winners.event_time is not None
        assert others.event_time is not None
        larger = chunked_winners.event_time > others.event_time
        later = larger | ((chunked_winners.event_time == others.event_time) & later)
    else:
        chunked_winners, winners = (IndexRecords(item.hi, item.lo, item.offset) for item in (chunked_winners, winners))
    together = concatenate_records([winners, chunked_winners.take(~both | later)])
    return together.take(key_index.latest_positions(together.hi, together.lo))


def _mask_of_members(few: U64, many: U64) -> Mask:
    """Return a mask of the distinct numbers of `few` that are in `many`, which may be large."""
    order = np.argsort(few)
    ascending = few[order]
    among = np.zeros(len(few), dtype=np.bool_)
    if len(few) and len(many):
        at = np.minimum(np.searchsorted(ascending, many), len(few) - 1)
        among[order[at[ascending[at] == many]]] = True
    return among


def _minimum(numbers: npt.NDArray[np.generic]) -> int | None:
    return int(numbers.min()) if len(numbers) else None
