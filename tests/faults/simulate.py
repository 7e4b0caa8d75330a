"""A random life of topics, checked against a model at every turn: `python -m tests.faults.simulate --seed N --steps M`.

Imports, writers that keep a log open and may lose their lease, sealing, compactions of several processes held half-way,
readers that stay open or ask for pages, cursors, trims, truncates, deletes, pauses, garbage collection, clocks that
jump, and faults: processes that die at a step or between two, a database that drops its connection around a COMMIT, a
store that fails, fills up, loses answers, truncates and alters, objects that are lost.
One thread, one event after the other, everything by chance from one seed: the same seed always does the same.

`--bug NAME` puts a defect into the code (simulation/bugs.py); `--seeds COUNT` runs that many seeds from `--seed` on. A
violation ends with exit code 1, and prints the seed, the step, what does not hold, and the last events.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from compactor.run.plan import RunPolicies
from compactor.two_phase import HEARTBEAT_MS
from storage.reading.compacted_reader import PIN_TTL_MS
from tests.faults.engine.report import Report, Violation, line_of
from tests.faults.engine.schedule import choose
from tests.faults.simulation.appending import Appending
from tests.faults.simulation.bugs import BUGS, seeded
from tests.faults.simulation.collecting import Collecting
from tests.faults.simulation.compacting import Compacting
from tests.faults.simulation.determinism import simulated
from tests.faults.simulation.operating import Operating
from tests.faults.simulation.reading import Readers
from tests.faults.simulation.world import World
from tests.faults.simulation.writing import Writing

EVENTS_SHOWN = 20
CALM = range(5, 8)
"""Of eight lives these are calm: many generations follow one another only where no topic is cleared."""
JUMPS = [1, 5, 20, 100, 600, 5_000, 20_000, HEARTBEAT_MS + 1, PIN_TTL_MS + 1, 160_000, -3, -2_000]


class SimulationFailed(AssertionError):
    """Something that must hold did not; tells how to see it again."""


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation: its log, and how often each kind of event happened."""

    log: tuple[str, ...]
    counts: Counter[str]


