"""Verify, second and third stage: winners from raw against the index of the compacted ledger. One task a hash range.

The first stage has proven each raw index against its rows. So the newest raw record of a key, or that of the largest
event time (P9), is the message that the compacted ledger must serve, unless a policy took it away; and what it serves
is the *visible* record of the key: that of the newest level that has one, if it is no marker. The task also adds up the
fingerprint of the visible records with a row, to be compared with what the parts' live rows add up to.

What a key may look like, W being its winner in raw:

    W is a value       visible at W; or gone, if a run may have found it expired (T2)
    W is a tombstone   gone, or retained: visible at W as a tombstone (T1)
    no W               nothing visible

By event time an older message may stand behind a winner that is gone, once that is purged; so may any message where
the order of winning has changed: then only keys count whose newest message also has the largest event time.
Where a raw ledger is trimmed, a key is left alone if a message that is gone might have decided it. What lay below the
topic's start when its run came took no part, though a ledger that was cut there still has it.

Memory: about 100 bytes a record of the range (`plan.RANGE_RECORDS` bounds it).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from compactor.verify.compare import (
    RowsByOffset,
    align,
    key_hash,
    keyed_rows,
    largest_of_each,
    last_of_each,
    live_groups,
    mixed_records,
    name_records,
    newest_of_each,
    numbers,
    plain,
    records_of,
    split,
    summed,
)
from compactor.verify.findings import UNREADABLE, Difference, DifferenceKind, Findings, TaskFindings
from compactor.verify.plan import Mask, VerifyPlan, WinnerOrder
from compactor.verify.run_history import ALWAYS, I64
from compactor.verify.unkeyed import RangeChunksCheck, assembled, certain_of, records_of_messages
from storage.ledger import chunk_table, key_index
from storage.ledger.key_index import MARKER, NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, HashRange, IndexRecords
from storage.model import IndexLocation
from storage.objects.interface import ObjectStore

_KEY_COLUMNS = ["offset", "key", "payload", "event_time", "slot"]


def check_range(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """Hash range `number`. Counts the keys, those that are undecided, and the values and tombstones among chunked
    messages; the fingerprint is of the visible records but for those of chunked messages."""
    wanted = plan.ranges[number]
    answer = TaskFindings(Findings(plan.limit), complete=False)
    serving = visible_records(store, plan, wanted, answer.findings)
    chunks: RangeChunksCheck | None = None
    with answer.findings.reading(f"chunk tables of {plan.where} and of raw"):
        chunks = RangeChunksCheck(store, plan, wanted)
    if chunks is None:
        return answer
    answer.complete = True
    chunked = records_of_messages(chunks.live.complete)
    tombstones = int(np.count_nonzero(chunked.offset & TOMBSTONE))
    answer.counts.update({"values": len(chunked) - tombstones, "tombstones": tombstones})
    winners = _winners(store, plan, wanted, chunks, answer.findings)
    if serving is not None:
        alive = serving.take(serving.offset & MARKER == 0)
        of_rows = summed(mixed_records(alive, plan.by_event)) - summed(mixed_records(chunked, plan.by_event))
        answer.add(plan.range_name(number), of_rows)
        chunks.compare(set(plain(alive).tolist()), answer.findings)
        if winners is not None:
            _Range(store, plan, answer).compare(serving, *winners)
    return answer


def visible_records(store: ObjectStore, plan: VerifyPlan, wanted: HashRange, findings: Findings) -> IndexRecords | None:
    """Of each key the record of the newest level that has one, markers included, in hash order.

    None if an index cannot be read: what it hides is not known then.
    """
    levels = _read_each(store, plan.locations, wanted, findings)
    if levels is None:
        return None
    records = _joined(levels)
    ages = [age for age, level in enumerate(plan.serving.index) for _ in level]
    age = np.repeat(np.array(ages, dtype=np.int64), [len(level) for level in levels])
    return records.take(last_of_each(records.hi, records.lo, -age))


def _winners(
    store: ObjectStore, plan: VerifyPlan, wanted: HashRange, chunks: RangeChunksCheck, findings: Findings
) -> tuple[IndexRecords, Mask] | None:
    """Of each key in raw at or below the horizon the message that wins, and whether raw can say so."""
    runs = _read_each(store, [ledger.index for ledger in plan.below], wanted, findings)
    if runs is None:
        return None
    runs.append(chunks.winners())
    by_offset, by_event, cut = _that_took_part(plan, runs)
    newest, largest = newest_of_each(by_offset), largest_of_each(by_event)
    winners = newest if plan.order is WinnerOrder.OFFSET else largest
    certain = np.ones(len(winners), dtype=np.bool_)
    if plan.order is WinnerOrder.EITHER:
        certain = newest.offset == largest.offset
    if plan.order is not WinnerOrder.OFFSET and len(cut):
        ours, theirs = align(winners, newest_of_each(cut))
        certain[ours[(ours >= 0) & (theirs >= 0)]] = False
    return winners, certain & plan.decided(plain(winners)) & certain_of(winners, chunks.uncertain)


def _that_took_part(plan: VerifyPlan, runs: Sequence[IndexRecords]) -> tuple[IndexRecords, IndexRecords, IndexRecords]:
    """The newest records, the records of the largest event times, and of which keys these are not known.

    The index of a ledger that was cut has one message of a key for each order: if the newest took part and that of the
    largest event time did not, another may have won among those that did.
    """
    newest, largest, cut = [], [], []
    for run in runs:
        by_event = run.by_event()
        assert by_event.event_time is not None
        here, there = plan.took_part(plain(run)), plan.took_part(plain(by_event))
        offset = np.where(there, by_event.offset, run.offset)
        event_time = np.where(there, by_event.event_time, NO_EVENT_TIME)
        newest.append(IndexRecords(run.hi, run.lo, run.offset).take(here))
        largest.append(IndexRecords(run.hi, run.lo, offset, offset, event_time).take(here))
        cut.append(IndexRecords(run.hi, run.lo, run.offset).take(here & ~there))
    return _joined(newest), _joined(largest), _joined(cut)


def _read_each(
    store: ObjectStore, locations: Sequence[IndexLocation], wanted: HashRange, findings: Findings
) -> list[IndexRecords] | None:
    """The records of some indexes; None if one of them cannot be read."""
    found: list[IndexRecords] = []
    for location in locations:
        with findings.reading(location.name):
            found.append(key_index.read_records(store, location, wanted, events=True))
    return found if len(found) == len(locations) else None


class _Range:
    """What is served in a hash range against what should be."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, answer: TaskFindings) -> None:
        self._store, self._plan, self._answer = store, plan, answer

    def compare(self, serving: IndexRecords, winners: IndexRecords, certain: Mask) -> None:
        """`certain`: of which winners raw can say that they are."""
        ours, theirs = align(winners, serving)
        alone = serving.take(theirs[ours < 0])
        alone = alone.take(alone.offset & MARKER == 0)
        known = self._plan.covered(plain(alone))
        undecided = int(np.count_nonzero(~known)) + int(np.count_nonzero(~certain))
        self._answer.counts.update({"keys": len(winners), "undecided": undecided})
        self._name(DifferenceKind.EXTRA, alone.take(known), "a key is in the index that no raw ledger has")

        here = np.flatnonzero(ours >= 0)
        here = here[certain[ours[here]]]
        winner = winners.take(ours[here])
        at = theirs[here]
        record = serving.take(np.maximum(at, 0)) if len(serving) else _none_like(winner)
        self._compare_keys(winner, record, at >= 0)

    def _compare_keys(self, winner: IndexRecords, record: IndexRecords, found: Mask) -> None:
        """One row a key: its winner, and the visible record if `found`."""
        deleted = winner.offset & TOMBSTONE != 0
        visible = found & (record.offset & MARKER == 0)
        value = visible & (record.offset & TOMBSTONE == 0)
        at_winner = visible & (plain(record) == plain(winner))
        gone = deleted & ~at_winner
        lost = ~deleted & ~at_winner
        expired = np.zeros(len(winner), dtype=np.bool_)
        expired[lost] = self._may_have_expired(plain(winner.take(lost)))
        gone |= lost & expired
        lost &= ~expired
        excused = np.zeros(len(winner), dtype=np.bool_)
        if self._plan.order is WinnerOrder.EVENT and winner.event_time is not None:
            # A winner that is gone and purged gives way to what came after it (P9).
            excused = (winner.event_time <= self._plan.history.forgotten_to) & (plain(record) > plain(winner))
        back = gone & visible & ~excused
        wrong = at_winner & (deleted == value)
        self._name(
            DifferenceKind.MISSING, winner.take(lost & ~visible), "the winner of a key is not in the compacted ledger"
        )
        for kind, mask, what in (
            (DifferenceKind.ALTERED, lost & visible, "another message of the key stands in its winner's place"),
            (DifferenceKind.REVIVED, back & value, "a key has a value, but was deleted or has expired"),
            (DifferenceKind.ALTERED, back & ~value, "a tombstone stands that did not win its key"),
            (DifferenceKind.REVIVED, wrong & deleted, "a tombstone is in the index as a value"),
            (DifferenceKind.ALTERED, wrong & ~deleted, "a value is in the index as a tombstone"),
        ):
            self._name(kind, record.take(mask), what)
        self._check_memory(winner, record, found, gone)
        self._answer.dropped_to = int(plain(winner.take(gone)).max(initial=-1))

    def _check_memory(self, winner: IndexRecords, record: IndexRecords, found: Mask, gone: Mask) -> None:
        """By event time, what is gone must be remembered for its time, or a late message revives the key (P9)."""
        if self._plan.order is not WinnerOrder.EVENT or not self._plan.by_event or winner.event_time is None:
            return
        needed = gone & (winner.event_time != NO_EVENT_TIME)
        needed &= winner.event_time > self._plan.history.forgotten_to
        remembered = found & (plain(record) == plain(winner))
        if record.event_time is not None:
            remembered &= record.event_time == winner.event_time
        what = "a deletion is not remembered in the index, though a late message could still revive its key"
        self._name(DifferenceKind.MISSING, winner.take(needed & ~remembered), what)

    def _may_have_expired(self, offsets: I64) -> Mask:
        """Which values, by offset, some run may have found expired (T2). Reads their rows where need be."""
        limits = self._plan.history.may_expire(offsets)
        expired: Mask = limits == ALWAYS
        for ledger in self._plan.below:
            mine = np.flatnonzero((offsets >= ledger.first_offset) & (offsets <= ledger.last_offset) & ~expired)
            if not (limits[mine] >= ledger.min_publish_time).any():
                continue
            expired[mine] = True  # unless its rows say otherwise
            with self._answer.findings.reading(ledger.rows.name):
                rows = RowsByOffset(self._store, ledger.rows_object)
                expired[mine] = False
                for number, inside in rows.groups(offsets[mine]):
                    unread = mine[inside]
                    least = rows.reader.least(number, "publish_time")
                    if least is not None and limits[unread].max() < least:
                        continue
                    found, table = rows.rows(number, offsets[unread], ["offset", "publish_time"])
                    expired[unread] = True
                    expired[unread[found]] = numbers(table, "publish_time") <= limits[unread[found]]
        return expired

    def _name(self, kind: DifferenceKind, records: IndexRecords, what: str) -> None:
        name_records(self._answer.findings, kind, self._plan.where, records, what)


