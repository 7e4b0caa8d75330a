"""An import, a compaction and a read over a store in which any one call, each in its turn, goes wrong.

Whatever goes wrong and whenever, there are two ends: an error of ours, and everything is as it was; or success, and
the whole of it is there. No reader ever gets other messages than the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from compactor.engines.engine import InProcessEngine
from compactor.two_phase import HEARTBEAT_MS
from storage.errors import CompactorError, DataLoss, Fenced, Unavailable
from storage.heartbeat import Heartbeat
from storage.ledger import names
from storage.ledger.names import ObjectKind
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.records import RunState
from storage.model import Message
from storage.objects import registry
from storage.store_identity import StoreIdentity
from tests.clocks import ManualClock
from tests.faults.aftermath import Seen, check_recovery, check_state, look
from tests.faults.faulty_store import Fault, Kind, Script, faulty, with_prefix
from tests.faults.stages import SCENARIOS, SECOND, Scenario, compact, import_table, the_topic
from tests.faults.worlds import Worlds
from tests.workbench import Workbench

pytestmark = pytest.mark.parametrize("scheme", ["file"])
"""Faults of this kind are above the stores, so one store will do; test_s3_faults.py goes below."""


@dataclass(frozen=True)
class Bench:
    """One world, seen by those who work through a faulty store, and by those who check it from outside."""

    faulty: Workbench
    sound: Workbench
    script: Script


@contextmanager
def bench_of(worlds: Worlds, stage: str, clock: ManualClock) -> Iterator[Bench]:
    world = worlds.copy(stage, clock)
    script = Script()
    with world.opened(clock) as sound, pytest.MonkeyPatch.context() as patch:
        faulty(patch, script)
        store = registry.open_store(with_prefix(world.store))
        StoreIdentity(sound.metadata, store).check()  # a process looks once, before any of its work
        # An engine of its own, as each job of a service has one: a run that is fenced cancels its engine.
        yield Bench(replace(sound, store=store, clock=clock, engine=InProcessEngine()), sound, script)


@pytest.fixture
def without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no heartbeat, however long a test takes.

    Heartbeats go by the machine's time. One of the slow run, sent between the step of the clock and the claim of the
    next run, would keep the slow run alive.
    """
    monkeypatch.setattr(Heartbeat, "__enter__", lambda heartbeat: heartbeat)
    monkeypatch.setattr(Heartbeat, "__exit__", lambda *_: None)


def meet(bench: Bench, fault: Fault, run: Callable[[Workbench], None]) -> CompactorError | None:
    """Run with one fault; the error that it led to, if any."""
    bench.script.begin(fault)
    try:
        run(bench.faulty)
    except CompactorError as error:
        return error
    return None


