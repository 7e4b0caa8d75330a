"""One run: what it refuses, what it leaves when it fails, what it publishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from compactor.engines.engine import InProcessEngine
from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.retention import Retention
from compactor.phase_one import task_store
from compactor.run.plan import PartTaskResult, RangeTaskResult, RunPolicies, Sizing
from compactor.two_phase import HEARTBEAT_MS, TwoPhaseCompactor
from storage.advice import AdviceKind
from storage.errors import (
    CompactionRunning,
    CompactorError,
    Conflict,
    DataLoss,
    Fenced,
    ObjectDamaged,
    ObjectMissing,
    TopicNotFound,
    Unavailable,
)
from storage.ledger import names
from storage.metadata.policy_store import BROKER
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, RunState
from storage.model import EARLIEST, TopicName
from storage.objects.throttled import RateLimits
from tests.clocks import ManualClock
from tests.workbench import (
    HookedEngine,
    Workbench,
    acting_in,
    compacted_ledger,
    compacted_only,
    content,
    failing_in,
    raw,
    two_generations,
)


def test_publishes_cursor_property_and_ledger_together(bench: Workbench) -> None:
    """A1: mark-delete is the snapshot's end, not the last survivor; the property names the ledger."""
    topic = bench.topic()
    messages = bench.append(topic, [content((b"a", b"1"), (b"b", b"2"), (b"b", None))])
    outcome = bench.compact(topic)

    snapshot = topic.snapshot()
    assert snapshot.cursor is not None
    assert snapshot.cursor.name == COMPACTION_CURSOR
    assert snapshot.cursor.mark_delete is not None
    assert snapshot.cursor.mark_delete.message_id == messages[-1].message_id
    assert snapshot.cursor.properties == {COMPACTED_LEDGER_PROPERTY: str(outcome.compacted_ledger_id)}
    assert snapshot.compacted is not None
    assert snapshot.compacted.ledger_id == outcome.compacted_ledger_id
    assert outcome.compacted_ledger_id not in {ledger.ledger_id for ledger in snapshot.ledgers}
    assert [m.key for m in compacted_only(topic)] == [b"a"]
    assert outcome.run is not None
    assert outcome.run.state is RunState.SUCCESS
    assert outcome.run.statistics["tombstones_removed"] == 1


def test_an_empty_topic_succeeds_without_a_ledger(bench: Workbench) -> None:
    """P1, and P11 for the second trigger."""
    topic = bench.topic()
    outcome = bench.compact(topic)
    assert outcome.run is not None
    assert outcome.run.state is RunState.SUCCESS
    assert outcome.compacted_ledger_id is None
    snapshot = topic.snapshot()
    assert snapshot.cursor is None
    assert snapshot.compacted is None
    assert bench.compact(topic).run is None
    assert list(bench.store.list("topics/")) == []


