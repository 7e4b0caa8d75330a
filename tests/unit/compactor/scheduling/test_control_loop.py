"""The control loop, step by step under an injected clock: one run for a request, whichever process dies (S4, S6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from compactor.scheduling.backlog import BacklogReader
from compactor.two_phase import TwoPhaseCompactor
from storage.errors import CompactionRunning, Unavailable
from storage.log.log_manager import LogManager
from storage.metadata.policy_store import BROKER, topic_scope
from storage.metadata.records import COMPACTION_CURSOR, RUN_DEAD_MS, SERVICE_DEAD_MS, RunState, TopicRecord
from tests.clocks import ManualClock
from tests.entries import produce, single
from tests.unit.compactor.scheduling.stage import HOLD_SECONDS, SETTINGS, TERM, Engines, Stage, until
from tests.workbench import compacted_only, store_policy, view


def test_of_many_triggers_there_is_one_run(stage: Stage) -> None:
    """Property 11, with a status that says so all the time."""
    loop, topic = stage.lead(), stage.topic("t")
    stage.engines.go.clear()
    loop.trigger(topic.record)
    for _ in range(3):
        with pytest.raises(CompactionRunning):
            loop.trigger(topic.record)
        assert stage.status(topic) == ("RUNNING", "")
    loop.poll()
    stage.engines.wait_for()
    for _ in range(3):
        loop.poll()
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
    roll_and_seal = LogManager.try_roll_and_seal

    def settled(manager: LogManager, record: TopicRecord) -> object:
        remaining = roll_and_seal(manager, record)
        if taken == "aborted":
            stage.control.abort([record.id])
        else:
            stage.metadata.runs.succeed_unchanged(stage.metadata.runs.claim(record.id, "hand", {}, RUN_DEAD_MS), {})
        return remaining

    monkeypatch.setattr(LogManager, "try_roll_and_seal", settled)
    stage.poll(loop, topic)
    assert stage.state(topic).failures == 0
    assert stage.status(topic) == (("NOT_RUN" if taken == "aborted" else "SUCCESS"), "")


@pytest.mark.parametrize("fails", [False, True], ids=["nothing new", "fails"])
def test_a_request_that_comes_after_the_check_stays(stage: Stage, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The first check finds nothing new, or fails; a user aborts meanwhile, appends, and asks for another run."""
    loop, topic = stage.lead(), stage.topic("t")
    stage.bench.compact(topic)
    compact_all = TwoPhaseCompactor.compact_all

    def late(compactor: TwoPhaseCompactor, *arguments: Any) -> Iterator[Any]:
        monkeypatch.setattr(TwoPhaseCompactor, "compact_all", compact_all)
        for outcome in compact_all(compactor, *arguments):
            stage.control.abort([topic.record.id])
            stage.clock.advance(1)
            produce(topic, [single(b"another", b"v")])
            loop.trigger(topic.record)
            yield replace(outcome, error=Unavailable("no disk", "try again")) if fails else outcome

    monkeypatch.setattr(TwoPhaseCompactor, "compact_all", late)
    stage.poll(loop, topic)
    assert [str(request.name.topic) for request, _ in stage.control.requests()] == ["t"]
    assert stage.state(topic).failures == int(fails)
    stage.finish(loop)
    assert stage.runs(topic) == [RunState.SUCCESS, RunState.SUCCESS]
    assert stage.control.requests() == []


def test_the_leader_forgets_services_that_were_killed_long_ago(stage: Stage) -> None:
    killed, loop = stage.service(), stage.lead()
    killed.heartbeat()
    known = lambda: [item.name for item in stage.metadata.services.live(10**9)]  # noqa: E731
    assert known() == [killed.name, loop.name]
    for seconds in (60, 239):
        stage.clock.advance(seconds * 1000)
        loop.heartbeat()
        loop.poll()
        assert known() == [killed.name, loop.name]
    stage.clock.advance(60_000)
    loop.heartbeat()
    loop.poll()
    assert known() == [loop.name]