SWEEPS = [
    pytest.param(Kind.FAIL, "put", id="a put fails"),
    pytest.param(Kind.FAIL, "list", id="a listing fails"),
    pytest.param(Kind.FAIL, "delete", id="a delete fails"),
    pytest.param(Kind.FULL, "put", id="no space"),
    pytest.param(Kind.LOST, "put", id="a put's answer is lost"),
    pytest.param(Kind.LOST, "delete", id="a delete's answer is lost"),
    pytest.param(Kind.TRUNCATED, "get", id="a read is cut short"),
    pytest.param(Kind.ALTERED, "get", id="a read gets other bytes"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["import", "second compaction"])
@pytest.mark.parametrize(("kind", "operation"), SWEEPS)
def test_one_fault_at_any_call(worlds: Worlds, began_ms: int, name: str, kind: Kind, operation: str) -> None:
    """A fault that fails leaves the world as it was, so the next goes into the same one, on top of its leftovers."""
    scenario = SCENARIOS[name]
    clock = ManualClock(began_ms)
    nth = failed = 0
    while True:
        with bench_of(worlds, scenario.stage, clock) as bench:
            before = look(bench.sound)
            while (error := meet(bench, Fault(kind, operation, nth=(nth := nth + 1)), scenario.run)) is not None:
                failed += 1
                assert bench.script.met
                assert isinstance(error, DataLoss if operation == "get" else Unavailable)
                check_unchanged(bench.sound, before, scenario, error)
            check_state(bench.sound, before, scenario.appended, scenario.publishes)
            if not bench.script.met:
                check_recovery(bench.sound)
                break
            # failures without a retry: the removal of objects that are not needed any more
            [(called, on)] = bench.script.met
            parsed = names.parse(on)
            assert called == "delete"
            assert parsed is not None
            assert parsed.kind is ObjectKind.ROW_SETS
    assert (failed > 0) == (operation == "put" or (operation in ("get", "list") and scenario.publishes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.FAIL, Unavailable), (Kind.TRUNCATED, DataLoss), (Kind.ALTERED, DataLoss)]
)
def test_one_fault_at_any_read_of_a_reader(
    worlds: Worlds, began_ms: int, kind: Kind, error: type[CompactorError]
) -> None:
    """R8: an explicit error, never a shorter key set or other values."""
    clock = ManualClock(began_ms)
    with bench_of(worlds, "grown", clock) as bench:
        expected = list(the_topic(bench.sound).messages(read_compacted=True))
        nth = 0
        got: list[Message] = []
        while True:
            nth += 1
            bench.script.begin(Fault(kind, "get", nth=nth))
            got = []
            try:
                for message in the_topic(bench.faulty).messages(read_compacted=True):
                    got.append(message)
            except error:
                assert bench.script.met
                assert got == expected[: len(got)]
            else:
                break
        assert not bench.script.met
        assert got == expected
        assert nth > 5


@pytest.mark.usefixtures("without_heartbeats")
def test_a_run_that_a_slow_call_outlives_publishes_nothing(worlds: Worlds, began_ms: int) -> None:
    """Property 8: while its manifest is put, its heartbeat ends, and another run takes over and publishes."""
    clock = ManualClock(began_ms)
    with bench_of(worlds, "grown", clock) as bench:
        before = look(bench.sound)

        def others_go_on() -> None:
            clock.advance(HEARTBEAT_MS + 1)
            compact(bench.sound)

        slow = Fault(Kind.MEANWHILE, "put", ObjectKind.MANIFEST, meanwhile=others_go_on)
        assert isinstance(meet(bench, slow, compact), Fenced)
        assert bench.script.met
        check_state(bench.sound, before, published=True)
        check_recovery(bench.sound)


@pytest.mark.slow
@pytest.mark.usefixtures("without_heartbeats")
def test_an_import_that_a_slow_call_outlives_appends_nothing(worlds: Worlds, began_ms: int) -> None:
    """L1 and A1 for imports: while a put takes long, the lease ends and another import commits."""
    clock = ManualClock(began_ms)
    with bench_of(worlds, "grown", clock) as bench:
        before = look(bench.sound)

        def others_go_on() -> None:
            clock.advance(LEASE_TTL_MS + 1)
            import_table(bench.sound, SECOND)

        slow = Fault(Kind.MEANWHILE, "put", ObjectKind.LEDGER_INDEX, meanwhile=others_go_on)
        assert isinstance(meet(bench, slow, SCENARIOS["import"].run), Fenced)
        assert bench.script.met
        check_state(bench.sound, before, SECOND)
        check_recovery(bench.sound)


def check_unchanged(bench: Workbench, before: Seen, scenario: Scenario, error: CompactorError) -> None:
    """W3: as it was, and the run's row says why."""
    after = the_topic(bench).snapshot()
    assert (after.ledgers, after.cursor, after.compacted) == (
        before.snapshot.ledgers,
        before.snapshot.cursor,
        before.snapshot.compacted,
    )
    if scenario.publishes:
        assert after.last_run is not None
        assert after.last_run.state is RunState.ERROR
        assert str(after.last_run.error) == str(error)
