"""Pausing (S5): SQL's states are those of the machine, after any events, at one topic and by any worker."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactor.scheduling.pausing import PauseState, Phase, pause_state
from storage.errors import CompactionPaused, CompactionRunning, Conflict, Fenced
from storage.metadata.records import RUN_DEAD_MS, RunRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock


def test_the_machine_by_hand() -> None:
    state = PauseState().begin()
    assert (str(state), str(state.pause()), str(state.pause().end())) == ("InProgress", "Aborted", "Paused(1)")
    twice = state.pause().pause()
    assert twice == PauseState(Phase.ABORTED, 2)
    assert twice.end().resume() == PauseState(Phase.PAUSED, 1)
    assert twice.end().resume().resume() == PauseState()
    assert state.abort().end() == PauseState()
    assert PauseState().pause().abort() == PauseState(Phase.PAUSED, 1)
    for impossible in (
        state.begin,
        twice.begin,
        twice.resume,
        twice.end().begin,
        PauseState().resume,
        PauseState().end,
    ):
        with pytest.raises(Conflict):
            impossible()


class Pausing(RuleBasedStateMachine):
    """Drives the model and SQL side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.metadata = MetadataStore(f"sqlite:///{Path(self.folder.name) / 'metadata.db'}", self.clock)
        self.metadata.upgrade()
        self.topic = self.metadata.tenancy.ensure_topic(TopicName.parse("t")).id
        self.state = PauseState()
        self.requested = False
        self.run: RunRecord | None = None

    def teardown(self) -> None:
        self.metadata.close()
        self.folder.cleanup()

    @rule()
    def request(self) -> None:
        try:
            self.metadata.compaction_state.request(self.topic, "manual", "me")
            assert self.state.phase in (Phase.NONE, Phase.ABORTED)
            assert not self.requested
            assert not self.state.pauses
            self.requested = True
        except CompactionPaused:
            assert self.state.pauses
        except CompactionRunning:
            assert self.requested or self.state.phase is Phase.IN_PROGRESS

    @rule()
    def begin(self) -> None:
        try:
            self.run = self.metadata.runs.claim(self.topic, "worker", {}, RUN_DEAD_MS)
            self.state = self.state.begin()
            self.requested = False
        except (CompactionPaused, CompactionRunning):
            with pytest.raises(Conflict):
                self.state.begin()

    @precondition(lambda self: self.run is not None)
    @rule()
    def work(self) -> None:
        assert self.run is not None
        fenced = self.metadata.runs.heartbeat([self.run])
        assert bool(fenced) == (self.state.phase is Phase.ABORTED)

    @precondition(lambda self: self.run is not None)
    @rule()
    def end(self) -> None:
        assert self.run is not None
        if self.state.phase is Phase.ABORTED:
            with pytest.raises(Fenced):
                self.metadata.runs.finish(self.run, {})
            self.metadata.runs.fail(self.run, "it was fenced")
        else:
            self.metadata.runs.finish(self.run, {})
        self.run, self.state = None, self.state.end()

    @precondition(lambda self: self.run is not None)
    @rule()
    def die(self) -> None:
        """The worker says nothing any more: it is not waited for forever. Else it is made again by the next claim."""
        self.clock.advance(RUN_DEAD_MS)
        if self.state.phase is Phase.ABORTED:
            self.run, self.state = None, self.state.end()
            return
        assert [one.id for one in self.metadata.compaction_state.request_interrupted("leader")] == [self.topic]
        assert self.metadata.compaction_state.request_interrupted("leader") == []
        self.run = self.metadata.runs.claim(self.topic, "next", {}, RUN_DEAD_MS)
        assert self.run.cause == "interrupted"

    @rule()
    def pause(self) -> None:
        assert self.metadata.compaction_state.pause(self.topic).paused == self.state.pauses + 1
        self.state, self.requested = self.state.pause(), False

    @rule()
    def resume(self) -> None:
        try:
            self.metadata.compaction_state.resume(self.topic)
            self.state = self.state.resume()
        except Conflict:
            with pytest.raises(Conflict):
                self.state.resume()

    @rule()
    def abort(self) -> None:
        self.metadata.compaction_state.abort(self.topic)
        self.state, self.requested = self.state.abort(), False

    @invariant()
    def they_agree(self) -> None:
        activity = self.metadata.compaction_state.activity(self.topic)
        assert pause_state(activity) == self.state
        assert (activity.control.requested_at is not None) == self.requested
        assert activity.running == (self.requested or self.state.phase is Phase.IN_PROGRESS)


TestPausing = Pausing.TestCase
TestPausing.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
