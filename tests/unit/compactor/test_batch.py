"""Many runs in the jobs of one engine: what fails fails alone, who is fenced ends, all the others publish."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compactor.batch import BatchRunner, Job, Outcome, StallDetector, TaskSet, join_task_sets
from compactor.engines.engine import InProcessEngine, SilentProgress
from compactor.run.plan import Sizing
from storage.errors import CompactorError, Fenced, ObjectMissing, TopicNotFound, Unavailable
from storage.metadata.records import RunRecord, RunState
from storage.model import TopicName
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.workbench import HookedEngine, Workbench, acting_in, compacted_only, content, failing_in

HOLD_SECONDS = 60
"""What must come from another thread has come long before; or the test fails."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench.embedded(tmp_path, sizing=Sizing(1, topics_per_job=100))
    yield bench
    bench.metadata.close()


def topics(bench: Workbench, *names: str) -> list[Topic]:
    """Topics with a message each."""
    created = [bench.topic(name) for name in names]
    for topic in created:
        bench.append(topic, [content((b"k", topic.name.topic.encode()))])
    return created


def compact_all(bench: Workbench, some: Sequence[Topic], engine: InProcessEngine | None = None) -> list[Outcome]:
    return list(
        replace(bench, engine=engine or InProcessEngine()).compactor().compact_all([topic.name for topic in some])
    )


def beating_batch(
    bench: Workbench, some: Sequence[Topic], engine: InProcessEngine, stalled_ms: float = math.inf
) -> Callable[[], list[Outcome]]:
    """Compacts the topics with each call, as one batch whose runs' heartbeats come every 15 ms."""
    compactor = replace(replace(bench, engine=engine).compactor(), heartbeat_ms=15, stalled_ms=stalled_ms)
    return lambda: list(compactor.compact_all([topic.name for topic in some]))


def last_run(topic: Topic) -> RunRecord:
    last = topic.snapshot().last_run
    assert last is not None
    return last


def cancel(bench: Workbench, *some: Topic) -> None:
    for topic in some:
        bench.metadata.runs.cancel(last_run(topic).run_id, "not wanted")


def state(topic: Topic) -> tuple[RunState, str]:
    last = last_run(topic)
    return last.state, str(last.error)


def assert_published(topic: Topic) -> None:
    assert state(topic) == (RunState.SUCCESS, "")
    assert [message.payload for message in compacted_only(topic)] == [topic.name.topic.encode()]


def test_many_topics_share_the_jobs_and_keep_their_order(bench: Workbench) -> None:
    some, engine = topics(bench, "e", "a", "d", "b", "c"), HookedEngine()
    outcomes = compact_all(bench, some, engine)
    assert [outcome.topic for outcome in outcomes] == [topic.name for topic in some]
    assert [outcome.compacted_ledger_id for outcome in outcomes] == [
        compacted.ledger_id for topic in some if (compacted := topic.snapshot().compacted)
    ]
    assert engine.jobs == [5, 5]
    assert [len(weights or ()) for weights in engine.weights] == [5, 5]
    for topic in some:
        assert_published(topic)


def test_a_batch_is_no_larger_than_asked_and_claims_no_earlier(bench: Workbench) -> None:
    some = topics(bench, "a", "b", "c", "d", "e")
    running: list[int] = []

    def count_running(_: int) -> None:
        running.append(sum(1 for topic in some if topic.snapshot().last_run is not None))

    engine = HookedEngine(count_running)
    outcomes = compact_all(bench.with_sizing(Sizing(1, topics_per_job=2)), some, engine)
    assert engine.jobs == [2, 2, 2, 2, 1, 1]
    assert running == [2, 2, 4, 4, 5, 5]
    assert [outcome.topic for outcome in outcomes] == [topic.name for topic in some]


def test_runs_of_a_batch_may_be_in_different_phases(bench: Workbench) -> None:
    """A topic without survivors has no phase two; one with nothing new has no run (P11)."""
    some = topics(bench, "a", "b", "c")
    bench.compact(some[0])
    bench.append(some[1], [content((b"k", None))])
    engine = HookedEngine()
    outcomes = compact_all(bench, some, engine)
    assert [outcome.run is None for outcome in outcomes] == [True, False, False]
    assert all(outcome.error is None for outcome in outcomes)
    assert engine.jobs == [2, 1]
    assert compacted_only(some[1]) == []
    assert_published(some[2])


