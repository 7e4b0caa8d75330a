"""The control loop, step by step under a clock of the test's own: requests become runs, once, whoever dies (S4, S6)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactor.engines.engine import Engine, InProcess
from compactor.scheduling.control_loop import ControlLoop, LoopSettings
from compactor.scheduling.status import compaction_status
from compactor.scheduling.worker import WorkerSettings
from compactor.two_phase import TwoPhaseCompactor
from storage.errors import CompactionPaused, CompactionRunning, Fenced, LeaseHeld, Unavailable
from storage.metadata.policy_store import BROKER, topic_scope
from storage.metadata.records import COMPACTION_CURSOR, RUN_DEAD_MS, RunState, TopicRecord
from storage.model import TopicName
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.entries import one, produce
from tests.workbench import TINY, Workbench, compacted_only, store_policy, view

HOLD_SECONDS = 60
"""What must come from another thread has come long before; or the test fails."""
TERM = 10_000
SETTINGS = LoopSettings(lease_term_ms=TERM, worker=WorkerSettings(slots=3, sizing=TINY))


class Held(InProcess):
    """Waits in its first task until it is let go, or cancelled."""

    def __init__(self, engines: Engines) -> None:
        super().__init__()
        self._engines = engines
        self._stopped = threading.Event()

    def run(self, count: int, task: Callable[[int], Any], on_done: Callable[[int], None], weights: Any = None) -> Any:
        engines = self._engines
        with engines.lock:
            engines.at_work.append(self)
            engines.most = max(engines.most, len(engines.at_work))
        engines.began.release()
        while not engines.go.wait(0.01) and not self._stopped.is_set():
            pass
        with engines.lock:
            engines.at_work.remove(self)
        if self._stopped.is_set():
            raise Fenced("the compaction was cancelled", "start it again if it is still wanted")
        return super().run(count, task, on_done, weights)

    def cancel(self) -> None:
        self._stopped.set()


class Engines:
    """Engines that a test can hold. `go`: nothing is held; `most`: phases that were at work at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.at_work: list[Held] = []
        self.most = 0
        self.opened = 0
        self.closed = self.ended = False
        self.fails: Exception | None = None

    def open(self) -> Engine:
        self.opened += 1
        if self.fails is not None:
            raise self.fails
        return Held(self)

    def end(self) -> None:
        self.ended = True

    def close(self) -> None:
        assert self.ended
        self.closed = True

    def wait_for(self, phases: int = 1) -> None:
        for _ in range(phases):
            assert self.began.acquire(timeout=HOLD_SECONDS)


class Stage:
    """A database with topics, and services that a test starts, looks through and ends."""

    def __init__(self, folder: Path) -> None:
        self.bench = Workbench.embedded(folder)
        self.metadata = self.bench.metadata
        self.control = self.bench.metadata.compaction_state
        assert isinstance(self.bench.clock, ManualClock)
        self.clock: ManualClock = self.bench.clock
        self.engines = Engines()
        self.loops: list[ControlLoop] = []

    def service(self, settings: LoopSettings = SETTINGS, engines: Engines | None = None) -> ControlLoop:
        """A service whose threads are not started: the test calls `beat` and `look`."""
        number = len(self.loops)
        made = ControlLoop(
            self.metadata,
            self.bench.store,
            self.clock,
            self.bench.log,
            engines or self.engines,
            settings,
            url=f"http://service{number}",
            name=f"host:{number}:x",
            random=random.Random(number),
        )
        self.loops.append(made)
        return made

    def topic(self, name: str, messages: int = 1) -> Topic:
        topic = self.bench.topic(name)
        produce(topic, [one(b"key %d" % number, b"value") for number in range(messages)])
        return topic

    def lead(self, settings: LoopSettings = SETTINGS) -> ControlLoop:
        loop = self.service(settings)
        loop.beat()
        assert loop.leads
        return loop

    def finish(self, loop: ControlLoop) -> None:
        """Look until nothing is left to do, without time going by."""
        for _ in range(50):
            loop.look()
            self.settle(loop)
            if not self.control.requests() and loop._worker.busy() == (0, 0):
                return
        raise AssertionError(f"requests stay: {self.control.requests()}")

    def settle(self, loop: ControlLoop) -> None:
        """Wait for the jobs of a service."""
        for future in list(loop._worker._jobs):
            future.exception(timeout=HOLD_SECONDS)
        assert until(lambda: loop._worker.busy() == (0, 0))

    def runs(self, topic: Topic) -> list[RunState]:
        return [run.state for run in reversed(self.metadata.runs.of_topic(topic.record.id, 1000))]

    def status(self, topic: Topic) -> tuple[str, str]:
        return tuple(compaction_status(self.metadata, topic.record.id))  # type: ignore[return-value]