def test_an_empty_result_is_a_valid_ledger(bench: Workbench) -> None:
    """All keys deleted: a ledger without parts; readers continue right after the horizon (R2), last id -1:-1 (R6)."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"), (b"a", None))])
    bench.compact(topic)
    assert topic.snapshot().compacted is not None
    assert list(topic.messages(read_compacted=True)) == []
    assert topic.last_message_id(read_compacted=True) == EARLIEST
    assert topic.last_message_id() == raw(topic)[-1].message_id
    later = bench.append(topic, [content((b"z", b"9"))])
    assert list(topic.messages(read_compacted=True)) == later
    bench.compact(topic)
    assert compacted_only(topic) == later


def test_an_unknown_topic(bench: Workbench) -> None:
    with pytest.raises(TopicNotFound, match="persistent://public/default/nosuch"):
        bench.compactor().compact(TopicName.parse("nosuch"))


@pytest.mark.parametrize("phase", [1, 2])
@pytest.mark.parametrize(
    "error", [Unavailable("the store is away", "wait"), KeyboardInterrupt()], ids=["store", "ctrl-c"]
)
def test_a_failure_leaves_everything_as_it_was(bench: Workbench, phase: int, error: BaseException) -> None:
    """W3: cursor and previous ledger stay, the original error is kept and shown, the next run succeeds."""
    topic = two_generations(bench)
    before, seen = topic.snapshot(), list(topic.messages(read_compacted=True))
    with pytest.raises(type(error)):
        replace(bench, engine=failing_in(phase, error)).compact(topic)

    after = topic.snapshot()
    assert (after.cursor, after.compacted, after.ledgers) == (before.cursor, before.compacted, before.ledgers)
    assert list(topic.messages(read_compacted=True)) == seen
    assert after.last_run is not None
    assert after.last_run.state is RunState.ERROR
    assert str(after.last_run.error) == (str(error) or "interrupted")
    assert bench.compact(topic).run is not None
    assert [(m.key, m.payload) for m in compacted_only(topic)] == [(b"a", b"3"), (b"c", b"4")]


def drop_a_survivor(answer: Any) -> Any:
    if isinstance(answer, RangeTaskResult) and answer.row_sets:
        first = answer.row_sets[0]
        return replace(answer, row_sets=(replace(first, offset_sum=first.offset_sum + 1), *answer.row_sets[1:]))
    return answer


def lie_about_size(answer: Any) -> Any:
    if isinstance(answer, PartTaskResult) and answer.part:
        stored = replace(answer.part.rows.stored, size=answer.part.rows.stored.size + 1)
        return replace(answer, part=replace(answer.part, rows=replace(answer.part.rows, stored=stored)))
    return answer


@pytest.mark.parametrize("change", [drop_a_survivor, lie_about_size])
def test_a_broken_promise_is_never_published(bench: Workbench, change: Callable[[Any], Any]) -> None:
    topic = two_generations(bench)
    before = topic.snapshot()
    with pytest.raises(ObjectDamaged):
        replace(bench, engine=HookedEngine(after=lambda answers: [change(answer) for answer in answers])).compact(topic)
    assert topic.snapshot().compacted == before.compacted


def test_one_run_a_topic(bench: Workbench) -> None:
    """S4: a second trigger is refused while the first runs, with the run named; after its heartbeat ends it is not."""
    topic = two_generations(bench)
    running = bench.metadata.runs.claim(topic.record.id, "elsewhere:1", {}, HEARTBEAT_MS)
    with pytest.raises(CompactionRunning, match=f"run {running.run_id}"):
        bench.compact(topic)
    bench.advance(HEARTBEAT_MS + 1)
    assert bench.compact(topic).run is not None
    assert bench.metadata.runs.get(running.run_id).state is RunState.ERROR


def test_a_run_whose_epoch_passed_publishes_nothing(bench: Workbench) -> None:
    """A1, S8: deleting the cursor raises the epoch; the zombie cannot publish, and the next run starts from raw."""
    topic = two_generations(bench)
    deleting = acting_in(2, lambda: bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR))
    with pytest.raises(Fenced):
        replace(bench, engine=deleting).compact(topic)
    assert topic.snapshot().compacted is None
    assert list(topic.messages(read_compacted=True)) == raw(topic)
    bench.compact(topic)
    assert [(m.key, m.payload) for m in compacted_only(topic)] == [(b"a", b"3"), (b"c", b"4")]


@pytest.mark.parametrize(
    ("how", "error"), [("truncate", Fenced), ("delete", TopicNotFound), ("trim", Conflict), ("damage", ObjectMissing)]
)
def test_what_is_taken_away_while_a_run_reads_it_is_no_loss(bench: Workbench, how: str, error: type[Exception]) -> None:
    """To restore it would be bad advice, and the topic is not failing."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    bench.metadata.policies.change([BROKER], {"file.delete.delay.ms": 0})
    (ledger,) = topic.snapshot().ledgers
    take: dict[str, Callable[[], object]] = {
        "truncate": lambda: bench.metadata.trimming.truncate([topic.record.id]),
        "delete": lambda: bench.metadata.tenancy.delete_topic(topic.record.id),
        "trim": lambda: bench.metadata.trimming.trim(topic.record.id, 1, [ledger.ledger_id], force=True),
        "damage": lambda: bench.store.delete(ledger.index.name),
    }

    def take_and_collect(_: int) -> None:
        take[how]()
        list(GarbageCollector(bench, skew_ms=0).collect_all())

    with pytest.raises(CompactorError) as answer:
        replace(bench, engine=HookedEngine(take_and_collect)).compact(topic)
    assert type(answer.value) is error
    with pytest.raises(ObjectMissing):
        bench.store.size(ledger.index.name)
    if how == "trim":
        assert "was trimmed while a compaction read it" in answer.value.message