# --- who fails, fails alone


def test_a_topic_that_is_not_there_fails_alone(bench: Workbench) -> None:
    some = topics(bench, "a", "b")
    names = [some[0].name, TopicName.parse("nosuch"), some[1].name]
    outcomes = list(bench.compactor().compact_all(names))
    assert [outcome.topic for outcome in outcomes] == names
    assert isinstance(outcomes[1].error, TopicNotFound)
    assert outcomes[1].run is None
    for topic in some:
        assert_published(topic)


def test_a_topic_that_is_being_compacted_fails_alone(bench: Workbench) -> None:
    some = topics(bench, "a", "b")
    running = bench.metadata.runs.claim(some[0].record.id, "elsewhere", {}, 10_000)
    outcomes = compact_all(bench, some)
    assert f"run {running.run_id}" in str(outcomes[0].error)
    assert bench.metadata.runs.get(running.run_id).state is RunState.RUNNING
    assert_published(some[1])


def test_a_task_that_fails_fails_its_topic_alone(bench: Workbench) -> None:
    some = topics(bench, "a", "b", "c")
    lost = some[1].snapshot().ledgers[0].rows.name
    bench.store.delete(lost)
    outcomes = compact_all(bench, some)
    assert isinstance(outcomes[1].error, ObjectMissing)
    assert state(some[1])[0] is RunState.ERROR
    assert lost in state(some[1])[1]
    assert some[1].snapshot().compacted is None
    assert_published(some[0])
    assert_published(some[2])