def until(holds: Callable[[], bool]) -> bool:
    """Whether it holds soon: another thread is at it."""
    pause = threading.Event()
    for _ in range(HOLD_SECONDS * 100):
        if holds():
            return True
        pause.wait(0.01)
    return False


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.engines.go.set()
    for loop in stage.loops:
        loop.drain(0)
    stage.metadata.close()


def test_of_many_triggers_there_is_one_run(stage: Stage) -> None:
    """Property 11, with a status that says so all the time."""
    loop, topic = stage.lead(), stage.topic("t")
    stage.engines.go.clear()
    loop.trigger(topic.record)
    for _ in range(3):
        with pytest.raises(CompactionRunning):
            loop.trigger(topic.record)
        assert stage.status(topic) == ("RUNNING", "")
    loop.look()
    stage.engines.wait_for()
    for _ in range(3):
        loop.look()
        with pytest.raises(CompactionRunning, match="run 1 by"):
            loop.trigger(topic.record)
        assert stage.status(topic) == ("RUNNING", "")
    stage.engines.go.set()
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert stage.status(topic) == ("SUCCESS", "")
    assert view(compacted_only(topic)) == {b"key 0": b"value"}


def test_a_trigger_with_nothing_new_makes_no_run_and_ends(stage: Stage) -> None:
    loop, topic, empty = stage.lead(), stage.topic("t"), stage.bench.topic("empty")
    for one_of in (topic, empty):
        loop.trigger(one_of.record)
    stage.finish(loop)
    for one_of in (topic, empty, topic, empty):
        loop.trigger(one_of.record)
        assert stage.status(one_of) == ("RUNNING", "")
        stage.finish(loop)
        assert stage.status(one_of) == ("SUCCESS", "")
        assert stage.runs(one_of) == [RunState.SUCCESS], "P11"
        assert [cursor.name for cursor in stage.metadata.cursors.of_topic(one_of.record.id)] == [COMPACTION_CURSOR], (
            "S9"
        )


