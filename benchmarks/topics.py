"""`python -m benchmarks.topics`: a thousand topics of a thousand messages in one warm round, and a single topic."""

from __future__ import annotations

import argparse
import sys
import time

from api.cli.local.opening import open_topic
from benchmarks.bench_session import say, session
from storage.log.bulk_append import INPUT_SCHEMA
from storage.model import TopicName
from tests.workbench import ensure_topic

ROUND_GOAL = 60.0
ONE_GOAL = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    import pyarrow as pa

    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2, help="each appends and compacts again")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    table = pa.Table.from_pylist(
        [{"key": b"key-%d" % (n % 100), "payload": b"%0100d" % n} for n in range(options.messages)], schema=INPUT_SCHEMA
    )
    print("| what | time, s | a topic |\n|---|---|---|")
    with session(options.folder) as bench:
        environment = bench.environment
        names = [TopicName.parse(f"topic-{number}") for number in range(options.topics)]
        for number in range(options.rounds):
            for name in names:
                ensure_topic(environment, name).bulk_append(workers=1).append([table])
            bench.engine.warm_up()
            started = time.perf_counter()
            outcomes = list(bench.compactor.compact_all(names))
            seconds = time.perf_counter() - started
            assert all(outcome.run is not None and outcome.error is None for outcome in outcomes)
            each = 1000 * seconds / options.topics
            print(f"| {options.topics} topics, round {number + 1} | {seconds:.1f} | {each:.0f} ms |", flush=True)
            say(f"goal {ROUND_GOAL:.0f} s: {'reached' if seconds <= ROUND_GOAL else 'MISSED'}")
        for number in range(options.rounds + 3):
            ensure_topic(environment, names[0]).bulk_append(workers=1).append([table])
            seconds = bench.compact(open_topic(environment, names[0]))["seconds"]
            print(f"| 1 topic of {options.messages} messages, run {number + 1} | {seconds:.2f} | |", flush=True)
        say(f"goal {ONE_GOAL} s: {'reached' if seconds <= ONE_GOAL else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