def test_what_arrives_during_a_run_belongs_to_the_next(bench: Workbench) -> None:
    """P2: the end position is taken once."""
    topic = two_generations(bench)
    end = raw(topic)[-1].offset
    appending = acting_in(1, lambda: bench.append(topic, [content((b"a", None), (b"late", b"5"))]))
    replace(bench, engine=appending).compact(topic)
    horizon = topic.snapshot().horizon
    assert horizon is not None
    assert horizon.offset == end
    assert [m.key for m in topic.messages(read_compacted=True)] == [b"a", b"c", b"a", b"late"]
    bench.compact(topic)
    assert [m.key for m in compacted_only(topic)] == [b"c", b"late"]


def test_nothing_temporary_stays_after_a_run(bench: Workbench) -> None:
    topic = two_generations(bench)
    bench.compact(topic)
    kinds = {parsed.kind for info in bench.store.list() if (parsed := names.parse(info.name))}
    assert names.ObjectKind.PART in kinds
    assert names.ObjectKind.ROW_SETS not in kinds


def test_a_lost_manifest_is_an_explicit_error(bench: Workbench) -> None:
    """R8: named on compacted reads and on the next run; raw continues; deleting the cursor starts again."""
    topic = two_generations(bench)
    compacted = compacted_ledger(topic)
    bench.store.delete(compacted.manifest.name)
    with pytest.raises(ObjectMissing, match=f"compacted ledger {compacted.ledger_id}"):
        list(topic.messages(read_compacted=True))
    with pytest.raises(ObjectMissing, match=f"compacted ledger {compacted.ledger_id}"):
        bench.compact(topic)
    assert len(raw(topic)) == 6
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    bench.compact(topic)
    assert [(m.key, m.payload) for m in compacted_only(topic)] == [(b"a", b"3"), (b"c", b"4")]


@pytest.mark.parametrize("what", ["part", "index"])
def test_a_lost_part_or_index_is_an_explicit_error(bench: Workbench, what: str) -> None:
    """R8 for the other objects: never a shorter key set in silence. (The part is one that must be rewritten.)"""
    topic = bench.topic()
    bench.append(topic, [content((b"kept", b"1"), (b"x", b"1"), (b"y", b"1"))])
    bench.with_sizing(Sizing(1)).compact(topic)
    bench.append(topic, [content((b"x", b"2"), (b"y", b"2"))])
    manifest = bench.manifest(topic)
    lost = manifest.parts[0].rows.stored.name if what == "part" else manifest.index[0][0].name
    bench.store.delete(lost)
    if what == "part":
        with pytest.raises(ObjectMissing, match=lost):
            list(topic.messages(read_compacted=True))
    with pytest.raises(DataLoss, match=f"^the compacted ledger {compacted_ledger(topic).ledger_id} .*{lost}") as raised:
        bench.compact(topic)
    assert raised.value.advice is not None
    assert raised.value.advice.kind is AdviceKind.REBUILD_COMPACTED
    last = topic.snapshot().last_run
    assert last is not None
    assert last.state is RunState.ERROR
    assert lost in str(last.error)
    assert len(raw(topic)) == 5


def test_a_lost_part_that_a_run_would_keep_fails_the_run(bench: Workbench) -> None:
    """R8: also a part that the run has no reason to open; compacted reads name it, raw continues."""
    topic = bench.topic()
    bench.append(topic, [content((b"kept", b"1"))])
    bench.compact(topic)
    bench.append(topic, [content((b"new", b"2"))])
    record = compacted_ledger(topic)
    lost = bench.manifest(topic).parts[0].rows.stored.name
    bench.store.delete(lost)
    with pytest.raises(ObjectMissing, match=f"^the compacted ledger {record.ledger_id} .*{lost}"):
        bench.compact(topic)
    assert compacted_ledger(topic) == record
    with pytest.raises(ObjectMissing, match=lost):
        list(topic.messages(read_compacted=True))
    assert len(raw(topic)) == 2


@pytest.mark.parametrize("what", ["manifest", "part"])
def test_where_raw_is_trimmed_the_advice_warns_of_the_loss(bench: Workbench, what: str) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"kept", b"1"))])
    bench.compact(topic)
    bench.append(topic, [content((b"new", b"2"))])
    Retention(bench).trim(topic.record, 1)
    lost = compacted_ledger(topic).manifest.name
    if what == "part":
        lost = bench.manifest(topic).parts[0].rows.stored.name
    bench.store.delete(lost)
    for read in (lambda: list(topic.messages(read_compacted=True)), lambda: bench.compact(topic)):
        with pytest.raises(
            ObjectMissing, match="by force: the values whose raw messages are trimmed are then lost"
        ) as it:
            read()
        assert it.value.advice is not None
        assert it.value.advice.kind is AdviceKind.GIVE_UP_COMPACTED
        arguments = it.value.advice.arguments
        assert (arguments["object"], arguments["store"], arguments["state"]) == (lost, bench.store.url, "missing")