@pytest.mark.parametrize("taken", ["aborted", "by hand"])
def test_a_request_that_is_gone_before_its_claim_is_no_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    settle = TwoPhaseCompactor._settle

    def settled(compactor: TwoPhaseCompactor, record: TopicRecord) -> object:
        left = settle(compactor, record)
        if taken == "aborted":
            stage.control.abort(record.id)
        else:
            stage.metadata.runs.finish(stage.metadata.runs.claim(record.id, "hand", {}, RUN_DEAD_MS), {})
        return left

    monkeypatch.setattr(TwoPhaseCompactor, "_settle", settled)
    loop.trigger(topic.record)
    loop.look()
    stage.settle(loop)
    assert stage.control.get(topic.record.id).failures == 0
    assert stage.status(topic) == (("NOT_RUN" if taken == "aborted" else "SUCCESS"), "")


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_is_made_after_the_look_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The first look finds nothing new, or fails; somebody aborts meanwhile, appends, and asks for another run."""
    loop, topic = stage.lead(), stage.topic("t")
    stage.bench.compact(topic)
    compact_all = TwoPhaseCompactor.compact_all

    def late(compactor: TwoPhaseCompactor, *arguments: Any) -> Iterator[Any]:
        monkeypatch.setattr(TwoPhaseCompactor, "compact_all", compact_all)
        for outcome in compact_all(compactor, *arguments):
            stage.control.abort(topic.record.id)
            stage.clock.advance(1)
            produce(topic, [one(b"another", b"v")])
            loop.trigger(topic.record)
            yield replace(outcome, error=Unavailable("no disk", "try again")) if fails else outcome

    monkeypatch.setattr(TwoPhaseCompactor, "compact_all", late)
    loop.trigger(topic.record)
    loop.look()
    stage.settle(loop)
    assert [str(asked.name.topic) for asked, _ in stage.control.requests()] == ["t"]
    assert stage.control.get(topic.record.id).failures == int(fails)
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS, RunState.SUCCESS]
    assert stage.control.requests() == []


def test_the_leader_forgets_services_that_were_killed_long_ago(stage: Stage) -> None:
    killed, loop = stage.service(), stage.lead()
    killed.beat()
    known = lambda: [one.name for one in stage.metadata.services.live(10**9)]  # noqa: E731
    assert known() == [killed.name, loop.name]
    for seconds in (60, 239):
        stage.clock.advance(seconds * 1000)
        loop.beat()
        loop.look()
        assert known() == [killed.name, loop.name]
    stage.clock.advance(60_000)
    loop.beat()
    loop.look()
    assert known() == [loop.name]


def test_what_waits_for_a_lane_is_not_measured(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stage.lead(replace(SETTINGS, worker=replace(SETTINGS.worker, slots=1)))
    topics = [stage.topic(name) for name in "ab"]
    stage.engines.go.clear()
    loop.trigger(topics[0].record)
    loop.look()
    stage.engines.wait_for()
    loop.trigger(topics[1].record)
    with monkeypatch.context() as patched:
        patched.setattr(loop._backlogs, "of", None)
        loop.look()
    stage.engines.go.set()
    stage.finish(loop)
    assert stage.runs(topics[1]) == [RunState.SUCCESS]


def test_a_leader_that_lost_its_leadership_rolls_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    loop.trigger(topic.record)
    begin = loop._worker.begin

    def late(topics: Sequence[TopicRecord], *, large: bool) -> None:
        stage.clock.advance(TERM)
        begin(topics, large=large)

    monkeypatch.setattr(loop._worker, "begin", late)
    loop.look()
    stage.settle(loop)
    assert stage.metadata.segments.find_open(topic.record.id) is not None
    assert len(stage.control.requests()) == 1


def test_a_clock_that_is_set_back_holds_nothing_up(stage: Stage) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    loop.look()
    stage.metadata.policies.set(BROKER, "compaction.threshold.bytes", 1)
    stage.clock.advance(-3_600_000)
    loop.beat()
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS]


def test_only_the_leader_executes_and_anybody_may_ask(stage: Stage) -> None:
    first, second = stage.lead(), stage.service()
    topic = stage.topic("t")
    second.beat()
    assert (first.leads, second.leads) == (True, False)
    second.trigger(topic.record, by="ann")
    second.look()
    assert stage.engines.opened == 0
    stage.finish(first)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert [one.url for one in stage.metadata.services.live()] == ["http://service0", "http://service1"]


def test_what_is_due_is_compacted_when_it_is_looked_at(stage: Stage) -> None:
    loop, topic = stage.lead(), stage.topic("t", 3)
    stage.metadata.policies.set(BROKER, "compaction.threshold.messages", 3)
    stage.finish(loop)
    assert stage.runs(topic) == []
    produce(topic, [one(b"another", b"v")])
    stage.clock.advance(SETTINGS.monitor_interval_ms - 1)
    loop.beat()
    stage.finish(loop)
    assert stage.runs(topic) == [], "it is not looked at yet"
    stage.clock.advance(1)
    loop.beat()
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS]
    (run,) = stage.metadata.runs.of_topic(topic.record.id, 9)
    assert run.cause == "threshold.messages"
    assert loop.last_check is not None
    assert (loop.last_check.topics, loop.last_check.due) == (1, 1)


def test_a_policy_that_cannot_be_read_is_logged_once_and_counted_and_stops_no_other_topic(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    loop, bad, good = stage.lead(), stage.topic("bad", 3), stage.topic("good", 3)
    stage.metadata.policies.set(topic_scope(good.record), "compaction.threshold.messages", 1)
    store_policy(stage.metadata, topic_scope(bad.record), "segment.bytes", 1 << 40)
    for _ in range(2):
        stage.finish(loop)
        stage.clock.advance(SETTINGS.monitor_interval_ms)
        loop.beat()
    assert stage.runs(good) == [RunState.SUCCESS]
    assert loop.last_check is not None
    assert loop.last_check.unreadable_policies == 1
    (line,) = [one for one in caplog.messages if "cannot be read" in one]
    assert "the policy segment.bytes of the topic persistent://public/default/bad" in line


def test_a_topic_is_not_compacted_by_an_order_that_cannot_be_read(stage: Stage) -> None:
    loop, bad, good = stage.lead(), stage.topic("bad", 3), stage.topic("good", 3)
    store_policy(stage.metadata, topic_scope(bad.record), "compaction.event-time-order", "ingestion")
    for topic in (bad, good):
        loop.trigger(topic.record)
    stage.finish(loop)
    assert (stage.runs(bad), stage.runs(good)) == ([], [RunState.SUCCESS])
    error = stage.metadata.compaction_state.get(bad.record.id).last_error
    assert "the policy compaction.event-time-order of its topic cannot be read" in error


def test_automatic_compaction_may_be_off_and_requests_are_executed_still(stage: Stage) -> None:
    loop, topic = stage.lead(replace(SETTINGS, automatic=False)), stage.topic("t", 3)
    stage.metadata.policies.set(BROKER, "compaction.threshold.messages", 1)
    stage.finish(loop)
    assert stage.runs(topic) == []
    loop.trigger(topic.record)
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS]


def test_no_more_jobs_at_once_than_lanes_and_small_topics_go_together(stage: Stage) -> None:
    settings = replace(SETTINGS, small_bytes=20, batch=4)
    loop = stage.lead(settings)
    small = [stage.topic(f"small{number}", 1) for number in range(10)]
    large = [stage.topic(f"large{number}", 10) for number in range(4)]
    stage.engines.go.clear()
    for topic in (*large, *small):
        loop.trigger(topic.record)
        stage.clock.advance(1)
    loop.look()
    stage.engines.wait_for(3)
    loop.look()
    assert loop._worker.busy() == (2, 1)
    assert len(stage.metadata.runs.newest(99, state=RunState.RUNNING)) == 2 + 4
    stage.engines.go.set()
    stage.finish(loop)
    assert stage.engines.most <= 3
    assert all(stage.runs(topic) == [RunState.SUCCESS] for topic in (*small, *large))
    assert stage.engines.opened == 4 + 3, "a job a large topic, and one for each four small ones"


def test_a_topic_that_fails_waits_and_never_stops_the_others(stage: Stage) -> None:
    """S6: its failures are counted and shown, the next try comes later each time, and a success clears them."""
    loop = stage.lead()
    good, bad = stage.topic("good"), stage.topic("bad")
    damage(stage, bad)
    for topic in (good, bad):
        loop.trigger(topic.record)
    stage.finish(loop)
    assert stage.runs(good) == [RunState.SUCCESS]
    waits = []
    for failures in range(1, 5):
        control = stage.control.get(bad.record.id)
        assert control.failures == failures
        assert stage.status(bad) == ("ERROR", control.last_error)
        assert "does not exist" in control.last_error
        assert control.retry_at is not None
        waits.append(control.retry_at - stage.clock.now_ms())
        stage.clock.advance(waits[-1] - 1)
        loop.beat()
        stage.finish(loop)
        assert stage.control.get(bad.record.id).failures == failures, "not yet"
        stage.clock.advance(1)
        loop.beat()
        stage.finish(loop)
    worker = SETTINGS.worker
    for number, wait in enumerate(waits):
        whole = min(worker.retry_most_ms, worker.retry_first_ms * 2**number)
        assert whole / 2 <= wait <= whole
    before = stage.control.get(bad.record.id).failures
    loop.trigger(bad.record)
    stage.finish(loop)
    assert stage.control.get(bad.record.id).failures == before + 1, "a trigger does not wait"
    mend(stage, bad)
    loop.trigger(bad.record)
    stage.finish(loop)
    assert stage.control.get(bad.record.id).failures == 0
    assert stage.status(bad) == ("SUCCESS", "")


class Watching:
    """Engines that look at something each time a phase begins."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.seen: list[object] = []
        self._look = look

    def open(self) -> Engine:
        watching = self

        class Watched(InProcess):
            def run(self, *arguments: Any) -> Any:
                watching.seen.append(watching._look())
                return super().run(*arguments)

        return Watched()

    def end(self) -> None:
        return

    def close(self) -> None:
        return


