"""The states of a topic's compaction under pauses (S5), as a pure machine.

    None ── begin ──► InProgress ── end ──► None
    None ── pause ──► Paused(1)
    InProgress ── pause ──► Aborted(1) ── end ──► Paused(1)        the worker is waited for
    InProgress ── abort ──► Aborted(0) ── end ──► None
    Paused(i), Aborted(i) ── pause ──► i + 1
    Paused(i) ── resume ──► Paused(i − 1), at last None

As Kafka's LogCleanerManager has it, but that a pause of a topic that is being aborted counts as well, where Kafka
raises. What is not drawn cannot be: `Conflict`. This is the model: the states themselves are in SQL
(storage/metadata/compaction_state_store.py), and a property test says that the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from storage.errors import Conflict
from storage.metadata.records import Activity, RunState


class Phase(StrEnum):
    """Kafka's names."""

    NONE = "None"
    IN_PROGRESS = "InProgress"
    ABORTED = "Aborted"
    PAUSED = "Paused"


@dataclass(frozen=True)
class PauseState:
    """`pauses`: how many resumes are wanted; 0 unless the phase is PAUSED, or ABORTED by a pause."""

    phase: Phase = Phase.NONE
    pauses: int = 0

    def begin(self) -> PauseState:
        """A run is claimed. Raises Conflict."""
        return self._only(Phase.NONE, "begin", PauseState(Phase.IN_PROGRESS))

    def end(self) -> PauseState:
        """The worker of the run has stopped. Raises Conflict."""
        if self.phase is Phase.ABORTED:
            return PauseState(Phase.PAUSED, self.pauses) if self.pauses else PauseState()
        return self._only(Phase.IN_PROGRESS, "end", PauseState())

    def pause(self) -> PauseState:
        """Always possible."""
        aborts = self.phase in (Phase.IN_PROGRESS, Phase.ABORTED)
        return PauseState(Phase.ABORTED if aborts else Phase.PAUSED, self.pauses + 1)

    def resume(self) -> PauseState:
        """Raises Conflict."""
        left = PauseState(Phase.PAUSED, self.pauses - 1) if self.pauses > 1 else PauseState()
        return self._only(Phase.PAUSED, "resume", left)

    def abort(self) -> PauseState:
        """Always possible; pauses stay."""
        return PauseState(Phase.ABORTED) if self.phase is Phase.IN_PROGRESS else self

    def _only(self, phase: Phase, event: str, then: PauseState) -> PauseState:
        if self.phase is not phase:
            raise Conflict(f"a compaction that is {self} cannot {event}", "look at its state first")
        return then

    def __str__(self) -> str:
        return f"{self.phase}({self.pauses})" if self.phase is Phase.PAUSED else self.phase.value


def pause_state(activity: Activity) -> PauseState:
    """The state that SQL holds."""
    control, last = activity.control, activity.last_run
    if control.aborting:
        return PauseState(Phase.ABORTED, control.paused)
    if control.paused:
        return PauseState(Phase.PAUSED, control.paused)
    if last is not None and last.state is RunState.RUNNING:
        return PauseState(Phase.IN_PROGRESS)
    return PauseState()
