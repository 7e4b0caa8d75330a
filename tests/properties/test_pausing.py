"""Pausing (S5): SQL's states are those of the drawn machine, after any events, at one topic and by any worker.

    None ── begin ──► InProgress ── end ──► None
    None ── pause ──► Paused(1)
    InProgress ── pause ──► Aborted(1) ── end ──► Paused(1)        the worker is waited for
    InProgress ── abort ──► Aborted(0) ── end ──► None
    Paused(i), Aborted(i) ── pause ──► i + 1
    Paused(i) ── resume ──► Paused(i − 1), at last None

These are Kafka's states (LogCleanerManager), but a pause of a topic that is being aborted counts as well, where Kafka
raises. What is not drawn is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage.errors import CompactionPaused, CompactionRunning, Conflict, ErrorText, Fenced
from storage.metadata.records import RUN_DEAD_MS, RunRecord, RunState
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.budgets import IN_SOAK
from tests.clocks import ManualClock

pytestmark = pytest.mark.slow

NONE, IN_PROGRESS, ABORTED, PAUSED = "None", "InProgress", "Aborted", "Paused"


def state_of(metadata: MetadataStore, topic_id: int) -> tuple[str, int]:
    """The state that the service goes by: its name in the drawing, and how many resumes it waits for."""
    activity = metadata.compaction_control.activity(topic_id)
    control, last = activity.control, activity.last_run
    if control.aborting:
        return ABORTED, control.paused
    if control.paused:
        return PAUSED, control.paused
    return (IN_PROGRESS if last is not None and last.state is RunState.RUNNING else NONE), 0


def test_the_states_by_hand(metadata: MetadataStore) -> None:
    """Each arrow of the drawing, and what is refused in each state."""
    topic = metadata.tenancy.ensure_topic(TopicName.parse("t")).id
    control = metadata.compaction_control

    def begin() -> RunRecord:
        return metadata.runs.claim(topic, "worker", {}, RUN_DEAD_MS)

    with pytest.raises(Conflict):
        control.resume([topic])
    run = begin()
    assert state_of(metadata, topic) == (IN_PROGRESS, 0)
    with pytest.raises(CompactionRunning):
        begin()
    for pauses in (1, 2):
        control.pause([topic])
        assert state_of(metadata, topic) == (ABORTED, pauses)
    with pytest.raises(CompactionPaused):
        begin()
    with pytest.raises(Conflict):
        control.resume([topic])
    metadata.runs.fail(run, ErrorText("it was fenced"))
    assert state_of(metadata, topic) == (PAUSED, 2)
    with pytest.raises(CompactionPaused):
        begin()
    control.resume([topic])
    control.abort([topic])
    assert state_of(metadata, topic) == (PAUSED, 1), "an abort leaves pauses alone"
    control.resume([topic])
    assert state_of(metadata, topic) == (NONE, 0)
    run = begin()
    control.abort([topic])
    assert state_of(metadata, topic) == (ABORTED, 0)
    with pytest.raises(CompactionRunning):
        begin()
    metadata.runs.fail(run, ErrorText("it was fenced"))
    assert state_of(metadata, topic) == (NONE, 0)


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataStore]:
    store = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", ManualClock())
    store.upgrade()
    yield store
    store.close()


class Pausing(RuleBasedStateMachine):
    """SQL, and what the drawing says of each event: the phase, and the pauses that want a resume."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.metadata = MetadataStore(f"sqlite:///{Path(self.folder.name) / 'metadata.db'}", self.clock)
        self.metadata.upgrade()
        self.topic = self.metadata.tenancy.ensure_topic(TopicName.parse("t")).id
        self.phase, self.pauses = NONE, 0
        self.requested = False
        self.run: RunRecord | None = None

    def teardown(self) -> None:
        self.metadata.close()
        self.folder.cleanup()

    @rule()
    def request(self) -> None:
        try:
            self.metadata.compaction_control.request(self.topic, "manual", "me")
            assert self.phase in (NONE, ABORTED)
            assert not self.requested
            assert not self.pauses
            self.requested = True
        except CompactionPaused:
            assert self.pauses
        except CompactionRunning:
            assert self.requested or self.phase == IN_PROGRESS

    @rule()
    def begin(self) -> None:
        try:
            self.run = self.metadata.runs.claim(self.topic, "worker", {}, RUN_DEAD_MS)
            assert self.phase == NONE
            self.phase, self.requested = IN_PROGRESS, False
        except (CompactionPaused, CompactionRunning):
            assert self.phase != NONE

    @precondition(lambda self: self.run is not None)
    @rule()
    def work(self) -> None:
        assert self.run is not None
        fenced = self.metadata.runs.heartbeat([self.run])
        assert bool(fenced) == (self.phase == ABORTED)

    @precondition(lambda self: self.run is not None)
    @rule()
    def end(self) -> None:
        assert self.run is not None
        if self.phase == ABORTED:
            with pytest.raises(Fenced):
                self.metadata.runs.succeed_unchanged(self.run, {})
            self.metadata.runs.fail(self.run, ErrorText("it was fenced"))
        else:
            self.metadata.runs.succeed_unchanged(self.run, {})
        self._ended()

    @precondition(lambda self: self.run is not None)
    @rule()
    def die(self) -> None:
        """The worker stops answering: an aborted run is not waited for; another run is claimed again."""
        self.clock.advance(RUN_DEAD_MS)
        if self.phase == ABORTED:
            self._ended()
            return
        assert [topic.id for topic in self.metadata.compaction_control.request_dead_runs_again("leader")] == [
            self.topic
        ]
        assert self.metadata.compaction_control.request_dead_runs_again("leader") == []
        self.run = self.metadata.runs.claim(self.topic, "next", {}, RUN_DEAD_MS)
        assert self.run.cause == "interrupted"

    def _ended(self) -> None:
        self.run, self.phase = None, PAUSED if self.pauses else NONE

    @rule()
    def pause(self) -> None:
        self.pauses += 1
        assert self.metadata.compaction_control.pause([self.topic])[0].paused == self.pauses
        self.phase = ABORTED if self.phase in (IN_PROGRESS, ABORTED) else PAUSED
        self.requested = False

    @rule()
    def resume(self) -> None:
        try:
            self.metadata.compaction_control.resume([self.topic])
            assert self.phase == PAUSED
            self.pauses -= 1
            self.phase = PAUSED if self.pauses else NONE
        except Conflict:
            assert self.phase != PAUSED

    @rule()
    def abort(self) -> None:
        self.metadata.compaction_control.abort([self.topic])
        self.phase = ABORTED if self.phase == IN_PROGRESS else self.phase
        self.requested = False

    @invariant()
    def they_agree(self) -> None:
        activity = self.metadata.compaction_control.activity(self.topic)
        assert state_of(self.metadata, self.topic) == (self.phase, self.pauses)
        assert (activity.control.requested_at is not None) == self.requested
        assert activity.running == (self.requested or self.phase == IN_PROGRESS)


TestPausing = pytest.mark.budgeted(Pausing.TestCase)
TestPausing.settings = settings(max_examples=25 if IN_SOAK else 8, stateful_step_count=25, deadline=None)
