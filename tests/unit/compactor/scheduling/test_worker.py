"""The worker behind the control loop: failures and the next try, slots, runs that are stopped or handed over (S6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from compactor.engines.engine import Engine, InProcessEngineProvider
from storage.errors import CompactionPaused, LeaseHeld, Unavailable
from storage.log.log_manager import LogManager
from storage.metadata.records import RUN_DEAD_MS, RunState, TopicRecord
from storage.model import TopicName
from storage.topic import Topic
from tests.entries import produce, single
from tests.unit.compactor.scheduling.stage import HOLD_SECONDS, SETTINGS, Stage
from tests.workbench import HookedEngine, compacted_only, view


@pytest.mark.slow
def test_no_more_jobs_at_once_than_lanes_and_small_topics_go_together(stage: Stage) -> None:
    settings = replace(SETTINGS, small_bytes=20, batch=4)
    loop = stage.lead(settings)
    small = [stage.topic(f"small{number}", 1) for number in range(10)]
    large = [stage.topic(f"large{number}", 10) for number in range(4)]
    stage.engines.go.clear()
    for topic in (*large, *small):
        loop.trigger(topic.record)
        stage.clock.advance(1)
    loop.poll()
    stage.engines.wait_for(3)
    loop.poll()
    assert loop.worker.busy_slots() == (2, 1)
    assert len(stage.metadata.runs.newest(99, state=RunState.RUNNING)) == 2 + 4
    stage.engines.go.set()
    stage.finish(loop)
    assert stage.engines.peak <= 3
    assert all(stage.runs(topic) == [RunState.SUCCESS] for topic in (*small, *large))
    assert stage.engines.opened == 4 + 3, "a job a large topic, and one for each four small ones"


def test_spark_is_opened_before_a_run_that_needs_it_and_for_no_other(stage: Stage) -> None:
    """Also for no other large topic: a run of that may fit the process, and the start of Spark takes seconds."""
    loop = stage.lead(replace(SETTINGS, small_bytes=20, in_process_bytes=200))
    for messages in (10, 100):
        topic = stage.topic(f"with {messages} messages", messages)
        stage.finish(loop, topic)
        assert stage.runs(topic) == [RunState.SUCCESS]
    assert stage.engines.opened_large == [False, True]


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
        control = stage.state(bad)
        assert control.failures == failures
        assert stage.status(bad) == ("ERROR", str(control.last_error))
        assert "does not exist" in str(control.last_error)
        assert control.retry_at is not None
        waits.append(control.retry_at - stage.clock.now_ms())
        stage.finish(loop, after_ms=waits[-1] - 1)
        assert stage.state(bad).failures == failures, "not yet"
        stage.finish(loop, after_ms=1)
    worker = SETTINGS.worker
    for number, wait in enumerate(waits):
        whole = min(worker.retry_max_ms, worker.retry_first_ms * 2**number)
        assert whole / 2 <= wait <= whole
    before = stage.state(bad).failures
    stage.finish(loop, bad)
    assert stage.state(bad).failures == before + 1, "a trigger does not wait"
    mend(stage, bad)
    stage.finish(loop, bad)
    assert stage.state(bad).failures == 0
    assert stage.status(bad) == ("SUCCESS", "")


class Watching(InProcessEngineProvider):
    """Engines that check something each time a phase begins."""

    def __init__(self, check: Callable[[], object]) -> None:
        self.seen: list[object] = []
        self._check = check

    def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
        return HookedEngine(lambda _: self.seen.append(self._check()))


def test_a_failure_is_recorded_with_the_end_of_its_run(stage: Stage) -> None:
    """S6: a process that is killed while the rest of the job continues loses no next try."""
    good, bad = stage.topic("good"), stage.topic("bad")
    damage(stage, bad)
    stage.bench.store.delete(bad.snapshot().ledgers[0].index.name)  # so that phase one fails
    failing = lambda: (stage.runs(bad)[-1:], stage.state(bad).failures)  # noqa: E731
    engines = Watching(failing)
    loop = stage.service(engines=engines)  # type: ignore[arg-type]
    loop.heartbeat()
    for topic in (good, bad):
        loop.trigger(topic.record)
    stage.poll(loop)
    assert engines.seen == [([RunState.RUNNING], 0), ([RunState.ERROR], 1)]
    control = stage.state(bad)
    assert control.failures == 1, "and once"
    assert control.retry_at is not None


def test_a_run_that_was_cancelled_before_it_failed_is_no_failure(stage: Stage) -> None:
    bad = stage.topic("bad")
    damage(stage, bad)
    engines = Watching(
        lambda: stage.metadata.runs.cancel(stage.metadata.runs.of_topic(bad.record.id, 1)[0].run_id, "ann")
    )
    loop = stage.service(engines=engines)  # type: ignore[arg-type]
    loop.heartbeat()
    stage.poll(loop, bad)
    assert stage.runs(bad) == [RunState.CANCELLED]
    assert stage.state(bad).failures == 0


def test_a_tail_that_a_run_could_not_seal_is_tried_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request gets all messages of its time, but later. Meanwhile the topic is shown as failing."""
    loop, topic = stage.lead(), stage.topic("t")
    topic.log_manager().roll_and_seal(topic.record)
    produce(topic, [single(b"tail", b"v")])
    with monkeypatch.context() as patched:
        held = LeaseHeld("a writer was asked to roll and did not", "try again")
        patched.setattr(LogManager, "try_roll_and_seal", lambda *_: held)
        stage.finish(loop, topic)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert view(compacted_only(topic)) == {b"key 0": b"value"}
    status, answer = stage.status(topic)
    assert (status, "was asked to roll" in answer) == ("ERROR", True)
    stage.finish(loop, after_ms=SETTINGS.worker.retry_first_ms)
    assert stage.status(topic) == ("SUCCESS", "")
    assert view(compacted_only(topic)) == {b"key 0": b"value", b"tail": b"v"}