def explain_range(store: ObjectStore, plan: VerifyPlan, number: int) -> TaskFindings:
    """The keys of hash range `number` of which index and parts do not say the same."""
    findings = Findings(plan.limit)
    where = f"index and parts of {plan.where}"
    wanted = plan.ranges[number]
    with findings.reading(where):
        index = visible_records(store, plan, wanted, findings)
        if index is None:
            return TaskFindings(findings)
        live = _live_records(store, plan, wanted)
        newest = last_of_each(live.hi, live.lo, live.offset & OFFSET_MASK)
        twice = np.ones(len(live), dtype=np.bool_)
        twice[newest] = False
        what = "a part has a live row of a key that has a newer live row"
        name_records(findings, DifferenceKind.EXTRA, where, live.take(twice), what)
        _compare_live(findings, where, live.take(newest), index.take(index.offset & MARKER == 0), plan.by_event)
    return TaskFindings(findings)


def _compare_live(findings: Findings, where: str, live: IndexRecords, index: IndexRecords, by_event: bool) -> None:
    no_record, no_row, row, record = split(live, index)
    same = row.offset == record.offset
    displaced = plain(row) != plain(record)
    if by_event and row.event_time is not None and record.event_time is not None:
        same &= row.event_time == record.event_time
    name_records(findings, DifferenceKind.EXTRA, where, no_record, "a live row is not in the index")
    name_records(findings, DifferenceKind.MISSING, where, no_row, "a key of the index has no live row")
    what = "the index names another row of the key than the one that is alive"
    name_records(findings, DifferenceKind.ALTERED, where, record.take(displaced), what)
    what = "flag or event time in the index are not those of the row"
    name_records(findings, DifferenceKind.ALTERED, where, record.take(~same & ~displaced), what)


