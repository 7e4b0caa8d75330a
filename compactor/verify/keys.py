"""Verify, keys stage: compare the winners in raw with the index of the compacted ledger. One task per hash range.

The objects stage has proven each raw index. So the newest raw record of a key, or the record of the largest event time
(P9), is the message that the compacted ledger must serve, unless a policy removed it. The compacted ledger serves the
*visible* record of a key: the record of the newest level that has one, unless that is a marker. The task also adds up
the fingerprint of the visible records, for comparison with the sum over the live rows of the parts.

Valid states of a key, where W is its winner in raw:

    W is a value       visible at W; or removed, if a run may have expired it (T2)
    W is a tombstone   removed; or retained, visible at W as a tombstone (T1)
    no W               nothing visible

In event-time order an older message may be visible once the removed winner is purged from the index. If the order
changed between runs, only keys are compared whose newest message also has the largest event time. Where raw is trimmed,
a key is undecided if a trimmed message might have won. Rows below the topic's start at the time of a run took no part,
even if their ledger still holds them.

The details stage compares a hash range key by key, where the fingerprints of index and parts differ. It reads all parts
again; only a wrong compacted ledger costs that.

Memory: about 100 bytes per record of the range (`plan.RANGE_RECORDS` bounds the records).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from compactor.verify.compare import (
    RowsByOffset,
    add_record_differences,
    align_by_hash,
    diff_by_hash,
    event_winner_per_hash,
    fingerprint_of_bits,
    integer_column,
    key_hash,
    keyed_rows,
    last_per_hash,
    live_row_groups,
    newest_per_hash,
    offsets_of,
    record_bits,
    records_of,
)
from compactor.verify.findings import UNREADABLE, Difference, DifferenceKind, Findings, TaskFindings
from compactor.verify.plan import VerifyPlan, WinnerOrder
from compactor.verify.run_history import ALWAYS
from compactor.verify.unkeyed import RangeChunksCheck, assemble_messages, certain_mask, records_of_messages
from storage.ledger import chunk_table, key_index
from storage.ledger.chunk_table import Mask
from storage.ledger.key_index import I64, MARKER, NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, HashRange, IndexRecords
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore

_KEY_COLUMNS = ["offset", "key", "payload", "event_time", "slot"]


def check_range(store: ObjectStore, plan: VerifyPlan, range_number: int) -> TaskFindings:
    """Compare the compacted ledger's index of hash range `range_number` with the winners in raw.

    Counts keys, undecided keys, and the values and tombstones among chunked messages. The fingerprint covers the
    visible records without those of chunked messages.
    """
    hash_range = plan.hash_ranges[range_number]
    answer = TaskFindings(Findings(plan.limit), complete=False)
    serving = _visible_records(store, plan, hash_range, answer.findings)
    chunks: RangeChunksCheck | None = None
    with answer.findings.record_damage(f"chunk tables of {plan.compacted_ledger_label} and of raw"):
        chunks = RangeChunksCheck(store, plan, hash_range)
    if chunks is None:
        return answer
    answer.complete = True
    chunked = records_of_messages(chunks.live.complete)
    tombstones = int(np.count_nonzero(chunked.offset & TOMBSTONE))
    answer.counts.update({"values": len(chunked) - tombstones, "tombstones": tombstones})
    winners = _winners(store, plan, hash_range, chunks, answer.findings)
    if serving is not None:
        alive = serving.take(serving.offset & MARKER == 0)
        of_rows = fingerprint_of_bits(record_bits(alive, plan.index_has_event_times)) - fingerprint_of_bits(
            record_bits(chunked, plan.index_has_event_times)
        )
        answer.add_fingerprint(plan.fingerprint_name(range_number), of_rows)
        chunks.compare(set(offsets_of(alive).tolist()), answer.findings)
        if winners is not None:
            _RangeComparison(store, plan, answer).compare(serving, *winners)
    return answer


def _visible_records(
    store: ObjectStore, plan: VerifyPlan, hash_range: HashRange, findings: Findings
) -> IndexRecords | None:
    """Return, per key, the record of the newest level that has one, markers included, in hash order.

    None if an index is unreadable, because it may hide records of older levels.
    """
    levels = _read_indexes(store, plan.index_locations, hash_range, findings)
    if levels is None:
        return None
    records = _concatenate_records(levels)
    ages = [age for age, level in enumerate(plan.readable_manifest.index) for _ in level]
    age = np.repeat(np.array(ages, dtype=np.int64), [len(level) for level in levels])
    return records.take(last_per_hash(records.hi, records.lo, -age))


def _winners(
    store: ObjectStore, plan: VerifyPlan, hash_range: HashRange, chunks: RangeChunksCheck, findings: Findings
) -> tuple[IndexRecords, Mask] | None:
    """Return, per key in raw at or below the horizon, the winner, and a mask of the winners that raw proves.

    None if a raw index is unreadable.
    """
    indexes = _read_indexes(store, [ledger.index for ledger in plan.ledgers_to_horizon], hash_range, findings)
    if indexes is None:
        return None
    indexes.append(chunks.records_of_raw_messages())
    by_offset, by_event, cut = _records_read_by_runs(plan, indexes)
    newest, largest = newest_per_hash(by_offset), event_winner_per_hash(by_event)
    winners = newest if plan.winner_order is WinnerOrder.OFFSET else largest
    certain = np.ones(len(winners), dtype=np.bool_)
    if plan.winner_order is WinnerOrder.EITHER:
        certain = newest.offset == largest.offset
    if plan.winner_order is not WinnerOrder.OFFSET and len(cut):
        at_winner, at_cut = align_by_hash(winners, newest_per_hash(cut))
        certain[at_winner[(at_winner >= 0) & (at_cut >= 0)]] = False
    return winners, certain & plan.proven_winners(offsets_of(winners)) & certain_mask(winners, chunks.uncertain)


class _RunInputRecords(NamedTuple):
    """The records that runs have read: by offset, by event time, and those without a known event-time winner."""

    by_offset: IndexRecords
    by_event: IndexRecords
    without_event_winner: IndexRecords


def _records_read_by_runs(plan: VerifyPlan, indexes: Sequence[IndexRecords]) -> _RunInputRecords:
    """Return those records of raw indexes that runs have read.

    The index of a ledger with a trim inside has one message of a key per order. If its newest message took part and
    the message of its largest event time did not, an unindexed message between them may have won by event time.
    """
    newest, largest, cut = [], [], []
    for index in indexes:
        by_event = index.event_winners()
        assert by_event.event_time is not None
        newest_part, event_part = plan.read_by_run(offsets_of(index)), plan.read_by_run(offsets_of(by_event))
        offset = np.where(event_part, by_event.offset, index.offset)
        event_time = np.where(event_part, by_event.event_time, NO_EVENT_TIME)
        newest.append(IndexRecords(index.hi, index.lo, index.offset).take(newest_part))
        largest.append(IndexRecords(index.hi, index.lo, offset, offset, event_time).take(newest_part))
        cut.append(IndexRecords(index.hi, index.lo, index.offset).take(newest_part & ~event_part))
    return _RunInputRecords(_concatenate_records(newest), _concatenate_records(largest), _concatenate_records(cut))


def _read_indexes(
    store: ObjectStore, locations: Sequence[IndexLocation], hash_range: HashRange, findings: Findings
) -> list[IndexRecords] | None:
    """Return the records of each index in the hash range; None if an index is unreadable."""
    records: list[IndexRecords] = []
    for location in locations:
        with findings.record_damage(location.name):
            records.append(key_index.read_records(store, location, hash_range, events=True))
    return records if len(records) == len(locations) else None


class _RangeComparison:
    """Comparison of the visible records of a hash range with the winners."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, answer: TaskFindings) -> None:
        self._store, self._plan, self._answer = store, plan, answer

    def compare(self, serving: IndexRecords, winners: IndexRecords, certain: Mask) -> None:
        """Compare the visible records with the winners. `certain`: mask of the winners that raw proves."""
        winner_at, record_at = align_by_hash(winners, serving)
        extra = serving.take(record_at[winner_at < 0])
        extra = extra.take(extra.offset & MARKER == 0)
        known = self._plan.covered_by_ledger(offsets_of(extra))
        undecided = int(np.count_nonzero(~known)) + int(np.count_nonzero(~certain))
        self._answer.counts.update({"keys": len(winners), "undecided": undecided})
        self._add_differences(DifferenceKind.EXTRA, extra.take(known), "a key is in the index that no raw ledger has")

        keys = np.flatnonzero(winner_at >= 0)
        keys = keys[certain[winner_at[keys]]]
        winner = winners.take(winner_at[keys])
        at = record_at[keys]
        record = serving.take(np.maximum(at, 0)) if len(serving) else winner  # placeholders
        self._compare_keys(winner, record, at >= 0)

    def _compare_keys(self, winner: IndexRecords, record: IndexRecords, indexed: Mask) -> None:
        """Compare keys with their winners, one row per key. `record` is valid where `indexed`. Shapes (n,)."""
        deleted = winner.offset & TOMBSTONE != 0
        visible = indexed & (record.offset & MARKER == 0)
        value = visible & (record.offset & TOMBSTONE == 0)
        at_winner = visible & (offsets_of(record) == offsets_of(winner))
        removed = deleted & ~at_winner
        lost = ~deleted & ~at_winner
        expired = np.zeros(len(winner), dtype=np.bool_)
        expired[lost] = self._may_have_expired(offsets_of(winner.take(lost)))
        removed |= lost & expired
        lost &= ~expired
        excused = np.zeros(len(winner), dtype=np.bool_)
        if self._plan.winner_order is WinnerOrder.EVENT and winner.event_time is not None:
            # Once a removed winner is purged from the index, a later message becomes visible (P9).
            excused = (winner.event_time <= self._plan.history.latest_purgeable_deletion_event_time) & (
                offsets_of(record) > offsets_of(winner)
            )
        revived = removed & visible & ~excused
        wrong = at_winner & (deleted == value)
        self._add_differences(
            DifferenceKind.MISSING, winner.take(lost & ~visible), "the winner of a key is not in the compacted ledger"
        )
        for kind, mask, what in (
            (DifferenceKind.ALTERED, lost & visible, "the index has another message of the key than its winner"),
            (DifferenceKind.REVIVED, revived & value, "the key has a value, but was deleted or has expired"),
            (DifferenceKind.ALTERED, revived & ~value, "the index has a tombstone that is not the winner of its key"),
            (DifferenceKind.REVIVED, wrong & deleted, "a tombstone is in the index as a value"),
            (DifferenceKind.ALTERED, wrong & ~deleted, "a value is in the index as a tombstone"),
        ):
            self._add_differences(kind, record.take(mask), what)
        self._check_deletions(winner, record, indexed, removed)
        self._answer.dropped_to = int(offsets_of(winner.take(removed)).max(initial=-1))

    def _check_deletions(self, winner: IndexRecords, record: IndexRecords, indexed: Mask, removed: Mask) -> None:
        """Add the removed winners that event-time order still needs in the index: a late message revives them (P9)."""
        if (
            self._plan.winner_order is not WinnerOrder.EVENT
            or not self._plan.index_has_event_times
            or winner.event_time is None
        ):
            return
        needed = removed & (winner.event_time != NO_EVENT_TIME)
        needed &= winner.event_time > self._plan.history.latest_purgeable_deletion_event_time
        remembered = indexed & (offsets_of(record) == offsets_of(winner))
        if record.event_time is not None:
            remembered &= record.event_time == winner.event_time
        what = "a deletion is not in the index, so a late message could revive its key"
        self._add_differences(DifferenceKind.MISSING, winner.take(needed & ~remembered), what)

    def _may_have_expired(self, offsets: I64) -> Mask:
        """Return a mask of the values, by offset, that a run may have expired (T2). Reads rows only to decide."""
        limits = self._plan.history.latest_removable_value_publish_time(offsets)
        expired: Mask = limits == ALWAYS
        for ledger in self._plan.ledgers_to_horizon:
            undecided = np.flatnonzero((offsets >= ledger.first_offset) & (offsets <= ledger.last_offset) & ~expired)
            if not (limits[undecided] >= ledger.min_publish_time).any():
                continue
            expired[undecided] = True  # stays so if the rows are unreadable
            with self._answer.findings.record_damage(ledger.rows.name):
                rows = RowsByOffset(self._store, ledger.rows_object)
                expired[undecided] = False
                for number, inside in rows.groups_of(offsets[undecided]):
                    unread = undecided[inside]
                    least = rows.reader.least(number, "publish_time")
                    if least is not None and limits[unread].max() < least:
                        continue
                    present, table = rows.find_in_group(number, offsets[unread], ["offset", "publish_time"])
                    expired[unread] = True
                    expired[unread[present]] = integer_column(table, "publish_time") <= limits[unread[present]]
        return expired

    def _add_differences(self, kind: DifferenceKind, records: IndexRecords, what: str) -> None:
        """Add a difference of the compacted ledger for each record."""
        add_record_differences(self._answer.findings, kind, self._plan.compacted_ledger_label, records, what)