def test_a_failure_is_recorded_with_the_end_of_its_run(stage: Stage) -> None:
    """S6: whoever is killed while the rest of the job goes on loses no next try."""
    good, bad = stage.topic("good"), stage.topic("bad")
    damage(stage, bad)
    stage.bench.store.delete(bad.snapshot().ledgers[0].index.name)  # so that phase one fails
    failing = lambda: (stage.runs(bad)[-1:], stage.control.get(bad.record.id).failures)  # noqa: E731
    engines = Watching(failing)
    loop = stage.service(engines=engines)  # type: ignore[arg-type]
    loop.beat()
    for topic in (good, bad):
        loop.trigger(topic.record)
    loop.look()
    stage.settle(loop)
    assert engines.seen == [([RunState.RUNNING], 0), ([RunState.ERROR], 1)]
    control = stage.control.get(bad.record.id)
    assert control.failures == 1, "and once"
    assert control.retry_at is not None


def test_a_run_that_was_cancelled_before_it_failed_is_no_failure(stage: Stage) -> None:
    bad = stage.topic("bad")
    damage(stage, bad)
    engines = Watching(
        lambda: stage.metadata.runs.cancel(stage.metadata.runs.of_topic(bad.record.id, 1)[0].run_id, "ann")
    )
    loop = stage.service(engines=engines)  # type: ignore[arg-type]
    loop.beat()
    loop.trigger(bad.record)
    loop.look()
    stage.settle(loop)
    assert stage.runs(bad) == [RunState.CANCELLED]
    assert stage.control.get(bad.record.id).failures == 0


