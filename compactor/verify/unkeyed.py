"""Verify, keys stage: rows outside the key map, which are null keys, whole entries and chunks (P6, P8, P10).

Bitmaps of the index hold the rows outside the key map; they must equal the bitmaps of raw. Chunk tables hold the chunks
of chunked messages. The objects stage has proven the chunk table of each raw ledger against its rows, and adds up the
live chunks of the parts. The fingerprint of the compacted ledger's chunk tables must equal that sum, so the tables
represent the rows of the parts. The messages that the tables assemble, and the other keyed rows of the parts, are
what the key index must show.

Valid states of a chunk, as raw assembles it:

    of a complete message    live exactly if its message is: visible in the index, or without a key and kept by policy
    stale                    removed
    pending                  live; or removed, if a run may have found it too old

A message is *uncertain* if a run may have removed it as incomplete, if the topic's limits may have removed one of its
chunks (C2), or if it spans a gap of trimmed raw and not all its chunks are live. The chunks of an uncertain message,
and its key if it is the winner, are not compared.

This module implements the rule of assembly independently of the kernel that it proves. Memory: about a kilobyte per
chunk of the hash range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from pyroaring import BitMap64

from compactor.verify.compare import (
    chunk_table_mask,
    compare_bitmaps,
    fingerprint,
    integer_column,
    live_row_groups,
    masks_outside_key_map,
    offsets_of,
)
from compactor.verify.findings import Difference, DifferenceKind, Findings, Fingerprint, TaskFindings
from compactor.verify.plan import CHUNK_TABLES, VerifyPlan
from compactor.verify.run_history import EXPIRED, OVERDUE, RETAINED
from storage.ledger import chunk_table, key_index
from storage.ledger.chunk_table import EMPTY, Chunks, Mask
from storage.ledger.key_index import I64, NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, HashRange, IndexRecords
from storage.model import LedgerRecord
from storage.objects.interface import ObjectStore

_CHUNK_COLUMNS = ["publish_time", "chunk_uuid", "chunk_index", "chunk_count"]
_COLUMNS = ["offset", "key", "payload", "event_time", "slot", *_CHUNK_COLUMNS]
_COMPARED = tuple(name for name in chunk_table.RECORD.names or () if name != "retained_at")


@dataclass
class ChunkedMessage:
    """A chunked message: its chunks in order, as records of a chunk table; all of them, or the first ones.

    `offset`, `publish_time`, `retained_at`: of the last chunk. `empty`: all chunks have empty payloads.
    """

    chunks: list[np.void] = field(default_factory=list)

    @property
    def has_key(self) -> bool:
        return bool(self.chunks[0]["offset"] & chunk_table.KEYED)

    @property
    def offsets(self) -> list[int]:
        return [_chunk_offset(chunk) for chunk in self.chunks]

    @property
    def offset(self) -> int:
        return self.offsets[-1]

    @property
    def is_empty(self) -> bool:
        return all(chunk["offset"] & EMPTY for chunk in self.chunks)

    @property
    def publish_time(self) -> int:
        return int(self.chunks[-1]["publish_time"])

    @property
    def retained_at(self) -> int:
        return int(self.chunks[-1]["retained_at"])


@dataclass
class ChunkedMessages:
    """Messages that chunks assemble. `pending`: the chunks of incomplete messages. `stale`: offsets of stale chunks, by
    the offset of the complete message with the same uuid and key."""

    complete: list[ChunkedMessage] = field(default_factory=list)
    stale: dict[int, list[int]] = field(default_factory=dict)
    pending: list[np.void] = field(default_factory=list)


def assemble_messages(chunks: Chunks) -> ChunkedMessages:
    """Return the messages that chunks assemble, by the rule of docs/format.md."""
    messages = ChunkedMessages()
    begun: dict[tuple[int, ...], ChunkedMessage] = {}
    waiting: dict[tuple[int, ...], list[np.void]] = {}
    for chunk in chunks[np.argsort(chunk_table.chunk_offsets(chunks), kind="stable")]:
        identity = (int(bool(chunk["offset"] & chunk_table.KEYED)), *_message_identity(chunk))
        waiting.setdefault(identity, []).append(chunk)
        if chunk["index"] == 0:
            begun[identity] = ChunkedMessage()
        message = begun.get(identity)
        if message is None or chunk["index"] != len(message.chunks):
            continue
        message.chunks.append(chunk)
        if len(message.chunks) == chunk["count"]:
            messages.complete.append(begun.pop(identity))
            messages.stale[message.offset] = sorted(
                set(map(_chunk_offset, waiting.pop(identity))) - set(message.offsets)
            )
    messages.pending = [chunk for group in waiting.values() for chunk in group]
    return messages


def _chunk_offset(chunk: np.void) -> int:
    """Return the offset of a chunk, without flags."""
    return int(chunk["offset"] & OFFSET_MASK)


def _message_identity(chunk: np.void) -> tuple[int, ...]:
    """Return what the chunks of one message share: uuid, key hash and number of chunks."""
    return tuple(int(chunk[name]) for name in ("uuid_hi", "uuid_lo", "key_hi", "key_lo", "count"))


def records_of_messages(messages: Iterable[ChunkedMessage]) -> IndexRecords:
    """Return an index record per complete message with a key, in the order of `messages`."""
    keyed = [message for message in messages if message.has_key]
    unsigned = partial(np.array, dtype=np.uint64)
    hi = unsigned([message.chunks[-1]["key_hi"] for message in keyed])
    lo = unsigned([message.chunks[-1]["key_lo"] for message in keyed])
    offset = unsigned([message.offset | (int(TOMBSTONE) if message.is_empty else 0) for message in keyed])
    event_time = np.array([message.chunks[0]["event_time"] for message in keyed], dtype=np.int64)
    return IndexRecords(hi, lo, offset, offset, event_time)


def chunk_fingerprint(chunks: Chunks) -> Fingerprint:
    """Return the fingerprint of chunk records without `retained_at`, which depends on the run."""
    return fingerprint(*(chunks[name].astype(chunks[name].dtype.str.replace("4", "8")) for name in _COMPARED))


class RangeChunksCheck:
    """Check of the chunks of one hash range: the tables of the compacted ledger against raw up to the horizon.

    `live`: the messages of the tables. `uncertain`: offsets of messages that are not compared (see the module).
    """

    def __init__(self, store: ObjectStore, plan: VerifyPlan, hash_range: HashRange) -> None:
        live = np.concatenate(
            [
                chunk_table.empty_chunks(),
                *chunk_table.read_chunk_tables(store, plan.readable_manifest.chunks, hash_range),
            ]
        )
        ledgers = [chunk_table.read_ledger_chunks(store, ledger.index) for ledger in plan.ledgers_to_horizon]
        raw = np.concatenate(
            [chunk_table.empty_chunks(), *(chunk_table.chunks_in_range(chunks, hash_range) for chunks in ledgers)]
        )
        trimmed = live[~plan.covered_by_ledger(chunk_table.chunk_offsets(live).astype(np.int64))]
        read_by_run = raw[plan.read_by_run(chunk_table.chunk_offsets(raw).astype(np.int64))]
        self._plan = plan
        self._alive = set(chunk_table.chunk_offsets(live).tolist())
        self._raw = assemble_messages(np.concatenate([trimmed, read_by_run]))
        self.live = assemble_messages(live)
        self.uncertain = {message.offset for message in self._raw.complete if self._is_uncertain(message)}

    def records_of_raw_messages(self) -> IndexRecords:
        """Return the index records of the complete chunked messages in raw that have a key."""
        return records_of_messages(self._raw.complete)

    def _is_uncertain(self, message: ChunkedMessage) -> bool:
        """Return whether raw does not decide if a message must be live (see the module)."""
        offsets = message.offsets
        first, last = offsets[0], offsets[-1]
        if not self._plan.is_read_state_known(np.array(offsets, dtype=np.int64)).all():
            return True
        if any(first <= end and start <= last for start, end in self._plan.gaps):
            return not self._alive.issuperset(offsets)
        if any(map(self._may_have_been_removed, message.chunks)):
            return True
        ledgers = {self._plan.ledger_position(offset) for offset in offsets}
        oldest = min(int(chunk["publish_time"]) for chunk in message.chunks)
        return len(ledgers) > 1 and oldest <= self._plan.history.latest_droppable_chunk_publish_time(first, last)

    def _may_have_been_removed(self, chunk: np.void) -> bool:
        """Return whether the topic's limits (C2), or a trim before the run, may have removed a chunk of any state."""
        at = np.array([_chunk_offset(chunk)], dtype=np.int64)
        return bool(
            chunk["publish_time"] <= self._plan.history.latest_removable_row_publish_time(at)[0]
            or not self._plan.is_read_state_known(at)[0]
        )

    def compare(self, visible_offsets: set[int], findings: Findings) -> None:
        """Compare the live chunks with raw, and add differences to `findings`. `visible_offsets`: offsets of the
        visible index records."""
        history = self._plan.history
        expected: set[int] = set()
        excused: set[int] = set()
        for message in self._raw.complete:
            if message.offset in self.uncertain:
                excused.update(message.offsets, self._raw.stale[message.offset])
            elif message.has_key:
                expected.update(message.offsets if message.offset in visible_offsets else ())
            elif self._plan.readable_manifest.policies.get("retain_null_key"):
                dropped = message.offset <= history.last_droppable_null_key_offset and not self._alive & set(
                    message.offsets
                )
                expected.update(() if dropped else message.offsets)
        for chunk in self._raw.pending:
            offset = _chunk_offset(chunk)
            may_be_removed = chunk["publish_time"] <= history.latest_droppable_chunk_publish_time(
                offset
            ) or self._may_have_been_removed(chunk)
            (excused if may_be_removed else expected).add(offset)
        alive = BitMap64(self._alive - (excused - expected))
        compare_bitmaps(findings, self._plan.compacted_ledger_label, "chunks", BitMap64(expected), alive)
        for message in self.live.complete:
            self._check_times(message, findings)

    def _check_times(self, message: ChunkedMessage, findings: Findings) -> None:
        """Add an expired value, an overdue tombstone, or a wrong `retained_at` (T1, T2)."""
        at = np.array([message.offset], dtype=np.int64)
        tombstone = message.has_key and message.is_empty
        difference: tuple[DifferenceKind, str] | None = None
        if tombstone != (message.retained_at != NO_EVENT_TIME):
            difference = DifferenceKind.INCONSISTENT, RETAINED
        elif tombstone and message.retained_at <= self._plan.history.latest_removed_tombstone_retained_at(at)[0]:
            difference = DifferenceKind.EXTRA, OVERDUE
        elif (
            message.has_key
            and not tombstone
            and message.publish_time <= self._plan.history.latest_removed_value_publish_time(at)[0]
        ):
            difference = DifferenceKind.REVIVED, EXPIRED
        if difference is not None:
            findings.add(Difference(difference[0], self._plan.compacted_ledger_label, difference[1], message.offset))