def explain_range(store: ObjectStore, plan: VerifyPlan, range_number: int) -> TaskFindings:
    """Compare index and parts of hash range `range_number` key by key, and name the differences. Reads all parts."""
    findings = Findings(plan.limit)
    where = f"index and parts of {plan.compacted_ledger_label}"
    hash_range = plan.hash_ranges[range_number]
    with findings.record_damage(where):
        index = _visible_records(store, plan, hash_range, findings)
        if index is None:
            return TaskFindings(findings)
        live = _live_records(store, plan, hash_range)
        newest = last_per_hash(live.hi, live.lo, live.offset & OFFSET_MASK)
        duplicate = np.ones(len(live), dtype=np.bool_)
        duplicate[newest] = False
        what = "a part has a live row of a key with a newer live row"
        add_record_differences(findings, DifferenceKind.EXTRA, where, live.take(duplicate), what)
        _compare_live_rows(
            findings, where, live.take(newest), index.take(index.offset & MARKER == 0), plan.index_has_event_times
        )
    return TaskFindings(findings)


def _compare_live_rows(findings: Findings, where: str, live: IndexRecords, index: IndexRecords, by_event: bool) -> None:
    """Add the differences between the live rows of the parts and the records of the index."""
    no_record, no_row, row, record = diff_by_hash(live, index)
    same = row.offset == record.offset
    displaced = offsets_of(row) != offsets_of(record)
    if by_event and row.event_time is not None and record.event_time is not None:
        same &= row.event_time == record.event_time
    add_record_differences(findings, DifferenceKind.EXTRA, where, no_record, "a live row is not in the index")
    add_record_differences(findings, DifferenceKind.MISSING, where, no_row, "a key of the index has no live row")
    what = "the index has another row of the key than the live row"
    add_record_differences(findings, DifferenceKind.ALTERED, where, record.take(displaced), what)
    what = "flag or event time in the index differ from the row"
    add_record_differences(findings, DifferenceKind.ALTERED, where, record.take(~same & ~displaced), what)