def test_the_end_of_another_services_heartbeat_is_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    services = stage.metadata.services
    killed, left, loop = stage.service(), stage.service(), stage.lead()
    killed.heartbeat()
    services.heartbeat(replace(services.live()[0], name="host:1:elsewhere", url="http://far:8080", log_uid="ab" * 16))
    left.heartbeat()
    services.leave(left.name)
    for _ in range(4):
        stage.clock.advance(SERVICE_DEAD_MS // 2)
        loop.heartbeat()
    lost = [record.getMessage() for record in caplog.records if "without leaving" in record.getMessage()]
    assert len(lost) == 2
    assert "(http://service0)" in "".join(lost)
    assert "(http://far:8080) has ended without leaving; its last heartbeat was 15 s ago" in "".join(lost)
    assert "start it again: its topics are unavailable" in "".join(lost)


def test_what_waits_for_a_lane_is_not_measured(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stage.lead(replace(SETTINGS, worker=replace(SETTINGS.worker, slots=1)))
    topics = [stage.topic(name) for name in "ab"]
    stage.hold(loop, topics[0])
    loop.trigger(topics[1].record)
    with monkeypatch.context() as patched:
        patched.setattr(BacklogReader, "read", None)
        loop.poll()
    stage.engines.go.set()
    stage.finish(loop)
    assert stage.runs(topics[1]) == [RunState.SUCCESS]


def test_a_leader_that_lost_its_leadership_rolls_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    loop.trigger(topic.record)
    begin = loop.worker.begin

    def late(topics: Sequence[TopicRecord], *, large: bool, opens_spark: bool, engine_kind: str | None) -> None:
        stage.clock.advance(TERM)
        begin(topics, large=large, opens_spark=opens_spark, engine_kind=engine_kind)

    monkeypatch.setattr(loop.worker, "begin", late)
    stage.poll(loop)
    assert stage.metadata.segments.find_open(topic.record.id) is not None
    assert len(stage.control.requests()) == 1


def test_a_clock_that_is_set_back_holds_nothing_up(stage: Stage) -> None:
    loop, topic = stage.lead(), stage.topic("t")
    loop.poll()
    stage.metadata.policies.change([BROKER], {"compaction.threshold.bytes": 1})
    stage.finish(loop, after_ms=-3_600_000)
    assert stage.runs(topic) == [RunState.SUCCESS]


def test_only_the_leader_executes_and_anybody_may_ask(stage: Stage) -> None:
    first, second = stage.lead(), stage.service()
    topic = stage.topic("t")
    second.heartbeat()
    assert (first.is_leader, second.is_leader) == (True, False)
    second.trigger(topic.record, by="ann")
    second.poll()
    assert stage.engines.opened == 0
    stage.finish(first)
    assert stage.runs(topic) == [RunState.SUCCESS]
    assert [item.url for item in stage.metadata.services.live()] == ["http://service0", "http://service1"]


def test_what_is_due_is_compacted_when_it_is_checked(stage: Stage) -> None:
    loop, topic = stage.lead(), stage.topic("t", 3)
    stage.metadata.policies.change([BROKER], {"compaction.threshold.messages": 3})
    stage.finish(loop)
    assert stage.runs(topic) == []
    produce(topic, [single(b"another", b"v")])
    stage.finish(loop, after_ms=SETTINGS.monitor_interval_ms - 1)
    assert stage.runs(topic) == [], "it is not checked yet"
    stage.finish(loop, after_ms=1)
    assert stage.runs(topic) == [RunState.SUCCESS]
    (run,) = stage.metadata.runs.of_topic(topic.record.id, 9)
    assert run.cause == "threshold.messages"
    assert loop.last_check is not None
    assert (loop.last_check.topics, loop.last_check.due) == (1, 1)


def test_a_policy_that_cannot_be_read_is_logged_once_and_counted_and_stops_no_other_topic(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    loop, bad, good = stage.lead(), stage.topic("bad", 3), stage.topic("good", 3)
    stage.metadata.policies.change([topic_scope(good.record)], {"compaction.threshold.messages": 1})
    store_policy(stage.metadata, topic_scope(bad.record), "segment.bytes", 1 << 40)
    for _ in range(2):
        stage.finish(loop)
        stage.clock.advance(SETTINGS.monitor_interval_ms)
        loop.heartbeat()
    assert stage.runs(good) == [RunState.SUCCESS]
    assert loop.last_check is not None
    assert loop.last_check.unreadable_policies == 1
    (line,) = [message for message in caplog.messages if "cannot be read" in message]
    assert "the policy segment.bytes of the topic persistent://public/default/bad" in line


def test_a_topic_is_not_compacted_by_an_order_that_cannot_be_read(stage: Stage) -> None:
    loop, bad, good = stage.lead(), stage.topic("bad", 3), stage.topic("good", 3)
    store_policy(stage.metadata, topic_scope(bad.record), "compaction.event-time-order", "ingestion")
    for topic in (bad, good):
        loop.trigger(topic.record)
    stage.finish(loop)
    assert (stage.runs(bad), stage.runs(good)) == ([], [RunState.SUCCESS])
    error = str(stage.state(bad).last_error)
    assert "the policy compaction.event-time-order of its topic cannot be read" in error


def test_automatic_compaction_may_be_off_and_requests_are_executed_still(stage: Stage) -> None:
    loop, topic = stage.lead(replace(SETTINGS, automatic=False)), stage.topic("t", 3)
    stage.metadata.policies.change([BROKER], {"compaction.threshold.messages": 1})
    stage.finish(loop)
    assert stage.runs(topic) == []
    stage.finish(loop, topic)
    assert stage.runs(topic) == [RunState.SUCCESS]


def test_a_leader_that_slept_begins_nothing(stage: Stage) -> None:
    """It wakes up with requests in hand, and another one leads: SQL says no, even if it trusts its clock."""
    clock = ManualClock(stage.clock.now_ms())
    asleep, other = stage.service(clock=clock), stage.service()
    asleep.heartbeat()
    topic = stage.topic("t")
    asleep.trigger(topic.record)
    for each in (clock, stage.clock):
        each.advance(TERM)
    assert not asleep.is_leader
    asleep.poll()
    assert (stage.engines.opened, stage.runs(topic)) == (0, [])
    other.heartbeat()
    assert other.is_leader
    clock.advance(-TERM)
    assert asleep.is_leader, "its clock is wrong"
    stage.poll(asleep)
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
    next_one.heartbeat()
    assert next_one.is_leader
    stage.finish(next_one)
    assert stage.runs(waiting) == [RunState.SUCCESS]
    assert stage.runs(running) == [RunState.RUNNING], "its heart may beat again"
    stage.finish(next_one, after_ms=RUN_DEAD_MS - TERM)
    assert stage.runs(running) == [RunState.ERROR, RunState.SUCCESS]
    assert "stopped answering" in str(stage.metadata.runs.get(run.run_id).error)
    stage.finish(next_one)
    assert stage.runs(running) == [RunState.ERROR, RunState.SUCCESS], "once"


def test_dirtiest_first_when_there_is_one_lane(stage: Stage) -> None:
    settings = replace(SETTINGS, small_bytes=0, worker=replace(SETTINGS.worker, slots=1))
    topics = {number: stage.topic(f"t{number}", 4) for number in range(3)}
    for topic in topics.values():
        stage.bench.compact(topic)
    for number, more in ((0, 2), (1, 9), (2, 5)):
        produce(topics[number], [single(b"new %d" % key, b"v") for key in range(more)])
        stage.metadata.policies.change([topic_scope(topics[number].record)], {"compaction.threshold.messages": 1})
    loop = stage.lead(settings)
    for _ in range(4):
        stage.poll(loop)
    order = [name.topic for name, run in reversed(stage.metadata.runs.newest(99)) if run.cause == "threshold.messages"]
    assert order == ["t1", "t2", "t0"]


def test_it_runs_by_itself(stage: Stage) -> None:
    """With its threads, as a service has it."""
    stage.metadata.policies.change([BROKER], {"compaction.threshold.messages": 1})
    due, triggered = stage.topic("due", 2), stage.topic("triggered")
    loop = stage.service()
    loop.start()
    assert until(lambda: stage.runs(due) == [RunState.SUCCESS])
    loop.trigger(triggered.record)
    assert until(lambda: stage.runs(triggered) == [RunState.SUCCESS])
    assert [item.url for item in stage.metadata.services.live()] == ["http://service0"]
    loop.drain(HOLD_SECONDS)
    assert stage.engines.closed