class Simulation:
    """The actors of one world, and the events that chance picks from."""

    def __init__(self, world: World, calm: bool) -> None:
        """`calm`: no operator clears a topic or stops its runs, and no process keeps its log open."""
        self._world = world
        self._calm = calm
        self._writing = Writing(world)
        self._appending = Appending(world)
        self._compacting = Compacting(world)
        self._readers = Readers(world)
        self._operating = Operating(world, self._compacting)
        self._collecting = Collecting(world, self._compacting, self._readers)
        world.others = lambda: self._event(inside=True)
        self._events: list[tuple[Callable[[], object], int, bool]] = [
            (self._writing.import_some, 14, True),
            (self._appending.append_some, 18, True),
            (self._appending.roll, 3, True),
            (self._appending.seal, 7, True),
            (self._appending.sweep, 3, True),
            (self._compacting.start, 12, True),
            (self._compacting.compact, 6, True),
            (self._compacting.overtake, 2, False),
            (self._churn, 7, False),
            (self._compacting.advance, 20, True),
            (self._readers.begin, 8, True),
            (self._readers.advance, 9, True),
            (self._readers.read_page, 2, False),
            (self._collecting.collect, 7, True),
            (self._jump, 12, True),
            (self._writing.move_cursor, 5, True),
            (self._compacting.stall, 2, True),
            (self._compacting.cancel, 2, True),
            (self._compacting.delete_cursor, 2, True),
            (self._compacting.kill, 2, True),
            (self._operating.trim, 3, True),
            (self._collecting.lose, 2, False),
        ]
        if not calm:
            self._events += [
                (self._appending.open_log, 4, True),
                (self._appending.append_to_open, 9, True),
                (self._appending.close_log, 2, True),
                (self._operating.trim, 3, True),
                (self._operating.truncate, 1, True),
                (self._operating.delete, 1, True),
                (self._operating.pause, 3, True),
                (self._interfere, 6, False),
                (self._collecting.collect_everything, 2, True),
            ]

    def step(self) -> None:
        """One event, and a check what new generation it left."""
        self._event(inside=False)
        self._world.observe()
        for model in self._world.topics:
            raw_too = self._world.random.random() < 0.05
            if model.serving != model.audited or raw_too:
                self._readers.audit(model, raw_too=raw_too)

    def finish(self) -> None:
        """Everything comes to its end: runs finish or die, readers read on, one more compaction, no garbage."""
        world = self._world
        for running in list(self._compacting.running):
            if world.random.random() < 0.5:
                self._compacting.finish(running)
        self._readers.drain()
        for process in world.processes.values():
            if process.name.startswith(("a", "c")):
                world.run_as(process, "is killed", process.die)
        world.clock.advance(HEARTBEAT_MS + 60_000)  # clocks have gone back, too
        for model in world.topics:
            self._operating.resume_all(model)
            self._compacting.start(model, RunPolicies(retain_null_key=world.random.random() < 0.5), faults=0.0)
            for running in list(self._compacting.running):
                self._compacting.finish(running)
            if model.raw and model.horizon != len(model.everything) - 1:
                raise Violation(f"{model.record.name} cannot be compacted to its end")
            self._readers.audit(model)
        self._collecting.collect_all()
        for model in world.topics:
            self._readers.audit(model)

    def _churn(self) -> None:
        """A topic continues while its readers wait: generations retire, pins end, garbage goes."""
        world = self._world
        model = world.random.choice(world.topics)
        if world.random.random() < 0.7:
            self._readers.begin(model)
        for _ in range(world.random.randint(1, 2)):
            if model.deleted_at is not None:
                return
            self._writing.import_some(model)
            if world.random.random() < 0.5:
                self._appending.append_some(model)
            self._compacting.compact(model)
        waits = world.random.choice([1_000, PIN_TTL_MS + 1])
        if self._calm and waits > PIN_TTL_MS:
            self._operating.trim(model)  # so that a reader whose generation goes has to continue in another one
        world.clock.advance(waits)
        world.note(f"some time later it is {world.clock.now_ms()}")
        self._beat()
        self._collecting.collect(model, 500)

    def _interfere(self) -> None:
        """A run is under way, somebody clears, pauses or deletes its topic, and the run continues."""
        world = self._world
        model = world.random.choice(world.topics)
        self._writing.import_some(model)
        self._compacting.start(model)
        operating, delete_cursor = self._operating, self._compacting.delete_cursor
        world.random.choice([operating.truncate, operating.pause, operating.delete, delete_cursor])(model)
        for running in list(self._compacting.running):
            if running.model is model:
                self._compacting.finish(running)
        if model.deleted_at is not None:
            self._appending.append_some()
            self._collecting.collect_everything(500)

    def _event(self, *, inside: bool) -> None:
        events = [(event, weight) for event, weight, anywhere in self._events if anywhere or not inside]
        choose(self._world.random, events)()

    def _jump(self) -> None:
        """Time goes by; while much does, hearts beat, but for those that have stopped."""
        remaining = self._world.random.choice(JUMPS)
        self._world.note(f"the clock jumps by {remaining} ms")
        while remaining > 10_000:
            self._world.clock.advance(10_000)
            self._beat()
            remaining -= 10_000
        self._world.clock.advance(remaining)
        if self._world.random.random() < 0.9:
            self._beat()

    def _beat(self) -> None:
        self._compacting.beat()
        self._world.beat()


def simulate(seed: int, steps: int, bug: str | None = None, database_url: str | None = None) -> Simulated:
    """One life of that many events. Raises SimulationFailed."""
    again = f"python -m tests.faults.simulate --seed {seed} --steps {steps}{f' --bug {bug}' if bug else ''}"
    report = Report(again, stamped=False, events_shown=EVENTS_SHOWN)
    with simulated(seed, report, database_url) as world:
        simulation = Simulation(world, calm=seed % 8 in CALM)
        at = 0
        try:
            with seeded(bug):
                while at < steps:
                    at += 1
                    simulation.step()
                at += 1
                simulation.finish()
        except (Exception, Violation) as error:
            what = str(world.failed or error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            where = f"step {at}" if at <= steps else "the end"
            raise SimulationFailed(report.failure(f"seed {seed}, at {where} of {steps}: {what}")) from error
        return Simulated(tuple(report.events), report.counts)


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.simulate", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--steps", type=int, default=50, help="events of one seed")
    parser.add_argument("--bug", choices=sorted(BUGS), help="a defect to put in")
    parser.add_argument("--database", metavar="URL", help="an empty database, in place of one of SQLite's")
    parser.add_argument("--log", action="store_true", help="print every event")
    arguments = parser.parse_args()
    lives_with: Counter[str] = Counter()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        try:
            result = simulate(seed, arguments.steps, arguments.bug, arguments.database)
        except SimulationFailed as failure:
            print(failure, flush=True)
            failed += 1
            continue
        lives_with.update(result.counts.keys())
        if arguments.log:
            print("\n".join(result.log))
    figures = {"first seed": arguments.seed, "steps": arguments.steps, "lives": arguments.seeds, "violations": failed}
    print(line_of({**figures, **{f"with {event}": count for event, count in sorted(lives_with.items())}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
