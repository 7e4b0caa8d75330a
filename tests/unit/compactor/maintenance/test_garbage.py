"""Garbage collection: what nothing refers to goes after its grace time, and nothing else does (property 9).

Races with readers, imports and runs are in tests/faults/test_garbage_races.py, random schedules in tests/properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.maintenance.garbage import SKEW_MS, CollectionResult, GarbageCollector, ObjectTotals
from compactor.maintenance.grace import GRACE_MS
from storage.errors import DataLoss, Misconfigured, ObjectMissing, TopicNotFound, Unavailable
from storage.failpoints import Failpoint
from storage.ledger import names
from storage.ledger.manifest import read_manifest
from storage.ledger.names import ObjectKind
from storage.metadata.engine import Database
from storage.metadata.liveness import PIN_TTL_MS
from storage.metadata.records import COMPACTION_CURSOR, AttemptKind
from storage.objects.interface import ObjectInfo
from storage.objects.local import LocalStore
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.failpoint_listeners import observed
from tests.sealed import new_id
from tests.workbench import Workbench, compacted_ledger, content, raw, view

KEYS = [b"key-%02d" % number for number in range(20)]


class AgedStore(LocalStore):
    """Says that objects are as old as they are by the clock of the test."""

    clock: ManualClock

    def put_at(self, name: str, data: bytes, modified_ms: int) -> None:
        self.put(name, data)
        self.ages[name] = modified_ms

    ages: dict[str, int]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            yield replace(info, modified_ms=self.ages.setdefault(info.name, self.clock.now_ms()))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    plain = Workbench.embedded(tmp_path)
    assert isinstance(plain.store, LocalStore)
    store = AgedStore(plain.store.root)
    store.clock, store.ages = plain.clock, {}
    yield replace(plain, store=store)
    plain.metadata.close()


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Two generations: the older one is replaced, some of its parts are kept by the newer one."""
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content(*((key, b"first" * 9) for key in KEYS))])
    bench.compact(topic)
    bench.append(topic, [content((KEYS[0], b"second"), (KEYS[1], None))])
    bench.compact(topic)
    return topic


def collector(bench: Workbench, deleted: list[str] | None = None) -> GarbageCollector:
    """`deleted` takes the names of the objects that it reports."""
    reported = [] if deleted is None else deleted
    return GarbageCollector(bench, on_object=lambda info: reported.append(info.name))


def collect(bench: Workbench, topic: Topic, dry_run: bool = False) -> CollectionResult:
    return collector(bench).collect(topic.record, dry_run)


def listed(bench: Workbench, topic: Topic) -> set[str]:
    return {info.name for info in bench.store.list(names.topic_prefix(topic.record.uid))}


def referenced(bench: Workbench, topic: Topic) -> set[str]:
    """Return the names of all objects that rows and manifests of compacted ledgers refer to."""
    snapshot = bench.metadata.pins.gc_snapshot(topic.record.id)
    objects = {name for ledger in snapshot.ledgers for name in (ledger.rows.name, ledger.index.name)}
    for compacted in snapshot.compacted:
        objects |= {compacted.manifest.name} | read_manifest(bench.store, compacted.manifest).object_names
    return objects


def leave(bench: Workbench, topic: Topic, holder: str = "elsewhere") -> tuple[str, set[str]]:
    """An attempt that wrote an object of each kind, and was not heard of again; its id, and their names."""
    attempt = bench.metadata.attempts.begin(topic.record.id, AttemptKind.RUN, holder)
    uid, created = topic.record.uid, attempt.attempt_id
    remaining = {
        names.ledger_rows(uid, 999, created),
        names.ledger_index(uid, 999, created),
        names.part(uid, created, 0),
        names.compacted_index(uid, created, 0),
        names.row_sets(uid, created, 0),
        names.bitmaps(uid, created, 0),
        names.manifest(uid, 999, created),
    }
    for name in remaining:
        bench.store.put(name, b"left behind")
    return created, remaining