def _check_chunk_tables(store: ObjectStore, plan: VerifyPlan, answer: TaskFindings) -> None:
    """Compare each chunk table with its record in the manifest. Add the fingerprint of all chunks, if readable."""
    findings, total, read = answer.findings, Fingerprint(), 0
    for table in plan.readable_manifest.chunks:
        with findings.record_damage(table.name):
            (chunks,) = chunk_table.read_chunk_tables(store, [table], table.hash_range)
            offsets = chunk_table.chunk_offsets(chunks)
            ascend = bool(np.all(offsets[1:] > offsets[:-1]))
            within = (
                len(chunks) == table.record_count
                and int(offsets.max(initial=0)) <= plan.readable_manifest.horizon.offset
            )
            if not (ascend and within):
                what = "its chunks do not ascend, or some are outside its hash range or above the horizon"
                findings.add_inconsistency(table.name, what)
            _check_manifest_bounds(table, assemble_messages(chunks), findings)
            total += chunk_fingerprint(chunks)
            read += 1
    if read == len(plan.readable_manifest.chunks):
        answer.add_fingerprint(CHUNK_TABLES, total)


def _check_manifest_bounds(table: chunk_table.ChunkTable, messages: ChunkedMessages, findings: Findings) -> None:
    """Compare the lower bounds and the number of pending chunks in a table's manifest record with its messages."""
    kept = [message for message in messages.complete if message.has_key]
    newest: dict[tuple[int, ...], int] = {}
    for chunk in messages.pending:
        identity, published = _message_identity(chunk), int(chunk["publish_time"])
        newest[identity] = max(newest.get(identity, published), published)
    bounds = {
        "oldest_value": [message.publish_time for message in kept if not message.is_empty],
        "oldest_tombstone": [message.retained_at for message in kept if message.is_empty],
        "first_tombstone": [message.offset for message in kept if message.is_empty],
        "oldest_pending": list(newest.values()),
    }
    findings.check_lower_bounds(table.name, table, "a message", bounds)
    if table.pending != len(messages.pending):
        findings.add_inconsistency(
            table.name, f"the manifest records pending {table.pending}, the table has {len(messages.pending)}"
        )


