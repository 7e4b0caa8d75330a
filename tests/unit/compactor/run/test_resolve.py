"""The winner of each key, against dicts: random runs over random levels, with every decision and the invariant checked.

The model knows keys, messages and one record of each key; it knows nothing of levels, flags or hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from compactor.run.plan import RunPolicies
from compactor.run.resolve import RangeResolution, ResolutionRules, mark_expired, resolve, winners_of
from storage.ledger import key_index
from storage.ledger.key_index import MARKER, NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, U64, IndexRecords
from tests.budgets import examples

HOUR = 3_600_000
LATENESS = 3


@dataclass(frozen=True)
class Sent:
    """A message: its key (a small number), and whether it is a tombstone."""

    key: int
    tombstone: bool
    event_time: int | None
    offset: int = 0

    def order(self, by_event: bool) -> tuple[int, int]:
        if not by_event:
            return (0, self.offset)
        return (NO_EVENT_TIME if self.event_time is None else self.event_time, self.offset)


@dataclass(frozen=True)
class Step:
    """One run: what is new, ledger by ledger; `due`: keys whose row is to go; `expired`: of the new rows those, by
    position, whose time to live is over; `probed`: whether old levels are read for the dirty keys only."""

    ledgers: list[list[Sent]]
    due: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    merged: int = 0
    probed: bool = True
    retained: bool = False
    floor: int | None = None
    later: int = 0


@dataclass
class Model:
    """The live row of each key, and the order of what left the data and is still remembered (P9)."""

    by_event: bool
    live: dict[int, Sent] = field(default_factory=dict)
    markers: dict[int, tuple[int, int]] = field(default_factory=dict)

    def run(self, step: Step, now: int) -> tuple[set[int], set[int], dict[str, int]]:
        """Offsets that survive, offsets that go, and what is counted."""
        before = dict(self.live)
        new = [message for ledger in step.ledgers for message in ledger]
        expired = {message.offset for number, message in enumerate(new) if number in step.expired}
        self.markers = {key: order for key, order in self.markers.items() if self.remembers(order[0], now)}
        counted = {"removed": 0, "kept": 0, "expired": 0, "dropped_to": -1}
        touched = {message.key for message in new} | (step.due & set(before))
        for key in touched:
            candidates = [before[key]] if key in before else []
            winner = max(
                [*candidates, *(item for item in new if item.key == key)], key=lambda m: m.order(self.by_event)
            )
            order = winner.order(self.by_event)
            if self.markers.get(key, (NO_EVENT_TIME, -1)) > order:
                continue
            is_old = winner is before.get(key)
            if is_old and key not in step.due:
                continue
            self.markers.pop(key, None)
            is_removed = is_old or (winner.offset in expired and not winner.tombstone)
            counted["removed" if winner.tombstone else "expired"] += is_removed
            if not is_removed and winner.tombstone:
                stays = step.retained or (step.floor is not None and winner.offset > step.floor)
                counted["kept" if stays else "removed"] += 1
                is_removed = not stays
            if not is_removed:
                self.live[key] = winner
                continue
            self.live.pop(key, None)
            counted["dropped_to"] = max(counted["dropped_to"], winner.offset)
            if self.by_event and self.remembers(order[0], now):
                self.markers[key] = order
        rows_before = {message.offset for message in before.values()}
        rows_after = {message.offset for message in self.live.values()}
        return rows_after - rows_before, rows_before - rows_after, counted

    def remembers(self, event_time: int, now: int) -> bool:
        return self.by_event and event_time != NO_EVENT_TIME and event_time > now - LATENESS


def hashes(key: int) -> tuple[int, int]:
    """Return both halves of the hash. Keys share three high halves, so only the low halves differ."""
    return (key % 3) << 62, key


def records(rows: Sequence[tuple[int, int, int, int | None]], by_event: bool) -> IndexRecords:
    """From (key, flagged offset, flagged offset of the event-time winner, its event time), one a key, any order."""
    ordered = sorted(rows, key=lambda row: hashes(row[0]))
    hi, lo = (np.array([hashes(row[0])[half] for row in ordered], dtype=np.uint64) for half in (0, 1))
    offset, event_offset = (np.array([row[column] for row in ordered], dtype=np.uint64) for column in (1, 2))
    times = [NO_EVENT_TIME if row[3] is None else row[3] for row in ordered]
    if not by_event:
        return IndexRecords(hi, lo, offset)
    return IndexRecords(hi, lo, offset, event_offset, np.array(times, dtype=np.int64))


def flagged(message: Sent, marker: bool = False) -> int:
    return message.offset | (int(TOMBSTONE) if message.tombstone else 0) | (int(MARKER) if marker else 0)


def index_of(ledger: list[Sent], by_event: bool) -> IndexRecords:
    """The index of a ledger as sealing writes it: the newest of each key, and the event-time winner."""
    newest = {message.key: message for message in ledger}
    winner: dict[int, Sent] = {}
    for message in ledger:
        if message.key not in winner or message.order(True) > winner[message.key].order(True):
            winner[message.key] = message
    rows = [(key, flagged(newest[key]), flagged(winner[key]), winner[key].event_time) for key in newest]
    return records(rows, by_event)


def visible(levels: Sequence[IndexRecords]) -> dict[int, tuple[int, int]]:
    """Return, by key, the record that counts: its flagged offset and its event time."""
    seen: dict[int, tuple[int, int]] = {}
    for level in levels:
        for at, key in enumerate(level.lo.tolist()):
            assert level.hi[at] == hashes(key)[0]
            if key not in seen:
                time = NO_EVENT_TIME if level.event_time is None else int(level.event_time[at])
                seen[key] = (int(level.offset[at]), time)
    return seen


def only(level: IndexRecords, keys: set[int]) -> IndexRecords:
    return level.take(np.isin(level.lo, np.array(sorted(keys), dtype=np.uint64)))


def run(model: Model, levels: list[IndexRecords], step: Step, now: int) -> tuple[RangeResolution, list[IndexRecords]]:
    """One run of the code under test, from the state of the model before its own run."""
    by_event = model.by_event
    due = [model.live[key] for key in step.due if key in model.live]
    markers = records([(item.key, flagged(item, True), flagged(item, True), item.event_time) for item in due], by_event)
    runs = [markers, *(index_of(ledger, by_event) for ledger in step.ledgers)]
    new = [message for ledger in step.ledgers for message in ledger]
    expired = [message.offset for number, message in enumerate(new) if number in step.expired]
    winners = mark_expired(winners_of(runs, by_event), np.array(expired, dtype=np.uint64))
    merged = min(step.merged, len(levels))
    dirty = {message.key for message in new} | {item.key for item in due}
    seen = [*levels[:merged], *(only(level, dirty) if step.probed else level for level in levels[merged:])]
    policies = RunPolicies(
        tombstone_retention_ms=HOUR * step.retained,
        tombstones_wait_for_cursors=step.floor is not None,
        event_time_order=by_event,
        event_time_max_lateness_ms=LATENESS,
    )
    resolved = resolve(winners, seen, merged, ResolutionRules(policies, now, step.floor))
    return resolved, [*([resolved.level] if len(resolved.level) else []), *levels[merged:]]


def check(
    model: Model, resolved: RangeResolution, levels: list[IndexRecords], step: Step, now: int, all_merged: bool
) -> None:
    """`resolved` and `levels` after a run, against the model, which now runs the same step."""
    before = dict(model.live)
    survivors, superseded, counted = model.run(step, now)
    assert sorted(resolved.survivors.tolist()) == sorted(survivors)
    assert sorted(resolved.superseded.tolist()) == sorted(superseded)
    assert (resolved.tombstones_removed, resolved.tombstones_kept) == (counted["removed"], counted["kept"])
    assert (resolved.expired, resolved.dropped_to) == (counted["expired"], counted["dropped_to"])
    tombstones = [sum(item.tombstone for item in state.values()) for state in (before, model.live)]
    assert resolved.tombstones == tombstones[1] - tombstones[0]
    assert resolved.keys == len(model.live) - len(before) - resolved.tombstones

    order = [(int(hi), int(lo)) for hi, lo in zip(resolved.level.hi, resolved.level.lo, strict=True)]
    assert order == sorted(set(order))
    newest = visible(levels)
    with_rows = {key: record for key, record in newest.items() if not record[0] & int(MARKER)}
    assert {key: record[0] for key, record in with_rows.items()} == {
        key: flagged(message) for key, message in model.live.items()
    }
    if model.by_event:
        assert all(time == model.live[key].order(True)[0] for key, (_, time) in with_rows.items())
        for key, (event_time, offset) in model.markers.items():
            assert newest[key][0] & int(MARKER)
            assert (newest[key][1], newest[key][0] & int(OFFSET_MASK)) == (event_time, offset)
    if all_merged:  # nothing older is left to be hidden, so a marker must have another reason to be there
        stale = {key for key, record in newest.items() if record[0] & int(MARKER)} - model.markers.keys()
        assert stale == set()


sent = st.builds(Sent, st.integers(0, 7), st.booleans(), st.none() | st.integers(0, 8))
steps = st.builds(
    Step,
    ledgers=st.lists(st.lists(sent, max_size=6), max_size=3),
    due=st.sets(st.integers(0, 7), max_size=3),
    expired=st.sets(st.integers(0, 12), max_size=4),
    merged=st.integers(0, 4),
    probed=st.booleans(),
    retained=st.booleans(),
    floor=st.none() | st.integers(-1, 40),
    later=st.integers(0, 3),
)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(st.lists(steps, max_size=7), st.booleans(), st.sampled_from([1, 3, 1000]))
@example([Step([[Sent(1, False, 5)]]), Step([[Sent(1, True, 5)]]), Step([[Sent(1, False, 4)]], merged=4)], True, 1)
@example([Step([[Sent(0, False, None)]]), Step([[Sent(0, True, None)]]), Step([], merged=4)], False, 1000)
def test_every_run_of_any_schedule_decides_as_the_model(
    schedule: list[Step], by_event: bool, block_records: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "BLOCK_RECORDS", block_records)
        check_schedule(schedule, by_event)


def check_schedule(schedule: list[Step], by_event: bool) -> None:
    model, levels, now, offset = Model(by_event), list[IndexRecords](), 5, 0
    for step in schedule:
        now += step.later
        placed = []
        for ledger in step.ledgers:
            placed.append([replace(message, offset=offset + n) for n, message in enumerate(ledger)])
            offset += len(ledger)
        placed_step = Step(placed, step.due, step.expired, step.merged, step.probed, step.retained, step.floor)
        all_merged = placed_step.merged >= len(levels)
        resolved, levels = run(model, levels, placed_step, now)
        check(model, resolved, levels, placed_step, now, all_merged)


def plain(*rows: tuple[int, int]) -> IndexRecords:
    return records([(key, offset, offset, None) for key, offset in rows], by_event=False)


MARK, TOMB = int(MARKER), int(TOMBSTONE)
NO_RULES = ResolutionRules(RunPolicies(), 0)


def pairs(level: IndexRecords) -> list[tuple[int, int]]:
    return list(zip(level.lo.tolist(), level.offset.tolist(), strict=True))


def test_a_marker_hides_an_older_record_and_goes_when_nothing_older_is_left() -> None:
    deleted = plain((4, 9 | TOMB))
    old = [plain((1, 1)), plain((4, 2))]
    beside = resolve(deleted, old, 0, NO_RULES)
    assert (beside.superseded.tolist(), pairs(beside.level)) == ([2], [(4, 9 | TOMB | MARK)])
    above = resolve(deleted, old, 1, NO_RULES)
    assert (above.superseded.tolist(), pairs(above.level)) == ([2], [(1, 1), (4, 9 | TOMB | MARK)])
    whole = resolve(deleted, old, 2, NO_RULES)
    assert (whole.superseded.tolist(), pairs(whole.level)) == ([2], [(1, 1)])


def test_a_tombstone_that_hides_nothing_leaves_no_marker() -> None:
    assert pairs(resolve(plain((4, 9 | TOMB)), [plain((1, 1))], 0, NO_RULES).level) == []


def test_what_a_marker_hides_is_not_superseded_again() -> None:
    levels = [plain((4, 9 | TOMB | MARK)), plain((4, 2))]
    resolved = resolve(plain((4, 12)), levels, 0, NO_RULES)
    assert (resolved.survivors.tolist(), resolved.superseded.tolist(), resolved.keys) == ([12], [], 1)
    assert pairs(resolved.level) == [(4, 12)]


@pytest.mark.parametrize(
    ("retention", "floor", "stays"), [(0, None, False), (1, None, True), (0, 9, False), (0, 8, True)]
)
def test_a_tombstone_stays_for_its_retention_or_for_slow_cursors(
    retention: int, floor: int | None, stays: bool
) -> None:
    """T1: a floor of 9 says that all cursors have passed offset 9."""
    rules = ResolutionRules(RunPolicies(tombstone_retention_ms=retention), 0, floor)
    resolved = resolve(plain((4, 9 | TOMB)), [plain((4, 2))], 1, rules)
    assert resolved.survivors.tolist() == ([9] if stays else [])
    assert (resolved.tombstones_kept, resolved.tombstones_removed) == ((1, 0) if stays else (0, 1))
    assert resolved.dropped_to == (-1 if stays else 9)
    assert resolved.keys == -1


def test_keys_that_share_the_high_half_are_told_apart() -> None:
    level = plain(*((key, key) for key in range(0, 30, 3)))
    resolved = resolve(plain((3, 103), (15, 115 | TOMB), (30, 130)), [level], 0, NO_RULES)
    assert sorted(resolved.superseded.tolist()) == [3, 15]
    assert sorted(resolved.survivors.tolist()) == [103, 130]


def test_no_input_decides_nothing() -> None:
    resolved = resolve(winners_of([], False), [], 0, NO_RULES)
    assert (len(resolved.survivors), len(resolved.superseded), len(resolved.level)) == (0, 0, 0)
    by_event = resolve(winners_of([], True), [], 0, ResolutionRules(RunPolicies(event_time_order=True), 0))
    assert (len(by_event.survivors), len(by_event.level), by_event.dropped_to) == (0, 0, -1)


def test_only_values_expire() -> None:
    expired: U64 = np.array([3, 4, 5], dtype=np.uint64)
    flags = mark_expired(plain((0, 3), (1, 4 | TOMB), (2, 9), (3, 2)), expired).offset.tolist()
    assert sorted(flags) == sorted([3 | MARK, 4 | TOMB, 9, 2])
