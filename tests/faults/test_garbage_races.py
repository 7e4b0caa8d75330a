"""Garbage collection beside everything else: imports and runs that outlast it, readers that fall behind (A3, R7).

Each race is played step by step, with a clock that is moved by hand. The last tests take a guard out and show that the
tests before them would then fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from sqlalchemy import delete

from compactor.engines.engine import InProcessEngine
from compactor.maintenance.garbage import SKEW_MS, CollectionResult, GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from compactor.two_phase import TwoPhaseCompactor
from storage.errors import Fenced, StateMayBeStale
from storage.failpoints import Failpoint
from storage.ledger import names
from storage.ledger.manifest import read_manifest
from storage.metadata import attempts as attempts_module, pins as pins_module
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import AttemptKind, RunState
from storage.metadata.stores import PinStore
from storage.metadata.tables import pins as pins_table
from storage.model import Message
from storage.reading.compacted_reader import PIN_TTL_MS
from storage.topic import Topic
from tests.failpoint_listeners import observed
from tests.workbench import TINY, Workbench, content, raw, view

KEYS = [b"key-%02d" % number for number in range(20)]


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Twenty keys in a compacted ledger of several parts."""
    topic = bench.topic()
    bench.append(topic, [content(*((key, b"first" * 9) for key in KEYS))])
    bench.compact(topic)
    return topic


def collect(bench: Workbench, topic: Topic, skew_ms: int = SKEW_MS) -> CollectionResult:
    return GarbageCollector(bench, skew_ms=skew_ms).collect(topic.record)


def beat(bench: Workbench, topic: Topic) -> None:
    """The heartbeat of whatever is at work."""
    for attempt in bench.metadata.attempts.of_topic(topic.record.id):
        if attempt.finished_at is None:
            bench.metadata.attempts.heartbeat(attempt)


