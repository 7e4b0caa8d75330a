"""`python -m benchmarks.growth`: time and memory of ten times the messages with fifty times the keys.

It needs about 12 GB of disk at the standard size, and deletes its data at the end. The JVM and the Python workers are
new for each size, so that memory peaks belong to one size.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.bench_session import say, session
from benchmarks.data import Shape
from benchmarks.this_job import peak_memory
from storage.model import TopicName
from tests.workbench import ensure_topic

GOAL = 1.2
"""Maximum ratio of the time to linear growth (issue 4)."""
WORKER_GOAL = 1536 << 20


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.split("\n\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000, help="of the smaller size; default: %(default)s")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the smaller size; the larger has --key-times")
    parser.add_argument("--key-times", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="runs of the smaller size; the larger has one")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    small = Shape(options.messages, 100, options.keys)
    large = Shape(options.messages * options.times, 100, options.keys * options.key_times)
    print("| size | survivors | time, s | driver's JVM | largest worker |\n|---|---|---|---|---|")
    best: list[float] = []

    for shape, rounds in ((small, options.rounds), (large, 1)):
        times = []
        with session(options.folder) as bench:
            environment = bench.environment
            for number in range(rounds):
                topic = ensure_topic(environment, TopicName.parse(f"growth-{number}"))
                say(f"making {shape}")
                bench.append(topic, shape)
                run = bench.compact(topic)
                say(str(run))
                times.append(run["seconds"])
            memory = peak_memory()
        best.append(min(times))
        print(
            f"| {shape} | {run['messages_out']:,} | {min(times):.2f}–{max(times):.2f} "
            f"| {memory[_JVM] / 2**20:,.0f} MiB | {memory[_WORKER] / 2**20:,.0f} MiB |",
            flush=True,
        )
        if memory[_WORKER] > WORKER_GOAL:
            say(f"a worker took more than {WORKER_GOAL / 2**20:.0f} MiB: MISSED")
    ratio = best[1] / best[0] / options.times
    say(f"{ratio:.2f} × linear (goal {GOAL}: {'reached' if ratio <= GOAL else 'MISSED'})")
    return 0


_JVM, _WORKER = "driver's JVM", "largest Python worker"

if __name__ == "__main__":
    sys.exit(main())