def certain_mask(winners: IndexRecords, uncertain: set[int]) -> Mask:
    """Return a mask of the winners whose offsets are not in `uncertain`."""
    return ~np.isin(offsets_of(winners), np.array(sorted(uncertain), dtype=np.int64))


def check_unkeyed(store: ObjectStore, plan: VerifyPlan, _number: int) -> TaskFindings:
    """Compare the index's bitmaps of rows outside the key map with raw (P6, P8), and check the chunk tables (P10).

    `_number` is ignored: one task checks all.
    """
    answer = TaskFindings(Findings(plan.limit))
    _check_chunk_tables(store, plan, answer)
    bitmaps = _read_unkeyed_bitmaps(store, plan, answer.findings)
    if bitmaps is None:
        return answer
    for name, bitmap in bitmaps.items():
        answer.add_fingerprint(name, fingerprint(_bitmap_offsets(bitmap)))
    if not plan.readable_manifest.policies.get("retain_null_key"):
        compare_bitmaps(answer.findings, plan.compacted_ledger_label, "null_keys", BitMap64(), bitmaps["null_keys"])
    dropped_to, limited_to = plan.history.last_droppable_null_key_offset, plan.history.last_removable_unkeyed_offset
    for ledger in plan.ledgers_to_horizon:
        span = BitMap64(range(ledger.first_offset, ledger.last_offset + 1))
        with answer.findings.record_damage(ledger.index.name):
            for name, bitmap in bitmaps.items():
                indexed = bitmap & span
                removed_to = max(limited_to, dropped_to if name == "null_keys" else -1)
                raw = _offsets_read_by_runs(plan, ledger, key_index.read_unkeyed(store, ledger.index, name), indexed)
                if ledger.first_offset <= removed_to:
                    raw &= indexed  # a run may have removed the others, and no later run restores them
                compare_bitmaps(answer.findings, plan.compacted_ledger_label, name, raw, indexed)
    return answer