def test_a_failure_that_cannot_be_recorded_is_logged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database goes away with the run: the log is then the only place that knows why it failed."""
    bad = stage.topic("bad")
    damage(stage, bad)
    loop = stage.lead()

    def away(*_: Any) -> int:
        raise Unavailable("no database", "try again")

    monkeypatch.setattr(stage.control, "fail_run", away)
    stage.poll(loop, bad)
    answer = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [("does not exist" in item, "no database" in item) for item in answer] == [(True, True)], answer


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_topic_that_is_created_again_while_its_job_waits_is_compacted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_damaged: bool
) -> None:
    """The job knows the old topic; its run is of the new one, and ends."""
    loop, old = stage.lead(), stage.topic("t")
    created: list[Topic] = []
    begin = loop.worker.begin

    def create_again(topics: Sequence[TopicRecord], *, large: bool, opens_spark: bool, engine_kind: str | None) -> None:
        if not created:
            stage.metadata.tenancy.delete_topic(old.record.id, force=True)
            created.append(stage.topic("t"))
            if is_damaged:
                damage(stage, created[0])
            loop.trigger(created[0].record)
        begin(topics, large=large, opens_spark=opens_spark, engine_kind=engine_kind)

    monkeypatch.setattr(loop.worker, "begin", create_again)
    stage.poll(loop, old)
    assert stage.runs(created[0]) == [RunState.ERROR if is_damaged else RunState.SUCCESS]
    assert stage.state(created[0]).failures == int(is_damaged)
    if is_damaged:
        assert any("compaction of run " in item and "does not exist" in item for item in caplog.messages)


def damage(stage: Stage, topic: Topic) -> None:
    """Its ledger's rows are not what they were."""
    topic.log_manager().roll_and_seal(topic.record)
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
        stage.poll(loop)
        stage.clock.advance(6_000)
        loop.heartbeat()
    assert stage.engines.opened == 3
    assert [message for message in caplog.messages if "no Spark" in message] == [
        "compactions wait because no engine is available: no Spark: start it"
    ], "once, not every few seconds"
    assert loop.engine_error == "no Spark: start it"
    stage.poll(loop)
    assert len(stage.control.requests()) == 1
    assert stage.state(topic).failures == 0
    opened = stage.engines.opened
    loop.poll()
    assert stage.engines.opened == opened, "it is held for some seconds"
    stage.engines.fails = None
    stage.finish(loop, after_ms=6_000)
    assert stage.runs(topic) == [RunState.SUCCESS]


