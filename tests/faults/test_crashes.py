"""A process killed (SIGKILL) at every step of the table, on a local store with SQLite and on S3 with PostgreSQL.

Each case runs a scenario in a child that dies at the step, then checks what is left (`tests.faults.aftermath`). That
the child died at the step, and not before or never, is asserted first.

The fast tier checks the state after every crash on the local store. CI adds recovery and garbage collection after the
first crash at each step, and the loss of an object after crashes around the publish (`LOSES_AS_WELL`); on S3 the state
where the step differs there (`DIFFERS_ON_S3`), and recovery where what is left differs (`RECOVERS_ON_S3`). `make soak`
adds recovery after every crash on both, and on the local store the loss.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from storage.clock import Clock
from storage.failpoints import Failpoint
from tests.budgets import IN_CI, IN_SOAK
from tests.clocks import ManualClock
from tests.faults.aftermath import (
    Seen,
    Written,
    check_emptied,
    check_explicit_loss,
    check_garbage_collection,
    check_recovery,
    check_state,
    empty_queue,
    look,
)
from tests.faults.child import Ended, Nursery
from tests.faults.conftest import SCHEMES
from tests.faults.stages import SCENARIOS, Scenario
from tests.faults.worlds import World, Worlds


@dataclass(frozen=True)
class Crash:
    """A scenario that dies when it reaches `step` for the `nth` time."""

    scenario: str
    step: Failpoint
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.scenario}: {self.step.name} {self.nth}"


def _steps(*prefixes: str) -> list[Failpoint]:
    return [step for step in Failpoint if step.name.startswith(prefixes)]


OF_A_RUN = _steps("RUN_", "PHASE_", "MANIFEST_", "PUBLISH_")
OF_A_COMMIT = _steps("IMPORT_INSIDE", "IMPORT_AFTER")
OF_A_FIRST_RUN = [
    Failpoint.RUN_CLAIMED,
    Failpoint.PHASE_ONE_DONE,
    Failpoint.PHASE_TWO_DONE,
    *_steps("MANIFEST_", "PUBLISH_"),
]
OF_THE_LOG = _steps("SEGMENT_FILE_CREATED", "SEGMENT_OPENED", "ENTRIES_", "ROLL_", "SEGMENT_ROLLED")
OF_SEALING = [
    *_steps("SEAL_"),
    Failpoint.SEGMENT_SEALED,
    Failpoint.IMPORT_ROWS_BEGUN,
    Failpoint.IMPORT_ROWS_WRITTEN,
    Failpoint.IMPORT_INDEX_WRITTEN,
]
OF_A_TAIL = [
    Failpoint.ROLL_INSIDE_COMMIT,
    Failpoint.SEGMENT_ROLLED,
    *_steps("SEAL_"),
    Failpoint.SEGMENT_SEALED,
    *_steps("PUBLISH_"),
]
OF_MULTIPART = _steps("S3_UPLOAD", "S3_PART", "S3_BEFORE", "S3_AFTER")
LATER = [
    Crash("import", Failpoint.IMPORT_ROWS_WRITTEN, 2),
    Crash("import", Failpoint.IMPORT_INDEX_WRITTEN, 2),
    Crash("import", Failpoint.LOCAL_LINKED, 3),
    Crash("import", Failpoint.S3_PUT_SENT, 3),
    Crash("large import", Failpoint.S3_PART_UPLOADED, 2),
    Crash("second compaction", Failpoint.PHASE_ONE_INDEX_WRITTEN, 2),
    Crash("second compaction", Failpoint.PHASE_TWO_PART_WRITTEN, 2),
    Crash("second compaction", Failpoint.LOCAL_LINKED, 4),
    Crash("second compaction", Failpoint.S3_PUT_SENT, 4),
    Crash("garbage collection", Failpoint.GC_DELETED_ONE, 2),
    Crash("append", Failpoint.ENTRIES_WRITTEN, 2),
    Crash("append", Failpoint.ENTRIES_FLUSHED, 3),
    Crash("append", Failpoint.SEGMENT_FILE_CREATED, 2),
    Crash("append", Failpoint.SEGMENT_OPENED, 2),
    Crash("append", Failpoint.ENTRIES_WRITTEN, 5),
    Crash("append", Failpoint.SEGMENT_ROLLED, 2),
    Crash("append after a crash", Failpoint.ENTRIES_FLUSHED, 2),
    Crash("sealing", Failpoint.SEAL_INSIDE_COMMIT, 2),
    Crash("sealing", Failpoint.SEGMENT_SEALED, 2),
    Crash("sweep", Failpoint.SEGMENT_FILE_REMOVED, 2),
    Crash("compaction of a tail", Failpoint.SEGMENT_SEALED, 3),
    Crash("collection of what was trimmed", Failpoint.GC_DELETED_ONE, 2),
    Crash("collection of a deleted topic", Failpoint.DELETED_SEGMENT_REMOVED, 2),
    Crash("collection of a deleted topic", Failpoint.GC_DELETED_ONE, 3),
]
"""Not only the first time."""
LOSES_AS_WELL = _steps("PUBLISH_")
"""Only `make soak`, on the local store, tries the loss of an object after every crash: it costs a compaction."""
DIFFERS_ON_S3 = {
    *(step for step in Failpoint if step.store == "s3"),
    *(step for step in Failpoint if "_INSIDE_" in step.name),
    Failpoint.IMPORT_ROWS_BEGUN,
    Failpoint.IMPORT_BEFORE_COMMIT,
    Failpoint.PHASE_TWO_PART_BEGUN,
    Failpoint.MANIFEST_PUT,
    Failpoint.PUBLISH_AFTER_COMMIT,
    Failpoint.PIN_TAKEN,
    Failpoint.GC_DELETED_ONE,
    Failpoint.DELETED_SEGMENT_REMOVED,
}
"""Steps with an open transaction, which PostgreSQL's server ends, or with an open upload, or whose objects S3 lists.

