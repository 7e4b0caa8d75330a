"""Chunked messages in phase one: which are complete, which live, and the chunk table that the run leaves (P10).

A chunked message is one message: all its chunks live or go together. A task reads the chunk tables of the dirty
ledgers and of the previous compacted ledger, keeps the chunks of its hash range and puts them together. What became
complete takes part in `resolve` as a message of its key at its last chunk's offset; the other chunks follow it. An
incomplete message supersedes nothing: its chunks stay until it is complete, or until the newest of them was published
`Policies.incomplete_chunk_max_age_ms` ago. Stale chunks (storage/ledger/chunk_table.py) go at once.

Complete messages of old parts that are due by time (T1, T2) need no scan: the table has their times. So has a change to
event-time order (P9). A topic without chunks pays nothing here.

Memory: a table is read at a time, 72 bytes a chunk; about 300 bytes a chunk of the range (run_input.py counts each as
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
from storage.ledger.chunk_table import PENDING, ChunkAssembly, Chunks, ChunkTable, assemble, inside, offsets
from storage.ledger.key_index import MARKER, NO_EVENT_TIME, U64, HashRange, IndexRecords, concatenated
from storage.objects.interface import ObjectStore

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ChunkDecision:
    """What becomes of the chunks of a range.

    `table`: those that live, by offset. `named`: offsets for the row sets, but for last chunks with a key, which
    `resolve` names: of dirty ledgers what survives, of old parts what goes. `pending`: chunks of incomplete messages
    that are carried along, `expired`: that are not; `null_keys`: messages without a key that became complete and stay.
    """

    table: Chunks = field(default_factory=chunk_table.none)
    named: U64 = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    pending: int = 0
    expired: int = 0
    null_keys: int = 0
    oldest_value: int | None = None
    oldest_tombstone: int | None = None
    first_tombstone: int | None = None
    oldest_pending: int | None = None


class RangeChunks:
    """The chunks of one hash range, dirty and old, put together."""

    def __init__(self, plan: RunPlan, chunks: Chunks) -> None:
        self._plan = plan
        self._assembled: ChunkAssembly = assemble(chunks)
        dirty = plan.sources[plan.old_parts :]
        self._dirty_from = np.uint64(dirty[0].first_offset if dirty else 2**62)
        self._new = self._assembled.offset >= self._dirty_from
        self._gone_chunks = self._are_gone()
        self._gone = np.zeros(len(self._assembled.last), dtype=np.bool_)
        self._gone[self._assembled.message[self._gone_chunks & (self._assembled.message >= 0)]] = True

    def complete(self) -> IndexRecords:
        """The winner of each key among the messages that this run completes, in hash order."""
        found = self._assembled.records(self._assembled.keyed & self._new)
        if not self._plan.policies.event_time_order:
            return found.take(key_index.latest(found.hi, found.lo))
        assert found.event_time is not None
        return found.take(key_index.latest_by_event(found.hi, found.lo, found.event_time))

    def _are_gone(self) -> Mask:
        """Which chunks go whatever they are (C2): their message goes with the first of them that does."""
        rows_to = self._plan.policies.rows_to(self._plan.now)
        gone: Mask = offsets(self._assembled.chunks) < np.uint64(self._plan.policies.start_offset)
        return gone if rows_to is None else gone | (self._assembled.chunks["publish_time"] <= rows_to)

    def gone(self) -> U64:
        """The offsets, ascending, of messages with a key that this run completes and that go all the same (C2)."""
        return np.sort(self._assembled.offset[self._gone & self._new & self._assembled.keyed])

    def due(self) -> IndexRecords:
        """Markers, in hash order, for messages of old parts that go by time or are below the start (T1, T2, C2)."""
        found = self._assembled.records(self._assembled.keyed & ~self._new & self._is_due())
        marked = found.offset | MARKER
        return IndexRecords(found.hi, found.lo, marked, marked, found.event_time)

    def indexed(self) -> IndexRecords:
        """Records, in hash order, of the messages of old parts, for an index that is created again from rows."""
        return self._assembled.records(self._assembled.keyed & ~self._new)

    def _is_due(self) -> Mask:
        policies, now = self._plan.policies, self._plan.now
        last = self._assembled.chunks[self._assembled.last]
        values = np.zeros(len(last), dtype=np.bool_)
        if policies.key_ttl_ms is not None:
            values = last["publish_time"] <= now - policies.key_ttl_ms
        tombstones = last["retained_at"] <= now - policies.tombstone_retention_ms
        if self._plan.cursor_floor is not None:
            tombstones &= offsets(last).astype(np.int64) <= self._plan.cursor_floor
        due: Mask = np.where(self._assembled.empty, tombstones, values) | self._gone
        return due

    def decide(self, resolved: RangeResolution) -> ChunkDecision:
        """Which chunks live, now that it is known which messages do."""
        assembled = self._assembled
        live_messages = np.where(
            self._new, _among(assembled.offset, resolved.survivors), ~_among(assembled.offset, resolved.superseded)
        )
        live_messages[~assembled.keyed] = self._plan.policies.retain_null_key & ~self._gone[~assembled.keyed]
        newest = assembled.newest_pending(~self._gone_chunks)  # as the next run will see them
        too_old = self._plan.policies.incomplete_to(self._plan.now)
        fresh = newest > (np.iinfo(np.int64).min if too_old is None else too_old)

        pending = assembled.message == PENDING
        live = pending & fresh[assembled.group] & ~self._gone_chunks
        complete = assembled.message >= 0
        live[complete] = live_messages[assembled.message[complete]]
        old = offsets(assembled.chunks) < self._dirty_from
        named = live ^ old
        named[assembled.last[assembled.keyed]] = False

        kept = assembled.last[live_messages & assembled.keyed]
        empty = assembled.empty[live_messages & assembled.keyed]
        table = assembled.chunks.copy()
        fresh_tombstones = kept[empty & (table["retained_at"][kept] == NO_EVENT_TIME)]
        table["retained_at"][fresh_tombstones] = self._plan.now
        values, tombstones = table[kept[~empty]], table[kept[empty]]
        carried = assembled.newest_pending(live)[np.unique(assembled.group[live & pending])]
        table = table[live]
        return ChunkDecision(
            table[np.argsort(offsets(table))],
            offsets(assembled.chunks[named]),
            pending=int(np.count_nonzero(live & pending)),
            expired=int(np.count_nonzero(~live & pending)),
            null_keys=int(np.count_nonzero(live_messages & ~assembled.keyed & self._new)),
            oldest_value=_least(values["publish_time"]),
            oldest_tombstone=_least(tombstones["retained_at"]),
            first_tombstone=_least(offsets(tombstones)),
            oldest_pending=_least(carried),
        )


def read_chunks(store: ObjectStore, plan: RunPlan, wanted: HashRange) -> RangeChunks | None:
    """The chunks of a hash range, None if there are none."""
    found = chunk_table.read_tables(store, plan.chunk_tables, wanted)
    found += [inside(chunk_table.read_ledger_chunks(store, location), wanted) for location in plan.indexes]
    chunks = np.concatenate([chunk_table.none(), *found])
    return RangeChunks(plan, chunks) if len(chunks) else None


def write_chunks(store: ObjectStore, plan: RunPlan, number: int, decided: ChunkDecision) -> ChunkTable | None:
    """The chunk table of hash range `number`; None if no chunk of it lives."""
    if not len(decided.table):
        return None
    data = decided.table.tobytes()
    name = names.chunks(plan.topic_uid, plan.attempt_id, number)
    store.put(name, data)
    return ChunkTable(
        name,
        len(data),
        crc32c(data),
        plan.ranges[number],
        decided.pending,
        decided.oldest_value,
        decided.oldest_tombstone,
        decided.first_tombstone,
        decided.oldest_pending,
    )


def with_complete(winners: IndexRecords, complete: IndexRecords, by_event: bool) -> IndexRecords:
    """The winner of each key of both; each in hash order with one record a key, `winners` of any offsets."""
    at = key_index.find(winners, complete.hi, complete.lo)
    both = at >= 0
    theirs = winners.take(np.where(both, at, 0)) if len(winners) else complete
    later = _plain(complete) > _plain(theirs)
    if by_event:
        assert complete.event_time is not None
        assert theirs.event_time is not None
        larger = complete.event_time > theirs.event_time
        later = larger | ((complete.event_time == theirs.event_time) & later)
    else:
        complete, winners = (IndexRecords(item.hi, item.lo, item.offset) for item in (complete, winners))
    together = concatenated([winners, complete.take(~both | later)])
    return together.take(key_index.latest(together.hi, together.lo))


def _plain(records: IndexRecords) -> U64:
    plain: U64 = records.offset & key_index.OFFSET_MASK
    return plain


def _among(few: U64, many: U64) -> Mask:
    """Which of `few` distinct numbers are in `many`, which may be large."""
    order = np.argsort(few)
    ascending = few[order]
    found = np.zeros(len(few), dtype=np.bool_)
    if len(few) and len(many):
        at = np.minimum(np.searchsorted(ascending, many), len(few) - 1)
        found[order[at[ascending[at] == many]]] = True
    return found


def _least(numbers: npt.NDArray[np.generic]) -> int | None:
    return int(numbers.min()) if len(numbers) else None