def _live_records(store: ObjectStore, plan: VerifyPlan, wanted: HashRange) -> IndexRecords:
    """A record for each live keyed row, and each chunked message, of the range."""
    found = []
    for table in live_groups(store, plan.serving, _KEY_COLUMNS):
        records = records_of(keyed_rows(table), plan.hasher)
        if wanted.bits:
            records = records.take(records.hi >> np.uint64(64 - wanted.bits) == wanted.prefix)
        found.append(records)
    chunks = chunk_table.read_tables(store, plan.serving.chunks, wanted)
    found.append(records_of_messages(assembled(np.concatenate([chunk_table.none(), *chunks])).complete))
    return key_index.concatenated(found)


def with_keys(store: ObjectStore, plan: VerifyPlan, differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """The differences, with the keys of those that only have a hash, where a row at their offset has it."""
    return tuple(
        found if found.key is not None or found.key_hash is None or found.offset is None
        else replace(found, key=_key_at(store, plan, found.offset, found.key_hash))
        for found in differences
    )  # fmt: skip


def _key_at(store: ObjectStore, plan: VerifyPlan, offset: int, wanted: str) -> bytes | None:
    """The key of the row at an offset, in raw or in a part, if it has that hash. Damage was found already."""
    extents = [(ledger.first_offset, ledger.last_offset, ledger.rows_object) for ledger in plan.ledgers]
    parts = plan.manifest.parts if plan.manifest else ()
    extents += [(part.first.offset, part.last.offset, part.rows) for part in parts]
    for rows_object in [rows_object for first, last, rows_object in extents if first <= offset <= last]:
        with suppress(*UNREADABLE):
            rows, at = RowsByOffset(store, rows_object), np.array([offset])
            for number, _ in rows.groups(at):
                table = keyed_rows(rows.rows(number, at, _KEY_COLUMNS)[1])
                records = records_of(table, plan.hasher)
                if len(records) and key_hash(records, 0) == wanted:
                    key: bytes = table.column("key")[0].as_py()
                    return key
    return None


def _joined(runs: list[IndexRecords]) -> IndexRecords:
    """Runs one after the other, with event times throughout: those of a run without are NO_EVENT_TIME."""
    timed = [run if run.event_time is not None else IndexRecords(run.hi, run.lo, run.offset).by_event() for run in runs]
    found = key_index.concatenated(timed)
    return found if found.event_time is not None else found.by_event()


def _none_like(records: IndexRecords) -> IndexRecords:
    """As many records as there are, that mean nothing."""
    zero = np.zeros(len(records), dtype=np.uint64)
    return IndexRecords(zero, zero, zero, zero, np.full(len(records), NO_EVENT_TIME, dtype=np.int64))
