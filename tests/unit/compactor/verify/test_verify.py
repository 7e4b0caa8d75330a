"""Verify, by itself: what policies by time and event-time order explain, and what they do not; beside running work.

Seeds in every kind of object are in tests/faults/test_verify_seeded.py, quiet on any clean history in
tests/properties/test_verify_properties.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import delete

from compactor.engines.engine import InProcessEngine
from compactor.run.plan import RunPolicies, Sizing
from compactor.verify.findings import DifferenceKind
from compactor.verify.run_history import RunHistory
from compactor.verify.verify import Report, Verifier
from storage.errors import Unavailable
from storage.ledger.key_index import IndexRecords
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata.records import RunRecord
from storage.metadata.tables import ledgers, runs
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.entries import produce, single
from tests.forgery import Forger, with_rows
from tests.workbench import Workbench, content

NOW = ManualClock().now_ms()
SIZING = Sizing(parallelism=2, range_records=8, small_range_records=1, part_bytes=1 << 20, small_part_bytes=1)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench.embedded(tmp_path, sizing=SIZING)
    yield bench
    bench.metadata.close()


def verify(bench: Workbench, topic: Topic, **options: Any) -> Report:
    environment = replace(bench, store=options.pop("store", bench.store))
    return Verifier(environment, **({"engine": bench.engine, "sizing": SIZING} | options)).verify(topic.name)


def append(bench: Workbench, topic: Topic, *messages: tuple[bytes, bytes | None, int, int | None]) -> None:
    """Key, payload, publish time after NOW, event time after NOW."""
    described = [
        {"key": key, "payload": payload, "publish_time": NOW + published, "event_time": at and NOW + at}
        for key, payload, published, at in messages
    ]
    bench.append(topic, [pa.Table.from_pylist(described, schema=INPUT_SCHEMA)])


def compact(bench: Workbench, topic: Topic, policies: RunPolicies, later: int = 0) -> None:
    bench.advance(later)
    bench.compactor().compact(topic.name, policies)


def kinds(report: Report) -> set[tuple[DifferenceKind, bytes | None]]:
    return {(difference.kind, difference.key) for difference in report.differences}


# Beside a writer


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("rolled", [True, False])
def test_what_is_not_sealed_yet_is_not_missing(bench: Workbench, compacted: bool, rolled: bool) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    if compacted:
        bench.compact(topic)
    for value in (b"2", b"3"):
        produce(topic, [single(b"a", value)])
        if rolled:
            topic.log_manager().roll(topic.record)
    produce(topic, [single(b"a", b"4")])
    report = verify(bench, topic)
    assert (report.total, report.differences) == (0, ())
    assert any(answer.startswith("offsets from 1 on: they are in segments") for answer in report.unchecked)


def test_what_was_trimmed_behind_the_horizon_by_force_is_not_missing(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    bench.compact(topic)
    bench.append(topic, [content((b"a", b"2"))])
    bench.append(topic, [content((b"a", b"3"))])
    first, second, _ = topic.snapshot().ledgers
    bench.metadata.trimming.trim(topic.record.id, 2, [first.ledger_id, second.ledger_id], force=True)
    assert verify(bench, topic).differences == ()


# RunPolicies by time


TTL = RunPolicies(key_ttl_ms=100)


def expiring(bench: Workbench) -> Forger:
    """`old` has expired in the second run, `new` has not."""
    topic = bench.topic()
    append(bench, topic, (b"old", b"1" * 20, 0, None), (b"new", b"2" * 20, 1000, None))
    compact(bench, topic, TTL)
    compact(bench, topic, TTL, later=500)
    assert [m.key for m in topic.messages(read_compacted=True)] == [b"new"]
    return Forger(bench, topic)


def test_a_value_that_expired_is_not_missing(bench: Workbench) -> None:
    forger = expiring(bench)
    assert verify(bench, forger.topic).total == 0


def test_a_time_to_live_that_is_off_by_now_still_explains_what_it_took(bench: Workbench) -> None:
    forger = expiring(bench)
    compact(bench, forger.topic, RunPolicies(), later=10)
    assert forger.manifest.policies["key_ttl_ms"] is None
    assert verify(bench, forger.topic).total == 0


def test_a_value_that_had_not_expired_is_missing_though_there_is_a_time_to_live(bench: Workbench) -> None:
    forger = expiring(bench)
    forger.publish(replace(forger.manifest, parts=(), index=()))
    assert kinds(verify(bench, forger.topic)) == {(DifferenceKind.MISSING, b"new")}


@pytest.mark.parametrize("later", [None, RunPolicies()], ids=["still on", "off by now"])
def test_an_expired_value_that_is_back_is_revived(bench: Workbench, later: RunPolicies | None) -> None:
    forger = expiring(bench)
    if later is not None:
        compact(bench, forger.topic, later, later=10)
    raw = forger.rows_of(raw_object(forger))
    forger.part(0, with_rows(raw.slice(0, 1)))
    hi, lo = (np.array([half], dtype=np.uint64) for half in forger.key_hash(b"old"))

    def add(records: IndexRecords) -> IndexRecords:
        keep = records.take(records.hi != hi[0])
        offset = np.zeros(1, dtype=np.uint64)
        return IndexRecords(*(np.concatenate(two) for two in ((keep.hi, hi), (keep.lo, lo), (keep.offset, offset))))

    for level in range(len(forger.manifest.index)):
        forger.level(level, add)
    assert (DifferenceKind.REVIVED, b"old") in kinds(verify(bench, forger.topic))


def raw_object(forger: Forger) -> Any:

    ledger = forger.topic.snapshot().ledgers[0]
    return ledger.rows_object


def test_with_an_incomplete_history_any_value_may_have_expired(bench: Workbench) -> None:
    """Removals cannot be checked then, and the report says so, unless the manifest denies them; remaining rows can."""
    forger = expiring(bench)
    first = bench.metadata.runs.of_topic(forger.topic.record.id, 10)[-1]
    with bench.metadata.database.write() as connection:
        connection.execute(delete(runs).where(runs.c.run_id == first.run_id))
    empty = replace(forger.manifest, parts=(), index=())
    forger.publish(empty)
    (difference,) = verify(bench, forger.topic).differences
    assert "the newest message of a key, at offset 1, was removed" in difference.what
    forger.publish(replace(empty, dropped_to=1))
    report = verify(bench, forger.topic)
    assert report.total == 0
    assert any("history" in item for item in report.unchecked)


def test_null_keys_that_an_earlier_run_dropped_are_not_missing(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((None, b"1"), (b"a", b"1"))])
    compact(bench, topic, RunPolicies())
    bench.append(topic, [content((None, b"2"))])
    compact(bench, topic, RunPolicies(retain_null_key=True))
    assert verify(bench, topic).total == 0
    Forger(bench, topic).unkeyed("null_keys", lambda bitmap: bitmap - bitmap)
    report = verify(bench, topic)
    assert {difference.offset for difference in report.differences if difference.kind is DifferenceKind.MISSING} == {2}


# Event-time order

EVENTS = RunPolicies(event_time_order=True, event_time_max_lateness_ms=1000)


def ordered_by_event(bench: Workbench) -> Forger:
    """`late`: the older event came last. `gone`: deleted, remembered. `plain`: nothing special."""
    topic = bench.topic()
    append(bench, topic, (b"late", b"new", 0, 50), (b"gone", b"1", 0, 40), (b"plain", b"1", 0, 1))
    compact(bench, topic, EVENTS)
    append(bench, topic, (b"late", b"old", 5, 20), (b"gone", None, 5, 60))
    compact(bench, topic, EVENTS, later=10)
    append(bench, topic, (b"gone", b"too late", 8, 55))
    compact(bench, topic, EVENTS, later=10)
    assert {m.key: m.payload for m in topic.messages(read_compacted=True)} == {b"late": b"new", b"plain": b"1"}
    return Forger(bench, topic)


def test_the_largest_event_time_wins(bench: Workbench) -> None:
    assert verify(bench, ordered_by_event(bench).topic).total == 0


def test_a_deletion_that_is_no_longer_remembered_too_early_is_missing(bench: Workbench) -> None:
    forger = ordered_by_event(bench)
    hi, lo = forger.key_hash(b"gone")
    for level in range(len(forger.manifest.index)):
        forger.level(level, lambda records: records.take((records.hi != np.uint64(hi)) | (records.lo != np.uint64(lo))))
    assert kinds(verify(bench, forger.topic)) == {(DifferenceKind.MISSING, b"gone")}


def test_an_event_time_that_was_changed_in_the_index_is_found(bench: Workbench) -> None:
    forger = ordered_by_event(bench)

    def shift(records: IndexRecords) -> IndexRecords:
        assert records.event_time is not None
        return replace(records, event_time=records.event_time + 1)

    forger.level(len(forger.manifest.index) - 1, shift)
    assert DifferenceKind.ALTERED in verify(bench, forger.topic).counts


def test_what_came_after_a_forgotten_deletion_may_stand(bench: Workbench) -> None:
    forger = ordered_by_event(bench)
    append(bench, forger.topic, (b"gone", b"much later", 9, 30))
    compact(bench, forger.topic, EVENTS, later=5000)
    assert {m.key for m in forger.topic.messages(read_compacted=True)} == {b"late", b"plain", b"gone"}
    assert verify(bench, forger.topic).total == 0


def test_after_a_change_of_order_only_clear_keys_are_judged(bench: Workbench) -> None:
    forger = ordered_by_event(bench)
    compact(bench, forger.topic, RunPolicies(), later=10)
    report = verify(bench, forger.topic)
    assert report.total == 0
    assert any(item.startswith("2 keys") for item in report.unchecked)
    forger.publish(replace(forger.manifest, parts=(), index=()))
    assert kinds(verify(bench, forger.topic)) == {(DifferenceKind.MISSING, b"plain")}


# Beside other work


class Meanwhile(InProcessEngine):
    """An engine that does something else before its first job."""

    def __init__(self, deed: Callable[[], object]) -> None:
        self._deed: Callable[[], object] | None = deed

    def run(
        self, count: int, task: Callable[[int], Any], on_progress: Callable[[int], None], weights: Any = None
    ) -> Any:
        deed, self._deed = self._deed, None
        if deed is not None:
            deed()
        return super().run(count, task, on_progress, weights)


def two_runs(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"), (b"b", b"2"))])
    bench.compact(topic)
    bench.append(topic, [content((b"a", b"3"))])
    return topic


def test_a_generation_that_is_replaced_meanwhile_is_verified_to_its_end(bench: Workbench) -> None:
    """The pin holds it: a collector that comes by leaves its row."""
    topic = two_runs(bench)
    before = topic.snapshot().compacted
    assert before is not None
    collected: list[bool] = []

    def replace_and_collect() -> None:
        bench.compact(topic)
        collected.append(bench.metadata.pins.delete_ledger_if_unpinned(topic.record.id, before.ledger_id, 0))

    report = verify(bench, topic, engine=Meanwhile(replace_and_collect))
    assert collected == [False]
    assert (report.total, report.compacted_ledger) == (0, before.ledger_id)
    assert bench.metadata.pins.delete_ledger_if_unpinned(topic.record.id, before.ledger_id, 0)


def test_a_ledger_that_is_trimmed_meanwhile_is_no_damage(bench: Workbench) -> None:
    topic = two_runs(bench)
    first = topic.snapshot().ledgers[0]

    def trim() -> None:
        with bench.metadata.database.write() as connection:
            connection.execute(delete(ledgers).where(ledgers.c.ledger_id == first.ledger_id))
        bench.store.delete(first.rows.name)
        bench.store.delete(first.index.name)

    report = verify(bench, topic, engine=Meanwhile(trim))
    assert report.total == 0
    assert any(f"ledger {first.ledger_id} was trimmed" in item for item in report.unchecked)


def test_a_store_that_is_away_is_no_difference(bench: Workbench) -> None:
    topic = two_runs(bench)

    def away() -> None:
        raise Unavailable("the store is away", "wait")

    with pytest.raises(Unavailable, match="away"):
        verify(bench, topic, engine=Meanwhile(away))
    assert bench.metadata.pins.gc_snapshot(topic.record.id).pins == ()


def test_it_writes_nothing(bench: Workbench) -> None:
    topic = two_runs(bench)
    before = [info.name for info in bench.store.list()]
    verify(bench, topic)
    assert [info.name for info in bench.store.list()] == before


# What explains what


def test_a_deleted_cursor_begins_a_new_life(bench: Workbench) -> None:
    topic = two_runs(bench)
    bench.compact(topic)
    bench.metadata.cursors.delete(topic.record.id, "__compaction")
    bench.compact(topic)
    manifest = Forger(bench, topic).manifest
    history = RunHistory.of(manifest, bench.metadata.runs.of_topic(topic.record.id, 10))
    assert [run.certain for run in history.runs] == [False, False, True]
    assert history.complete


def test_a_cancelled_run_does_not(bench: Workbench) -> None:
    topic = two_runs(bench)
    run: RunRecord = bench.metadata.runs.claim(topic.record.id, "me", {}, 30_000)
    bench.metadata.runs.cancel(run.run_id, "why not")
    bench.compact(topic)
    history = RunHistory.of(Forger(bench, topic).manifest, bench.metadata.runs.of_topic(topic.record.id, 10))
    assert [run.certain for run in history.runs] == [True, True]