At the others the process holds nothing of the store or of the database, and leaves rows and objects that the local
store and SQLite leave as well.
"""
RECOVERS_ON_S3 = {
    Failpoint.S3_PUT_SENT,
    Failpoint.S3_PART_UPLOADED,
    Failpoint.S3_AFTER_COMPLETE,
    Failpoint.IMPORT_INSIDE_COMMIT,
    Failpoint.PUBLISH_INSIDE_TRANSACTION,
    Failpoint.MANIFEST_PUT,
    Failpoint.GC_DELETED_ONE,
}
"""One step for each kind of remains there: an object, a part of an upload, a completed upload, a transaction of an
import and of a run, a manifest, a collection half-way."""

CRASHES = [
    *(Crash("import", step) for step in _steps("IMPORT_", "LOCAL_", "S3_PUT")),
    *(Crash("large import", step) for step in OF_MULTIPART),
    *(Crash("second compaction", step) for step in OF_A_RUN),
    *(Crash("first compaction", step) for step in OF_A_FIRST_RUN),
    *(Crash("compaction with a table", step) for step in _steps("TABLE_", "MANIFEST_PUT", "PUBLISH_")),
    *(Crash("read", step) for step in _steps("PIN_")),
    *(Crash("garbage collection", step) for step in _steps("GC_")),
    *(Crash("append", step) for step in OF_THE_LOG),
    *(Crash("append after a crash", step) for step in _steps("ENTRIES_")),
    *(Crash("import after a segment", step) for step in (*_steps("ROLL_"), Failpoint.SEGMENT_ROLLED, *OF_A_COMMIT)),
    *(Crash("sealing", step) for step in OF_SEALING),
    *(Crash("sweep", step) for step in (Failpoint.SEGMENT_FILE_REMOVED, Failpoint.SEGMENT_FORGOTTEN)),
    *(Crash("compaction of a tail", step) for step in OF_A_TAIL),
    *(Crash("trim", step) for step in (Failpoint.TRIM_INSIDE_COMMIT, Failpoint.TRIM_MARKED)),
    *(Crash("collection of what was trimmed", step) for step in (Failpoint.TRIM_FORGOTTEN, *_steps("GC_DELETED"))),
    *(Crash("truncation", step) for step in _steps("TRUNCATE")),
    *(Crash("deletion", step) for step in _steps("TOPIC_DELETE")),
    *(Crash("collection of a deleted topic", step) for step in _steps("DELETED_SEGMENT", "GC_BEFORE", "GC_DELETED")),
    *LATER,
]
WITH_A_TABLE = [
    *(Crash("compaction with a table", step) for step in _steps("RUN_", "PHASE_", "MANIFEST_BEFORE")),
    *(Crash("garbage collection with a table", step) for step in _steps("GC_")),
]
"""Steps at which CRASHES kill what has no table; only `make soak` tries them on a topic that has one."""
COSTLY = {
    Crash("compaction with a table", step)
    for step in (Failpoint.TABLE_BEFORE_PUTS, Failpoint.MANIFEST_PUT, Failpoint.PUBLISH_BEFORE_TRANSACTION)
}
"""Crashes that leave what another one leaves as well, and whose check reads a table."""


def _cases() -> Iterator[object]:
    """Scheme, crash, and whether recovery follows. `make test` tries one crash of each scenario."""
    for scheme in SCHEMES:
        followed: set[Failpoint] = set()
        scenarios: set[str] = set()
        for crash in CRASHES:
            if crash.step.store not in (None, scheme):
                continue
            is_first = crash.step not in followed
            followed.add(crash.step)
            in_ci = is_first and (scheme == "file" or crash.step in RECOVERS_ON_S3)
            # A case with recovery checks the same state first.
            if scheme == "file" and not (IN_CI and in_ci):
                is_example = crash.scenario not in scenarios and crash not in COSTLY
                if is_example:
                    scenarios.add(crash.scenario)
                marks = [] if is_example else [pytest.mark.slow]
                yield pytest.param(scheme, crash, False, id=f"{scheme}-{crash}", marks=marks)
            if scheme == "s3" and not in_ci and is_first and crash.step in DIFFERS_ON_S3:
                yield pytest.param(scheme, crash, False, id=f"{scheme}-{crash}", marks=pytest.mark.slow)
            marks = pytest.mark.slow if in_ci else pytest.mark.soak
            yield pytest.param(scheme, crash, True, id=f"{scheme}-{crash}, then recovery", marks=marks)
    for crash in WITH_A_TABLE:
        yield pytest.param("file", crash, True, id=f"file-{crash}, then recovery", marks=pytest.mark.soak)


def _unharmed() -> Iterator[object]:
    """Scheme and scenario; on S3 in CI those that are killed there."""
    differing: dict[Failpoint, str] = {}
    for crash in CRASHES:
        if crash.step in DIFFERS_ON_S3:
            differing.setdefault(crash.step, crash.scenario)
    for name in SCENARIOS:
        on_files = [pytest.mark.soak] if name == "garbage collection with a table" else []
        yield pytest.param("file", name, id=f"{name}-file", marks=on_files)
        marks = pytest.mark.slow if name in differing.values() else pytest.mark.soak
        yield pytest.param("s3", name, id=f"{name}-s3", marks=marks)


class Histories:
    """The topic of each stage, read once: all copies of a stage are equal."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Seen] = {}

    def look(self, scheme: str, stage: str, world: World, clock: Clock) -> Seen:
        """Return the topic before the operation. `world`: a copy of the stage."""
        if (scheme, stage) not in self._seen:
            with world.opened(clock) as bench:
                self._seen[scheme, stage] = look(bench)
        return self._seen[scheme, stage]