def collect_for_hours(bench: Workbench, topic: Topic, alive: bool) -> None:
    """Three collections, a little more than half a grace time apart; `alive`: hearts beat meanwhile."""
    for _ in range(5):
        bench.advance(GRACE_MS // 2 + 1)
        if alive:
            beat(bench, topic)
        collect(bench, topic)


def import_beside_collections(bench: Workbench, topic: Topic, alive: bool) -> None:
    """An import that lasts for hours: some of its ledgers are written, and then garbage is collected."""

    def tables() -> Iterator[pa.Table]:
        for number in range(8):
            yield content((b"imported-%d" % number, b"x" * 40))
        collect_for_hours(bench, topic, alive)
        yield content((b"imported-last", b"x"))

    topic.bulk_append(ledger_bytes=50).append(tables())


def test_an_import_longer_than_the_grace_time_is_never_touched(bench: Workbench, topic: Topic) -> None:
    before = len(raw(topic))
    import_beside_collections(bench, topic, alive=True)
    assert len(raw(topic)) == before + 9
    assert [m.key for m in raw(topic)][-9:-1] == [b"imported-%d" % number for number in range(8)]


def test_an_import_without_a_heartbeat_is_fenced_before_its_objects_go(bench: Workbench, topic: Topic) -> None:
    """Its late commit is refused: it would name objects that are gone."""
    before, objects = raw(topic), _listed(bench, topic)
    with pytest.raises(Fenced):
        import_beside_collections(bench, topic, alive=False)
    assert raw(topic) == before
    # What it wrote after it was purged goes by the store's clock, which is years ahead of this test's.
    collect(bench, topic, skew_ms=-(10**12))
    assert _listed(bench, topic) == objects


class CollectsMeanwhile(InProcessEngine):
    """Lets garbage be collected for hours in the middle of each phase, when some of its objects are there."""

    def __init__(self, between: Callable[[], None]) -> None:
        self._between = between

    def run(
        self, count: int, task: Callable[[int], Any], on_progress: Callable[[int], None], weights: Any = None
    ) -> Any:
        def watched(number: int) -> Any:
            answer = task(number)
            if number == 0:
                self._between()
            return answer

        return super().run(count, watched, on_progress, weights)


def run_beside_collections(bench: Workbench, topic: Topic, alive: bool) -> None:
    bench.append(topic, [content(*((key, b"second") for key in KEYS[::2]), (b"new", b"1"))])
    engine = CollectsMeanwhile(lambda: collect_for_hours(bench, topic, alive))
    compactor = TwoPhaseCompactor(bench, engine, sizing=TINY)
    compactor.compact(topic.name, RunPolicies())


def test_a_run_longer_than_the_grace_time_is_never_touched(bench: Workbench, topic: Topic) -> None:
    before = topic.snapshot().topic.generation
    run_beside_collections(bench, topic, alive=True)
    assert topic.snapshot().topic.generation == before + 1
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


def test_a_run_without_a_heartbeat_is_fenced_before_its_objects_go(bench: Workbench, topic: Topic) -> None:
    before = topic.snapshot().compacted
    with pytest.raises(Fenced):
        run_beside_collections(bench, topic, alive=False)
    assert topic.snapshot().compacted == before
    last = bench.metadata.runs.last(topic.record.id)
    assert last is not None
    assert last.state is RunState.ERROR
    bench.advance(2 * GRACE_MS)
    collect(bench, topic)
    bench.compact(topic)
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


@pytest.mark.slow
def test_what_is_published_between_two_steps_of_a_collection_stays(bench: Workbench, topic: Topic) -> None:
    """A run begins, or ends, or does both, at each step of a collection that has much to delete."""
    for step in (
        Failpoint.GC_LISTED,
        Failpoint.GC_ATTEMPTS_FENCED,
        Failpoint.GC_REFERENCES_READ,
        Failpoint.GC_BEFORE_DELETE,
    ):
        dead = bench.metadata.attempts.begin(topic.record.id, AttemptKind.RUN, "dead")
        bench.store.put(names.part(topic.record.uid, dead.attempt_id, 0), b"left behind")
        bench.metadata.attempts.finish(dead.attempt_id)
        bench.append(topic, [content(*((key, str(step).encode()) for key in KEYS))])
        bench.compact(topic)
        bench.advance(GRACE_MS)
        done: list[Failpoint] = []

        def publish(failpoint: Failpoint, step: Failpoint = step, done: list[Failpoint] = done) -> None:
            if failpoint is step and not done:
                done.append(failpoint)
                bench.append(topic, [content((b"meanwhile", str(step).encode()), (KEYS[3], None))])
                bench.compact(topic)

        with observed(publish):
            report = collect(bench, topic)
        assert done == [step]
        assert report.total.count > 1
        assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))
        compacted = topic.snapshot().compacted
        assert compacted is not None
        assert read_manifest(bench.store, compacted.manifest).object_names <= _listed(bench, topic)


def _listed(bench: Workbench, topic: Topic) -> set[str]:
    return {info.name for info in bench.store.list(names.topic_prefix(topic.record.uid))}


def publish_twice_and_collect(bench: Workbench, topic: Topic) -> None:
    """Two newer generations that keep nothing, their grace times, and a collection after each; pins expire or not."""
    for number in range(2):
        bench.append(topic, [content(*((key, b"later-%d" % number * 9) for key in KEYS))])
        bench.compact(topic)
        bench.advance(GRACE_MS)
        collect(bench, topic)


@contextmanager
def kept_pinned(bench: Workbench, topic: Topic) -> Iterator[None]:
    """Keep a pin alive for a long time, as a reader does that requests its next message before its TTL is over."""
    with patch.object(pins_module, "PIN_TTL_MS", 10 * GRACE_MS):
        for pin in bench.metadata.pins.gc_snapshot(topic.record.id).pins:
            bench.metadata.pins.renew(pin, 10 * GRACE_MS)
        yield