def test_a_defect_in_a_run_fails_it_alone(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    some = topics(bench, "a", "b")
    update = bench.metadata.runs.update

    def broken(run: RunRecord, *args: Any, **named: Any) -> RunRecord:
        if run.topic_id == some[0].record.id:
            raise ZeroDivisionError("a defect")
        return update(run, *args, **named)

    monkeypatch.setattr(bench.metadata.runs, "update", broken)
    outcomes = compact_all(bench, some)
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert (state(some[0])[0], state(some[0])[1]) == (RunState.ERROR, "a defect")
    assert_published(some[1])


@pytest.mark.parametrize("phase", [1, 2])
def test_an_engine_that_gives_up_is_asked_again_for_each_run_alone(bench: Workbench, phase: int) -> None:
    """A task that kills its workers takes all of the job with it: the others must not pay for it."""
    together = {1: 1, 2: 2}[phase]

    def gives_up(job: int) -> None:
        if job in (together, together + 2):  # all, and then the second by itself
            raise Unavailable("a worker was killed", "give it more memory")

    some = topics(bench, "a", "b", "c")
    outcomes = compact_all(bench, some, HookedEngine(gives_up))
    assert [str(outcome.error) for outcome in outcomes if outcome.error] == ["a worker was killed: give it more memory"]
    assert [state(topic)[0] for topic in some] == [RunState.SUCCESS, RunState.ERROR, RunState.SUCCESS]
    for topic in (some[0], some[2]):
        assert_published(topic)


def test_an_engine_that_gives_up_on_a_run_alone_fails_it_and_not_the_next_batch(bench: Workbench) -> None:
    some, away = topics(bench, "a", "b"), Unavailable("the cluster is away", "wait")
    outcomes = compact_all(bench.with_sizing(Sizing(1, topics_per_job=1)), some, failing_in(1, away))
    assert str(outcomes[0].error) == str(away)
    assert [state(topic)[0] for topic in some] == [RunState.ERROR, RunState.SUCCESS]


@pytest.mark.parametrize("phase", [1, 2])
def test_ctrl_c_is_recorded_in_every_run_under_way(bench: Workbench, phase: int) -> None:
    some = topics(bench, "a", "b")
    with pytest.raises(KeyboardInterrupt):
        compact_all(bench, some, failing_in(phase, KeyboardInterrupt()))
    assert [state(topic) for topic in some] == [(RunState.ERROR, "interrupted")] * 2
    compact_all(bench, some)
    for topic in some:
        assert_published(topic)


def test_a_database_that_is_away_between_phases_fails_no_run(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> list[int]:
        raise Unavailable("the database is away", "wait")

    some = topics(bench, "a", "b")
    monkeypatch.setattr(bench.metadata.runs, "heartbeat", away)
    assert [outcome.error for outcome in compact_all(bench, some)] == [None, None]


def test_a_failure_that_cannot_be_recorded_is_still_the_one_that_is_reported(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic,) = topics(bench, "a")
    bench.store.delete(topic.snapshot().ledgers[0].rows.name)

    def away(*_: Any) -> RunRecord:
        raise Unavailable("the database is away", "wait")

    monkeypatch.setattr(bench.metadata.runs, "fail", away)
    (outcome,) = compact_all(bench, [topic])
    assert isinstance(outcome.error, ObjectMissing)
    assert any("the database is away" in note for note in outcome.error.__notes__)


# --- who is fenced, ends


@pytest.mark.parametrize("phase", [1, 2])
def test_a_run_that_is_cancelled_ends_alone(bench: Workbench, phase: int) -> None:
    some = topics(bench, "a", "b", "c")

    engine = acting_in(phase, lambda: cancel(bench, some[1]))
    outcomes = compact_all(bench, some, engine)
    assert isinstance(outcomes[1].error, CompactorError)
    assert state(some[1]) == (RunState.CANCELLED, "not wanted")
    assert some[1].snapshot().compacted is None
    assert engine.jobs == ([3, 2] if phase == 1 else [3, 3])
    assert not engine.cancelled.is_set()
    assert_published(some[0])
    assert_published(some[2])


def test_when_all_are_cancelled_no_work_is_done_for_them(bench: Workbench) -> None:
    some = topics(bench, "a", "b")
    engine = HookedEngine(lambda _: cancel(bench, *some))
    outcomes = compact_all(bench, some, engine)
    assert engine.jobs == [2]
    assert engine.cancelled.is_set()
    assert all(isinstance(outcome.error, CompactorError) for outcome in outcomes)
    assert [state(topic)[0] for topic in some] == [RunState.CANCELLED] * 2


def test_a_run_that_ends_between_two_heartbeats_cancels_nothing(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that comes after the publication counts its run as fenced; the engine may serve others by then."""
    (topic,) = topics(bench, "a")
    heartbeat, publish = bench.metadata.runs.heartbeat, bench.metadata.publishing.publish
    beats: list[int] = []
    publishes, late = threading.Event(), threading.Event()

    def counting(runs: Sequence[RunRecord], progress: Mapping[int, Mapping[str, object]]) -> Sequence[int]:
        if not publishes.is_set():
            return heartbeat(runs, progress)
        beats.append(len(runs))
        if len(beats) > 1:  # so what the first has led to is done
            late.set()
        return [run.run_id for run in runs]

    def publishing(*arguments: Any) -> RunRecord:
        publishes.set()
        assert late.wait(HOLD_SECONDS)
        return publish(*arguments)

    monkeypatch.setattr(bench.metadata.runs, "heartbeat", counting)
    monkeypatch.setattr(bench.metadata.publishing, "publish", publishing)
    engine = HookedEngine()
    (outcome,) = beating_batch(bench, [topic], engine)()
    assert outcome.error is None
    assert not engine.cancelled.is_set()


def test_a_job_of_which_all_runs_are_cancelled_is_stopped_while_it_runs(bench: Workbench) -> None:
    """The heartbeat hears of it; the batch does not wait for the end of a phase."""
    some = topics(bench, "a", "b")

    def cancel_and_hold(_: int) -> None:
        cancel(bench, *some)
        assert engine.cancelled.wait(HOLD_SECONDS)
        raise Fenced("the compaction was cancelled", "start it again")

    engine = HookedEngine(cancel_and_hold)
    outcomes = beating_batch(bench, some, engine)()
    assert all(isinstance(outcome.error, CompactorError) for outcome in outcomes)
    assert [state(topic) for topic in some] == [(RunState.CANCELLED, "not wanted")] * 2


def test_a_job_of_which_no_task_ends_is_stopped_and_its_runs_fail(bench: Workbench) -> None:
    """Whatever hangs, a store or Spark's workers: a run would be RUNNING forever. A job that continues is left
    alone.
    """
    clock = bench.clock
    some = topics(bench, "a", "b")
    stalls = [True, False]

    class Stalls(InProcessEngine):
        cancelled = threading.Event()

        def run(
            self, count: int, task: Callable[[int], Any], on_progress: Callable[[int], None], weights: Any = None
        ) -> list[Any]:
            clock.advance(900)
            on_progress(1)
            clock.advance(900)
            if stalls and stalls.pop(0):
                clock.advance(101)
                assert self.cancelled.wait(HOLD_SECONDS)
                raise Fenced("the compaction was cancelled", "start it again")
            return super().run(count, task, on_progress, weights)

        def cancel(self) -> None:
            self.cancelled.set()

    compact = beating_batch(bench, some, Stalls(), 1000)
    outcomes = compact()
    assert [type(outcome.error) for outcome in outcomes] == [Unavailable, Unavailable]
    assert stalls == [False], "no run is asked again alone: each would be still as long"
    for topic in some:
        assert state(topic)[0] is RunState.ERROR
        assert state(topic)[1].startswith("no task of phase one ended for 1 s, so it was stopped")
    assert all(outcome.error is None for outcome in compact())


def test_the_time_for_which_a_job_waits_for_cores_is_not_stillness() -> None:
    """Spark gives cores to the job that came first: a long one of another worker's holds up all others."""
    clock = ManualClock(0)
    detector = StallDetector(clock, 1000)
    detector.begin_job()
    for _ in range(3):
        clock.advance(5000)
        assert not detector.check_stalled(is_waiting=True)
    clock.advance(1000)
    assert not detector.check_stalled(is_waiting=False)
    clock.advance(1)
    assert detector.check_stalled(is_waiting=False)


# --- what the runs' rows say meanwhile


def test_the_rows_of_all_runs_follow_their_progress(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    some = topics(bench, "a", "b")
    at_half = threading.Event()
    beat = bench.metadata.runs.heartbeat

    def watched(runs: Any, progress: Mapping[int, Mapping[str, object]]) -> list[int]:
        fenced = beat(runs, progress)
        if all(item.get("tasks_done") == 1 for item in progress.values()):
            at_half.set()
        return fenced

    monkeypatch.setattr(bench.metadata.runs, "heartbeat", watched)
    seen: list[Mapping[str, object]] = []

    class Halfway(InProcessEngine):
        def run(self, count: int, task: Any, on_progress: Any, weights: Any = None) -> list[Any]:
            seen.extend({"phase": last.phase, **last.statistics} for last in map(last_run, some))
            on_progress(count // 2)
            assert at_half.wait(HOLD_SECONDS)
            seen.extend({"phase": last.phase, **last.statistics} for last in map(last_run, some))
            return [number * number for number in range(count)]

    def steps(name: str) -> Any:
        answers = yield TaskSet(f"phase of {name}", abs, range(2), [100.0, 300.0], 7)
        return answers

    def claim(name: TopicName) -> Job:
        run = bench.metadata.runs.claim(bench.metadata.topics.get(name).id, "test", {}, 10_000)
        return Job(name, run, steps(name.topic))

    batch = BatchRunner(bench.metadata, Halfway(), SilentProgress(), heartbeat_ms=15)
    outcomes = list(batch.run([item.name for item in some], claim, 10))
    begun = [{"phase": f"phase of {n}", "tasks_done": 0, "tasks_total": 2, "bytes_done": 0} for n in "ab"]
    half = [{"phase": f"phase of {n}", "tasks_done": 1, "tasks_total": 2, "bytes_done": 200} for n in "ab"]
    assert seen == [*begun, *half]
    assert [outcome.run for outcome in outcomes] == [[0, 1], [4, 9]]  # answers went to who had asked


def test_tasks_of_several_works_travel_as_one_sequence() -> None:
    """Each task is called with its own inputs."""
    works = [
        TaskSet("one", partial(pow, 2), range(3), [1.0] * 3, 0),
        TaskSet("none", partial(pow, 3), (), [], 0),
        TaskSet("two", partial(pow, 5), [7, 1], [1.0] * 2, 0),
    ]
    travelled = pickle.loads(pickle.dumps(join_task_sets(works)))
    assert [travelled(number) for number in range(5)] == [1, 2, 4, 5**7, 5]