def test_a_topic_that_has_only_what_it_needs_loses_nothing(bench: Workbench, topic: Topic) -> None:
    before = listed(bench, topic)
    assert collect(bench, topic).total == ObjectTotals()
    assert listed(bench, topic) == before == referenced(bench, topic)


def test_a_topic_with_nothing_to_do_costs_no_write(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.advance(GRACE_MS)
    assert collect(bench, topic).compacted_ledgers == 1
    before = listed(bench, topic)
    bench.advance(GRACE_MS)
    collect(bench, topic)  # it settles the queue

    def write(database: Database) -> None:
        raise AssertionError("there is nothing to change")

    monkeypatch.setattr(Database, "write", write)
    assert collect(bench, topic) == CollectionResult(topic.name, topic.record.uid, True)
    assert listed(bench, topic) == before


def test_a_replaced_generation_goes_after_its_grace_time(bench: Workbench, topic: Topic) -> None:
    """Parts that the newer generation kept stay; afterwards exactly what is referred to is there."""
    replaced, serving = bench.metadata.pins.gc_snapshot(topic.record.id).compacted
    old, new = (read_manifest(bench.store, item.manifest).object_names for item in (replaced, serving))
    assert old & new, "generations share parts, or this test shows nothing"
    assert old - new
    bench.advance(GRACE_MS - 1)
    assert collect(bench, topic).total == ObjectTotals()
    bench.advance(1)
    report = collect(bench, topic)
    assert report.compacted_ledgers == 1
    assert report.total.count == len(old - new) + 1
    assert report.objects[ObjectKind.MANIFEST].count == 1
    assert not listed(bench, topic) & (old - new)
    assert listed(bench, topic) == referenced(bench, topic) >= old & new
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


@pytest.mark.slow
def test_shared_objects_stay_as_long_as_any_known_manifest_refers_to_them(bench: Workbench, topic: Topic) -> None:
    """The second of three generations goes first: its successor was published later than its grace time ago."""
    serving = compacted_ledger(topic)
    _, pin = bench.metadata.pins.take(topic.record.id, "reader", PIN_TTL_MS)
    assert pin is not None
    first = bench.manifest(topic).object_names
    for number in range(2):
        bench.append(topic, [content(*((key, b"later-%d" % number) for key in KEYS))])
        bench.compact(topic)
        bench.advance(GRACE_MS)
        pin = bench.metadata.pins.renew(pin, PIN_TTL_MS)
        collect(bench, topic)
    assert first <= listed(bench, topic)
    kept = bench.metadata.pins.gc_snapshot(topic.record.id).compacted
    assert kept[0].ledger_id == serving.ledger_id
    assert len(kept) == 2
    bench.metadata.pins.release(pin)
    collect(bench, topic)
    assert listed(bench, topic) == referenced(bench, topic)
    assert not listed(bench, topic) & first


def test_twice_is_once(bench: Workbench, topic: Topic) -> None:
    attempt, _ = leave(bench, topic)
    bench.metadata.attempts.finish(attempt)
    bench.advance(GRACE_MS)
    assert collect(bench, topic).total.count > 7
    after = listed(bench, topic)
    assert collect(bench, topic).total == ObjectTotals()
    assert listed(bench, topic) == after == referenced(bench, topic)


def test_a_dry_run_says_the_same_and_changes_nothing(bench: Workbench, topic: Topic) -> None:
    finished, _ = leave(bench, topic)
    bench.metadata.attempts.finish(finished)
    leave(bench, topic, "dead")
    bench.advance(GRACE_MS)
    leave(bench, topic, "alive")
    before, known = listed(bench, topic), bench.metadata.pins.gc_snapshot(topic.record.id)
    answer: list[list[str]] = [[], []]
    dry = collector(bench, answer[0]).collect(topic.record, dry_run=True)
    assert listed(bench, topic) == before
    assert bench.metadata.pins.gc_snapshot(topic.record.id) == known
    wet = collector(bench, answer[1]).collect(topic.record)
    assert (dry.deleted, wet.deleted) == (False, True)
    assert replace(dry, deleted=True) == wet
    assert wet.attempts_given_up == wet.compacted_ledgers == 1
    assert answer[0] == answer[1] == sorted(answer[1])
    assert set(answer[1]) == before - listed(bench, topic)
    assert wet.total.count == len(answer[1])


def test_a_dead_attempt_is_given_up_first_and_loses_its_objects_a_grace_time_later(
    bench: Workbench, topic: Topic
) -> None:
    created, remaining = leave(bench, topic)
    bench.advance(GRACE_MS - 1)
    assert collect(bench, topic).attempts_given_up == 0
    bench.advance(1)
    assert collect(bench, topic).attempts_given_up == 1
    attempt = bench.metadata.attempts.find(created)
    assert attempt is not None
    assert attempt.finished_at == bench.clock.now_ms()
    assert remaining <= listed(bench, topic), "it may still write, or think that it can commit"
    bench.advance(GRACE_MS - 1)
    collect(bench, topic)
    assert remaining <= listed(bench, topic)
    bench.advance(1)
    assert collect(bench, topic).total.count >= 7
    assert not remaining & listed(bench, topic)
    bench.advance(1)
    collect(bench, topic)
    assert bench.metadata.attempts.find(created) is None, "what is gone is purged"


def test_an_attempt_that_beats_keeps_its_objects_for_ever(bench: Workbench, topic: Topic) -> None:
    created, remaining = leave(bench, topic)
    attempt = bench.metadata.attempts.find(created)
    assert attempt is not None
    for _ in range(9):
        bench.advance(GRACE_MS - 1)
        bench.metadata.attempts.heartbeat(attempt)
        collect(bench, topic)
        assert remaining <= listed(bench, topic)


def test_objects_of_an_unknown_attempt_go_by_their_age(bench: Workbench, topic: Topic) -> None:
    """A task that outlived its run writes when its attempt is long purged."""
    assert isinstance(bench.store, AgedStore)
    name = names.part(topic.record.uid, new_id(), 0)
    bench.store.put_at(name, b"late", bench.clock.now_ms())
    bench.advance(GRACE_MS + SKEW_MS)
    collect(bench, topic)
    assert name in listed(bench, topic)
    bench.advance(1)
    collect(bench, topic)
    assert name not in listed(bench, topic)


def test_an_attempt_is_known_as_long_as_an_object_of_it_is_there(bench: Workbench, topic: Topic) -> None:
    """So that what it made goes by our clock when it is not needed any more, years later perhaps."""
    for _ in range(3):
        bench.advance(10 * GRACE_MS)
        collect(bench, topic)
    assert listed(bench, topic) == referenced(bench, topic)
    known = {attempt.attempt_id for attempt in bench.metadata.attempts.of_topic(topic.record.id)}
    assert known == {parsed.attempt_id for parsed in map(names.parse, listed(bench, topic)) if parsed}
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


def test_what_is_referred_to_stays_when_its_attempt_is_unknown(bench: Workbench, topic: Topic) -> None:
    bench.metadata.attempts.purge(topic.record.id, bench.clock.now_ms() + 1)
    assert bench.metadata.attempts.of_topic(topic.record.id) == []
    bench.advance(10 * GRACE_MS)
    collect(bench, topic)
    bench.advance(10 * GRACE_MS)
    collect(bench, topic)
    assert listed(bench, topic) == referenced(bench, topic)
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


def test_names_that_are_not_ours_are_left_alone_and_counted(bench: Workbench, topic: Topic) -> None:
    prefix = names.topic_prefix(topic.record.uid)
    foreign = {f"{prefix}README", f"{prefix}ledgers/1-x.parquet", f"{prefix}runs/{'0' * 32}/part-1.parquet.bak"}
    for name in foreign:
        bench.store.put(name, b"mine")
    bench.store.put("topics/notes.txt", b"mine")
    bench.store.put("elsewhere", b"mine")
    bench.advance(9 * GRACE_MS)
    assert collect(bench, topic).foreign == 3
    reports = list(collector(bench).collect_all(unknown_topics=True))
    assert sum(report.foreign for report in reports) == 4
    assert foreign | {"topics/notes.txt", "elsewhere"} <= {info.name for info in bench.store.list()}


def lose_manifest(bench: Workbench, topic: Topic) -> str:
    lost = compacted_ledger(topic).manifest.name
    bench.store.delete(lost)
    return lost


def test_a_manifest_that_cannot_be_read_keeps_everything_of_its_topic(bench: Workbench, topic: Topic) -> None:
    """Never guess: even what surely is garbage stays. The error names the object, the ledger and the way out."""
    other = bench.topic("other")
    for item in (topic, other):
        finished, _ = leave(bench, item)
        bench.metadata.attempts.finish(finished)
    bench.advance(GRACE_MS)
    lost = lose_manifest(bench, topic)
    before = listed(bench, topic)
    with pytest.raises(ObjectMissing, match=f"no garbage of {topic.name} was collected.*{lost}") as raised:
        collect(bench, topic)
    assert "__compaction" in raised.value.remedy
    assert listed(bench, topic) == before
    reports = {report.topic: report for report in collector(bench).collect_all()}
    assert isinstance(reports[topic.name].error, DataLoss)
    assert reports[topic.name].total == ObjectTotals()
    assert listed(bench, topic) == before
    assert reports[other.name].error is None
    assert reports[other.name].total.count == 7, "the others are collected all the same"


@pytest.mark.slow
def test_a_cleared_compacted_ledger_is_collected_without_its_manifest(bench: Workbench, topic: Topic) -> None:
    """R8, the whole way back: clear, collect a grace time later, compact again from raw."""
    lose_manifest(bench, topic)
    bench.append(topic, [content((b"new", b"1"))])
    with pytest.raises(DataLoss):
        bench.compact(topic)
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    bench.advance(GRACE_MS)
    assert collect(bench, topic).compacted_ledgers == 2
    bench.compact(topic)
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))
    bench.advance(GRACE_MS)
    collect(bench, topic)
    assert listed(bench, topic) == referenced(bench, topic)