@pytest.fixture(scope="module")
def histories() -> Histories:
    return Histories()


@pytest.mark.parametrize(("scheme", "crash", "recovers"), [*_cases()])
def test_a_process_killed_at_a_step(
    worlds: Worlds, crash: Crash, recovers: bool, nursery: Nursery, began_ms: int, histories: Histories
) -> None:
    scenario = SCENARIOS[crash.scenario]
    clock = ManualClock(began_ms)
    world = worlds.copy(scenario.stage, clock)
    before = histories.look(worlds.scheme, scenario.stage, world, clock)
    with world.opened(clock, alone=True) as bench:
        empty_queue(bench)
    ended = nursery.run(world, crash.scenario, crash.step, crash.nth, began_ms)
    assert ended.error == ""
    assert ended.signal == signal.SIGKILL
    assert ended.trace.count(crash.step) == crash.nth
    assert ended.trace[-1] is crash.step

    result = crash.step in scenario.done_from
    trimmed = scenario.stage == "trimmed" or (scenario.trims and result)
    entries = written_entries(scenario, ended)
    with world.opened(clock, alone=True) as bench:
        if scenario.empties and result:
            check_emptied(bench, before)
            return
        check_state(
            bench,
            before,
            scenario.appended if result else None,
            scenario.publishes and result,
            entries,
            trimmed=trimmed,
        )
        if not recovers:
            return
        check_recovery(bench, entries, trimmed=trimmed)
        check_garbage_collection(bench, trimmed=trimmed)
        if not trimmed and (crash.step in LOSES_AS_WELL or (IN_SOAK and worlds.scheme == "file")):
            check_explicit_loss(bench)


@pytest.mark.parametrize(("scheme", "name"), [*_unharmed()])
def test_a_scenario_that_nobody_kills(
    worlds: Worlds, name: str, nursery: Nursery, began_ms: int, histories: Histories
) -> None:
    """Or the cases above would check nothing."""
    scenario = SCENARIOS[name]
    clock = ManualClock(began_ms)
    world = worlds.copy(scenario.stage, clock)
    before = histories.look(worlds.scheme, scenario.stage, world, clock)
    with world.opened(clock, alone=True) as bench:
        empty_queue(bench)
    ended = nursery.run(world, name, None, 1, began_ms)
    assert (ended.error, ended.signal) == ("", 0)
    with world.opened(clock, alone=True) as bench:
        if scenario.empties:
            check_emptied(bench, before)
            return
        trimmed = scenario.stage == "trimmed" or scenario.trims
        entries = written_entries(scenario, ended)
        assert entries.acknowledged == len(scenario.entries)
        check_state(bench, before, scenario.appended, scenario.publishes, entries, trimmed=trimmed)


def written_entries(scenario: Scenario, ended: Ended) -> Written:
    """Return the entries that a scenario has appended to the log, by its steps: each entry is a commit of its own."""
    flushed = ended.trace.count(Failpoint.ENTRIES_FLUSHED)
    untold = ended.signal != 0 and ended.trace[-1] is Failpoint.ENTRIES_FLUSHED
    return Written(scenario.entries[: ended.trace.count(Failpoint.ENTRIES_WRITTEN)], flushed - untold)


def test_every_step_is_in_some_crash() -> None:
    """A point that no case kills at would be dead; one that is not reached fails its case."""
    assert {crash.step for crash in CRASHES} == set(Failpoint)
    assert RECOVERS_ON_S3 <= DIFFERS_ON_S3


def test_steps_are_told_apart() -> None:
    """Enum members with one value would be one member."""
    assert len(Failpoint.__members__) == len(set(Failpoint)) >= 36
    assert all(step.happened.endswith(".") and step.store in (None, *SCHEMES) for step in Failpoint)