def test_a_compactor_holds_no_state_between_runs(bench: Workbench) -> None:
    compactor = TwoPhaseCompactor(bench, bench.engine)
    for name in ("x", "y"):
        topic = bench.topic(name)
        bench.append(topic, [content((b"k", name.encode()))])
        compactor.compact(topic.name)
        assert [m.payload for m in compacted_only(topic)] == [name.encode()]


# --- what is due by time


@pytest.mark.parametrize(
    "policies",
    [
        RunPolicies(retain_null_key=True, key_ttl_ms=1000),
        RunPolicies(tombstone_retention_ms=1000),
        RunPolicies(retain_null_key=True, key_ttl_ms=1000, tombstone_retention_ms=1000),
        RunPolicies(tombstone_retention_ms=1000, tombstones_wait_for_cursors=True),
    ],
    ids=["values", "tombstones", "both", "tombstones and cursors"],
)
def test_no_run_begins_until_something_is_due_and_one_is_enough(bench: Workbench, policies: RunPolicies) -> None:
    """P11: null keys, tombstones and values that have no time to live left must not make run after run."""
    topic, compactor = bench.topic(), bench.compactor()
    bench.append(topic, [content((b"a", b"1"), (None, b"n"), (b"b", b"2"), (b"b", b""), (b"c", b"3"))])
    bench.advance(10)
    assert compactor.compact(topic.name, policies).run is not None
    assert compactor.compact(topic.name, policies).run is None
    bench.advance(980)
    assert compactor.compact(topic.name, policies).run is None
    for _ in range(3):
        bench.advance(1000)
        compactor.compact(topic.name, policies)
        assert compactor.compact(topic.name, policies).run is None
    remaining = [message.key for message in compacted_only(topic)]
    expired = {b"a", b"c"} if policies.key_ttl_ms else set()
    assert remaining == [key for key in [b"a", None, b"c"] if key not in expired and (key or policies.retain_null_key)]


# --- limits


class TasksElsewhere(InProcessEngine):
    """An engine whose tasks do not know that they are in this process, as those of a worker."""

    def run(
        self, count: int, task: Callable[[int], Any], on_progress: Callable[[int], None], weights: Any = None
    ) -> Any:
        return [task(number) for number in range(count)]


def test_tasks_at_the_same_time_in_this_process_share_the_limit(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: a job of one task has all of it, whatever the engine could run."""
    shares: list[int | None] = []
    monkeypatch.setattr("compactor.phase_one.throttled", lambda _store, rates, *_: shares.append(rates.write))
    plan: Any = SimpleNamespace(store=bench.store.location, rates=RateLimits(write=4_000), concurrent_tasks=4)

    def task(_: int) -> None:
        with task_store(plan):
            pass

    for tasks, engine in ((3, InProcessEngine(2)), (1, InProcessEngine(2)), (2, InProcessEngine(1))):
        assert engine.run(tasks, task, lambda _: None) == [None] * tasks
    assert shares == [2_000] * 3 + [4_000] * 3


@pytest.mark.parametrize(("engine", "share"), [(InProcessEngine(1), 1), (TasksElsewhere(4), 4)])
def test_a_limit_of_bytes_per_second_is_kept_in_tasks_and_shared_between_concurrent_ones(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, engine: InProcessEngine, share: int
) -> None:
    """C4: by the time that tasks wait. Four run at once on the engine; in this process they follow each other."""
    topic, clock = two_generations(bench), ManualClock()
    monkeypatch.setattr("compactor.phase_one.SystemClock", lambda: clock)
    begun = clock.now_ms()

    limited = replace(bench.compactor(), engine=engine, rates=RateLimits(write=4_000), sizing=Sizing(1))
    outcome = limited.compact(topic.name)
    assert outcome.run is not None
    waited = clock.now_ms() - begun
    written = int(str(outcome.run.statistics["bytes_written"]))
    rate = 4_000 // share
    # a task may move a second's worth at once, and does not wait after its last byte; it waits whole milliseconds
    assert (written - 3 * rate) / rate * 1000 <= waited < written / rate * 1000 + 1
    assert [(m.key, m.payload) for m in compacted_only(topic)] == [(b"a", b"3"), (b"c", b"4")]