def test_a_missing_spark_is_stated_while_small_jobs_need_none(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    worker, engines = stage.lead().worker, stage.engines
    worker.open_engine(large=False)
    assert worker.engine_error == ""
    engines.fails, engines.only_large_fail = Unavailable("no Spark", "start it"), True
    for _ in range(2):
        with pytest.raises(Unavailable):
            worker.open_engine(large=True)
        worker.open_engine(large=False)
        assert worker.engine_error == "no Spark: start it"
    engines.fails = None
    worker.open_engine(large=True, kind="in-process")
    assert worker.engine_error == "no Spark: start it"
    worker.open_engine(large=True)
    assert worker.engine_error == ""
    texts = [message.partition(":")[0] for message in caplog.messages if message.startswith("compactions")]
    assert texts == ["compactions wait because no engine is available", "compactions continue"]


def test_what_is_held_or_waits_for_its_next_try_does_so_no_longer_if_the_clock_is_set_back(stage: Stage) -> None:
    loop = stage.lead()
    held, bad = stage.topic("held"), stage.topic("bad")
    damage(stage, bad)
    stage.finish(loop, bad)
    stage.engines.fails = Unavailable("no Spark", "start it")
    stage.poll(loop, held)
    stage.engines.fails = None
    mend(stage, bad)
    stage.finish(loop, after_ms=-24 * 3_600_000)
    assert stage.runs(held) == [RunState.SUCCESS]
    assert stage.runs(bad) == [RunState.ERROR, RunState.SUCCESS]


def test_the_end_of_a_service_lets_runs_finish(stage: Stage) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    stage.hold(loop, topic)
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
    stage.hold(loop, topic)
    loop.trigger(waiting.record)
    loop.drain(0)
    assert stage.runs(topic) == [RunState.CANCELLED]
    assert [(record.name, control.cause) for record, control in stage.control.requests()] == [
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
    stage.hold(loop, topic)
    cancel_and_request_again, away = stage.control.cancel_and_request_again, [True]

    def first_away(*arguments: Any) -> bool:
        if away.pop() if away else False:
            raise Unavailable("no database", "try again")
        return cancel_and_request_again(*arguments)

    monkeypatch.setattr(stage.control, "cancel_and_request_again", first_away)
    loop.drain(0)
    stage.engines.go.set()
    stage.clock.advance(RUN_DEAD_MS)
    stage.finish(stage.lead())
    assert stage.runs(topic)[-1] is RunState.SUCCESS
    assert stage.state(topic).failures == 0


@pytest.mark.parametrize("how", ["pause", "cancel", "abort"])
def test_a_running_compaction_is_stopped(stage: Stage, how: str) -> None:
    settings = replace(SETTINGS, worker=replace(SETTINGS.worker, run_dead_ms=300))
    loop = stage.lead(settings)
    topic, other = stage.topic("t"), stage.topic("other")
    stage.hold(loop, topic)
    if how == "pause":
        assert stage.control.pause([topic.record.id])[0].aborting
    elif how == "abort":
        assert stage.control.abort([topic.record.id])[0].aborting
    else:
        (run,) = stage.metadata.runs.of_topic(topic.record.id, 9)
        stage.metadata.runs.cancel(run.run_id, "ann wanted it")
    stage.roll_and_seal(loop)  # the heartbeat hears of it and stops the engine, which is still held
    assert stage.runs(topic) == [RunState.CANCELLED]
    control = stage.state(topic)
    assert (control.aborting, control.failures, control.paused) == (False, 0, int(how == "pause"))
    stage.engines.go.set()
    if how == "pause":
        with pytest.raises(CompactionPaused):
            loop.trigger(topic.record)
        stage.finish(loop, other)
        stage.control.resume([topic.record.id])
    stage.finish(loop, topic)
    assert stage.runs(topic) == [RunState.CANCELLED, RunState.SUCCESS]