def test_a_tail_that_a_run_had_to_leave_is_tried_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked gets all that there was then, later; meanwhile the topic is shown as failing."""
    loop, topic = stage.lead(), stage.topic("t")
    topic.keeper().settle(topic.record)
    produce(topic, [one(b"tail", b"v")])
    with monkeypatch.context() as patched:
        held = LeaseHeld("a writer was asked to roll and did not", "try again")
        patched.setattr(TwoPhaseCompactor, "_settle", lambda *_: held)
        loop.trigger(topic.record)
        stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert view(compacted_only(topic)) == {b"key 0": b"value"}
    status, told = stage.status(topic)
    assert (status, "was asked to roll" in told) == ("ERROR", True)
    stage.clock.advance(SETTINGS.worker.retry_first_ms)
    loop.beat()
    stage.finish(loop)
    assert stage.status(topic) == ("SUCCESS", "")
    assert view(compacted_only(topic)) == {b"key 0": b"value", b"tail": b"v"}


def test_a_failure_that_cannot_be_recorded_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database goes away with the run: the log is then the only place that knows why it failed."""
    bad = stage.topic("bad")
    damage(stage, bad)
    loop = stage.lead()

    def away(*_: Any) -> int:
        raise Unavailable("no database", "try again")

    monkeypatch.setattr(stage.control, "fail_run", away)
    loop.trigger(bad.record)
    loop.look()
    stage.settle(loop)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [("does not exist" in one, "no database" in one) for one in told] == [(True, True)], told


def damage(stage: Stage, topic: Topic) -> None:
    """Its ledger's rows are not what they were."""
    topic.keeper().settle(topic.record)
    (ledger,) = topic.snapshot().ledgers
    stage.bench.store.put("kept aside", stage.bench.store.get(ledger.rows.name))
    stage.bench.store.delete(ledger.rows.name)


def mend(stage: Stage, topic: Topic) -> None:
    (ledger,) = topic.snapshot().ledgers
    stage.bench.store.put(ledger.rows.name, stage.bench.store.get("kept aside"))


