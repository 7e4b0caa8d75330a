"""Random histories of topics over two services, against a model: `python -m tests.faults.random_histories FOLDER`.

Two services with a log directory each, one PostgreSQL behind a link that is cut, one S3 server behind proxies that
fail. Producers, readers and operators work over REST (histories/actors.py) while services are killed, stopped beyond
every lease, and cut off (histories/disturbing.py). After each round all is calm, and every topic is compared with what
was acknowledged (histories/audit.py, histories/history.py); in the end garbage collection must leave what something
refers to and nothing else.

The seed decides what is tried; how threads and processes take turns it does not, so the same seed is a similar
history, not the same. The folder is kept if something does not hold: logs of services, `violation.txt`. All servers
listen on loopback; only processes that were started here are ended, by their pids. Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.histories.actors import Caller, Follower, Operator, Producer, Reader, Tally, run_until
from tests.faults.histories.audit import audit, check_garbage
from tests.faults.histories.disturbing import Disturber
from tests.faults.histories.history import History, LogicalClock
from tests.faults.histories.services import Deployment, Service, deployment, servers
from tests.servers.postgres import PostgresServer
from tests.servers.versitygw import Versitygw

ROUND_SECONDS = 100.0
DELETE_DELAY_MS = 3_000
COMPACTED = ["compact"]
TOPICS: dict[str, dict[str, object]] = {
    "kept": {"compaction.threshold.messages": 150},
    "asked": {"delete.retention.ms": 5_000},
    "compacted": {"cleanup.policy": COMPACTED, "compaction.threshold.messages": 80},
    "compacted-by-hand": {"cleanup.policy": COMPACTED, "delete.retention.ms": 2_000},
    "both": {"cleanup.policy": ["compact", "delete"], "compaction.threshold.messages": 100},
    "deleted": {"cleanup.policy": ["delete"], "retention.bytes": 20_000, "compaction.threshold.messages": 100},
}
"""By name, the policies of the topics; `segment.bytes` and `file.delete.delay.ms` are those of all."""
SHARED_POLICIES: dict[str, object] = {"segment.bytes": 16_384, "file.delete.delay.ms": DELETE_DELAY_MS}


@dataclass
class Actors:
    """All that work on the topics, each in a thread of its own."""

    histories: list[History]
    followers: list[Follower]
    services: Sequence[Service]
    chance: random.Random
    tally: Tally

    def live(self, seconds: float) -> None:
        """One round: everybody works, everything fails; then all come to their ends. Raises what one of them did."""
        ended = threading.Event()
        failures: list[BaseException] = []
        disturber = Disturber(self.services, ended, random.Random(self.chance.random()), self.tally)

        def guarded(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    failures.append(error)
                    ended.set()

            return run

        with self._work(ended) as works:
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
    def _work(self, ended: threading.Event) -> Iterator[list[Callable[[], None]]]:
        callers: list[Caller] = []

        def mine() -> tuple[Caller, random.Random]:
            chance = random.Random(self.chance.random())
            callers.append(Caller(self.services, chance, self.tally))
            return callers[-1], chance

        def pause(most: float) -> Callable[[], float]:
            return lambda: random.random() * most

        steps: list[tuple[Callable[[], object], float]] = [
            *((Producer(self.histories, *mine(), self.tally).step, 0.15) for _ in range(3)),
            *((Operator(self.histories, *mine(), self.tally).step, 1.0) for _ in range(2)),
            (Reader(self.histories, *mine(), self.tally).look_up, 0.2),
            (Reader(self.histories, *mine(), self.tally).read_raw, 1.0),
            *((_following(some, *mine()), 0.2) for some in (self.followers[0::2], self.followers[1::2])),
        ]
        works = [run_until(ended, step, pause(most)) for step, most in steps]
        try:
            yield works
        finally:
            for caller in callers:
                caller.close()


def _following(followers: Sequence[Follower], call: Caller, chance: random.Random) -> Callable[[], object]:
    """One page of one of the readers, whichever; each keeps its place over all rounds."""

    def step() -> None:
        follower = chance.choice(followers)
        follower.call = call
        follower.step()

    return step


def live(found: Deployment, seconds: float, round_seconds: float, seed: int, tally: Tally) -> int:
    """So many seconds of rounds; how many rounds. Raises Violation."""
    chance = random.Random(seed)
    ticks = LogicalClock()
    histories = [History(name, ticks, {**SHARED_POLICIES, **policies}) for name, policies in TOPICS.items()]
    call = Caller(found.services, chance, tally)
    try:
        shared = {"file.delete.delay.ms": DELETE_DELAY_MS}
        call.until("PUT", "/admin/v2/namespaces/public/default/policies", [200, 204], json=shared)
        operator = Operator(histories, call, chance, tally)
        for history in histories:
            operator.create(history)
        followers = [
            Follower(history, call, random.Random(chance.random()), tally) for history in histories for _ in range(2)
        ]
        actors = Actors(histories, followers, found.services, chance, tally)
        ends_at, rounds = time.monotonic() + seconds, 0
        while (remaining := ends_at - time.monotonic()) > 0:
            rounds += 1
            actors.live(min(remaining, round_seconds))
            for follower in followers:
                follower.call = call
            audit(histories, followers, call, chance, tally)
            print(f"round {rounds} held: {dict(sorted(tally.counts.items()))}", file=sys.stderr, flush=True)
            if tally.defects:
                raise AssertionError("\n".join(tally.defects))
        return rounds
    finally:
        call.close()


def run(
    folder: Path,
    postgres: PostgresServer,
    s3: Versitygw,
    seconds: float,
    seed: int,
    round_seconds: float = ROUND_SECONDS,
) -> dict[str, object]:
    """A whole history; what happened. `folder` is made. Raises AssertionError for what does not hold."""
    tally = Tally()
    began = time.monotonic()
    with deployment(folder, 2, postgres, s3) as found:
        rounds = live(found, seconds, round_seconds, seed, tally)
        for service in found.services:
            service.end(signal.SIGTERM)
        time.sleep(DELETE_DELAY_MS / 1000)
        objects = check_garbage(found.database_url, found.store_url, found.endpoint, folder / "audit-log")
        errors = Counter(
            str(line.get("event"))[:100]
            for service in found.services
            for line in service.logged()
            if line.get("level") == "error"
        )
        starts = sum(service.starts for service in found.services)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "rounds": rounds,
        "starts": starts,
        "objects in the end": objects,
        **dict(sorted(tally.counts.items())),
        "errors logged": dict(errors.most_common(10)) or "none",
    }


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.random_histories", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("folder", type=Path, help="an empty one, or one to be made; removed if everything holds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long everything works and fails")
    parser.add_argument("--round", type=float, default=ROUND_SECONDS, help="seconds from one check to the next")
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    given = parser.parse_args()
    try:
        with servers(given.folder / "servers") as (postgres, s3):
            result = run(given.folder / "services", postgres, s3, given.seconds, given.seed, given.round)
    except AssertionError as violation:
        message = f"seed {given.seed}: {violation}"
        (given.folder / "violation.txt").write_text(message)
        print(f"{message}\nlogs: {given.folder}")
        return 1
    shutil.rmtree(given.folder)
    print(", ".join(f"{what}: {count}" for what, count in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