def test_topics_that_the_database_does_not_know_go_only_when_asked(bench: Workbench, topic: Topic) -> None:
    assert isinstance(bench.store, AgedStore)
    uid, now = new_id(), bench.clock.now_ms()
    old, young = (names.ledger_rows(uid, number, new_id()) for number in range(2))
    bench.store.put_at(old, b"four", now)
    bench.store.put_at(young, b"five!", now + 1)
    bench.advance(GRACE_MS + SKEW_MS + 1)
    for unknown_topics, dry_run in ((False, False), (True, True)):
        answer: list[str] = []
        (report,) = (
            item
            for item in collector(bench, answer).collect_all(dry_run, unknown_topics=unknown_topics)
            if item.topic is None
        )
        assert (report.topic_uid, report.deleted, report.total) == (uid, False, ObjectTotals(1, 4))
        assert (old in answer) is unknown_topics
        assert {old, young} <= {info.name for info in bench.store.list()}
    (report,) = (item for item in collector(bench).collect_all(unknown_topics=True) if item.topic is None)
    assert (report.deleted, report.total) == (True, ObjectTotals(1, 4))
    assert old not in {info.name for info in bench.store.list()}
    assert young in {info.name for info in bench.store.list()}
    assert view(list(topic.messages(read_compacted=True))) == view(raw(topic))