def _live_records(store: ObjectStore, plan: VerifyPlan, hash_range: HashRange) -> IndexRecords:
    """Return a record per live keyed row, and per chunked message, of the hash range."""
    live = []
    for table in live_row_groups(store, plan.readable_manifest, _KEY_COLUMNS):
        records = records_of(keyed_rows(table), plan.hasher)
        if hash_range.bits:
            records = records.take(records.hi >> np.uint64(64 - hash_range.bits) == hash_range.prefix)
        live.append(records)
    chunks = chunk_table.read_chunk_tables(store, plan.readable_manifest.chunks, hash_range)
    live.append(records_of_messages(assemble_messages(np.concatenate([chunk_table.empty_chunks(), *chunks])).complete))
    return key_index.concatenate_records(live)


def with_keys(store: ObjectStore, plan: VerifyPlan, differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return the differences, with their keys added where a row at the offset of a difference has its key hash."""
    return tuple(
        each if each.key is not None or each.key_hash is None or each.offset is None
        else replace(each, key=_key_at(store, plan, each.offset, each.key_hash))
        for each in differences
    )  # fmt: skip


def _key_at(store: ObjectStore, plan: VerifyPlan, offset: int, expected: str) -> bytes | None:
    """Return the key with hash `expected` of the row at an offset, in raw or in a part. Damage is ignored."""
    extents = [(ledger.first_offset, ledger.last_offset, ledger.rows_object) for ledger in plan.ledgers]
    parts = plan.manifest.parts if plan.manifest else ()
    extents += [(part.first.offset, part.last.offset, part.rows) for part in parts]
    for rows_object in [rows_object for first, last, rows_object in extents if first <= offset <= last]:
        with suppress(*UNREADABLE):
            rows, at = RowsByOffset(store, rows_object), np.array([offset])
            for number, _ in rows.groups_of(at):
                table = keyed_rows(rows.find_in_group(number, at, _KEY_COLUMNS).table)
                records = records_of(table, plan.hasher)
                if len(records) and key_hash(records, 0) == expected:
                    key: bytes = table.column("key")[0].as_py()
                    return key
    return None


def _concatenate_records(runs: list[IndexRecords]) -> IndexRecords:
    """Return the records of all runs in order, with event times: NO_EVENT_TIME for a run without any."""
    timed = [
        run if run.event_time is not None else IndexRecords(run.hi, run.lo, run.offset).event_winners() for run in runs
    ]
    records = key_index.concatenate_records(timed)
    return records if records.event_time is not None else records.event_winners()