def read_a_pinned_generation_to_its_end(bench: Workbench, topic: Topic) -> None:
    expected = list(topic.messages(read_compacted=True))
    reading = topic.messages(read_compacted=True)
    got = [next(reading)]
    with kept_pinned(bench, topic):
        publish_twice_and_collect(bench, topic)
    assert got + list(reading) == expected, "it keeps the generation that it began with"


def test_a_pinned_generation_is_read_to_its_end(bench: Workbench, topic: Topic) -> None:
    """R7: N+1 and N+2 are published and garbage is collected while a reader is in the middle of N."""
    before = _listed(bench, topic)
    read_a_pinned_generation_to_its_end(bench, topic)
    assert before <= _listed(bench, topic)
    collect(bench, topic)
    assert not before <= _listed(bench, topic), "and then it goes"


def forgotten_reader(bench: Workbench, topic: Topic) -> tuple[list[Message], Iterator[Message]]:
    """A reader that has one message and was then left alone until its generation was collected."""
    reading = topic.messages(read_compacted=True)
    got = [next(reading)]
    bench.advance(PIN_TTL_MS)
    before = _listed(bench, topic)
    publish_twice_and_collect(bench, topic)
    assert not before <= _listed(bench, topic)
    return got, reading


def test_a_reader_whose_pin_expired_moves_on(bench: Workbench, topic: Topic) -> None:
    """R7: no id twice, and the newest value of every key."""
    got, reading = forgotten_reader(bench, topic)
    got += list(reading)
    ids = [message.message_id for message in got]
    assert ids == sorted(set(ids))
    assert view(got) == view(raw(topic))
    assert got[-1].payload == b"later-1" * 9


def test_a_reader_whose_pin_expired_hears_of_lost_deletions(bench: Workbench, topic: Topic) -> None:
    """The key that it was given is deleted, and the tombstone is long gone, in raw too."""
    reading = topic.messages(read_compacted=True)
    first = next(reading)
    bench.append(topic, [content((first.key, None))])
    bench.compact(topic)
    bench.advance(GRACE_MS)
    bench.append(topic, [content(*((key, b"later") for key in KEYS if key != first.key))])
    bench.compact(topic)
    bench.advance(GRACE_MS)
    bench.metadata.policies.change([topic_scope(topic.record)], {"cleanup.policy": "compact"})
    Retention(bench).trim(topic.record)
    collect(bench, topic)
    with pytest.raises(StateMayBeStale):
        list(reading)


def test_the_harness_notices_when_pins_are_not_looked_at(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the pin check taken out, test_a_pinned_generation_is_read_to_its_end fails."""
    real = PinStore.delete_ledger_if_unpinned

    def blind(self: PinStore, topic_id: int, ledger_id: int, grace_ms: int) -> bool:
        with self._database.write() as connection:
            connection.execute(delete(pins_table).where(pins_table.c.ledger_id == ledger_id))
        return real(self, topic_id, ledger_id, grace_ms)

    monkeypatch.setattr(PinStore, "delete_ledger_if_unpinned", blind)
    with pytest.raises(AssertionError, match="it keeps the generation"):
        read_a_pinned_generation_to_its_end(bench, topic)


def test_the_harness_notices_when_attempts_are_not_fenced(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fence taken out of the commit, an import names objects that are gone, and the tests above fail."""
    monkeypatch.setattr(attempts_module, "lock_and_check_unfinished", lambda *_: None)
    import_beside_collections(bench, topic, alive=False)
    with pytest.raises(Exception, match="does not exist"):
        raw(topic)


def test_the_harness_notices_when_unfinished_attempts_lose_their_objects(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every attempt taken for long finished, a living import loses its ledgers."""
    real = bench.metadata.pins.gc_snapshot

    def all_finished(topic_id: int) -> Any:
        snapshot = real(topic_id)
        return replace(snapshot, attempts=tuple(replace(attempt, finished_at=0) for attempt in snapshot.attempts))

    monkeypatch.setattr(bench.metadata.pins, "gc_snapshot", all_finished)
    import_beside_collections(bench, topic, alive=True)
    with pytest.raises(Exception, match="does not exist"):
        raw(topic)