def test_all_topics_are_looked_at_with_and_without_objects(bench: Workbench, topic: Topic) -> None:
    """Attempts of a topic that has no object yet are abandoned and purged as well."""
    empty = bench.topic("empty")
    bench.metadata.attempts.begin(empty.record.id, AttemptKind.IMPORT, "died early")
    bench.advance(GRACE_MS)
    reports = {report.topic: report for report in collector(bench).collect_all()}
    assert set(reports) == {topic.name, empty.name}
    assert reports[empty.name].attempts_given_up == 1
    bench.advance(GRACE_MS + 1)
    list(collector(bench).collect_all())
    assert bench.metadata.attempts.of_topic(empty.record.id) == []


def test_a_topic_that_is_created_during_the_listing_is_known(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects are seen, and its row was not there when the topics were read: rows are checked again."""
    real, created = bench.metadata.topics.page_by_uid, []

    def topics_as_of_before(after_uid: str, count: int) -> object:
        topics = real(after_uid, count)
        if not created:
            created.append(bench.topic("created meanwhile"))
            bench.append(created[0], [content((b"k", b"v"))])
            bench.advance(9 * GRACE_MS)
        return topics

    monkeypatch.setattr(bench.metadata.topics, "page_by_uid", topics_as_of_before)
    reports = {report.topic for report in collector(bench).collect_all(unknown_topics=True)}
    assert reports == {topic.name, created[0].name}
    assert view(raw(created[0])) == {b"k": b"v"}


@pytest.mark.parametrize("deleted", [False, True])
def test_an_object_that_cannot_be_deleted_stops_no_other_topic(bench: Workbench, deleted: bool) -> None:
    """A bucket's policy or lock refuses it; the topic whose objects are listed first is the one."""
    topics = [bench.topic(name) for name in ("a", "b", "c")]
    for topic in topics:
        for value in (b"1", b"2"):
            bench.append(topic, [content((b"k", value))])
            bench.compact(topic)
    locked = min(topics, key=lambda topic: topic.record.uid)
    if deleted:
        bench.metadata.tenancy.delete_topic(locked.record.id)

    class Refusing(AgedStore):
        def delete(self, name: str) -> None:
            if name.startswith(names.topic_prefix(locked.record.uid)):
                raise Misconfigured(f"cannot delete object {name}", "allow it")
            super().delete(name)

    assert isinstance(bench.store, AgedStore)
    store = Refusing(bench.store.root)
    store.clock, store.ages = bench.store.clock, bench.store.ages
    bench.advance(GRACE_MS + SKEW_MS + 1)
    results = {item.topic: item for item in GarbageCollector(replace(bench, store=store)).collect_all()}
    assert isinstance(results.pop(locked.name).error, Misconfigured)
    assert [(item.error, item.total.count > 0) for item in results.values()] == [(None, True)] * 2


def test_an_unknown_topic_is_an_error(bench: Workbench, topic: Topic) -> None:
    with pytest.raises(TopicNotFound):
        collector(bench).collect(replace(topic.record, id=12345))


def test_what_is_queued_is_collected_and_nothing_else_is_listed(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bench.topic("other")
    bench.append(other, [content((b"k", b"v"))])
    collect_what_is_due = collector(bench).collect_due
    assert {item.topic for item in collect_what_is_due()} == {topic.name, other.name}, "their attempts have begun"
    assert list(collect_what_is_due()) == [], "none has anything before a grace time is over"
    bench.advance(GRACE_MS)
    collected = {item.topic: item for item in collect_what_is_due()}
    assert collected[topic.name].compacted_ledgers == 1
    assert collected[topic.name].total.count
    bench.advance(1)
    assert len(list(collect_what_is_due())) == 2, "rows of attempts without objects go"
    listings: list[str] = []
    real = LocalStore.list
    monkeypatch.setattr(LocalStore, "list", lambda store, prefix="": listings.append(prefix) or real(store, prefix))
    for _ in range(3):
        bench.advance(GRACE_MS)
        assert list(collect_what_is_due()) == []
    assert listings == []
    (ledger,) = bench.metadata.ledgers.of_topic(other.record.id)
    bench.metadata.trimming.trim(other.record.id, 1, [ledger.ledger_id], force=True)
    bench.advance(GRACE_MS)
    (item,) = collect_what_is_due()
    assert (item.topic, item.trimmed_ledgers, item.total.count) == (other.name, 1, 2)
    assert listings == [f"topics/{other.record.uid}/"]


def test_a_topic_whose_collection_fails_stays_queued(bench: Workbench, topic: Topic) -> None:
    serving = bench.metadata.pins.gc_snapshot(topic.record.id).compacted[-1]
    content_ = bench.store.get(serving.manifest.name)
    bench.store.delete(serving.manifest.name)
    bench.advance(GRACE_MS)
    for _ in range(2):
        (failed,) = collector(bench).collect_due()
        assert isinstance(failed.error, DataLoss)
    bench.store.put(serving.manifest.name, content_)
    (collected,) = collector(bench).collect_due()
    assert collected.total.count


def test_a_deleted_topic_is_listed_until_its_late_writers_have_ended(bench: Workbench, topic: Topic) -> None:
    name = f"topics/{topic.record.uid}/" + next(iter(listed(bench, topic))).removeprefix(f"topics/{topic.record.uid}/")
    deleted = bench.metadata.tenancy.delete_topic(topic.record.id)
    bench.advance(GRACE_MS)
    assert [(item.topic_uid, item.topic_deleted) for item in collector(bench).collect_due()] == [(deleted.uid, True)]
    assert listed(bench, topic) == set()
    bench.store.put(name, b"late")
    bench.advance(1)
    assert [item.total.count for item in collector(bench).collect_due()] == [1]
    bench.store.put(name, b"too late")
    assert list(collector(bench).collect_due()) == []
    assert sum(item.total.count for item in collector(bench).collect_all()) == 1


def test_a_listing_of_all_queues_what_no_row_leads_to(bench: Workbench, topic: Topic) -> None:
    """Garbage that is too young, of an attempt without a row; and a topic that an older version did not queue."""
    for _ in range(2):
        bench.advance(GRACE_MS + 1)
        list(collector(bench).collect_due())
    parsed = names.parse(next(iter(listed(bench, topic))))
    assert parsed is not None
    stray = next(iter(listed(bench, topic))).replace(parsed.attempt_id, "ab" * 16)
    assert names.parse(stray) is not None
    bench.store.put(stray, b"of an attempt whose row was lost")
    assert list(collector(bench).collect_due()) == []
    list(collector(bench).collect_all())
    assert stray in listed(bench, topic), "it is young"
    bench.advance(GRACE_MS + SKEW_MS + 1)
    assert [item.total.count for item in collector(bench).collect_due()] == [1]
    assert stray not in listed(bench, topic)


def test_a_listing_of_all_continues_after_a_uid(bench: Workbench) -> None:
    topics = [bench.topic(name) for name in "abcd"]
    for topic in topics[:3]:
        bench.append(topic, [content((b"k", b"v"))])
    uids = sorted(topic.record.uid for topic in topics)
    assert [item.topic_uid for item in collector(bench).collect_all()] == uids
    assert [item.topic_uid for item in collector(bench).collect_all(after_uid=uids[1])] == uids[2:]
    assert list(collector(bench).collect_all(after_uid=uids[-1])) == []


@pytest.mark.parametrize(
    "step", [step for step in Failpoint if step.name.startswith("GC_") and step is not Failpoint.GC_DONE]
)
def test_a_collection_that_is_cut_off_is_repeated_and_then_complete(
    bench: Workbench, topic: Topic, step: Failpoint
) -> None:
    """Also if the rows that led to the garbage are deleted already."""
    leave(bench, topic)
    bench.advance(GRACE_MS)
    list(collector(bench).collect_due())  # it fences the dead attempt
    bench.append(topic, [content((KEYS[2], b"third"))])
    bench.compact(topic)
    bench.advance(GRACE_MS)

    def cut(at: Failpoint) -> None:
        if at is step:
            raise Unavailable("the process ends here", "start it again")

    with pytest.raises(Unavailable), observed(cut):
        list(collector(bench).collect_due())
    list(collector(bench).collect_due())
    assert listed(bench, topic) == referenced(bench, topic)
    assert sum(item.total.count for item in collector(bench).collect_all()) == 0