def _offsets_read_by_runs(plan: VerifyPlan, ledger: LedgerRecord, raw: BitMap64, indexed: BitMap64) -> BitMap64:
    """Return the offsets of a ledger that a run has read. If that is unknown, an `indexed` offset counts as read."""
    begins = plan.history.topic_start_at_first_run(np.array([ledger.last_offset], dtype=np.int64))
    to = plan.start_offset if begins is None else int(begins[0])
    below = BitMap64(range(ledger.first_offset, min(to, ledger.last_offset + 1)))
    return raw - below | raw & below & indexed if begins is None else raw - below


def _read_unkeyed_bitmaps(store: ObjectStore, plan: VerifyPlan, findings: Findings) -> dict[str, BitMap64] | None:
    """Return the offsets of the rows outside the key map, by class, of all levels; None if an index is unreadable."""
    bitmaps = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
    read = 0
    for location in plan.index_locations:
        with findings.record_damage(location.name):
            for name, bitmap in bitmaps.items():
                bitmap |= key_index.read_unkeyed(store, location, name)
            read += 1
    return bitmaps if read == len(plan.index_locations) else None


def _bitmap_offsets(bitmap: BitMap64) -> I64:
    return np.frombuffer(bitmap.to_array(), dtype=np.int64) if bitmap else np.empty(0, dtype=np.int64)


def explain_unkeyed(store: ObjectStore, plan: VerifyPlan, _number: int) -> TaskFindings:
    """Name the rows outside the key map, and the chunks, in which index and parts differ. `_number` is ignored."""
    findings = Findings(plan.limit)
    where = f"index and parts of {plan.compacted_ledger_label}"
    with findings.record_damage(where):
        live = {name: BitMap64() for name in key_index.UNKEYED_CLASSES}
        chunks = BitMap64()
        for table in live_row_groups(store, plan.readable_manifest, _COLUMNS):
            offsets = integer_column(table, "offset")
            for name, mask in masks_outside_key_map(table).items():
                live[name] |= BitMap64(offsets[mask].tolist())
            chunks |= BitMap64(offsets[chunk_table_mask(table)].tolist())
        read = chunk_table.read_chunk_tables(store, plan.readable_manifest.chunks, HashRange())
        tables = np.concatenate([chunk_table.empty_chunks(), *read])
        by_offset = dict(zip(chunk_table.chunk_offsets(tables).tolist(), tables, strict=True))
        compare_bitmaps(findings, f"{where} (chunk tables)", "chunks", chunks, BitMap64(by_offset))
        if chunks == BitMap64(by_offset):
            _compare_chunks(store, plan, by_offset, findings)
        for name, bitmap in (_read_unkeyed_bitmaps(store, plan, findings) or {}).items():
            compare_bitmaps(findings, where, name, live[name], bitmap)
    return TaskFindings(findings)


def _compare_chunks(store: ObjectStore, plan: VerifyPlan, tables: Mapping[int, np.void], findings: Findings) -> None:
    """Name the chunks whose offsets are in tables and parts, but whose records differ."""
    for table in live_row_groups(store, plan.readable_manifest, _COLUMNS):
        for chunk in chunk_table.chunk_records(table, plan.hasher):
            offset = int(chunk["offset"] & OFFSET_MASK)
            if any(chunk[name] != tables[offset][name] for name in chunk.dtype.names if name != "retained_at"):
                what = "the chunk table differs from the row of the chunk"
                findings.add(Difference(DifferenceKind.ALTERED, plan.compacted_ledger_label, what, offset))