def test_an_engine_that_cannot_start_is_no_topics_fault(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    assert loop.engine_error is None
    stage.engines.fails = Unavailable("no Spark", "start it")
    loop.trigger(topic.record)
    for _ in range(3):
        loop.look()
        stage.settle(loop)
        stage.clock.advance(6_000)
        loop.beat()
    assert stage.engines.opened == 3
    assert [one for one in caplog.messages if "no Spark" in one] == [
        "compactions cannot begin, and wait: no Spark: start it"
    ], "once, not every few seconds"
    assert loop.engine_error == "no Spark: start it"
    loop.look()
    stage.settle(loop)
    assert len(stage.control.requests()) == 1
    assert stage.control.get(topic.record.id).failures == 0
    opened = stage.engines.opened
    loop.look()
    assert stage.engines.opened == opened, "it is held for some seconds"
    stage.engines.fails = None
    stage.clock.advance(6_000)
    loop.beat()
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert loop.engine_error == ""


def test_what_is_held_or_waits_for_its_next_try_does_so_no_longer_if_the_clock_is_set_back(stage: Stage) -> None:
    loop = stage.lead()
    held, bad = stage.topic("held"), stage.topic("bad")
    damage(stage, bad)
    loop.trigger(bad.record)
    stage.finish(loop)
    stage.engines.fails = Unavailable("no Spark", "start it")
    loop.trigger(held.record)
    loop.look()
    stage.settle(loop)
    stage.engines.fails = None
    mend(stage, bad)
    stage.clock.advance(-24 * 3_600_000)
    loop.beat()
    stage.finish(loop)
    assert stage.runs(held) == [RunState.SUCCESS]
    assert stage.runs(bad) == [RunState.ERROR, RunState.SUCCESS]


def test_a_leader_that_slept_begins_nothing(stage: Stage) -> None:
    """It wakes up with requests in hand, and another one leads: SQL says no, even if it trusts its clock."""
    asleep, other = stage.lead(), stage.service()
    topic = stage.topic("t")
    asleep.trigger(topic.record)
    stage.clock.advance(TERM)
    assert not asleep.leads
    asleep.look()
    assert (stage.engines.opened, stage.runs(topic)) == (0, [])
    other.beat()
    assert other.leads
    asleep._leadership._trusted_until = 2**60
    assert asleep.leads, "its clock is wrong"
    asleep.look()
    stage.settle(asleep)
    assert stage.runs(topic) == []
    assert len(stage.control.requests()) == 1
    stage.finish(other)
    assert stage.runs(topic) == [RunState.SUCCESS]


def test_a_dead_leaders_runs_and_requests_are_taken_over(stage: Stage) -> None:
    dead, next_one = stage.lead(), stage.service(engines=Engines())
    running, waiting = stage.topic("running"), stage.topic("waiting")
    run = stage.metadata.runs.claim(running.record.id, "host:9:x", {}, RUN_DEAD_MS)  # by a worker that is killed now
    dead.trigger(waiting.record)
    stage.clock.advance(TERM)
    next_one.beat()
    assert next_one.leads
    stage.finish(next_one)
    assert stage.runs(waiting) == [RunState.SUCCESS]
    assert stage.runs(running) == [RunState.RUNNING], "its heart may beat again"
    stage.clock.advance(RUN_DEAD_MS - TERM)
    next_one.beat()
    stage.finish(next_one)
    assert stage.runs(running) == [RunState.ERROR, RunState.SUCCESS]
    assert "stopped answering" in stage.metadata.runs.get(run.run_id).error
    stage.finish(next_one)
    assert stage.runs(running) == [RunState.ERROR, RunState.SUCCESS], "once"


def test_the_end_of_a_service_lets_runs_finish(stage: Stage) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    stage.engines.go.clear()
    loop.trigger(topic.record)
    loop.look()
    stage.engines.wait_for()
    threading.Timer(0.1, stage.engines.go.set).start()
    loop.drain(HOLD_SECONDS)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert stage.engines.closed
    assert stage.metadata.services.leader() is None
    assert stage.metadata.services.live() == []


def test_what_does_not_finish_in_time_is_handed_over(stage: Stage) -> None:
    settings = replace(SETTINGS, worker=replace(SETTINGS.worker, slots=1))
    loop = stage.lead(settings)
    topic, waiting = stage.topic("t"), stage.topic("waiting")
    stage.engines.go.clear()
    loop.trigger(topic.record)
    loop.look()
    stage.engines.wait_for()
    loop.trigger(waiting.record)
    loop.drain(0)
    assert stage.runs(topic) == [RunState.CANCELLED]
    assert [(one.name, control.cause) for one, control in stage.control.requests()] == [
        (TopicName.parse("t"), "interrupted"),
        (TopicName.parse("waiting"), "manual"),
    ]
    stage.engines.go.set()
    following = stage.lead()
    stage.finish(following)
    assert stage.runs(topic) == [RunState.CANCELLED, RunState.SUCCESS]
    assert stage.runs(waiting) == [RunState.SUCCESS]


def test_what_could_not_be_handed_over_is_not_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is away when the run is to be handed over, and back when its worker has stopped."""
    loop, topic = stage.lead(), stage.topic("t")
    stage.engines.go.clear()
    loop.trigger(topic.record)
    loop.look()
    stage.engines.wait_for()
    hand_over, away = stage.control.hand_over, [True]

    def first_away(*arguments: Any) -> bool:
        if away.pop() if away else False:
            raise Unavailable("no database", "try again")
        return hand_over(*arguments)

    monkeypatch.setattr(stage.control, "hand_over", first_away)
    loop.drain(0)
    stage.engines.go.set()
    stage.clock.advance(RUN_DEAD_MS)
    stage.finish(stage.lead())
    assert stage.runs(topic)[-1] is RunState.SUCCESS
    assert stage.control.get(topic.record.id).failures == 0


@pytest.mark.parametrize("how", ["pause", "cancel", "abort"])
def test_a_running_compaction_is_stopped(stage: Stage, how: str) -> None:
    settings = replace(SETTINGS, worker=replace(SETTINGS.worker, run_dead_ms=300))
    loop = stage.lead(settings)
    topic, other = stage.topic("t"), stage.topic("other")
    stage.engines.go.clear()
    loop.trigger(topic.record)
    loop.look()
    stage.engines.wait_for()
    if how == "pause":
        assert loop.pause(topic.record).aborting
    elif how == "abort":
        assert stage.control.abort(topic.record.id).aborting
    else:
        (run,) = stage.metadata.runs.of_topic(topic.record.id, 9)
        stage.metadata.runs.cancel(run.run_id, "ann wanted it")
    stage.settle(loop)  # the heart hears of it and stops the engine, which nobody let go
    assert stage.runs(topic) == [RunState.CANCELLED]
    control = stage.control.get(topic.record.id)
    assert (control.aborting, control.failures, control.paused) == (False, 0, int(how == "pause"))
    stage.engines.go.set()
    if how == "pause":
        with pytest.raises(CompactionPaused):
            loop.trigger(topic.record)
        loop.trigger(other.record)
        stage.finish(loop)
        stage.control.resume(topic.record.id)
    loop.trigger(topic.record)
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.CANCELLED, RunState.SUCCESS]


def test_dirtiest_first_when_there_is_one_lane(stage: Stage) -> None:
    settings = replace(SETTINGS, small_bytes=0, worker=replace(SETTINGS.worker, slots=1))
    topics = {number: stage.topic(f"t{number}", 4) for number in range(3)}
    for topic in topics.values():
        stage.bench.compact(topic)
    for number, more in ((0, 2), (1, 9), (2, 5)):
        produce(topics[number], [one(b"new %d" % key, b"v") for key in range(more)])
        stage.metadata.policies.set(topic_scope(topics[number].record), "compaction.threshold.messages", 1)
    loop = stage.lead(settings)
    for _ in range(4):
        loop.look()
        stage.settle(loop)
    order = [name.topic for name, run in reversed(stage.metadata.runs.newest(99)) if run.cause == "threshold.messages"]
    assert order == ["t1", "t2", "t0"]


def test_it_runs_by_itself(stage: Stage) -> None:
    """With its threads, as a service has it."""
    stage.metadata.policies.set(BROKER, "compaction.threshold.messages", 1)
    due, asked = stage.topic("due", 2), stage.topic("asked")
    loop = stage.service()
    loop.start()
    assert until(lambda: stage.runs(due) == [RunState.SUCCESS])
    loop.trigger(asked.record)
    assert until(lambda: stage.runs(asked) == [RunState.SUCCESS])
    loop.serve_at("http://moved")
    assert [one.url for one in stage.metadata.services.live()] == ["http://moved"]
    loop.drain(HOLD_SECONDS)
    assert stage.engines.closed
