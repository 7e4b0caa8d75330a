"""Rounds of a history: all actors work while everything fails; then all is calm, and the topics are compared."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.clock import SystemClock
from storage.metadata.store import MetadataStore
from tests.faults.engine.history import History
from tests.faults.engine.report import Kind, Report, Violation
from tests.faults.histories.audit import Audit, check_garbage
from tests.faults.histories.calls import Caller, run_until
from tests.faults.histories.disk_faults import build
from tests.faults.histories.disturbing import Disturber
from tests.faults.histories.operators import Operator
from tests.faults.histories.pulsar_clients import ClientSource
from tests.faults.histories.pulsar_consumers import PulsarConsumer
from tests.faults.histories.pulsar_producers import PulsarProducer, SequencedProducer
from tests.faults.histories.pulsar_readers import LivingReader, reading
from tests.faults.histories.rest_actors import Follower, RestProducer, RestReader
from tests.faults.histories.services import Deployment, Service, deployment
from tests.faults.histories.topics import BROKER_POLICIES, DELETE_DELAY_MS, TOPICS
from tests.faults.histories.wire_actors import BreakingProducer, ReceiptConsumer
from tests.servers.postgres import PostgresServer
from tests.servers.versitygw import Versitygw

ROUND_SECONDS = 90.0
_UNEXPLAINED = ("AssertionError", "Task was destroyed", "never retrieved")
"""Parts of log lines that no fault of a store, database or disk explains."""


@dataclass(frozen=True)
class Result:
    """The end of a history: its figures, and its violations."""

    figures: dict[str, object]
    violations: list[str]


@dataclass
class Actors:
    """All that work on the topics, each in a thread of its own."""

    histories: list[History]
    followers: list[Follower]
    readers: list[LivingReader]
    reader_source: ClientSource
    services: Sequence[Service]
    folder: Path
    chance: random.Random
    report: Report

    def work_for(self, seconds: float) -> None:
        """Let everybody work and everything fail for a round; all actors end. Raises the error of an actor."""
        ended = threading.Event()
        failures: list[BaseException] = []
        disturber = Disturber(self.services, ended, random.Random(self.chance.random()), self.report)

        def guarded(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    failures.append(error)
                    ended.set()

            return run

        with self._works(ended) as works:
            threads = [threading.Thread(target=guarded(work)) for work in works]
            threads.append(threading.Thread(target=guarded(lambda: disturber.run(seconds))))
            for thread in threads:
                thread.start()
            ended.wait(seconds)
            ended.set()
            threads[-1].join()
            disturber.calm()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]

    @contextmanager
    def _works(self, ended: threading.Event) -> Iterator[list[Callable[[], None]]]:
        topics, report, services = self.histories, self.report, self.services
        with ExitStack() as stack:

            def chance() -> random.Random:
                return random.Random(self.chance.random())

            def caller() -> Caller:
                call = Caller(services, chance(), report)
                stack.callback(call.close)
                return call

            def source() -> ClientSource:
                clients = ClientSource(services, chance(), report, self.folder)
                stack.callback(clients.close)
                return clients

            sequenced = [
                SequencedProducer(name, topics, source(), chance(), report, ended, batches=batches)
                for name, batches in (("single", False), ("batches", True))
            ]
            steps: list[tuple[Callable[[], object], float]] = [
                *((RestProducer(topics, caller(), chance(), report).step, 0.3) for _ in range(2)),
                *((PulsarProducer(topics, source(), chance(), report, ended).step, 0.1) for _ in range(3)),
                *((producer.step, 0.1) for producer in sequenced),
                (BreakingProducer(topics, services, chance(), report, ended).step, 0.1),
                *((PulsarConsumer(topics, source(), chance(), report, ended).step, 0.2) for _ in range(2)),
                *((ReceiptConsumer(topics, services, chance(), report, ended).step, 0.2) for _ in range(2)),
                (self._read(chance(), ended), 0.05),
                *((Operator(topics, caller(), chance(), report).step, 1.0) for _ in range(2)),
                (RestReader(topics, caller(), chance(), report).look_up, 0.2),
                (RestReader(topics, caller(), chance(), report).read_raw, 1.0),
                *((_following(part, caller(), chance()), 0.2) for part in (self.followers[0::2], self.followers[1::2])),
            ]
            pauses = chance()
            yield [
                run_until(ended, step, lambda longest=longest: pauses.random() * longest, report)  # type: ignore[misc]
                for step, longest in steps
            ]

    def _read(self, chance: random.Random, ended: threading.Event) -> Callable[[], None]:
        return reading(self.readers, chance.choice, chance.random, self.reader_source, ended.is_set)


def _following(followers: Sequence[Follower], call: Caller, chance: random.Random) -> Callable[[], object]:
    """Return a step that reads one page with one of the readers; each keeps its token over all rounds."""

    def step() -> None:
        follower = chance.choice(followers)
        follower.call = call
        follower.step()

    return step


def _work_and_check(
    deployed: Deployment, folder: Path, seconds: float, round_seconds: float, chance: random.Random, report: Report
) -> int:
    """Work for so many seconds, in rounds; return how many."""
    services = deployed.services
    histories = [History(name, traits, report) for name, traits in TOPICS.items()]
    with ExitStack() as stack:
        call = Caller(services, chance, report)
        stack.callback(call.close)
        drains = ClientSource(services, chance, report, folder, renews=0)
        reads = ClientSource(services, chance, report, folder, renews=0)
        stack.callback(drains.close)
        stack.callback(reads.close)
        call.until("PUT", "/admin/v2/brokers/policies", [200, 204], json=BROKER_POLICIES)
        operator = Operator(histories, call, chance, report)
        for history in histories:
            operator.create_namespace(history)
            operator.create(history)
        followers = [
            Follower(history, call, random.Random(chance.random()), report)
            for history in histories
            if history.traits.folds_by_id
            for _ in range(2)
        ]
        readers = [
            LivingReader(history, kind == "compacted", report)
            for history in histories
            for kind in history.traits.readers
        ]
        actors = Actors(histories, followers, readers, reads, services, folder, chance, report)
        audit = Audit(histories, followers, readers, reads, services, call, chance, report)
        remaining, rounds = seconds, 0
        while remaining > 0:
            rounds += 1
            length = min(remaining, round_seconds)
            remaining -= length
            report.note(f"round {rounds}")
            actors.work_for(length)
            audit.run(drains if rounds % 3 == 0 or remaining <= 0 else None)
            summary = f"{len(report.violations)} violations, {dict(sorted(report.counts.items()))}"
            print(f"round {rounds}: {summary}", file=sys.stderr, flush=True)
        for reader in readers:
            reader.end()
        return rounds


def run(
    folder: Path,
    postgres: PostgresServer,
    s3: Versitygw,
    seconds: float,
    seed: int,
    round_seconds: float = ROUND_SECONDS,
) -> Result:
    """Run a whole history in `folder`, which is created; return its figures and violations."""
    folder.mkdir(parents=True)
    replay = (
        f"python -m tests.faults.random_histories --seed {seed} --seconds {seconds:g} --round {round_seconds:g} FOLDER"
    )
    report = Report(replay, folder)
    chance = random.Random(seed)
    shares_log = chance.random() < 0.5
    library, reason = build(folder)
    began = time.monotonic()
    with deployment(folder / "services", 2, postgres, s3, library, shares_log=shares_log) as deployed:
        rounds = _work_and_check(deployed, folder, seconds, round_seconds, chance, report)
        states = _states_of_runs(deployed.database_url)
        for service in deployed.services:
            service.end(signal.SIGTERM)
        time.sleep(DELETE_DELAY_MS / 1000)
        objects = 0
        with report.collecting():
            objects = check_garbage(deployed.database_url, deployed.store_url, deployed.endpoint, folder / "audit-log")
        errors = _logged_errors(deployed.services, report)
        starts = sum(service.starts for service in deployed.services)
    figures: dict[str, object] = {
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "rounds": rounds,
        "violations": len(report.violations),
        "log directories": 1 if shares_log else 2,
        "disk": "faults" if library else f"no faults: {reason}",
        "starts": starts,
        **{f"compactions {state}": number for state, number in sorted(states.items())},
        "objects in the end": objects,
        **dict(sorted(report.counts.items())),
        "errors logged": dict(errors.most_common(10)) or "none",
    }
    return Result(figures, report.violations)


def _states_of_runs(database_url: str) -> Counter[str]:
    metadata = MetadataStore(database_url, SystemClock())
    try:
        return Counter(run.state.value for _, run in metadata.runs.newest(1_000_000))
    finally:
        metadata.close()


def _logged_errors(services: Sequence[Service], report: Report) -> Counter[str]:
    """Return the error lines of all services; those that no fault explains are violations."""
    errors: Counter[str] = Counter()
    for service in services:
        for line in service.logged():
            if line.get("level") != "error":
                continue
            event = str(line.get("event"))
            errors[event[:100]] += 1
            if any(part in f"{event} {line.get('exception', '')}" for part in _UNEXPLAINED):
                report.add(Violation(str(line)[:3000], Kind.LOGGED, service.name, event[:60]))
    return errors
