"""A process killed (SIGKILL) at every step of the table, on a local store with SQLite and on S3 with PostgreSQL.

Each case runs a scenario in a child that dies at the step, then looks at what is left as anybody would who comes later:
`tests.faults.aftermath` has the checks. That the child died at the step, and not before or never, is asserted first.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest

from storage.steps import Step
from tests.clocks import ManualClock
from tests.faults.aftermath import check_explicit_loss, check_garbage_collection, check_recovery, check_state, look
from tests.faults.child import Nursery
from tests.faults.conftest import SCHEMES
from tests.faults.stages import SCENARIOS
from tests.faults.worlds import Worlds


@dataclass(frozen=True)
class Crash:
    """A scenario that dies when it reaches `step` for the `nth` time."""

    scenario: str
    step: Step
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.scenario}: {self.step.name} {self.nth}"


def _steps(*prefixes: str) -> list[Step]:
    return [step for step in Step if step.name.startswith(prefixes)]


OF_A_RUN = _steps("RUN_", "PHASE_", "MANIFEST_", "PUBLISH_")
OF_A_FIRST_RUN = [Step.RUN_CLAIMED, Step.PHASE_ONE_DONE, Step.PHASE_TWO_DONE, *_steps("MANIFEST_", "PUBLISH_")]
OF_MULTIPART = _steps("S3_UPLOAD", "S3_PART", "S3_BEFORE", "S3_AFTER")
LATER = [
    Crash("import", Step.IMPORT_ROWS_WRITTEN, 2),
    Crash("import", Step.IMPORT_INDEX_WRITTEN, 2),
    Crash("import", Step.LOCAL_LINKED, 3),
    Crash("import", Step.S3_PUT_SENT, 3),
    Crash("large import", Step.S3_PART_UPLOADED, 2),
    Crash("second compaction", Step.PHASE_ONE_INDEX_WRITTEN, 2),
    Crash("second compaction", Step.PHASE_TWO_PART_WRITTEN, 2),
    Crash("second compaction", Step.LOCAL_LINKED, 4),
    Crash("second compaction", Step.S3_PUT_SENT, 4),
    Crash("garbage collection", Step.GC_DELETED_ONE, 2),
]
"""Not only the first time."""
LOSES_AS_WELL = _steps("PUBLISH_")
"""On S3, where requests take long, the loss of an object is not tried after every crash."""

CRASHES = [
    *(Crash("import", step) for step in _steps("IMPORT_", "LOCAL_", "S3_PUT")),
    *(Crash("large import", step) for step in OF_MULTIPART),
    *(Crash("second compaction", step) for step in OF_A_RUN),
    *(Crash("first compaction", step) for step in OF_A_FIRST_RUN),
    *(Crash("read", step) for step in _steps("PIN_")),
    *(Crash("garbage collection", step) for step in _steps("GC_")),
    *LATER,
]
BY_SCHEME = [
    pytest.param(scheme, crash, id=f"{scheme}-{crash}")
    for scheme in SCHEMES
    for crash in CRASHES
    if crash.step.store in (None, scheme)
]


@pytest.mark.parametrize(("scheme", "crash"), BY_SCHEME)
def test_a_process_killed_at_a_step(worlds: Worlds, crash: Crash, nursery: Nursery, began_ms: int) -> None:
    scenario = SCENARIOS[crash.scenario]
    clock = ManualClock(began_ms)
    world = worlds.copy(scenario.stage, clock)
    with world.opened(clock) as bench:
        before = look(bench)
    ended = nursery.run(world, crash.scenario, crash.step, crash.nth, began_ms)
    assert ended.error == ""
    assert ended.signal == signal.SIGKILL
    assert ended.trace.count(crash.step) == crash.nth
    assert ended.trace[-1] is crash.step

    done = crash.step in scenario.done_from
    with world.opened(clock) as bench:
        check_state(bench, before, scenario.appended if done else None, scenario.publishes and done)
        check_recovery(bench)
        check_garbage_collection(bench)
        if worlds.scheme == "file" or crash.step in LOSES_AS_WELL:
            check_explicit_loss(bench)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_that_nobody_kills(worlds: Worlds, name: str, nursery: Nursery, began_ms: int) -> None:
    """Or the cases above would look at nothing."""
    scenario = SCENARIOS[name]
    clock = ManualClock(began_ms)
    world = worlds.copy(scenario.stage, clock)
    with world.opened(clock) as bench:
        before = look(bench)
    ended = nursery.run(world, name, None, 1, began_ms)
    assert (ended.error, ended.signal) == ("", 0)
    with world.opened(clock) as bench:
        check_state(bench, before, scenario.appended, scenario.publishes)


def test_every_step_is_in_some_crash() -> None:
    """A point that no case kills at would be dead; one that is not reached fails its case."""
    assert {crash.step for crash in CRASHES} == set(Step)


def test_steps_are_told_apart() -> None:
    """Enum members with one value would be one member."""
    assert len(Step.__members__) == len(set(Step)) >= 36
    assert all(step.happened.endswith(".") and step.store in (None, *SCHEMES) for step in Step)
